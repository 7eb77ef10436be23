"""The coordinator on a real ReplicaManager, on the in-memory disk."""

from dataclasses import replace

import pytest
from twisted.internet.defer import Deferred, succeed

from tests.coordinator.test_group_coordinator import now, waiting
from tests.replication.fixtures import Fixture, at, follower, registration
from twisted_broker.coordinator.coordinator_context import AppendUndecided
from twisted_broker.coordinator.coordinator_publisher import build_group_coordinator
from twisted_broker.coordinator.group_coordinator import GroupCoordinator
from twisted_broker.coordinator.group_offsets import OFFSETS_PER_STEP
from twisted_broker.coordinator.group_records import ProducerIdAndEpoch, partition_for
from twisted_broker.coordinator.offset_metadata_manager import (
    CommitAnswer,
    CommitRequest,
    OffsetToCommit,
)
from twisted_broker.coordinator.offsets_store import ReplicaOffsetsStore
from twisted_broker.image.metadata_image import MetadataDelta
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.verification import Guard
from twisted_broker.replication.purgatory.delayed_operations import AppendOutcome
from twisted_broker.topic_names import OFFSETS_TOPIC
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.schema import run_whole

OFFSETS_ID, COUNT = b"O" * 16, 4
INDEX = partition_for("g", COUNT)
PLACE = TopicPartition(OFFSETS_TOPIC, INDEX)


class Broker(Fixture):
    """A broker that leads `__consumer_offsets` with the given replicas."""

    def __init__(self, **settings: str) -> None:
        super().__init__(**settings)
        self.subscribers: list = []
        self.groups: GroupCoordinator = build_group_coordinator(
            self.runtime,
            self.config,
            self.replicas,
            self,
            lambda request: Deferred(),
            Turns(self.runtime.clock),
        )

    def subscribe(self, subscriber) -> None:
        self.subscribers.append(subscriber)

    def publish(self, **changes) -> None:
        before = self.image
        super().publish(**changes)
        for subscriber in self.subscribers:
            subscriber(MetadataDelta.between(before, self.image))

    def offsets_topic(
        self, leader: int = 1, replicas=(1,), leader_epoch: int = 0, overrides=None, isr=None
    ) -> None:
        states = {i: registration(leader, replicas, isr, leader_epoch) for i in range(COUNT)}
        self.topic(OFFSETS_TOPIC, states, OFFSETS_ID, overrides)
        self.advance(0)

    def commit(self, offset: int):
        return self.groups.commit(CommitRequest("g", offsets=(OffsetToCommit("t", 0, offset),)))

    def fetched(self) -> list[int]:
        wanted = [(*each, bytes(16)) for each in run_whole(self.groups.committed_partitions("g"))]
        return [f.committed.offset for f in self.groups.fetch_offsets("g", wanted) if f.committed]

    def settled(self) -> list:
        """As a client sees it that wants stable offsets only."""
        (found,) = self.groups.fetch_offsets("g", [("t", 0, bytes(16))], require_stable=True)
        return [found.error or (found.committed and found.committed.offset)]


def refusal(call, *arguments) -> E:
    try:
        call(*arguments)
    except BrokerError as error:
        return error.code
    return E.NONE


def test_a_lone_broker_serves_a_group_at_once():
    """Leadership of an empty partition is service in the same turn; a commit is answered without
    one more.
    """
    broker = Broker()
    assert refusal(broker.fetched) is E.NOT_COORDINATOR
    broker.offsets_topic()
    assert now(broker.commit(5)) == {("t", 0): E.NONE} and broker.fetched() == [5]


def test_how_large_a_batch_may_be_is_the_topics_own():
    """max.message.bytes of the topic, else of the broker."""
    broker = Broker()
    broker.offsets_topic(overrides={"max.message.bytes": "5000"})
    store = ReplicaOffsetsStore(broker.replicas, broker, broker.config)
    assert store.most_bytes(INDEX) == 5000
    assert refusal(store.most_bytes, COUNT) is E.UNKNOWN_TOPIC_OR_PARTITION


def test_clients_cannot_write_what_the_coordinator_writes():
    """Only records of the coordinator's origin reach the internal topic."""
    broker = Broker()
    broker.offsets_topic()
    assert broker.produce(tp=PLACE).error is E.INVALID_TOPIC_EXCEPTION
    now(broker.commit(5))
    assert broker.partition(PLACE).log.log_end_offset == 1


