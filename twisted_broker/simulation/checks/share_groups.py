"""Answers to members of a share group, checked: locks, deliveries, acknowledgements, and at the end
the state that was written.

Owns `ShareGroupChecker`.

1. Under one leader nothing is delivered to a member while another has it under a lock that has not
   ended; and nobody acknowledges what another has so.
2. What was accepted, as its answer says, is not delivered again by the leader that counts.
3. A delivery has a number from 1 to the group's limit, which rises under one leader.
4. A member's epoch never goes down while it is in the group.
5. At the end every committed record was delivered, and is finished, because a member said so, or
   after as many deliveries as the limit; answers that were lost count, for they may have had it.
   What was accepted is written so. In the log of
   `__share_group_state` no start offset, leader epoch or state epoch of a share partition goes
   back.

All of it where no unclean election took something of the partition, of `__share_group_state` or of
`__consumer_offsets`. A lock counts where it is sure: the same share partition of the same process
was there from the question to the answer, the member's session is still open, and nothing was sent
that may have ended it. What DeleteRecords and retention took is owed to nobody.

Source: KIP-932; GN 6.27, 6.28. Not here: one share partition by itself (its machine in
`tests/share`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from twisted_broker.coordinator.share_state.records import decode_record
from twisted_broker.coordinator.share_state.share_state import ShareState
from twisted_broker.coordinator.share_state.values import SharePartitionKey, StateBatch
from twisted_broker.interfaces import TopicPartition
from twisted_broker.share.in_flight import ACKNOWLEDGED
from twisted_broker.share.share_session import SessionKey
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.checks.end_state import final_log, final_values
from twisted_broker.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.records import iterate_batches

SHARE_GROUP = "s0"
_ACCEPT, _REJECT, _RENEW = 1, 3, 4
_TICK = 0.002
"""Seconds: a broker's times are whole milliseconds."""


class Asked(NamedTuple):
    """When a member asked a broker, and what that held then."""

    member: str
    host: str
    seconds: float
    held: Mapping[TopicPartition, Any]
    session: Any


class _Lock:
    """What was delivered last, of one offset. `is_sure`: it is known who gave it, and
    `is_left`: nothing was sent that may have ended it.
    """

    __slots__ = ("asked", "count", "is_left", "is_sure", "known", "until")

    def __init__(self, asked: Asked, count: int, is_sure: bool, known: float, until: float) -> None:
        self.asked, self.count, self.is_sure = asked, count, is_sure
        self.is_left = True
        self.known, self.until = known, until


