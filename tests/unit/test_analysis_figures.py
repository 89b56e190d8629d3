"""Figures say what they show: their axes are read back, and nothing leaves the paper or lies on something else."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread

from analysis import figures, maps, style
from analysis.bootstrap import Bootstrap
from analysis.domains import by_domain
from analysis.gallery import Picture, pictures
from analysis.load import Comparison, load
from analysis.tables import Summary, summary
from testbed.topology import Direction, Link, Node, Topology

from .analysis_data import CONGESTED_S, HABITS, HIT_LINKS, topology, write_comparison

B = Bootstrap(resamples=50)
TEN = HABITS | {
    name: replace(HABITS["edgeshard"], median_s=0.2 + 0.1 * i, nll_increase=0.004 * i)
    for i, name in enumerate(("prism", "petals", "moe-infinity", "bevy", "trimmoe", "edgeshard-int8-batched"))
}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return load(write_comparison(tmp_path_factory.mktemp("results"), layers=4))


@pytest.fixture(scope="module")
def numbers(four: Comparison) -> Summary:
    return summary(four, B)


@pytest.fixture(autouse=True)
def our_style() -> Iterator[None]:
    with style.context():
        yield


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def bars(axes: Axes) -> list[float]:
    return [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]


def test_the_cdf_of_a_framework_ends_at_the_share_that_completed(four: Comparison) -> None:
    figure = figures.latency_cdf(four)
    (axes,) = figure.axes

    curves = axes.lines[: len(four.frameworks)]
    for name, curve in zip(four.frameworks, curves, strict=True):
        (run,) = four.runs_of(name)
        times, share = curve.get_xdata(), curve.get_ydata()
        assert share[-1] == pytest.approx(100 * run.manifest.counts.completed / run.manifest.counts.sent)
        assert times[-1] == pytest.approx(1e3 * run.completed["latency_s"].max())
    assert axes.get_xlabel() == "latency (ms, emulated)"
    assert axes.get_ylabel() == "requests answered (% of sent)"
    assert labels(figure)[0] == "local-first (n = 396 of 400)"
    assert [text.get_text() for text in axes.texts] == ["SLO 300 ms"]


def test_the_latency_axis_is_logarithmic_only_where_latencies_spread_widely(four: Comparison) -> None:
    narrow = replace(four, frameworks=("hetroute",), runs=four.runs_of("hetroute"))

    assert figures.latency_cdf(four).axes[0].get_xscale() == "log"
    assert figures.latency_cdf(narrow).axes[0].get_xscale() == "linear"


def test_repeats_show_a_band_in_the_cdf(tmp_path: Path) -> None:
    repeated = load(write_comparison(tmp_path, requests=40, layers=1, repeats=2))
    assert len(figures.latency_cdf(repeated).axes[0].collections) == len(repeated.frameworks)


def test_bars_are_as_long_as_their_numbers_with_their_intervals(numbers: Summary) -> None:
    figure = figures.latency_bars(numbers.estimates)

    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Mean latency", "P95 latency", "P99 latency"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"ms, emulated"}
    for axes, key in zip(figure.axes, ("latency_mean_s", "latency_p95_s", "latency_p99_s"), strict=True):
        found = [estimates[key] for estimates in numbers.estimates.values()]
        assert bars(axes) == pytest.approx([1e3 * (entry.value or 0) for entry in found])
        whiskers = [
            part.lines[2][0].get_segments()[0] for part in axes.containers if isinstance(part, ErrorbarContainer)
        ]
        for whisker, entry in zip(whiskers, found, strict=True):
            assert whisker[:, 0] == pytest.approx([1e3 * (entry.low or 0), 1e3 * (entry.high or 0)])
    rows = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert rows == ["hetroute (n = 394)", "edgeshard (n = 388)", "local-first (n = 396)", "greedy (n = 388)"]


def test_traffic_is_in_gigabytes_per_thousand_tokens(numbers: Summary) -> None:
    (axes,) = figures.traffic_bars(numbers.estimates).axes

    assert axes.get_xlabel() == "GB/1000 tokens"
    shown = dict(zip(numbers.estimates, bars(axes), strict=True))
    assert shown["greedy"] == pytest.approx(1e-6 * HABITS["greedy"].bytes_per_token, rel=0.1)


def test_throughput_shows_what_was_offered(four: Comparison, numbers: Summary) -> None:
    requests, tokens = figures.throughput_bars(numbers.estimates, four).axes

    assert requests.get_xlabel() == "requests/s, emulated"
    assert tokens.get_xlabel() == "tokens/s, emulated"
    assert requests.get_title(loc="left").startswith("Throughput\ndotted: 20")
    assert bars(requests) == pytest.approx([20.0] * 4, rel=0.1)


def test_quality_shows_the_budget_and_keeps_it_in_view(numbers: Summary) -> None:
    loss, _ = figures.quality_bars(numbers.estimates, 0.02).axes
    without, _ = figures.quality_bars(numbers.estimates, None).axes

    assert loss.get_title(loc="left") == "NLL increase\ndotted: budget 2.00 %"
    assert loss.get_xlim()[1] > 2.0
    assert dict(zip(numbers.estimates, bars(loss), strict=True))["hetroute"] == pytest.approx(1.1, abs=0.15)
    assert without.get_title(loc="left") == "NLL increase"


def test_parts_of_the_time_end_at_the_mean_latency(four: Comparison, numbers: Summary) -> None:
    figure = figures.where_time_goes(four)
    (axes,) = figure.axes

    assert labels(figure) == ["dense", "own experts", "other servers", "moves", "rest"]
    ends = np.array(bars(axes)).reshape(5, 4).sum(axis=0)
    means = [1e3 * (numbers.estimates[name]["latency_mean_s"].value or 0) for name in four.frameworks]
    assert ends == pytest.approx(means)
    assert "ms" in axes.get_xlabel()


def test_the_execution_mix_fills_a_hundred_per_cent(four: Comparison) -> None:
    (axes,) = figures.execution_mix_bars(four).axes
    assert np.array(bars(axes)).reshape(4, 4).sum(axis=0) == pytest.approx([100.0] * 4)


def test_the_time_line_shades_the_disturbance_and_shows_the_rates_below(four: Comparison) -> None:
    above, below = maps.time_line(four).axes

    (span,) = above.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == pytest.approx(CONGESTED_S, abs=0.01)  # type: ignore[attr-defined]
    assert [text.get_text() for text in above.texts] == ["3 links rate=100 Mbit/s"]
    assert len(above.lines) == len(four.frameworks)
    assert above.get_ylabel() == "latency (ms, emulated)"
    assert below.get_xlabel() == "planned arrival (s, emulated)"
    assert below.get_ylabel() == "rate (Mbit/s)"
    assert {line.get_label() for line in below.lines} == set(HIT_LINKS)
    for line in below.lines:
        at, rate = line.get_xdata(), line.get_ydata()
        drop = int(np.argmax(np.diff(rate) < 0)) + 1
        assert at[drop] == pytest.approx(CONGESTED_S[0], abs=0.01)  # the event's moment, not the next sample's
        assert rate[drop] == 100.0


def test_a_run_without_events_has_no_rate_panel(four: Comparison) -> None:
    calm = replace(four, runs=tuple(replace(run, events=run.events.clear()) for run in four.runs))
    assert len(maps.time_line(calm).axes) == 1


def test_the_heat_map_holds_the_busy_share_of_every_server(four: Comparison) -> None:
    axes, bar = maps.busy_heat_map(four).axes

    table = axes.images[0].get_array()
    assert table is not None
    assert table.shape == (4, 10)
    first = four.runs[0].servers.filter(pl.col("server") == "s1")["device_busy"].mean()
    assert table[0, 0] == pytest.approx(100 * first)  # type: ignore[operator]
    assert [text.get_text() for text in axes.get_xticklabels()] == [f"s{i}" for i in range(1, 11)]
    assert bar.get_ylabel() == "device busy (% of time)"


def test_the_topology_shows_every_link_thick_by_rate(four: Comparison) -> None:
    axes, bar = maps.topology_picture(topology()).axes

    cables = [line for line in axes.lines if len(line.get_xdata()) == 2]
    assert len(cables) == 45
    assert {round(cable.get_linewidth(), 1) for cable in cables} >= {0.8, 5.0}
    assert [text.get_text() for text in axes.texts if text.get_text() in ("west", "mid", "east")] == [
        "west",
        "mid",
        "east",
    ]
    assert bar.get_ylabel() == "one-way delay (ms)"


@pytest.mark.parametrize("servers", [1, 2, 3, 24])
def test_a_topology_of_any_size_without_metros_is_drawn(servers: int) -> None:
    nodes = tuple(Node(name=f"n{i}") for i in range(servers))
    one = Direction(rate_bps=1e9, delay_s=0.0)
    links = tuple(Link(a=a.name, b=b.name, forward=one, backward=one) for a, b in pairwise(nodes))

    axes = maps.topology_picture(Topology(name="chain", nodes=nodes, links=links)).axes[0]

    assert sum(len(line.get_xdata()) == 2 for line in axes.lines) == servers - 1


def test_every_framework_has_one_colour_of_its_own_whatever_the_order() -> None:
    names = [*TEN, "mine", "yours"]
    looks = style.looks(names)

    assert len({look.color for look in looks.values()}) == len(names)
    assert style.looks(reversed(names)) == looks


def drawn(comparison: Comparison) -> list[Picture]:
    return list(pictures(comparison, summary(comparison, B), by_domain(comparison, comparison.frameworks, B)))


def test_ten_frameworks_fit_on_every_figure(tmp_path: Path) -> None:
    comparison = load(write_comparison(tmp_path, frameworks=TEN, requests=200, layers=2))

    for picture in drawn(comparison):
        assert border(picture).min() == 1.0, f"{picture.name} runs off the paper"


def border(picture: Picture) -> np.ndarray:
    pixels = imread(io.BytesIO(picture.png), format="png")[..., :3]
    return np.concatenate([part.ravel() for part in (pixels[:4], pixels[-4:], pixels[:, :4], pixels[:, -4:])])


def test_many_exact_frameworks_are_all_named_on_the_paper(four: Comparison) -> None:
    (row, *_) = by_domain(four, ["greedy"], B)
    names = [f"framework-number-{i}" for i in range(20)]

    found = pictures(four, summary(four, B), [replace(row, framework=name) for name in names])
    picture = next(entry for entry in found if entry.name == "quality_by_domain")

    assert border(picture).min() == 1.0


@pytest.mark.parametrize("count", [2, 10])
def test_labels_of_an_axis_do_not_lie_on_each_other(tmp_path: Path, count: int) -> None:
    chosen = {name: TEN[name] for name in list(TEN)[:count]}
    comparison = load(write_comparison(tmp_path, frameworks=chosen, requests=200, layers=2))
    found = summary(comparison, B)

    for figure in (
        figures.latency_cdf(comparison),
        figures.latency_bars(found.estimates),
        figures.quality_bars(found.estimates, 0.02),
        figures.quality_by_domain(by_domain(comparison, comparison.frameworks, B)),
        maps.time_line(comparison),
        maps.busy_heat_map(comparison),
    ):
        figure.draw_without_rendering()
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                boxes = [
                    tick.label1.get_window_extent()
                    for tick in axis.get_major_ticks()
                    if low <= tick.get_loc() <= high and tick.label1.get_text() and tick.label1.get_visible()
                ]
                assert not any(a.overlaps(b) for a, b in pairwise(boxes))


def test_every_figure_asks_a_question_and_defines_what_it_shows(four: Comparison) -> None:
    found = drawn(four)

    assert len({picture.name for picture in found}) == 11
    for picture in found:
        assert "?" in picture.question
        assert len(picture.definition) > 20
        assert picture.svg.startswith("<svg")
        assert "<metadata>" not in picture.svg


def test_a_dollar_in_a_name_is_a_dollar_and_not_mathematics(tmp_path: Path) -> None:
    odd = load(write_comparison(tmp_path, frameworks={"cost_$x^$": HABITS["hetroute"]}, requests=20, layers=1))

    figure = figures.latency_cdf(odd)
    figure.draw_without_rendering()

    assert labels(figure) == [f"cost_$x^$ (n = {len(odd.runs[0].completed)} of 20)"]


def test_the_same_data_give_the_same_svg(four: Comparison, numbers: Summary) -> None:
    first, second = (next(iter(pictures(four, numbers))).svg for _ in range(2))
    assert first == second


def test_runs_that_hold_nothing_are_drawn_as_empty_figures(four: Comparison) -> None:
    def emptied(comparison: Comparison, kept: int) -> Comparison:
        return replace(
            comparison,
            runs=tuple(
                replace(
                    run,
                    requests=run.requests.head(kept),
                    layers=run.layers.clear(),
                    links=run.links.clear(),
                    servers=run.servers.clear(),
                )
                for run in comparison.runs
            ),
        )

    assert len(drawn(emptied(four, 0))) == 10
    assert next(text.get_text() for text in maps.time_line(emptied(four, 0)).axes[0].texts) == "no request completed"
    one = emptied(four, 1)
    bare = figures.latency_bars(summary(one, B).estimates)
    assert not any(isinstance(part, ErrorbarContainer) for part in bare.axes[0].containers)
    assert labels(figures.latency_cdf(one))[0] == "local-first (n = 1 of 1)"
    assert len(maps.time_line(one).axes[0].lines) == 4


def test_a_framework_whose_requests_all_failed_is_shown_without_numbers(four: Comparison) -> None:
    lost = four.runs[0].requests.with_columns(error=pl.lit("lost"), latency_s=pl.lit(None, dtype=pl.Float64))
    broken = replace(four, runs=(replace(four.runs[0], requests=lost), *four.runs[1:]))
    found = summary(broken, B)

    assert list(found.estimates)[-1] == "local-first"  # nothing to rank it by
    axes = figures.latency_bars(found.estimates).axes[0]
    assert "no data" in [text.get_text() for text in axes.texts]
    assert "local-first (n = 0 of 400)" in labels(figures.latency_cdf(broken))
    assert " no data" in [text.get_text() for text in figures.where_time_goes(broken).axes[0].texts]
