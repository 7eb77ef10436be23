"""How much of one log is on the disk.

Owns `Durability`: the recovery point, syncs, what waits for one (`flush.messages`), and when the
leader-epoch checkpoint is written.

1. The recovery point rises only when everything below it was synced, file names and leader epochs
   included; not if the log was truncated while the sync ran, or failed. A truncation is a write as
   well: the recovery point falls back to the segment that was truncated, so that the next sync
   makes its new end durable; until then recovery checks it.
   That sync begins when the recovery-point checkpoint of the truncation is written. Until it is
   done the high-watermark checkpoint says no more than was committed before the truncation, and
   kept: a loss of power may bring back what was truncated.
2. One sync runs at a time: all that is wanted meanwhile is done by one more after it.
3. An append that made a sync due is acknowledged when that sync is done, not before: acknowledged
   means synced.
4. The recovery point that is checkpointed is limited three times.
   It is not above the larger of the high watermark and the point that the start found. Few
   truncations go below that (after an unclean election, of a mirror, of a follower that missed a
   marker): so what grows past an old recovery point is not taken for synced. When a truncation does
   go below the offset that the checkpoint may hold, a follower appends nothing until the checkpoint
   is written again (`when_synced`), and a leader refuses appends until then. When it goes below the
   log start, both wait for the checkpoint of log starts: the next start would drop, by the old
   one, what was appended since.
   It is not above the base offset of the active segment. That one's end may change when it rolls (a
   preallocated tail goes, or a truncation came before), and would be trusted before it is synced.
   While producers are rebuilt, it is not above where the transaction indexes are complete: the next
   process would not look for what they lack.
5. A failed sync is not tried again: the kernel may have dropped the pages that it could not write,
   so a second one proves nothing.

Source: Kafka's `LocalLog.flush`, `UnifiedLog.flush`, `LeaderEpochCheckpointFile`; RL 3.2,
RELIABILITY 6.1. Not here: which epoch began where (`leader_epochs.py`), offset checkpoints of a
directory (`log_manager.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from twisted_broker.interfaces import IDiskWorker
from twisted_broker.log import checkpoints
from twisted_broker.log.leader_epochs import LeaderEpochFile, LeaderEpochFileCache
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.segments import LogSegments
from twisted_broker.log.watermarks import Watermarks
from twisted_broker.subclassed import mypyc_attr
from twisted_broker.wire.errors import BrokerError, ErrorCode

NOWHERE = 1 << 63


@mypyc_attr(allow_interpreted_subclasses=True)
class Durability:
    """Until `attach`, syncs happen at once (start, tests). `on_synced()` is called when a sync that
    was due is done, `on_fatal(error)` on a disk error.

    `flush_messages`: a sync is due after so many records.
    """

    __slots__ = (
        "_being_written",
        "_generation",
        "_is_ending",
        "_is_point_above",
        "_is_retrying",
        "_is_start_above",
        "_last_truncation",
        "_loaded_point",
        "_on_fatal",
        "_on_out_of_descriptors",
        "_on_synced",
        "_producers",
        "_segments",
        "_sync_upto",
        "_sync_waiters",
        "_sync_wanted",
        "_truncations",
        "_unsynced_truncation",
        "_watermarks",
        "_written_point",
        "awaiting_sync",
        "disk",
        "epoch_file",
        "flush_messages",
        "indexed_upto",
        "indexes_shrank",
        "is_checkpoint_above",
        "last_flush_ms",
        "name_is_durable",
        "recovery_point",
        "stopped",
        "unflushed_since",
    )

    def __init__(
        self,
        segments: LogSegments,
        watermarks: Watermarks,
        producers: ProducerStateManager,
        leader_epochs: LeaderEpochFileCache,
        flush_messages: int,
        on_fatal: Callable[[OSError], object],
        on_synced: Callable[[], None],
    ) -> None:
        self._segments, self._watermarks = segments, watermarks
        self._producers = producers
        self.flush_messages, self._on_fatal, self._on_synced = flush_messages, on_fatal, on_synced
        self.disk: IDiskWorker | None = None
        self.stopped = False
        """the log is offline: nothing is synced any more, and nothing waits for it"""
        self.recovery_point = self.unflushed_since = self.last_flush_ms = 0
        self._loaded_point = 0  # of the start, or where it was truncated below that
        # What the checkpoint may say of this log: by the last write that is done, and by one that
        # has begun since (on the disk worker).
        self._written_point = self._being_written = 0
        self._truncations = 0  # counts truncations
        # The lowest high watermark at a truncation that no sync covers yet, and the end of the log
        # after the last of them.
        self._unsynced_truncation, self._last_truncation = NOWHERE, 0
        self._is_point_above = self._is_start_above = False
        self.is_checkpoint_above = False
        """truncated below what the checkpoint of recovery points, or of log starts, may say, and
        that was not written since
        """
        self.indexes_shrank = False
        """records or entries were dropped and no sync covers that, in the active segment perhaps: a
        loss of power may bring them back, where entries that are merely lost would be made anew
        """
        self.indexed_upto = NOWHERE
        """the transaction indexes have all aborted transactions that end below; NOWHERE: all"""
        self.name_is_durable = True
        """False: the directory's own name and `partition.metadata` are not synced yet"""
        self.awaiting_sync: LogOffsetMetadata | None = None
        """the first record whose append made a sync due that is not done; None: nothing waits"""
        self._is_ending = False  # the last sync is with the disk worker, or about to be
        self._on_out_of_descriptors: Callable[[OSError], None] | None = None
        self._is_retrying = False
        self._generation = 0  # counts what makes a sync that runs meanwhile worthless
        self._sync_upto = self._sync_wanted = -1  # of the sync that runs, of the next; -1 none
        self._sync_waiters: list[tuple[int, Callable[[], None]]] = []
        self.epoch_file = LeaderEpochFile(leader_epochs, segments)

    def attach(
        self, disk: IDiskWorker, on_out_of_descriptors: Callable[[OSError], None] | None = None
    ) -> None:
        """Syncs run on `disk` from now on. `on_out_of_descriptors(error)` is called where a sync,
        or a read of the rebuild, found no descriptor: the log's owner tries both again a little
        later.
        """
        self.disk, self._on_out_of_descriptors = disk, on_out_of_descriptors

    def detach(self, refusal: BrokerError) -> None:
        """The log is gone: nobody hears of a sync or a failure any more."""
        self._on_fatal = lambda error: refusal
        self._on_synced = lambda: None
        self._on_out_of_descriptors = None

    @property
    def is_over(self) -> bool:
        """The log is offline, or about to be closed: nothing is written any more."""
        return self.stopped or self._is_ending

    def end(self) -> None:
        """The log is about to be closed: after its last sync another process may take the files, so
        nothing is written or synced any more.
        """
        self._is_ending = True

    # -- the recovery point in the checkpoint

    def found_checkpoint(self, point: int) -> None:
        """Takes what the checkpoint said at the start: it may be above the recovery point."""
        self._written_point = self._being_written = point
        self._is_point_above = point > self.recovery_point
        self.is_checkpoint_above = self._is_point_above or self._is_start_above

    def begin_at(self, recovery_point: int) -> None:
        """Takes the recovery point with which the log was loaded."""
        self.recovery_point = self._loaded_point = recovery_point
        self._written_point = self._being_written = recovery_point

    def point_to_checkpoint(self, synced_upto: int | None = None) -> int:
        """What the checkpoint says of this log, `synced_upto` (the recovery point) at most."""
        # Read before the recovery point: whoever raises it has lowered the recovery point first.
        indexed_upto = self.indexed_upto
        upto = self._recovery_point_of_whole_segments() if synced_upto is None else synced_upto
        # The high watermark is not known before the log has a role: what was read at the start was
        # not above it, and a lower row would have the whole log checked after the next crash.
        return min(upto, indexed_upto, max(self._watermarks.high_watermark, self._loaded_point))

    def _recovery_point_of_whole_segments(self) -> int:
        # Read before the recovery point: the reactor may roll in between, and a tail that it trims
        # is not synced then.
        active = self._segments.active.base_offset
        return min(self.recovery_point, active)

    def point_in_write(self) -> tuple[int, int]:
        """The recovery point that is about to be checkpointed, and a count of truncations:
        `point_written` takes both. Runs on the disk worker while the log may be truncated
        (`truncated_to` has the order).
        """
        while True:
            truncations = self._truncations
            self._being_written = point = self.point_to_checkpoint()
            # A truncation in between did not see what is about to be written.
            if truncations == self._truncations:
                return point, truncations

    def point_written(self, point: int, truncations: int) -> None:
        """The checkpoint says so now."""
        self._written_point = point
        if self._is_point_above and truncations == self._truncations:
            self._is_point_above = False
            self._checkpoint_written()
        if self._unsynced_truncation != NOWHERE and self.disk is not None:
            self.flush()

    @property
    def start_to_write(self) -> int | None:
        """A count of truncations for `start_written`, where the checkpoint of log starts may be
        above this log's start and must be written; else None.
        """
        return self._truncations if self._is_start_above else None

    def start_written(self, truncations: int) -> None:
        """The checkpoint has the log start as of that count of truncations."""
        if self._is_start_above and truncations == self._truncations:
            self._is_start_above = False
            self._checkpoint_written()

    def _checkpoint_written(self) -> None:
        self.is_checkpoint_above = self._is_point_above or self._is_start_above
        if not self.is_checkpoint_above:
            self._call_waiters()

    def is_checkpointed(self, offset: int) -> bool:
        """Whether the recovery point on disk is not below `offset`."""
        return min(self._written_point, self._being_written) >= offset

    def check_checkpoint(self) -> None:
        """Before an append as leader. Raises NOT_LEADER_OR_FOLLOWER, as before a partition is made
        leader, while the checkpoint says too much: after a loss of power the records would count
        as synced, or after any crash as deleted. Kafka writes the checkpoint within the truncation.
        """
        if self.is_checkpoint_above and self.disk is not None:
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "a checkpoint of the log is being written: try again",
            )

    # -- syncs

    def flush(self, upto: int | None = None) -> None:
        """Syncs everything below `upto` (default and upper bound: the log end) and moves the
        recovery point there when done; never blocks with a `disk`.
        """
        end = self._segments.log_end_offset
        # A caller that waited may name offsets that were truncated since: what is appended there
        # next would count as synced.
        upto = end if upto is None else min(upto, end)
        if (
            upto <= self.recovery_point and self._unsynced_truncation == NOWHERE
        ) or self._is_ending:
            return
        self.unflushed_since = upto
        if self.disk is None:
            self.sync_job(upto)()
            self._move_recovery_point(upto, self._generation, None)
        elif self._sync_upto >= 0:
            # One sync at a time; all that is wanted meanwhile is the next one's.
            self._sync_wanted = max(self._sync_wanted, upto)
        else:
            self._submit_sync(self.disk, upto)

    def _submit_sync(self, disk: IDiskWorker, upto: int) -> None:
        generation = self._generation
        self._sync_upto, self._sync_wanted = upto, -1
        self.unflushed_since = max(self.unflushed_since, upto)
        disk.submit(
            self.sync_job(upto), lambda _, error: self._sync_done(disk, upto, generation, error)
        )

    def _sync_done(
        self, disk: IDiskWorker, upto: int, generation: int, error: BaseException | None
    ) -> None:
        self._sync_upto = -1
        self._move_recovery_point(upto, generation, error)
        was_due = self.awaiting_sync
        self.update_awaiting_sync()
        if error is None:
            self._sync_what_is_due(disk)
        elif self._on_out_of_descriptors is not None and not (self.is_over or self._is_retrying):
            # Not tried at once: it would only fail again.
            self._is_retrying = True
            assert isinstance(error, OSError)  # else the log has stopped
            self._on_out_of_descriptors(error)
        self._call_waiters()
        if was_due is not None and self.awaiting_sync is not was_due and not self.stopped:
            self._on_synced()

    def _sync_what_is_due(self, disk: IDiskWorker) -> None:
        if self.is_over or self._sync_upto >= 0:
            return
        # What waits for a sync, after a truncation as well, is synced next, with all that came
        # meanwhile.
        end = self._segments.log_end_offset
        is_due = self.awaiting_sync is not None or self._unsynced_truncation != NOWHERE
        wanted = end if is_due else min(self._sync_wanted, end)
        if wanted > self.recovery_point:
            self._submit_sync(disk, wanted)

    def found_no_descriptor(self, error: OSError) -> None:
        """Another read on the worker found no descriptor: reported as that of a sync."""
        if self._on_out_of_descriptors is not None and not self.is_over:
            self._on_out_of_descriptors(error)

    def sync_again(self) -> None:
        """Begins what is due: descriptors may be free again."""
        self._is_retrying = False
        if self.disk is not None:
            self._sync_what_is_due(self.disk)

    def _move_recovery_point(self, upto: int, generation: int, error: BaseException | None) -> None:
        if error is None:
            if generation != self._generation or self.stopped:
                return
            self.recovery_point = max(self.recovery_point, upto)
            # Else the active segment was perhaps not among what was synced.
            if upto >= self._segments.active.base_offset:
                self.indexes_shrank = False
            if upto >= self._last_truncation:
                self._unsynced_truncation = NOWHERE
        else:
            self._on_fatal(
                error if isinstance(error, OSError) else OSError(f"a sync failed: {error!r}")
            )
            # Where only descriptors are short the log goes on: what was not synced is due again.
            self.unflushed_since = min(self.unflushed_since, self.recovery_point)

    def rewritten_from(self, offset: int) -> None:
        """The bytes from `offset` on have changed: the recovery point falls back to it, and a sync
        that is running does not raise it.
        """
        self._generation += 1
        self.recovery_point = min(self.recovery_point, offset)
        self._loaded_point = min(self._loaded_point, offset)
        self.indexes_shrank = True

    @property
    def is_busy(self) -> bool:
        """Whether a sync, or a write of the epochs, runs: it knows the files by their names."""
        return self._sync_upto >= 0 or self.epoch_file.is_writing

    def renamed(self) -> None:
        """The log has another name now, which is not durable yet. Only while it is not busy."""
        self._generation += 1
        self.name_is_durable = False

    def await_sync_from(self, place: LogOffsetMetadata) -> None:
        """In the log that this one replaces, appends from `place` on waited for a sync: now they
        wait for a sync of this log.
        """
        self.flush()
        if self.recovery_point < self._segments.log_end_offset and not self.stopped:
            self.awaiting_sync = place

    def truncated_to(self, offset: int, lowers_start: bool = False) -> None:
        """The log ends at `offset` now, in the active segment. `lowers_start`: that is below where
        it began.
        """
        # In this order: lower the point, raise the count, look at what is being written.
        # `point_in_write`, in its thread, reads the point between two looks at the count.
        self.rewritten_from(min(offset, self._segments.active.base_offset))
        self._truncations += 1
        if offset < max(self._written_point, self._being_written):
            self._is_point_above = True
        if lowers_start:
            self._is_start_above = True
        self.is_checkpoint_above = self._is_point_above or self._is_start_above
        self.unflushed_since = min(self.unflushed_since, offset)
        self._unsynced_truncation = min(
            self._unsynced_truncation, offset, self._watermarks.high_watermark
        )
        self._last_truncation = offset

    def high_watermark_to_checkpoint(self, high_watermark: int) -> int:
        """What the high-watermark checkpoint may say, at this high watermark."""
        return min(high_watermark, self._unsynced_truncation)

    def sync_job(self, upto: int, without_indexes: bool = False) -> Callable[[], None]:
        """What must run on the disk worker so that all below `upto` is durable. It opens the files
        itself: no thread shares a descriptor.

        `without_indexes` leaves out those of offsets and times: what is lost of them is rebuilt.
        """
        # Where records were dropped, the active segment may be empty: it begins at `upto` then.
        paths = self._paths(upto + 1 if self.indexes_shrank else upto, without_indexes)
        files, directory = self._segments.pool.files, self._segments.directory
        version, epochs = self.epoch_file.to_sync()
        name_is_durable = self.name_is_durable
        if not name_is_durable:
            paths.append(posixpath.join(directory, checkpoints.PARTITION_METADATA))

        def job() -> None:
            # The epochs first: the recovery point moves after this job, and recovery does not look
            # for epochs below it.
            if epochs is not None:
                checkpoints.write_aside(
                    files, posixpath.join(directory, checkpoints.LEADER_EPOCH), epochs
                )
            for path in paths:
                checkpoints.sync_path(files, path)
            # Not when it was renamed or deleted while the job waited.
            if files.is_directory(directory):
                files.sync_directory(directory)
                if not name_is_durable:
                    files.sync_directory(posixpath.dirname(directory))
                self.epoch_file.synced, self.name_is_durable = version, True

        return job

    def _paths(self, upto: int, without_indexes: bool) -> list[str]:
        """Files that hold something from the recovery point to `upto`."""
        paths = [
            file.path
            for segment in self._segments.between(self.recovery_point, upto)
            for file in (segment.own_files() if without_indexes else segment.files())
        ]
        return paths + [
            self._producers.path(offset)
            for offset in sorted(self._producers.snapshots)
            if self.recovery_point < offset <= upto
        ]

    # -- appends that wait for a sync

    @property
    def acknowledgeable_end(self) -> LogOffsetMetadata:
        """The log end, but for records whose append waits for a sync: so far the log may be
        acknowledged, and counts for the high watermark.

        Kafka syncs within the append; here the append goes on, and what follows from it waits.
        """
        return self.awaiting_sync or self._segments.log_end

    def sync_if_due(self, first: LogOffsetMetadata) -> None:
        """After an append from `first` on: syncs when `flush.messages` says so, and notes that
        the append waits for it.
        """
        end = self._segments.log_end_offset
        if end - self.unflushed_since >= self.flush_messages:
            self.flush(end)
            if self.recovery_point < end and self.awaiting_sync is None and not self.stopped:
                self.awaiting_sync = first

    def sync_what_was_loaded(self) -> None:
        """Before a loaded log is used, under its topic's `flush.messages`: syncs what is due. A
        process that was killed may have written records that it neither synced nor acknowledged;
        if they are sent again, as duplicates, they must not be acknowledged before a sync. Raises
        BrokerError (no descriptor).
        """
        if self._segments.log_end_offset - self.unflushed_since >= self.flush_messages:
            first = max(self.recovery_point, self._watermarks.log_start_offset)
            self.sync_if_due(self._watermarks.find_place(first))

    def update_awaiting_sync(self) -> None:
        """After a sync, a truncation or a failure: sets what still waits for a sync."""
        due, end = self.awaiting_sync, self._segments.log_end_offset
        if due is None:
            return
        if self.stopped or end <= max(self.recovery_point, due.offset):
            self.awaiting_sync = None
        elif self.recovery_point > due.offset:
            # What came while the sync ran waits for the next one, if it is enough to make one due.
            enough = end - self.recovery_point >= self.flush_messages
            first = max(self.recovery_point, self._watermarks.log_start_offset)
            self.awaiting_sync = self._place_or_offset(first) if enough else None

    def _place_or_offset(self, offset: int) -> LogOffsetMetadata | None:
        """The place, or the offset alone where the place cannot be read now: the waiters of the
        sync that is done must be called. None where the disk fails: the log has stopped then.
        """
        try:
            return self._watermarks.find_place(offset)
        except BrokerError:
            return None if self.stopped else LogOffsetMetadata(offset)

    def when_synced(self, offset: int, call: Callable[[], None]) -> None:
        """Calls `call` when no append below `offset` waits for a sync, and no truncation for a
        checkpoint: at once, or when that is done or truncated, or the log fails.
        """
        if self._waits(offset):
            self._sync_waiters.append((offset, call))
        else:
            call()

    def _waits(self, offset: int) -> bool:
        due = self.awaiting_sync
        waits = self.is_checkpoint_above or (due is not None and due.offset < offset)
        return waits and not self.stopped

    def stop(self) -> None:
        """The log is offline. The waiters are called later: the caller is in the middle of
        something.
        """
        self.stopped = True
        if self._sync_waiters and self.disk is not None:
            self.disk.submit(lambda: None, lambda _, error: self._call_waiters())

    def _call_waiters(self) -> None:
        if self._sync_waiters:
            waiters, self._sync_waiters = self._sync_waiters, []
            ready = []
            for offset, call in waiters:
                if self._waits(offset):
                    self._sync_waiters.append((offset, call))
                else:
                    ready.append(call)
            for call in ready:
                call()

    # -- the leader-epoch checkpoint

    def write_leader_epochs(self) -> None:
        """Brings the epochs to their checkpoint; the next sync of the log makes it durable. Once
        the log ends, the last sync, or recovery, writes it.
        """
        self.epoch_file.changed()
        if not self._is_ending:
            self.epoch_file.write(self.disk, self._epochs_written)

    def _epochs_written(self, error: BaseException | None) -> None:
        # The directory may have been renamed or deleted while the write waited: no failure.
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            self._on_fatal(error)
        elif self.epoch_file.is_dirty:
            self.write_leader_epochs()
