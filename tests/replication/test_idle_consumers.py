"""The idle partitions of a consumer's session (RL 1.9, 5.2): nobody but a profiler can tell them
from those that are read in every fetch.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.api.data_plane import Api, DenyList
from tests.replication.fixtures import LOCAL, TOPIC_ID, Fixture, at, batch, follower, registration
from tests.replication.idle_worlds import TwoWorlds
from tests.replication.test_idle_partitions import VERSION, Follower, TurnClock
from twisted_broker.api.fetch import fetch
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import EndMarker
from twisted_broker.replication.idle_partitions import IdlePartitions, idle_reads
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from twisted_broker.wire.records import iterate_batches
from twisted_broker.wire.schema import encode

PARTITIONS = 4
COMMITTED = 1


class Consumer:
    """It reads all partitions of the topic over one session at a time."""

    def __init__(self, api: Api, isolation: int, rack: str = "") -> None:
        self.api, self.isolation, self.rack = api, isolation, rack
        self.topic_id, self.leader_epoch = TOPIC_ID, -1
        self.max_bytes = 10 << 20
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.told: list[bytes] = []
        self.errors: list[int] = []
        self.connect()

    def connect(self) -> None:
        self.session = self.epoch = 0
        self.said: dict[int, tuple[int, int]] = {}
        self.waiting: list | None = None

    def ask(self, min_bytes: int = 1, forget: int | None = None) -> None:
        wanted = {
            partition: (offset, self.leader_epoch)
            for partition, offset in self.positions.items()
            if partition != forget
        }
        news = [
            FetchPartition(
                partition=partition,
                fetch_offset=offset,
                current_leader_epoch=epoch,
                partition_max_bytes=1 << 20,
            )
            for partition, (offset, epoch) in wanted.items()
            if self.said.get(partition) != (offset, epoch)
        ]
        gone = sorted(set(self.said) - set(wanted))
        named = FetchTopic(topic="t", topic_id=self.topic_id, partitions=news)
        forgotten = ForgottenTopic(topic="t", topic_id=self.topic_id, partitions=gone)
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=min_bytes,
            max_bytes=self.max_bytes,
            session_id=self.session,
            session_epoch=self.epoch,
            isolation_level=self.isolation,
            rack_id=self.rack,
            topics=[named] if news else [],
            forgotten_topics_data=[forgotten] if gone else [],
        )
        self.said = wanted
        self.waiting = self.api.ask(fetch, FetchResponse, request, VERSION)
        self.take()

    def take(self) -> None:
        if not self.waiting:
            return
        (answer,) = self.waiting
        self.waiting = None
        self.errors = [each.error_code for topic in answer.responses for each in topic.partitions]
        for topic in answer.responses:
            topic.partitions.sort(
                key=lambda data: data.partition_index
            )  # what was woken comes last
        self.told.append(bytes(encode(answer, VERSION)))
        if answer.error_code or not answer.session_id:
            self.connect()
            return
        self.session, self.epoch = answer.session_id, self.epoch + 1
        for topic in answer.responses:
            for data in topic.partitions:
                for entry in iterate_batches(data.records or b""):
                    self.positions[data.partition_index] = entry.last_offset + 1


def tp(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


class World:
    """Broker 1 leads four partitions; 2 follows the last two. Two consumers, of both isolations."""

    def __init__(self, has_idle: bool = True, rack: str = "") -> None:
        self.has_idle = has_idle
        self.fixture = Fixture()
        self.denied = DenyList()
        self.api = Api(self.fixture, self.denied)
        self.epoch = self.partition_epoch = 0
        self.leaders = dict.fromkeys(range(PARTITIONS), LOCAL)
        self.topic_id, self.topics = TOPIC_ID, 1
        self.publish()
        self.follower = Follower(self.api, 2)
        self.consumers = [Consumer(self.api, isolation, rack) for isolation in (0, COMMITTED)]
        self.sequences: dict[int, int] = {}
        self.outcomes: list[str] = []

    def publish(self) -> None:
        self.fixture.topic(
            topic_id=self.topic_id,
            states={
                number: registration(
                    leader, (1, 2) if number > 1 else (1,), None, self.epoch, self.partition_epoch
                )
                for number, leader in self.leaders.items()
            },
        )

    def do(self, action: str, *arguments: int) -> None:
        if self.has_idle:
            getattr(self, action)(*arguments)
        else:
            with patch.object(IdlePartitions, "add", lambda self, result: False):
                getattr(self, action)(*arguments)
        self.follower.take()
        for each in self.consumers:
            each.take()

    # what may happen
    def round(self, who: int, min_bytes: int) -> None:
        if self.consumers[who].waiting is None:
            self.consumers[who].ask(min_bytes)

    def follow(self) -> None:
        if self.follower.waiting is None:
            self.follower.ask()

    def forget(self, who: int, partition: int) -> None:
        if self.consumers[who].waiting is None:
            self.consumers[who].ask(1, partition)

    def reconnect(self, who: int) -> None:
        self.consumers[who].connect()
        self.consumers[who].topic_id = self.topic_id

    def seek(self, who: int, partition: int, offset: int) -> None:
        self.consumers[who].positions[partition] = offset

    def know_epoch(self, who: int) -> None:
        self.consumers[who].leader_epoch = self.epoch

    def isolate(self, who: int) -> None:
        """The session goes on under the other isolation."""
        self.consumers[who].isolation ^= COMMITTED

    def produce(self, partition: int, acks: int) -> None:
        self.outcomes.append(repr(self.fixture.produce(1, acks, tp(partition))))

    def in_transaction(self, partition: int) -> None:
        name, producer = tp(partition), 7 + partition
        sequence = self.sequences.get(partition, 0)
        replicas = self.fixture.replicas
        held = replicas.partitions.get(name)
        if held is None or not held.is_leader:
            return
        guard = replicas.begin_verification(name, producer, 0, sequence, False)
        records = batch(
            producer_id=producer, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
        (outcome,) = replicas.produce([(name, records)], 1, {name: guard})
        if outcome.error is ErrorCode.NONE:
            self.sequences[partition] = sequence + 1
        self.outcomes.append(repr(outcome))

    def end_transaction(self, partition: int, commit: int) -> None:
        marker = EndMarker(7 + partition, 0, 0, bool(commit))
        (outcome,) = self.fixture.replicas.append_end_markers([(tp(partition), marker)])
        self.outcomes.append(repr(outcome))

    def roll(self, partition: int) -> None:
        log = self.fixture.log_manager.logs.get(tp(partition))
        if log is not None and log.failed is None:
            log.roll(0)

    def delete_records(self, partition: int) -> None:
        (outcome,) = self.fixture.replicas.delete_records([(tp(partition), -1)])
        self.outcomes.append(f"{outcome.error.name} {outcome.low_watermark}")

    def news(self, partition: int, leader: int, epochs: int) -> None:
        """The controller's word: perhaps another leader, perhaps a new epoch."""
        if partition < 2:
            leader = LOCAL  # the only replica
        self.epoch += epochs or leader != self.leaders[partition]
        self.partition_epoch += 1
        self.leaders[partition] = leader
        self.follower.leader_epoch = self.epoch
        self.publish()

    def deny(self, denied: int) -> None:
        self.denied.denied = {("READ", "t")} if denied else set()

    def lose(self, partition: int) -> None:
        held = self.fixture.replicas.partitions.get(tp(partition))
        if held is not None:
            held.fail("its directory is gone")
            self.fixture.replicas.drain()

    def make_anew(self, between: int) -> None:
        """Another topic of the name; `between`: there is none for a while."""
        self.fixture.remove_topic()
        if between:
            self.fixture.advance(0.6)
        self.topics += 1
        self.topic_id = bytes([self.topics]) * 16
        self.epoch, self.sequences = 0, {}
        self.leaders = dict.fromkeys(range(PARTITIONS), LOCAL)
        self.publish()

    def advance(self, tenths: int) -> None:
        self.fixture.advance(tenths / 10)

    def seen(self) -> object:
        """All that can be told apart."""
        told = [(each.told, each.waiting is None, each.positions) for each in self.consumers]
        return told, self.follower.told, self.outcomes, len(self.fixture.replicas.sessions)

    def idle(self) -> int:
        held = self.fixture.replicas.partitions.values()
        return sum(len(idle_reads(partition)) for partition in held)


