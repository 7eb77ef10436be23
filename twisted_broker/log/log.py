"""One replica's log: the records of a partition on this broker's disk.

Owns `Log`: offsets, appends, reads, the high watermark and what follows from it, truncation.

1. log start <= last stable offset <= high watermark <= log end; recovery point <= log end.
2. An append is visible when it is whole: bytes first, then the published end, then producers and watermarks.
3. A disk error takes the log offline: this call and every later one raise `LogDirFailure`.
4. Appends and reads never wait for a sync; syncs go through the disk worker.

Source: Kafka's `UnifiedLog`, `LocalLog`; RL 3. Left out: loading and repair (`recovery.py`), retention (`retention.py`), search by time
(`offset_search.py`), several logs (`log_manager.py`), cleaning.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from random import Random

from twisted_broker.config import LogConfig
from twisted_broker.interfaces import Buffer, IDiskWorker, TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.append_info import AppendOrigin, FetchDataInfo, LogAppendInfo, TimestampAndOffset
from twisted_broker.log.errors import LogDirFailure, OffsetsOutOfOrder, UnexpectedAppendOffset
from twisted_broker.log.leader_epochs import LeaderEpochCache
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.offset_search import find_by_timestamp, find_max_timestamp
from twisted_broker.log.producer_state import CompletedTxn, ProducerStateManager
from twisted_broker.log.segment import FileSlice, OpenFiles, Segment
from twisted_broker.log.segments import Segments
from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.log.validation import check_header, needs_preparation, prepare
from twisted_broker.wire.batch_header import HEADER
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    BatchView,
    batch_head,
    iterate_batches,
    next_sequence,
)

_unpack_header = HEADER.unpack_from
_HEADER_BYTES = HEADER.size
_CLIENT, _RAFT_LEADER = AppendOrigin.CLIENT, AppendOrigin.RAFT_LEADER


class Log:
    """Made by `recovery.load_log`. `disk` None: syncs happen at once (start, stop, tests).

    `truncated(log)` is told of every cut, `failing(log)` of the first disk error.
    """

    __slots__ = (
        "_cuts", "_epochs_dirty", "_epochs_writing", "_first_unstable", "_hw", "_prepare", "_unstable_metadata", "config", "directory", "disk",
        "failed", "failing", "high_watermark", "last_flush_ms", "leader_epochs", "log_end_offset", "log_start_offset", "pool", "producers",
        "recovery_point", "segments", "topic_id", "topic_partition", "truncated", "unflushed_since",
    )  # fmt: skip

    def __init__(
        self, pool: OpenFiles, directory: str, topic_partition: TopicPartition, topic_id: bytes | None, config: LogConfig,
        remove_later: Callable[[list[str]], None] | None = None, random: Random | None = None,
    ) -> None:  # fmt: skip
        self.pool, self.directory, self.topic_partition, self.topic_id = pool, directory, topic_partition, topic_id
        self.config = config
        self._prepare = needs_preparation(config)
        self.segments = Segments(pool, directory, config, remove_later, random)
        self.producers = ProducerStateManager(pool.files, directory, config.producer_id_expiration_ms)
        self.leader_epochs = LeaderEpochCache([], self.epochs_changed)
        self.disk: IDiskWorker | None = None
        self.truncated: Callable[[Log], None] | None = None
        self.failing: Callable[[Log], None] | None = None
        self.failed: OSError | None = None
        self._cuts = 0
        self.log_start_offset = self.log_end_offset = self.recovery_point = self.high_watermark = 0
        self.unflushed_since = self.last_flush_ms = 0
        self._hw = LogOffsetMetadata(0)
        self._first_unstable = -1
        self._unstable_metadata: LogOffsetMetadata | None = None
        self._epochs_writing = self._epochs_dirty = False

    # -- places

    @property
    def log_end(self) -> LogOffsetMetadata:
        active = self.segments.active
        return LogOffsetMetadata(self.log_end_offset, active.base_offset, active.size)

    @property
    def high_watermark_metadata(self) -> LogOffsetMetadata:
        """The high watermark with its place; looked up when only the offset was known."""
        if self._hw.position < 0:
            self._hw = self.offset_metadata(self._hw.offset)
        return self._hw

    def set_high_watermark(self, metadata: LogOffsetMetadata | int) -> None:
        """Moves the high watermark, into [log start, log end]. Whether it may go back is the caller's decision."""
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
            self._find_first_unstable()

    @property
    def last_stable_offset(self) -> int:
        first = self._first_unstable
        return first if 0 <= first < self.high_watermark else self.high_watermark

    @property
    def last_stable_metadata(self) -> LogOffsetMetadata:
        if not 0 <= self._first_unstable < self.high_watermark:
            return self.high_watermark_metadata
        if self._unstable_metadata is None:
            self._unstable_metadata = self.offset_metadata(self._first_unstable)
        return self._unstable_metadata

    def _find_first_unstable(self) -> None:
        first = self.producers.first_unstable_offset()
        if first >= 0:
            first = max(first, self.log_start_offset)
        if first != self._first_unstable:
            self._first_unstable, self._unstable_metadata = first, None

    def offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """The place of `offset`: its batch's first byte. BrokerError OFFSET_OUT_OF_RANGE outside [log start, log end]."""
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
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside {self.log_start_offset}..{self.log_end_offset}")

    def _locate(self, segment: Segment, offset: int) -> tuple[int, int] | None:
        """(position, size) of the batch that holds `offset` or follows it in the segment."""
        try:
            place = segment.locate(offset)
        except OSError as error:
            raise self.fail(error) from error
        return None if place is None else (place.position, place.size_in_bytes)

    # -- appending

    def append_as_leader(
        self, records: Buffer, leader_epoch: int, now_ms: int, *, origin: AppendOrigin = _CLIENT, transaction_verified: bool = False
    ) -> LogAppendInfo:
        """Checks `records`, gives them offsets, writes them. `now_ms` is wall time. Raises BrokerError; nothing is written then."""
        self.check_online()
        size = len(records)
        if not self._prepare and size >= _HEADER_BYTES:
            header = _unpack_header(records)
            if header[1] + LOG_OVERHEAD == size and header[3] == 2:
                check_header(header, records, self.config, origin, now_ms)
                return self._append_assigned(header, records, leader_epoch, now_ms, origin, transaction_verified)
        info: LogAppendInfo | None = None
        for batch in prepare(records, self.config, origin, now_ms):
            appended = self._append_assigned(_unpack_header(batch), batch, leader_epoch, now_ms, origin, transaction_verified)
            if info is not None:
                appended.first_offset = info.first_offset
                appended.records_count += info.records_count
                appended.bytes += info.bytes
            info = appended
        assert info is not None
        return info

    def _append_assigned(
        self, header: BatchHeader, records: Buffer, leader_epoch: int, now_ms: int, origin: AppendOrigin, transaction_verified: bool
    ) -> LogAppendInfo:
        """Writes one checked batch at the log end."""
        _, length, _, _, _, attributes, delta, _, max_timestamp, producer_id, _, _, count = header
        size = length + LOG_OVERHEAD
        if size > self.config.segment_bytes:
            raise BrokerError(ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes, but segments end at {self.config.segment_bytes}")
        if producer_id >= 0:
            duplicate = self._check_producer(header, records, origin, transaction_verified)
            if duplicate is not None:
                return duplicate
        first = self.log_end_offset
        last = first + delta
        try:
            epochs = self.leader_epochs.epochs
            if not epochs or epochs[-1] != leader_epoch:
                self.leader_epochs.assign(leader_epoch, first)
            segments = self.segments
            if segments.should_roll(size, last, max_timestamp, now_ms):
                self._roll(now_ms, 0)
            segment = segments.active
            segment.write((batch_head(first, length, leader_epoch), memoryview(records)[16:]), size)
            segment.note(size, last, max_timestamp)
            self.log_end_offset = last + 1
            if producer_id >= 0:
                self._note_producer(header, records, first, segment)
        except OSError as error:
            raise self.fail(error) from error
        self.producers.map_end_offset = last + 1
        if last + 1 - self.unflushed_since >= self.config.flush_messages:
            self.flush(self.disk, last + 1)
        stamped = max_timestamp if attributes & LOG_APPEND_TIME_FLAG else -1
        return LogAppendInfo(first, last, max_timestamp, stamped, self.log_start_offset, count, size, leader_epoch)

    def _check_producer(self, header: BatchHeader, records: Buffer, origin: AppendOrigin, verified: bool) -> LogAppendInfo | None:
        """Raises BrokerError when the producer may not write this; the first arrival's outcome when it wrote it already."""
        attributes, delta, producer_id, epoch, sequence = header[5], header[6], header[9], header[10], header[11]
        producers = self.producers
        if attributes & CONTROL_FLAG:
            producers.check_marker(BatchView(records))
            return None
        if origin == _CLIENT:
            found = producers.duplicate(producer_id, epoch, sequence, next_sequence(sequence, delta))
            if found is not None:
                return LogAppendInfo(
                    found[1] - found[2], found[1], found[3], found[3] if attributes & LOG_APPEND_TIME_FLAG else -1, self.log_start_offset,
                    header[12], 0, duplicate=True,
                )  # fmt: skip
        transactional = attributes & TRANSACTIONAL_FLAG != 0
        if transactional and origin == _CLIENT and not verified:
            entry = producers.producers.get(producer_id)
            if entry is None or entry.current_txn_first_offset < 0:
                raise BrokerError(ErrorCode.INVALID_TXN_STATE, "the batch belongs to no transaction that the coordinator knows")
        producers.check(producer_id, epoch, sequence, transactional, origin == _CLIENT)
        return None

    def _note_producer(self, header: BatchHeader, records: Buffer, first: int, segment: Segment) -> None:
        """Brings the producer state up to a batch with producer id that was written at `first`."""
        if header[5] & CONTROL_FLAG:
            batch = BatchView(records)
            batch.base_offset = first
            self._complete(self.producers.add_batch(batch), segment)
        else:
            transactional = header[5] & TRANSACTIONAL_FLAG != 0
            self.producers.add_data(header[9], header[10], header[11], first, header[6], header[8], transactional)
            if transactional:
                self._find_first_unstable()

    def _complete(self, completed: CompletedTxn | None, segment: Segment) -> None:
        if completed is not None:
            aborted = self.producers.complete(completed)
            if aborted is not None:
                segment.txn_index.append(aborted)
            self._find_first_unstable()

    def append_as_follower(self, records: Buffer, leader_epoch: int, now_ms: int) -> LogAppendInfo:
        """Writes what the leader sent, as it is: whole batches, offsets growing from the log end on.

        A partial batch at the end, and everything from a batch of a newer epoch than `leader_epoch` on, is left out. Raises BrokerError.
        """
        self.check_online()
        batches = self._replicated(records, leader_epoch)
        if not batches:
            return LogAppendInfo(-1, -1, -1, -1, self.log_start_offset, 0, 0)
        if batches[0].base_offset < self.log_end_offset:
            raise UnexpectedAppendOffset(batches[0].base_offset, batches[-1].last_offset, self.log_end_offset)
        try:
            for run in self._runs(batches, now_ms):
                self._write_run(records, run)
        except OSError as error:
            raise self.fail(error) from error
        first, last = batches[0], batches[-1]
        size = last.offset + last.size_in_bytes - first.offset
        count = sum(batch.records_count for batch in batches)
        newest = max(batch.max_timestamp for batch in batches)
        return LogAppendInfo(first.base_offset, last.last_offset, newest, -1, self.log_start_offset, count, size, last.partition_leader_epoch)

    def _replicated(self, records: Buffer, leader_epoch: int) -> list[BatchView]:
        batches: list[BatchView] = []
        expected = -1
        for batch in iterate_batches(records, partial_tail=True, check_crc=True):
            if leader_epoch >= 0 and batch.partition_leader_epoch > leader_epoch:
                break
            if batch.base_offset < expected or batch.last_offset_delta < 0:
                raise OffsetsOutOfOrder(f"batch at {batch.base_offset} after offset {expected - 1}")
            expected = batch.last_offset + 1
            batches.append(batch)
        return batches

    def _runs(self, batches: list[BatchView], now_ms: int) -> list[list[BatchView]]:
        """The batches in as few writes as segments allow; a run rolls first when it must (RL 3.1)."""
        whole = batches[-1].offset + batches[-1].size_in_bytes - batches[0].offset
        newest = max(batch.max_timestamp for batch in batches)
        if not self.segments.should_roll(whole, batches[-1].last_offset, newest, now_ms):
            return [batches]
        self._roll(now_ms, batches[0].base_offset)
        if whole <= self.config.segment_bytes and batches[-1].last_offset - self.segments.active.base_offset < 2**31:
            return [batches]
        return self._split(batches, now_ms)

    def _split(self, batches: list[BatchView], now_ms: int) -> list[list[BatchView]]:
        """Writes all but the last run; returns that one."""
        run: list[BatchView] = []
        size = 0
        for batch in batches:
            if run and self.segments.should_roll(size + batch.size_in_bytes, batch.last_offset, -1, now_ms):
                self._write_run(batch.buffer, run)
                self._roll(now_ms, batch.base_offset)
                run, size = [], 0
            run.append(batch)
            size += batch.size_in_bytes
        return [run]

    def _write_run(self, records: Buffer, run: list[BatchView]) -> None:
        start, end = run[0].offset, run[-1].offset + run[-1].size_in_bytes
        segment = self.segments.active
        segment.write((memoryview(records)[start:end],), end - start)
        epochs = self.leader_epochs
        for batch in run:
            if batch.partition_leader_epoch != epochs.latest_epoch:
                epochs.assign(batch.partition_leader_epoch, batch.base_offset)
            segment.note(batch.size_in_bytes, batch.last_offset, batch.max_timestamp)
            self.log_end_offset = batch.last_offset + 1
            if batch.producer_id >= 0:
                self._complete(self.producers.add_batch(batch), segment)
                if batch.is_transactional:
                    self._find_first_unstable()
            self.producers.map_end_offset = batch.last_offset + 1

    # -- reading

    def read(
        self, offset: int, max_bytes: int, upto: LogOffsetMetadata | None = None, min_one_message: bool = True, read_committed: bool = False
    ) -> FetchDataInfo:
        """Batches from the one that holds `offset` on, up to `upto` (the log end), about `max_bytes` of one segment.

        With `min_one_message` a first batch beyond `max_bytes` comes whole; else it is cut (`first_entry_incomplete`).
        BrokerError OFFSET_OUT_OF_RANGE. The slice must be released.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset or self.failed is not None:
            self._check_range(offset)
        segments = self.segments
        row = segments.row_of(offset)
        segment = segments.at(row)
        if upto is None:
            limit_base, limit, limit_offset = segments.active.base_offset, segments.active.size, self.log_end_offset
        else:
            if upto.position < 0 and upto.offset > offset:
                upto = self.offset_metadata(upto.offset)
            limit_base, limit, limit_offset = upto.segment_base_offset, upto.position, upto.offset
        if offset >= limit_offset:
            return self._nothing(offset, upto, read_committed)
        while segment is not None and segment.base_offset <= limit_base:
            place = self._locate(segment, offset)
            end = limit if segment.base_offset == limit_base else segment.size
            if place is not None and place[0] < end:
                return self._slice(segment, row, offset, place, end, max_bytes, min_one_message, read_committed)
            row += 1
            segment = segments.at(row)
        return self._nothing(offset, upto, read_committed)

    def _nothing(self, offset: int, upto: LogOffsetMetadata | None, read_committed: bool) -> FetchDataInfo:
        if upto is not None and upto.offset == offset and upto.position >= 0:
            metadata = upto
        else:
            metadata = self.log_end if offset == self.log_end_offset else self.offset_metadata(offset)
        return FetchDataInfo(metadata, None, False, [] if read_committed else None)

    def _slice(
        self, segment: Segment, row: int, offset: int, place: tuple[int, int], end: int, max_bytes: int, min_one_message: bool, read_committed: bool
    ) -> FetchDataInfo:
        position, first_size = place
        metadata = LogOffsetMetadata(offset, segment.base_offset, position)
        incomplete = max_bytes < first_size
        wanted = first_size if incomplete and min_one_message else max_bytes
        length = min(end - position, wanted)
        if length <= 0:
            return FetchDataInfo(metadata, None, incomplete, [] if read_committed else None)
        try:
            file_slice = FileSlice(segment.log, position, length)
        except OSError as error:
            raise self.fail(error) from error
        aborted = self._aborted(segment, row, offset, position + length) if read_committed else None
        return FetchDataInfo(metadata, file_slice, incomplete and not min_one_message, aborted)

    def _aborted(self, segment: Segment, row: int, offset: int, end: int) -> list[AbortedTxn]:
        """Aborted transactions among the batches from `offset` to byte `end` of the segment."""
        upper = segment.upper_bound_offset(end)
        if upper < 0:
            following = self.segments.at(row + 1)
            upper = following.base_offset if following is not None else self.log_end_offset
        return self.aborted_transactions(offset, upper)

    def aborted_transactions(self, offset: int, upper_bound: int) -> list[AbortedTxn]:
        """Aborted transactions that touch [offset, upper_bound)."""
        found: list[AbortedTxn] = []
        row = max(0, self.segments.row_of(offset))
        while (segment := self.segments.at(row)) is not None and not segment.txn_index.collect(offset, upper_bound, found):
            row += 1
        return found

    def find_offset_by_timestamp(self, target_ms: int, upto_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record with a timestamp of at least `target_ms`, below `upto_offset`."""
        self.check_online()
        found = find_by_timestamp(self.segments, target_ms, self.log_start_offset)
        return found if found is not None and (upto_offset is None or found.offset < upto_offset) else None

    def max_timestamp_offset(self) -> TimestampAndOffset | None:
        """The record with the largest timestamp (ListOffsets -3)."""
        self.check_online()
        return find_max_timestamp(self.segments, self.log_start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch at or below the one asked, (-1, -1) when it cannot be told."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # -- changing its extent

    def roll(self, now_ms: int, expected_next_offset: int = 0) -> None:
        """Starts a new segment at the log end (or the offset expected next, if above); nothing on an empty active one."""
        self.check_online()
        try:
            self._roll(now_ms, expected_next_offset)
        except OSError as error:
            raise self.fail(error) from error

    def _roll(self, now_ms: int, expected_next_offset: int) -> None:
        base = max(expected_next_offset, self.log_end_offset)
        active = self.segments.active
        if active.base_offset == base:
            assert active.size == 0, (base, active.size)
            active.create()
            active.created_ms = now_ms
            return
        active.become_inactive()
        self.producers.map_end_offset = base
        self.producers.take_snapshot()
        self.segments.create(base, now_ms)
        self.log_end_offset = base
        self.flush(self.disk, base)

    def truncate_to(self, offset: int, now_ms: int = 0) -> bool:
        """Drops everything from `offset` on (RL 3.5); False when there is nothing."""
        self.check_online()
        assert offset >= 0
        if offset >= self.log_end_offset:
            return False
        if offset < self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        try:
            self.segments.remove_above(offset)
            self.segments.active.truncate_to(offset, now_ms)
            self._settle(offset)
            self.log_start_offset = min(self.log_start_offset, offset)
            self.leader_epochs.truncate_from_end(offset)
            self.rebuild_producers(now_ms)
        except OSError as error:
            raise self.fail(error) from error
        self._after_cut()
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int = 0, log_start_offset: int | None = None) -> None:
        """Deletes everything and begins one segment at `offset`; the log start becomes `offset` unless given."""
        self.check_online()
        try:
            self.segments.remove_all()
            self.segments.create(offset, now_ms)
            self._settle(offset)
            self.log_start_offset = offset if log_start_offset is None else log_start_offset
            self.leader_epochs.clear()
            self.producers.reset(offset)
        except OSError as error:
            raise self.fail(error) from error
        self._after_cut()

    def _settle(self, offset: int) -> None:
        self._cuts += 1
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.unflushed_since = min(self.unflushed_since, offset)

    def _after_cut(self) -> None:
        self._unstable_metadata = None
        self._find_first_unstable()
        self.set_high_watermark(max(self.log_start_offset, min(self.high_watermark, self.log_end_offset)))
        if self.truncated is not None:
            self.truncated(self)

    def increment_log_start_offset(self, offset: int) -> bool:
        """Raises the log start (DeleteRecords, retention, the leader's word). OFFSET_OUT_OF_RANGE above the high watermark."""
        self.check_online()
        if offset > self.high_watermark:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"log start {offset} would pass the high watermark {self.high_watermark}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_log_start_moved(offset)
        self._find_first_unstable()
        return True

    def rebuild_producers(self, now_ms: int, recovered: frozenset[int] = frozenset()) -> None:
        """Brings the producer state to the log end: newest snapshot, then the batches since. OSError.

        `recovered` are base offsets of segments whose transaction index is empty and must be filled again.
        """
        producers, end = self.producers, self.log_end_offset
        producers.truncate_and_reload(self.log_start_offset, end, now_ms)
        start = producers.map_end_offset
        for segment in self.segments.between(start, end):
            if segment.base_offset > start:
                producers.map_end_offset = segment.base_offset
                producers.take_snapshot()
            for batch in segment.batches_from(start):
                if batch.producer_id >= 0 and batch.base_offset >= start:
                    completed = producers.add_batch(batch)
                    aborted = producers.complete(completed) if completed is not None else None
                    if aborted is not None and segment.base_offset in recovered:
                        segment.txn_index.append(aborted)
        producers.map_end_offset = end
        self._find_first_unstable()

    def delete_old_segments(self, now_ms: int) -> int:
        """Applies retention (RL 3.7); returns the number of segments deleted."""
        from twisted_broker.log.retention import delete_old_segments

        return delete_old_segments(self, now_ms)

    def update_config(self, config: LogConfig) -> None:
        """Acts at once; index sizes from the next segment on."""
        self.config = self.segments.config = config
        self._prepare = needs_preparation(config)
        self.producers.expiration_ms = config.producer_id_expiration_ms
        self.segments.active.index_interval_bytes = config.index_interval_bytes

    # -- durability and end

    def flush(self, disk: IDiskWorker | None, upto: int | None = None) -> None:
        """Syncs everything below `upto` (the log end) and moves the recovery point there when done; never blocks with a `disk`."""
        upto = self.log_end_offset if upto is None else upto
        if upto <= self.recovery_point:
            return
        self.unflushed_since = upto
        job = self._sync_job(upto)
        cuts = self._cuts

        def done(_: None, error: BaseException | None) -> None:
            self._flushed(upto, cuts, error)

        if disk is None:
            job()
            done(None, None)
        else:
            disk.submit(job, done)

    def _sync_job(self, upto: int) -> Callable[[], None]:
        """What must run on the disk worker so that all below `upto` is durable. It opens the files itself: no thread shares a descriptor."""
        paths = [file.path for segment in self.segments.between(self.recovery_point, upto) for file in segment.files()]
        paths += [self.producers.path(offset) for offset in sorted(self.producers.snapshots) if self.recovery_point < offset <= upto]
        files, directory = self.pool.files, self.directory
        epochs = self._epochs_text() if self._epochs_dirty else None

        def job() -> None:
            if epochs is not None:
                checkpoints.write_aside(files, posixpath.join(directory, checkpoints.LEADER_EPOCH), epochs)
            for path in paths:
                checkpoints.sync_path(files, path)
            if files.is_directory(directory):
                files.sync_directory(directory)

        return job

    def _flushed(self, upto: int, cuts: int, error: BaseException | None) -> None:
        if error is None:
            if cuts == self._cuts and upto > self.recovery_point and self.failed is None:
                self.recovery_point = upto
        elif isinstance(error, OSError):
            self.fail(error)

    def _epochs_text(self) -> bytes:
        return checkpoints.epochs_text(self.leader_epochs.epochs, self.leader_epochs.start_offsets)

    def epochs_changed(self) -> None:
        """Brings the epochs to their checkpoint: one write at a time, the newest content."""
        if self._epochs_writing:
            self._epochs_dirty = True
            return
        content = self._epochs_text()
        path = posixpath.join(self.directory, checkpoints.LEADER_EPOCH)
        if self.disk is None:
            checkpoints.write_aside(self.pool.files, path, content)
            return
        self._epochs_writing, self._epochs_dirty = True, False
        self.disk.submit(lambda: checkpoints.write_aside(self.pool.files, path, content), self._epochs_written)

    def _epochs_written(self, _: None, error: BaseException | None) -> None:
        self._epochs_writing = False
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            self.fail(error)
        elif self._epochs_dirty:
            self.epochs_changed()

    def check_online(self) -> None:
        """Raises LogDirFailure when the log failed before."""
        if self.failed is not None:
            raise LogDirFailure(posixpath.dirname(self.directory), self.failed)

    def fail(self, error: OSError) -> LogDirFailure:
        """Takes the log offline; returns what to raise."""
        if self.failed is None:
            self.failed = error
            if self.failing is not None:
                self.failing(self)
        return LogDirFailure(posixpath.dirname(self.directory), error)

    @property
    def size_in_bytes(self) -> int:
        return self.segments.size_in_bytes

    def finish(self) -> Callable[[], None]:
        """Completes indexes and leaves a producer snapshot; returns what must then run on the disk worker. OSError.

        When that has run, everything is durable; `release_files` comes last.
        """
        if self.failed is not None:
            return lambda: None
        self.segments.active.become_inactive()
        self.producers.take_snapshot()
        self._epochs_dirty = True
        return self._sync_job(self.log_end_offset + 1)

    def release_files(self) -> None:
        self.segments.close()

    def close(self) -> None:
        """A clean end in one go. OSError; slow."""
        self.finish()()
        if self.failed is None:
            self.recovery_point = self.log_end_offset
        self.release_files()

    def rename_directory(self, directory: str) -> None:
        """Moves the log to another name in the same log directory; slices stay readable. OSError."""
        self.pool.files.rename(self.directory, directory)
        self.directory = self.producers.directory = directory
        self.segments.move(directory)

    def delete(self) -> None:
        """Closes and deletes all files. OSError; slow."""
        self.segments.close()
        self.failed = self.failed or OSError("the log is deleted")
        if self.pool.files.exists(self.directory):
            self.pool.files.remove_tree(self.directory)
