"""Schedulers by name, or from the user's own file."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, cast

from agents.plugins import module_from
from agents.schedulers.base import BaseScheduler, Scheduler, SchedulerError
from testbed.errors import did_you_mean

#: name -> (module, class or function that takes options).  The order is that of tables and figures.
SCHEDULERS: Mapping[str, tuple[str, str]] = {
    "lockstep": ("agents.schedulers.lockstep", "Lockstep"),
    "lockstep-overlap": ("agents.schedulers.split", "OverlappedLockstep"),
    "each-alone": ("agents.schedulers.each_alone", "EachAlone"),
    "prefetch": ("agents.schedulers.prefetch", "prefetch"),
    "prefetch-matrix": ("agents.schedulers.prefetch_matrix", "prefetch_matrix"),
    "bevy": ("agents.schedulers.bevy", "Bevy"),
    "bevy-split": ("agents.schedulers.split", "SplitBevy"),
    "bevy+prefetch": ("agents.schedulers.prefetch", "bevy_with_prefetch"),
}
#: Those that load ahead by a prediction, without Bevy.
PREDICTORS = ("prefetch", "prefetch-matrix")


def create(name: str, options: Mapping[str, Any] | None = None) -> Scheduler:
    """A fresh scheduler: a registered name, or the path of a ``.py`` file with one subclass of ``BaseScheduler``.

    SchedulerError when there is none, when the file does not load, or when an option is unknown.
    """
    if name.endswith(".py"):
        factory = _class_in_file(name)
    elif name in SCHEDULERS:
        module, attribute = SCHEDULERS[name]
        factory = getattr(importlib.import_module(module), attribute)
    else:
        raise SchedulerError(
            f"there is no scheduler {name!r}{did_you_mean(name, SCHEDULERS)}; "
            f"known: {', '.join(SCHEDULERS)}, or the path of a Python file"
        )
    try:
        return cast(Scheduler, factory(options or {}))
    except SchedulerError:
        raise
    except (Exception, SystemExit) as error:  # a user's class may raise anything; the traceback is chained
        raise SchedulerError(f"scheduler {name} cannot be created: {type(error).__name__}: {error}") from error


def _class_in_file(file: str) -> Any:
    module = module_from(file, kind="scheduler")
    classes = [
        member
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, BaseScheduler) and member.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise SchedulerError(f"{file} must define exactly one subclass of BaseScheduler; it has {len(classes)}")
    return classes[0]
