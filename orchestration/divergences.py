"""Turns the logits that agents send into one number per request, and drops them.

Where time is virtual this happens at once.  Where it is not, a comparison takes longer than may be taken from a run
that is under way (``docs/metrics.md``), so logits wait in a file until the run is over.

Logits equal to the reference's bit for bit are not sent: their divergence is zero because they are the same.
"""

from __future__ import annotations

from collections.abc import Callable

from agents.logits import array_of
from agents.models.mixture import Floats
from agents.models.quality import kl_divergence
from agents.protocol import Logits, ProtocolError
from orchestration.logitsfile import LogitsFile
from orchestration.references import References

#: Takes what an agent sends of a pass's end.
Hear = Callable[[Logits], None]

#: Which logits: the request, and their digest, so that nothing is said of a pass other than the one that answered.
Pass = tuple[int, bytes]


class Divergences:
    """KL divergences of one run from its references; ``found`` holds the mean over positions, in nats."""

    def __init__(self, references: References, *, later: LogitsFile | None = None) -> None:
        """With ``later``, logits wait there for ``settle``."""
        self._references = references
        self._later = later
        self._waiting: list[Pass] = []
        self.found: dict[Pass, float] = {}
        self.complaints: list[str] = []

    def hear(self, report: Logits) -> None:
        """Take what an agent sends; logits that fit no request, or nowhere, are left out with a complaint."""
        about = report.request, report.digest
        reference = self._references.get(report.request)
        if reference is None or report.digest == reference.digest:
            return
        try:
            served = array_of(report)
        except ProtocolError as error:
            self.complaints.append(str(error))
            return
        if self._later is None:
            self._judge(about, served)
        elif self._later.keep(about, served):
            self._waiting.append(about)
        else:
            self.complaints.append(f"no room for the logits of request {report.request}: its divergence is not known")

    def settle(self, *, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Compare what has waited, until interrupted."""
        for about in self._waiting:
            if interrupted():
                break
            served = self._later.read(about) if self._later is not None else None
            if served is not None:
                self._judge(about, served)
        self._waiting.clear()

    @property
    def waiting(self) -> int:
        """How many passes wait for ``settle``."""
        return len(self._waiting)

    def _judge(self, about: Pass, served: Floats) -> None:
        reference = self._references.logits(about[0])
        if reference.shape != served.shape:
            self.complaints.append(f"the logits of request {about[0]} have shape {served.shape}, not {reference.shape}")
            return
        self.found[about] = float(kl_divergence(reference, served).mean())


def ignored(report: Logits) -> None:
    """Takes logits and does nothing with them: where only the load of the machine is asked for."""
