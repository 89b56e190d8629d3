"""How TCP puts messages on links here: what the sandboxes tell the kernel, and the simulator does by itself.

A message leaves in one burst as long as it fits the window, in bundles of packets that cross a link as one.

>>> from testbed.topology import Direction
>>> bundle_for(Direction(rate_bps=100e6, delay_s=0.005)), bundle_for(Direction(rate_bps=1e8, delay_s=0, loss=0.01))
(8, 1)
"""

from __future__ import annotations

from testbed.paths import Paths
from testbed.topology import BITS_PER_BYTE, MTU_BYTES, Direction

#: IPv4 and TCP headers of every packet, with time stamps.
HEADER_BYTES = 52
#: What of a message fits into one packet.
SEGMENT_BYTES = MTU_BYTES - HEADER_BYTES

MAX_BUNDLE = 44  # packets of 1500 bytes in 64 KiB, the most that a kernel hands over at once
#: A bundle takes at most this long on the link, in emulated time.  Packets of one burst queue behind each other anyway,
#: so its last byte arrives when it would have; others feel the link coarser by this much.
BUNDLE_S = 0.001

#: Packets that TCP may send before the first acknowledgement: 370 kB.  A message of 300 kB on a path of 20 ms then
#: takes its serialization and 20 ms, instead of five round trips of slow start.
INITIAL_WINDOW_PACKETS = 256
#: ... but never more of the smallest queue of the path than this, or the first burst would drop its own tail.
INITIAL_WINDOW_OF_QUEUE = 0.75

#: The least that TCP's time-out adds to the round trip (Linux: TCP_RTO_MIN), emulated seconds.
RTO_MIN_S = 0.2


def bundle_for(direction: Direction) -> int:
    """How many packets may travel as one: 1 where physics acts on single packets, more where only time counts."""
    if direction.per_packet:
        return 1
    packets = int(direction.rate_bps * BUNDLE_S / (BITS_PER_BYTE * MTU_BYTES))
    in_queue = direction.effective_queue_bytes // (4 * MTU_BYTES)  # a drop costs at most a quarter of the queue
    return max(1, min(packets, in_queue, MAX_BUNDLE))


def initial_window(paths: Paths, source: str, target: str, most: int = INITIAL_WINDOW_PACKETS) -> int:
    """Packets that TCP may send at first from one node to another."""
    queue_bytes = min(direction.effective_queue_bytes for direction in paths.directions(source, target))
    return max(2, min(most, int(INITIAL_WINDOW_OF_QUEUE * queue_bytes / MTU_BYTES)))
