"""What a home server does: admits requests, begins their passes, and ends each one in a result or an explicit error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from agents.channel import Channel
from agents.clock import Clock
from agents.errors import FrameworkError
from agents.frameworks.base import Arrival, Framework, View
from agents.protocol import TOKEN_ID_BYTES, Announce, Answer, Array, Done, Enter, Failed, Submit, Ticket
from agents.routing import check_notes
from testbed.errors import TestbedError

Begin = Callable[[Ticket, Array, float], None]


@dataclass(slots=True)
class _Request:
    """A request under way whose home is here."""

    submit: Submit
    sent_s: float
    first_token_s: float | None = None
    tokens: list[int] = field(default_factory=list)  # generated so far
    digests: list[bytes] = field(default_factory=list)


class Home:
    """The requests of the users of one server."""

    def __init__(
        self,
        *,
        server: str,
        clock: Clock,
        channel: Channel,
        framework: Framework,
        view: View,
        begin: Begin,
        report: Callable[[Done], None],
    ) -> None:
        """``begin`` starts a pass on this very server; ``report`` takes the end of a request."""
        self._server = server
        self._clock = clock
        self._channel = channel
        self._framework = framework
        self._view = view
        self._begin = begin
        self._report = report
        self._requests: dict[int, _Request] = {}

    async def submit(self, submit: Submit) -> None:
        """Admit a request at its planned moment."""
        await self._clock.sleep_until_s(submit.at_s)
        request = _Request(submit=submit, sent_s=self._clock.now_s())
        self._requests[submit.request] = request
        arrival = Arrival(
            request=submit.request,
            kind=submit.kind,
            home=self._server,
            tokens=len(submit.tokens),
            output_tokens=submit.output_tokens,
        )
        try:
            entry = self._framework.enter(arrival, self._view)
            if entry not in self._view.cluster.names:
                raise FrameworkError(f"{self._framework.name}: the entry server {entry!r} does not exist")
            notes = self._framework.notes(arrival, self._view)
            check_notes(notes, self._framework.name)
            announced = self._framework.announce(arrival, self._view)
            check_notes(announced, self._framework.name, what="announcements")
        except TestbedError as error:
            self._fail(submit.request, str(error))
            return
        except (Exception, SystemExit) as error:  # a framework of the user's may raise anything
            self._fail(submit.request, f"{self._framework.name}: {type(error).__name__}: {error}")
            return
        ticket = Ticket(
            request=submit.request,
            kind=submit.kind,
            home=self._server,
            step=0,
            start=0,
            deadline_s=submit.deadline_s,
            path=[],
            sampling=submit.sampling,
            notes=notes,
        )
        self._enter(ticket, submit.tokens, entry, ready_s=request.sent_s)
        if announced:
            for server in self._view.cluster.names:
                if server != self._server:
                    self._channel.send(server, Announce(text=announced))

    def heard(self, source: str, announce: Announce) -> None:
        """Another home tells of a request.  FrameworkError if the framework cannot do with it."""
        try:
            self._framework.heard(source, announce.text, self._view)
        except TestbedError:
            raise
        except (Exception, SystemExit) as error:  # a framework of the user's may raise anything
            raise FrameworkError(f"{self._framework.name}: {type(error).__name__}: {error}") from error

    def answered(self, answer: Answer, nll: Array, top1: Array) -> None:
        """A pass came back: the end of a ``score``, one more token of a ``generate``."""
        ticket = answer.ticket
        request = self._requests.get(ticket.request)
        if request is None:
            return  # it has failed in the meantime
        now_s = self._clock.now_s()
        request.digests.append(answer.digest)
        if ticket.kind == "score":
            self._end(request, ticket, now_s, nll=nll.tolist(), top1=top1.tolist())
            return
        request.tokens.append(int(top1[-1]))
        if request.first_token_s is None:
            request.first_token_s = now_s
        if len(request.tokens) >= request.submit.output_tokens:
            self._end(request, ticket, now_s, nll=[], top1=request.tokens)
            return
        ticket.start = len(request.submit.tokens) + ticket.step
        ticket.step += 1
        ticket.quality_spent = 0.0
        self._enter(ticket, request.tokens[-1:], ticket.path[0], ready_s=now_s)

    def failed(self, failure: Failed) -> None:
        """A pass cannot go on."""
        self._fail(failure.request, failure.reason)

    def expire(self) -> None:
        """End the requests whose deadline has passed."""
        now_s = self._clock.now_s()
        for number, request in list(self._requests.items()):
            if now_s > request.submit.deadline_s:
                allowed_s = request.submit.deadline_s - request.submit.at_s
                self._fail(number, f"no answer within {allowed_s:g} s")

    def _enter(self, ticket: Ticket, tokens: list[int], entry: str, *, ready_s: float) -> None:
        array = np.array(tokens, dtype=np.int32)
        if entry == self._server:
            self._begin(ticket, array, ready_s)
            return
        size_bytes = TOKEN_ID_BYTES * len(tokens)
        ticket.sent_bytes += size_bytes
        self._channel.send(entry, Enter(ticket=ticket), (array,), size_bytes)

    def _end(self, request: _Request, ticket: Ticket, now_s: float, *, nll: list[float], top1: list[int]) -> None:
        del self._requests[ticket.request]
        after_first = len(request.tokens) - 1
        first_s = request.first_token_s
        self._report(
            Done(
                request=ticket.request,
                home=self._server,
                sent_s=request.sent_s,
                finished_s=now_s,
                ttft_s=None if first_s is None else first_s - request.submit.at_s,
                tpot_s=None if first_s is None or after_first < 1 else (now_s - first_s) / after_first,
                moves=ticket.moves,
                sent_bytes=ticket.sent_bytes,
                quality_spent=ticket.quality_spent,
                late_s=ticket.late_s,
                nll=nll,
                top1=top1,
                digest=b"".join(request.digests),
            )
        )

    def _fail(self, number: int, reason: str) -> None:
        request = self._requests.pop(number, None)
        if request is None:
            return
        now_s = self._clock.now_s()
        self._report(Done(request=number, home=self._server, sent_s=request.sent_s, finished_s=now_s, error=reason))
