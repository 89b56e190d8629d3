"""The image is named by what goes into it, and what is missing is named to the person who can add it."""

from __future__ import annotations

import ast
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import docker
import pytest

from testbed import images
from testbed.backends import engine
from testbed.backends.docker import checked_visible
from testbed.errors import TestbedError

ROOT = Path(__file__).parents[2]
PROJECT = '[project]\ndependencies = ["numpy==2.0.0", "Scikit_Thing==1.5", "loose>=3"]\n'


def test_pins_are_those_of_the_project_however_a_name_is_written() -> None:
    assert images.pins(PROJECT, ["scikit-thing", "NumPy"]) == ["Scikit_Thing==1.5", "numpy==2.0.0"]


@pytest.mark.parametrize("name", ["scipy", "loose"])
def test_a_package_without_a_pin_is_named(name: str) -> None:
    with pytest.raises(TestbedError, match=f"packages.txt names {name}, which pyproject.toml does not pin"):
        images.pins(PROJECT, ["numpy", name])


def test_every_part_of_the_recipe_changes_the_name() -> None:
    wanted = images.recipe()
    others = [
        replace(wanted, pins=(*wanted.pins[:-1], "xxhash==0.0.1")),
        *(
            replace(wanted, files=tuple((name, text + "#" * (name == changed)) for name, text in wanted.files))
            for changed, _ in wanted.files
        ),
    ]

    assert len({recipe.image for recipe in (wanted, *others)}) == 4
    assert images.recipe().image == wanted.image


def test_the_image_holds_exactly_what_agents_import() -> None:
    """Third-party modules that ``agents.main`` and every framework and scheduler load, in a process of their own."""
    code = """
import importlib, pkgutil, sys
import agents.main, agents.frameworks
for package in (agents.frameworks, *([importlib.import_module("agents.schedulers")] if SCHEDULERS else [])):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names))
"""
    schedulers = (ROOT / "agents" / "schedulers").is_dir()
    loaded = subprocess.run(
        [sys.executable, "-c", code.replace("SCHEDULERS", str(schedulers))], capture_output=True, text=True, check=True
    )
    modules = set(ast.literal_eval(loaded.stdout))
    provided = {pin.partition("==")[0].replace("pyzmq", "zmq") for pin in images.recipe().pins}

    assert provided <= modules
    assert not modules & {"torch", "scipy", "polars", "pyarrow", "matplotlib", "pyroute2", "docker", "yaml", "networkx"}


def test_outside_a_checkout_the_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"packages\.txt is missing: containers need a checkout"):
        images.recipe(tmp_path)


def test_without_an_engine_one_line_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    assert images.main([]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "no Docker Engine is running" in printed
    assert "apt-get install docker.io" in printed
    assert images.main(["--if-possible"]) == 0


def test_an_engine_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://build-host:2375")

    with pytest.raises(TestbedError, match=r"^DOCKER_HOST is tcp://build-host:2375: .*; unset DOCKER_HOST$"):
        engine.missing()


def test_a_user_who_may_not_use_the_engine_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.delenv("DOCKER_HOST", raising=False)

    assert engine.missing() == ("you may not use the Docker Engine at /var/run/docker.sock: type it again with `sudo`")


def test_without_registry_and_mmdebstrap_every_way_to_a_base_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(TestbedError, match=r"no base image can be had: .*python:3.*mmdebstrap.*--base IMAGE"):
        images._bootstrap(cast(docker.DockerClient, None), "bookworm", "base:1")


def test_the_host_s_own_mirror_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "Debian\tbookworm-updates\thttp://a/\nvendor\tbookworm\thttp://b/\nDebian\tbookworm\thttp://c/\n"
    monkeypatch.setattr(images, "_distribution", lambda: {"ID": "debian", "VERSION_CODENAME": "bookworm"})
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=listed))

    assert images._mirrors() == ["http://c/"]


# ---- what containers may see


def test_paths_below_others_need_no_mount_of_their_own(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for directory in (tmp_path, tmp_path / "a", inner):
        directory.chmod(0o755)

    assert checked_visible([inner, tmp_path / "a", tmp_path / "a" / "." / "b"]) == [tmp_path / "a"]


@pytest.mark.parametrize("path", ["/", "/usr", "/tmp", "/proc"])  # noqa: S108
def test_a_directory_that_containers_have_themselves_is_refused(path: str) -> None:
    with pytest.raises(TestbedError, match=f"^{path} cannot be shown to containers"):
        checked_visible([Path(path)])


def test_a_path_that_is_missing_or_closed_is_refused_before_an_agent_misses_it(tmp_path: Path) -> None:
    closed = tmp_path / "closed.py"
    closed.touch(mode=0o600)

    with pytest.raises(TestbedError, match=f"there is no {tmp_path}/gone"):
        checked_visible([tmp_path / "gone"])
    with pytest.raises(TestbedError, match=rf"type `chmod -R o\+rX {closed}`"):
        checked_visible([closed])
