"""The batches that a follower takes of its leader's answer.

Owns `replicated_batches`.

1. Offsets grow; every CRC is right; the bytes are the leader's own and are not changed.
2. A partial batch at the end is left for the next fetch.
3. Entries of magic 0 and 1 (a leader of an old format) are taken as they are; a leader that mixes
   formats gives what is before the change first.

Source: Kafka's `UnifiedLog.analyzeAndValidateRecords`, KAFKA-17411 (epochs above the fetch's own);
RL 3.2. Not here: where the log ends (`log.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.interfaces import Buffer
from twisted_broker.log.errors import OffsetsOutOfOrder
from twisted_broker.log.old_entries import OldEntry
from twisted_broker.wire.records import (
    MAGIC,
    MAGIC_AT,
    BatchView,
    CorruptRecordError,
    is_incomplete,
    iterate_batches,
)

Replicated = BatchView | OldEntry


def replicated_batches(records: Buffer, leader_epoch: int) -> Sequence[Replicated]:
    """The whole batches up to the first one of an epoch above `leader_epoch` (-1: any).

    Raises BrokerError.
    """
    if len(records) > MAGIC_AT and records[MAGIC_AT] < MAGIC:
        return _old_entries(records)
    batches: list[BatchView] = []
    expected = -1
    try:
        for batch in iterate_batches(records, partial_tail=True, check_crc=True):
            if leader_epoch >= 0 and batch.partition_leader_epoch > leader_epoch:
                break
            if batch.base_offset < expected or batch.last_offset_delta < 0:
                raise OffsetsOutOfOrder(f"batch at {batch.base_offset} after offset {expected - 1}")
            expected = batch.last_offset + 1
            batches.append(batch)
    except CorruptRecordError:
        # An older format begins there: what is before it first.
        end = batches[-1].offset + batches[-1].size_in_bytes if batches else 0
        if not end or records[end + MAGIC_AT] >= MAGIC:
            raise
    return batches


def _old_entries(records: Buffer) -> list[OldEntry]:
    """Those up to the first batch."""
    found: list[OldEntry] = []
    position, end = 0, len(records)
    while not is_incomplete(records, position, end) and records[position + MAGIC_AT] < MAGIC:
        entry = OldEntry(records, position)
        if found and entry.last_offset <= found[-1].last_offset:
            raise OffsetsOutOfOrder(
                f"message at {entry.last_offset} after offset {found[-1].last_offset}"
            )
        position += entry.size_in_bytes
        found.append(entry)
    return found
