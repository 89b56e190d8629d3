"""Skips what this machine cannot do, and says why."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import agents  # noqa: F401 - one thread for BLAS, decided before any test imports numpy
from testbed import capabilities

# The same examples on every run: a change is judged by what it changes.  A busy machine is no reason to fail.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = capabilities.missing_for_netns()
    if missing:
        reason = "; ".join(f"{each.name}: {each.detail}" for each in missing)
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def run_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where testbeds of this test keep their run directories.  ``tmp_path`` is too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="tb-", dir="/tmp") as directory:
        monkeypatch.setenv("TESTBED_RUN_DIR", directory)
        yield Path(directory)
