"""AlterPartition: which ISR changes a controller grants."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.fixtures import Fixture
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as broker_lifecycle_messages
from twisted_broker.wire.messages import configs
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)


class Cluster:
    """Three live brokers, topic `t` with one partition on all of them, led by 1."""

    def __init__(self, fixture: Fixture) -> None:
        self.fixture = fixture
        self.epochs = {broker: fixture.join(broker) for broker in (1, 2, 3)}
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2, 3])
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment]
        )
        fixture.ask("create_topics", CreateTopicsRequest(topics=[topic]), 7)

    @property
    def partition(self) -> Any:
        return self.fixture.controller.image.topics_by_name["t"].partitions[0]

    def ask(
        self,
        isr: list[int],
        *,
        sender: int = 1,
        version: int = 3,
        epochs: dict[int, int] | None = None,
        **changes: Any,
    ) -> Any:
        known = self.epochs | (epochs or {})
        values = {
            "partition_index": 0,
            "leader_epoch": self.partition.leader_epoch,
            "partition_epoch": self.partition.partition_epoch,
        } | changes
        if version >= 3:
            values["new_isr_with_epochs"] = [
                broker_lifecycle_messages.BrokerState(broker_id=b, broker_epoch=known[b])
                for b in isr
            ]
        else:
            values["new_isr"] = isr
        topic_id = values.pop("topic_id", self.fixture.controller.image.topics_by_name["t"].id)
        data = broker_lifecycle_messages.AlterPartitionRequestTopicData(
            topic_id=topic_id,
            partitions=[broker_lifecycle_messages.AlterPartitionRequestPartitionData(**values)],
        )
        request = broker_lifecycle_messages.AlterPartitionRequest(
            broker_id=sender, broker_epoch=known[sender], topics=[data]
        )
        return self.fixture.ask("alter_partition", request, version).topics[0].partitions[0]


@pytest.fixture
def cluster(fixture: Fixture) -> Cluster:
    return Cluster(fixture)


@pytest.mark.parametrize("version", [2, 3])
def test_the_isr_shrinks_and_expands(cluster: Cluster, version: int) -> None:
    """RL 8.3, 8.4, 2.5: each change raises the partition epoch only, and the answer says the new
    state.
    """
    answer = cluster.ask([1, 2], version=version)
    assert (
        answer.error_code,
        answer.isr,
        answer.partition_epoch,
        answer.leader_id,
        answer.leader_epoch,
    ) == (0, [1, 2], 1, 1, 0)
    answer = cluster.ask([1, 2, 3], version=version)
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [1, 2, 3], 2)
    assert cluster.partition.isr == (1, 2, 3) and cluster.partition.leader_epoch == 0


def test_the_same_state_again_is_granted_and_writes_nothing(cluster: Cluster) -> None:
    """RL 8.4."""
    before = cluster.fixture.controller.image
    assert cluster.ask([1, 2, 3]).error_code == 0
    assert cluster.fixture.controller.image is before


@pytest.mark.parametrize(
    ("isr", "changes", "code"),
    [
        ([1, 2], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ([1, 2], {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ([1, 2], {"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"sender": 2}, ErrorCode.INVALID_REQUEST),
        ([2, 3], {}, ErrorCode.INVALID_REQUEST),
        ([1, 1], {}, ErrorCode.INVALID_REQUEST),
        ([], {}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ([1], {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"epochs": {2: 1}}, ErrorCode.INELIGIBLE_REPLICA),
        ([1, 2], {"partition_index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1, 2], {"topic_id": b"?" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_changes_that_are_refused(
    cluster: Cluster, isr: list[int], changes: dict[str, Any], code: ErrorCode
) -> None:
    """RL 8.4: not the leader, old or unknown epochs, an ISR that cannot be, a member under
    another broker epoch; nothing is written.
    """
    before = cluster.partition
    assert cluster.ask(isr, **changes).error_code == code
    assert cluster.partition == before


def test_an_unknown_member_epoch_is_not_compared(cluster: Cluster) -> None:
    """KIP-903: -1 stands for a member whose epoch the leader does not know."""
    assert cluster.ask([1, 2], epochs={2: -1}).error_code == 0


def test_fenced_and_leaving_members_are_ineligible(cluster: Cluster) -> None:
    """RL 8.4: fenced, or shutting down."""
    cluster.fixture.beat(3, cluster.epochs[3], want_fence=True)
    assert cluster.partition.isr == (1, 2)
    assert cluster.ask([1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    other = cluster.fixture.ask(
        "create_topics",
        CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name="led",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[2])],
                )
            ]
        ),
        7,
    )
    assert other.topics[0].error_code == 0
    cluster.fixture.beat(2, cluster.epochs[2], want_shut_down=True)
    assert cluster.partition.isr == (1,)
    assert cluster.ask([1, 2]).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_a_refused_expansion_is_not_granted_later(cluster: Cluster) -> None:
    """RL 8.4: a leader that lost a connection sends its proposal again. It takes a refusal as the
    end of it, and commits without the replica; the first copy, which arrives when the replica is no
    longer fenced, must not make that a member (simulation, seed 1033570).
    """
    cluster.fixture.beat(3, cluster.epochs[3], want_fence=True)
    seen = cluster.partition
    assert cluster.ask([1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    refused = cluster.partition
    assert refused == seen._replace(partition_epoch=seen.partition_epoch + 1)
    cluster.fixture.beat(3, cluster.epochs[3])
    late = cluster.ask([1, 2, 3], partition_epoch=seen.partition_epoch)
    assert late.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert cluster.partition == refused
    assert cluster.ask([1, 2, 3]).error_code == ErrorCode.NONE
    assert set(cluster.partition.isr) == {1, 2, 3}


def test_a_refused_shrink_writes_nothing(cluster: Cluster) -> None:
    """RL 8.4: granted later it leaves fewer members than the leader waits for, which is safe."""
    before = cluster.fixture.controller.image
    assert cluster.ask([1, 2], epochs={2: 1}).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert cluster.fixture.controller.image is before


def test_the_sender_must_be_registered_under_this_epoch(cluster: Cluster) -> None:
    """RL 8.4: STALE_BROKER_EPOCH for the whole request."""
    with pytest.raises(BrokerError) as caught:
        cluster.ask([1, 2], epochs={1: 1})
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_who_is_not_assigned_does_not_join(cluster: Cluster) -> None:
    """RL 8.4: a broker that lives but holds no replica; a recovery state that does not exist."""
    cluster.epochs[4] = cluster.fixture.join(4)
    before = cluster.partition
    assert cluster.ask([1, 2, 4]).error_code == ErrorCode.INVALID_REQUEST
    assert cluster.ask([1, 2], leader_recovery_state=2).error_code == ErrorCode.INVALID_REQUEST
    assert cluster.partition == before


def test_a_recovering_leader_recovers_alone(cluster: Cluster) -> None:
    """RL 8.4, KIP-704: after an unclean election the ISR may not grow before the leader says
    that it has recovered; saying so is a change.
    """
    for broker in (2, 3):
        cluster.fixture.beat(broker, cluster.epochs[broker], want_fence=True)
    cluster.fixture.advance(9.5)
    cluster.epochs[1] = cluster.fixture.register(1, b"n" * 16, previous_broker_epoch=-1)
    for broker in (1, 2):
        cluster.fixture.beat(broker, cluster.epochs[broker])
    assert (
        cluster.partition.leader,
        cluster.partition.isr,
        cluster.partition.leader_recovery_state,
    ) == (1, (1,), 1)
    assert cluster.ask([1], leader_recovery_state=1).error_code == 0
    assert cluster.ask([1, 2], leader_recovery_state=1).error_code == ErrorCode.INVALID_REQUEST
    answer = cluster.ask([1, 2], leader_recovery_state=0)
    assert (answer.error_code, answer.isr, answer.leader_recovery_state) == (0, [1, 2], 0)
    assert cluster.partition.leader_recovery_state == 0


def test_a_mirrored_log_is_truncated_under_a_new_leader_epoch(fixture: Fixture) -> None:
    """Ours: the leader alone and RECOVERING, each time with a leader epoch of its own, counted as
    unclean. Of an ordinary topic it is refused, as by Kafka.
    """
    cluster = Cluster(fixture)
    assert cluster.ask([1], leader_recovery_state=1).error_code == ErrorCode.INVALID_REQUEST
    setting = configs.IncrementalAlterConfigsRequestAlterableConfig(
        name="replog.mirror.source", config_operation=0, value="cluster topic"
    )
    resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=2, resource_name="t", configs=[setting]
    )
    request = configs.IncrementalAlterConfigsRequest(resources=[resource])
    answer = fixture.ask("incremental_alter_configs", request, 1)
    assert not answer.responses[0].error_code
    assert cluster.ask([1, 2], leader_recovery_state=1).error_code == ErrorCode.INVALID_REQUEST
    for epoch in (1, 2):
        answer = cluster.ask([1], leader_recovery_state=1)
        assert (answer.error_code, answer.leader_epoch, answer.isr) == (0, epoch, [1])
        assert (cluster.partition.leader_recovery_state, cluster.partition.elr) == (1, ())
        assert fixture.controller.unclean_elections == epoch
    # It is recovering until its next ISR change, as in Kafka. To come back is no unclean election.
    fixture.beat(1, cluster.epochs[1], want_fence=True)
    assert (cluster.partition.leader, cluster.partition.elr) == (-1, (1,))
    fixture.beat(1, cluster.epochs[1])
    assert (cluster.partition.leader, cluster.partition.leader_recovery_state) == (1, 1)
    assert fixture.controller.unclean_elections == 2
    assert cluster.ask([1, 2]).error_code == ErrorCode.NONE
    assert cluster.partition.leader_recovery_state == 0
