"""What a routing framework is: the seam for which this testbed exists.

A framework decides twice.  Offline, ``place`` says which copies of which experts live where, within the memory budget.
Online, ``plan`` says for one layer of one request which copy computes each expert, and which server gathers the results
and goes on with the next layer.  Both see the same values whatever the framework, so that comparisons are fair.

The smallest framework is a class with ``name`` and ``plan`` (``BaseFramework`` has sensible defaults for the rest)::

    class Nearest(BaseFramework):
        name = "nearest"

        def plan(self, demand, view):
            choices = [
                Choice.of(min(view.replicas(demand.layer, e.expert), key=lambda r: view.delay_s(view.server, r.server)))
                for e in demand.experts
            ]
            return Plan(choices=tuple(choices), next_server=view.server)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from agents.cluster import Cluster, Server
from agents.errors import FrameworkError
from agents.frameworks.cost import CostTerms, DeviceTimes
from agents.frameworks.placements import spread
from agents.models.calibrate import Calibration
from agents.models.exits import ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.profile import ModelProfile
from agents.models.quantize import FULL
from agents.protocol import Placement, Replica, RequestKind
from testbed.topology import BITS_PER_BYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertDemand:
    """One expert that some tokens of this pass chose."""

    expert: int
    rows: int  # bit i is set when token i of the pass goes to this expert
    tokens: int  # number of those bits
    gate_share: float  # its share of the layer's gate weight, in (0, 1]; shares of a layer add up to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that has just arrived at its home server."""

    request: int
    kind: RequestKind
    home: str
    tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one layer of one pass asks for."""

    request: int
    kind: RequestKind
    step: int
    layer: int
    home: str
    tokens: int  # of this pass
    experts: tuple[ExpertDemand, ...]  # by expert number
    quality_spent: float  # by the layers before, estimated relative NLL increase
    quality_budget: float  # for all layers together
    next_server: str | None  # already fixed (by the KV cache, or this is the end), or free to choose
    notes: bytes = b""  # what the framework wrote down about this request, at home or in a plan since
    again: bool = False  # the layer was planned before, and a depth policy has cut it since: count it once


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which copy computes one expert."""

    expert: int  # that the gate chose
    server: str
    precision: str = FULL
    fallback: bool = False  # taken because nothing feasible was left
    substitute: int | None = None  # another expert, which runs in the place of the chosen one

    @property
    def runs(self) -> int:
        """The expert whose weights are used."""
        return self.expert if self.substitute is None else self.substitute

    @classmethod
    def of(cls, replica: Replica, *, fallback: bool = False) -> Choice:
        """The choice of this copy."""
        return cls(expert=replica.expert, server=replica.server, precision=replica.precision, fallback=fallback)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The online decision for one layer of one pass."""

    choices: tuple[Choice, ...]  # exactly one for every expert of the demand
    next_server: str  # a(l+1); for the last layer: where logits are computed
    merged: bool = True  # one message per server; false: one per expert, each with its tokens' states
    terms: CostTerms | None = None  # what the framework expects of this decision, for the records
    prefetch: tuple[Replica, ...] = ()  # of this very server: to load ahead, most wanted first, after what runs now
    notes: bytes | None = None  # in the place of the request's notes, at most ``MAX_NOTES_BYTES``; None: they stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What one gathered layer really took, told to the framework of the server that gathered it."""

    request: int
    step: int
    layer: int
    duration_s: float
    wait_s: float  # for other servers, after this one's own experts
    dense_s: float = 0.0  # the part of ``duration_s`` that lay before the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a framework is told when it may change its placement during a run."""

    placement: Placement  # in force
    counted: Mapping[str, list[list[int]]]  # by server: what its framework has ``counted``
    elapsed_s: float  # since the last review
    cluster: Cluster
    profile: ModelProfile
    calibration: Calibration


class LiveState(Protocol):
    """What a server knows of the cluster right now; telemetry provides it."""

    def now_s(self) -> float:
        """Emulated time."""
        ...

    def alive(self, server: str) -> bool:
        """Whether a server answers."""
        ...

    def load(self, server: str) -> tuple[float, float, float]:
        """Device backlog, recent mean wait of a job, and load-channel backlog of a server, in seconds."""
        ...

    def path(self, source: str, target: str) -> tuple[float, float]:
        """One-way delay (s) and rate (bit/s) of the path between two servers, as measured lately."""
        ...


class Health(Protocol):
    """What else a server knows of the others; without it all is as it was placed and on its data sheet."""

    def slowness(self, server: str) -> float:
        """How many times longer than on its data sheet a server's device lately took; 1 for a healthy one."""
        ...

    def cached(self, server: str) -> Collection[tuple[int, int, str]]:
        """Copies placed in a server's slow memory that are in its fast memory now: (layer, expert, precision)."""
        ...


