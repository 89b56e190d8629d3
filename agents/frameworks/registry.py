"""Frameworks by name, or from one Python file of the user's own, alone or composed with what decides other things.

A composed name says who decides what: routing and placement before the first plus; behind it, in any order, depth
(``agents.depth``) and what each server runs next (``agents.local``).

>>> sorted(FRAMEWORKS)[:2]
['edgeshard', 'edgeshard-int4']
>>> parts("hetroute+trimmoe+bevy")
Stack(routing='hetroute', depth='trimmoe', local='bevy')
>>> parts("prism")
Stack(routing='prism', depth=None, local=None)
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from agents.depth import registry as depths
from agents.depth.base import DepthPolicy
from agents.errors import FrameworkError
from agents.frameworks.base import BaseFramework, Framework
from agents.local.registry import LOCALS
from agents.models.quantize import FULL
from agents.plugins import module_from
from testbed.errors import did_you_mean

#: name -> (module, class, options)
FRAMEWORKS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "local-first": ("agents.frameworks.local_first", "LocalFirst", {}),
    "greedy": ("agents.frameworks.greedy", "Greedy", {}),
    "random": ("agents.frameworks.random_choice", "RandomChoice", {}),
    "round-robin": ("agents.frameworks.round_robin", "RoundRobin", {}),
    "least-loaded": ("agents.frameworks.least_loaded", "LeastLoaded", {}),
    "eplb": ("agents.frameworks.eplb", "Eplb", {}),
    "moe-infinity": ("agents.frameworks.moe_infinity", "MoeInfinity", {}),
    "prism": ("agents.frameworks.prism", "Prism", {}),
    "prism-int8": ("agents.frameworks.prism", "Prism", {"precision": "int8"}),
    "prism-int4": ("agents.frameworks.prism", "Prism", {"precision": "int4"}),
    "petals": ("agents.frameworks.petals", "Petals", {}),
    "petals-int8": ("agents.frameworks.petals", "Petals", {"precision": "int8"}),
    "petals-int4": ("agents.frameworks.petals", "Petals", {"precision": "int4"}),
    "edgeshard": ("agents.frameworks.edgeshard", "EdgeShard", {}),
    "edgeshard-int8": ("agents.frameworks.edgeshard", "EdgeShard", {"precision": "int8"}),
    "edgeshard-int4": ("agents.frameworks.edgeshard", "EdgeShard", {"precision": "int4"}),
    "hetroute-int8": ("agents.frameworks.hetroute", "HetRoute", {"precisions": ["int8"]}),
    "hetroute": ("agents.frameworks.hetroute", "HetRoute", {}),
    "trimmoe": ("agents.frameworks.trimmoe", "TrimMoeRouting", {}),
}

#: Ablations: HetRoute without one of its parts, or with another in its place.  They are no frameworks of their own.
ABLATIONS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "hetroute-no-set-level": ("agents.frameworks.hetroute", "HetRoute", {"set_level": False}),
    "hetroute-no-residency": ("agents.frameworks.hetroute", "HetRoute", {"residency": False}),
    "hetroute-no-precision": ("agents.frameworks.hetroute", "HetRoute", {"precision_aware": False}),
    "hetroute-no-redundancy": ("agents.frameworks.hetroute", "HetRoute", {"redundancy": 1.0}),
    "hetroute-no-look-ahead": ("agents.frameworks.hetroute", "HetRoute", {"look_ahead": "none"}),
    "hetroute-one-layer": ("agents.frameworks.hetroute", "HetRoute", {"look_ahead": "layer"}),
    "hetroute-no-announcing": ("agents.frameworks.hetroute", "HetRoute", {"announce": False}),
    "hetroute-no-merging": ("agents.frameworks.hetroute", "HetRoute", {"merge": False}),
    "hetroute-no-rehearsal": ("agents.frameworks.hetroute", "HetRoute", {"rehearse": False}),
    "hetroute-exact": ("agents.frameworks.hetroute", "HetRoute", {"exact": True}),
    "spread-set-level": ("agents.frameworks.spread_routing", "SpreadRouting", {}),
    "spread-each-alone": ("agents.frameworks.spread_routing", "SpreadRouting", {"set_level": False}),
}

#: Rows that run in one lower precision, whatever the quality budget says.
BLIND_TO_BUDGET = frozenset(
    name for name, (_, _, options) in FRAMEWORKS.items() if options.get("precision", FULL) != FULL
)


#: Frameworks of papers that decide about depth themselves.
OWN_DEPTH = {"trimmoe": "trimmoe"}


@dataclass(frozen=True, slots=True)
class Stack:
    """What a name stands for."""

    routing: str  # a registered framework, or the path of a Python file
    depth: str | None  # a depth policy
    local: str | None  # a scheduler of every server


def parts(name: str) -> Stack:
    """Split a composed name; FrameworkError when what stands behind a plus is unknown, or of one kind with another."""
    routing, found = name, dict[str, str]()
    while "+" in routing and not routing.endswith(".py"):
        routing, _, part = routing.rpartition("+")
        kind = "depth" if depths.is_depth(part) else "local" if part in LOCALS else None
        if kind is None:
            known = [*depths.DEPTHS, *LOCALS]
            raise FrameworkError(
                f"{name!r}: {part!r} is neither a depth policy nor a local scheduler{did_you_mean(part, known)}; "
                f"known: {', '.join(depths.DEPTHS)}; {', '.join(LOCALS)}"
            )
        if kind in found:
            what = "depth policies" if kind == "depth" else "local schedulers"
            raise FrameworkError(f"{name!r} has two {what}, {part!r} and {found[kind]!r}: leave one of them out")
        found[kind] = part
    return Stack(routing, found.get("depth", OWN_DEPTH.get(routing)), found.get("local"))


def create_depth(name: str) -> DepthPolicy | None:
    """A fresh depth policy for a framework's name; None where everything runs."""
    depth = parts(name).depth
    return None if depth is None else depths.create(depth)


