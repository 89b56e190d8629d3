"""What a testbed owns is written down first, and nothing else is ever removed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from testbed import ledger as module
from testbed.errors import TestbedError
from testbed.ledger import LEDGER, Ledger, all_names, ledger_of, locked

SLEEP = [sys.executable, "-c", "import time; time.sleep(100)"]


def made(name: str = "lab") -> Ledger:
    ledger = ledger_of(name)
    with locked(ledger, create=True):
        ledger.record({"kind": "begin"})
    return ledger


def test_entries_come_back_in_order_and_by_kind(run_root: Path) -> None:
    ledger = made()
    ledger.record({"kind": "netns", "path": "/a"}, {"kind": "netns", "path": "/b"})
    ledger.record({"kind": "up"})

    assert [entry["kind"] for entry in ledger.entries()] == ["begin", "netns", "netns", "up"]
    assert [entry["path"] for entry in ledger.entries("netns")] == ["/a", "/b"]
    assert ledger.complete


def test_a_line_cut_short_by_a_crash_is_not_an_entry(run_root: Path) -> None:
    ledger = made()
    with (ledger.directory / LEDGER).open("a") as file:
        file.write('{"kind": "netns", "pa')

    assert [entry["kind"] for entry in ledger.entries()] == ["begin"]
    ledger.remove_everything()


def test_an_entry_is_on_disk_before_record_returns(run_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    made()

    assert len(synced) == 1


def test_the_run_directory_is_private(run_root: Path) -> None:
    ledger = made()

    assert ledger.directory.stat().st_mode & 0o777 == 0o700
    assert (ledger.directory / LEDGER).stat().st_mode & 0o777 == 0o600


def test_everything_is_removed_and_the_ledger_last(run_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = made()
    (ledger.directory / "netns").mkdir()
    (ledger.directory / "zz.log").write_text("x")
    removed: list[str] = []
    unlink = Path.unlink

    def noted(path: Path, *, missing_ok: bool = False) -> None:
        removed.append(path.name)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    ledger.remove_everything()

    assert removed[-1] == LEDGER
    assert list(run_root.iterdir()) == []


def test_a_link_in_the_run_directory_is_removed_and_its_target_kept(run_root: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    ledger = made()
    (ledger.directory / "link").symlink_to(tmp_path)
    ledger.remove_everything()

    assert (tmp_path / "precious").read_text() == "x"


def test_recorded_processes_are_ended(run_root: Path) -> None:
    ledger = made()
    process = subprocess.Popen(SLEEP)
    ledger.record_process("process", process.pid)
    ledger.remove_everything()

    assert process.wait(timeout=5) == -signal.SIGKILL


def test_a_process_that_got_the_id_of_an_old_one_is_left_alone(run_root: Path) -> None:
    ledger = made()
    process = subprocess.Popen(SLEEP)
    ledger.record({"kind": "process", "pid": process.pid, "started": 12345})
    ledger.remove_everything()

    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_process_that_has_ended_is_not_alive_even_before_it_is_waited_for(run_root: Path) -> None:
    ledger = made()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ledger.record_process("process", process.pid)
    (owned,) = ledger.processes("process")
    assert owned.alive()
    process.communicate(b"\n")

    assert not owned.alive()


def test_a_second_command_is_told_to_wait(run_root: Path) -> None:
    ledger = made()
    with (
        locked(ledger, create=True),
        pytest.raises(TestbedError, match="testbed 'lab' is being brought up or down by another command"),
        locked(ledger_of("lab"), create=False),
    ):
        pass
    with locked(ledger, create=False) as exists:
        assert exists


def test_a_lock_won_on_a_directory_that_was_removed_meanwhile_is_not_used(
    run_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = made()
    flock = module.fcntl.flock
    turns = iter([lambda: ledger.remove_everything(), lambda: None])

    def lock(fd: int, how: int) -> None:
        flock(fd, how)
        next(turns)()

    monkeypatch.setattr(module.fcntl, "flock", lock)
    with locked(ledger, create=True):
        ledger.record({"kind": "begin"})
        assert (ledger.directory / LEDGER).exists()


def test_no_directory_means_no_testbed(run_root: Path) -> None:
    with locked(ledger_of("lab"), create=False) as exists:
        assert not exists
    assert all_names() == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "Lab", "a" * 41, "a b", ".hidden"])
def test_a_name_that_could_be_a_path_is_refused(run_root: Path, name: str) -> None:
    with pytest.raises(TestbedError, match="cannot name a testbed"):
        ledger_of(name)


def test_a_parent_too_deep_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_RUN_DIR", "/x" * 45)
    with pytest.raises(TestbedError, match="too long for sockets"):
        ledger_of("lab")


def test_a_parent_that_is_a_link_is_refused(run_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_root / "link").symlink_to(tmp_path)
    monkeypatch.setenv("TESTBED_RUN_DIR", str(run_root / "link"))
    with pytest.raises(TestbedError, match="is not a directory"), locked(ledger_of("lab"), create=True):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_is_a_link_is_refused(run_root: Path, tmp_path: Path) -> None:
    (run_root / "lab").symlink_to(tmp_path)
    with pytest.raises(TestbedError, match="not a directory of ours"), locked(ledger_of("lab"), create=True):
        pass


def test_a_directory_of_another_user_is_refused(run_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TestbedError, match=rf"belongs to user {os.getuid()}"), locked(ledger_of("lab"), create=True):
        pass


def test_a_directory_with_files_of_somebody_else_is_refused(run_root: Path) -> None:
    (run_root / "lab").mkdir()
    (run_root / "lab" / "thesis.tex").write_text("x")
    with pytest.raises(TestbedError, match="holds files of somebody else"), locked(ledger_of("lab"), create=False):
        pass
    assert all_names() == []


def test_an_empty_directory_left_by_a_crash_can_be_used_and_removed(run_root: Path) -> None:
    (run_root / "lab").mkdir(mode=0o700)
    ledger = made()
    ledger.remove_everything()

    assert list(run_root.iterdir()) == []


def test_a_directory_that_others_may_enter_is_refused(run_root: Path) -> None:
    (run_root / "open").mkdir(mode=0o700)
    (run_root / "open").chmod(0o755)
    with pytest.raises(TestbedError, match="open to other users"), locked(ledger_of("open"), create=True):
        pass


def test_a_damaged_ledger_leads_to_nothing_outside_of_its_directory(run_root: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    ledger = made()
    with (ledger.directory / LEDGER).open("ab") as file:
        file.write(b'\xff\n[1]\n5\n{}\n{"kind": "netns", "path": "%s"}\n' % bytes(tmp_path / "precious"))
    ledger.remove_everything()

    assert (tmp_path / "precious").read_text() == "x"
    assert list(run_root.iterdir()) == []


def test_an_entry_that_does_not_fit_on_the_disk_leaves_no_half_line(
    run_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = made()
    write, room = os.write, [5, 0]

    def nearly_full(fd: int, data: bytes) -> int:
        fits = room.pop(0)
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:fits])

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(OSError, match="No space left"):
        ledger.record({"kind": "lost"})
    monkeypatch.setattr(os, "write", write)
    ledger.record({"kind": "kept"})

    assert [entry["kind"] for entry in ledger.entries()] == ["begin", "kept"]


def test_a_full_disk_is_one_line_that_names_the_directory(run_root: Path) -> None:
    ledger = ledger_of("lab")
    with pytest.raises(TestbedError, match="lab cannot be written: No space left"), locked(ledger, create=True):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_recorded_is_found_again_from_another_directory(
    run_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_root)
    monkeypatch.setenv("TESTBED_RUN_DIR", "here")

    assert ledger_of("lab").directory == run_root / "here" / "lab"


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_run_directory_that_cannot_be_is_one_line(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="tb-", dir="/tmp") as directory:
        (Path(directory) / "file").write_text("x")
        monkeypatch.setenv("TESTBED_RUN_DIR", f"{directory}/{place}")
        with pytest.raises(TestbedError, match="set TESTBED_RUN_DIR"), locked(ledger_of("lab"), create=True):
            pass
        with pytest.raises(TestbedError, match=r"Not a directory: "):
            all_names()
        assert ledger_of("lab").entries() == []
