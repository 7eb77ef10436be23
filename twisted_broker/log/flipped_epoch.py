"""A leader epoch that nobody led: what is likely, and the remedy.

Owns `start_of_last_epoch` and `flipped_epoch`.

The leader epoch of a batch is in no checksum (a leader writes it into batches whose checksum is the
producer's). A log whose newest epoch is above what the metadata knows has a flipped bit there, or
the metadata is older than the log: nothing in the log tells which, an operator does. Recovery drops
what lies behind such a batch (`recovery.py`, epochs that go back), so it is the last one.

Not here: who compares (`cluster.metadata_check`, `replication`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from twisted_broker.wire.batch_fields import BASE_OFFSET, PARTITION_LEADER_EPOCH
from twisted_broker.wire.records import CorruptRecordError

if TYPE_CHECKING:
    from twisted_broker.log.log import Log


class EpochStart(NamedTuple):
    """The first batch of an epoch: its file, its first byte there, its base offset."""

    epoch: int
    path: str
    position: int
    offset: int


def start_of_last_epoch(log: Log) -> EpochStart | None:
    """Where the newest leader epoch begins, as its first batch has it; None without one. Raises
    OSError.
    """
    if not log.leader_epochs.start_offsets:
        return None
    start = log.leader_epochs.start_offsets[-1]
    try:
        for segment in log.segments.between(start, log.log_end_offset):
            for position, header in segment.headers_from(start):
                epoch, offset = header[PARTITION_LEADER_EPOCH], header[BASE_OFFSET]
                return EpochStart(epoch, segment.log.path, position, offset)
    except CorruptRecordError:
        pass
    return None


def flipped_epoch(directory: str, start: EpochStart | None) -> str:
    """What to do where it is a flipped bit: to be added to a line that says the epochs."""
    alone = (
        ""
        if start is None
        else f"; of an only replica, `truncate -s {start.position} {start.path}` drops what is at "
        f"offset {start.offset} and above"
    )
    return (
        "Where no other partition has newer epochs, a bit of this one was flipped (no checksum "
        f"covers it): stop the broker and move {directory} away, so that the replica is made anew "
        f"from its leader{alone}"
    )
