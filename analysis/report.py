"""One self-contained ``report.html``: question, verdict, findings, table, figures, and what they rest on.

The first page answers "which framework, by how much, and may I believe it"; everything after supports it.  The file
loads nothing: figures are inline SVG and the style is inside.  All text from result files is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import polars as pl

from analysis import domains, tables
from analysis.domains import Row
from analysis.gallery import Picture
from analysis.load import Comparison, Run
from analysis.metrics import METRICS, OTHER_DEFINITIONS
from analysis.schema import Calibration, Check, Manifest
from analysis.tables import Summary
from analysis.text import NONE, number, percent_change, quantity

SHOWN_LINKS = 20
SHOWN_EVENTS = 40
DEFAULT_QUESTION = (
    "Which framework answers requests fastest on this network, how does it hold when conditions change, "
    "and what does it cost in traffic and quality?"
)

_CSS = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:66rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.7rem;margin:0 0 .3rem}h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid #ddd}
.question{font-size:1.1rem;color:#444;margin:.2rem 0 1rem}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem;margin:.5rem 0;width:100%}
th,td{padding:.3rem .5rem;border-bottom:1px solid #e3e3e3;text-align:right;vertical-align:top}
th{text-align:right;font-weight:600;border-bottom:2px solid #999}
th.text,td.text{text-align:left}td small{display:block;color:#666;white-space:nowrap}
table.summary{font-size:.76rem}.summary th,.summary td{padding:.3rem .25rem}.summary small{font-size:.92em}
.verdict{padding:.6rem .9rem;border-left:6px solid;margin:1rem 0}
.pass{border-color:#1b7837;background:#eef7f0}.warn{border-color:#b2182b;background:#fbeeee}
td.bad{color:#b2182b;font-weight:600}li{margin:.25rem 0}
figure{margin:1.2rem 0 2rem;break-inside:avoid}figure svg{width:100%;height:auto}
figcaption{font-size:.88rem;color:#444}.note{font-size:.88rem;color:#555}
@media print{html{font-size:11px}body{margin:0;max-width:none;font-size:1rem}h2{break-after:avoid}tr{break-inside:avoid}
 table{font-size:.8rem}table.summary{font-size:.68rem}.scroll{overflow:visible}@page{size:A4;margin:14mm}}
"""


