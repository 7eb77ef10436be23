"""A leader epoch that the metadata does not know: the likely cause, and the remedy.

Owns `start_of_last_epoch`, `may_be_flipped`, and the remedies `flipped_epoch` and `flipped_epochs`.

No checksum covers the leader epoch of a batch (a leader writes it into batches whose checksum is
the producer's). Where a log's newest epoch is above all that the metadata knows, a bit of it was
flipped, or the metadata is older than the log: the log does not tell which, an operator decides.
Recovery drops what follows such a batch (`recovery.py`, epochs that go back), so its epoch is the
log's last.

Not here: who compares (`cluster.metadata_check`, `replication`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from twisted_broker.wire.batch_fields import BASE_OFFSET, PARTITION_LEADER_EPOCH
from twisted_broker.wire.records import CorruptRecordError

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_EPOCH_BITS = 31
MOST_NAMED = 10  # logs in one line; what is left is named once these are mended


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
    """The remedy for a flipped bit, to be added to a line that names the epochs."""
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


def may_be_flipped(log: Log, start: EpochStart, known: int) -> bool:
    """Whether the epoch of `start` differs in one bit from an epoch that the metadata knows
    (`known`: its newest) and that is not below those of the batches before.
    """
    before = [epoch for epoch, _ in log.leader_epochs.entries() if epoch <= known]
    lowest = max(before, default=0)
    return any(lowest <= start.epoch ^ (1 << bit) <= known for bit in range(_EPOCH_BITS))


def flipped_epochs(found: Sequence[tuple[str, EpochStart]]) -> str:
    """As `flipped_epoch`, for several: (directory, start) of every log that has such an epoch."""
    named = "; ".join(
        f"{directory}: `truncate -s {start.position} {start.path}` drops what is at offset "
        f"{start.offset} and above"
        for directory, start in found[:MOST_NAMED]
    )
    left = len(found) - MOST_NAMED
    more = f"; and {left} more, which the next start names" if left > 0 else ""
    return (
        f"Where the metadata is no older copy, a bit was flipped in each of {len(found)} "
        "partitions (no checksum covers it): stop the broker and move the directory of each away, "
        "so that the replica is made anew from its leader; or, of an only replica, drop its end. "
        f"{named}{more}"
    )
