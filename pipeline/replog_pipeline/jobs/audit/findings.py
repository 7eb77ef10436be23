"""The result of `audit`: findings, and what was checked of each partition."""

from __future__ import annotations

from typing import Any, NamedTuple


class Finding(NamedTuple):
    """One fault. `offset` is where it shows, `file` and `position` (bytes) where that is; `more`
    counts those of its kind that are not listed.

    Of records read from a cluster nothing is known but topic, partition and offset: then the rest
    is empty or -1.
    """

    kind: str
    topic: str
    partition: int
    offset: int
    problem: str
    directory: str = ""
    file: str = ""
    position: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    leader_epoch: int = -1
    more: int = 0

    def __str__(self) -> str:
        place = f"{self.directory}/{self.topic}-{self.partition}" if self.directory else ""
        where = (
            f" ({place}/{self.file} at byte {self.position})"
            if self.file
            else f" ({place})"
            if place
            else ""
        )
        more = f"; and {self.more:,} more of this kind" if self.more else ""
        return (
            f"{self.topic}-{self.partition} offset {self.offset}: {self.kind}: "
            f"{self.problem}{where}{more}"
        )


class Summary(NamedTuple):
    """One partition: offsets [start, end) that were judged, how much was there, how many offsets
    have no record, transactions that are still open.

    `policy` is the cleanup policy it was judged by. `batches`, `bytes` and `open` are -1 where only
    records were read.
    """

    topic: str
    partition: int
    directory: str
    start: int
    end: int
    batches: int
    records: int
    bytes: int
    holes: int
    open: int
    policy: str

    def to_json(self) -> dict[str, Any]:
        return self._asdict()
