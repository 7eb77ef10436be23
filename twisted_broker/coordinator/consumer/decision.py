"""What a decision on a consumer group is made with, and what comes out of it.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Environment`, `Decision`, `TimerChange`, `GroupSettings`.

1. A decision changes nothing. It is carried out by appending its records as one batch or not at
   all, and then: `ConsumerGroup.apply` for each record, `metadata_compared`, the timers, the answer
   when the records are committed.
2. The group must not change between the first step of a decision and its carrying out.

Source: Apache Kafka 4.3.1 `CoordinatorResult`, `GroupConfig`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.consumer.records import ConsumerGroupRecord
from twisted_broker.image.metadata_image import MetadataImage


class ConsumerTimer(Enum):
    """What a member is given time for."""

    SESSION = "session"
    REBALANCE = "rebalance"


@dataclass(frozen=True, slots=True)
class TimerChange:
    """`delay_ms` None: the timer ends. `epoch`: of a REBALANCE; it removes the member only if that
    still stands there when it fires.
    """

    kind: ConsumerTimer
    member_id: str
    delay_ms: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """Of one group, at the moment of a decision."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 2**31 - 1
    assignors: Sequence[str] = ("uniform", "range")
    pattern_refresh_interval_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything besides the group and the request. `topics_created_version`: the offset of the
    last image in which topics were new.
    """

    image: MetadataImage
    hashes: TopicHashes
    wall_ms: int
    settings: ConsumerGroupSettings = field(default_factory=ConsumerGroupSettings)
    topics_created_version: int = -1


@dataclass(slots=True)
class Decision:
    """`answer`: to the one who asked, None if nobody did. `metadata_mark`: of the metadata that was
    compared. `resolves_patterns`: a refresh of the group's patterns is to begin.
    """

    records: list[ConsumerGroupRecord] = field(default_factory=list)
    answer: Any = None
    timers: list[TimerChange] = field(default_factory=list)
    metadata_mark: int | None = None
    resolves_patterns: bool = False

    def end_timers(self, member_id: str) -> None:
        for kind in ConsumerTimer:
            self.timers.append(TimerChange(kind, member_id))

    def apply(self, group: ConsumerGroup) -> None:
        """Its records are appended."""
        for record in self.records:
            group.apply(record)
        if self.metadata_mark is not None:
            group.metadata_compared(self.metadata_mark)
