"""What a scenario is: two timelines, known in full before anything runs.

All times are emulated seconds from the start of the run.  The same seed gives the same timelines under every framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from testbed.topology import Topology
from testbed.units import format_fraction, format_rate, format_seconds

RequestKind = Literal["score", "generate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: ``prompt`` numbers a held-out text of its domain, of which the first ``tokens`` tokens are used."""

    number: int
    at_s: float
    home: str
    kind: RequestKind
    domain: str
    prompt: int
    tokens: int
    output_tokens: int = 0  # generate only


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """At ``at_s`` the link gets these values in both directions; None leaves a value as it is in the topology."""

    at_s: float
    link: str
    rate_bps: float | None = None
    delay_s: float | None = None
    loss: float | None = None
    restore: bool = False  # back to the topology's values

    def __str__(self) -> str:
        """``s1-s5 rate=100 Mbit/s delay=20 ms``: as figures and logs name it."""
        if self.restore:
            return f"{self.link} restored"
        parts = [self.link]
        if self.rate_bps is not None:
            parts.append(f"rate={format_rate(self.rate_bps)}")
        if self.delay_s is not None:
            parts.append(f"delay={format_seconds(self.delay_s)}")
        if self.loss is not None:
            parts.append(f"loss={format_fraction(self.loss)}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFailure:
    """At ``at_s`` the server's agent dies and says nothing more in this run; its links and its routes stay."""

    at_s: float
    server: str

    def __str__(self) -> str:
        """``s3 fails``: as figures and logs name it."""
        return f"{self.server} fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSlowdown:
    """From ``at_s`` on the server's device takes ``factor`` times as long for everything; 1 is its data sheet again."""

    at_s: float
    server: str
    factor: float

    def __str__(self) -> str:
        """``s3 4x slower``: as figures and logs name it."""
        return f"{self.server} {self.factor:g}x slower" if self.factor != 1 else f"{self.server} at full speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a scenario is built for."""

    topology: Topology
    domains: Sequence[str]  # of the model's held-out texts
    prompts_per_domain: int
    prompt_tokens: int  # length of the shortest held-out text
    seed: int
    arrival_rate_per_s: float | None = None  # None: the scenario's own
    duration_s: float | None = None
    generate_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that happens to the servers during one run."""

    name: str
    question: str  # what it lets one see
    duration_s: float  # length of the arrival timeline
    arrival_rate_per_s: float
    requests: tuple[Request, ...]
    changes: tuple[LinkChange, ...] = ()
    failures: tuple[ServerFailure, ...] = ()
    slowdowns: tuple[ServerSlowdown, ...] = ()
    slo_s: float = 0.300  # HetRoute's latency objective
    deadline_s: float = 20.0  # a request without an answer by then has failed
    quality_budget: float = 0.02  # relative NLL increase, HetRoute's default
    temperature: float = 0.0  # of requests that generate; 0 takes the likeliest token, always
    top_p: float = 1.0  # they draw among the likeliest tokens that together reach this probability
    sampling_seed: int = 0
    #: What the users of each server ask about, by server and domain, where that is known beyond these requests.
    domain_shares: Mapping[str, Mapping[str, float]] | None = None


def render(scenario: Scenario, *, first: int = 10) -> str:
    """Both timelines as text: the first requests, and every link change."""
    lines = [
        f"{scenario.name}: {scenario.question}",
        f"{len(scenario.requests)} requests in {format_seconds(scenario.duration_s)}"
        f" ({scenario.arrival_rate_per_s:g}/s), objective {format_seconds(scenario.slo_s)}",
    ]
    for request in scenario.requests[:first]:
        output = f" + {request.output_tokens} to generate" if request.kind == "generate" else ""
        lines.append(
            f"  {request.at_s:9.3f} s  #{request.number:<4} {request.kind:8} at {request.home:4}"
            f" {request.domain} text {request.prompt}, {request.tokens} tokens{output}"
        )
    if len(scenario.requests) > first:
        lines.append(f"  ... {len(scenario.requests) - first} more requests")
    happenings: list[LinkChange | ServerFailure | ServerSlowdown]
    happenings = [*scenario.changes, *scenario.failures, *scenario.slowdowns]
    happenings.sort(key=lambda each: each.at_s)
    lines.extend(f"  {happening.at_s:9.3f} s  {happening}" for happening in happenings)
    return "\n".join(lines)
