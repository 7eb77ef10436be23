"""Records out of a chunk, in order.

Owns `committed_entries` (which batches a reader of committed records sees) and `records_of`.

1. Control batches are never handed out.
2. With read_committed, a transactional batch is left out while its producer has an aborted
   transaction that began at or below it and has not ended.
3. What lies below the offset to begin at is left out: a batch is fetched whole.

Source: RL 7.4; KIP-98; Kafka's `CompletedFetch`. Not here: offsets consumed (`streams`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from twisted_broker.interfaces import Buffer
from twisted_broker.wire.control_batch import ABORT, control_record_type
from twisted_broker.wire.legacy import Entry, iterate_entries
from twisted_broker.wire.record_walk import Record
from twisted_broker.wire.records import MAX_OUTPUT_BYTES, BatchView


def committed_entries(
    entries: Iterable[Entry], aborted: Sequence[tuple[int, int]]
) -> Iterator[Entry]:
    """Batches that are not of an aborted transaction. `aborted`: (producer id, first offset)."""
    waiting = sorted(aborted, key=lambda each: each[1], reverse=True)
    open_producers: set[int] = set()
    for entry in entries:
        if not isinstance(entry, BatchView):
            yield entry
            continue
        while waiting and waiting[-1][1] <= entry.last_offset:
            open_producers.add(waiting.pop()[0])
        if entry.is_control:
            if entry.producer_id in open_producers and _is_abort(entry):
                open_producers.discard(entry.producer_id)
        elif not (entry.is_transactional and entry.producer_id in open_producers):
            yield entry


def _is_abort(batch: BatchView) -> bool:
    first = next(batch.records(), None)
    return first is not None and control_record_type(first.key) == ABORT


def records_of(
    chunk: Buffer, begin: int, aborted: Sequence[tuple[int, int]] = ()
) -> Iterator[Record]:
    """From offset `begin` on. Raises `InvalidRecordError` and its like where a batch is broken."""
    for entry in committed_entries(iterate_entries(chunk), aborted):
        if entry.last_offset < begin or (isinstance(entry, BatchView) and entry.is_control):
            continue
        for record in entry.records(MAX_OUTPUT_BYTES):
            if record.offset >= begin:
                yield record
