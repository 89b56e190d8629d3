"""docs/importing.md says what `testbed import` does: its examples run, its tables are those in force."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

from testbed.commands.importing import import_file
from testbed.importers.detect import FORMATS
from testbed.importers.links import Parallel
from testbed.importers.resolve import DEVICE_CLASSES
from testbed.importers.rtt import Repeated
from testbed.load import load_topology
from testbed.topology import Topology

DOC = (Path(__file__).parents[2] / "docs/importing.md").read_text("utf-8")
SAMPLES = dict(re.findall(r"Save as `([^`]+)`:\n\n```\w+\n(.*?)```", DOC, re.DOTALL))
COMMANDS = re.findall(r"^    testbed import ((?!FILE).+)$", DOC, re.MULTILINE)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Topology]:
    """What every example of the page makes, by the name of its file."""
    directory = tmp_path_factory.mktemp("docs")
    for name, text in SAMPLES.items():
        (directory / name).write_text(text)
    app = typer.Typer()
    app.command()(import_file)
    made = {}
    for command in COMMANDS:
        file, _, target, *options = shlex.split(command)
        result = CliRunner().invoke(
            app, [str(directory / file), "-o", str(directory / target), *options], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        made[file] = load_topology(directory / target)
    return made


def test_every_sample_is_imported_by_a_command(imported: dict[str, Topology]) -> None:
    assert len(SAMPLES) == 7
    assert imported.keys() == SAMPLES.keys()


def test_the_zoo_example_has_the_numbers_of_the_text(imported: dict[str, Topology]) -> None:
    net = imported["metro.graphml"]

    assert [(node.name, node.kind) for node in net.nodes] == [
        ("paris", "server"),
        ("london", "router"),
        ("elsewhere", "server"),
    ]
    drawn, chosen = net.link("paris-london").forward, net.link("london-elsewhere").forward
    assert drawn.rate_bps == 2.5e9
    assert drawn.delay_s == pytest.approx(344 * 1.3 / 199_861.6, rel=0.003)
    assert (chosen.rate_bps, chosen.delay_s) == (1e9, 0.003)


def test_the_shadow_example_takes_the_lesser_bandwidth_of_each_direction(imported: dict[str, Topology]) -> None:
    (link,) = imported["shadow.gml"].links

    assert (link.a, link.b) == ("de-0", "fr-1")
    assert (link.forward.rate_bps, link.backward.rate_bps) == (20e6, 40e6)
    assert (link.forward.delay_s, link.forward.loss) == (0.0125, 0.001)


def test_the_containerlab_example_reads_the_link_variables(imported: dict[str, Topology]) -> None:
    net = imported["lab.clab.yml"]

    assert [node.name for node in net.servers] == ["client1", "client2"]
    named, given = net.link("client1-leaf1").forward, net.link("client2-leaf1").forward
    assert (named.rate_bps, named.delay_s, named.loss) == (100e6, 0.002, 0.001)
    assert (given.rate_bps, given.delay_s, given.loss) == (10e9, 0.0001, 0.0)


def test_the_kollaps_example_has_two_directions_and_two_replicas(imported: dict[str, Topology]) -> None:
    net = imported["experiment.xml"]

    assert [node.name for node in net.servers] == ["client", "server-1", "server-2"]
    link = net.link("client-s1")
    assert (link.forward.rate_bps, link.backward.rate_bps) == (5e6, 100e6)
    assert (link.forward.delay_s, link.forward.jitter_s, link.forward.loss) == (0.010, 0.0005, 0.001)
    assert net.link("s1-server-2").forward.rate_bps == 1e9


def test_the_round_trip_examples_halve_and_choose(imported: dict[str, Topology]) -> None:
    net = imported["rtt.csv"]

    link = net.link("paris-london")
    assert (link.forward.delay_s, link.backward.delay_s) == (0.0042, 0.0043)
    assert net.link("paris-oslo").backward.delay_s == 0.0155
    assert len(net.links) == 2
    assert imported["probes.csv"].link("alpha-east").forward.delay_s == 0.01965


def test_the_tables_name_every_format_option_and_class() -> None:
    assert {form for form in FORMATS if f"`{form}`" not in DOC} == set()
    assert {name for name in DEVICE_CLASSES if f"`{name}`" not in DOC} == set()
    assert {word for word in (*get_args(Parallel), *get_args(Repeated)) if f"`{word}`" not in DOC} == set()
    app = typer.Typer(add_completion=False)
    app.command()(import_file)
    options = {
        option for parameter in typer.main.get_command(app).params for option in parameter.opts if option[:2] == "--"
    }
    assert {option for option in options - {"--help"} if option not in DOC} == set()
