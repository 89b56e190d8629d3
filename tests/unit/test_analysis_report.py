"""Table, findings, report and command line: what a reader is told, and what is withheld."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from analysis.__main__ import app
from analysis.bootstrap import Bootstrap
from analysis.domains import by_domain
from analysis.domains import markdown as quality_table
from analysis.findings import findings
from analysis.gallery import pictures
from analysis.load import Comparison, load
from analysis.report import report
from analysis.tables import csv_text, markdown, summary
from testbed.errors import TestbedError

from .analysis_data import HABITS, edit_manifest, write_comparison

B = Bootstrap(resamples=200)
GOLDEN = Path(__file__).parents[1] / "golden" / "analysis"
VOID = {"meta", "path", "use", "rect", "image", "br"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(tmp_path_factory.mktemp("results"), layers=4)


@pytest.fixture(scope="module")
def four(directory: Path) -> Comparison:
    return load(directory)


@pytest.fixture(scope="module")
def whole(four: Comparison) -> str:
    """A report with its figures."""
    found = summary(four, B)
    return report(four, found, findings(four, found), pictures(four, found))


def page(comparison: Comparison) -> str:
    """A report without figures, which take most of the time."""
    found = summary(comparison, B)
    return report(comparison, found, findings(comparison, found), ())


class Reader(HTMLParser):
    """Collects text, links and ids, and checks that tags close in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._attributes(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._attributes(attrs)

    def _attributes(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "data", "action"):
                self.targets.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def test_the_table_is_the_golden_one(four: Comparison) -> None:
    assert markdown(four, summary(four, B)) == (GOLDEN / "summary.md").read_text(encoding="utf-8")


def test_the_quality_table_is_the_golden_one(four: Comparison) -> None:
    rows = by_domain(four, tuple(summary(four, B).estimates), B)
    assert quality_table(rows) == (GOLDEN / "quality.md").read_text(encoding="utf-8")


def test_the_report_holds_the_quality_table_with_the_worst_domain_in_red(four: Comparison) -> None:
    found = summary(four, B)
    rows = by_domain(four, tuple(found.estimates), B)

    html = report(four, found, (), (), rows)

    section = html[html.index("<h2>Quality</h2>") : html.index("<h2>Figures</h2>")]
    (worst,) = [row.domain for row in rows if row.worst]
    assert f'<td class="text bad">{worst} ▼</td>' in section
    read(html)


def test_the_findings_are_the_golden_ones(four: Comparison) -> None:
    said = "\n".join(findings(four, summary(four, B))) + "\n"
    assert said == (GOLDEN / "findings.txt").read_text(encoding="utf-8")


def test_frameworks_are_sorted_by_mean_latency_and_compared_with_the_strong_baseline(four: Comparison) -> None:
    found = summary(four, B)

    assert list(found.estimates) == ["hetroute", "edgeshard", "local-first", "greedy"]
    assert found.reference == "edgeshard"
    assert set(found.changes) == {"hetroute", "local-first", "greedy"}


def test_the_reference_can_be_chosen_and_a_wrong_one_is_refused_with_the_choice(four: Comparison) -> None:
    assert summary(four, B, reference="greedy").reference == "greedy"
    without = replace(
        four, frameworks=("greedy", "hetroute"), runs=(*four.runs_of("greedy"), *four.runs_of("hetroute"))
    )
    assert summary(without, B).reference == "greedy"
    with pytest.raises(TestbedError, match="reference 'magic' is not in this comparison; it has: local-first, greedy"):
        summary(four, B, reference="magic")


def test_csv_holds_every_metric_with_interval_and_count_in_si_units(four: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(summary(four, B)))))

    ours = next(row for row in rows if row["framework"] == "hetroute")
    mean = float(ours["latency_mean_s"])
    assert 0.1 < mean < 0.2
    assert float(ours["latency_mean_s_low"]) < mean < float(ours["latency_mean_s_high"])
    assert ours["latency_mean_s_n"] == "394"
    assert float(ours["latency_mean_change"]) < -0.4
    assert next(row for row in rows if row["framework"] == "edgeshard")["latency_mean_change"] == ""


def test_a_broken_fidelity_bound_forbids_ranking_and_findings_unless_allowed(tmp_path: Path) -> None:
    doubtful = load(write_comparison(tmp_path, requests=60, layers=2, verdicts={"greedy": "WARN"}))

    refused = summary(doubtful, B)
    assert list(refused.estimates) == ["local-first", "greedy", "edgeshard", "hetroute"]  # as in the file
    assert "NOT RANKED" in markdown(doubtful, refused)
    assert "| greedy † |" in markdown(doubtful, refused)
    (only,) = findings(doubtful, refused)
    assert only.startswith("No finding about speed is stated")
    assert "greedy-r1: fidelity verdict WARN" in only

    allowed = summary(doubtful, B, allow_unfaithful=True)
    assert next(iter(allowed.estimates)) == "hetroute"
    assert "on demand, although" in markdown(doubtful, allowed)
    assert "greedy †" in markdown(doubtful, allowed)


def test_an_interrupted_run_forbids_ranking_too(tmp_path: Path) -> None:
    directory = write_comparison(tmp_path, requests=60, layers=2)
    edit_manifest(directory / "hetroute-r1", complete=False)

    found = summary(load(directory), B)

    assert not found.ranked
    assert found.doubts == ("hetroute-r1: interrupted",)


