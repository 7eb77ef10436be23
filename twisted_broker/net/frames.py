"""Length-prefixed frames out of a stream of bytes, with memory that follows what arrived and not
what was announced.

Owns the bytes of one connection that are not yet a request.

1. A declared length allocates nothing: the buffer is at most twice what has arrived, and at most
   `_STEP_BYTES` more (or as long as a frame that this connection has completed before). It grows by
   as much at a time, so that no frame holds the reactor for its length.
2. A negative length, or one above the limit, is a `WireError` at once; `NotKafka` where it is text.
3. A frame that came in one piece is plain `bytes`; a long one is read straight into its buffer and
   handed out as a `memoryview`. Its buffer goes to the pool, for any connection's next frame, and
   is used again only when no view of it is alive.
4. The pool keeps `POOL_BYTES` at most: free buffers and those of which a view is alive, together.

Source: Kafka's `NetworkReceive` (which allocates the declared size at once); docs/ARCHITECTURE.md
7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct

from twisted_broker.wire.errors import WireError

_LENGTH = Struct(">i")
# From here on a copy costs more than a second system call.
_DIRECT = 32768
# A connection that once sent a large frame must not claim that much for each later one.
_REMEMBERED = 2 << 20
# Larger buffers are rare and would push many usual ones out of the pool.
_POOLED = 4 << 20
POOL_BYTES = 16 << 20
_LOOKS = 8
_STEP_BYTES = 1 << 20
_NOTHING = bytes(_STEP_BYTES)
"""Never written: the system has one page of zeros for all of it."""
_ROUNDED, _UNIT = 1 << 20, 1 << 16


class NotKafka(WireError):
    """A stream that begins as text, as HTTP and SSH do."""


class BufferPool:
    """Free buffers of long frames, for all connections of a process, and buffers of which a view
    was alive when they were given back: they are free once no view is.
    """

    __slots__ = ("_free", "_seen", "held_bytes")

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._seen: deque[bytearray] = deque()
        self.held_bytes = 0

    def take(self, size: int) -> bytearray:
        """A buffer of `size` bytes or more, with whatever was in it."""
        if self._free and len(self._free[-1]) >= size:
            buffer = self._free.pop()
            self.held_bytes -= len(buffer)
            return buffer
        # A few of the oldest: a mirror's are free in the order in which they came.
        for _ in range(min(len(self._seen), _LOOKS)):
            buffer = self._seen.popleft()
            if len(buffer) >= size and _unseen(buffer):
                self.held_bytes -= len(buffer)
                return buffer
            self._seen.append(buffer)
        # Frames of one kind differ by a little: the next one shall fit as well.
        return bytearray(size if size < _ROUNDED else -(-size // _UNIT) * _UNIT)

    def give(self, buffer: bytearray) -> None:
        """Takes a buffer back, whether or not a view of it is alive."""
        size = len(buffer)
        if size > _POOLED:
            return
        while self._seen and self.held_bytes + size > POOL_BYTES:
            self.held_bytes -= len(self._seen.popleft())  # whoever looks at it keeps it
        if self.held_bytes + size <= POOL_BYTES:
            (self._free if _unseen(buffer) else self._seen).append(buffer)
            self.held_bytes += size


_POOL = BufferPool()
# The first bytes of a handshake, and of an alert.
_TLS_RECORDS = (0x1603, 0x1503)


class FrameReader:
    """Feed it bytes, take frames. `limit` (bytes) may be raised after authentication. Of a frame
    that was completed, `remembered` bytes at most are claimed at once for the next one.

    `may_receive(more)`: whether a long frame may take so much more memory now. If not, there is no
    next one until it is given (`room_given`); what comes meanwhile is kept aside.
    """

    __slots__ = (
        "_buffer",
        "_completed",
        "_data",
        "_filled",
        "_may_receive",
        "_offset",
        "_pool",
        "_remembered",
        "_room",
        "_size",
        "_used",
        "limit",
        "waits",
    )

    def __init__(
        self,
        limit: int,
        pool: BufferPool = _POOL,
        may_receive: Callable[[int], bool] | None = None,
        remembered: int = _REMEMBERED,
    ) -> None:
        self.limit = limit
        self._remembered = remembered
        self._may_receive = may_receive
        self.waits = 0
        """for so many bytes"""
        self._pool = pool
        self._used: bytearray | None = None
        self._data: bytes = b""
        self._offset = 0
        self._buffer: bytearray | None = None
        self._size = -1
        self._filled = self._room = 0
        self._completed = 0

    @property
    def size(self) -> int:
        """Of the long frame that is under way."""
        return self._size

    @property
    def pending(self) -> int:
        """Bytes that wait here, whole frames or parts."""
        return len(self._data) - self._offset + self._filled

    def feed(self, data: bytes) -> None:
        """Takes what a socket gave."""
        if (
            self._buffer is not None
            and self._filled + len(data) <= self._room
            and self._offset == len(self._data)
        ):
            self._buffer[self._filled : self._filled + len(data)] = data
            self._filled += len(data)
            return
        rest = self._data[self._offset :] if self._offset else self._data
        self._data = rest + data if rest else data
        self._offset = 0

    def space(self) -> memoryview | None:
        """Where the socket may write the rest of a long frame; None when bytes should come by
        `feed`. Release the view, then `filled(n)`.
        """
        if self._filled < _DIRECT or self._filled == self._room or self._offset < len(self._data):
            return None
        assert self._buffer is not None
        return memoryview(self._buffer)[self._filled : self._room]

    def close(self) -> None:
        """No frame is taken any more, and nothing is kept: what refers to a connection that ended
        may live until the next garbage collection.
        """
        self._may_receive = None
        self._data, self._offset, self._size, self._filled = b"", 0, -1, 0
        self._room = self.waits = 0
        self._buffer = self._used = None

    def filled(self, count: int) -> None:
        """`count` bytes were written into `space()`."""
        self._filled += count

    def next_frame(self) -> bytes | memoryview | None:
        """The next whole frame without its length, or None. Drop the last one first: its
        buffer is wanted.

        Raises WireError for a length that cannot be.
        """
        if self._used is not None:
            self.give_back()
        if self._size >= 0:
            if self._filled < self._size:
                self._continue_long()
            return self._long_frame() if self._filled == self._size else None
        data, offset = self._data, self._offset
        held = len(data) - offset - 4
        if held < 0:
            return None
        (size,) = _LENGTH.unpack_from(data, offset)
        if size > held or size < 0:
            self._begin_long(size)
            return None
        start = offset + 4
        if size == held:
            self._data, self._offset = b"", 0
        else:
            self._offset = start + size
        if size > self.limit:
            self._check(size)
        return data[start : start + size]

    def give_back(self) -> None:
        """The buffer of the last frame, for whoever needs one: no next one is taken for a while."""
        used, self._used = self._used, None
        if used is not None:
            self._pool.give(used)

    def _check(self, size: int) -> None:
        if size >> 16 in _TLS_RECORDS and size > self.limit:
            raise WireError("the other side speaks TLS to a listener without it")
        if not 0 <= size <= self.limit:
            begins = size.to_bytes(4, "big", signed=True).decode("latin-1")
            if begins.isascii() and begins.isprintable():
                raise NotKafka(f"it does not speak Kafka's protocol: it begins with {begins!r}")
            raise WireError(f"frame of {size} bytes, the limit is {self.limit}")

    def _begin_long(self, size: int) -> None:
        self._check(size)
        self._offset += 4
        self._size, self._filled = size, 0
        self._continue_long()

    def room_given(self) -> None:
        """What it waited for."""
        more, self.waits = self.waits, 0
        self._reserve(more)

    def _continue_long(self) -> None:
        """Takes what was kept aside, and makes room for what comes, as far as there is memory."""
        if self.waits:
            return
        aside = min(len(self._data) - self._offset, self._size - self._filled)
        coming = self._filled + aside
        if coming > self._room or (_DIRECT <= coming == self._room < self._size):
            enough = max(coming + min(coming, _STEP_BYTES), self._completed)
            wanted = min(self._size, enough) - self._room
            if (
                self._size > _DIRECT
                and self._may_receive is not None
                and not self._may_receive(wanted)
            ):
                self.waits = wanted
                return
            self._reserve(wanted)
        if aside:
            assert self._buffer is not None
            end = self._offset + aside
            with memoryview(self._data) as data:
                self._buffer[self._filled : coming] = data[self._offset : end]
            self._filled = coming
            self._data, self._offset = self._data[end:], 0

    def _long_frame(self) -> memoryview:
        assert self._buffer is not None
        frame = memoryview(self._buffer)[: self._size]
        self._completed = min(max(self._completed, self._size), self._remembered)
        self._used, self._buffer = self._buffer, None
        self._size, self._filled, self._room = -1, 0, 0
        return frame

    def _reserve(self, more: int) -> None:
        """Memory for `more` bytes beyond those that there is room for."""
        self._room += more
        buffer = self._buffer
        if buffer is None:
            self._buffer = self._pool.take(self._room)
        elif len(buffer) < self._room:
            with memoryview(_NOTHING) as nothing:
                while (more := self._room - len(buffer)) > 0:
                    buffer += nothing[:more]


def _unseen(buffer: bytearray) -> bool:
    """Whether no `memoryview` of the buffer is alive: only then can its size change."""
    try:
        # A bytearray that has an exported view refuses to change its size.
        buffer.append(0)
        buffer.pop()
    except BufferError:
        return False
    return True
