"""Every metric on data small enough to compute by hand, and on data that hold no answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl
import pytest

from analysis.bootstrap import Bootstrap
from analysis.events import inside, spans
from analysis.load import Run, load
from analysis.metrics import (
    METRICS,
    definitions_table,
    device_busy,
    disturbed_change,
    execution_mix,
    metric,
    offered_requests_per_s,
    paired_change,
    steady_part,
    summarise,
    time_parts,
)
from analysis.schema import empty

from .analysis_data import CONGESTED_S, HABITS, HIT_LINKS, write_comparison

B = Bootstrap(resamples=100)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, ...]:
    return load(write_comparison(tmp_path_factory.mktemp("results"), layers=4)).runs


def hand_made(run: Run, **columns: list[object]) -> Run:
    """The first rows of a run with some columns replaced; nothing failed."""
    n = len(next(iter(columns.values())))
    frame = run.requests.head(n).with_columns(error=pl.lit(None, dtype=pl.String))
    types = frame.schema
    given = {name: pl.Series(values, dtype=types[name]) for name, values in columns.items()}
    return replace(run, requests=frame.with_columns(**given))


def value(key: str, run: Run) -> float | None:
    return metric(key).measure([run], B).value


def test_definitions_in_the_document_are_those_of_the_code() -> None:
    document = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert definitions_table() in document


def test_latencies_leave_failed_requests_out_but_the_slo_counts_them_as_missed(runs: tuple[Run, ...]) -> None:
    run = hand_made(runs[0], latency_s=[0.1, 0.2, 0.6, None], error=[None, None, None, "lost"])

    assert value("latency_mean_s", run) == pytest.approx(0.3)
    assert value("latency_median_s", run) == pytest.approx(0.2)
    assert value("slo_share", run) == pytest.approx(0.5)  # 0.3 s: two of four sent
    assert value("failed_share", run) == pytest.approx(0.25)


def test_quantiles_interpolate_between_neighbours(runs: tuple[Run, ...]) -> None:
    run = hand_made(runs[0], latency_s=[float(i) for i in range(101)])

    assert value("latency_p95_s", run) == pytest.approx(95.0)
    assert value("latency_p99_s", run) == pytest.approx(99.0)


def test_throughput_counts_completions_of_the_steady_part_only(runs: tuple[Run, ...]) -> None:
    run = hand_made(
        runs[0],
        latency_s=[0.5] * 4,
        finished_s=[1.0, 3.0, 19.0, 21.0],  # timeline 20 s: steady from 2 to 20
        prompt_tokens=[10, 20, 30, 40],
        output_tokens=[0, 0, 6, 0],
    )

    assert steady_part(run) == (2.0, 20.0)
    found = metric("throughput_requests_per_s").measure([run], B)
    assert found.value == pytest.approx(2 / 18)
    assert found.n == 2
    assert value("throughput_tokens_per_s", run) == pytest.approx(56 / 18)


def test_an_interrupted_run_is_steady_until_its_last_record(runs: tuple[Run, ...]) -> None:
    run = hand_made(runs[0], latency_s=[1.0, 1.0], finished_s=[4.0, 7.0], sent_s=[3.0, 6.0])
    run = replace(run, manifest=msgspec.structs.replace(run.manifest, complete=False))

    assert steady_part(run) == (2.0, 7.0)
    assert value("throughput_requests_per_s", run) == pytest.approx(2 / 5)


def test_traffic_counts_completed_requests_only(runs: tuple[Run, ...]) -> None:
    run = hand_made(
        runs[0],
        latency_s=[0.1, None],
        error=[None, "lost"],
        sent_bytes=[3_000_000, 1_000_000],
        prompt_tokens=[30, 50],
        output_tokens=[10, 0],
    )

    found = metric("traffic_bytes_per_token")
    assert found.measure([run], B).value == pytest.approx(3_000_000 / 40)
    assert 100_000 * found.scale == pytest.approx(0.1)  # GB per 1000 tokens


def test_likelihoods_are_weighted_by_predictions_and_agreement_by_positions(runs: tuple[Run, ...]) -> None:
    run = hand_made(
        runs[0],
        latency_s=[0.1, 0.1],
        prompt_tokens=[11, 31],
        output_tokens=[0, 0],
        nll=[2.2, 2.0],
        reference_nll=[2.0, 2.0],
        top1_agreement=[0.8, 1.0],
        exact=[False, True],
    )

    assert value("nll_increase", run) == pytest.approx(0.025)
    assert value("perplexity", run) == pytest.approx(2.718281828**2.05)
    assert value("perplexity_reference", run) == pytest.approx(2.718281828**2.0)
    assert value("top1_agreement", run) == pytest.approx((0.8 * 11 + 31) / 42)
    assert value("exact_share", run) == pytest.approx(0.5)


def test_moves_are_averaged_over_completed_requests(runs: tuple[Run, ...]) -> None:
    run = hand_made(runs[0], latency_s=[0.1, 0.1, None], error=[None, None, "lost"], moves=[2, 3, 50])
    assert value("moves_per_request", run) == pytest.approx(2.5)


def layers(run: Run, **columns: list[float]) -> Run:
    frame = run.layers.head(len(next(iter(columns.values()))))
    return replace(
        run,
        layers=frame.with_columns(
            **{name: pl.Series(values).cast(frame.schema[name]) for name, values in columns.items()}
        ),
    )


def test_the_execution_mix_counts_every_call_once(runs: tuple[Run, ...]) -> None:
    run = layers(
        runs[0],
        experts=[4, 4, 2],
        remote_experts=[1, 2, 0],
        slow_experts=[0, 2, 0],
        remote_slow_experts=[0, 1, 0],
        fallback_experts=[0, 0, 1],
    )

    mix = execution_mix([run])

    assert mix == {
        "local fast": pytest.approx((3 + 1 + 1) / 10),
        "remote fast": pytest.approx((1 + 1 + 0) / 10),
        "slow": pytest.approx(2 / 10),
        "fallback": pytest.approx(1 / 10),
    }


def test_parts_of_the_time_sum_to_the_mean_latency(runs: tuple[Run, ...]) -> None:
    for run in runs:
        parts = time_parts([run])
        mean = value("latency_mean_s", run)
        assert parts is not None
        assert mean is not None
        assert sum(parts.values()) == pytest.approx(mean)
        assert parts["rest"] == pytest.approx(0.04 * mean)


def test_time_of_failed_requests_is_not_counted_as_time_of_completed_ones(runs: tuple[Run, ...]) -> None:
    run = hand_made(runs[0], request=[0, 1], latency_s=[1.0, None], error=[None, "lost"])
    run = layers(
        run, request=[0, 1], duration_s=[0.6, 9.0], dense_s=[0.3, 9.0], experts_s=[0.05, 0.0], wait_s=[0.1, 0.0]
    )

    parts = time_parts([run])

    assert parts is not None
    assert parts == pytest.approx({"dense": 0.3, "own experts": 0.05, "other servers": 0.1, "moves": 0.15, "rest": 0.4})


def test_device_busy_ends_with_the_arrivals(runs: tuple[Run, ...]) -> None:
    run = runs[0]
    late = run.servers.head(1).with_columns(t_s=pl.lit(1e6), device_busy=pl.lit(0.0))
    assert device_busy([replace(run, servers=pl.concat([run.servers, late]))]) == device_busy([run])


def test_offered_load_counts_failed_requests_too(runs: tuple[Run, ...]) -> None:
    run = hand_made(runs[0], latency_s=[None, None], error=["lost", "lost"], scheduled_s=[5.0, 6.0])
    assert offered_requests_per_s([run]) == pytest.approx(2 / 18)


def test_a_change_is_paired_on_requests_that_both_completed(runs: tuple[Run, ...]) -> None:
    base = hand_made(runs[0], request=[0, 1, 2], latency_s=[1.0, 2.0, 50.0])
    ours = hand_made(runs[0], request=[0, 1, 2], latency_s=[0.5, 1.0, None], error=[None, None, "lost"])

    found = paired_change([ours], [base], B)

    assert (found.value, found.n) == (pytest.approx(-0.5), 2)
    assert found.low == pytest.approx(-0.5)


def test_runs_of_different_seeds_are_never_paired(runs: tuple[Run, ...]) -> None:
    other = replace(runs[0], manifest=msgspec.structs.replace(runs[0].manifest, seed=999))
    assert paired_change([runs[0]], [other], B).value is None


def test_a_framework_compared_with_itself_shows_no_change(runs: tuple[Run, ...]) -> None:
    found = paired_change([runs[0]], [runs[0]], B)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    assert not found.excludes_zero


def test_the_made_up_congestion_is_seen_in_latency(runs: tuple[Run, ...]) -> None:
    greedy = next(run for run in runs if run.manifest.framework == "greedy")
    found = disturbed_change([greedy], B)

    assert found.value == pytest.approx(HABITS["greedy"].congested - 1, abs=0.3)
    assert found.excludes_zero


def test_links_changed_together_are_one_span_from_damage_to_repair(runs: tuple[Run, ...]) -> None:
    (span,) = spans(runs[0])

    assert (span.start_s, span.end_s) == pytest.approx(CONGESTED_S, abs=0.01)
    assert set(span.links) == set(HIT_LINKS)
    assert span.label == "3 links rate=100 Mbit/s"


def test_without_a_repair_a_link_is_disturbed_until_the_end(runs: tuple[Run, ...]) -> None:
    damage = runs[0].events.filter(pl.col("scheduled_s") < CONGESTED_S[1])
    bad = pl.col("link").is_in(HIT_LINKS) & (pl.col("t_s") > CONGESTED_S[0])
    still = runs[0].links.with_columns(rate_bps=pl.when(bad).then(1e8).otherwise(pl.col("rate_bps")))

    (span,) = spans(replace(runs[0], events=damage, links=still))

    assert span.end_s == runs[0].manifest.duration_s


def test_an_event_without_a_link_is_a_moment(runs: tuple[Run, ...]) -> None:
    event = pl.DataFrame(
        {"event": ["s4 killed"], "link": [None], "scheduled_s": [3.0], "actual_s": [3.01]},
        schema=empty("events").schema,
    )
    run = replace(runs[0], events=event)

    (span,) = spans(run)

    assert (span.start_s, span.end_s, span.label) == (3.01, 3.01, "s4 killed")
    assert not inside(run, pl.Series([2.0, 3.01, 4.0])).any()


@pytest.mark.parametrize("kept", [0, 1])
def test_no_request_or_a_single_one_gives_clear_values(runs: tuple[Run, ...], kept: int) -> None:
    run = replace(runs[0], requests=runs[0].requests.head(kept), layers=empty("layers"), servers=empty("servers"))

    found = summarise([run], B)

    assert set(found) == {entry.key for entry in METRICS}
    assert (found["latency_mean_s"].value is None) == (kept == 0)
    assert found["latency_mean_s"].low is None
    assert execution_mix([run]) is None
    assert time_parts([run]) is None
    assert device_busy([run]) == {}


def test_when_all_requests_failed_there_is_no_latency_but_a_failed_share_of_one(runs: tuple[Run, ...]) -> None:
    lost = runs[0].requests.with_columns(
        error=pl.lit("lost"), latency_s=pl.lit(None, dtype=pl.Float64), finished_s=pl.lit(None, dtype=pl.Float64)
    )
    run = replace(runs[0], requests=lost)

    found = summarise([run], B)

    assert found["failed_share"].value == 1.0
    assert found["slo_share"].value == 0.0
    assert found["throughput_requests_per_s"].value == 0.0
    assert found["latency_p99_s"].value is None
    assert found["traffic_bytes_per_token"].value is None
    assert found["nll_increase"].value is None
    assert paired_change([run], [runs[0]], B).value is None
    assert disturbed_change([run], B).value is None
