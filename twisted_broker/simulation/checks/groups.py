"""Answers to members of a group, checked: generations, assignments, committed offsets.

Owns `GroupChecker`, of classic groups, and `CommitChecker`, of any.

1. A commit that was acknowledged is there for whoever fetches afterwards, whichever coordinator
   died meanwhile; owners raise what they commit, so a fetch never gives less. One that has not
   heard yet that another leads answers from its memory, as in Kafka.
2. A member that joins after a generation's assignments were given out is in that generation or a
   later one; from one that has not heard yet that another leads it may get an older one, which that
   one remembers with the member in it.
3. In one generation no partition has two owners.

All of it holds while no partition of `__consumer_offsets` was led uncleanly. Source: Kafka's
`GroupCoordinator`. Not here: what groups read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.topic_names import OFFSETS_TOPIC


class CommitChecker:
    """The commits of one group. `counted(kind)` is called with what was reached."""

    def __init__(self, checker: ClusterChecker, counted: Callable[[str], None]) -> None:
        self._checker, self._counted = checker, counted
        self._committed: dict[TopicPartition, int] = {}

    def commit_floor(self, place: TopicPartition) -> int:
        """The highest commit that was acknowledged."""
        return self._committed.get(place, 0)

    def committed(self, place: TopicPartition, count: int) -> None:
        self._counted("offset commit")
        self._committed[place] = max(count, self._committed.get(place, 0))

    def committed_seen(self, place: TopicPartition, count: int, floor: int) -> None:
        """`floor`: of `commit_floor` before the fetch was sent."""
        if count < floor:
            self._broken(f"{place}: {count} is committed, {floor} was acknowledged before")

    def _broken(self, text: str) -> None:
        truth = self._checker.truth
        lines = [
            truth.line(key) for key, name in truth.names.items() if name.topic == OFFSETS_TOPIC
        ]
        if all(line.is_whole for line in lines):
            self._checker.broken = self._checker.broken or f"group: {text}"


class GroupChecker(CommitChecker):
    """Attached to `Notes`."""

    def __init__(
        self, checker: ClusterChecker, notes: Notes, counted: Callable[[str], None]
    ) -> None:
        super().__init__(checker, counted)
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._generation = 0
        notes.generation_floor = lambda: self._generation
        notes.commit_floor = self.commit_floor
        notes.assigned, notes.committed = self.assigned, self.committed
        notes.committed_seen = self.committed_seen
        notes.coordinator_of = checker.truth.coordinator_of

    def assigned(
        self, member: str, generation: int, floor: int, places: Sequence[TopicPartition]
    ) -> None:
        """`floor`: of `generation_floor` before the member joined."""
        if generation < floor:
            self._broken(f"{member} joined generation {generation} after {floor} was assigned")
        for place in places:
            owner = self._owners.setdefault((generation, place), member)
            if owner != member:
                self._broken(f"{place} has two owners in generation {generation}")
        self._generation = max(self._generation, generation)
