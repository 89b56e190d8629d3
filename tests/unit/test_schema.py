"""The published schema and the loader agree: what the loader takes the schema takes, and wrong shapes fail in both."""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from testbed import schema, units
from testbed.loading import linkformat
from testbed.loading.document import compose
from testbed.loading.fileformat import DEVICE_KEYS, TOPOLOGY
from testbed.loading.kinds import Quantity
from testbed.loading.problems import Report
from testbed.loading.sections import Key, Table
from testbed.schema import schema_text, topology_schema

ROOT = Path(__file__).parents[2]
RATE_AND_DELAY = [Key("rate", linkformat.RATE_VALUE, "alone"), Key("delay", linkformat.DELAY_VALUE, "alone")]
QUEUE_ALONE = Key("queue", linkformat.QUEUE.kind.kind, "alone")  # type: ignore[attr-defined]
QUANTITY_KEYS = [
    *(key for key in (*DEVICE_KEYS, *linkformat.DIRECTION_KEYS) if isinstance(key.kind, Quantity)),
    *RATE_AND_DELAY,
    QUEUE_ALONE,
]
EVERY_UNIT = sorted(
    {unit for key in QUANTITY_KEYS for unit in key.kind.dimension.units} | {"mbps", "m", "Kb", "µ", "m s"}
)
TYPES = {"object": dict, "array": list, "string": str, "number": (int, float), "boolean": bool}
#: Words of JSON Schema that only inform.
SILENT = {"$schema", "title", "description", "examples"}


def linkformat_schema() -> dict[str, Any]:
    return Table(linkformat.DIRECTION_KEYS).schema()


def violations(value: Any, rules: dict[str, Any], at: str = "") -> Iterator[str]:
    """A validator for the words of JSON Schema that our schema uses; any other word fails the test."""
    for word, rule in rules.items():
        match word:
            case "type":
                good = isinstance(value, TYPES[rule]) and not (rule == "number" and isinstance(value, bool))
            case "const":
                good = value == rule and isinstance(value, bool) == isinstance(rule, bool)
            case "enum":
                good = value in rule
            case "anyOf":
                good = any(not list(violations(value, option, at)) for option in rule)
            case "not":
                good = bool(list(violations(value, rule, at)))
            case "pattern":
                good = not isinstance(value, str) or re.search(rule, value) is not None
            case "maxLength":
                good = not isinstance(value, str) or len(value) <= rule
            case "minimum":
                good = not isinstance(value, int | float) or value >= rule
            case "maximum":
                good = not isinstance(value, int | float) or value <= rule
            case "minItems":
                good = not isinstance(value, list) or len(value) >= rule
            case "maxItems":
                good = not isinstance(value, list) or len(value) <= rule
            case "required":
                good = not isinstance(value, dict) or all(key in value for key in rule)
            case "properties" | "additionalProperties" | "propertyNames" | "items":
                good = True
            case _:
                assert word in SILENT, f"unknown word {word}"
                good = True
        if not good:
            yield f"{at or 'top'}: {word}"
    if isinstance(value, dict):
        for key, item in value.items():
            known = rules.get("properties", {})
            below = known.get(key, rules.get("additionalProperties", {}))
            if below is False:
                yield f"{at}.{key}: additionalProperties"
            else:
                yield from violations(item, below, f"{at}.{key}")
            yield from violations(key, rules.get("propertyNames", {}), f"{at}.{key}")
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from violations(item, rules.get("items", {}), f"{at}[{number}]")


