"""A member of a group: a coordinator that cannot be reached, or moves; a stop in a rebalance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock, deferLater

from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.group_membership import GroupMembership
from twisted_broker.consumer.rebalance import assignment_bytes
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
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


class Rebalancing:
    """A client whose group rebalances at the member's first heartbeat."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.runtime = SimpleNamespace(
            clock=self.clock, now_ms=lambda: int(self.clock.seconds() * 1000)
        )
        self.client_id = "c"
        self.closed = 0
        self.sent: list[str] = []

    def pause(self, ms: int) -> Deferred[None]:
        return deferLater(self.clock, ms / 1000)

    def send_to_any(self, request: Any, version: int) -> Deferred[Any]:
        return succeed(FindCoordinatorResponse(node_id=1, host="h", port=1))

    def connect(self, endpoint: Any, name: str) -> Any:
        return self

    def close(self) -> None:
        """As a connection."""
        self.closed += 1

    def send(self, request: Any, version: int, timeout_ms: int | None = None) -> Deferred[Any]:
        name = type(request).__name__.removesuffix("Request")
        self.sent.append(name)
        answers: dict[str, Any] = {
            "JoinGroup": JoinGroupResponse(generation_id=1, member_id="m", leader="another"),
            "SyncGroup": SyncGroupResponse(assignment=assignment_bytes([TopicPartition("t", 0)])),
            "Heartbeat": HeartbeatResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS)),
            "LeaveGroup": LeaveGroupResponse(),
        }
        return succeed(answers[name])


class Releasing:
    """An owner whose partitions are released once `committed` fires."""

    def __init__(self) -> None:
        self.committed: Deferred[None] = Deferred()
        self.patience: list[int] = []
        self.ended: list[str] = []

    async def assigned(self, partitions: list[TopicPartition]) -> None:
        """Nothing is to be fetched."""

    async def revoked(self, patience_ms: int) -> None:
        self.patience.append(patience_ms)
        try:
            await self.committed
        except CancelledError:
            self.ended.append("cut short")
            raise
        self.ended.append("committed")


def stopped_in_a_rebalance() -> tuple[Rebalancing, Releasing, list[object]]:
    """A member whose stop began while its partitions are released."""
    client: Any = Rebalancing()
    owner = Releasing()
    config = ConsumerConfig(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "group.id": "g",
            "session.timeout.ms": 20_000,
            "heartbeat.interval.ms": 3_000,
        }
    )
    member = GroupMembership(client, config, ["t"], owner)
    member.start()
    client.clock.advance(3)
    assert owner.patience == [10_000]
    client.clock.advance(1)
    stopped: list[object] = []
    ensureDeferred(member.stop()).addBoth(stopped.append)
    assert (owner.ended, stopped, client.sent[-1]) == ([], [], "Heartbeat")
    return client, owner, stopped


def test_a_stop_waits_for_the_release_that_a_rebalance_began() -> None:
    """It was cut short, and its commit with it. The rebalance is not joined any more."""
    client, owner, stopped = stopped_in_a_rebalance()
    owner.committed.callback(None)
    assert (owner.ended, stopped) == (["committed"], [None])
    assert client.sent == ["JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"]
    assert owner.patience == [10_000] and not client.clock.getDelayedCalls()


def test_a_stop_waits_for_a_release_as_long_as_the_group_does() -> None:
    """Its session is over 20 s after the heartbeat: then no commit counts. It leaves over another
    connection, for this one's answer has not come.
    """
    client, owner, stopped = stopped_in_a_rebalance()
    client.clock.advance(18.9)
    assert (owner.ended, stopped, client.closed) == ([], [], 0)
    client.clock.advance(0.2)
    assert (owner.ended, stopped) == (["cut short"], [None])
    assert client.sent == ["JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"]
    assert client.closed == 2 and not client.clock.getDelayedCalls()


def test_a_release_that_fails_as_it_is_stopped_ends_in_a_leave() -> None:
    client, owner, stopped = stopped_in_a_rebalance()
    owner.committed.errback(ConnectionRefusedError("gone"))
    client.clock.advance(0.1)
    assert stopped == [None] and client.sent[-2:] == ["Heartbeat", "LeaveGroup"]
    assert not client.clock.getDelayedCalls()
