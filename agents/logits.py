"""Which logits an agent hands to its orchestrator, so that quality can be judged from whole distributions.

They go over the management plane, never over an emulated link: a real server would not send them.  Only the pass of a
``score`` has any, only a model that computes them, and only where they are not bit for bit the reference's, whose
digests the orchestrator told beforehand as far as it knew them.  A framework that loses nothing costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import numpy as np

from agents.models.mixture import Floats
from agents.protocol import MAX_LOGITS_BYTES, Logits, ProtocolError

#: Request, digest, logits of one score pass.
Tell = Callable[[int, bytes, Floats], None]


def teller(report: Callable[[Logits], None], *, known: Set[bytes], limit_bytes: int = MAX_LOGITS_BYTES) -> Tell:
    """What an engine calls where a score pass ends; ``known`` holds digests of logits that need not be sent."""

    def tell(request: int, digest: bytes, logits: Floats) -> None:
        if digest not in known and logits.nbytes <= limit_bytes:
            values = np.ascontiguousarray(logits, dtype="<f4").tobytes()
            report(Logits(request=request, digest=digest, rows=len(logits), values=values))

    return tell


def array_of(report: Logits) -> Floats:
    """The logits of a report, (rows, vocab); ProtocolError when its sizes contradict each other."""
    size_bytes = len(report.values)
    if report.rows < 1 or size_bytes > MAX_LOGITS_BYTES or not size_bytes or size_bytes % (4 * report.rows):
        raise ProtocolError(f"the logits of request {report.request}: {size_bytes} bytes are not {report.rows} rows")
    return np.frombuffer(report.values, dtype="<f4").reshape(report.rows, -1)
