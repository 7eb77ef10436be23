"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, and unclean elections
by setting: asked of a controller.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.fixtures import Fixture
from twisted_broker.cluster import cluster_view
from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.heartbeat_decision import heartbeat
from twisted_broker.image.entries import NO_LEADER, RECOVERING, PartitionRegistration, TopicImage
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.security.acl import Operation
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import broker_lifecycle, configs
from twisted_broker.wire.messages import reassignment as reassignment_messages
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)

PREFERRED, UNCLEAN = 0, 1
SETTING = "unclean.leader.election.enable"


class Cluster:
    """Four live brokers; topic `t` with two partitions on 1, 2, 3, led by 1."""

    def __init__(self, fixture: Fixture) -> None:
        self.fixture = fixture
        self.epochs = {broker: fixture.join(broker) for broker in (1, 2, 3, 4)}
        assigned = [
            CreatableReplicaAssignment(partition_index=number, broker_ids=[1, 2, 3])
            for number in (0, 1)
        ]
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=assigned
        )
        fixture.ask("create_topics", CreateTopicsRequest(topics=[topic]), 7)

    def partition(self, number: int = 0) -> PartitionRegistration:
        return self.fixture.controller.image.topics_by_name["t"].partitions[number]

    def fence(self, *brokers: int) -> None:
        for broker in brokers:
            self.fixture.beat(broker, self.epochs[broker], want_fence=True)

    def unfence(self, *brokers: int) -> None:
        for broker in brokers:
            self.fixture.beat(broker, self.epochs[broker])

    def set_isr(self, *isr: int, number: int = 0) -> int:
        """The leader's AlterPartition; its error."""
        state = self.partition(number)
        asked = broker_lifecycle.AlterPartitionRequestPartitionData(
            partition_index=number,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr_with_epochs=[
                broker_lifecycle.BrokerState(broker_id=each, broker_epoch=self.epochs[each])
                for each in isr
            ],
        )
        topic_id = self.fixture.controller.image.topics_by_name["t"].id
        data = [
            broker_lifecycle.AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[asked])
        ]
        request = broker_lifecycle.AlterPartitionRequest(
            broker_id=state.leader, broker_epoch=self.epochs[state.leader], topics=data
        )
        return int(
            self.fixture.ask("alter_partition", request, 3).topics[0].partitions[0].error_code
        )

    def elect(self, kind: int, *numbers: int, topic: str = "t") -> list[int]:
        asked = [reassignment_messages.TopicPartitions(topic=topic, partitions=list(numbers))]
        answer = self.fixture.ask(
            "elect_leaders",
            reassignment_messages.ElectLeadersRequest(election_type=kind, topic_partitions=asked),
            2,
        )
        return [each.error_code for each in answer.replica_election_results[0].partition_result]

    def reassign(
        self, replicas: list[int] | None, number: int = 0, topic: str = "t", **changes: Any
    ) -> int:
        asked = reassignment_messages.ReassignableTopic(
            name=topic,
            partitions=[
                reassignment_messages.ReassignablePartition(
                    partition_index=number, replicas=replicas
                )
            ],
        )
        request = reassignment_messages.AlterPartitionReassignmentsRequest(
            topics=[asked], **changes
        )
        return int(
            self.fixture.ask("alter_partition_reassignments", request, 1)
            .responses[0]
            .partitions[0]
            .error_code
        )

    def listed(
        self, topics: list[reassignment_messages.ListPartitionReassignmentsTopics] | None = None
    ) -> dict[tuple[str, int], Any]:
        answer = self.fixture.ask(
            "list_partition_reassignments",
            reassignment_messages.ListPartitionReassignmentsRequest(topics=topics),
            0,
        )
        return {
            (topic.name, each.partition_index): each
            for topic in answer.topics
            for each in topic.partitions
        }

    def set_unclean(self, value: str, name: str = "t", kind: int = 2) -> None:
        self.set(SETTING, value, name, kind)

    def set(self, setting: str, value: str, name: str, kind: int) -> None:
        edit = configs.IncrementalAlterConfigsRequestAlterableConfig(
            name=setting, config_operation=0, value=value
        )
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[edit]
        )
        answer = self.fixture.ask(
            "incremental_alter_configs",
            configs.IncrementalAlterConfigsRequest(resources=[resource]),
            1,
        )
        assert answer.responses[0].error_code == 0

    def leave_only_3(self) -> None:
        """3 has fallen out of sync; then 1 and 2 are lost: nobody leads."""
        for number in (0, 1):
            assert self.set_isr(1, 2, number=number) == 0
        self.fence(1, 2)
        assert [self.partition(number).leader for number in (0, 1)] == [NO_LEADER] * 2


