r"""The whole wire between agents, and between an agent and its orchestrator, declared once.

One layer l of one request.  A dense part runs at the aggregation server a(l); its experts run where the plan says:

    a(l)  --Execute-->  d1, d2 ...          each token's hidden state once per server, however many experts there
    d1, d2  --Result-->  a(l+1)             one summed vector per token, straight to where it is needed
    a(l)  --Advance-->  a(l+1)              the residual stream and a(l)'s own sum; absent if a(l+1) is a(l)

A pass begins and ends at the home server, and only token ids travel there:

    home  --Enter-->  a(0)  ...  a(L)  --Answer-->  home
    any   --Failed-->  home                 a pass ends in an answer or in an explicit error

    any   --Pull-->  a holder  --Piece-->  back        weights of a copy that moves (``agents.migration``)

    home  --Announce--> other servers       what its framework tells of a request that has just entered
    any   --State-->  other servers         gossip: load, and how the links into it look; doubles as the heartbeat
                                            (``agents.gossip`` says who tells whom)

Frames of one message on the data plane:

    0  magic and version   4 bytes  b"eMo" + VERSION
    1  envelope            msgpack: run, source, sent_s, size_bytes, arrays' types and shapes, tagged body
    2  arrays              raw little-endian, C order, in the order of ``ARRAYS[type(body)]``
    n  padding             zeros, so that the message weighs what the large model's would; absent if it does already

The size on the wire is the model profile's (``size_bytes``), not the twin's.  Whatever does not fit this description is
a ``ProtocolError`` that names what was expected; nothing is unpickled, and sizes are checked before memory is taken.

The management plane (orchestrator <-> agent, ``ipc://``) carries one msgpack frame per message, of type ``Command`` or
``Report``.

Which message moves a request at one server, and what it then waits for:

    state          message             next state
    -------------  ------------------  ----------------------------------------------------
    (unknown)      Enter               computing layer 0
    computing l    plan stays here     gathering l   (no Result due: computing l+1)
    computing l    plan moves          (gone from here)
    (unknown)      Result of l         gathering l   (early: kept until the Advance)
    gathering l    Advance of l        gathering l   (knows now which Results are due)
    gathering l    last Result due     computing l+1, or answered when l is the last layer
    any            deadline, lost peer failed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from numpy.typing import NDArray

from agents.cluster import Cluster
from agents.models.quantize import FULL as FULL
from agents.models.sampling import GREEDY, Sampling
from testbed.errors import TestbedError

VERSION = 1
MAGIC = b"eMo" + bytes([VERSION])

DATA_PORT = 5555
#: Emulated seconds.
GOSSIP_INTERVAL_S = 0.25
#: A server is taken for lost after this long without any message from it.
DEAD_AFTER_S = 1.5
#: Wall seconds: an agent whose orchestrator has been silent for this long ends itself.
ORPHANED_AFTER_S = 15.0

MAX_ARRAY_BYTES = 64 * 2**20
MAX_ENVELOPE_BYTES = 4 * 2**20
MAX_MESSAGE_BYTES = 256 * 2**20

#: Logits that an agent reports of one pass; larger ones stay where they are, and nothing is said of their divergence.
MAX_LOGITS_BYTES = 8 * 2**20

#: What a framework may let travel with a request.
MAX_NOTES_BYTES = 2048

TOKEN_ID_BYTES = 4

Array = NDArray[Any]
RequestKind = Literal["score", "generate"]
Notes = Annotated[bytes, msgspec.Meta(max_length=MAX_NOTES_BYTES)]


class ProtocolError(TestbedError):
    """A message that the wire does not allow."""


class Ticket(msgspec.Struct, kw_only=True):
    """What travels with a request from server to server."""

    request: int
    kind: RequestKind
    home: str
    step: int  # 0 = prefill or score, then one per generated token
    start: int  # position of this pass's first token in the sequence
    deadline_s: float
    path: list[str]  # a(0), a(1) ...; complete after step 0, and binding for the steps after it (KV cache)
    moves: int = 0
    sent_bytes: int = 0  # activation payload put on the links so far
    quality_spent: float = 0.0  # estimated relative NLL increase so far
    late_s: float = 0.0  # added by the host on the pass's critical path so far
    sampling: Sampling = GREEDY  # of a request that generates
    notes: Notes = b""  # of the framework to itself, about this request

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the pass."""
        return self.request, self.step


class LayerRecord(msgspec.Struct, kw_only=True):
    """One row of layers.parquet (docs/results.md)."""

    request: int
    step: int
    layer: int
    server: str
    start_s: float
    duration_s: float = 0.0
    dense_s: float = 0.0
    experts_s: float = 0.0
    wait_s: float = 0.0
    experts: int = 0
    remote_experts: int = 0
    slow_experts: int = 0
    remote_slow_experts: int = 0
    fallback_experts: int = 0
    servers: int = 0
    quality_spent: float = 0.0
    substitute_experts: int = 0
    #: Under a depth policy (``agents.depth``): tokens that the layer ran for, that had left before it, that left after
    #: it, experts that were left out, and calls (token and expert) by "decision/reason".
    tokens: int = 0
    frozen_tokens: int = 0
    exited_tokens: int = 0
    skipped_experts: int = 0
    decisions: dict[str, int] = {}
    #: What the framework expected of its decision, s: transmission, loading, computation with queueing, price of the
    #: loss, price of the traffic, rest of the request.
    terms: tuple[float, float, float, float, float, float] | None = None


