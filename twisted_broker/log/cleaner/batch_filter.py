"""The part of one batch that stays when its log is cleaned.

Owns `BatchFilter`.

1. A record goes if the offset map has a newer one of its key; a record above the map's end stays.
2. A tombstone stays until the batch's delete horizon, `delete.retention.ms` after the first
   cleaning that met it; so does a marker of a transaction of which nothing is left.
3. A batch keeps its base offset, last offset, sequences and leader epoch, whatever goes out of it.
   Where nothing goes its bytes stay as they are.
4. The last batch of a producer stays, even without records: its sequence is needed when the
   producer comes back. So does the last batch of the range: replicas must not lose the end offset.
5. A record without a key is dropped: nothing says what replaces it.
6. Entries of magic 0 and 1 (an old broker's) have no horizon: their tombstones go with the age of
   their segment (`cleaning.py`). They cannot be empty, so none is kept to hold the range's end.

Source: Kafka's `Cleaner`, `MemoryRecords.filterTo`; KIP-534. Not here: reading and writing
(`cleaning.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from twisted_broker.interfaces import Buffer
from twisted_broker.log.cleaner.cleaned_transactions import CleanedTransactions
from twisted_broker.log.cleaner.offset_map import NEWEST, TOMBSTONE, OffsetMap
from twisted_broker.wire.legacy import MessageView, build_message_set
from twisted_broker.wire.record_walk import Record
from twisted_broker.wire.records import (
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchBuilder,
    BatchView,
    build_empty_batch,
)

_MOST_HORIZON_MS = 2**62
"""The horizon is where a batch's timestamps begin: each must be within 2^63 of it."""
_MOST_MS = 2**63 - 1


class LastRecord(NamedTuple):
    """Of a producer: the offset of its last data batch, -1 when only a marker of it is left, and
    its epoch.
    """

    data_offset: int
    producer_epoch: int


