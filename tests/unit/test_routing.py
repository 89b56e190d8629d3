"""What a plan may ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.errors import FrameworkError
from agents.frameworks.base import Choice, Plan
from agents.protocol import Replica
from agents.routing import MAX_AHEAD, check_plan

from .framework_cases import demand

ASKED = demand(0, tokens=1, experts=1, top_k=1)
HERE = frozenset({(0, 0, "s1", "full")})
PLAN = Plan(choices=(Choice(expert=0, server="s1", precision="full"),), next_server="s1")


def ahead(copies: int) -> Plan:
    copy = Replica(layer=1, expert=0, server="s1", precision="full", fast=False)
    return replace(PLAN, prefetch=(copy,) * copies)


def test_a_plan_names_a_bounded_number_of_copies_to_load_ahead() -> None:
    check_plan(ahead(MAX_AHEAD), ASKED, HERE, ["s1"], "mine")
    with pytest.raises(FrameworkError, match="mine, layer 0: a plan loads at most 256 copies ahead, not 257"):
        check_plan(ahead(MAX_AHEAD + 1), ASKED, HERE, ["s1"], "mine")
