"""What is served over HTTP: `/`, `/metrics`, `/explain/TOPIC/PARTITION`.

Owns the resources and the site. Only reads; anything else is 404, or 405, with one line.

1. An answer is made in one go, when it is requested; `/metrics` is made in pieces
   (`status/metrics_resource.py`).

Source: `twisted.web`. Loaded with the first connection (`status/http_server.py`).
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request
from twisted.web.resource import Resource
from twisted.web.server import Site

from twisted_broker.interfaces import IClock, TopicPartition
from twisted_broker.status.metrics_resource import Scrapes
from twisted_broker.status.overview_page import page
from twisted_broker.status.view import BrokerView

_TEXT, _HTML, _JSON = "text/plain; charset=utf-8", "text/html; charset=utf-8", "application/json"
# Longer than the pauses of a Prometheus that scrapes every 15 or 30 s.
_IDLE_SECONDS = 60
_logger = Logger(namespace="replog.status")


class StatusResource(Resource):
    """All paths."""

    isLeaf = True

    def __init__(self, view: BrokerView) -> None:
        Resource.__init__(self)
        self._view = view
        self._scrapes = Scrapes(view)

    def render_GET(self, request: Request) -> bytes | int:
        """Never raises: what goes wrong here is 500 and a traceback in our log."""
        if request.path == b"/metrics":
            return self._scrapes.answer(request)
        try:
            code, kind, body = self._answer(request)
        except Exception:
            # A bug in a page must not end the broker's turn, nor hide as an empty answer.
            _logger.failure("answering GET {path} failed", path=request.path)
            code, kind, body = 500, _TEXT, b"this answer failed; the broker's log says why\n"
        request.setResponseCode(code)
        request.setHeader("content-type", kind)
        request.setHeader("cache-control", "no-store")
        return body

    def render_POST(self, request: Request) -> bytes:
        request.setResponseCode(405)
        request.setHeader("content-type", _TEXT)
        return b"only GET is served here\n"

    render_PUT = render_DELETE = render_PATCH = render_POST

    def _answer(self, request: Request) -> tuple[int, str, bytes]:
        parts = [unquote(part.decode("latin-1")) for part in (request.path or b"").split(b"/")[1:]]
        if parts == [""]:
            topics = (request.args or {}).get(b"topic")
            return (
                200,
                _HTML,
                page(
                    self._view, None if not topics else topics[0].decode(errors="replace")
                ).encode(),
            )
        if len(parts) == 3 and parts[0] == "explain":
            return self._explain(parts[1], parts[2])
        return 404, _TEXT, b"there are /, /metrics and /explain/TOPIC/PARTITION\n"

    def _explain(self, topic: str, number: str) -> tuple[int, str, bytes]:
        found = (
            self._view.describe(TopicPartition(topic, int(number)))
            # isdecimal() alone lets other scripts' digits through.
            if number.isascii() and number.isdecimal()
            else None
        )
        if found is None:
            return (
                404,
                _TEXT,
                (
                    f"broker {self._view.parts.node_id} knows no partition {number!r} of "
                    f"{topic!r}\n"
                ).encode(),
            )
        return 200, _JSON, json.dumps(found, indent=1).encode() + b"\n"


class StatusChannel(HTTPChannel):
    """A connection. It runs over the broker's own transport, too, so it has `receive_space`."""

    factory: Any

    def receive_space(self) -> None:
        """Nowhere: `dataReceived` takes it."""
        return

    def connectionMade(self) -> None:
        self.factory.channels.add(self)
        HTTPChannel.connectionMade(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.factory.channels.discard(self)
        HTTPChannel.connectionLost(self, reason)


class StatusSite(Site):
    """`doStart` is not called: there is no access log."""

    protocol = StatusChannel  # type: ignore[assignment]

    def __init__(self, view: BrokerView, clock: IClock) -> None:
        Site.__init__(
            self,
            StatusResource(view),
            reactor=clock,
            timeout=_IDLE_SECONDS,
            parsePOSTFormSubmission=False,
        )
        self.channels: set[Protocol] = set()
