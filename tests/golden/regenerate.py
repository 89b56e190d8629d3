"""Write the expected message beside every wrong topology, and the expected wiring plan.

Run it from the repository root after changing a text on purpose, then read the diff as the user will read the text:

    .venv/bin/python tests/golden/regenerate.py && git diff tests/golden
"""

from __future__ import annotations

import os
from pathlib import Path

from testbed.load import TopologyError, load_topology
from testbed.wiring import wire

GOLDEN = Path(__file__).resolve().parent


def main() -> None:
    plan = wire(load_topology(GOLDEN.parents[1] / "topologies/metro-routers.yaml"), "lab")
    (GOLDEN / "wiring/metro-routers.txt").write_text(f"{plan}\n", encoding="utf-8")
    # The folder is the working directory so that messages name files the same on every machine.
    os.chdir(GOLDEN / "topology")
    for file in sorted(Path().glob("*.yaml")):
        try:
            load_topology(file)
        except TopologyError as error:
            file.with_suffix(".txt").write_text(f"{error}\n", encoding="utf-8")
        else:
            raise SystemExit(f"{file} has no mistake")


if __name__ == "__main__":
    main()
