"""The command line without a network: one message and exit code 2 for what the user can mend."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from testbed import capabilities, cli

SMALL = "topologies/small3.yaml"


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["testbed", *arguments])
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), printed.out, printed.err


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_root: Path):
    return lambda *arguments: run(monkeypatch, capsys, *arguments)


@pytest.fixture
def plain_user(monkeypatch: pytest.MonkeyPatch):
    capabilities.root.cache_clear()
    monkeypatch.setattr(capabilities.os, "geteuid", lambda: 1000)
    yield
    capabilities.root.cache_clear()


def test_without_root_up_says_what_is_missing_and_makes_nothing(call, plain_user, run_root: Path) -> None:
    code, _, err = call("up", SMALL)

    assert code == 2
    assert err.count("\n") == 1
    assert err.startswith("root is missing (user 1000): type it again with `sudo`")
    assert list(run_root.iterdir()) == []


def test_a_broken_file_is_refused_before_anything_is_made(call, tmp_path: Path, run_root: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\nnodez: []\n")
    code, _, err = call("up", str(tmp_path / "bad.yaml"))

    assert code == 2
    assert "bad.yaml:2:1: nodez: unknown key; did you mean 'nodes'?" in err
    assert "Traceback" not in err
    assert list(run_root.iterdir()) == []


@pytest.mark.parametrize("command", [("status",), ("verify",), ("exec", "s1", "--", "true")])
def test_without_a_testbed_commands_say_what_to_type(call, command: tuple[str, ...]) -> None:
    assert call(*command) == (2, "", "no testbed is up: type `make testbed up` first\n")


def test_down_without_a_testbed_is_no_error(call) -> None:
    assert call("down") == (0, "nothing to remove: no testbed is up\n", "")


def test_down_of_a_testbed_that_is_not_there_names_it(call) -> None:
    assert call("down", "--name", "lab") == (0, "nothing to remove: there is no testbed 'lab'\n", "")


@pytest.mark.parametrize("command", [("status",), ("verify",), ("down",)])
def test_an_empty_name_is_not_taken_for_no_name(call, command: tuple[str, ...]) -> None:
    code, _, err = call(*command, "--name", "")
    assert (code, err.split(":")[0]) == (2, "'' cannot name a testbed")


def test_a_name_that_is_no_name_is_refused(call) -> None:
    code, _, err = call("down", "--name", "../etc")
    assert (code, err.split(":")[0]) == (2, "'../etc' cannot name a testbed")


def test_check_prints_the_resolved_topology(call) -> None:
    code, out, _ = call("check", SMALL)
    assert code == 0
    assert "s1" in out


def test_schema_prints_json(call) -> None:
    code, out, _ = call("schema")
    assert code == 0
    assert json.loads(out)["type"] == "object"


def test_doctor_names_every_capability(call) -> None:
    _, out, _ = call("doctor")
    assert all(each.name in out for each in capabilities.probe())


def test_an_unknown_command_is_refused(call) -> None:
    code, _, err = call("upp")
    assert code == 2
    assert "upp" in err


def test_a_generated_topology_is_printed_and_names_the_command_that_prints_it(call) -> None:
    code, out, err = call("generate", "--servers", "20", "--seed", "4")
    named = next(line for line in out.splitlines() if "testbed generate" in line).split()

    assert (code, err) == (0, "")
    assert call(*named[2:]) == (0, out, "")
    assert "\nname: edge20-4\n" in out


def test_a_generated_topology_is_written_and_replaces_a_file_only_on_demand(call, tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    twenty = ("generate", "--servers", "20", "-o", str(file))

    assert call(*twenty)[0] == 0
    first = file.read_text("utf-8")
    code, out, err = call(*twenty, "--seed", "9")
    assert (code, out, err) == (2, "", f"{file} exists: choose another name, or replace it with --force\n")
    assert file.read_text("utf-8") == first
    assert call(*twenty, "--seed", "9", "--force")[0] == 0
    assert file.read_text("utf-8") != first
    assert call("check", str(file))[0] == 0


def test_a_topology_that_cannot_be_made_or_written_is_one_message(call, tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "big.yaml"

    assert call("generate", "--servers", "1") == (2, "", "1 servers: generate makes 2 to 5000\n")
    assert call("generate", "--servers", "9", "-o", str(absent)) == (
        2,
        "",
        f"{absent} cannot be written: No such file or directory\n",
    )


def test_the_documented_ways_to_generate_work(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs/topology-files.md").read_text("utf-8")
    commands = [line.split("#")[0].split() for line in text.splitlines() if line.startswith("    testbed generate")]
    monkeypatch.chdir(tmp_path)

    assert len(commands) == 2
    assert [call(*command[1:])[0] for command in commands] == [0, 0]
    assert (tmp_path / "big.yaml").exists()
