"""Cases: streams groups of KIP-1071.

Ids of members are the cases' own. The assignment interval of each group is 0, so that epochs depend
on no clock; the delay of the first target is 0 but in one group, where it does not end.
"""

from __future__ import annotations

import time
from typing import Any

from tests.compare.consumer_group_cases import offsets_of_members
from tests.compare.group_cases import joined, ready
from tests.compare.side import Side

GROUP_RESOURCE, SET = 32, 0
_SETTINGS = {
    "streams.assignment.interval.ms": "0",
    "streams.heartbeat.interval.ms": "7000",
    "streams.initial.rebalance.delay.ms": "0",
}
STALE_SECONDS = 0.5


def info(name: str, partitions: int = 0, **configs: str) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": partitions,
        "replication_factor": 1,
        "topic_configs": [
            {"key": key.replace("_", "."), "value": value} for key, value in configs.items()
        ],
    }


def subtopology(id: str = "0", **fields: Any) -> dict[str, Any]:
    return {"subtopology_id": id} | fields


class Group:
    """One group of the case, and the topic that its application reads."""

    def __init__(self, side: Side, name: str, topic: str) -> None:
        self.side, self.name, self.topic = side, side.name(name), topic

    def topology(self, epoch: int = 0, *subtopologies: dict[str, Any]) -> dict[str, Any]:
        of_one = [subtopology(source_topics=[self.topic])]
        return {"epoch": epoch, "subtopologies": list(subtopologies) or of_one}

    def fields(self, member: str, epoch: int, **more: Any) -> dict[str, Any]:
        return {"group_id": self.name, "member_id": member, "member_epoch": epoch} | more

    def join_fields(self, member: str, **more: Any) -> dict[str, Any]:
        join = {
            "rebalance_timeout_ms": 30_000,
            "topology": self.topology(),
            "process_id": f"p{member}",
        }
        return self.fields(member, 0, **(join | owned() | more))

    def join(self, member: str, **more: Any) -> Any:
        """Not compared."""
        answer = self.side.latest("StreamsGroupHeartbeat", **self.join_fields(member, **more))
        assert not answer.error_code, answer
        return answer


def owned(*active: tuple[str, list[int]]) -> dict[str, Any]:
    lists = [{"subtopology_id": id, "partitions": numbers} for id, numbers in active]
    return {"active_tasks": lists, "standby_tasks": [], "warmup_tasks": []}


def groups(side: Side, topic: str, *names: str, **settings: str) -> list[Group]:
    """The settings of each are in force."""
    ready(side)
    made = [Group(side, name, topic) for name in names]
    for each in made:
        configs = [
            {"name": name, "config_operation": SET, "value": value}
            for name, value in (_SETTINGS | settings).items()
        ]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": each.name, "configs": configs}
        side.latest("IncrementalAlterConfigs", resources=[resource])
    time.sleep(STALE_SECONDS)
    return made


