"""One round of cleaning one log: from its files to `.cleaned` files beside them.

Owns `CleaningPlan`, what a round does, `CleaningResult`, what came of it, and `clean`, the round.

1. Nothing of the log is changed: what is written has the suffix `.cleaned`, and is synced, before
   `Log.replace_segments` takes it.
2. A plan and its result are plain values: a round may run in another process, which knows the
   directory and nothing else (`worker_process.py`).
3. A batch whose CRC is wrong is not rewritten: that would hide the damage. It ends the round
   (`CannotBeCleaned`).
4. Neighbouring segments are written into one, within `segment.bytes` and the size of an index;
   `MOST_IN_GROUP` at most, for they are replaced in one turn. The next rounds put more together.
5. The dirty part of a round ends where the offset map is full, be it in the middle of a batch; the
   next round goes on from there.
6. Entries of magic 0 and 1 (an old broker's) are cleaned in their format. Their tombstones go from
   segments that are `delete.retention.ms` older than the last clean one.

Source: Kafka's `Cleaner`; KIP-98, KIP-534. Not here: which log is next (`selection.py`), what stays
of a batch (`batch_filter.py`), when (`log_cleaner.py`).
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from twisted_broker.interfaces import Buffer, IFile, IFileSystem
from twisted_broker.log.batch_scan import place_at
from twisted_broker.log.cleaner.batch_filter import BatchFilter, LastRecord
from twisted_broker.log.cleaner.cleaned_transactions import CleanedTransactions
from twisted_broker.log.cleaner.offset_map import TOMBSTONE, OffsetMap
from twisted_broker.log.segment import CLEANED, INDEX, LOG, TIME_INDEX, LogSegment, file_name
from twisted_broker.log.segment_file import OpenFiles
from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.wire.legacy import Entry, MessageView, iterate_entries
from twisted_broker.wire.record_walk import Record
from twisted_broker.wire.records import (
    MAX_OUTPUT_BYTES,
    BatchView,
    CorruptRecordError,
)

_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 27
_INT_MAX = 2**31 - 1
_FEWEST_SLOTS = 16
_LEAST_LOAD = 0.05  # so at least one key of a round fits
# Each is up to four files that are renamed: a tenth of a millisecond, more where the disk is busy.
MOST_IN_GROUP = 20


class CannotBeCleaned(Exception):
    """Something in the log's files must not be rewritten: it is left alone until somebody looks."""


class SegmentPart(NamedTuple):
    """A segment as it was when the round was planned."""

    base_offset: int
    size: int


class CleaningPlan(NamedTuple):
    """`segments`: from the first of the log up to `upper_bound`, whole. The offset map is filled
    from `first_dirty` on, with at most `map_slots` slots of which `load_factor` are used.
    `aborted`: transactions that touch the range. `last_records`: by producer id; those of
    `uncertain` producers the round finds itself. Times in ms, `wall_ms` of the calendar.
    """

    directory: str
    segments: tuple[SegmentPart, ...]
    first_dirty: int
    upper_bound: int
    aborted: tuple[AbortedTxn, ...]
    last_records: Mapping[int, LastRecord]
    uncertain: tuple[int, ...]
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    wall_ms: int
    map_slots: int
    load_factor: float


class CleanedGroup(NamedTuple):
    """Base offsets of the segments that became one; it has the first one's."""

    bases: tuple[int, ...]
    size: int


class CleaningResult(NamedTuple):
    """`first_dirty`: where the next round begins. Bytes and records are of the segments that were
    written anew.
    """

    groups: tuple[CleanedGroup, ...]
    first_dirty: int
    bytes_read: int
    bytes_kept: int
    records_read: int
    records_kept: int