def test_a_commit_waits_for_all_in_sync_replicas():
    """Seen and answered only when the followers have it; refused after
    offsets.commit.timeout.ms.
    """
    broker = Broker()
    broker.offsets_topic(replicas=(1, 2))
    answer = broker.commit(5)
    broker.advance(1)
    assert waiting(answer) and broker.fetched() == []
    for each in broker.replicas.fetch(follower(2), [at(1, PLACE)]):
        each.release()
    broker.advance(0)
    assert now(answer) == {("t", 0): E.NONE} and broker.fetched() == [5]
    late = broker.commit(6)
    broker.advance(5.1)
    assert (
        now(late) == {("t", 0): E.COORDINATOR_NOT_AVAILABLE}
        and broker.fetched() == [5]
        and broker.replicas.produce_purgatory.waiting == 1
    )


def replicated(broker: Broker, offset: int) -> None:
    """The follower fetches from `offset` on, which says that it has all before it."""
    for each in broker.replicas.fetch(follower(2), [at(offset, PLACE)]):
        each.release()
    broker.advance(0)


def test_what_timed_out_counts_when_it_is_replicated():
    """Its record is in the log: a later leader would tell it, so this one does, as soon as it is
    stored; until then it is on its way.
    """
    broker = Broker()
    broker.offsets_topic(replicas=(1, 2))
    late = broker.commit(6)
    broker.advance(5.1)
    assert now(late) == {("t", 0): E.COORDINATOR_NOT_AVAILABLE} and broker.fetched() == []
    assert [f.error for f in broker.groups.fetch_offsets("g", [("t", 0, bytes(16))], True)] == [
        E.UNSTABLE_OFFSET_COMMIT
    ]
    replicated(broker, 1)
    assert broker.fetched() == [6]
    assert [f.error for f in broker.groups.fetch_offsets("g", [("t", 0, bytes(16))], True)] == [
        E.NONE
    ]


def test_a_deletion_counts_that_is_stored_with_an_older_commit_that_timed_out():
    """The wait for what timed out began again, behind that for the tombstone: the log decides which
    is the later one, for this coordinator as for the next.
    """
    broker = Broker()
    broker.offsets_topic(replicas=(1, 2))
    late = broker.commit(6)
    broker.advance(3)
    deleted = broker.groups.delete_offsets("g", [("t", 0)])
    broker.advance(2.5)
    assert now(late) == {("t", 0): E.COORDINATOR_NOT_AVAILABLE} and waiting(deleted)
    replicated(broker, 2)
    assert now(deleted) == {("t", 0): E.NONE} and broker.fetched() == []


def test_what_timed_out_is_no_more_when_leadership_goes():
    """Another leader may cut it: nothing is left waiting for it, and the next load tells what
    became of it.
    """
    broker = Broker()
    broker.offsets_topic(replicas=(1, 2))
    late = broker.commit(6)
    broker.advance(5.1)
    assert now(late) == {("t", 0): E.COORDINATOR_NOT_AVAILABLE}
    broker.offsets_topic(leader=2, replicas=(1, 2), leader_epoch=1)
    assert (
        refusal(broker.fetched) is E.NOT_COORDINATOR
        and not broker.replicas.produce_purgatory.waiting
    )
    broker.offsets_topic(leader=1, replicas=(1, 2), leader_epoch=2)
    replicated(broker, 1)
    assert broker.fetched() == [6]


def test_what_was_read_is_served_when_it_is_committed():
    """Not before: it may be lost with this leader, after answers were made of it (simulation,
    seed 29). Leadership that goes before ends the wait.
    """
    broker = Broker()
    broker.offsets_topic(replicas=(1, 2))
    broker.commit(6)
    for epoch in (1, 3):
        broker.offsets_topic(leader=2, replicas=(1, 2), leader_epoch=epoch)
        assert not broker.replicas.produce_purgatory.waiting
        broker.offsets_topic(leader=1, replicas=(1, 2), leader_epoch=epoch + 1)
        broker.advance(0.5)
        assert refusal(broker.fetched) is E.COORDINATOR_LOAD_IN_PROGRESS
        assert broker.groups.heartbeat("g", "m", None, 1) is E.NONE
        broker.advance(5)
        assert broker.settled() == [E.UNSTABLE_OFFSET_COMMIT]
        assert broker.groups.heartbeat("g", "m", None, 1) is E.NONE
    replicated(broker, 0)
    assert broker.fetched() == []
    replicated(broker, 1)
    assert broker.fetched() == broker.settled() == [6]


