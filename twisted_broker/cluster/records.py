"""Records of the metadata log: their frame, their versions, and the transactions that bind them.

Owns the frame (unsigned varints: frame version 1, record type, record version; then the body), the
version in which each record is written under a metadata.version, and the buffering of metadata
transactions.

1. A frame version, record type or record version that is not known stops the reader: an image with
   a hole is worse than none.
2. Records between BeginTransaction and EndTransaction are applied together or, after
   AbortTransaction, not at all.
3. What Kafka wrote is written again to the same bytes.

Source: Kafka's `MetadataRecordSerde`, `MetadataVersion`, KIP-868; KRAFT 3.3; `RL 8.1`. Not here:
batch headers (`wire.records`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from copy import copy

from twisted_broker.image.metadata_image import RECORDS_PER_STEP
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages import metadata_records
from twisted_broker.wire.primitives import Buffer, read_uvarint, uvarint
from twisted_broker.wire.records import BatchBuilder, BatchView
from twisted_broker.wire.schema import Record, decode, encode, run_whole

FRAME_VERSION = 1
LATEST_METADATA_VERSION = 30
MINIMUM_METADATA_VERSION = 7
DIRECTORIES_LEVEL = 17  # 3.7-IV2: registrations and partitions name log directories
ELR_LEVEL = 23  # 4.0-IV1
CORDON_LEVEL = 30  # 4.3-IV0
MAX_BATCH_BYTES = 1 << 24
SHRINK_LEVEL = 12  # 3.6-IV0: a smaller ISR needs no new leader epoch (KAFKA-15021)
TRANSACTION_LEVEL = 13  # 3.6-IV1
CONTROLLER_LEVEL = 15  # 3.7-IV0: controllers register

RECORD_TYPES: dict[int, type[Record]] = {
    cls.record_type: cls
    for cls in vars(metadata_records).values()
    if isinstance(cls, type)
    and issubclass(cls, Record)
    and cls is not Record
    and cls.record_type >= 0
}


def decode_record(frame: Buffer | None) -> tuple[Record, int]:
    """A record and the version it was written in. WireError when it is not one that we know."""
    if frame is None:
        raise WireError("a metadata record without value")
    numbers: list[int] = []
    position = 0
    try:
        for _ in range(3):
            number, position = read_uvarint(frame, position)
            numbers.append(number)
    except IndexError:
        raise WireError("a metadata record that ends inside its frame") from None
    frame_version, record_type, version = numbers
    cls = RECORD_TYPES.get(record_type)
    if frame_version != FRAME_VERSION or cls is None or not cls.versions.holds(version):
        raise WireError(
            f"metadata record of frame version {frame_version}, type {record_type}, version "
            f"{version}: not known here"
        )
    return decode(cls, frame, version, position), version


def encode_record(record: Record, version: int) -> bytes:
    """The framed record. ValueError when the version cannot carry what the record says."""
    return (
        uvarint(FRAME_VERSION)
        + uvarint(record.record_type)
        + uvarint(version)
        + encode(record, version)
    )


def record_version(record: Record, metadata_version: int) -> int:
    """The version in which Kafka writes this record under a finalised metadata.version."""
    if isinstance(
        record, metadata_records.PartitionRecord | metadata_records.PartitionChangeRecord
    ):
        return 2 if metadata_version >= ELR_LEVEL else int(metadata_version >= DIRECTORIES_LEVEL)
    if isinstance(record, metadata_records.RegisterBrokerRecord):
        return (
            4
            if metadata_version >= CORDON_LEVEL
            else 3
            if metadata_version >= DIRECTORIES_LEVEL
            else 1
        )
    if isinstance(record, metadata_records.BrokerRegistrationChangeRecord):
        if record.cordoned_log_dirs is not None:
            return 3
        return 2 if record.log_dirs else int(record.in_controlled_shutdown != 0)
    return 0


def _carried(record: Record, metadata_version: int) -> Record:
    """What Kafka writes of it: partitions name no directories below 3.7-IV2."""
    if metadata_version >= DIRECTORIES_LEVEL:
        return record
    if isinstance(record, metadata_records.PartitionRecord):
        record = copy(record)
        record.directories = []
    elif isinstance(record, metadata_records.PartitionChangeRecord):
        record = copy(record)
        record.directories = None
    return record


def build_batch(
    records: Sequence[Record],
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
    metadata_version: int,
) -> bytes:
    """One record batch holding all of `records`: they become durable together."""
    builder = run_whole(filled_in_steps(records, epoch, timestamp_ms, metadata_version))
    builder.base_offset = base_offset
    return builder.build()


def filled_in_steps(
    records: Sequence[Record], epoch: int, timestamp_ms: int, metadata_version: int
) -> Generator[None, None, BatchBuilder]:
    """As `build_batch`, pausing after every `RECORDS_PER_STEP`; the base offset is given later."""
    builder = BatchBuilder(leader_epoch=epoch)
    for number, record in enumerate(records, 1):
        builder.append(
            timestamp_ms,
            None,
            encode_record(
                _carried(record, metadata_version), record_version(record, metadata_version)
            ),
        )
        if number % RECORDS_PER_STEP == 0:
            yield
    return builder


def decoded_in_steps(batch: BatchView) -> Generator[None, None, list[Record]]:
    """The decoded records of a data batch; pauses after every `RECORDS_PER_STEP`."""
    found: list[Record] = []
    for record in batch.records(MAX_BATCH_BYTES):
        found.append(decode_record(record.value)[0])
        if len(found) % RECORDS_PER_STEP == 0:
            yield
    return found


def records_in_steps(batch: BatchView, offset: int) -> Generator[None, None, list[Record]]:
    """Those of a batch from `offset` on: an image may end within it, and nothing counts twice.
    None of a control batch. Raises WireError. Pauses after every `RECORDS_PER_STEP`.
    """
    if batch.is_control:
        return []
    found = yield from decoded_in_steps(batch)
    return found[max(0, offset - batch.base_offset) :]


class TransactionBuffer:
    """Holds back what an open metadata transaction wrote.

    `pass_through` gives what may be applied now.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[Record] | None = None

    @property
    def open(self) -> bool:
        return self._pending is not None

    def abort(self) -> None:
        """Drops what was held back."""
        self._pending = None

    def pass_through(self, records: Iterable[Record]) -> list[Record]:
        """Records to apply, in order.

        WireError when transactions are nested, or end without a beginning.
        """
        ready: list[Record] = []
        for record in records:
            if isinstance(record, metadata_records.BeginTransactionRecord):
                if self._pending is not None:
                    raise WireError("a metadata transaction began inside another one")
                self._pending = []
            elif isinstance(
                record,
                metadata_records.EndTransactionRecord | metadata_records.AbortTransactionRecord,
            ):
                if self._pending is None:
                    raise WireError("a metadata transaction ended that had not begun")
                if isinstance(record, metadata_records.EndTransactionRecord):
                    ready += self._pending
                self._pending = None
            else:
                (ready if self._pending is None else self._pending).append(record)
        return ready
