"""The quorum in one thread: nodes on disks that lose what was not synced, over a network that
delays, drops, repeats and reorders, under clocks of unequal speed.

Each node is the core and a carrier of some 100 lines; the fifteen invariants are in
`invariants.py`, faults and changes of membership in `faults.py`.

A run is the same for the same seed. Not here: bytes, sockets, files.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

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
from twisted_broker.raft.election_state import ElectionState
from twisted_broker.raft.kafka_raft_client import KafkaRaftClient
from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.log_view import NOTHING, Batch, LogView, OffsetAndEpoch
from twisted_broker.raft.messages import Answer, Fetched, Read, Request
from twisted_broker.raft.node import RaftNode
from twisted_broker.raft.quorum_state import LocalNode, QuorumConfig
from twisted_broker.raft.replica_key import Address, Endpoint, ReplicaKey
from twisted_broker.raft.voter_history import ControlRecord, KRaftVersion, VoterHistory, Voters
from twisted_broker.raft.voter_set import VoterNode, VoterSet
from twisted_broker.wire.errors import ErrorCode

LISTENER, PORT = "CONTROLLER", 9093
READ_BATCHES = 3


class Snapshot(NamedTuple):
    """`log`: what it stands for; `records`: its control records."""

    id: OffsetAndEpoch
    log: tuple[Batch, ...]
    records: tuple[ControlRecord, ...]


class Files:
    """A metadata directory: in the page cache, or as it is on the platter."""

    def __init__(self) -> None:
        self.election: ElectionState | None = None
        self.log: list[Batch] = []
        self.start = self.committed_end = 0
        self.snapshots: dict[OffsetAndEpoch, Snapshot] = {}

    @property
    def end(self) -> int:
        return self.log[-1].last_offset + 1 if self.log else self.start

    def save(self, election: ElectionState) -> None:
        self.election = election

    def append(self, batch: Batch) -> None:
        assert batch.base_offset == self.end, (batch, self.end)
        self.log.append(batch)

    def truncate(self, offset: int) -> None:
        while self.log and self.log[-1].last_offset >= offset:
            self.log.pop()

    def start_at(self, snapshot: Snapshot) -> None:
        self.snapshots = {snapshot.id: snapshot}
        self.log.clear()
        self.start = snapshot.id.offset
        self.committed_end = max(self.committed_end, self.start)

    def commit(self, offset: int) -> None:
        self.committed_end = max(self.committed_end, min(offset, self.end))

    def add_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshots[snapshot.id] = snapshot

    def move_start(self, snapshot: OffsetAndEpoch) -> None:
        self.snapshots = {key: value for key, value in self.snapshots.items() if key >= snapshot}
        self.log = [batch for batch in self.log if batch.base_offset >= snapshot.offset]
        self.start = snapshot.offset

    def load(self) -> None:
        """As a start finds it: behind a snapshot that goes farther than the log, nothing."""
        newest = max(self.snapshots, default=NOTHING)
        if self.end < newest.offset:
            self.start_at(self.snapshots[newest])
        assert self.committed_end <= self.end, "it ends below what is committed"

    def view(self) -> LogView:
        epochs: list[OffsetAndEpoch] = []
        for batch in self.log:
            if not epochs or batch.epoch > epochs[-1].epoch:
                epochs.append(OffsetAndEpoch(batch.base_offset, batch.epoch))
        return LogView(self.start, self.end, epochs, sorted(self.snapshots))


class _Write(NamedTuple):
    seq: int
    act: Callable[[Files], None]


class Node:
    """A machine: its disk stays, its process comes and goes."""

    def __init__(self, world: World, node_id: int, directory: int) -> None:
        self.world, self.id = world, node_id
        self.key = ReplicaKey(node_id, bytes([node_id]) * 15 + bytes([directory]))
        self.cached, self.platter = Files(), Files()
        self.core: KafkaRaftClient | None = None
        self.run = 0
        self.rate = world.random.uniform(0.9, 1.1)
        self.auto_join = False
        self._writes: list[_Write] = []
        self._held: list[tuple[int, Callable[[], None]]] = []
        self._syncing = False
        self._durable = 0
        self._part = 0
        self._wake = 0
        self.high_watermark = -1
        self.is_stopping = False
        self.disk_ms = 4.0

    # life

    def now(self) -> float:
        return self.world.now_ms * self.rate

    def start(self) -> None:
        self.run += 1
        self.cached.load()
        history = VoterHistory(self.world.static)
        if self.cached.start == 0 and self.world.founding:
            history.snapshot(-1, self.world.founding)
        elif self.cached.start:
            first = min(self.cached.snapshots)
            history.snapshot(first.offset - 1, self.cached.snapshots[first].records)
        for batch in self.cached.log:
            history.append(batch.base_offset, batch.control)
        self._writes, self._held, self._syncing = [], [], False
        self._durable = 0
        self.high_watermark, self.is_stopping = -1, False
        local = LocalNode(self.key, (Endpoint(LISTENER, str(self.id), PORT),))
        config = QuorumConfig(auto_join=self.auto_join)
        bootstrap = [Address(str(each), PORT) for each in self.world.bootstrap]
        node = RaftNode(
            local,
            config,
            history,
            self.cached.view(),
            bootstrap,
            self.world.random.randrange,
            self.cached.committed_end,
        )
        self.core = KafkaRaftClient(node, self.cached.election, self.now())
        self.world.check.started(self)
        self.carry_out(self.core.start(self.now()))

    def start_again(self) -> None:
        if self.core is None:
            self.start()

    def crash(self) -> None:
        """What was not synced may be gone, from some write on."""
        if self.core is None:
            return
        self.core = None
        kept = self.world.random.randrange(len(self._writes) + 1)
        for write in self._writes[:kept]:
            write.act(self.platter)
        if kept < len(self._writes):
            self.world.reach["unsynced bytes lost"] += 1
        self._writes, self._held = [], []
        self.cached = Files()
        self.cached.__dict__.update(self.platter.__dict__)
        self.cached.log = list(self.platter.log)
        self.cached.snapshots = dict(self.platter.snapshots)

    def lose_disk(self, directory: int) -> None:
        self.crash()
        self.world.check.lost(self)
        self.cached, self.platter = Files(), Files()
        self.key = ReplicaKey(self.id, bytes([self.id]) * 15 + bytes([directory]))

    # consequences

    def carry_out(self, found: list[Consequence]) -> None:
        for each in found:
            self._carry_out(each)
        if self.core is not None:
            self.world.check.stepped(self)
            self._set_wake()
            self._sync()

    def _write(self, seq: int, act: Callable[[Files], None]) -> None:
        act(self.cached)
        self._writes.append(_Write(seq, act))

    def _carry_out(self, each: Consequence) -> None:
        world = self.world
        match each:
            case SaveElection():
                world.check.saved(self, each.state)
                self._write(each.seq, lambda files: files.save(each.state))
            case Append():
                world.check.appended(self, each.batch)
                self._write(each.seq, lambda files: files.append(each.batch))
            case Truncate():
                world.check.truncated(self, each.offset)
                self._write(each.seq, lambda files: files.truncate(each.offset))
            case TruncateToSnapshot():
                snapshot = self.cached.snapshots[each.id]
                world.check.loads(self, snapshot)
                self._write(each.seq, lambda files: files.start_at(snapshot))
            case StartSnapshot() | DropSnapshot():
                self._part = 0
            case AppendSnapshot():
                self._part += len(each.content)
            case FinishSnapshot():
                self._finish(each.id)
            case Send():
                self._hold(each.after, lambda: self._send(each, self.run))
            case Reply():
                # read now, not when it leaves
                answer = self._filled(each.answer)
                self._hold(
                    each.after,
                    lambda: world.answered(self, each.correlation, answer),
                )
            case HighWatermark():
                world.check.committed(self, each.offset)
                self.high_watermark = each.offset
                self._write(0, lambda files: files.commit(each.offset))
            case Leader():
                world.check.leads(self, each)
            case Say():
                world.said(self, each.line)
            case Stop():
                lost = self.key.directory_id[-1] > 1 and "which it does not" in each.reason
                # It led with the disk that it lost: Kafka's process ends there, too.
                assert not each.reason or lost, f"node {self.id} stops: {each.reason}"
                world.stopped(self)

    def _hold(self, after: int, act: Callable[[], None]) -> None:
        if self._durable >= after:
            act()
        else:
            self._held.append((after, act))

    def _send(self, each: Send, run: int) -> None:
        self.world.check.sent(self, each.request)  # told now; before, a crash may take it back
        self.world.send(self, int(each.address.host), each.correlation, each.request, run)

    def _filled(self, answer: Answer) -> Answer:
        if answer.fetched is not None and answer.fetched.read is not None:
            return answer._replace(fetched=self._read(answer.fetched, answer.fetched.read))
        piece = answer.piece
        if piece is not None and answer.error is ErrorCode.NONE:
            size = 3
            content = bytes(min(2, size - piece.position))
            if piece.position >= size:
                return answer._replace(error=ErrorCode.POSITION_OUT_OF_RANGE)
            answer = answer._replace(piece=piece._replace(size=size, content=content))
        return answer

    def _read(self, fetched: Fetched, read: Read) -> Fetched:
        end = fetched.high_watermark if read.is_committed else self.cached.end
        found = [each for each in self.cached.log if read.offset <= each.last_offset < end]
        assert found[0].base_offset == read.offset, (found[0], read)
        return fetched._replace(read=None, batches=tuple(found[:READ_BATCHES]))

    def _finish(self, snapshot: OffsetAndEpoch) -> None:
        """Its bytes are on the platter and read after a while."""
        world, run = self.world, self.run

        def done() -> None:
            if self.run == run and self.core is not None:
                content = world.check.snapshots[snapshot]
                for files in (self.cached, self.platter):
                    files.add_snapshot(content)
                found = self.core.snapshot_received(snapshot, content.records, self.now())
                self.carry_out(found)

        world.after(world.random.uniform(0, 30), done)

    # the disk

    def _sync(self) -> None:
        """One sync at a time; what comes meanwhile shares the next."""
        if self._syncing or not self._writes:
            return
        self._syncing = True
        count, run = len(self._writes), self.run

        def done() -> None:
            if self.run != run or self.core is None:
                return
            self._syncing = False
            writes, self._writes = self._writes[:count], self._writes[count:]
            for write in writes:
                write.act(self.platter)
                self._durable = max(self._durable, write.seq)
            held, self._held = self._held, []
            for after, act in held:
                if self._durable >= after:
                    act()
                else:
                    self._held.append((after, act))
            self.carry_out(self.core.persisted(self._durable, self.now()))

        self.world.after(self.world.random.expovariate(1 / self.disk_ms), done)

    # time

    def _set_wake(self) -> None:
        assert self.core is not None
        self._wake += 1
        wake, run = self._wake, self.run
        if self.core.wake_at_ms == float("inf"):
            return
        delay = max(0.0, self.core.wake_at_ms - self.now()) / self.rate + 0.001

        def ring() -> None:
            if self.run == run and self._wake == wake and self.core is not None:
                self.carry_out(self.core.tick(self.now()))

        self.world.after(delay, ring)

    def snapshot(self) -> None:
        """Of what is committed; sometimes the log before the last but one goes."""
        assert self.core is not None
        log = self.cached.log
        below = [each for each in log if each.last_offset < self.high_watermark]
        newest = max(self.cached.snapshots, default=NOTHING)
        if not below or below[-1].last_offset + 1 <= newest.offset:
            return
        base = self.cached.snapshots[min(self.cached.snapshots)].log if self.cached.start else ()
        last = below[-1]
        made = OffsetAndEpoch(last.last_offset + 1, last.epoch)
        history = self.core.node.history
        content = Snapshot(made, (*base, *below), history.records_at(last.last_offset))
        self.world.check.made(self, content)
        for files in (self.cached, self.platter):
            files.add_snapshot(content)
        self.core.snapshot_written(made)
        known = sorted(self.cached.snapshots)
        if len(known) > 1:
            keep = known[-1] if self.world.random.random() < 0.5 else known[-2]
            if keep.offset > self.cached.start and keep.offset <= self.platter.end:
                self._write(0, lambda files: files.move_start(keep))
                self.core.start_moved(keep)
        self.world.check.stepped(self)
        self._sync()


class World:
    """`voters`: how many nodes found the quorum; with `kraft_version` 1 by a bootstrap snapshot.
    `bootstrap`: the nodes that everybody may ask.
    """

    def __init__(self, seed: int, voters: int, observers: int, kraft_version: int) -> None:
        from tests.raft.invariants import Invariants

        self.random = Random(seed)
        self.now_ms = 0.0
        self.reach: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.cut: set[tuple[int, int]] = set()
        self.drops = self.repeats = 0.0
        self.latency_ms = 5.0
        self.bootstrap = list(range(1, voters + observers + 1))
        self.lines: list[str] = []
        self.nodes: dict[int, Node] = {}
        self.static = VoterSet()
        self.founding: tuple[ControlRecord, ...] = ()
        self.check = Invariants(self)
        for node_id in self.bootstrap:
            self.nodes[node_id] = Node(self, node_id, 1)
        founders = [self.nodes[each] for each in range(1, voters + 1)]
        if kraft_version:
            self.founding = (
                KRaftVersion(1),
                Voters(VoterSet(self.voter(each.key) for each in founders)),
            )
        else:
            nodes = [self.voter(each.key) for each in founders]
            self.static = VoterSet(VoterNode(ReplicaKey(each.id), each.endpoints) for each in nodes)

    @staticmethod
    def voter(key: ReplicaKey) -> VoterNode:
        return VoterNode(key, (Endpoint(LISTENER, str(key.id), PORT),), 0, 1)

    def after(self, delay_ms: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._count, act))

    def run(self, until_ms: float) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, act = heapq.heappop(self._events)
            act()
        self.now_ms = until_ms

    def said(self, node: Node, line: str) -> None:
        self.lines.append(f"{self.now_ms:9.1f} {node.id}: {line}")
        for words in ("truncated the metadata log", "no majority", "a voter no more", "asked to"):
            if words in line:
                self.reach[words] += 1

    def stopped(self, node: Node) -> None:
        self.reach["stopped in order"] += 1
        node.crash()
        self.after(self.random.choice([50.0, 500.0, 4000.0]), node.start_again)

    # the network

    def _carried(self, sender: int, receiver: int, act: Callable[[], None]) -> None:
        if (sender, receiver) in self.cut or self.random.random() < self.drops:
            return
        times = 2 if self.random.random() < self.repeats else 1
        if times > 1:
            self.reach["message repeated"] += 1
        for _ in range(times):
            self.after(self.random.expovariate(1 / self.latency_ms), act)

    def send(self, sender: Node, to: int, correlation: int, request: Request, run: int) -> None:
        def failed() -> None:
            if sender.run == run and sender.core is not None:
                sender.carry_out(sender.core.answer(correlation, None, sender.now()))

        def arrived() -> None:
            receiver = self.nodes.get(to)
            if receiver is None or receiver.core is None:
                self._carried(to, sender.id, failed)
                return
            answer_to = (sender.id, run, correlation)
            self.check.asked(answer_to, request)
            before = receiver.core.quorum.state
            voted = before.voted
            found = receiver.core.request(answer_to, request, receiver.now())
            self.check.handled(receiver, request, before, voted)
            receiver.carry_out(found)

        self._carried(sender.id, to, arrived)

    def answered(self, node: Node, correlation: Any, answer: Answer) -> None:
        self.check.answered(node, correlation, answer)
        if callable(correlation):
            correlation(answer)
            return
        to, run, number = correlation
        receiver = self.nodes[to]

        def arrived() -> None:
            if receiver.run == run and receiver.core is not None:
                receiver.carry_out(receiver.core.answer(number, answer, receiver.now()))

        self._carried(node.id, to, arrived)

    # looking on

    def leaders(self) -> list[Node]:
        found = [
            node
            for node in self.nodes.values()
            if node.core is not None and isinstance(node.core.quorum.state, LeaderState)
        ]
        return sorted(found, key=lambda node: node.core.quorum.epoch if node.core else 0)
