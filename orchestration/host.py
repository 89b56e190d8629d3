"""Facts about the machine that runs the emulation: processor time and versions.  An edge: it reads /proc."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("msgspec", "numpy", "polars", "pyarrow", "pyroute2", "pyzmq")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Processor time of the whole host since boot, all cores, in clock ticks."""

    busy: int
    total: int

    @classmethod
    def read(cls) -> CpuTime:
        """The totals now (Linux: first line of /proc/stat)."""
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        idle = fields[3] + fields[4]
        return cls(busy=sum(fields) - idle, total=sum(fields))

    def busy_share_since(self, before: CpuTime) -> float:
        """Share of all cores that was busy since ``before``, in [0, 1]."""
        total = self.total - before.total
        return (self.busy - before.busy) / total if total > 0 else 0.0


def versions() -> dict[str, str]:
    """What ran: interpreter, kernel, packages, and the commit when this is a git checkout."""
    found = {"python": platform.python_version(), "kernel": platform.release(), "cores": str(os.cpu_count() or 0)}
    for package in ("edge-moe-testbed", *PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    root = Path(__file__).parent.parent
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    except OSError:  # no git on this machine
        return found
    if commit.returncode == 0:
        found["git"] = commit.stdout.strip()
    return found