class BatchFilter:
    """`last_records`: by producer id. `upper_bound`: one above the range that is cleaned. `wall_ms`
    is calendar time.
    """

    __slots__ = (
        "_last_records",
        "_map",
        "_transactions",
        "_upper_bound",
        "_wall_ms",
        "horizon_ms",
        "kept_records",
    )

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        last_records: Mapping[int, LastRecord],
        upper_bound: int,
        wall_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._map, self._transactions = offsets, transactions
        self._last_records, self._upper_bound = last_records, upper_bound
        self._wall_ms = wall_ms
        self.horizon_ms = min(wall_ms + delete_retention_ms, _MOST_HORIZON_MS)
        self.kept_records = 0

    def filter(self, batch: BatchView) -> Buffer | None:
        """The batch as it stays; None: it goes. Raises InvalidRecordError."""
        can_discard = self._transactions.can_discard(batch)
        is_marker_alone = can_discard and batch.is_control
        is_discarded = can_discard and (not batch.is_control or self._is_over(batch))
        has_tombstone = False
        if is_discarded:
            kept: Collection[int] = ()
        elif batch.is_control:
            kept = {record.offset - batch.base_offset for record in batch.records()}
        else:
            kept, has_tombstone = self._kept(batch)
        if not kept:
            return _emptied(batch) if self._must_stay(batch) else None
        self.kept_records += len(kept)
        begins_horizon = (has_tombstone or is_marker_alone) and batch.delete_horizon_ms is None
        if len(kept) == batch.records_count and not begins_horizon:
            return memoryview(batch.buffer)[batch.offset : batch.offset + batch.size_in_bytes]
        return _rebuilt(batch, kept, self.horizon_ms if begins_horizon else batch.delete_horizon_ms)

    def filter_message(
        self, message: MessageView, records: list[Record], keeps_tombstones: bool
    ) -> Buffer | None:
        """As `filter`, of an entry of magic 0 or 1 that holds `records`. It stays in its format, a
        wrapper as one wrapper.
        """
        kept = [
            record
            for record in records
            if self._stays(record.offset, record.key, record.value, keeps_tombstones)
        ]
        self.kept_records += len(kept)
        if len(kept) == len(records):
            return memoryview(message.buffer)[
                message.position : message.position + message.size_in_bytes
            ]
        if not kept:
            return None
        return build_message_set(
            kept,
            message.magic,
            message.codec,
            message.timestamp_type,
            message.timestamp if message.timestamp_type == LOG_APPEND_TIME else NO_TIMESTAMP,
        )

    def _stays(
        self, offset: int, key: bytes | None, value: bytes | None, keeps_tombstones: bool
    ) -> bool:
        offsets = self._map
        return offset > offsets.latest_offset or (
            key is not None
            and offset >= offsets.get(key)
            and (value is not None or keeps_tombstones)
        )

    def _is_over(self, batch: BatchView) -> bool:
        horizon_ms = batch.delete_horizon_ms
        return horizon_ms is not None and horizon_ms <= self._wall_ms

    def _kept(self, batch: BatchView) -> tuple[Collection[int], bool]:
        """Offset deltas of the records that stay, and whether a tombstone is among them."""
        known = self._kept_by_marks(batch)
        if known is not None:
            return known, False
        kept, has_tombstone = set[int](), False
        base, offsets = batch.base_offset, self._map
        latest, keeps_tombstones = offsets.latest_offset, not self._is_over(batch)
        for delta, key, value in batch.key_values():
            if base + delta <= latest and (
                key is None
                or base + delta < offsets.get(key)
                or (value is None and not keeps_tombstones)
            ):
                continue
            kept.add(delta)
            has_tombstone = has_tombstone or value is None
        return kept, has_tombstone

    def _kept_by_marks(self, batch: BatchView) -> Collection[int] | None:
        """Without a look at its records; None: they must be read, for some are not in the map, or a
        tombstone stays.
        """
        offsets = self._map
        marks, at = offsets.marks, batch.base_offset - offsets.first
        last = batch.last_offset
        if marks is None or at < 0 or last > offsets.latest_offset:
            return None
        found = marks[at : last - offsets.first + 1]
        assert len(found) == last - batch.base_offset + 1
        if NEWEST | TOMBSTONE in found:
            return None
        count = found.count(NEWEST)
        if count == len(found):
            return range(count)
        return {delta for delta, mark in enumerate(found) if mark == NEWEST} if count else ()

    def _must_stay(self, batch: BatchView) -> bool:
        if batch.next_offset == self._upper_bound:
            return True
        last = self._last_records.get(batch.producer_id) if batch.has_producer_id else None
        if last is None:
            return False
        if last.data_offset >= 0:
            return batch.last_offset == last.data_offset
        return batch.is_control and batch.producer_epoch == last.producer_epoch


def _rebuilt(batch: BatchView, kept: Collection[int], delete_horizon_ms: int | None) -> bytes:
    base = batch.base_offset
    records = [each for each in batch.records() if each.offset - base in kept]
    times = [each.timestamp for each in records]
    earliest, latest = min(times), max(times)
    if delete_horizon_ms is not None and not (
        latest - _MOST_MS <= delete_horizon_ms <= earliest + _MOST_MS
    ):
        # The producer chose times too far from the horizon. Without one the tombstone stays for
        # ever; a log that cannot be cleaned would be worse.
        delete_horizon_ms = None
    builder = BatchBuilder(
        base_offset=batch.base_offset,
        codec=batch.codec,
        timestamp_type=batch.timestamp_type,
        log_append_time_ms=(
            batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else NO_TIMESTAMP
        ),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        # A batch without a producer id is of no transaction, whatever its client wrote.
        is_transactional=batch.is_transactional and batch.has_producer_id,
        is_control=batch.is_control,
        leader_epoch=batch.partition_leader_epoch,
        delete_horizon_ms=delete_horizon_ms,
    )
    if delete_horizon_ms is None and latest - earliest > _MOST_MS:
        # Each is within 2^63 of the middle, whichever is the first one that is left.
        builder.base_timestamp = (earliest + latest) // 2
    for each in records:
        builder.append(each.timestamp, each.key, each.value, each.headers, each.offset - base)
    return builder.build(last_offset_delta=batch.last_offset_delta)


def _emptied(batch: BatchView) -> bytes:
    return build_empty_batch(
        batch.base_offset,
        batch.last_offset,
        batch.partition_leader_epoch,
        batch.timestamp_type,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.is_transactional,
        batch.is_control,
    )
