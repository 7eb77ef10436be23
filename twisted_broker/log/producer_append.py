"""What a leader checks before it appends a batch with a producer id.

Owns `check_append`: whether the batch is a duplicate, or may follow what its producer wrote.

1. A batch that repeats one of a producer's last five is a duplicate. Any other sequence follows the
   last one (0 after 2^31-1), and is 0 under a new epoch. For a producer that is not known it may be
   anything: its records may have been deleted.
2. Nothing is changed here: what is refused leaves no trace.
3. While the producers are being found again nothing can be judged: the client comes again.

Source: Kafka's `ProducerAppendInfo`, `UnifiedLog.analyzeAndValidateProducerState`; KIP-98; RL 3.2.
Not here: what an append adds to the state (`producer_state.py`).
"""

from __future__ import annotations

from twisted_broker.interfaces import Buffer
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.producer_snapshot import BatchMetadata, ProducerEntry
from twisted_broker.log.producer_state import ProducerStateManager
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


def check_append(
    producers: ProducerStateManager,
    header: BatchHeader,
    records: Buffer,
    origin: AppendOrigin,
    transaction_verified: bool,
) -> BatchMetadata | None:
    """Raises BrokerError when the producer may not write this batch; what is remembered of its
    first arrival when it wrote it already; None: it may be appended.
    """
    _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, _ = header
    if producers.rebuilt is not None:
        raise BrokerError(
            ErrorCode.LEADER_NOT_AVAILABLE,
            "the producer state of this log is being rebuilt after a truncation",
        )
    entry = producers.producers.get(producer_id)
    if attributes & CONTROL_FLAG:
        if entry is not None:
            _check_marker(entry, BatchView(records))
        return None
    transactional = attributes & TRANSACTIONAL_FLAG != 0
    from_client = origin == _CLIENT
    if from_client:
        if entry is not None:
            # Before all other checks: a producer that sends again because it lost the answer must
            # get that answer.
            duplicate = entry.duplicate_of(epoch, sequence, next_sequence(sequence, delta))
            if duplicate is not None:
                return duplicate
        if (
            transactional
            and not transaction_verified
            and (entry is None or entry.current_txn_first_offset < 0)
        ):
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE,
                "the batch belongs to no transaction that its coordinator began",
            )
    if entry is not None and entry.producer_epoch >= 0:
        _check_epoch(entry, epoch)
        if from_client:
            _check_sequence(entry, epoch, sequence)
        if entry.current_txn_first_offset >= 0 and not transactional:
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has an open transaction"
            )
    return None


def _check_epoch(entry: ProducerEntry, producer_epoch: int) -> None:
    if producer_epoch < entry.producer_epoch:
        raise BrokerError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {entry.producer_id} is at epoch {entry.producer_epoch}, "
            f"not {producer_epoch}",
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
    _check_epoch(entry, batch.producer_epoch)
    for record in batch.records():
        if end_marker_coordinator_epoch(record.value) < entry.coordinator_epoch:
            raise BrokerError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a coordinator of epoch {entry.coordinator_epoch} wrote before",
            )
