"""Share groups through the wire (76, 77, 90-92): gates, permissions, errors in order (GN 1.8, 1.13,
1.16, 1.21, 1.22, 3.1-3.14, 3.90-3.92).
"""

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from tests.api.group_api import TOPIC_IDS, ApiRun, each_version
from twisted_broker.coordinator.share_state.values import StateSummary
from twisted_broker.interfaces import TopicPartition
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from twisted_broker.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)

READ, DESCRIBE, DELETE = Operation.READ, Operation.DESCRIBE, Operation.DELETE
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
T = TOPIC_IDS["t"]
NULL = bytes(16)


class Persister:
    """Start offsets by key."""

    def __init__(self) -> None:
        self.starts: dict[Any, int] = {}

    def initialize(self, key: Any, state_epoch: int, start_offset: int) -> Deferred[None]:
        self.starts[key] = start_offset
        return succeed(None)

    def delete(self, key: Any) -> Deferred[None]:
        self.starts.pop(key, None)
        return succeed(None)

    def summary(self, key: Any) -> Deferred[StateSummary]:
        found = self.starts.get(key)
        answer: Deferred[StateSummary] = Deferred()
        if key.partition > 2:
            answer.errback(BrokerError(E.UNKNOWN_TOPIC_OR_PARTITION))
        elif found is None or found < 0:
            answer.callback(StateSummary())
        else:
            answer.callback(StateSummary(1, 4, found, 2))
        return answer


class EndOffsets:
    async def of(self, partitions: Any) -> dict[TopicPartition, int]:
        """Of the first two."""
        return {each: 100 for each in partitions if each.partition < 2}


class Run(ApiRun):
    def __init__(self) -> None:
        super().__init__(lead=False)
        context: Any = self.coordinator.context
        context.image = lambda: self.source.image
        context.persister, context.end_offsets = Persister(), EndOffsets()
        self.finalise(1)
        settings = context.settings
        share = settings.share
        share = replace(share, defaults=replace(share.defaults, assignment_interval_ms=0))
        self.coordinator.update_settings(replace(settings, share=share))
        self.lead_all()

    def finalise(self, level: int) -> None:
        features = {"share.version": level}
        self.source.image = replace(self.source.image, features=features)

    def beat(self, **fields: Any) -> Any:
        return self.ask(heartbeat(**fields), 1)

    def quiet(self, epoch: int, **fields: Any) -> Any:
        return self.beat(member_epoch=epoch, subscribed_topic_names=None, **fields)

    def joined(self) -> None:
        self.beat()
        assert self.quiet(2).member_epoch == 3

    def deny(self, operation: Operation, resource: ResourceType, name: str) -> None:
        self.acl.denied.add((operation, resource, name))


def heartbeat(**fields: Any) -> ShareGroupHeartbeatRequest:
    """A join, but for `fields`."""
    return ShareGroupHeartbeatRequest(
        **{
            "group_id": "g",
            "member_id": "a",
            "member_epoch": 0,
            "subscribed_topic_names": ["t"],
        }
        | fields
    )


def alter(group: str = "g", **topics: dict[int, int]) -> AlterShareGroupOffsetsRequest:
    return AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[
            AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(partition_index=each, start_offset=at)
                    for each, at in starts.items()
                ],
            )
            for name, starts in topics.items()
        ],
    )


def delete(*topics: str, group: str = "g") -> DeleteShareGroupOffsetsRequest:
    return DeleteShareGroupOffsetsRequest(
        group_id=group,
        topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=each) for each in topics],
    )


def describe(
    topics: dict[str, list[int]] | None = None, group: str = "g"
) -> DescribeShareGroupOffsetsRequest:
    named = (
        None
        if topics is None
        else [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
            for name, numbers in topics.items()
        ]
    )
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=named)
    return DescribeShareGroupOffsetsRequest(groups=[asked])


@pytest.fixture
def run() -> Run:
    return Run()


