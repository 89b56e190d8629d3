"""The verdict on a run: did the emulation keep up with what it emulates?

Every check is one number against one bound, both in emulated time, so that a dilated run is judged by what it reports.
The first check is the one that matters: how much of the reported latencies is the host's.  Each request carries that
sum along its critical path (``late_s``).  The others find what it cannot see: packets released late, messages that
waited for a busy event loop, a host without reserves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from agents.protocol import Fidelity

MAX_LATE_SHARE = 0.05  # of all latencies together
MAX_TAIL_OF_OBJECTIVE = 0.01  # 99th percentile of one late wake-up or release, as a share of the latency objective
MAX_HOST_BUSY = 0.90
MAX_EVENT_LATENESS_S = 0.050
MAX_ADMISSION_LATENESS_P99_S = 5e-3


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One number, its bound, and what it means."""

    name: str
    value: float
    bound: float
    unit: str
    ok: bool
    meaning: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """PASS when every check holds, else WARN."""

    verdict: str
    checks: tuple[Check, ...]


def judge(
    *,
    agents: Iterable[Fidelity],
    relay_p99_s: float,
    host_busy: float,
    event_lateness_s: Sequence[float],
    admission_lateness_s: Sequence[float],
    links_off: int,
    ended_agents: int,
    latency_s: float,
    late_s: float,
    slo_s: float,
) -> Verdict:
    """All checks of one run; times are emulated seconds, ``relay_p99_s`` included.

    ``latency_s`` and ``late_s`` are sums over the answered requests.
    """
    reports = list(agents)
    admitted = list(admission_lateness_s)
    checks = (
        _at_most(
            "host lateness",
            late_s / latency_s if latency_s > 0 else 0.0,
            MAX_LATE_SHARE,
            "share",
            "part of all latencies that the host added: results that left servers later than the device model says",
        ),
        _at_most(
            "event-loop lag p99",
            max((report.lag_p99_s for report in reports), default=0.0),
            MAX_TAIL_OF_OBJECTIVE * slo_s,
            "s",
            "an agent woke this much later than a device or load was due (worst server, 99th percentile)",
        ),
        _at_most(
            "relay lateness p99",
            relay_p99_s,
            MAX_TAIL_OF_OBJECTIVE * slo_s,
            "s",
            "packets left a link this much later than due",
        ),
        _at_most("host CPU", host_busy, MAX_HOST_BUSY, "share", "mean load of all cores of the host during the run"),
        _at_most(
            "event lateness",
            max(event_lateness_s, default=0.0),
            MAX_EVENT_LATENESS_S,
            "s",
            "a link change was made this much later than scheduled (worst)",
        ),
        _at_most(
            "admission lateness p99",
            float(np.quantile(admitted, 0.99)) if admitted else 0.0,
            MAX_ADMISSION_LATENESS_P99_S,
            "s",
            "a request was admitted this much later than scheduled",
        ),
        _at_most(
            "messages dropped",
            sum(report.dropped_messages for report in reports),
            0,
            "messages",
            "messages that an agent could not queue or decode",
        ),
        _at_most(
            "links off their file", links_off, 0, "directions", "directions whose calibration missed its tolerance"
        ),
        _at_most("agents ended", ended_agents, 0, "agents", "agents that ended during the run"),
    )
    return Verdict(verdict="PASS" if all(check.ok for check in checks) else "WARN", checks=checks)


def _at_most(name: str, value: float, bound: float, unit: str, meaning: str) -> Check:
    return Check(name=name, value=float(value), bound=float(bound), unit=unit, ok=value <= bound, meaning=meaning)
