"""Imports run one way.  A forbidden import is a design decision that somebody should take on purpose."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: package -> what it may import of ours; "testbed values" are the pure modules of testbed
VALUES = {"testbed.errors", "testbed.paths", "testbed.topology", "testbed.units"}
ALLOWED: dict[str, set[str]] = {
    "testbed": {"testbed"},
    "agents": {"agents"} | VALUES,
    "scenarios": {"scenarios"} | VALUES,
    "orchestration": {"orchestration", "agents", "scenarios", "testbed"},
    "analysis": {"analysis", "testbed.drawing", "testbed.errors", "testbed.units", "testbed.topology"},
}
OURS = {*ALLOWED, "orchestrator"}


def imports_of(path: Path) -> set[str]:
    """Modules of ours that a file imports when it is imported (what stands under ``if __name__`` does not count)."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    body = [node for node in tree.body if not (isinstance(node, ast.If) and "__name__" in ast.unparse(node.test))]
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return {name for name in found if name.split(".")[0] in OURS}


def is_allowed(name: str, allowed: set[str]) -> bool:
    return any(name == permitted or name.startswith(permitted + ".") for permitted in allowed)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_comes_before_it(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports_of(path)
        if not is_allowed(name, ALLOWED[package])
    }
    assert wrong == set()


def test_nobody_imports_the_orchestrator_but_scripts_that_are_run() -> None:
    wrong = [
        path for package in ALLOWED for path in (ROOT / package).rglob("*.py") if "orchestrator" in imports_of(path)
    ]
    assert wrong == []


def test_agents_and_scenarios_ask_no_clock_and_draw_no_unseeded_number() -> None:
    wrong = []
    for package in ("agents", "scenarios"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.parent.name == "models" or path.name in {"clock.py", "main.py"}:
                continue
            # Sleeping for no time at all asks no clock: it lets others run first.
            tree = ast.parse(path.read_text().replace("asyncio.sleep(0)", "asyncio.yield_(0)"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in {
                    "time.time",
                    "time.monotonic",
                    "time.sleep",
                    "asyncio.sleep",
                    "random.random",
                    "random.choice",
                    "datetime.now",
                }:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []
