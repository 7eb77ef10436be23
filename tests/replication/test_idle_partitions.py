"""The idle partitions of a follower's session (RL 1.9, 1.10, 5.2): nobody but a profiler can tell
them from those that are read in every round.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.api.data_plane import Api, DenyList
from tests.coordinator.broker_run import TurnClock
from tests.replication.fixtures import LOCAL, TOPIC_ID, Fixture, batch, registration
from tests.replication.idle_worlds import TwoWorlds
from twisted_broker.api.fetch import fetch
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.idle_partitions import IdlePartitions, idle_reads
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.status.view import BrokerView
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from twisted_broker.wire.records import iterate_batches
from twisted_broker.wire.schema import encode

VERSION = 17
PARTITIONS = 4
REPLICAS = (1, 2, 3)


class Follower:
    """A broker that follows all partitions of the topic over one session at a time."""

    def __init__(self, api: Api, broker: int) -> None:
        self.api = api
        self.broker = broker
        self.broker_epoch = 100 + broker
        self.leader_epoch = 0
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.told: list[bytes] = []
        self.connect()

    def connect(self) -> None:
        """A new session; an answer to the old one is nobody's."""
        self.session = self.epoch = 0
        self.said: dict[int, tuple[int, ...]] = {}
        self.waiting: list | None = None

    def ask(self, min_bytes: int = 1, forget: int | None = None) -> None:
        """The next round; it may wait."""
        wanted = {
            partition: (offset, self.leader_epoch)
            for partition, offset in self.positions.items()
            if partition != forget
        }
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=min_bytes,
            max_bytes=10 << 20,
            session_id=self.session,
            session_epoch=self.epoch,
        )
        request.replica_state = ReplicaState(
            replica_id=self.broker, replica_epoch=self.broker_epoch
        )
        news = [
            FetchPartition(
                partition=partition,
                fetch_offset=offset,
                current_leader_epoch=epoch,
                log_start_offset=0,
                partition_max_bytes=1 << 20,
            )
            for partition, (offset, epoch) in wanted.items()
            if self.said.get(partition) != (offset, epoch)
        ]
        gone = sorted(set(self.said) - set(wanted))
        request.topics = [FetchTopic(topic="t", topic_id=TOPIC_ID, partitions=news)] if news else []
        request.forgotten_topics_data = (
            [ForgottenTopic(topic="t", topic_id=TOPIC_ID, partitions=gone)] if gone else []
        )
        self.said = dict(wanted)
        self.waiting = self.api.ask(fetch, FetchResponse, request, VERSION)
        self.take()

    def take(self) -> bool:
        """Takes the answer in, if it is there."""
        if not self.waiting:
            return False
        (answer,) = self.waiting
        self.waiting = None
        for topic in answer.responses:
            topic.partitions.sort(
                key=lambda data: data.partition_index
            )  # whose turn it is may differ: what was woken comes last
        self.told.append(bytes(encode(answer, VERSION)))
        if answer.error_code or not answer.session_id:
            self.connect()
            return True
        self.session, self.epoch = answer.session_id, self.epoch + 1
        for topic in answer.responses:
            for data in topic.partitions:
                for entry in iterate_batches(data.records or b""):
                    self.positions[data.partition_index] = entry.last_offset + 1
        return True


