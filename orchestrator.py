"""The command line that plays scenarios: check, plan, run, compare, agreement, sweep, record-routing, list.

    python orchestrator.py plan link_congestion --topology topologies/edge10.yaml
    python orchestrator.py compare link_congestion --frameworks edgeshard,hetroute
    python orchestrator.py sweep steady_load --rates 4-32:4 --seeds 0-4

It imports everything and nothing imports it, except the runnable scenarios, which are this command line with one
argument.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from agents.frameworks.registry import ABLATIONS, FRAMEWORKS, create
from agents.models.model import Model
from agents.models.sampling import Sampling
from agents.models.spec import TWINS, model_path
from orchestration.bench import digest_of_model, source
from orchestration.catalogue import builder, scenario_names
from orchestration.cells import Grid, cells, rates_in, seeds_in
from orchestration.comparison import prepare
from orchestration.errors import INTERRUPTED
from orchestration.manifest import label
from orchestration.places import AUTO, Backend, Place, Sees, backend_for, dilated, dilation_in, open_place
from orchestration.routing import check_recordable, convert_log, prompt_texts, scenario_texts
from orchestration.routing import record_routing as record
from orchestration.session import new_directory
from orchestration.sweep import Onlooker, Sweep, steady, usable_cores
from orchestration.sweepfiles import SweepDirectory
from orchestration.terminal import watched
from scenarios.timeline import Scenario, Setting, render
from testbed.errors import FULL_DISK, TestbedError
from testbed.load import load_topology
from testbed.topology import Topology


class DisagreementError(TestbedError):
    """Simulation and emulation differ by more than they may."""

    exit_code = 1


class FailedCellsError(TestbedError):
    """A sweep has cells without records."""

    exit_code = 1


ROOT = Path(__file__).parent
DEFAULT_MODEL = ROOT / "agents" / "models" / "mixtral-8x7b-twin"
DEFAULT_TOPOLOGY = ROOT / "topologies" / "edge10.yaml"
DEFAULT_FRAMEWORKS = "local-first,greedy,edgeshard,hetroute"
#: Memory for experts, in full-precision copies of all of them.
REDUNDANCY = 2.0
#: Beyond so many servers some placements take minutes.
MANY_SERVERS = 24


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Play scenarios under routing frameworks, on a testbed that is up or in virtual time, and record them.",
)
console = Console(highlight=False)


def say(text: str) -> None:
    """Tell the user."""
    console.print(text, soft_wrap=True, markup=False)


ScenarioName = Annotated[str, typer.Argument(help="a scenario's name (see `list`), or the path of a Python file")]
TopologyFile = Annotated[Path, typer.Option("--topology", help="topology file")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="decides arrivals, homes, prompts")]
Rate = Annotated[
    float | None, typer.Option(min=0.001, max=1e5, help="requests per emulated second; default: the scenario's")
]
Duration = Annotated[
    float | None, typer.Option(min=0.1, max=1e5, help="emulated seconds of arrivals; default: the scenario's")
]
Temperature = Annotated[
    float, typer.Option(min=0.0, max=100.0, help="of generated text; 0 takes the likeliest token, always")
]
TopP = Annotated[float, typer.Option(help="draw among the likeliest tokens that together reach this probability")]
SamplingSeed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="decides the draws, the same on every server")]
GenerateShare = Annotated[float | None, typer.Option(min=0.0, max=1.0, help="share of requests that generate text")]
ModelDirectory = Annotated[
    Path,
    typer.Option(
        "--model",
        callback=model_path,
        help=f"{', '.join(TWINS)}; or a twin's or a checkpoint's directory, or a routing trace (.jsonl)",
    ),
]
Redundancy = Annotated[
    float, typer.Option(min=1.0, max=100.0, help="memory for experts, in full-precision copies of all of them")
]
Dilation = Annotated[
    str, typer.Option(help="wall seconds per emulated second, or auto: what this machine needs to keep up")
]
BackendName = Annotated[
    Backend, typer.Option("--backend", help="packets on a testbed that is up, virtual time, or what is possible")
]
ViewName = Annotated[
    Sees, typer.Option("--view", help="what frameworks see: what gossip and messages tell, or (sim) the true state")
]
SimulatedTopology = Annotated[
    Path | None, typer.Option("--topology", help="topology file, in virtual time; a testbed has its own")
]
TestbedName = Annotated[str | None, typer.Option("--testbed", help="which testbed, if several are up")]
TraceFile = Annotated[Path, typer.Argument(help="trace to write (.jsonl)")]
Results = Annotated[Path, typer.Option(help="where run directories go")]


@app.command("list")
def list_() -> None:
    """Show the frameworks, scenarios and topologies there are."""
    console.print("frameworks  ", ", ".join(FRAMEWORKS), "  (or the path of a Python file)")
    console.print("ablations   ", ", ".join(ABLATIONS))
    console.print("scenarios   ", ", ".join(scenario_names()), "  (or the path of a Python file)")
    files = sorted((ROOT / "topologies").glob("*.yaml"))
    console.print("topologies  ", ", ".join(str(path.relative_to(ROOT)) for path in files))


@app.command()
def plan(
    scenario: ScenarioName,
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    seed: Seed = 0,
    rate: Rate = None,
    duration: Duration = None,
    generate_share: GenerateShare = None,
    model: ModelDirectory = DEFAULT_MODEL,
    first: Annotated[int, typer.Option(min=0, help="how many requests to print")] = 10,
) -> None:
    """Print both timelines of a scenario without running anything."""
    loaded = Model.load(model)
    built = _build(scenario, load_topology(topology), loaded, seed, rate, duration, generate_share)
    console.print(render(built, first=first), soft_wrap=True)


@app.command()
def check(
    scenario: ScenarioName = "steady_load",
    frameworks: Annotated[str, typer.Option(help="comma-separated names or files")] = DEFAULT_FRAMEWORKS,
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    model: ModelDirectory = DEFAULT_MODEL,
    redundancy: Redundancy = REDUNDANCY,
) -> None:
    """Check that scenario, topology, model and frameworks fit together, and show each framework's placement."""
    loaded = Model.load(model)
    network = load_topology(topology)
    built = _build(scenario, network, loaded, 0, None, None, None)
    prepared = prepare(
        scenarios={0: built},
        topology=network,
        model=loaded,
        frameworks=_names(frameworks),
        redundancy=redundancy,
        progress=say,
    )
    for candidate in prepared.candidates:
        copies: dict[str, int] = {}
        for replica in candidate.placement.replicas:
            copies[replica.server] = copies.get(replica.server, 0) + 1
        held = ", ".join(f"{server} {copies.get(server, 0)}" for server in prepared.cluster.names)
        say(f"{candidate.name}: {len(candidate.placement.replicas)} expert copies: {held}")


