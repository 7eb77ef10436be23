"""Clients' requests and answers: the last frames, decoded when somebody asks.

Owns `Trace`, a ring of frames, and `Exchange`, a request with its answer.

1. Frames are kept as they came, at most so many bytes of them; nothing is decoded meanwhile.
2. What cannot be read (another protocol, TLS) is no exchange; the connection is kept all the same.
3. The test's own requests (`topic(..)`, `group(..)`) are not in it.

Source: our own. Not here: files (`trace_files.py`), what must hold (`told.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

from twisted_broker.api.routes import ROUTES
from twisted_broker.testing.cluster_calls import OWN_CLIENT
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.header import decode_request_header, decode_response_header
from twisted_broker.wire.schema import decode

MOST_BYTES = 64 << 20
_LENGTH = Struct(">i")
_ROUTES = {route.api_key: route for route in ROUTES}
_MOST_FRAME = 1 << 28


class Frame(NamedTuple):
    """`is_request`: it came from the client. `at`: seconds of the cluster's clock."""

    at: float
    connection: int
    is_request: bool
    content: bytes


class Peer(NamedTuple):
    """Of a connection: whose it is, and both addresses (host, port)."""

    machine: str
    client: tuple[str, int]
    served: tuple[str, int]


class Exchange(NamedTuple):
    """A request, and its answer, None where there is none (yet). `ended`: when it was given."""

    at: float
    peer: Peer
    connection: int
    client_id: str | None
    api: str
    version: int
    request: Any
    ended: float | None
    answer: Any


class _Framing:
    """Frames of one direction, out of the pieces that come."""

    __slots__ = ("_is_foreign", "_pieces")

    def __init__(self) -> None:
        self._pieces, self._is_foreign = bytearray(), False

    def fed(self, data: bytes) -> Iterator[bytes]:
        """Those that are whole now, without their length."""
        if self._is_foreign:
            return
        if not self._pieces and len(data) > 4 and _LENGTH.unpack_from(data)[0] == len(data) - 4:
            yield data[4:]
            return
        pieces = self._pieces
        pieces += data
        while len(pieces) >= 4:
            length = _LENGTH.unpack_from(pieces)[0]
            if not 0 <= length <= _MOST_FRAME:
                self._is_foreign = True
                pieces.clear()
                return
            if len(pieces) < 4 + length:
                return
            yield bytes(pieces[4 : 4 + length])
            del pieces[: 4 + length]


class Trace:
    """Of a cluster."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._bytes = most_bytes, 0
        self.frames: deque[Frame] = deque()
        self.peers: dict[int, Peer] = {}
        self._framing: dict[tuple[int, bool], _Framing] = {}
        self._count = 0

    def opened(self, peer: Peer) -> int:
        """A connection; its number."""
        self._count += 1
        self.peers[self._count] = peer
        return self._count

    def closed(self, connection: int) -> None:
        """Nothing comes on it any more; its frames stay."""
        for is_request in (True, False):
            self._framing.pop((connection, is_request), None)

    def fed(self, at: float, connection: int, is_request: bool, data: bytes) -> None:
        """Bytes that came, or went."""
        framing = self._framing.get((connection, is_request))
        if framing is None:
            framing = self._framing[connection, is_request] = _Framing()
        for content in framing.fed(data):
            self.frames.append(Frame(at, connection, is_request, content))
            self._bytes += len(content)
        while self._bytes > self._most:
            self._bytes -= len(self.frames.popleft().content)

    def exchanges(self) -> list[Exchange]:
        """By the time of their requests."""
        found: list[Exchange | None] = []
        waiting: dict[tuple[int, int], int] = {}
        for frame in self.frames:
            if frame.is_request:
                exchange = self._request(frame)
                if exchange is not None:
                    (correlation,) = _LENGTH.unpack_from(frame.content, 4)
                    waiting[frame.connection, correlation] = len(found)
                    found.append(exchange)
                continue
            if len(frame.content) < 4:
                continue
            place = waiting.pop((frame.connection, *_LENGTH.unpack_from(frame.content)), None)
            if place is not None:
                known = found[place]
                assert known is not None
                found[place] = _answered(known, frame)
        return [each for each in found if each is not None and each.client_id != OWN_CLIENT]

    def count(self, api: str) -> int:
        """How many requests of an API clients sent."""
        keys = [route.api_key.to_bytes(2, "big") for route in ROUTES if route.name == api]
        own = OWN_CLIENT.encode()
        return sum(
            frame.is_request
            and frame.content[:2] in keys
            and frame.content[10 : 10 + len(own)] != own
            for frame in self.frames
        )

    def _request(self, frame: Frame) -> Exchange | None:
        try:
            header, offset = decode_request_header(frame.content)
            route = _ROUTES[header.api_key]
            request = decode(route.request_class(), frame.content, header.api_version, offset)
        except (KeyError, WireError):
            return None
        return Exchange(
            frame.at,
            self.peers[frame.connection],
            frame.connection,
            header.client_id,
            route.name,
            header.api_version,
            request,
            None,
            None,
        )


def _answered(known: Exchange, frame: Frame) -> Exchange:
    route = next(each for each in ROUTES if each.name == known.api)
    try:
        _, offset = decode_response_header(frame.content, route.api_key, known.version)
        answer = decode(route.response_class(), frame.content, known.version, offset)
    except WireError:
        answer = None
    return known._replace(ended=frame.at, answer=answer)
