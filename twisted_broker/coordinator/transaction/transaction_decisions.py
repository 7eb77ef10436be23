"""The decisions on a transactional id, one for each request. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `begin_producer`, `add_partitions`, `verify_partitions`, `end_transaction`, `fence_and_abort`.

1. A decision is the next step, already pending (`TransactionMetadata`), or it raises BrokerError
   and changes nothing. Where it needs a producer id that nobody has, it is `NEEDS_PRODUCER_ID`, and
   changes nothing either: it is taken again with one, on what the id is by then.
2. While a step is pending a change is refused with CONCURRENT_TRANSACTIONS, at which clients retry,
   before its id and epoch are looked at: the producer may already use those that are pending. An
   EndTxn below version 2 is refused for its id and epoch first.
3. Under version 2 the epoch of an EndTxn says whether it comes again:

       |                | abort                   | commit                  |
       |                | again  | the epoch now  | again  | the epoch now  |
       | EMPTY          | fenced | PREPARE_ABORT  | fenced | invalid        |
       | COMPLETE_ABORT | done   | PREPARE_ABORT  | invalid| invalid        |
       | COMPLETE_COMMIT| invalid| PREPARE_ABORT  | done   | invalid        |

   Below version 2, in these three states an end like the last one is answered as done, any other
   is INVALID_TXN_STATE.

Source: Apache Kafka 4.3.1 `TransactionCoordinator`; KIP-98, KIP-360, KIP-890. Not here: which shard
serves the id, records, markers (`transaction_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Literal, NamedTuple

from twisted_broker.coordinator.transaction.transaction_metadata import (
    COMPLETE,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    EPOCH_BUMP_VERSION,
    EXHAUSTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_EPOCH_FENCE,
    PREPARED,
    TransactionMetadata,
    TxnTransitMetadata,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import BrokerError, ErrorCode


class Need(Enum):
    """What a decision waits for."""

    PRODUCER_ID = "a producer id"


NEEDS_PRODUCER_ID = Need.PRODUCER_ID
Step = TxnTransitMetadata | Literal[Need.PRODUCER_ID]


class ProducerIdAndEpoch(NamedTuple):
    """What identifies a producer."""

    producer_id: int
    epoch: int


def _check_not_pending(metadata: TransactionMetadata) -> None:
    if metadata.pending is not None:
        raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)


def begin_producer(
    metadata: TransactionMetadata,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    wall_ms: int,
    new_producer_id: int | None = None,
) -> Step | None:
    """InitProducerId. `expected`: what the producer knows, when it goes on after an error. None: a
    transaction is open, and must be aborted first (`fence_and_abort`).
    """
    _check_not_pending(metadata)
    if expected is not None and not _may_go_on(metadata, expected):
        raise BrokerError(ErrorCode.PRODUCER_FENCED)
    if metadata.state in PREPARED:
        raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if metadata.state is ONGOING:
        return None
    _check_expected_state(metadata)
    if metadata.is_epoch_exhausted and (
        expected is None or expected.epoch == metadata.producer_epoch
    ):
        if new_producer_id is None:
            return NEEDS_PRODUCER_ID
        return metadata.prepare_producer_id_rotation(
            new_producer_id, timeout_ms, expected is not None, wall_ms
        )
    return metadata.prepare_increment_producer_epoch(
        timeout_ms, None if expected is None else expected.epoch, wall_ms
    )


def _may_go_on(metadata: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Only the producer id is checked here, the epoch where it is raised. Without an epoch the
    transactional id is new: its producer recovers from one that expired. With the previous producer
    id and the last epoch the request comes again.
    """
    return (
        metadata.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == metadata.producer_id
        or (
            expected.producer_id == metadata.previous_producer_id
            and expected.epoch >= EXHAUSTED_EPOCH
        )
    )


def _check_expected_state(metadata: TransactionMetadata) -> None:
    """DEAD and PREPARE_EPOCH_FENCE are never written: a log that holds one is damaged."""
    if metadata.state in (DEAD, PREPARE_EPOCH_FENCE):
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"{metadata.transactional_id!r} is {metadata.state.name} in the transaction log",
        )


def _check_producer(metadata: TransactionMetadata, producer_id: int, epoch: int) -> None:
    if metadata.producer_id != producer_id:
        raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    # An epoch below 0 was given to nobody: the id is new, its first record was refused.
    if metadata.producer_epoch != epoch or epoch < 0:
        raise BrokerError(ErrorCode.PRODUCER_FENCED)
    if metadata.state in PREPARED:
        raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)


def add_partitions(
    metadata: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    client_transaction_version: int,
    wall_ms: int,
) -> TxnTransitMetadata | None:
    """AddPartitionsToTxn. None: all of them belong to the transaction already."""
    _check_not_pending(metadata)
    _check_producer(metadata, *producer)
    _check_expected_state(metadata)
    if metadata.state is ONGOING and metadata.partitions.issuperset(partitions):
        return None
    return metadata.prepare_add_partitions(partitions, wall_ms, client_transaction_version)


