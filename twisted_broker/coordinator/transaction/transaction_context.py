"""What the transaction coordinator needs of the rest of the broker. Ring 1.

Owns `TransactionContext`, the coordinator's settings, and the error that a client gets when an
append fails.

Source: Apache Kafka 4.3.1 `TransactionConfig`, `TransactionStateManagerConfig`,
`TransactionLogConfig`. Not here: the store of the log (`coordinator/offsets_store.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.config import BrokerConfig
from twisted_broker.coordinator.coordinator_context import IOffsetsStore
from twisted_broker.interfaces import IClock
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode

_logger = Logger()


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
    `next_producer_id` gives an id that nobody has, and raises BrokerError.
    """

    clock: IClock
    wall_ms: Callable[[], int]
    store: IOffsetsStore
    settings: TransactionSettings
    turns: Turns
    transaction_version: Callable[[], int]
    next_producer_id: Callable[[], Awaitable[int]]


_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def append_error(failure: Failure) -> ErrorCode:
    """The error that a client of the coordinator gets when a record could not be stored; anything
    but a refusal is logged.
    """
    error = failure.value
    if isinstance(error, BrokerError):
        return _APPEND_ERRORS.get(error.code, error.code)
    _logger.failure("appending to __transaction_state failed", failure)
    return ErrorCode.UNKNOWN_SERVER_ERROR
