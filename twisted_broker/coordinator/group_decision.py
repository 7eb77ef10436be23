"""A decision on a group of the newer protocols: records, an answer, timers.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Decision`, `TimerChange`, `GroupTimer`, `is_assignment_due`.

1. A decision changes nothing. It is carried out by appending its records as one batch or not at
   all, and then: `ModernGroup.apply` for each record, `metadata_compared`, the timers, the answer
   when the records are committed.
2. The group must not change between the first step of a decision and its carrying out.
3. A decision that ends the group names its successor, a classic group, whose record is the last of
   the batch.

Source: Apache Kafka 4.3.1 `CoordinatorResult`, `GroupMetadataManager`. Not here: what a kind of
groups decides (`consumer/`, `streams/`), the carrying out (`group_runner.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.modern_group import NEVER_ASSIGNED_MS, ModernGroup
from twisted_broker.coordinator.record_codec import StoredRecord


class GroupTimer(Enum):
    """The steps for which a member has limited time. JOIN and SYNC: one of the classic protocol,
    for that.
    """

    SESSION = "session"
    REBALANCE = "rebalance"
    JOIN = "join"
    SYNC = "sync"


OF_MEMBERS = (GroupTimer.SESSION, GroupTimer.REBALANCE, GroupTimer.JOIN, GroupTimer.SYNC)


@dataclass(frozen=True, slots=True)
class TimerChange:
    """`delay_ms` None: the timer ends. `epoch`: of a REBALANCE; it removes the member only if that
    still stands there when it fires. `if_absent`: one that runs stays.
    """

    kind: GroupTimer
    member_id: str
    delay_ms: int | None = None
    epoch: int | None = None
    if_absent: bool = False


@dataclass(slots=True)
class Decision:
    """`answer`: to the one who asked, None if nobody did. `metadata_mark`: of the metadata that was
    compared. `successor`: the classic group that takes the group's place; `must_rebalance`: at
    once.
    """

    records: list[StoredRecord] = field(default_factory=list)
    answer: Any = None
    timers: list[TimerChange] = field(default_factory=list)
    metadata_mark: int | None = None
    successor: ClassicGroup | None = None
    must_rebalance: bool = False

    def end_timers(self, member_id: str) -> None:
        for kind in OF_MEMBERS:
            self.timers.append(TimerChange(kind, member_id))

    def apply(self, group: ModernGroup) -> None:
        """Its records are appended."""
        for record in self.records:
            group.apply(record)
        if self.metadata_mark is not None:
            group.metadata_compared(self.metadata_mark)


def is_assignment_due(group: ModernGroup, wall_ms: int, interval_ms: int) -> bool:
    """Whether the time between two computations of the target is over."""
    return (
        group.assigned_at_ms == NEVER_ASSIGNED_MS
        or interval_ms == 0
        or wall_ms >= group.assigned_at_ms + interval_ms
    )
