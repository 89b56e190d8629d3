"""The scenario of Bevy's paper: a small grid from the command line to tables and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from analysis.offloading import (
    BEST,
    BEVY,
    LARGE,
    LOCKSTEP,
    compared,
    device_busy,
    draw,
    gains_at,
    over_concurrency,
    read,
)
from orchestration.bevy_paper import LARGE_READS, cells, main, texts_of
from orchestration.offloading import core_of, requests, run_cell
from scenarios.bevy_paper import DEFAULT, QUICK
from testbed.errors import TestbedError
from testbed.load import load_topology

TINY = replace(QUICK, models=("switch-base-8",), concurrency=(1, 3), fractions=(0.5, 1.0), caches=("lru", "next-use"))
ROOT = Path(__file__).parents[2]
SCHEDULERS = ["lockstep", "prefetch", "bevy", "bevy+prefetch"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bevy")
    argv = ["--routes", "switch-base-8=drawn", "--workers", "1", "--out", str(out), "--schedulers", *SCHEDULERS]
    assert main([*argv, "--quick"], default=DEFAULT, quick=TINY, draw=draw) == 0
    (made,) = out.iterdir()
    return made


def test_it_leaves_records_tables_and_figures(directory: Path) -> None:
    assert {path.name for path in directory.iterdir()} == {
        "offloading.json",
        "routes-switch-base-8.safetensors",
        "summary.md",
        "summary.csv",
        "tokens_over_concurrency.svg",
        "device_busy.svg",
        "channel_busy.svg",
        "accuracy_over_cache.svg",
    }
    records = read(directory)
    assert len(records.results) == 2 * 2 * 2 * 5
    assert len((directory / "summary.csv").read_text().splitlines()) == 1 + len(records.results)


def test_the_summary_holds_every_claim_of_the_paper_beside_what_was_measured(directory: Path) -> None:
    text = (directory / "summary.md").read_text()

    for claim in ("3.46x", "1.55x", "no better", "about 1x", "lockstep with large reads", "drawn (seed 0)"):
        assert claim in text


def test_what_page_faults_cost_and_what_interleaving_gains_multiply_to_the_whole_gain(directory: Path) -> None:
    for at in compared(read(directory).results):
        whole, interleaving = at.gain((LOCKSTEP,)), at.gain((LARGE,))
        faults = at.gain((LOCKSTEP,), of=LARGE)
        assert whole is not None
        assert interleaving is not None
        assert faults is not None
        assert whole == pytest.approx(interleaving * faults)


def test_a_full_cache_levels_all_schedulers_at_one_request(directory: Path) -> None:
    rates = {
        round(each.tokens_per_s, 6) for each in read(directory).results if each.fraction == 1 and each.concurrency == 1
    }

    assert len(rates) == 1


def test_each_row_may_also_choose_its_best_policy(directory: Path) -> None:
    results = read(directory).results
    best = next(each for each in compared(results) if each.cache == BEST)

    assert best.rows[BEVY].tokens_per_s == max(
        each.tokens_per_s for each in results if each.row == BEVY and each.point == best.point
    )


def test_figures_say_what_their_axes_are(directory: Path) -> None:
    figure = device_busy(read(directory).results)

    assert figure.axes[0].get_ylabel() == "device busy (%)"
    assert figure.axes[-1].get_xlabel() == "requests at once"
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {*SCHEDULERS, LARGE}


def test_every_panel_shows_all_of_its_lines(directory: Path) -> None:
    figure = over_concurrency(read(directory).results)

    for axes in figure.axes:
        highest = max(float(np.max(np.asarray(line.get_ydata(), dtype=float))) for line in axes.get_lines())
        assert axes.get_ylim()[0] == 0
        assert highest <= axes.get_ylim()[1]


def test_ratios_are_taken_seed_by_seed_and_their_mean_has_an_interval(directory: Path) -> None:
    results = [each for each in read(directory).results if each.cache == "lru"]
    twice = [
        *results,
        *(
            msgspec.structs.replace(each, seed=1, tokens_per_s=each.tokens_per_s * (1.1 if each.row == BEVY else 1.0))
            for each in results
        ),
    ]

    once, both = (gains_at(compared(of), (LOCKSTEP,)) for of in (results, twice))

    for point, gain in both.items():
        before = once[point]
        assert gain.n == 2
        assert before.low is None
        assert before.value is not None
        assert gain.low is not None
        assert gain.high is not None
        assert gain.value == pytest.approx(1.05 * before.value)
        assert gain.low < before.value < gain.high


def test_every_scheduler_of_a_point_serves_the_same_requests_on_the_same_machine() -> None:
    made = list(cells(TINY, SCHEDULERS, fault_share=0.5, precision="full", seeds=(3,)))
    first = made[0]
    same = [cell for cell in made if (cell.concurrency, cell.fraction) == (first.concurrency, first.fraction)]

    assert all(requests(cell) == requests(first) for cell in same)
    assert [cell.fault_share for cell in same if cell.row == LARGE_READS] == [1.0, 1.0]
    assert {cell.fault_share for cell in same if not cell.row} == {0.5}


def test_the_same_cell_gives_the_same_record_and_the_past_is_not_what_is_served() -> None:
    (server,) = load_topology(ROOT / "topologies" / "local-apple.yaml").servers
    assert server.device is not None
    texts, _ = texts_of("switch-base-8", "drawn", positions=40, seed=1)
    cell = next(iter(cells(TINY, ["bevy"], fault_share=1.0, precision="int8", seeds=(1,))))

    assert run_cell(cell, server.device, texts) == run_cell(cell, server.device, texts)
    poisson = run_cell(replace(cell, rate_per_s=2.0, concurrency=8), server.device, texts)
    assert poisson["ttft_mean_s"] > 0
    assert core_of(cell, server.device, texts).state.resident.sum() == 48


def test_routes_of_another_model_and_topologies_of_many_machines_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = ROOT / "agents" / "models" / "mixtral-8x7b-twin"
    with pytest.raises(TestbedError, match="holds routes of mixtral-8x7b, not of switch-base-8"):
        texts_of("switch-base-8", str(twin), positions=8, seed=0)

    argv = ["--topology", str(ROOT / "topologies" / "edge10.yaml"), "--out", str(tmp_path)]
    assert main(argv, default=DEFAULT, quick=TINY, draw=draw) == 2
    assert "this experiment is about one machine; the topology has 10 servers" in capsys.readouterr().err
