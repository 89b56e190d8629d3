"""docs/faults.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_test_that_the_page_of_faults_names_exists() -> None:
    page = (ROOT / "docs/faults.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line][1:]
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}

    assert len(rows) == 19
    for row in rows:
        named = NAMED.findall(row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in files.get(file, ""), f"{file}::{test}"
