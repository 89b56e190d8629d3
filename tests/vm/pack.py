"""Lay out what the tests need as the disk of a virtual machine, where it is mounted at /mnt.

    python tests/vm/pack.py DIRECTORY

``python`` is the interpreter and its library, ``venv`` the packages below and what they need, ``repository`` the files
that git knows or would take.
"""

from __future__ import annotations

import importlib.metadata as metadata
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

MOUNTED = Path("/mnt")
#: What the network and its tests import.
PACKAGES = ["filelock", "hypothesis", "mininet", "msgspec", "pyroute2", "pytest", "pytest-timeout", "PyYAML", "pyzmq"]
PACKAGES += ["rich", "typer"]
#: Of the library, what Python runs without.
UNUSED = ("test", "tests", "idlelib", "tkinter", "ensurepip", "site-packages", "dist-packages", "lib2to3", "*.a")


def main(argv: list[str]) -> None:
    """Fill the directory."""
    disk = Path(argv[0])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = disk / "python" / "bin" / version
    _copy(Path(sys.executable).resolve(), interpreter)
    library = disk / "python" / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*UNUSED))
    site = disk / "venv" / "lib" / version / "site-packages"
    for package in _needed(PACKAGES):
        for file in metadata.files(package) or ():
            path = Path(str(file.locate()))
            if ".." not in file.parts and path.is_file():
                _copy(path, site / file)
    repository = Path(__file__).resolve().parents[2]
    listed = ("git", "-C", str(repository), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in subprocess.run(listed, check=True, capture_output=True).stdout.decode().split("\0"):
        if name and (repository / name).is_file():
            _copy(repository / name, disk / "repository" / name)
    (disk / "venv" / "bin").mkdir()
    (disk / "venv" / "bin" / "python").symlink_to(MOUNTED / "python" / "bin" / version)
    (disk / "venv" / "pyvenv.cfg").write_text(f"home = {MOUNTED / 'python' / 'bin'}\n")
    (site / "repository.pth").write_text(f"{MOUNTED / 'repository'}\n")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)  # with its times, or the compiled files would be stale


def _needed(names: list[str]) -> set[str]:
    """These packages and all that they ask for, as far as they are installed."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            asked = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting += [re.split(r"[^\w.-]", each)[0] for each in asked if "extra ==" not in each]
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