def clean(files: IFileSystem, plan: CleaningPlan) -> Iterator[int | CleaningResult]:
    """The round in pieces: yields the bytes that it read or wrote since, at last the result.

    Raises CannotBeCleaned, OSError (FileNotFoundError: the log was deleted meanwhile).
    """
    offsets = OffsetMap(_slots(plan), plan.first_dirty, plan.upper_bound)
    yield from _fill(files, plan, offsets)
    offsets.mark_newest()
    first_dirty = max(plan.first_dirty, offsets.latest_offset + 1)
    parts = [part for part in plan.segments if part.base_offset < first_dirty]
    transactions = CleanedTransactions(plan.aborted)
    last_records = dict(plan.last_records)
    if plan.uncertain:
        yield from _find_last_records(files, plan, last_records)
    chosen = BatchFilter(
        offsets,
        transactions,
        last_records,
        plan.upper_bound,
        plan.wall_ms,
        plan.delete_retention_ms,
    )
    groups, bytes_read, records_read = [], 0, 0
    legacy_horizon_ms = _legacy_horizon_ms(files, plan)
    for group in _groups(files, plan, parts):
        cleaned = _new_segment(files, plan, group[0].base_offset)
        try:
            for part in group:
                written = cleaned.size
                keeps_tombstones = _modified_ms(files, plan, part) > legacy_horizon_ms
                for count, read in _clean_into(
                    files, plan, part, chosen, cleaned, keeps_tombstones
                ):
                    records_read += count
                    yield read + cleaned.size - written
                    written = cleaned.size
                bytes_read += part.size
            for entry in transactions.take_left():
                cleaned.txn_index.append(entry)
            cleaned.become_inactive()
            _sync(files, cleaned)
        finally:
            cleaned.close()
        _set_modified(files, plan, group[-1], cleaned)
        groups.append(CleanedGroup(tuple(part.base_offset for part in group), cleaned.size))
    files.sync_directory(plan.directory)
    yield CleaningResult(
        tuple(groups),
        first_dirty,
        bytes_read,
        sum(group.size for group in groups),
        records_read,
        chosen.kept_records,
    )


def _slots(plan: CleaningPlan) -> int:
    """No more than there may be keys: the map's memory is taken at once."""
    most = max(0, plan.upper_bound - plan.first_dirty)
    return max(_FEWEST_SLOTS, min(plan.map_slots, int(most / _load_factor(plan)) + 2))


def _load_factor(plan: CleaningPlan) -> float:
    """Kafka's setting has no bounds."""
    return min(1.0, max(_LEAST_LOAD, plan.load_factor))


def _legacy_horizon_ms(files: IFileSystem, plan: CleaningPlan) -> int:
    """Tombstones of magic 0 and 1 in segments that were modified before it go; 0: none."""
    clean_parts = [part for part in plan.segments if part.base_offset < plan.first_dirty]
    if not clean_parts:
        return 0
    return _modified_ms(files, plan, clean_parts[-1]) - plan.delete_retention_ms


def _modified_ms(files: IFileSystem, plan: CleaningPlan, part: SegmentPart) -> int:
    return files.modified_ms(posixpath.join(plan.directory, file_name(part.base_offset, LOG)))


# -- the offset map


def _fill(files: IFileSystem, plan: CleaningPlan, offsets: OffsetMap) -> Iterator[int]:
    start = plan.first_dirty
    most = min(offsets.slots - 1, max(1, int(offsets.slots * _load_factor(plan))))
    transactions = CleanedTransactions(each for each in plan.aborted if each.last_offset >= start)
    for row, part in enumerate(plan.segments):
        following = (
            plan.segments[row + 1].base_offset if row + 1 < len(plan.segments) else plan.upper_bound
        )
        if following <= start:
            continue
        for batch in _batches(files, plan.directory, part):
            if batch.last_offset < start:
                continue
            if isinstance(batch, MessageView) or not (
                transactions.can_discard(batch) or batch.is_control
            ):
                unread = _put(plan.directory, part, batch, offsets, start, most)
                if unread is not None:
                    # Within a batch, perhaps: what lies before this record is in the map.
                    offsets.latest_offset = max(offsets.latest_offset, unread - 1)
                    return
            offsets.latest_offset = batch.last_offset
            yield batch.size_in_bytes
        # Where offsets are missing at its end the segment is done all the same.
        offsets.latest_offset = following - 1


