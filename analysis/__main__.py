"""``python -m analysis``: figures, tables and the report of a comparison, the newest by default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.errors import TestbedError

app = typer.Typer(add_completion=False)


@app.command()
def analyse(
    comparison_dir: Annotated[
        Path | None, typer.Argument(metavar="[COMPARISON_DIR]", help="Results to analyse; default: the newest.")
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
    """Draw figures, write summary.md, summary.csv and report.html, and print the table."""
    # Imported late: --help and a wrong path should not wait for plotting libraries.
    from analysis.load import load, newest

    try:
        comparison = load(comparison_dir or newest(results))

        from analysis.bootstrap import Bootstrap
        from analysis.findings import findings
        from analysis.gallery import pictures
        from analysis.report import report
        from analysis.tables import csv_text, markdown, summary

        found = summary(comparison, Bootstrap(seed=seed), reference=reference, allow_unfaithful=allow_unfaithful)
        table = markdown(comparison, found)
        out.mkdir(parents=True, exist_ok=True)
        drawn = []
        for picture in pictures(comparison, found):
            (out / f"{picture.name}.png").write_bytes(picture.png)
            (out / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
            drawn.append(picture)
        (out / "summary.md").write_text(table, encoding="utf-8")
        (out / "summary.csv").write_text(csv_text(found), encoding="utf-8")
        page = report(comparison, found, findings(comparison, found, seed=seed), drawn)
        (out / "report.html").write_text(page, encoding="utf-8")
    except TestbedError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:  # an output path that cannot be written
        typer.echo(f"{error.filename}: {error.strerror}", err=True)
        raise typer.Exit(TestbedError.exit_code) from None

    typer.echo(table)
    typer.echo(f"from    {comparison.path}")
    typer.echo(f"figures {out}/*.png, {out}/*.svg ({len(drawn)} each)")
    for name in ("summary.md", "summary.csv", "report.html"):
        typer.echo(f"wrote   {out / name}")


if __name__ == "__main__":
    app(prog_name="python -m analysis")
