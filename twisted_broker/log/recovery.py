"""Making a log, loading one from its directory, and repairing it after an unclean stop.

Owns `new_log`, `load_log`.

1. After an unclean stop every batch from the recovery point's segment on is checked; at the first
   bad byte, or leader epoch that goes back, the log ends: the segment is truncated, later segments
   are deleted. Below the recovery point the files are trusted. A recovery point above the log end
   is older than a truncation: then nothing is trusted.
   The newest epoch below what is checked counts only where its batch does not contradict it: a
   loss of power may have kept an epoch, and taken back the truncation before it.
2. Indexes, leader epochs, producer state and aborted transactions of what was checked are made
   anew; a missing or impossible index is too. Epochs are completed where they begin above the log
   start though batches below have one: they were trimmed to a log start that was lost.
3. Offsets that are missing between segments, or are in two segments, are noted, and nothing is
   deleted for them: `gaps.py`. With one exception: if offsets are in two segments and the second
   has newer leader epochs, the end of the first is truncated. A truncation had dropped it before
   the loss of power.
4. Loading twice gives the same log and the same files. No damage makes it raise; only the disk
   itself does (OSError).

Source: Kafka's `LogLoader`; RL 3.6, RELIABILITY 6. Not here: which stop was clean, checkpoints
(`log_directory.py`).
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from twisted_broker.interfaces import IFileSystem, IRandom, TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.batch_scan import valid_batches
from twisted_broker.log.crash_cleanup import base_offset_of, clean_up_after_crash
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.gaps import Gap, end_of, find_empty_tail
from twisted_broker.log.log import Log
from twisted_broker.log.segment import LOG, LogSegment, OpenFiles
from twisted_broker.log_config import LogConfig
from twisted_broker.wire.batch_fields import BASE_OFFSET, MAGIC_FIELD, PARTITION_LEADER_EPOCH
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import MAGIC, CorruptRecordError

_INT_MAX = 2**31 - 1


def new_log(
    pool: OpenFiles,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: bytes | None,
    config: LogConfig,
    wall_ms: int,
    random: IRandom,
) -> Log:
    """An empty log in a directory that is not there yet. `partition.metadata` is left to the
    caller. Raises OSError.

    A topic may have a thousand partitions, all made in one turn of the reactor: nothing is read,
    listed or opened twice here.
    """
    pool.files.make_directories(directory)
    log = Log(pool, directory, topic_partition, topic_id, config, random)
    log.durability.name_is_durable = False
    log.segments.create(0, wall_ms)
    log.set_high_watermark(0)
    return log


def load_log(
    pool: OpenFiles,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: bytes | None,
    config: LogConfig,
    *,
    log_start_offset: int = 0,
    recovery_point: int = 0,
    clean: bool = False,
    wall_ms: int = 0,
    random: IRandom | None = None,
    sync: bool = True,
    cleaned_upto: int = 0,
) -> Log:
    """The log in `directory`, made when it is not there. `clean`: nothing needs checking.
    Raises OSError, BrokerError INCONSISTENT_TOPIC_ID.

    Offsets that are missing before a segment are noted in `log.gap`, which `gaps.resolve_gap`
    decides about; below `cleaned_upto` a cleaner may have left offsets out. What recovery dropped,
    or found missing, is a line in `log.dropped_at_load`. Without `sync` a new directory and its
    `partition.metadata` are left for the caller to sync.
    """
    files = pool.files
    if not files.is_directory(directory):
        files.make_directories(directory)
        if sync:
            files.sync_directory(posixpath.dirname(directory))
    cleaned_upto = max(cleaned_upto, clean_up_after_crash(files, directory))
    topic_id = _resolve_topic_id(pool, directory, topic_id, sync)
    log = Log(pool, directory, topic_partition, topic_id, config, random)
    epochs_lost = not _load_epochs(log)
    # After an unclean stop a recovery point may be older than a truncation, but that leaves a file.
    was_synced = recovery_point if clean or not _has_segments(files, directory) else 0
    recovered, dropped, trusted_epoch = _load_segments(
        log, recovery_point, clean, log_start_offset, cleaned_upto, wall_ms
    )
    if not (clean or dropped) and log.segments.active.next_offset() < recovery_point:
        # The checkpoint is older than a truncation: what is below it now was perhaps never synced.
        # Segments that were checked are checked again.
        log.segments.close()
        log = Log(pool, directory, topic_partition, topic_id, config, random)
        epochs_lost, recovery_point = not _load_epochs(log), 0
        recovered, _, trusted_epoch = _load_segments(
            log, recovery_point, clean, log_start_offset, cleaned_upto, wall_ms
        )
    _note_missing(log, log_start_offset, was_synced)
    active = log.segments.active.base_offset
    if not clean or active in recovered:
        # Its end may be the work of a truncation, of this start or of a process that was killed
        # before it synced it: the next sync makes it durable.
        recovery_point = min(recovery_point, active)
        log.durability.indexes_shrank = True
        # Its name and `partition.metadata` may not be synced either, for the same reason.
        log.durability.name_is_durable = False
    _set_offsets(log, log_start_offset, recovery_point, wall_ms)
    _finish_epochs(log, epochs_lost, clean, trusted_epoch)
    _load_producers(log, recovered, wall_ms)
    for segment in log.segments:
        if segment is not log.segments.active:
            segment.txn_index.unload()
    log.set_high_watermark(log.log_start_offset)
    return log


def _resolve_topic_id(
    pool: OpenFiles, directory: str, topic_id: bytes | None, sync: bool
) -> bytes | None:
    """The id in `partition.metadata`, which is written when it is missing or unreadable."""
    try:
        found = checkpoints.read_partition_metadata(pool.files, directory)
    except CheckpointError:
        # Damaged: the id comes from the metadata, and is written again below.
        found = None
    if found is None and topic_id is not None:
        checkpoints.write_partition_metadata(pool.files, directory, topic_id, sync)
    if found is not None and topic_id is not None and found != topic_id:
        raise BrokerError(
            ErrorCode.INCONSISTENT_TOPIC_ID, f"{directory} belongs to another topic of this name"
        )
    return topic_id if topic_id is not None else found


def _load_epochs(log: Log) -> bool:
    """Fills the cache from its checkpoint; False when there was no good one. Nothing is written
    until `_finish_epochs`.
    """
    path = posixpath.join(log.directory, checkpoints.LEADER_EPOCH)
    try:
        entries = checkpoints.read_epochs(log.pool.files, path)
    except CheckpointError:
        # Damaged or lost: `_finish_epochs` finds the epochs in the batches.
        entries = []
    # Loading must not write: until it has ended the checkpoint may be the better source.
    log.leader_epochs.hold_changes()
    for epoch, start_offset in entries:
        log.leader_epochs.assign(epoch, start_offset)
    return bool(entries)


class LoadedSegments(NamedTuple):
    """The base offsets of the repaired ones; whether bytes were dropped; the newest leader epoch
    below those that were checked, where no batch contradicts it, else -1.
    """

    recovered: frozenset[int]
    dropped: bool
    trusted_epoch: int


def _load_segments(
    log: Log,
    recovery_point: int,
    clean: bool,
    log_start_offset: int,
    cleaned_upto: int,
    wall_ms: int,
) -> LoadedSegments:
    """Opens all segments, repairing those that need it."""
    names = log.pool.files.listdir(log.directory)
    bases = sorted(
        base_offset_of(name) for name in names if name.endswith(LOG) and base_offset_of(name) >= 0
    )
    recovered: set[int] = set()
    scanned = dropped = False
    newest_epoch = trusted_epoch = -1
    whole_from = max(log_start_offset, cleaned_upto)
    for row, base in enumerate(bases):
        torn = not clean and base >= recovery_point
        if row and _is_of_interest(log.gap, torn) and (torn or base > whole_from):
            end = end_of(log.segments.active)
            if 0 <= end < base and base > whole_from:
                _note(log, Gap(end, base, torn and base > recovery_point))
            elif torn and end > base and not _drop_older_end(log, base, wall_ms):
                # A truncation removed this segment, and the log grew past it again; the loss of
                # power took the removal back. Read in order, old records would follow new ones.
                _note(log, Gap(end, base, torn))
                if not _opens(log, log.segments.active):
                    recovered.add(log.segments.active.base_offset)
                break
        segment = log.segments.make(base, wall_ms)
        segment.open()
        unchecked = not clean and (row + 1 == len(bases) or bases[row + 1] > recovery_point)
        log.segments.add(segment)
        truncated = 0
        following = bases[row + 1] if row + 1 < len(bases) else None
        if unchecked or not segment.has_indexes(following):
            floor = newest_epoch
            if unchecked and not scanned:
                scanned = True
                # From the first unchecked segment on, the batches decide which epochs there are:
                # the checkpoint may be ahead of them.
                log.leader_epochs.truncate_from_end(base if row else 0)
                if not _contradict_epochs(log, base):
                    newest_epoch = trusted_epoch = log.leader_epochs.latest_epoch
            truncated, newest = recover_segment(log, segment, floor)
            newest_epoch = max(newest_epoch, newest) if scanned else -1
            recovered.add(base)
        elif row + 1 == len(bases) and not _opens(log, segment):
            recovered.add(base)
        dropped = dropped or truncated > 0
        if truncated:
            behind = len(bases) - row - 1 if unchecked else 0
            log.dropped_at_load = _dropped_line(log, segment, truncated, behind)
        # What is above a truncation would be behind a hole.
        if truncated and unchecked:
            _delete_from(log, bases[row + 1 :], wall_ms)
            break
    if not bases:
        log.segments.create(log_start_offset, wall_ms)
    if log.gap is not None and not clean:
        log.gap = log.gap._replace(empty_tail=find_empty_tail(log, recovery_point))
    return LoadedSegments(frozenset(recovered), dropped, trusted_epoch)


def _dropped_line(log: Log, segment: LogSegment, size: int, behind: int) -> str:
    """What recovery took out of the log, for the operator."""
    later = f" and {behind} later segment(s)" if behind else ""
    return (
        f"{segment.log.path}: recovery dropped {size} bytes from offset {segment.next_offset()} "
        f"on{later}: a checksum or the form of a batch is wrong there, by a torn write or damage; "
        "where another replica leads, they are fetched again, else what they held is lost"
    )


def _has_segments(files: IFileSystem, directory: str) -> bool:
    return any(name.endswith(LOG) for name in files.listdir(directory))


def _note_missing(log: Log, log_start_offset: int, was_synced: int) -> None:
    """Notes in `log.dropped_at_load` that the log ends below what a checkpoint says it held."""
    end = log.segments.active.next_offset()
    if end < log_start_offset:
        start = log_start_offset
        said = (
            f"ended at offset {end}, below its log start {start} (log-start-offset-checkpoint): "
            f"all its records were deleted, and it begins empty at {start}; segment files are "
            "missing, or the checkpoint is wrong"
        )
    elif end < was_synced:
        said = (
            f"ends at offset {end}, but was on the disk up to {was_synced} "
            "(recovery-point-offset-checkpoint): segment files are missing, and it goes on from "
            "there"
        )
    else:
        return
    before = f"{log.dropped_at_load}; " if log.dropped_at_load else ""
    log.dropped_at_load = (
        f"{before}{log.directory}: the log of {log.topic_partition} {said}; where another replica "
        "leads, records are fetched again, else restore its files from a backup"
    )


def _is_of_interest(noted: Gap | None, torn: bool) -> bool:
    """Whether a gap here would be noted besides the one noted before: `gaps.py` 1."""
    return noted is None or (torn and not noted.torn and noted.torn_tail is None)


def _note(log: Log, gap: Gap) -> None:
    if log.gap is None:
        log.gap = gap
    elif gap.torn:
        log.gap = log.gap._replace(torn_tail=gap)


def _drop_older_end(log: Log, base: int, wall_ms: int) -> bool:
    """Truncates the last segment loaded where the next one, at `base`, holds newer leader epochs: a
    loss of power brought back what a truncation had dropped. False: it does not.
    """
    last, following = log.segments.active, log.segments.make(base, wall_ms)
    following.open()
    try:
        older, newer = last.epoch_at(base), following.epoch_at(base)
        if older is None or newer is None or older >= newer:
            return False
        last.truncate_to(base, wall_ms)
        # At once: the recovery point may be right behind it, and no later sync covers it then.
        last.log.sync()
    except CorruptRecordError:
        # Nobody can tell which is the newer one.
        return False
    finally:
        following.close()
    return True


def _opens(log: Log, segment: LogSegment) -> bool:
    """Whether the end of the active segment can be read, and its index of aborted transactions
    ends there; else repairs it.
    """
    try:
        is_whole = segment.txn_index.is_sound(segment.next_offset())
    except CorruptRecordError:
        is_whole = False
    if not is_whole:
        recover_segment(log, segment)
    return is_whole


def _delete_from(log: Log, bases: list[int], wall_ms: int) -> None:
    """Deletes segments that are not loaded yet, from the top down."""
    for base in reversed(bases):
        segment = log.segments.make(base, wall_ms)
        for path in segment.mark_deleted():
            log.pool.files.remove(path)


def recover_segment(log: Log, segment: LogSegment, newest_epoch: int = -1) -> tuple[int, int]:
    """Checks every batch, rebuilds indexes and epochs, truncates at the first bad byte. Returns how
    many bytes it dropped, and the newest leader epoch so far. `newest_epoch`: of the segments
    before, -1: not known. Raises OSError.
    """
    # Held open: where descriptors are short this file would be closed for that of an index.
    segment.log.acquire()
    try:
        return _recover(log, segment, newest_epoch)
    finally:
        segment.log.release()


def _recover(log: Log, segment: LogSegment, newest_epoch: int) -> tuple[int, int]:
    file = segment.log.open()
    end = file.size()
    segment.reset_indexes()
    expected = segment.base_offset
    for place, batch in valid_batches(file, end):
        if place.base_offset < expected or place.last_offset - segment.base_offset > _INT_MAX:
            break
        epoch = batch.partition_leader_epoch
        if 0 <= epoch < newest_epoch:
            # A truncation was lost in the crash, what was written after it was not: the batches
            # behind it are those that were truncated.
            break
        newest_epoch = max(newest_epoch, epoch)
        segment.publish(place.size_in_bytes, place.last_offset, batch.max_timestamp)
        if place.magic < MAGIC:
            log.leader_epochs.clear()  # as `follower_append.write_run`
        elif batch.partition_leader_epoch > log.leader_epochs.latest_epoch:
            log.leader_epochs.assign(batch.partition_leader_epoch, batch.base_offset)
        expected = place.last_offset + 1
    dropped = end - segment.size
    if dropped:
        segment.truncate_at(segment.size)
    segment.become_inactive()
    return dropped, newest_epoch


def _set_offsets(log: Log, log_start_offset: int, recovery_point: int, wall_ms: int) -> None:
    active = log.segments.active
    end = active.next_offset()
    # The log start was checkpointed, the records up to it were lost: nothing of the log is left.
    if end < log_start_offset:
        log.segments.remove_all()
        active = log.segments.create(log_start_offset, wall_ms)
        end = log_start_offset
    active.load_indexes()
    active.load_timestamps()
    log.segments.log_end_offset = end
    log.watermarks.log_start_offset = max(log_start_offset, log.segments.first.base_offset)
    log.durability.begin_at(min(max(recovery_point, 0), end))
    log.durability.unflushed_since = log.durability.recovery_point


def _contradict_epochs(log: Log, end: int) -> bool:
    """Whether the batches below `end` contradict the newest leader epoch known there: a loss of
    power took a truncation back, but not the epoch that began there afterwards.
    """
    known = [each for each in log.leader_epochs.entries() if each[1] < end]
    if not known:
        return False
    epoch, start = known[-1]
    # A checkpoint may be older than the removal of the first segments.
    start = max(start, log.segments.first.base_offset)
    segment = log.segments.at(log.segments.row_of(start))
    try:
        found = None if segment is None else segment.epoch_at(start)
    except CorruptRecordError:
        # Below the recovery point the files are trusted: a reader gets the error.
        return False
    return found is not None and found != epoch


def _finish_epochs(log: Log, lost: bool, clean: bool, trusted_epoch: int) -> None:
    cache = log.leader_epochs
    _trim_epochs(log)
    is_doubtful = not clean and cache.latest_epoch != trusted_epoch
    if lost or (is_doubtful and _contradict_epochs(log, log.log_end_offset)):
        cache.clear()
        _find_first_epochs(log)
    elif _lacks_first_epochs(log):
        _find_first_epochs(log)
    _trim_epochs(log)
    content = checkpoints.epochs_text(cache.epochs, cache.start_offsets)
    path = posixpath.join(log.directory, checkpoints.LEADER_EPOCH)
    if checkpoints.read_whole(log.pool.files, path) != content:
        checkpoints.write_aside(log.pool.files, path, content, sync=len(cache) > 0)
    cache.pass_changes()


def _trim_epochs(log: Log) -> None:
    log.leader_epochs.truncate_from_start(log.log_start_offset)
    # Last: of an empty log no epoch is left.
    log.leader_epochs.truncate_from_end(log.log_end_offset)


def _lacks_first_epochs(log: Log) -> bool:
    """Whether batches below the first leader epoch known have one: the epochs were trimmed to a log
    start that was lost.

    Two batches are looked at, the first and the last of those below: old brokers left batches
    without epochs, many perhaps, and they are not walked at every start.
    """
    first = _first_known(log)
    if first <= log.log_start_offset:
        return False
    for offset in (log.log_start_offset, first - 1):
        segment = log.segments.at(log.segments.row_of(offset))
        try:
            epoch = None if segment is None else segment.epoch_at(offset)
        except CorruptRecordError:
            continue
        if epoch is not None and epoch >= 0:
            return True
    return False


def _find_first_epochs(log: Log) -> None:
    """Adds the epochs of the batches below those that are known."""
    cache, first = log.leader_epochs, _first_known(log)
    known = cache.entries()
    cache.clear()
    for segment in log.segments:
        for header in segment.headers() if segment.base_offset < first else ():
            if header[BASE_OFFSET] >= first:
                break
            if header[MAGIC_FIELD] < MAGIC:
                cache.clear()
            cache.assign(header[PARTITION_LEADER_EPOCH], header[BASE_OFFSET])
    for epoch, start_offset in known:
        cache.assign(epoch, start_offset)


def _first_known(log: Log) -> int:
    """Where the first leader epoch known begins; the log end without one."""
    starts = log.leader_epochs.start_offsets
    return starts[0] if starts else log.log_end_offset


def _load_producers(log: Log, recovered: frozenset[int], wall_ms: int) -> None:
    """Producer state from the newest snapshot that cannot be stale, and the batches since."""
    producers = log.producers
    producers.find_snapshots()
    producers.remove_strays(set(log.segments.bases()))
    if recovered:
        for offset in sorted(producers.snapshots):
            # It may count batches that the repair has dropped.
            if offset > min(recovered):
                producers.remove_snapshot(offset)
    producers.map_end_offset = -1
    log.rebuild.after_load(wall_ms, recovered)
