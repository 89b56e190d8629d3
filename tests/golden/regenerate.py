"""Write the expected message beside every wrong topology in tests/golden/topology.

Run it from the repository root after changing a message on purpose, then read the diff as the user will read the text:

    .venv/bin/python tests/golden/regenerate.py && git diff tests/golden
"""

from __future__ import annotations

import os
from pathlib import Path

from testbed.load import TopologyError, load_topology

FOLDER = Path(__file__).parent / "topology"


def main() -> None:
    # The folder is the working directory so that messages name files the same on every machine.
    os.chdir(FOLDER)
    for file in sorted(Path().glob("*.yaml")):
        try:
            load_topology(file)
        except TopologyError as error:
            file.with_suffix(".txt").write_text(f"{error}\n", encoding="utf-8")
        else:
            raise SystemExit(f"{file} has no mistake")


if __name__ == "__main__":
    main()
