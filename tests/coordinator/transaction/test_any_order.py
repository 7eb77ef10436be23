"""Whatever clients, storage, leaders, time and failovers do, in any order: the log obeys the table
of states, every transaction has one outcome on all of its partitions, and once all is well nothing
stays open.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, ensureDeferred

from tests.coordinator.transaction.transaction_run import (
    T0,
    T1,
    T2,
    Cluster,
    TransactionRun,
    image_of,
)
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.transaction.transaction_decisions import ProducerIdAndEpoch
from twisted_broker.coordinator.transaction.transaction_log import read_record
from twisted_broker.coordinator.transaction.transaction_metadata import (
    AT_REST,
    COMPLETE,
    LAST_EPOCH,
    PREPARE_COMMIT,
    PREPARED,
    VALID_PREVIOUS_STATES,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import BrokerError, ErrorCode

NAMES = st.sampled_from(["a", "b"])
_ADD = st.tuples(st.just("add"), NAMES, st.sampled_from([T0, T1, T2]), st.just(0))
_END = st.tuples(st.just("end"), NAMES, st.booleans(), st.just(0))
# What makes a transaction is more likely than what disturbs it.
STEPS = st.one_of(
    st.tuples(st.just("init"), NAMES, st.booleans()),
    *[_ADD, _END] * 3,
    st.tuples(st.just("add"), NAMES, st.just(T0), st.just(-1)),
    st.tuples(st.just("end"), NAMES, st.booleans(), st.just(-1)),
    st.tuples(st.just("time"), st.sampled_from([50, 1_000, 75_000])),
    st.tuples(st.just("storage"), st.sampled_from(["good", "refuses", "slow", "times out"])),
    st.tuples(st.just("replicate")),
    st.tuples(st.just("leaders"), st.sampled_from(["answer", "silent", "moving", "down", "none"])),
    st.tuples(st.just("lose")),
    st.tuples(st.just("failover")),
    st.tuples(st.just("exhaust"), NAMES),
)
_BEGUN = [("init", "a", False), ("add", "a", T0, 0)]
# Each of them shows one fault that was planted.
NO_EPOCH_FOR_EVERY_TRANSACTION = [
    *_BEGUN,
    ("end", "a", True, 0),
    ("add", "a", T0, 0),
    ("end", "a", False, 0),
]
A_TIMED_OUT_APPEND_FORGOTTEN = [
    *_BEGUN,
    ("storage", "slow"),
    ("end", "a", True, 0),
    ("storage", "times out"),
    ("storage", "good"),
    ("end", "a", False, 0),
]
COMPLETE_NOT_APPENDED_AGAIN = [
    *_BEGUN,
    ("leaders", "silent"),
    ("end", "a", True, 0),
    ("storage", "refuses"),
    ("leaders", "answer"),
]
NO_MARKERS_AFTER_A_FAILOVER = [
    *_BEGUN,
    ("leaders", "silent"),
    ("end", "a", True, 0),
    ("failover",),
]
COMPLETE_BEFORE_THE_MARKERS = [*_BEGUN, ("leaders", "silent"), ("end", "a", True, 0)]


class World:
    """Clients of two ids, each with what it knows of its producer."""

    def __init__(self, version: int) -> None:
        self.cluster, self.version = Cluster(), version
        self.run = TransactionRun(cluster=self.cluster, version=version)
        self.producers: dict[str, ProducerIdAndEpoch] = {}
        self.open: list[Deferred[int]] = []
        self.init("b", False)

    def play(self, step: tuple[Any, ...]) -> None:
        name, *what = step
        getattr(self, name)(*what)
        self.run.settle()

    def client(self, work: Any, name: str) -> None:
        """A request; its answer, whenever it comes, is what the client goes on with."""

        def answered(found: Any) -> None:
            if isinstance(found, ProducerIdAndEpoch) and found.producer_id >= 0:
                self.producers[name] = found

        def refused(failure: Any) -> None:
            failure.trap(BrokerError)

        ensureDeferred(work).addCallbacks(answered, refused)

    def init(self, name: str, goes_on: bool) -> None:
        expected = self.producers.get(name) if goes_on else None
        self.client(self.run.coordinator.init_producer_id(name, 60_000, expected), name)

    def add(self, name: str, partition: TopicPartition, offset: int) -> None:
        producer = self.producers.get(name)
        if producer is not None:
            who = producer._replace(epoch=producer.epoch + offset)
            work = self.run.coordinator.add_partitions(name, who, [partition], self.version)
            self.client(work, name)

    def end(self, name: str, commit: bool, offset: int) -> None:
        producer = self.producers.get(name)
        if producer is not None:
            who = producer._replace(epoch=producer.epoch + offset)
            work = self.run.coordinator.end_transaction(name, who, commit, self.version)
            self.client(work, name)

    def time(self, milliseconds: int) -> None:
        self.run.pass_ms(milliseconds)

    def storage(self, how: str) -> None:
        store = self.run.store
        store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS if how == "refuses" else None
        if how == "good":
            self.run.replicate()
        elif how == "slow" and store.held is None:
            store.held = []
        elif how == "times out" and store.held:
            self.open += store.time_out()

    def replicate(self) -> None:
        """All that is in the log is on all replicas."""
        self.run.replicate()
        waiting, self.open = self.open, []
        for each in waiting:
            each.callback(0)

    def leaders(self, how: str) -> None:
        cluster = self.cluster
        cluster.answers, cluster.down = how != "silent", how == "down"
        cluster.errors = {T0: ErrorCode.NOT_LEADER_OR_FOLLOWER} if how == "moving" else {}
        leaders = {T0: -1, T1: 2, T2: 1} if how == "none" else {T0: 1, T1: 2, T2: 1}
        self.run.change_image(image_of(leaders))
        if how == "answer":
            for sent in cluster.sent:
                if not sent.waiting.called:
                    sent.answer()

    def lose(self) -> None:
        for sent in self.cluster.sent:
            if not sent.waiting.called:
                sent.lose()

    def failover(self) -> None:
        """What was not replicated stays: the next leader has it too."""
        self.run.replicate()
        before = self.run
        self.run = before.successor()
        self.run.next_id = before.next_id
        waiting, self.open = self.open, []
        for each in waiting:
            each.errback(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        before.coordinator.stop()

    def exhaust(self, name: str) -> None:
        """As after 32,000 transactions."""
        shard = self.run.coordinator.states.shards[partition_for(name, 3)]
        found = shard.transactions.get(name)
        if (
            found is not None
            and found.pending is None
            and found.state in AT_REST
            and 0 <= found.producer_epoch < LAST_EPOCH - 2
        ):
            found.producer_epoch = LAST_EPOCH - 2
            self.producers[name] = ProducerIdAndEpoch(found.producer_id, LAST_EPOCH - 2)

    def heal(self) -> None:
        self.storage("good")
        self.replicate()
        self.leaders("answer")
        self.run.pass_ms(100_000)
        self.replicate()
        self.run.pass_ms(5_000)

    # what must hold
    def check_log(self) -> None:
        for name in ("a", "b"):
            last = None
            for key, value in self.run.store.records(partition_for(name, 3)):
                read = read_record(key, value)
                assert read is not None and read.value is not None
                if read.transactional_id != name:
                    continue
                found = read.value
                if last is not None:
                    assert last.state in VALID_PREVIOUS_STATES[found.state], (last.state, found)
                    if found.producer_id == last.producer_id:
                        assert found.producer_epoch >= last.producer_epoch
                    if found.state in PREPARED:
                        assert found.partitions == last.partitions
                last = found

    def check_markers(self) -> None:
        """One outcome for each transaction, on each partition; complete only when all have it."""
        outcomes: dict[tuple[int, int], set[bool]] = {}
        for sent in self.cluster.sent:
            for marker in sent.request.markers:
                who = (marker.producer_id, marker.producer_epoch)
                outcomes.setdefault(who, set()).add(marker.transaction_result)
        if self.version == 2:  # below it many transactions have one epoch
            assert all(len(found) == 1 for found in outcomes.values()), outcomes
        for name in ("a", "b"):
            prepared = None
            for key, value in self.run.store.records(partition_for(name, 3)):
                read = read_record(key, value)
                if read is None or read.value is None or read.transactional_id != name:
                    continue
                if read.value.state in PREPARED:
                    prepared = read.value
                elif read.value.state in COMPLETE:
                    assert prepared is not None
                    commit = prepared.state is PREPARE_COMMIT
                    ended = (prepared.producer_id, prepared.producer_epoch, commit)
                    assert prepared.partitions <= self.written().get(ended, set())

    def written(self) -> dict[tuple[int, int, bool], set[TopicPartition]]:
        """Where leaders answered that the marker is written."""
        found: dict[tuple[int, int, bool], set[TopicPartition]] = {}
        for sent in self.cluster.sent:
            for who, partition in sent.written:
                found.setdefault(who, set()).add(partition)
        return found

    def check_healed(self) -> None:
        for shard in self.run.coordinator.states.shards.values():
            for metadata in shard.transactions.values():
                assert metadata.pending is None
                assert metadata.state in AT_REST, metadata.state
            assert not shard.ongoing
        assert not self.run.coordinator.markers.waiting


@settings(max_examples=50, deadline=None, database=None, derandomize=True)
@given(st.sampled_from([0, 2]), st.lists(STEPS, max_size=40))
@example(2, NO_EPOCH_FOR_EVERY_TRANSACTION)
@example(2, A_TIMED_OUT_APPEND_FORGOTTEN)
@example(0, COMPLETE_NOT_APPENDED_AGAIN)
@example(2, NO_MARKERS_AFTER_A_FAILOVER)
@example(0, COMPLETE_BEFORE_THE_MARKERS)
def test_any_order(version: int, steps: list[tuple[Any, ...]]) -> None:
    world = World(version)
    for step in steps:
        world.play(step)
    world.check_log()
    world.check_markers()
    world.heal()
    world.check_log()
    world.check_markers()
    world.check_healed()