PARTITION = st.integers(0, PARTITIONS - 1)
WHO = BIT = st.integers(0, 1)


class IdleOrRead(TwoWorlds):
    """The same steps on two brokers, one of which reads every partition in every fetch."""

    @initialize()
    def begin(self) -> None:
        self.worlds = [World(True), World(False)]
        self.settle()

    def settle(self) -> None:
        for _ in range(3):
            self.do("follow")
            for who in (0, 1):
                self.do("round", who, 1)
            self.do("advance", 6)

    @rule(who=WHO, min_bytes=st.sampled_from((1, 1, 1, 150)))
    def round(self, who: int, min_bytes: int) -> None:
        self.do("round", who, min_bytes)

    @rule()
    def nothing_happens(self) -> None:
        self.settle()

    @rule()
    def follow(self) -> None:
        self.do("follow")

    @rule(partition=PARTITION, acks=st.sampled_from((1, -1)))
    def produce(self, partition: int, acks: int) -> None:
        self.do("produce", partition, acks)

    @rule(partition=PARTITION)
    def in_transaction(self, partition: int) -> None:
        self.do("in_transaction", partition)

    @rule(partition=PARTITION, commit=BIT)
    def end_transaction(self, partition: int, commit: int) -> None:
        self.do("end_transaction", partition, commit)

    @rule(action=st.sampled_from(("roll", "delete_records")), partition=PARTITION)
    def of_a_log(self, action: str, partition: int) -> None:
        self.do(action, partition)

    @rule(who=WHO, partition=PARTITION)
    def forget(self, who: int, partition: int) -> None:
        self.do("forget", who, partition)

    @rule(who=WHO, partition=PARTITION, offset=st.integers(0, 4))
    def seek(self, who: int, partition: int, offset: int) -> None:
        self.do("seek", who, partition, offset)

    @rule(action=st.sampled_from(("reconnect", "know_epoch", "isolate")), who=WHO)
    def of_a_consumer(self, action: str, who: int) -> None:
        self.do(action, who)

    @rule(partition=PARTITION, leader=st.sampled_from((LOCAL, LOCAL, 2)), epochs=BIT)
    def news(self, partition: int, leader: int, epochs: int) -> None:
        self.do("news", partition, leader, epochs)

    @rule(denied=BIT)
    def deny(self, denied: int) -> None:
        self.do("deny", denied)

    @rule(partition=st.just(PARTITIONS - 1))
    def lose(self, partition: int) -> None:
        self.do("lose", partition)

    @rule(between=BIT)
    def make_anew(self, between: int) -> None:
        self.do("make_anew", between)

    @rule(tenths=st.sampled_from((1, 3, 6)))
    def advance(self, tenths: int) -> None:
        self.do("advance", tenths)


