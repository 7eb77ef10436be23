"""What a replica's log holds, read past the production code, and the one line of what was
committed.

Owns `Mirror`, the batches of one log as its file has them, and `Line`, the committed history of one
partition.

1. A batch stands for its bytes by (base, last offset, leader epoch, CRC), and each batch's `chain`
   for everything up to it: equal chains are equal logs.
2. A mirror follows its log by what was appended; after a truncation it is read again.
3. A line only grows, except where an unclean election was recorded: then it is what the new leader
   holds of it.

Source: RELIABILITY 2.1. Not here: the rules (`testing/checks`); logs that do not begin at offset 0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct

from twisted_broker.log.log import Log
from twisted_broker.testing.sim.disk import SimDisk

_HEAD = Struct(">qiibIhi")
_LOG_OVERHEAD = 12


class Mirror:
    """`lasts[i]`, `epochs[i]`, `bases[i]`, `chains[i]`: the batches in order."""

    __slots__ = ("_at", "bases", "chains", "cuts", "disk", "end", "epochs", "lasts", "log")

    def __init__(self, log: Log, disk: SimDisk) -> None:
        self.log, self.disk = log, disk
        self._clear()

    def _clear(self) -> None:
        self.bases: list[int] = []
        self.lasts: list[int] = []
        self.epochs: list[int] = []
        self.chains: list[int] = []
        self.end, self.cuts = 0, self.log.truncations
        self._at = (-1, 0)

    def follow(self) -> int:
        """Reads what is new; returns the row of the first batch that was not here before (all of
        them after a truncation).
        """
        log = self.log
        if log.truncations != self.cuts:
            self._clear()
        first = len(self.lasts)
        segments = log.segments
        row = max(0, segments.row_of(self._at[0]))
        while (segment := segments.at(row)) is not None:
            position = self._at[1] if segment.base_offset == self._at[0] else 0
            data = self.disk.nodes[segment.log.path].data
            while position < segment.size:
                position = self._take(data, position)
            self._at = (segment.base_offset, position)
            row += 1
        self.end = self.lasts[-1] + 1 if self.lasts else segments.first.base_offset
        return first

    def _take(self, data: bytearray, position: int) -> int:
        base, length, epoch, _, crc, _, delta = _HEAD.unpack_from(data, position)
        chain = hash((self.chains[-1] if self.chains else 0, base, delta, epoch, crc))
        self.bases.append(base)
        self.lasts.append(base + delta)
        self.epochs.append(epoch)
        self.chains.append(chain)
        return int(position + length + _LOG_OVERHEAD)

    def rows_below(self, offset: int) -> int:
        """How many batches lie wholly below `offset`."""
        return bisect_left(self.lasts, offset)

    def chain_at(self, offset: int) -> int:
        """What stands for everything below `offset`."""
        rows = self.rows_below(offset)
        return self.chains[rows - 1] if rows else 0


class Line:
    """What was committed: below a high watermark that some leader reached."""

    __slots__ = ("chains", "ends", "resets", "top", "unclean_epoch", "waits_for_leader")

    def __init__(self) -> None:
        self.ends: list[int] = []
        """the offset after each batch"""
        self.chains: list[int] = []
        self.top = 0
        """the highest offset ever committed, whatever became of it"""
        self.unclean_epoch = -1
        """the leader epoch of the last unclean election; older leaders commit nothing any more"""
        self.waits_for_leader = False
        self.resets: list[tuple[int, int]] = []
        """(leader epoch, offset) of each truncation by an unclean election"""

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def is_whole(self) -> bool:
        """No unclean election took anything of it, or may do so yet."""
        return not self.resets and not self.waits_for_leader

    def chain_at(self, offset: int) -> int:
        rows = bisect_right(self.ends, offset)
        return self.chains[rows - 1] if rows else 0

    def agrees(self, mirror: Mirror, upto: int) -> bool:
        """Whether a log holds the line below `upto`."""
        return mirror.chain_at(upto) == self.chain_at(upto)

    def extend(self, mirror: Mirror, upto: int) -> None:
        for row in range(mirror.rows_below(self.end), mirror.rows_below(upto)):
            self.ends.append(mirror.lasts[row] + 1)
            self.chains.append(mirror.chains[row])
        self.top = max(self.top, self.end)

    def reset(self, mirror: Mirror, epoch: int) -> None:
        """After an unclean election: only what the new leader holds stays."""
        while self.ends and (
            self.ends[-1] > mirror.end or mirror.chain_at(self.ends[-1]) != self.chains[-1]
        ):
            self.ends.pop()
            self.chains.pop()
        self.resets.append((epoch, self.end))
        self.waits_for_leader = False