class World:
    """Broker 1 leads four partitions that 2 and 3 follow."""

    def __init__(self, has_idle: bool) -> None:
        self.has_idle = has_idle
        self.fixture = Fixture()
        self.denied = DenyList()
        self.api = Api(self.fixture, self.denied)
        self.states = {partition: registration(LOCAL, REPLICAS) for partition in range(PARTITIONS)}
        self.fixture.topic(states=self.states)
        self.followers = {broker: Follower(self.api, broker) for broker in (2, 3)}
        self.outcomes: list[str] = []

    def do(self, action: str, *arguments: int) -> None:
        never = patch.object(IdlePartitions, "add", lambda self, result: False)
        if self.has_idle:
            getattr(self, action)(*arguments)
        else:
            with never:
                getattr(self, action)(*arguments)
        self.fixture.controller.asked.sort(
            key=lambda asked: asked[0].topic_partition
        )  # the order within a round may differ
        for follower in self.followers.values():
            follower.take()

    # what may happen
    def produce(self, partition: int, acks: int) -> None:
        outcome = self.fixture.produce(1, acks, TopicPartition("t", partition))
        self.outcomes.append(repr(outcome))

    def produce_all(self) -> None:
        self.outcomes.append(
            repr(
                self.fixture.replicas.produce(
                    [(TopicPartition("t", partition), batch()) for partition in range(PARTITIONS)],
                    1,
                )
            )
        )

    def round(self, broker: int, min_bytes: int) -> None:
        if self.followers[broker].waiting is None:
            self.followers[broker].ask(min_bytes)

    def forget(self, broker: int, partition: int) -> None:
        if self.followers[broker].waiting is None:
            self.followers[broker].ask(1, partition)

    def reconnect(self, broker: int) -> None:
        self.followers[broker].connect()

    def go_back(self, broker: int, partition: int) -> None:
        """Its log lost something: it restarted, and fetches from further back."""
        follower = self.followers[broker]
        follower.connect()
        follower.positions[partition] = max(0, follower.positions[partition] - 1)

    def register_anew(self, broker: int, known: int) -> None:
        """`known`: whether the follower has its new epoch yet, or the leader has (by the image)."""
        follower = self.followers[broker]
        if known:
            follower.broker_epoch += 10
        else:
            registered = self.fixture.image.brokers[broker]._replace(
                epoch=follower.broker_epoch + 5
            )
            self.fixture.publish(brokers={**self.fixture.image.brokers, broker: registered})

    def advance(self, tenths: int) -> None:
        self.fixture.advance(tenths / 10)

    def shrink(self) -> None:
        self.fixture.replicas.shrink_isrs()

    def answer_isr(self, confirm: int) -> None:
        if self.fixture.controller.asked:
            if confirm:
                self.fixture.controller.confirm()
            else:
                self.fixture.controller.refuse(ErrorCode.OPERATION_NOT_ATTEMPTED)

    def news(self, partition: int, leader_epoch: int, without: int) -> None:
        """The controller's word: perhaps a new leader epoch, perhaps a smaller ISR."""
        held = self.fixture.partition(TopicPartition("t", partition))
        isr = [broker for broker in REPLICAS if broker != without]
        epoch = held.leader_epoch + leader_epoch
        self.states[partition] = registration(LOCAL, REPLICAS, isr, epoch, held.partition_epoch + 1)
        self.fixture.topic(states=self.states)
        if leader_epoch:
            for follower in self.followers.values():
                follower.leader_epoch = max(follower.leader_epoch, epoch)

    def delete_records(self, partition: int) -> None:
        (outcome,) = self.fixture.replicas.delete_records([(TopicPartition("t", partition), -1)])
        self.outcomes.append(f"{outcome.error.name} {outcome.low_watermark}")

    def retention(self, partition: int) -> None:
        log = self.fixture.log_manager.logs[TopicPartition("t", partition)]
        if log.increment_log_start_offset(log.high_watermark):
            self.fixture.log_manager.log_start_moved(log)
            self.fixture.advance(0)

    def deny(self, denied: int) -> None:
        self.denied.denied = {("CLUSTER_ACTION", "kafka-cluster")} if denied else set()

    def lose(self, partition: int) -> None:
        self.fixture.partition(TopicPartition("t", partition)).fail("its directory is gone")
        self.fixture.replicas.drain()

    def seen(self) -> object:
        """All that can be told apart."""
        replicas = [
            (
                name,
                broker,
                replica.log_end_offset,
                replica.log_start_offset,
                replica.last_caught_up_ms,
                replica.last_fetch_ms,
                replica.broker_epoch,
            )
            for name, partition in sorted(self.fixture.replicas.partitions.items())
            for broker, replica in sorted(partition.remote_replicas.items())
        ]
        partitions = [
            (repr(partition), partition.log and partition.log.high_watermark)
            for partition in self.fixture.replicas.partitions.values()
        ]
        told = [
            (follower.told, follower.waiting is None, follower.positions)
            for follower in self.followers.values()
        ]
        proposals = [proposal for proposal, _ in self.fixture.controller.asked]
        return replicas, partitions, told, proposals, self.outcomes


PARTITION = st.integers(0, PARTITIONS - 1)
BROKER = st.sampled_from((2, 3))
BIT = st.integers(0, 1)


