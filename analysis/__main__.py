"""``python -m analysis``: figures, tables and the report of a comparison, the newest by default, or of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from testbed.errors import TestbedError

app = typer.Typer(add_completion=False)


@app.command()
def analyse(
    comparison_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIRECTORY]", help="A comparison, a run or a sweep to analyse; default: the newest comparison."
        ),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where to look for the newest comparison.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Where figures, tables and the report go.")] = Path("figures"),
    reference: Annotated[
        str | None, typer.Option(help="Framework that changes are relative to; default: edgeshard, or the first.")
    ] = None,
    allow_unfaithful: Annotated[
        bool, typer.Option("--allow-unfaithful", help="Rank frameworks even if a run broke its fidelity bounds.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Draw figures, write summary.md, quality.md, a CSV of each and report.html, and print the tables.

    Of a sweep: figures over load, sweep.md, and sweep.csv and sweep.parquet with a row per cell.
    """
    # Imported late: --help and a wrong path should not wait for plotting libraries.
    from analysis.load import load, newest
    from analysis.sweep import is_sweep

    try:
        if comparison_dir is not None and is_sweep(comparison_dir):
            _analyse_sweep(comparison_dir, out)
            return
        comparison = load(comparison_dir or newest(results))

        from analysis import domains
        from analysis.bootstrap import Bootstrap
        from analysis.findings import findings
        from analysis.gallery import pictures
        from analysis.report import report
        from analysis.tables import csv_text, markdown, summary

        bootstrap = Bootstrap(seed=seed)
        found = summary(comparison, bootstrap, reference=reference, allow_unfaithful=allow_unfaithful)
        table = markdown(comparison, found)
        out.mkdir(parents=True, exist_ok=True)
        drawn = []
        quality = domains.by_domain(comparison, tuple(found.estimates), bootstrap)
        for picture in pictures(comparison, found, quality):
            (out / f"{picture.name}.png").write_bytes(picture.png)
            (out / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
            drawn.append(picture)
        texts = {"summary.md": table, "summary.csv": csv_text(found)}
        if quality:
            texts |= {"quality.md": domains.markdown(quality), "quality.csv": domains.csv_text(quality)}
        for name, content in texts.items():
            (out / name).write_text(content, encoding="utf-8")
        page = report(comparison, found, findings(comparison, found, seed=seed), drawn, quality)
        (out / "report.html").write_text(page, encoding="utf-8")
    except TestbedError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:  # an output path that cannot be written
        typer.echo(f"{error.filename}: {error.strerror}", err=True)
        raise typer.Exit(TestbedError.exit_code) from None

    typer.echo(table)
    if quality:
        typer.echo(domains.markdown(quality))
    typer.echo(f"from    {comparison.path}")
    typer.echo(f"figures {out}/*.png, {out}/*.svg ({len(drawn)} each)")
    for name in (*texts, "report.html"):
        typer.echo(f"wrote   {out / name}")


def _analyse_sweep(path: Path, out: Path) -> None:
    from matplotlib.figure import Figure

    from analysis import curves, style
    from analysis.seeds import markdown, points
    from analysis.sweep import load_sweep, write_table

    sweep = load_sweep(path)
    means = points(sweep.table)
    if not means:
        raise TestbedError(f"'{path}' holds no finished cell yet; call the sweep again")
    out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[], Figure]] = {
        "latency_over_load": lambda: curves.latency_over_load(means, sweep.slo_s),
        "throughput_over_load": lambda: curves.throughput_over_load(means),
    }
    for name, draw in figures.items():
        with style.context(salt=name):
            figure = draw()
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # the layout just found, for both files
            figure.savefig(out / f"{name}.png", dpi=style.PNG_DPI)
            figure.savefig(out / f"{name}.svg", metadata={"Date": None, "Creator": None})
    table = markdown(sweep, means)
    (out / "sweep.md").write_text(table, encoding="utf-8")
    write_table(sweep, out)
    typer.echo(table)
    typer.echo(f"from    {path}")
    typer.echo(f"figures {', '.join(f'{out / name}.png' for name in figures)}, and .svg of each")
    typer.echo(f"wrote   {out / 'sweep.md'}, {out / 'sweep.csv'}, {out / 'sweep.parquet'}")


if __name__ == "__main__":
    app(prog_name="python -m analysis")
