"""Log start, high watermark and last stable offset of one log.

Owns `Watermarks`: the three offsets, the places of two of them, and what holds the last stable
offset back.

1. log start <= last stable offset <= high watermark <= log end. `set_high_watermark` keeps this
   when the high watermark moves, `after_truncation` after a truncation; otherwise the log start
   does not rise above the high watermark.
2. Whether the high watermark may go back is the caller's decision: it does on a truncation, and on
   a follower.
3. The last stable offset is the first unstable offset, or the high watermark if that is lower or
   nothing is unstable. The first unstable offset is that of the oldest transaction that is open, or
   whose marker is not below the high watermark yet.
4. A place is looked up once: followers of an idle log need it again and again.

Source: Kafka's `UnifiedLog` (`updateHighWatermarkMetadata`, `maybeIncrementFirstUnstableOffset`);
RL 2.2, 3.3. Not here: who decides that the high watermark moves (`replication.partition`), the log
end (`segments.py`), transactions (`producer_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.segments import LogSegments
from twisted_broker.wire.errors import BrokerError


class Watermarks:
    """`find_place(offset)` finds a place in the log; it raises BrokerError, OFFSET_OUT_OF_RANGE
    among others.
    """

    __slots__ = (
        "_first_unstable",
        "_high_watermark",
        "_last_stable",
        "_producers",
        "_segments",
        "find_place",
        "high_watermark",
        "log_start_offset",
    )

    def __init__(
        self,
        segments: LogSegments,
        producers: ProducerStateManager,
        find_place: Callable[[int], LogOffsetMetadata],
    ) -> None:
        self._segments, self._producers, self.find_place = segments, producers, find_place
        self.log_start_offset = self.high_watermark = 0
        self._high_watermark = LogOffsetMetadata(0)
        self._first_unstable = -1
        self._last_stable: LogOffsetMetadata | None = None

    def detach(self, refusal: BrokerError) -> None:
        """The log is gone: whoever looks for a place in it is refused."""
        self.find_place = partial(_refuse, refusal)

    @property
    def high_watermark_metadata(self) -> LogOffsetMetadata:
        """The high watermark with its place; looked up when only the offset was known."""
        if self._high_watermark.position < 0:
            self._high_watermark = self.find_place(self.high_watermark)
        return self._high_watermark

    def set_high_watermark(self, metadata: LogOffsetMetadata | int) -> None:
        """Moves the high watermark, into [log start, log end]."""
        offset = metadata if isinstance(metadata, int) else metadata.offset
        if offset >= self._segments.log_end_offset:
            place = self._segments.log_end
        elif offset < self.log_start_offset:
            place = LogOffsetMetadata(self.log_start_offset)
        else:
            place = LogOffsetMetadata(offset) if isinstance(metadata, int) else metadata
        self._high_watermark = place
        self.high_watermark = place.offset
        if self._producers.unreplicated:
            self._producers.remove_replicated(place.offset)
            self.update_first_unstable()

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        first = self._first_unstable
        return first if 0 <= first < self.high_watermark else self.high_watermark

    @property
    def last_stable_metadata(self) -> LogOffsetMetadata:
        """The last stable offset with its place."""
        if not 0 <= self._first_unstable < self.high_watermark:
            return self.high_watermark_metadata
        if self._last_stable is None:
            self._last_stable = self.find_place(self._first_unstable)
        return self._last_stable

    def update_first_unstable(self) -> None:
        """Takes over from the producers where the oldest undecided transaction begins."""
        first = self._producers.first_unstable_offset()
        if first >= 0:
            first = max(first, self.log_start_offset)
        if first != self._first_unstable:
            self._first_unstable, self._last_stable = first, None

    def after_truncation(self) -> None:
        """The log has another end, perhaps another start: no place is what it was."""
        self._last_stable = None
        self.update_first_unstable()
        self.set_high_watermark(max(self.log_start_offset, self.high_watermark))


def _refuse(refusal: BrokerError, offset: int) -> NoReturn:
    raise refusal