IdleOrRead.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIdleConsumers = IdleOrRead.TestCase


def settled(rack: str = "") -> World:
    world = World(rack=rack)
    for _ in range(3):
        for who in (0, 1):
            world.do("round", who, 1)
        world.do("advance", 6)
    return world


def test_a_fetch_in_which_nothing_happened_looks_at_no_partition() -> None:
    """Neither for the permission, nor the read, nor the answer; it waits its time out."""
    world = settled()
    assert world.idle() == 2 * PARTITIONS
    world.denied.asked.clear()
    with (
        patch.object(ReplicaManager, "fetch", side_effect=AssertionError("read")),
        patch.object(IdlePartitions, "add", side_effect=AssertionError("looked at")),
    ):
        world.do("round", 0, 1)
        assert world.consumers[0].waiting == []
        world.do("advance", 6)
    assert world.consumers[0].waiting is None and world.consumers[0].errors == []
    assert not world.denied.asked


def test_a_waiting_fetch_reads_what_was_written_only() -> None:
    world = settled()
    world.do("round", 0, 1)
    looked: list[int] = []
    read = ReplicaManager.fetch

    def counted(self, params, requests, *more, **named):
        looked.append(len(requests))
        return read(self, params, requests, *more, **named)

    with patch.object(ReplicaManager, "fetch", counted):
        world.do("produce", 1, 1)
    assert looked == [1] and world.consumers[0].positions[1] == 1


def test_a_consumer_that_may_be_sent_to_its_rack_has_nothing_idle() -> None:
    world = World(rack="a")
    world.fixture.replicas.reads_nearby = True
    for _ in range(3):
        world.do("round", 0, 1)
        world.do("advance", 6)
    assert world.idle() == 0


