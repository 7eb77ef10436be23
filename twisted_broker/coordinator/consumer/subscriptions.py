"""The subscriptions of a group's members, counted. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Subscriptions`.

1. Its size is that of the group's different names, patterns and assignors, not of its members: a
   decision copies it.

Source: Apache Kafka 4.3.1 `ModernGroup.subscribedTopicNames`, `ConsumerGroup.subscriptionType`,
`preferredServerAssignor`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from twisted_broker.coordinator.consumer.member import ConsumerGroupMember


class Subscriptions:
    """How many members there are, and of them how many have a name, a pattern, an assignor."""

    __slots__ = ("assignors", "members", "names", "patterns")

    def __init__(self) -> None:
        self.members = 0
        self.names: Counter[str] = Counter()
        self.patterns: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()

    def change(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        """One member that was `before` is `after`; None: it is not there."""
        for member, count in ((before, -1), (after, 1)):
            if member is None:
                continue
            self.members += count
            for name in member.names:
                _add(self.names, name, count)
            if member.pattern:
                _add(self.patterns, member.pattern, count)
            if member.assignor is not None:
                _add(self.assignors, member.assignor, count)

    def changed(
        self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None
    ) -> Subscriptions:
        """Another one, after `change`."""
        result = Subscriptions()
        result.members = self.members
        result.names, result.patterns = self.names.copy(), self.patterns.copy()
        result.assignors = self.assignors.copy()
        result.change(before, after)
        return result

    def topics(self, resolved: Mapping[str, Collection[str]]) -> set[str]:
        """The names that somebody subscribes to. `resolved`: the topics of each pattern."""
        return set(self.names).union(*(resolved.get(each, ()) for each in self.patterns))

    def are_alike(self) -> bool:
        """Whether every member subscribes to the same."""
        if not self.patterns:
            return all(count == self.members for count in self.names.values())
        return not self.names and [*self.patterns.values()] == [self.members]

    def preferred_assignor(self, configured: Sequence[str]) -> str:
        """The one that most members name, of several the first configured."""
        return max(configured, key=lambda name: self.assignors[name])


def _add(counts: Counter[str], name: str, count: int) -> None:
    counts[name] += count
    if not counts[name]:
        del counts[name]
