"""The input of a decision on a share group, and its result.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ShareEnvironment`, `ShareGroupDecision`, `ShareGroupSettings`.

Source: Apache Kafka 4.3.1 `CoordinatorResult`, `GroupConfig`,
`InitializeShareGroupStateParameters`. Not here: what decisions on all kinds of groups have in
common (`group_decision.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.consumer.partitions import TopicIdPartition
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.image.metadata_image import MetadataImage


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    """Of one group, at the moment of a decision."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 200
    initialize_retry_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class ShareEnvironment:
    """Everything besides the group and the request."""

    image: MetadataImage
    hashes: TopicHashes
    wall_ms: int
    settings: ShareGroupSettings = field(default_factory=ShareGroupSettings)


@dataclass(slots=True)
class ShareGroupDecision(Decision):
    """`initialize`: the partitions whose state is to be made then, each with its start offset, at
    the state epoch `state_epoch`; `began_at_ms`: when. `delete`: those whose state is to go.
    """

    initialize: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    state_epoch: int = 0
    began_at_ms: int = 0
    delete: frozenset[TopicIdPartition] = frozenset()

    def apply(self, group: ModernGroup) -> None:
        Decision.apply(self, group)
        assert isinstance(group, ShareGroup)
        for topic_id, _ in self.initialize:
            group.initializing_at[topic_id] = self.began_at_ms