@pytest.fixture
def cluster(fixture: Fixture) -> Cluster:
    return Cluster(fixture)


def test_the_preferred_leader_is_elected(cluster: Cluster) -> None:
    """RL 8.3: when it is in the ISR again; before that it is not available; after that the
    election is not needed.
    """
    cluster.fence(1)
    assert cluster.elect(PREFERRED, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    cluster.unfence(1)
    assert cluster.elect(PREFERRED, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert cluster.set_isr(2, 3, 1) == 0
    epoch = cluster.partition().leader_epoch
    assert cluster.elect(PREFERRED, 0) == [ErrorCode.NONE]
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (1, epoch + 1)
    assert cluster.elect(PREFERRED, 0, 0, 7) == [
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert cluster.elect(PREFERRED, 0, topic="absent") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_all_partitions_are_answered_only_where_something_happened(cluster: Cluster) -> None:
    """KIP-183: null means all; those that are well are left out."""
    cluster.fence(1)
    cluster.unfence(1)
    assert cluster.set_isr(2, 3, 1, number=1) == 0
    answer = cluster.fixture.ask(
        "elect_leaders",
        reassignment_messages.ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None),
        2,
    )
    told = [
        (each.partition_id, each.error_code)
        for each in answer.replica_election_results[0].partition_result
    ]
    assert told == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (1, 0)]
    assert cluster.partition(1).leader == 1
    again = cluster.fixture.ask(
        "elect_leaders",
        reassignment_messages.ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None),
        2,
    )
    assert [each.partition_id for each in again.replica_election_results[0].partition_result] == [0]


def test_an_unclean_election_by_hand(cluster: Cluster) -> None:
    """RL 8.3: anyone alive leads, recorded as recovering; not while there is a leader, nor when
    nobody lives.
    """
    assert cluster.elect(UNCLEAN, 0) == [ErrorCode.ELECTION_NOT_NEEDED]
    cluster.leave_only_3()
    cluster.fence(3)
    assert cluster.elect(UNCLEAN, 0) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    cluster.unfence(3)
    assert cluster.partition().leader == NO_LEADER
    assert cluster.elect(UNCLEAN, 0) == [ErrorCode.NONE]
    state = cluster.partition()
    assert (state.leader, state.isr, state.leader_recovery_state, state.elr) == (
        3,
        (3,),
        RECOVERING,
        (),
    )


def test_an_unknown_kind_of_election(cluster: Cluster) -> None:
    """KIP-460: INVALID_REQUEST for the whole request."""
    with pytest.raises(BrokerError) as caught:
        cluster.elect(2, 0)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("name", "kind"), [("t", 2), ("", 4)])
def test_the_setting_acts_at_once(cluster: Cluster, name: str, kind: int) -> None:
    """RL 1.11, 8.3: a topic without a leader gets one when `unclean.leader.election.enable` is
    switched on, its own or the cluster's; one that has it switched off holds no other back.
    """
    other = CreatableTopic(name="a", num_partitions=1, replication_factor=1)
    cluster.fixture.ask("create_topics", CreateTopicsRequest(topics=[other]), 7)
    cluster.set_unclean("false", "a")
    cluster.leave_only_3()
    cluster.set_unclean("false", name, kind)
    assert cluster.partition().leader == NO_LEADER
    assert cluster.fixture.controller.unclean_elections == 0
    cluster.set_unclean("true", name, kind)
    for number in (0, 1):
        state = cluster.partition(number)
        assert (state.leader, state.isr, state.leader_recovery_state) == (3, (3,), RECOVERING)
    assert cluster.fixture.controller.unclean_elections == 2, "what the metrics show"


