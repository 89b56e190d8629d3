"""Frameworks by name, or from one Python file of the user's own, alone or composed with a depth policy.

A composed name says who decides what: routing and placement before the plus, depth behind it (``agents.depth``).

>>> sorted(FRAMEWORKS)[:2]
['edgeshard', 'edgeshard-int4']
>>> parts("hetroute+trimmoe")
Stack(routing='hetroute', depth='trimmoe')
>>> parts("prism").depth is None
True
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
    "petals": ("agents.frameworks.petals", "Petals", {}),
    "petals-int8": ("agents.frameworks.petals", "Petals", {"precision": "int8"}),
    "edgeshard": ("agents.frameworks.edgeshard", "EdgeShard", {}),
    "edgeshard-int8": ("agents.frameworks.edgeshard", "EdgeShard", {"precision": "int8"}),
    "edgeshard-int4": ("agents.frameworks.edgeshard", "EdgeShard", {"precision": "int4"}),
    "hetroute-int8": ("agents.frameworks.hetroute", "HetRoute", {"precisions": ["int8"]}),
    "hetroute": ("agents.frameworks.hetroute", "HetRoute", {}),
    "trimmoe": ("agents.frameworks.trimmoe", "TrimMoeRouting", {}),
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


def parts(name: str) -> Stack:
    """Split a composed name; FrameworkError when what stands behind the plus is no depth policy."""
    routing, plus, depth = name.rpartition("+")
    if not plus or name.endswith(".py"):
        return Stack(name, OWN_DEPTH.get(name))
    if not depths.is_depth(depth):
        raise FrameworkError(
            f"{name!r}: there is no depth policy {depth!r}{did_you_mean(depth, depths.DEPTHS)}; "
            f"known: {', '.join(depths.DEPTHS)}"
        )
    return Stack(routing, depth)


def create_depth(name: str) -> DepthPolicy | None:
    """A fresh depth policy for a framework's name; None where everything runs."""
    depth = parts(name).depth
    return None if depth is None else depths.create(depth)


def create(name: str, options: Mapping[str, Any] | None = None) -> Framework:
    """A fresh framework: a registered name, or the path of a ``.py`` file with one subclass of ``BaseFramework``.

    Of a composed name this is the part before the plus; ``create_depth`` makes the other one.  FrameworkError when
    there is none, when the file does not load, or when an option is unknown.
    """
    stack = parts(name)
    if stack.depth is not None and stack.routing != name:
        depths.create(stack.depth)  # a number that is wrong is said now
        framework = create(stack.routing, options)
        framework.name = name
        return framework
    if name.endswith(".py"):
        return _instantiate(_class_in_file(name), dict(options or {}), name)
    if name not in FRAMEWORKS:
        raise FrameworkError(
            f"there is no framework {name!r}{did_you_mean(name, FRAMEWORKS)}; "
            f"known: {', '.join(FRAMEWORKS)}, or the path of a Python file"
        )
    module, attribute, defaults = FRAMEWORKS[name]
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
