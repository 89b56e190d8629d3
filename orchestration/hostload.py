r"""How much of the host a run will need, and how slowly it must therefore run: ``dilation: auto``.

The plan is played in virtual time first, a part of it, with its real arithmetic.  That takes the processor time of all
agents together, and counts the messages that they send.  What an emulated message costs beyond that is known from
measurement (``benchmarks/host_load.py`` prints it again): encoding, ZeroMQ, the kernel's TCP on both ends, the relay.

    need   = agents + messages · c + gossip · g + bytes · b      processor seconds per emulated second           (1)
    late   = layers of a request · s / its latency               share of latencies that the host adds, at D = 1 (2)
    D      = smallest dilation with  need / (D · processors) <= AIM  and  late / D <= AIM_LATE                   (3)

AIM is far below 1, because arrivals come in bursts: a host that is busy half of the time on average is fully busy now
and then.  (2) counts where layers are short: computing and waking up takes its time for each.  The report of a run says
whether it was enough.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from agents.gossip import peers_of
from agents.protocol import GOSSIP_INTERVAL_S
from orchestration.comparison import Candidate, Comparison, Episode
from orchestration.references import References
from orchestration.simulation import Simulation
from orchestration.stage import Watcher
from testbed.simulation.loop import VirtualLoop

#: Processor time of one emulated message, both agents and the relay, and of each of its bytes.  Gossip comes alone and
#: wakes everybody for itself.
MESSAGE_S = 0.95e-3
GOSSIP_S = 1.5e-3
BYTE_S = 1.2e-9
#: By how much a layer leaves its server late on an idle host.
LATE_STEP_S = 0.18e-3
#: The host is to be busy for at most this share.  At a half, edge10 under 8 requests/s got WARN verdicts; here PASS.
AIM = 0.375
#: Of latencies; the verdict of a run allows 0.05.
AIM_LATE = 0.04
#: Requests of the plan that are tried.
TRIED = 12
STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 75.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """What one candidate's run needs."""

    framework: str
    agents: float  # processor seconds per emulated second
    messages_per_s: float  # without gossip
    gossip_per_s: float
    bytes_per_s: float
    late: float  # equation (2)

    @property
    def need(self) -> float:
        """Equation (1)."""
        told = MESSAGE_S * self.messages_per_s + GOSSIP_S * self.gossip_per_s
        return self.agents + told + BYTE_S * self.bytes_per_s

    def wants(self, processors: int) -> float:
        """Equation (3), before it is rounded up."""
        return max(self.need / (AIM * processors), self.late / AIM_LATE)


def predict(comparison: Comparison) -> tuple[HostLoad, ...]:
    """The load of every candidate, on this machine, now."""
    loop = VirtualLoop()
    try:
        return tuple(
            loop.run_until_complete(_predict(comparison, candidate, loop)) for candidate in comparison.candidates
        )
    finally:
        loop.close()


def choose(loads: Iterable[HostLoad], processors: int) -> float:
    """Equation (3), for the candidate that wants most, so that all are compared at one dilation."""
    wanted = max(load.wants(processors) for load in loads)
    return next((step for step in STEPS if step >= wanted), float(math.ceil(wanted)))


def processors() -> int:
    """Those that we may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


async def _predict(comparison: Comparison, candidate: Candidate, loop: VirtualLoop) -> HostLoad:
    episode = _beginning(comparison)
    stage = Simulation(comparison.topology, comparison.model, loop)
    idle = replace(episode, scenario=replace(episode.scenario, requests=(), duration_s=0.0))
    costs_s = []
    for each in (idle, idle, episode):  # once so that weights are prepared, once for what every run prepares anew
        before_s = time.process_time()
        played, _ = await stage.play(comparison, candidate, each, "load", Watcher())
        costs_s.append(time.process_time() - before_s)
    agents_s = max(0.0, costs_s[2] - costs_s[1])
    # Per request that was tried, at the rate of the plan; gossip goes on whether requests come or not.
    share = episode.scenario.arrival_rate_per_s / max(1, len(played.submitted))
    servers = len(comparison.cluster.names)
    layers = sum(len(report.layers) for report in played.collected.values())
    latency_s = sum(done.finished_s - done.sent_s for done in played.done.values() if done.error is None)
    told = len(peers_of(0, servers=servers, round_number=0))
    return HostLoad(
        framework=candidate.name,
        agents=agents_s * share,
        messages_per_s=stage.payload_messages * share,
        gossip_per_s=servers * told / GOSSIP_INTERVAL_S,
        bytes_per_s=stage.payload_bytes * share,
        late=LATE_STEP_S * layers / latency_s if latency_s > 0 else 0.0,
    )


def _beginning(comparison: Comparison) -> Episode:
    """The first requests of the plan, at the plan's own rate, without its link changes."""
    episode = comparison.episodes[0]
    scenario = episode.scenario
    requests = scenario.requests[:TRIED]
    span_s = len(requests) / scenario.arrival_rate_per_s
    return replace(
        episode,
        scenario=replace(scenario, requests=requests, duration_s=span_s, changes=(), failures=()),
        references=References(comparison.model.twin, (), {}),
    )
