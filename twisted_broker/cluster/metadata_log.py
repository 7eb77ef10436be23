"""`__cluster_metadata-0` on the disk of a quorum of one.

Owns the log's epochs and the group commit: what is durable, and therefore below the high watermark.

1. The high watermark moves only over bytes that were synced; nothing above it is ever served or
   applied.
2. One sync is under way at a time; what is appended meanwhile shares the next one.
3. Each start leads a new epoch: quorum-state is durable first, then a LeaderChange record opens
   the epoch.
4. A failed write or sync ends it: this log answers no more (`failed`), for nobody knows what
   the disk holds.
5. What does not fit into one batch is one metadata transaction, where metadata.version has
   them: a crash leaves all of it or nothing.
6. A log that lacks what was durable is not opened, and one that is gone is not started again
   (`metadata_check.py`). Nor is one that this node never led: a broker's copy has no quorum-state,
   which is durable before a controller's first record.

Source: Kafka's `KafkaMetadataLog`, `KafkaRaftClient`; KIP-868; `RL 8.1`. Not here: several voters;
what the records mean; replay and snapshots
(`metadata_store.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from twisted_broker.cluster.bootstrap import NAME as BOOTSTRAP
from twisted_broker.cluster.metadata_check import (
    NOT_APPLIED,
    Applied,
    MetadataDamage,
    holds_records,
    is_empty,
    recover_hint,
    write_durable_end,
)
from twisted_broker.cluster.metadata_store import MetadataStore, Opened, open_in_steps
from twisted_broker.cluster.quorum_state import NAME as QUORUM_STATE
from twisted_broker.cluster.quorum_state import read_quorum_state, write_quorum_state
from twisted_broker.cluster.records import (
    TRANSACTION_LEVEL,
    build_batch,
    filled_in_steps,
)
from twisted_broker.interfaces import IDiskWorker, IFileSystem
from twisted_broker.log.errors import CheckpointError, LogDirFailure, is_out_of_descriptors
from twisted_broker.log.log_directory import LOCK
from twisted_broker.log.meta_properties import NAME as META_PROPERTIES
from twisted_broker.raft.election_state import ElectionState
from twisted_broker.raft.replica_key import ReplicaKey
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.wire.control_batch import LEADER_CHANGE
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.messages.control_records import (
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from twisted_broker.wire.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from twisted_broker.wire.records import build_control_batch, set_offsets_and_epoch
from twisted_broker.wire.schema import Record, encode, run_whole

RECORDS_PER_BATCH = 40_000


def format_metadata(
    files: IFileSystem,
    log_directory: str,
    cluster_id: str,
    is_new: bool,
    was_started: bool = True,
    others: Iterable[str] = (),
) -> None:
    """Before a controller's directory is formatted: makes the empty metadata directory of a new
    cluster. Raises OSError.

    MetadataDamage where the cluster exists and its metadata is gone: the directory bears its id,
    and a process `was_started` on it (a storage tool writes the id and starts none).
    `others`: the node's other log directories. The metadata directory comes before
    `meta.properties` has the cluster's id, so that a crash in between does not look like that.
    """
    directory = posixpath.join(log_directory, METADATA_DIRECTORY)
    if not is_empty(files, directory):
        return
    if not is_new and (was_started or not _is_tools_format(files, log_directory)):
        raise MetadataDamage(directory, _gone(files, log_directory, cluster_id, others))
    files.make_directories(directory)
    write_durable_end(files, directory, 0)
    files.sync_directory(log_directory)


def _is_tools_format(files: IFileSystem, log_directory: str) -> bool:
    """Whether it holds only what `replog format` or `kafka-storage format` makes: no node has
    written to it since.
    """
    names = set(files.listdir(log_directory)) - {LOCK, "lost+found"}
    return names == {META_PROPERTIES, BOOTSTRAP}


def _gone(files: IFileSystem, log_directory: str, cluster_id: str, others: Iterable[str]) -> str:
    for other in others:
        if files.exists(posixpath.join(other, METADATA_DIRECTORY, QUORUM_STATE)):
            return (
                f"is not here, the metadata of cluster {cluster_id} is in {other}: put that first "
                "in log.dirs, or name it as metadata.log.dir"
            )
    reason = (
        f"the metadata of cluster {cluster_id} is gone; a controller that began "
        "anew would make its brokers lose their data. "
        f"Rebuild it: {recover_hint(target=log_directory)}"
    )
    if _is_tools_format(files, log_directory):
        reason += f"; or remove {LOCK} there, if it was formatted and no node ever ran on it"
    return reason


def open_metadata_log(
    files: IFileSystem,
    disk: IDiskWorker,
    log_directory: str,
    node_id: int,
    wall_ms: Callable[[], int],
    on_committed: Callable[[int], None],
    on_fatal: Callable[[BaseException], None],
    applied: Applied = NOT_APPLIED,
) -> MetadataLog:
    """The metadata log in a log directory, as `opened_in_steps`, without a pause."""
    opened = run_whole(opened_in_steps(files, disk, log_directory, node_id, wall_ms(), applied))
    return MetadataLog(opened, node_id, wall_ms, on_committed, on_fatal)


def opened_in_steps(
    files: IFileSystem,
    disk: IDiskWorker,
    log_directory: str,
    node_id: int,
    wall_ms: int,
    applied: Applied = NOT_APPLIED,
) -> Generator[None, None, Opened]:
    """A controller's log directory for its `MetadataLog`, made when it is not there. `applied`: how
    far this node is known to have applied the metadata. Raises MetadataDamage, OSError,
    CheckpointError, BrokerError.
    """
    try:
        _check_leadership(files, log_directory, node_id)
        opened = yield from open_in_steps(files, disk, log_directory, wall_ms, applied=applied)
        _sync_loaded(opened)
        return opened
    except MetadataDamage as damage:
        damage.args = (f"{damage}; nothing was changed. {_remedy(damage, log_directory)}",)
        raise


def _sync_loaded(opened: Opened) -> None:
    """All that was loaded counts as committed at once. A process that was killed may have left some
    of it unsynced. Raises OSError.
    """
    log = opened.log
    for segment in log.segments.between(
        min(opened.durable_end, log.log_end_offset - 1), log.log_end_offset
    ):
        segment.log.sync()
    opened.files.sync_directory(log.directory)


class _NotLed(MetadataDamage):
    """The metadata was not led by this node."""


def _remedy(damage: MetadataDamage, log_directory: str) -> str:
    if isinstance(damage, _NotLed):
        hint = recover_hint(log_directory, log_directory)
        return (
            "Start this node without the role controller; or, if the cluster's controller is "
            f"lost, make it one: {hint} --move-aside"
        )
    hint = recover_hint(target=log_directory)
    return f"A controller does not start on damaged metadata; rebuild it: {hint}"


def _check_leadership(files: IFileSystem, log_directory: str, node_id: int) -> None:
    """Refuses records that this node never led: a broker's copy, or the log of a voter of a larger
    quorum. Raises MetadataDamage, OSError.
    """
    directory = posixpath.join(log_directory, METADATA_DIRECTORY)
    if not holds_records(files, directory):
        return
    try:
        known = read_quorum_state(files, directory)
    except CheckpointError:
        return  # the check of the log raises for it
    if known is None:
        raise _NotLed(
            directory, f"it is a broker's copy of the metadata (there is no {QUORUM_STATE})"
        )
    if known.leader_id not in (-1, node_id):
        raise _NotLed(directory, f"its controller is node {known.leader_id}, this is {node_id}")


def _chunks(records: Sequence[Record], metadata_version: int) -> Iterator[Sequence[Record]]:
    """What goes into one batch each; where it is more than one, a metadata transaction binds
    them.
    """
    in_transaction = bool(records) and isinstance(records[0], BeginTransactionRecord)
    if (
        len(records) > RECORDS_PER_BATCH
        and metadata_version >= TRANSACTION_LEVEL
        and not in_transaction
    ):
        records = [
            BeginTransactionRecord(name="more than one batch"),
            *records,
            EndTransactionRecord(),
        ]
    for start in range(0, len(records), RECORDS_PER_BATCH):
        yield records[start : start + RECORDS_PER_BATCH]


class MetadataLog(MetadataStore):
    """`on_committed(offset)` is called at every move of the high watermark, `on_fatal(error)` when
    it fails.
    """

    def __init__(
        self,
        opened: Opened,
        node_id: int,
        wall_ms: Callable[[], int],
        on_committed: Callable[[int], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        super().__init__(opened, wall_ms, on_fatal)
        self.node_id = node_id
        self.epoch = -1
        self._on_committed = on_committed
        self._syncing = False
        self._named_segment = -1
        self._sync_error: OSError | None = None  # written on the disk worker

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def begin_epoch(self) -> None:
        """Leads a new epoch. OSError, MetadataDamage: it was not begun."""
        try:
            known = read_quorum_state(self.files, self.directory)
        except CheckpointError as error:
            # An epoch that was led already could be led again, and its records would be believed.
            hint = recover_hint(target=posixpath.dirname(self.directory))
            reason = (
                f"{error.reason}; nothing was changed. Rebuild the controller's metadata: {hint}"
            )
            raise MetadataDamage(error.path, reason) from error
        latest = max(
            0,
            self.log.leader_epochs.latest_epoch,
            self.snapshots[-1].epoch if self.snapshots else 0,
            known.epoch if known else 0,
        )
        epoch = latest + 1
        own = self.node_id
        state = ElectionState(epoch, own, ReplicaKey(own))
        write_quorum_state(self.files, self.directory, state, [own])
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
        if self.transactions.open:
            self.append(
                [AbortTransactionRecord(reason="the controller that began it has stopped")], 0
            )
            self.transactions.abort()

    def prepare(
        self, records: Sequence[Record], metadata_version: int
    ) -> Generator[None, None, list[bytearray]]:
        """The batches of records that are appended soon, made in steps; they get their offsets
        then.
        """
        batches: list[bytearray] = []
        for chunk in _chunks(records, metadata_version):
            builder = yield from filled_in_steps(
                chunk, self.epoch, self.wall_ms(), metadata_version
            )
            batches.append(bytearray(builder.build()))
            yield
        return batches

    def append(
        self,
        records: Sequence[Record],
        metadata_version: int,
        prepared: Sequence[bytearray] | None = None,
    ) -> int:
        """Writes records, at most 40,000 in a batch; all of them become durable, or none (with
        metadata transactions). Returns the last offset. `prepared`: what `prepare` made of them.
        """
        batches = prepared
        if batches is None:
            # All of them first: what cannot be encoded leaves nothing of it in the log.
            wall_ms = self.wall_ms()
            chunks = _chunks(records, metadata_version)
            batches = [
                bytearray(build_batch(chunk, -1, self.epoch, wall_ms, metadata_version))
                for chunk in chunks
            ]
        for number, batch in enumerate(batches):
            set_offsets_and_epoch(batch, self.end_offset, self.epoch)
            try:
                self._write(bytes(batch))
            except BrokerError as error:
                # Short of descriptors, nothing was written of this batch: behind those before it
                # the transaction would stay open, and all that follows would belong to it.
                if number:
                    self._fail(error)
                raise
        return self.end_offset - 1

    def _write(self, batch: bytes) -> None:
        if self.failed is not None:
            raise self.failed
        try:
            self.log.append_as_follower(batch, self.epoch, self.wall_ms())
        except LogDirFailure as error:
            self._fail(error)
            raise
        self._bytes_since_snapshot += len(batch)

    # group commit

    def sync(self) -> None:
        """Makes what was appended durable; `on_committed` is called when it is."""
        if self._syncing or self.is_over or self.high_watermark >= self.end_offset:
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
            try:
                for file in files:
                    file.sync()
                if new_name:
                    self.files.sync_directory(self.directory)
            except OSError as error:
                # A stop may come before the reactor hears of it.
                self._sync_error = error
                raise
            self._raise_durable_end(upto)

        def done(_: None, error: BaseException | None) -> None:
            for file in files:
                file.release()
            self._synced(upto, error)

        self.disk.submit(job, done)

    def _synced(self, upto: int, error: BaseException | None) -> None:
        self._syncing = False
        if self.is_over:
            return
        if is_out_of_descriptors(error):
            # No file could be opened, the disk is well: nothing is durable yet, `tick` syncs again.
            self._named_segment = -1
            return
        if error is not None:
            self._fail(error)
            return
        self.log.set_high_watermark(upto)
        self._on_committed(upto)
        self.sync()

    # the end

    def close(self, on_failure: Callable[[BaseException], None]) -> None:
        """A clean end, on the disk worker, after the jobs that it has: syncs everything, and writes
        the durable end. `on_failure(error)`: not all is known to be durable.
        """
        if self.is_over:
            return
        self.is_closed = True
        try:
            job, end = self.log.finish(), self.end_offset
        except OSError as error:
            self.log.release_files()
            on_failure(error)
            return

        def last() -> None:
            error = self._sync_error
            try:
                if error is not None and not is_out_of_descriptors(error):
                    raise error  # another sync of the same files proves nothing (`durability.py` 5)
                job()
                self._durable_end_file.write(end, sync=True)
            finally:
                self._durable_end_file.close()

        def done(_: None, error: BaseException | None) -> None:
            self.log.release_files()
            if error is not None:
                on_failure(error)

        self.disk.submit(last, done)