@pytest.mark.parametrize("file", sorted((ROOT / "topologies").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_takes_every_topology_that_the_loader_takes(file: Path) -> None:
    assert list(violations(yaml.safe_load(file.read_text("utf-8")), topology_schema())) == []


@pytest.mark.parametrize(
    "mistake",
    [
        "ambiguous_delay",
        "ambiguous_rate",
        "bursts_and_codel",
        "queue_in_packets",
        "trace_keys",
        "words_of_other_tools",
        "bad_node_names",
        "defaults_are_checked",
        "delay_without_unit",
        "device_units",
        "everything_missing",
        "incomplete_device",
        "infinite_rate",
        "links_as_mapping",
        "missing_between",
        "negative_delay",
        "negative_users",
        "nodes_as_list",
        "only_a_text",
        "reverse_has_ends",
        "three_ends",
        "top_level_list",
        "unknown_key",
        "unknown_unit",
        "wrong_types",
    ],
)
def test_the_schema_refuses_wrong_shapes_keys_and_units_as_the_loader_does(mistake: str) -> None:
    text = (ROOT / f"tests/golden/topology/{mistake}.yaml").read_text("utf-8")

    assert list(violations(yaml.safe_load(text), topology_schema())) != []


@pytest.mark.parametrize(
    "values",
    [
        "jitter: 1 ms, jitter_table: t.dist, reorder: true, duplicate: 1 %, corrupt: 0.001",
        "jitter_table: false, bursts: false, codel: false, queue: auto",
        "bursts: {worsens: 1 %, recovers: 20 %, loss_bad: 50 %, loss_good: 0}, queue: 100 packets",
        "codel: {target: 10 ms, interval: 200 ms}, queue: 64 KiB",
        "rate: {trace: t, format: mahimahi}, delay: {trace: t, format: steps, unit: ms, round_trip: true}",
        "rate: {trace: t, format: steps}, delay: {trace: t, format: csv, every: 1 s, value: a, unit: ms}",
        "rate: {trace: t, format: csv, time: a, time_unit: ms, value: b, unit: kbit/s, missing: hold}",
    ],
)
def test_the_schema_takes_every_key_of_a_link(values: str) -> None:
    assert list(violations(yaml.safe_load(f"{{{values}}}"), linkformat_schema())) == []


@pytest.mark.parametrize(
    "values",
    [
        "jitter_table: true",
        "bursts: {worsens: 1 %}",
        "queue: none",
        "queue: 100 pkts",
        "codel: {limit: 3}",
        "rate: {trace: t}",
        "rate: {trace: t, format: mahimahi, unit: Mbit/s}",
        "rate: {trace: t, format: csv, value: b, unit: kbit/s}",
        "rate: {trace: t, format: steps, unit: Mbps}",
        "delay: {trace: t, format: mahimahi}",
        "delay: {trace: t, format: steps}",
    ],
)
def test_the_schema_refuses_wrong_values_of_a_link(values: str) -> None:
    assert list(violations(yaml.safe_load(f"{{{values}}}"), linkformat_schema())) != []


@pytest.mark.parametrize("key", QUANTITY_KEYS, ids=lambda key: key.name)
@given(
    number=st.sampled_from(["0", "1", "1.5", ".5", "2.", "1e3", "-1", "-0", "+2", "1,5", "", "nan"]),
    space=st.sampled_from(["", " ", "  "]),
    unit=st.sampled_from(EVERY_UNIT),
)
def test_a_text_is_a_quantity_to_the_schema_iff_it_is_one_to_the_loader(
    key: Key[Any], number: str, space: str, unit: str
) -> None:
    text = f"{number}{space}{unit}"
    quantity = key.kind
    assert isinstance(quantity, Quantity)
    try:
        quantity.dimension.parse(text)
        is_quantity = True
    except units.UnitError:
        is_quantity = False

    assert (list(violations(text, quantity.schema())) == []) == is_quantity


def test_the_limits_shown_as_examples_are_within_the_limits() -> None:
    for key in QUANTITY_KEYS:
        for example in (key.kind.least, key.kind.most):
            report, node = Report(), compose(f"'{example}'", Report())
            assert node is not None
            key.kind.read(node, key.name, report)
            assert report.problems == []


def test_every_key_is_explained() -> None:
    def undocumented(rules: dict[str, Any], at: str) -> Iterator[str]:
        for name, below in rules.get("properties", {}).items():
            if not below.get("description"):
                yield f"{at}.{name}"
            yield from undocumented(below, f"{at}.{name}")
        for word in ("additionalProperties", "items"):
            if isinstance(rules.get(word), dict):
                yield from undocumented(rules[word], at)
        for option in rules.get("anyOf", []):
            yield from undocumented(option, at)

    assert set(topology_schema()["properties"]) == {key.name for key in TOPOLOGY.keys}
    assert list(undocumented(topology_schema(), "")) == []


def test_the_printed_schema_is_json_and_names_its_dialect() -> None:
    printed = json.loads(schema_text())

    assert printed == topology_schema()
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(schema).failed == 0
