"""The README is a promise: its commands run, its example of a framework works, its files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agents.frameworks.registry import FRAMEWORKS, create

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    (\.venv/bin/\S+ [^#\n]*)", README, flags=re.MULTILINE)


def needs_a_testbed(command: str) -> bool:
    """Whether one must be up; test_run.py and test_network_robustness.py run the like."""
    simulated = "--backend sim" in command or "_paper.py" in command
    return "testbed verify" in command or ("scenarios/" in command and not simulated)


def argv_of(command: str) -> list[str]:
    words = command.split()
    if words[0] == ".venv/bin/testbed":
        return [sys.executable, "-m", "testbed.cli", *words[1:]]
    assert words[0] == ".venv/bin/python"
    return [sys.executable, *words[1:]]


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", [command for command in COMMANDS if not needs_a_testbed(command)])
def test_a_command_of_the_readme_runs(command: str) -> None:
    done = subprocess.run(argv_of(command), cwd=ROOT, capture_output=True, text=True, check=False)
    # `doctor` answers 1 where packets are impossible, which is what it is for.
    assert done.returncode in ((0, 1) if "doctor" in command else (0,)), done.stderr
    assert done.stdout.strip()


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in re.findall(r"^    make ([a-z ]+)", README, flags=re.MULTILINE):
        for target in line.split():
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_files_that_the_readme_links_to_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_has_no_placeholder_left() -> None:
    assert re.findall(r"^[A-Z]{4,}$", README, flags=re.MULTILINE) == []


def test_readme_and_changelog_name_every_framework() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in FRAMEWORKS if f"`{name}`" not in changelog] == []
    assert [name for name in FRAMEWORKS if f"`{name}`" not in README] == []


def test_the_framework_of_the_readme_loads(tmp_path: Path) -> None:
    match = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert match
    path = tmp_path / "mine.py"
    path.write_text(match.group(1))
    assert create(str(path)).name == "nearest"
