"""A member of a group whose coordinator cannot be reached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.error import ConnectionRefusedError

from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.group_membership import GroupMembership
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.offsets import (
    FindCoordinatorResponse,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


class Unreachable:
    """A client whose requests fail at once, and whose pauses do not end."""

    def __init__(self) -> None:
        self.pauses: list[Deferred[None]] = []

    def pause(self, ms: int) -> Deferred[None]:
        self.pauses.append(Deferred())
        return self.pauses[-1]

    def __getattr__(self, name: str) -> Any:
        raise ConnectionRefusedError(name)


def test_a_member_that_pauses_is_stopped_without_an_error() -> None:
    client: Any = Unreachable()
    owner: Any = None
    config = ConsumerConfig({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"})
    member = GroupMembership(client, config, ["t"], owner)
    member.start()
    assert len(client.pauses) == 1
    running = member._running
    assert running is not None
    ensureDeferred(member.stop())
    ended: list[object] = []
    running.addBoth(ended.append)
    assert ended == [None]


class Moving:
    """A client whose first coordinator has lost the group; the next one takes what comes."""

    def __init__(self) -> None:
        self.runtime = SimpleNamespace(now_ms=lambda: 0)
        self.client_id = "c"
        self.pauses: list[Deferred[None]] = []
        self.commits: list[tuple[int, str]] = []

    def pause(self, ms: int) -> Deferred[None]:
        self.pauses.append(Deferred())
        return self.pauses[-1]

    def send_to_any(self, request: Any, version: int) -> Deferred[Any]:
        return succeed(FindCoordinatorResponse(node_id=1, host="h", port=1))

    def connect(self, endpoint: Any, name: str) -> Any:
        return self

    def close(self) -> None:
        """As a connection."""

    def send(self, request: Any, version: int) -> Deferred[Any]:
        self.commits.append((request.generation_id_or_member_epoch, request.member_id))
        lost = int(ErrorCode.NOT_COORDINATOR if len(self.commits) == 1 else ErrorCode.NONE)
        partition = OffsetCommitResponsePartition(partition_index=0, error_code=lost)
        topic = OffsetCommitResponseTopic(name="t", partitions=[partition])
        return succeed(OffsetCommitResponse(topics=[topic]))


def test_a_commit_that_is_tried_again_is_of_the_generation_that_consumed() -> None:
    """Meanwhile the partitions were lost, and this member has joined again: another member may own
    them, and have committed more of them. Under the new generation that would be turned back.
    """
    client: Any = Moving()
    owner: Any = None
    config = ConsumerConfig({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"})
    member = GroupMembership(client, config, ["t"], owner)
    member.generation, member.member_id = 5, "m"
    done: list[object] = []
    commit = ensureDeferred(member.commit({TopicPartition("t", 0): (7, -1)}))
    commit.addBoth(done.append)
    member.generation, member.member_id = 6, "another"
    client.pauses[0].callback(None)
    assert (client.commits, done) == ([(5, "m")] * 2, [None])


def test_a_commit_that_waits_for_another_is_of_the_generation_that_consumed() -> None:
    client: Any = Moving()
    owner: Any = None
    config = ConsumerConfig({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"})
    member = GroupMembership(client, config, ["t"], owner)
    member.generation, member.member_id = 5, "m"
    for offset in (7, 8):
        ensureDeferred(member.commit({TopicPartition("t", 0): (offset, -1)}))
    member.generation = 6
    client.pauses[0].callback(None)
    assert client.commits == [(5, "m")] * 3
