"""Idempotent and transactional producers of one log.

Owns `ProducerStateManager`: the newest batches per producer, open and not yet replicated
transactions, verifications, the snapshot files.

1. The map holds what the log holds below `map_end_offset`, no more.
2. The first unstable offset is that of the oldest transaction that is open, or whose marker is not
   below the high watermark; while the state is being rebuilt, at most where the rebuild is.
3. A producer with an open transaction never expires.
4. While the state is being rebuilt no snapshot is taken of the empty map.
5. A snapshot of many producers is written in slices, of the map as it was; one at a time. A
   truncation meanwhile drops it. It is loaded in slices, too, except at the start.

Source: Kafka's `ProducerStateManager`; KIP-98; RL 3.2. Not here: checks before an append
(`producer_append.py`), the snapshot's format (`producer_snapshot.py`), its slices
(`producer_snapshot_writer.py`, `producer_snapshot_reader.py`), who brings the state to the log's
end (`producer_rebuild.py`).
"""

from __future__ import annotations

import posixpath
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from twisted_broker.interfaces import IDiskWorker, IFile, IFileSystem
from twisted_broker.java_numbers import is_digits
from twisted_broker.log.checkpoints import read_whole
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.producer_snapshot import (
    ProducerEntry,
    decode_snapshot,
    encode_snapshot,
)
from twisted_broker.log.producer_snapshot_reader import let_go, snapshot_bytes
from twisted_broker.log.producer_snapshot_writer import SLICE_PRODUCERS, SnapshotWriter
from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.log.verification import MOST, Guard, VerificationStateEntry, check_epoch
from twisted_broker.wire.control_batch import (
    ABORT,
    control_record_type,
    end_marker_coordinator_epoch,
)
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchView,
    InvalidRecordError,
    next_sequence,
)

SUFFIX = ".snapshot"
LATE_AFTER_MS = 5 * 60_000
"""Kafka's LATE_TRANSACTION_BUFFER_MS"""


def snapshot_name(offset: int) -> str:
    """Of the file with the producers as of `offset`."""
    return f"{offset:020d}{SUFFIX}"


