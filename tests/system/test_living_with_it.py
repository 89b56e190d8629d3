"""The commands for a testbed that is up, as a person types them."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.backends.kernel import unmount
from testbed.ledger import all_names, ledger_of
from testbed.network import Network, down
from testbed.topology import Direction
from tests.support.networks import QUICK, eventually, mesh, topology

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def all_down(run_root: Path) -> Iterator[None]:
    yield
    for name in all_names():
        down(name)


def typed(*arguments: str, code: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "testbed.cli", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def bring_up(name: str = "live", size: int = 3) -> None:
    Network.up(mesh(size, QUICK), name=name).close()


def test_set_changes_what_it_names_in_both_directions_or_one() -> None:
    bring_up()
    typed("set", "s2-s1", "delay=9ms")
    typed("set", "s1-s2", "loss=2%", "--from", "s2")
    network = Network.attach()
    shaping = network.shaping()
    network.close()

    assert shaping["s1-s2", "s1"] == Direction(rate_bps=1e9, delay_s=0.009)
    assert shaping["s1-s2", "s2"] == Direction(rate_bps=1e9, delay_s=0.009, loss=0.02)
    assert shaping["s1-s3", "s1"] == QUICK


def test_a_change_that_cannot_be_read_changes_nothing() -> None:
    bring_up()
    printed = typed("set", "s1-s2", "delay=9ms", "rate=fast", code=2)
    network = Network.attach()
    assert network.shaping()["s1-s2", "s1"] == QUICK
    network.close()
    assert "fast" in printed


def test_status_as_json_holds_what_a_script_needs() -> None:
    bring_up()
    typed("set", "s1-s2", "rate=50Mbit/s", "--from", "s1")
    found = json.loads(typed("status", "--json"))

    assert (found["up"], found["backend"], found["engines"]) == (True, "netns", {"relay": 3})
    assert found["changed"] == ["s1-s2 from s1"]
    assert found["directions"][0]["applied"]["rate_bps"] == 5e7
    assert found["directions"][0]["engine"] == "relay"
    assert {"p50_s", "p99_s", "buckets", "bucket_s"} <= set(found["lateness"])


def test_verify_stores_what_it_measured_and_tells_by_its_exit_code(tmp_path: Path) -> None:
    bring_up(size=2)
    printed = typed("verify", "-o", str(tmp_path / "v.json"))
    stored = json.loads((ledger_of("live").directory / "verify.json").read_text())

    assert "2 of 2 directions and 1 of 1 pairs are within their bounds" in printed
    assert stored == json.loads((tmp_path / "v.json").read_text())
    assert {link["oneway"]["mtu_bytes"] for link in stored["links"]} == {1500}


def test_capture_writes_a_file_that_holds_the_packets_of_the_link(tmp_path: Path) -> None:
    bring_up(size=2)
    file = tmp_path / "link.pcap"
    capture = subprocess.Popen(
        [sys.executable, "-m", "testbed.cli", "capture", "s1-s2", "-o", str(file), "--packets", "4"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert eventually(lambda: file.exists() and file.stat().st_size >= 24, 20)
    code = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for number in range(4):
        sock.sendto(bytes([number] * 9), ('s2', 9))
"""
    typed("exec", "s1", "--", sys.executable, "-c", code)
    _, err = capture.communicate(timeout=20)
    data = file.read_bytes()
    magic, _, _, _, _, _, linktype = struct.unpack_from("=IHHiIII", data)
    _, _, kept, size = struct.unpack_from("=IIII", data, 24)

    assert (capture.returncode, "4 packets" in err) == (0, True)
    assert (magic, linktype) == (0xA1B23C4D, 101)
    assert kept == size == 20 + 8 + 9
    assert data[40] >> 4 == 4  # IP
    assert data[24 + 16 + 12 :][:4] == bytes([10, 0, 0, 1])


def test_capture_refuses_to_replace_a_file_and_names_a_missing_link(tmp_path: Path) -> None:
    bring_up(size=2)
    (tmp_path / "there.pcap").touch()

    assert "exists" in typed("capture", "s1-s2", "-o", str(tmp_path / "there.pcap"), code=2)
    assert "no link 's1-s9'; it has s1-s2" in typed("capture", "s1-s9", "-o", str(tmp_path / "x.pcap"), code=2)
    assert not (tmp_path / "x.pcap").exists()


