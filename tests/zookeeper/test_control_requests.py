"""LeaderAndIsr, StopReplica and UpdateMetadata: what each does, and what is refused. The cases of
Kafka 3.9's ReplicaManagerTest.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.logger import capturedLogs

from tests.replication.fixtures import TOPIC_ID, TP
from tests.replication.test_replica_manager import parked_produce
from tests.zookeeper.fixtures import BROKER_EPOCH, CONTROLLER_EPOCH, Member, role
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.zookeeper.membership import MIGRATED

NEWER_TOPIC = bytes(reversed(range(16)))


def error(response: messages.LeaderAndIsrResponse) -> int:
    """Of the only partition; the request as a whole was taken."""
    assert response.error_code == ErrorCode.NONE
    ((found,),) = [topic.partition_errors for topic in response.topics]
    return found.error_code


def test_a_leader_and_a_follower() -> None:
    """RL 0.2, 2.1: roles arrive as LeaderAndIsr, and become those of the same Partition; the epoch
    of the controller that decided is kept.
    """
    member = Member()
    assert error(member.lead(role(leader=1))) == 0
    assert member.partition().is_leader and member.partition().isr_state.isr == {1, 2}
    assert member.produce().error is ErrorCode.NONE
    assert error(member.lead(role(leader=2, leader_epoch=2))) == 0
    assert member.partition().leader_id == 2 and not member.partition().is_leader
    assert member.state.controller_epochs[TP] == CONTROLLER_EPOCH


def test_an_older_controller_changes_nothing() -> None:
    """RL 1.3: LeaderAndIsr with an older controller epoch."""
    member = Member()
    refused = member.lead(role(), controller_epoch=CONTROLLER_EPOCH - 1)
    assert refused.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert refused.topics[0].partition_errors[0].error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert TP not in member.replicas.partitions
    assert member.state.controller_epoch == CONTROLLER_EPOCH
    old = {"controller_epoch": CONTROLLER_EPOCH - 1}
    assert member.stop(-2, True, **old).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert member.update([], live=(), **old).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert set(member.state.image.brokers) == {1, 2, 3}


def test_a_new_controller_is_noted() -> None:
    """RL 1.1: `controller_epoch`; whose controller's epoch came last counts from then on."""
    member = Member()
    member.lead(role(), controller_epoch=CONTROLLER_EPOCH + 1, controller_id=3)
    assert (member.state.controller_epoch, member.state.controller_id) == (CONTROLLER_EPOCH + 1, 3)
    assert member.state.leader_address == ("127.0.0.1", 9093)
    assert member.stop(-2, True).error_code == ErrorCode.STALE_CONTROLLER_EPOCH


def test_what_was_meant_for_an_earlier_registration() -> None:
    member = Member()
    for answer in (
        member.lead(role(), broker_epoch=BROKER_EPOCH - 1),
        member.stop(-2, True, broker_epoch=BROKER_EPOCH - 1),
        member.update([], broker_epoch=BROKER_EPOCH - 1),
    ):
        assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
    # The controller may see our node before we do; 2.0 did not name it.
    for epoch in (BROKER_EPOCH + 1, -1):
        assert member.update([], broker_epoch=epoch).error_code == 0


@pytest.mark.parametrize("leader_epoch", [1, 2])
def test_a_stale_leader_epoch(leader_epoch: int) -> None:
    """RL 1.3: a stale leader epoch answers STALE_CONTROLLER_EPOCH; an equal one is stale."""
    member = Member()
    member.lead(role(leader_epoch=2))
    stale = member.lead(role(leader=2, leader_epoch=leader_epoch))
    assert error(stale) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert member.partition().is_leader and member.partition().leader_epoch == 2


def test_a_partition_that_is_not_assigned_here() -> None:
    """RL 1.3: a partition not assigned here UNKNOWN_TOPIC_OR_PARTITION."""
    member = Member()
    answer = member.lead(role(leader=2, replicas=(2, 3)))
    assert error(answer) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert TP not in member.replicas.partitions


def test_another_topic_of_that_name() -> None:
    member = Member()
    member.lead(role())
    other = member.lead(role(leader_epoch=9), topic_id=NEWER_TOPIC)
    assert error(other) == ErrorCode.INCONSISTENT_TOPIC_ID
    assert member.partition().topic_id == TOPIC_ID and member.partition().leader_epoch == 1


def test_an_offline_directory() -> None:
    """RL 1.3: an offline directory KAFKA_STORAGE_ERROR; also when opening it fails just now."""
    member = Member()
    member.log_manager.broken[TP] = LogDirFailure("/data", OSError(5, "I/O"))
    assert error(member.lead(role())) == ErrorCode.KAFKA_STORAGE_ERROR
    assert error(member.lead(role(leader_epoch=2))) == ErrorCode.KAFKA_STORAGE_ERROR


def test_one_partitions_error_touches_no_other() -> None:
    member = Member()
    answer = member.lead(
        role(leader=2, replicas=(2, 3)), role(partition_index=1), role(partition_index=2, leader=3)
    )
    assert [each.error_code for each in answer.topics[0].partition_errors] == [3, 0, 0]
    assert member.partition(TopicPartition("t", 1)).is_leader
    assert member.partition(TopicPartition("t", 2)).leader_id == 3


