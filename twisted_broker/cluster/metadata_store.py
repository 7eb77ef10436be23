"""`__cluster_metadata-0` on a disk: what a controller's log and a broker's have in common.

Owns opening, replay, the durable end, snapshots, and deleting the log before a snapshot's end.

1. It is opened only when all that was ever durable is there (`metadata_check.py`), and truncated
   exactly where the check found its end.
2. The beginning of the log is deleted only up to the end of a durable snapshot.
3. A failed write or sync ends it (`failed`): nobody knows what the disk holds.

Source: Kafka's `KafkaMetadataLog`; `RL 8.1`. Not here: who writes (`metadata_log.py`: the
controller; `observer_log.py`: a broker).
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

from twisted_broker.cluster.last_batch import LastBatch, write_last_batch
from twisted_broker.cluster.metadata_check import (
    NOT_APPLIED,
    Applied,
    Checked,
    Kept,
    MarkFile,
    MetadataDamage,
    TornTail,
    check_in_steps,
    durable_end_text,
    kept_in_steps,
    read_durable_end,
    write_durable_end,
)
from twisted_broker.cluster.records import TransactionBuffer, records_in_steps
from twisted_broker.cluster.snapshots import (
    SnapshotId,
    list_snapshots,
    remove_snapshots,
    write_snapshot,
)
from twisted_broker.image.metadata_image import EMPTY, RECORDS_PER_STEP, MetadataImage, Removals
from twisted_broker.interfaces import IDiskWorker, IFileSystem
from twisted_broker.log.checkpoints import (
    HIGH_WATERMARK,
    METADATA_PARTITION,
    read_partition_metadata,
    write_partition_metadata,
)
from twisted_broker.log.errors import (
    CheckpointError,
    LogDirFailure,
    OutOfDescriptors,
    is_out_of_descriptors,
)
from twisted_broker.log.log import Log
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment import OpenFiles
from twisted_broker.log_config import LogConfig
from twisted_broker.raft.voter_history import VoterHistory
from twisted_broker.raft.voter_set import VoterSet
from twisted_broker.settings import INT_MAX
from twisted_broker.topic_names import METADATA_DIRECTORY, METADATA_TOPIC_ID
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.records import BatchView, CorruptRecordError, iterate_batches
from twisted_broker.wire.schema import Record, run_whole

READ_BYTES = 1 << 20
# how old a durable end a loss of power may bring back
DURABLE_END_SYNC_MS = 5_000


class Opened(NamedTuple):
    """A metadata directory, checked and loaded. `base`: the image of its newest snapshot; `torn`:
    what opening it truncated; `history`: who votes; `start`: where the log begins.
    """

    log: Log
    files: IFileSystem
    disk: IDiskWorker
    base: MetadataImage
    durable_end: int
    torn: TornTail | None = None
    history: VoterHistory | None = None
    start: int = 0


def open_directory(
    files: IFileSystem,
    disk: IDiskWorker,
    log_directory: str,
    wall_ms: int,
    is_observer: bool = False,
    applied: Applied = NOT_APPLIED,
) -> Opened:
    """As `open_in_steps`, without a pause."""
    return run_whole(open_in_steps(files, disk, log_directory, wall_ms, is_observer, applied))


def open_in_steps(
    files: IFileSystem,
    disk: IDiskWorker,
    log_directory: str,
    wall_ms: int,
    is_observer: bool = False,
    applied: Applied = NOT_APPLIED,
    listener: str = "",
    on_checked: Callable[[VoterHistory], None] = lambda history: None,
    is_alone: bool = True,
) -> Generator[None, None, Opened]:
    """`__cluster_metadata-0` of a log directory, made when it is not there. `is_observer`: of a
    broker; `applied`: it must reach that far; `listener`: the controllers' own; `on_checked`: may
    refuse it before anything is changed; `is_alone`: no others vote, unless the log says so. Slow;
    pauses while it decodes a long snapshot, or looks at a long log.
    Raises MetadataDamage, OSError, CheckpointError, BrokerError.
    """
    directory = posixpath.join(log_directory, METADATA_DIRECTORY)
    config = LogConfig(cleanup_policy=frozenset(), max_message_bytes=INT_MAX, segment_jitter_ms=0)
    base, torn, history = Checked(EMPTY, None, VoterHistory(VoterSet()))
    kept: Kept | None = None
    if files.is_directory(directory):
        checking = check_in_steps(files, directory, is_observer, applied, listener)
        base, torn, history = yield from checking
        on_checked(history)
        others_vote = len(history.voters) > 1 or not (is_alone or history.voters)
        if others_vote and not is_observer:
            kept = yield from kept_in_steps(files, directory)
        _mend_topic_id(files, directory)
    if torn is not None:
        _truncate(files, directory, torn)
    log = load_log(
        OpenFiles(files),
        directory,
        METADATA_PARTITION,
        METADATA_TOPIC_ID,
        config,
        log_start_offset=base.offset + 1 if kept is None else kept.start,
        recovery_point=base.offset + 1,  # what a snapshot holds is not looked at, nor missed
        wall_ms=wall_ms,
    )
    if kept is not None and any(
        log.leader_epochs.epoch_for_offset(each.end_offset) != each.epoch for each in kept.epochs
    ):
        kept = None  # nobody could be told where its log diverges
    durable_end = read_durable_end(files, directory)
    if durable_end is None:
        write_durable_end(files, directory, 0)
    start = base.offset + 1 if kept is None else kept.start
    return Opened(log, files, disk, base, durable_end or 0, torn, history, start)


def _mend_topic_id(files: IFileSystem, directory: str) -> None:
    """The metadata's topic id is always the same: where its file names another, that is damage of
    the file alone. Raises OSError.
    """
    try:
        found = read_partition_metadata(files, directory)
    except CheckpointError:
        return  # loading the log writes it again
    if found not in (None, METADATA_TOPIC_ID):
        write_partition_metadata(files, directory, METADATA_TOPIC_ID)


def _truncate(files: IFileSystem, directory: str, torn: TornTail) -> None:
    """Removes the newest segments first: a crash in between leaves no hole."""
    for path in reversed(torn.removed):
        files.remove(path)
    if torn.path:
        file = files.open(torn.path)
        try:
            file.truncate(torn.position)
            file.sync()
        finally:
            file.close()
    files.sync_directory(directory)


class MetadataStore:
    """`on_fatal(error)` is called once when it fails, and not when it was closed before.
    `transactions` and `last_batch` are as of the replay, which notes in `removals`, unless that is
    None, what its records removed.
    """

    def __init__(
        self,
        opened: Opened,
        wall_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self.log, self.files, self.disk = opened.log, opened.files, opened.disk
        self.wall_ms = wall_ms
        self.history = opened.history or VoterHistory(VoterSet())
        self.snapshots = list_snapshots(self.files, self.log.directory)
        self.failed: BaseException | None = None
        self.is_closed = False
        self._on_fatal = on_fatal
        self.transactions = TransactionBuffer()
        self.last_batch: LastBatch | None = None
        self.removals: Removals | None = None
        self.torn = opened.torn
        self._base, self._start = opened.base, opened.start
        self._end_at_open = opened.durable_end
        self.committed_at_open = max(opened.durable_end, opened.base.offset + 1)
        self._durable_end = opened.durable_end
        self._durable_end_file = MarkFile(self.files, self.log.directory, HIGH_WATERMARK)
        self._durable_end_synced_ms: int | None = None
        self._bytes_since_snapshot = 0
        self.log.attach(opened.disk, None, on_fatal=self._log_failed)

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def directory(self) -> str:
        return self.log.directory

    @property
    def bytes_since_snapshot(self) -> int:
        return self._bytes_since_snapshot

    def replay(self) -> MetadataImage:
        """As `replay_in_steps`, without a pause."""
        return run_whole(self.replay_in_steps())

    def replay_in_steps(self, upto: int | None = None) -> Generator[None, None, MetadataImage]:
        """The image that snapshot and log say, `upto` an offset (None: all). Pauses after every
        `RECORDS_PER_STEP`; nothing else may be called meanwhile. MetadataDamage for what is not
        understood; OSError. Slow.
        """
        image = self._base
        if self.snapshots:
            newest = self.snapshots[-1]
            if self.end_offset < newest.end_offset:
                self.log.truncate_fully_and_start_at(newest.end_offset)
            self.log.set_high_watermark(newest.end_offset)
            self.log.increment_log_start_offset(self._start)
        self.log.set_high_watermark(max(self.log.log_start_offset, self._end_at_open))
        try:
            for batches in self._reads(image.offset + 1):
                below = [each for each in batches if upto is None or each.last_offset < upto]
                if below:
                    image = yield from self._replayed(image, below)
                if len(below) < len(batches):
                    break
        except (WireError, CorruptRecordError, AssertionError, LookupError) as error:
            raise self._not_understood(error, image.offset + 1) from error
        return image

    def _not_understood(self, error: Exception, offset: int) -> MetadataDamage:
        return MetadataDamage(self.directory, f"the log is not understood: {error}", offset=offset)

    def _replayed(
        self, image: MetadataImage, batches: list[BatchView]
    ) -> Generator[None, None, MetadataImage]:
        records: list[Record] = []
        epoch, paused_at = image.epoch, 0
        for batch in batches:
            within = batch.base_offset <= image.offset  # a snapshot may end within a batch
            try:
                found = yield from records_in_steps(batch, image.offset + 1)
                records += self.transactions.pass_through(found)
            except WireError as error:
                raise self._not_understood(error, batch.base_offset) from error
            if len(records) - paused_at >= RECORDS_PER_STEP:
                paused_at = len(records)
                yield
            self._bytes_since_snapshot += batch.size_in_bytes
            before = self.last_batch.epoch if self.last_batch is not None else epoch
            self.last_batch = LastBatch.of(batch, -1 if within else before)
        newest = batches[-1]
        image, delta = yield from image.apply_in_steps(
            records, newest.last_offset, newest.partition_leader_epoch, newest.max_timestamp
        )
        if self.removals is not None:
            self.removals.note(delta)
        return image

    def _reads(self, offset: int) -> Iterator[list[BatchView]]:
        """The batches from `offset` to the log end, as many at a time as one read holds: at
        least one. Raises CorruptRecordError, OSError.
        """
        while offset < self.end_offset:
            found = self.log.read(offset, READ_BYTES).slice
            assert found is not None, offset
            data = found.read()
            found.release()
            batches = list(
                iterate_batches(data, partial_tail=True, check_crc=True)
            )  # the read may end in the middle of one
            if not batches:
                raise CorruptRecordError(f"no whole batch at offset {offset}")
            yield batches
            offset = batches[-1].last_offset + 1

    def _log_failed(self, log: Log) -> None:
        self._fail(log.failed or OSError("the log failed"))

    def fail(self, error: BaseException) -> None:
        """What it holds is not understood, or is not all that there was."""
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.is_over:
            self.failed = error
            self._on_fatal(error)

    # snapshots

    def write_snapshot(self, image: MetadataImage, last: LastBatch | None = None) -> None:
        """Writes a snapshot of a committed image in the background, then deletes the log before its
        end. `last`: the batch that it ends with, where that must be known once the log is gone.
        """
        before, self._bytes_since_snapshot = self._bytes_since_snapshot, 0
        quorum = self.history.records_at(image.offset)

        def job() -> SnapshotId:
            if last is not None:
                following = SnapshotId(image.offset + 1, image.epoch)
                write_last_batch(self.files, self.directory, following, last)
            snapshot = write_snapshot(self.files, self.directory, image, self.wall_ms(), quorum)
            self._raise_durable_end(snapshot.end_offset)
            return snapshot

        def done(snapshot: SnapshotId | None, error: BaseException | None) -> None:
            if is_out_of_descriptors(error):
                self._bytes_since_snapshot += before  # no file could be opened: due again
            elif error is not None or snapshot is None:
                self._fail(error or AssertionError("a snapshot without name"))
            elif not self.is_over:
                try:
                    self._truncate_behind(snapshot)
                except LogDirFailure as failure:
                    self._fail(failure.cause or failure)

        self.disk.submit(job, done)

    def _truncate_behind(self, snapshot: SnapshotId) -> None:
        if self.snapshots and snapshot <= self.snapshots[-1]:
            if snapshot != self.snapshots[-1]:
                self._remove_snapshots([snapshot])
            return
        old, self.snapshots = self.snapshots, [snapshot]
        self.history.forget_before(snapshot.end_offset - 1)
        self.log.increment_log_start_offset(snapshot.end_offset)
        # Without a free descriptor the segment stays active: it is deleted after a later snapshot.
        with contextlib.suppress(OutOfDescriptors):
            self.log.roll(self.wall_ms())
        self.log.delete_old_segments(self.wall_ms())
        self._remove_snapshots(old)

    def _remove_snapshots(self, snapshots: Iterable[SnapshotId]) -> None:
        self.disk.submit(
            lambda: remove_snapshots(self.files, self.directory, snapshots), lambda _, error: None
        )

    def snapshot_path(self, snapshot: SnapshotId) -> str:
        return posixpath.join(self.directory, snapshot.file_name)

    # the end

    @property
    def is_over(self) -> bool:
        """It failed, or was closed: nothing is written any more."""
        return self.is_closed or self.failed is not None

    def _raise_durable_end(self, offset: int) -> None:
        """Everything below `offset` was synced. Raises OSError, also where no descriptor is left to
        open its file: the caller tries again. For the disk worker.
        """
        if offset <= self._durable_end:
            return
        wall_ms, synced_ms = self.wall_ms(), self._durable_end_synced_ms
        sync = synced_ms is None or not 0 <= wall_ms - synced_ms < DURABLE_END_SYNC_MS
        self._durable_end_file.write(durable_end_text(offset), sync)
        self._durable_end = offset
        if sync:
            self._durable_end_synced_ms = wall_ms