class IdleOrRead(TwoWorlds):
    """The same steps on two brokers, one of which reads every partition in every round."""

    @initialize()
    def begin(self) -> None:
        self.worlds = [World(True), World(False)]
        self.settle()

    def settle(self) -> None:
        """Everybody fetches until all partitions where nothing happens are idle."""
        for _ in range(3):
            for broker in (2, 3):
                self.do("round", broker, 1)
            self.do("advance", 6)

    @rule(partition=PARTITION, acks=st.sampled_from((1, -1)))
    def produce(self, partition: int, acks: int) -> None:
        self.do("produce", partition, acks)

    @rule()
    def produce_all(self) -> None:
        self.do("produce_all")

    @rule(broker=BROKER, min_bytes=st.sampled_from((1, 1, 1, 150)))
    def round(self, broker: int, min_bytes: int) -> None:
        self.do("round", broker, min_bytes)

    @rule()
    def nothing_happens(self) -> None:
        self.settle()

    @rule(tenths=st.sampled_from((1, 3, 6, 400)))
    def advance(self, tenths: int) -> None:
        self.do("advance", tenths)

    @rule(action=st.sampled_from(("forget", "go_back")), broker=BROKER, partition=PARTITION)
    def of_a_follower(self, action: str, broker: int, partition: int) -> None:
        self.do(action, broker, partition)

    @rule(broker=BROKER)
    def reconnect(self, broker: int) -> None:
        self.do("reconnect", broker)

    @rule(broker=BROKER, known=BIT)
    def register_anew(self, broker: int, known: int) -> None:
        self.do("register_anew", broker, known)

    @rule(partition=PARTITION, leader_epoch=BIT, without=st.sampled_from((0, 2, 3)))
    def news(self, partition: int, leader_epoch: int, without: int) -> None:
        self.do("news", partition, leader_epoch, without)

    @rule(action=st.sampled_from(("delete_records", "retention")), partition=PARTITION)
    def log_start(self, action: str, partition: int) -> None:
        self.do(action, partition)

    @rule()
    def shrink(self) -> None:
        self.do("shrink")

    @precondition(lambda self: self.worlds[0].fixture.controller.asked)
    @rule(confirm=BIT)
    def answer_isr(self, confirm: int) -> None:
        self.do("answer_isr", confirm)

    @rule(denied=BIT)
    def deny(self, denied: int) -> None:
        self.do("deny", denied)

    @rule(partition=st.just(PARTITIONS - 1))
    def lose(self, partition: int) -> None:
        self.do("lose", partition)


IdleOrRead.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIdlePartitions = IdleOrRead.TestCase


def test_a_follower_that_registered_again_while_it_waited_is_refused_either_way():
    """KIP-903: its wait is over, and what it read first is not its answer any more."""
    machine = IdleOrRead()
    machine.begin()
    machine.of_a_follower("forget", broker=2, partition=1)
    machine.register_anew(broker=2, known=0)
    machine.news(leader_epoch=0, partition=0, without=0)
    machine.nothing_happens()
    machine.nobody_can_tell()


def idle_in(world: World) -> int:
    partitions = world.fixture.replicas.partitions.values()
    return sum(len(idle_reads(partition)) for partition in partitions)


def settled() -> World:
    world = World(True)
    for _ in range(3):
        for broker in (2, 3):
            world.do("round", broker, 1)
        world.do("advance", 6)
    return world


def test_partitions_without_news_are_idle_and_not_read():
    """RL 5.2, 1.13: a round in which nothing happened looks at no partition; it counts as a
    fetch of each.
    """
    world = settled()
    assert idle_in(world) == 2 * PARTITIONS
    stats = world.fixture.replicas.stats.of("t")
    before = stats.fetches
    with patch.object(ReplicaManager, "fetch", side_effect=AssertionError("read")):
        world.do("round", 2, 1)
        world.do("advance", 6)
    assert len(world.followers[2].told) == 4
    assert stats.fetches == before + PARTITIONS


def turn(world: World) -> None:
    assert isinstance(world.fixture.clock, TurnClock)
    world.fixture.clock.turn()


def turns_of(world: World, broker: int) -> list[int]:
    """Single turns until the follower has its answer: how many partitions are idle before each, and
    at the end.
    """
    follower = world.followers[broker]
    idle = [idle_in(world)]
    while not follower.take():
        assert len(idle) < 50
        turn(world)
        idle.append(idle_in(world))
    return idle


