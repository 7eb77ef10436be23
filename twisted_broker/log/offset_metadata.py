"""An offset with its place in the log.

Owns `LogOffsetMetadata`: offset, base offset of its segment, byte position in it; the place may be
unknown.

1. Two known places are on the same segment exactly when their base offsets are equal; only then do
   positions compare.

Source: Kafka's `LogOffsetMetadata`, RL 2.2.
"""

from __future__ import annotations


class LogOffsetMetadata:
    """Immutable by convention. `position` -1: only the offset is known."""

    __slots__ = ("offset", "position", "segment_base_offset")

    def __init__(self, offset: int, segment_base_offset: int = -1, position: int = -1) -> None:
        self.offset = offset
        self.segment_base_offset = segment_base_offset
        self.position = position

    @property
    def known(self) -> bool:
        return self.position >= 0

    def on_older_segment(self, other: LogOffsetMetadata) -> bool:
        """Whether this place lies on an older segment than `other`; False when either is
        unknown.
        """
        return (
            self.position >= 0
            and other.position >= 0
            and self.segment_base_offset < other.segment_base_offset
        )

    def on_same_segment(self, other: LogOffsetMetadata) -> bool:
        return (
            self.position >= 0
            and other.position >= 0
            and self.segment_base_offset == other.segment_base_offset
        )

    def position_difference(self, other: LogOffsetMetadata) -> int:
        """Bytes from `other` to here; both on the same segment."""
        assert self.on_same_segment(other), (self, other)
        return self.position - other.position

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogOffsetMetadata):
            return NotImplemented
        return (self.offset, self.segment_base_offset, self.position) == (
            other.offset,
            other.segment_base_offset,
            other.position,
        )

    def __hash__(self) -> int:
        return hash((self.offset, self.segment_base_offset, self.position))

    def __repr__(self) -> str:
        return f"LogOffsetMetadata({self.offset}, {self.segment_base_offset}, {self.position})"


UNKNOWN = LogOffsetMetadata(-1)
