"""How tasks are named in streams groups. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Task`, `Tasks`, `AssignedTasks`, and the lists of them in messages.

1. A task is a subtopology and a number: it reads the partition of that number of every topic that
   the subtopology reads.
2. A member has a task as active, standby or warm-up. Only active ones have an epoch: the target
   epoch at which the member first got it.

Source: Apache Kafka 4.3.1 `TasksTuple`, `TasksTupleWithEpochs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple, Protocol

Task = tuple[str, int]
"""Subtopology id and number."""
NONE: frozenset[Task] = frozenset()
NO_EPOCHS: Mapping[Task, int] = MappingProxyType({})


class Tasks(NamedTuple):
    """A target, or the tasks that a member says it owns."""

    active: frozenset[Task] = NONE
    standby: frozenset[Task] = NONE
    warmup: frozenset[Task] = NONE


NO_TASKS = Tasks()


class AssignedTasks(NamedTuple):
    """Tasks that a member was told to have, or to give up."""

    active: Mapping[Task, int] = NO_EPOCHS
    standby: frozenset[Task] = NONE
    warmup: frozenset[Task] = NONE

    def without_epochs(self) -> Tasks:
        return Tasks(frozenset(self.active), self.standby, self.warmup)

    def is_any_in(self, tasks: Tasks) -> bool:
        """Whether one of them is there in the same role."""
        return (
            any(each in tasks.active for each in self.active)
            or not self.standby.isdisjoint(tasks.standby)
            or not self.warmup.isdisjoint(tasks.warmup)
        )


NOTHING_ASSIGNED = AssignedTasks()


class ListedTasks(Protocol):
    """One subtopology's tasks in a message."""

    subtopology_id: str
    partitions: list[int]


def by_subtopology(tasks: Iterable[Task]) -> list[tuple[str, list[int]]]:
    """The tasks as records and answers list them: by subtopology, numbers ascending."""
    return [
        (subtopology_id, [number for _, number in of_one])
        for subtopology_id, of_one in groupby(sorted(tasks), key=lambda each: each[0])
    ]


def listed(lists: Sequence[ListedTasks]) -> frozenset[Task]:
    """Tasks as a message lists them."""
    return frozenset((each.subtopology_id, number) for each in lists for number in each.partitions)
