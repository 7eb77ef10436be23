"""The transactions of a partition, read from its own log: which were aborted, and where the first
open one begins.

1. A transactional batch belongs to the transaction that the next marker of its producer ends;
   without one it is open.
2. Only headers are looked at, and the one record of each control batch.
3. Segments are followed in order from the log's start: a marker may lie in a later segment than its
   records.

The log is taken rather than `.txnindex`: a copy of a partition often has its `.log` files only, and
the answer is then the same. The cleaner keeps a commit marker as long as a record of its
transaction, so the rule holds in compacted logs.

Source: RL 3.3, KIP-98; Kafka's ProducerAppendInfo, AbortedTxn, LogCleaner. Not here: the high
watermark (`log_folder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twisted_broker.wire.control_batch import ABORT, COMMIT, control_record_type
from twisted_broker.wire.records import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchView, Buffer


class AbortedTransaction(NamedTuple):
    """The producer, the offset of the transaction's first record in this partition, and that of
    its marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class TransactionLog:
    """What the batches seen so far say.

    `aborted` is in the order of the markers; `open` has the first offset by producer.
    """

    def __init__(self) -> None:
        self.aborted: list[AbortedTransaction] = []
        self.open: dict[int, int] = {}

    def follow(self, data: Buffer, table: NDArray[np.void]) -> None:
        """Take in the batches of the next segment (or of its part below some offset).

        `CorruptRecordError` for a control record that is none.
        """
        attributes = table["attributes"]
        table = table[attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG) != 0]
        control = (table["attributes"] & CONTROL_FLAG != 0).tolist()
        fields = zip(
            table["producerId"].tolist(),
            table["baseOffset"].tolist(),
            table["position"].tolist(),
            control,
            strict=True,
        )
        for producer_id, offset, position, is_control in fields:
            if is_control:
                self._end(producer_id, offset, _marker(data, position))
            else:
                self.open.setdefault(producer_id, offset)

    def first_open(self) -> int | None:
        """The first offset of the earliest transaction without a marker."""
        return min(self.open.values(), default=None)

    def _end(self, producer_id: int, offset: int, marker: int | None) -> None:
        if marker in (ABORT, COMMIT):
            first = self.open.pop(producer_id, None)
            if marker == ABORT and first is not None:
                self.aborted.append(AbortedTransaction(producer_id, first, offset))


def _marker(data: Buffer, position: int) -> int | None:
    """The type of the control record in the batch at this byte; None for a batch that the
    cleaner emptied.
    """
    for record in BatchView(data, position).records():
        return control_record_type(record.key)
    return None


def aborted_batches(
    table: NDArray[np.void], aborted: Sequence[AbortedTransaction]
) -> NDArray[np.bool_]:
    """For each batch whether it belongs to one of these transactions."""
    found = np.zeros(len(table), np.bool_)
    if not aborted:
        return found
    records = table["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG) == TRANSACTIONAL_FLAG
    known = np.array(sorted(aborted), np.int64)
    for producer_id in np.intersect1d(table["producerId"][records], known[:, 0]):
        mine = known[known[:, 0] == producer_id]
        rows = np.flatnonzero(records & (table["producerId"] == producer_id))
        offsets = table["baseOffset"][rows]
        index = np.searchsorted(mine[:, 2], offsets)
        inside = index < len(mine)
        found[rows[inside]] = mine[index[inside], 1] <= offsets[inside]
    return found