@app.command()
def run(
    scenario: ScenarioName,
    framework: Annotated[str, typer.Option(help="a framework's name, or a Python file")] = "hetroute",
    seed: Seed = 0,
    rate: Rate = None,
    duration: Duration = None,
    generate_share: GenerateShare = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    sampling_seed: SamplingSeed = 0,
    dilation: Dilation = AUTO,
    redundancy: Redundancy = REDUNDANCY,
    model: ModelDirectory = DEFAULT_MODEL,
    backend: BackendName = Backend.AUTO,
    view: ViewName = Sees.ESTIMATED,
    topology: SimulatedTopology = None,
    testbed: TestbedName = None,
    results: Results = Path("results"),
) -> None:
    """Play a scenario under one framework."""
    compare_(
        scenario,
        frameworks=framework,
        repeats=1,
        seed=seed,
        rate=rate,
        duration=duration,
        generate_share=generate_share,
        temperature=temperature,
        top_p=top_p,
        sampling_seed=sampling_seed,
        dilation=dilation,
        redundancy=redundancy,
        model=model,
        backend=backend,
        view=view,
        topology=topology,
        testbed=testbed,
        results=results,
    )


@app.command("compare")
def compare_(
    scenario: ScenarioName,
    frameworks: Annotated[str, typer.Option(help="comma-separated names or files")] = DEFAULT_FRAMEWORKS,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="runs per framework, with seed, seed + 1 ...")] = 1,
    seed: Seed = 0,
    rate: Rate = None,
    duration: Duration = None,
    generate_share: GenerateShare = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    sampling_seed: SamplingSeed = 0,
    dilation: Dilation = AUTO,
    redundancy: Redundancy = REDUNDANCY,
    model: ModelDirectory = DEFAULT_MODEL,
    backend: BackendName = Backend.AUTO,
    view: ViewName = Sees.ESTIMATED,
    topology: SimulatedTopology = None,
    testbed: TestbedName = None,
    results: Results = Path("results"),
) -> None:
    """Play a scenario under several frameworks in turn."""
    names = _names(frameworks)
    for name in names:
        create(name)  # a name that is wrong is said before anything else is looked at
    slower = dilation_in(dilation)
    backend = backend_for(view, backend, say)
    sampling = _sampling(temperature, top_p, sampling_seed)
    build = builder(scenario)
    loaded = Model.load(model)
    with open_place(
        backend, loaded, topology=topology, default_topology=DEFAULT_TOPOLOGY, testbed=testbed, say=say
    ) as place:
        seeds = range(seed, seed + repeats)
        scenarios = {
            each: replace(
                build(_setting(place.topology, loaded, each, rate, duration, generate_share)),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                sampling_seed=sampling.seed,
            )
            for each in seeds
        }
        directory = _played(place, scenarios, names, redundancy, slower, results, view=view)
    say(f"results in {directory}; draw them with `make plots`")


