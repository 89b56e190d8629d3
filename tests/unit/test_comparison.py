"""A timeline that does not fit the topology is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestration import comparison
from orchestration.catalogue import builder
from orchestration.checks import check_scenario, in_order
from scenarios.timeline import LinkChange, Scenario, ServerFailure, ServerSlowdown
from testbed.errors import TestbedError
from tests.support.simulated import requests, scenario, topology, twin


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
        ({"slowdowns": (ServerSlowdown(at_s=1.0, server="s33", factor=2.0),)}, "'s33' is to slow down, .* mean 's3'"),
        ({"slowdowns": (ServerSlowdown(at_s=1.0, server="s3", factor=0.0),)}, "the factor must be above 0"),
        ({"slowdowns": (ServerSlowdown(at_s=1.0, server="s3", factor=float("nan")),)}, "the factor must be above 0"),
        ({"slowdowns": (ServerSlowdown(at_s=-1.0, server="s3", factor=2.0),)}, "it must lie in 0"),
        ({"domain_shares": {"s33": {"code": 1.0}}}, "domain_shares are of 's33', .* did you mean 's3'"),
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
    ("wrong", "expected"),
    [
        ({"at_s": float("nan")}, "arrives at nan s"),
        ({"at_s": 1e9}, "arrives at 1000000000.0 s"),
        ({"kind": "sing"}, "of kind 'sing'; known are score and generate"),
        ({"kind": "generate"}, "output_tokens above 0"),
        ({"output_tokens": 3}, "a score has none; not 3"),
        ({"number": 2**70}, "its number must be a whole one"),
        ({"number": 1}, "two requests have the number 1"),
    ],
)
def test_a_request_that_cannot_be_played_is_refused(wrong: dict[str, object], expected: str) -> None:
    first, second = fits().requests
    with pytest.raises(TestbedError, match=expected):
        check_scenario(replace(fits(), requests=(replace(first, **wrong), second)), topology("small3"))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["duration_s", "deadline_s", "slo_s", "quality_budget"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_numbers_that_mean_nothing_are_refused(what: str, value: float) -> None:
    with pytest.raises(TestbedError, match=f"{what} is"):
        check_scenario(replace(fits(), **{what: value}), topology("small3"))  # type: ignore[arg-type]


@pytest.mark.parametrize("shares", [{"code": 0.5}, {"code": 1.5, "docs": -0.5}, {"code": float("nan")}])
def test_domain_shares_that_are_no_shares_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(TestbedError, match=r"domain_shares of s1 are .* they must add up to 1"):
        check_scenario(replace(fits(), domain_shares={"s1": shares}), topology("small3"))


def test_a_timeline_is_played_in_the_order_of_time() -> None:
    changes = (LinkChange(at_s=1.5, link="s1-s2", restore=True), LinkChange(at_s=0.5, link="s1-s2", loss=0.1))
    slowdowns = tuple(ServerSlowdown(at_s=at_s, server="s3", factor=2.0) for at_s in (1.5, 0.5))
    backwards = replace(fits(), requests=tuple(reversed(fits().requests)), changes=changes, slowdowns=slowdowns)

    assert [change.at_s for change in in_order(backwards).changes] == [0.5, 1.5]
    assert [slowdown.at_s for slowdown in in_order(backwards).slowdowns] == [0.5, 1.5]
    assert [request.at_s for request in in_order(backwards).requests] == [0.5, 0.6]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise KeyError('oops')", "cannot be built: KeyError: 'oops'"),
        ("raise SystemExit(0)", "cannot be built: SystemExit: 0"),
        ("return 42", r"build\(\) returned int, not a Scenario"),
    ],
)
def test_a_users_scenario_that_cannot_be_built_is_named(tmp_path: Path, body: str, expected: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def build(setting):\n    {body}\n")
    with pytest.raises(TestbedError, match=expected):
        builder(str(file))(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("patience_s", "heard"), [(0.0, ["placing {}: halfway"]), (1e9, [])])
def test_a_placement_that_takes_long_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float, heard: list[str]
) -> None:
    file = tmp_path / "slow.py"
    file.write_text(
        "from agents.frameworks.greedy import Greedy\n"
        "class Slow(Greedy):\n"
        "    def place(self, *given):\n"
        "        self.progress('halfway')\n"
        "        return super().place(*given)\n"
    )
    monkeypatch.setattr(comparison, "PATIENCE_S", patience_s)
    said: list[str] = []

    comparison.prepare(
        scenarios={0: scenario(())},
        topology=topology("small3"),
        model=twin(),
        frameworks=[str(file)],
        redundancy=2.0,
        progress=said.append,
    )

    assert said == [text.format(file) for text in heard]
