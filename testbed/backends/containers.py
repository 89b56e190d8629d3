"""The edge to the Docker Engine: reach it, make and remove the containers of a testbed, look at them.

A container is ours when it carries the mark that its testbed drew when it came up, and the ledger names it.  A name
alone proves nothing: somebody else may have made a container of that name.

The engine does the slow part of each call, so calls for several containers go out side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import LogConfig, Mount
from requests.exceptions import RequestException

from testbed.backends import engine
from testbed.errors import TestbedError

OWNER_LABEL = "edge-moe-testbed.owner"
#: How many calls the engine gets at once; starting a container is mostly waiting for the kernel.
AT_ONCE = 8
#: How long the engine may go on with a request whose sender is gone.
SETTLE_S = 0.5
#: Enough for an agent with all its threads; a program that forks without end stops here and not at the host's limit.
MOST_PROCESSES = 512
SCRATCH = "rw,nosuid,nodev,noexec,size=64m,mode=1777"
T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What of the host one container may use; None: as much as there is."""

    cpus: float | None = None  # processors; 0.5 is half the time of one
    memory_bytes: int | None = None  # of all its programs and of what they write to /tmp


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One container to be made."""

    name: str
    hostname: str
    image: str
    owner: str  # the mark of its testbed
    hosts: Path  # becomes /etc/hosts
    visible: Mapping[str, Path]  # path in the container -> path on the host; all read-only
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How a container is."""

    pid: int  # of its first process; 0 when it does not run
    out_of_memory: bool  # whether the limit ended one of its programs
    paused: bool  # whether somebody has frozen its programs


def connect() -> docker.APIClient:
    """A connection to the engine, for the caller to close; TestbedError with one line if none answers."""
    if why := engine.missing():
        raise TestbedError(why)
    with worded():
        return docker.APIClient(base_url=engine.url(), version="auto")


@contextmanager
def connected() -> Iterator[docker.APIClient]:
    """A connection for a block, in which what the engine refuses becomes a TestbedError."""
    with connect() as api, worded():
        yield api


@contextmanager
def worded() -> Iterator[None]:
    """Errors of the engine, as one line for the person in front of it."""
    try:
        yield
    except APIError as error:
        raise TestbedError(f"the Docker Engine refuses: {error.explanation or error}") from error
    except (DockerException, RequestException) as error:
        raise TestbedError(f"the Docker Engine does not answer as it should: {error}") from error


def has_image(api: docker.APIClient, name: str) -> bool:
    """Whether the engine has an image of that name."""
    try:
        api.inspect_image(name)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        return False
    return True


def check(api: docker.APIClient, limits: Mapping[str, Limits]) -> None:
    """TestbedError if this machine cannot give what the limits allow, or cannot hold somebody to them."""
    host = api.info()
    for node, wanted in limits.items():
        if wanted.cpus is not None and wanted.cpus > host["NCPU"]:
            raise TestbedError(f"{node}: {wanted.cpus:g} CPUs are more than this machine has ({host['NCPU']})")
        if wanted.cpus is not None and not host.get("CpuCfsQuota"):
            raise TestbedError(f"{node}: the kernel cannot limit CPU time (CONFIG_CFS_BANDWIDTH): leave its `cpus` out")
        if wanted.memory_bytes is not None and not host.get("MemoryLimit"):
            raise TestbedError(f"{node}: the kernel cannot limit memory (cgroup `memory`): leave its `ram` out")


def make(api: docker.APIClient, orders: Sequence[Order]) -> list[int]:
    """Create and start containers; the host's ids of their first processes."""
    return _side_by_side(lambda order: _make(api, order), orders)


def states(api: docker.APIClient, names: Sequence[str]) -> list[State | None]:
    """How the containers are; None for one that is not there."""
    return _side_by_side(lambda name: _state(api, name), names)


def remove(owners: Mapping[str, str]) -> None:
    """Remove the named containers that carry the given marks, running or not; others of the same name stay."""
    if not owners:
        return
    if why := engine.missing():
        raise TestbedError(f"the containers of this testbed cannot be removed: {why}; then type it again")
    with connected() as api:
        found = _remove_marked(api, owners)
        if found < len(owners):
            # Whoever was killed while bringing them up may have left the engine at work on a last one.
            time.sleep(SETTLE_S)
            _remove_marked(api, owners)


def _make(api: docker.APIClient, order: Order) -> int:
    limits = order.limits
    mounts = [_mount("/etc/hosts", order.hosts), *(_mount(there, here) for there, here in order.visible.items())]
    host_config = api.create_host_config(
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": SCRATCH},  # noqa: S108 - the container's own
        mounts=mounts,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=MOST_PROCESSES,
        nano_cpus=None if limits.cpus is None else round(1e9 * limits.cpus),
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,  # no swap besides
        log_config=LogConfig(type=LogConfig.types.NONE),
    )
    try:
        api.create_container(
            order.image,
            name=order.name,
            hostname=order.hostname,
            host_config=host_config,
            labels={OWNER_LABEL: order.owner},
        )
    except APIError as error:
        if error.status_code == 409:
            raise TestbedError(
                f"there is a container named {order.name} that this testbed did not make: look at it with "
                f"`docker inspect {order.name}`, and remove it if it is a forgotten one"
            ) from error
        raise
    api.start(order.name)
    state = _state(api, order.name)
    if state is None or not state.pid:
        raise TestbedError(f"the container {order.name} ended at once: does `docker run --rm {order.image} true` work?")
    return state.pid


def _mount(there: str, here: Path) -> Mount:
    mount = Mount(target=there, source=str(here), type="bind", read_only=True, propagation="rprivate")
    mount["BindOptions"]["NonRecursive"] = True  # what is mounted below would be writable
    return mount


def _state(api: docker.APIClient, name: str) -> State | None:
    try:
        found = api.inspect_container(name)["State"]
    except NotFound:
        return None
    return State(
        pid=int(found["Pid"]) if found["Running"] else 0,
        out_of_memory=bool(found["OOMKilled"]),
        paused=bool(found["Paused"]),
    )


def _remove_marked(api: docker.APIClient, owners: Mapping[str, str]) -> int:
    ours = [name for owner in set(owners.values()) for name in _marked(api, owner) if owners.get(name) == owner]
    _side_by_side(lambda name: _remove(api, name), ours)
    return len(ours)


def _marked(api: docker.APIClient, owner: str) -> list[str]:
    listed = api.containers(all=True, filters={"label": f"{OWNER_LABEL}={owner}"})
    return [name.removeprefix("/") for each in listed for name in each["Names"]]


def _remove(api: docker.APIClient, name: str) -> None:
    try:
        api.remove_container(name, force=True, v=True)
    except NotFound:
        return
    except APIError as error:
        if error.status_code != 409:  # somebody else's removal of it is in progress
            raise
        with suppress(NotFound):
            api.wait(name, condition="removed")


def _side_by_side(call: Callable[[Item], T], items: Iterable[Item]) -> list[T]:
    """The result of each call; the first error only once all calls have ended, so that nothing happens afterwards."""
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return [future.result() for future in [pool.submit(call, item) for item in items]]
