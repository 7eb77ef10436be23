"""A leader's checks before it appends a batch with a producer id.

Owns `check_append`: whether the batch is a duplicate, or may follow what its producer wrote; and
`check_end_marker`, for the marker of a transaction's end.

1. A batch that repeats one of a producer's last five is a duplicate. Any other sequence follows the
   last one (0 after 2^31-1), and is 0 under a new epoch. For a producer that is not known it may be
   anything, since its records may have been deleted; but 0 if it is verified under transaction
   version 2.
2. Nothing is changed here: what is refused leaves no trace.
3. While producers are rebuilt nothing can be judged: the client gets LEADER_NOT_AVAILABLE and tries
   again.
4. A transactional batch, a client's or a coordinator's, goes on with the open transaction of its
   epoch, or brings the guard of a verification (`verification.py`).
5. Under transaction version 2 every marker has a newer epoch than the records that it ends: an
   equal one is late, unless there is nothing left to end (its answer was lost), or it is the last
   epoch that there is.

Source: Kafka's `ProducerAppendInfo`, `UnifiedLog.analyzeAndValidateProducerState`; KIP-98, KIP-890,
KIP-1228; RL 3.2. Not here: what an append adds to the state (`producer_state.py`).
"""

from __future__ import annotations

from twisted_broker.interfaces import Buffer
from twisted_broker.log.append_info import AppendOrigin, EndMarker
from twisted_broker.log.producer_snapshot import BatchMetadata, ProducerEntry
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.verification import NOT_REQUIRED, Guard, check_epoch
from twisted_broker.wire.control_batch import end_marker_coordinator_epoch
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    BatchView,
    next_sequence,
)

_CLIENT = AppendOrigin.CLIENT
_MAX_SEQUENCE = 2**31 - 1
LAST_EPOCH = 32767


def check_append(
    producers: ProducerStateManager,
    header: BatchHeader,
    records: Buffer,
    origin: AppendOrigin,
    guard: Guard,
) -> BatchMetadata | None:
    """Raises BrokerError when the producer may not write this batch. Returns what is remembered of
    the first arrival of a duplicate; None: the batch may be appended.
    """
    _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, _ = header
    if producers.rebuilt is not None:
        raise being_rebuilt()
    entry = producers.producers.get(producer_id)
    if attributes & CONTROL_FLAG:
        if entry is not None:
            _check_marker(entry, BatchView(records))
        return None
    transactional = attributes & TRANSACTIONAL_FLAG != 0
    from_client = origin == _CLIENT
    if from_client and entry is not None:
        # Before all other checks: a producer that sends again because it lost the answer must
        # get that answer.
        duplicate = entry.duplicate_of(epoch, sequence, next_sequence(sequence, delta))
        if duplicate is not None:
            return duplicate
    if transactional:
        _check_verified(producers, entry, header, guard, from_client)
    if entry is not None and entry.producer_epoch >= 0:
        check_epoch(entry, epoch)
        if from_client:
            _check_sequence(entry, epoch, sequence)
        if entry.current_txn_first_offset >= 0 and not transactional:
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has an open transaction"
            )
    return None


def being_rebuilt() -> BrokerError:
    """Why nothing can be judged now."""
    return BrokerError(
        ErrorCode.LEADER_NOT_AVAILABLE,
        "the producer state of this log is being rebuilt after a truncation",
    )


def _check_verified(
    producers: ProducerStateManager,
    entry: ProducerEntry | None,
    header: BatchHeader,
    guard: Guard,
    from_client: bool,
) -> None:
    _, _, _, _, _, _, _, _, _, producer_id, epoch, sequence, _ = header
    present = producers.verifications.get(producer_id) if producers.verifications else None
    # Before its guard: a producer recovers from this refusal.
    if entry is not None:
        check_epoch(entry, epoch)
    if (
        guard is not NOT_REQUIRED
        and (entry is None or entry.current_txn_first_offset < 0 or entry.producer_epoch != epoch)
        and (guard is None or guard is not present)
    ):
        raise BrokerError(
            ErrorCode.INVALID_TXN_STATE,
            "the batch belongs to no transaction that its coordinator began",
        )
    if present is None or not from_client:
        return
    # The state of an older producer may have expired; under version 2 each epoch begins at 0.
    if present.supports_epoch_bump and sequence != 0 and (entry is None or not entry.batches):
        raise BrokerError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} began epoch {epoch} with sequence {sequence}, expected 0",
        )
    if sequence > present.lowest_sequence:
        raise BrokerError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} sent sequence {sequence}, but {present.lowest_sequence} is "
            "still to be written",
        )


def check_end_marker(producers: ProducerStateManager, marker: EndMarker) -> None:
    """Raises INVALID_PRODUCER_EPOCH for a marker of an older transaction,
    TRANSACTION_COORDINATOR_FENCED for one of an older coordinator.
    """
    entry = producers.producers.get(marker.producer_id)
    if entry is None:
        return
    check_epoch(entry, marker.producer_epoch)
    if (
        marker.transaction_version >= 2
        and marker.producer_epoch == entry.producer_epoch
        and entry.current_txn_first_offset >= 0
        # There is no epoch above the last one.
        and marker.producer_epoch != LAST_EPOCH
    ):
        raise BrokerError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {entry.producer_id} has an open transaction of epoch "
            f"{entry.producer_epoch}, which a marker of that epoch does not end",
        )
    _check_coordinator_epoch(entry, marker.coordinator_epoch)


def _check_coordinator_epoch(entry: ProducerEntry, coordinator_epoch: int) -> None:
    if coordinator_epoch < entry.coordinator_epoch:
        raise BrokerError(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"a coordinator of epoch {entry.coordinator_epoch} wrote before",
        )


def _check_sequence(entry: ProducerEntry, producer_epoch: int, base_sequence: int) -> None:
    # A new epoch begins at 0.
    if producer_epoch != entry.producer_epoch:
        expected = 0
    else:
        last = entry.last_sequence
        expected = last + 1 if last != _MAX_SEQUENCE else 0
    if base_sequence != expected:
        raise BrokerError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            (
                f"producer {entry.producer_id} sent sequence {base_sequence} of epoch "
                f"{producer_epoch}, expected {expected}"
            ),
        )


def _check_marker(entry: ProducerEntry, batch: BatchView) -> None:
    """An end marker of an old producer epoch or of an old coordinator is refused."""
    check_epoch(entry, batch.producer_epoch)
    for record in batch.records():
        _check_coordinator_epoch(entry, end_marker_coordinator_epoch(record.value))
