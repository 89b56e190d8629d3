"""Where to play, chosen for the user: a testbed that is up, or virtual time; and how slowly.

``say`` tells a person what was chosen where it was not asked for.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from agents.models.model import Model
from orchestration import hostload
from orchestration.comparison import ESTIMATED, ORACLE, Comparison
from orchestration.simulation import Simulation
from orchestration.stage import Stage
from testbed import capabilities
from testbed.errors import TestbedError
from testbed.load import load_topology
from testbed.simulation.loop import VirtualLoop
from testbed.topology import Topology

AUTO = "auto"
LEAST_DILATION, MOST_DILATION = 0.1, 1000.0

Say = Callable[[str], None]


class Backend(StrEnum):
    """Where runs are played."""

    AUTO = "auto"  # sim where a topology is given or packets are impossible, else netns
    NETNS = "netns"
    SIM = "sim"


class Sees(StrEnum):
    """What frameworks see of the cluster."""

    ESTIMATED = ESTIMATED
    ORACLE = ORACLE


@dataclass(frozen=True, slots=True)
class Place:
    """A stage, and what is played there."""

    stage: Stage
    topology: Topology
    model: Model
    loop: asyncio.AbstractEventLoop


def backend_for(view: Sees, backend: Backend, say: Say) -> Backend:
    """Where a view is to be had; TestbedError where packets are asked for, whose true state nobody knows."""
    if view is not Sees.ORACLE or backend is Backend.SIM:
        return backend
    if backend is Backend.AUTO:
        say("--view oracle: simulating in virtual time, where the true state is known")
        return Backend.SIM
    raise TestbedError(
        "--view oracle needs --backend sim: of real packets and processes nobody knows the true state at the moment of "
        "a decision"
    )


@contextmanager
def open_place(
    backend: Backend,
    model: Model,
    *,
    topology: Path | None,
    default_topology: Path,
    testbed: str | None,
    say: Say,
    like_testbed: bool = False,
) -> Iterator[Place]:
    """Where to play: what the user says, or what is possible.  ``like_testbed`` simulates the testbed that is up."""
    if backend == Backend.AUTO:
        backend = _possible(topology, testbed, say)
    if backend == Backend.SIM:
        if testbed is not None and not like_testbed:
            raise TestbedError("--testbed names a testbed that is up; --backend sim needs none")
        found = _topology_of(testbed) if like_testbed else load_topology(topology or default_topology)
        virtual = VirtualLoop()
        try:
            model = model.remembering()
            yield Place(Simulation(found, model, virtual), found, model, virtual)
        finally:
            virtual.close()
        return
    if topology is not None:
        raise TestbedError("a testbed that is up has its own topology; --topology goes with --backend sim")
    from orchestration.emulation import Emulation
    from orchestration.fleet import only_run
    from testbed.network import Network

    capabilities.require_root()
    network = Network.attach(testbed)
    # asyncio's default selector sleeps in whole milliseconds; select() wakes within 0.15 ms.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        with only_run(network.directory):
            yield Place(Emulation(network), network.topology, model, loop)
    finally:
        loop.close()
        network.close()


def _possible(topology: Path | None, testbed: str | None, say: Say) -> Backend:
    """What ``auto`` is here; says so where it is not the testbed that is up."""
    missing = capabilities.missing_for_netns() if testbed is None else []
    if missing:
        lacks = "; ".join(f"{each.name}: {each.detail}" for each in missing)
        say(f"packets cannot be emulated here ({lacks}): simulating in virtual time")
        return Backend.SIM
    if topology is not None and testbed is None:
        say(f"simulating {topology} in virtual time (a testbed that is up has its own topology)")
        return Backend.SIM
    return Backend.NETNS


def _topology_of(testbed: str | None) -> Topology:
    from testbed.network import Network

    network = Network.attach(testbed)
    network.close()
    return network.topology


def dilation_in(text: str) -> float | None:
    """What ``--dilation`` says; None for ``auto``.  TestbedError for what is neither."""
    if text == AUTO:
        return None
    try:
        dilation = float(text)
    except ValueError:
        dilation = math.nan
    if not LEAST_DILATION <= dilation <= MOST_DILATION:
        raise TestbedError(
            f"--dilation is {AUTO} or a number from {LEAST_DILATION:g} to {MOST_DILATION:g}, not {text!r}"
        )
    return dilation


def dilated(comparison: Comparison, dilation: float | None, stage: Stage, say: Say) -> Comparison:
    """The comparison at the dilation that was asked for, or that the host needs; virtual time needs none."""
    if dilation is not None and stage.disturbed_by_work:
        return replace(comparison, dilation=dilation)
    if dilation is not None:
        say("virtual time is never stretched: --dilation is not needed")
    if not stage.disturbed_by_work:
        return comparison
    say("predicting the load of this machine")
    loads, count = hostload.predict(comparison), hostload.processors()
    chosen = hostload.choose(loads, count)
    most = max(loads, key=lambda load: load.wants(count))
    say(f"dilation {chosen:g}: undilated, {most.framework} would need {most.need:.1f} of {count} processors")
    return replace(comparison, dilation=chosen)