class View:
    """Everything a framework may look at when it plans: static facts and the live state, from one server."""

    def __init__(
        self,
        *,
        server: str,
        cluster: Cluster,
        profile: ModelProfile,
        calibration: Calibration,
        placement: Placement,
        live: LiveState,
        health: Health | None = None,
        facts: ExpertFacts | None = None,
        seed: int = 0,
    ) -> None:
        """``facts``: what is known of single experts, of models for which it was measured.

        ``seed``: the run's, for frameworks that draw lots (``agents.frameworks.draws``).
        """
        self.server = server
        self.cluster = cluster
        self.profile = profile
        self.calibration = calibration
        self.placement = placement
        self.facts = facts
        self.seed = seed
        self._live = live
        self._health = health
        self._by_name: dict[str, Server] = {entry.name: entry for entry in cluster.servers}
        #: As the data sheets have it.
        self.nominal = DeviceTimes({entry.name: entry.device for entry in cluster.servers}, profile)

    @cached_property
    def _replicas(self) -> Mapping[tuple[int, int], tuple[Replica, ...]]:
        table: dict[tuple[int, int], list[Replica]] = {}
        for replica in self.placement.replicas:
            table.setdefault((replica.layer, replica.expert), []).append(replica)
        return {key: tuple(sorted(replicas)) for key, replicas in table.items()}

    def rearrange(self, placement: Placement) -> None:
        """Another placement is in force from now on."""
        self.placement = placement
        self.__dict__.pop("_replicas", None)

    def replicas(self, layer: int, expert: int) -> tuple[Replica, ...]:
        """The copies of an expert on servers that are alive; all copies if none is."""
        copies = self._replicas.get((layer, expert), ())
        living = tuple(copy for copy in copies if self._live.alive(copy.server))
        return living or copies

    def now_s(self) -> float:
        """Emulated time."""
        return self._live.now_s()

    def alive(self, server: str) -> bool:
        """Whether a server answers, as far as is known here."""
        return self._live.alive(server)

    def backlog_s(self, server: str) -> float:
        """Work in front of a server's device."""
        return self._live.load(server)[0]

    def wait_s(self, server: str) -> float:
        """How long jobs have lately waited for a server's device, on average."""
        return self._live.load(server)[1]

    def load_backlog_s(self, server: str) -> float:
        """Loads in front of a server's slow -> fast channel."""
        return self._live.load(server)[2]

    def path(self, source: str, target: str) -> tuple[float, float]:
        """One-way delay (s) and rate (bit/s) between two servers now; no delay and no limit within one."""
        return (0.0, float("inf")) if source == target else self._live.path(source, target)

    def delay_s(self, source: str, target: str) -> float:
        """One-way delay between two servers now; 0 within one."""
        return 0.0 if source == target else self._live.path(source, target)[0]

    def transfer_s(self, source: str, target: str, size_bytes: float) -> float:
        """Time of a message between two servers now; 0 within one."""
        if source == target:
            return 0.0
        delay_s, rate_bps = self._live.path(source, target)
        return delay_s + BITS_PER_BYTE * size_bytes / rate_bps

    def slowness(self, server: str) -> float:
        """How many times longer than on its data sheet a server's device lately took, as far as is known here."""
        return 1.0 if self._health is None else self._health.slowness(server)

    def call_s(self, server: str, precision: str, tokens: int) -> float:
        """Time of one expert as a part of a batch, on a server's idle device; ``launch_s`` comes once per batch."""
        return self.slowness(server) * self.nominal.call_s(server, precision, tokens)

    def launch_s(self, server: str) -> float:
        """Overhead of one batch of experts: all that one message has for one server."""
        return self.slowness(server) * self.nominal.launch_s(server)

    def expert_s(self, server: str, precision: str, tokens: int) -> float:
        """Time of one expert alone on a server's idle device, with the launch."""
        return self.call_s(server, precision, tokens) + self.launch_s(server)

    def dense_s(self, server: str, tokens: int) -> float:
        """Time of one layer's dense part (attention, gate, norms) on a server's idle device."""
        return self.slowness(server) * self.nominal.dense_s(server, tokens)

    def cached(self, replica: Replica) -> bool:
        """Whether a copy that was placed in slow memory is in fast memory now, as far as is known here."""
        if self._health is None:
            return False
        return (replica.layer, replica.expert, replica.precision) in self._health.cached(replica.server)

    def load_s(self, replica: Replica) -> float:
        """Time to bring a copy into fast memory, without queueing; 0 if it is there."""
        if replica.fast or self.cached(replica):
            return 0.0
        size_bytes = self.profile.expert_bytes[replica.precision]
        return size_bytes / self._by_name[replica.server].device.load_bytes_per_s

    def quality_loss(self, layer: int, precision: str) -> float:
        """Relative NLL increase when the whole layer's experts run in this precision (measured, never below 0)."""
        return self.calibration.quality_loss(layer, precision)

    def worst_losses(self) -> list[float]:
        """By layer: ``quality_loss`` in the worst precision that the placement has copies of it in."""
        worst = [0.0] * self.profile.layers
        for layer, precision in {(replica.layer, replica.precision) for replica in self.placement.replicas}:
            worst[layer] = max(worst[layer], self.quality_loss(layer, precision))
        return worst

    def substitution_loss(self, layer: int, expert: int, substitute: int) -> float:
        """Relative NLL increase per gate weight when another expert runs in the place of one; infinite if unknown."""
        if self.facts is None:
            return float("inf")
        return self.facts.substitution_loss(layer, expert, substitute)

    def loss(self, layer: int, choice: Choice) -> float:
        """What a choice costs per gate weight: its precision, and what it runs instead.  The ledger's figure."""
        loss = self.quality_loss(layer, choice.precision)
        if choice.substitute is not None and choice.substitute != choice.expert:
            loss += self.substitution_loss(layer, choice.expert, choice.substitute)
        return loss


