"""A Mininet script's ``Topo``: hosts are servers, switches routers, the options of ``TCLink`` the physics of links.

    FILE.py             the only Topo of the script: its class, or the entry of the ``topos`` that ``mn --custom`` reads
    FILE.py:NAME        of several, this one
    FILE.py:NAME,3,n=2  with arguments, written as for ``mn --topo``

THE SCRIPT IS RUN, with the rights of whoever imports it: import only what you would run.  It may build a ``Topo``,
which is a description; where it makes a network outside ``if __name__ == "__main__"`` it is stopped before that.

    bw               Mbit/s, of both directions        loss             percent
    delay, jitter    in tc's units, one way; Mininet   max_queue_size   packets
                     puts them at both interfaces      params1/params2  what leaves node1 / node2 only

>>> tc_seconds("5ms", "delay"), tc_seconds("20usecs", "delay"), tc_seconds("0", "delay")
(0.005, 2e-05, 0.0)
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from testbed.errors import did_you_mean
from testbed.importers.graph import Edge, Flow, Graph, Vertex
from testbed.importers.reading import ImportRefusedError, check_count, read
from testbed.units import NUMBER, seconds
from testbed.words import counted, enumerate_words

SUFFIX = ".py"
_MODULE = "mininet_script_to_import"  # not __main__, so that what a script does when run is left out
_BPS_PER_MBIT = 1e6
_TIME = re.compile(rf"\s*({NUMBER})\s*(s|ms|us|ns)?(ecs?)?\s*", re.ASCII | re.IGNORECASE)
_CORES = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", re.ASCII)
_OF_LINKS = frozenset(("bw", "delay", "jitter", "loss", "max_queue_size", "params1", "params2"))
#: Of no consequence for the network as a whole: Mininet's own bookkeeping, and its default.
_PLUMBING = frozenset(("node1", "node2", "port1", "port2", "port", "isSwitch", "use_htb", "cls", "key"))
_OF_HOSTS = frozenset(("cpu", "cores"))

Options = Mapping[str, Any]


def is_script(path: Path) -> bool:
    """Whether ``path`` names a Python file, maybe with what to take from it."""
    return _split(path)[0].suffix == SUFFIX


def read_script(path: Path) -> Graph:
    """The network of a script; ``path`` may end in ``:NAME``."""
    script, wanted = _split(path)
    read(script)  # for what it refuses: a missing file, a huge one
    with _running(script):
        module = _run(script)
        name, make = _chosen(module, wanted, script.name)
        with _told(script, f"{name}: "):
            topo = make()
        if not isinstance(topo, _topo_class()):
            raise ImportRefusedError(f"{script.name}: {name} makes no mininet.topo.Topo but {type(topo).__name__}")
        return _graph(topo, name, script.name, controllers=bool(getattr(module, "controllers", None)))


def tc_seconds(written: object, what: str) -> float:
    """A time as ``tc`` reads it, in seconds; a bare number is refused, because versions of tc differ about it."""
    match = _TIME.fullmatch(str(written)[:40])
    if match is None or (match[3] and not match[2]):
        raise ImportRefusedError(f"{what}: {str(written)[:40]!r} is no time such as '5ms'")
    if match[2] is None and float(match[1]):
        raise ImportRefusedError(f"{what}: {written!r} has no unit, which tc takes for us or ns by its version: '5ms'")
    return seconds(f"{match[1]} {(match[2] or 's').lower()}")


def _split(path: Path) -> tuple[Path, str]:
    name, colon, wanted = path.name.partition(f"{SUFFIX}:")
    return (path.with_name(name + SUFFIX), wanted) if colon and name else (path, "")


def _topo_class() -> type:
    from mininet.topo import Topo  # only who imports a script needs Mininet

    found: type = Topo
    return found


@contextlib.contextmanager
def _running(script: Path) -> Iterator[None]:
    """What scripts find: their neighbours to import, no network to start, and a standard output that is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Mininet's and the script's own making
        from mininet.net import Mininet

    def refused(*_: object, **__: object) -> None:
        raise _StartsError

    before, path, writes = Mininet.__init__, list(sys.path), sys.dont_write_bytecode
    Mininet.__init__, sys.dont_write_bytecode = refused, True  # nothing appears beside the script
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        Mininet.__init__, sys.dont_write_bytecode = before, writes
        sys.path[:] = path
        sys.modules.pop(_MODULE, None)


