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

from collections.abc import Sequence
from typing import Any

from twisted_broker.consumer.rebalance import (
    assign_round_robin,
    assigned_partitions,
    assignment_bytes,
    subscription_bytes,
)
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.checks.consumer_groups import ConsumerGroupChecker, Floor
from twisted_broker.simulation.client import Address
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.simulation.consumer_member import ConsumerMember
from twisted_broker.simulation.member import SESSION_MS, Member
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import groups

MIXED_GROUP = "g2"
_TYPE, _PROTOCOL = "consumer", "roundrobin"
_REBALANCE_MS = 4_000
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


class ClassicConsumer(Member):
    """See the module's card."""

    group = MIXED_GROUP

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        places: Sequence[TopicPartition],
        checker: ConsumerGroupChecker,
    ) -> None:
        super().__init__(runtime, name, brokers, notes, places)
        self.facts = self._checker = checker
        self._names = sorted({place.topic for place in places})

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
        request = groups.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=self._member_id,
            protocol_type=_TYPE,
            protocols=[
                groups.JoinGroupRequestProtocol(
                    name=_PROTOCOL, metadata=subscription_bytes(self._names)
                )
            ],
        )
        answer = await self._send_to_coordinator(request, 7)
        if answer is None:
            return
        code = error_of(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
        elif code is not ErrorCode.NONE:
            self._refused(code)
        else:
            self._member_id = answer.member_id
            await self._synchronize(answer, floor, *asked)

    async def _synchronize(
        self,
        joined: groups.JoinGroupResponse,
        floor: Floor,
        address: Address | None,
        coordinator: tuple[str, int] | None,
    ) -> None:
        request = groups.SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            protocol_type=_TYPE,
            protocol_name=_PROTOCOL,
            assignments=self._shares(joined) if joined.leader == self._member_id else [],
        )
        answer = await self._send_to_coordinator(request, 5)
        if answer is None:
            return
        if answer.error_code:
            self._refused(error_of(answer.error_code))
            return
        if not self._is_still(address, coordinator):
            floor = floor._replace(epochs={})
        given = assigned_partitions(bytes(answer.assignment))
        self._checker.answered(
            self._member_id, joined.generation_id, floor, frozenset(given), frozenset()
        )
        if joined.leader:
            self.notes.reached("classic generation of a mixed group")
        else:
            self.notes.reached("classic member in a consumer group")
        found = await self._fetch_committed(given)
        if found is not None:
            self._generation, self.owned = joined.generation_id, found

    def _shares(self, joined: Any) -> list[groups.SyncGroupRequestAssignment]:
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
        member = groups.MemberIdentity(member_id=self._member_id)
        await self._send_to_coordinator(
            groups.LeaveGroupRequest(group_id=self.group, members=[member]), 4
        )
        self.owned, self._generation, self._member_id = {}, -1, ""

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
