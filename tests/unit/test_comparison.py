"""A timeline that does not fit the topology is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestration.catalogue import builder
from orchestration.comparison import check_scenario
from scenarios.timeline import LinkChange, Scenario, ServerFailure
from testbed.errors import TestbedError
from tests.support.simulated import requests, scenario, topology


def fits() -> Scenario:
    return scenario(requests(["s1", "s2"], [0.5, 0.6]))


def test_a_scenario_that_fits_passes() -> None:
    change = LinkChange(at_s=1.0, link="s2-s1", rate_bps=1e6, delay_s=0.0, loss=1.0)
    check_scenario(
        replace(fits(), changes=(change,), failures=(ServerFailure(at_s=1.0, server="s3"),)), topology("small3")
    )


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"requests": requests(["s9"], [0.5])}, "request 0 arrives at 's9', which is no server of small3"),
        ({"failures": (ServerFailure(at_s=1.0, server="s33"),)}, "'s33' is to fail, .* did you mean 's3'"),
        ({"changes": (LinkChange(at_s=1.0, link="s1-s9"),)}, "the link 's1-s9', which small3 lacks; did you mean"),
        ({"changes": (LinkChange(at_s=1.0, link="s1-s2", loss=3.0),)}, "losses between 0 and 1"),
        ({"changes": (LinkChange(at_s=1.0, link="s1-s2", rate_bps=0.0),)}, "rates are above 0"),
        ({"changes": (LinkChange(at_s=1.0, link="s1-s2", delay_s=-1.0),)}, "delays not below"),
        ({"changes": (LinkChange(at_s=1.0, link="s1-s2", delay_s=float("nan")),)}, "is no link"),
    ],
)
def test_what_the_topology_lacks_or_no_link_can_be_is_refused(wrong: dict[str, object], expected: str) -> None:
    with pytest.raises(TestbedError, match=expected):
        check_scenario(replace(fits(), **wrong), topology("small3"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise KeyError('oops')", "cannot be built: KeyError: 'oops'"),
        ("return 42", r"build\(\) returned int, not a Scenario"),
    ],
)
def test_a_users_scenario_that_cannot_be_built_is_named(tmp_path: Path, body: str, expected: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def build(setting):\n    {body}\n")
    with pytest.raises(TestbedError, match=expected):
        builder(str(file))(None)  # type: ignore[arg-type]