class _StartsError(Exception):
    """The script makes a network while it is loaded."""


@contextlib.contextmanager
def _told(script: Path, doing: str = "") -> Iterator[None]:
    """Errors of the script as one message with its line."""
    try:
        yield
    except ImportRefusedError:
        raise
    except SyntaxError as error:
        raise ImportRefusedError(f"{script.name}:{error.lineno}: {doing}not valid Python: {error.msg}") from error
    except _StartsError as error:
        where = _where(script, error)
        raise ImportRefusedError(
            f"{where}: {doing}the script makes a network when it is loaded; put that under "
            '`if __name__ == "__main__":`, so that the topology alone can be read'
        ) from error
    except (Exception, SystemExit) as error:
        raise ImportRefusedError(f"{_where(script, error)}: {doing}{type(error).__name__}: {error}") from error


def _where(script: Path, error: BaseException) -> str:
    """The script's own line that an error comes from."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(script):
            line = frame.tb_lineno
        frame = frame.tb_next
    return f"{script.name}:{line}" if line else script.name


def _run(script: Path) -> types.ModuleType:
    loader = SourceFileLoader(_MODULE, str(script))
    module = module_from_spec(spec_from_file_location(_MODULE, script, loader=loader) or ModuleSpec(_MODULE, loader))
    sys.modules[_MODULE] = module  # dataclasses and the like look their module up
    with _told(script):
        loader.exec_module(module)
    return module


def _chosen(module: types.ModuleType, wanted: str, filename: str) -> tuple[str, Callable[[], object]]:
    """The name of what was asked for, and how to make it."""
    from mininet.util import splitArgs

    offered: dict[str, Callable[..., object]] = {}
    topos = getattr(module, "topos", None)
    if isinstance(topos, dict):
        offered = {str(name): make for name, make in topos.items() if callable(make)}
    base = _topo_class()
    classes: dict[str, Callable[..., object]] = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == _MODULE
    }
    if not offered and not classes:
        raise ImportRefusedError(
            f"{filename}: no class derived from mininet.topo.Topo and no 'topos'; a network that is put together with "
            "net.addHost and net.addLink must become a Topo to be read"
        )
    name, arguments, named = splitArgs(wanted) if wanted else ("", [], {})
    first = offered or classes
    if not name and len(first) > 1:
        raise ImportRefusedError(
            f"{filename}: several topologies; name one, as {filename}:{next(iter(first))}, of "
            f"{enumerate_words(list(first))}"
        )
    name = name or next(iter(first))
    known = {**classes, **offered}
    if name not in known:
        hint = did_you_mean(name, known) or f"; there are {enumerate_words(list(known))}"
        raise ImportRefusedError(f"{filename}: no topology {name!r}{hint}")
    return name, lambda: known[name](*arguments, **named)


def _graph(topo: Any, name: str, filename: str, *, controllers: bool) -> Graph:
    nodes = {str(node): dict(topo.nodeInfo(node)) for node in topo.nodes(sort=False)}
    check_count(len(nodes), filename)
    left_out = {node for node, options in nodes.items() if _is_controller(options.get("cls"))}
    notes = []
    if controllers or left_out:
        notes.append("controllers are not imported: routers find their ways by themselves")
    links = [
        (str(a), str(b), dict(options))
        for a, b, options in topo.links(withInfo=True)
        if not {str(a), str(b)} & left_out
    ]
    edges = tuple(_edge(a, b, options, filename, notes) for a, b, options in links)
    vertices = tuple(
        Vertex(
            key=node,
            label=node,
            role="router" if options.get("isSwitch") else "server",
            cpus=None if options.get("isSwitch") else _cpus(node, options, filename, notes),
        )
        for node, options in nodes.items()
        if node not in left_out
    )
    return Graph(
        title=f"Mininet topology {name}",
        vertices=vertices,
        edges=edges,
        sources={
            "rates": "bw in Mbit/s",
            "delays": "delay, one way at each interface",
            "jitter": "jitter",
            "loss": "loss in percent",
        },
        notes=(*dict.fromkeys(notes), *_unused(nodes.values(), (options for _, _, options in links))),
    )


def _edge(a: str, b: str, options: Options, filename: str, notes: list[str]) -> Edge:
    where = f"{filename}: link {a} - {b}"
    common = {key: value for key, value in options.items() if key not in ("params1", "params2")}

    def flow(side: str) -> Flow:
        own = options.get(side) or {}
        return _flow({**own, **common}, where, notes)  # as Mininet: what stands for both wins

    return Edge(a=a, b=b, forward=flow("params1"), backward=flow("params2"))


def _flow(options: Options, where: str, notes: list[str]) -> Flow:
    def given(name: str) -> float | None:
        value = options.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ImportRefusedError(f"{where}: {name} {str(value)[:40]!r} is not a number")
        return float(value)

    bw_mbit, loss_percent, queue = given("bw"), given("loss"), given("max_queue_size")
    delay, jitter = options.get("delay"), options.get("jitter")
    if jitter is not None and delay is None:
        notes.append(f"{where}: jitter without delay has no effect in Mininet; left out")
        jitter = None
    if bw_mbit is not None and bw_mbit < 0:
        raise ImportRefusedError(f"{where}: bw {bw_mbit:g} is negative")
    return Flow(
        rate_bps=None if bw_mbit is None else bw_mbit * _BPS_PER_MBIT,
        delay_s=None if delay is None else tc_seconds(delay, f"{where}: delay"),
        jitter_s=0.0 if jitter is None else tc_seconds(jitter, f"{where}: jitter"),
        loss=(loss_percent or 0.0) / 100,
        queue_packets=None if queue is None else int(queue),
    )


def _cpus(node: str, options: Options, filename: str, notes: list[str]) -> float | None:
    """Processors of this machine that a host may use: ``cpu`` is a share of them all, ``cores`` names some."""
    limits = []
    cpu, cores = options.get("cpu"), options.get("cores")
    if isinstance(cpu, int | float) and cpu > 0:
        processors = os.cpu_count() or 1
        limits.append(cpu * processors)
        notes.append(f"cpu is a share of all processors, and this machine has {processors}; written as 'cpus'")
    elif cpu is not None and cpu != -1:
        raise ImportRefusedError(f"{filename}: host {node}: cpu {str(cpu)[:40]!r} is no share such as 0.5")
    if cores is not None and cores != "":
        limits.append(_core_count(cores, f"{filename}: host {node}"))
        notes.append("which cores a host runs on is not imported, only how many")
    return min(limits, default=None)


def _core_count(cores: object, where: str) -> int:
    text = ",".join(str(core) for core in cores) if isinstance(cores, list | tuple) else str(cores)
    if not _CORES.fullmatch(text):
        raise ImportRefusedError(f"{where}: cores {text[:40]!r} are no cores such as [0, 1] or '0-1'")
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return len(found) or 1


def _is_controller(kind: object) -> bool:
    from mininet.node import Controller

    return isinstance(kind, type) and issubclass(kind, Controller)


def _unused(nodes: Iterable[Options], links: Iterable[Options]) -> list[str]:
    """A note about options that are not looked at."""
    of_nodes = {key for options in nodes for key in options} - _OF_HOSTS - _PLUMBING
    of_links = {key for options in links for key in options} - _OF_LINKS - _PLUMBING
    parts = [
        f"of {what}: {', '.join(sorted(map(str, names)))}"
        for what, names in (("nodes", of_nodes), ("links", of_links))
        if names
    ]
    return [f"{counted(len(of_nodes | of_links), 'option')} not imported, {'; '.join(parts)}"] if parts else []
