"""What a timeline must be before anything runs: users write scenarios, too.

Every message is a TestbedError that names the scenario and what is wrong in it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from scenarios.timeline import LinkChange, Request, Scenario, ServerFailure, ServerSlowdown
from testbed.errors import TestbedError, did_you_mean
from testbed.topology import Topology

#: Emulated seconds; a longer run is a mistake in the numbers.
LONGEST_S = 1e6


def in_order(scenario: Scenario) -> Scenario:
    """The same with everything in the order in which it happens, which is how it is played."""
    try:
        return replace(
            scenario,
            requests=tuple(sorted(scenario.requests, key=lambda request: request.at_s)),
            changes=tuple(sorted(scenario.changes, key=lambda change: change.at_s)),
            failures=tuple(sorted(scenario.failures, key=lambda failure: failure.at_s)),
            slowdowns=tuple(sorted(scenario.slowdowns, key=lambda slowdown: slowdown.at_s)),
        )
    except (AttributeError, TypeError) as error:
        raise TestbedError(f"scenario {scenario.name}: {error}") from error


def check_scenario(scenario: Scenario, topology: Topology) -> None:
    """Refuses a timeline that names what the topology has not, or holds what cannot be played."""
    _check_numbers(scenario)
    numbers: set[int] = set()
    for request in scenario.requests:
        _check_request(request, scenario)
        if request.number in numbers:
            raise TestbedError(f"scenario {scenario.name}: two requests have the number {request.number}")
        numbers.add(request.number)
    happenings: list[LinkChange | ServerFailure | ServerSlowdown] = [
        *scenario.changes,
        *scenario.failures,
        *scenario.slowdowns,
    ]
    for happening in happenings:
        _check_moment(happening, scenario)
    servers = {node.name for node in topology.servers}
    links = {name for link in topology.links for name in (link.name, f"{link.b}-{link.a}")}
    for request in scenario.requests:
        if request.home not in servers:
            raise TestbedError(
                f"scenario {scenario.name}: request {request.number} arrives at {request.home!r}, which is no server "
                f"of {topology.name}{did_you_mean(request.home, servers)}"
            )
    for failure in scenario.failures:
        if failure.server not in servers:
            raise TestbedError(
                f"scenario {scenario.name}: {failure.server!r} is to fail, which is no server of {topology.name}"
                f"{did_you_mean(failure.server, servers)}"
            )
    for slowdown in scenario.slowdowns:
        if slowdown.server not in servers:
            raise TestbedError(
                f"scenario {scenario.name}: {slowdown.server!r} is to slow down, which is no server of {topology.name}"
                f"{did_you_mean(slowdown.server, servers)}"
            )
        if not 0 < slowdown.factor < math.inf:
            raise TestbedError(
                f"scenario {scenario.name}: {slowdown.server} is to take {slowdown.factor} times as long; the factor "
                "must be above 0"
            )
    for server in scenario.domain_shares or {}:
        if server not in servers:
            raise TestbedError(
                f"scenario {scenario.name}: domain_shares are of {server!r}, which is no server of {topology.name}"
                f"{did_you_mean(server, servers)}"
            )
    for change in scenario.changes:
        if change.link not in links:
            raise TestbedError(
                f"scenario {scenario.name}: a change names the link {change.link!r}, which {topology.name} lacks"
                f"{did_you_mean(change.link, links)}"
            )
        rate_bps, delay_s, loss = change.rate_bps, change.delay_s, change.loss
        if (
            (rate_bps is not None and not 0 < rate_bps < math.inf)
            or (delay_s is not None and not 0 <= delay_s < math.inf)
            or (loss is not None and not 0 <= loss <= 1)
        ):
            raise TestbedError(
                f"scenario {scenario.name}: {change} at {change.at_s:g} s is no link: rates are above 0, delays not "
                "below 0, losses between 0 and 1"
            )


def _check_numbers(scenario: Scenario) -> None:
    for what, value, least in (
        ("duration_s", scenario.duration_s, 0.0),
        ("arrival_rate_per_s", scenario.arrival_rate_per_s, 0.0),
        ("slo_s", scenario.slo_s, 0.0),
        ("deadline_s", scenario.deadline_s, 1e-6),
        ("quality_budget", scenario.quality_budget, 0.0),
    ):
        if not least <= value <= LONGEST_S:
            raise TestbedError(f"scenario {scenario.name}: {what} is {value}; it must lie in {least:g}..{LONGEST_S:g}")

    for server, shares in (scenario.domain_shares or {}).items():
        if any(not 0 <= share <= 1 for share in shares.values()) or not math.isclose(sum(shares.values()), 1.0):
            raise TestbedError(
                f"scenario {scenario.name}: domain_shares of {server} are {dict(shares)}; they must add up to 1, "
                "and none lie below 0"
            )


def _check_request(request: Request, scenario: Scenario) -> None:
    where = f"scenario {scenario.name}: request {request.number!r}"
    if not isinstance(request.number, int) or not 0 <= request.number < 2**62:
        raise TestbedError(f"{where}: its number must be a whole one, 0 or above")
    if not 0 <= request.at_s <= LONGEST_S:
        raise TestbedError(f"{where} arrives at {request.at_s} s; it must lie in 0..{LONGEST_S:g}")
    if request.kind not in ("score", "generate"):
        raise TestbedError(f"{where} is of kind {request.kind!r}; known are score and generate")
    if (request.output_tokens > 0) != (request.kind == "generate"):
        raise TestbedError(
            f"{where}: one that generates has output_tokens above 0, a score has none; not {request.output_tokens}"
        )


def _check_moment(happening: LinkChange | ServerFailure | ServerSlowdown, scenario: Scenario) -> None:
    if not 0 <= happening.at_s <= LONGEST_S:
        raise TestbedError(
            f"scenario {scenario.name}: {happening} at {happening.at_s} s; it must lie in 0..{LONGEST_S:g}"
        )