class ShareGroupChecker:
    """Of `SHARE_GROUP`. `counted(kind)` is called with what was reached."""

    def __init__(
        self, checker: ClusterChecker, counted: Callable[..., None], lock_ms: int, limit: int
    ) -> None:
        self._checker, self._counted = checker, counted
        self._lock_seconds, self._limit = lock_ms / 1000, limit
        self._locks: dict[TopicPartition, dict[int, _Lock]] = {}
        self._accepted: dict[TopicPartition, dict[int, float]] = {}
        self._delivered: dict[TopicPartition, set[int]] = {}
        self._finished: dict[TopicPartition, set[int]] = {}
        """what may have been accepted or rejected"""
        self._starts: dict[TopicPartition, tuple[Any, int]] = {}
        self._lost: Counter[TopicPartition] = Counter()
        self._epochs: dict[str, int] = {}

    # members

    def epoch_of(self, member: str) -> int:
        return self._epochs.get(member, 0)

    def beaten(self, member: str, epoch: int, floor: int) -> None:
        """`floor`: `epoch_of` before the heartbeat was sent."""
        if epoch < floor:
            self._broken(None, f"{member} is told epoch {epoch} after {floor}")
        self._epochs[member] = epoch

    def fenced(self, member: str) -> None:
        """It is not in the group any more; its locks stay until they end."""
        self._epochs.pop(member, None)

    def gone(self, member: str) -> None:
        """Nobody knows what becomes of what it has."""
        self.fenced(member)
        self._give_up(lambda lock: lock.asked.member == member)

    def closes(self, member: str, address: tuple[str, int]) -> None:
        """It gives up what it has there."""
        self._give_up(lambda lock: lock.asked.member == member and lock.asked.host == address[0])

    def _give_up(self, is_meant: Callable[[_Lock], bool]) -> None:
        for locks in self._locks.values():
            for lock in locks.values():
                if is_meant(lock):
                    lock.is_left = False

    # questions and answers

    def asks(
        self, member: str, address: tuple[str, int], places: Iterable[TopicPartition]
    ) -> Asked:
        """A request goes out."""
        host = address[0]
        held = {place: self._held(host, place) for place in places}
        for place, each in held.items():
            if each:
                share = each.share
                before, start = self._starts.get(place, (None, -1))
                if before is each and share.start_offset < start:
                    self._broken(place, f"its start offset goes from {start} back to {share!r}")
                if before is each and share.start_offset > start:
                    self._counted("share start offset moved")
                self._starts[place] = each, share.start_offset
        return Asked(member, host, self._now, held, self._session(member, host))

    def sent(self, member: str, chunks: Mapping[TopicPartition, Sequence[Any]]) -> None:
        """Acknowledgements go out with the next request: what they end may be over from now on."""
        for place, row in chunks.items():
            locks = self._locks.get(place, {})
            for first, last, kind in row:
                for offset in range(first, last + 1) if kind != _RENEW else ():
                    lock = locks.get(offset)
                    if lock is not None and lock.asked.member == member:
                        lock.is_left = False
                    if kind in (_ACCEPT, _REJECT):
                        self._finished.setdefault(place, set()).add(offset)

    def lost(self, places: Iterable[TopicPartition]) -> None:
        """An answer that may have had records of these did not arrive."""
        self._lost.update(places)

    def delivered(
        self,
        asked: Asked,
        place: TopicPartition,
        acquired: Sequence[int],
        count: int,
        records: Collection[int],
    ) -> None:
        """`acquired`: the offsets; `records`: those that came with the answer."""
        now, is_same = self._now, self._is_same(asked, place)
        is_current = self._is_current(asked, place)
        self._counted("share records delivered")
        self._counted("share records delivered again", int(count > 1))
        if not 1 <= count <= self._limit:
            self._broken(place, f"delivery {count} of {acquired}, the limit is {self._limit}")
        line = self._checker.truth.line_of(place)
        if acquired[-1] >= line.top:
            self._broken(place, f"{acquired} is delivered, {line.top} was committed")
        locks = self._locks.setdefault(place, {})
        self._delivered.setdefault(place, set()).update(set(acquired) & set(records))
        accepted = self._accepted.get(place, {})
        moved = False
        for offset in acquired:
            if is_current and accepted.get(offset, now) < asked.seconds:
                self._broken(place, f"{offset} was accepted, and is delivered again")
            before = locks.get(offset)
            if before is not None and before.known <= asked.seconds:
                if is_same and before.asked.held.get(place) is asked.held[place]:
                    if count <= before.count:
                        self._broken(place, f"delivery {count} of {offset} after {before.count}")
                    if self._is_live(before, now) and before.asked.member != asked.member:
                        self._broken(
                            place,
                            f"{offset} is delivered to {asked.member} under the lock of "
                            f"{before.asked.member}",
                        )
                elif before.is_left and now < before.until:
                    moved = True
            locks[offset] = _Lock(
                asked, count, is_same, now, asked.seconds + self._lock_seconds - _TICK
            )
        self._counted("share leader moved under a lock", int(moved))

    def acknowledged(
        self, asked: Asked, place: TopicPartition, first: int, last: int, kind: int
    ) -> None:
        """Answered without an error."""
        is_same = self._is_same(asked, place)
        locks = self._locks.get(place, {})
        deleted = self._checker.truth.line_of(place).deleted_upto
        for offset in range(max(first, deleted), last + 1):
            lock = locks.get(offset)
            if is_same and lock is not None and lock.asked.held.get(place) is asked.held[place]:
                if (
                    lock.asked.member != asked.member
                    and lock.known <= asked.seconds
                    and self._is_live(lock, self._now)
                ):
                    self._broken(
                        place,
                        f"{asked.member} acknowledged {offset} under the lock of "
                        f"{lock.asked.member}",
                    )
                if kind == _RENEW and lock.asked.member == asked.member:
                    lock.until = asked.seconds + self._lock_seconds - _TICK
            if kind == _ACCEPT:
                self._accepted.setdefault(place, {}).setdefault(offset, self._now)

    def held_by_others(self, member: str, place: TopicPartition, random: Random) -> int | None:
        """An offset that another has."""
        found = [
            offset
            for offset, lock in self._locks.get(place, {}).items()
            if lock.is_left and lock.asked.member != member and lock.until > self._now
        ]
        return random.choice(found) if found else None

    # what is there

    @property
    def _now(self) -> float:
        return self._checker.cluster.sim.now

    def _server(self, host: str) -> Any:
        node = self._checker.cluster.nodes.get(host)
        return None if node is None or node.broker is None else node.broker.broker_server

    def _held(self, host: str, place: TopicPartition) -> Any:
        """The share partition there; None: there is none, False: its state is being read."""
        server, key = self._server(host), self._checker.truth.keys.get(place)
        if server is None or key is None:
            return None
        held = server.share_partitions.held.get(SharePartitionKey(SHARE_GROUP, *key))
        return False if held is not None and held.share is None else held

    def _session(self, member: str, host: str) -> Any:
        server = self._server(host)
        try:
            return server and server.share_partitions.sessions.get(SessionKey(SHARE_GROUP, member))
        except BrokerError:
            return None

    def _is_same(self, asked: Asked, place: TopicPartition) -> bool:
        held = asked.held.get(place)
        return bool(held) and self._held(asked.host, place) is held

    def _is_current(self, asked: Asked, place: TopicPartition) -> bool:
        """Whether no other leads, who may have finished what this one does not know; what was read
        since the question knows it.
        """
        held, before = self._held(asked.host, place), asked.held.get(place)
        if not held or before not in (None, held):
            return False
        registration = self._checker.truth.registration(self._checker.truth.keys[place])
        return (
            registration is not None
            and f"n{registration.leader}" == asked.host
            and registration.leader_epoch == held.leader_epoch
        )

    def _is_live(self, lock: _Lock, now: float) -> bool:
        if not (lock.is_sure and lock.is_left) or now >= lock.until or lock.asked.session is None:
            return False
        return self._session(lock.asked.member, lock.asked.host) is lock.asked.session

    def _is_owed(self, place: TopicPartition | None) -> bool:
        truth = self._checker.truth
        return truth.is_complete(OFFSETS_TOPIC, SHARE_STATE_TOPIC) and (
            place is None or truth.line_of(place).is_whole
        )

    def _broken(self, place: TopicPartition | None, text: str) -> None:
        if self._is_owed(place):
            where = "" if place is None else f"{place}: "
            self._checker.broken = self._checker.broken or f"share group: {where}{text}"

    # the end

    def behind(self, places: Iterable[TopicPartition]) -> str:
        """What is not finished yet."""
        truth = self._checker.truth
        for place in places:
            key = truth.keys.get(place)
            if key is None or not self._is_owed(place):
                continue
            held = self._held(f"n{truth.registration(key).leader}", place)
            if not held:
                return f"nobody fetches {place} in the share group"
            start, end = held.share.start_offset, truth.line_of(place).end
            if start < end:
                return f"the share group is at {start} of {end} in {place}"
        return ""

    def at_the_end(self, places: Iterable[TopicPartition]) -> None:
        truth = self._checker.truth
        if not truth.is_complete(OFFSETS_TOPIC, SHARE_STATE_TOPIC):
            return
        state = self._final_state()
        for place in places:
            if place not in truth.keys or not self._is_owed(place):
                continue
            deleted = truth.line_of(place).deleted_upto
            owed = {offset for offset in final_values(self._checker, place) if offset >= deleted}
            missed = sorted(owed - self._delivered.get(place, set()))
            if missed and self._lost[place] < self._limit:
                self._broken(place, f"{missed[:5]} were never delivered")
            locks = self._locks.get(place, {})
            for offset in sorted(owed - self._finished.get(place, set()) - set(missed)):
                if locks[offset].count + self._lost[place] < self._limit:
                    self._broken(place, f"{offset} is over after {locks[offset].count} deliveries")
            found = state.partitions.get(SharePartitionKey(SHARE_GROUP, *truth.keys[place]))
            for offset in sorted(self._accepted.get(place, ())):
                if offset >= deleted and (
                    found is None or not _is_accepted(found.start_offset, found.batches, offset)
                ):
                    self._broken(place, f"{offset} was accepted, and is not written so: {found}")

    def _final_state(self) -> ShareState:
        """Of all share partitions, as the log says it."""
        state = ShareState()
        for name in self._checker.truth.keys:
            if name.topic != SHARE_STATE_TOPIC:
                continue
            for offset, record in self._records(name):
                key = SharePartitionKey(record[0].group_id, record[0].topic_id, record[0].partition)
                before = state.partitions.get(key)
                state.apply(record, offset)
                after = state.partitions.get(key)
                if before is not None and after is not None:
                    self._check_order(key, before, after)
        return state

    def _check_order(self, key: SharePartitionKey, before: Any, after: Any) -> None:
        old = before.state_epoch, before.leader_epoch, before.start_offset
        new = after.state_epoch, after.leader_epoch, after.start_offset
        is_later = new[0] > old[0] or (new[0] == old[0] and new[1] >= old[1] and new[2] >= old[2])
        if not is_later:
            self._broken(None, f"the state of {key} goes back: {before}, then {after}")

    def _records(self, name: TopicPartition) -> Iterator[tuple[int, Any]]:
        log, node = final_log(self._checker, name)
        for segment in log.segments:
            data = bytes(node.disk.nodes[segment.log.path].data[: segment.size])
            for batch in iterate_batches(data):
                for record in batch.records(1 << 20):
                    decoded = decode_record(record.key, record.value)
                    if decoded is not None and record.offset >= log.log_start_offset:
                        yield record.offset, decoded


def _is_accepted(start: int, batches: Iterable[StateBatch], offset: int) -> bool:
    return offset < start or any(
        first <= offset <= last and state == ACKNOWLEDGED for first, last, state, _ in batches
    )
