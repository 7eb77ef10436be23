"""Members of groups that are alive while the time of their cluster is moved on: theirs is not.

Owns `GroupMembers`: who has joined over which connection, and the heartbeat of each that the
coordinator takes as received. That of a member of a consumer group says nothing: what it would be
answered is for its client alone.

Source: our own. Not here: the clock (`live_clock.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from twisted_broker.wire.messages.groups import ConsumerGroupHeartbeatResponse

NOTED = ("Heartbeat", "SyncGroup", "ConsumerGroupHeartbeat")
"""APIs"""


class _Joined(NamedTuple):
    context: Any
    instance_id: str | None
    generation: int | None
    """None: in a consumer group"""


class GroupMembers:
    """Of a cluster; as far as they came through its dispatchers."""

    def __init__(self) -> None:
        self._joined: dict[tuple[str, str], _Joined] = {}

    def note(self, context: Any, request: Any, answer: Any) -> None:
        """A request of `NOTED` that was answered."""
        if getattr(answer, "error_code", 1) != 0:
            return
        if isinstance(answer, ConsumerGroupHeartbeatResponse):
            key = request.group_id, answer.member_id or ""
            if answer.member_epoch < 0:
                self._joined.pop(key, None)
            else:
                self._joined[key] = _Joined(context, request.instance_id, None)
        else:
            self._joined[request.group_id, request.member_id] = _Joined(
                context, request.group_instance_id, request.generation_id
            )

    def beat(self, silent: frozenset[str] | None) -> None:
        """A heartbeat of each whose connection stands. `silent`: client ids, member ids; None:
        all are.
        """
        if silent is None:
            return
        for (group, member), joined in [*self._joined.items()]:
            context = joined.context
            if context.connection.closing:
                del self._joined[group, member]
            elif silent & {member, context.client_id}:
                continue
            elif joined.generation is None:
                context.groups.consumer_lives(group, member)
            else:
                context.groups.heartbeat(group, member, joined.instance_id, joined.generation)

    @property
    def groups(self) -> list[str]:
        """Those that have members."""
        return sorted({group for group, _ in self._joined})
