"""What a follower takes of the records that its leader sent.

Owns `replicated_batches`.

1. Offsets grow; every CRC is right; the bytes are the leader's own and are not changed.
2. A partial batch at the end is left for the next fetch.

Source: Kafka's `UnifiedLog.analyzeAndValidateRecords`, KAFKA-17411 (epochs above the fetch's own);
RL 3.2. Not here: where the log ends (`log.py`).
"""

from __future__ import annotations

from twisted_broker.interfaces import Buffer
from twisted_broker.log.errors import OffsetsOutOfOrder
from twisted_broker.wire.records import BatchView, iterate_batches


def replicated_batches(records: Buffer, leader_epoch: int) -> list[BatchView]:
    """The whole batches up to the first one of an epoch above `leader_epoch` (-1: any).

    Raises BrokerError.
    """
    batches: list[BatchView] = []
    expected = -1
    for batch in iterate_batches(records, partial_tail=True, check_crc=True):
        if leader_epoch >= 0 and batch.partition_leader_epoch > leader_epoch:
            break
        if batch.base_offset < expected or batch.last_offset_delta < 0:
            raise OffsetsOutOfOrder(f"batch at {batch.base_offset} after offset {expected - 1}")
        expected = batch.last_offset + 1
        batches.append(batch)
    return batches
