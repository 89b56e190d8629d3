"""The whole system but sockets and namespaces: every framework, real agents, the real twin, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from agents.frameworks.registry import BLIND_TO_BUDGET, FRAMEWORKS
from analysis.load import load
from orchestration.errors import FleetError
from testbed.topology import Topology
from tests.support.simulated import (
    FIRST_COPY,
    compared,
    ended_s,
    errors,
    every,
    requests,
    run,
    scenario,
    simulate,
    topology,
    user_framework,
)

SMALL = topology("small3")
TOPOLOGIES = [SMALL, topology("edge10")]
HOMES = ["s2", "s3", "s1"]
#: Some rows compute in a low precision whatever the budget.
LOSSLESS_WITHOUT_BUDGET = [name for name in FRAMEWORKS if name not in BLIND_TO_BUDGET]

# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", TOPOLOGIES, ids=lambda on: on.name)
@pytest.mark.parametrize("framework", LOSSLESS_WITHOUT_BUDGET)
def test_full_precision_logits_are_bit_identical_to_one_process(framework: str, on: Topology, tmp_path: Path) -> None:
    homes = [server.name for server in on.servers]
    played = replace(scenario(requests(homes, every(0.05, to_s=0.9), tokens=30)), quality_budget=0.0)

    found = run(played, framework, on, tmp_path)

    assert errors(found) == {}
    assert found.requests["exact"].to_list() == [True] * len(played.requests)
    assert found.requests["nll"].to_list() == found.requests["reference_nll"].to_list()


@pytest.mark.parametrize("framework", ["greedy", "edgeshard"])
def test_32_requests_at_once_are_all_answered_as_if_alone(framework: str, tmp_path: Path) -> None:
    played = replace(scenario(requests(HOMES, [0.5] * 32, tokens=8)), deadline_s=100.0)

    found = run(played, framework, SMALL, tmp_path)

    assert found.requests["exact"].to_list() == [True] * 32


@pytest.mark.parametrize("framework", ["local-first", "edgeshard", "hetroute"])
def test_generated_tokens_are_those_of_one_process(framework: str, tmp_path: Path) -> None:
    played = replace(scenario(requests(HOMES, every(0.1, to_s=0.8), output_tokens=4)), quality_budget=0.0)

    found = run(played, framework, SMALL, tmp_path)

    assert found.requests["exact"].to_list() == [True] * len(played.requests)
    assert found.requests["top1_agreement"].to_list() == [1.0] * len(played.requests)
    for row in found.requests.iter_rows(named=True):
        assert row["ttft_s"] > 0
        assert row["tpot_s"] > 0
        assert row["ttft_s"] + 3 * row["tpot_s"] == pytest.approx(row["latency_s"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_stays_within_the_quality_budget_by_its_own_account(framework: str, tmp_path: Path) -> None:
    on = topology("edge10")
    homes = [server.name for server in on.servers]

    played = scenario(requests(homes, every(0.05, to_s=0.8)))

    found = run(played, framework, on, tmp_path)

    assert errors(found) == {}
    spent = found.layers["quality_spent"].to_list()
    assert 0.0 <= min(spent) <= max(spent) <= played.quality_budget + 1e-9


# --- records ----------------------------------------------------------------------------------------------------------


def test_payload_bytes_are_what_the_requests_say_they_sent_and_links_carry_more(tmp_path: Path) -> None:
    comparison = compared(scenario(requests(HOMES, every(0.05, to_s=0.9))), ["greedy"], SMALL)

    outcome = simulate(comparison, tmp_path / "results")

    sent_bytes = sum(outcome.run.requests["sent_bytes"].to_list())
    assert sent_bytes == outcome.payload_bytes > 0
    assert sent_bytes < sum(outcome.run.links["bytes"].to_list()) < 1.2 * sent_bytes


def test_every_layer_of_every_request_leaves_one_record(tmp_path: Path) -> None:
    played = scenario(requests(HOMES, every(0.1, to_s=0.9)))

    found = run(played, "greedy", SMALL, tmp_path)

    layers = found.layers.select("request", "layer").rows()
    assert layers == [(request.number, layer) for request in played.requests for layer in range(32)]
    spent = found.layers.group_by("request", maintain_order=True).agg(pl.col("duration_s").sum())
    assert (spent["duration_s"] < found.requests["latency_s"]).all()
    assert (spent["duration_s"] > 0.9 * found.requests["latency_s"]).all()


def test_nothing_is_late_in_virtual_time(tmp_path: Path) -> None:
    found = run(scenario(requests(HOMES, every(0.1, to_s=0.9))), "hetroute", SMALL, tmp_path)

    assert found.manifest.fidelity.verdict == "PASS"
    assert {check.value for check in found.manifest.fidelity.checks} == {0.0}
    assert found.requests["sent_s"].to_list() == found.requests["scheduled_s"].to_list()
    assert found.requests["late_s"].to_list() == [0.0] * found.requests.height


# --- frameworks of users ----------------------------------------------------------------------------------------------


def test_a_framework_in_one_file_of_the_users_runs(tmp_path: Path) -> None:
    mine = user_framework(tmp_path / "mine.py", FIRST_COPY)

    found = run(scenario(requests(HOMES, every(0.1, to_s=0.8))), mine, SMALL, tmp_path)

    assert found.manifest.framework == "mine"
    assert found.requests["exact"].to_list() == [True] * 3


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "def plan(self, demand, view):\n    return Plan(choices=(), next_server=view.server)",
            "the plan has experts []",
        ),
        ("def plan(self, demand, view):\n    return 42", "plan() returned int, not a Plan"),
        ("def plan(self, demand, view):\n    raise KeyError('oops')", "KeyError: 'oops'"),
        ("def enter(self, arrival, view):\n    return 's99'", "the entry server 's99' does not exist"),
        (FIRST_COPY + "\ndef observe(self, feedback):\n    raise ValueError('no')", "mine: ValueError: no"),
        (
            FIRST_COPY.replace("demand.next_server or view.server", "'nowhere'"),
            "the next server 'nowhere' does not exist",
        ),
        (
            """
            def plan(self, demand, view):
                choices = [Choice(expert=e.expert, server=view.server, precision="int3") for e in demand.experts]
                return Plan(choices=tuple(choices), next_server=view.server)
            """,
            "holds no int3 copy",
        ),
    ],
)
def test_a_faulty_framework_fails_its_requests_by_name_and_nothing_hangs(
    body: str, expected: str, tmp_path: Path
) -> None:
    mine = user_framework(tmp_path / "faulty.py", body)
    comparison = compared(scenario(requests(HOMES, every(0.05, to_s=0.7))), [mine], SMALL)

    outcome = simulate(comparison, tmp_path / "results")

    reasons = errors(outcome.run)
    assert len(reasons) == 4
    assert all(expected in reason for reason in reasons.values())
    assert "requests failed: " in outcome.said
    assert ended_s(outcome.run) < 2.0


def test_a_framework_that_cannot_begin_is_refused_by_name(tmp_path: Path) -> None:
    mine = user_framework(tmp_path / "mine.py", FIRST_COPY + "\ndef begin(self, view):\n    raise ValueError('no')")
    comparison = compared(scenario(requests(HOMES, [0.5])), ["greedy", mine], SMALL)

    with pytest.raises(FleetError, match=r"s1: .*mine\.py cannot begin: ValueError: no"):
        simulate(comparison, tmp_path / "results")

    assert load(tmp_path / "results").frameworks == ("greedy",)
