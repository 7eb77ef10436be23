"""Cases: share groups of KIP-932, and their offsets.

The assignment interval of each group is 0, so that epochs depend on no clock; what the share
coordinator answers is waited for.
"""

from __future__ import annotations

import time
from typing import Any

from tests.compare.group_cases import joined, ready
from tests.compare.side import Side

GROUP_RESOURCE, SET = 32, 0
WAIT_SECONDS = 10.0
_SETTINGS = {"share.assignment.interval.ms": "0", "share.heartbeat.interval.ms": "7000"}
_HEARTBEAT = "ShareGroupHeartbeat"


class Group:
    """One share group of the case, and the topic that its members read."""

    def __init__(self, side: Side, name: str, topic: str) -> None:
        self.side, self.name, self.topic = side, side.name(name), topic

    def fields(self, member: str, epoch: int, **more: Any) -> dict[str, Any]:
        return {"group_id": self.name, "member_id": member, "member_epoch": epoch} | more

    def join_fields(self, member: str, **more: Any) -> dict[str, Any]:
        return self.fields(member, 0, **({"subscribed_topic_names": [self.topic]} | more))

    def join(self, member: str) -> None:
        """Not compared; ends when it has partitions."""
        answer = self.side.latest(_HEARTBEAT, **self.join_fields(member))
        assert not answer.error_code, answer
        self.settle(member, answer.member_epoch)

    def settle(self, member: str, epoch: int) -> None:
        """Heartbeats until the member has partitions."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            again = self.fields(member, epoch, subscribed_topic_names=[self.topic])
            answer = self.side.latest(_HEARTBEAT, **again)
            assert not answer.error_code, answer
            epoch = answer.member_epoch
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return
            time.sleep(0.1)
        raise AssertionError(f"{self.side.kind}: {self.name} has nothing")

    def leave(self, member: str) -> None:
        self.side.latest(_HEARTBEAT, **self.fields(member, -1))


def groups(side: Side, topic: str, *names: str) -> list[Group]:
    """The settings of each are in force, and the share coordinator is there."""
    ready(side)
    made = [Group(side, name, topic) for name in names]
    for each in made:
        configs = [
            {"name": name, "config_operation": SET, "value": value}
            for name, value in _SETTINGS.items()
        ]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": each.name, "configs": configs}
        side.latest("IncrementalAlterConfigs", resources=[resource])
    side.settled(
        "FindCoordinator",
        lambda answer: not answer.coordinators[0].error_code,
        key_type=2,
        coordinator_keys=["warm:AAAAAAAAAAAAAAAAAAAAAQ:0"],
    )
    time.sleep(0.5)
    return made


def share_group_heartbeat(side: Side, version: int) -> None:
    topic = side.topic(partitions=4)
    one, two, other = groups(side, topic, "one", "two", "other")
    for label, fields in (
        ("member", one.join_fields("")),
        ("group", one.join_fields("a", group_id="")),
        ("rack", one.join_fields("a", rack_id="")),
        ("no names", one.join_fields("a", subscribed_topic_names=None)),
        ("empty names", one.join_fields("a", subscribed_topic_names=[])),
        ("epoch", one.fields("a", -2)),
        ("long member", one.join_fields("x" * 37)),
        ("missing", one.fields("a", 3)),
        ("leave, missing", one.fields("a", -1)),
    ):
        side.ask(f"refused: {label}", **fields)
    joined(side, other.name)
    side.ask("a classic group", **other.join_fields("a"))
    side.ask("a classic group, going on", **other.fields("a", 2))
    # one member
    side.ask("join", **one.join_fields("a"))
    one.settle("a", 2)
    side.ask("keep alive", **one.fields("a", 3))
    side.ask("join again", **one.join_fields("a"))
    side.ask("names again", **one.fields("a", 3, subscribed_topic_names=[topic]))
    side.ask("epoch before", **one.fields("a", 2))
    side.ask("epoch ahead", **one.fields("a", 4))
    side.ask("epoch behind", **one.fields("a", 1))
    side.ask("unknown member", **one.fields("b", 3))
    side.ask("another name", **one.fields("a", 3, subscribed_topic_names=[topic, "nobody"]))
    side.ask("a rack", **one.fields("a", 4, rack_id="r"))
    side.ask("no names any more", **one.fields("a", 4, subscribed_topic_names=[]))
    side.ask("names again, after none", **one.fields("a", 5, subscribed_topic_names=[topic]))
    side.ask("leave", **one.fields("a", -1))
    side.ask("leave again", **one.fields("a", -1))
    side.ask("join the empty group", **one.join_fields("a"))
    # several members
    two.join("a")
    side.ask("second", _counted, **two.join_fields("b"))
    for member in "cd":
        side.latest(_HEARTBEAT, **two.join_fields(member))
    side.ask("first, of four", _counted, **two.fields("a", 3))
    two.leave("b")
    two.leave("c")
    side.ask("first, of two", _counted, **two.fields("a", 6))


def _counted(answer: Any) -> None:
    """Whose partitions are whose is a hash map's in Kafka: how many are compared."""
    for each in () if answer.assignment is None else answer.assignment.topic_partitions:
        each.partitions = [len(each.partitions)]