# heartbeat
def test_a_life(run):
    """GN 1.8: null, empty and full assignments."""
    joined = run.beat()
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (E.NONE, "a", 2)
    assert joined.heartbeat_interval_ms == 5_000 and joined.assignment.topic_partitions == []
    given = run.quiet(2)
    (topic,) = given.assignment.topic_partitions
    assert (given.member_epoch, bytes(topic.topic_id), topic.partitions) == (3, T, [0, 1, 2])
    assert run.quiet(3).assignment is None
    left = run.quiet(-1)
    assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (E.NONE, -1, 0)
    listed = run.ask(ListGroupsRequest(types_filter=["Share"]), 5).groups
    assert [(each.group_id, each.group_type, each.group_state) for each in listed] == [
        ("g", "share", "Empty")
    ]


def test_errors_in_order(run):
    """GN 1.16, 3.2, 3.3."""
    run.coordinator.runtime.unload_all()
    steps = [
        ({"member_epoch": 5}, E.NOT_COORDINATOR),
        ({"member_epoch": -2}, E.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, E.INVALID_REQUEST),
        ({"group_id": ""}, E.INVALID_REQUEST),
    ]
    for fields, error in steps:
        refused = run.beat(**fields)
        assert refused.error_code == error
        assert (refused.member_id, refused.member_epoch) == (None, 0)
    run.deny(DESCRIBE, TOPIC, "t")
    assert run.beat(group_id="").error_code == E.TOPIC_AUTHORIZATION_FAILED
    for member_id in ("", "x" * 37):
        invalid = run.beat(member_id=member_id)
        assert (invalid.error_code, invalid.error_message) == (E.INVALID_REQUEST, None)
    run.deny(READ, GROUP, "g")
    assert run.beat(member_id="").error_code == E.GROUP_AUTHORIZATION_FAILED
    run.finalise(0)
    assert run.beat(member_id="").error_code == E.UNSUPPORTED_VERSION


def test_members_that_are_not_known(run):
    assert run.quiet(3).error_code == E.GROUP_ID_NOT_FOUND
    run.joined()
    assert run.quiet(9).error_code == E.FENCED_MEMBER_EPOCH
    assert run.quiet(3, member_id="b").error_code == E.UNKNOWN_MEMBER_ID


# description
def test_a_description(run):
    run.joined()
    asked = ShareGroupDescribeRequest(
        group_ids=["", "g", "nobody"], include_authorized_operations=True
    )
    none, group, nobody = run.ask(asked, 1).groups
    assert none.error_code == E.INVALID_GROUP_ID
    assert (nobody.error_code, nobody.error_message) == (
        E.GROUP_ID_NOT_FOUND,
        "Group nobody not found.",
    )
    assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", 3, "simple")
    assert group.authorized_operations == 3400
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.client_host) == ("a", 3, "/10.0.0.9")
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("t", [0, 1, 2])


def test_who_may_see_a_group(run):
    run.joined()
    asked = ShareGroupDescribeRequest(group_ids=["g"])
    run.deny(DESCRIBE, TOPIC, "t")
    (group,) = run.ask(asked, 1).groups
    assert group.error_code == E.TOPIC_AUTHORIZATION_FAILED and not group.members
    run.deny(DESCRIBE, GROUP, "g")
    (group,) = run.ask(asked, 1).groups
    assert group.error_code == E.GROUP_AUTHORIZATION_FAILED
    run.finalise(0)
    (group,) = run.ask(asked, 1).groups
    assert group.error_code == E.UNSUPPORTED_VERSION


