"""Control batches: transaction end markers, and the quorum's leader change and snapshot frames.

1. A control record's key is version 0 and a type, both int16. An end marker is alone in its batch;
   the quorum's records may share one.
2. An end marker is transactional and carries the producer's id and epoch but no sequence; a
   quorum's control batch carries no producer.
3. Keys and values of a later version are read by their leading fields.

Source: Kafka's record formats "control record"; Kafka's ControlRecordType, EndTransactionMarker,
MemoryRecords.withEndTransactionMarker. Not here: the bodies of quorum control records, which are
messages (`messages/control_records`) and come here as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from .batch_header import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from .corrupt_record import InvalidRecordError
from .record_builder import BatchBuilder

ABORT: Final = 0
COMMIT: Final = 1
LEADER_CHANGE: Final = 2
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4
KRAFT_VERSION: Final = 5
KRAFT_VOTERS: Final = 6

_KEY: Final = struct.Struct(">hh")
_END_MARKER: Final = struct.Struct(">hi")


def control_key(record_type: int) -> bytes:
    """The key of a control record of this type."""
    return _KEY.pack(0, record_type)


def control_record_type(key: bytes | None) -> int:
    """The type in a control record's key; it may be one we do not know.

    `InvalidRecordError`: no key, a short one, a negative version.
    """
    return _after_version(_KEY, key, "a control record's key", "type")


def build_control_batch(
    record_type: int,
    value: bytes,
    timestamp_ms: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> bytes:
    """A control batch of one record with this value."""
    return build_control_records(
        [(record_type, value)],
        timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def build_control_records(
    records: Iterable[tuple[int, bytes]],
    timestamp_ms: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> bytes:
    """A control batch of these types and values. It is transactional exactly when there is a
    producer.
    """
    builder = BatchBuilder(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        is_control=True,
        is_transactional=producer_id != NO_PRODUCER_ID,
    )
    for record_type, value in records:
        builder.append(timestamp_ms, control_key(record_type), value)
    return builder.build()


def build_end_marker(
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The marker that commits or aborts what this producer wrote to the partition in its open
    transaction.
    """
    return build_control_batch(
        COMMIT if is_commit else ABORT,
        _END_MARKER.pack(0, coordinator_epoch),
        timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def end_marker_coordinator_epoch(value: bytes | None) -> int:
    """The coordinator epoch in an end marker's value. `InvalidRecordError` when it is not there."""
    return _after_version(_END_MARKER, value, "an end marker", "coordinator epoch")


def _after_version(layout: struct.Struct, data: bytes | None, what: str, field: str) -> int:
    """The number that follows a version, whichever version that is: newer ones begin alike."""
    if data is None or len(data) < layout.size:
        raise InvalidRecordError(f"{what} without version and {field}")
    version, number = layout.unpack_from(data)
    if version < 0:
        raise InvalidRecordError(f"{what} is of version {version}")
    return int(number)
