"""`/metrics` over HTTP: made in turns of the reactor, and sent as fast as it is read. Ring 1.

Owns the scrape that is under way, and who waits for it.

1. A scrape is background work of the broker (`turns.py`): nobody waits for all of it. Who comes
   while one is under way gets the same.
2. It is sent in pieces of `PIECE_BYTES`, while the connection takes them: a reader that stops holds
   the text of one scrape, nobody else.
3. A failure is 500 and a traceback in our log.

Source: `twisted.web`. Not here: what is in it (`status/metrics.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.web.http import Request
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from twisted_broker.interfaces import IClock
from twisted_broker.status.metric_text import CONTENT_TYPE, Exposition
from twisted_broker.status.metrics import BrokerCollector
from twisted_broker.status.process_figures import process_figures
from twisted_broker.status.view import BrokerView

PIECE_BYTES = 1 << 16
_logger = Logger(namespace="replog.status")


class Scrapes:
    """All scrapes of one node."""

    def __init__(self, view: BrokerView) -> None:
        self._view = view
        self._collector = BrokerCollector(view, process_figures)
        self._waiting: list[Request] = []

    def answer(self, request: Request) -> int:
        """Ends the request later."""
        self._waiting.append(request)
        if len(self._waiting) == 1:
            self._view.parts.turns.start(self._steps())
        return NOT_DONE_YET

    def _steps(self) -> Iterator[None]:
        out = Exposition()
        try:
            yield from self._collector.collect(out)
            pieces: list[bytes] = []
            for piece in out.text(PIECE_BYTES):
                pieces.append(piece)
                yield
        except Exception:
            # A bug here must not leave who waits without an answer.
            _logger.failure("the metrics failed")
            self._end(
                500, "text/plain; charset=utf-8", [b"this failed; the broker's log says why\n"]
            )
            return
        self._end(200, CONTENT_TYPE, pieces)

    def _end(self, code: int, kind: str, pieces: list[bytes]) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if request.channel is None or getattr(request, "_disconnected", False):
                continue  # it has gone
            request.setResponseCode(code)
            request.setHeader("content-type", kind)
            request.setHeader("cache-control", "no-store")
            request.setHeader("content-length", str(sum(map(len, pieces))))
            Sender(request, pieces, self._view.parts.runtime.clock).send()


@implementer(IPushProducer)
class Sender:
    """One answer on its way."""

    def __init__(self, request: Request, pieces: list[bytes], clock: IClock) -> None:
        self._request: Any = request
        self._pieces = deque(pieces if request.method != b"HEAD" else ())
        self._clock = clock
        self._is_paused = self._is_due = False

    def send(self) -> None:
        self._request.registerProducer(self, True)
        self._send_piece()

    def _send_piece(self) -> None:
        self._is_due = False
        if self._request is None or self._is_paused:
            return
        if self._pieces:
            self._request.write(self._pieces.popleft())
        if self._request is None:
            return  # it has gone meanwhile
        if not self._pieces:
            request, self._request = self._request, None
            request.unregisterProducer()
            request.finish()
        elif not self._is_paused:
            self._is_due = True
            self._clock.callLater(0, self._send_piece)

    def pauseProducing(self) -> None:
        self._is_paused = True

    def resumeProducing(self) -> None:
        self._is_paused = False
        if not self._is_due:
            self._is_due = True
            self._clock.callLater(0, self._send_piece)

    def stopProducing(self) -> None:
        self._request = None
        self._pieces.clear()
