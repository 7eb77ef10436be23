"""Offsets that are missing between two segments (a file is gone, or the topic is compacted), or are
in both.

Owns `Gap`, `end_of`, `find_empty_tail`, and `resolve_gap`, which decides what becomes of a log that
has one.

1. Loading only notes the first gap above the log start, the first that an unclean stop may have
   left, and one behind it that only empty segments follow: a topic's policy is not known yet.
   Whoever opens the log for a role decides about it first (`resolve_gap`).
2. Compacted topics have gaps and keep them; so have logs that were cleaned before their topic's
   policy changed: below the cleaner's offset loading notes none. One gap of a compacted topic is a
   torn tail (3) all the same: that before a segment above the recovery point, after an unclean
   stop, where another broker leads or the segment is empty. A follower that kept the hole would
   miss the last value of some key for ever. A leader keeps what lies behind the hole: it may be
   acknowledged and nowhere else. A replica that may be elected keeps it until somebody is. Empty
   segments at the log's end, behind one more hole, are not kept: they hold no records, and only
   name offsets that are lost.
3. After an unclean stop a gap above the recovery point ends the log there, as a torn tail does.
   What lay behind is kept as `.log.aside`. A follower fetches what follows from its leader; a
   leader has lost it, and one line says which offsets. To serve what lies behind the hole would
   hide the loss; to refuse would keep the partition offline for records that are in no file.
4. Every other gap means that a file is lost which was whole: the partition is refused, nothing is
   served, changed or deleted. Offsets that the leader, or the source of a mirror, does not have
   make no gap: a segment of ours begins where the one before ends, unless more than 2^31 - 1 are
   missing (Kafka's followers name a segment by its first batch).
5. After an unclean stop a segment may begin, from the recovery point on, below the end of the one
   before: the loss of power took a truncation back. If the later segment has newer leader epochs,
   recovery drops the end of the earlier one. Else the log had grown past the later segment: it is
   not loaded, and it and what follows are kept as `.log.aside`.
6. An empty segment leaves no gap, and neither does one whose end cannot be read: the reader of
   the damage gets the error.

Source: our own; Kafka's `LogLoader` serves what is left, with the hole. Not here: other gaps
within a segment.
"""

from __future__ import annotations

import posixpath
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from twisted_broker.log.batch_scan import scan
from twisted_broker.log.segment import LOG, LogSegment, file_name
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import CorruptRecordError

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

ASIDE = ".aside"
_POSITION = struct.Struct(">4xi")


class Gap(NamedTuple):
    """The segments end at `offset`, the next one begins at `following`: the offsets in between are
    in no file; where `offset` is above, they are in both.

    `torn`: an unclean stop may have done it. For compacted topics: `torn_tail`, the first torn gap
    behind one that is not torn; `empty_tail`, one behind both that only empty segments follow.
    """

    offset: int
    following: int
    torn: bool
    torn_tail: Gap | None = None
    empty_tail: Gap | None = None

    @property
    def is_overlap(self) -> bool:
        return self.offset > self.following


def end_of(segment: LogSegment) -> int:
    """One above the last offset of a segment that is written no more, read from its index's last
    entry on; -1 when it is not known. Raises OSError.
    """
    files, path, size = segment.log.pool.files, segment.log.path, segment.size
    if not size:
        # Its records were lost, and the name of the next segment was not.
        return segment.base_offset
    file = files.open(path, read_only=True)
    try:
        for start in {_last_indexed(segment): None, 0: None}:
            last = -1
            try:
                for place in scan(file, start, size):
                    last = place.last_offset
            except CorruptRecordError:
                # The index's last entry may be wrong: once more from the start.
                continue
            if last >= segment.base_offset:
                return last + 1
    finally:
        file.close()
    return -1


def find_empty_tail(log: Log, recovery_point: int) -> Gap | None:
    """The gap before the first of the empty segments at the log's end, behind a torn one that is
    noted; None where there is none. Raises OSError.
    """
    noted = None if log.gap is None else log.gap.torn_tail or log.gap
    if noted is None or not noted.torn or noted.is_overlap:
        return None
    segments = list(log.segments)
    first = len(segments)
    while first > 1 and not segments[first - 1].size:
        first -= 1
    for before, segment in pairwise(segments[first - 1 :]):
        end, base = end_of(before), segment.base_offset
        if 0 <= end < base:
            is_behind = base > noted.following and base >= recovery_point
            return Gap(end, base, True) if is_behind else None
    return None


