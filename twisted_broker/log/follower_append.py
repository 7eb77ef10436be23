"""Appends of batches that have their offsets already: a follower's, and those of `replog mirror`.

Owns `append` and `append_mirrored`, the bodies of `Log.append_as_follower` and
`Log.append_mirrored`.

1. The batches lie one after the other in one buffer: all that go into one segment are one write.
   The bytes are written as they came.
2. Offsets may jump forward (the leader compacted, the source deleted); none is written twice.
3. A segment begins at the log end, not at its first batch: offsets that the leader, or the source
   of a mirror, does not have must not look like a missing file (`gaps.py` 4).
4. A follower keeps the batches that were written before descriptors ran out.

Source: Kafka's `UnifiedLog.appendAsFollower`; RL 3.1, 3.2. Not here: which batches are taken
(`replicated_batches.py`, `missed_markers.py`, `mirrored_batches.py`), who calls again after an
`UnexpectedAppendOffset` (`partition.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twisted_broker.interfaces import Buffer
from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.log.errors import OutOfDescriptors, UnexpectedAppendOffset
from twisted_broker.log.mirrored_batches import (
    count_already_there,
    not_mirrored,
    with_leader_epoch,
)
from twisted_broker.log.missed_markers import FetchedTransactions
from twisted_broker.log.old_entries import OldEntry
from twisted_broker.log.replicated_batches import Replicated, replicated_batches
from twisted_broker.settings import INT_MAX
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchView,
    InvalidRecordError,
)

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_UNSTABLE = CONTROL_FLAG | TRANSACTIONAL_FLAG


def append(
    log: Log, records: Buffer, leader_epoch: int, wall_ms: int, may_fetch_again: bool
) -> LogAppendInfo:
    """Writes what the leader sent, as it is: whole batches, offsets growing from the log end on.

    Leaves out a partial batch at the end, everything from the first batch of an epoch above
    `leader_epoch` on, and batches that need a new segment while no file can be opened. Raises
    BrokerError. With `may_fetch_again` it looks for ends of transactions that the leader's cleaner
    has removed: raises MarkersMissed, ProducersUnknown, with nothing written.
    """
    if log.failed is not None:
        raise log.failure
    batches = replicated_batches(records, leader_epoch)
    if not batches:
        return LogAppendInfo(-1, -1, -1, -1, log.log_start_offset, 0, 0)
    producers = log.producers
    if may_fetch_again and (
        producers.ongoing or producers.is_rebuilding or log.fetched_transactions
    ):
        batches = _before_missed(log, batches, wall_ms)
    return _append_batches(log, records, batches, wall_ms, True)


def append_mirrored(log: Log, records: Buffer, leader_epoch: int, wall_ms: int) -> LogAppendInfo:
    """Writes whole batches of another cluster, as they are but for the leader epoch
    (`mirrored_batches.py`).

    Batches that the log holds are not written again; `first_offset` and `last_offset` include them.
    Raises BrokerError: POLICY_VIOLATION where the topic is no mirror, INVALID_RECORD where other
    records have these offsets.
    """
    log.check_online()
    if not log.config.replog_mirror_source:
        raise not_mirrored(log)
    copied, batches = with_leader_epoch(records, leader_epoch)
    if not batches:
        raise InvalidRecordError("no batch")
    there = count_already_there(log, batches)
    if there == len(batches):
        size = count = 0
    else:
        log.durability.check_checkpoint()
        # An epoch that began here without records is replaced by the batches' own entry.
        info = _append_batches(log, copied, batches[there:] if there else batches, wall_ms, False)
        size, count = info.bytes, info.records_count
    return LogAppendInfo(
        batches[0].base_offset,
        batches[-1].last_offset,
        max(batch.max_timestamp for batch in batches),
        -1,
        log.log_start_offset,
        count,
        size,
        leader_epoch,
        duplicate=there == len(batches),
    )


def _before_missed(log: Log, batches: Sequence[Replicated], wall_ms: int) -> Sequence[Replicated]:
    end = log.log_end_offset
    if log.fetched_transactions is None:
        log.fetched_transactions = FetchedTransactions(end, wall_ms)
    return log.fetched_transactions.before_missed(
        batches,
        log.producers,
        log.log_start_offset,
        end,
        log.config.delete_retention_ms,
        wall_ms,
    )


def _append_batches(
    log: Log, records: Buffer, batches: Sequence[Replicated], wall_ms: int, or_fewer: bool
) -> LogAppendInfo:
    """Writes checked batches, which lie one after the other in `records`. With `or_fewer`, a lack
    of descriptors after some of them is no error: it returns what was written. Raises BrokerError.
    """
    segments = log.segments
    first, last, before = batches[0], batches[-1], segments.log_end
    # A gap is fine (the leader compacted); an overlap is not.
    if first.base_offset < before.offset:
        raise UnexpectedAppendOffset(first.base_offset, last.last_offset, before.offset)
    run = rest = batches
    try:
        while rest:
            size = last.offset + last.size_in_bytes - rest[0].offset
            newest = max(batch.max_timestamp for batch in rest)
            if segments.should_roll(size, last.last_offset, newest, wall_ms):
                run = _roll(log, rest, wall_ms)
            write_run(log, records, run)
            run = rest = rest[len(run) :]
    except OSError as error:
        failure = log.fail(error)
        # What is in the log counts: the fetcher goes on after it.
        batches = [each for each in batches if each.last_offset < log.log_end_offset]
        if not (or_fewer and batches and isinstance(failure, OutOfDescriptors)):
            raise failure from error
        last = batches[-1]
    log.durability.sync_if_due(before)
    return LogAppendInfo(
        first.base_offset,
        last.last_offset,
        max(batch.max_timestamp for batch in batches),
        -1,
        log.log_start_offset,
        sum(batch.records_count for batch in batches),
        last.offset + last.size_in_bytes - first.offset,
        last.partition_leader_epoch,
    )


def _roll(log: Log, batches: Sequence[Replicated], wall_ms: int) -> Sequence[Replicated]:
    """Starts a segment; returns the batches that go into it (RL 3.1)."""
    first = batches[0]
    is_far = first.last_offset - log.segments.log_end_offset > INT_MAX
    log.start_segment(wall_ms, first.base_offset if is_far else 0)
    base, left = log.segments.active.base_offset, log.config.segment_bytes
    for count, batch in enumerate(batches):
        left -= batch.size_in_bytes
        # The first batch goes in whatever its size: it fits nowhere else either.
        if count and (left < 0 or batch.last_offset - base > INT_MAX):
            return batches[:count]
    return batches


def write_run(log: Log, records: Buffer, run: Sequence[Replicated]) -> None:
    """Writes batches into the active segment, and adds them to what describes it. Raises
    OSError, BrokerError.
    """
    start, end = run[0].offset, run[-1].offset + run[-1].size_in_bytes
    segments, epochs, producers = log.segments, log.leader_epochs, log.producers
    segment = segments.active
    data = memoryview(records)[start:end]
    if log.ahead is None or not log.complete_ahead(
        records if end - start == len(records) else data, data
    ):
        segment.write((data,))
    # In fewer bytes at most one index entry is due: to hold it costs more than to write it.
    is_held = len(run) > 1 and end - start > segment.index_interval_bytes
    try:
        if is_held:
            segment.hold_indexes()
        for batch in run:
            if batch.partition_leader_epoch != epochs.latest_epoch:
                if isinstance(batch, OldEntry):
                    # Its leader writes no epochs: by what is known of them a later election would
                    # truncate too little.
                    epochs.clear()
                else:
                    epochs.assign(batch.partition_leader_epoch, batch.base_offset)
            segment.publish(batch.size_in_bytes, batch.last_offset, batch.max_timestamp)
            segments.log_end_offset = batch.last_offset + 1
            if batch.producer_id >= 0 and isinstance(batch, BatchView):
                log.index_aborted(producers.add_batch(batch), segment)
                if batch.attributes & _UNSTABLE:
                    log.watermarks.update_first_unstable()
            producers.map_end_offset = batch.last_offset + 1
    finally:
        if is_held:
            segment.write_indexes()
