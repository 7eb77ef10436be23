"""`__cluster_metadata-0` on the disk of a voter.

Owns carrying out what the quorum's core decides about the disk (`raft`): writing, truncating,
quorum-state, and the group commit; and what leaves only when that is durable.

1. A message leaves when the write that it names is durable (`raft/consequences.py` 2).
2. One sync is under way at a time; what is written meanwhile shares the next one. Quorum-state is
   durable before the log's bytes that come with it.
3. The high watermark is the core's; nothing above it is applied. The only voter leads a new epoch
   at each start: there quorum-state is durable first, then a LeaderChange record opens the epoch.
   Who is the only voter the log may change at any time (kraft.version 1).
4. A failed write or sync ends it: this log answers no more (`failed`), for nobody knows what
   the disk holds.
5. What does not fit into one batch is one metadata transaction, where metadata.version has
   them: a crash leaves all of it or nothing.
6. A log that lacks what was committed and durable is not opened, and one that is gone is not
   started again (`metadata_check.py`). Nor is a broker's log, which has no quorum-state.
7. A snapshot that is fetched goes to the disk piece by piece (`snapshot_download.py`). Short of
   descriptors it is given up; the core fetches it again after its time-out.
8. Short of descriptors for a new segment, the only voter refuses the write. What one of several
   fetched, and all that is to be written after it, waits in memory (`_unwritten`, at most one
   answer's batches): nothing of it is acknowledged. `sync` writes it as soon as a file can be
   opened. A leader's own control batch does not wait: its log fails, and another one leads.

Source: Kafka's `KafkaMetadataLog`, `KafkaRaftClient`; KIP-595, KIP-868; `RL 8.1`; QU 0.4, 1.16 to
1.20. Not here: what is decided (`raft`); connections and timers (`raft_manager.py`); what the
records mean; replay and own snapshots (`metadata_store.py`).
"""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, cast

from twisted_broker.cluster.bootstrap import NAME as BOOTSTRAP
from twisted_broker.cluster.metadata_check import (
    NOT_APPLIED,
    SYNCED_END,
    Applied,
    MarkFile,
    MetadataDamage,
    durable_end_text,
    holds_records,
    is_empty,
    recover_hint,
    synced_end_text,
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
from twisted_broker.cluster.snapshot_download import NotBegun, SnapshotDownload
from twisted_broker.cluster.snapshots import SnapshotId, load_snapshot, quorum_of_snapshot
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import IDiskWorker, IFileSystem
from twisted_broker.log.errors import (
    CheckpointError,
    LogDirFailure,
    OutOfDescriptors,
    is_out_of_descriptors,
)
from twisted_broker.log.log_directory import LOCK
from twisted_broker.log.meta_properties import NAME as META_PROPERTIES
from twisted_broker.log.segment_file import FileSlice, SegmentFile
from twisted_broker.raft.consequences import (
    Append,
    AppendSnapshot,
    Consequence,
    DropSnapshot,
    FinishSnapshot,
    HighWatermark,
    Leader,
    Reply,
    SaveElection,
    Say,
    Send,
    StartSnapshot,
    Stop,
    Truncate,
    TruncateToSnapshot,
)
from twisted_broker.raft.control_records import control_batch, in_order
from twisted_broker.raft.kafka_raft_client import KafkaRaftClient
from twisted_broker.raft.log_view import Batch, LogView, OffsetAndEpoch
from twisted_broker.raft.messages import Answer, Request, SnapshotPiece
from twisted_broker.raft.node import RaftNode
from twisted_broker.raft.quorum_state import LocalNode, QuorumConfig, State
from twisted_broker.raft.replica_key import Address, Endpoint, ReplicaKey
from twisted_broker.raft.states import NEVER, CandidateState, ProspectiveState
from twisted_broker.raft.voter_history import ControlRecord, VoterHistory
from twisted_broker.raft.voter_set import VoterNode, VoterSet
from twisted_broker.raft.without_leader import why_no_leader
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.metadata_records import (
    BeginTransactionRecord,
    EndTransactionRecord,
)
from twisted_broker.wire.records import set_offsets_and_epoch
from twisted_broker.wire.schema import Record, run_whole

RECORDS_PER_BATCH = 40_000
MAX_FETCH_BYTES = 8 << 20
MAX_SNAPSHOT_BYTES = 1 << 20


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
    carrier: Carrier | None = None,
    quorum: Quorum | None = None,
) -> MetadataLog:
    """The metadata log in a log directory, as `opened_in_steps`, without a pause."""
    is_alone = quorum is None or quorum.is_alone
    listener = "" if quorum is None else quorum.listener
    opening = opened_in_steps(
        files, disk, log_directory, node_id, wall_ms(), is_alone=is_alone, listener=listener
    )
    return MetadataLog(
        run_whole(opening), node_id, wall_ms, on_committed, on_fatal, carrier, quorum
    )