@app.command()
def agreement(
    scenario: ScenarioName = "steady_load",
    frameworks: Annotated[str, typer.Option(help="comma-separated names or files")] = DEFAULT_FRAMEWORKS,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="runs per framework, with seed, seed + 1 ...")] = 1,
    seed: Seed = 0,
    rate: Rate = None,
    duration: Duration = None,
    dilation: Dilation = AUTO,
    model: ModelDirectory = DEFAULT_MODEL,
    testbed: TestbedName = None,
    results: Results = Path("results"),
) -> None:
    """Play a scenario in virtual time and on the testbed that is up, and compare what came out."""
    from analysis.agreement import agreement as compared
    from analysis.agreement import table
    from analysis.load import load

    names = _names(frameworks)
    slower = dilation_in(dilation)
    build = builder(scenario)
    loaded = Model.load(model)
    sides = {}
    for backend in (Backend.SIM, Backend.NETNS):
        with open_place(
            backend,
            loaded,
            topology=None,
            default_topology=DEFAULT_TOPOLOGY,
            testbed=testbed,
            say=say,
            like_testbed=True,
        ) as place:
            seeds = range(seed, seed + repeats)
            scenarios = {
                each: build(_setting(place.topology, place.model, each, rate, duration, None)) for each in seeds
            }
            directory = results / f"agreement-{backend}"
            sides[backend] = load(_played(place, scenarios, names, REDUNDANCY, slower, directory))
    rows = compared(sides[Backend.SIM], sides[Backend.NETNS])
    say(table(rows))
    for side in sides.values():
        say(f"from {side.path}")
    off = [f"{row.framework} {row.what}" for row in rows if not row.ok]
    if off:
        raise DisagreementError(f"simulation and emulation disagree: {', '.join(off)}")


