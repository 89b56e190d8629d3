"""Python files of the user's own: a framework or a scenario that is no part of the packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from testbed.errors import TestbedError


def module_from(file: str, *, kind: str) -> ModuleType:
    """Run a Python file as a module; TestbedError that names the ``kind`` of file when it is missing or fails."""
    path = Path(file)
    if not path.is_file():
        raise TestbedError(f"there is no {kind} file {file}")
    spec = importlib.util.spec_from_file_location(f"user_{kind}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise TestbedError(f"{file} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may raise anything; the traceback is chained
        raise TestbedError(f"{kind} file {file} does not load: {type(error).__name__}: {error}") from error
    return module
