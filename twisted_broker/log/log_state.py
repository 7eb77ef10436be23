"""What a log is at a moment, and how much of it is on the disk.

Owns `LogState`: offsets and watermarks with their places, the last stable offset, syncing, the step
offline.

1. log start <= last stable offset <= high watermark <= log end; recovery point <= log end.
2. The recovery point moves only when everything below it was synced, names and leader epochs
   included; a cut meanwhile, or a failure, stops it.
3. One sync is on its way at a time. An append that made one due is settled when it is done:
   acknowledged means synced.
4. A disk error takes the log offline: this call and every later one raise `LogDirFailure`. A failed
   sync is not tried again.

Source: Kafka's `UnifiedLog`, `LocalLog`; RL 3, RELIABILITY 6.1. Left out: reads (`log_reading.py`),
extent (`log_extent.py`), appends (`log.py`).
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted_broker.config import LogConfig
from twisted_broker.interfaces import IDiskWorker, IRandom, TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors, is_out_of_descriptors
from twisted_broker.log.leader_epochs import LeaderEpochCache
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.segment import OpenFiles, Segment
from twisted_broker.log.segments import Segments
from twisted_broker.log.validation import needs_preparation
from twisted_broker.wire.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from twisted_broker.log.gaps import Gap
    from twisted_broker.log.producer_rebuild import ProducerRebuild


class LogState:
    """Made by `recovery.load_log`. `disk` None: syncs happen at once (start, stop, tests).

    `truncated(log)` is told of every cut, `failing(log)` of the first disk error, `synced(log)`
    when a sync that was due is done.
    """

    __slots__ = (
        "_cuts",
        "_end",
        "_epochs_dirty",
        "_epochs_synced",
        "_epochs_version",
        "_epochs_writing",
        "_first_unstable",
        "_hw",
        "_prepare",
        "_sync_upto",
        "_sync_waiters",
        "_sync_wanted",
        "_unstable_metadata",
        "config",
        "directory",
        "disk",
        "failed",
        "failing",
        "gap",
        "high_watermark",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "named",
        "pool",
        "producers",
        "rebuild",
        "recovery_point",
        "segments",
        "sync_due",
        "synced",
        "topic_id",
        "topic_partition",
        "truncated",
        "unflushed_since",
    )

    def __init__(
        self,
        pool: OpenFiles,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
        remove_later: Callable[[list[str]], None] | None = None,
        random: IRandom | None = None,
    ) -> None:
        self.pool, self.directory, self.topic_partition, self.topic_id = (
            pool,
            directory,
            topic_partition,
            topic_id,
        )
        self.config = config
        self._prepare = needs_preparation(config)
        self.segments = Segments(pool, directory, config, remove_later, random)
        self.producers = ProducerStateManager(
            pool.files, directory, config.producer_id_expiration_ms
        )
        self.rebuild: ProducerRebuild | None = None
        self.leader_epochs = LeaderEpochCache([], self.epochs_changed)
        self.disk: IDiskWorker | None = None
        self.truncated: Callable[[LogState], None] | None = None
        self.failing: Callable[[LogState], None] | None = None
        self.failed: OSError | None = None
        self.synced: Callable[[LogState], None] | None = None
        self.gap: Gap | None = None
        """offsets that loading found missing, not decided about yet"""
        self._cuts = 0
        self.sync_due: LogOffsetMetadata | None = None
        """the first record whose append made a sync due (`flush.messages`) that is not done;
        None: nothing waits for one
        """
        self._sync_upto = (
            self._sync_wanted
        ) = -1  # of the one sync on its way, and of the next one; -1 none
        self._sync_waiters: list[tuple[int, Callable[[], None]]] = []
        self.named = (
            True  # False: the directory's own name and `partition.metadata` are not durable yet
        )
        self.log_start_offset = self.log_end_offset = self.recovery_point = self.high_watermark = 0
        self.unflushed_since = self.last_flush_ms = 0
        self._hw = LogOffsetMetadata(0)
        self._end = LogOffsetMetadata(0)
        self._first_unstable = -1
        self._unstable_metadata: LogOffsetMetadata | None = None
        self._epochs_writing = self._epochs_dirty = False
        self._epochs_version = self._epochs_synced = 0  # a version counts changes

    @property
    def log_end(self) -> LogOffsetMetadata:
        """The log end with its place; followers of an idle log ask for it again and again, so it
        is made once for each end.
        """
        active, known = self.segments.active, self._end
        if (
            known.offset != self.log_end_offset
            or known.position != active.size
            or known.segment_base_offset != active.base_offset
        ):
            known = self._end = LogOffsetMetadata(
                self.log_end_offset, active.base_offset, active.size
            )
        return known

    @property
    def high_watermark_metadata(self) -> LogOffsetMetadata:
        """The high watermark with its place; looked up when only the offset was known."""
        if self._hw.position < 0:
            self._hw = self.offset_metadata(self._hw.offset)
        return self._hw

    def set_high_watermark(self, metadata: LogOffsetMetadata | int) -> None:
        """Moves the high watermark, into [log start, log end].

        Whether it may go back is the caller's decision.
        """
        offset = metadata if isinstance(metadata, int) else metadata.offset
        if offset >= self.log_end_offset:
            mark = self.log_end
        elif offset < self.log_start_offset:
            mark = LogOffsetMetadata(self.log_start_offset)
        else:
            mark = LogOffsetMetadata(offset) if isinstance(metadata, int) else metadata
        self._hw = mark
        self.high_watermark = mark.offset
        if self.producers.unreplicated:
            self.producers.forget_replicated(mark.offset)
            self.find_first_unstable()

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided: the first undecided one's start, at most the
        high watermark.
        """
        first = self._first_unstable
        return first if 0 <= first < self.high_watermark else self.high_watermark

    @property
    def last_stable_metadata(self) -> LogOffsetMetadata:
        """The place of the last stable offset, looked up once for each."""
        if not 0 <= self._first_unstable < self.high_watermark:
            return self.high_watermark_metadata
        if self._unstable_metadata is None:
            self._unstable_metadata = self.offset_metadata(self._first_unstable)
        return self._unstable_metadata

    def find_first_unstable(self) -> None:
        """Takes over what the producers say of undecided transactions."""
        producers = self.producers if self.rebuild is None else self.rebuild
        first = producers.first_unstable_offset()
        if first >= 0:
            first = max(first, self.log_start_offset)
        if first != self._first_unstable:
            self._first_unstable, self._unstable_metadata = first, None

    def offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """The place of `offset`: its batch's first byte.

        BrokerError OFFSET_OUT_OF_RANGE outside [log start, log end].
        """
        self._check_range(offset)
        if offset == self.log_end_offset:
            return self.log_end
        row = self.segments.row_of(offset)
        while (segment := self.segments.at(row)) is not None:
            place = self._locate(segment, offset)
            if place is not None:
                return LogOffsetMetadata(offset, segment.base_offset, place[0])
            row += 1
        return self.log_end

    def _check_range(self, offset: int) -> None:
        self.check_online()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.log_start_offset}..{self.log_end_offset}",
            )

    def _locate(self, segment: Segment, offset: int) -> tuple[int, int] | None:
        """(position, size) of the batch that holds `offset` or follows it in the segment."""
        try:
            place = segment.locate(offset)
        except OSError as error:
            raise self.fail(error) from error
        return None if place is None else (place.position, place.size_in_bytes)

    def check_online(self) -> None:
        """Raises LogDirFailure when the log failed before."""
        if self.failed is not None:
            raise LogDirFailure(posixpath.dirname(self.directory), self.failed)

    def fail(self, error: OSError, midway: bool = False) -> BrokerError:
        """Takes the log offline; returns what to raise.

        Where only descriptors are short the log stays, unless it was left `midway`.
        """
        if is_out_of_descriptors(error):
            if not midway:
                return OutOfDescriptors(self.directory, error)
            error = OSError(errno.EIO, f"left midway: {error.strerror}", error.filename)
        if self.failed is None:
            self.failed = error
            if self.failing is not None:
                self.failing(self)
            self._settle()
        return LogDirFailure(posixpath.dirname(self.directory), error)

    @property
    def size_in_bytes(self) -> int:
        return self.segments.size_in_bytes

    # -- durability

    @property
    def settled_end(self) -> LogOffsetMetadata:
        """The log end, but for records whose append waits for a sync: so far the log may be
        acknowledged, and counts for the high watermark.

        Kafka syncs within the append; here the append goes on, and what follows from it waits.
        """
        return self.sync_due or self.log_end

    def flush(self, disk: IDiskWorker | None, upto: int | None = None) -> None:
        """Syncs everything below `upto` (the log end) and moves the recovery point there when done;
        never blocks with a `disk`.

        One sync is on its way at a time: what is asked for meanwhile is one more after it.
        """
        upto = self.log_end_offset if upto is None else upto
        if upto <= self.recovery_point:
            return
        self.unflushed_since = upto
        if disk is None:
            self._sync_job(upto)()
            self._flushed(upto, self._cuts, None)
        elif self._sync_upto >= 0:
            self._sync_wanted = max(self._sync_wanted, upto)
        else:
            self._submit_sync(disk, upto)

    def _submit_sync(self, disk: IDiskWorker, upto: int) -> None:
        cuts = self._cuts
        self._sync_upto, self._sync_wanted = upto, -1
        self.unflushed_since = max(self.unflushed_since, upto)
        disk.submit(self._sync_job(upto), lambda _, error: self._sync_done(disk, upto, cuts, error))

    def _sync_done(
        self, disk: IDiskWorker, upto: int, cuts: int, error: BaseException | None
    ) -> None:
        self._sync_upto = -1
        self._flushed(upto, cuts, error)
        was_due = self.sync_due
        self._settle()
        if self.failed is None:
            # What waits for a sync, after a cut as well, is synced next, with all that came
            # meanwhile.
            wanted = (
                self.log_end_offset
                if self.sync_due is not None
                else min(self._sync_wanted, self.log_end_offset)
            )
            if wanted > self.recovery_point:
                self._submit_sync(disk, wanted)
        self._tell_settled()
        if (
            was_due is not None
            and self.sync_due is not was_due
            and self.synced is not None
            and self.failed is None
        ):
            self.synced(self)

    def _sync_if_due(self, first: LogOffsetMetadata) -> None:
        """After an append from `first` on: syncs when `flush.messages` says so; until that is
        done the append is not settled.
        """
        end = self.log_end_offset
        if end - self.unflushed_since >= self.config.flush_messages:
            self.flush(self.disk, end)
            if self.recovery_point < end and self.sync_due is None and self.failed is None:
                self.sync_due = first

    def _settle(self) -> None:
        """After a sync, a cut or a failure: what was due and is no longer."""
        due, end = self.sync_due, self.log_end_offset
        if due is None:
            return
        if self.failed is not None or end <= max(self.recovery_point, due.offset):
            self.sync_due = None
        elif self.recovery_point > due.offset:
            # What came while the sync was on its way waits for the next one, if it is enough to
            # make one due.
            enough = end - self.recovery_point >= self.config.flush_messages
            self.sync_due = (
                self.offset_metadata(max(self.recovery_point, self.log_start_offset))
                if enough
                else None
            )

    def when_settled(self, offset: int, call: Callable[[], None]) -> None:
        """Calls when no append below `offset` waits for a sync: at once, or when one is done, is
        cut off, or failed.
        """
        if self._is_settled(offset):
            call()
        else:
            self._sync_waiters.append((offset, call))

    def _is_settled(self, offset: int) -> bool:
        due = self.sync_due
        return due is None or due.offset >= offset or self.failed is not None

    def _tell_settled(self) -> None:
        if self._sync_waiters:
            told = [call for offset, call in self._sync_waiters if self._is_settled(offset)]
            self._sync_waiters = [
                (offset, call)
                for offset, call in self._sync_waiters
                if not self._is_settled(offset)
            ]
            for call in told:
                call()

    def _sync_job(self, upto: int, without_indexes: bool = False) -> Callable[[], None]:
        """What must run on the disk worker so that all below `upto` is durable. It opens the files
        itself: no thread shares a descriptor.

        `without_indexes` leaves out those of offsets and times: what is lost of them is made anew.
        """
        segments = self.segments.between(self.recovery_point, upto)
        paths = [
            file.path
            for segment in segments
            for file in (segment.own_files() if without_indexes else segment.files())
        ]
        paths += [
            self.producers.path(offset)
            for offset in sorted(self.producers.snapshots)
            if self.recovery_point < offset <= upto
        ]
        files, directory = self.pool.files, self.directory
        epochs, version = None, self._epochs_version
        if version != self._epochs_synced:
            epochs = self._epochs_text()
        named = self.named
        if not named:
            paths.append(posixpath.join(directory, checkpoints.PARTITION_METADATA))

        def job() -> None:
            if epochs is not None:
                checkpoints.write_aside(
                    files, posixpath.join(directory, checkpoints.LEADER_EPOCH), epochs
                )
            for path in paths:
                checkpoints.sync_path(files, path)
            if files.is_directory(directory):
                files.sync_directory(directory)
                if not named:
                    files.sync_directory(posixpath.dirname(directory))
                self._epochs_synced, self.named = version, True

        return job

    def not_synced_from(self, offset: int) -> None:
        """What lies from `offset` on was written to again: the recovery point falls behind it,
        and no sync on its way lifts it.
        """
        self._cuts += 1
        self.recovery_point = min(self.recovery_point, offset)

    def _flushed(self, upto: int, cuts: int, error: BaseException | None) -> None:
        if error is None:
            if cuts == self._cuts and upto > self.recovery_point and self.failed is None:
                self.recovery_point = upto
        else:
            self.fail(error if isinstance(error, OSError) else OSError(f"a sync failed: {error!r}"))
            # Where only descriptors are short the log goes on: what was not synced is due again.
            self.unflushed_since = min(self.unflushed_since, self.recovery_point)

    def _epochs_text(self) -> bytes:
        return checkpoints.epochs_text(self.leader_epochs.epochs, self.leader_epochs.start_offsets)

    def epochs_changed(self) -> None:
        """Brings the epochs to their checkpoint: one write at a time, the newest content.

        It is synced with the next sync of the log, before the recovery point moves: until then a
        crash may take it, and recovery finds the epochs in the batches.
        """
        self._epochs_version += 1
        if self._epochs_writing:
            self._epochs_dirty = True
            return
        content = self._epochs_text()
        path = posixpath.join(self.directory, checkpoints.LEADER_EPOCH)
        if self.disk is None:
            checkpoints.write_aside(self.pool.files, path, content, sync=False)
            return
        self._epochs_writing, self._epochs_dirty = True, False
        self.disk.submit(
            lambda: checkpoints.write_aside(self.pool.files, path, content, sync=False),
            self._epochs_written,
        )

    def _epochs_written(self, _: None, error: BaseException | None) -> None:
        self._epochs_writing = False
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            self.fail(error)
        elif self._epochs_dirty:
            self.epochs_changed()
