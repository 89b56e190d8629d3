"""Our topology as a Mininet network: its hosts, its ``Topo``, and links whose interfaces another process puts in.

``build`` makes real Mininet hosts (a shell each, in a network namespace of its own), so that what people know from
Mininet works on them: ``mnexec -a PID``, the ``m`` utility, ``host.cmd`` and ``net.pingAll`` of the object.  Links are
ours: Mininet's own would shape with ``tc`` options that this testbed replaces.

Mininet raises limits of the whole machine when it starts (open files, socket buffers); that is left out here.
"""

from __future__ import annotations

from typing import Any

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host
from mininet.topo import Topo

from testbed.wiring import Interface, Wiring


class WiredTopo(Topo):  # type: ignore[misc]
    """The nodes and cables of a wiring plan, as Mininet describes a network."""

    def build(self, wiring: Wiring) -> None:
        """Routers are hosts that forward: what they do is routing, which no switch of Mininet's does."""
        for node in wiring.nodes:
            self.addHost(node.name, ip=None)
        for cable in wiring.cables:
            self.addLink(
                cable.a.node, cable.b.node, intfName1=cable.a.name, intfName2=cable.b.name, ends=(cable.a, cable.b)
            )


class PluggedInterface(Intf):  # type: ignore[misc]
    """An interface that a shaper puts into the host's namespace; Mininet only knows of it."""

    def __init__(self, end: Interface, node: Host, link: Link, address: str) -> None:
        self.node, self.name, self.link, self.mac = node, end.name, link, None
        self.ip, self.prefixLen = address, end.prefix_length
        self.params: dict[str, Any] = {}
        node.addIntf(self, moveIntfFn=_stay)

    def ifconfig(self, *_: str) -> str:
        """Nothing: addresses and states are the backend's."""
        return ""

    def delete(self) -> None:
        """Nothing: the interface goes with its namespace or its shaper."""


class PluggedLink(Link):  # type: ignore[misc]
    """A cable that a shaper puts in."""

    def __init__(self, node1: Host, node2: Host, *, ends: tuple[Interface, Interface], **_: Any) -> None:
        a, b = ends
        self.intf1 = PluggedInterface(a, node1, self, node1.params["address"])
        self.intf2 = PluggedInterface(b, node2, self, node2.params["address"])

    def delete(self) -> None:
        """Nothing: see ``PluggedInterface.delete``."""


def build(wiring: Wiring) -> Mininet:
    """A Mininet network of running hosts, whose cables are still to be plugged.  Needs root and ``mnexec``."""
    Mininet.inited = True  # or it would change limits of the whole machine
    network = Mininet(build=False, controller=None, link=PluggedLink)
    for node in wiring.nodes:
        add_host(network, wiring, node.name)
    topo = WiredTopo(wiring)
    for a, b, parameters in topo.links(withInfo=True):
        PluggedLink(network[a], network[b], ends=parameters["ends"])
    network.topo, network.built = topo, True
    return network


def add_host(network: Mininet, wiring: Wiring, name: str) -> Host:
    """A running host of that name, without cables."""
    return network.addHost(name, ip=None, address=wiring.node(name).address)


def _stay(*_: Any) -> None:
    """In place of Mininet's moving an interface into a namespace: it will be made there."""
