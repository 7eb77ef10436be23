"""What lies between two ends of a relayed connection: a way that can be cut or slowed down, and the
pumps that carry bytes along it.

1. What a cut way does not let through waits, as lost packets wait to be sent again: bytes,
   connections, and that an end has closed.
2. Each way of a connection is on its own: with one cut, the other still carries.
3. A pump holds 1 MB; then its source is not read any more, as with a full window.

Not here: lost, doubled and reordered bytes, which TCP mends anyway.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque

_MOST_WAITING = 1 << 20
_NO_LINGER = struct.pack("ii", 1, 0)


def reset(transport: asyncio.Transport) -> None:
    """Breaks a connection: its other end is told by a reset, not by an end of the stream."""
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER
        )
        transport.abort()


class RelayLink:
    """From one name to another."""

    def __init__(self) -> None:
        self.is_cut = False
        self.delay = 0.0
        self.pumps: set[Pump] = set()
        self._opened = asyncio.Event()

    async def open(self) -> None:
        """Returns when it is not cut."""
        while self.is_cut:
            self._opened.clear()
            await self._opened.wait()

    def changed(self) -> None:
        self._opened.set()
        for pump in list(self.pumps):
            pump.go_on()


class Pump:
    """One direction of one connection: from what `source` gives to where `write` and `close`
    take it.
    """

    def __init__(
        self, way: RelayLink, source: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.way, self.source, self.loop = way, source, loop
        self.sink: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._ended = self._is_timed = False
        way.pumps.add(self)

    def feed(self, data: bytes) -> None:
        self._waiting.append((self.loop.time() + self.way.delay, data))
        self._size += len(data)
        if self._size > _MOST_WAITING:
            self.source.pause_reading()
        self.go_on()

    def end(self) -> None:
        """The source has closed."""
        self._ended = True
        self.go_on()

    def go_on(self) -> None:
        """Passes on what is due."""
        if self.sink is None or self.way.is_cut:
            return
        now = self.loop.time()
        while self._waiting and (self._waiting[0][0] <= now or not self.way.delay):
            _, data = self._waiting.popleft()
            self._size -= len(data)
            if not self.sink.is_closing():
                self.sink.write(data)
        if self._size <= _MOST_WAITING and not self.source.is_closing():
            self.source.resume_reading()
        if self._waiting:
            self._again_at(self._waiting[0][0])
        elif self._ended:
            self.forget()
            self.sink.close()

    def _again_at(self, when: float) -> None:
        if not self._is_timed:
            self._is_timed = True
            self.loop.call_at(when, self._timed)

    def _timed(self) -> None:
        self._is_timed = False
        self.go_on()

    def forget(self) -> None:
        self.way.pumps.discard(self)
