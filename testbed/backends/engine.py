"""Which Docker Engine is used, whether it answers, and what to type where it does not.

Needs no package of others, so that looking a machine over stays cheap.
"""

from __future__ import annotations

import os
import socket

from testbed.errors import TestbedError

DEFAULT_SOCKET = "/var/run/docker.sock"
HOST_VARIABLE = "DOCKER_HOST"
ANSWER_S = 2.0
START_REMEDY = (
    "type `apt-get install docker.io` (Debian, Ubuntu), then `systemctl start docker`, "
    "or, where no systemd runs, `dockerd >/var/log/dockerd.log 2>&1 &`"
)


def url() -> str:
    """The engine of this machine; TestbedError if DOCKER_HOST names one elsewhere."""
    found = os.environ.get(HOST_VARIABLE) or f"unix://{DEFAULT_SOCKET}"
    if not found.startswith("unix://"):
        raise TestbedError(
            f"{HOST_VARIABLE} is {found}: links are plugged into containers by the kernel of this machine, so its own "
            f"engine is needed; unset {HOST_VARIABLE}"
        )
    return found


def socket_path() -> str:
    """The path of its socket."""
    return url().removeprefix("unix://")


def missing() -> str | None:
    """Why it cannot be used, and what to type; None where it answers."""
    path = socket_path()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_S)
        try:
            sock.connect(path)
        except FileNotFoundError:
            return f"no Docker Engine is running (there is no {path}): {START_REMEDY}"
        except PermissionError:
            return f"you may not use the Docker Engine at {path}: type it again with `sudo`"
        except OSError as error:
            return f"no Docker Engine answers at {path} ({error.strerror or error}): {START_REMEDY}"
    return None