def share_group_describe(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    one, empty = groups(side, topic, "one", "empty")
    classic = side.name("classic")
    joined(side, classic)
    one.join("a")
    empty.join("a")
    empty.leave("a")
    for label, name in (
        ("one", one.name),
        ("empty", empty.name),
        ("classic", classic),
        ("nobody", "nobody"),
        ("empty id", ""),
    ):
        side.ask(label, group_ids=[name])
    side.ask("none", group_ids=[])
    side.ask("operations", group_ids=[one.name, "nobody"], include_authorized_operations=True)

    def noted(label: str, api: str, **fields: Any) -> None:
        side.note(label, side.latest(api, **fields))

    noted("described as consumer", "ConsumerGroupDescribe", group_ids=[one.name])
    noted("described as classic", "DescribeGroups", groups=[one.name])
    listed = side.latest("ListGroups", types_filter=["Share"])
    listed.groups = sorted(
        (each for each in listed.groups if each.group_id.startswith(side.prefix)),
        key=lambda each: each.group_id,
    )
    side.note("listed", listed)
    for label, group in (("", one), (", empty", empty)):
        part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"}
        wanted = {"topic_id": side.id_of(topic), "partitions": [part]}
        noted(
            f"commit{label}",
            "OffsetCommit",
            group_id=group.name,
            member_id="",
            generation_id_or_member_epoch=-1,
            topics=[wanted],
        )
        topics = [{"topic_id": side.id_of(topic), "partition_indexes": [0]}]
        for who in ({}, {"member_id": "a", "member_epoch": 3}):
            asked = [{"group_id": group.name, "topics": topics} | who]
            noted(f"fetch{label} {who}", "OffsetFetch", groups=asked)
        noted(
            f"delete offsets{label}",
            "OffsetDelete",
            group_id=group.name,
            topics=[{"name": topic, "partitions": [{"partition_index": 0}]}],
        )
        heartbeat = {"group_id": group.name, "member_id": "a", "generation_id": 3}
        noted(f"heartbeat{label}", "Heartbeat", **heartbeat)
        members = [{"member_id": "a"}, {"member_id": "", "group_instance_id": "i"}]
        noted(f"leave{label}", "LeaveGroup", group_id=group.name, members=members)
        consumer = {
            "group_id": group.name,
            "member_id": "c",
            "member_epoch": 0,
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": [topic],
            "topic_partitions": [],
        }
        noted(f"consumer joins{label}", "ConsumerGroupHeartbeat", **consumer)
    noted("delete", "DeleteGroups", groups_names=[one.name])
    noted("delete the empty one", "DeleteGroups", groups_names=[empty.name])
    noted("delete it again", "DeleteGroups", groups_names=[empty.name])


def _starts(topic: str, starts: dict[int, int]) -> dict[str, Any]:
    partitions = [{"partition_index": each, "start_offset": at} for each, at in starts.items()]
    return {"topic_name": topic, "partitions": partitions}


def alter_share_group_offsets(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    one, full, other = groups(side, topic, "one", "full", "other")
    full.join("a")
    joined(side, other.name)
    for label, group, topics in (
        ("new group", one.name, [_starts(topic, {0: 5, 1: 0})]),
        ("again", one.name, [_starts(topic, {0: 7})]),
        ("partition that is not there", one.name, [_starts(topic, {2: 1, 9: 3})]),
        ("topic that is not there", one.name, [_starts("nobody", {0: 1})]),
        ("no topics", one.name, []),
        ("members", full.name, [_starts(topic, {0: 5})]),
        ("classic group", other.name, [_starts(topic, {0: 5})]),
        ("empty group", "", [_starts(topic, {0: 5})]),
    ):
        side.ask(label, group_id=group, topics=topics)
    full.leave("a")
    side.ask("left alone", group_id=full.name, topics=[_starts(topic, {0: 5})])


def delete_share_group_offsets(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    one, full, other = groups(side, topic, "one", "full", "other")
    full.join("a")
    joined(side, other.name)
    starts = [_starts(topic, {0: 5, 1: 0})]
    side.latest("AlterShareGroupOffsets", group_id=one.name, topics=starts)
    for label, group, names in (
        ("missing", "nobody", [topic]),
        ("members", full.name, [topic]),
        ("classic group", other.name, [topic]),
        ("topic that is not there", one.name, ["nobody"]),
        ("no topics", one.name, []),
        ("all of it", one.name, [topic]),
        ("again", one.name, [topic]),
        ("empty group", "", [topic]),
    ):
        side.ask(label, group_id=group, topics=[{"topic_name": each} for each in names])


def describe_share_group_offsets(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    one, full, other = groups(side, topic, "one", "full", "other")
    full.join("a")
    joined(side, other.name)
    starts = [_starts(topic, {0: 5, 1: 0})]
    side.latest("AlterShareGroupOffsets", group_id=one.name, topics=starts)

    def ask(label: str, group: str, topics: list[tuple[str, list[int]]] | None) -> None:
        named = None
        if topics is not None:
            named = [{"topic_name": name, "partitions": numbers} for name, numbers in topics]
        side.ask(label, _in_order, groups=[{"group_id": group, "topics": named}])

    ask("all", one.name, None)
    ask("all, never read", full.name, None)
    ask("some", one.name, [(topic, [0, 2])])
    # Kafka never answers about a partition that is not there.
    ask("topic that is not there", one.name, [("nobody", [0])])
    ask("no topics", one.name, [])
    ask("missing", "nobody", None)
    ask("missing, some", "nobody", [(topic, [0])])
    ask("classic group", other.name, None)
    ask("classic group, some", other.name, [(topic, [0])])
    ask("empty group", "", None)
    side.ask("none", groups=[])


def _in_order(answer: Any) -> None:
    for group in answer.groups:
        for topic in group.topics:
            topic.partitions.sort(key=lambda each: each.partition_index)