@app.command()
def sweep(
    scenario: ScenarioName = "steady_load",
    frameworks: Annotated[str, typer.Option(help="comma-separated names or files")] = DEFAULT_FRAMEWORKS,
    rates: Annotated[
        str | None, typer.Option(help="requests per emulated second, as 4,8 or 2-8:2; default: the scenario's")
    ] = None,
    topologies: Annotated[str, typer.Option(help="comma-separated topology files")] = str(DEFAULT_TOPOLOGY),
    seeds: Annotated[str, typer.Option(help="as 0,3 or 0-4")] = "0",
    duration: Duration = None,
    generate_share: GenerateShare = None,
    redundancy: Redundancy = REDUNDANCY,
    model: ModelDirectory = DEFAULT_MODEL,
    processes: Annotated[int | None, typer.Option(min=1, max=1024, help="default: one per processor")] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="directory of the sweep; default: sweeps/<scenario>; what is finished there stays"),
    ] = None,
) -> None:
    """Play every combination of frameworks, loads, topologies and seeds in virtual time, and none of them twice."""
    names = _names(frameworks)
    for name in names:
        create(name)
    build = builder(scenario)
    loaded = Model.load(model)

    def built(topology: Topology, rate: float | None, seed: int) -> Scenario:
        return build(_setting(topology, loaded, seed, rate, duration, generate_share))

    timeline = steady(built, scenario=scenario)
    grid = Grid(
        scenario=source(scenario),
        frameworks=tuple(source(name) for name in names),
        topologies=tuple(load_topology(path.strip()) for path in topologies.split(",")),
        rates_per_s=(None,) if rates is None else rates_in(rates, option="--rates"),
        seeds=seeds_in(seeds, option="--seeds"),
        generate_share=generate_share,
        model=loaded.profile.name,
        model_files=digest_of_model(loaded),
        redundancy=redundancy,
    )
    with console.status("building the timelines of all cells"):
        asked = cells(grid, timeline)
    directory = SweepDirectory(into or Path("sweeps") / label(scenario))
    question = timeline(grid.topologies[0], grid.rates_per_s[0], grid.seeds[0]).question
    directory.plan(asked, question=question, finished=False)
    played = Sweep(
        cells=asked, timeline=timeline, directory=directory, model=model, processes=processes or usable_cores()
    )
    failed = _swept(played, f"{len(asked)} cells ({grid})")
    directory.plan(asked, question=question, finished=not failed)
    _print_sweep(directory.path)
    for reason, count in Counter(failed.values()).most_common():
        say(f"{count} failed: {reason}")
    if failed:
        raise FailedCellsError(
            f"{len(failed)} of {len(asked)} cells failed; {directory.path}/failed says why; "
            "the same command tries them again"
        )


@app.command("record-routing")
def record_routing(
    into: TraceFile,
    model: ModelDirectory = DEFAULT_MODEL,
    domains: Annotated[str, typer.Option(help="comma-separated; default: all that the model has texts of")] = "",
    texts: Annotated[int, typer.Option(min=1, max=100_000, help="held-out texts of every domain")] = 8,
    tokens: Annotated[int | None, typer.Option(min=1, help="first tokens of every text; default: all")] = None,
    scenario: Annotated[
        str | None, typer.Option(help="record what the requests of this scenario ask, instead of held-out texts")
    ] = None,
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    seed: Seed = 0,
    rate: Rate = None,
    duration: Duration = None,
    generate_share: GenerateShare = None,
) -> None:
    """Record which experts a twin's gate chooses, as a routing trace that --model replays."""
    of_scenario = {"--rate": rate, "--duration": duration, "--generate-share": generate_share}
    of_texts = {"--domains": domains or None, "--tokens": tokens}
    for option, value in (of_scenario if scenario is None else of_texts).items():
        if value is not None:
            raise TestbedError(f"{option} has no meaning {'without' if scenario is None else 'with'} --scenario")
    loaded = Model.load(model)
    check_recordable(loaded, into)
    if scenario is None:
        named = [name.strip() for name in domains.split(",") if name.strip()]
        asked = prompt_texts(loaded, domains=named, texts=texts, tokens=tokens)
    else:
        network = load_topology(topology)
        asked = scenario_texts(loaded, _build(scenario, network, loaded, seed, rate, duration, generate_share))
    with console.status(f"recording {len(asked)} texts"):
        trace = record(loaded, asked, into)
    say(
        f"{into}: {trace.rows} tokens of {len(asked)} texts, {trace.profile.layers} layers; play it with --model {into}"
    )


@app.command("convert-routing")
def convert_routing(
    log: Annotated[Path, typer.Argument(help="route log of vLLM")],
    into: TraceFile,
    spread: Annotated[
        bool, typer.Option("--spread", help="fill layers that were not logged from those that were")
    ] = False,
) -> None:
    """Turn a route log of vLLM into a routing trace that --model replays."""
    held, trace = convert_log(log, into, spread=spread)
    say(f"{held}\n{into}: {trace.rows} tokens, {trace.profile.layers} layers; play it with --model {into}")


def _swept(sweep: Sweep, asked: str) -> Mapping[str, str]:
    """Play a sweep under the eyes of the user; returns which cells failed."""
    before = sum(sweep.directory.is_finished(cell.name) for cell in sweep.cells)
    left = len(sweep.cells) - before
    where = f"{asked} in {sweep.directory.path}"
    say(f"{where}: {before} are finished, {left} to play")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} cells"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    terminated = signal.signal(signal.SIGTERM, stop)
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("sweep", total=len(sweep.cells), completed=before)
            sweep.onlooker = Onlooker(
                say=lambda text: progress.console.print(text, soft_wrap=True, markup=False),
                over=lambda: progress.advance(task),
            )
            return sweep.play()
    except KeyboardInterrupt:
        finished = sum(sweep.directory.is_finished(cell.name) for cell in sweep.cells)
        console.print(
            f"interrupted: {finished} of {len(sweep.cells)} cells are finished; the same command goes on",
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, terminated)


