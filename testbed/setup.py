"""How a testbed was brought up: what every process that attaches to it later must know."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from testbed.errors import TestbedError
from testbed.ledger import Ledger
from testbed.topology import Engine, Topology

BackendName = Literal["netns", "docker", "mininet"]
BACKENDS: tuple[BackendName, ...] = ("netns", "docker", "mininet")
FILE = "setup.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The choices of one ``up``."""

    topology: Topology
    backend: BackendName
    engines: dict[str, Engine]  # of every link, in file order
    seed: int  # of chances
    initial_window: int  # packets that TCP may send at first
    visible: tuple[str, ...] = ()  # paths of the host that programs in sandboxes read
    relay_of: dict[str, int] = field(default_factory=dict)  # number of the relay of a link; not named: 1

    @property
    def carried(self) -> dict[int, list[str]]:
        """The links of every relay process, by its number."""
        found: dict[int, list[str]] = {}
        for link, engine in self.engines.items():
            if engine == "relay":
                found.setdefault(self.relay_of.get(link, 1), []).append(link)
        return dict(sorted(found.items()))

    def write(self, directory: Path) -> None:
        """Keep it in the run directory."""
        (directory / FILE).write_bytes(msgspec.json.encode(self))


def setup_of(ledger: Ledger) -> Setup:
    """What was chosen when this testbed was brought up; TestbedError if it is half up, or of another version."""
    if not ledger.complete:
        half = "half up: type `make down`, then" if ledger.entries() else "not up: type"
        raise TestbedError(f"testbed {ledger.name!r} is {half} `make testbed up`")
    try:
        return msgspec.json.decode((ledger.directory / FILE).read_bytes(), type=Setup)
    except (OSError, msgspec.MsgspecError) as error:
        raise TestbedError(
            f"testbed {ledger.name!r} was brought up by another version: type `make down`, then up again"
        ) from error
