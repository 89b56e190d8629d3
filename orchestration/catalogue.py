"""Scenarios by name: a module of the package, or the path of a Python file with a ``build(setting)``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import scenarios
from agents.plugins import module_from
from scenarios.timeline import Scenario, Setting
from testbed.errors import TestbedError, did_you_mean

Build = Callable[[Setting], Scenario]


def scenario_names() -> tuple[str, ...]:
    """The scenarios of the package: its modules that have a ``build``."""
    directory = Path(scenarios.__path__[0])
    names = sorted(path.stem for path in directory.glob("*.py") if not path.stem.startswith("_"))
    return tuple(name for name in names if "\ndef build(" in (directory / f"{name}.py").read_text())


def builder(name: str) -> Build:
    """The ``build`` of a scenario; TestbedError when there is none."""
    if name.endswith(".py"):
        return _build_of(module_from(name, kind="scenario"), name)
    known = scenario_names()
    if name not in known:
        raise TestbedError(
            f"there is no scenario {name!r}{did_you_mean(name, known)}; "
            f"known: {', '.join(known)}, or the path of a Python file"
        )
    return _build_of(importlib.import_module(f"scenarios.{name}"), name)


def _build_of(module: ModuleType, name: str) -> Build:
    build = getattr(module, "build", None)
    if not callable(build):
        raise TestbedError(f"scenario {name} has no function build(setting)")

    def guarded(setting: Setting) -> Scenario:
        try:
            made = build(setting)
        except TestbedError:
            raise
        except (Exception, SystemExit) as error:  # a user's may raise anything; the traceback is chained
            raise TestbedError(f"scenario {name} cannot be built: {type(error).__name__}: {error}") from error
        if not isinstance(made, Scenario):
            raise TestbedError(f"scenario {name}: build() returned {type(made).__name__}, not a Scenario")
        return made

    return guarded
