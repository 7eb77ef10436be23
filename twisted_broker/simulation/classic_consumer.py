"""A consumer of the classic protocol in a group that consumers of KIP-848 share.

Owns `ClassicConsumer` and `MIXED_GROUP`.

1. It is eager: what it has it gives up before it joins. Its group may have become a consumer group,
   which assigns by itself, or a classic one again, where one of the members assigns.
2. It and the other members go away and come back by themselves (`comes_and_goes`), so that the
   group changes its kind, and is empty.

Not here: what must hold (`simulation/checks/consumer_groups.py`), joining by heartbeats
(`simulation/consumer_member.py`).
"""

from __future__ import annotations

from twisted_broker.consumer.rebalance import (
    assign_round_robin,
    assigned_partitions,
    assignment_bytes,
    subscription_bytes,
)
from twisted_broker.simulation.consumer_member import CheckedMember, ConsumerMember
from twisted_broker.simulation.member import SESSION_MS, Member
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import groups

MIXED_GROUP = "g2"
_AWAY_CHANCE, _STALL_CHANCE = 0.06, 0.04


def comes_and_goes(member: Member) -> None:
    """Now and then it leaves for some seconds, or does nothing for about a session."""
    if not member.commits:
        return
    if member.random.random() < _AWAY_CHANCE:
        member.is_gone_for(member.random.random() ** 2 * 15)
    elif member.random.random() < _STALL_CHANCE:
        member.stalls((0.5 + member.random.random() * 2) * SESSION_MS / 1000)


class MixedMember(ConsumerMember):
    """By the protocol of KIP-848."""

    group = MIXED_GROUP

    async def _work(self) -> None:
        comes_and_goes(self)
        await super()._work()


class ClassicConsumer(CheckedMember):
    """See the module's card."""

    group = MIXED_GROUP
    _protocol_type, _protocol = "consumer", "roundrobin"

    def _refused(self, code: ErrorCode) -> None:
        member_id = self._member_id
        super()._refused(code)
        if self._generation < 0 and code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._checker.fenced(member_id)

    async def _join(self) -> None:
        floor = self._checker.epoch_floor("")
        asked = self._coordinator, self.notes.coordinator_of(self.group)
        self.owned = {}
        self._checker.sent(self._member_id, frozenset())
        joined = await self._ask_to_join(subscription_bytes(self._names))
        assignment = None if joined is None else await self._synchronize(joined)
        if joined is None or assignment is None:
            return
        if not self._is_still(*asked):
            floor = floor._replace(epochs={})
        given = assigned_partitions(assignment)
        self._checker.answered(
            self._member_id, joined.generation_id, floor, frozenset(given), frozenset()
        )
        if joined.leader:
            self.notes.reached("classic generation of a mixed group")
        else:
            self.notes.reached("classic member in a consumer group")
        await self._begin(joined.generation_id, given)

    def _assignments(
        self, joined: groups.JoinGroupResponse
    ) -> list[groups.SyncGroupRequestAssignment]:
        numbers = {
            name: [place.partition for place in self.places if place.topic == name]
            for name in self._names
        }
        members = {member.member_id: self._names for member in joined.members}
        return [
            groups.SyncGroupRequestAssignment(member_id=member, assignment=assignment_bytes(places))
            for member, places in assign_round_robin(members, numbers).items()
        ]

    async def _leave(self) -> None:
        self._checker.fenced(self._member_id)
        await super()._leave()

    async def _work(self) -> None:
        comes_and_goes(self)
        member_id, generation = self._member_id, self._generation
        asked = self._coordinator, self.notes.coordinator_of(self.group)
        floor = self._checker.epoch_floor(member_id)
        lost = self._checker.sent(member_id, frozenset(self.owned))
        request = groups.HeartbeatRequest(
            group_id=self.group, generation_id=generation, member_id=member_id
        )
        answer = await self._send_to_coordinator(request, 4)
        if answer is None or generation != self._generation:
            return
        if answer.error_code:
            self._refused(error_of(answer.error_code))
            return
        if not self._is_still(*asked):
            lost = frozenset()
        self._checker.answered(member_id, generation, floor, None, lost)
        if self.owned and self.commits:
            await self._commit(self.random.choice(sorted(self.owned)))
