"""The site over HTTP: the pages `/`, `/topics/TOPIC` and `/explain/TOPIC/PARTITION` (JSON for
programs), `/explain/GROUP` (JSON), `/live/`, `/metrics`, `/healthz`, `/readyz`.

Owns the resources, the site and its connections. Only reads; anything else is refused in one line.

1. An answer is made when it is requested, a page in pieces between which others are served, and
   sent when it is whole; `/metrics` is in `metrics_resource.py`. When its client goes, the rest is
   not made.
2. A request whose Host is another's is 421: a page elsewhere on the web may have its own name lead
   to 127.0.0.1 (DNS rebinding), and a browser would let it read the answer. Addresses, names of
   the loopback and the hosts of `listeners` and `advertised.listeners` are ours.
3. Every answer, also a refusal, forbids the browser scripts, frames, guesses at what it is, and
   whatever is not from here (`html.py`); but `/live/` has a script, which only reads.
4. A request has no body: one is refused after its headers and nothing of it is read, for
   `twisted.web` would store it. A request is whole within `REQUEST_SECONDS` of the connection or of
   the answer before it, and its answer is taken within as many: no byte moves a deadline.

Source: `twisted.web`. Loaded with the first connection (`status/http_server.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import ensureDeferred
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from twisted_broker.interfaces import Health, IClock, IDelayedCall, TopicPartition
from twisted_broker.java_numbers import is_digits
from twisted_broker.net.listeners import parse_endpoints
from twisted_broker.status.health import live, ready
from twisted_broker.status.html import HEADERS, ICON, ClientGone, Pauses
from twisted_broker.status.live_page import file_of, policy
from twisted_broker.status.live_state import LiveState
from twisted_broker.status.metrics_resource import Scrapes
from twisted_broker.status.overview_page import Wanted, number, overview
from twisted_broker.status.partition_pages import explain_page, topic_page
from twisted_broker.status.view import BrokerView

_TEXT, _HTML, _JSON = "text/plain; charset=utf-8", "text/html; charset=utf-8", "application/json"
# Longer than the pauses of a Prometheus that scrapes every 15 or 30 s.
REQUEST_SECONDS = 60
_REASONS = {
    400: b"Bad Request",
    405: b"Method Not Allowed",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
}
_PATHS = (
    b"there are /, /topics/TOPIC, /explain/TOPIC/PARTITION, /explain/GROUP, /live/, /metrics, "
    b"/healthz, /readyz\n"
)
_logger = Logger(namespace="replog.status")


def host_name(host: str) -> str:
    """The name or address in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".").lower()


