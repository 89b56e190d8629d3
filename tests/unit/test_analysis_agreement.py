from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from analysis.agreement import agreement, table
from analysis.load import Comparison, load
from testbed.errors import TestbedError

from .analysis_data import write_comparison


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "a", requests=60, layers=2, failed_share=0.0)


def changed(tmp_path: Path, column: pl.Expr, table_name: str = "requests") -> Comparison:
    """The same comparison with one column of one framework changed."""
    copy = write_comparison(tmp_path / "b", requests=60, layers=2, failed_share=0.0)
    (file,) = copy.glob(f"hetroute-*/{table_name}.parquet")
    pl.read_parquet(file).with_columns(column).write_parquet(file)
    return load(copy)


def off(simulated: Comparison, emulated: Comparison) -> list[tuple[str, str]]:
    return [(row.framework, row.what) for row in agreement(simulated, emulated) if not row.ok]


def test_a_comparison_agrees_with_itself(directory: Path) -> None:
    side = load(directory)

    assert off(side, side) == []
    assert {row.difference for row in agreement(side, side)} == {0.0}


def test_latencies_may_differ_by_a_tenth_in_the_mean(directory: Path, tmp_path: Path) -> None:
    assert off(changed(tmp_path, pl.col("latency_s") * 1.09), load(directory)) == []


def test_more_is_off_and_named(directory: Path, tmp_path: Path) -> None:
    slower = changed(tmp_path, pl.col("latency_s") * 1.2)

    assert off(slower, load(directory)) == [("hetroute", "mean latency"), ("hetroute", "P95 latency")]
    assert "**off**" in table(agreement(slower, load(directory)))


def test_a_single_byte_of_payload_is_off_where_all_were_routed_alike(directory: Path, tmp_path: Path) -> None:
    one_more = pl.when(pl.col("request") == 3).then(pl.col("sent_bytes") + 1).otherwise(pl.col("sent_bytes"))

    assert off(changed(tmp_path, one_more.alias("sent_bytes")), load(directory)) == [("hetroute", "payload")]


def test_requests_that_were_routed_otherwise_are_counted_and_allow_a_hundredth(directory: Path, tmp_path: Path) -> None:
    elsewhere = pl.when(pl.col("request") < 2).then(pl.lit("s9")).otherwise(pl.col("server")).alias("server")
    side = changed(tmp_path, elsewhere, "layers")
    (file,) = side.path.glob("hetroute-*/requests.parquet")
    requests = pl.read_parquet(file)

    def with_payload(factor: float) -> Comparison:
        requests.with_columns((pl.col("sent_bytes") * factor).cast(pl.Int64)).write_parquet(file)
        return load(side.path)

    (alike,) = [
        row
        for row in agreement(side, load(directory))
        if row.what == "routed as emulated" and row.framework == "hetroute"
    ]
    assert alike.emulated - alike.simulated == 2
    assert off(with_payload(1.009), load(directory)) == []
    assert off(with_payload(1.02), load(directory)) == [("hetroute", "payload")]


def test_other_requests_cannot_be_compared(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="did not play the same requests"):
        off(changed(tmp_path, pl.col("scheduled_s") + 0.1), load(directory))