def test_frameworks_that_cannot_be_told_apart_are_not_ranked_in_words(tmp_path: Path) -> None:
    twins = dict.fromkeys(("edgeshard", "hetroute"), HABITS["edgeshard"])
    alike = load(write_comparison(tmp_path, frameworks=twins, layers=2))

    said = findings(alike, summary(alike, B))

    assert any("cannot be told from" in sentence for sentence in said)
    assert "Mean latency: no difference from edgeshard is shown for hetroute." in said
    assert not any("lowest mean latency of all" in sentence for sentence in said)


def test_too_few_common_requests_support_no_difference(tmp_path: Path) -> None:
    few = load(write_comparison(tmp_path, requests=20, layers=2))
    assert not any("lower than" in sentence for sentence in findings(few, summary(few, B)))


def test_a_budget_that_is_broken_is_said(tmp_path: Path) -> None:
    lossy = {"hetroute": replace(HABITS["hetroute"], nll_increase=0.05)}
    comparison = load(write_comparison(tmp_path, frameworks=lossy, requests=100, layers=2))

    said = findings(comparison, summary(comparison, B))

    assert any(sentence.startswith("Beyond the quality budget of 2.00 %") for sentence in said)


def test_the_report_loads_nothing_from_outside(whole: str) -> None:
    reader = read(whole)

    outside = [target for target in reader.targets if not target.startswith(("#", "data:image/png;base64,"))]
    assert outside == []
    assert "<script" not in whole
    assert "@import" not in whole
    assert not re.search(r"url\((?!#)", whole)


def test_ids_of_the_figures_do_not_meet(whole: str) -> None:
    reader = read(whole)

    assert len(reader.ids) == len(set(reader.ids))
    assert {target[1:] for target in reader.targets if target.startswith("#")} <= set(reader.ids)


def test_the_first_page_holds_question_verdict_findings_and_table_in_this_order(whole: str) -> None:
    text = " ".join(read(whole).text)

    order = [
        "link_congestion",
        "Which framework",
        "Fidelity PASS",
        "relay lateness P99",
        "Key findings",
        "Summary",
        "Figures",
    ]
    places = [text.index(part, text.index("Which framework") if part == "Figures" else 0) for part in order]
    assert places == sorted(places)
    assert "1600 sent = 1566 completed + 34 failed" in text
    assert "s1-s5 rate=100 Mbit/s" in text
    assert "0123abc" in text


def test_text_from_result_files_is_escaped(tmp_path: Path) -> None:
    directory = write_comparison(tmp_path, requests=20, layers=1)
    attack = '<img src=x onerror="alert(1)">'
    edit_manifest(directory / "hetroute-r1", versions={attack: attack}, run_id=attack)
    comparison = replace(load(directory), scenario=attack, question=attack, notes=(attack,))
    run = comparison.runs[0]
    events = run.events.clear().vstack(
        pl.DataFrame(
            {"event": [attack], "link": [None], "scheduled_s": [0.1], "actual_s": [0.2]}, schema=run.events.schema
        )
    )
    comparison = replace(comparison, runs=(replace(run, events=events), *comparison.runs[1:]))

    html = page(comparison)

    assert "<img" not in html
    assert html.count("&lt;img src=x onerror=") >= 5
    read(html)


def test_the_worst_links_come_first_and_each_direction_once(tmp_path: Path) -> None:
    directory = write_comparison(tmp_path, requests=20, layers=1)
    measured = {"link": "s3-s8", "source": "s8", "target": "s3", "expected_rtt_s": 0.01, "expected_goodput_bps": 1e9}
    fine = {"link": "s1-s2", "source": "s1", "target": "s2", "expected_rtt_s": 0.01, "expected_goodput_bps": 1e9}
    for run in ("hetroute-r1", "greedy-r1", "edgeshard-r1", "local-first-r1"):
        edit_manifest(
            directory / run,
            calibration=[
                {**fine, "rtt_s": 0.0101, "goodput_bps": 0.99e9, "ok": True},
                {
                    **measured,
                    "rtt_s": 0.02 if run == "greedy-r1" else 0.0101,
                    "goodput_bps": 1e9,
                    "ok": run != "greedy-r1",
                },
            ],
        )

    html = page(load(directory))

    section = html[html.index("Calibration of links") : html.index("Injected events")]
    assert "8 measurements of link directions, 1 outside their tolerance" in section
    assert section.index("s8 → s3") < section.index("s1 → s2")
    assert section.count("s8 → s3") == 1
    assert "+100.0 %" in section
    assert '<td class="text bad">off</td>' in section


def test_the_command_writes_everything_and_prints_the_table(directory: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--results", str(directory.parent), "--out", str(tmp_path / "out")])

    assert result.exit_code == 0, result.output
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {
        "report.html",
        "summary.md",
        "summary.csv",
        "quality.md",
        "quality.csv",
        "latency_cdf.png",
        "time_line.svg",
    } <= files
    assert sum(name.endswith(".png") for name in files) == sum(name.endswith(".svg") for name in files) == 11
    assert "| hetroute |" in result.output
    assert "report.html" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "nowhere"], "no results under 'nowhere': run a scenario first"),
        (["nowhere"], "no such results directory: 'nowhere'"),
    ],
)
def test_without_results_there_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_an_unknown_reference_is_refused_before_anything_is_drawn(directory: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(directory), "--out", str(tmp_path / "out"), "--reference", "magic"])

    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()
