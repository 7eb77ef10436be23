"""A long batch that is checked, and written behind the end of its log in pieces, before it is
appended.

Owns `WriteAhead`: what an append of the batch finds done.

1. Nothing of it is published: the log ends where it ended. The batch's first bytes come last, with
   the append: until then they are zeros, so that a recovery ends before it.
2. It holds while nothing else happens at the log's end. Another append, a truncation or a new
   segment ends it: what is in the file is cut off before anything else is written there, and the
   append writes all.
3. The check counts for the settings that it was made with. Where they are others by then, or the
   check never ran, the append checks for itself.

Source: our own; Apache Kafka has a thread for each append, which blocks the partition alone. Not
here: who waits meanwhile (`replication/long_appends.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted_broker.interfaces import Buffer
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.segment import LogSegment
from twisted_broker.log.validation import prepare
from twisted_broker.log_config import LogConfig
from twisted_broker.wire.batch_header import LENGTH_AT
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.records import LOG_OVERHEAD

LONG_BYTES = 4 << 20
"""Shorter ones are checked and written in one piece: in some ten milliseconds."""
PIECE_BYTES = 2 << 20
_HEAD_BYTES = 16


class WriteAhead:
    """Of `records`, which hold one batch; `batch` is the one to be written."""

    __slots__ = (
        "_config",
        "_generation",
        "_is_whole",
        "_position",
        "_records",
        "_refusal",
        "_segment",
        "batch",
    )

    def __init__(self, records: Buffer) -> None:
        self._records = self.batch = records
        self._config: LogConfig | None = None
        self._refusal: BrokerError | None = None
        self._segment: LogSegment | None = None
        self._position = self._generation = 0
        self._is_whole = False

    # the check
    def check(self, config: LogConfig, wall_ms: int) -> None:
        """As the append of a client's records would. On any thread; it changes nothing else."""
        try:
            (self.batch,) = prepare(self._records, config, AppendOrigin.CLIENT, wall_ms)
        except BrokerError as refusal:
            # Without its frames, which hold the records.
            self._refusal = refusal.with_traceback(None)
        self._config = config

    @property
    def is_refused(self) -> bool:
        return self._refusal is not None

    def is_checked(self, records: Buffer, config: LogConfig) -> bool:
        return records is self._records and config is self._config

    def checked(self) -> Buffer:
        """The batch. Raises what the check raised."""
        refusal, self._refusal = self._refusal, None
        if refusal is None:
            return self.batch
        try:
            raise refusal
        finally:
            del refusal  # its traceback holds this frame

    # the pieces
    def pieces(self, segment: LogSegment) -> Iterator[None]:
        """Writes one at a time behind the end of `segment`. Raises OSError."""
        self._segment = segment
        self._position, self._generation = segment.size, segment.log.generation
        with memoryview(self.batch) as batch:
            for start in range(_HEAD_BYTES, len(batch), PIECE_BYTES):
                piece = batch[start : start + PIECE_BYTES]
                segment.log.open().write_at(self._position + start, (piece,))
                yield
        self._is_whole = True

    def is_behind(self, active: LogSegment) -> bool:
        """Whether the log ends still where it did."""
        return (
            active is self._segment
            and active.size == self._position
            and active.log.generation == self._generation
        )

    def complete(self, active: LogSegment, batch: Buffer, head: Buffer) -> bool:
        """Writes the head of `batch`, if it is what was written. Raises OSError."""
        if batch is not self.batch or not self._is_whole or not self.is_behind(active):
            return False
        active.log.open().write_at(self._position, (memoryview(head)[:_HEAD_BYTES],))
        return True

    def cut_off(self, active: LogSegment) -> bool:
        """Whether there was something to cut off. Raises OSError."""
        if active is not self._segment:
            return False  # nothing was written, or it was trimmed as it became inactive
        file = active.log.open()
        if file.size() <= active.size:
            return False
        file.truncate(active.size)
        return True

    def release(self) -> None:
        """Lets the records go."""
        self._records = self.batch = b""
        self._is_whole = False


def portions(records: Buffer) -> Iterator[memoryview]:
    """Whole batches, some of them to a portion that is not long; a long one is a portion of its
    own. What is no whole batch comes last.
    """
    view = memoryview(records)
    start = at = 0
    while (end := at + LOG_OVERHEAD) <= len(view):
        end += int.from_bytes(view[at + LENGTH_AT : end], "big", signed=True)
        if not at + LOG_OVERHEAD <= end <= len(view):
            break
        if end - start > PIECE_BYTES and at > start:
            yield view[start:at]
            start = at
        at = end
    if at > start:
        yield view[start:at]
    if at < len(view):
        yield view[at:]