def test_what_is_committed_is_read_while_the_isr_is_below_its_minimum():
    """A coordinator that takes over then cannot commit its last records for long: RL 2.3 holds the
    high watermark. Offsets below it are served, a partition with one above it is unstable; nothing
    is written. When the replicas are back all is as in the log.
    """
    broker = Broker()
    broker.offsets_topic(replicas=(1, 2), overrides={"min.insync.replicas": "2"})
    broker.commit(5)
    replicated(broker, 1)
    replicated(broker, 1)
    broker.commit(6)
    broker.offsets_topic(leader=2, replicas=(1, 2), leader_epoch=1)
    broker.offsets_topic(leader=1, replicas=(1, 2), isr=(1,), leader_epoch=2)
    broker.advance(60)
    assert refusal(broker.fetched) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.settled() == [E.UNSTABLE_OFFSET_COMMIT]
    assert refusal(broker.commit, 7) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.partition(PLACE).log.log_end_offset == 2
    broker.offsets_topic(leader=1, replicas=(1, 2), leader_epoch=3)
    replicated(broker, 2)
    broker.advance(0)
    assert broker.fetched() == broker.settled() == [6]


def test_what_is_not_committed_is_forgotten_with_the_leadership():
    """It went with this leader: the next one never had it."""
    broker = Broker()
    broker.offsets_topic(replicas=(1, 2), overrides={"min.insync.replicas": "2"})
    broker.commit(5)
    replicated(broker, 1)
    replicated(broker, 1)
    broker.commit(6)
    broker.offsets_topic(leader=2, replicas=(1, 2), leader_epoch=1)
    broker.offsets_topic(leader=1, replicas=(1, 2), isr=(1,), leader_epoch=2)
    broker.advance(60)
    broker.offsets_topic(leader=2, replicas=(1, 2), leader_epoch=3)
    assert refusal(broker.fetched) is E.NOT_COORDINATOR
    broker.partition(PLACE).log.truncate_to(1)
    broker.offsets_topic(leader=1, replicas=(1, 2), isr=(1,), leader_epoch=4)
    broker.advance(0)
    assert broker.fetched() == broker.settled() == [5]


class ShrinkingReplicas:
    """A ReplicaManager whose ISR is too small when the high watermark passes."""

    def append(self, batches, acks, origin, guards):
        return [AppendOutcome(tp, E.NONE, 7, 7) for tp, _ in batches]

    def wait_for_replicas(self, outcomes, timeout_ms):
        outcomes[0].error = E.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return succeed(None)


def test_a_commit_that_the_isr_shrank_under_is_stored():
    """Refused, yet its record is behind the high watermark: the outcome is known at once."""
    store = ReplicaOffsetsStore(ShrinkingReplicas(), None, None)
    refused = store.append(0, b"", 1000)
    with pytest.raises(AppendUndecided, match="NOT_ENOUGH_REPLICAS_AFTER_APPEND") as raised:
        now(refused)
    assert now(raised.value.outcome()) == 7


def test_a_commit_needs_the_minimum_isr():
    """Too few replicas: COORDINATOR_NOT_AVAILABLE and nothing committed."""
    broker = Broker()
    broker.offsets_topic(replicas=(1, 2), isr=(1,), overrides={"min.insync.replicas": "2"})
    assert (
        now(broker.commit(5)) == {("t", 0): E.COORDINATOR_NOT_AVAILABLE} and broker.fetched() == []
    )


def test_leadership_goes_and_comes_back():
    """The next leader epoch reads the log anew; between the two nothing is served."""
    broker = Broker()
    broker.offsets_topic()
    now(broker.commit(5))
    broker.offsets_topic(leader=2, replicas=(1, 2), leader_epoch=1)
    assert refusal(broker.fetched) is E.NOT_COORDINATOR
    broker.offsets_topic(leader=1, replicas=(1, 2), leader_epoch=2)
    assert broker.fetched() == [5]


def test_a_change_that_leaves_the_leader_is_no_news():
    """A rise of the partition epoch alone does not read the log again."""
    broker = Broker()
    broker.offsets_topic()
    now(broker.commit(5))
    shard = broker.groups.runtime.shards[INDEX]
    broker.offsets_topic(replicas=(1, 2))
    assert broker.groups.runtime.shards[INDEX] is shard


def test_reading_is_not_part_of_taking_over_a_role():
    """A log with records is read in turns of its own, one partition after the other."""
    broker = Broker()
    broker.offsets_topic()
    now(broker.commit(5))
    broker.offsets_topic(leader=2, replicas=(1, 2), leader_epoch=1)
    broker.topic(
        OFFSETS_TOPIC, {i: registration(1, (1, 2), None, 2) for i in range(COUNT)}, OFFSETS_ID
    )
    assert refusal(broker.fetched) is E.COORDINATOR_LOAD_IN_PROGRESS
    broker.advance(0)
    assert broker.fetched() == [5]


