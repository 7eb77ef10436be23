"""A member of a consumer group: it joins, is given partitions, commits, and notes the answers.

Owns `Member`, by the classic group protocol. What it commits is a count that each owner of a
partition takes from the last commit and raises; records are not read.

1. Before a commit is sent, and when it is acknowledged, it is noted; so are committed offsets that
   are fetched, and assignments.
2. A member that is fenced forgets what it owned before it joins again.
3. `leaves`, `joins`, `crashes` and `stalls` are done to it from outside. One that stalled goes on
   with a commit of what it believes to own.

Not here: reading (`simulation/consumer.py`), static members, the protocol of KIP-848
(`simulation/consumer_member.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.client import Address, Client
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import groups, offsets

GROUP = "g0"
SESSION_MS, _REBALANCE_MS = 2_000, 4_000
_COORDINATOR_ERRORS = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
# Its membership, by a protocol of heartbeats.
OVER = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
_PATIENT_ERRORS = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_LEAVE_CHANCE = 0.02
_FETCH_CHANCE = 0.1


class Member(Client):
    """Of `group`. `places`: the partitions that the group shares; `facts`: what is told of its
    commits.
    """

    group = GROUP
    _protocol_type, _protocol = "sim", "round robin"
    _commit_version = 8

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        places: Sequence[TopicPartition],
    ) -> None:
        super().__init__(runtime, name, brokers, notes)
        self.places = list(places)
        self.facts: Any = notes
        self.owned: dict[TopicPartition, int] = {}
        """partition -> the count committed last"""
        self.commits = True
        self.late_commit_refused: Callable[[], None] = lambda: None
        """called when a commit after a stall was of a generation that is over"""
        self._is_away = False
        self._returns = self._stalled_until = 0.0
        self._coordinator: Address | None = None
        self._member_id, self._generation = "", -1

    async def main(self) -> None:
        while not self.stopped and await self.next_action(
            lambda random: 0.3 + random.random() * 0.4
        ):
            self.actor.acts("goes on in its group")
            if self._stalled_until > self.runtime.clock.seconds():
                await self._stall()
            elif self._is_out:
                await self._leave_for_now()
            elif self._coordinator is None:
                await self._find_coordinator()
            elif self._generation < 0:
                await self._join()
            elif self.random.random() < _LEAVE_CHANCE:
                await self._leave()
            else:
                await self._work()

    # what is done to it

    @property
    def is_away(self) -> bool:
        return self._is_away

    def leaves(self) -> None:
        """It leaves in order, until `joins`."""
        self._is_away = True

    def joins(self) -> None:
        self._is_away = False

    def crashes(self, seconds: float) -> None:
        """Its process is gone without a word; so much later there is another one."""
        for connection in list(self._connections.values()):  # what waited goes on at once
            connection.close()
        self._connections.clear()
        self.owned, self._generation, self._member_id = {}, -1, ""
        self._coordinator = None
        self._returns = self.runtime.clock.seconds() + seconds

    def is_gone_for(self, seconds: float) -> None:
        """It leaves in order, and comes back by itself."""
        self._returns = self.runtime.clock.seconds() + seconds

    def stalls(self, seconds: float) -> None:
        self._stalled_until = self.runtime.clock.seconds() + seconds

    async def _stall(self) -> None:
        await self.pause(self._stalled_until - self.runtime.clock.seconds())
        if self.owned and self.commits and not self._is_out:
            generation = self._generation
            await self._commit(next(iter(self.owned)))
            if self._generation != generation:
                self.late_commit_refused()

    @property
    def _is_out(self) -> bool:
        return self._is_away or self._returns > self.runtime.clock.seconds()

    async def _leave_for_now(self) -> None:
        if self._member_id and self._generation >= 0:
            await self._leave()

    async def _find_coordinator(self) -> None:
        request = offsets.FindCoordinatorRequest(key=self.group, key_type=0)
        answer = await self.send_to_any(request, 3)
        if answer is not None and not answer.error_code:
            self._coordinator = (answer.host, answer.port)

    async def _send_to_coordinator(self, request: Any, version: int) -> Any:
        """The coordinator's answer; None when none came."""
        if self._coordinator is None:
            return None
        answer = await self.send(self._coordinator, request, version)
        if answer is None:
            self._coordinator = None
        return answer

    def _refused(self, code: ErrorCode) -> None:
        self.notes.refused("group", code.name)
        if code in _COORDINATOR_ERRORS:
            self._coordinator = None
        elif code not in _PATIENT_ERRORS:
            self.owned, self._generation = {}, -1
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""

    # membership

    async def _join(self) -> None:
        floor = self.notes.generation_floor()
        asked = self._coordinator, self.notes.coordinator_of(self.group)
        joined = await self._ask_to_join(b"")
        assignment = None if joined is None else await self._synchronize(joined)
        if joined is None or assignment is None:
            return
        if not self._is_still(*asked):
            floor = 0
        given = [self.places[int(row)] for row in assignment.decode().split()]
        self.notes.assigned(self._member_id, joined.generation_id, floor, given)
        await self._begin(joined.generation_id, given)

    async def _ask_to_join(self, subscription: bytes) -> groups.JoinGroupResponse | None:
        """The answer; None: it is not in the group."""
        request = groups.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=self._member_id,
            protocol_type=self._protocol_type,
            protocols=[groups.JoinGroupRequestProtocol(name=self._protocol, metadata=subscription)],
        )
        answer = await self._send_to_coordinator(request, 7)
        if answer is None:
            return None
        code = error_of(answer.error_code)
        if code not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self._refused(code)
            return None
        self._member_id = answer.member_id
        return answer if code is ErrorCode.NONE else None

    async def _synchronize(self, joined: groups.JoinGroupResponse) -> bytes | None:
        """Its assignment; None: it has none."""
        request = groups.SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            protocol_type=self._protocol_type,
            protocol_name=self._protocol,
            assignments=self._assignments(joined) if joined.leader == self._member_id else [],
        )
        answer = await self._send_to_coordinator(request, 5)
        if answer is None:
            return None
        if answer.error_code:
            self._refused(error_of(answer.error_code))
            return None
        return bytes(answer.assignment)

    async def _begin(self, generation: int, given: Sequence[TopicPartition]) -> None:
        """Goes on from what was committed last."""
        found = await self._fetch_committed(given)
        if found is not None:
            self._generation, self.owned = generation, found

    def _is_still(self, address: Address | None, coordinator: tuple[str, int] | None) -> bool:
        """Whether who was asked was the coordinator, and is: whoever does not know yet that another
        leads answers from its memory.
        """
        asked = None if address is None else (address[0], coordinator and coordinator[1])
        return asked == coordinator == self.notes.coordinator_of(self.group)

    def _assignments(
        self, joined: groups.JoinGroupResponse
    ) -> list[groups.SyncGroupRequestAssignment]:
        members = sorted(member.member_id for member in joined.members)
        return [
            groups.SyncGroupRequestAssignment(
                member_id=member,
                assignment=" ".join(
                    map(str, range(number, len(self.places), len(members)))
                ).encode(),
            )
            for number, member in enumerate(members)
        ]

    async def _leave(self) -> None:
        member = groups.MemberIdentity(member_id=self._member_id)
        await self._send_to_coordinator(
            groups.LeaveGroupRequest(group_id=self.group, members=[member]), 4
        )
        self.owned, self._generation, self._member_id = {}, -1, ""

    # work

    async def _work(self) -> None:
        request = groups.HeartbeatRequest(
            group_id=self.group, generation_id=self._generation, member_id=self._member_id
        )
        answer = await self._send_to_coordinator(request, 4)
        if answer is None:
            return
        if answer.error_code:
            self._refused(error_of(answer.error_code))
            return
        if self.owned and self.commits:
            await self._commit(self.random.choice(list(self.owned)))
        if self.random.random() < _FETCH_CHANCE:
            await self._fetch_committed(self.places)

    async def _commit(self, place: TopicPartition) -> None:
        count = self.owned[place] + 1
        partition = offsets.OffsetCommitRequestPartition(
            partition_index=place.partition, committed_offset=count, committed_metadata=self.name
        )
        request = offsets.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[offsets.OffsetCommitRequestTopic(name=place.topic, partitions=[partition])],
        )
        answer = await self._send_to_coordinator(request, self._commit_version)
        if answer is None:
            return
        code = error_of(answer.topics[0].partitions[0].error_code)
        if code is ErrorCode.NONE:
            self.facts.committed(place, count)
            if place in self.owned:
                self.owned[place] = count
        else:
            self._refused(code)

    async def _fetch_committed(
        self, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int] | None:
        """Partition -> what was committed last, 0 when nothing was; None when that is not known."""
        floors = {place: self.facts.commit_floor(place) for place in places}
        address, coordinator = self._coordinator, self.notes.coordinator_of(self.group)
        answer = await self._ask_committed(places)
        if not self._is_still(address, coordinator):
            floors = dict.fromkeys(places, 0)
        if answer is None:
            return None
        if answer.error_code:
            self._refused(error_of(answer.error_code))
            return None
        found = {}
        for topic in answer.topics:
            for each in topic.partitions:
                place = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    self._refused(error_of(each.error_code))
                    return None
                found[place] = max(0, each.committed_offset)
                self.facts.committed_seen(place, found[place], floors[place])
        return found

    async def _ask_committed(self, places: Sequence[TopicPartition]) -> Any:
        """An error and topics; None when no answer came."""
        topics = [
            offsets.OffsetFetchRequestTopic(name=place.topic, partition_indexes=[place.partition])
            for place in places
        ]
        request = offsets.OffsetFetchRequest(group_id=self.group, topics=topics)
        return await self._send_to_coordinator(request, 7)