def _print_sweep(directory: Path) -> None:
    from analysis.seeds import cells_of, header, points
    from analysis.sweep import load_sweep, write_table

    with console.status("reading what all cells say"):
        found = load_sweep(directory)
        write_table(found, directory)
    for topology, rows in groupby(cells_of(points(found.table)), key=itemgetter(0)):
        table = Table(
            title=topology, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False
        )
        for title in header()[1:]:
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row[1:]))
        console.print(table)
    for note in found.notes:
        say(f"note: {note}")
    console.print(
        f"means over seeds ± half of their 95 % interval; every cell is in {directory}/sweep.csv and sweep.parquet; "
        f"draw them with `python -m analysis {directory}`",
        soft_wrap=True,
        markup=False,
    )


def _played(
    place: Place,
    scenarios: Mapping[int, Scenario],
    frameworks: Sequence[str],
    redundancy: float,
    dilation: float | None,
    results: Path,
    *,
    view: Sees = Sees.ESTIMATED,
) -> Path:
    """Prepare and play a comparison; its directory, which is made before anything that takes minutes."""
    if not any(scenario.requests for scenario in scenarios.values()):
        lasts_s = max(scenario.duration_s for scenario in scenarios.values())
        raise TestbedError(f"no request arrives within {lasts_s:g} s: raise --duration or --rate, or change --seed")
    if len(place.topology.servers) > MANY_SERVERS:
        say(f"placing experts on {len(place.topology.servers)} servers; hetroute takes minutes for so many")
    prepared = prepare(
        scenarios=scenarios,
        topology=place.topology,
        model=place.model,
        frameworks=frameworks,
        redundancy=redundancy,
        progress=say,
    )
    prepared = replace(prepared, view=str(view))
    directory = new_directory(results, prepared.scenario.name)
    slower = dilated(prepared, dilation, place.stage, say)
    try:
        place.loop.run_until_complete(watched(slower, place.stage, directory, console))
    except OSError as error:
        if error.filename is None and error.errno not in FULL_DISK:
            raise
        raise TestbedError(f"results cannot be written to {directory}: {error.strerror}") from error
    return directory


def _build(
    name: str,
    topology: Topology,
    model: Model,
    seed: int,
    rate: float | None,
    duration: float | None,
    generate_share: float | None,
) -> Scenario:
    return builder(name)(_setting(topology, model, seed, rate, duration, generate_share))


def _setting(
    topology: Topology,
    model: Model,
    seed: int,
    rate: float | None,
    duration: float | None,
    generate_share: float | None,
) -> Setting:
    rows = [model.prompts.rows[domain] for domain in model.prompts.domains]
    return Setting(
        topology=topology,
        domains=model.prompts.domains,
        prompts_per_domain=min(len(table) for table in rows),
        prompt_tokens=min(table.shape[1] for table in rows),
        seed=seed,
        arrival_rate_per_s=rate,
        duration_s=duration,
        generate_share=generate_share,
    )


def _sampling(temperature: float, top_p: float, seed: int) -> Sampling:
    try:
        return Sampling(temperature=temperature, top_p=top_p, seed=seed)
    except ValueError as error:
        raise TestbedError(str(error)) from None


def _names(frameworks: str) -> list[str]:
    names = [name.strip() for name in frameworks.split(",") if name.strip()]
    if not names:
        raise TestbedError(f"no framework named; known: {', '.join(FRAMEWORKS)}")
    if len({label(name) for name in names}) < len(names):
        raise TestbedError("two frameworks have the same name in results; use --repeats to run one more than once")
    return names


def main(arguments: list[str] | None = None) -> None:
    """Entry point; exits with 2 and one line when the user can mend what is wrong."""
    try:
        app(args=arguments, standalone_mode=True)
    except TestbedError as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", soft_wrap=True, markup=False)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