def verify_partitions(
    metadata: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """AddPartitionsToTxn that only verifies, of a partition's leader before the first append. What
    is pending does not count: the append is checked again.
    """
    _check_producer(metadata, *producer)
    return {
        partition: ErrorCode.NONE
        if partition in metadata.partitions
        else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def end_transaction(
    metadata: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    is_commit: bool,
    client_transaction_version: int,
    wall_ms: int,
    new_producer_id: int | None = None,
) -> Step | None:
    """EndTxn of its producer. None: the request comes again, and the transaction is complete."""
    if client_transaction_version < EPOCH_BUMP_VERSION:
        return _end_without_bump(metadata, producer, is_commit, wall_ms)
    _check_not_pending(metadata)
    comes_again = _check_end(metadata, producer)
    state = metadata.state
    _check_expected_state(metadata)
    if state in PREPARED:
        if is_commit is (state is PREPARE_COMMIT):
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        raise BrokerError(ErrorCode.INVALID_TXN_STATE)
    if state in COMPLETE and comes_again:
        if is_commit is (state is COMPLETE_COMMIT):
            return None
        raise BrokerError(ErrorCode.INVALID_TXN_STATE)
    if state is not ONGOING and is_commit:
        raise BrokerError(ErrorCode.INVALID_TXN_STATE)
    return _end(metadata, is_commit, client_transaction_version, wall_ms, new_producer_id)


def _check_end(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether the EndTxn comes again: then the epoch was raised since, or, where it was exhausted,
    the producer id replaced.
    """
    producer_id, epoch = producer
    after_rotation = (
        metadata.previous_producer_id == producer_id
        and epoch == EXHAUSTED_EPOCH
        and metadata.producer_epoch == 0
    )
    after_bump = metadata.producer_epoch == epoch + 1
    if metadata.producer_id != producer_id and not after_rotation:
        raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if metadata.state in PREPARED:
        is_valid = after_bump
    elif metadata.state in COMPLETE:
        # An end at the exhausted epoch brings another producer id: this one was fenced.
        after_bump = after_bump and epoch != EXHAUSTED_EPOCH
        is_valid = after_bump or after_rotation or epoch == metadata.producer_epoch
    else:
        is_valid = epoch == metadata.producer_epoch
    if not is_valid or epoch < 0:
        raise BrokerError(ErrorCode.PRODUCER_FENCED)
    return after_bump or after_rotation


def _end_without_bump(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch, is_commit: bool, wall_ms: int
) -> Step | None:
    producer_id, epoch = producer
    if metadata.producer_id != producer_id:
        raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if metadata.producer_epoch != epoch:
        raise BrokerError(ErrorCode.PRODUCER_FENCED)
    _check_not_pending(metadata)
    _check_expected_state(metadata)
    state = metadata.state
    if state is ONGOING:
        return _end(metadata, is_commit, 0, wall_ms, None)
    if state in PREPARED and is_commit is (state is PREPARE_COMMIT):
        raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if state is (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT):
        return None
    assert state in PREPARED or state in COMPLETE or state is EMPTY
    raise BrokerError(ErrorCode.INVALID_TXN_STATE)


def _end(
    metadata: TransactionMetadata,
    is_commit: bool,
    version: int,
    wall_ms: int,
    new_producer_id: int | None,
    is_fence: bool = False,
) -> Step:
    next_producer_id = NO_PRODUCER_ID
    if version >= EPOCH_BUMP_VERSION and metadata.is_epoch_exhausted:
        # The raised epoch is the last one: it is for the markers, and the producer gets another id.
        if new_producer_id is None:
            return NEEDS_PRODUCER_ID
        next_producer_id = new_producer_id
    return metadata.prepare_abort_or_commit(
        PREPARE_COMMIT if is_commit else PREPARE_ABORT,
        version,
        wall_ms,
        next_producer_id=next_producer_id,
        is_fence=is_fence,
    )


def fence_and_abort(
    metadata: TransactionMetadata,
    transaction_version: int,
    wall_ms: int,
    new_producer_id: int | None = None,
) -> Step:
    """Aborts an open transaction whose producer is not to go on: it timed out, or another instance
    of its program has begun. `transaction_version`: the cluster's.
    """
    _check_not_pending(metadata)
    if metadata.state is not ONGOING:
        raise BrokerError(ErrorCode.INVALID_TXN_STATE)
    # Version 1 ends a transaction as version 0 does: also when its producer ends it, 0 is written.
    version = transaction_version if transaction_version >= EPOCH_BUMP_VERSION else 0
    return _end(metadata, False, version, wall_ms, new_producer_id, is_fence=True)