def test_a_deleted_topics_offsets_go():
    """The news of the metadata log reaches the groups."""
    broker = Broker()
    broker.offsets_topic()
    broker.topic("t")
    now(broker.commit(5))
    broker.remove_topic("t")
    assert broker.fetched() == []


def test_a_load_of_many_slices_reads_everything():
    """More than one slice of real segments, rolled in between."""
    broker = Broker()
    broker.offsets_topic()
    log = broker.partition(PLACE).log
    log.update_config(replace(log.config, segment_bytes=20_000))
    for offset in range(2000):
        broker.commit(offset)
    broker.advance(0)
    assert broker.fetched() == [1999] and log.segments.active.base_offset > 1000
    broker.offsets_topic(leader=2, replicas=(1, 2), leader_epoch=1)
    broker.offsets_topic(leader=1, replicas=(1, 2), leader_epoch=2)
    assert broker.fetched() == [1999]


# transactions
def test_a_transaction_through_the_log_of_its_group():
    """Its guard lets it in, its marker ends it there; a late guard, an older producer and an older
    coordinator are refused by the log; the next leader reads what this one has.
    """
    broker = Broker()
    broker.offsets_topic()
    log = broker.partition(PLACE).log
    assert log is not None

    def guard(epoch: int) -> Guard:
        return broker.replicas.begin_verification(PLACE, 7, epoch, -1, True)

    def commit(offset: int, given: Guard, epoch: int = 0) -> dict:
        request = CommitRequest(
            "g", offsets=(OffsetToCommit("t", 0, offset),), producer=ProducerIdAndEpoch(7, epoch)
        )
        answer = now(broker.groups.commit_transactional(request, lambda index: succeed(given)))
        assert isinstance(answer, dict)
        return answer

    def end(epoch: int, coordinator_epoch: int, is_commit: bool) -> E:
        answer = broker.groups.complete_transaction(
            INDEX, 7, epoch, coordinator_epoch, is_commit, 2
        )
        broker.advance(0)
        found = now(answer)
        assert isinstance(found, E)
        return found

    late = guard(0)
    assert commit(5, late) == {("t", 0): E.NONE} and broker.fetched() == []
    assert log.last_stable_offset == 0 and guard(0) is None
    assert end(1, 4, True) is E.NONE and broker.fetched() == [5]
    assert log.last_stable_offset == log.log_end_offset == 2
    assert commit(6, late, 1) == {("t", 0): E.INVALID_TXN_STATE}
    assert commit(6, guard(1), 1) == {("t", 0): E.NONE}
    assert end(1, 4, True) is E.INVALID_PRODUCER_EPOCH
    assert end(2, 3, True) is E.TRANSACTION_COORDINATOR_FENCED
    broker.offsets_topic(leader_epoch=1)
    broker.advance(0)
    assert broker.fetched() == [5]
    assert end(2, 4, False) is E.NONE and broker.fetched() == [5]


def test_a_long_commit_is_refused_behind_the_marker_of_its_transaction():
    """Its transaction was open when it came, so it has no guard; while its batch is built the
    marker of the same epoch is stored. It would begin a transaction that no marker ends.
    """
    broker = Broker()
    broker.offsets_topic()
    log = broker.partition(PLACE).log
    assert log is not None
    producer = ProducerIdAndEpoch(7, 0)

    def commit(partitions: int) -> Deferred[CommitAnswer]:
        def verify(index: int) -> Deferred[Guard]:
            return succeed(broker.replicas.begin_verification(PLACE, 7, 0, -1, False))

        offsets = tuple(OffsetToCommit("t", number, 5) for number in range(partitions))
        return broker.groups.commit_transactional(
            CommitRequest("g", offsets=offsets, producer=producer), verify
        )

    assert now(commit(1)) == {("t", 0): E.NONE}
    many = commit(2 * OFFSETS_PER_STEP)
    marker = broker.groups.complete_transaction(INDEX, 7, 0, 0, True, 1)
    broker.advance(0)
    assert now(marker) is E.NONE
    broker.advance(0)
    assert set(now(many).values()) == {E.INVALID_TXN_STATE}
    assert log.last_stable_offset == log.log_end_offset == 2 and broker.fetched() == [5]
    shard = broker.groups.runtime.shards[INDEX]
    assert not shard.groups["g"].offsets.has_unsettled() and not shard.offsets.open_transactions
