"""A producer's newest batches but the last, which no producer snapshot holds, found again in
the log's tail.

Owns `recover_producer_batches`.

1. A producer has up to five requests in flight (KIP-98), and may send each of them again after a
   restart: each must be recognized as a duplicate.
2. What is recovered is what memory held: batches of the producer's present epoch, newest first,
   until five are known.
3. The cost is bounded, however many producers there are: at most `MOST_HEADERS` batch headers a
   log, from its end back, and none when the producers are few and no batch of theirs is missing. A
   producer without a batch among those headers has nothing in flight that matters; its last batch
   is known from the snapshot.
4. Damage ends the search, never the loading: its reader gets the error.

Source: KIP-98; Kafka's `ProducerStateManager` (its snapshots hold one batch too, and it recovers
nothing). Not here: the snapshot (`producer_snapshot.py`); batches before sequence 0 of an epoch,
where 2^31 sequences were used up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from twisted_broker.interfaces import IFile
from twisted_broker.log.producer_snapshot import RETAINED_BATCHES, ProducerEntry
from twisted_broker.log.producer_snapshot_writer import SLICE_PRODUCERS
from twisted_broker.log.segment import LogSegment
from twisted_broker.wire.batch_fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    LAST_OFFSET_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
)
from twisted_broker.wire.batch_header import HEADER_BYTES
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    LOG_OVERHEAD,
    BatchHeader,
    CorruptRecordError,
    next_sequence,
    read_batch_header,
)

# Bounds the work for one log on the reactor's thread.
MOST_HEADERS = 256
# Up to here one read costs less than a read for each header.
_READ_WHOLE_BYTES = 1 << 16
_MAX_SEQUENCE = 2**31 - 1


def recover_producer_batches(
    segments: Iterable[LogSegment], producers: Mapping[int, ProducerEntry]
) -> None:
    """Completes the batches of `producers`, by their ids, out of `segments`, newest first. Raises
    OSError.
    """
    lacking = -1  # not counted: among very many some lack batches
    if len(producers) <= SLICE_PRODUCERS:
        lacking = sum(map(_lacks_batches, producers.values()))
    try:
        for header in _headers_backwards(segments) if lacking else ():
            entry = producers.get(header[PRODUCER_ID])
            if entry is None or not _lacks_batches(entry) or not _is_earlier_batch(entry, header):
                continue
            _add_before(entry, header)
            if not _lacks_batches(entry):
                lacking -= 1
                if not lacking:
                    return
    except CorruptRecordError:
        # What is not found is only a duplicate that will be refused as out of order.
        return


def _lacks_batches(entry: ProducerEntry) -> bool:
    """Whether batches of its epoch came before those that are known."""
    if not 0 < len(entry.batches) < RETAINED_BATCHES:
        return False
    last_sequence, _, delta, _ = entry.batches[0]
    return last_sequence >= 0 and (last_sequence - delta) & _MAX_SEQUENCE != 0


def _is_earlier_batch(entry: ProducerEntry, header: BatchHeader) -> bool:
    is_data = not header[ATTRIBUTES] & CONTROL_FLAG and header[BASE_SEQUENCE] >= 0
    return (
        is_data
        and header[PRODUCER_EPOCH] == entry.producer_epoch
        and header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] < entry.batches[0][1]
    )


def _add_before(entry: ProducerEntry, header: BatchHeader) -> None:
    base_offset, delta, max_timestamp, base_sequence = (
        header[BASE_OFFSET],
        header[LAST_OFFSET_DELTA],
        header[MAX_TIMESTAMP],
        header[BASE_SEQUENCE],
    )
    entry.batches.insert(
        0, (next_sequence(base_sequence, delta), base_offset + delta, delta, max_timestamp)
    )


def _headers_backwards(segments: Iterable[LogSegment]) -> Iterator[BatchHeader]:
    """The newest headers, newest first, as far as the bound allows."""
    left = MOST_HEADERS
    for segment in segments:
        end = segment.size
        for start in chain(segment.offset_index.positions_backwards(), (0,)):
            if start >= end:
                continue
            found = _headers(segment.log.open(), start, end, left)
            left -= len(found)
            if left < 0:
                return  # there are more behind: these are not the newest ones
            yield from reversed(found)
            end = start


def _headers(file: IFile, start: int, end: int, most: int) -> list[BatchHeader]:
    """Those from byte `start`, a batch's first, to `end`; one more than `most` when there are
    more. Raises CorruptRecordError.
    """
    found: list[BatchHeader] = []
    near = file.read_at(start, end - start) if end - start <= _READ_WHOLE_BYTES else b""
    position = start
    while position < end and len(found) <= most:
        header = (
            read_batch_header(near, position - start)
            if near
            else read_batch_header(file.read_at(position, HEADER_BYTES))
        )
        found.append(header)
        position += LOG_OVERHEAD + header[LENGTH]
    return found
