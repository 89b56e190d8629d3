"""Skips, substitutes and exits in whole runs in virtual time: as one process would decide and compute."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from agents.depth import reference
from agents.depth.base import BaseDepth, Cut, Reason
from agents.depth.calm import Calm
from agents.depth.leaving import STAYS
from agents.depth.registry import DEPTHS
from agents.frameworks.base import Choice, Demand, Plan, View
from agents.models.exits import ExitHeads
from agents.models.mixture import Floats, assign, finish
from agents.models.model import Model
from agents.models.quantize import FULL
from agents.models.reference import digest, generate
from agents.protocol import Done, LayerRecord
from orchestration.player import Played
from orchestration.references import sampling_of
from orchestration.simulation import Simulation
from orchestration.stage import Watcher
from scenarios.timeline import Scenario
from testbed.simulation.loop import VirtualLoop
from testbed.topology import Topology
from tests.support import depth
from tests.support.simulated import compared, every, requests, scenario, topology, twin

SMALL, EDGE = topology("small3"), topology("edge10")
HOMES = ["s2", "s3", "s1"]
RISK = 0.05  # of the made-up gate


@cache
def model() -> Model:
    """The twin with made-up facts, and gauges that let some tokens go after every layer."""
    spec = twin().twin.spec
    return replace(
        twin(),
        exits=depth.heads(spec.layers, spec.width, safe_from=0.8, scale=0.5),
        facts=depth.facts(spec.layers, spec.experts),
    )


def heads() -> ExitHeads:
    found = model().exits
    assert found is not None
    return found


def play(asked: Scenario, framework: str, on: Topology = SMALL, of: Model | None = None) -> Played:
    """What the agents report, without the detour over files."""
    comparison = replace(compared(asked, [framework], on), model=of or model())
    loop = VirtualLoop()
    stage = Simulation(comparison.topology, comparison.model, loop)
    try:
        played: Played
        played, _ = loop.run_until_complete(
            stage.play(comparison, comparison.candidates[0], comparison.episodes[0], "run", Watcher())
        )
    finally:
        loop.close()
    return played


def ends(played: Played) -> dict[int, Done]:
    assert [done.error for done in played.done.values() if done.error] == []
    return played.done


def layers(played: Played) -> list[LayerRecord]:
    return [record for report in played.collected.values() for record in report.layers]


def leaves(of: Model) -> reference.Leaves:
    """What the policy ``calm`` decides, asked in one process."""
    policy = Calm({"risk": RISK})
    policy.begin(None, of.exits, quality_budget=0.0)  # type: ignore[arg-type]  # it looks at the heads only
    return lambda layer, stream: policy.leaves(layer, stream, None)  # type: ignore[arg-type]


def prompts(asked: Scenario, on: Topology = SMALL) -> dict[int, Sequence[int]]:
    return dict(compared(asked, ["local-first"], on).episodes[0].prompts)


# --- exits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["local-first", "edgeshard", "greedy"])
def test_score_passes_with_exits_give_the_logits_of_one_process(framework: str) -> None:
    asked = replace(scenario(requests(HOMES, every(0.1, to_s=0.8))), quality_budget=0.0)

    done = ends(play(asked, f"{framework}+calm:{RISK}"))

    left_early = 0
    for number, tokens in prompts(asked).items():
        logits, left = reference.score(model().twin, heads(), leaves(model()), tokens)
        left_early += int((left != STAYS).sum())
        assert done[number].digest == digest(logits)
    assert left_early > 10


@pytest.mark.parametrize("framework", ["local-first", "edgeshard"])
def test_generation_fills_keys_and_values_of_skipped_layers_from_exited_states(framework: str) -> None:
    asked = replace(scenario(requests(HOMES, every(0.1, to_s=0.8), tokens=6, output_tokens=6)), quality_budget=0.0)

    played = play(asked, f"{framework}+calm:{RISK}")

    done = ends(played)
    for number, tokens in prompts(asked).items():
        expected = reference.generate(model().twin, heads(), leaves(model()), tokens, 6)
        assert tuple(done[number].top1) == expected.tokens
        rows = (digest(expected.logits[row : row + 1]) for row in range(6))
        assert done[number].digest == b"".join(rows)
    ended_at: dict[tuple[int, int], int] = {}
    for record in layers(played):
        ended_at[record.request, record.step] = max(record.layer, ended_at.get((record.request, record.step), 0))
    depths = [ended_at[number, step] for number in done for step in range(6)]
    assert min(depths) < 31, "some passes end early"
    assert any(a < b for a, b in itertools.pairwise(depths)), "and later ones go deeper"


# --- skips and substitutes --------------------------------------------------------------------------------------------


class EveryThird(BaseDepth):
    """Leaves out a third of all experts, and runs the next one in the place of another third."""

    name = "every-third"
    keeps_budget = False

    def trim(self, demand: Demand, plan: Plan, view: View) -> Cut:
        skipped, replaced = {}, {}
        for entry in demand.experts:
            if (entry.expert + demand.layer) % 3 == 0:
                skipped[entry.expert] = Reason.STATIC
            elif (entry.expert + demand.layer) % 3 == 1:
                other = (entry.expert + 1) % view.profile.experts
                copy = view.replicas(demand.layer, other)[0]
                choice = Choice(expert=entry.expert, server=copy.server, precision=copy.precision, substitute=other)
                replaced[entry.expert] = (choice, Reason.STATIC)
        return Cut(skipped=skipped, replaced=replaced)


def third(tokens: Sequence[int]) -> Floats:
    """What ``EveryThird`` leaves of a pass, in one process."""
    twin_, x = model().twin, model().twin.embed(tokens)
    for layer in range(twin_.spec.layers):
        attended = twin_.attend(layer, x)
        gate = twin_.gate(layer, attended)
        total = np.zeros(attended.shape, dtype=np.int64)
        for part in assign(gate.experts, gate.weights):
            kind = (part.expert + layer) % 3
            if kind == 0:
                continue
            runs = (part.expert + 1) % twin_.spec.experts if kind == 1 else part.expert
            twin_.experts(layer, [(runs, FULL, len(part.tokens))], gate.hidden, part.tokens, part.weights, total)
        x = finish(gate.residual(attended), total)
    return twin_.logits(x)


@pytest.mark.parametrize("framework", ["local-first", "edgeshard"])
def test_skips_and_substitutes_give_the_logits_of_one_process(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPTHS, "every-third", (__name__, "EveryThird", {}, None))
    asked = scenario(requests(HOMES, every(0.1, to_s=0.8)))

    played = play(asked, f"{framework}+every-third")

    for number, tokens in prompts(asked).items():
        assert ends(played)[number].digest == digest(third(tokens))
    for record in layers(played):
        assert sum(record.decisions.values()) == 2 * record.tokens
        assert record.skipped_experts <= len([e for e in range(8) if (e + record.layer) % 3 == 0])


def test_a_policy_that_overdraws_its_ledger_fails_its_requests_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EveryThird, "keeps_budget", True)
    monkeypatch.setitem(DEPTHS, "every-third", (__name__, "EveryThird", {}, None))
    asked = replace(scenario(requests(HOMES, every(0.1, to_s=0.8))), quality_budget=1e-6)

    played = play(asked, "local-first+every-third")

    for done in played.done.values():
        assert "depth policy every-third promises to keep the quality budget of 1e-06" in str(done.error)


@pytest.mark.parametrize("framework", ["trimmoe", "hetroute+trimmoe", "prism+trimmoe", "edgeshard+skip-layers"])
def test_the_ledger_of_every_pass_stays_within_the_budget_and_every_call_has_a_reason(framework: str) -> None:
    asked = scenario(requests([server.name for server in EDGE.servers], every(0.1, to_s=1.2)))

    played = play(asked, framework, EDGE, twin())

    assert len(ends(played)) == len(asked.requests)
    for record in layers(played):
        assert 0.0 <= record.quality_spent <= asked.quality_budget + 1e-12
        assert sum(record.decisions.values()) == 2 * (record.tokens + record.frozen_tokens)
    assert any(record.skipped_experts for record in layers(played))


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_drawn_tokens_are_those_of_one_process_and_differ_from_the_likeliest() -> None:
    asked = scenario(requests(HOMES, every(0.1, to_s=0.8), tokens=6, output_tokens=5))
    drawn = replace(asked, quality_budget=0.0, temperature=1.0, top_p=0.95, sampling_seed=7)

    done = ends(play(drawn, "edgeshard"))

    texts = {number: tuple(end.top1) for number, end in done.items()}
    for number, tokens in prompts(asked).items():
        expected = generate(model().twin, tokens, 5, sampling=sampling_of(drawn), request=number)
        assert texts[number] == expected.tokens
    assert texts != {number: generate(model().twin, tokens, 5).tokens for number, tokens in prompts(asked).items()}
