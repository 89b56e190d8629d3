"""What is particular to servers in containers: limits, privileges, what they see, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import zmq

from agents.codec import decode_report, encode_management
from agents.protocol import Ready, Stop
from testbed import capabilities, images
from testbed.backends import containers, engine
from testbed.backends.docker import SHARED, DockerBackend, DockerSandbox, Limits
from testbed.errors import TestbedError
from testbed.ledger import Ledger, all_names, ledger_of, locked
from testbed.network import Network, down
from testbed.topology import Topology
from testbed.wiring import wire
from tests.support.networks import QUICK, eventually, mesh, run_in, topology

ROOT = Path(__file__).parents[2]
MISSING = capabilities.missing_for("docker", "relay")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(MISSING), reason="; ".join(f"{each.name}: {each.detail}" for each in MISSING)),
]
MIB = 1 << 20
BRING_UP = """
import sys
from testbed.network import Network
from tests.support.networks import mesh
Network.up(mesh(4), name=sys.argv[1], backend="docker").close()
"""
ALLOCATE = "import sys; kept = bytearray(int(sys.argv[1])); kept[::4096] = b'x' * len(kept[::4096]); print(len(kept))"
SHARE = """
import time
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
print(time.process_time() / 1.5)
"""
FORK = """
import os, time
made = 0
try:
    while made < 2000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(made, flush=True)
os.kill(os.getpid(), 9)
"""
WRITE = """
import sys
for path in sys.argv[1:]:
    try:
        open(path + "/written", "w").close()
        print("yes")
    except OSError as error:
        print(type(error).__name__, error.errno)
