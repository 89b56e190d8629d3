"""The image of the servers: built once, found again by a digest of everything that goes into it.

    python -m testbed.images                  # build it, unless it is there
    python -m testbed.images --base IMAGE     # on another base image, which has Python

The base is an official Python image from a registry where one can be reached, else a minimal system made of the
distribution's packages.  On it come the pinned packages that agents import: pip fetches them on the host, where it is
configured, for the Python of the base, so that the build itself needs no network.

>>> image_name(["FROM base"]), image_name(["FROM base", "numpy==2.4.6"])
('edge-moe-testbed/agent:a36f82554dee', 'edge-moe-testbed/agent:600666f026b6')
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import DockerException, ImageNotFound
from requests.exceptions import RequestException

from testbed.backends import containers, engine
from testbed.errors import TestbedError

ROOT = Path(__file__).parent.parent
REPOSITORY = "edge-moe-testbed"
#: The user of all programs in containers.  Neither adduser nor a distribution's packages give this id to anybody.
USER_ID = 59_999
#: Debian's own packages are of the same release, so Python is 3.11 both ways there.
REGISTRY_BASE = "python:3.11-slim-bookworm"
#: What a base made of distribution packages holds: enough to run agents and to look around.
BOOTSTRAP_PACKAGES = ("python3", "iputils-ping", "iproute2")
BOOTSTRAP_OPTIONS = tuple(f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "locale", "man"))
LEAST_PYTHON = (3, 11)
PIN = re.compile(r"([A-Za-z0-9._-]+)==[A-Za-z0-9.+!_-]+")
PROBE = (
    "import json, site, sys; "
    "print(json.dumps({'version': list(sys.version_info[:2]), 'site': site.getsitepackages()[0]}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the image is made of, but for the base."""

    pins: tuple[str, ...]  # numpy==2.4.6
    files: tuple[tuple[str, str], ...]  # name and text of what lies in the build context

    @property
    def image(self) -> str:
        """The name of the image."""
        return image_name([*self.pins, *(text for _, text in self.files), str(USER_ID), platform.machine()])


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePython:
    """The Python of a base image."""

    version: tuple[int, int]
    site: str  # where it looks for packages


def image_name(parts: Sequence[str], what: str = "agent") -> str:
    """The name of an image made of ``parts``: other parts, another name."""
    digest = hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()
    return f"{REPOSITORY}/{what}:{digest[:12]}"


def recipe(root: Path = ROOT) -> Recipe:
    """What this checkout's image is made of; TestbedError where there is no checkout or a pin is missing."""
    try:
        names = package_names((root / "images" / "packages.txt").read_text())
        pinned = pins((root / "pyproject.toml").read_text(), names)
        files = tuple((name, (root / "images" / name).read_text()) for name in ("Dockerfile", "become.py"))
    except FileNotFoundError as error:
        raise TestbedError(
            f"{error.filename} is missing: containers need a checkout of the testbed, installed with --editable"
        ) from error
    return Recipe(pins=tuple(pinned), files=files)


def package_names(text: str) -> list[str]:
    """The names in the text of ``images/packages.txt``.

    >>> package_names("# what agents import\\nnumpy\\n\\n")
    ['numpy']
    """
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def pins(pyproject: str, names: Collection[str]) -> list[str]:
    """``numpy==2.4.6`` for each name, as the text of pyproject.toml pins it; TestbedError where it does not."""
    pinned = {}
    for requirement in tomllib.loads(pyproject)["project"]["dependencies"]:
        if match := PIN.fullmatch(requirement):
            pinned[_canonical(match[1])] = requirement
    if missing := [name for name in names if _canonical(name) not in pinned]:
        raise TestbedError(f"images/packages.txt names {', '.join(missing)}, which pyproject.toml does not pin with ==")
    return sorted(pinned[_canonical(name)] for name in names)


def build(base: str | None = None) -> str:
    """Build the image unless it is there, or build it anew on ``base``; its name.

    TestbedError where no engine answers, no base can be had, or a step fails.
    """
    wanted = recipe()
    with containers.connected() as api:
        if base is None and containers.has_image(api, wanted.image):
            return wanted.image
    started_s = time.monotonic()
    _say(f"building {wanted.image} (once)")
    with closing(docker.DockerClient(base_url=engine.url())) as client:
        try:
            _build(client, wanted, base or _base(client))
        except (DockerException, RequestException) as error:
            raise TestbedError(f"the image cannot be built: {error}") from error
    _say(f"built in {time.monotonic() - started_s:.0f} s")
    return wanted.image


