"""The input of a decision on a streams group, and its result.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Environment`, `StreamsGroupDecision`, `StreamsGroupSettings`.

Source: Apache Kafka 4.3.1 `CoordinatorResult`, `GroupConfig`. Not here: what decisions on all kinds
of groups have in common (`group_decision.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.streams.configure import ConfiguredTopology
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.image.metadata_image import MetadataImage

STANDBY_REPLICAS = "num.standby.replicas"


@dataclass(frozen=True, slots=True)
class StreamsGroupSettings:
    """Of one group, at the moment of a decision."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    initial_rebalance_delay_ms: int = 3_000
    num_standby_replicas: int = 0
    max_size: int = 2**31 - 1

    @property
    def assignment_configs(self) -> dict[str, str]:
        """The assignor's input, as it is stored."""
        return {STANDBY_REPLICAS: str(self.num_standby_replicas)}


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything besides the group and the request. `is_delayed`: a group's first target waits for
    more members.
    """

    image: MetadataImage
    hashes: TopicHashes
    wall_ms: int
    settings: StreamsGroupSettings = field(default_factory=StreamsGroupSettings)
    is_delayed: bool = False


@dataclass(slots=True)
class StreamsGroupDecision(Decision):
    """Its changes besides the records: `configured`: the topology was configured anew.
    `delay_ms`: the delay of the first target begins. `moves_endpoint`: a member with an endpoint
    has other tasks. `shutdown_member_id`: it asks the application to shut down.
    """

    configured: ConfiguredTopology | None = None
    delay_ms: int = 0
    moves_endpoint: bool = False
    shutdown_member_id: str | None = None

    def apply(self, group: ModernGroup) -> None:
        assert isinstance(group, StreamsGroup)
        group.remember(self.configured, self.moves_endpoint, self.shutdown_member_id)
        super(StreamsGroupDecision, self).apply(group)
