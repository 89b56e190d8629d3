"""`testbed import`: options as typed, one message where something is wrong, the file where it was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from testbed.commands.importing import import_file
from testbed.errors import TestbedError
from testbed.load import load_topology, parse_topology

RTT = "from,to,rtt_ms\nparis,rome,22\nrome,rome,1\n"
ANSWERS = ("--servers", "all", "--device", "l4", "--rate", "1 Gbit/s")


@pytest.fixture
def call(tmp_path: Path):
    (tmp_path / "rtt.csv").write_text(RTT)
    app = typer.Typer()
    app.command()(import_file)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [str(tmp_path / "rtt.csv"), *arguments], catch_exceptions=False)

    return run


def test_without_output_the_file_is_printed_and_nothing_but_it(call) -> None:
    result = call(*ANSWERS)

    assert result.exit_code == 0
    assert parse_topology(result.stdout).link("paris-rome").forward.delay_s == 0.011
    assert result.stderr == "note: left out: 1 round trip of a place to itself\n"


def test_the_header_has_the_command_without_directories_and_without_the_output(call, tmp_path: Path) -> None:
    call("-o", str(tmp_path / "x.yaml"), *ANSWERS)
    text = (tmp_path / "x.yaml").read_text()

    assert "#   testbed import rtt.csv --servers all --device l4 --rate '1 Gbit/s'\n" in text
    assert str(tmp_path) not in text


def test_a_file_is_written_once_and_replaced_only_by_force(call, tmp_path: Path) -> None:
    output = tmp_path / "x.yaml"
    result = call("-o", str(output), *ANSWERS)
    assert f"wrote {output}: 2 servers, 0 routers, 1 link from rtt" in result.stdout.replace("\n", " ")
    assert len(load_topology(output).links) == 1

    output.write_text("mine")
    with pytest.raises(TestbedError, match="exists: choose another name, or replace it with --force"):
        call("-o", str(output), *ANSWERS)
    assert output.read_text() == "mine"
    call("-o", str(output), "--force", *ANSWERS)
    assert len(load_topology(output).links) == 1


def test_a_refused_import_leaves_no_file(call, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="--rate"):
        call("-o", str(tmp_path / "x.yaml"))
    assert not (tmp_path / "x.yaml").exists()


def test_an_output_that_cannot_be_written_is_one_message(call, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="cannot be written: No such file or directory"):
        call("-o", str(tmp_path / "missing/x.yaml"), *ANSWERS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "100 mbps"), "--rate: '100 mbps' is ambiguous: write '100 Mbit/s' or '100 MB/s'"),
        (("--delay", "10"), "--delay: '10' has no unit"),
        (("--delay-per-km", "5 km"), "--delay-per-km: '5 km' has an unknown unit"),
        (("--delay-per-km", "0 us"), "--delay-per-km: zero"),
        (("--route-factor", "0.5"), "--route-factor 0.5: write 1"),
        (("--route-factor", "nan"), "--route-factor nan: write 1"),
        (("--columns", "a,b"), "--columns a,b: write three names of columns"),
    ],
)
def test_options_are_checked_and_named(call, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(TestbedError) as caught:
        call(*arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("arguments", [("--format", "pdf"), ("--parallel", "all"), ("--repeated", "max")])
def test_a_choice_that_is_none_is_refused_with_the_choices(call, arguments: tuple[str, str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert "is not one of" in result.stderr