def test_exec_gives_the_exit_code_and_a_shell_runs_on_the_node() -> None:
    bring_up(size=2)
    typed("exec", "s1", "--", "sh", "-c", "exit 7", code=7)
    ended = subprocess.run(
        [sys.executable, "-m", "testbed.cli", "shell", "s2"],
        input="cat /proc/net/fib_trie | grep -c 10.0.0.2; exit 3\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert ended.returncode == 3
    assert int(ended.stdout.strip().splitlines()[-1]) > 0


def test_logs_print_the_last_lines_of_an_agent(tmp_path: Path) -> None:
    bring_up(size=2)
    network = Network.attach()
    log = network.log_of("s1")
    log.parent.mkdir(exist_ok=True)
    network.popen("s1", [sys.executable, "-c", "print(*range(50), sep='\\n')"], log=log).wait(timeout=20)
    network.close()

    assert typed("logs", "s1", "-n", "3").splitlines() == ["47", "48", "49"]
    assert "nothing has been started on s2" in typed("logs", "s2", code=2)
    assert "no node 's9'" in typed("logs", "s9", code=2)


def test_restart_mends_what_is_broken_and_says_so() -> None:
    bring_up()
    relay = ledger_of("live").processes("relay")[0]
    os.kill(relay.pid, signal.SIGKILL)
    assert eventually(lambda: not relay.alive())
    assert "the relay process is gone" in typed("status", code=1)

    assert "restarted" in typed("restart")
    assert "up, 3 sandboxes" in typed("status")
    assert "nothing is broken" in typed("restart")
    knock = "import socket; socket.create_connection(('s2', 9), 3)"
    assert "ConnectionRefusedError" in typed("exec", "s1", "--", sys.executable, "-c", knock, code=1)  # s2 answers
    typed("verify")


def test_programs_on_a_restarted_node_end_and_others_go_on(tmp_path: Path) -> None:
    bring_up()
    network = Network.attach()
    sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
    there, elsewhere = (network.popen(node, sleep, log=tmp_path / node) for node in ("s1", "s2"))
    assert eventually(lambda: os.path.samefile(f"/proc/{there.pid}/ns/net", network.netns("s1")))
    typed("restart", "s1")

    assert there.wait(timeout=5) == -signal.SIGKILL
    assert elsewhere.poll() is None
    network.down()
    assert elsewhere.wait(timeout=5) == -signal.SIGKILL


def test_testbeds_side_by_side_are_told_apart_by_name() -> None:
    bring_up("left", 2)
    bring_up("right", 2)
    assert typed("list").split() == ["left", "right"]
    assert "choose one with --name" in typed("status", code=2)
    typed("set", "s1-s2", "delay=3.5ms", "--name", "right")
    assert "3.5 ms" in typed("status", "--name", "right")
    assert "3.5 ms" not in typed("status", "--name", "left")
    assert "removed left, right" in typed("down", "--all")
    assert all_names() == []


def test_status_names_the_engine_of_every_link() -> None:
    Network.up(topology(QUICK), name="live", shaper="relay").close()
    rows = [line for line in typed("status").splitlines() if "→" in line]

    assert len(rows) == 2
    assert all("relay" in row for row in rows)


def test_exec_tells_a_program_that_a_signal_ended_as_a_shell_would() -> None:
    bring_up(size=2)
    typed("exec", "s1", "--", "sh", "-c", "kill -9 $$", code=128 + signal.SIGKILL)


def test_verify_and_capture_of_a_broken_testbed_are_one_line_that_says_what_to_type(tmp_path: Path) -> None:
    bring_up(size=2)
    network = Network.attach()
    unmount(network.netns("s1"))
    network.close()

    said = (
        "testbed 'live' is broken or was changed meanwhile (setns: Invalid argument): type `testbed status --name live`"
    )
    assert typed("verify", code=2).strip() == said
    printed = typed("capture", "s1-s2", "-o", str(tmp_path / "x.pcap"), code=2)
    assert printed.splitlines()[-1] == said


def test_what_cannot_be_printed_or_written_for_want_of_room_is_one_line() -> None:
    for arguments in (["schema"], ["generate", "--servers", "5", "-o", "/dev/full", "--force"]):
        with Path("/dev/full").open("w") as full:
            ended = subprocess.run(
                [sys.executable, "-m", "testbed.cli", *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        assert ended.returncode == 2
        assert ended.stderr.count("\n") == 1
        assert ended.stderr.endswith("cannot be written: No space left on device\n")
