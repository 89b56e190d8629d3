"""The commands of docs/living-with-it.md run, in their order, and leave nothing behind."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.ledger import all_names
from testbed.network import down

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/living-with-it.md").read_text()
COMMANDS = re.findall(r"^    testbed ([^\n]+)", PAGE, flags=re.MULTILINE)


def test_the_commands_of_the_page_run_in_order(run_root: Path, tmp_path: Path) -> None:
    assert len(COMMANDS) >= 14
    (tmp_path / "topologies").symlink_to(ROOT / "topologies")
    try:
        for command in COMMANDS:
            argv = [sys.executable, "-m", "testbed.cli", *shlex.split(command)]
            done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, f"testbed {command}: {done.stdout}{done.stderr}"
        assert (tmp_path / "lab.svg").stat().st_size > 1000
        assert all_names() == []
    finally:
        for name in all_names():
            down(name)