def opened_in_steps(
    files: IFileSystem,
    disk: IDiskWorker,
    log_directory: str,
    node_id: int,
    wall_ms: int,
    applied: Applied = NOT_APPLIED,
    is_alone: bool = True,
    listener: str = "",
) -> Generator[None, None, Opened]:
    """A controller's log directory for its `MetadataLog`, made when it is not there. `applied`: how
    far this node is known to have applied the metadata; `is_alone`: no other votes with it, unless
    the log says so; `listener`: the controllers' own. Raises MetadataDamage, OSError,
    CheckpointError, BrokerError.
    """

    def check(history: VoterHistory) -> None:
        if is_alone and history.voters_offset is None:
            _check_leader(files, log_directory, node_id)

    try:
        _check_took_part(files, log_directory)
        opened = yield from open_in_steps(
            files,
            disk,
            log_directory,
            wall_ms,
            applied=applied,
            listener=listener,
            on_checked=check,
            is_alone=is_alone,
        )
        _sync_loaded(opened)
        return opened
    except MetadataDamage as damage:
        damage.args = (f"{damage}; nothing was changed. {_remedy(damage, log_directory)}",)
        raise


def _sync_loaded(opened: Opened) -> None:
    """All that was loaded counts as durable at once. A process that was killed may have left some
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


def _check_took_part(files: IFileSystem, log_directory: str) -> None:
    """Refuses records that this node never voted on: a broker's log. Raises MetadataDamage,
    OSError.
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
            directory,
            f"it is the log of a broker that was no controller (it has no {QUORUM_STATE})",
        )


def _check_leader(files: IFileSystem, log_directory: str, node_id: int) -> None:
    """Refuses to an only voter the log of a larger quorum. Raises MetadataDamage, OSError."""
    directory = posixpath.join(log_directory, METADATA_DIRECTORY)
    known = read_quorum_state(files, directory) if holds_records(files, directory) else None
    if known is not None and known.leader_id not in (-1, node_id):
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


class Carrier(Protocol):
    """What carries the quorum's messages and timers. Ring 1: `raft_manager.py`."""

    def now_ms(self) -> float:
        """Of a clock that only rises."""
        ...

    def send(self, log: MetadataLog, request: Send) -> None:
        """The answer goes to `log.answered`."""
        ...

    def say(self, line: str, is_warning: bool) -> None: ...

    def stepped(self, log: MetadataLog) -> None:
        """The log calls for a `tick` at another time (`wake_at_ms`)."""
        ...

    def leader_changed(self, leader: Leader) -> None: ...

    def snapshot_loaded(self, image: MetadataImage) -> None:
        """A snapshot took the place of the log."""
        ...

    def may_end(self) -> None:
        """The hand-over is done."""
        ...


class Alone:
    """Of the only voter: nobody to send to, and no time-out that a step of the calendar moves."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms

    def now_ms(self) -> float:
        return self._wall_ms()

    def send(self, log: MetadataLog, request: Send) -> None:
        raise AssertionError(request)

    def say(self, line: str, is_warning: bool) -> None: ...

    def stepped(self, log: MetadataLog) -> None: ...

    def leader_changed(self, leader: Leader) -> None: ...

    def snapshot_loaded(self, image: MetadataImage) -> None: ...

    def may_end(self) -> None: ...


class Quorum(NamedTuple):
    """Who votes, as the configuration says, and this node. `voters` empty: it joins a quorum that
    it finds at `bootstrap`. `listener`: the controllers' own. `retention_..`: beyond that the
    oldest of several snapshots goes, with the log before the next.
    """

    local: LocalNode
    voters: VoterSet
    config: QuorumConfig
    random_ms: Callable[[int], int]
    bootstrap: tuple[Address, ...] = ()
    listener: str = ""
    retention_bytes: int = 100 << 20
    retention_ms: int = 604_800_000

    @property
    def is_alone(self) -> bool:
        """Whether no other votes, unless the log says so."""
        return self.voters.is_only_voter(self.local.key)


def quorum_of_one(key: ReplicaKey) -> Quorum:
    """Of a node that no other votes with."""
    return Quorum(
        LocalNode(key), VoterSet([VoterNode(ReplicaKey(key.id))]), QuorumConfig(), lambda limit: 0
    )


Waiter = Callable[[Answer, FileSlice | None], None]
"""Gets an answer of the core, and the bytes that it reads of the log."""
_WRITTEN = "written"


class ElectionTimes:
    """How long elections of this node took, until a leader was known: `count` of them, in all
    `total_ms`, at most `most_ms`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = self.most_ms = 0.0
        self._since_ms: float | None = None

    def look(self, state: State, now_ms: float) -> None:
        """After each step."""
        if isinstance(state, ProspectiveState | CandidateState):
            if self._since_ms is None:
                self._since_ms = now_ms
        elif self._since_ms is not None and state.leader_id >= 0:
            took, self._since_ms = now_ms - self._since_ms, None
            self.count += 1
            self.total_ms += took
            self.most_ms = max(self.most_ms, took)