def report(
    comparison: Comparison,
    summary: Summary,
    findings: Sequence[str],
    pictures: Iterable[Picture],
    quality: Sequence[Row] = (),
) -> str:
    """The whole page; ``quality`` by domain where it was measured."""
    parts = [
        f"<h1>{escape(comparison.scenario)}</h1>",
        f'<p class="question">{escape(comparison.question or DEFAULT_QUESTION)}</p>',
        f"<p>{escape(_scenario(comparison))}</p>",
        *(f'<p class="verdict warn">{escape(note)}</p>' for note in comparison.notes),
        _verdict(comparison),
        _section("Key findings", _list(findings or ["The data support no finding."])),
        _section(
            "Summary",
            f"<p>{escape(tables.order_note(summary))}</p>"
            + _summary_table(summary)
            + f'<p class="note">{escape(_how_to_read(summary))}</p>',
        ),
        *([_section("Quality", _quality(quality))] if quality else []),
        _section("Figures", "".join(_figure(picture) for picture in pictures)),
        _section("Definitions", _definitions()),
        _section("Placement", _placement(comparison)),
        _section("Calibration of links before the runs", _calibration(comparison)),
        _section("Injected events", _events(comparison)),
        _section("Runs and versions", _runs(comparison) + _versions(comparison)),
    ]
    title = escape(f"{comparison.scenario}: {', '.join(comparison.frameworks)}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_CSS}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _scenario(comparison: Comparison) -> str:
    manifest = comparison.runs[0].manifest
    counts = [run.manifest.counts for run in comparison.runs]
    servers, links = len(manifest.topology.servers), len(manifest.topology.links)
    return (
        f"{len(comparison.runs)} runs of {len(comparison.frameworks)} frameworks on topology "
        f"{manifest.topology.name} ({servers} servers, {links} links), model {manifest.model.get('name', NONE)}. "
        f"Arrivals over {number(manifest.duration_s)} s, objective {number(1e3 * manifest.slo_s)} ms, "
        f"{_backend(manifest)} "
        f"Requests: {sum(count.sent for count in counts)} sent = {sum(count.completed for count in counts)} completed "
        f"+ {sum(count.failed for count in counts)} failed. All times are emulated."
    )


def _backend(manifest: Manifest) -> str:
    if manifest.backend == "sim":
        return "Simulated in virtual time: no packets, and nothing of the host in the figures."
    return f"Emulated ({manifest.backend}), dilation {number(manifest.dilation)} (wall seconds per emulated second)."


def _verdict(comparison: Comparison) -> str:
    bad = comparison.unfaithful
    word, kind = ("PASS", "pass") if not bad else ("WARN", "warn")
    runs = "every run kept its bounds" if not bad else "bounds broken in " + ", ".join(run.name for run in bad)
    rows = []
    for check, run in _worst_checks(comparison.runs):
        state = "ok" if check.ok else "broken"
        values = [check.name, number(check.value), number(check.bound), check.unit, state, run.name, check.meaning]
        rows.append([(value, "bad" if not check.ok and value == state else "") for value in values])
    table = _table(["check", "worst value", "bound", "unit", "state", "run", "meaning"], rows, text={0, 3, 4, 5, 6})
    return f'<div class="verdict {kind}"><strong>Fidelity {word}</strong>: {escape(runs)}.</div>{table}'


def _worst_checks(runs: Sequence[Run]) -> list[tuple[Check, Run]]:
    """Of every check the value nearest to its bound, or furthest beyond it, and whose it is."""
    worst: dict[str, tuple[Check, Run]] = {}
    for run in runs:
        for check in run.manifest.fidelity.checks:
            known = worst.get(check.name)
            if known is None or _badness(check) > _badness(known[0]):
                worst[check.name] = (check, run)
    return list(worst.values())


def _badness(check: Check) -> tuple[bool, float]:
    """Larger is worse.  A value above its bound that is ok, or below it and not ok, tells that the bound is a floor."""
    if check.value is None or check.bound is None:
        return (not check.ok, float("-inf"))
    floor = check.ok == (check.value > check.bound)
    return (not check.ok, check.bound - check.value if floor else check.value - check.bound)


def _summary_table(summary: Summary) -> str:
    head = "".join(
        f'<th class="{"text" if column == 0 else ""}">{escape(title)}</th>'
        for column, title in enumerate(tables.header(summary))
    )
    body = []
    for row in tables.rows(summary):
        cells = []
        for column, cell in enumerate(row):
            value, bounds = cell.value, cell.interval
            if not bounds and "[" in value:
                value, _, rest = value.partition(" [")
                bounds = f"[{rest}"
            small = f"<small>{escape(bounds)}</small>" if bounds else ""
            cells.append(f'<td class="{"text" if column == 0 else ""}">{escape(value)}{small}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table class="summary"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _how_to_read(summary: Summary) -> str:
    first = next(iter(summary.estimates.values()))["latency_mean_s"]
    return (
        f"Small print: 95 % bootstrap intervals ({first.method}). Changes are paired request by request against "
        f"{summary.reference}. Intervals in the findings are wider, so that all of one kind hold together with 95 %."
    )


def _quality(rows: Sequence[Row]) -> str:
    marked = [
        [(cell, "bad" if row.worst and cell.endswith(domains.WORST) else "") for cell in domains.cells(row)]
        for row in domains.shown(rows)
    ]
    return _table(domains.HEADER, marked, text={0, 1}) + f'<p class="note">{escape(domains.NOTE)}</p>'


def _figure(picture: Picture) -> str:
    label = escape(f"{picture.title}. {picture.question}", quote=True)
    svg = picture.svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return (
        f"<figure>{svg}<figcaption><strong>{escape(picture.title)}.</strong> {escape(picture.question)} "
        f"<em>{escape(picture.definition)}</em></figcaption></figure>"
    )


def _definitions() -> str:
    rows = [[entry.title, entry.unit or "1", entry.definition] for entry in METRICS]
    rows += [[title, unit or "1", definition] for title, unit, definition in OTHER_DEFINITIONS]
    return _table(["number", "unit", "definition"], rows, text={0, 1, 2})


def _placement(comparison: Comparison) -> str:
    rows = []
    for name in comparison.frameworks:
        placement = comparison.runs_of(name)[0].manifest.placement
        memory = placement.get("memory_bytes")
        redundancy = placement.get("redundancy")
        rows.append(
            [
                name,
                str(placement.get("replicas", NONE)),
                number(memory / 1e9) if isinstance(memory, (int, float)) else NONE,
                number(redundancy) if isinstance(redundancy, (int, float)) else NONE,
            ]
        )
    return _table(["framework", "expert replicas", "memory (GB)", "memory / one full-precision copy"], rows, text={0})


def _calibration(comparison: Comparison) -> str:
    measured = [(entry, run) for run in comparison.runs for entry in run.manifest.calibration]
    if not measured:
        return "<p>No calibration was recorded.</p>"
    measured.sort(key=lambda found: (found[0].ok, -_deviation(found[0])))
    worst: dict[tuple[str, str], tuple[Calibration, Run]] = {}
    for entry, run in measured:  # worst first, so the first of a direction is its worst
        worst.setdefault((entry.link, entry.source), (entry, run))
    rows = []
    for entry, run in list(worst.values())[:SHOWN_LINKS]:
        state = "ok" if entry.ok else "off"
        values = [
            f"{entry.source} → {entry.target}",
            number(1e3 * entry.rtt_s) if entry.rtt_s is not None else NONE,
            number(1e3 * entry.expected_rtt_s),
            percent_change(_relative(entry.rtt_s, entry.expected_rtt_s)),
            quantity(entry.goodput_bps, "bit/s"),
            ("≥ " if entry.goodput_at_least else "") + quantity(entry.expected_goodput_bps, "bit/s"),
            NONE
            if entry.goodput_at_least
            else percent_change(_relative(entry.goodput_bps, entry.expected_goodput_bps)),
            state,
            run.name,
        ]
        rows.append([(value, "bad" if value == "off" else "") for value in values])
    off = sum(not entry.ok for entry, _ in measured)
    titles = ["link", "RTT (ms)", "expected (ms)", "off by", "goodput", "expected", "off by", "state", "run"]
    return (
        f"<p>{len(measured)} measurements of link directions, {off} outside their tolerance. The "
        f"{len(rows)} directions furthest from the file, each in its worst run. ≥: the link is faster than a short "
        "probe can tell, and only that much was shown:</p>" + _table(titles, rows, text={0, 7, 8})
    )


def _deviation(entry: Calibration) -> float:
    parts = [_relative(entry.rtt_s, entry.expected_rtt_s)]
    if not entry.goodput_at_least:
        parts.append(_goodput_deviation(entry))
    return max(float("inf") if part is None else abs(part) for part in parts)


def _goodput_deviation(entry: Calibration) -> float | None:
    """None where only a lower bound could be shown."""
    return None if entry.goodput_at_least else _relative(entry.goodput_bps, entry.expected_goodput_bps)


def _relative(value: float | None, expected: float) -> float | None:
    return None if value is None or expected == 0 else value / expected - 1


def _events(comparison: Comparison) -> str:
    records = [run.events.with_columns(pl.lit(run.name).alias("run")) for run in comparison.runs if len(run.events)]
    if not records:
        return "<p>No event was injected.</p>"
    late = pl.concat(records).with_columns((pl.col("actual_s") - pl.col("scheduled_s")).alias("late_s"))
    worst = (
        late.sort("late_s", descending=True)
        .group_by("event", "scheduled_s", maintain_order=True)
        .first()
        .sort("scheduled_s", "event")
    )
    rows = [
        [text, f"{planned:.3f}", f"{actual:.3f}", number(1e3 * lateness), run]
        for text, planned, actual, lateness, run in worst.select(
            "event", "scheduled_s", "actual_s", "late_s", "run"
        ).iter_rows()
    ]
    more = f"<p>and {len(rows) - SHOWN_EVENTS} more.</p>" if len(rows) > SHOWN_EVENTS else ""
    titles = ["event", "scheduled (s)", "actual (s)", "late (ms)", "run"]
    return (
        "<p>Each event as the run saw it that was latest, emulated time:</p>"
        + _table(titles, rows[:SHOWN_EVENTS], text={0, 4})
        + more
    )


def _runs(comparison: Comparison) -> str:
    rows = []
    for run in comparison.runs:
        manifest = run.manifest
        counts = manifest.counts
        state = manifest.fidelity.verdict + ("" if manifest.complete else ", interrupted")
        numbers = [str(manifest.seed), str(counts.sent), str(counts.completed), str(counts.failed)]
        rows.append([run.name, manifest.started_at, state, *numbers])
    return _table(["run", "started", "verdict", "seed", "sent", "completed", "failed"], rows, text={0, 1, 2})


def _versions(comparison: Comparison) -> str:
    seen: dict[str, dict[str, None]] = {}
    for run in comparison.runs:
        for name, version in run.manifest.versions.items():
            seen.setdefault(name, {})[version] = None
    rows = [[name, " / ".join(versions)] for name, versions in sorted(seen.items())]
    return _table(["software", "version"], rows, text={0, 1})


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{body}"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str | tuple[str, str]]], text: set[int]) -> str:
    """A table of plain text; a cell may come as (value, class).  Columns in ``text`` are set left."""

    def css(column: int, own: str = "") -> str:
        names = " ".join(name for name in ("text" if column in text else "", own) if name)
        return f' class="{names}"' if names else ""

    head = "".join(f"<th{css(column)}>{escape(title)}</th>" for column, title in enumerate(titles))
    body = []
    for row in rows:
        cells = [(cell, "") if isinstance(cell, str) else cell for cell in row]
        body.append(
            "<tr>" + "".join(f"<td{css(i, own)}>{escape(value)}</td>" for i, (value, own) in enumerate(cells)) + "</tr>"
        )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
