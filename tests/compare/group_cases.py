"""Cases: groups and their offsets.

Every group here has one member, or none; those of several are in `members.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.compare.members import lives
from tests.compare.side import STANDS_FOR_LATIN_1, Side

LONG_ID = "g" * 300


def joined(side: Side, group: str, **more: Any) -> tuple[str, int]:
    """One member joins and syncs in a group of its own; its id, and the generation."""
    fields = {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\1"}],
    } | more
    answer = side.latest("JoinGroup", **fields)
    member = answer.member_id
    if answer.error_code:
        answer = side.latest("JoinGroup", **(fields | {"member_id": member}))
    assert not answer.error_code, answer
    side.hide(member, "(member)")
    given = [{"member_id": member, "assignment": b"\0\7"}]
    synced = side.latest(
        "SyncGroup",
        group_id=group,
        generation_id=answer.generation_id,
        member_id=member,
        group_instance_id=more.get("group_instance_id"),
        protocol_type="consumer",
        protocol_name="range",
        assignments=given,
    )
    assert not synced.error_code, synced
    return member, answer.generation_id


def ready(side: Side) -> None:
    """The topic of offsets is there (whoever looks for a coordinator has it created), and its
    coordinator serves.
    """
    side.latest("FindCoordinator", key_type=0, coordinator_keys=["warm-up"])
    side.settled(
        "OffsetFetch",
        lambda answer: not answer.groups[0].error_code,
        groups=[{"group_id": "warm-up", "topics": None}],
    )


def find_coordinator(side: Side, version: int) -> None:
    side.settled(
        "FindCoordinator",
        lambda answer: not answer.coordinators[0].error_code,
        key_type=0,
        coordinator_keys=["warm-up"],
    )
    keys = [side.name("g"), side.name("h")]

    def found(label: str, kind: int, *names: str) -> None:
        side.ask(label, key=names[0] if names else "", key_type=kind, coordinator_keys=list(names))

    found("a group", 0, keys[0])
    found("two groups", 0, *keys)
    found("empty key", 0, "")
    found("no keys", 0)
    found("a long key", 0, LONG_ID)
    found("not UTF-8", 0, STANDS_FOR_LATIN_1.decode())
    if version >= 1:
        for kind in (2, 3, 5, -1):
            found(f"type {kind}", kind, keys[0])
        found("type 2, a share group's key", 2, f"{keys[0]}:AAAAAAAAAAAAAAAAAAAAAQ:0")


def join_group(side: Side, version: int) -> None:
    ready(side)
    lives(side)
    group = side.name("g")

    def asked(label: str, name: str = group, **more: Any) -> Any:
        fields = {
            "group_id": name,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 1000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\1"}],
        }
        answer = side.ask(label, **(fields | more))
        member_id = getattr(answer, "member_id", "")
        if len(member_id) > len("who"):
            side.hide(member_id, f"(member of {name})")
        return answer

    first = asked("a member without id")
    member = first.member_id
    if first.error_code:
        asked("with its id", member_id=member)
    asked("unknown id", member_id="who")
    asked("other protocol", member_id=member, protocols=[{"name": "other", "metadata": b""}])
    asked("other protocol type", member_id=member, protocol_type="connect")
    asked("no protocols", side.name("none"), protocols=[])
    asked("no protocol type", side.name("no-type"), protocol_type="")
    asked("empty group id", "")
    asked("a long group id", LONG_ID)
    for timeout in (0, 10, 5999, 1_800_001, -1):
        asked(f"session timeout {timeout}", side.name("timeouts"), session_timeout_ms=timeout)
    twice = [{"name": "range", "metadata": b"1"}, {"name": "range", "metadata": b"2"}]
    asked("a protocol twice", side.name("twice"), protocols=twice)
    if version >= 5:
        asked("a static member", side.name("static"), group_instance_id="i1")
        asked("empty instance id", side.name("static2"), group_instance_id="")
        asked("bad instance id", side.name("static3"), group_instance_id="a b")


def _as_somebody_else(asked: Callable[..., None], version: int) -> None:
    """What a member is refused for: another generation, member, group or instance."""
    for wrong in (-1, 0, 9):
        asked(f"generation {wrong}", generation_id=wrong)
    asked("unknown member", member_id="who")
    asked("empty member", member_id="")
    asked("unknown group", group_id="nobody")
    asked("empty group", group_id="")
    if version >= 3:
        asked("unknown instance", group_instance_id="i9")


def sync_group(side: Side, version: int) -> None:
    ready(side)
    lives(side)
    group = side.name("g")
    member, generation = joined(side, group)

    def asked(label: str, **more: Any) -> None:
        fields = {
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        }
        side.ask(label, **(fields | more))

    asked("again")
    asked("with assignments", assignments=[{"member_id": member, "assignment": b"new"}])
    asked("for a stranger", assignments=[{"member_id": "who", "assignment": b"x"}])
    _as_somebody_else(asked, version)
    if version >= 5:
        asked("other protocol", protocol_name="other")
        asked("no protocol", protocol_name=None, protocol_type=None)
        asked("other type", protocol_type="connect")


def heartbeat(side: Side, version: int) -> None:
    ready(side)
    lives(side)
    group = side.name("g")
    member, generation = joined(side, group)

    def asked(label: str, **more: Any) -> None:
        fields = {"group_id": group, "generation_id": generation, "member_id": member}
        side.ask(label, **(fields | more))

    asked("a member")
    _as_somebody_else(asked, version)


def leave_group(side: Side, version: int) -> None:
    ready(side)
    lives(side)
    group = side.name("g")
    member, _ = joined(side, group)

    def asked(label: str, *names: str, **more: Any) -> None:
        members = more.pop("members", [{"member_id": name} for name in names])
        fields = {"group_id": group, "member_id": names[0] if names else "", "members": members}
        side.ask(label, **(fields | more))

    asked("unknown member", "who")
    asked("unknown group", member, group_id="nobody")
    asked("empty group", member, group_id="")
    asked("nobody")
    if version >= 3:
        asked("unknown instance", members=[{"member_id": "", "group_instance_id": "i9"}])
        asked("one of two", "who", member)
    else:
        asked("a member", member)
    asked("again", member)
    if version >= 3:
        static, _ = joined(side, side.name("static"), group_instance_id="i1")
        where = {"group_id": side.name("static")}
        wrong = [{"member_id": "who", "group_instance_id": "i1"}]
        asked("static, wrong id", members=wrong, **where)
        right = [{"member_id": "", "group_instance_id": "i1"}]
        asked("static", members=right, **where)
        side.note("static member was there", bool(static))


def describe_groups(side: Side, version: int) -> None:
    ready(side)
    lives(side)
    stable, empty, gone = side.name("stable"), side.name("empty"), side.name("dead")
    joined(side, stable)
    member, _ = joined(side, empty)
    left = {"group_id": empty, "members": [{"member_id": member}]}
    side.latest("LeaveGroup", **left)
    committed(side, side.name("offsets"), side.topic())
    static = side.name("static")
    joined(side, static, group_instance_id="i1")
    for name in (stable, empty, gone, side.name("offsets"), static, ""):
        side.ask(f"group {name}", groups=[name])
    side.ask("operations", groups=[stable, gone], include_authorized_operations=True)
    side.ask("two", groups=[stable, empty])
    side.ask("twice", groups=[empty, empty])
    side.ask("none", groups=[])


def committed(side: Side, group: str, topic: str, offset: int = 5) -> None:
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}
    wanted = {"topic_id": side.id_of(topic), "partitions": [part]}
    answer = side.latest("OffsetCommit", group_id=group, topics=[wanted])
    assert not answer.topics[0].partitions[0].error_code, answer


def list_groups(side: Side, version: int) -> None:
    ready(side)
    lives(side)
    joined(side, side.name("stable"))
    committed(side, side.name("empty"), side.topic())

    def asked(label: str, **more: Any) -> None:
        """Only the groups of this case: those of others come and go."""
        answer = side.call("ListGroups", version, more)
        answer.groups = [each for each in answer.groups if each.group_id.startswith(side.prefix)]
        side.note(label, answer)

    asked("all")
    if version >= 4:
        for states in (["Stable"], ["stable"], ["Empty", "Dead"], ["what"], [""]):
            asked(f"states {states}", states_filter=states)
    if version >= 5:
        for types in (["classic"], ["Classic"], ["consumer"], ["what"], [""]):
            asked(f"types {types}", types_filter=types)


def delete_groups(side: Side, version: int) -> None:
    ready(side)
    lives(side)
    busy, empty = side.name("busy"), side.name("empty")
    joined(side, busy)
    committed(side, empty, side.topic())
    for label, names in (
        ("busy", [busy]),
        ("unknown", ["nobody"]),
        ("empty id", [""]),
        ("none", []),
        ("twice", [empty, empty]),
        ("again", [empty]),
    ):
        side.ask(label, groups_names=names)


def offset_commit(side: Side, version: int) -> None:
    ready(side)
    lives(side)
    topic = side.topic(partitions=2)
    group, live = side.name("g"), side.name("live")
    member, generation = joined(side, live)

    def asked(label: str, group_id: str = group, name: str = topic, **more: Any) -> None:
        part = {
            "partition_index": more.pop("partition", 0),
            "committed_offset": more.pop("offset", 7),
            "committed_metadata": more.pop("metadata", "m"),
            "committed_leader_epoch": more.pop("epoch", -1),
        }
        wanted = {
            "name": name,
            "topic_id": side.id_of(name),
            "partitions": [part] * more.pop("times", 1),
        }
        side.ask(label, **({"group_id": group_id, "topics": [wanted]} | more))

    asked("a group of its own")
    asked("epoch", epoch=3)
    asked("epoch -2", epoch=-2)
    for offset in (-1, -5, 0, 2**62):
        asked(f"offset {offset}", offset=offset)
    asked("no metadata", metadata=None)
    asked("long metadata", metadata="m" * 4097)
    asked("no such partition", partition=9)
    asked("partition -1", partition=-1)
    asked("no such topic", name="nobody")
    asked("named twice", times=2)
    asked("empty group", "")
    asked("no topics", topics=[])
    if version >= 1:
        who = {"member_id": member, "generation_id_or_member_epoch": generation}
        asked("a member", live, **who)
        asked("no member in a live group", live)
        asked("old generation", live, **(who | {"generation_id_or_member_epoch": 0}))
        asked("generation ahead", live, **(who | {"generation_id_or_member_epoch": 9}))
        asked("unknown member", live, **(who | {"member_id": "who"}))
        asked("a member of nothing", side.name("n"), **who)
    if version >= 7:
        asked("unknown instance", live, group_instance_id="i9", **who)


def offset_fetch(side: Side, version: int) -> None:
    ready(side)
    topic = side.topic(partitions=2)
    other = side.topic("other")
    group = side.name("g")
    committed(side, group, topic, 5)

    def asked(label: str, name: str, topics: Any, **more: Any) -> None:
        old = (
            None
            if topics is None
            else [{"name": each, "partition_indexes": list(parts)} for each, parts in topics]
        )
        new = (
            None
            if topics is None
            else [
                {"name": each, "topic_id": side.id_of(each), "partition_indexes": list(parts)}
                for each, parts in topics
            ]
        )
        side.ask(
            label,
            group_id=name,
            topics=old,
            groups=[{"group_id": name, "topics": new} | more.pop("group", {})],
            **more,
        )

    asked("committed", group, [(topic, [0])])
    asked("not committed", group, [(topic, [0, 1]), (other, [0])])
    asked("no such partition", group, [(topic, [9, -1])])
    asked("no such topic", group, [("nobody", [0])])
    asked("unknown group", "nobody", [(topic, [0])])
    asked("empty group", "", [(topic, [0])])
    asked("no topics", group, [])
    asked("named twice", group, [(topic, [0, 0])])
    if version >= 2:
        asked("everything", group, None)
        asked("everything of nobody", "nobody", None)
    if version >= 7:
        asked("stable only", group, [(topic, [0])], require_stable=True)
    if version >= 9:
        who = {"member_id": "who", "member_epoch": 3}
        asked("a member", group, [(topic, [0])], group=who)
    if version >= 8:
        side.ask("no groups", groups=[])


def offset_delete(side: Side, version: int) -> None:
    ready(side)
    topic = side.topic(partitions=2)
    group, busy = side.name("g"), side.name("busy")
    committed(side, group, topic)
    joined(side, busy)

    def asked(label: str, name: str, topic_name: str, *partitions: int) -> None:
        parts = [{"partition_index": each} for each in partitions]
        side.ask(label, group_id=name, topics=[{"name": topic_name, "partitions": parts}])

    asked("not committed", group, topic, 1)
    asked("no such partition", group, topic, 9, -1)
    asked("no such topic", group, "nobody", 0)
    asked("a live group", busy, topic, 0)
    asked("unknown group", "nobody", topic, 0)
    asked("empty group", "", topic, 0)
    asked("no partitions", group, topic)
    asked("committed", group, topic, 0)
    asked("again", group, topic, 0)
    side.ask("no topics", group_id=group, topics=[])