"""


@pytest.fixture
def api() -> Iterator[docker.APIClient]:
    with containers.connected() as connected:
        yield connected


@pytest.fixture(autouse=True)
def nothing_is_left(run_root: Path, api: docker.APIClient) -> Iterator[None]:
    """Whatever a test does, afterwards there are no containers, mounts or run directories of it."""
    yield
    for name in all_names():
        down(name)
    marked = api.containers(all=True, filters={"label": containers.OWNER_LABEL})
    assert [each["Names"] for each in marked if each["Names"][0].startswith("/dk")] == []
    assert str(run_root) not in Path("/proc/mounts").read_text()
    assert list(run_root.iterdir()) == []


@contextlib.contextmanager
def alone(name: str, limits: Limits, *, visible: tuple[Path, ...] = ()) -> Iterator[tuple[Ledger, DockerSandbox]]:
    """One container without links."""
    single = Topology(name=name, nodes=topology(QUICK).nodes[:1], links=())
    ledger = ledger_of(name)
    with locked(ledger, create=True):
        ledger.record({"kind": "begin", "topology": name})
        backend = DockerBackend(ledger, single, limits={"s1": limits}, visible=visible)
        try:
            backend.create(wire(single, name))
            yield ledger, backend.sandbox(wire(single, name).node("s1"))
        finally:
            ledger.remove_everything()


def printed_by(sandbox: DockerSandbox, code: str, log: Path, *arguments: str) -> str:
    process = sandbox.popen([sys.executable, "-c", code, *arguments], log=log)
    assert process.wait(timeout=30) == 0, log.read_text()
    return log.read_text()


def main_process(api: docker.APIClient, network: Network, node: str) -> int:
    return int(api.inspect_container(container_of(network, node))["State"]["Pid"])


def container_of(network: Network, node: str) -> str:
    sandbox = network._sandbox(node)
    assert isinstance(sandbox, DockerSandbox)
    return sandbox.container


# ---- limits


def test_a_program_that_takes_more_memory_than_its_server_has_is_killed_alone(
    tmp_path: Path, api: docker.APIClient
) -> None:
    with alone("dk", Limits(memory_bytes=128 * MIB)) as (_, sandbox):
        small = sandbox.popen([sys.executable, "-c", ALLOCATE, str(32 * MIB)], log=tmp_path / "small")
        assert small.wait(timeout=30) == 0
        large = sandbox.popen([sys.executable, "-c", ALLOCATE, str(256 * MIB)], log=tmp_path / "large")
        assert large.wait(timeout=30) == -signal.SIGKILL
        state = containers.states(api, [sandbox.container])[0]
        assert state is not None
        assert state.pid


def test_a_busy_program_gets_the_share_of_a_processor_that_its_server_has(tmp_path: Path) -> None:
    with alone("dk", Limits(cpus=0.25)) as (_, sandbox):
        share = float(printed_by(sandbox, SHARE, tmp_path / "log"))

    # One period's worth on top; other work on the machine can only take time away.
    assert 0.02 < share < 0.25 + 0.1


def test_a_program_that_forks_without_end_is_stopped_by_its_container(tmp_path: Path) -> None:
    with alone("dk", Limits()) as (_, sandbox):
        process = sandbox.popen([sys.executable, "-c", FORK], log=tmp_path / "log")
        assert process.wait(timeout=30) == -signal.SIGKILL

    assert containers.MOST_PROCESSES - 10 < int((tmp_path / "log").read_text()) < containers.MOST_PROCESSES


def test_a_limit_beyond_the_machine_is_refused_before_anything_is_made(run_root: Path) -> None:
    words = r"^s1: 1000 CPUs are more than this machine has \(\d+\)$"
    with pytest.raises(TestbedError, match=words), alone("dk", Limits(cpus=1000)):
        pass


# ---- privileges and what a server sees


def test_a_container_is_granted_nothing(tmp_path: Path, api: docker.APIClient) -> None:
    with alone("dk", Limits()) as (_, sandbox):
        host_config = api.inspect_container(sandbox.container)["HostConfig"]
        code = "import os; print(os.getuid(), os.getgid(), *open('/proc/self/status'))"
        lines = printed_by(sandbox, code, tmp_path / "log").splitlines()

    assert host_config["NetworkMode"] == "none"
    assert not host_config["Privileged"]
    assert host_config["ReadonlyRootfs"]
    assert (host_config["CapAdd"], host_config["CapDrop"]) == (None, ["ALL"])
    assert host_config["SecurityOpt"] == ["no-new-privileges"]
    assert not host_config["Devices"]
    assert lines[0].startswith(f"{images.USER_ID} {images.USER_ID} ")
    assert any(line.strip().startswith("Seccomp:\t2") for line in lines)


def test_only_the_scratch_directory_can_be_written_to(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    seen.chmod(0o777)
    places = ["/", "/etc", "/opt/testbed/code/agents", str(seen), "/tmp"]  # noqa: S108
    with alone("dk", Limits(), visible=(seen,)) as (_, sandbox):
        answers = printed_by(sandbox, WRITE, tmp_path / "log", *places).splitlines()

    assert answers == ["OSError 30"] * 4 + ["yes"]  # read-only file system
    assert list(seen.iterdir()) == []


def test_a_server_sees_what_was_made_visible_at_the_same_path_and_no_more(tmp_path: Path) -> None:
    seen, hidden = tmp_path / "seen", tmp_path / "hidden"
    for directory in (seen, hidden):
        directory.mkdir()
        (directory / "framework.py").write_text("answer = 42")
    code = "import os, sys; print(*(os.path.exists(path) for path in sys.argv[1:]))"
    with alone("dk", Limits(), visible=(seen,)) as (ledger, sandbox):
        asked = [
            str(seen / "framework.py"),
            str(hidden),
            str(ledger.directory / "ledger.jsonl"),
            engine.DEFAULT_SOCKET,
        ]
        answers = printed_by(sandbox, code, tmp_path / "log", *asked)

    assert answers.split() == ["True", "False", "False", "False"]


def test_a_strict_umask_hides_nothing_that_programs_need(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with alone("dk", Limits()) as (ledger, sandbox):
            code = "import os, socket, sys; print(socket.gethostbyname('s1'), os.access(sys.argv[1], os.X_OK))"
            answers = printed_by(sandbox, code, tmp_path / "log", str(ledger.directory / SHARED))
    finally:
        os.umask(before)

    assert answers.split() == ["10.0.0.1", "True"]


def test_the_environment_is_the_one_given_or_the_containers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    code = "import os; print(sorted(os.environ))"
    with alone("dk", Limits()) as (_, sandbox):
        given = sandbox.popen([sys.executable, "-c", code], log=tmp_path / "given", env={"ONLY": "this"})
        own = sandbox.popen([sys.executable, "-c", code], log=tmp_path / "own")
        assert (given.wait(timeout=30), own.wait(timeout=30)) == (0, 0)

    assert set(eval_list(tmp_path / "given")) - {"LC_CTYPE"} == {"ONLY"}  # Python's own, where the locale is C
    assert "PATH" in eval_list(tmp_path / "own")
    assert "SECRET_OF_THE_HOST" not in eval_list(tmp_path / "own")


def eval_list(log: Path) -> list[str]:
    return [word.strip("'[],\n") for word in log.read_text().split()]


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker: no command of that name")
def test_a_person_enters_a_server_with_the_engines_own_command(tmp_path: Path) -> None:
    with alone("dk", Limits()) as (_, sandbox):
        code = "import os, sys; print(os.getuid(), open('/etc/hostname').read())"
        entered = subprocess.run(
            sandbox.command([sys.executable, "-c", code]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )

    assert entered.stdout.split() == [str(images.USER_ID), "s1"]


# ---- programs


def test_output_and_exit_code_of_many_short_programs_are_complete(tmp_path: Path) -> None:
    with alone("dk", Limits()) as (_, sandbox):
        before = descriptors()
        for number in range(10):
            process = sandbox.popen(["sh", "-c", f"echo {number}; exit {number}"], log=tmp_path / "log")
            assert process.wait(timeout=10) == number
            assert process.poll() == number
        assert descriptors() == before

    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(10)]


def test_a_program_is_killed_and_waited_for_from_the_host(tmp_path: Path) -> None:
    with alone("dk", Limits()) as (_, sandbox):
        process = sandbox.popen(["sleep", "60"], log=tmp_path / "log")
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
        assert Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n"
        process.kill()
        assert process.wait(timeout=10) == -signal.SIGKILL
        process.kill()  # for nothing, and for no other


def test_a_server_that_is_gone_takes_no_program_and_says_so(tmp_path: Path, api: docker.APIClient) -> None:
    with alone("dk", Limits()) as (_, sandbox):
        running = sandbox.popen(["sleep", "60"], log=tmp_path / "log")
        api.remove_container(sandbox.container, force=True)
        assert running.wait(timeout=10) == -signal.SIGKILL
        with pytest.raises(TestbedError, match=r"takes no program: .*No such container.*type `testbed status`"):
            sandbox.popen(["true"], log=tmp_path / "log")


def test_an_agent_in_a_container_reports_to_the_orchestrator(tmp_path: Path) -> None:
    model = ROOT / "agents" / "models" / "mixtral-8x7b-twin"
    with Network.up(topology(QUICK), name="dk", backend="docker") as network, zmq.Context() as context:
        path = network.directory / SHARED / "management.sock"
        with context.socket(zmq.ROUTER) as router:
            router.bind(f"ipc://{path}")
            path.chmod(0o777)  # the directories above are closed to everybody else on the host
            argv = [sys.executable, "-m", "agents.main", "--server", "s1"]
            argv += ["--management", f"ipc://{path}", "--model", str(model)]
            agent = network.popen("s1", argv, log=tmp_path / "log", env={"LANG": "C.UTF-8"})
            assert router.poll(30_000), (tmp_path / "log").read_text()
            name, report = router.recv_multipart()
            assert (name, decode_report(report)) == (b"s1", Ready(server="s1"))
            router.send_multipart([name, encode_management(Stop())])
            assert agent.wait(timeout=10) == 0, (tmp_path / "log").read_text()


# ---- losing and removing containers


def test_a_killed_container_is_named_and_comes_back_with_its_links(tmp_path: Path, api: docker.APIClient) -> None:
    with Network.up(mesh(3), name="dk", backend="docker") as network:
        os.kill(main_process(api, network, "s2"), signal.SIGKILL)
        assert eventually(lambda: network.status().broken == ("the container of s2 has ended",))
        network.restart("s2")

        assert network.status().broken == ()
        reach = "import socket; socket.create_server(('s2', 7000)); print('bound')"
        assert run_in(network, "s2", reach, tmp_path / "bound") == "bound\n"
        pinged = network.popen("s1", ["ping", "-c", "1", "-W", "2", "s2"], log=tmp_path / "ping", env={"PATH": "/bin"})
        assert pinged.wait(timeout=10) == 0, (tmp_path / "ping").read_text()


def test_a_container_removed_or_restarted_by_hand_is_named_and_comes_back(api: docker.APIClient) -> None:
    with Network.up(mesh(3), name="dk", backend="docker") as network:
        api.remove_container(container_of(network, "s1"), force=True)
        api.restart(container_of(network, "s3"), timeout=0)
        assert network.status().broken == (
            "the container of s1 is gone",
            "the container of s3 was started anew by somebody else: no link is plugged into it",
        )
        network.restart("s1")
        network.restart("s3")
        assert network.status().broken == ()


def test_a_paused_container_is_named_and_comes_back(api: docker.APIClient) -> None:
    with Network.up(mesh(2), name="lab", backend="docker") as network:
        api.pause(container_of(network, "s1"))
        assert network.status().broken == ("the container of s1 is paused",)
        network.restart("s1")

        assert network.status().up


def test_down_removes_a_testbed_with_a_paused_container(tmp_path: Path, api: docker.APIClient) -> None:
    network = Network.up(mesh(2), name="lab", backend="docker")
    network.popen("s1", ["sleep", "100"], log=tmp_path / "log")
    api.pause(container_of(network, "s1"))
    network.down()

    assert all_names() == []


def test_a_restart_without_an_engine_leaves_running_programs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Network.up(mesh(2), name="lab", backend="docker") as network:
        program = network.popen("s1", ["sleep", "100"], log=tmp_path / "log")
        with monkeypatch.context() as patch:
            patch.setenv(engine.HOST_VARIABLE, f"unix://{tmp_path}/none.sock")
            with pytest.raises(TestbedError, match="no Docker Engine is running"):
                network.restart("s1")

        assert program.poll() is None


def test_down_removes_the_containers_of_its_testbed_and_no_other(
    monkeypatch: pytest.MonkeyPatch, run_root: Path, api: docker.APIClient
) -> None:
    Network.up(mesh(2), name="dk-a", backend="docker").close()
    monkeypatch.setenv("TESTBED_RUN_DIR", str(run_root / "other"))
    other = Network.up(mesh(2), name="dk-a", backend="docker")  # the same names, in another run directory
    monkeypatch.setenv("TESTBED_RUN_DIR", str(run_root))
    (owner,) = {str(entry["owner"]) for entry in ledger_of("dk-a").entries("container")}
    assert down("dk-a")

    assert api.containers(all=True, filters={"label": f"{containers.OWNER_LABEL}={owner}"}) == []
    assert other.status().broken == ()
    monkeypatch.setenv("TESTBED_RUN_DIR", str(run_root / "other"))
    other.down()
    (run_root / "other").rmdir()


def test_a_foreign_container_of_our_name_is_refused_and_left_alone(run_root: Path, api: docker.APIClient) -> None:
    name = DockerBackend(ledger_of("dk"), mesh(2)).sandbox(wire(mesh(2), "dk").node("s1")).container
    api.create_container(images.recipe().image, name=name)
    try:
        with pytest.raises(TestbedError, match=f"there is a container named {name} that this testbed did not make"):
            Network.up(mesh(2), name="dk", backend="docker")
        assert containers.states(api, [name]) != [None]
    finally:
        api.remove_container(name)


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.2, 0.4, 0.8])
def test_a_kill_in_the_middle_of_up_leaves_what_down_removes(after_s: float, run_root: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", BRING_UP, "dk"], cwd=ROOT)
    assert eventually(lambda: bool(ledger_of("dk").entries("container")) or process.poll() is not None, 20)
    time.sleep(after_s)
    process.kill()
    process.wait()

    assert down("dk")


def test_many_cycles_keep_descriptors_and_threads() -> None:
    Network.up(mesh(2), name="dk", backend="docker").down()
    before = descriptors()
    for _ in range(4):
        Network.up(mesh(2), name="dk", backend="docker").down()

    assert descriptors() == before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
