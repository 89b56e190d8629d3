"""Small machines and random runs for the tests of offloading and its schedulers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agents.clock import VirtualClock
from agents.models.profile import ModelProfile
from agents.offloading.core import Core, Job, Load
from agents.offloading.drawn import Drawing
from agents.offloading.machine import Machine
from agents.offloading.player import Arriving, ModelledChannel, Played, Player
from agents.offloading.tables import Tabled, Text
from agents.offloading.work import Request, Work
from agents.schedulers.base import Scheduler, Standing, State
from agents.schedulers.registry import create
from testbed.simulation.loop import VirtualLoop
from testbed.topology import Device

DEVICE = Device(
    peak_flops_per_s=1e12, memory_bytes_per_s=1e9, fast_bytes=10**9, slow_bytes=10**10, load_bytes_per_s=1e8
)
LAYERS, EXPERTS, TOP_K = 3, 5, 2
PROFILE = ModelProfile(
    name="small",
    layers=LAYERS,
    experts=EXPERTS,
    top_k=TOP_K,
    hidden=32,
    ffn=48,
    heads=2,
    vocab=50,
    source="made up",
)


def machine(**changes: Any) -> Machine:
    parts: dict[str, Any] = {"device": DEVICE, "profile": PROFILE}
    return Machine(**(parts | changes))


def texts(count: int = 8, positions: int = 12, seed: int = 0) -> list[Text]:
    return Drawing(layers=LAYERS, experts=EXPERTS, top_k=TOP_K, seed=seed).texts(count, positions)


def requests(count: int, *, prompt: int = 3, output: int = 4) -> list[Request]:
    return [Request(number=number, prompt_tokens=prompt, output_tokens=output) for number in range(count)]


class Watched(Core):
    """A core that tells a watcher what it decides."""

    def __init__(self, *, watch: Callable[[Watched, Job | Load | None, str], None], **parts: Any) -> None:
        super().__init__(**parts)
        self._watch = watch

    def begin_group(self) -> Job | None:
        idle = not self.state.running
        job = super().begin_group()
        if idle:
            self._watch(self, job, "group")
        return job

    def begin_load(self) -> Load | None:
        idle = self.state.loading is None
        before = dict(self.state.demanded)
        load = super().begin_load()
        if idle:
            self.demanded_before = before
            self._watch(self, load, "load")
        return load


def play(
    scheduler: Scheduler | str,
    *,
    slots: int = 8,
    arriving: Arriving | None = None,
    work: Work | None = None,
    options: Mapping[str, Any] | None = None,
    watch: Callable[[Watched, Job | Load | None, str], None] | None = None,
    **changes: Any,
) -> tuple[Played, Core]:
    """A whole run in virtual time."""
    made = create(scheduler, options) if isinstance(scheduler, str) else scheduler
    parts: dict[str, Any] = {
        "machine": machine(**changes),
        "scheduler": made,
        "work": work or Tabled(texts()),
        "slots": slots,
    }
    core = Core(**parts) if watch is None else Watched(watch=watch, **parts)
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    player = Player(
        core=core,
        clock=clock,
        channel=ModelledChannel(clock),
        arriving=arriving or Arriving(requests=requests(6), concurrency=3),
    )
    try:
        return loop.run_until_complete(player.run()), core
    finally:
        loop.close()


def state(standing: Sequence[Standing], *, resident: Sequence[int] = (), slots: int = 8) -> State:
    """A state as a scheduler may meet it: demands and needers follow from who stands where."""
    made = State.empty(layers=LAYERS, experts=EXPERTS, slots=slots)
    made.resident[list(resident)] = True
    for each in standing:
        made.standing[each.request] = each
        each.missing = sum(not made.resident[key] for key in each.needs)
        for key in each.needs:
            made.needers.setdefault(key, []).append(each.request)
            made.held[key] += 1
            if not made.resident[key]:
                made.demanded.setdefault(key, 0)
    return made


def at(request: int, stage: int, needs: Sequence[int] = (), **more: Any) -> Standing:
    parts: dict[str, Any] = {"advance": stage}
    return Standing(request=request, arrived=request, stage=stage, needs=tuple(needs), **(parts | more))