def _put(
    directory: str, part: SegmentPart, batch: Entry, offsets: OffsetMap, start: int, most: int
) -> int | None:
    """The records from `start` on; the offset of the first one for which there was no room."""
    put, marks, first = offsets.put, offsets.marks, offsets.first
    if isinstance(batch, MessageView):
        for record in _records_of(directory, part, batch):
            if record.key is not None and record.offset >= start:
                if offsets.size >= most:
                    return record.offset
                put(record.key, record.offset)
                if marks is not None and record.value is None:
                    marks[record.offset - first] = TOMBSTONE
        return None
    base = batch.base_offset
    try:
        for delta, key, value in batch.key_values():
            offset = base + delta
            if key is not None and offset >= start:
                if offsets.size >= most:
                    return offset
                put(key, offset)
                if value is None and marks is not None:
                    marks[offset - first] = TOMBSTONE
    except CorruptRecordError as error:
        raise _damaged(directory, part, base, error) from error
    return None


# -- producers


def _find_last_records(
    files: IFileSystem, plan: CleaningPlan, found: dict[int, LastRecord]
) -> Iterator[int]:
    """Adds the last record in the range of each uncertain producer that has any. A marker counts
    where it began its epoch, as for the state of the producer.
    """
    uncertain = frozenset(plan.uncertain)
    for part in plan.segments:
        for batch in _batches(files, plan.directory, part):
            if isinstance(batch, BatchView) and batch.producer_id in uncertain:
                before, epoch = found.get(batch.producer_id), batch.producer_epoch
                if not batch.is_control:
                    found[batch.producer_id] = LastRecord(batch.last_offset, epoch)
                elif before is None or before.producer_epoch != epoch:
                    found[batch.producer_id] = LastRecord(-1, epoch)
            yield batch.size_in_bytes


# -- writing


def _groups(
    files: IFileSystem, plan: CleaningPlan, parts: list[SegmentPart]
) -> Iterator[list[SegmentPart]]:
    """Neighbours that fit into one segment."""
    group: list[SegmentPart] = []
    size = index = time_index = 0
    for row, part in enumerate(parts):
        here = _file_size(files, plan, part, INDEX)
        here_times = _file_size(files, plan, part, TIME_INDEX)
        end = parts[row + 1].base_offset if row + 1 < len(parts) else plan.upper_bound
        if group and (
            len(group) == MOST_IN_GROUP
            or size + part.size > plan.segment_bytes
            or index + here > plan.index_bytes
            or time_index + here_times > plan.index_bytes
            or (part.size and end - 1 - group[0].base_offset > _INT_MAX)
        ):
            yield group
            group, size, index, time_index = [], 0, 0, 0
        group.append(part)
        size, index, time_index = size + part.size, index + here, time_index + here_times
    if group:
        yield group


def _file_size(files: IFileSystem, plan: CleaningPlan, part: SegmentPart, suffix: str) -> int:
    path = posixpath.join(plan.directory, file_name(part.base_offset, suffix))
    return files.size(path) if files.exists(path) else 0


def _new_segment(files: IFileSystem, plan: CleaningPlan, base_offset: int) -> LogSegment:
    segment = LogSegment(
        OpenFiles(files),
        plan.directory,
        base_offset,
        plan.index_bytes,
        plan.index_interval_bytes,
        plan.wall_ms,
    )
    for file in segment.files():
        file.path += CLEANED
    segment.create()
    return segment