def test_all_topics_are_looked_at_in_steps(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an election wherever the brokers' setting allows it, for whether a broker that leaves
    leads anything, and for what preferred leaders get back: no step looks at more than so many
    partitions.
    """
    cluster.fixture.create_topic("many", 20)
    cluster.leave_only_3()
    controller = cluster.fixture.controller
    view = controller.view
    monkeypatch.setattr(cluster_view, "LOOKED_AT_PER_STEP", 3)
    monkeypatch.setattr(cluster_view, "PARTITIONS_PER_STEP", 2)
    assert count_steps(view.leads_any(9)) == (22 // 3, False)
    leaders = [
        each.leader
        for topic in view.image.topics_by_name.values()
        for each in topic.partitions.values()
    ]
    assert all(count_steps(view.leads_any(each))[1] for each in leaders)
    assert count_steps(view.preferred_leaders(100)) == (22 // 3 * 2, [])
    without = leaders.count(NO_LEADER)
    assert without >= 2
    assert count_steps(view.unclean_leaders()) == (22 // 3 + without // 2, [])
    # One that leaves and leads nothing.
    view = ClusterView(replace(view.image, topics_by_id=led_by(3, view.image)), view.config)
    leaving = broker_lifecycle.BrokerHeartbeatRequest(
        broker_id=4, broker_epoch=cluster.epochs[4], want_shut_down=True
    )
    steps, decided = count_steps(heartbeat(view, leaving, controller.sessions, 0))
    assert decided.should_shut_down and steps >= 22 // 3


def led_by(broker: int, image: MetadataImage) -> dict[bytes, TopicImage]:
    return {
        topic.id: topic._replace(
            partitions={
                number: each._replace(leader=broker) for number, each in topic.partitions.items()
            }
        )
        for topic in image.topics_by_id.values()
    }


def count_steps(work: Generator[None, None, Any]) -> tuple[int, Any]:
    """How often it pauses, and what it returns."""
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return steps, end.value
        steps += 1


def test_another_setting_of_the_brokers_elects_nobody(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the same value again: not all topics are looked at for that."""
    looked: list[None] = []
    everywhere = ClusterView.unclean_leaders

    def noted(view: ClusterView, topics: Any = None) -> Generator[None, None, list[Any]]:
        looked.append(None)
        return everywhere(view, topics)

    monkeypatch.setattr(ClusterView, "unclean_leaders", noted)
    for name, value, times in (
        ("log.retention.ms", "1000", 0),
        (SETTING, "true", 1),
        (SETTING, "true", 1),
        ("log.retention.ms", "2000", 1),
        (SETTING, "false", 2),
    ):
        cluster.set(name, value, "", 4)
        assert len(looked) == times, (name, value)


def test_elections_that_a_controller_did_not_come_to_are_the_next_ones(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.3: it ended when the setting of the brokers was durable, and nothing more."""
    cluster.leave_only_3()
    with monkeypatch.context() as ended:
        ended.setattr(Turns, "start", lambda turns, steps: None)
        cluster.set(SETTING, "true", "", 4)
    assert cluster.partition().leader == NO_LEADER
    cluster.fixture.restart()
    cluster.fixture.advance(1)
    assert [cluster.partition(number).leader for number in (0, 1)] == [3, 3]


def test_with_the_setting_on_the_last_one_left_leads(cluster: Cluster) -> None:
    """RL 8.3: while it is on, losing all that are in sync elects who is left; when it is off
    again, it does not.
    """
    for number in (0, 1):
        assert cluster.set_isr(1, 2, number=number) == 0
    cluster.set_unclean("true")
    cluster.fence(1, 2)
    assert cluster.partition().leader == 3
    cluster.set_unclean("false")
    cluster.unfence(1, 2)
    cluster.fence(3)
    assert cluster.partition().leader == NO_LEADER


def test_a_reassignment_runs_its_course(cluster: Cluster) -> None:
    """RL 8.5, KIP-455: merged replicas, listed while it lasts, over when the target is in the
    ISR, the leader that is removed hands over.
    """
    assert cluster.reassign([4, 2]) == 0
    state = cluster.partition()
    assert (state.replicas, state.removing, state.adding, state.leader, state.leader_epoch) == (
        (4, 2, 1, 3),
        (1, 3),
        (4,),
        1,
        0,
    )
    told = cluster.listed()
    assert list(told) == [("t", 0)]
    assert (
        told["t", 0].replicas,
        told["t", 0].adding_replicas,
        told["t", 0].removing_replicas,
    ) == ([4, 2, 1, 3], [4], [1, 3])
    assert cluster.set_isr(1, 2, 3, 4) == ErrorCode.NEW_LEADER_ELECTED
    state = cluster.partition()
    assert (state.replicas, state.isr, state.removing, state.adding) == ((4, 2), (2, 4), (), ())
    assert (state.leader, state.leader_epoch) == (4, 1)
    assert not cluster.listed()


def test_a_leader_that_stays_gets_the_outcome(cluster: Cluster) -> None:
    """KIP-455: the AlterPartition that ends a reassignment is answered NONE when the sender goes
    on leading, under a new leader epoch.
    """
    assert cluster.reassign([1, 4]) == 0
    assert cluster.set_isr(1, 2, 3, 4) == 0
    state = cluster.partition()
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((1, 4), (1, 4), 1, 1)


def test_a_reassignment_is_cancelled(cluster: Cluster) -> None:
    """KIP-455: the former replicas in the former roles; without one under way
    NO_REASSIGNMENT_IN_PROGRESS.
    """
    assert cluster.reassign(None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert cluster.reassign([4, 2, 3]) == 0
    assert cluster.reassign(None) == 0
    state = cluster.partition()
    assert (sorted(state.replicas), state.isr, state.leader, state.adding, state.removing) == (
        [1, 2, 3],
        (1, 2, 3),
        1,
        (),
        (),
    )
    assert state.leader_epoch == 1  # 4 left the assignment


def test_going_back_to_nobody_in_sync_takes_an_unclean_election(cluster: Cluster) -> None:
    """KIP-455: refused unless unclean elections are on; then it is recorded as recovering."""
    assert cluster.reassign([4, 3]) == 0
    assert cluster.set_isr(1, 4) == 0
    cluster.fence(1)
    assert (cluster.partition().leader, cluster.partition().isr) == (4, (4,))
    assert cluster.reassign(None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.set_unclean("true")
    assert cluster.reassign(None) == 0
    state = cluster.partition()
    assert (state.leader, state.isr, state.leader_recovery_state, 4 in state.replicas) == (
        3,
        (3,),
        RECOVERING,
        False,
    )


@pytest.mark.parametrize(
    ("replicas", "changes", "code"),
    [
        ([], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 2, 4], {"topic": "absent"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1, 2, 4], {"number": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1, 4], {"allow_replication_factor_change": False}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([1, 2, 4], {"allow_replication_factor_change": False}, ErrorCode.NONE),
    ],
)
def test_reassignments_that_are_refused(
    cluster: Cluster, replicas: list[int], changes: dict[str, Any], code: ErrorCode
) -> None:
    """KIP-455, KIP-860: what cannot be is refused and changes nothing."""
    before = cluster.partition()
    assert cluster.reassign(replicas, **changes) == code
    assert (cluster.partition() == before) is (code is not ErrorCode.NONE)


def test_only_those_asked_for_are_listed(cluster: Cluster) -> None:
    """KIP-455: topics and partitions that are not there, or do not move, are left out."""
    assert cluster.reassign([4, 2, 3], number=1) == 0
    named = reassignment_messages.ListPartitionReassignmentsTopics
    assert not cluster.listed(
        [named(name="t", partition_indexes=[0, 9]), named(name="absent", partition_indexes=[0])]
    )
    assert list(cluster.listed([named(name="t", partition_indexes=[0, 1])])) == [("t", 1)]


def test_a_topic_grows_by_the_factor_it_will_have(cluster: Cluster) -> None:
    """RL 8.5: while a partition moves, new ones are not given its replicas old and new."""
    assert cluster.reassign([4, 2]) == 0
    grown = cluster.fixture.ask(
        "create_partitions",
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)]
        ),
        3,
    )
    assert grown.results[0].error_code == 0 and len(cluster.partition(2).replicas) == 2


@pytest.mark.parametrize(("unclean", "leader"), [("true", 2), ("false", NO_LEADER)])
def test_away_from_the_dead_where_anyone_may_lead(
    fixture: Fixture, unclean: str, leader: int
) -> None:
    """The replica that is added leads at once, as when the setting comes later (Kafka: within five
    minutes). No other event would have made it lead.
    """
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    topic = CreatableTopic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
        configs=[CreatableTopicConfig(name="unclean.leader.election.enable", value=unclean)],
    )
    assert fixture.create_topics(topic)[0].error_code == 0
    fixture.beat(1, epochs[1], want_fence=True)
    wanted = reassignment_messages.ReassignablePartition(partition_index=0, replicas=[2])
    request = reassignment_messages.AlterPartitionReassignmentsRequest(
        topics=[reassignment_messages.ReassignableTopic(name="t", partitions=[wanted])]
    )
    fixture.ask("alter_partition_reassignments", request, 0)
    found = fixture.controller.image.topics_by_name["t"].partitions[0]
    assert found.leader == leader
    if leader == 2:
        assert (found.replicas, found.isr, found.removing) == ((2,), (2,), ())
        assert found.leader_recovery_state == RECOVERING


class _Nobody:
    """An authorizer that allows nothing but what it was given."""

    def __init__(self, *allowed: Operation) -> None:
        self.allowed = allowed

    def authorize(self, principal: Any, host: str, operation: Operation, *resource: Any) -> bool:
        return operation in self.allowed


def test_permission_comes_first(cluster: Cluster) -> None:
    """ALTER on the cluster to move, DESCRIBE to look."""
    cluster.fixture.authorizer = _Nobody(Operation.DESCRIBE)
    for ask in (lambda: cluster.elect(PREFERRED, 0), lambda: cluster.reassign([1])):
        with pytest.raises(BrokerError) as caught:
            ask()
        assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not cluster.listed()
    cluster.fixture.authorizer = _Nobody()
    with pytest.raises(BrokerError):
        cluster.listed()
