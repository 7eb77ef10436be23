"""The content of a replica's log, read past the production code, and the one line of what was
committed.

Owns `Mirror`, the batches of one log as its file has them, and `Line`, the committed history of one
partition.

1. A batch stands for its bytes by (base, last offset, leader epoch, CRC); a sum of what stands for
   batches stands for a stretch of a log. Stretches with equal sums are equal.
2. Logs begin where retention left them: two are compared from the later beginning, and the log
   start, on.
3. A mirror follows its log by what was appended; after a truncation it is read anew. Rows of
   segments that retention deleted stay.
4. A line only grows, except where an unclean election was recorded: then it is what the new leader
   holds of it.
5. Below `cleaned_upto` batches are not compared: each replica is cleaned at its own times. A log
   that was cleaned is read on behind what was read before.

Source: RELIABILITY 2.1. Not here: judging (`simulation/checks`), what stays of a compacted log
(`simulation/checks/compacted.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct

from twisted_broker.log.log import Log
from twisted_broker.simulation.disk import SimDisk

_HEAD = Struct(">qiibIhi")
_LOG_OVERHEAD = 12


class Mirror:
    """`lasts[i]`, `epochs[i]`, `bases[i]`, `sums[i]`: the batches in order; `sums[i]` is of all of
    them up to row i.
    """

    __slots__ = (
        "_at",
        "_segment",
        "bases",
        "disk",
        "end",
        "epochs",
        "lasts",
        "log",
        "sums",
        "truncations",
    )

    def __init__(self, log: Log, disk: SimDisk) -> None:
        self.log, self.disk = log, disk
        self._clear()

    def _clear(self) -> None:
        self.bases: list[int] = []
        self.lasts: list[int] = []
        self.epochs: list[int] = []
        self.sums: list[int] = []
        self.end, self.truncations = 0, self.log.truncations
        self._at = (-1, 0)
        self._segment: object = None

    @property
    def start(self) -> int:
        """The first offset that it knows of."""
        return self.bases[0] if self.bases else self.end

    def follow(self) -> int:
        """Reads what is new; returns the row of the first batch that was not here before (all of
        them after a truncation). ValueError where its file holds no batch.
        """
        log = self.log
        if log.truncations != self.truncations:
            self._clear()
        first = len(self.lasts)
        segments = log.segments
        row = max(0, segments.row_of(self._at[0]))
        known = self.lasts[-1] if self.lasts else -1
        while (segment := segments.at(row)) is not None:
            position = self._at[1] if segment is self._segment else 0
            data = self.disk.nodes[segment.log.path].data
            while position < segment.size:
                position = self._take(data, position, known)
            self._at, self._segment = (segment.base_offset, position), segment
            row += 1
        self.end = max(segments.active.base_offset, self.lasts[-1] + 1 if self.lasts else 0)
        return first

    def _take(self, data: bytearray, position: int, known: int = -1) -> int:
        if position + _HEAD.size > len(data):
            raise ValueError(f"no whole batch at byte {position} of {len(data)}")
        base, length, epoch, _, crc, _, delta = _HEAD.unpack_from(data, position)
        if length + _LOG_OVERHEAD < _HEAD.size or delta < 0:
            raise ValueError(f"no batch at byte {position}, its length is {length}")
        if base <= known:  # of a segment that was cleaned since
            return int(position + length + _LOG_OVERHEAD)
        self.bases.append(base)
        self.lasts.append(base + delta)
        self.epochs.append(epoch)
        self.sums.append((self.sums[-1] if self.sums else 0) + hash((base, delta, epoch, crc)))
        return int(position + length + _LOG_OVERHEAD)

    def rows_below(self, offset: int) -> int:
        """How many batches lie wholly below `offset`."""
        return bisect_left(self.lasts, offset)

    def sum_between(self, start: int, upto: int) -> int:
        """What stands for the batches from `start` on that lie wholly below `upto`."""
        rows, first = self.rows_below(upto), bisect_left(self.bases, start)
        if rows <= first:
            return 0
        return self.sums[rows - 1] - (self.sums[first - 1] if first else 0)

    def agrees(self, other: Mirror, upto: int, deleted_upto: int) -> bool:
        """Whether two logs are equal below `upto`, as far as both know, from `deleted_upto` on."""
        start = max(self.start, other.start, deleted_upto)
        return self.sum_between(start, upto) == other.sum_between(start, upto)


class Line:
    """What was committed: below a high watermark that some leader reached."""

    __slots__ = (
        "cleaned_upto",
        "deleted_upto",
        "ends",
        "has_lost",
        "hole_end",
        "resets",
        "start",
        "sums",
        "top",
        "unclean_epoch",
        "waits_for_leader",
        "was_in_core",
    )

    def __init__(self) -> None:
        self.start = 0
        """where it begins: above 0 only after an unclean election of a log that began there"""
        self.ends: list[int] = []
        """the offset after each batch"""
        self.sums: list[int] = []
        self.top = 0
        """the highest offset ever committed, whatever became of it"""
        self.unclean_epoch = -1
        """the leader epoch of the last unclean election; older leaders commit nothing any more"""
        self.waits_for_leader = False
        self.resets: list[tuple[int, int]] = []
        """(leader epoch, offset) of each truncation by an unclean election"""
        self.deleted_upto = 0
        """the highest log start of any replica: nobody is owed what lies below, and a replica that
        was away may hold other records there
        """
        self.has_lost = False
        """an unclean election took something; who led on without knowing of it may have committed
        it only then
        """
        self.was_in_core = False
        """a member of the core was in the ISR once; not so of what was made before one joined"""
        self.cleaned_upto = 0
        """below it some replica was cleaned"""
        self.hole_end = 0
        """where a hole ends in a compacted log that was elected uncleanly: who leads keeps what
        lies behind, and others may hold what it lacks
        """

    @property
    def floor(self) -> int:
        """Replicas are compared from there on."""
        return max(self.deleted_upto, self.cleaned_upto, self.hole_end)

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.start

    def end_to_hold(self, end: int) -> int:
        """Where a member's log ends at least, where `end` is committed. What was cleaned before an
        unclean election may be there no more, neither the records that were lost nor those that
        they had replaced: a follower at whose end its leader has no batch counts as one with all.
        """
        return 0 if self.has_lost and end <= self.cleaned_upto else end

    def was_cut_where_cleaned(self, file_end: int, end: int) -> bool:
        """Whether a log was truncated to an offset below which its cleaner had left nothing: the
        end is remembered, here as in Kafka, until a restart finds that of the last batch.
        """
        return file_end < end <= self.cleaned_upto

    @property
    def is_whole(self) -> bool:
        """No unclean election took anything of it, or may do so yet."""
        return not self.resets and not self.waits_for_leader

    @property
    def is_complete(self) -> bool:
        """All that was ever committed is there: who was elected uncleanly had it, and nobody led
        on without knowing of that.
        """
        return not self.has_lost and not self.waits_for_leader

    def _sum_at(self, offset: int) -> int:
        rows = bisect_right(self.ends, offset)
        return self.sums[rows - 1] if rows else 0

    def agrees(self, mirror: Mirror, upto: int) -> bool:
        """Whether a log holds the line below `upto`, from where it begins on."""
        start = max(self.start, mirror.start, self._batch_end(self.floor))
        if start >= upto:
            return True
        return mirror.sum_between(start, upto) == self._sum_at(upto) - self._sum_at(start)

    def holds(self, mirror: Mirror, upto: int) -> bool:
        """Whether all that a log has below `upto` is of the line."""
        return upto <= self.end and self.agrees(mirror, upto)

    def _batch_end(self, offset: int) -> int:
        """The end of the batch that ends at or behind `offset`."""
        row = bisect_left(self.ends, offset)
        return self.ends[row] if offset > 0 and row < len(self.ends) else offset

    def _is_held(self, mirror: Mirror, upto: int) -> bool:
        """Whether a log holds the line below `upto`, deleted or not, from where it begins on."""
        start = max(self.start, mirror.start, self.cleaned_upto)
        return upto <= mirror.end and (
            start >= upto
            or mirror.sum_between(start, upto) == self._sum_at(upto) - self._sum_at(start)
        )

    def extend(self, mirror: Mirror, upto: int) -> None:
        if mirror.start > self.end:  # it begins behind all that was committed: see `reset`
            self.start, self.ends, self.sums = mirror.start, [], []
        before = self._sum_at(self.end) - mirror.sum_between(mirror.start, self.end)
        for row in range(mirror.rows_below(self.end), mirror.rows_below(upto)):
            self.ends.append(mirror.lasts[row] + 1)
            self.sums.append(before + mirror.sums[row])
        self.top = max(self.top, self.end)

    def reset(self, mirror: Mirror, epoch: int) -> None:
        """After an unclean election: only what the new leader holds stays. What was deleted counts
        as well: its log may begin below that, and holds other records there.
        """
        while self.ends and not self._is_held(mirror, self.ends[-1]):
            self.ends.pop()
            self.sums.pop()
        self.has_lost = self.has_lost or self.end < self.top
        row, end = mirror.rows_below(self.end), max(self.end, mirror.start)
        bases, lasts = (*mirror.bases[row:], mirror.end), (*mirror.lasts[row:], mirror.end)
        for base, last in zip(bases, lasts, strict=True):
            if base > end:
                self.hole_end = base
            end = last + 1
        # Of a log that ends below where the line began, nothing is left.
        self.start = min(self.start, mirror.end)
        # Behind its end there will be other records than those that were deleted.
        self.deleted_upto = min(self.deleted_upto, mirror.end)
        self.resets.append((epoch, self.end))
        self.waits_for_leader = False
