r"""Requests: Poisson arrivals at unequal home servers that differ in what they ask.

    inter-arrival ~ Exp(rate)                                                                                     (1)
    home          ~ users of the topology                                                                         (2)
    domain        ~ 70 % the home metro's own, else any                                                           (3)
    tokens        ~ LogNormal with mean 37, cut to [8, 96]                                                        (4)

(1) and (2) follow the papers' setting (systems: HetRoute, 37 tokens per request on average).  (3) and the spread of (4)
are ours: servers of one metro share users, and so a subject.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence

from scenarios.timeline import Request, Setting
from testbed.errors import TestbedError
from testbed.topology import Node

MEAN_TOKENS = 37
TOKENS_SIGMA = 0.4
MIN_TOKENS, MAX_TOKENS = 8, 96
OWN_DOMAIN_SHARE = 0.7
OUTPUT_TOKENS = 8
MAX_REQUESTS = 1_000_000
#: Arrivals begin a moment after the start, when gossip has gone round once.
FIRST_ARRIVAL_S = 0.5


def poisson(
    setting: Setting, *, rate_per_s: float, duration_s: float, generate_share: float = 0.0
) -> tuple[Request, ...]:
    """The request timeline of (1) to (4).

    ValueError for a rate or duration that is not positive, TestbedError for more requests than a run can play.
    """
    if not (rate_per_s > 0 and duration_s > 0):
        raise ValueError(f"rate and duration must be positive, not {rate_per_s} and {duration_s}")
    if rate_per_s * duration_s > MAX_REQUESTS:
        raise TestbedError(
            f"{rate_per_s:g} requests/s for {duration_s:g} s are some {rate_per_s * duration_s:g} requests; "
            f"a run plays at most {MAX_REQUESTS}"
        )
    draw = random.Random(f"requests {setting.seed}")  # noqa: S311 - a simulation's draws, not a secret
    servers = setting.topology.servers
    weights = [node.users for node in servers]
    own = _domain_of_each_metro(servers, setting.domains)
    longest = min(MAX_TOKENS, setting.prompt_tokens)
    mu = math.log(MEAN_TOKENS) - TOKENS_SIGMA**2 / 2
    requests: list[Request] = []
    at_s = FIRST_ARRIVAL_S
    while True:
        at_s += draw.expovariate(rate_per_s)
        if at_s >= FIRST_ARRIVAL_S + duration_s:
            return tuple(requests)
        home = draw.choices(servers, weights)[0]
        domain = own[home.metro] if draw.random() < OWN_DOMAIN_SHARE else draw.choice(list(setting.domains))
        generates = draw.random() < generate_share
        requests.append(
            Request(
                number=len(requests),
                at_s=at_s,
                home=home.name,
                kind="generate" if generates else "score",
                domain=domain,
                prompt=draw.randrange(setting.prompts_per_domain),
                tokens=max(MIN_TOKENS, min(longest, round(draw.lognormvariate(mu, TOKENS_SIGMA)))),
                output_tokens=OUTPUT_TOKENS if generates else 0,
            )
        )


def domain_shares(setting: Setting) -> dict[str, dict[str, float]]:
    """What the users of each server ask about in the long run, by (3).

    Frameworks that place by it get the probabilities, not the draws of one run: a history would tell them that much.
    """
    servers = setting.topology.servers
    own = _domain_of_each_metro(servers, setting.domains)
    any_share = (1.0 - OWN_DOMAIN_SHARE) / len(setting.domains)
    return {
        node.name: {
            domain: any_share + (OWN_DOMAIN_SHARE if domain == own[node.metro] else 0.0) for domain in setting.domains
        }
        for node in servers
    }


def counted_shares(requests: Iterable[Request]) -> dict[str, dict[str, float]]:
    """What the users of each server ask about, counted; one more request of the whole's mix is added to each [ours].

    So a server that is home to two requests is not taken for one that never asks about anything else.

    >>> def request(home: str, domain: str) -> Request:
    ...     return Request(number=0, at_s=0.0, home=home, kind="score", domain=domain, prompt=0, tokens=8)
    >>> counted_shares([request("s1", "a"), request("s1", "a"), request("s1", "b"), request("s2", "b")])
    {'s1': {'a': 0.625, 'b': 0.375}, 's2': {'a': 0.25, 'b': 0.75}}
    """
    asked: dict[str, Counter[str]] = {}
    for request in requests:
        asked.setdefault(request.home, Counter())[request.domain] += 1
    mix = sum(asked.values(), Counter())
    return {
        home: {domain: (counts[domain] + mix[domain] / mix.total()) / (counts.total() + 1) for domain in sorted(mix)}
        for home, counts in asked.items()
    }


def _domain_of_each_metro(servers: Sequence[Node], domains: Sequence[str]) -> dict[str, str]:
    metros = dict.fromkeys(node.metro for node in servers)
    return {metro: domains[place % len(domains)] for place, metro in enumerate(metros)}
