"""`__cluster_metadata-0` on the disk of a quorum of one.

Owns the log, its epochs, its snapshots, and the group commit: what is durable, and therefore below
the high watermark.

1. The high watermark moves only over bytes that were synced; nothing above it is ever served or
   applied.
2. One sync is under way at a time; what is appended meanwhile shares the next one.
3. Each start leads a new epoch: quorum-state is durable first, then a LeaderChange record opens the
   epoch.
4. A failed write or sync ends it: this log answers no more (`failed`), for nobody knows what the
   disk holds.
5. The log is cut only behind a durable snapshot.

Source: Kafka's `KafkaMetadataLog`, `KafkaRaftClient`; `RL 8.1`. Left out: several voters; what the
records mean.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence

from twisted_broker.cluster.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from twisted_broker.cluster.records import TransactionBuffer, batch_records, build_batch
from twisted_broker.cluster.snapshots import (
    SnapshotId,
    list_snapshots,
    load_snapshot,
    remove_snapshots,
    write_snapshot,
)
from twisted_broker.cluster.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from twisted_broker.config import LogConfig
from twisted_broker.image.metadata_image import EMPTY, MetadataImage
from twisted_broker.interfaces import IDiskWorker, IFileSystem, TopicPartition
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.log import Log
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment import OpenFiles
from twisted_broker.settings import INT_MAX
from twisted_broker.wire.control_batch import LEADER_CHANGE
from twisted_broker.wire.messages.control_records import (
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from twisted_broker.wire.messages.metadata_records import AbortTransactionRecord
from twisted_broker.wire.records import BatchView, build_control_batch, iterate_batches
from twisted_broker.wire.schema import Record, encode

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
RECORDS_PER_BATCH = 40_000
_READ_BYTES = 8 << 20


def open_metadata_log(
    files: IFileSystem,
    disk: IDiskWorker,
    log_directory: str,
    node_id: int,
    wall_ms: Callable[[], int],
) -> MetadataLog:
    """The metadata log in a log directory, made when it is not there.

    OSError, CheckpointError, BrokerError.
    """
    directory = posixpath.join(log_directory, str(METADATA_PARTITION))
    config = LogConfig(cleanup_policy=frozenset(), max_message_bytes=INT_MAX, segment_jitter_ms=0)
    known = list_snapshots(files, directory) if files.is_directory(directory) else []
    start = known[-1].end_offset if known else 0
    log = load_log(
        OpenFiles(files),
        directory,
        METADATA_PARTITION,
        METADATA_TOPIC_ID,
        config,
        log_start_offset=start,
        now_ms=wall_ms(),
    )
    log.durability.disk = disk
    return MetadataLog(log, files, disk, node_id, wall_ms)


class MetadataLog:
    """`log` was loaded; `committed(offset)` is told of every move of the high watermark,
    `broke(error)` of the end.
    """

    def __init__(
        self,
        log: Log,
        files: IFileSystem,
        disk: IDiskWorker,
        node_id: int,
        wall_ms: Callable[[], int],
    ) -> None:
        self.log, self.files, self.disk, self.node_id, self.wall_ms = (
            log,
            files,
            disk,
            node_id,
            wall_ms,
        )
        self.epoch = -1
        self.snapshots = list_snapshots(files, log.directory)
        self.failed: BaseException | None = None
        self.committed: Callable[[int], None] = lambda offset: None
        self.broke: Callable[[BaseException], None] = lambda error: None
        self._syncing = False
        self._open_transaction = False
        self._bytes_since_snapshot = 0
        self._named_segment = -1

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

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
        """The image that snapshot and log say. WireError for what cannot be understood; OSError."""
        image = EMPTY
        if self.snapshots:
            newest = self.snapshots[-1]
            image = load_snapshot(self.files, self.directory, newest)
            if self.end_offset < newest.end_offset:
                self.log.truncate_fully_and_start_at(newest.end_offset)
            self.log.set_high_watermark(newest.end_offset)
            self.log.increment_log_start_offset(newest.end_offset)
        transactions = TransactionBuffer()
        for batch in self._batches(image.offset + 1):
            records = [] if batch.is_control else transactions.pass_through(batch_records(batch))
            image = image.apply(
                records, batch.last_offset, batch.partition_leader_epoch, batch.max_timestamp
            )[0]
            self._bytes_since_snapshot += batch.size_in_bytes
        self._open_transaction = transactions.open
        return image

    def _batches(self, offset: int) -> Iterator[BatchView]:
        while offset < self.end_offset:
            found = self.log.read(offset, _READ_BYTES).slice
            assert found is not None, offset
            data = found.read()
            found.release()
            for batch in iterate_batches(data, check_crc=True):
                yield batch
                offset = batch.last_offset + 1

    def begin_epoch(self) -> None:
        """Leads a new epoch. OSError: it was not begun."""
        known = read_quorum_state(self.files, self.directory)
        latest = max(
            0,
            self.log.leader_epochs.latest_epoch,
            self.snapshots[-1].epoch if self.snapshots else 0,
            known.leader_epoch if known else 0,
        )
        epoch = latest + 1
        write_quorum_state(self.files, self.directory, QuorumState(self.node_id, epoch))
        self.epoch = epoch
        voters = [LeaderChangeMessageVoter(voter_id=self.node_id)]
        message = LeaderChangeMessage(
            version=0, leader_id=self.node_id, voters=voters, granting_voters=voters
        )
        self._write(
            build_control_batch(
                LEADER_CHANGE,
                encode(message, 0),
                self.wall_ms(),
                base_offset=self.end_offset,
                leader_epoch=epoch,
            )
        )
        if self._open_transaction:
            self.append(
                [AbortTransactionRecord(reason="the controller that began it has stopped")], 0
            )
            self._open_transaction = False

    def append(self, records: Sequence[Record], metadata_version: int) -> int:
        """Writes records, at most 40,000 in a batch; a batch becomes durable as a whole.

        Returns the offset of the last one.
        """
        for start in range(0, len(records), RECORDS_PER_BATCH):
            chunk = records[start : start + RECORDS_PER_BATCH]
            self._write(
                build_batch(chunk, self.end_offset, self.epoch, self.wall_ms(), metadata_version)
            )
        return self.end_offset - 1

    def _write(self, batch: bytes) -> None:
        if self.failed is not None:
            raise self.failed
        try:
            self.log.append_as_follower(batch, self.epoch, self.wall_ms())
        except LogDirFailure as error:
            self._break(error)
            raise
        self._bytes_since_snapshot += len(batch)

    # group commit

    def sync(self) -> None:
        """Makes what was appended durable; `committed` is called when it is."""
        if self._syncing or self.failed is not None or self.high_watermark >= self.end_offset:
            return
        self._syncing = True
        upto = self.end_offset
        start = max(self.high_watermark, self.log.log_start_offset)
        files = [segment.log for segment in self.log.segments.between(min(start, upto - 1), upto)]
        for file in files:
            file.acquire()
        named = self.log.segments.active.base_offset
        new_name, self._named_segment = named != self._named_segment, named

        def job() -> None:
            for file in files:
                file.sync()
            if new_name:
                self.files.sync_directory(self.directory)

        def done(_: None, error: BaseException | None) -> None:
            for file in files:
                file.release()
            self._synced(upto, error)

        self.disk.submit(job, done)

    def _synced(self, upto: int, error: BaseException | None) -> None:
        self._syncing = False
        if error is not None:
            self._break(error)
            return
        self.log.set_high_watermark(upto)
        self.committed(upto)
        self.sync()

    def _break(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            self.broke(error)

    # snapshots

    def write_snapshot(self, image: MetadataImage) -> None:
        """Writes a snapshot of a committed image in the background, then cuts the log behind it."""
        self._bytes_since_snapshot = 0

        def done(snapshot: SnapshotId | None, error: BaseException | None) -> None:
            if error is not None or snapshot is None:
                self._break(error or AssertionError("a snapshot without name"))
            else:
                self._cut_behind(snapshot)

        self.disk.submit(
            lambda: write_snapshot(self.files, self.directory, image, self.wall_ms()), done
        )

    def _cut_behind(self, snapshot: SnapshotId) -> None:
        if self.snapshots and snapshot <= self.snapshots[-1]:
            return
        old, self.snapshots = self.snapshots, [snapshot]
        self.log.increment_log_start_offset(snapshot.end_offset)
        self.log.roll(self.wall_ms())
        self.log.delete_old_segments(self.wall_ms())
        self.disk.submit(
            lambda: remove_snapshots(self.files, self.directory, old), lambda _, error: None
        )

    def snapshot_path(self, snapshot: SnapshotId) -> str:
        return posixpath.join(self.directory, snapshot.file_name)

    def close(self) -> None:
        """OSError; slow."""
        if self.failed is None:
            self.log.close()
