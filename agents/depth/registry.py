"""Depth policies by name.  ``agents.frameworks.registry`` reads them behind the plus of a composed name.

>>> create("skip-layers:0.25").share
0.25
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

from agents.depth.base import DepthPolicy
from agents.errors import FrameworkError
from agents.models.exits import EXITS_FILE, ExitHeads
from agents.models.facts import FACTS_FILE, ExpertFacts
from testbed.errors import did_you_mean

#: name -> (module, class, options, the option that a number after a colon sets).  The order is that of tables.
DEPTHS: Mapping[str, tuple[str, str, Mapping[str, Any], str | None]] = {
    "none": ("agents.depth.base", "BaseDepth", {}, None),
    "trimmoe": ("agents.depth.trimmoe", "TrimMoe", {}, "risk"),
    "skip-only": ("agents.depth.trimmoe", "TrimMoe", {"moves": ("skip",)}, None),
    "substitute-only": ("agents.depth.trimmoe", "TrimMoe", {"moves": ("substitute",)}, None),
    "exit-only": ("agents.depth.trimmoe", "TrimMoe", {"moves": ("exit",)}, "risk"),
    "skip-layers": ("agents.depth.skip_layers", "SkipLayers", {}, "share"),
    "calm": ("agents.depth.calm", "Calm", {}, "risk"),
}


#: What of a model must have been measured for a policy to have anything to decide with: one of these is enough.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "trimmoe": (FACTS_FILE, EXITS_FILE),
    "skip-only": (FACTS_FILE,),
    "substitute-only": (FACTS_FILE,),
    "exit-only": (EXITS_FILE,),
    "skip-layers": (FACTS_FILE,),
    "calm": (EXITS_FILE,),
}


def check_measured(name: str, facts: ExpertFacts | None, exits: ExitHeads | None) -> None:
    """FrameworkError where a policy could not cut anything, because the model was not measured for it."""
    there = {FACTS_FILE: facts is not None, EXITS_FILE: exits is not None}
    needed = NEEDS.get(name.partition(":")[0], ())
    if needed and not any(there[file] for file in needed):
        raise FrameworkError(
            f"depth policy {name} has nothing to decide with: the model has no {' and no '.join(needed)}; twins are "
            f"measured by python -m agents.models.calibrate"
        )


def is_depth(name: str) -> bool:
    """Whether a part of a composed name is a depth policy's, with or without a number."""
    return name.partition(":")[0] in DEPTHS


def create(name: str) -> DepthPolicy:
    """A fresh policy: a registered name, with a number after a colon where the policy takes one."""
    base, colon, number = name.partition(":")
    if base not in DEPTHS:
        raise FrameworkError(
            f"there is no depth policy {base!r}{did_you_mean(base, DEPTHS)}; known: {', '.join(DEPTHS)}"
        )
    module, attribute, options, parameter = DEPTHS[base]
    given = dict(options)
    if colon:
        if parameter is None:
            raise FrameworkError(f"depth policy {base} takes no number, but the name is {name!r}")
        try:
            given[parameter] = float(number)
        except ValueError:
            raise FrameworkError(f"{name!r}: {number!r} is not a number; it sets the {parameter} of {base}") from None
        if not 0.0 <= given[parameter] <= 1.0 or (parameter == "risk" and given[parameter] == 1.0):
            raise FrameworkError(f"{name!r}: the {parameter} of {base} is {number}; it must be between 0 and 1")
    policy = cast(DepthPolicy, getattr(importlib.import_module(module), attribute)(given))
    policy.name = name
    return policy
