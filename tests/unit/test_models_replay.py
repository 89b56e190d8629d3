"""A recorded trace in the place of a model: what it replays, and a whole cluster that runs on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from agents.frameworks.base import Choice
from agents.models.calibrate import Calibration
from agents.models.model import Model
from agents.models.profile import ModelProfile
from agents.models.reference import generate, score
from agents.models.replay import GATES_KEPT, Replay
from agents.models.spec import twin_directory
from agents.protocol import Done
from agents.routing import BATCHES_KEPT, Routed
from analysis.bootstrap import Bootstrap
from analysis.findings import findings
from analysis.load import load
from analysis.tables import summary
from orchestration.comparison import prepare
from orchestration.recorder import request_row
from orchestration.references import Reference
from orchestration.simulation import Simulation
from orchestration.stage import Watcher
from scenarios.timeline import Request
from testbed.errors import TestbedError
from testbed.simulation.loop import VirtualLoop
from tests.support.simulated import scenario, topology

from .analysis_data import write_comparison
from .trace_cases import MIXTRAL, TINY, lines, replayed, without, written

ROOT = Path(__file__).parents[2]
#: What the summary of every made-up model ends in.
NO_TWIN = "; it has no twin, so what fewer bits lose is that of mixtral-8x7b's"
RECORDED = ROOT.parent / "shared" / "data" / "moe" / "mixtral8x7b_gsm8k_2_routing.jsonl"

# --- what is replayed -------------------------------------------------------------------------------------------------


def test_every_token_chooses_in_every_layer_what_was_recorded(tmp_path: Path) -> None:
    recorded = lines(5, 4)
    replay = replayed(tmp_path, recorded)

    for each in recorded:
        row = each["token_idx"] + (5 if each["problem_id"] == 1 else 0)
        gate = replay.gate(each["layer"], replay.attend(each["layer"], replay.embed([row])))
        assert gate.experts.tolist() == [each["experts"]]
        assert gate.weights[0] == pytest.approx(each["gating_probs"], abs=1e-6)


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    recorded = lines(5, 4)
    shuffled = sorted(recorded, key=lambda each: (-each["token_idx"], each["problem_id"], -each["layer"]))

    ours, theirs = replayed(tmp_path, recorded).trace, replayed(tmp_path, shuffled).trace

    assert ours.problems == theirs.problems
    assert (ours.experts == theirs.experts).all()
    assert (ours.weights == theirs.weights).all()


def test_weights_that_do_not_sum_to_one_are_rescaled_and_that_is_said(tmp_path: Path) -> None:
    recorded = lines(5)
    recorded[4]["gating_probs"] = [0.6, 0.2]

    replay = replayed(tmp_path, recorded)

    assert replay.gate(0, replay.embed([4])).weights[0] == pytest.approx([0.75, 0.25])
    assert replay.summary == f"5 tokens of 1 problems; weights of 1 rows rescaled to sum to 1{NO_TWIN}"


def test_weights_that_miss_one_by_rounding_only_stay_as_they_are_to_the_bit(tmp_path: Path) -> None:
    recorded = lines(5)
    third, rest = float(np.float32(1 / 3)), float(np.float32(2 / 3))
    recorded[4]["gating_probs"] = [rest, third]

    weights = replayed(tmp_path, recorded).gate(0, np.float32([[4]])).weights[0]

    assert weights.tolist() == [rest, third]


def test_a_model_that_weighs_by_shares_of_all_experts_keeps_weights_that_do_not_sum_to_one(tmp_path: Path) -> None:
    recorded = lines(5)
    recorded[4]["gating_probs"] = [0.25, 0.125]
    recorded[3]["gating_probs"] = [1.5, 0.5]  # no share is that large

    replay = replayed(tmp_path, recorded, replace(TINY, gating="all"))

    assert replay.gate(0, replay.embed([4])).weights[0].tolist() == [0.25, 0.125]
    assert replay.gate(0, replay.embed([3])).weights[0].tolist() == [0.75, 0.25]
    assert replay.trace.rescaled == 1


def test_tokens_that_lack_a_layer_are_left_out_and_counted(tmp_path: Path) -> None:
    recorded = without(lines(5, 4), problem_id=0, layer=2, token_idx=1)
    whole = replayed(tmp_path, lines(5, 4))

    replay = replayed(tmp_path, recorded)

    assert replay.summary == f"8 tokens of 2 problems; 1 left out: no row in every layer{NO_TWIN}"
    assert (replay.trace.experts == np.delete(whole.trace.experts, 1, axis=1)).all()


def test_a_problem_without_a_complete_token_is_no_problem_of_the_replay(tmp_path: Path) -> None:
    recorded = without(lines(5, 1), problem_id=1, layer=2)
    summary = replayed(tmp_path, recorded).summary
    assert summary == f"5 tokens of 1 problems; 1 left out: no row in every layer{NO_TWIN}"


def test_a_generated_text_walks_along_its_problem_and_begins_again_at_its_end(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(4, 3))

    assert generate(replay, [0, 1], 4).tokens == (2, 3, 0, 1)
    assert generate(replay, [4], 3).tokens == (5, 6, 4)
    assert score(replay, [5, 6]).argmax(axis=1).tolist() == [6, 4]


def test_precision_changes_nothing(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(4))

    assert (score(replay, [0, 1], "int4") == score(replay, [0, 1])).all()
    assert not replay.measures_quality


@pytest.mark.parametrize("number", [-1, 4])
def test_token_numbers_that_are_no_rows_are_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(TestbedError, match=r"token numbers must be in 0\.\.3"):
        replayed(tmp_path, lines(4)).embed([0, number])


def test_a_cache_refuses_a_position_it_has_not_reached(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(4))
    cache = replay.new_cache()
    replay.attend(1, replay.embed([0, 1]), cache, 0)

    with pytest.raises(TestbedError, match="layer 1: the cache holds 2 positions, so start cannot be 3"):
        replay.attend(1, replay.embed([2]), cache, 3)


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(4))
    with pytest.raises(TestbedError, match="unknown precision 'int3'"):
        replay.outputs(0, [(0, "int3", 1)], replay.embed([0]))


# --- gates that come again --------------------------------------------------------------------------------------------


def test_the_same_tokens_get_the_same_gate_and_nobody_can_change_it(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(6))
    stream = replay.embed([1, 2, 3])
    gate = replay.gate(1, stream)

    stream[0] = 5.0  # the caller's own

    assert replay.gate(1, replay.embed([1, 2, 3])) is gate
    assert replay.gate(2, replay.embed([1, 2, 3])) is not gate
    assert replay.gate(1, replay.embed([1, 2])) is not gate
    for array in (gate.hidden, gate.experts, gate.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 0


def test_gates_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(100))
    for first in range(100):
        for second in range(100):
            replay.gate(0, replay.embed([first, second]))

    assert replay._gate.cache_info().currsize == GATES_KEPT


def test_what_is_derived_from_a_kept_gate_equals_what_is_derived_anew(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(40, profile=replace(TINY, experts=8)), replace(TINY, experts=8))
    kept = replay.gate(0, replay.embed(range(40)))
    once, again = Routed.of(kept, experts=8), Routed.of(kept, experts=8)
    anew = Routed.of(replace(kept, memo=None), experts=8)

    assert once is again
    assert once.demands == anew.demands
    for lot in range(2**8 - 1):  # more than are kept: every set of experts but none
        choices = [Choice(expert=expert, server="s") for expert in range(8) if (lot + 1) >> expert & 1]
        assert once.batch(choices) is once.batch(choices)
        ours, theirs = once.batch(choices), anew.batch(choices)
        assert ours.calls == theirs.calls
        assert all((getattr(ours, n) == getattr(theirs, n)).all() for n in ("rows", "index", "weights"))
    assert once.batches is not None
    assert len(once.batches) <= BATCHES_KEPT


@pytest.mark.parametrize("experts", [(1,), (1, 3)])
def test_a_batch_holds_every_token_once_and_every_call_finds_its_own(tmp_path: Path, experts: tuple[int, ...]) -> None:
    replay = replayed(tmp_path, lines(12))
    gate = replay.gate(2, replay.embed(range(12)))
    batch = Routed.of(gate, experts=4).batch([Choice(expert=expert, server="s") for expert in experts])

    wanted = [[t for t in range(12) if expert in gate.experts[t]] for expert in experts]
    weights = [
        gate.weights[token][gate.experts[token] == expert][0]
        for expert, tokens in zip(experts, wanted, strict=True)
        for token in tokens
    ]
    assert batch.rows.tolist() == sorted(set().union(*wanted))
    assert batch.rows[batch.index].tolist() == [token for tokens in wanted for token in tokens]
    assert batch.weights.tolist() == weights
    assert [call.rows for call in batch.calls] == [len(tokens) for tokens in wanted]
    assert (batch.rows.dtype, batch.index.dtype) == (np.int32, np.int32)


def test_calls_in_another_precision_are_another_batch(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(4))
    routed = Routed.of(replay.gate(0, replay.embed([0])), experts=4)
    expert = routed.demands[0].expert

    full = routed.batch([Choice(expert=expert, server="s")])
    lossy = routed.batch([Choice(expert=expert, server="s", precision="int4")])

    assert [call.precision for call in (*full.calls, *lossy.calls)] == ["full", "int4"]


# --- what users ask, and what frameworks may know ---------------------------------------------------------------------


def test_prompts_are_all_stretches_of_a_problem_and_never_cross_into_the_next(tmp_path: Path) -> None:
    prompts = replayed(tmp_path, lines(6, 5)).prompts

    assert prompts.domains == ("maths",)
    assert prompts.rows["maths"].tolist() == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


def test_prompts_have_at_most_128_tokens(tmp_path: Path) -> None:
    assert replayed(tmp_path, lines(130)).prompts.rows["maths"].shape == (3, 128)


def test_problems_too_short_for_a_prompt_give_none_and_that_is_said(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(20, 2, 20))

    assert replay.prompts.rows["maths"].tolist() == [list(range(20)), list(range(22, 42))]
    assert replay.summary == f"42 tokens of 3 problems; 1 problems give no prompt: too short{NO_TWIN}"


def test_datasets_are_domains_with_their_own_prompts_and_usage(tmp_path: Path) -> None:
    recorded = [*lines(4, dataset="prose"), *lines(5, dataset="maths")]
    replay = replayed(tmp_path, recorded)
    losses = calibration_of(TINY)

    found = replay.calibration(losses)

    assert {domain: rows.tolist() for domain, rows in replay.prompts.rows.items()} == {
        "maths": [[0, 1, 2, 3, 4]],
        "prose": [[5, 6, 7, 8]],
    }
    assert found.domains == ("maths", "prose")
    assert found.tokens == 9
    for domain, place in (("maths", 0), ("prose", 1)):
        chosen = [e for each in recorded if each["dataset"] == domain and each["layer"] == 1 for e in each["experts"]]
        shares = [chosen.count(expert) / len(chosen) for expert in range(4)]
        assert found.usage[place, 1].tolist() == pytest.approx(shares)
    assert found.quality_loss(0, "int4") == losses.quality_loss(0, "int4")


def test_losses_of_another_shape_are_refused(tmp_path: Path) -> None:
    replay = replayed(tmp_path, lines(4))
    with pytest.raises(TestbedError, match="cover 32 layers; tiny has 3"):
        replay.calibration(Calibration.load(twin_directory("mixtral-8x7b")))


def calibration_of(profile: ModelProfile) -> Calibration:
    return Calibration(
        tokens=1,
        domains=("any",),
        usage=np.full((1, profile.layers, profile.experts), 1 / profile.experts),
        precision_loss={"full": (0.0,) * profile.layers, "int4": (0.01,) * profile.layers},
        precision_loss_total={"full": 0.0, "int4": 0.02},
    )


@pytest.mark.skipif(not RECORDED.is_file(), reason=f"the recorded trace is not there: {RECORDED}")
def test_the_real_recording_of_mixtral_is_replayed() -> None:
    model = Model.load(RECORDED)

    assert isinstance(model.twin, Replay)
    assert model.twin.summary == "244 tokens of 2 problems; 3 left out: no row in every layer"
    assert model.profile == MIXTRAL
    assert model.prompts.rows["gsm8k"].shape == (89 + 1, 78)
    assert model.calibration.usage.shape == (1, 32, 8)
    assert model.calibration.usage.sum(axis=2) == pytest.approx(np.ones((1, 32)))
    first = model.twin.gate(0, model.twin.embed([0]))
    assert first.experts.tolist() == [[7, 0]]
    assert first.weights[0] == pytest.approx([0.80038, 0.19962], abs=1e-5)


# --- the whole system on a replay -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("trace") / "made_up.jsonl"
    return Model.load(written(path, lines(30, 24, profile=MIXTRAL)))


def requests_of(model: Model) -> list[Request]:
    return [
        Request(
            number=number,
            at_s=0.5 + 0.02 * number,
            home=f"s{1 + number % 3}",
            kind="generate" if number % 2 else "score",
            domain="maths",
            prompt=number % 7,
            tokens=6 + number % 4,
            output_tokens=5 if number % 2 else 0,
        )
        for number in range(16)
    ]


def played(framework: str, model: Model) -> tuple[list[Request], dict[int, Done], dict[int, Reference]]:
    requests = requests_of(model)
    comparison = prepare(
        scenarios={0: scenario(tuple(requests))},
        topology=topology("small3"),
        model=model,
        frameworks=[framework],
        redundancy=2.0,
    )
    (candidate,), (episode,) = comparison.candidates, comparison.episodes
    loop = VirtualLoop()
    stage = Simulation(comparison.topology, model, loop)
    found, _ = loop.run_until_complete(stage.play(comparison, candidate, episode, "test", Watcher()))
    loop.close()
    return requests, found.done, dict(episode.references)


@pytest.mark.parametrize("framework", ["edgeshard", "greedy", "edgeshard-int4"])
def test_a_cluster_on_a_replay_answers_with_the_tokens_of_the_trace(framework: str, model: Model) -> None:
    requests, done, answers = played(framework, model)

    assert [entry.error for entry in done.values()] == [None] * len(requests)
    assert {number: entry.digest for number, entry in done.items()} == {
        number: answer.digest for number, answer in answers.items()
    }
    for request in requests:
        if request.kind == "generate":
            first = request.prompt % 7 + request.tokens
            assert done[request.number].top1 == [first + step for step in range(5)]


def test_two_runs_on_a_replay_are_equal(model: Model) -> None:
    assert played("greedy", model)[1] == played("greedy", model)[1]


def test_records_of_a_replay_hold_no_quality_but_whether_the_tokens_were_right(model: Model) -> None:
    requests, done, answers = played("edgeshard", model)

    for request in requests:
        row = request_row(request, done[request.number], answers[request.number])
        assert (row["nll"], row["reference_nll"], row["top1_agreement"]) == (None, None, None)
        assert row["exact"] is True
    wrong = replace(answers[0], digest=b"of other tokens")
    assert request_row(requests[0], done[0], wrong)["exact"] is False


def test_findings_on_a_replay_claim_no_quality(tmp_path: Path) -> None:
    directory = write_comparison(tmp_path, requests=60, layers=2)
    for path in directory.glob("*/requests.parquet"):
        gone = [pl.lit(None, pl.Float64).alias(name) for name in ("nll", "reference_nll", "top1_agreement")]
        pl.read_parquet(path).with_columns(gone).write_parquet(path)
    comparison = load(directory)

    said = findings(comparison, summary(comparison, Bootstrap(resamples=200)))

    assert "Quality was not measured: the model's routing was replayed from a trace, without its arithmetic." in said
    assert not any("Bit for bit" in sentence or "quality budget" in sentence for sentence in said)