def _clean_into(
    files: IFileSystem,
    plan: CleaningPlan,
    part: SegmentPart,
    chosen: BatchFilter,
    cleaned: LogSegment,
    keeps_tombstones: bool,
) -> Iterator[tuple[int, int]]:
    """Writes what stays of one segment; yields (records, bytes) read. `keeps_tombstones`: those of
    magic 0 and 1.
    """
    waiting: list[tuple[Buffer, Entry]] = []
    size = count = read = 0
    for batch in _batches(files, plan.directory, part):
        if isinstance(batch, MessageView):
            records = _records_of(plan.directory, part, batch)
            left = chosen.filter_message(batch, records, keeps_tombstones)
            count += len(records)
        else:
            try:
                left = chosen.filter(batch)
            except CorruptRecordError as error:
                raise _damaged(plan.directory, part, batch.base_offset, error) from error
            count += batch.records_count
        read += batch.size_in_bytes
        if left is not None:
            waiting.append((left, next(iterate_entries(left))))
            size += len(left)
        if size >= _CHUNK_BYTES or read >= _CHUNK_BYTES:
            _write(cleaned, waiting)
            yield count, read
            waiting, size, count, read = [], 0, 0, 0
    _write(cleaned, waiting)
    yield count, read


def _write(cleaned: LogSegment, batches: list[tuple[Buffer, Entry]]) -> None:
    if not batches:
        return
    cleaned.write([left for left, _ in batches])
    for left, batch in batches:
        newest = batch.timestamp if isinstance(batch, MessageView) else batch.max_timestamp
        cleaned.publish(len(left), batch.last_offset, newest)


def _sync(files: IFileSystem, cleaned: LogSegment) -> None:
    for file in cleaned.files():
        if files.exists(file.path):
            file.sync()


def _set_modified(
    files: IFileSystem, plan: CleaningPlan, last: SegmentPart, cleaned: LogSegment
) -> None:
    """Retention by time looks at a file's age where records have no timestamps."""
    path = posixpath.join(plan.directory, file_name(last.base_offset, LOG))
    files.set_modified_ms(cleaned.log.path, files.modified_ms(path))


# -- reading


def _batches(files: IFileSystem, directory: str, part: SegmentPart) -> Iterator[Entry]:
    """All batches of a segment, checked. Raises CannotBeCleaned."""
    path = posixpath.join(directory, file_name(part.base_offset, LOG))
    file = files.open(path, read_only=True)
    try:
        yield from _checked_batches(file, path, part.size)
    finally:
        file.close()


def _checked_batches(file: IFile, path: str, end: int) -> Iterator[Entry]:
    chunk, start, position = b"", 0, 0
    while position < end:
        try:
            at = position - start
            if at + _HEAD_BYTES > len(chunk):
                chunk, start, at = _read(file, position, end, _CHUNK_BYTES), position, 0
            place = place_at(chunk, at, position, end)
            if at + place.size_in_bytes > len(chunk):
                wanted = max(_CHUNK_BYTES, place.size_in_bytes)
                chunk, start, at = _read(file, position, end, wanted), position, 0
            batch: Entry = MessageView(chunk, at) if place.magic < 2 else BatchView(chunk, at)
            if not batch.is_valid_crc():
                raise CorruptRecordError("CRC mismatch", position)
        except (CorruptRecordError, struct.error) as error:
            raise CannotBeCleaned(
                f"{path} is damaged at byte {position} ({error}): the topic is not compacted until "
                "the replica is made anew (move its directory away and restart)"
            ) from error
        yield batch
        position += place.size_in_bytes


def _read(file: IFile, position: int, end: int, length: int) -> bytes:
    return file.read_at(position, min(length, end - position))


def _records_of(directory: str, part: SegmentPart, message: MessageView) -> list[Record]:
    try:
        return list(message.records(MAX_OUTPUT_BYTES, check_crc=True))
    except CorruptRecordError as error:
        raise _damaged(directory, part, message.offset, error) from error


def _damaged(directory: str, part: SegmentPart, offset: int, error: Exception) -> CannotBeCleaned:
    path = posixpath.join(directory, file_name(part.base_offset, LOG))
    return CannotBeCleaned(
        f"{path}: a record of the batch at offset {offset} cannot be read ({error}): "
        "the topic is not compacted until the replica is made anew"
    )
