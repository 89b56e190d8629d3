"""Frameworks by name, or from one Python file of the user's own.

>>> sorted(FRAMEWORKS)[:2]
['edgeshard', 'greedy']
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from agents.errors import FrameworkError
from agents.frameworks.base import BaseFramework, Framework
from testbed.errors import did_you_mean

#: name -> (module, class, options)
FRAMEWORKS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "local-first": ("agents.frameworks.local_first", "LocalFirst", {}),
    "greedy": ("agents.frameworks.greedy", "Greedy", {}),
    "edgeshard": ("agents.frameworks.edgeshard", "EdgeShard", {}),
    "edgeshard-int8": ("agents.frameworks.edgeshard", "EdgeShard", {"precision": "int8"}),
    "edgeshard-int4": ("agents.frameworks.edgeshard", "EdgeShard", {"precision": "int4"}),
    "hetroute-int8": ("agents.frameworks.hetroute", "HetRoute", {"precisions": ["int8"]}),
    "hetroute": ("agents.frameworks.hetroute", "HetRoute", {}),
}


def create(name: str, options: Mapping[str, Any] | None = None) -> Framework:
    """A fresh framework: a registered name, or the path of a ``.py`` file with one subclass of ``BaseFramework``.

    FrameworkError when there is none, when the file does not load, or when an option is unknown.
    """
    if name.endswith(".py"):
        return _instantiate(_class_in_file(Path(name)), dict(options or {}), name)
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
    except Exception as error:  # a user's class may raise anything; the traceback is chained
        raise FrameworkError(f"framework {name} cannot be created: {type(error).__name__}: {error}") from error


def _class_in_file(path: Path) -> Callable[[Mapping[str, Any]], Any]:
    if not path.is_file():
        raise FrameworkError(f"there is no framework file {path}")
    spec = importlib.util.spec_from_file_location(f"user_framework_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise FrameworkError(f"{path} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything; the traceback is chained
        raise FrameworkError(f"framework file {path} does not load: {type(error).__name__}: {error}") from error
    classes = [
        member
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, BaseFramework) and member.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise FrameworkError(f"{path} must define exactly one subclass of BaseFramework; it has {len(classes)}")
    return cast(Callable[[Mapping[str, Any]], Any], classes[0])
