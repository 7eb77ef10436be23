"""Idempotent and transactional producers of one log.

Owns `ProducerStateManager`: the newest batches per producer, open and not yet replicated
transactions, the snapshot files.

1. The map holds what the log holds below `map_end_offset`, no more.
2. A batch that repeats one of a producer's last five is a duplicate; otherwise a sequence follows
   the last one (0 after 2^31-1), starts at 0 under a new epoch, and may be anything for a producer
   that is not known (its records may have been deleted).
3. The first unstable offset is that of the oldest transaction that is open, or whose marker is not
   below the high watermark.
4. A producer with an open transaction never expires.

Source: Kafka's `ProducerStateManager`, `ProducerAppendInfo`; KIP-98; RL 3.2. Left out: verification
of transactional writes (KIP-890).
"""

from __future__ import annotations

import posixpath

from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.checkpoints import read_whole
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.producer_snapshot import (
    BatchMetadata,
    ProducerEntry,
    decode_snapshot,
    encode_snapshot,
)
from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.wire.control_batch import (
    ABORT,
    control_record_type,
    end_marker_coordinator_epoch,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchView, next_sequence

SUFFIX = ".snapshot"


def snapshot_name(offset: int) -> str:
    return f"{offset:020d}{SUFFIX}"


class CompletedTxn:
    """A transaction whose marker was read: first offset, offset of the marker."""

    __slots__ = ("first_offset", "is_aborted", "last_offset", "producer_id")

    def __init__(
        self, producer_id: int, first_offset: int, last_offset: int, is_aborted: bool
    ) -> None:
        self.producer_id, self.first_offset, self.last_offset, self.is_aborted = (
            producer_id,
            first_offset,
            last_offset,
            is_aborted,
        )


class ProducerStateManager:
    """State of the producers of the log in `directory`; `load` or `reset` must come first on a
    log that has content.
    """

    __slots__ = (
        "_files",
        "behind",
        "directory",
        "expiration_ms",
        "last_snapshot_offset",
        "map_end_offset",
        "newest_offset",
        "ongoing",
        "producers",
        "snapshots",
        "unreplicated",
    )

    def __init__(self, files: IFileSystem, directory: str, expiration_ms: int) -> None:
        self._files, self.directory, self.expiration_ms = files, directory, expiration_ms
        self.producers: dict[int, ProducerEntry] = {}
        self.ongoing: dict[int, int] = {}
        """first offset -> producer id, in order of offsets"""
        self.unreplicated: dict[int, int] = {}
        """first offset -> offset of the marker"""
        self.snapshots: set[int] = set()
        self.map_end_offset = self.last_snapshot_offset = 0
        self.newest_offset = -1
        """no producer wrote at an offset above it"""
        self.behind = False
        """the map is not that of the log: it is found anew (`producer_rebuild.py`)"""

    # -- checks before an append

    def duplicate(
        self, producer_id: int, producer_epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchMetadata | None:
        """The batch with these very sequences, when it is among the last five of this producer;
        None when it is new.
        """
        entry = self.producers.get(producer_id)
        return (
            None
            if entry is None
            else entry.duplicate_of(producer_epoch, first_sequence, last_sequence)
        )

    def check(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        is_transactional: bool,
        check_sequence: bool,
    ) -> None:
        """Raises BrokerError when the batch may not follow what this producer wrote."""
        entry = self.producers.get(producer_id)
        if entry is None or entry.producer_epoch < 0:
            return
        if producer_epoch < entry.producer_epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} is at epoch {entry.producer_epoch}, not {producer_epoch}",
            )
        if check_sequence:
            self._check_sequence(entry, producer_epoch, base_sequence)
        if entry.current_txn_first_offset >= 0 and not is_transactional:
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has an open transaction"
            )

    def _check_sequence(
        self, entry: ProducerEntry, producer_epoch: int, base_sequence: int
    ) -> None:
        if producer_epoch != entry.producer_epoch:
            expected = 0
        else:
            last = entry.last_sequence
            expected = last + 1 if last != 2**31 - 1 else 0
        if base_sequence != expected:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                (
                    f"producer {entry.producer_id} sent sequence {base_sequence} of epoch "
                    f"{producer_epoch}, expected {expected}"
                ),
            )

    # -- updates after it

    def add_data(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        base_offset: int,
        last_offset_delta: int,
        max_timestamp: int,
        is_transactional: bool,
    ) -> None:
        """Remembers a data batch that is in the log."""
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        last_sequence = (
            -1 if base_sequence == -1 else next_sequence(base_sequence, last_offset_delta)
        )
        self.newest_offset = last_offset = base_offset + last_offset_delta
        entry.add_batch(
            producer_epoch, (last_sequence, last_offset, last_offset_delta, max_timestamp)
        )
        if is_transactional and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = base_offset
            self.ongoing[base_offset] = producer_id

    def add_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        is_abort: bool,
    ) -> CompletedTxn | None:
        """Remembers an end marker; returns the transaction it ended, still ongoing until
        `complete`.
        """
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        first_offset = entry.current_txn_first_offset
        self.newest_offset = offset
        entry.move_to_epoch(producer_epoch)
        entry.coordinator_epoch, entry.last_timestamp, entry.current_txn_first_offset = (
            coordinator_epoch,
            timestamp,
            -1,
        )
        return (
            CompletedTxn(producer_id, first_offset, offset, is_abort) if first_offset >= 0 else None
        )

    def check_marker(self, batch: BatchView) -> None:
        """Raises BrokerError for an end marker of an old producer epoch or an old coordinator."""
        entry = self.producers.get(batch.producer_id)
        if entry is None:
            return
        if batch.producer_epoch < entry.producer_epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} is at epoch {entry.producer_epoch}",
            )
        for record in batch.records():
            if end_marker_coordinator_epoch(record.value) < entry.coordinator_epoch:
                raise BrokerError(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"coordinator epoch {entry.coordinator_epoch} has written already",
                )

    def add_batch(self, batch: BatchView) -> CompletedTxn | None:
        """Remembers any batch with a producer id that is in the log."""
        if not batch.attributes & CONTROL_FLAG:
            self.add_data(
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.base_offset,
                batch.last_offset_delta,
                batch.max_timestamp,
                batch.attributes & TRANSACTIONAL_FLAG != 0,
            )
            return None
        for record in batch.records():
            kind = control_record_type(record.key)
            epoch = end_marker_coordinator_epoch(record.value)
            return self.add_marker(
                batch.producer_id,
                batch.producer_epoch,
                epoch,
                batch.base_offset,
                record.timestamp,
                kind == ABORT,
            )
        return None

    def complete(self, completed: CompletedTxn) -> AbortedTxn | None:
        """Ends the transaction; returns what goes into the index of aborted ones, if anything."""
        stable = next(
            (offset for offset, owner in self.ongoing.items() if owner != completed.producer_id),
            completed.last_offset + 1,
        )
        self.ongoing.pop(completed.first_offset, None)
        self.unreplicated[completed.first_offset] = completed.last_offset
        if not completed.is_aborted:
            return None
        return AbortedTxn(
            completed.producer_id, completed.first_offset, completed.last_offset, stable
        )

    def first_unstable_offset(self) -> int:
        """-1 when nothing is unstable."""
        first = next(iter(self.ongoing), -1)
        undecided = min(self.unreplicated, default=-1)
        if first < 0 or undecided < 0:
            return max(first, undecided)
        return min(first, undecided)

    def forget_replicated(self, high_watermark: int) -> None:
        """Transactions whose marker is below the high watermark no longer hold the last stable
        offset back.
        """
        for first in [first for first, last in self.unreplicated.items() if last < high_watermark]:
            del self.unreplicated[first]

    def expire(self, now_ms: int) -> int:
        """Forgets producers silent for `producer.id.expiration.ms`; returns their number."""
        expired = [
            number for number, entry in self.producers.items() if self._is_expired(entry, now_ms)
        ]
        for number in expired:
            del self.producers[number]
        return len(expired)

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return (
            entry.current_txn_first_offset < 0
            and now_ms - entry.last_timestamp >= self.expiration_ms
        )

    # -- snapshots

    def find_snapshots(self) -> None:
        """Learns which snapshot files there are."""
        names = (name for name in self._files.listdir(self.directory) if name.endswith(SUFFIX))
        self.snapshots = {
            int(name[: -len(SUFFIX)]) for name in names if name[: -len(SUFFIX)].isdigit()
        }

    def path(self, offset: int) -> str:
        return posixpath.join(self.directory, snapshot_name(offset))

    def take_snapshot(self, sync: bool = False) -> int:
        """Writes a snapshot at the map's end unless that is no news; its offset, or -1. OSError."""
        offset = self.map_end_offset
        if offset <= self.last_snapshot_offset or self.behind:
            return -1
        file = self._files.open(self.path(offset), create=True)
        try:
            file.truncate(0)
            file.write_at(0, (encode_snapshot(list(self.producers.values())),))
            if sync:
                file.sync()
        finally:
            file.close()
        self.snapshots.add(offset)
        self.last_snapshot_offset = offset
        return offset

    def remove_snapshot(self, offset: int) -> None:
        self.snapshots.discard(offset)
        if self._files.exists(self.path(offset)):
            self._files.remove(self.path(offset))

    def remove_strays(self, base_offsets: set[int]) -> None:
        """Keeps the snapshots at the segments' base offsets, and the newest one if it lies above
        them.
        """
        newest_base = max(base_offsets, default=0)
        newest = max((offset for offset in self.snapshots if offset > newest_base), default=-1)
        for offset in sorted(self.snapshots - base_offsets - {newest}):
            self.remove_snapshot(offset)

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> bool:
        """Drops snapshots outside the log and loads the newest one left; False when the map
        holds as it is: no producer wrote what was cut.
        """
        for offset in sorted(self.snapshots):
            if offset > log_end_offset or offset <= log_start_offset:
                self.remove_snapshot(offset)
        if (
            self.behind
            or log_end_offset > self.map_end_offset
            or self.newest_offset >= log_end_offset
        ):
            self._clear()
            self._load(log_start_offset, now_ms)
            return True
        self.map_end_offset = log_end_offset
        self.on_log_start_moved(log_start_offset)
        return False

    def detached(self) -> ProducerStateManager:
        """The state as it is, to be brought forward elsewhere; what is here is behind from now
        on, until `adopt`. They share the snapshots.
        """
        other = ProducerStateManager(self._files, self.directory, self.expiration_ms)
        other.adopt(self)
        other.snapshots = self.snapshots
        self._clear()
        self.behind = True
        return other

    def adopt(self, other: ProducerStateManager) -> None:
        """Takes over what `other` found."""
        self.producers, self.ongoing, self.unreplicated = (
            other.producers,
            other.ongoing,
            other.unreplicated,
        )
        self.map_end_offset, self.newest_offset, self.last_snapshot_offset = (
            other.map_end_offset,
            other.newest_offset,
            other.last_snapshot_offset,
        )
        self.behind = False

    def _load(self, log_start_offset: int, now_ms: int) -> None:
        self.map_end_offset = self.last_snapshot_offset = log_start_offset
        for offset in sorted(self.snapshots, reverse=True):
            try:
                entries = decode_snapshot(
                    self.path(offset), read_whole(self._files, self.path(offset)) or b""
                )
            except CheckpointError:
                self.remove_snapshot(offset)
                continue
            self._take(entries, now_ms)
            self.map_end_offset = self.last_snapshot_offset = offset
            break
        self.newest_offset = self.map_end_offset - 1

    def _take(self, entries: list[ProducerEntry], now_ms: int) -> None:
        self.producers = {
            entry.producer_id: entry for entry in entries if not self._is_expired(entry, now_ms)
        }
        opened = (
            (entry.current_txn_first_offset, entry.producer_id) for entry in self.producers.values()
        )
        self.ongoing = {
            first_offset: producer_id
            for first_offset, producer_id in sorted(opened)
            if first_offset >= 0
        }

    def on_log_start_moved(self, log_start_offset: int) -> None:
        self.forget_replicated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self.last_snapshot_offset = max(self.snapshots, default=log_start_offset)

    def reset(self, offset: int) -> None:
        """Forgets everything and all snapshots; the map ends at `offset`."""
        self._clear()
        for snapshot in sorted(self.snapshots):
            self.remove_snapshot(snapshot)
        self.last_snapshot_offset, self.map_end_offset, self.newest_offset, self.behind = (
            0,
            offset,
            -1,
            False,
        )

    def _clear(self) -> None:
        self.producers, self.ongoing, self.unreplicated = {}, {}, {}
