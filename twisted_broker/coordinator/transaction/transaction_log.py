"""Records of `__transaction_state`: bytes <-> transactional ids.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the versions that are written, and what records become when they are read.

1. Written as Apache Kafka 4.3.1 writes: the value as version 0 while transaction.version is 0, else
   1; null partitions in the state EMPTY; a tombstone as a null value. Version 0 has no place for
   the ids before and after: after a downgrade they are dropped.
2. Read: values 0 and 1 under key type 0. Any other key type is left alone (None); bytes that do not
   fit raise `MalformedRecord`, so that a load can skip and count them.
3. The last epoch is not stored: a producer whose answer was lost is fenced when it comes again to
   another coordinator, as in Kafka.
4. An id lives in one partition: Java's hash of it modulo the number of partitions.

Source: Apache Kafka 4.3.1 `TransactionLog`, `TransactionStateManager.partitionFor`; KIP-890. Not
here: appending, and reading the log (`transaction_state_manager.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from twisted_broker.coordinator.group_records import KeyValue, MalformedRecord
from twisted_broker.coordinator.transaction.transaction_metadata import (
    EMPTY,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
    TxnTransitMetadata,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages.transaction_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from twisted_broker.wire.records import BatchBuilder
from twisted_broker.wire.schema import decode_from, encode

_KEY_TYPE = 0
_TEXT_AT = 4  # behind the key's type and the text's length
_NEWEST_VALUE = 1
# Of a record: the lengths of itself and of its key (3 each, a key has no more than 32 KiB), its
# attributes, its time and offset after the batch's (1, 3), no value and no headers.
_TOMBSTONE_OVERHEAD = 3 + 1 + 1 + 3 + 3 + 1 + 1
_SHORT = struct.Struct(">h")
_STATES = tuple(TransactionState)
# What is nearly every id's value, read in one step: version 1, no partitions (null, or none), and
# of the tagged fields none, the client's version, or that and the producer id before.
_PLAIN = struct.Struct(">hqhibBqq")
_PARTITIONS_AT = 17  # their number and one, in one byte while it is small; 0: null
_NO_TAGS, _ONLY_VERSION = b"\0", b"\1\2\2"
_BEFORE_AND_VERSION = struct.Struct(">3sq2sh")


class TransactionRecord(NamedTuple):
    """`value` None: a tombstone."""

    transactional_id: str
    value: TransactionMetadata | None


def value_version(transaction_version: int) -> int:
    """Of the record's value, at a level of transaction.version."""
    return min(transaction_version, _NEWEST_VALUE)


def transaction_record(
    transactional_id: str, transit: TxnTransitMetadata | None, transaction_version: int
) -> KeyValue:
    """The record of what the id becomes; None: its tombstone."""
    key = _SHORT.pack(_KEY_TYPE) + encode(TransactionLogKey(transactional_id=transactional_id), 0)
    if transit is None:
        return key, None
    version = value_version(transaction_version)
    since_1 = version > 0
    value = TransactionLogValue(
        producer_id=transit.producer_id,
        previous_producer_id=transit.previous_producer_id if since_1 else NO_PRODUCER_ID,
        next_producer_id=transit.next_producer_id if since_1 else NO_PRODUCER_ID,
        producer_epoch=transit.producer_epoch,
        transaction_timeout_ms=transit.timeout_ms,
        transaction_status=transit.state,
        transaction_partitions=_schema(transit),
        transaction_last_update_timestamp_ms=transit.last_update_ms,
        transaction_start_timestamp_ms=transit.start_ms,
        client_transaction_version=transit.client_transaction_version if since_1 else 0,
    )
    return key, _SHORT.pack(version) + encode(value, version)


def tombstone_bytes(transactional_id: str) -> int:
    """Of an id's tombstone in a batch, at most."""
    return _TEXT_AT + len(transactional_id.encode()) + _TOMBSTONE_OVERHEAD


def _schema(transit: TxnTransitMetadata) -> list[PartitionsSchema] | None:
    if transit.state is EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transit.partitions):
        topics.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=name, partition_ids=ids) for name, ids in topics.items()]


def batch_of(records: Iterable[tuple[bytes | None, bytes | None]], wall_ms: int) -> bytes:
    """One batch, without a producer and without a sequence."""
    builder = BatchBuilder()
    for key, value in records:
        builder.append(wall_ms, key, value)
    return builder.build()


def read_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """One record; None when its key is of a type that is not ours. Raises MalformedRecord."""
    if key is None or len(key) < 2:
        raise MalformedRecord("a record without a key")
    if _SHORT.unpack_from(key)[0] != _KEY_TYPE:
        return None
    try:
        transactional_id = key[_TEXT_AT:].decode()
        if _SHORT.unpack_from(key, 2)[0] != len(key) - _TEXT_AT:
            raise MalformedRecord(f"a key of {len(key)} bytes, its length says otherwise")
        return TransactionRecord(transactional_id, _read_value(transactional_id, value))
    except (WireError, ValueError, struct.error) as error:
        raise MalformedRecord(str(error)) from None


def _read_value(transactional_id: str, value: bytes | None) -> TransactionMetadata | None:
    if value is None:
        return None
    if len(value) < 2:
        raise MalformedRecord("a value without a version")
    (version,) = _SHORT.unpack_from(value)
    if not 0 <= version <= _NEWEST_VALUE:
        raise MalformedRecord(f"TransactionLogValue of version {version}")
    if version == 1:
        plain = _read_plain(transactional_id, value)
        if plain is not None:
            return plain
    read = decode_from(TransactionLogValue, value, version, 2)[0]
    return TransactionMetadata(
        transactional_id,
        read.producer_id,
        timeout_ms=read.transaction_timeout_ms,
        last_update_ms=read.transaction_last_update_timestamp_ms,
        producer_epoch=read.producer_epoch,
        previous_producer_id=read.previous_producer_id,
        next_producer_id=read.next_producer_id,
        state=TransactionState(read.transaction_status),
        partitions=[
            TopicPartition(topic.topic, partition)
            for topic in read.transaction_partitions or ()
            for partition in topic.partition_ids
        ],
        start_ms=read.transaction_start_timestamp_ms,
        client_transaction_version=read.client_transaction_version,
    )


def _read_plain(transactional_id: str, value: bytes) -> TransactionMetadata | None:
    """None: it has something more, or is broken."""
    if len(value) <= _PLAIN.size or value[_PARTITIONS_AT] > 1:
        return None
    _, producer_id, epoch, timeout_ms, state, _, last_update_ms, start_ms = _PLAIN.unpack_from(
        value
    )
    tags, previous_producer_id, client_version = value[_PLAIN.size :], NO_PRODUCER_ID, 0
    if len(tags) == _BEFORE_AND_VERSION.size:
        first, previous_producer_id, second, client_version = _BEFORE_AND_VERSION.unpack(tags)
        if (first, second) != (b"\2\0\x08", b"\2\2"):
            return None
    elif len(tags) == 5 and tags[:3] == _ONLY_VERSION:
        client_version = int.from_bytes(tags[3:], "big", signed=True)
    elif tags != _NO_TAGS:
        return None
    if not 0 <= state < len(_STATES):
        return None
    return TransactionMetadata(
        transactional_id,
        producer_id,
        timeout_ms=timeout_ms,
        last_update_ms=last_update_ms,
        producer_epoch=epoch,
        previous_producer_id=previous_producer_id,
        state=_STATES[state],
        start_ms=start_ms,
        client_transaction_version=client_version,
    )
