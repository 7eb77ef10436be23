"""One replica's log: the records of a partition on this broker's disk.

Owns `Log`: a leader's appends, truncation, the log start, and the step offline, over its parts:
segments (`segments.py`), watermarks (`watermarks.py`), durability (`durability.py`), producer state
(`producer_state.py`, `producer_append.py`, `producer_rebuild.py`) and leader epochs
(`leader_epochs.py`).

    (load_log, new_log) --attach--> online
    online --truncate_to, far from a snapshot--> rebuilding producers --done--> online
    online, rebuilding producers --fail (disk error)--> failed (until restarted)
    online, rebuilding producers --finish, the job it gives, release_files--> closed (clean stop)
    any --delete, set aside by the LogManager--> failed, without a call of `on_fatal`

   While producers are rebuilt the log is read and replicated, but a leader refuses batches with a
   producer id. In a failed log every read, append and truncation raises `LogFailure`. An error
   midway in a truncation, in `replace_segments`, or between a marker and its index entry always
   fails the log; elsewhere EMFILE and ENFILE leave it online. A log with missing offsets (`gap`)
   is online, too, but nobody uses it before `gaps.resolve_gap`.

1. An append is visible when it is whole: bytes first, in one write, then the published end, then
   producers and watermarks.
2. What is refused is refused before a byte is written.
3. An append never waits for a sync. If it makes one due, its acknowledgement and the high watermark
   wait (`Durability.acknowledgeable_end`).
4. The common case, one batch of magic 2 that needs no look inside, copies no record bytes.
5. After a truncation nothing refers to the truncated offsets: not epochs, producers, snapshots,
   indexes, recovery point or high watermark. The reactor's work is bounded but for what was
   truncated: if the last snapshot is far away, producers are rebuilt afterwards, in slices.
6. Files are removed so that a crash in between leaves no hole (`segments.py`).

Source: Kafka's `UnifiedLog`, `LocalLog`; RL 3.1, 3.2, 3.5, 3.7. Not here: loading and repair
(`recovery.py`), appends of a follower and of a mirror (`follower_append.py`), reading
(`reading.py`), retention (`retention.py`), several logs (`log_manager.py`), cleaning.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from twisted_broker.interfaces import Buffer, IDiskWorker, IRandom, TopicPartition
from twisted_broker.log import follower_append, retention
from twisted_broker.log.append_info import (
    AppendOrigin,
    EndMarker,
    FetchDataInfo,
    LogAppendInfo,
)
from twisted_broker.log.durability import Durability
from twisted_broker.log.errors import (
    LogDirFailure,
    LogFailure,
    LogFileFailure,
    OutOfDescriptors,
    is_out_of_descriptors,
)
from twisted_broker.log.leader_epochs import LeaderEpochFileCache
from twisted_broker.log.missed_markers import FetchedTransactions
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.offset_search import Search, find_by_timestamp, find_max_timestamp
from twisted_broker.log.producer_append import being_rebuilt, check_append, check_end_marker
from twisted_broker.log.producer_rebuild import ProducerRebuild
from twisted_broker.log.producer_snapshot import BatchMetadata
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.reading import read_segments
from twisted_broker.log.segment import LogSegment, OpenFiles
from twisted_broker.log.segment_file import SliceGone
from twisted_broker.log.segments import LogSegments, RemoveLater
from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.log.validation import (
    check_header,
    check_not_mirrored,
    needs_preparation,
    prepare,
)
from twisted_broker.log.verification import NOT_REQUIRED, Guard
from twisted_broker.log.watermarks import Watermarks
from twisted_broker.log.write_ahead import LONG_BYTES, WriteAhead
from twisted_broker.log_config import LogConfig
from twisted_broker.settings import LONG_MAX
from twisted_broker.subclassed import mypyc_attr
from twisted_broker.wire.batch_fields import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    LENGTH,
    MAGIC_FIELD,
    MAX_TIMESTAMP,
)
from twisted_broker.wire.batch_header import HEADER
from twisted_broker.wire.control_batch import build_end_marker
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    BatchView,
    InvalidRecordError,
    batch_head,
)

if TYPE_CHECKING:
    from twisted_broker.log.gaps import Gap

_unpack_header = HEADER.unpack_from
_HEADER_BYTES = HEADER.size
_CLIENT = AppendOrigin.CLIENT
_UNSTABLE = CONTROL_FLAG | TRANSACTIONAL_FLAG
_INT_MAX = 2**31 - 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Log:
    """Made by `recovery.load_log` and `recovery.new_log`; then `attach` puts it online."""

    __slots__ = (
        "_needs_preparation",
        "ahead",
        "config",
        "dropped_at_load",
        "durability",
        "failed",
        "fails_alone",
        "fetched_transactions",
        "gap",
        "leader_epochs",
        "on_fatal",
        "on_producers_found",
        "on_synced",
        "on_truncated",
        "pool",
        "producers",
        "rebuild",
        "segments",
        "topic_id",
        "topic_partition",
        "truncations",
        "watermarks",
    )

    def __init__(
        self,
        pool: OpenFiles,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
        random: IRandom | None = None,
    ) -> None:
        self.pool, self.config = pool, config
        self.topic_partition, self.topic_id = topic_partition, topic_id
        self._needs_preparation = needs_preparation(config)
        self.segments = LogSegments(pool, directory, config, random)
        self.producers = ProducerStateManager(
            pool.files, directory, config.producer_id_expiration_ms
        )
        self.watermarks = Watermarks(self.segments, self.producers, self.offset_metadata)
        self.leader_epochs = LeaderEpochFileCache([], self._leader_epochs_changed)
        self.durability = Durability(
            self.segments,
            self.watermarks,
            self.producers,
            self.leader_epochs,
            config.flush_messages,
            self.fail,
            self._sync_done,
        )
        self.rebuild = ProducerRebuild(
            self.segments,
            self.watermarks,
            self.producers,
            self.durability,
            self.fail,
            self._producers_found,
        )
        self.ahead: WriteAhead | None = None
        self.on_truncated: Callable[[Log], None] | None = None
        self.on_fatal: Callable[[Log], None] | None = None
        self.on_synced: Callable[[Log], None] | None = None
        self.on_producers_found: Callable[[Log], None] | None = None
        self.failed: OSError | None = None
        self.fails_alone = False
        self.gap: Gap | None = None
        """offsets that loading found missing, not decided about yet"""
        self.dropped_at_load: str | None = None
        """one line for the operator: what recovery dropped"""
        self.truncations = 0
        self.fetched_transactions: FetchedTransactions | None = None
        """of a follower; None until it has met an open transaction"""

    def attach(
        self,
        disk: IDiskWorker,
        remove_later: RemoveLater | None,
        *,
        on_truncated: Callable[[Log], None] | None = None,
        on_fatal: Callable[[Log], None] | None = None,
        on_synced: Callable[[Log], None] | None = None,
        on_out_of_descriptors: Callable[[Log, OSError], None] | None = None,
        on_producers_found: Callable[[Log], None] | None = None,
    ) -> None:
        """Puts the log online: syncs run on `disk` from now on, `remove_later` takes the files of
        removed segments, as of `Segments.attach`.

        `on_truncated(log)` is called after every truncation, `on_fatal(log)` at the first disk
        error, `on_synced(log)` when a sync that was due is done, `on_out_of_descriptors(log,
        error)` when a sync or a rebuild found no descriptor (call `descriptors_may_be_free` a
        little later), and `on_producers_found(log)` when the producers are rebuilt after a
        truncation.
        """
        self.durability.attach(
            disk, None if on_out_of_descriptors is None else partial(on_out_of_descriptors, self)
        )
        self.segments.attach(remove_later)
        self.on_truncated, self.on_fatal, self.on_synced = on_truncated, on_fatal, on_synced
        self.on_producers_found = on_producers_found

    def descriptors_may_be_free(self) -> None:
        """Tries again the sync and the rebuild that found no descriptor."""
        self.durability.sync_again()
        self.rebuild.resume()

    def detach(self) -> None:
        """Removes these callbacks: the log is deleted, or set aside."""
        self.on_truncated = self.on_fatal = self.on_synced = self.on_producers_found = None

    # -- what others see of the parts

    @property
    def directory(self) -> str:
        return self.segments.directory

    @property
    def size_in_bytes(self) -> int:
        return self.segments.size_in_bytes

    @property
    def log_start_offset(self) -> int:
        return self.watermarks.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.segments.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.watermarks.high_watermark

    def set_high_watermark(self, metadata: LogOffsetMetadata | int) -> None:
        """Moves the high watermark, into [log start, log end].

        Whether it may go back is the caller's decision.
        """
        self.watermarks.set_high_watermark(metadata)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        return self.watermarks.last_stable_offset

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch at or below the one given, (-1, -1) when it
        is not known.
        """
        return self.leader_epochs.end_offset_for(epoch, self.segments.log_end_offset)

    # -- online or failed

    def check_online(self) -> None:
        """Raises LogFailure when the log failed before."""
        if self.failed is not None:
            raise self.failure

    @property
    def failure(self) -> LogFailure:
        """Of a log that failed: what its calls raise."""
        assert self.failed is not None
        if self.fails_alone:
            return LogFileFailure(self.directory, self.failed)
        return LogDirFailure(posixpath.dirname(self.directory), self.failed)

    def fail(self, error: OSError, midway: bool = False) -> BrokerError:
        """Takes the log offline; returns what to raise.

        Where only descriptors are short the log stays, unless it was left `midway`.
        """
        if is_out_of_descriptors(error):
            if not midway:
                return OutOfDescriptors(self.directory, error)
            error = OSError(errno.EIO, f"left midway: {error.strerror}", error.filename)
        if self.failed is None:
            self.set_failed(error)
            if self.on_fatal is not None:
                self.on_fatal(self)
            self.durability.update_awaiting_sync()
        return self.failure

    def fail_alone(self) -> None:
        """Its directory goes on: what failed is a file of this log. Called by `on_fatal`."""
        self.fails_alone = True

    def directory_failed(self, error: OSError) -> None:
        """Takes the log offline with its directory, whose owner knows: `on_fatal` is not called.
        There may be ten thousand such logs at once.
        """
        if self.failed is None:
            self.set_failed(error)
            self.durability.update_awaiting_sync()

    def set_failed(self, error: OSError) -> None:
        """Takes the log offline without a call of `on_fatal`."""
        self.failed = error
        self.durability.stop()
        self.producers.stop_snapshot()

    def _leader_epochs_changed(self) -> None:
        self.durability.write_leader_epochs()

    def retire(self, error: OSError) -> None:
        """Takes the log out for good: offline, and its parts refer to it no more (a reference cycle
        would be left, see `garbage_collection.py`). Calls by those who still hold it are refused.
        """
        self.set_failed(error)
        refusal = LogDirFailure(posixpath.dirname(self.directory), error)
        self.leader_epochs.detach()
        self.watermarks.detach(refusal)
        self.durability.detach(refusal)
        self.rebuild.detach(refusal)
        self.producers.let_go(self.durability.disk)

    def _sync_done(self) -> None:
        if self.on_synced is not None:
            self.on_synced(self)

    def _producers_found(self) -> None:
        if self.on_producers_found is not None:
            self.on_producers_found(self)

    # -- reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        upto: LogOffsetMetadata | None = None,
        min_one_message: bool = True,
        read_committed: bool = False,
    ) -> FetchDataInfo:
        """Batches from the one that holds `offset` on, up to `upto` (the log end), about
        `max_bytes` of one segment.

        With `min_one_message` a first batch beyond `max_bytes` comes whole; else it is truncated
        (`first_entry_incomplete`).
        Raises BrokerError OFFSET_OUT_OF_RANGE. The slice must be released.
        """
        segments = self.segments
        if (
            not self.watermarks.log_start_offset <= offset <= segments.log_end_offset
            or self.failed is not None
        ):
            self._check_range(offset)
        if upto is None:
            upto = segments.log_end
        elif upto.position < 0 and upto.offset > offset:
            upto = self.offset_metadata(upto.offset)
        try:
            return read_segments(segments, offset, max_bytes, upto, min_one_message, read_committed)
        except OSError as error:
            raise self.fail(error) from error

    def offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """The place of `offset`: its batch's first byte.

        BrokerError OFFSET_OUT_OF_RANGE outside [log start, log end].
        """
        self._check_range(offset)
        try:
            return self.segments.place_of(offset)
        except OSError as error:
            raise self.fail(error) from error

    def _check_range(self, offset: int) -> None:
        self.check_online()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.log_start_offset}..{self.log_end_offset}",
            )

    def find_offset_by_timestamp(self, target_ms: int, upto_offset: int | None = None) -> Search:
        """The first record with a timestamp of at least `target_ms`, below `upto_offset`. Pauses.
        Raises BrokerError.
        """
        found = yield from self._search(
            lambda start: find_by_timestamp(self.segments, target_ms, start)
        )
        if found is not None and upto_offset is not None and found.offset >= upto_offset:
            return None
        return found

    def max_timestamp_offset(self) -> Search:
        """The record with the largest timestamp (ListOffsets -3). Pauses. Raises BrokerError."""
        return (yield from self._search(lambda start: find_max_timestamp(self.segments, start)))

    def _search(self, begin: Callable[[int], Search]) -> Search:
        while True:
            self.check_online()
            try:
                return (yield from begin(self.log_start_offset))
            except SliceGone:  # in a pause a segment was deleted, cleaned, truncated or moved
                continue
            except OSError as error:
                raise self.fail(error) from error

    # -- appending as leader

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        wall_ms: int,
        *,
        origin: AppendOrigin = _CLIENT,
        guard: Guard = None,
    ) -> LogAppendInfo:
        """Checks `records`, gives them offsets, writes them.

        `wall_ms` is wall time; `guard` is what `begin_verification` gave, once the coordinator
        agreed. Raises BrokerError; nothing is written then.
        """
        if self.failed is not None:
            self.check_online()
        if self.ahead is not None and self.ahead.is_checked(records, self.config):
            batch = self.ahead.checked()
            return self._append_batch(
                _unpack_header(batch), batch, leader_epoch, wall_ms, origin, guard
            )
        size = len(records)
        if not self._needs_preparation and size >= _HEADER_BYTES:
            header = _unpack_header(records)
            if (
                header[LENGTH] + LOG_OVERHEAD == size
                and header[MAGIC_FIELD] == MAGIC
                and check_header(header, records, self.config, origin, wall_ms)
            ):
                return self._append_batch(header, records, leader_epoch, wall_ms, origin, guard)
        info: LogAppendInfo | None = None
        for batch in prepare(records, self.config, origin, wall_ms):
            appended = self._append_batch(
                _unpack_header(batch), batch, leader_epoch, wall_ms, origin, guard
            )
            if info is not None:
                appended.first_offset = info.first_offset
                appended.records_count += info.records_count
                appended.bytes += info.bytes
            info = appended
        assert info is not None
        return info

    def append_end_marker(
        self, marker: EndMarker, leader_epoch: int, wall_ms: int
    ) -> LogAppendInfo:
        """Writes the end of a transaction. Raises BrokerError; nothing is written then."""
        self.check_online()
        check_end_marker(self.producers, marker)
        batch = build_end_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.is_commit,
            marker.coordinator_epoch,
            wall_ms,
        )
        return self._append_batch(
            _unpack_header(batch),
            batch,
            leader_epoch,
            wall_ms,
            AppendOrigin.COORDINATOR,
            NOT_REQUIRED,
        )

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        supports_epoch_bump: bool,
        wall_ms: int,
    ) -> Guard:
        """See `ProducerStateManager`. Raises LEADER_NOT_AVAILABLE while producers are rebuilt,
        POLICY_VIOLATION for a mirrored topic: its coordinator would write a marker into it.
        """
        self.check_online()
        check_not_mirrored(self.config.replog_mirror_source)
        if self.producers.rebuilt is not None:
            self.rebuild.resume()
            raise being_rebuilt()
        return self.producers.begin_verification(
            producer_id, producer_epoch, sequence, supports_epoch_bump, wall_ms
        )

    def _append_batch(
        self,
        header: BatchHeader,
        records: Buffer,
        leader_epoch: int,
        wall_ms: int,
        origin: AppendOrigin,
        guard: Guard,
    ) -> LogAppendInfo:
        """Writes one checked batch at the log end."""
        _, length, _, _, _, attributes, delta, _, max_timestamp, producer_id, _, _, count = header
        size = length + LOG_OVERHEAD
        if size > self.config.segment_bytes:
            raise BrokerError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes do not fit into a segment "
                f"(segment.bytes={self.config.segment_bytes})",
            )
        if producer_id >= 0:
            # A rebuild that ran out of descriptors waits for the next batch that needs it.
            if self.producers.rebuilt is not None:
                self.rebuild.resume()
            duplicate = check_append(self.producers, header, records, origin, guard)
            if duplicate is not None:
                return self._duplicate_info(duplicate, attributes, count)
        durability = self.durability
        if durability.is_checkpoint_above:
            durability.check_checkpoint()
        segments, epochs = self.segments, self.leader_epochs.epochs
        first = segments.log_end_offset
        last = first + delta
        if last >= LONG_MAX:  # only a former mirror: see `mirrored_batches.with_leader_epoch`
            raise InvalidRecordError(f"the log ends at offset {first}: none is left")
        try:
            # Before the bytes: an epoch without records is harmless, records without their epoch
            # are not.
            if not epochs or epochs[-1] != leader_epoch:
                self.leader_epochs.assign(leader_epoch, first)
            if segments.should_roll(size, last, max_timestamp, wall_ms):
                self.start_segment(wall_ms, 0)
            segment = segments.active
            head = batch_head(first, length, leader_epoch)
            if self.ahead is None or not self.complete_ahead(records, head):
                segment.write((head, memoryview(records)[16:]))
            segment.publish(size, last, max_timestamp)
            segments.log_end_offset = last + 1
            if producer_id >= 0:
                self._add_to_producers(header, records, first, segment)
        except OSError as error:
            raise self.fail(error) from error
        self.producers.map_end_offset = last + 1
        if last + 1 - durability.unflushed_since >= durability.flush_messages:
            durability.sync_if_due(
                LogOffsetMetadata(first, segment.base_offset, segment.size - size)
            )
        stamped = max_timestamp if attributes & LOG_APPEND_TIME_FLAG else -1
        return LogAppendInfo(
            first,
            last,
            max_timestamp,
            stamped,
            self.watermarks.log_start_offset,
            count,
            size,
            leader_epoch,
        )

    def _duplicate_info(
        self, found: BatchMetadata, attributes: int, records_count: int
    ) -> LogAppendInfo:
        """What the first arrival of the batch was answered."""
        _, last_offset, delta, timestamp = found
        return LogAppendInfo(
            last_offset - delta,
            last_offset,
            timestamp,
            timestamp if attributes & LOG_APPEND_TIME_FLAG else -1,
            self.log_start_offset,
            records_count,
            0,
            duplicate=True,
        )

    def _add_to_producers(
        self, header: BatchHeader, records: Buffer, first: int, segment: LogSegment
    ) -> None:
        """Adds a batch with a producer id, written at `first`, to the producer state."""
        _, _, _, _, _, attributes, delta, _, timestamp, producer_id, epoch, sequence, _ = header
        if attributes & CONTROL_FLAG:
            batch = BatchView(records)
            batch.base_offset = first
            self.index_aborted(self.producers.add_batch(batch), segment)
        else:
            self.producers.add_data(
                producer_id,
                epoch,
                sequence,
                first,
                delta,
                timestamp,
                attributes & TRANSACTIONAL_FLAG != 0,
            )
        if attributes & _UNSTABLE:
            self.watermarks.update_first_unstable()

    def index_aborted(self, aborted: AbortedTxn | None, segment: LogSegment) -> None:
        # While producers are rebuilt, the rebuild adds the entry: it knows where the transaction
        # began.
        if aborted is not None and self.producers.rebuilt is None:
            try:
                segment.txn_index.append(aborted)
            except OSError as error:
                # The marker is in the log: without its entry readers of committed records would
                # see what was aborted. A recovery finds it again.
                raise self.fail(error, midway=True) from error

    # -- appending what another broker gave offsets

    def append_as_follower(
        self, records: Buffer, leader_epoch: int, wall_ms: int, may_fetch_again: bool = False
    ) -> LogAppendInfo:
        """See `follower_append.append`. Raises BrokerError, MarkersMissed, ProducersUnknown."""
        return follower_append.append(self, records, leader_epoch, wall_ms, may_fetch_again)

    def append_mirrored(self, records: Buffer, leader_epoch: int, wall_ms: int) -> LogAppendInfo:
        """See `follower_append.append_mirrored`. Raises BrokerError."""
        return follower_append.append_mirrored(self, records, leader_epoch, wall_ms)

    # -- writing ahead

    def begin_ahead(self, records: Buffer) -> WriteAhead | None:
        """Of one long batch; None where another one is under way. Call `end_ahead` at the end."""
        if self.ahead is not None or self.failed is not None:
            return None
        self.ahead = WriteAhead(records)
        return self.ahead

    def check_ahead(self, ahead: WriteAhead, wall_ms: int, done: Callable[[], None]) -> None:
        """Has a client's batch checked, and made what is to be stored, away from the reactor."""
        worker = self.pool.reader or self.durability.disk
        if worker is None:
            ahead.check(self.config, wall_ms)
            done()
        else:
            # Without the check, as after a stop of the worker, the append does it.
            worker.submit(partial(ahead.check, self.config, wall_ms), lambda _, __: done())

    def write_ahead(self, ahead: WriteAhead, wall_ms: int) -> Iterator[None]:
        """Writes the batch behind the log's end, a piece at each step."""
        batch = ahead.batch
        size = len(batch)
        if (
            not self._may_write(ahead)
            or ahead.is_refused
            or not LONG_BYTES <= size <= self.config.segment_bytes
        ):
            return
        header, segments = _unpack_header(batch), self.segments
        if header[MAGIC_FIELD] != MAGIC or header[LENGTH] + LOG_OVERHEAD != size:
            return
        first = max(header[BASE_OFFSET], segments.log_end_offset)
        last, newest = first + header[LAST_OFFSET_DELTA], header[MAX_TIMESTAMP]
        try:
            if segments.should_roll(size, last, newest, wall_ms):
                if first > segments.log_end_offset:
                    return  # the append says where the segment begins
                self.start_segment(wall_ms, 0)
                self.ahead = ahead
            for _ in ahead.pieces(segments.active):
                yield
                if not self._may_write(ahead) or not ahead.is_behind(segments.active):
                    return
        except OSError:
            self.end_ahead(ahead)  # the append meets it again

    def _may_write(self, ahead: WriteAhead) -> bool:
        return self.ahead is ahead and self.failed is None

    def end_ahead(self, ahead: WriteAhead) -> None:
        """Cuts off what was not appended."""
        if self.ahead is ahead:
            ahead.release()
            # After an error the next append tries again, before it writes.
            with contextlib.suppress(BrokerError):
                self._cut_off(ahead)

    def _cut_off(self, ahead: WriteAhead) -> None:
        """Raises BrokerError."""
        if self.failed is None:
            active = self.segments.active
            try:
                if ahead.cut_off(active):
                    # A sync may have had it.
                    self.durability.rewritten_from(active.base_offset)
            except OSError as error:
                raise self.fail(error) from error
        self.ahead = None

    def complete_ahead(self, batch: Buffer, head: Buffer) -> bool:
        """Whether the batch is written by now. Raises OSError, BrokerError."""
        ahead = self.ahead
        assert ahead is not None
        if ahead.complete(self.segments.active, batch, head):
            self.ahead = None
            return True
        self._cut_off(ahead)
        return False

    # -- rolling

    def roll(self, wall_ms: int, expected_next_offset: int = 0) -> None:
        """Starts a new segment at the log end (or the offset expected next, if above); nothing
        on an empty active one.
        """
        self.check_online()
        try:
            self.start_segment(wall_ms, expected_next_offset)
        except OSError as error:
            raise self.fail(error) from error

    def start_segment(self, wall_ms: int, expected_next_offset: int) -> None:
        """As `roll`, of a log that is online. Raises OSError."""
        base = max(expected_next_offset, self.segments.log_end_offset)
        active = self.segments.active
        if active.base_offset == base:
            assert active.size == 0, (base, active.size)
            # Nothing was written to it: it begins again; a second one would have the same name.
            active.create()
            active.created_ms = wall_ms
            self.ahead = None
            return
        if active.become_inactive():
            # The file may be synced already, with the preallocated tail that was just truncated: a
            # loss of power would bring that back.
            self.durability.rewritten_from(active.base_offset)
        self.ahead = None
        self.producers.map_end_offset = base
        self.producers.take_snapshot(self.durability.disk, self.fail)
        self.segments.create(base, wall_ms)
        self.segments.log_end_offset = base
        # Last: the log is whole by now. The sync runs on the disk worker.
        self.durability.flush(base)

    # -- truncation

    def end_below(self, offset: int) -> int:
        """Where the log ends after a truncation to `offset`: batches are dropped whole, and no hole
        may stay below the end.
        """
        self.check_online()
        segment = self.segments.at(self.segments.row_of(offset))
        if segment is None:
            return offset
        try:
            return segment.end_below(offset)
        except OSError as error:
            raise self.fail(error) from error

    def truncate_to(self, offset: int, wall_ms: int = 0) -> bool:
        """Drops everything from `offset` on (RL 3.5); False when there is nothing."""
        self.check_online()
        assert offset >= 0
        if offset >= self.segments.log_end_offset:
            # an epoch that was begun here and never written to
            self.leader_epochs.truncate_from_end(self.segments.log_end_offset)
            return False
        # Nothing of the log is below it.
        if offset < self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset, wall_ms)
            return True
        try:
            # From the newest segment down, then bytes, then what describes them: a crash in between
            # leaves a log that recovery truncates further, never one with a hole.
            self.segments.remove_above(offset)
            self.segments.active.truncate_to(offset, wall_ms)
            self._end_at(offset, min(self.watermarks.log_start_offset, offset))
            self.leader_epochs.truncate_from_end(offset)
            self.rebuild.after_truncation(wall_ms)
        except OSError as error:
            raise self.fail(error, midway=True) from error
        self._after_truncation()
        return True

    def truncate_fully_and_start_at(
        self, offset: int, wall_ms: int = 0, log_start_offset: int | None = None
    ) -> None:
        """Deletes everything and begins one segment at `offset`; the log start becomes `offset`
        unless given.
        """
        self.check_online()
        try:
            self.segments.remove_all()
            self.segments.create(offset, wall_ms)
            self._end_at(offset, offset if log_start_offset is None else log_start_offset)
            self.leader_epochs.clear()
            self.rebuild.begin_anew(offset)
        except OSError as error:
            raise self.fail(error, midway=True) from error
        self._after_truncation()

    def _end_at(self, offset: int, log_start_offset: int) -> None:
        self.truncations += 1
        self.segments.log_end_offset = offset
        self.durability.truncated_to(offset, log_start_offset < self.log_start_offset)
        self.watermarks.log_start_offset = log_start_offset

    def _after_truncation(self) -> None:
        self.durability.update_awaiting_sync()
        self.watermarks.after_truncation()
        if self.on_truncated is not None:
            self.on_truncated(self)

    def end_before_gap(self, gap: Gap, wall_ms: int, suffix: str) -> int:
        """Ends the log where offsets are missing or come a second time. The record files after that
        are kept under another name, with `suffix`; returns their number.
        """
        self.check_online()
        try:
            if gap.is_overlap:
                # What follows was not loaded: the log ends there already.
                return self.segments.set_aside_not_loaded(gap.following, wall_ms, suffix)
            kept = self.segments.set_aside_above(gap.offset, suffix)
        except OSError as error:
            raise self.fail(error) from error
        if gap.offset < self.log_start_offset:
            # Nothing of the log is left, and its start does not go back.
            self.truncate_fully_and_start_at(self.log_start_offset, wall_ms)
        else:
            self.truncate_to(gap.offset, wall_ms)
        return kept

    # -- the log start

    def increment_log_start_offset(self, offset: int) -> bool:
        """Raises the log start (DeleteRecords, retention, a leader's answer to a follower).

        False: it was there or above. Raises OFFSET_OUT_OF_RANGE above the high watermark.
        """
        self.check_online()
        # What is not committed may still be truncated; a log start above it would be lost with it.
        if offset > self.high_watermark:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"log start {offset} would pass the high watermark {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self.watermarks.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_log_start_moved(offset)
        self.watermarks.update_first_unstable()
        return True

    def delete_old_segments(self, wall_ms: int, most: int = _INT_MAX) -> int:
        """Applies retention (RL 3.7); returns the number of segments deleted, `most` at the
        most.
        """
        return retention.delete_old_segments(self, wall_ms, most)

    def replace_segments(self, bases: Sequence[int], wall_ms: int) -> None:
        """Puts the segment that a cleaner wrote in place of those of these base offsets, which are
        still neighbours below the active one. Raises BrokerError.
        """
        self.check_online()
        try:
            self.segments.replace(bases, wall_ms)
            for base in bases[1:]:
                self.producers.remove_snapshot(base)
        except OSError as error:
            raise self.fail(error, midway=True) from error

    # -- settings, and the end

    def update_config(self, config: LogConfig) -> None:
        """Applies settings at once; index sizes and jitter from the next segment on."""
        if config.delete_retention_ms != self.config.delete_retention_ms:
            self.fetched_transactions = None  # it judged by the old time
        self.config = self.segments.config = config
        self._needs_preparation = needs_preparation(config)
        self.durability.flush_messages = config.flush_messages
        self.producers.expiration_ms = config.producer_id_expiration_ms
        self.segments.active.index_interval_bytes = config.index_interval_bytes

    def begin_last_snapshot(self) -> bool:
        """Begins a producer snapshot; returns whether one is being written in slices, this one or
        that of an earlier roll. To be called before `finish`, which writes a snapshot of any
        number of producers in one go. Raises OSError.
        """
        if self.failed is None:
            self.producers.take_snapshot(self.durability.disk, self.fail)
        return self.producers.writer is not None

    def finish(self) -> Callable[[], None]:
        """Completes indexes and writes a producer snapshot; returns what must then run on the disk
        worker. Raises OSError.

        When that has run, records, epochs, transactions and producers are durable; `release_files`
        comes last. Offset and time indexes are synced only if entries were dropped
        (`indexes_shrank`): lost entries are rebuilt. If none were, and the recovery point is at the
        log end, nothing is left to sync: an epoch that began since has no records.
        """
        if self.failed is not None:
            return _nothing
        self.durability.end()
        active = self.segments.active
        if active.become_inactive():
            self.durability.rewritten_from(active.base_offset)
        self.ahead = None
        self.producers.drop_unfinished_snapshot()
        self.producers.take_snapshot()
        job = _nothing
        if self.durability.recovery_point < self.log_end_offset or self.durability.indexes_shrank:
            job = self.durability.sync_job(
                self.log_end_offset + 1, without_indexes=not self.durability.indexes_shrank
            )
        lacking = [segment.offset_index.file.path for segment in self.rebuild.segments_to_index()]
        return partial(self._remove_behind, job, lacking) if lacking else job

    def _remove_behind(self, job: Callable[[], None], paths: list[str]) -> None:
        """Removes these offset indexes after `job`: the next start checks a segment without one,
        after a clean stop as well. On the disk worker.
        """
        job()
        for path in paths:
            if self.pool.files.exists(path):
                self.pool.files.remove(path)
        self.pool.files.sync_directory(self.directory)

    def release_files(self) -> None:
        self.segments.close()

    def close(self) -> None:
        """A clean end in one go. Slow. Raises OSError."""
        self.finish()()
        if self.failed is None:
            self.durability.recovery_point = self.log_end_offset
        self.release_files()

    def rename_directory(self, directory: str) -> None:
        """Moves the log to another name in the same log directory; slices stay readable.

        Raises OSError.
        """
        self.pool.files.rename(self.directory, directory)
        self.producers.move_to(directory)
        self.segments.move(directory)

    def delete(self) -> None:
        """Closes and deletes all files. Slow. Raises OSError."""
        self.segments.close()
        if self.failed is None:
            self.set_failed(OSError("the log is deleted"))
        if self.pool.files.exists(self.directory):
            self.pool.files.remove_tree(self.directory)


def _nothing() -> None:
    """All is durable."""