def in_slices(world: World, ask: Callable[[], None]) -> bool:
    """Whether partitions are read one after the other."""
    manager, reads = type(world.fixture.replicas), 0
    fetch_of = manager.fetch

    def noted(self: ReplicaManager, *arguments: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return fetch_of(self, *arguments, **options)

    with patch.object(manager, "fetch", noted):
        ask()
    return reads > 1


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four partitions are many."""
    monkeypatch.setattr("tests.replication.fixtures.Clock", TurnClock)
    monkeypatch.setattr("twisted_broker.api.fetch.SLICE_ELEMENTS", 1)
    monkeypatch.setattr("twisted_broker.api.fetch.LOOK_ELEMENTS", 1)
    monkeypatch.setattr("twisted_broker.replication.fetch_session.FINISHED_PER_STEP", 1)


@pytest.mark.usefixtures("small_steps")
def test_the_partitions_of_a_large_session_become_idle_in_steps() -> None:
    """RL 5.2: in the round in which none is idle yet. What is written between two steps is read in
    the next round, idle already or not.
    """
    world = World(True)
    follower = world.followers[2]
    follower.ask()
    world.fixture.clock.rightNow += 0.6
    turns_of(world, 2)
    assert in_slices(world, follower.ask)
    assert follower.waiting == [] and idle_in(world) == 0
    world.fixture.clock.rightNow += 0.6
    idle = [0]
    while idle[-1] < 2:
        turn(world)
        idle.append(idle_in(world))
    world.fixture.produce(1, 1, TopicPartition("t", 0))
    world.fixture.produce(1, 1, TopicPartition("t", 3))
    assert idle_in(world) == 1 and follower.waiting == []
    idle += turns_of(world, 2)
    assert max(after - before for before, after in pairwise(idle)) == 1
    assert idle[-1] == 2 and not any(follower.positions.values())
    assert not in_slices(world, follower.ask)
    turns_of(world, 2)
    assert follower.positions == {0: 1, 1: 0, 2: 0, 3: 1}


@pytest.mark.usefixtures("small_steps")
def test_a_later_request_ends_the_steps_of_the_one_before() -> None:
    """RL 5.2: on another connection. What is idle by then stays so, the rest is read."""
    world = World(True)
    follower = world.followers[2]
    follower.ask()
    world.fixture.clock.rightNow += 0.6
    turns_of(world, 2)
    follower.ask()
    world.fixture.clock.rightNow += 0.6
    while idle_in(world) < 2:
        turn(world)
    earlier, follower.waiting = follower.waiting, None
    follower.epoch += 1
    follower.ask()
    while not earlier:
        turn(world)
    assert earlier[0].error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert idle_in(world) == 2
    world.fixture.clock.rightNow += 0.6
    assert turns_of(world, 2)[-1] == PARTITIONS


def test_a_waiting_fetch_hears_of_what_was_idle():
    """RL 1.9: an append to an idle partition answers the fetch that waits, and that partition
    only is read then.
    """
    world = settled()
    world.do("round", 2, 1)
    world.do("produce", 1, 1)
    assert world.followers[2].positions == {0: 0, 1: 1, 2: 0, 3: 0}
    assert idle_in(world) == 2 * (PARTITIONS - 1)


def test_a_waiting_fetch_reads_all_that_one_request_appended():
    """RL 1.9: all that was idle in one answer, as if it had been read in every round: one round
    of replication, not two.
    """
    world = settled()
    world.do("round", 2, 1)
    world.do("produce_all")
    assert world.followers[2].positions == dict.fromkeys(range(PARTITIONS), 1)


def test_a_woken_partition_goes_on_being_waited_for():
    """RL 1.9: too little for `min_bytes` at first, enough with the second append."""
    world = settled()
    world.do("round", 2, len(batch()) + 1)
    world.do("produce", 1, 1)
    assert world.followers[2].waiting == []
    world.do("produce", 1, 1)
    assert world.followers[2].positions[1] == 2


def test_who_is_idle_is_caught_up_as_of_its_sessions_last_round():
    """RL 1.10, 2.4: nobody leaves the ISR for being idle; who stopped asking is behind since its
    last round.
    """
    world = settled()
    two, three = (world.fixture.partition().remote_replicas[broker] for broker in (2, 3))
    last_ms = three.last_fetch_ms
    for _ in range(40):
        world.do("round", 2, 1)
        world.do("advance", 10)
    assert idle_in(world) == 2 * PARTITIONS
    world.do("produce", 0, 1)
    assert (three.last_caught_up_ms, three.last_fetch_ms) == (last_ms, last_ms)
    assert two.last_caught_up_ms == two.last_fetch_ms == world.fixture.runtime.now_ms() - 1000
    world.do("shrink")
    assert [broker for broker, _ in world.fixture.controller.asked[0][0].members] == [1, 2]


def test_a_session_that_is_dropped_listens_no_more():
    """RL 5.2: nothing of it is left at the partitions."""
    world = settled()
    session = world.followers[2].session
    world.fixture.replicas.sessions.remove(session)
    assert idle_in(world) == PARTITIONS


def test_a_request_that_outlives_its_session_leaves_nothing_idle():
    """RL 5.2: its session was evicted while it waited, and its follower never came back."""
    world = settled()
    world.do("round", 2, 1)
    world.fixture.replicas.sessions.remove(world.followers[2].session)
    world.do("advance", 6)
    assert len(world.followers[2].told) == 4
    assert idle_in(world) == PARTITIONS
    assert not world.fixture.partition().remote_replicas[2].shares_round


def test_what_was_woken_belongs_to_the_last_request_of_a_session():
    """RL 1.9, 5.2: an earlier one still waits on another connection; it is refused, and takes
    nothing away.
    """
    world = settled()
    world.do("round", 2, 1)
    follower = world.followers[2]
    earlier, follower.waiting = follower.waiting, None
    follower.epoch += 1
    world.do("advance", 2)
    world.do("round", 2, 1)
    partition = world.fixture.partition()
    partition.emit(partition.high_watermark_advanced)
    world.fixture.replicas.drain()
    world.do("advance", 6)
    assert [answer.error_code for answer in earlier] == [ErrorCode.INVALID_FETCH_SESSION_EPOCH]
    assert follower.waiting is None


def test_the_rounds_of_a_session_count_for_one_follower_only():
    """RL 1.10: another broker uses it, and neither names an epoch."""
    world = settled()
    follower = world.followers[2]
    follower.broker_epoch = -1
    world.do("round", 2, 1)
    world.do("advance", 6)
    follower.broker = 3
    two = world.fixture.partition().remote_replicas[2]
    last_ms = two.last_fetch_ms
    world.do("advance", 6)
    world.do("round", 2, 1)
    assert two.last_fetch_ms == last_ms


def test_a_follower_that_is_gone_keeps_no_deleted_partition():
    """RL 1.5: its session stays in the cache, the partitions it asked for do not stay in memory."""
    world = settled()
    world.fixture.remove_topic()
    gc.collect()
    assert len(world.fixture.replicas.sessions) == 2
    assert not [
        each
        for each in gc.get_objects()
        if isinstance(each, Partition) and each.brokers is world.fixture.replicas._brokers
    ]


def test_an_old_session_that_is_answered_late_does_not_count_for_its_follower():
    """RL 1.10: the follower reconnected, and its old request still waits: what is idle then is idle
    in the new session.
    """
    world = settled()
    world.do("round", 2, 1)
    world.do("reconnect", 2)
    world.do("round", 2, 1)
    world.do("produce", 3, 1)
    for _ in range(3):
        world.do("round", 2, 1)
        world.do("advance", 6)
    world.do("round", 2, 1)
    assert (
        world.fixture.partition().remote_replicas[2].last_caught_up_ms
        == world.fixture.runtime.now_ms()
    )


def test_explain_shows_a_fetch_that_waits_while_its_partition_is_idle():
    """Explain: what each delayed request waits for."""
    world = settled()
    world.do("round", 2, 1)
    view = BrokerView(lambda: world.api.parts)
    (waiting,) = view.explanation(world.fixture.partition(), view.now()).waiting
    assert (waiting.broker, waiting.needs, waiting.has) == (2, 1, 0)


def test_a_round_of_idle_partitions_is_refused_when_its_follower_registered_again() -> None:
    """Also when all of them are idle, so that nothing was read when the round began."""
    machine = IdleOrRead()
    machine.begin()
    machine.round(broker=2, min_bytes=1)
    machine.register_anew(broker=2, known=0)
    machine.advance(6)
    machine.nobody_can_tell()
