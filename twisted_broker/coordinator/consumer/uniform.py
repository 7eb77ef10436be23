"""The assignor `uniform`: as many partitions to each, and as few moved as can be.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `assign_uniformly`.

1. All subscribe alike: every member ends with the same count or one more, and only partitions above
   that moves.
2. Not alike: free partitions go to the subscriber with the fewest, then the most loaded give to the
   least loaded of each topic, in `MOST_ROUNDS` rounds at most.
3. Members count in the order of their ids, where Kafka's is that of a hash map: so equal groups
   get equal targets.

Source: Apache Kafka 4.3.1 `UniformHomogeneousAssignmentBuilder`,
`UniformHeterogeneousAssignmentBuilder`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from heapq import heapify, heappop, heapreplace

from twisted_broker.coordinator.consumer.assignor import (
    PARTITIONS_PER_STEP,
    AssignorMember,
    GroupSpec,
)
from twisted_broker.coordinator.consumer.partitions import Target, TopicIdPartition

MOST_ROUNDS = 16
_Partitions = list[TopicIdPartition]


def assign_uniformly(spec: GroupSpec) -> Generator[None, None, dict[str, Target]]:
    """The target of every member, in steps."""
    if spec.are_alike:
        given = yield from _assign_alike(spec)
    else:
        given = yield from _Unlike(spec).assign()
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def _assign_alike(spec: GroupSpec) -> Generator[None, None, dict[str, _Partitions]]:
    if not spec.members:
        return {}
    topics = sorted(spec.members[0].topics)
    total = sum(spec.partitions[topic_id] for topic_id in topics)
    quota, extras = divmod(total, len(spec.members))
    kept: dict[str, _Partitions] = {}
    surplus: _Partitions = []
    taken: set[TopicIdPartition] = set()
    work = 0
    for member in spec.members:
        old = _old(spec, member, taken)
        most = quota + (extras > 0 and len(old) > quota)
        extras -= most > quota
        kept[member.member_id] = old[:most]
        surplus += old[most:]
        work += len(old) + 1
        if work >= PARTITIONS_PER_STEP:
            work = 0
            yield
    free: _Partitions = []
    for topic_id in topics:
        numbers = range(spec.partitions[topic_id])
        free += ((topic_id, each) for each in numbers if (topic_id, each) not in taken)
        work += len(numbers)
        if work >= PARTITIONS_PER_STEP:
            work = 0
            yield
    left = iter(free + surplus)
    for partitions in kept.values():
        most = quota + (extras > 0 and len(partitions) <= quota)
        extras -= most > quota
        partitions += (next(left) for _ in range(most - len(partitions)))
    return kept


def _old(spec: GroupSpec, member: AssignorMember, taken: set[TopicIdPartition]) -> _Partitions:
    """The partitions that the member keeps; they go into `taken`."""
    old = sorted(
        each
        for each in member.target
        if each[0] in member.topics and each[1] < spec.partitions[each[0]] and each not in taken
    )
    taken.update(old)
    return old


class _Unlike:
    """The assignment of members that do not subscribe alike."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._work = 0
        self._given: dict[str, _Partitions] = {}
        self._of_topic: dict[tuple[str, bytes], _Partitions] = {}
        self._subscribers: defaultdict[bytes, list[str]] = defaultdict(list)

    def assign(self) -> Generator[None, None, dict[str, _Partitions]]:
        counts: dict[str, int] = {}
        taken: set[TopicIdPartition] = set()
        work = 0
        for member in self._spec.members:
            old = _old(self._spec, member, taken)
            counts[member.member_id] = len(old)
            for topic_id in member.topics:
                self._subscribers[topic_id].append(member.member_id)
                self._of_topic[member.member_id, topic_id] = []
            for each in old:
                self._of_topic[member.member_id, each[0]].append(each)
            work += len(old) + len(member.topics)
            if work >= PARTITIONS_PER_STEP:
                work = 0
                yield
        topics = sorted(self._subscribers, key=self._place)
        for topic_id in topics:
            self._give_free(topic_id, counts, taken)
            if self._is_step_done(topic_id):
                yield
        shared = [each for each in topics if len(self._subscribers[each]) > 1]
        for _ in range(MOST_ROUNDS):
            moved = 0
            for topic_id in shared:
                moved += self._balance(topic_id, counts)
                if self._is_step_done(topic_id):
                    yield
            if not moved:
                break
        given: dict[str, _Partitions] = {each.member_id: [] for each in self._spec.members}
        for (member_id, _), partitions in self._of_topic.items():
            given[member_id] += partitions
        return given

    def _is_step_done(self, topic_id: bytes) -> bool:
        self._work += self._spec.partitions[topic_id] + len(self._subscribers[topic_id])
        if self._work < PARTITIONS_PER_STEP:
            return False
        self._work = 0
        return True

    def _place(self, topic_id: bytes) -> tuple[float, int, bytes]:
        """Topics with the most partitions for each subscriber first."""
        subscribers = len(self._subscribers[topic_id])
        return -self._spec.partitions[topic_id] / subscribers, subscribers, topic_id

    def _give_free(
        self, topic_id: bytes, counts: dict[str, int], taken: set[TopicIdPartition]
    ) -> None:
        numbers = range(self._spec.partitions[topic_id])
        free = [(topic_id, each) for each in numbers if (topic_id, each) not in taken]
        fewest = [(counts[each], each) for each in self._subscribers[topic_id]]
        heapify(fewest)
        for each in free:
            count, member_id = fewest[0]
            self._of_topic[member_id, topic_id].append(each)
            counts[member_id] = count + 1
            heapreplace(fewest, (count + 1, member_id))

    def _balance(self, topic_id: bytes, counts: dict[str, int]) -> int:
        """Partitions of one topic from the most to the least loaded; how many moved."""
        subscribers = self._subscribers[topic_id]
        least = [(counts[each], each) for each in subscribers]
        most = [(-counts[each], each) for each in subscribers if self._of_topic[each, topic_id]]
        heapify(least)
        heapify(most)
        moved = 0
        while most:
            # A place in a heap that is behind the count is put right before it is used.
            for heap, sign in ((least, 1), (most, -1)):
                while heap[0][0] != sign * counts[heap[0][1]]:
                    heapreplace(heap, (sign * counts[heap[0][1]], heap[0][1]))
            taker, giver = least[0][1], most[0][1]
            if counts[giver] - counts[taker] < 2:
                break
            self._of_topic[taker, topic_id].append(self._of_topic[giver, topic_id].pop())
            counts[taker] += 1
            counts[giver] -= 1
            moved += 1
            if not self._of_topic[giver, topic_id]:
                heappop(most)
        return moved
