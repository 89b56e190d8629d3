"""docs/topology-files.md says what the loader does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed import units
from testbed.load import parse_topology
from testbed.loading.changes import changed
from testbed.loading.fileformat import DEVICE_KEYS, LINK, NODE, TOPOLOGY
from testbed.loading.linkformat import (
    DELAY_TRACES,
    INTERVAL,
    LOSS_BAD,
    LOSS_GOOD,
    RATE_TRACES,
    RECOVERS,
    TARGET,
    WORSENS,
)
from testbed.paths import Paths
from testbed.topology import Direction, Topology

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/topology-files.md").read_text("utf-8")
TRACES = (ROOT / "docs/traces.md").read_text("utf-8")


BURST_KEYS = (WORSENS, RECOVERS, LOSS_BAD, LOSS_GOOD)


@pytest.fixture(scope="module")
def example() -> Topology:
    match = re.search(r"```yaml\n(.*?)```", DOC, re.DOTALL)
    assert match is not None
    return parse_topology(match[1], "docs/topology-files.md")


def table_after(text: str, doc: str = DOC) -> list[list[str]]:
    """The cells of the first Markdown table after ``text``, without its head."""
    lines = doc[doc.index(text) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    body = lines[start + 2 :]
    end = next((number for number, line in enumerate(body) if not line.startswith("|")), len(body))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body[:end]]


def test_the_example_means_what_the_text_below_it_says(example: Topology) -> None:
    link = example.link("s2-r1")

    assert (link.forward.rate_bps, link.backward.rate_bps) == (50e6, 250e6)
    for direction in (link.forward, link.backward):
        assert (direction.delay_s, direction.loss, direction.queue_bytes) == (0.008, 0.001, 256 * 1024)
    assert Paths(example).expected_rtt_s("s1", "s2") == 0.020


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("At the top:", TOPOLOGY.keys),
        ("A device (the", DEVICE_KEYS),
        ("A node is a server", NODE.keys),
        ("A link:", LINK.keys),
        ("Bursts (", BURST_KEYS),
        ("CoDel's times", (TARGET, INTERVAL)),
    ],
)
def test_every_key_of_the_format_is_documented_and_no_other(heading: str, keys: tuple[object, ...]) -> None:
    documented = [row[0].strip("`") for row in table_after(heading)]

    assert sorted(documented) == sorted(key.name for key in keys)  # type: ignore[attr-defined]


def test_the_unit_table_is_the_one_in_force() -> None:
    written = {row[0]: set(re.findall(r"`([^`]+)`", row[1])) for row in table_after("## Units")}

    assert written == {
        "time": set(units.TIME.units),
        "size": set(units.SIZE.units),
        "rate, bandwidth": set(units.RATE.units),
        "compute speed": set(units.COMPUTE.units),
        "share": set(units.SHARE.units) - {""},
    }
    assert units.RATE.units.keys() == units.BANDWIDTH.units.keys()


@pytest.mark.parametrize("row", table_after("What could mean two things"), ids=lambda row: row[0])
def test_the_ambiguous_texts_are_refused_with_the_documented_choice(row: list[str]) -> None:
    text, *readings = re.findall(r"`([^`]+)`", " ".join(row))
    parse = units.bits_per_second if "bit" in row[1] else units.seconds if "ms" in row[1] else units.size_bytes

    with pytest.raises(units.UnitError) as caught:
        parse(text)

    assert str(caught.value) == f"'{text}' is ambiguous: write '{readings[0]}' or '{readings[1]}'"


def test_every_key_of_a_recording_is_documented_and_no_other() -> None:
    tables = [*RATE_TRACES.tables.values(), *DELAY_TRACES.tables.values()]

    assert {row[0].strip("`") for row in table_after("## Formats", TRACES)} == {
        key.name for table in tables for key in table.keys
    }


def test_the_example_of_recordings_loads_beside_the_files_that_come_with_the_testbed() -> None:
    match = re.search(r"```yaml\n(.*?)```", TRACES, re.DOTALL)
    assert match is not None
    link = parse_topology(match[1], "docs/traces.md", directory=ROOT / "topologies").links[0]

    assert link.forward.rate_trace is not None
    assert link.forward.delay_trace is not None
    assert link.forward.jitter_shape is not None
    assert link.backward.opportunities is not None


def test_the_bursts_of_the_text_lose_what_it_says() -> None:
    assert "`{worsens: 1 %, recovers: 20 %}` loses 4.8 % of the packets, five in a row" in DOC
    bursts = changed(Direction(rate_bps=1e9, delay_s=0.005), ["bursts=worsens:1%,recovers:20%"], ROOT).burst_loss
    assert bursts is not None
    assert (round(bursts.mean_loss, 3), bursts.mean_burst_packets) == (0.048, 5)


def test_the_changes_of_the_text_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "lte.down").write_text("1\n")
    lines = [line.partition("#")[0].split() for line in DOC.splitlines() if line.startswith("    testbed set ")]
    assert len(lines) >= 3
    for words in lines:
        direction = Direction(rate_bps=1e7, delay_s=0.005)
        changes = [word for word in words if "=" in word]
        assert changed(direction, changes, tmp_path) != direction or "bursts=false" in changes