def _build(client: docker.DockerClient, wanted: Recipe, base: str) -> None:
    python = _python_of(client, base)
    with tempfile.TemporaryDirectory(prefix="image-") as directory:
        context = Path(directory)
        _say(f"fetching {', '.join(wanted.pins)} for its Python {python.version[0]}.{python.version[1]}")
        _fetch(wanted.pins, python, context / "site")
        for name, text in wanted.files:
            (context / name).write_text(text)
            (context / name).chmod(0o644)
        client.images.build(
            path=directory,
            tag=wanted.image,
            buildargs={"BASE": base, "SITE": python.site, "USER_ID": str(USER_ID)},
            network_mode="none",
            rm=True,
            forcerm=True,
        )


def _base(client: docker.DockerClient) -> str:
    """A base image: one that is here already, else the registry's, else one made of distribution packages."""
    suite = _distribution().get("VERSION_CODENAME", "")
    bootstrapped = image_name([suite, *BOOTSTRAP_PACKAGES, *BOOTSTRAP_OPTIONS], "base")
    for name in (REGISTRY_BASE, bootstrapped):
        try:
            client.images.get(name)
            return name
        except ImageNotFound:
            continue
    try:
        _say(f"asking the registry for {REGISTRY_BASE}")
        client.images.pull(REGISTRY_BASE)
        return REGISTRY_BASE
    except (DockerException, RequestException) as error:
        _say(f"it cannot be had there: {_reason(error)}")
    _bootstrap(client, suite, bootstrapped)
    return bootstrapped


def _bootstrap(client: docker.DockerClient, suite: str, name: str) -> None:
    if shutil.which("mmdebstrap") is None or not suite:
        raise TestbedError(
            f"no base image can be had: let the engine reach a registry that has {REGISTRY_BASE}, or type "
            "`apt-get install mmdebstrap` (Debian, Ubuntu), or name an image that you have: "
            "`python -m testbed.images --base IMAGE`"
        )
    _say(f"making a base of {suite}'s own packages")
    with tempfile.TemporaryDirectory(prefix="base-") as directory:
        archive = Path(directory) / "base.tar"
        include = f"--include={','.join(BOOTSTRAP_PACKAGES)}"
        command = ["mmdebstrap", "--variant=minbase", include, *BOOTSTRAP_OPTIONS, suite, str(archive), *_mirrors()]
        made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise TestbedError("mmdebstrap fails:\n" + "\n".join(made.stderr.splitlines()[-5:]))
        repository, _, label = name.partition(":")
        client.api.import_image_from_file(str(archive), repository=repository, tag=label)


def _mirrors() -> list[str]:
    """Where the host gets its own distribution's packages from, by apt's word; empty leaves it to mmdebstrap."""
    command = ["apt-get", "indextargets", "--format", "$(ORIGIN)\t$(CODENAME)\t$(REPO_URI)", "Created-By: Packages"]
    try:
        asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError:
        return []
    ours = _distribution()
    for line in asked.stdout.splitlines():
        origin, codename, uri = line.split("\t")
        if (origin.lower(), codename) == (ours.get("ID"), ours.get("VERSION_CODENAME")):
            return [uri]
    return []


def _python_of(client: docker.DockerClient, base: str) -> BasePython:
    try:
        printed = client.containers.run(base, ["python3", "-I", "-c", PROBE], network_mode="none", remove=True)
        found = json.loads(printed)
    except (DockerException, ValueError) as error:
        raise TestbedError(f"python3 cannot be run in the base image {base}: {_reason(error)}") from error
    version = (int(found["version"][0]), int(found["version"][1]))
    if version < LEAST_PYTHON:
        raise TestbedError(
            f"the base image {base} has Python {version[0]}.{version[1]}, agents need {LEAST_PYTHON[0]}."
            f"{LEAST_PYTHON[1]}: name another with `python -m testbed.images --base IMAGE`"
        )
    return BasePython(version=version, site=str(found["site"]))


def _fetch(pinned: Sequence[str], python: BasePython, target: Path) -> None:
    """Install wheels for another Python than ours, readable by everybody; what they need is pinned, too."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-deps", "--only-binary=:all:", "--implementation=cp", "--root-user-action=ignore"]
    command += [f"--python-version={python.version[0]}.{python.version[1]}", f"--target={target}", *pinned]
    fetched = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, umask=0o022
    )
    if fetched.returncode != 0:
        raise TestbedError("pip cannot fetch the packages:\n" + "\n".join(fetched.stderr.splitlines()[-5:]))


def _distribution() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _reason(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error).partition("\n")[0]


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Build the image; 2 and one line where it cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m testbed.images", description="build the image of the servers")
    parser.add_argument("--base", metavar="IMAGE", help="build on this image, which has Python 3.11 or newer")
    parser.add_argument(
        "--if-possible", action="store_true", help="where it cannot be built, say so and end well: there is `netns`"
    )
    parser.add_argument("--quiet", action="store_true", help="... without saying so: `testbed doctor` does")
    options = parser.parse_args(arguments)
    try:
        build(options.base)
    except TestbedError as error:
        if not (options.if_possible and options.quiet):
            print(f"no image for containers: {error}", file=sys.stderr)
        return 0 if options.if_possible else error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
