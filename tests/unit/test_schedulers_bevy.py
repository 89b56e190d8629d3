"""Bevy's rule as invariants, on random runs: no idle device, no undemanded load, a bound on being passed over."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.offloading.core import Job, Load
from agents.offloading.player import Arriving
from agents.offloading.tables import Tabled
from agents.offloading.work import Request
from agents.schedulers.bevy import Bevy
from agents.schedulers.split import SplitBevy
from tests.support.offloading_cases import EXPERTS, LAYERS, Watched, machine, play, texts


@st.composite
def runs(draw: st.DrawFn) -> tuple[Arriving, int, int, int, float]:
    """Arrivals, slots, patience, seed of the routes, and storage speed."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=8))
    requests = [Request(number=n, prompt_tokens=p, output_tokens=o) for n, (p, o) in enumerate(sizes)]
    gaps_s = draw(st.none() | st.lists(st.floats(0, 0.01), min_size=len(sizes), max_size=len(sizes)))
    at_s = None if gaps_s is None else [sum(gaps_s[: n + 1]) for n in range(len(gaps_s))]
    arriving = Arriving(requests=requests, at_s=at_s, concurrency=draw(st.integers(1, 8)))
    slots = draw(st.integers(EXPERTS, LAYERS * EXPERTS))
    return arriving, slots, draw(st.integers(1, 20)), draw(st.integers(0, 50)), draw(st.sampled_from([1e6, 1e8, 9e8]))


@settings(max_examples=60, deadline=None)
@given(runs(), st.sampled_from(["lru", "lfu", "least-stale", "next-use"]), st.sampled_from([Bevy, SplitBevy]))
def test_work_is_conserved_loads_are_demanded_and_nobody_starves(
    run: tuple[Arriving, int, int, int, float], cache: str, kind: type[Bevy]
) -> None:
    arriving, slots, patience, seed, load_rate = run
    passed_over = 0

    def watch(core: Watched, decided: Job | Load | None, what: str) -> None:
        nonlocal passed_over
        state = core.state
        passed_over = max([passed_over, *(each.passed_over for each in state.standing.values() if each.ready)])
        if what == "group":
            assert decided is not None or not state.ready(), "the device idles while a request is ready"
        elif isinstance(decided, Load):
            assert decided.key in core.demanded_before, "a load that no waiting request demands"
            assert not state.resident[decided.key]
        else:
            full = state.resident.sum() == slots and (state.held[state.resident] > 0).all()
            assert not state.demanded or full, "the channel idles while an expert is demanded and there is room"
        assert state.resident.sum() + (state.loading is not None) <= slots
        for each in state.running:
            if each.stage % 2:
                assert state.resident[list(each.needs)].all(), "an expert in use was evicted"
        for each in state.standing.values():
            assert each.missing == sum(not state.resident[key] for key in each.needs)

    played, core = play(
        kind({"patience": patience, "cache": cache}),
        slots=slots,
        arriving=arriving,
        work=Tabled(texts(seed=seed)),
        watch=watch,
        device=machine().device.__class__(
            peak_flops_per_s=1e12,
            memory_bytes_per_s=1e9,
            fast_bytes=10**9,
            slow_bytes=10**10,
            load_bytes_per_s=load_rate,
        ),
    )

    assert all(each.finished_s is not None for each in played.requests)
    assert played.counts.tokens == sum(request.output_tokens for request in arriving.requests)
    standings = len(arriving.requests) * (EXPERTS if kind is SplitBevy else 1)  # a request may stand in parts
    assert passed_over <= patience + standings - 1
    assert played.counts.prefetches == 0
    assert not core.state.held.any()
    assert not core.state.needers
    assert not core.state.demanded


def test_an_expert_that_several_requests_demand_is_read_once() -> None:
    arriving = Arriving(
        requests=[Request(number=8 * n, prompt_tokens=3, output_tokens=1) for n in range(5)], concurrency=5
    )

    played, _ = play("bevy", arriving=arriving, slots=LAYERS * EXPERTS)  # all of them read the same text

    assert played.counts.loads == played.counts.demands / 5
    assert played.counts.loads <= LAYERS * EXPERTS


def test_a_stream_of_newcomers_does_not_hold_back_those_who_were_there() -> None:
    long = Request(number=0, prompt_tokens=1, output_tokens=9)
    stream = [Request(number=n, prompt_tokens=1, output_tokens=1) for n in range(1, 60)]
    arriving = Arriving(requests=[long, *stream], at_s=[0.0, *(0.0005 * n for n in range(1, 60))], concurrency=6)

    played, _ = play("bevy", arriving=arriving)

    finished = [each.finished_s or 0.0 for each in played.requests]
    assert finished[0] < max(finished)


@pytest.mark.parametrize("concurrency", [2, 6])
def test_interleaving_is_faster_than_lockstep_with_the_same_reads_and_keeps_the_device_busier(concurrency: int) -> None:
    arriving = Arriving(
        requests=[Request(number=n, prompt_tokens=2, output_tokens=6) for n in range(18)], concurrency=concurrency
    )
    bevy, lockstep = (play(name, arriving=arriving, slots=12)[0] for name in ("bevy", "lockstep"))

    assert bevy.window_s < lockstep.window_s
    assert bevy.device_busy_s / bevy.window_s > lockstep.device_busy_s / lockstep.window_s


def test_alone_bevy_is_lockstep_with_large_reads() -> None:
    arriving = Arriving(requests=[Request(number=n, prompt_tokens=2, output_tokens=6) for n in range(4)], concurrency=1)

    assert play("bevy", arriving=arriving)[0].window_s == play("lockstep", arriving=arriving)[0].window_s


def test_in_parts_the_resident_experts_of_a_layer_run_while_the_others_are_read() -> None:
    """One request gains from it too: its loads and its computation overlap."""
    arriving = Arriving(requests=[Request(number=n, prompt_tokens=6, output_tokens=4) for n in range(3)], concurrency=1)

    whole, parts, lockstep = (
        play(name, arriving=arriving, options={"cache": "next-use"}, slots=10)[0].window_s
        for name in ("bevy", "bevy-split", "lockstep-overlap")
    )

    assert parts < whole
    assert parts == lockstep
