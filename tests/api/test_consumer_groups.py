"""ConsumerGroupHeartbeat and ConsumerGroupDescribe through the wire, and the older APIs on consumer
groups.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.api.group_api import TOPIC_IDS, ApiRun, each_version
from twisted_broker.api import consumer_groups, modern_groups
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.consumer_group_config import consumer_group_config
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
)
from twisted_broker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from twisted_broker.wire.schema import encode

READ, DESCRIBE = Operation.READ, Operation.DESCRIBE
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


class Run(ApiRun):
    def __init__(self) -> None:
        super().__init__(lead=False)
        self.coordinator.context.image = lambda: self.source.image
        self.finalise(1)
        self.set_consumer(assignment_interval_ms=0)
        self.lead_all()

    def finalise(self, level: int) -> None:
        features = {"group.version": level}
        self.source.image = replace(self.source.image, features=features)

    def set_consumer(self, is_served: bool = True, **changes: Any) -> None:
        settings = self.coordinator.context.settings
        defaults = replace(settings.consumer.defaults, **changes)
        consumer = replace(settings.consumer, defaults=defaults, is_served=is_served)
        self.coordinator.update_settings(replace(settings, consumer=consumer))

    def beat(self, version: int = 1, **fields: Any) -> Any:
        return self.ask(heartbeat(**fields), version)


@pytest.fixture
def run() -> Run:
    return Run()


def heartbeat(**fields: Any) -> ConsumerGroupHeartbeatRequest:
    """A join, but for `fields`."""
    return ConsumerGroupHeartbeatRequest(
        **{
            "group_id": "g",
            "member_id": "a",
            "member_epoch": 0,
            "rebalance_timeout_ms": 10_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        }
        | fields
    )


def assigned(answer: Any) -> Any:
    if answer.assignment is None:
        return None
    return {bytes(each.topic_id): each.partitions for each in answer.assignment.topic_partitions}


def describe(*groups: str, operations: bool = False) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(
        group_ids=list(groups), include_authorized_operations=operations
    )


# heartbeat
@each_version("ConsumerGroupHeartbeat")
def test_a_life(run, version):
    """GN 1.6: null, empty and full assignments; in version 0 the coordinator may make the id."""
    joined = run.beat(version, member_id="" if version == 0 else "mine")
    assert (joined.error_code, joined.member_epoch) == (E.NONE, 2)
    assert joined.heartbeat_interval_ms == 5_000
    assert len(joined.member_id) == 22 if version == 0 else joined.member_id == "mine"
    assert assigned(joined) == {TOPIC_IDS["t"]: [0, 1, 2]}
    quiet = {
        "member_id": joined.member_id,
        "member_epoch": 2,
        "rebalance_timeout_ms": -1,
        "subscribed_topic_names": None,
        "topic_partitions": None,
    }
    assert assigned(run.beat(version, **quiet)) is None
    owned = [ConsumerGroupHeartbeatTopicPartitions(topic_id=TOPIC_IDS["t"], partitions=[0, 1, 2])]
    none = run.beat(version, **quiet | {"subscribed_topic_names": [], "topic_partitions": owned})
    assert assigned(none) == {}
    left = run.beat(version, **quiet | {"member_epoch": -1})
    assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (E.NONE, -1, 0)


def test_a_null_assignment_is_one_byte_and_an_error_has_no_member():
    """GN 1.6."""
    quiet = encode(ConsumerGroupHeartbeatResponse(member_id="a"), 1)
    assert quiet[-2:] == b"\xff\x00"
    refused = Run().beat(member_id="")
    assert (refused.error_code, refused.member_id, refused.member_epoch) == (
        E.INVALID_REQUEST,
        None,
        0,
    )
    assert refused.error_message == "MemberId can't be empty."


def test_the_order_of_a_heartbeats_errors(run):
    """GN 1.14, 2.8: each is shown over all that come after it."""
    bad: dict[str, Any] = {"member_epoch": -7, "subscribed_topic_names": ["t", "u"]}
    run.coordinator.runtime.unload_all()
    run.acl.denied |= {(READ, GROUP, "g"), (DESCRIBE, TOPIC, "u")}
    run.finalise(0)
    assert run.beat(**bad).error_code == E.UNSUPPORTED_VERSION
    run.finalise(1)
    run.set_consumer(is_served=False)
    assert run.beat(**bad).error_code == E.UNSUPPORTED_VERSION
    run.set_consumer()
    assert run.beat(**bad).error_code == E.GROUP_AUTHORIZATION_FAILED
    run.acl.denied.discard((READ, GROUP, "g"))
    assert run.beat(**bad).error_code == E.TOPIC_AUTHORIZATION_FAILED
    run.acl.denied.clear()
    assert run.beat(**bad).error_code == E.INVALID_REQUEST
    refused = run.beat(server_assignor="mine")
    assert refused.error_code == E.UNSUPPORTED_ASSIGNOR and "uniform" in refused.error_message
    lost = run.beat()
    assert (lost.error_code, lost.error_message) == (E.NOT_COORDINATOR, None)
    run.lead_all(1)
    assert run.beat(member_epoch=5).error_code == E.GROUP_ID_NOT_FOUND
    assert run.beat().error_code == E.NONE


def test_an_empty_list_of_names_asks_for_no_permission(run):
    run.acl.denied.add((DESCRIBE, TOPIC, "*"))
    assert run.beat(subscribed_topic_names=[]).error_code == E.NONE


def test_a_pattern_sees_what_its_member_may_see(run):
    """GN 2.63."""
    run.acl.denied.add((DESCRIBE, TOPIC, "u"))
    pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
    assert assigned(run.beat(**pattern)) == {}
    answer = run.beat(member_epoch=1, **pattern)
    assert assigned(answer) == {TOPIC_IDS["t"]: [0, 1, 2]}
    assert run.beat(member_id="b", **pattern | {"subscribed_topic_regex": "("}).error_code == (
        E.INVALID_REGULAR_EXPRESSION
    )


def test_too_many_names(run, monkeypatch):
    """GN 2.150."""
    monkeypatch.setattr(consumer_groups, "MOST_NAMES", 2)
    assert run.beat(subscribed_topic_names=["t", "u", "v"]).error_code == E.INVALID_REQUEST


def test_the_names_of_a_member_are_the_images(run):
    run.beat()
    (shard,) = [each for each in run.coordinator.runtime.shards.values() if "g" in each.groups]
    (name,) = shard.groups["g"].group.members["a"].names
    assert name is run.source.image.topics_by_name["t"].name


# description
@each_version("ConsumerGroupDescribe")
def test_a_description(run, version):
    """GN 1.7, 1.15."""
    run.beat(instance_id="i", rack_id="r")
    run.stable("classic")
    answer = run.ask(describe("", "g", "none", "classic", operations=True), version)
    empty, found, *others = answer.groups
    assert empty.error_code == E.INVALID_GROUP_ID
    assert [(each.error_code, each.authorized_operations) for each in others] == [
        (E.GROUP_ID_NOT_FOUND, -(2**31))
    ] * 2
    assert [each.error_message for each in others] == [
        "Group none not found.",
        "Group classic is not a consumer group.",
    ]
    assert (found.error_code, found.group_state, found.assignor_name) == (
        E.NONE,
        "Stable",
        "uniform",
    )
    assert (found.group_epoch, found.assignment_epoch, found.authorized_operations) == (2, 2, 3400)
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id) == ("a", "i", "r")
    assert (member.member_epoch, member.client_id, member.client_host) == (2, "client", "/10.0.0.9")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], "")
    for each in (member.assignment, member.target_assignment):
        ((topic),) = each.topic_partitions
        assert (topic.topic_id, topic.topic_name) == (TOPIC_IDS["t"], "t")
        assert topic.partitions == [0, 1, 2]
    assert member.member_type == (1 if version else -1)


def test_what_keeps_a_group_from_being_described(run):
    """GN 1.3, 1.15: each group has its own error."""
    run.beat()
    for denied, error in (
        ((DESCRIBE, GROUP, "g"), E.GROUP_AUTHORIZATION_FAILED),
        ((DESCRIBE, TOPIC, "t"), E.TOPIC_AUTHORIZATION_FAILED),
    ):
        run.acl.denied = {denied}
        (group,) = run.ask(describe("g"), 1).groups
        assert (group.error_code, group.members, group.group_state) == (error, [], "")
    run.acl.denied = set()
    run.finalise(0)
    assert run.ask(describe("g"), 1).groups[0].error_code == E.UNSUPPORTED_VERSION


def test_descriptions_are_bounded(run, monkeypatch):
    """GN 2.151."""
    run.beat()
    monkeypatch.setattr(modern_groups, "MOST_DESCRIBED_BYTES", 100)
    first, second = run.ask(describe("g", "g"), 1).groups
    assert (first.error_code, second.error_code) == (E.NONE, E.COORDINATOR_LOAD_IN_PROGRESS)


# the older APIs
def test_groups_are_listed_by_their_type(run):
    """GN 2.131."""
    run.beat(group_id="new")
    run.beat(group_id="left")
    run.beat(group_id="left", member_epoch=-1)
    run.stable("old")

    def listed(**filters: Any) -> set[tuple[str, str, str, str]]:
        answer = run.ask(ListGroupsRequest(**filters), 5)
        return {
            (each.group_id, each.group_type, each.protocol_type, each.group_state)
            for each in answer.groups
        }

    new, left = ("new", "consumer", "consumer", "Stable"), ("left", "consumer", "consumer", "Empty")
    old = ("old", "classic", "consumer", "Stable")
    assert listed() == {new, left, old}
    assert listed(types_filter=["Consumer"]) == {new, left}
    assert listed(types_filter=["classic", "nothing"]) == {old}
    assert listed(types_filter=["nothing"]) == set()
    assert listed(types_filter=["CONSUMER"], states_filter=["empty"]) == {left}


@each_version("DescribeGroups")
def test_the_older_description_knows_no_consumer_group(run, version):
    """GN 2.122."""
    run.beat()
    (group,) = run.ask(DescribeGroupsRequest(groups=["g"]), version).groups
    assert (group.group_state, group.members) == ("Dead", [])
    assert group.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE)
    if version >= 6:
        assert group.error_message == "Group g is not a classic group."


@each_version("LeaveGroup")
def test_a_member_is_removed_by_name(run, version):
    """GN 2.54."""
    run.beat()
    if version < 3:
        answer = run.ask(LeaveGroupRequest(group_id="g", member_id="a"), version)
        assert answer.error_code == E.NONE
    else:
        members = [MemberIdentity(member_id=each) for each in ("a", "b")]
        answer = run.ask(LeaveGroupRequest(group_id="g", members=members), version)
        assert [each.error_code for each in answer.members] == [E.NONE, E.UNKNOWN_MEMBER_ID]
    assert run.ask(describe("g"), 1).groups[0].group_state == "Empty"


def test_a_group_with_members_is_not_deleted(run):
    run.beat()
    delete = DeleteGroupsRequest(groups_names=["g"])
    assert run.ask(delete, 2).results[0].error_code == E.NON_EMPTY_GROUP
    run.beat(member_epoch=-1)
    assert run.ask(delete, 2).results[0].error_code == E.NONE
    assert run.ask(describe("g"), 1).groups[0].error_code == E.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("version", "epoch", "error"),
    [
        (8, 2, E.UNSUPPORTED_VERSION),
        (9, 2, E.NONE),
        (10, 2, E.NONE),
        (10, 1, E.STALE_MEMBER_EPOCH),
        (10, -1, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_name_the_members_epoch(run, version, epoch, error):
    """GN 2.90; the whole request has the error."""
    run.beat()
    topic = OffsetCommitRequestTopic(
        partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=7)]
    )
    if version >= 10:
        topic.topic_id = TOPIC_IDS["t"]
    else:
        topic.name = "t"
    request = OffsetCommitRequest(
        group_id="g",
        member_id="" if epoch < 0 else "a",
        generation_id_or_member_epoch=epoch,
        topics=[topic],
    )
    assert run.ask(request, version).topics[0].partitions[0].error_code == error


@pytest.mark.parametrize("version", [9, 10])
def test_fetches_name_the_members_epoch(run, version):
    """GN 2.94: the error is the group's, without topics."""
    run.beat()

    def fetched(**fields: Any) -> Any:
        groups = [OffsetFetchRequestGroup(group_id="g", topics=None, **fields)]
        return run.ask(OffsetFetchRequest(groups=groups), version).groups[0]

    assert fetched().error_code == E.NONE
    assert fetched(member_id="a", member_epoch=2).error_code == E.NONE
    stale = fetched(member_id="a", member_epoch=1)
    assert (stale.error_code, stale.topics) == (E.STALE_MEMBER_EPOCH, [])
    assert fetched(member_id="b", member_epoch=2).error_code == E.UNKNOWN_MEMBER_ID


# settings
def test_the_settings_of_a_group_are_within_the_brokers_bounds(run):
    """GN 1.25, 1.28, 1.30."""
    config = consumer_group_config(
        BrokerConfig({"group.consumer.max.heartbeat.interval.ms": "9000"})
    )
    assert config.of_group({}) is config.defaults
    own = {
        "consumer.session.timeout.ms": "1000",
        "consumer.heartbeat.interval.ms": "15000",
        "consumer.assignment.interval.ms": "7",
        "share.session.timeout.ms": "1",
    }
    assert config.of_group(own) == replace(
        config.defaults, heartbeat_interval_ms=9_000, assignment_interval_ms=7
    )
    run.source.image = replace(
        run.source.image, configs={(32, "g"): {"consumer.heartbeat.interval.ms": "6000"}}
    )
    assert run.beat().heartbeat_interval_ms == 6_000
    assert run.beat(group_id="other").heartbeat_interval_ms == 5_000
