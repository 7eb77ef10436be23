"""A member of a group whose coordinator cannot be reached."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import ConnectionRefusedError

from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.group_membership import GroupMembership


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
