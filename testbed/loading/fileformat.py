"""The topology file format: one table of keys.

The loader reads files by this table, ``testbed schema`` prints it as JSON Schema, and error messages suggest keys from
it.  A key that stands here, or for links in ``linkformat``, is read by ``build``; one that does not is a mistake.
"""

from __future__ import annotations

from typing import Any

from testbed import units
from testbed.loading.kinds import Flag, Name, Number, Quantity, Text
from testbed.loading.linkformat import DIRECTION_KEYS
from testbed.loading.sections import Items, Key, Named, NameOr, Pair, Section, Table

#: A mistyped or hostile file is not worked on for long; the largest that `testbed generate` makes has 5,000 servers and
#: the 500 routers of their metros, which load in seconds.
MAX_NODES = 6000

PEAK = Key(
    "peak",
    Quantity(parse=units.flops_per_second, dimension=units.COMPUTE, least="1 MFLOP/s", most="100 PFLOP/s"),
    "peak compute speed, dense FP16",
    also_called=("flops", "tflops", "compute", "speed"),
)
MEMORY = Key(
    "memory",
    Quantity(parse=units.bytes_per_second, dimension=units.BANDWIDTH, least="1 MB/s", most="1 PB/s"),
    "bandwidth of the fast memory",
    also_called=("memory_bandwidth", "bandwidth"),
)
FAST = Key(
    "fast",
    Quantity(parse=units.size_bytes, dimension=units.SIZE, least="1 MB", most="1 PB"),
    "size of the fast (GPU) memory",
    also_called=("vram", "gpu", "gpu_memory", "hbm"),
)
SLOW = Key(
    "slow",
    Quantity(parse=units.size_bytes, dimension=units.SIZE, least="0 B", most="1 PB"),
    "size of the slow (host) memory",
    also_called=("ram", "host", "host_memory", "dram"),
)
LOAD = Key(
    "load",
    Quantity(parse=units.bytes_per_second, dimension=units.BANDWIDTH, least="1 MB/s", most="1 PB/s"),
    "bandwidth from slow to fast memory",
    also_called=("pcie", "load_bandwidth"),
)
EFFICIENCY = Key(
    "efficiency",
    Quantity(parse=units.fraction, dimension=units.SHARE, least="0.1 %", most="100 %"),
    "share of the peak that real kernels reach",
)
LAUNCH = Key(
    "launch",
    Quantity(parse=units.seconds, dimension=units.TIME, least="0 s", most="1 s"),
    "fixed time of one kernel call",
    also_called=("overhead",),
)
DEVICE_KEYS: tuple[Key[Any], ...] = (PEAK, MEMORY, FAST, SLOW, LOAD, EFFICIENCY, LAUNCH)
#: What no device can do without; the others have defaults.
DEVICE_NEEDS = (PEAK.name, MEMORY.name, FAST.name, SLOW.name, LOAD.name)

CLASS = Key("class", Name(), "a name under 'devices' whose values hold where none is given here", also_called=("type",))
DEVICE: Key[str | Section] = Key(
    "device",
    NameOr(Table((CLASS, *DEVICE_KEYS), needs=((CLASS.name,), DEVICE_NEEDS))),
    "a name under 'devices', or the device itself",
    also_called=("gpu", "class", "type"),
)
USERS = Key(
    "users",
    Number(least=0.0, most=1e9),
    "relative share of the requests that arrive here",
    also_called=("load", "weight", "clients"),
)
METRO = Key("metro", Text(40), "label of the neighbourhood, for people", also_called=("cluster", "region", "site"))
ROUTER = Key("router", Flag(), "true: forwards packets and runs no agent", also_called=("switch",))
CPUS = Key(
    "cpus",
    Number(least=0.01, most=1024),
    "processors of this machine that the server's sandbox may use; 0.5 is half of one",
    also_called=("cpu", "cores", "vcpus", "cpu_limit"),
)
RAM = Key(
    "ram",
    Quantity(parse=units.size_bytes, dimension=units.SIZE, least="16 MiB", most="1 PB"),
    "memory of this machine that the server's sandbox may use",
    also_called=("memory", "mem", "memory_limit", "mem_limit"),
)
NODE = Table((DEVICE, USERS, METRO, ROUTER, CPUS, RAM), needs=((ROUTER.name,), (DEVICE.name,)))

BETWEEN = Key(
    "between",
    Pair(),
    "the two ends; the values hold from the first to the second, and back unless 'reverse' differs",
    also_called=("endpoints", "nodes", "ends", "from", "to", "source", "target"),
)
REVERSE = Key(
    "reverse",
    Table(DIRECTION_KEYS),
    "what differs from the second end to the first",
    also_called=("backward", "back", "return"),
)
LINK = Table((BETWEEN, *DIRECTION_KEYS, REVERSE), needs=((BETWEEN.name,),))

LINK_DEFAULTS = Key("link", Table(DIRECTION_KEYS), "values for every link that does not give its own")

TITLE = Key("name", Name(), "name of the topology")
DESCRIPTION = Key("description", Text(2000), "what it models, for people")
DEVICES = Key(
    "devices", Named(Table(DEVICE_KEYS, needs=(DEVICE_NEEDS,))), "classes of device that nodes refer to by name"
)
NODES = Key("nodes", Named(NODE), "servers and routers by name", also_called=("servers", "hosts"))
DEFAULTS = Key("defaults", Table((LINK_DEFAULTS,)), "values for what does not give its own")
LINKS = Key("links", Items(LINK), "cables between nodes", also_called=("edges", "cables"))

TOPOLOGY = Table((TITLE, DESCRIPTION, DEVICES, NODES, DEFAULTS, LINKS), needs=((TITLE.name, NODES.name),))