def test_what_changed_its_acls_is_asked_for_permission_again() -> None:
    world = settled()
    world.do("deny", 1)
    world.do("round", 0, 1)
    assert world.consumers[0].errors == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * PARTITIONS


def test_under_another_isolation_all_is_read_again() -> None:
    """What is idle at the last stable offset is not at the high watermark."""
    world = World()
    world.do("in_transaction", 0)
    for _ in range(3):
        world.do("round", 1, 1)
        world.do("advance", 6)
    assert world.idle() == PARTITIONS and world.consumers[1].positions[0] == 0
    world.do("isolate", 1)
    world.do("round", 1, 1)
    assert world.consumers[1].positions[0] == 1


def test_what_found_no_room_in_the_answer_is_not_idle() -> None:
    """Its read gave nothing for want of bytes: the next one gives it its turn."""
    world = settled()
    consumer = world.consumers[0]
    for partition in (0, 1):
        world.do("produce", partition, 1)
    consumer.max_bytes = 1
    world.do("round", 0, 1)
    assert sorted(consumer.positions.values()) == [0, 0, 0, 1]
    world.do("round", 0, 1)
    assert sorted(consumer.positions.values()) == [0, 0, 1, 1]


def test_what_is_woken_while_others_are_read_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pause of a long read: by an append that is not committed yet. The fetch begins to wait
    after that, and hears of the high watermark.
    """
    monkeypatch.setattr("tests.replication.fixtures.Clock", TurnClock)
    world = World()
    consumer, clock = world.consumers[0], world.fixture.clock
    assert isinstance(clock, TurnClock)
    for _ in range(3):
        consumer.ask()
        while consumer.waiting is not None:
            clock.rightNow += 0.6
            clock.turn()
            consumer.take()
    assert world.idle() == PARTITIONS
    for name in ("LOOK_ELEMENTS", "SLICE_ELEMENTS"):
        monkeypatch.setattr(f"twisted_broker.api.fetch.{name}", 1)
        monkeypatch.setattr(f"twisted_broker.api.context.{name}", 1)
    for partition in (0, 1):  # requested anew, so not idle
        del consumer.said[partition]
    consumer.ask()
    while world.idle() > 2:
        clock.turn()
    assert world.fixture.replicas.fetch_purgatory.waiting == 0
    world.fixture.produce(1, 1, tp(2))
    for _ in range(9):
        clock.turn()
        consumer.take()
    assert consumer.waiting is not None and world.idle() == 1
    assert world.fixture.replicas.fetch_purgatory.waiting == 1
    world.fixture.replicas.fetch(follower(2), [at(1, tp(2))])
    for _ in range(9):
        clock.turn()
    consumer.take()
    assert consumer.positions[2] == 1


def test_very_many_that_are_woken_are_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was idle as the fetch began to wait is no reason to read all of it in one turn."""
    monkeypatch.setattr("tests.replication.fixtures.Clock", TurnClock)
    world = World()
    consumer, clock = world.consumers[0], world.fixture.clock
    assert isinstance(clock, TurnClock)
    for _ in range(3):
        consumer.ask()
        while consumer.waiting is not None:
            clock.rightNow += 0.6
            clock.turn()
            consumer.take()
    assert world.idle() == PARTITIONS
    monkeypatch.setattr("twisted_broker.api.fetch.LOOK_ELEMENTS", 1)
    monkeypatch.setattr("twisted_broker.api.context.LOOK_ELEMENTS", 1)
    monkeypatch.setattr("twisted_broker.api.context.SLICE_ELEMENTS", 1)
    consumer.ask()
    looked: list[int] = []
    read = ReplicaManager.fetch

    def counted(self, params, requests, *more, **named):
        looked.append(len(requests))
        return read(self, params, requests, *more, **named)

    with patch.object(ReplicaManager, "fetch", counted):
        world.fixture.replicas.produce([(tp(number), batch()) for number in range(3)], 1)
        assert sum(looked) < 3
        for _ in range(20):
            clock.turn()
            consumer.take()
    assert looked == [1, 1, 1]
    assert consumer.positions == {0: 1, 1: 1, 2: 0, 3: 0}
