"""What the subcommands of ``testbed`` share, and what needs no testbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import units
from testbed.commands.common import Columns, new_file, print_table, quantity
from testbed.commands.nodes import _whole_lines
from testbed.errors import TestbedError

COLUMNS: Columns[tuple[str, str]] = (
    ("link", lambda row: row[0]),
    ("dropped", lambda row: row[1]),
    ("engine", lambda row: "relay"),
)


def test_a_column_that_says_nothing_in_any_row_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [("s1-s2", ""), ("s2-s1", "")])
    print_table(COLUMNS, [("s1-s2", ""), ("s2-s1", "3 loss")])
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]

    assert printed[0] == ["link", "engine"]
    assert printed[3] == ["link", "dropped", "engine"]
    assert printed[5] == ["s2-s1", "3", "loss", "relay"]


def test_names_of_files_are_printed_as_they_are_and_not_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [("follows [red]x[/red].steps", "")])

    assert "follows [red]x[/red].steps" in capsys.readouterr().out


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("old")

    with pytest.raises(TestbedError, match="exists: choose another name, or replace it with --force"):
        new_file(there, force=False).__enter__()
    assert there.read_text() == "old"
    with new_file(there, force=True) as file:
        file.write(b"new")
    assert there.read_text() == "new"


def test_a_wrong_quantity_is_refused_with_the_option_it_was_given_to() -> None:
    assert quantity("--duration", "10s", units.seconds) == 10.0
    with pytest.raises(TestbedError, match=r"^--duration: .*10"):
        quantity("--duration", "10", units.seconds)


def test_a_followed_log_shows_a_line_once_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "s1.log"
    log.write_bytes(b"first\nsec")
    with log.open("rb") as file, log.open("ab") as agent:
        assert list(_whole_lines(file)) == ["first\n"]
        agent.write(b"ond\n")
        agent.flush()
        assert list(_whole_lines(file)) == ["second\n"]
        assert list(_whole_lines(file)) == []
