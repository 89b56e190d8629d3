"""The topology file format as JSON Schema (2020-12), for editors that complete and check while one types.

It is generated from ``testbed.loading.fileformat``, the table that the loader reads by, so a key cannot be in one and
not in the other.  The schema knows shape, keys and units.  What needs arithmetic or the whole file (ranges of
quantities, names that must exist, a connected network) only ``testbed check`` sees.

>>> sorted(topology_schema()["properties"])
['defaults', 'description', 'devices', 'links', 'name', 'nodes']
"""

from __future__ import annotations

import json

from testbed.loading.fileformat import TOPOLOGY
from testbed.loading.kinds import Schema


def topology_schema() -> Schema:
    """The schema as plain values."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Topology of the edge MoE testbed",
        **TOPOLOGY.schema(),
    }


def schema_text() -> str:
    """The schema as ``testbed schema`` prints it."""
    return json.dumps(topology_schema(), indent=2, ensure_ascii=False) + "\n"
