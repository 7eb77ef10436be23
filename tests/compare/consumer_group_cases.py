"""Cases: consumer groups of KIP-848.

Ids of members are the cases' own. The assignment interval of each group is 0, so that epochs depend
on no clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.compare.group_cases import joined, ready
from tests.compare.side import Side
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from twisted_broker.wire.schema import encode

GROUP_RESOURCE, SET = 32, 0
_SETTINGS = {"consumer.assignment.interval.ms": "0", "consumer.heartbeat.interval.ms": "7000"}


class Group:
    """One group of the case, and the topic that its members read."""

    def __init__(self, side: Side, name: str, topic: str) -> None:
        self.side, self.name, self.topic = side, side.name(name), topic

    def fields(self, member: str, epoch: int, **more: Any) -> dict[str, Any]:
        return {"group_id": self.name, "member_id": member, "member_epoch": epoch} | more

    def join_fields(self, member: str, **more: Any) -> dict[str, Any]:
        join = {
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": [self.topic],
            "topic_partitions": [],
        }
        return self.fields(member, 0, **(join | more))

    def owned(self, *partitions: int) -> list[dict[str, Any]]:
        if not partitions:
            return []
        return [{"topic_id": self.side.id_of(self.topic), "partitions": list(partitions)}]

    def join(self, member: str, **more: Any) -> Any:
        """Not compared."""
        answer = self.side.latest("ConsumerGroupHeartbeat", **self.join_fields(member, **more))
        assert not answer.error_code, answer
        return answer


def groups(side: Side, topic: str, *names: str) -> list[Group]:
    """The settings of each are in force."""
    ready(side)
    made = [Group(side, name, topic) for name in names]
    for each in made:
        configs = [
            {"name": name, "config_operation": SET, "value": value}
            for name, value in _SETTINGS.items()
        ]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": each.name, "configs": configs}
        side.latest("IncrementalAlterConfigs", resources=[resource])
    time.sleep(0.5)
    return made


def consumer_group_heartbeat(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    one, two, static, nobody = groups(side, topic, "one", "two", "static", "nobody")
    classic = side.name("classic")
    joined(side, classic)

    def refused(label: str, group: Group = nobody, member: str = "a", **more: Any) -> None:
        side.ask(label, **(group.join_fields(member) | more))

    # without the group
    refused("no group id", group_id="")
    refused("blank group id", group_id="  ")
    if version:
        refused("no member id", member="")
    refused("no member id, epoch 1", member="", member_epoch=1)
    refused("empty instance", instance_id="")
    refused("empty rack", rack_id="")
    refused("no timeout", rebalance_timeout_ms=-1)
    refused("no partitions", topic_partitions=None)
    refused("partitions", topic_partitions=nobody.owned(0))
    refused("no names", subscribed_topic_names=None)
    refused("epoch -2 without instance", member_epoch=-2)
    refused("epoch -3", member_epoch=-3)
    refused("unknown assignor", server_assignor="who")
    refused("unknown assignor, epoch 7", server_assignor="who", member_epoch=7)
    # which group
    refused("epoch 1 of nothing", member_epoch=1)
    refused("leave nothing", member_epoch=-1)
    refused("a classic group", group_id=classic)
    refused("leave a classic group", group_id=classic, member_epoch=-1)
    if version:
        refused("bad pattern", subscribed_topic_regex="(", subscribed_topic_names=None)
    # one member
    side.ask("join", **one.join_fields("a"))
    side.ask("keep alive", **one.fields("a", 2))
    side.ask("the same again", **one.join_fields("a"))
    side.ask("owns all", **one.fields("a", 2, topic_partitions=one.owned(0, 1, 2)))
    side.ask("full", **(one.join_fields("a") | {"member_epoch": 2}))
    side.ask("epoch ahead", **one.fields("a", 3))
    side.ask("epoch behind", **one.fields("a", 1))
    side.ask("unknown member", **one.fields("b", 2))
    side.ask("unknown instance", **one.fields("a", 2, instance_id="i"))
    side.ask("another name", **one.fields("a", 2, subscribed_topic_names=[topic, "nobody"]))
    side.ask("after another name", **one.fields("a", 3))
    side.ask("range", **one.fields("a", 3, server_assignor="range"))
    side.ask("no topics", **one.fields("a", 3, subscribed_topic_names=[]))
    side.ask("gives all up", **one.fields("a", 3, topic_partitions=[]))
    side.ask("leave", **one.fields("a", -1))
    side.ask("leave again", **one.fields("a", -1))
    side.ask("join again", **one.join_fields("a"))
    # two members
    side.ask("first", **two.join_fields("a", server_assignor="range"))
    side.ask("second", **two.join_fields("b"))
    side.ask("first is told", **two.fields("a", 2))
    side.ask("first keeps on", **two.fields("a", 2, topic_partitions=two.owned(0, 1, 2)))
    side.ask("second waits", **two.fields("b", 3))
    side.ask("first gives up", **two.fields("a", 2, topic_partitions=two.owned(0, 1)))
    side.ask("second gets", **two.fields("b", 3))
    side.ask("first, its old epoch", **two.fields("a", 2, topic_partitions=two.owned(0, 1)))
    side.ask("first, old, owns too much", **two.fields("a", 2, topic_partitions=two.owned(0, 2)))
    side.ask("first leaves", **two.fields("a", -1))
    side.ask("second has all", **two.fields("b", 3))
    # static
    side.ask("static", **static.join_fields("a", instance_id="i"))
    side.ask("taken", **static.join_fields("b", instance_id="i"))
    side.ask("taken, itself", **static.join_fields("a", instance_id="i"))
    side.ask("another's instance", **static.fields("b", 2, instance_id="i"))
    side.ask("leave, another's instance", **static.fields("b", -1, instance_id="i"))
    side.ask("away", **static.fields("a", -2, instance_id="i"))
    side.ask("away again", **static.fields("a", -2, instance_id="i"))
    side.ask("away, any epoch", **static.fields("a", 2, instance_id="i"))
    side.ask("back", **static.join_fields("c", instance_id="i"))
    side.ask("the one before", **static.fields("a", 2, instance_id="i"))
    side.ask("leaves for good", **static.fields("c", -1, instance_id="i"))
    _migration(side, topic)


class ClassicMember:
    """A classic consumer of the group; every answer of its is noted."""

    def __init__(self, group: Group, label: str, instance: str | None = None) -> None:
        self.group, self.side, self.label = group, group.side, label
        self.instance, self.id, self.generation = instance, "", -1

    def metadata(self, *owned: int) -> bytes:
        said = ConsumerProtocolSubscription(topics=[self.group.topic])
        if owned:
            said.owned_partitions = [
                ConsumerProtocolSubscriptionTopicPartition(
                    topic=self.group.topic, partitions=list(owned)
                )
            ]
        return b"\0\1" + encode(said, 1)

    def _note(self, label: str, answer: Any) -> Any:
        return self.side.note(f"{self.label}: {label}", answer)

    def join(self, label: str, *owned: int, **more: Any) -> None:
        protocol = {"name": "range", "metadata": self.metadata(*owned)}
        fields = {
            "group_id": self.group.name,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [protocol],
        } | more
        answer = self.side.latest("JoinGroup", **fields)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._note(f"{label}, id", self._hidden(answer))
            answer = self.side.latest("JoinGroup", **(fields | {"member_id": self.id}))
        if not answer.error_code:
            self.generation = answer.generation_id
        self._note(label, self._hidden(answer))

    def _hidden(self, answer: Any) -> Any:
        if answer.member_id:
            self.id = answer.member_id
            self.side.hide(self.id, f"({self.label})")
        return answer

    def sync(self, label: str, *given: int, **more: Any) -> None:
        said = ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignmentTopicPartition(
                    topic=self.group.topic, partitions=list(given)
                )
            ]
        )
        assignment = {"member_id": self.id, "assignment": b"\0\1" + encode(said, 1)}
        fields = {
            "group_id": self.group.name,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [assignment] if given else [],
        } | more
        self._note(label, self.side.latest("SyncGroup", **fields))

    def beat(self, label: str, **more: Any) -> None:
        fields = {
            "group_id": self.group.name,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        } | more
        self._note(label, self.side.latest("Heartbeat", **fields))


def _migration(side: Side, topic: str) -> None:
    """Groups that change their protocol with members."""
    up, static, other = groups(side, topic, "up", "up-static", "up-other")
    ready(side)

    def looked_at(label: str, group: Group) -> None:
        answer = side.latest("DescribeGroups", groups=[group.name])
        answer.groups[0].members.sort(key=lambda each: each.member_assignment)
        side.note(f"{label}, as classic", answer)
        listed = side.latest("ListGroups")
        listed.groups = [each for each in listed.groups if each.group_id == group.name]
        side.note(f"{label}, listed", listed)

    one = ClassicMember(up, "one")
    one.join("first")
    one.sync("first", 0, 1, 2)
    side.ask("upgrade", **up.join_fields("m"))
    looked_at("upgraded", up)
    one.beat("told")
    one.beat("another generation", generation_id=7)
    one.beat("unknown", member_id="who")
    one.sync("told")
    one.join("to give up", 0, 1, 2)
    one.sync("to give up")
    one.sync("another protocol", protocol_name="who")
    one.sync("another type", protocol_type="who")
    one.beat("gives up")
    one.join("gave up", 0, 1)
    one.sync("gave up")
    one.beat("settled")
    side.ask("has the rest", **up.fields("m", 2, topic_partitions=[]))
    two = ClassicMember(up, "two")
    two.join("another type", protocol_type="who")
    two.join("another protocol", protocols=[{"name": "who", "metadata": two.metadata()}])
    two.join("comes")
    two.sync("comes")
    two.beat("waits")
    two.join("an instance, an id", group_instance_id="i", member_id="who")
    two.beat("an instance", group_instance_id="i")
    side.ask("goes", **up.fields("m", -1))
    looked_at("downgraded", up)
    one.beat("after all")
    side.ask("gone", **up.fields("m", 3))
    # static
    side.ask("static", **static.join_fields("m", instance_id="i"))
    kept = ClassicMember(static, "kept", "i")
    kept.join("replaces")
    looked_at("replaced", static)
    kept.sync("replaces")
    kept.beat("replaces")
    side.ask("replaced back", **static.join_fields("n", instance_id="i"))
    kept.beat("fenced")
    looked_at("replaced back", static)
    # not a consumer's
    own = ClassicMember(other, "own")
    own.join("own", protocol_type="own")
    own.sync("own", 0, protocol_type="own")
    side.ask("of another type", **other.join_fields("m"))


def consumer_group_describe(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    one, empty, waits = groups(side, topic, "one", "empty", "waits")
    classic = side.name("classic")
    joined(side, classic)
    one.join("a", instance_id="i", rack_id="r", server_assignor="range")
    empty.join("a")
    side.latest("ConsumerGroupHeartbeat", **empty.fields("a", -1))
    waits.join("a", server_assignor="range")
    waits.join("b")
    side.latest("ConsumerGroupHeartbeat", **waits.fields("a", 2))
    for label, name in (
        ("one", one.name),
        ("empty", empty.name),
        ("gives up", waits.name),
        ("classic", classic),
        ("nobody", "nobody"),
        ("empty id", ""),
    ):
        answer = side.ask(label, group_ids=[name])
        for group in answer.groups:
            group.members.sort(key=lambda member: member.member_id)
    side.ask("none", group_ids=[])
    side.ask("operations", group_ids=[one.name, "nobody"], include_authorized_operations=True)
    _older_apis(side, topic, one, empty)


def offsets_of_members(side: Side, noted: Callable[..., None], group_id: str, topic: str) -> None:
    """Commits, fetches and deletes offsets of a group whose member `a` is at epoch 2."""
    for label, member, epoch in (
        ("commit", "a", 2),
        ("commit, old", "a", 1),
        ("commit, ahead", "a", 9),
        ("commit, unknown", "b", 2),
        ("commit, nobody", "", -1),
    ):
        part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"}
        wanted = {"topic_id": side.id_of(topic), "partitions": [part]}
        noted(
            label,
            "OffsetCommit",
            group_id=group_id,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            topics=[wanted],
        )
    for label, who in (
        ("fetch", {"member_id": "a", "member_epoch": 2}),
        ("fetch, old", {"member_id": "a", "member_epoch": 1}),
        ("fetch, no epoch", {"member_id": "a", "member_epoch": -1}),
        ("fetch, unknown", {"member_id": "b", "member_epoch": 2}),
        ("fetch, nobody", {}),
    ):
        topics = [{"topic_id": side.id_of(topic), "partition_indexes": [0]}]
        noted(label, "OffsetFetch", groups=[{"group_id": group_id, "topics": topics} | who])
    parts = [{"partition_index": 0}]
    noted(
        "delete offsets",
        "OffsetDelete",
        group_id=group_id,
        topics=[{"name": topic, "partitions": parts}],
    )


def _older_apis(side: Side, topic: str, one: Group, empty: Group) -> None:
    """What the APIs of all groups say of these: at their newest versions, once for each version of
    the description.
    """

    def noted(label: str, api: str, **fields: Any) -> None:
        side.note(label, side.latest(api, **fields))

    noted("described as classic", "DescribeGroups", groups=[one.name])
    noted("delete", "DeleteGroups", groups_names=[one.name])
    listed = side.latest("ListGroups", types_filter=["Consumer"])
    listed.groups = sorted(
        (each for each in listed.groups if each.group_id.startswith(side.prefix)),
        key=lambda each: each.group_id,
    )
    side.note("listed", listed)
    offsets_of_members(side, noted, one.name, topic)
    for label, name in (("heartbeat", one.name), ("heartbeat, empty", empty.name)):
        noted(label, "Heartbeat", group_id=name, member_id="a", generation_id=2)
    noted(
        "leave by name",
        "LeaveGroup",
        group_id=one.name,
        members=[{"member_id": "b"}, {"member_id": "", "group_instance_id": "i"}],
    )
    noted("delete the rest", "DeleteGroups", groups_names=[one.name, empty.name])
    noted("delete again", "DeleteGroups", groups_names=[one.name])