def test_topics_without_ids() -> None:
    """Inter-broker protocol 2.6: version 4 names topics, and two of them do not mix."""
    member = Member()
    answer = member.lead(role(), version=4, topic_id=bytes(16))
    assert [(each.topic_name, each.error_code) for each in answer.partition_errors] == [("t", 0)]
    assert not answer.topics
    assert member.log_manager.logs[TP].topic_id is None
    assert member.produce().error is ErrorCode.NONE
    assert member.stop(-2, True).partition_errors[0].error_code == 0
    assert member.log_manager.deleted == [TP]


@pytest.mark.parametrize("leader", [1, 2])
@pytest.mark.parametrize("leader_epoch", [1, 2])
def test_a_topic_gets_its_id(
    leader: int, leader_epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster's inter-broker protocol was raised: its controller says ids, under the leader
    epochs that are held or under new ones; who fetches by id is served, and ours fetches by it.
    """
    fetched: list[tuple[TopicPartition, bytes]] = []
    monkeypatch.setattr(
        ReplicaManager,
        "start_fetching",
        lambda self, found: fetched.extend((each.topic_partition, each.topic_id) for each in found),
    )
    member = Member()
    member.lead(role(leader=leader), version=4, topic_id=bytes(16))
    before = member.partition().partition_epoch
    told = member.lead(
        role(leader=leader, leader_epoch=leader_epoch, partition_epoch=leader_epoch + 5)
    )
    assert error(told) == 0
    partition = member.partition()
    assert (partition.topic_id, partition.log.topic_id) == (TOPIC_ID, TOPIC_ID)
    assert (partition.leader_epoch, partition.is_leader) == (leader_epoch, leader == 1)
    assert partition.partition_epoch == (before if leader_epoch == 1 else 7), "nothing else"
    assert fetched == ([(TP, bytes(16)), (TP, TOPIC_ID)] if leader == 2 else [])
    again = member.lead(role(leader=leader, leader_epoch=leader_epoch))
    assert error(again) == ErrorCode.STALE_CONTROLLER_EPOCH
    other = member.lead(role(leader_epoch=9), topic_id=NEWER_TOPIC)
    assert error(other) == ErrorCode.INCONSISTENT_TOPIC_ID


@pytest.mark.parametrize("topic_id", [bytes(16), TOPIC_ID])
def test_a_role_waits_for_descriptors(topic_id: bytes) -> None:
    """No file can be opened for now: the role is taken when one can, also of a topic without id."""
    member = Member()
    member.log_manager.broken[TP] = OutOfDescriptors("/data/t-0", OSError("EMFILE"))
    member.lead(role(), version=4 if topic_id == bytes(16) else 7, topic_id=topic_id)
    state = messages.UpdateMetadataPartitionState(
        partition_index=0, leader=1, leader_epoch=1, isr=[1, 2], replicas=[1, 2], zk_version=1
    )
    member.update(
        [
            messages.UpdateMetadataTopicState(
                topic_name="t", topic_id=topic_id, partition_states=[state]
            )
        ]
    )
    assert not member.partition().is_leader
    member.log_manager.broken.clear()
    member.clock.advance(60)
    assert member.partition().is_leader


def test_an_id_that_cannot_be_written() -> None:
    """KAFKA_STORAGE_ERROR, and the directory is offline."""
    member = Member()
    member.lead(role(), version=4, topic_id=bytes(16))
    member.log_manager.broken[TP] = LogDirFailure("/data", OSError(5, "I/O"))
    assert error(member.lead(role())) == ErrorCode.KAFKA_STORAGE_ERROR
    assert member.partition().topic_id == bytes(16)


_NONE, _FENCED, _STORAGE = (
    ErrorCode.NONE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize(
    ("held", "leader_epoch", "expected"),
    [
        ("nothing", 5, _NONE),
        ("a log only", 5, _NONE),
        ("offline", 6, _STORAGE),
        ("leader", 4, _FENCED),  # older
        ("leader", 5, _NONE),  # equal: its leadership did not change
        ("leader", 6, _NONE),  # newer
        ("leader", -2, _NONE),  # the topic is being deleted
        ("leader", -1, _NONE),  # not said: an old controller
    ],
)
def test_stop_replica(held: str, leader_epoch: int, expected: ErrorCode, delete: bool) -> None:
    """RL 1.5: the 16 cases of ReplicaManagerTest. The log goes when asked."""
    member = Member()
    if held != "nothing":
        member.lead(role(leader_epoch=5))
    if held == "a log only":
        member.replicas.drop_partition(TP)
    if held == "offline":
        member.partition().fail("its directory is offline")
    answer = member.stop(leader_epoch, delete)
    assert answer.error_code == 0
    assert [each.error_code for each in answer.partition_errors] == [expected]
    gone = delete and expected is _NONE
    assert (TP in member.replicas.partitions) == (
        held in ("leader", "offline") and not (gone and held == "leader")
    )
    assert member.log_manager.deleted == ([TP] if gone and held != "nothing" else [])


@pytest.mark.parametrize("held", ["a log only", "leader"])
def test_a_log_that_cannot_be_set_aside_is_not_deleted(held: str) -> None:
    """ReplicaManagerTest's StopReplica cases AndIOException: the controller must not take for gone
    what comes back with the disk.
    """
    member = Member()
    member.lead(role(leader_epoch=5))
    if held == "a log only":
        member.replicas.drop_partition(TP)
    member.log_manager.broken[TP] = OSError(5, "I/O")
    (answer,) = member.stop(6, True).partition_errors
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("fails", [False, True])
def test_a_deletion_is_answered_when_it_is_durable(fails: bool) -> None:
    """Simulation, ZooKeeper seed 591: a loss of power brought back a log whose deletion had been
    answered, and it refused the next topic of its name. The second request is the first once more,
    because the connection broke before its answer.
    """
    member = Member()
    member.lead(role(leader_epoch=5))
    waiting: list[Deferred[None]] = []

    def sync(logs: object) -> Deferred[None]:
        waiting.append(Deferred())
        return waiting[-1]

    member.log_manager.names.sync_renames = sync
    answers: list[messages.StopReplicaResponse] = []
    for _ in range(2):
        request = member.roles.stop_replica(member.stop_request(6, delete=True))
        ensureDeferred(request).addCallback(answers.append)
        for _ in range(10):
            member.clock.advance(0)
    assert TP not in member.replicas.partitions and not answers
    # Other requests do not wait for the disk.
    member.update([])
    if fails:
        member.log_manager.fail("/data", OSError(5, "I/O"))
    for each in waiting:
        each.callback(None)
    expected = ErrorCode.KAFKA_STORAGE_ERROR if fails else ErrorCode.NONE
    assert [each.partition_errors[0].error_code for each in answers] == [expected] * 2
    # And as often as it is asked, until a restart finds what is there.
    member.log_manager.names.sync_renames = lambda logs: succeed(None)
    (partition,) = member.stop(6, True).partition_errors
    assert partition.error_code == expected


@pytest.mark.parametrize(
    ("delete", "expected"),
    [(True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (False, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_what_waits_ends_with_a_stop(delete: bool, expected: ErrorCode) -> None:
    """RL 1.5: complete what was delayed on it. Without deletion the broker follows on its way out:
    the new leader's epoch came before.
    """
    member = Member()
    member.lead(role(leader_epoch=5))
    outcome, done = parked_produce(member)
    assert not done
    if not delete:
        member.lead(role(leader=2, leader_epoch=6))
    member.stop(7, delete)
    assert done == [None] and outcome.error is expected
    assert (TP in member.replicas.partitions) is not delete


def _topic(
    leader: int, *, name: str = "t", topic_id: bytes = TOPIC_ID, **fields: Any
) -> messages.UpdateMetadataTopicState:
    state = messages.UpdateMetadataPartitionState(
        leader=leader, leader_epoch=3, isr=[1, 2], replicas=[1, 2, 3], zk_version=4, **fields
    )
    return messages.UpdateMetadataTopicState(
        topic_name=name, topic_id=topic_id, partition_states=[state]
    )


def test_update_metadata_is_what_clients_are_shown() -> None:
    member = Member()
    member.update([_topic(2, offline_replicas=[3])])
    image = member.state.image
    found = image.partition("t", 0)
    assert found is not None and (found.leader, found.partition_epoch) == (2, 4)
    assert not image.brokers[3].has_online_directory(found.directory_of(3))
    assert image.topics_by_id[TOPIC_ID].name == "t"
    # Brokers are all of those alive; topics are those that changed.
    member.update([_topic(1, name="u", topic_id=NEWER_TOPIC)], live=(1, 2))
    image = member.state.image
    assert set(image.brokers) == {1, 2} and set(image.topics_by_name) == {"t", "u"}


def test_a_topic_that_is_deleted_leaves_the_image() -> None:
    member = Member()
    member.update([_topic(2)])
    member.update([_topic(-2)])
    assert not member.state.image.topics_by_name and not member.state.image.topics_by_id
    # And made again under its name.
    member.update([_topic(2, topic_id=NEWER_TOPIC)])
    assert set(member.state.image.topics_by_id) == {NEWER_TOPIC}


def test_update_metadata_gives_no_role() -> None:
    """RL 1.3: roles are LeaderAndIsr's alone; a later image takes none away."""
    member = Member()
    member.lead(role(leader=1, leader_epoch=5))
    member.update([_topic(2)])
    member.update([_topic(-2)])
    assert member.partition().is_leader and TP in member.log_manager.logs


def test_a_migrating_controller_is_refused() -> None:
    """A migration that begins while ours runs: the operator reads of it, once."""
    member = Member()
    with capturedLogs() as logs:
        for _ in range(2):
            refused = member.lead(role(), is_k_raft_controller=True)
            assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert TP not in member.replicas.partitions
    assert [each["why"] for each in logs if "why" in each] == [MIGRATED]
