"""The group coordinator's needs of the rest of the broker: storage, settings, time. Ring 1.

Owns `CoordinatorContext`, `IOffsetsStore` (the only way to a coordinator's topic), the group
coordinator's settings, and the error that a client of either coordinator gets when an append
fails.

1. `append` is synchronous up to the local log: two appends of one caller lie in the log in call
   order.
2. Its Deferred fires when all in-sync replicas have the batch, or fails with BrokerError; it may
   have fired on return. A failure after the local append is `AppendUndecided`, unless leadership is
   gone.
3. `read` gives the batch that holds `offset`, whole and however large, and what follows it up to
   `max_bytes`: the last batch may be incomplete. It gives nothing only when no batch is left before
   the end.

Source: Apache Kafka 4.3.1 `CoordinatorPartitionWriter`, `GroupCoordinatorConfig`. Not here:
the real store (`offsets_store.py`); tests have a memory twin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.consumer.decision import ConsumerGroupSettings
from twisted_broker.coordinator.consumer_group_config import (
    ConsumerGroupConfig,
    consumer_group_config,
)
from twisted_broker.coordinator.end_offsets import EndOffsets
from twisted_broker.coordinator.rebalance import MOST_MEMBERS, GroupSettings
from twisted_broker.coordinator.share.decision import ShareGroupSettings
from twisted_broker.coordinator.share_group_config import ShareGroupConfig, share_group_config
from twisted_broker.coordinator.share_state.persister import IPersister
from twisted_broker.coordinator.streams.decision import StreamsGroupSettings
from twisted_broker.coordinator.streams_group_config import (
    StreamsGroupConfig,
    streams_group_config,
)
from twisted_broker.event_lines import EventLines
from twisted_broker.image.metadata_image import GROUP_RESOURCE, MetadataImage
from twisted_broker.interfaces import IClock, IRandom
from twisted_broker.log.append_info import EndMarker
from twisted_broker.log.verification import Guard
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode

MINUTE_MS = 60_000
_logger = Logger()


class AppendUndecided(BrokerError):
    """An append that has failed for its caller, although its records are in the log: they may be
    replicated later, or are already.

    `outcome()` fires with the base offset once they are, and fails with BrokerError when this
    leader will never know.
    """

    def __init__(
        self, code: ErrorCode, message: str | None, outcome: Callable[[], Deferred[int]]
    ) -> None:
        super().__init__(code, message)
        self.outcome = outcome


def refusal(outcome: Deferred[int]) -> Failure | None:
    """Why an append that was just begun has left nothing in the log; None if it has, or may."""
    result = outcome.result if outcome.called else None
    if isinstance(result, Failure) and not result.check(AppendUndecided):
        return result
    return None


class IOffsetsStore(Protocol):
    """The partitions of a coordinator's topic that this broker leads."""

    def partitions_count(self) -> int:
        """Partitions of the topic; while it does not exist, the number that it will have."""
        ...

    def append(
        self, index: int, batch: bytes, timeout_ms: int, guard: Guard = None
    ) -> Deferred[int]:
        """Appends one batch to partition `index`; fires with its base offset or fails with
        BrokerError. `guard`: what verified the transaction of the batch, if it is of one.
        """
        ...

    def append_end_marker(self, index: int, marker: EndMarker, timeout_ms: int) -> Deferred[int]:
        """Appends the end of a transaction to partition `index`; as `append`."""
        ...

    def most_bytes(self, index: int) -> int:
        """The longest batch that partition `index` takes; raises BrokerError when it is not held
        here.
        """
        ...

    def bounds(self, index: int) -> tuple[int, int]:
        """(log start offset, log end offset); raises BrokerError when the partition is not held
        here.
        """
        ...

    def high_watermark(self, index: int) -> int:
        """Up to where the log is committed; raises BrokerError."""
        ...

    def committed(self, index: int) -> Deferred[bool]:
        """Fires with True when all that the log holds now is below the high watermark, with False
        when this broker stops leading the partition before. Raises BrokerError.
        """
        ...

    def read(self, index: int, offset: int, max_bytes: int) -> bytes:
        """Raises BrokerError."""
        ...


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """All times in ms. `max_groups` bounds memory: see `CoordinatorRuntime`."""

    group: GroupSettings = field(default_factory=GroupSettings)
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS
    retention_check_interval_ms: int = 600_000
    commit_timeout_ms: int = 5_000
    load_buffer_bytes: int = 5 * 1024 * 1024
    max_groups: int = 1_000_000
    consumer: ConsumerGroupConfig = field(default_factory=ConsumerGroupConfig)
    share: ShareGroupConfig = field(default_factory=ShareGroupConfig)
    streams: StreamsGroupConfig = field(default_factory=StreamsGroupConfig)


def coordinator_settings(config: BrokerConfig) -> CoordinatorSettings:
    """The coordinator's part of a broker's configuration."""
    return CoordinatorSettings(
        group=GroupSettings(
            config.integer("group.initial.rebalance.delay.ms"),
            min(config.integer("group.max.size"), MOST_MEMBERS),
        ),
        min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
        offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
        offsets_retention_ms=config.integer("offsets.retention.minutes") * MINUTE_MS,
        retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
        commit_timeout_ms=config.integer("offsets.commit.timeout.ms"),
        load_buffer_bytes=config.integer("offsets.load.buffer.size"),
        consumer=consumer_group_config(config),
        share=share_group_config(config),
        streams=streams_group_config(config),
    )


_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def append_error(failure: Failure) -> ErrorCode:
    """The error that a client of a coordinator, of groups or of transactions, gets when a record
    could not be stored; anything but a refusal is logged.
    """
    error = failure.value
    if isinstance(error, BrokerError):
        return _APPEND_ERRORS.get(error.code, error.code)
    _logger.failure("appending to a coordinator's topic failed", failure)
    return ErrorCode.UNKNOWN_SERVER_ERROR


@dataclass(slots=True)
class CoordinatorContext:
    """Time, chance, storage, settings and long work, shared by all shards of one coordinator.

    `settings` is replaced when they change: it is read at the moment of each decision.
    `has_stale_roles`: whether others may lead what this broker led (`cluster/stale_roles.py`).
    `image` gives the present metadata; `persister`: the way to the share coordinator, if any;
    `end_offsets`: where logs end, for the lag of share groups. `rebalances` since the start, by the
    kind of group.
    """

    clock: IClock
    wall_ms: Callable[[], int]
    random: IRandom
    store: IOffsetsStore
    settings: CoordinatorSettings
    turns: Turns
    has_stale_roles: Callable[[], bool] = bool
    image: Callable[[], MetadataImage] = MetadataImage
    persister: IPersister | None = None
    end_offsets: EndOffsets | None = None
    lines: EventLines = field(init=False)
    rebalances: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        self.lines = EventLines(_logger, self.clock)

    def consumer_settings(self, group_id: str) -> ConsumerGroupSettings:
        """Those of one consumer group at this moment."""
        own = self.image().config(GROUP_RESOURCE, group_id)
        return self.settings.consumer.of_group(own)

    def share_settings(self, group_id: str) -> ShareGroupSettings:
        """Those of one share group at this moment."""
        own = self.image().config(GROUP_RESOURCE, group_id)
        return self.settings.share.of_group(own)

    def streams_settings(self, group_id: str) -> StreamsGroupSettings:
        """Those of one streams group at this moment."""
        own = self.image().config(GROUP_RESOURCE, group_id)
        return self.settings.streams.of_group(own)