class ExpertCall(msgspec.Struct, frozen=True, kw_only=True):
    """One expert to run on ``rows`` of the hidden states of the same message."""

    expert: int
    precision: str
    rows: int  # how many of the index and weight entries are this call's


# --- data plane ---------------------------------------------------------------------------------------------------


class Enter(msgspec.Struct, frozen=True, kw_only=True, tag="enter"):
    """Home to a(0): begin a pass over these tokens."""

    ticket: Ticket


class Advance(msgspec.Struct, frozen=True, kw_only=True, tag="advance"):
    """a(l) to a(l+1): the residual stream after the attention of layer l."""

    ticket: Ticket
    layer: int
    parts: list[str]  # servers whose Result is due at the receiver, as server/part if several of one; none: complete
    record: LayerRecord
    late_s: float  # by which this left later than the device model says


class Execute(msgspec.Struct, frozen=True, kw_only=True, tag="execute"):
    """a(l) to an expert server: run these experts and send the sum to ``reply_to``."""

    request: int
    step: int
    layer: int
    home: str
    reply_to: str
    calls: list[ExpertCall]
    late_s: float  # by which this left later than the device model says
    part: str = ""  # which of several messages of this layer to this server, comes back with the Result


class Result(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """Expert server to a(l+1): the sum of its experts' weighted outputs."""

    request: int
    step: int
    layer: int
    loaded: int  # expert calls that had to be loaded first
    late_s: float  # of the Execute, and of this
    part: str = ""  # of the Execute


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """a(L) to home: what the pass found."""

    ticket: Ticket
    digest: bytes  # of the logits, bit for bit


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Any server to home: the pass cannot go on."""

    request: int
    step: int
    reason: str


class LinkEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """How the path from ``source`` looks at its receiving end now."""

    source: str
    delay_s: float
    rate_bps: float


class State(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """Gossip of one server about itself."""

    backlog_s: float  # work in front of the device now
    wait_s: float  # recent mean wait of a job for the device
    load_backlog_s: float  # the same for the slow -> fast channel
    links: list[LinkEstimate]
    slowness: float = 1.0  # how many times longer than on its data sheet the device takes
    cached: list[tuple[int, int, str]] = []  # loaded from slow memory and still there: layer, expert, precision


class Pull(msgspec.Struct, frozen=True, kw_only=True, tag="pull"):
    """To a holder of an expert: send this piece of its weights (``agents.migration``)."""

    move: int
    layer: int
    expert: int
    precision: str
    piece: Annotated[int, msgspec.Meta(ge=0)]


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """A piece of an expert's weights: nothing but its size matters here."""

    move: int
    layer: int
    expert: int
    precision: str
    piece: Annotated[int, msgspec.Meta(ge=0)]


class Announce(msgspec.Struct, frozen=True, kw_only=True, tag="announce"):
    """What the framework of a home tells those of all other servers of a request that has just entered."""

    text: Notes


Body = Enter | Advance | Execute | Result | Answer | Failed | State | Announce | Pull | Piece


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a message."""

    name: str
    dtype: str
    dimensions: int


ARRAYS: dict[type, tuple[ArraySpec, ...]] = {
    Enter: (ArraySpec("tokens", "<i4", 1),),
    Advance: (
        ArraySpec("tokens", "<i4", 1),
        ArraySpec("residual", "<f4", 2),  # (rows, width): the tokens, after states that waited for this pass
        ArraySpec("own_sum", "<i8", 2),  # of the sender's own experts; (0, width) if it ran none or added them already
        ArraySpec("left", "<i4", 1),  # per row: layer after which it left early, -1 if it has not; empty: nobody has
    ),
    Execute: (
        ArraySpec("hidden", "<f4", 2),  # (tokens sent, width)
        ArraySpec("rows", "<i4", 1),  # their positions in the pass
        ArraySpec("index", "<i4", 1),  # per call and token: which line of ``hidden``
        ArraySpec("weights", "<f4", 1),  # per call and token: the gate's weight
    ),
    Result: (ArraySpec("rows", "<i4", 1), ArraySpec("sum", "<i8", 2)),
    Answer: (ArraySpec("nll", "<f4", 1), ArraySpec("top1", "<i4", 1)),
    Failed: (),
    Announce: (),
    Pull: (),
    Piece: (),
    State: (
        # (5, servers of the cluster); (0, 0) in a small one.  Rows: when each server was last heard of, when it last
        # said how it is, and what it said, in the order of ``State``'s first fields.
        ArraySpec("news", "<f8", 2),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A body, its arrays, and what the network needs to know of it."""

    run: str  # the run it belongs to
    source: str
    sent_s: float  # emulated time of sending
    size_bytes: int  # what the large model's message weighs
    body: Body
    arrays: tuple[Array, ...] = ()


# --- management plane ---------------------------------------------------------------------------------------------


class Replica(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One copy of one expert."""

    layer: int
    expert: int
    server: str
    precision: str
    fast: bool  # residency: fast memory, or slow memory and loaded before it runs


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The offline decision of a framework."""

    replicas: tuple[Replica, ...]
    notes: dict[str, Any] = {}  # what the framework's online part wants to know; plain msgpack values


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """Prepare a run: load what it needs, connect.  Time begins with ``Start``."""

    run_id: str
    framework: str  # a registered name, or the path of a Python file
    cluster: Cluster
    placement: Placement
    addresses: dict[str, str]  # server -> endpoint on the data plane
    quality_budget: float
    known_logits: frozenset[bytes] = frozenset()  # digests of those that the orchestrator has already
    seed: int = 0  # of the run, for frameworks that draw lots


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Begin the run that was configured."""

    origin_s: float  # monotonic instant of emulated zero
    dilation: float


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """A request arrives at this agent, its home, at ``at_s``."""

    request: int
    kind: RequestKind
    tokens: list[int]
    output_tokens: int
    at_s: float
    deadline_s: float
    sampling: Sampling = GREEDY


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping"):
    """The orchestrator is alive."""


class Collect(msgspec.Struct, frozen=True, kw_only=True, tag="collect"):
    """End of a run: send what was recorded and forget the run."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End the agent."""


class SlowDown(msgspec.Struct, frozen=True, kw_only=True, tag="slow_down"):
    """From now on the device takes ``factor`` times as long as its data sheet says."""

    factor: float


class Count(msgspec.Struct, frozen=True, kw_only=True, tag="count"):
    """Say what the framework has counted since it was asked last."""

    review: int  # counts up within a run


class Rearrange(msgspec.Struct, frozen=True, kw_only=True, tag="rearrange"):
    """Get the copies that a new placement puts on this server; the old one stays in force until ``Switch``."""

    move: int  # counts up within a run
    placement: Placement


class Switch(msgspec.Struct, frozen=True, kw_only=True, tag="switch"):
    """The placement of this move is in force from now on."""

    move: int


Command = Configure | Start | Submit | SlowDown | Ping | Count | Rearrange | Switch | Collect | Stop


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The agent has started, or has taken a ``Configure``."""

    server: str
    run_id: str = ""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The agent cannot do what it was told."""

    server: str
    reason: str


class Complaint(msgspec.Struct, frozen=True, kw_only=True, tag="complaint"):
    """Something went wrong that belongs to no request and answers no command."""

    server: str
    reason: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """A request has ended, in a result or in an error."""

    request: int
    home: str
    sent_s: float
    finished_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    moves: int = 0
    sent_bytes: int = 0
    quality_spent: float = 0.0
    late_s: float = 0.0  # part of the latency that the host added
    nll: list[float] = []  # per token, nats (score)
    top1: list[int] = []  # most likely next token per position (score), or the generated tokens
    digest: bytes = b""
    error: str | None = None


class Logits(msgspec.Struct, frozen=True, kw_only=True, tag="logits"):
    """What a score pass ended in, where the orchestrator does not know it already (``agents.logits``)."""

    request: int
    digest: bytes
    rows: int  # one per token of the prompt
    values: bytes  # float32, little-endian, row after row


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag="sample"):
    """One row of servers.parquet."""

    server: str
    t_s: float
    device_busy: float
    loader_busy: float
    backlog_s: float
    rss_bytes: int
    lost_peers: list[str]


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """How far this agent stayed behind what it emulates; emulated seconds."""

    jobs: int  # of the device
    overruns: int  # device jobs whose real computation ended after their modelled end
    busy_s: float  # modelled device time, in all
    lag_p50_s: float  # wake-ups later than asked for
    lag_p99_s: float
    lag_max_s: float
    dropped_messages: int


class Counted(msgspec.Struct, frozen=True, kw_only=True, tag="counted"):
    """Answer to ``Count``."""

    server: str
    review: int  # of the ``Count``
    asked: list[list[int]]  # by layer and expert: tokens; empty where the framework counts nothing


class Arrived(msgspec.Struct, frozen=True, kw_only=True, tag="arrived"):
    """Everything that a move puts on this server is there."""

    server: str
    move: int
    copies: int  # that came over the links for it
    received_bytes: int


class Loads(msgspec.Struct, kw_only=True):
    """Experts that one server brought from slow to fast memory."""

    demanded: int = 0  # because a pass waited for them
    prefetched: int = 0  # ahead of any gate that chose them
    used: int = 0  # of these: asked for while they were there or on their way
    wasted: int = 0  # evicted before; the rest was still there at the end


class Collected(msgspec.Struct, frozen=True, kw_only=True, tag="collected"):
    """Answer to ``Collect``."""

    server: str
    layers: list[LayerRecord]
    fidelity: Fidelity
    loads: Loads = msgspec.field(default_factory=Loads)


Report = Ready | Refused | Complaint | Done | Logits | Sample | Counted | Arrived | Collected
