"""Answers to members of a consumer group of KIP-848, checked: epochs, owners, commits.

Owns `ConsumerGroupChecker`.

1. At one epoch no partition has two owners.
2. A member's epoch never goes down while it is in the group, and one that joins is at the newest
   epoch that anybody was told before.
3. A member that is still in the group, with a partition that it has not given up, is the only one
   that was given it: a member owns a partition from the answer that gives it until it sends the
   heartbeat that does not list it.
4. An acknowledged commit is there for whoever fetches afterwards (`groups.py`).

All of it holds while no partition of `__consumer_offsets` was led uncleanly; 2 and 3 where the one
that was asked was the coordinator from the question to the answer. Source: KIP-848. Not here: the
coordinator's own state, which is compared with a replay in its unit tests.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.checks.groups import CommitChecker

_NOTHING: frozenset[TopicPartition] = frozenset()


class ConsumerGroupChecker(CommitChecker):
    """Of one group."""

    def __init__(self, checker: ClusterChecker, counted: Callable[[str], None]) -> None:
        super().__init__(checker, counted)
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        # With the epoch at which it was given: an older answer may come later.
        self._holders: dict[TopicPartition, tuple[str, int]] = {}
        self._lost: dict[str, set[TopicPartition]] = {}
        self._epochs: dict[str, int] = {}
        self._epoch = 0

    def epoch_floor(self, member: str) -> int:
        """What the member was told last; of one that joins (""): what anybody was told."""
        return self._epochs.get(member, 0) if member else self._epoch

    def sent(self, member: str, listed: Set[TopicPartition]) -> frozenset[TopicPartition]:
        """A heartbeat goes out: the member is without what it does not list. Returns what it lists
        although others were given it.
        """
        self._free(member, listed)
        lost = self._lost.get(member, set())
        lost &= listed
        return frozenset(lost)

    def answered(
        self,
        member: str,
        epoch: int,
        floor: int,
        given: Set[TopicPartition] | None,
        lost: Set[TopicPartition],
    ) -> None:
        """`floor`, `lost`: as they were when the heartbeat was sent."""
        if epoch < floor:
            self._broken(f"{member} is told epoch {epoch} after {floor}")
        for place in sorted(lost):
            self._broken(f"{place} was given to another while {member} had it")
        self._epochs[member] = epoch
        self._epoch = max(self._epoch, epoch)
        for place in sorted(given or _NOTHING):
            owner = self._owners.setdefault((epoch, place), member)
            if owner != member:
                self._broken(f"{place} has two owners at epoch {epoch}")
            self._gets(member, epoch, place)

    def _gets(self, member: str, epoch: int, place: TopicPartition) -> None:
        holder, since = self._holders.get(place, (member, -1))
        if since < 0:
            self._counted("partition given to a member")
        if holder != member:
            self._counted("partition of a lost member given away")
            loser = holder if since < epoch else member
            self._lost.setdefault(loser, set()).add(place)
            if loser is member:
                return
        self._holders[place] = member, epoch

    def _free(self, member: str, kept: Set[TopicPartition]) -> None:
        for place, (holder, _) in list(self._holders.items()):
            if holder == member and place not in kept:
                del self._holders[place]

    def fenced(self, member: str) -> None:
        """It is not in the group any more, and owns nothing."""
        self._counted("consumer group member began anew")
        self._epochs.pop(member, None)
        self._lost.pop(member, None)
        self._free(member, _NOTHING)
