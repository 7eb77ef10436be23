"""Which leader epoch began at which offset.

Owns `LeaderEpochFileCache`: the epochs of a log with their start offsets, and where epoch E ends;
and `LeaderEpochFile`, which brings them to their checkpoint.

1. Epochs and start offsets both grow strictly.
2. The list in memory is authoritative. `changed` is called after every change, except while the log
   is loaded, and has the checkpoint file written. What the file lacks after a crash, recovery finds
   again in the batches.

Source: Kafka's `LeaderEpochFileCache`, KIP-101, KIP-320; RL 3.5, 6.3. Not here: the form of
the file (`checkpoints.py`), when a log is synced (`durability.py`), the requests (`replication`).
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted_broker.log import checkpoints

if TYPE_CHECKING:
    from twisted_broker.interfaces import IDiskWorker
    from twisted_broker.log.segments import LogSegments

UNDEFINED = (-1, -1)


class LeaderEpochFileCache:
    """`entries` are (epoch, start offset); the ones out of order are dropped.

    `changed()` is called after every change, but for those of `entries`.
    """

    __slots__ = ("_changed", "_held", "epochs", "start_offsets")

    def __init__(
        self, entries: list[tuple[int, int]], changed: Callable[[], None] | None = None
    ) -> None:
        self.epochs: list[int] = []
        self.start_offsets: list[int] = []
        self._changed, self._held = changed, True
        for epoch, start in entries:
            self.assign(epoch, start)
        self._held = False

    def hold_changes(self) -> None:
        """`changed` is not called until `pass_changes`: the log is being loaded."""
        self._held = True

    def pass_changes(self) -> None:
        self._held = False

    def detach(self) -> None:
        """The log is gone: nobody hears of changes any more."""
        self._changed = None

    def __len__(self) -> int:
        return len(self.epochs)

    def __bool__(self) -> bool:
        return bool(self.epochs)

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self.start_offsets, strict=True))

    @property
    def latest_epoch(self) -> int:
        """-1 without entries."""
        return self.epochs[-1] if self.epochs else -1

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Notes that `epoch` begins at `start_offset`; entries that contradict go.

        False when nothing changed.
        """
        epochs, starts = self.epochs, self.start_offsets
        if (
            epoch < 0
            or start_offset < 0
            or (epochs and epochs[-1] == epoch and starts[-1] <= start_offset)
        ):
            return False
        # Both columns only grow; older entries that say otherwise come from a history that was
        # truncated.
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self._on_change()
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch known that is <= `epoch`, the offset at which it ends); where all known
        ones are newer, (`epoch`, the first start offset); `UNDEFINED` above the newest one.
        """
        epochs = self.epochs
        # A newer epoch than any here: only a replica that has it knows where it ends.
        if epoch < 0 or not epochs or epoch > epochs[-1]:
            return UNDEFINED
        if epoch == epochs[-1]:
            return epoch, log_end_offset
        higher = bisect_right(epochs, epoch)
        return (epochs[higher - 1] if higher else epoch), self.start_offsets[higher]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch of the record at `offset`, -1 when unknown."""
        row = bisect_right(self.start_offsets, offset) - 1
        return self.epochs[row] if row >= 0 else -1

    def previous_epoch(self, epoch: int) -> int:
        """The largest epoch below `epoch`, -1 without one."""
        row = bisect_left(self.epochs, epoch) - 1
        return self.epochs[row] if row >= 0 else -1

    def truncate_from_end(self, end_offset: int) -> None:
        """Drops epochs that begin at `end_offset` or above."""
        keep = bisect_left(self.start_offsets, end_offset)
        if keep < len(self.epochs):
            del self.epochs[keep:], self.start_offsets[keep:]
            self._on_change()

    def truncate_from_start(self, start_offset: int) -> None:
        """Drops epochs that end at or below `start_offset`; the one that holds it begins there."""
        row = bisect_right(self.start_offsets, start_offset) - 1
        if row < 0 or (row == 0 and self.start_offsets[0] == start_offset):
            return
        del self.epochs[:row], self.start_offsets[:row]
        self.start_offsets[0] = start_offset
        self._on_change()

    def clear(self) -> None:
        if self.epochs:
            self.epochs.clear()
            self.start_offsets.clear()
            self._on_change()

    def _on_change(self) -> None:
        if self._changed is not None and not self._held:
            self._changed()


class LeaderEpochFile:
    """The checkpoint file of one log's epochs. It is written at once, and synced with the next sync
    of the log, before the recovery point moves: until then a crash may take it, and recovery finds
    the epochs in the batches.
    """

    __slots__ = ("_cache", "_segments", "_version", "is_dirty", "is_writing", "synced")

    def __init__(self, cache: LeaderEpochFileCache, segments: LogSegments) -> None:
        self._cache, self._segments = cache, segments
        self.is_writing = self.is_dirty = False
        self._version = self.synced = 0  # a version counts changes

    def changed(self) -> None:
        """What was synced is not all any more."""
        self._version += 1

    def write(self, disk: IDiskWorker | None, done: Callable[[BaseException | None], None]) -> None:
        """One write at a time, the newest content; `done(error)` after it. Without a worker, at
        once.
        """
        if self.is_writing:
            self.is_dirty = True
            return
        files, content = self._segments.pool.files, self._text()
        path = posixpath.join(self._segments.directory, checkpoints.LEADER_EPOCH)
        if disk is None:
            checkpoints.write_aside(files, path, content, sync=False)
            return
        self.is_writing, self.is_dirty = True, False

        def written(_: None, error: BaseException | None) -> None:
            self.is_writing = False
            done(error)

        disk.submit(lambda: checkpoints.write_aside(files, path, content, sync=False), written)

    def to_sync(self) -> tuple[int, bytes | None]:
        """The version, and what a sync must write first; None: that is synced already."""
        return self._version, None if self._version == self.synced else self._text()

    def _text(self) -> bytes:
        return checkpoints.epochs_text(self._cache.epochs, self._cache.start_offsets)
