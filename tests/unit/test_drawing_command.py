"""`testbed graph`: what it draws by what it is given, where it writes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from testbed.commands import drawing
from testbed.drawing.mermaid import mermaid
from testbed.drawing.view import View
from testbed.errors import TestbedError
from testbed.load import load_topology

SMALL = Path(__file__).parents[2] / "topologies/small3.yaml"


def call(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(drawing.graph)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_without_output_mermaid_is_printed_and_nothing_but_it() -> None:
    result = call(SMALL)

    assert result.stdout == mermaid(View(topology=load_topology(SMALL)))
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("suffix", "start"),
    [("svg", b"<?xml"), ("png", b"\x89PNG"), ("SVG", b"<?xml"), ("mmd", b"---"), ("mermaid", b"---")],
)
def test_the_name_of_the_file_decides_what_is_written(tmp_path: Path, suffix: str, start: bytes) -> None:
    output = tmp_path / f"net.{suffix}"
    result = call(SMALL, "-o", output)

    assert output.read_bytes().startswith(start)
    assert f"wrote {output}: small3: 3 servers, 3 links" in result.stdout.replace("\n", " ")


@pytest.mark.parametrize("name", ["net.pdf", "net", "net.svg.gz"])
def test_other_kinds_of_file_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TestbedError, match=r"name a file that ends in \.svg, \.png, \.mmd, \.mermaid"):
        call(SMALL, "-o", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["svg", "mmd"])
def test_a_file_is_replaced_only_by_force(tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"net.{suffix}"
    output.write_text("mine")
    with pytest.raises(TestbedError, match="exists: choose another name, or replace it with --force"):
        call(SMALL, "-o", output)
    assert output.read_text() == "mine"
    call(SMALL, "-o", output, "--force")
    assert output.read_text() != "mine"


def test_a_file_and_a_name_are_too_much() -> None:
    with pytest.raises(TestbedError, match="draw the one or the other"):
        call(SMALL, "--name", "lab")


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A testbed that is up, one link of which was changed, as far as the command can tell."""
    topology = load_topology(SMALL)
    shaping = {
        (link.name, source): way
        for link in topology.links
        for source, way in ((link.a, link.forward), (link.b, link.backward))
    }
    shaping["s1-s2", "s1"] = replace(shaping["s1-s2", "s1"], rate_bps=5e6)
    state = SimpleNamespace(relay_alive=True, broken=(), broken_nodes=())
    asked: list[Any] = []
    network = SimpleNamespace(
        topology=topology,
        status=lambda: state,
        shaping=lambda *, reachable: shaping if state.relay_alive else {},
        close=lambda: None,
        asked=asked,
        state=state,
    )
    monkeypatch.setattr(drawing.Network, "attach", lambda name: asked.append(name) or network)
    return network


def test_without_a_file_the_testbed_that_is_up_is_drawn_as_it_is_shaped(running: SimpleNamespace) -> None:
    text = call().stdout

    assert "s1 → s2: 5 Mbit/s, 2 ms (changed)" in text
    assert "linkStyle 0 stroke" in text
    call("--name", "lab")
    assert running.asked == [None, "lab"]


def test_what_is_broken_is_marked_and_told(running: SimpleNamespace) -> None:
    running.state.broken, running.state.broken_nodes = ("the namespace of s3 is gone",), ("s3",)
    result = call()

    assert result.stderr == "the namespace of s3 is gone\n"
    assert ":::broken" in result.stdout


def test_without_its_relay_no_link_is_shaped(running: SimpleNamespace) -> None:
    running.state.relay_alive = False
    assert call().stdout.count("(not shaped)") == 3
