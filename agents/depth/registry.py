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
    policy = cast(DepthPolicy, getattr(importlib.import_module(module), attribute)(given))
    policy.name = name
    return policy
