"""A group's life with several members, step by step: what the cases of every API of groups ask.

1. One life for all: only the answers of the API under test are kept, at its version; the others go
   the same way at their newest versions, and prepare.
2. A step that must have arrived before the next is waited for, by what DescribeGroups shows.
3. The first member leads, and leaves when one other is there: who leads next is never left to the
   order of a hash map.
"""

from __future__ import annotations

import struct
from typing import Any

from tests.compare.side import CLOSED, SILENT, Line, Side
from twisted_broker.api.routes import ROUTES
from twisted_broker.wire.errors import ErrorCode

NEWEST = {route.name: route.broker.max for route in ROUTES}
FIRST_STATIC = {"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "LeaveGroup": 3, "OffsetCommit": 7}
FEW_MS, LONG_MS = 700, 30_000


def subscription(topic: str) -> bytes:
    """A consumer's, version 1: a topic, no user data, no partitions yet. Kafka fails on others."""
    name = topic.encode()
    return struct.pack(f">hih{len(name)}sii", 1, 1, len(name), name, -1, 0)


class Life:
    """One group under one API's cases."""

    def __init__(self, side: Side, group: str, rebalance_ms: int = LONG_MS) -> None:
        self.side, self.group, self.rebalance_ms = side, group, rebalance_ms

    def member(self, name: str, instance: str | None = None) -> Member:
        return Member(self, name, instance)

    def version(self, api: str) -> int:
        return self.side.version if api == self.side.api else NEWEST[api]

    def note(self, api: str, label: str, answer: Any) -> None:
        if api == self.side.api:
            self.side.note(label, answer)

    def look(self, label: str) -> None:
        """What others see of the group."""
        for api, fields in (
            ("DescribeGroups", {"groups": [self.group]}),
            ("ListGroups", {}),
            ("DeleteGroups", {"groups_names": [self.group]}),
        ):
            if api != self.side.api or (api == "DeleteGroups" and label == "empty"):
                continue
            answer = self.side.call(api, self.version(api), fields)
            if api == "ListGroups":
                answer.groups = [each for each in answer.groups if each.group_id == self.group]
            self.note(api, label, answer)

    def becomes(self, state: str, members: int) -> None:
        """Waits until the group is there."""
        self.side.settled(
            "DescribeGroups",
            lambda answer: (
                (answer.groups[0].group_state, len(answer.groups[0].members)) == (state, members)
            ),
            groups=[self.group],
        )


class Member:
    """One member with connections of its own."""

    def __init__(self, life: Life, name: str, instance: str | None) -> None:
        self.life, self.name, self.instance = life, name, instance
        self.line = Line(life.side.host, life.side.port)
        self.aside = Line(life.side.host, life.side.port)  # for questions while `line` waits
        self.id, self.generation = "", -1
        self.refusal: Any = None  # what the first question for an id was answered, if not an id
        self.subscription = subscription(name)
        self.protocols: tuple[str, ...] = ("range", "roundrobin")

    def _fields(self, **more: Any) -> dict[str, Any]:
        return {
            "group_id": self.life.group,
            "member_id": self.id,
            "group_instance_id": self.instance,
        } | more

    def join(self) -> None:
        """Sends; a member without id gets one first."""
        api = "JoinGroup"
        version = self.life.version(api)
        fields = self._fields(
            session_timeout_ms=LONG_MS,
            rebalance_timeout_ms=self.life.rebalance_ms,
            protocol_type="consumer",
            protocols=[{"name": each, "metadata": self.subscription} for each in self.protocols],
        )
        if not self.id and self.instance is None and version >= 4:
            answer = self.line.call(api, version, fields)
            if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                self.refusal = answer
                return
            self._known(answer.member_id)
            fields["member_id"] = self.id
        self.line.send(api, version, fields)

    def joined(self, label: str) -> Any:
        """The answer to `join`."""
        answer: Any = self.refusal or self.line.receive()
        if answer not in (CLOSED, SILENT) and not answer.error_code:
            self._known(answer.member_id)
            self.generation = answer.generation_id
        self.life.note("JoinGroup", f"{label}: {self.name}", answer)
        return answer

    def _known(self, member_id: str) -> None:
        self.id = self.life.side.hide(member_id, f"(member {self.name})")

    def sync(self, assigned: dict[Member, bytes] | None = None, **more: Any) -> None:
        """Sends; the leader's has assignments."""
        fields = self._fields(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=self.protocols[0],
            assignments=[
                {"member_id": member.id, "assignment": data}
                for member, data in (assigned or {}).items()
            ],
        )
        self.line.send("SyncGroup", self.life.version("SyncGroup"), fields | more)

    def synced(self, label: str) -> Any:
        answer = self.line.receive()
        self.life.note("SyncGroup", f"{label}: {self.name}", answer)
        return answer

    def ask(self, label: str, generation: int | None = None) -> None:
        """The member's questions that change nothing, as far as the API under test is one."""
        api = self.life.side.api
        generation = self.generation if generation is None else generation
        if api == "Heartbeat":
            fields = self._fields(generation_id=generation)
        elif api == "OffsetCommit":
            part = {"partition_index": 0, "committed_offset": 3, "committed_metadata": "m"}
            topic = self.life.side.name("life")
            topics = [
                {"name": topic, "topic_id": self.life.side.id_of(topic), "partitions": [part]}
            ]
            fields = self._fields(generation_id_or_member_epoch=generation, topics=topics)
        else:
            return
        answer = self.aside.call(api, self.life.version(api), fields)
        self.life.note(api, f"{label}: {self.name}", answer)

    def leave(self, label: str, *others: Member) -> None:
        """Leaves, with others in the same request where the version can."""
        leaving = [
            {"member_id": each.id, "group_instance_id": each.instance} for each in (self, *others)
        ]
        fields = {"group_id": self.life.group, "member_id": self.id, "members": leaving}
        answer = self.line.call("LeaveGroup", self.life.version("LeaveGroup"), fields)
        self.life.note("LeaveGroup", f"{label}: {self.name}", answer)

    def hang_up(self) -> None:
        self.line.hang_up()
        self.aside.hang_up()


def balanced(life: Life, label: str, leader: Member, *others: Member) -> None:
    """All join (those of `others` have sent theirs before), and are given their parts."""
    leader.join()
    for member in (leader, *others):
        member.joined(label)
    life.look(f"{label}, joined")
    for member in (leader, *others):
        member.ask(f"{label}, joined")
    for member in others:
        member.sync()
    leader.sync({each: b"\0\1" + each.name.encode() for each in (leader, *others)})
    for member in (leader, *others):
        member.synced(label)
    life.look(f"{label}, stable")
    for member in (leader, *others):
        member.ask(f"{label}, stable")


def lives(side: Side) -> None:
    """All of them."""
    if side.api == "OffsetCommit":
        side.topic("life")
    dynamic(side)
    if side.api != "JoinGroup" or side.version > 0:  # which has no rebalance timeout of its own
        impatient(side)
    if side.version >= FIRST_STATIC.get(side.api, 0):
        static(side)


def dynamic(side: Side) -> None:
    """Two members, three, two, one, none."""
    life = Life(side, side.name("life"))
    a, b, c, d = (life.member(name) for name in "abcd")
    life.look("before")
    balanced(life, "one", a)
    b.join()
    life.becomes("PreparingRebalance", 2)
    life.look("two, preparing")
    a.ask("two, preparing")
    a.sync()
    a.synced("two, preparing")
    balanced(life, "two", a, b)
    b.ask("two, generation before", generation=1)
    d.protocols = ("other",)
    d.join()
    d.joined("two, another protocol")
    b.sync()
    b.synced("two, stable again")
    b.join()  # a follower with the same subscription: no rebalance
    b.joined("two, follower again")
    b.subscription = subscription("changed")
    b.join()
    life.becomes("PreparingRebalance", 2)
    life.look("two, changed")
    balanced(life, "two, changed", a, b)
    c.protocols = ("roundrobin",)
    c.join()
    life.becomes("PreparingRebalance", 3)
    b.join()
    a.ask("three, preparing")
    life.look("three, preparing")
    for member in (a, b):
        member.protocols = ("roundrobin", "range")
    balanced(life, "three", a, b, c)
    b.leave("three")
    life.becomes("PreparingRebalance", 2)
    life.look("three, one left")
    a.ask("three, one left")
    b.ask("three, one left")
    c.join()
    balanced(life, "two of three", a, c)
    a.leave("two of three")
    life.becomes("PreparingRebalance", 1)
    c.ask("leader left")
    balanced(life, "the last", c)
    c.leave("the last")
    life.becomes("Empty", 0)
    life.look("empty")
    c.ask("empty")
    c.sync()
    c.synced("empty")
    c.join()
    c.joined("empty, old id")
    for member in (a, b, c, d):
        member.hang_up()


def impatient(side: Side) -> None:
    """Members that do not come back in time."""
    life = Life(side, side.name("impatient"), FEW_MS)
    a, b = (life.member(name) for name in "ab")
    balanced(life, "first", a)
    b.join()
    b.joined("the other did not join in time")
    a.ask("not joined in time")
    a.join()
    a.joined("not joined in time, old id")
    b.sync({b: b"b"})
    b.synced("alone")
    a.id = ""
    a.join()
    life.becomes("PreparingRebalance", 2)
    b.join()
    for member in (b, a):
        member.joined("both")
    a.sync()  # the leader's never comes
    a.synced("the leader did not sync in time")
    b.ask("not synced in time")
    life.becomes("PreparingRebalance", 1)
    life.look("not synced in time")
    for member in (a, b):
        member.hang_up()


def static(side: Side) -> None:
    """KIP-345: members that come back are who they were."""
    life = Life(side, side.name("static"))
    a, b = life.member("a", "i1"), life.member("b", "i2")
    balanced(life, "static", a)
    b.join()
    life.becomes("PreparingRebalance", 2)
    balanced(life, "static two", a, b)
    for old, label in ((b, "follower"), (a, "leader")):
        new = life.member(f"{old.name}2", old.instance)
        new.subscription = old.subscription
        new.join()
        new.joined(f"{label} is back")
        old.ask(f"{label} is back, the old one")
        old.sync()
        old.synced(f"{label} is back, the old one")
        old.leave(f"{label} is back, the old one")
        new.sync()
        new.synced(f"{label} is back")
        new.ask(f"{label} is back")
        life.look(f"{label} is back")
        old.hang_up()
        if old is b:
            b = new
        else:
            a = new
    stranger = life.member("s")
    stranger.join()
    life.becomes("PreparingRebalance", 3)
    b.join()  # waits, and is then fenced by itself
    life.look("static three, preparing")
    b.ask("static three, preparing")
    b3 = life.member("b3", "i2")
    b3.join()
    b.joined("fenced while it waits")
    b.ask("fenced while it waits")
    balanced(life, "static three", a, b3, stranger)
    stranger.leave("a dynamic and a static one", b3)
    life.becomes("PreparingRebalance", 1)
    life.look("two left")
    for member in (a, b, b3, stranger):
        member.hang_up()
