from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from agents.protocol import Collected, Done, Fidelity, LayerRecord, Sample
from analysis.schema import LATER, dtypes, read_table
from orchestration.player import Event, Played
from orchestration.recorder import EVENTS, LAYERS, LINKS, REQUESTS, SERVERS, layer_rows, request_row, write_run
from orchestration.references import Reference
from scenarios.timeline import LinkChange, Request, Scenario

REQUEST = Request(number=0, at_s=1.0, home="s1", kind="score", domain="code", prompt=0, tokens=3)
REFERENCE = Reference(
    mean_nll=2.0, top1=(5, 6, 7), digest=b"same", scored=(4, 5, 8), cloze=((1, 2),)
)  # its first guess is right, its second is not
SCENARIO = Scenario(
    name="test", question="?", duration_s=2.0, arrival_rate_per_s=1.0, requests=(REQUEST, REQUEST), changes=()
)


def done(**changes: object) -> Done:
    values: dict[str, object] = {
        "request": 0,
        "home": "s1",
        "sent_s": 1.001,
        "finished_s": 1.2,
        "nll": [1.0, 3.0],
        "top1": [5, 6, 8],
        "digest": b"same",
    }
    return Done(**{**values, **changes})  # type: ignore[arg-type]


def test_what_we_write_is_what_analysis_reads() -> None:
    ours = {"requests": REQUESTS, "layers": LAYERS, "links": LINKS, "servers": SERVERS, "events": EVENTS}
    for table, schema in ours.items():
        assert dict(schema) == dict(dtypes(table))


def test_latency_counts_from_the_planned_arrival() -> None:
    row = request_row(REQUEST, done(), REFERENCE)
    assert row["latency_s"] == pytest.approx(0.2)
    assert (row["nll"], row["reference_nll"]) == (2.0, 2.0)
    assert row["top1_agreement"] == pytest.approx(2 / 3)
    assert row["exact"] is True


def test_other_bits_are_not_exact() -> None:
    assert request_row(REQUEST, done(digest=b"other"), REFERENCE)["exact"] is False


def test_the_same_bits_do_not_diverge_and_others_by_what_was_found_for_them() -> None:
    other = done(digest=b"other")
    assert request_row(REQUEST, done(), REFERENCE)["kl"] == 0.0
    assert request_row(REQUEST, other, REFERENCE, kl={(0, b"other"): 0.25})["kl"] == 0.25
    assert request_row(REQUEST, other, REFERENCE, kl={(0, b"another"): 0.25, (1, b"other"): 0.25})["kl"] is None


def test_guesses_and_cloze_items_are_counted_for_both_sides() -> None:
    row = request_row(REQUEST, done(top1=[9, 8, 7]), REFERENCE)
    assert (row["correct"], row["reference_correct"]) == (1, 1)
    assert (row["cloze_items"], row["cloze_hits"], row["reference_cloze_hits"]) == (1, 0, 1)


def test_generated_text_is_held_against_no_prompt() -> None:
    generated = Reference(mean_nll=None, top1=(5, 6, 7), digest=b"same")
    row = request_row(REQUEST, done(nll=[]), generated)
    assert row["top1_agreement"] == pytest.approx(2 / 3)
    assert [row.get(name) for name in ("kl", "correct", "reference_correct", "cloze_items", "cloze_hits")] == [None] * 5


def test_what_means_nothing_is_not_counted() -> None:
    replayed = Reference(mean_nll=None, top1=(5, 6, 7), digest=b"same", measures_quality=False)
    row = request_row(REQUEST, done(nll=[]), replayed)
    assert row["exact"] is True
    assert [row.get(name) for name in ("nll", "kl", "correct", "top1_agreement", "cloze_items")] == [None] * 5


def test_a_failed_request_has_a_reason_and_no_latency() -> None:
    row = request_row(REQUEST, done(error="lost"), REFERENCE)
    assert row["error"] == "lost"
    assert "latency_s" not in row


def test_a_request_that_never_ended_has_failed_too() -> None:
    assert request_row(REQUEST, None, REFERENCE)["error"] == "the run ended before the request did"


def test_a_run_directory_holds_every_table_even_when_nothing_happened(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    write_run(directory, manifest={"run_id": "run"}, scenario=SCENARIO, played=Played(), references={0: REFERENCE})

    assert (directory / "manifest.json").exists()
    for table in ("requests", "layers", "links", "servers", "events"):
        frame = pl.read_parquet(directory / f"{table}.parquet")
        assert frame.is_empty()
        assert dict(frame.schema) == dict(dtypes(table))


def test_layers_stand_in_order_whoever_recorded_them(tmp_path: Path) -> None:
    fidelity = Fidelity(
        jobs=0,
        overruns=0,
        busy_s=0,
        lag_p50_s=0,
        lag_p99_s=0,
        lag_max_s=0,
        dropped_messages=0,
    )
    records = [LayerRecord(request=0, step=0, layer=layer, server="s1", start_s=0.0) for layer in (2, 0, 1)]
    played = Played(
        done={0: done()},
        submitted={0},
        collected={
            "s1": Collected(server="s1", layers=records[:2], fidelity=fidelity),
            "s2": Collected(server="s2", layers=records[2:], fidelity=fidelity),
        },
        samples=[Sample(server="s1", t_s=0.5, device_busy=0.1, loader_busy=0, backlog_s=0, rss_bytes=1, lost_peers=[])],
        events=[Event(change=LinkChange(at_s=1.0, link="s1-s2", rate_bps=1e8), actual_s=1.001)],
    )
    write_run(tmp_path / "run", manifest={}, scenario=SCENARIO, played=played, references={0: REFERENCE})

    assert pl.read_parquet(tmp_path / "run" / "layers.parquet")["layer"].to_list() == [0, 1, 2]
    assert pl.read_parquet(tmp_path / "run" / "events.parquet")["event"].to_list() == ["s1-s2 rate=100 Mbit/s"]
    assert pl.read_parquet(tmp_path / "run" / "servers.parquet").height == 1


def test_every_term_of_a_decision_has_its_column_and_older_results_hold_none(tmp_path: Path) -> None:
    fidelity = Fidelity(jobs=0, overruns=0, busy_s=0, lag_p50_s=0, lag_p99_s=0, lag_max_s=0, dropped_messages=0)
    priced = LayerRecord(request=0, step=0, layer=0, server="s1", start_s=0.0, terms=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    unpriced = LayerRecord(request=0, step=0, layer=1, server="s1", start_s=0.0)
    rows = layer_rows([Collected(server="s1", layers=[priced, unpriced], fidelity=fidelity)])
    frame = pl.DataFrame(rows, schema=dict(LAYERS), orient="row")
    names = [name for name in frame.columns if name.startswith("predicted_")]

    assert frame.select(names).rows() == [(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (None,) * 6]

    frame.drop(*LATER["layers"]).write_parquet(tmp_path / "layers.parquet")
    assert read_table(tmp_path / "layers.parquet", "layers").select(names).rows() == [(None,) * 6] * 2