def _last_indexed(segment: LogSegment) -> int:
    """The position in the last entry of the offset index; 0 without one."""
    files, path = segment.log.pool.files, segment.offset_index.file.path
    try:
        file = files.open(path, read_only=True)
    except FileNotFoundError:
        return 0
    try:
        entries = file.size() // _POSITION.size
        found = (
            _POSITION.unpack(file.read_at((entries - 1) * _POSITION.size, _POSITION.size))[0]
            if entries
            else 0
        )
    finally:
        file.close()
    return found if 0 < found < segment.size else 0


def resolve_gap(log: Log, is_led_elsewhere: bool, wall_ms: int, is_led: bool = True) -> str | None:
    """Decides about the gap that loading found, if any, by the topic's settings; a line for the
    operator when the log was ended there. `is_led_elsewhere`: a leader has what is dropped.
    `is_led`: False while nobody leads; what depends on the leader is decided with a later role, and
    `log.gap` stays.

    BrokerError KAFKA_STORAGE_ERROR: the log is refused, the message names the file and the remedy.
    """
    gap = log.gap
    if gap is not None and log.config.compact:
        # What lies before was left out by a cleaner.
        empty_tail, gap = gap.empty_tail, gap.torn_tail or gap
        if not _is_torn_tail(log, gap, is_led_elsewhere):
            if not is_led and _is_torn_tail(log, gap, True):
                return None
            gap = empty_tail
    if gap is None:
        log.gap = None
        return None
    if gap.is_overlap:
        return _end_before_overlap(log, gap, is_led_elsewhere, wall_ms)
    missing, following = file_name(gap.offset, LOG), file_name(gap.following, LOG)
    where = (
        f"offsets {gap.offset} to {gap.following - 1} are missing before "
        f"{posixpath.join(log.directory, following)}"
    )
    if not gap.torn:
        raise BrokerError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{where}: put {missing} back, or move the directory away so that the replica is "
            "made anew from its leader, and restart"
            " (a topic that was compacted before: start it with cleanup.policy=compact)",
        )
    end = log.log_end_offset
    kept = log.end_before_gap(gap, wall_ms, ASIDE)
    log.gap = None
    behind = end > gap.following
    lost = (
        "its leader has the rest"
        if is_led_elsewhere
        else "no other replica leads with them"
        + (f", nor with offsets {gap.following} to {end - 1} behind them" if behind else "")
    )
    return (
        f"{where}, lost in an unclean stop: the log ends at {gap.offset}, {lost}; {kept} files are "
        f"kept as *{LOG}{ASIDE}"
    )


def _is_torn_tail(log: Log, gap: Gap, is_led_elsewhere: bool) -> bool:
    """Whether the gap of a compacted topic is the work of an unclean stop, not of a cleaner.

    A follower takes over gaps from a leader that was cleaned: above the recovery point the two look
    alike, and fetching again is right for both. A leader cannot, and keeps what lies behind.
    """
    if gap.is_overlap:
        return True
    holder = log.segments.at(log.segments.row_of(gap.following))
    if not gap.torn or holder is None:
        return False
    return is_led_elsewhere or not holder.size


def _end_before_overlap(log: Log, gap: Gap, is_led_elsewhere: bool, wall_ms: int) -> str:
    where = (
        f"{posixpath.join(log.directory, file_name(gap.following, LOG))} begins below offset "
        f"{gap.offset}, where the segment before it ends"
    )
    kept = log.end_before_gap(gap, wall_ms, ASIDE)
    log.gap = None
    rest = (
        "its leader has the rest" if is_led_elsewhere else "what was truncated does not come back"
    )
    return (
        f"{where}: a truncation was lost in an unclean stop; the log ends at {gap.offset}, {rest}; "
        f"{kept} files are kept as *{LOG}{ASIDE}"
    )