class StatusResource(Resource):
    """All paths."""

    isLeaf = True

    def __init__(self, view: BrokerView, health: Callable[[], Health]) -> None:
        Resource.__init__(self)
        self._view, self._health = view, health
        self._scrapes = Scrapes(view)
        self._live: LiveState | None = None

    def render(self, request: Request) -> Any:
        host = request.getHeader(b"host")
        if host is None or self._is_ours(host.decode("latin-1")):
            return Resource.render(self, request)
        request.setResponseCode(421)
        request.setHeader("content-type", _TEXT)
        return (
            b"this is not the host that the request names: use 127.0.0.1, localhost, or a host of "
            b"listeners or advertised.listeners\n"
        )

    def _is_ours(self, host: str) -> bool:
        name = host_name(host)
        if isIPAddress(name) or isIPv6Address(name) or f".{name}".endswith(".localhost"):
            return True
        config = self._view.parts.config
        return any(
            each.host.lower() == name
            for setting in ("listeners", "advertised.listeners")
            for each in parse_endpoints(setting, config.names(setting))
        )

    def render_GET(self, request: Request) -> bytes | int:
        """Never raises: what goes wrong here is 500 and a traceback in our log."""
        if request.path == b"/metrics":
            return self._scrapes.answer(request)
        parts = self._view.parts
        pauses = Pauses(parts.turns, parts.runtime.clock)
        request.notifyFinish().addErrback(lambda _: setattr(pauses, "is_client_gone", True))
        ensureDeferred(self._respond(request, pauses))
        return NOT_DONE_YET

    async def _respond(self, request: Request, pauses: Pauses) -> None:
        try:
            code, kind, body = await self._answer(request, pauses)
        except ClientGone:
            return
        except Exception:
            # A bug in a page must not end the broker's turn, nor hide as an empty answer.
            _logger.failure("answering GET {path} failed", path=request.path)
            code, kind, body = 500, _TEXT, b"this answer failed; the broker's log says why\n"
        if pauses.is_client_gone:
            return
        request.setResponseCode(code)
        request.setHeader("content-type", kind)
        request.setHeader("cache-control", "no-store")
        request.setHeader("content-length", str(len(body)))
        request.write(body)
        request.finish()

    async def _answer(self, request: Request, pauses: Pauses) -> tuple[int, str, bytes]:
        parts = [unquote(part.decode("latin-1")) for part in (request.path or b"").split(b"/")[1:]]
        arguments: Mapping[bytes, list[bytes]] = request.args or {}
        if parts == [""]:
            return 200, _HTML, await overview(self._view, pauses, Wanted.of(arguments))
        if parts == ["healthz"]:
            code, body = live(self._health())
            return code, _JSON, body
        if parts == ["readyz"]:
            code, body = ready(self._health())
            return code, _TEXT, body
        if parts == ["icon.svg"]:
            return 200, "image/svg+xml", ICON
        if parts[0] == "live" and len(parts) == 2:
            found = await self._of_live(request, pauses, parts[1], arguments)
            if found is not None:
                return found
        if len(parts) == 2 and parts[0] == "topics":
            page = await topic_page(self._view, pauses, parts[1], number(arguments, b"from"))
            if page is not None:
                return 200, _HTML, page
            return 404, _TEXT, f"node {self._node} knows no topic {parts[1]!r}\n".encode()
        if len(parts) == 2 and parts[0] == "explain":
            return await self._explain_group(pauses, parts[1])
        if len(parts) == 3 and parts[0] == "explain":
            return await self._explain(request, pauses, parts[1], parts[2])
        return 404, _TEXT, _PATHS

    async def _of_live(
        self,
        request: Request,
        pauses: Pauses,
        name: str,
        arguments: Mapping[bytes, list[bytes]],
    ) -> tuple[int, str, bytes] | None:
        """Of the page that follows this broker; None: there is no such file."""
        if name == "state":
            if self._live is None:
                self._live = LiveState(uuid4().hex)
            wall_ms = self._view.now().wall_ms
            await pauses.run(self._live.look([self._view.parts], {}, wall_ms))
            (of,) = arguments.get(b"of", [b""])[:1]
            found = self._live.since(number(arguments, b"since"), of.decode("latin-1"), wall_ms)
            return 200, _JSON, json.dumps(found).encode()
        if name not in ("", "page.js"):
            return None
        request.setHeader("content-security-policy", policy())
        return 200, *file_of(name or "page.html")

    @property
    def _node(self) -> int:
        return self._view.parts.node_id

    async def _explain_group(self, pauses: Pauses, group: str) -> tuple[int, str, bytes]:
        found: list[dict[str, Any]] = []
        await pauses.run(self._view.describe_group(group, found))
        if not found:
            line = f"broker {self._node} coordinates no group {group!r}\n"
            return 404, _TEXT, line.encode()
        return 200, _JSON, json.dumps(found[0], indent=1).encode() + b"\n"

    async def _explain(
        self, request: Request, pauses: Pauses, topic: str, text: str
    ) -> tuple[int, str, bytes]:
        found = (
            self._view.describe(TopicPartition(topic, int(text)))
            if is_digits(text) and len(text) < 10
            else None
        )
        if found is None:
            return (
                404,
                _TEXT,
                f"broker {self._node} knows no partition {text!r} of {topic!r}\n".encode(),
            )
        controller = self._view.parts.controller
        why = "" if controller is None else controller.log.why_no_leader
        if why:
            found["no_active_controller"] = why
        # Programs get JSON, and so does a request for it; a browser asks for HTML.
        request.setHeader("vary", "accept")
        if b"text/html" in (request.getHeader(b"accept") or b"") and (request.args or {}).get(
            b"format"
        ) != [b"json"]:
            return 200, _HTML, await explain_page(self._view, pauses, found)
        return 200, _JSON, json.dumps(found, indent=1).encode() + b"\n"


