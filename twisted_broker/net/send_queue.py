"""The answers of one connection on their way out: bytes, and slices of files whose bytes are loaded
when the socket takes them.

Owns what was answered and is not yet with the transport.

1. Parts leave in the order in which they came.
2. Each slice is released exactly once: when sent, or when the connection ends.
3. While the transport is full (`full`), it gets nothing; it calls `resume()` when it is ready.
4. One call sends at most `TURN_BYTES` of slices, or the transport's `turn_bytes`; the rest follows
   in the next turn of the reactor.
5. What the system does not hold in memory is first read by another thread, `STRETCH_BYTES` at a
   time: a slow disk holds up those who read from it, not the reactor. One load at a time.
6. A slice that is gone or too short ends the connection: its length has been sent already.

Source: docs/ARCHITECTURE.md 2 (slices). Not here: how bytes reach the socket
(`INetwork.send_slice`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twisted_broker.interfaces import Runtime
from twisted_broker.log.segment_file import FileSlice, SliceGone

# About the 10 ms that one connection may hold the reactor for, at memory speed.
TURN_BYTES = 16 << 20
STRETCH_BYTES = 1 << 20


class SendQueue:
    """`owner.broken(reason)` is called when a slice cannot be sent as announced,
    `owner.resumeProducing()` when a turn's budget was used up.
    """

    __slots__ = (
        "_loading",
        "_owner",
        "_parts",
        "_resident",
        "_runtime",
        "_sent",
        "_transport",
        "_turn_bytes",
        "_write",
        "_write_more",
        "full",
    )

    def __init__(self, transport: Any, runtime: Runtime, owner: Any) -> None:
        self._transport = transport
        self._write: Callable[[bytes], None] = transport.write
        self._write_more: Callable[[bytes], None] = getattr(
            transport, "write_more", transport.write
        )
        self._turn_bytes: int = getattr(transport, "turn_bytes", TURN_BYTES)
        self._runtime = runtime
        self._owner = owner
        self._parts: deque[Any] = deque()
        self._sent = self._resident = 0
        """of the first part, if it is a slice: bytes that were sent, and known to be in memory"""
        self._loading = False
        self.full = False

    def send(self, answer: bytes | list[Any]) -> None:
        """Takes over an answer with its length in front."""
        if type(answer) is bytes:
            if self.full or self._parts:
                self._parts.append(answer)
            else:
                self._write(answer)
            return
        self._parts.extend(answer)
        if self._owner is None:
            self.close()
        else:
            self._write_parts()

    def pause(self) -> None:
        """The transport has enough for now."""
        self.full = True

    def resume(self) -> None:
        """The transport takes bytes again."""
        if not self._loading:
            self.full = False
            self._write_parts()

    def close(self) -> None:
        """Drops what was not sent."""
        self.full = True
        self._owner = None  # no cycle is left (`garbage_collection.py`)
        parts, self._parts = self._parts, deque()
        for part in parts:
            if isinstance(part, FileSlice):
                part.release()

    def _write_parts(self) -> None:
        budget = self._turn_bytes
        parts = self._parts
        while parts and not self.full:
            part = parts[0]
            if not isinstance(part, FileSlice):
                parts.popleft()
                # More follows: the kernel may put it into the same packet (MSG_MORE).
                (self._write_more if parts else self._write)(
                    part if type(part) is bytes else bytes(part)
                )
                continue
            if budget <= 0:
                # A fast reader of a large answer would hold the reactor until all of it is sent.
                self._resume_later()
                return
            try:
                sent = self._send_slice(part, budget)
            except (SliceGone, EOFError, OSError) as reason:
                self._owner.broken(reason)
                return
            budget -= sent
            # The transport calls `resume` when it can take more.
            if not sent:
                self.full = True

    def _send_slice(self, part: FileSlice, budget: int) -> int:
        """Sends what fits; releases the slice when all of it is sent."""
        rest = part.length - self._sent
        sent = 0
        if rest:
            if self._sent >= self._resident and not self._is_resident(part):
                return 0
            sent = self._runtime.network.send_slice(
                self._transport,
                part.open_file(),
                part.position + self._sent,
                min(self._resident - self._sent, budget),
            )
        self._sent += sent
        if self._sent == part.length:
            self._parts.popleft()
            self._sent = self._resident = 0
            part.release()
            return max(sent, 1)  # 0 would mean that the transport is full
        return sent

    def _is_resident(self, part: FileSlice) -> bool:
        """Whether the next stretch can be sent at once; else it is loaded, and then sent."""
        stretch = min(part.length - self._sent, STRETCH_BYTES)
        if part.is_resident(self._sent, stretch):
            self._resident = self._sent + stretch
            return True
        self._loading = True
        part.load(self._sent, stretch, lambda error: self._loaded(part, stretch, error))
        return False

    def _loaded(self, part: FileSlice, stretch: int, error: BaseException | None) -> None:
        self._loading = False
        if not self._parts or self._parts[0] is not part:
            return  # the connection ended meanwhile
        if isinstance(error, Exception):
            self._owner.broken(error)
            return
        # Not looked at again: what was dropped already would be loaded for ever.
        self._resident = self._sent + stretch
        self._owner.resumeProducing()

    def _resume_later(self) -> None:
        self.full = True
        self._runtime.clock.callLater(0, self._owner.resumeProducing)