class QuorumFailure(Exception):
    """The quorum contradicts what this node knows."""


class MetadataLog(MetadataStore):
    """`on_committed(offset)` is called at every move of the high watermark, `on_fatal(error)` when
    it fails. `epoch`: that this node leads; -1: none.
    """

    def __init__(
        self,
        opened: Opened,
        node_id: int,
        wall_ms: Callable[[], int],
        on_committed: Callable[[int], None],
        on_fatal: Callable[[BaseException], None],
        carrier: Carrier | None = None,
        quorum: Quorum | None = None,
    ) -> None:
        super().__init__(opened, wall_ms, on_fatal)
        self.node_id = node_id
        self.epoch = -1
        self.quorum = quorum or quorum_of_one(ReplicaKey(node_id))
        self.history.static = self.quorum.voters
        self._carrier: Carrier = carrier or Alone(wall_ms)
        self._on_committed = on_committed
        self._syncing = False
        self._named_segment = -1
        self._sync_error: OSError | None = None  # written on the disk worker
        self._raft: KafkaRaftClient | None = None
        self._queue: deque[Consequence] = deque()
        self._is_carrying = self._has_proposed = False
        self._held: list[tuple[int, Callable[[], None]]] = []
        self._written_seq = self._durable_seq = 0
        self._unwritten: deque[SaveElection | Append | Truncate | TruncateToSnapshot] = deque()
        self._is_beginning = False
        self._committed_end = 0
        self._joined_epoch = -1  # whose leader's log this one continues
        self._synced_end_file = MarkFile(self.files, self.directory, SYNCED_END)
        self._election: SaveElection | None = None
        self._synced_end, self._truncations = self.end_offset, 0
        self._download = SnapshotDownload(self.files, self.directory)
        self._downloading: SnapshotId | None = None
        self._written_ms: dict[SnapshotId, int] = {}  # as long as `snapshots`
        self.elections = ElectionTimes()

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def is_alone(self) -> bool:
        """Whether no other votes, as it is now."""
        return self.history.voters.is_only_voter(self.quorum.local.key)

    @property
    def has_begun(self) -> bool:
        """Whether it takes part in the quorum."""
        return self._raft is not None

    @property
    def raft(self) -> KafkaRaftClient:
        assert self._raft is not None, "begin_epoch was not called"
        return self._raft

    @property
    def wake_at_ms(self) -> float:
        return NEVER if self._raft is None else self._raft.wake_at_ms

    def begin_epoch(self, endpoints: Iterable[Endpoint] = ()) -> None:
        """Takes its place in the quorum, found at `endpoints`; the only voter leads a new epoch at
        once, and `sync` makes that durable. OSError, MetadataDamage: it was not begun.
        """
        try:
            known = read_quorum_state(self.files, self.directory)
        except CheckpointError as error:
            # An epoch that was led already could be led again, and its records would be believed.
            hint = recover_hint(target=posixpath.dirname(self.directory))
            reason = (
                f"{error.reason}; nothing was changed. Rebuild the controller's metadata: {hint}"
            )
            raise MetadataDamage(error.path, reason) from error
        quorum, now_ms = self.quorum, self._carrier.now_ms()
        node = RaftNode(
            quorum.local._replace(endpoints=in_order(endpoints, quorum.listener)),
            quorum.config,
            self.history,
            self._view(),
            quorum.bootstrap,
            # Alone it waits for nobody, and draws nothing.
            lambda limit: 0 if self.is_alone else quorum.random_ms(limit),
            self.committed_at_open,
        )
        self._raft = KafkaRaftClient(node, known, now_ms)
        # What follows shares one sync.
        self._is_carrying = self._is_beginning = is_alone = self.is_alone
        try:
            self._carry_out(self._raft.start(now_ms))
        finally:
            self._is_carrying = self._is_beginning = False
        while self._queue:
            self._carry(self._queue.popleft())
        self._carrier.stepped(self)
        if not is_alone:
            self.sync()

    def _view(self) -> LogView:
        start = self.log.log_start_offset
        epochs = [
            OffsetAndEpoch(max(offset, start), epoch)
            for epoch, offset in self.log.leader_epochs.entries()
        ]
        snapshots = [OffsetAndEpoch(*each) for each in self.snapshots]
        return LogView(start, self.end_offset, epochs if self.end_offset > start else (), snapshots)

    # what others ask, and answer

    def request(self, request: Request, waiter: Waiter) -> None:
        """Another node's; `waiter` gets the answer, now or later."""
        if self.is_over or self._raft is None:
            leader = self.node_id if self.quorum.is_alone else -1
            waiter(Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader, max(self.epoch, 0)), None)
            return
        self._carry_out(self._raft.request(waiter, request, self._carrier.now_ms()))

    @property
    def state(self) -> str:
        """What this node is in the quorum, in Kafka's words."""
        if self._raft is None:
            return "unattached"
        quorum = self._raft.quorum
        name = quorum.state.name.lower()
        if quorum.voted is not None and name == "unattached":
            name += "-voted"
        return name if quorum.is_voter else "observer"

    @property
    def voted_id(self) -> int:
        """Whom this node voted for in this epoch; -1: nobody."""
        voted = None if self._raft is None else self._raft.quorum.voted
        return -1 if voted is None else voted.id

    @property
    def why_no_leader(self) -> str:
        """In one sentence, where no leader is known."""
        return "" if self._raft is None else why_no_leader(self._raft.quorum)

    def leader(self) -> Answer:
        """Who leads, as far as it is known."""
        return Answer() if self._raft is None else self._raft.node.answer()

    def give_up(self, waiter: Waiter) -> None:
        """Its client has gone."""
        if not self.is_over and self._raft is not None:
            self._raft.give_up(waiter)
            self.tick()

    def answered(self, correlation: int, answer: Answer | None) -> None:
        """To a `Send`; None: the connection failed."""
        if not self.is_over:
            self._carry_out(self.raft.answer(correlation, answer, self._carrier.now_ms()))

    def tick(self) -> None:
        """It is `wake_at_ms`."""
        if not self.is_over and self._raft is not None:
            self._carry_out(self._raft.tick(self._carrier.now_ms()))

    def resign(self) -> None:
        """Another one shall lead."""
        if not self.is_over and self.epoch >= 0:
            self._carry_out(self.raft.resign(self.epoch, self._carrier.now_ms()))

    def upgrade_kraft_version(self, level: int, validate_only: bool) -> Answer:
        """As the leader; what it writes is committed with what is written behind it."""
        if self.is_over or self._raft is None:
            return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        now_ms = self._carrier.now_ms()
        answer, found = self._raft.upgrade_kraft_version(level, validate_only, now_ms)
        self._carry_out(found)
        return answer

    def hand_over(self, timeout_ms: float) -> None:
        """`Carrier.may_end` is called when this node may stop."""
        self._carry_out(self.raft.stop(self._carrier.now_ms(), timeout_ms))

    def refuse_waiting(self) -> None:
        """Nothing is answered any more."""
        self._held.clear()
        if self._raft is not None:
            self._carry_out(self._raft.close(self.failed is not None))

    # consequences

    def _carry_out(self, found: list[Consequence]) -> None:
        """The writes first: what is called back may write more, behind them."""
        try:
            for each in found:
                if isinstance(each, SaveElection | Append | Truncate | TruncateToSnapshot):
                    self._store(each)
        except (OSError, BrokerError, CheckpointError) as error:
            if self._is_beginning:
                raise
            self._fail(error)
            return
        moved: list[HighWatermark] = []
        for each in found:
            if isinstance(each, HighWatermark):
                moved.append(each)
                self._committed_end = each.offset
                self.log.set_high_watermark(each.offset)
                continue
            if moved and not isinstance(each, Reply):
                self._queue.extend(moved)
                moved.clear()
            self._queue.append(each)
        self._queue.extend(moved)  # a fetch that waits hears of a change before who asked for it
        if self._is_carrying:
            return
        self._is_carrying = True
        try:
            while self._queue:
                self._carry(self._queue.popleft())
        finally:
            self._is_carrying = False
        self.elections.look(self.raft.quorum.state, self._carrier.now_ms())
        self.sync()
        self._carrier.stepped(self)

    def _store(self, each: SaveElection | Append | Truncate | TruncateToSnapshot) -> None:
        if isinstance(each, Append):
            self._joined_epoch = self.raft.quorum.epoch
        if isinstance(each, Append) and not isinstance(each.batch.data, bytes):
            # Of a leader, which fails: another one shall lead, and followers that know of a batch
            # which is not there would ask for it without a pause.
            self._write_queued()
            self._write_one(each)
            return
        if self._unwritten:
            self._unwritten.append(each)
            return
        try:
            self._write_one(each)
        except OutOfDescriptors:
            self._unwritten.append(each)

    def _write_queued(self) -> None:
        while self._unwritten:
            self._write_one(self._unwritten[0])
            self._unwritten.popleft()

    def _write_waiting(self) -> None:
        """What found no descriptor."""
        try:
            self._write_queued()
        except OutOfDescriptors:
            return
        except (OSError, BrokerError, CheckpointError) as error:
            self._fail(error)
            return
        self.log.set_high_watermark(max(self.log.high_watermark, self._committed_end))
        self._on_committed(self.log.high_watermark)

    def _write_one(self, each: SaveElection | Append | Truncate | TruncateToSnapshot) -> None:
        match each:
            case SaveElection():
                self._election = each
            case Append():
                if each.batch.data is not _WRITTEN:
                    # Nobody's vote makes a new epoch of the only voter durable before its record.
                    self._save_election_of_one()
                    self._write(self._bytes_of(each.batch))
            case Truncate():
                self._truncations += 1
                self.log.truncate_to(each.offset, self.wall_ms())
                self._synced_end = min(self._synced_end, each.offset)
            case TruncateToSnapshot():
                self._truncations += 1
                self.log.truncate_fully_and_start_at(each.id.offset, self.wall_ms())
                self.log.set_high_watermark(each.id.offset)
                self._synced_end = each.id.offset
                self.snapshots = [SnapshotId(*each.id)]
        self._written_seq = each.seq

    def _save_election_of_one(self) -> None:
        saved = self._election
        if saved is not None and self.is_alone:
            self._election = None
            self._save(saved)

    def _save(self, saved: SaveElection) -> None:
        write_quorum_state(
            self.files, self.directory, saved.state, saved.voters, saved.kraft_version
        )

    def _bytes_of(self, batch: Batch) -> bytes:
        """Of another leader, as they came; of this one, its control records."""
        if isinstance(batch.data, bytes):
            return batch.data
        found = [each for each in batch.control if each is not None]
        return control_batch(found, self.wall_ms(), batch.base_offset, batch.epoch)

    def _carry(self, each: Consequence) -> None:
        match each:
            case Send():
                self._hold(each.after, lambda: self._carrier.send(self, each))
            case Reply():
                self._reply(each)
            case HighWatermark():
                self._on_committed(each.offset)
            case Leader():
                self.epoch = each.epoch if each.id == self.node_id else -1
                self._carrier.leader_changed(each)
            case Say():
                self._carrier.say(each.line, each.is_warning)
            case Stop():
                if each.reason:
                    self._fail(QuorumFailure(each.reason))
                else:
                    self._carrier.may_end()
            case StartSnapshot():
                self._downloading = SnapshotId(*each.id)
                name = self._downloading.file_name
                self.disk.submit(lambda: self._download.start(name), self._downloaded)
            case AppendSnapshot():
                content = each.content
                self.disk.submit(lambda: self._download.append(content), self._downloaded)
            case DropSnapshot():
                self._downloading = None
                self.disk.submit(self._download.drop, self._downloaded)
            case FinishSnapshot():
                self._finish_snapshot(SnapshotId(*each.id))

    def _hold(self, after: int, act: Callable[[], None]) -> None:
        if self._durable_seq >= after:
            act()
        else:
            self._held.append((after, act))

    def _reply(self, each: Reply) -> None:
        """What it reads is read now."""
        answer, piece, data = each.answer, each.answer.piece, None
        if answer.fetched is not None and answer.fetched.read is not None:
            read = answer.fetched.read
            limit = max(0, min(read.max_bytes, MAX_FETCH_BYTES))
            upto = self.log.watermarks.high_watermark_metadata if read.is_committed else None
            data = self.log.read(read.offset, limit, upto).slice
        elif piece is not None and answer.error is ErrorCode.NONE:
            answer = self._read_piece(answer, piece)
        waiter = cast("Waiter", each.correlation)
        self._hold(each.after, lambda: waiter(answer, data))

    def _read_piece(self, answer: Answer, piece: SnapshotPiece) -> Answer:
        try:
            file = self.files.open(self.snapshot_path(SnapshotId(*piece.id)), read_only=True)
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            return answer._replace(error=ErrorCode.KAFKA_STORAGE_ERROR)  # the reader comes again
        try:
            size = file.size()
            if not 0 <= piece.position < size:
                return answer._replace(error=ErrorCode.POSITION_OUT_OF_RANGE)
            content = file.read_at(piece.position, max(1, min(piece.max_bytes, MAX_SNAPSHOT_BYTES)))
            return answer._replace(piece=piece._replace(size=size, content=content))
        finally:
            file.close()

    def _downloaded(self, _: None, error: BaseException | None) -> None:
        if error is None or isinstance(error, NotBegun) or is_out_of_descriptors(error):
            return
        self._fail(error)

    def _finish_snapshot(self, snapshot: SnapshotId) -> None:
        """Durable under its name, then read."""
        is_here, listener = self._downloading != snapshot, self.quorum.listener
        self._downloading = None

        def job() -> tuple[MetadataImage, tuple[ControlRecord, ...]]:
            if not is_here:
                self._download.finish()
            image = load_snapshot(self.files, self.directory, snapshot)
            voters = quorum_of_snapshot(self.files, self.directory, snapshot, listener)
            return image, voters or ()

        def done(
            read: tuple[MetadataImage, tuple[ControlRecord, ...]] | None,
            error: BaseException | None,
        ) -> None:
            if self.is_over:
                return
            if error is not None or read is None:
                self._downloaded(None, error or AssertionError(snapshot))
                return
            image, voters = read
            at = OffsetAndEpoch(*snapshot)
            found = self.raft.snapshot_received(at, voters, self._carrier.now_ms())
            if any(isinstance(each, TruncateToSnapshot) for each in found):
                self._carrier.snapshot_loaded(image)
            self._carry_out(found)

        self.disk.submit(job, done)

    def apply_in_steps(
        self, image: MetadataImage, upto: int
    ) -> Generator[None, None, MetadataImage]:
        """The image behind what is committed below `upto`. Pauses as `replay_in_steps`. Raises
        MetadataDamage, OSError.
        """
        for batches in self._reads(image.offset + 1):
            below = [each for each in batches if each.last_offset < upto]
            if below:
                image = yield from self._replayed(image, below)
            if len(below) < len(batches):
                break
        return image

    # writing, as the leader

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
        BrokerError(NOT_CONTROLLER): another one leads.
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
            if self.failed is not None:
                raise self.failed
            if not self.raft.leads(self.epoch):
                raise BrokerError(ErrorCode.NOT_CONTROLLER, "another controller leads")
            if self._unwritten:
                raise BrokerError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"no file can be opened in {self.directory}"
                )
            base = self.end_offset
            set_offsets_and_epoch(batch, base, self.epoch)
            try:
                self._write(bytes(batch))
            except BrokerError as error:
                # Short of descriptors, nothing was written of this batch: behind those before it
                # the transaction would stay open, and all that follows would belong to it.
                if number:
                    self._fail(error)
                raise
            self.raft.propose(self.epoch, _WRITTEN, self.end_offset - base)
            self._has_proposed = True
        return self.end_offset - 1

    def _write(self, batch: bytes) -> None:
        if self.failed is not None:
            raise self.failed
        try:
            self.log.append_as_follower(batch, self.raft.quorum.epoch, self.wall_ms())
        except LogDirFailure as error:
            self._fail(error)
            raise
        self._bytes_since_snapshot += len(batch)

    # group commit

    def sync(self) -> None:
        """Makes what was written durable; what waits for that leaves, and the high watermark may
        move.
        """
        if self._unwritten and not self.is_over:
            self._write_waiting()
        if self._has_proposed and not self._is_carrying:
            self._has_proposed = False
            if not self.is_alone:
                self.tick()  # comes here again
                return
            for each in self.raft.proposed():
                self._store(each)
        if self._syncing or self.is_over or self._durable_seq >= self._written_seq:
            return
        self._syncing = True
        seq, upto, truncations = self._written_seq, self.end_offset, self._truncations
        election, self._election = self._election, None
        files = self._unsynced(upto)
        for file in files:
            file.acquire()
        named = self.log.segments.active.base_offset
        new_name, self._named_segment = named != self._named_segment, named
        committed = upto if self.is_alone else min(self.high_watermark, upto)
        epoch = self.raft.quorum.epoch
        notes_synced = not self.is_alone and self._joined_epoch == epoch

        def job() -> None:
            try:
                if election is not None:
                    self._save(election)
                for file in files:
                    file.sync()
                if new_name:
                    self.files.sync_directory(self.directory)
            except OSError as error:
                # A stop may come before the reactor hears of it.
                self._sync_error = error
                raise
            self._raise_durable_end(committed)
            if notes_synced:
                self._synced_end_file.write(synced_end_text(epoch, upto), sync=False)

        def done(_: None, error: BaseException | None) -> None:
            for file in files:
                file.release()
            self._syncing = False
            if is_out_of_descriptors(error) and self._election is None:
                self._election = election
            if error is None and truncations == self._truncations:
                self._synced_end = upto
            self._synced(seq, error)

        self.disk.submit(job, done)

    def _unsynced(self, upto: int) -> list[SegmentFile]:
        start = max(min(self._synced_end, upto - 1), self.log.log_start_offset)
        return [segment.log for segment in self.log.segments.between(start, upto)]

    def _synced(self, seq: int, error: BaseException | None) -> None:
        if self.is_over:
            return
        if is_out_of_descriptors(error):
            # No file could be opened, the disk is well: nothing is durable yet, `tick` syncs again.
            self._named_segment = -1
            return
        if error is not None:
            self._fail(error)
            return
        self._durable_seq = seq
        held, self._held = self._held, []
        for after, act in held:
            self._hold(after, act)
        self._carry_out(self.raft.persisted(seq, self._carrier.now_ms()))

    def _truncate_behind(self, snapshot: SnapshotId) -> None:
        """Alone, right behind it. Where others vote, as far as retention says: one that lags a
        little goes on in the log.
        """
        raft, at = self._raft, OffsetAndEpoch(*snapshot)
        newest = self.snapshots[-1] if self.snapshots else None
        if raft is None or self.is_alone or (newest is not None and snapshot <= newest):
            super()._truncate_behind(snapshot)
            if raft is not None and self.snapshots[-1] == snapshot:
                raft.snapshot_written(at)
                raft.start_moved(at)
            return
        self.snapshots.append(snapshot)
        self._written_ms[snapshot] = self.wall_ms()
        raft.snapshot_written(at)
        with suppress(OutOfDescriptors):
            self.log.roll(self.wall_ms())
        while len(self.snapshots) > 1 and self._is_beyond_retention():
            oldest, second = self.snapshots[:2]
            del self.snapshots[0]
            self._written_ms.pop(oldest, None)
            self.log.increment_log_start_offset(second.end_offset)
            self.log.delete_old_segments(self.wall_ms())
            raft.start_moved(OffsetAndEpoch(*second))
            self._remove_snapshots([oldest])

    def _is_beyond_retention(self) -> bool:
        oldest, wall_ms = self.snapshots[0], self.wall_ms()
        if oldest.end_offset < self.log.log_start_offset:
            return True  # at a start not all behind it could be read
        if wall_ms - self._written_ms.setdefault(oldest, wall_ms) >= self.quorum.retention_ms:
            return True
        size = self.log.size_in_bytes + sum(
            self.files.size(self.snapshot_path(each)) for each in self.snapshots
        )
        return size > self.quorum.retention_bytes

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
            if not self.is_alone:
                end = self.high_watermark
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
                self._durable_end_file.write(durable_end_text(end), sync=True)
            finally:
                self._durable_end_file.close()
                self._synced_end_file.close()

        def done(_: None, error: BaseException | None) -> None:
            self.log.release_files()
            if error is not None:
                on_failure(error)

        self.disk.submit(last, done)
