"""A member of a consumer group by the protocol of KIP-848: one heartbeat says what it owns, and is
answered with what it shall own.

Owns `CheckedMember`; `ConsumerMember`, a client that obeys: what an answer leaves out it gives up
before its next heartbeat; every heartbeat is full, so that a lost answer is made good by the next.

Not here: static members, patterns; what is done to it from outside, and what it commits
(`simulation/member.py`); what must hold (`simulation/checks/consumer_groups.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.checks.consumer_groups import ConsumerGroupChecker
from twisted_broker.simulation.client import Address
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.simulation.member import OVER, Member
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import groups, offsets

CONSUMER_GROUP = "g1"
_REBALANCE_MS = 4_000
_JOIN, _LEAVE = 0, -1


class CheckedMember(Member):
    """What it is told and owns, its group's checker hears of."""

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


class ConsumerMember(CheckedMember):
    """Of `CONSUMER_GROUP`; its generation is its member epoch."""

    group = CONSUMER_GROUP
    _version = 1
    _commit_version = 9

    def _refused(self, code: ErrorCode) -> None:
        if code is ErrorCode.STALE_MEMBER_EPOCH:  # the next heartbeat tells its epoch
            self.notes.refused("consumer group", code.name)
            return
        member_id = self._member_id
        super()._refused(code)
        if self._generation < 0:
            self._checker.fenced(member_id)
            if code in OVER:
                self._member_id = member_id  # as Java's client, which comes back under its id

    # membership

    async def _join(self) -> None:
        for name in self._names:
            if name not in self.topic_ids:
                await self.refresh(name)
        if not self._member_id:
            self._member_id = f"{self.random.getrandbits(64):016x}"
        await self._beat(_JOIN)

    async def _beat(self, epoch: int) -> None:
        member_id, listed = self._member_id, self._listed
        asked = self._coordinator, self.notes.coordinator_of(self.group)
        floor = self._checker.epoch_floor(member_id if epoch else "")
        lost = self._checker.sent(member_id, listed)
        request = self._heartbeat(epoch, listed)
        answer = await self._send_to_coordinator(request, self._version)
        if member_id != self._member_id:
            return
        if answer is None:
            self._unanswered()
            return
        if answer.error_code:
            self._refused(error_of(answer.error_code))
            return
        if not self._is_still(*asked):
            floor, lost = floor._replace(epochs={}), frozenset()
        given = self._given(answer)
        self._checker.answered(member_id, answer.member_epoch, floor, given, lost)
        self._generation = answer.member_epoch
        if given is not None:
            await self._take(given)

    @property
    def _listed(self) -> frozenset[TopicPartition]:
        """What it has, for the next heartbeat."""
        return frozenset(self.owned)

    def _unanswered(self) -> None:
        """A heartbeat was not: the next one is as good."""

    def _given(self, answer: Any) -> frozenset[TopicPartition] | None:
        """None: as before."""
        return None if answer.assignment is None else self._places(answer.assignment)

    def _heartbeat(self, epoch: int, listed: frozenset[TopicPartition]) -> Any:
        owned: dict[bytes, list[int]] = {}
        for place in sorted(listed):
            owned.setdefault(self.topic_ids[place.topic], []).append(place.partition)
        return groups.ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=_REBALANCE_MS,
            subscribed_topic_names=self._names,
            topic_partitions=[
                groups.ConsumerGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in (owned if epoch else {}).items()
            ],
        )

    def _places(self, assignment: Any) -> frozenset[TopicPartition]:
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        return frozenset(
            TopicPartition(names[bytes(topic.topic_id)], number)
            for topic in assignment.topic_partitions
            if bytes(topic.topic_id) in names
            for number in topic.partitions
        )

    async def _take(self, given: frozenset[TopicPartition]) -> None:
        """What is not in `given` any more is given up now: the next heartbeat does not list it."""
        if self.owned.keys() - given:
            self.notes.reached("partition revoked")
        self.owned = {place: count for place, count in self.owned.items() if place in given}
        fresh = sorted(given - self.owned.keys())
        epoch = self._generation
        found = await self._fetch_committed(fresh) if fresh else {}
        if found and self._generation == epoch:
            self.owned |= found

    async def _leave(self) -> None:
        self._checker.fenced(self._member_id)
        await self._send_to_coordinator(self._heartbeat(_LEAVE, frozenset()), self._version)
        self.owned, self._generation, self._member_id = {}, -1, ""

    # work

    async def _work(self) -> None:
        await self._beat(self._generation)
        if self.owned and self.commits and self._generation >= 0:
            await self._commit(self.random.choice(sorted(self.owned)))

    async def _ask_committed(self, places: Sequence[TopicPartition]) -> Any:
        by_name: dict[str, list[int]] = {}
        for place in places:
            by_name.setdefault(place.topic, []).append(place.partition)
        group = offsets.OffsetFetchRequestGroup(
            group_id=self.group,
            member_id=self._member_id,
            member_epoch=self._generation,
            topics=[
                offsets.OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                for name, numbers in by_name.items()
            ],
        )
        answer = await self._send_to_coordinator(offsets.OffsetFetchRequest(groups=[group]), 9)
        return None if answer is None else answer.groups[0]