# offsets
@each_version("DescribeShareGroupOffsets")
def test_offsets_are_set_described_and_deleted(run, version):
    """GN 3.90-3.92: the lag is known from version 1 on, where the end of the log is."""
    known, unknown = run.ask(alter(t={0: 5, 2: 7, 9: 1}, nobody={0: 1}), 0).responses[::-1]
    assert (known.topic_name, bytes(known.topic_id)) == ("t", T)
    assert [(each.partition_index, each.error_code) for each in known.partitions] == [
        (0, E.NONE),
        (2, E.NONE),
        (9, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert bytes(unknown.topic_id) == NULL
    assert [each.error_code for each in unknown.partitions] == [E.UNKNOWN_TOPIC_OR_PARTITION]

    (group,) = run.ask(describe(), version).groups
    (topic,) = group.topics
    assert (group.error_code, topic.topic_name, bytes(topic.topic_id)) == (E.NONE, "t", T)
    lags = (93, -1) if version else (-1, -1)
    assert [
        (each.partition_index, each.start_offset, each.leader_epoch, each.lag)
        for each in topic.partitions
    ] == [(0, 5, 4, lags[0]), (2, 7, 4, lags[1])]

    (group,) = run.ask(describe({"t": [1, 5], "nobody": [0]}), version).groups
    t, nobody = group.topics
    assert [(each.start_offset, each.error_code) for each in t.partitions] == [
        (-1, E.NONE),
        (-1, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert bytes(nobody.topic_id) == NULL and nobody.partitions[0].start_offset == -1

    gone, none, missing = run.ask(delete("t", "u", "nobody"), 0).responses
    assert (gone.error_code, bytes(gone.topic_id), gone.error_message) == (E.NONE, T, None)
    assert (none.error_code, none.error_message) == (
        E.UNKNOWN_TOPIC_OR_PARTITION,
        "There is no offset information to delete.",
    )
    assert bytes(none.topic_id) == NULL and missing.error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    (group,) = run.ask(describe(), version).groups
    assert (group.error_code, group.topics) == (E.NONE, [])


def test_a_group_with_members_keeps_its_offsets(run):
    run.joined()
    for request in (alter(t={0: 5}), delete("t")):
        refused = run.ask(request, 0)
        assert (refused.error_code, refused.responses) == (E.NON_EMPTY_GROUP, [])
    (deleted,) = run.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
    assert deleted.error_code == E.NON_EMPTY_GROUP
    run.quiet(-1)
    (deleted,) = run.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
    assert deleted.error_code == E.NONE and not run.coordinator.context.persister.starts


def test_groups_that_are_not_there(run):
    assert run.ask(delete("t"), 0).error_code == E.GROUP_ID_NOT_FOUND
    (group,) = run.ask(describe(), 1).groups
    assert (group.error_code, group.topics) == (E.NONE, [])
    (group,) = run.ask(describe({}), 1).groups
    assert (group.error_code, group.topics) == (E.NONE, [])
    assert run.ask(alter(group=""), 0).error_code == E.INVALID_GROUP_ID


def test_who_may_see_and_change_offsets(run):
    """GN 1.21, 1.22."""
    run.ask(alter(t={0: 5}, u={0: 6}), 0)
    run.deny(DESCRIBE, TOPIC, "u")
    (group,) = run.ask(describe(), 1).groups
    assert [each.topic_name for each in group.topics] == ["t"]
    (group,) = run.ask(describe({"u": [0]}), 1).groups
    (topic,) = group.topics
    assert bytes(topic.topic_id) == NULL
    assert topic.partitions[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    run.deny(READ, TOPIC, "u")
    for request in (alter(u={0: 1}), delete("u")):
        (answer,) = run.ask(request, 0).responses
        entry = answer.partitions[0] if hasattr(answer, "partitions") else answer
        assert entry.error_code == E.TOPIC_AUTHORIZATION_FAILED
    run.deny(DESCRIBE, GROUP, "g")
    run.deny(READ, GROUP, "g")
    run.deny(DELETE, GROUP, "g")
    (group,) = run.ask(describe(), 1).groups
    assert group.error_code == E.GROUP_AUTHORIZATION_FAILED
    assert run.ask(alter(u={0: 1}), 0).error_code == E.GROUP_AUTHORIZATION_FAILED
    assert run.ask(delete("u"), 0).error_code == E.GROUP_AUTHORIZATION_FAILED
    run.finalise(0)
    (group,) = run.ask(describe(), 1).groups
    assert group.error_code == E.UNSUPPORTED_VERSION
    assert run.ask(alter(u={0: 1}), 0).error_code == E.UNSUPPORTED_VERSION
    assert run.ask(delete("u"), 0).error_code == E.UNSUPPORTED_VERSION
