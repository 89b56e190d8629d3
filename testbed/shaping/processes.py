"""The relay processes of one testbed: started, recorded, found again by whoever attaches, told when they are gone.

Relays are numbered from 1.  The ledger has two entries for each start, in this order:

    {"kind": "socket", "file": "relay-....ipc", "relay": 2}      before anything exists
    {"kind": "relay", "pid": 4711, "started": 123456}            the process that listens there

A later pair of the same number replaces an earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from testbed.ledger import Ledger, OwnedProcess
from testbed.shaping.client import LOG, ONLY, RelayShaper, start_relay
from testbed.words import counted, enumerate_words


class RelayProcesses:
    """The relays that a testbed should have."""

    def __init__(self, ledger: Ledger, carried: Mapping[int, Sequence[str]], *, seed: int) -> None:
        """``carried`` are the links of every relay, by its number."""
        self.carried = carried
        self._ledger, self._seed = ledger, seed

    def start(self, *numbers: int) -> None:
        """Start these, or all, whatever there was before."""
        for number in numbers or self.carried:
            # A name of its own for every relay: one that a crash orphaned before it had started must not take over
            # the socket of the next testbed in the same directory.
            socket = f"relay-{time.time_ns():x}.ipc"
            self._ledger.record({"kind": "socket", "file": socket, "relay": number})
            pid = start_relay(self._ledger.directory, socket, seed=self._seed, log=self._log(number))
            self._ledger.record_process("relay", pid)

    def alive(self, number: int) -> bool:
        """Whether that relay runs."""
        return any(process.alive() for process in self._processes(number))

    def gone(self) -> tuple[int, ...]:
        """Those that should run and do not."""
        return tuple(number for number in self.carried if not self.alive(number))

    def name(self, number: int) -> str:
        """How messages name that relay: ``the relay``, ``relay 2 of 3``."""
        return f"relay {number} of {len(self.carried)}" if self._several else ONLY

    def loss(self, number: int) -> str:
        """What it means that this relay is gone, for people."""
        if not self._several:
            return "the relay process is gone, and every link with it"
        links = self.carried[number]
        return f"{self.name(number)} is gone, and {counted(len(links), 'link')} with it: {enumerate_words(links)}"

    def shapers(self) -> dict[RelayShaper, Sequence[str]]:
        """What asks each relay, and the links that it carries."""
        return {self._shaper(number): links for number, links in self.carried.items()}

    def _shaper(self, number: int) -> RelayShaper:
        return RelayShaper(
            self._ledger.directory,
            self._socket(number),
            lambda: self.alive(number),
            name=self.name(number),
            log=self._log(number),
        )

    @property
    def _several(self) -> bool:
        return len(self.carried) > 1

    def _log(self, number: int) -> str:
        return f"relay-{number}.log" if self._several else LOG

    def _socket(self, number: int) -> str:
        """The file, in the run directory, where that relay listens."""
        entries = self._ledger.entries("socket")
        return [str(entry["file"]) for entry in entries if _number(entry) == number][-1]

    def _processes(self, number: int) -> list[OwnedProcess]:
        found, at = [], 0
        for entry in self._ledger.entries():
            if entry["kind"] == "socket":
                at = _number(entry)
            elif entry["kind"] == "relay" and at == number:
                found.append(OwnedProcess(pid=int(str(entry["pid"])), started=int(str(entry["started"]))))
        return found


def _number(socket: dict[str, object]) -> int:
    return int(str(socket.get("relay", 1)))
