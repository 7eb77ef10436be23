"""A member of a share group (KIP-932): it is given partitions, fetches records under locks, and
says what becomes of each.

Owns `ShareMember`.

1. What it holds it accepts, releases, rejects or renews, by ShareAcknowledge or with its next
   fetch; or it keeps it until its lock has ended, and acknowledges it too late.
2. Now and then it acknowledges what another member was given, ends a session while it holds
   records, or opens one anew.
3. While `commits`; then it accepts all that it is given, until nothing is left.

Not here: what is done to it from outside (`simulation/member.py`), what must hold
(`simulation/checks/share_groups.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.checks.share_groups import SHARE_GROUP, Asked, ShareGroupChecker
from twisted_broker.simulation.client import Address
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.simulation.member import OVER, Member
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import configs, share_fetch, share_groups
from twisted_broker.wire.records import iterate_batches

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
KINDS = {ACCEPT: "accepted", RELEASE: "released", REJECT: "rejected", RENEW: "renewed"}
_JOIN, _LEAVE = 0, -1
_OPEN, _CLOSE = 0, -1
_GROUP_RESOURCE = 32
_CHANCES = {None: 30, ACCEPT: 45, RELEASE: 10, REJECT: 5, RENEW: 10}
_THEFT_CHANCE, _CLOSE_CHANCE, _STALL_CHANCE, _CRASH_CHANCE = 0.08, 0.03, 0.03, 0.02


class Chunk(NamedTuple):
    """Offsets that are acknowledged alike."""

    first: int
    last: int
    kind: int


Chunks = dict[TopicPartition, list[Chunk]]


class ShareMember(Member):
    """Of `SHARE_GROUP`. `lock_ms`: for how long it holds what it is given."""

    group = SHARE_GROUP

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        places: Sequence[TopicPartition],
        checker: ShareGroupChecker,
        lock_ms: int,
    ) -> None:
        super().__init__(runtime, name, brokers, notes, places)
        self._checker, self._lock_ms = checker, lock_ms
        self._names = sorted({place.topic for place in places})
        self._sessions: dict[Address, int] = {}
        """the epoch of the next request"""
        self._listed: dict[Address, set[TopicPartition]] = {}
        self._holds: dict[Address, dict[TopicPartition, set[int]]] = {}
        self._is_set_up = False

    # what is done to it

    def crashes(self, seconds: float) -> None:
        self._checker.gone(self._member_id)
        super().crashes(seconds)
        self._sessions.clear()
        self._holds.clear()

    async def _stall(self) -> None:
        """What it holds it acknowledges afterwards."""
        await self.pause(self._stalled_until - self.runtime.clock.seconds())

    # membership

    async def _join(self) -> None:
        if not self._is_set_up:
            await self._set_up()
            return
        for name in self._names:
            if name not in self.topic_ids:
                await self.refresh(name)
        if not self._member_id:
            self._member_id = f"{self.random.getrandbits(64):016x}"
        await self._beat(_JOIN)

    async def _set_up(self) -> None:
        """The group begins with the first record."""
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=_GROUP_RESOURCE,
            resource_name=self.group,
            configs=[
                configs.IncrementalAlterConfigsRequestAlterableConfig(
                    name="share.auto.offset.reset", config_operation=0, value="earliest"
                )
            ],
        )
        answer = await self.send_to_any(
            configs.IncrementalAlterConfigsRequest(resources=[resource]), 1
        )
        self._is_set_up = answer is not None and not answer.responses[0].error_code

    async def _beat(self, epoch: int) -> None:
        member_id = self._member_id
        request = share_groups.ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=self._names,
        )
        floor = self._checker.epoch_of(member_id)
        asked = self._coordinator, self.notes.coordinator_of(self.group)
        answer = await self._send_to_coordinator(request, 1)
        if answer is None or member_id != self._member_id or epoch == _LEAVE:
            return
        code = error_of(answer.error_code)
        if code is not ErrorCode.NONE:
            self._refused(code)
            if self._generation < 0:
                self._checker.fenced(member_id)
                if code in OVER:
                    self._member_id = member_id
            return
        self._checker.beaten(member_id, answer.member_epoch, floor if self._is_still(*asked) else 0)
        self._generation = answer.member_epoch
        if answer.assignment is not None:
            names = {topic_id: name for name, topic_id in self.topic_ids.items()}
            self.owned = {
                TopicPartition(names[bytes(topic.topic_id)], number): 0
                for topic in answer.assignment.topic_partitions
                if bytes(topic.topic_id) in names
                for number in topic.partitions
            }

    async def _leave(self) -> None:
        for address in list(self._sessions):
            await self._acknowledge(address, self._drawn(address), _CLOSE)
        await self._beat(_LEAVE)
        self._checker.gone(self._member_id)
        self.owned, self._generation, self._member_id = {}, -1, ""
        self._sessions.clear()
        self._holds.clear()

    # work

    async def _work(self) -> None:
        await self._beat(self._generation)
        by_leader: dict[Address, set[TopicPartition]] = {}
        for place in sorted(self.owned):
            await self.epoch_of_leader(place)
            address = self.addresses.get(self.leaders.get(place, (-1, -1))[0])
            if address is not None:
                by_leader.setdefault(address, set()).add(place)
        known = sorted({*by_leader, *self._holds})
        if not known or self._generation < 0:
            return
        # One that drains asks everybody: who led before may be asked no more.
        for address in known if not self.commits else [self.random.choice(known)]:
            await self._ask(address, by_leader.get(address, set()))
        if self.commits and self.random.random() < _STALL_CHANCE:
            self.stalls(self.random.uniform(0.5, 2) * self._lock_ms / 1000)
        elif self.commits and self.random.random() < _CRASH_CHANCE:
            self.crashes(self.random.random() * 2)

    async def _ask(self, address: Address, wanted: set[TopicPartition]) -> None:
        is_open = self._sessions.get(address, _OPEN) != _OPEN
        if is_open and self.commits:
            if self.random.random() < _CLOSE_CHANCE:
                await self._acknowledge(address, self._drawn(address), _CLOSE)
                return
            if self.random.random() < _THEFT_CHANCE:
                await self._acknowledge(address, self._stolen(wanted), self._sessions[address])
                return
        if is_open and (not wanted or self.random.random() < 0.5):
            chunks = self._drawn(address, renews=self.commits)
            if chunks:
                await self._acknowledge(address, chunks, self._sessions[address])
                return
        if wanted:
            await self._fetch(address, wanted, self._drawn(address) if is_open else {})
        elif not is_open:
            self._holds.pop(address, None)

    def _drawn(self, address: Address, renews: bool = False) -> Chunks:
        """What becomes of some of what it was given there."""
        found: Chunks = {}
        for place, offsets in sorted(self._holds.get(address, {}).items()):
            left = sorted(offsets)
            while left:
                upto = 1
                most = self.random.randint(1, 8) if self.commits else len(left)
                while upto < min(len(left), most) and left[upto] == left[upto - 1] + 1:
                    upto += 1
                kind = ACCEPT if not self.commits else self._kind()
                if kind is not None and (kind != RENEW or renews):
                    found.setdefault(place, []).append(Chunk(left[0], left[upto - 1], kind))
                left = left[upto:]
        return found

    def _kind(self) -> int | None:
        return self.random.choices(list(_CHANCES), list(_CHANCES.values()))[0]

    def _stolen(self, wanted: set[TopicPartition]) -> Chunks:
        """What another member was given."""
        found: Chunks = {}
        for place in sorted(wanted):
            offset = self._checker.held_by_others(self._member_id, place, self.random)
            if offset is not None:
                found[place] = [Chunk(offset, offset, self.random.choice((ACCEPT, RELEASE)))]
        return found

    # requests

    def _topics(self, places: Sequence[TopicPartition], chunks: Chunks) -> Any:
        topics: dict[bytes, list[share_fetch.ShareFetchPartition]] = {}
        for place in places:
            batches = [
                share_fetch.AcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=[kind]
                )
                for first, last, kind in chunks.get(place, ())
            ]
            topics.setdefault(self.topic_ids[place.topic], []).append(
                share_fetch.ShareFetchPartition(
                    partition_index=place.partition, acknowledgement_batches=batches
                )
            )
        return [
            share_fetch.ShareFetchTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ]

    def _asks(self, address: Address, chunks: Chunks, places: Sequence[TopicPartition]) -> Asked:
        self._checker.sent(self._member_id, chunks)
        holds = self._holds.get(address, {})
        for place, row in chunks.items():
            for first, last, kind in row:
                if kind != RENEW:
                    holds.get(place, set()).difference_update(range(first, last + 1))
        return self._checker.asks(self._member_id, address, {*places, *chunks})

    async def _acknowledge(self, address: Address, chunks: Chunks, epoch: int) -> None:
        if not chunks and epoch != _CLOSE:
            return
        member_id = self._member_id
        asked = self._asks(address, chunks, ())
        request = share_fetch.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=member_id,
            share_session_epoch=epoch,
            is_renew_ack=any(kind == RENEW for row in chunks.values() for *_, kind in row),
            topics=self._topics(sorted(chunks), chunks),
        )
        if epoch == _CLOSE:
            self._checker.closes(member_id, address)
            self._sessions.pop(address, None)
            self._holds.pop(address, None)
        answer = await self.send(address, request, 2)
        if member_id != self._member_id or not self._goes_on(address, answer, epoch):
            return
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        for topic in answer.responses:
            for each in topic.partitions:
                place = TopicPartition(names[bytes(topic.topic_id)], each.partition_index)
                self._is_acknowledged(asked, place, chunks, error_of(each.error_code))

    async def _fetch(self, address: Address, wanted: set[TopicPartition], chunks: Chunks) -> None:
        member_id, epoch = self._member_id, self._sessions.get(address, _OPEN)
        listed = set() if epoch == _OPEN else self._listed.get(address, set())
        asked = self._asks(address, chunks, sorted(wanted))
        # One that drains takes all that there is.
        most = self.random.choice((1, 3, 500)) if self.commits else 500
        max_bytes = self.random.choice((200, 1 << 16)) if self.commits else 1 << 16
        request = share_fetch.ShareFetchRequest(
            group_id=self.group,
            member_id=member_id,
            share_session_epoch=epoch,
            max_wait_ms=300,
            min_bytes=1,
            max_bytes=max_bytes,
            max_records=most,
            batch_size=most,
            share_acquire_mode=self.random.choice((0, 1)),
            topics=self._topics(sorted({*wanted, *chunks}), chunks),
            forgotten_topics_data=[
                share_fetch.ShareForgottenTopic(
                    topic_id=self.topic_ids[place.topic], partitions=[place.partition]
                )
                for place in sorted(listed - wanted)
            ],
        )
        self._listed[address] = wanted
        answer = await self.send(address, request, 2)
        if answer is None:
            self._checker.lost(wanted)
        if member_id != self._member_id or not self._goes_on(address, answer, epoch):
            if answer is not None:
                self._checker.lost(wanted)
            return
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        for topic in answer.responses:
            for each in topic.partitions:
                place = TopicPartition(names[bytes(topic.topic_id)], each.partition_index)
                if place in chunks:
                    self._is_acknowledged(
                        asked, place, chunks, error_of(each.acknowledge_error_code)
                    )
                if each.error_code:
                    self.notes.refused("share fetch", error_of(each.error_code).name)
                    self.forget_leader(place)
                elif each.acquired_records:
                    self._take(asked, address, place, each)

    def _goes_on(self, address: Address, answer: Any, epoch: int) -> bool:
        """Whether there is an answer to be read; the session's next epoch is noted."""
        if answer is None:
            self._sessions.pop(address, None)
            return False
        code = error_of(answer.error_code)
        if code is not ErrorCode.NONE:
            self.notes.refused("share session", code.name)
            self._sessions.pop(address, None)
            return False
        if epoch != _CLOSE:
            self._sessions[address] = epoch + 1
        return True

    def _is_acknowledged(
        self, asked: Asked, place: TopicPartition, chunks: Chunks, code: ErrorCode
    ) -> None:
        if code is not ErrorCode.NONE:
            self.notes.refused("share acknowledgement", code.name)
            return
        for chunk in chunks.get(place, ()):
            self.notes.reached(f"share record {KINDS[chunk.kind]}")
            self._checker.acknowledged(asked, place, *chunk)

    def _take(self, asked: Asked, address: Address, place: TopicPartition, found: Any) -> None:
        offsets = {
            record.offset
            for batch in iterate_batches(found.records or b"", partial_tail=True)
            if not batch.is_control
            for record in batch.records(1 << 20)
        }
        holds = self._holds.setdefault(address, {}).setdefault(place, set())
        for each in found.acquired_records:
            acquired = range(each.first_offset, each.last_offset + 1)
            self._checker.delivered(asked, place, acquired, each.delivery_count, offsets)
            holds.update(acquired)