def streams_group_heartbeat(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    one, two, inner, nobody = groups(side, topic, "one", "two", "inner", "nobody")
    classic = side.name("classic")
    joined(side, classic)
    _refusals(side, nobody, classic)
    _one_member(side, one)
    _two_members(side, two)
    _internal_topics(side, inner)
    # Before the settings, which take a moment: both are there then.
    store = side.topic("store", partitions=3)
    (standby,) = groups(side, topic, "standby", **{"streams.num.standby.replicas": "1"})
    _standbys(side, standby, store)
    (delayed,) = groups(side, topic, "delayed", **{"streams.initial.rebalance.delay.ms": "600000"})
    side.ask("delayed", **delayed.join_fields("a"))
    side.ask("delayed, a second", **delayed.join_fields("b"))
    side.ask("delayed, keep alive", **delayed.fields("a", 1))
    side.ask("delayed, leave", **delayed.fields("b", -1))


def _refusals(side: Side, nobody: Group, classic: str) -> None:
    def refused(label: str, member: str = "a", **more: Any) -> None:
        side.ask(label, **(nobody.join_fields(member) | more))

    topic = nobody.topic
    refused("no group id", group_id="")
    refused("no member id", member="")
    refused("blank member id", member="  ")
    refused("instance", instance_id="i")
    refused("task offsets", task_offsets=[])
    refused("task end offsets", task_end_offsets=[])
    refused("warm-ups", warmup_tasks=[{"subtopology_id": "0", "partitions": [0]}])
    regex = subtopology(source_topics=[topic], source_topic_regex=["x"])
    refused("pattern", topology=nobody.topology(0, regex))
    refused("empty rack", rack_id="")
    refused("no timeout", rebalance_timeout_ms=-1)
    refused("no active tasks", active_tasks=None)
    refused("owns tasks", **owned(("0", [0])))
    refused("no topology", topology=None)
    changelog = subtopology(source_topics=[topic], state_changelog_topics=[info("c", 2)])
    refused("changelog with partitions", topology=nobody.topology(0, changelog))
    refused("epoch -2", member_epoch=-2, topology=None)
    refused("epoch -3", member_epoch=-3, topology=None)
    refused("one list", member_epoch=1, topology=None, standby_tasks=None)
    refused("topology with epoch 1", member_epoch=1)
    internal = subtopology(source_topics=["__consumer_offsets"])
    refused("internal topic", topology=nobody.topology(0, internal))
    refused("bad name", topology=nobody.topology(0, subtopology(source_topics=["a b"])))
    refused("epoch 1 of nothing", member_epoch=1, topology=None)
    refused("leave nothing", member_epoch=-1, topology=None)
    refused("a classic group", group_id=classic)
    refused("leave a classic group", group_id=classic, member_epoch=-1, topology=None)
    unread = subtopology(repartition_source_topics=[info("r")])
    refused("nobody writes it", topology=nobody.topology(0, unread))
    loop = subtopology(repartition_source_topics=[info("r")], repartition_sink_topics=["r"])
    refused("loop", topology=nobody.topology(0, loop))
    refused("no sources", topology=nobody.topology(0, subtopology()))


def _one_member(side: Side, one: Group) -> None:
    side.ask("join", **one.join_fields("a"))
    side.ask("keep alive", **one.fields("a", 2))
    side.ask("the same again", **one.join_fields("a"))
    side.ask("owns all", **one.fields("a", 2, **owned(("0", [0, 1, 2]))))
    side.ask("owns too much", **one.fields("a", 2, **owned(("0", [3]))))
    side.ask("owns of another", **one.fields("a", 2, **owned(("9", [0]))))
    side.ask("epoch ahead", **one.fields("a", 3))
    side.ask("epoch behind", **one.fields("a", 1))
    side.ask("unknown member", **one.fields("b", 2))
    other = one.topology(0, subtopology("1", source_topics=[one.topic]))
    side.ask("another topology", **one.join_fields("a", topology=other))
    side.ask("a newer topology", **one.join_fields("a", topology=one.topology(1)))
    side.ask("rack", **one.fields("a", 2, rack_id="r", **owned(("0", [0, 1, 2]))))
    endpoint = {"host": "h", "port": 1234}
    side.ask("endpoint", **one.fields("a", 3, user_endpoint=endpoint))
    side.ask("endpoint, seen", **one.fields("a", 4, endpoint_information_epoch=0))
    side.ask("endpoint, not seen", **one.fields("a", 4, endpoint_information_epoch=-1))
    side.ask("tags", **one.fields("a", 4, client_tags=[{"key": "k", "value": "v"}]))
    side.ask("shut down", **one.fields("a", 5, shutdown_application=True))
    side.ask("after shut down", **one.fields("a", 5))
    side.ask("leave", **one.fields("a", -1))
    side.ask("leave again", **one.fields("a", -1))
    side.ask("join again", **one.join_fields("a", user_endpoint=endpoint))
    side.ask("leave, shut down", **one.fields("a", -1, shutdown_application=True))


def _two_members(side: Side, two: Group) -> None:
    endpoint = {"host": "h", "port": 1234}
    side.ask("first", **two.join_fields("a", user_endpoint=endpoint))
    side.ask("second", **two.join_fields("b"))
    side.ask("first is told", **two.fields("a", 2))
    side.ask("first keeps on", **two.fields("a", 2, **owned(("0", [0, 1, 2]))))
    side.ask("second waits", **two.fields("b", 3))
    side.ask("first gives up", **two.fields("a", 2, **owned(("0", [0, 1]))))
    side.ask("second gets", **two.fields("b", 3))
    side.ask("first, its old epoch", **two.fields("a", 2, **owned(("0", [0]))))
    side.ask("first, old, owns too much", **two.fields("a", 2, **owned(("0", [0, 2]))))
    side.ask("third, stale", **two.join_fields("c", topology=two.topology(0)))
    side.ask("first leaves", **two.fields("a", -1))
    side.ask("second has more", **two.fields("b", 4))


def _internal_topics(side: Side, inner: Group) -> None:
    app = inner.topology(
        5,
        subtopology(source_topics=[inner.topic], repartition_sink_topics=[side.name("rep")]),
        subtopology(
            "1",
            repartition_source_topics=[info(side.name("rep"))],
            state_changelog_topics=[info(side.name("log"), cleanup_policy="compact")],
        ),
    )
    answer = side.ask("internal topics are missing", **inner.join_fields("a", topology=app))
    for each in answer.status:
        # In the order of a hash map.
        what, _, names = each.status_detail.partition(": ")
        each.status_detail = f"{what}: {', '.join(sorted(names.split(', ')))}"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = side.latest(
            "Metadata", topics=[{"name": side.name(each)} for each in ("rep", "log")]
        )
        if not any(each.error_code for each in found.topics):
            break
        time.sleep(0.1)
    time.sleep(STALE_SECONDS)
    side.ask("internal topics are there", **inner.fields("a", 2))
    stale = inner.topology(4, subtopology(source_topics=[inner.topic]))
    side.ask("stale topology", **inner.join_fields("b", topology=stale))
    side.ask("stale topology, again", **inner.fields("b", 4))
    missing = inner.topology(0, subtopology(source_topics=["nowhere", "never"]))
    (other,) = groups(side, inner.topic, "missing")
    side.ask("sources are missing", **other.join_fields("a", topology=missing))
    side.ask("sources are still missing", **other.fields("a", 2))
    fixed = inner.topology(
        0,
        subtopology(
            source_topics=[inner.topic],
            repartition_sink_topics=["r5"],
            repartition_source_topics=[info("r5", 5)],
            copartition_groups=[{"source_topics": [0], "repartition_source_topics": [0]}],
        ),
    )
    (unlike,) = groups(side, inner.topic, "unlike")
    side.ask("not alike", **unlike.join_fields("a", topology=fixed))
    grown = inner.topology(
        0,
        subtopology(
            source_topics=[inner.topic],
            repartition_sink_topics=[side.name("rep")],
            repartition_source_topics=[info(side.name("rep"), 2)],
        ),
    )
    (existing,) = groups(side, inner.topic, "existing")
    side.ask("another number", **existing.join_fields("a", topology=grown))


def _standbys(side: Side, group: Group, store: str) -> None:
    app = group.topology(
        0,
        subtopology(
            source_topics=[group.topic],
            state_changelog_topics=[info(store)],
        ),
    )
    side.ask("alone", **group.join_fields("a", topology=app))
    side.ask("in another process", **group.join_fields("b", topology=app))
    side.ask("told to give up", **group.fields("a", 2, **owned(("0", [0, 1, 2]))))
    side.ask("gives up", **group.fields("a", 2, **owned(("0", [0, 1]))))
    side.ask("gets what is free", **group.fields("b", 3))
    side.ask("settled", **group.fields("a", 3, **owned(("0", [0, 1]))))


def streams_group_describe(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    one, empty, waits = groups(side, topic, "one", "empty", "waits")
    classic = side.name("classic")
    joined(side, classic)
    tags = [{"key": "k", "value": "v"}]
    one.join("a", rack_id="r", user_endpoint={"host": "h", "port": 9}, client_tags=tags)
    empty.join("a")
    side.latest("StreamsGroupHeartbeat", **empty.fields("a", -1))
    missing = waits.topology(
        2,
        subtopology(
            source_topics=["z", "nowhere"],
            repartition_sink_topics=["r"],
            repartition_source_topics=[info("r", 3)],
            state_changelog_topics=[info("c", cleanup_policy="compact")],
        ),
    )
    waits.join("a", topology=missing)
    for label, name in (
        ("one", one.name),
        ("empty", empty.name),
        ("not ready", waits.name),
        ("classic", classic),
        ("nobody", "nobody"),
        ("empty id", ""),
    ):
        side.ask(label, group_ids=[name])
    side.ask("none", group_ids=[])
    side.ask("operations", group_ids=[one.name, "nobody"], include_authorized_operations=True)
    _older_apis(side, topic, one, empty)


def _older_apis(side: Side, topic: str, one: Group, empty: Group) -> None:
    """What the APIs of all groups say of these, at their newest versions."""

    def noted(label: str, api: str, **fields: Any) -> None:
        side.note(label, side.latest(api, **fields))

    noted("described as classic", "DescribeGroups", groups=[one.name])
    noted("delete", "DeleteGroups", groups_names=[one.name])
    for states in (None, ["not_ready"], ["Stable"]):
        listed = side.latest("ListGroups", types_filter=["Streams"], states_filter=states or [])
        listed.groups = sorted(
            (each for each in listed.groups if each.group_id.startswith(side.prefix)),
            key=lambda each: each.group_id,
        )
        side.note(f"listed {states}", listed)
    offsets_of_members(side, noted, one.name, topic)
    noted("consumer heartbeat", "ConsumerGroupHeartbeat", **_consumer(one.name, topic))
    noted("consumer heartbeat, empty", "ConsumerGroupHeartbeat", **_consumer(empty.name, topic))
    noted("described as consumer", "ConsumerGroupDescribe", group_ids=[one.name])
    noted("heartbeat", "Heartbeat", group_id=one.name, member_id="a", generation_id=2)
    noted("leave by name", "LeaveGroup", group_id=one.name, members=[{"member_id": "a"}])
    side.latest("StreamsGroupHeartbeat", **one.fields("a", -1))
    noted("delete the rest", "DeleteGroups", groups_names=[one.name, empty.name])
    noted("delete again", "DeleteGroups", groups_names=[one.name])


def _consumer(group: str, topic: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": "c",
        "member_epoch": 0,
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [],
    }
