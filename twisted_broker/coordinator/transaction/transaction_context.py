"""The transaction coordinator's needs of the rest of the broker. Ring 1.

Owns `TransactionContext` and the coordinator's settings.

Source: Apache Kafka 4.3.1 `TransactionConfig`, `TransactionStateManagerConfig`,
`TransactionLogConfig`. Not here: the store of the log (`coordinator/offsets_store.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.coordinator_context import IOffsetsStore
from twisted_broker.interfaces import IClock
from twisted_broker.turns import Turns


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """All times in ms. `max_transactional_ids` and `max_id_bytes` bound memory: see
    `TransactionStateManager`.
    """

    max_timeout_ms: int = 900_000
    abort_interval_ms: int = 10_000
    expiration_ms: int = 604_800_000
    expiration_interval_ms: int = 3_600_000
    load_buffer_bytes: int = 5 * 1024 * 1024
    append_timeout_ms: int = 30_000
    max_transactional_ids: int = 1_000_000
    max_id_bytes: int = 256 << 20


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """The coordinator's part of a broker's configuration."""
    return TransactionSettings(
        max_timeout_ms=config.integer("transaction.max.timeout.ms"),
        abort_interval_ms=config.integer(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        ),
        expiration_ms=config.integer("transactional.id.expiration.ms"),
        expiration_interval_ms=config.integer(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ),
        load_buffer_bytes=config.integer("transaction.state.log.load.buffer.size"),
    )


@dataclass(slots=True)
class TransactionContext:
    """Time, storage, settings and long work. `transaction_version`: the cluster's, now;
    `next_producer_id` gives an id that nobody has, and raises BrokerError; `has_stale_roles`:
    whether others may lead what this broker led (`cluster/stale_roles.py`).
    """

    clock: IClock
    wall_ms: Callable[[], int]
    store: IOffsetsStore
    settings: TransactionSettings
    turns: Turns
    transaction_version: Callable[[], int]
    next_producer_id: Callable[[], Awaitable[int]]
    has_stale_roles: Callable[[], bool] = bool
