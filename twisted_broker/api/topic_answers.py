"""The part of an answer about topics that is the same for every client, encoded: of Metadata and
DescribeTopicPartitions.

Owns the bytes that are kept, and the places in an encoded answer.

1. Bytes are kept for one API, version and listener. They count only while the image has the same
   `TopicImage` and the same brokers: a change of a partition makes another of these, a change of a
   broker another of those, and neither is ever changed in place.
2. Nothing in them depends on who asks: permission is asked for each request, and the authorized
   operations stand behind them.

State: at most `MOST_BYTES`; what exceeds them begins anew with nothing kept. So what is kept of a
topic that was deleted goes, at the latest. A restart begins with nothing.

Source: our own; Kafka builds each answer. Not here: what an answer says, and to whom
(`metadata.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted_broker.image.entries import TopicImage
from twisted_broker.wire.primitives import uvarint

MOST_BYTES = 16 << 20  # as of 300,000 partitions with three replicas
_OF_AN_ENTRY = 300  # what it takes besides its bytes
Range = tuple[bytes, int, int]
"""Topic id, first partition, the one behind the last."""
Kept = dict[Range, tuple[TopicImage, bytes]]


class Form:
    """Where topics stand in an answer of one version. `empty`: one without topics, encoded; `after`
    bytes of it follow their array. `has_operations`: a topic ends with its authorized operations.
    """

    __slots__ = ("_empty", "_has_operations", "_is_flexible", "after")

    def __init__(self, empty: bytes, after: int, is_flexible: bool, has_operations: bool) -> None:
        self._empty, self.after = len(empty), after
        self._is_flexible, self._has_operations = is_flexible, has_operations

    def row(self, encoded: bytes) -> bytes:
        """The topic of an answer that is empty but for that one."""
        return encoded[self._empty - self.after : len(encoded) - self.after]

    def partitions(self, encoded: bytes) -> bytes:
        """As `row`, without what `behind` gives."""
        row = self.row(encoded)
        return row[: len(row) - len(self.behind(0))]

    def behind(self, operations: int) -> bytes:
        """What follows the partitions of a topic."""
        if not self._has_operations:
            return b""
        return operations.to_bytes(4, "big", signed=True) + b"\0" * self._is_flexible

    def joined(self, without: bytes, after: int, count: int, rows: list[bytes]) -> list[Any]:
        """The answer that is encoded `without` topics, with `rows` of `count` topics."""
        at = len(without) - after
        if self._is_flexible:
            return [without[: at - 1], uvarint(count + 1), *rows, without[at:]]
        return [without[: at - 4], count.to_bytes(4, "big"), *rows, without[at:]]


class TopicAnswers:
    """Of one broker."""

    __slots__ = ("_brokers", "_kept", "size")

    def __init__(self) -> None:
        self._brokers: Mapping[int, Any] | None = None
        self._kept: dict[tuple[str, int, int], Kept] = {}
        self.size = 0

    def of(self, brokers: Mapping[int, Any], listener: str, api_key: int, version: int) -> Kept:
        """What is kept for answers of this kind; `brokers`: those of the image."""
        if self._brokers is not brokers:
            self._forget()
            self._brokers = brokers
        return self._kept.setdefault((listener, api_key, version), {})

    def _forget(self) -> None:
        self._kept, self.size = {}, 0

    def keep(self, kept: Kept, key: Range, topic: TopicImage, data: bytes) -> None:
        """`kept` is from `of`, maybe from before a change: then nobody looks there any more."""
        before = kept.get(key)
        self.size += len(data) - len(before[1]) if before else len(data) + _OF_AN_ENTRY
        kept[key] = topic, data
        if self.size > MOST_BYTES:
            self._forget()
