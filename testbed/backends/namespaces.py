"""What all backends share: each node is a network namespace, wherever it comes from, mounted in the run directory.

The kernel of each sandbox is set up as on a tuned host of a wide-area network: TCP with cubic, whose behaviour does not
depend on the machine this runs on, windows that let a message of a few hundred kilobytes leave at once, no memory of
earlier connections.  So a message's time is made of the link's physics and not of slow start.

Everything is done through netlink and /proc/sys, by the one thread that calls; no other program is run.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.backends import kernel
from testbed.backends.inspection import lacking
from testbed.backends.routes import KernelRoute, put_in
from testbed.errors import TestbedError
from testbed.ledger import Ledger
from testbed.paths import Paths
from testbed.tcp import INITIAL_WINDOW_PACKETS, RTO_MIN_S, initial_window
from testbed.topology import Topology
from testbed.wiring import NODE_PREFIX_LENGTH, NodeWiring, Wiring

if TYPE_CHECKING:
    from pyroute2 import IPRoute

#: Between the two ends of a cable, where only probes talk, and those set their own bounds.
PROBE_WINDOW_PACKETS = 1 << 14
#: Set per route: the namespace-wide setting refuses what the host does not allow to everybody.
CONGESTION_CONTROL = "cubic"
#: Packets (or bundles) between the kernel and the relay, which reads at once; only a relay that lags fills this.
DEVICE_QUEUE_PACKETS = 1000

SETTINGS = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    # TCP cuts bundles to a millisecond of its own pacing rate, which on a long path is a few packets however fast the
    # link.  It may fill what the link allows (``tcp.bundle_for``), or every message takes the relay dozens of pieces.
    "net/ipv4/tcp_min_tso_segs": "40",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv4/tcp_rmem": "4096 2097152 33554432",
    "net/ipv4/tcp_wmem": "4096 1048576 33554432",
    # Answers may take another way than questions; the default would drop them.
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/ping_group_range": "0 2147483647",
}
#: A kernel without IPv6, for example, lacks these files.
OPTIONAL_SETTINGS = ("net/ipv6", "net/ipv4/ping_group_range")


class NamespaceBackend:
    """Connects nodes whose network namespaces are mounted at ``netns/<node>`` in the run directory."""

    def __init__(self, ledger: Ledger, topology: Topology, *, initial_window: int = INITIAL_WINDOW_PACKETS) -> None:
        self._ledger = ledger
        self._paths = Paths(topology)
        self._initial_window = initial_window

    def netns(self, node: str) -> Path:
        """Where the network namespace of that node is mounted."""
        return self._ledger.directory / "netns" / node

    @property
    def hosts(self) -> Path:
        """The hosts file of all sandboxes."""
        return self._ledger.directory / "hosts"

    def broken(self, wiring: Wiring, *, plugged: Collection[str]) -> dict[str, str]:
        """The nodes whose sandbox is not as it was made, and what is wrong with it, worded for people."""
        found = {node.name: self._lacking(node, plugged) for node in wiring.nodes}
        return {node: problem for node, problem in found.items() if problem is not None}

    def connect(self, wiring: Wiring, *, nodes: Collection[str] | None = None, dilation: float = 1.0) -> None:
        """Give the plugged interfaces (of ``nodes`` only) their addresses, and the nodes their routes; repeatable."""
        for node in wiring.nodes:
            if nodes is None or node.name in nodes:
                with kernel.inside_netns(self.netns(node.name)), _netlink() as netlink:
                    self._connect(node, netlink, dilation)

    def stretch(self, wiring: Wiring, dilation: float) -> None:
        """Let TCP's shortest time-out last as long in the emulated world as in a real one."""
        for node in wiring.nodes:
            with kernel.inside_netns(self.netns(node.name)):
                try:
                    put_in(self._routes(node, {name: index for index, name in socket.if_nameindex()}, dilation))
                except (KeyError, OSError) as error:
                    raise TestbedError(f"{node.name}: its routes cannot be changed: {error}") from error

    def _connect(self, node: NodeWiring, netlink: IPRoute, dilation: float) -> None:
        from pyroute2.netlink.exceptions import NetlinkError

        links = {link.get("ifname"): link for link in netlink.get_links()}
        index = {name: link["index"] for name, link in links.items()}
        try:
            for interface in node.interfaces:
                here = index[interface.name]
                netlink.addr("replace", index=here, address=interface.address, prefixlen=interface.prefix_length)
                netlink.link("set", index=here, mtu=interface.mtu_bytes, txqlen=DEVICE_QUEUE_PACKETS, state="up")
                if (links[interface.name].get("linkinfo") or {}).get("kind") == "tun":
                    # No queue of the kernel's own in front of the relay: the model's is the one that counts.
                    netlink.tc("replace", "noqueue", index=here)
            put_in(self._routes(node, index, dilation))
        except (KeyError, OSError, NetlinkError) as error:
            raise TestbedError(f"{node.name} cannot be connected: {error}") from error

    def _routes(self, node: NodeWiring, index: Mapping[str, int], dilation: float) -> Iterator[KernelRoute]:
        for interface in node.interfaces:  # the kernel's own for the cable, to which TCP's settings are added
            network = ip_network((interface.address, interface.prefix_length), strict=False)
            yield KernelRoute(
                destination=str(network.network_address),
                prefix_length=interface.prefix_length,
                interface=index[interface.name],
                source=interface.address,
                gateway=None,
                initial_window=PROBE_WINDOW_PACKETS,
                congestion_control=CONGESTION_CONTROL,
            )
        for route in node.routes:
            yield KernelRoute(
                destination=route.destination,
                prefix_length=NODE_PREFIX_LENGTH,
                interface=index[route.interface],
                source=route.source,
                gateway=route.via,
                initial_window=initial_window(self._paths, node.name, route.node, self._initial_window),
                congestion_control=CONGESTION_CONTROL,
                rto_min_ms=max(1, round(1e3 * dilation * RTO_MIN_S)),
            )

    def _lacking(self, node: NodeWiring, plugged: Collection[str]) -> str | None:
        """What the namespace of a node lacks, worded for people; None if nothing."""
        if not kernel.is_mounted(self.netns(node.name)):
            return f"the namespace of {node.name} is gone"
        with kernel.inside_netns(self.netns(node.name)):
            return lacking(node, plugged)

    def _prepare(self, wiring: Wiring) -> None:
        """Write down every namespace that will be mounted, and make an empty file to mount each on."""
        for_each: list[dict[str, object]] = [
            {"kind": "netns", "path": str(self.netns(node.name))} for node in wiring.nodes
        ]
        self._ledger.record(*for_each)
        (self._ledger.directory / "netns").mkdir()
        for node in wiring.nodes:
            self.netns(node.name).touch(0o400, exist_ok=False)
        self.hosts.write_text(wiring.hosts)

    def _adopt(self, node: NodeWiring, pid: int) -> None:
        """Make the network namespace of a process the node's, and set it up."""
        kernel.bind_mount(f"/proc/{pid}/ns/net", self.netns(node.name))
        self._furnish(node)

    def _forget(self, node: str) -> None:
        """Take away the namespace of ``node``, if it is still there."""
        if kernel.is_mounted(self.netns(node)):
            kernel.unmount(self.netns(node))

    def _furnish(self, node: NodeWiring) -> None:
        """Set the kernel of a mounted namespace up, and give the node its address."""
        with kernel.inside_netns(self.netns(node.name)):
            _configure_kernel(node)
            with _netlink() as netlink:
                netlink.addr("replace", index=1, address=node.address, prefixlen=NODE_PREFIX_LENGTH)
                netlink.link("set", index=1, state="up")


def _netlink() -> IPRoute:
    from pyroute2 import IPRoute  # takes long to load, and only who brings something up needs it

    return IPRoute()


def _configure_kernel(node: NodeWiring) -> None:
    for name, value in {**SETTINGS, "net/ipv4/ip_forward": str(int(node.forwards))}.items():
        path = Path("/proc/sys") / name
        try:
            path.write_text(value)
        except OSError as error:
            if not name.startswith(OPTIONAL_SETTINGS):
                raise TestbedError(f"{node.name}: cannot set {name.replace('/', '.')} = {value}: {error}") from error
