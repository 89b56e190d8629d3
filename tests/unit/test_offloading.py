"""The executor: same answers under every scheduler, honest times, rooms and counts; and the files beside it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.clock import WallClock
from agents.models.network import Network
from agents.models.profile import ModelProfile
from agents.models.reference import digest, generate
from agents.models.spec import ModelSpec
from agents.models.twin import Twin
from agents.offloading.computing import Computing
from agents.offloading.core import Core, Load
from agents.offloading.drawn import Drawing
from agents.offloading.machine import Machine
from agents.offloading.player import Arriving, ModelledChannel, Player
from agents.offloading.recording import load, save, trace_texts
from agents.offloading.storage import ALIGNED_BYTES, ExpertFile, RealChannel, measured
from agents.offloading.tables import Tabled, popularity
from agents.offloading.work import Request
from agents.schedulers.registry import SCHEDULERS, create
from testbed.errors import TestbedError
from tests.support.offloading_cases import DEVICE, EXPERTS, LAYERS, PROFILE, TOP_K, machine, play, requests, texts

SPEC = ModelSpec(
    name="small",
    layers=LAYERS,
    experts=EXPERTS,
    top_k=TOP_K,
    width=32,
    heads=2,
    expert_width=48,
    vocab=50,
    context=40,
)
ALL = LAYERS * EXPERTS


@pytest.fixture(scope="module")
def twin() -> Twin:
    torch.manual_seed(1)
    network = Network(SPEC)
    return Twin(SPEC, {name: value.detach().numpy() for name, value in network.named_parameters()})


# --- identical outputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [EXPERTS, 9, ALL])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_tokens_and_logits_have_the_bits_of_the_reference_under_every_scheduler(
    twin: Twin, name: str, slots: int
) -> None:
    prompts = {n: [(7 * n + i) % SPEC.vocab for i in range(2 + n)] for n in range(5)}
    asked = [Request(number=n, prompt_tokens=len(prompt), output_tokens=4) for n, prompt in prompts.items()]
    work = Computing(twin, prompts)

    play(name, slots=slots, work=work, arriving=Arriving(requests=asked, concurrency=4))

    for number, prompt in prompts.items():
        expected = generate(twin, prompt, 4)
        assert work.answers[number].tokens == list(expected.tokens)
        assert work.answers[number].digests == [digest(row[None]) for row in expected.logits]


def test_a_gate_is_not_heard_before_its_group_has_run() -> None:
    core = Core(machine=machine(), scheduler=create("bevy"), work=Tabled(texts()), slots=8)
    core.arrive(requests(1)[0])
    job = core.begin_group()
    assert job is not None
    revealed = core.compute(job)

    assert core.begin_load() is None
    core.finish_group(job, revealed)
    assert core.begin_load() is not None


# --- times ------------------------------------------------------------------------------------------------------------


def test_a_batch_reads_shared_weights_once_and_each_expert_once() -> None:
    idle = machine()
    one, four = idle.dense_s([(1, 0)], loading=False), idle.dense_s([(1, 0)] * 4, loading=False)
    kept_s = 3 * PROFILE.kv_bytes_per_token / DEVICE.memory_bytes_per_s

    assert four == pytest.approx(one + kept_s)
    assert idle.experts_s({3: 1}, loading=False) == idle.experts_s({3: 4}, loading=False)
    assert idle.experts_s({3: 1, 4: 1}, loading=False) == pytest.approx(
        2 * idle.experts_s({3: 1}, loading=False) - DEVICE.launch_s
    ), "one launch for all experts of a group"
    assert idle.experts_s({}, loading=False) == 0.0


def test_a_group_during_a_load_has_the_memory_bandwidth_that_the_load_leaves() -> None:
    device = replace(DEVICE, load_bytes_per_s=0.5e9, launch_s=0.0)
    shared = machine(device=device)

    assert shared.experts_s({0: 1}, loading=True) == pytest.approx(2 * shared.experts_s({0: 1}, loading=False))
    with pytest.raises(TestbedError, match="cannot be as fast as the memory"):
        machine(device=replace(DEVICE, load_bytes_per_s=1e9))


def test_page_faults_reach_their_share_of_the_bandwidth_and_only_those_who_fault_pay() -> None:
    faulting = machine(fault_share=0.25)

    assert faulting.load_s(faults=True) == pytest.approx(4 * faulting.load_s(faults=False))
    assert [name for name in SCHEDULERS if create(name).faults] == ["lockstep", "each-alone"]
    with pytest.raises(TestbedError, match="a share of the storage bandwidth"):
        machine(fault_share=0)


def test_busy_times_add_up_to_what_the_parts_cost() -> None:
    played, core = play("lockstep", slots=ALL)

    assert played.channel_busy_s == pytest.approx(played.counts.loads * core.machine.load_s(faults=True))
    assert played.window_s == pytest.approx(played.device_busy_s + played.channel_busy_s)  # lockstep overlaps nothing


# --- room -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "slots"), [(0.0, EXPERTS), (0.01, EXPERTS), (0.5, 8), (1.0, ALL)])
def test_a_cache_of_any_share_holds_at_least_one_layer(fraction: float, slots: int) -> None:
    assert machine().slots(fraction) == slots


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_cache_of_everything_loads_every_expert_at_most_once_and_one_of_a_layer_still_serves(name: str) -> None:
    whole, _ = play(name, slots=ALL)
    least, _ = play(name, slots=EXPERTS)

    assert whole.counts.loads <= ALL
    assert whole.counts.prefetches_wasted == 0
    assert least.counts.tokens == whole.counts.tokens


def test_a_warm_cache_of_everything_loads_nothing() -> None:
    core = Core(machine=machine(), scheduler=create("bevy+prefetch"), work=Tabled(texts()), slots=ALL)
    core.warm(list(range(ALL)))
    core.arrive(requests(1)[0])
    job = core.begin_group()
    assert job is not None
    core.finish_group(job, core.compute(job))

    assert core.begin_load() is None
    assert core.counts.hits == core.counts.demands > 0


def test_fewer_slots_than_a_layer_has_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold the 5 experts"):
        Core(machine=machine(), scheduler=create("bevy"), work=Tabled(texts()), slots=4)


# --- prefetches -------------------------------------------------------------------------------------------------------


def test_prefetches_are_used_wasted_or_still_there() -> None:
    played, core = play("prefetch", slots=7)
    counts = played.counts

    assert counts.prefetches > 0
    assert counts.prefetches == counts.prefetches_used + counts.prefetches_wasted + core.unused_prefetches()


def test_a_perfect_predictor_is_right_and_wastes_little() -> None:
    def accuracy(of: float) -> float:
        drawn = Drawing(layers=LAYERS, experts=EXPERTS, top_k=TOP_K, accuracy=of).texts(8, 12)
        counts = play("prefetch", work=Tabled(drawn))[0].counts
        return counts.guesses_right / counts.guesses

    assert accuracy(1.0) == 1.0
    assert accuracy(0.0) < 0.6


# --- arrivals ---------------------------------------------------------------------------------------------------------


def test_a_closed_loop_never_has_more_requests_than_its_concurrency_and_never_fewer_while_others_wait() -> None:
    seen: set[int] = set()
    played, _ = play(
        "bevy",
        arriving=Arriving(requests=requests(7), concurrency=3),
        watch=lambda core, *_: seen.add(core.requests),
    )

    assert max(seen) == 3
    assert len(played.requests) == 7
    assert [each.arrived_s for each in played.requests[:3]] == [0, 0, 0]
    assert played.requests[3].arrived_s == min(each.finished_s or 0 for each in played.requests)


def test_open_arrivals_come_when_they_come_and_wait_outside_when_it_is_full() -> None:
    moments = [0.0, 0.001, 5.0]
    played, _ = play("bevy", arriving=Arriving(requests=requests(3), at_s=moments, concurrency=1))

    assert [each.arrived_s for each in played.requests] == moments
    first, second, third = played.requests
    assert (second.first_token_s or 0) > (first.finished_s or 0) > 0
    assert (third.first_token_s or 0) > 5.0


def test_measuring_begins_after_the_warm_up_and_ends_at_the_stop() -> None:
    played, _ = play("bevy", arriving=Arriving(requests=requests(9), concurrency=3, warm_tokens=6, stop_tokens=20))

    assert 12 <= played.counts.tokens <= 16  # up to three come at once
    assert played.tokens_per_s == pytest.approx(played.counts.tokens / played.window_s)


def test_no_request_at_all_is_a_run() -> None:
    assert play("bevy", arriving=Arriving(requests=[]))[0].tokens_per_s == 0


def test_the_same_code_plays_in_real_time() -> None:
    async def run() -> float:
        clock = WallClock(origin_s=time.monotonic())
        core = Core(machine=machine(), scheduler=create("bevy"), work=Tabled(texts()), slots=8)
        player = Player(
            core=core,
            clock=clock,
            channel=ModelledChannel(clock),
            arriving=Arriving(requests=requests(3), concurrency=3),
        )
        return (await player.run()).window_s

    virtual, _ = play("bevy", arriving=Arriving(requests=requests(3), concurrency=3))

    assert asyncio.run(run()) >= 0.9 * virtual.window_s


# --- routes -----------------------------------------------------------------------------------------------------------


def test_drawn_routes_depend_on_their_seed_and_number_only() -> None:
    few, many = texts(2, seed=4), texts(5, seed=4)

    assert all((a.experts == b.experts).all() for a, b in zip(few, many, strict=False))
    assert not (few[0].experts == texts(1, seed=5)[0].experts).all()
    assert all(len(set(row)) == TOP_K for row in few[0].experts.reshape(-1, TOP_K).tolist())
    assert popularity(many, EXPERTS).sum(axis=1) == pytest.approx([1.0] * LAYERS)


def test_routes_survive_their_file(tmp_path: Path) -> None:
    save(tmp_path / "routes.safetensors", PROFILE, texts(3))
    again = load(tmp_path / "routes.safetensors")

    for before, after in zip(texts(3), again, strict=True):
        assert before.guesses is not None
        assert after.guesses is not None
        assert (before.experts == after.experts).all()
        assert (before.guesses == after.guesses).all()


def test_a_trace_of_a_large_model_becomes_texts(tmp_path: Path) -> None:
    profile, draw = ModelProfile.load("mixtral-8x7b"), np.random.default_rng(0)
    lines = []
    for token in range(10):
        for layer in range(profile.layers):
            experts = draw.permutation(profile.experts)[: profile.top_k].tolist()
            entry = {"dataset": "d", "problem_id": 0, "layer": layer, "experts": experts, "token_idx": token}
            lines.append(json.dumps({**entry, "gating_probs": [0.75, 0.25]}))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))

    found, made = trace_texts(path, count=4, positions=6, accuracy=1.0, seed=0)

    assert found.name == profile.name
    assert [text.positions for text in made] == [6] * 4
    assert made[0].revealed(0, 0, 1).guess == tuple(made[0].experts[1, 0].tolist())
    with pytest.raises(TestbedError, match="no problem has 11 complete tokens"):
        trace_texts(path, count=1, positions=11, accuracy=1.0, seed=0)


# --- a real file ------------------------------------------------------------------------------------------------------


def test_a_file_of_experts_is_read_both_ways_and_leaves_nothing_behind(tmp_path: Path) -> None:
    clock = WallClock(origin_s=time.monotonic())
    with ExpertFile(pieces=3, piece_bytes=ALIGNED_BYTES, directory=tmp_path) as file:
        assert list(tmp_path.iterdir()) == []  # it has no name: not even kill -9 leaves it behind
        assert os.fstat(file._fd).st_size == 3 * ALIGNED_BYTES
        rates = measured(file, clock, pieces=3)
        channel = RealChannel(clock, file, faults=False)
        finish_s = asyncio.run(channel.read(Load(key=7, demanded=True, modelled_s=1.0), 0.0))

    assert min(rates.read_bytes_per_s, rates.fault_bytes_per_s, rates.small_fault_bytes_per_s) > 0
    assert 0 < rates.fault_share <= 1
    assert 0 < channel.busy_s <= finish_s
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_failed_to_open_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExpertFile, "_write", lambda self, fd: 1 / 0)

    with pytest.raises(ZeroDivisionError), ExpertFile(pieces=1, piece_bytes=ALIGNED_BYTES, directory=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_larger_than_allowed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="make experts smaller"):
        ExpertFile(pieces=10**6, piece_bytes=2**24, directory=tmp_path)
    with pytest.raises(TestbedError, match="a multiple of 65536 bytes, not 1000"):
        ExpertFile(pieces=1, piece_bytes=1000, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_machines_of_the_topologies_hold_a_share_of_every_models_experts() -> None:
    from testbed.load import load_topology

    for name in ("local-thor", "local-apple"):
        (server,) = load_topology(Path(__file__).parents[2] / "topologies" / f"{name}.yaml").servers
        assert server.device is not None
        for profile in ModelProfile.known():
            assert Machine(device=server.device, profile=profile).load_s(faults=False) > 0
