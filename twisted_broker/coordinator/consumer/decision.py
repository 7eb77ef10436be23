"""The input of a decision on a consumer group, and its result.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Environment`, `ConsumerGroupDecision`, `ConsumerGroupSettings`.

Source: Apache Kafka 4.3.1 `CoordinatorResult`, `GroupConfig`. Not here: what decisions on all kinds
of groups have in common (`group_decision.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.image.metadata_image import MetadataImage


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """Of one group, at the moment of a decision. `may_upgrade`, `may_downgrade`: what
    `group.consumer.migration.policy` says; `classic_max_size` is `group.max.size`.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 2**31 - 1
    assignors: Sequence[str] = ("uniform", "range")
    pattern_refresh_interval_ms: int = 600_000
    may_upgrade: bool = True
    may_downgrade: bool = True
    classic_max_size: int = 2**31 - 1


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
class ConsumerGroupDecision(Decision):
    """`resolves_patterns`: a refresh of the group's patterns is to begin."""

    resolves_patterns: bool = False
