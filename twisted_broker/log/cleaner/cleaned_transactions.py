"""Which transactions a cleaner passes, so that aborted records go and markers go last.

Owns `CleanedTransactions`.

1. Records of an aborted transaction may go at once.
2. A marker stays while the round still reads a batch of its transaction below it; then its delete
   horizon begins (`batch_filter.py`).
3. The index of aborted transactions of a cleaned segment has an entry for each abort marker for
   which the round still read such a batch, though it drops the batch.

Source: Kafka's `CleanedTransactionMetadata`; KIP-98, KIP-534. Not here: the last stable offset,
which no cleaner passes (`selection.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.wire.control_batch import ABORT, COMMIT, control_record_type
from twisted_broker.wire.records import BatchView


class CleanedTransactions:
    """`aborted`: all that touch the range. Batches must come in order of offsets."""

    __slots__ = ("_aborted", "_committed", "_left", "_ongoing")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._aborted = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._ongoing: dict[int, tuple[AbortedTxn, bool]] = {}
        """producer id -> its aborted transaction, and whether a batch of it was seen"""
        self._committed: set[int] = set()
        self._left: list[AbortedTxn] = []

    def can_discard(self, batch: BatchView) -> bool:
        """Whether the batch is of an aborted transaction, or a marker of one of which nothing is
        left.
        """
        self._begin(batch.last_offset)
        if batch.is_control:
            return self._can_discard_marker(batch)
        if not batch.is_transactional:
            return False
        found = self._ongoing.get(batch.producer_id)
        if found is None:
            self._committed.add(batch.producer_id)
            return False
        self._ongoing[batch.producer_id] = (found[0], True)
        return True

    def take_left(self) -> list[AbortedTxn]:
        """The aborted transactions of which batches were read, in order of their markers, since the
        last call. They belong in the index of the cleaned segment.
        """
        left, self._left = self._left, []
        return left

    def _begin(self, offset: int) -> None:
        """Transactions that begin at or below `offset` are under way."""
        waiting = self._aborted
        while waiting and waiting[0].first_offset <= offset:
            transaction = waiting.popleft()
            self._ongoing.setdefault(transaction.producer_id, (transaction, False))

    def _can_discard_marker(self, batch: BatchView) -> bool:
        for record in batch.records():
            kind = control_record_type(record.key)
            if kind == ABORT:
                transaction, was_seen = self._ongoing.pop(batch.producer_id, (None, False))
                if transaction is not None and was_seen:
                    self._left.append(transaction)
                return not was_seen
            if kind == COMMIT:
                is_left = batch.producer_id in self._committed
                self._committed.discard(batch.producer_id)
                return not is_left
            return False
        # Cleaned before: only its header is left.
        return True