def create(name: str, options: Mapping[str, Any] | None = None) -> Framework:
    """A fresh framework: a registered name, or the path of a ``.py`` file with one subclass of ``BaseFramework``.

    Of a composed name this is the part before the first plus; ``create_depth`` and ``agents.local`` make the others.
    FrameworkError when there is none, when the file does not load, or when an option is unknown.
    """
    stack = parts(name)
    if stack.routing != name:
        if stack.depth is not None:
            depths.create(stack.depth)  # a number that is wrong is said now
        framework = create(stack.routing, options)
        framework.name = name
        return framework
    if name.endswith(".py"):
        return _instantiate(_class_in_file(name), dict(options or {}), name)
    known = {**FRAMEWORKS, **ABLATIONS}
    if name not in known:
        raise FrameworkError(
            f"there is no framework {name!r}{did_you_mean(name, known)}; "
            f"known: {', '.join(known)}, or the path of a Python file"
        )
    module, attribute, defaults = known[name]
    factory = getattr(importlib.import_module(module), attribute)
    framework = _instantiate(factory, {**defaults, **(options or {})}, name)
    framework.name = name
    return framework


def _instantiate(factory: Callable[[Mapping[str, Any]], Any], options: Mapping[str, Any], name: str) -> Framework:
    try:
        return cast(Framework, factory(options))
    except FrameworkError:
        raise
    except (Exception, SystemExit) as error:  # a user's class may raise anything; the traceback is chained
        raise FrameworkError(f"framework {name} cannot be created: {type(error).__name__}: {error}") from error


def _class_in_file(file: str) -> Callable[[Mapping[str, Any]], Any]:
    module = module_from(file, kind="framework")
    classes = [
        member
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, BaseFramework) and member.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise FrameworkError(f"{file} must define exactly one subclass of BaseFramework; it has {len(classes)}")
    return cast(Callable[[Mapping[str, Any]], Any], classes[0])