class ProducerStateManager:
    """State of the producers of the log in `directory`; `load` or `reset` must come first on a
    log that has content.
    """

    __slots__ = (
        "_files",
        "directory",
        "expiration_ms",
        "last_snapshot_offset",
        "loaded_upto",
        "map_end_offset",
        "newest_offset",
        "oldest_unreplicated",
        "ongoing",
        "producers",
        "rebuilt",
        "snapshots",
        "unreplicated",
        "verifications",
        "writer",
    )

    def __init__(self, files: IFileSystem, directory: str, expiration_ms: int) -> None:
        self._files, self.directory, self.expiration_ms = files, directory, expiration_ms
        self.producers: dict[int, ProducerEntry] = {}
        # Its first entry is read with each append. In a plain dict that takes time in proportion to
        # the entries that were removed before it.
        self.ongoing: OrderedDict[int, int] = OrderedDict()
        """first offset -> producer id, in order of offsets"""
        self.unreplicated: deque[tuple[int, int]] = deque()
        """(first offset, offset of the marker), in order of the markers"""
        self.oldest_unreplicated: deque[tuple[int, int]] = deque()
        """of these, each that began before all that end later: the first one is the oldest. While a
        follower in the ISR is behind, both may grow long.
        """
        self.verifications: OrderedDict[int, VerificationStateEntry] = OrderedDict()
        """producer id -> its verification (`verification.py`), oldest first"""
        self.snapshots: set[int] = set()
        self.map_end_offset = self.last_snapshot_offset = 0
        self.newest_offset = -1
        """no producer wrote at an offset above it"""
        self.loaded_upto = 0
        """the offset of the snapshot that was loaded: it does not say where the markers below it
        are, so until the high watermark is there some of them may still be truncated
        """
        self.rebuilt: ProducerStateManager | None = None
        """the state that is brought to the log's end (`producer_rebuild.py`); until it is
        adopted the map here is empty
        """
        self.writer: SnapshotWriter | None = None
        """of the snapshot that is written in slices; `keep` is called before an entry changes"""

    @property
    def is_rebuilding(self) -> bool:
        return self.rebuilt is not None

    # -- what was appended

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
        elif self.writer is not None:
            self.writer.keep(entry)
        last_sequence = (
            -1 if base_sequence == -1 else next_sequence(base_sequence, last_offset_delta)
        )
        self.newest_offset = last_offset = base_offset + last_offset_delta
        entry.add_batch(
            producer_epoch, (last_sequence, last_offset, last_offset_delta, max_timestamp)
        )
        if is_transactional:
            self.verifications.pop(producer_id, None)
            if entry.current_txn_first_offset < 0:
                entry.current_txn_first_offset = base_offset
                entry.current_txn_began_ms = max_timestamp
                self.ongoing[base_offset] = producer_id

    def add_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        is_abort: bool,
    ) -> AbortedTxn | None:
        """Remembers an end marker, and that it decided its producer's open transaction, if any;
        returns what goes into the index of aborted transactions.
        """
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        elif self.writer is not None:
            self.writer.keep(entry)
        first_offset = entry.current_txn_first_offset
        verified = self.verifications.get(producer_id)
        if verified is not None and not verified.outlives(entry, producer_epoch):
            del self.verifications[producer_id]
            verified.is_gone = True
        self.newest_offset = offset
        entry.move_to_epoch(producer_epoch)
        entry.coordinator_epoch, entry.last_timestamp, entry.current_txn_first_offset = (
            coordinator_epoch,
            timestamp,
            -1,
        )
        if first_offset < 0:
            return None
        stable = next(
            (first for first, owner in self.ongoing.items() if owner != producer_id), offset + 1
        )
        self.ongoing.pop(first_offset, None)
        self._add_unreplicated(first_offset, offset)
        return AbortedTxn(producer_id, first_offset, offset, stable) if is_abort else None

    def add_batch(self, batch: BatchView) -> AbortedTxn | None:
        """Remembers any batch with a producer id that is in the log; returns what it adds to the
        index of aborted transactions.
        """
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
        try:
            for record in batch.records():
                is_abort = control_record_type(record.key) == ABORT
                coordinator_epoch = end_marker_coordinator_epoch(record.value)
                return self.add_marker(
                    batch.producer_id,
                    batch.producer_epoch,
                    coordinator_epoch,
                    batch.base_offset,
                    record.timestamp,
                    is_abort,
                )
        except InvalidRecordError:
            # The marker cannot be read, but is in the log (the leader's, or an older one): it ends
            # no transaction, and its reader gets the error. The rest of the log stays readable.
            return None
        return None

    def first_unstable_offset(self) -> int:
        """-1 when nothing is unstable."""
        if self.rebuilt is not None:
            # What lies beyond what was read so far may be of a transaction that is open.
            first = self.rebuilt.first_unstable_offset()
            return first if first >= 0 else self.rebuilt.map_end_offset
        first = next(iter(self.ongoing), -1)
        undecided = self.oldest_unreplicated[0][0] if self.unreplicated else -1
        if first < 0 or undecided < 0:
            return max(first, undecided)
        return min(first, undecided)

    def has_late_transaction(self, wall_ms: int, longest_ms: int) -> bool:
        """Whether a transaction is open whose producer's newest record is older than `longest_ms`
        (`transaction.max.timeout.ms`) and LATE_AFTER_MS: a coordinator would have ended it. Records
        without a timestamp do not count.
        """
        since_ms = wall_ms - longest_ms - LATE_AFTER_MS
        return bool(self.ongoing) and any(
            0 < self.producers[producer_id].last_timestamp < since_ms
            for producer_id in self.ongoing.values()
        )

    def knows_what_is_decided(self, high_watermark: int) -> bool:
        """Whether all markers at or above the high watermark are known (in `unreplicated`)."""
        loaded_upto = self.loaded_upto if self.rebuilt is None else self.rebuilt.loaded_upto
        return loaded_upto <= high_watermark

    def remove_replicated(self, high_watermark: int) -> None:
        """Transactions whose marker is below the high watermark no longer hold the last stable
        offset back.
        """
        waiting, oldest = self.unreplicated, self.oldest_unreplicated
        while waiting and waiting[0][1] < high_watermark:
            if waiting.popleft() == oldest[0]:
                oldest.popleft()

    def _add_unreplicated(self, first_offset: int, marker_offset: int) -> None:
        oldest = self.oldest_unreplicated
        while oldest and oldest[-1][0] > first_offset:
            oldest.pop()
        oldest.append((first_offset, marker_offset))
        self.unreplicated.append((first_offset, marker_offset))

    # -- verification

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        supports_epoch_bump: bool,
        wall_ms: int,
    ) -> Guard:
        """What an append of this batch must bring, once the coordinator said that the transaction
        contains the partition; None where the batch continues an open transaction.

        Raises INVALID_PRODUCER_EPOCH for an epoch below the producer's last one here.
        """
        producer = self.producers.get(producer_id)
        if producer is not None:
            check_epoch(producer, producer_epoch)
        if (
            producer is not None
            and producer.current_txn_first_offset >= 0
            and producer.producer_epoch == producer_epoch
        ):
            return None
        entry = self.verifications.get(producer_id)
        if entry is None:
            if len(self.verifications) >= MOST:
                self.verifications.popitem(last=False)[1].is_gone = True
            entry = self.verifications[producer_id] = VerificationStateEntry(
                wall_ms, producer_epoch, sequence, supports_epoch_bump
            )
        entry.seen(producer_epoch, sequence, supports_epoch_bump)
        return entry

    def take_verifications(self, other: ProducerStateManager) -> None:
        """Takes those of another log, which this one, with the same records, replaces."""
        self.verifications, other.verifications = other.verifications, OrderedDict()

    def end_verification(
        self, producer_id: int, entry: VerificationStateEntry, producer_epoch: int
    ) -> None:
        """Forgets one that was refused for good for a batch of `producer_epoch`."""
        # A newer epoch that is being verified has the same entry, and may be allowed.
        if self.verifications.get(producer_id) is entry and entry.producer_epoch <= producer_epoch:
            del self.verifications[producer_id]

    def expire_verifications(self, wall_ms: int) -> None:
        """Forgets those that nothing was written under for `producer.id.expiration.ms`."""
        for number, waiting in list(self.verifications.items()):
            if wall_ms - waiting.wall_ms >= self.expiration_ms:
                del self.verifications[number]

    def expire(self, producer_ids: Iterable[int], wall_ms: int) -> None:
        """Forgets those of these producers that were silent for `producer.id.expiration.ms`; some
        may be unknown by now.
        """
        producers = self.producers
        for producer_id in producer_ids:
            entry = producers.get(producer_id)
            if entry is not None and self._is_expired(entry, wall_ms):
                del producers[producer_id]

    def _is_expired(self, entry: ProducerEntry, wall_ms: int) -> bool:
        return (
            entry.current_txn_first_offset < 0
            and wall_ms - entry.last_timestamp >= self.expiration_ms
        )

    # -- snapshots

    def find_snapshots(self) -> None:
        """Lists the snapshot files."""
        names = (name for name in self._files.listdir(self.directory) if name.endswith(SUFFIX))
        self.snapshots = {
            int(name[: -len(SUFFIX)]) for name in names if is_digits(name[: -len(SUFFIX)])
        }

    def move_to(self, directory: str) -> None:
        """The log has another name."""
        for state in (self, self.rebuilt):
            if state is not None:
                state.directory = directory

    def path(self, offset: int) -> str:
        return posixpath.join(self.directory, snapshot_name(offset))

    def take_snapshot(
        self,
        disk: IDiskWorker | None = None,
        on_fatal: Callable[[OSError], object] | None = None,
    ) -> int:
        """Writes a snapshot at the map's end; returns its offset, or -1: there is one, or another
        one is being written, or the state is being rebuilt. With many producers `disk` writes it in
        slices, and it counts when it is whole: until then a load begins from the one before.

        Raises OSError; what fails later goes to `on_fatal`.
        """
        offset = self.map_end_offset
        if (
            offset <= self.last_snapshot_offset
            or self.rebuilt is not None
            or self.writer is not None
        ):
            return -1
        entries = list(self.producers.values())
        file = self._files.open(self.path(offset), create=True)
        if disk is not None and on_fatal is not None and len(entries) > SLICE_PRODUCERS:
            self._begin_snapshot(offset, entries, file, disk, on_fatal)
            return offset
        try:
            file.truncate(0)
            file.write_at(0, (encode_snapshot(entries),))
        finally:
            file.close()
        self.snapshots.add(offset)
        self.last_snapshot_offset = offset
        return offset

    def _begin_snapshot(
        self,
        offset: int,
        entries: list[ProducerEntry],
        file: IFile,
        disk: IDiskWorker,
        on_fatal: Callable[[OSError], object],
    ) -> None:
        try:
            file.truncate(0)
        except OSError:
            file.close()
            raise
        self.last_snapshot_offset = offset
        self.writer = SnapshotWriter(offset, entries, file, disk, on_fatal, self)
        self.writer.start()

    def snapshot_ended(self, offset: int, is_whole: bool) -> None:
        """Called by the writer."""
        self.writer = None
        if is_whole:
            self.snapshots.add(offset)
            self.last_snapshot_offset = max(self.last_snapshot_offset, offset)

    def stop_snapshot(self) -> None:
        """Ends the writing of a snapshot in slices: the log is offline."""
        for state in (self, self.rebuilt):
            if state is not None and state.writer is not None:
                state.writer.cancel()
                state.writer = None

    def drop_unfinished_snapshot(self) -> None:
        """Removes a snapshot that is still being written. Raises OSError."""
        for state in (self, self.rebuilt):
            if state is not None and state.writer is not None:
                self.remove_snapshot(state.writer.offset)
                state.last_snapshot_offset = max(self.snapshots, default=0)

    def remove_snapshot(self, offset: int) -> None:
        self.snapshots.discard(offset)
        for state in (self, self.rebuilt):
            if state is not None and state.writer is not None and state.writer.offset == offset:
                state.writer.cancel()
                state.writer = None
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

    def truncate(self, log_start_offset: int, log_end_offset: int) -> bool:
        """Drops snapshots outside the log. False: the map is right as it is, for no producer wrote
        what was truncated; True: it is to be loaded again.
        """
        self.drop_unfinished_snapshot()
        for offset in sorted(self.snapshots):
            if offset > log_end_offset or offset <= log_start_offset:
                self.remove_snapshot(offset)
        if (
            self.rebuilt is not None
            or log_end_offset > self.map_end_offset
            or self.newest_offset >= log_end_offset
        ):
            return True
        self.map_end_offset = log_end_offset
        self.on_log_start_moved(log_start_offset)
        return False

    def takes_long(self) -> bool:
        """Whether the producers that `begin_reload` frees, or those of the newest snapshot, are
        more than one slice.
        """
        states = (self,) if self.rebuilt is None else (self, self.rebuilt)
        if any(len(state.producers) > SLICE_PRODUCERS for state in states):
            return True
        path = self.path(max(self.snapshots, default=0))
        size = self._files.size(path) if self._files.exists(path) else 0
        return size > snapshot_bytes(SLICE_PRODUCERS)

    def reload(self, log_start_offset: int, wall_ms: int) -> None:
        """Loads the newest snapshot in one go."""
        self._clear()
        self.map_end_offset = self.last_snapshot_offset = log_start_offset
        for offset in sorted(self.snapshots, reverse=True):
            try:
                entries = decode_snapshot(
                    self.path(offset), read_whole(self._files, self.path(offset)) or b""
                )
            except CheckpointError:
                self.remove_snapshot(offset)
                continue
            self.loaded(offset, self.load_some(entries, wall_ms))
            break
        self.newest_offset = self.map_end_offset - 1

    def begin_reload(self, log_start_offset: int, disk: IDiskWorker | None) -> ProducerStateManager:
        """A state in which nothing is known, to be loaded and then brought to the log's end in
        slices; what is here is empty from now on, until `adopt`. They share the snapshots.
        """
        self.let_go(disk)
        self._clear()
        self.map_end_offset = self.last_snapshot_offset = log_start_offset
        self.newest_offset = log_start_offset - 1
        return self.begin_rebuild()

    def load_some(self, entries: list[ProducerEntry], wall_ms: int) -> list[tuple[int, int]]:
        """Adds some producers of a snapshot, except expired ones; returns their open transactions
        as `loaded` takes them.
        """
        kept = [entry for entry in entries if not self._is_expired(entry, wall_ms)]
        self.producers.update([(entry.producer_id, entry) for entry in kept])
        return [
            (entry.current_txn_first_offset, entry.producer_id)
            for entry in kept
            if entry.current_txn_first_offset >= 0
        ]

    def loaded(self, offset: int, opened: list[tuple[int, int]]) -> None:
        """All producers of the snapshot at `offset` were added. `opened`: first offset and producer
        id of the transactions that were open there.
        """
        self.ongoing = OrderedDict(sorted(opened))
        self.map_end_offset = self.last_snapshot_offset = self.loaded_upto = offset
        self.newest_offset = offset - 1

    def begin_rebuild(self) -> ProducerStateManager:
        """The state as it is, to be brought to the log's end in slices; what is here is empty
        from now on, until `adopt`. They share the snapshots.
        """
        other = ProducerStateManager(self._files, self.directory, self.expiration_ms)
        other.adopt(self)
        other.snapshots = self.snapshots
        self._clear()
        self.rebuilt = other
        return other

    def adopt(self, other: ProducerStateManager) -> None:
        """Takes over what `other` found."""
        self.producers, self.ongoing = other.producers, other.ongoing
        self.unreplicated, self.oldest_unreplicated = (
            other.unreplicated,
            other.oldest_unreplicated,
        )
        self.map_end_offset, self.newest_offset, self.last_snapshot_offset, self.loaded_upto = (
            other.map_end_offset,
            other.newest_offset,
            other.last_snapshot_offset,
            other.loaded_upto,
        )
        self.rebuilt, self.writer = None, other.writer
        if self.writer is not None:
            self.writer.move_to(self)

    def on_log_start_moved(self, log_start_offset: int) -> None:
        self.remove_replicated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self.last_snapshot_offset = max(self.snapshots, default=log_start_offset)

    def reset(self, offset: int, disk: IDiskWorker | None = None) -> None:
        """Forgets everything and all snapshots; the map ends at `offset`."""
        self.drop_unfinished_snapshot()
        self.let_go(disk)
        self._clear()
        for snapshot in sorted(self.snapshots):
            self.remove_snapshot(snapshot)
        self.last_snapshot_offset, self.map_end_offset, self.newest_offset = 0, offset, -1

    def let_go(self, disk: IDiskWorker | None) -> None:
        """Frees the producers, which nobody uses any more; many of them in slices."""
        for state in (self, self.rebuilt):
            if state is not None:
                let_go(state.producers, disk)

    def _clear(self) -> None:
        self.rebuilt = self.writer = None
        self.producers, self.ongoing, self.loaded_upto = {}, OrderedDict(), 0
        self.unreplicated, self.oldest_unreplicated = deque(), deque()
        for verified in self.verifications.values():
            verified.is_gone = True
        self.verifications = OrderedDict()
