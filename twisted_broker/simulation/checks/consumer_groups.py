"""Answers to members of a consumer group of KIP-848, checked: epochs, owners, commits.

Owns `ConsumerGroupChecker` and `Floor`.

1. At one epoch no partition has two owners.
2. A member's epoch never goes down while it is in the group, and one that joins is at the newest
   epoch that anybody was told before. An empty group that a classic one may replace begins anew:
   there only those count that are surely still in it, whose sessions cannot have run out.
3. A member that is still in the group, with a partition that it has not given up, is the only one
   that was given it: a member owns a partition from the answer that gives it until it sends the
   heartbeat that does not list it.
4. An acknowledged commit is there for whoever fetches afterwards (`groups.py`).

All of it holds while no partition of `__consumer_offsets` was led uncleanly; 2 and 3 where the one
that was asked was the coordinator from the question to the answer. Source: KIP-848. Not here: the
coordinator's own state, which is compared with a replay in its unit tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.checks.groups import CommitChecker

_NOTHING: frozenset[TopicPartition] = frozenset()


class Floor(NamedTuple):
    """When a heartbeat was sent, and what was known then: member -> epoch; "": whoever is in."""

    seconds: float
    epochs: Mapping[str, int]


class ConsumerGroupChecker(CommitChecker):
    """Of one group. `session_seconds`: of its members, where others may take an empty group's
    place; None: nobody does.
    """

    def __init__(
        self,
        checker: ClusterChecker,
        counted: Callable[[str], None],
        session_seconds: float | None = None,
    ) -> None:
        super().__init__(checker, counted)
        self._session_seconds = session_seconds
        self._sure_until: dict[str, float] = {}
        self._began = 0.0
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        # With the epoch at which it was given: an older answer may come later.
        self._holders: dict[TopicPartition, tuple[str, int]] = {}
        self._lost: dict[str, set[TopicPartition]] = {}
        self._epochs: dict[str, int] = {}
        self._epoch = 0

    @property
    def _now(self) -> float:
        return self._checker.cluster.sim.now

    def epoch_floor(self, member: str) -> Floor:
        """What the member was told last; of one that joins (""): what anybody was told."""
        if member:
            return Floor(self._now, {"": self._epochs.get(member, 0)})
        if self._session_seconds is None:
            return Floor(self._now, {"": self._epoch})
        return Floor(self._now, dict(self._epochs))

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
        floor: Floor,
        given: Set[TopicPartition] | None,
        lost: Set[TopicPartition],
    ) -> None:
        """`floor`, `lost`: as they were when the heartbeat was sent."""
        sure = [told for who, told in floor.epochs.items() if self._is_in(who)]
        if sure and epoch < max(sure):
            self._broken(f"{member} is told epoch {epoch} after {max(sure)}")
        if self._session_seconds is not None:
            if member not in self._epochs and not any(self._is_in(who) for who in self._epochs):
                self._begin()
            self._sure_until[member] = floor.seconds + self._session_seconds
        for place in sorted(lost):
            self._broken(f"{place} was given to another while {member} had it")
        self._epochs[member] = epoch
        self._epoch = max(self._epoch, epoch)
        if floor.seconds < self._began:
            return  # it may be of the group before
        for place in sorted(given or _NOTHING):
            owner = self._owners.setdefault((epoch, place), member)
            if owner != member:
                self._broken(f"{place} has two owners at epoch {epoch}")
            self._gets(member, epoch, place)

    def standbys(
        self, member: str, active: Set[TopicPartition], standby: Set[TopicPartition]
    ) -> None:
        """The tasks of a streams group's member, by one answer."""
        for place in sorted(active & standby):
            self._broken(f"{member} has {place} as an active task and as a standby")

    def _is_in(self, who: str) -> bool:
        """Whether its session cannot have run out, or nobody asks for that. Who joins again may
        have been removed, with its group (seed 8100180).
        """
        return not who or self._sure_until.get(who, 0.0) >= self._now

    def _begin(self) -> None:
        """Perhaps another group, whose epochs begin anew: whoever is given something now has it.
        Perhaps not, for a coordinator that was away lets all sessions begin anew.
        """
        self._began = self._now
        self._owners.clear()
        self._holders = {place: (holder, 0) for place, (holder, _) in self._holders.items()}

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
        self._sure_until.pop(member, None)
        self._lost.pop(member, None)
        self._free(member, _NOTHING)
