"""The checks of records that `replog mirror` brought from another cluster.

Owns `with_leader_epoch`, `count_already_there`, `first_offset_of` and the two refusals (`Differs`,
`not_mirrored`).

How batches reach the leader, and why so. They come by an API of ours, `AppendMirrored`
(`wire/messages/mirror.py`), not by a tagged field of Produce: what ApiVersions lists is the check
that the target is ours (Apache Kafka skips a tag that it does not know, and would give the batch
new offsets), and Produce pays nothing. A topic is mirrored while its setting
`replog.mirror.source` is set; producers get POLICY_VIOLATION then (`validation.prepare`, the path
that such a topic always takes).

1. Of a batch's bytes only the partition leader epoch changes, to the local leader's; the CRC does
   not cover it. Offsets, times, producer fields, compressed bytes stay; control batches too.
2. The log end that the mirror knows is checked in the turn of the append (`partition.py`): two
   mirrors, or one that resends, make neither gap nor duplicate. Batches that are there already are
   compared, and count as appended when their bytes are the same.
3. Offsets only need to grow: offsets that the source no longer has (compaction, deleted records)
   are a gap here as well.

Source: none, ours; `follower_append.py` does the rest. Not here: what the source lost
(`mirror/`), the log start (`partition.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted_broker.interfaces import Buffer
from twisted_broker.settings import LONG_MAX
from twisted_broker.wire.batch_header import LEADER_EPOCH_AT
from twisted_broker.wire.control_batch import control_record_type, end_marker_coordinator_epoch
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import BatchView, InvalidRecordError, iterate_batches

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_AFTER_EPOCH = LEADER_EPOCH_AT + 4


def not_mirrored(log: Log) -> BrokerError:
    """The refusal of mirrored records on an ordinary topic."""
    return BrokerError(
        ErrorCode.POLICY_VIOLATION,
        f"{log.topic_partition.topic} is no mirrored topic: it has no replog.mirror.source",
    )


class Differs(BrokerError):
    """The refusal of records under offsets that hold others; `offset`: of the first such batch."""

    def __init__(self, log: Log, offset: int) -> None:
        self.offset = offset
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"{log.topic_partition} holds other records at offset {offset} than the source",
        )


def first_offset_of(records: Buffer) -> int:
    """The base offset of the first batch; -1 where there is none."""
    return int.from_bytes(records[:8], "big", signed=True) if len(records) >= 8 else -1


def with_leader_epoch(records: Buffer, leader_epoch: int) -> tuple[Any, list[BatchView]]:
    """Whole batches under another leader epoch: a copy, unless the bytes can be written (a long
    request's own buffer). Raises BrokerError for what is no batch of magic 2, or has a wrong CRC.
    """
    is_own = isinstance(records, memoryview) and not records.readonly
    copied: Any = records if is_own else bytearray(records)
    epoch = leader_epoch.to_bytes(4, "big", signed=True)
    batches: list[BatchView] = []
    expected = -1
    for batch in iterate_batches(copied, check_crc=True):
        if batch.base_offset < expected or batch.last_offset_delta < 0:
            raise InvalidRecordError(
                f"the batch at offset {batch.base_offset} comes after offset {expected - 1}"
            )
        expected = batch.next_offset
        if expected > LONG_MAX:
            # The log would end there: no answer that names its end could be written, nor those of
            # other partitions beside it.
            raise InvalidRecordError(f"offset {batch.last_offset} has none behind it")
        if batch.is_control:
            _check_control(batch)
        batches.append(batch)
    for batch in batches:
        copied[batch.offset + LEADER_EPOCH_AT : batch.offset + _AFTER_EPOCH] = epoch
        batch.partition_leader_epoch = leader_epoch
    return copied, batches


def _check_control(batch: BatchView) -> None:
    """Raises InvalidRecordError for a marker that nobody can read: a client of this cluster would
    stop there, and no cleaner would go on.
    """
    for record in batch.records():
        control_record_type(record.key)
        if batch.has_producer_id:
            end_marker_coordinator_epoch(record.value)


def count_already_there(log: Log, batches: Sequence[BatchView]) -> int:
    """How many of the batches, from the first on, the log holds. Raises BrokerError where it
    holds others under their offsets.

    Below the log start nothing is compared: it was deleted here.
    """
    count = 0
    for batch in batches:
        if batch.base_offset >= log.log_end_offset:
            break
        if batch.last_offset >= log.log_end_offset:
            raise Differs(log, batch.base_offset)
        if batch.base_offset >= log.log_start_offset and not _is_there(log, batch):
            raise Differs(log, batch.base_offset)
        count += 1
    return count


def _is_there(log: Log, batch: BatchView) -> bool:
    found = log.read(batch.base_offset, batch.size_in_bytes)
    if found.slice is None:
        return False
    try:
        held = found.slice.read()
    finally:
        found.slice.release()
    sent = memoryview(batch.buffer)[batch.offset : batch.offset + batch.size_in_bytes]
    return (
        held[:LEADER_EPOCH_AT] == sent[:LEADER_EPOCH_AT]
        and held[_AFTER_EPOCH:] == sent[_AFTER_EPOCH:]
    )
