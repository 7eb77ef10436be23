"""The file format of producer snapshots.

Owns `ProducerEntry`, what is remembered of one producer, and `encode_snapshot`, `decode_snapshot`
with their parts.

1. A snapshot that does not match its CRC, count or size is refused whole.
2. Only the last batch of a producer is in a snapshot; in memory there are up to five
   (`producer_batch_recovery.py` finds the others again).

Source: Kafka's `ProducerSnapshot.json`, `ProducerStateEntry`; Kafka's record formats. Not here:
rules (`producer_state.py`), files of many producers, in slices (`producer_snapshot_writer.py`,
`producer_snapshot_reader.py`).
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from twisted_broker.log.errors import CheckpointError

RETAINED_BATCHES = 5
COUNT = struct.Struct(">i")
_HEAD = struct.Struct(">hIi")
HEAD_BYTES = _HEAD.size
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")
ROW_BYTES = _ENTRY.size
_VERSION = 1
_MAX_SEQUENCE = 2**31 - 1
_NO_BATCH = (-1, -1, 0, -1)

BatchMetadata = tuple[int, int, int, int]
"""(last sequence, last offset, offset delta, timestamp)"""


class ProducerEntry:
    """Epochs, time of the last batch, the newest batches (oldest first), first offset of the
    open transaction (-1 none) and the time of its first batch (-1 unknown: no snapshot has it).
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_began_ms",
        "current_txn_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int = -1,
        coordinator_epoch: int = -1,
        last_timestamp: int = -1,
    ) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.coordinator_epoch, self.last_timestamp = coordinator_epoch, last_timestamp
        self.current_txn_first_offset = self.current_txn_began_ms = -1
        self.batches: list[BatchMetadata] = []

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][0] if self.batches else -1

    @property
    def last_offset(self) -> int:
        return self.batches[-1][1] if self.batches else -1

    def duplicate_of(
        self, producer_epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchMetadata | None:
        """The remembered batch with exactly these sequences under the same epoch."""
        if producer_epoch == self.producer_epoch:
            for batch in self.batches:
                if (
                    batch[0] == last_sequence
                    and (batch[0] - batch[2]) & _MAX_SEQUENCE == first_sequence
                ):
                    return batch
        return None

    def add_batch(self, producer_epoch: int, batch: BatchMetadata) -> None:
        """Remembers a batch; a new epoch forgets those before."""
        self.move_to_epoch(producer_epoch)
        batches = self.batches
        if len(batches) == RETAINED_BATCHES:
            del batches[0]
        batches.append(batch)
        self.last_timestamp = batch[3]

    def move_to_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch


def encode_row(entry: ProducerEntry) -> bytes:
    """What a snapshot says of one producer."""
    last_sequence, last_offset, delta, _ = entry.batches[-1] if entry.batches else _NO_BATCH
    return _ENTRY.pack(
        entry.producer_id,
        entry.producer_epoch,
        last_sequence,
        last_offset,
        delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )


def encode_head(count: int, crc: int) -> bytes:
    """What precedes the rows; `crc` is that of the count and the rows."""
    return _HEAD.pack(_VERSION, crc, count)


def encode_snapshot(producers: list[ProducerEntry]) -> bytes:
    """The bytes of a snapshot file."""
    rows = b"".join(map(encode_row, producers))
    count = len(producers)
    return encode_head(count, crc32c(rows, crc32c(COUNT.pack(count)))) + rows


def decode_snapshot(path: str, content: bytes) -> list[ProducerEntry]:
    """The producers of a snapshot file; CheckpointError when it is damaged."""
    return decode_rows(content, 0, check_snapshot(path, content))


def check_snapshot(path: str, content: bytes) -> int:
    """How many producers are in a snapshot file; CheckpointError when it is damaged."""
    if len(content) < HEAD_BYTES:
        raise CheckpointError(path, "is too short for a producer snapshot")
    version, crc, count = _HEAD.unpack_from(content)
    if version != _VERSION or crc != crc32c(memoryview(content)[_CRC_FROM:]):
        raise CheckpointError(path, "does not match its version or CRC")
    if count < 0 or len(content) != HEAD_BYTES + count * ROW_BYTES:
        raise CheckpointError(path, "does not hold the producers it announces")
    return int(count)


def decode_rows(content: bytes, first: int, end: int) -> list[ProducerEntry]:
    """The producers from the one of index `first` to `end` in a file that was checked."""
    rows = memoryview(content)[HEAD_BYTES + first * ROW_BYTES : HEAD_BYTES + end * ROW_BYTES]
    return [_entry(row) for row in _ENTRY.iter_unpack(rows)]


def _entry(row: tuple[int, ...]) -> ProducerEntry:
    (
        producer_id,
        epoch,
        last_sequence,
        last_offset,
        delta,
        timestamp,
        coordinator_epoch,
        first_offset,
    ) = row
    entry = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp)
    entry.current_txn_first_offset = first_offset
    if last_offset >= 0:
        entry.batches.append((last_sequence, last_offset, delta, timestamp))
    return entry