class Framework(Protocol):
    """A framework: placement, planning, and optional learning."""

    name: str
    review_s: float | None  # emulated seconds between two reviews of the placement; None: it stays for the whole run
    keeps_budget: bool  # promises never to spend more than the quality budget; its passes fail if it does

    def measured(self, facts: ExpertFacts | None, exits: ExitHeads | None, *, quality_budget: float) -> None:
        """What else is known of the model, where it was measured, and the runs' budget; told before ``place``."""
        ...

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """Decide offline which copies live where (runs once, in the orchestrator).  FrameworkError if nothing fits."""
        ...

    def begin(self, view: View) -> None:
        """A run begins on this server: prepare what planning needs."""
        ...

    def worth(self) -> Callable[[tuple[int, int, str]], float] | None:
        """What is worth keeping in fast memory; asked once, after ``begin``.

        A function of (layer, expert, precision): whatever was loaded and is worth least is evicted first, and a run
        begins with what is worth most.  None: the least recently used is evicted first, and a run begins with nothing.
        """
        ...

    def enter(self, arrival: Arrival, view: View) -> str:
        """First aggregation server of a request that has arrived here."""
        ...

    def notes(self, arrival: Arrival, view: View) -> bytes:
        """What travels with a request that has just entered, to be read in ``Demand.notes``; bounded in size."""
        ...

    def announce(self, arrival: Arrival, view: View) -> bytes:
        """What every other server is told at once of a request that has entered; bounded in size; b"": nothing.

        Asked after ``enter`` and ``notes`` of the same request.
        """
        ...

    def heard(self, source: str, text: bytes, view: View) -> None:
        """Another server has announced something."""
        ...

    def plan(self, demand: Demand, view: View) -> Plan:
        """Decide for one layer of one pass."""
        ...

    def observe(self, feedback: Feedback) -> None:
        """Learn what a gathered layer took."""
        ...

    def refresh(self, view: View) -> None:
        """Take in what has changed: called once per round of gossip, outside of any request."""
        ...

    def counted(self) -> list[list[int]]:
        """What was counted on this server since the last time, by layer and expert, for ``review``."""
        ...

    def review(self, review: Review) -> Placement | None:
        """Another placement, if it is worth the move (runs in the orchestrator, every ``review_s`` emulated seconds).

        Copies that it puts elsewhere then cross the links; when all have arrived, ``View.placement`` is the new one.
        """
        ...


class BaseFramework:
    """Defaults: popular experts spread over all servers, everything gathered at home, nothing learned."""

    name = "base"
    keeps_budget = False
    review_s: float | None = None
    #: Takes a line of text now and then while ``place`` is at work; the caller may put its own in.
    progress: Callable[[str], None] = staticmethod(lambda text: None)

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        if options:
            raise FrameworkError(f"framework {self.name} has no option {sorted(options)[0]!r}")

    def measured(self, facts: ExpertFacts | None, exits: ExitHeads | None, *, quality_budget: float) -> None:
        """Nothing that this placement needs."""

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """Full-precision copies spread by free fast memory, popular experts twice (``placements.spread``)."""
        return spread(cluster, profile, calibration)

    def begin(self, view: View) -> None:
        """Nothing to prepare."""

    def worth(self) -> Callable[[tuple[int, int, str]], float] | None:
        """The least recently used is evicted first."""
        return None

    def enter(self, arrival: Arrival, view: View) -> str:  # noqa: ARG002
        """The home server."""
        return arrival.home

    def notes(self, arrival: Arrival, view: View) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def announce(self, arrival: Arrival, view: View) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def heard(self, source: str, text: bytes, view: View) -> None:
        """Nobody announces anything."""

    def plan(self, demand: Demand, view: View) -> Plan:
        """To be written by each framework."""
        raise NotImplementedError

    def observe(self, feedback: Feedback) -> None:
        """Nothing to learn."""

    def refresh(self, view: View) -> None:
        """Nothing to take in."""

    def counted(self) -> list[list[int]]:
        """Nothing is counted."""
        return []

    def review(self, review: Review) -> Placement | None:  # noqa: ARG002
        """The placement stays."""
        return None


def next_server(demand: Demand, preferred: str) -> str:
    """Where the next layer runs: what is fixed already, else ``preferred``."""
    return demand.next_server if demand.next_server is not None else preferred