class StatusChannel(HTTPChannel):
    """A connection. It runs over the broker's own transport, too, so it has `receive_space`."""

    factory: Any
    _deadline: IDelayedCall
    _is_ended = False
    _command = b""

    def receive_space(self) -> None:
        """Nowhere: `dataReceived` takes it."""
        return

    def connectionMade(self) -> None:
        self.factory.reading[self] = None
        self._deadline = self.factory.clock.callLater(REQUEST_SECONDS, self.end)
        HTTPChannel.connectionMade(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._forget()
        HTTPChannel.connectionLost(self, reason)

    def _forget(self) -> None:
        self._is_ended = True
        self.factory.reading.pop(self, None)
        self.factory.answering.pop(self, None)
        if self._deadline.active():
            self._deadline.cancel()

    def end(self) -> None:
        """In any state; the transport bounds how long the peer may take to go."""
        self._forget()
        channel: Any = self
        channel.stopProducing()
        channel.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        if not self._is_ended:
            LineReceiver.dataReceived(
                self, data
            )  # past HTTPChannel, whose deadline each byte moves

    def headerReceived(self, line: bytes) -> bool:
        try:
            return bool(HTTPChannel.headerReceived(self, line))
        except ValueError:  # a length of more digits than Python reads
            self._respondToBadRequestAndDisconnect()
            return False

    def allHeadersReceived(self) -> None:
        headers = self.requests[-1].requestHeaders
        hosts = len(headers.getRawHeaders(b"host", []))
        if self._command not in (b"GET", b"HEAD"):
            self._refuse(405, "only GET and HEAD are served here")
        elif self.length != 0 or headers.hasHeader(b"transfer-encoding"):
            self._refuse(413, "a request here has no body")
        elif hosts > 1 or (not hosts and self._version == b"HTTP/1.1"):
            self._refuse(400, "a request of HTTP/1.1 has one Host header")
        else:
            HTTPChannel.allHeadersReceived(self)

    def allContentReceived(self) -> None:
        if self._is_ended:
            return  # refused
        self.factory.answering[self] = self.factory.reading.pop(self)
        self._deadline.reset(REQUEST_SECONDS)
        HTTPChannel.allContentReceived(self)

    def requestDone(self, request: Request) -> None:
        if not self._is_ended:
            self.factory.reading[self] = self.factory.answering.pop(self)
            self._deadline.reset(REQUEST_SECONDS)
        HTTPChannel.requestDone(self, request)

    def lineLengthExceeded(self, line: bytes) -> None:
        self._refuse(431, "the headers are too long")

    def _respondToBadRequestAndDisconnect(self) -> None:
        if (
            self._receivedHeaderSize > self.totalHeadersSize
            or self._receivedHeaderCount > self.maxHeaders
        ):
            self._refuse(431, "the headers are too long")
        else:
            self._refuse(400, "this is no request of HTTP/1.1")

    def _refuse(self, code: int, line: str) -> None:
        """The last answer on this connection."""
        if self._is_ended:
            return
        body = f"{line}\n".encode()
        headers = Headers()
        headers.setRawHeaders("content-type", [_TEXT])
        headers.setRawHeaders("content-length", [str(len(body))])
        headers.setRawHeaders("connection", ["close"])
        if code == 405:
            headers.setRawHeaders("allow", ["GET, HEAD"])
        self.writeHeaders(b"HTTP/1.1", b"%d" % code, _REASONS[code], headers)
        if self._command != b"HEAD":
            transport: Any = self.transport
            transport.write(body)
        self.end()

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:
        for name, value in HEADERS.items():
            if not headers.hasHeader(name):
                headers.setRawHeaders(name, [value])
        HTTPChannel.writeHeaders(self, version, code, reason, headers)


class StatusSite(Site):
    """`doStart` is not called: there is no access log. `reading`, `answering`: the connections that
    wait for a request, and those whose request is being answered, the oldest first.
    """

    protocol = StatusChannel  # type: ignore[assignment]

    def __init__(self, view: BrokerView, clock: IClock, health: Callable[[], Health]) -> None:
        Site.__init__(
            self,
            StatusResource(view, health),
            reactor=clock,
            timeout=None,  # deadlines are ours
            parsePOSTFormSubmission=False,
        )
        self.clock = clock
        self.reading: dict[StatusChannel, None] = {}
        self.answering: dict[StatusChannel, None] = {}

    def make_room(self, most: int) -> None:
        """For one more of at most so many: the oldest that has not asked yet goes, then the oldest
        of all.
        """
        if len(self.reading) + len(self.answering) >= most:
            next(iter(self.reading or self.answering)).end()
