"""A network as the text of a topology file, which says where each number comes from.

>>> rate(35_102_720.0), delay(0.0382695), share(0.012)
('35.10272 Mbit/s', '38.2695 ms', '1.2 %')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from testbed import units
from testbed.generate import DEVICES
from testbed.importers.graph import Edge, Flow
from testbed.importers.names import in_yaml
from testbed.importers.resolve import Network

_DIGITS = (6, 9, 12, 15, 16, 17)
_MAX_COMMENT = 60
_MAX_LINE = 118


def write(network: Network, *, name: str, filename: str, form: str, command: str) -> str:
    """The text; ``filename`` is the base name of the file it was imported from, ``command`` makes it again."""
    used = {member.device for member in network.members}
    title = f"{_printable(network.title)[:200]}, imported" if network.title else "Imported"
    lines = [
        f"# Imported from {_printable(filename)} ({form}).",
        "#",
        "# Made by",
        f"#   {_printable(command)}",
        "#",
        "# Where each number comes from:",
        *_comments(network.sources),
    ]
    if network.notes:
        lines += ["#", "# What to know:", *_comments(network.notes)]
    lines += ["", f"name: {in_yaml(name)}", f"description: {_quoted(f'{title} from {_printable(filename)}')}"]
    lines += ["", "devices:", *(line for line in DEVICES.splitlines() if line.split(":")[0].strip() in used)]
    lines += ["", "nodes:"]
    for member in network.members:
        kind = f"device: {member.device}" if member.device else "router: true"
        label = "" if member.label == member.name else f"  # {_printable(member.label)[:_MAX_COMMENT]}"
        cpus = "" if member.cpus is None else f", cpus: {member.cpus:.6g}"
        lines.append(f"  {in_yaml(member.name)}: {{{kind}{cpus}}}{label}")
    if network.links:
        lines += ["", "links:", *(_link(link) for link in network.links)]
    return "\n".join([*lines, ""])


def rate(value_bps: float) -> str:
    """A rate that reads back as exactly that."""
    return _exact(value_bps, units.format_rate, units.bits_per_second, "bit/s")


def delay(value_s: float) -> str:
    """A time that reads back as exactly that."""
    return _exact(value_s, units.format_seconds, units.seconds, "s")


def share(value: float) -> str:
    """A share that reads back as exactly that."""
    return _exact(value, units.format_fraction, units.fraction, "")


def _exact(value: float, show: Callable[..., str], parse: Callable[[str], float], base: str) -> str:
    """The shortest text of ``value`` that means it."""
    for digits in _DIGITS:
        text = show(value, digits=digits)
        if parse(text) == value:
            return text
    return f"{value!r} {base}".strip()  # repr is exact, though no unit of people fits


def _link(link: Edge) -> str:
    backward = link.backward or link.forward
    parts = [f"between: [{in_yaml(link.a)}, {in_yaml(link.b)}]", *_values(link.forward, Flow(jitter_s=0.0))]
    differing = _values(backward, link.forward)
    if differing:
        parts.append(f"reverse: {{{', '.join(differing)}}}")
    remark = f"  # {_printable(link.remark)[:_MAX_COMMENT]}" if link.remark else ""
    return f"  - {{{', '.join(parts)}}}{remark}"


def _values(flow: Flow, known: Flow) -> list[str]:
    """What of ``flow`` differs from ``known``."""
    parts = []
    if flow.rate_bps != known.rate_bps and flow.rate_bps is not None:
        parts.append(f"rate: {rate(flow.rate_bps)}")
    if flow.delay_s != known.delay_s and flow.delay_s is not None:
        parts.append(f"delay: {delay(flow.delay_s)}")
    if flow.jitter_s != known.jitter_s:
        parts.append(f"jitter: {delay(flow.jitter_s)}")
    if flow.loss != known.loss:
        parts.append(f"loss: {share(flow.loss)}")
    if flow.queue_packets != known.queue_packets:
        parts.append("queue: auto" if flow.queue_packets is None else f"queue: {flow.queue_packets} packets")
    return parts


def _comments(texts: tuple[str, ...]) -> Iterator[str]:
    """Comment lines of limited length, one indented paragraph for each text."""
    for text in texts:
        line = "#  "
        for word in _printable(text).split():
            if len(line) + 1 + len(word) > _MAX_LINE:
                yield line
                line = "#    "
            line += f" {word}"
        yield line


def _printable(text: str) -> str:
    """``text`` on one line: what others wrote must not end a comment."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
