"""Where the metadata log begins and ends, its epochs and snapshots: the basis of decisions, without
its bytes.

1. It changes with the decision; the disk follows (`Append`, `Truncate`, `TruncateToSnapshot`).
2. A log that starts above 0 has a snapshot exactly there.
3. The last epoch is that of the last batch; behind a snapshot the snapshot's; 0 in an empty log.

Source: Kafka's `RaftLog`, `OffsetAndEpoch`, `ValidOffsetAndEpoch`; QU 3.7, 3.13, 9.8, 9.30.
Bounded by the epochs and snapshots that the disk has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from twisted_broker.raft.voter_history import ControlRecord


class OffsetAndEpoch(NamedTuple):
    """The end of a log or a snapshot."""

    offset: int
    epoch: int


NOTHING = OffsetAndEpoch(0, 0)
"""Of an empty log, and of the bootstrap snapshot, which is never served."""


class Batch(NamedTuple):
    """`control`: the records of a control batch, None for one of another kind; `data`: for who
    carries it.
    """

    base_offset: int
    last_offset: int
    epoch: int
    control: tuple[ControlRecord | None, ...] = ()
    data: object = None


class Valid(NamedTuple):
    """The reader's log is a part of this one."""


class Diverging(NamedTuple):
    """The reader's log differs from here on."""

    epoch: int
    end_offset: int


class SnapshotInstead(NamedTuple):
    """The log does not go back so far."""

    id: OffsetAndEpoch


class LogView:
    """`epochs`: (first offset, epoch) of each run of batches; `snapshots`: oldest first. One below
    the start counts no more: a crash came before its file was removed.
    """

    def __init__(
        self,
        start_offset: int = 0,
        end_offset: int = 0,
        epochs: Sequence[OffsetAndEpoch] = (),
        snapshots: Sequence[OffsetAndEpoch] = (),
    ) -> None:
        self.start_offset, self.end_offset = start_offset, end_offset
        self._epochs = list(epochs)
        self.snapshots = [
            each for each in snapshots if each != NOTHING and each.offset >= start_offset
        ]

    @property
    def last_epoch(self) -> int:
        if self._epochs:
            return self._epochs[-1].epoch
        return self._snapshot_at_start.epoch

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    @property
    def _snapshot_at_start(self) -> OffsetAndEpoch:
        at = [each for each in self.snapshots if each.offset == self.start_offset]
        return at[-1] if at else NOTHING

    def append(self, batch: Batch) -> None:
        assert batch.base_offset == self.end_offset, (batch, self.end_offset)
        if not self._epochs or batch.epoch > self._epochs[-1].epoch:
            self._epochs.append(OffsetAndEpoch(batch.base_offset, batch.epoch))
        self.end_offset = batch.last_offset + 1

    def truncate(self, offset: int) -> None:
        while self._epochs and self._epochs[-1].offset >= offset:
            self._epochs.pop()
        self.end_offset = offset

    def truncate_to_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """The snapshot takes the place of all that is here."""
        self._epochs.clear()
        self.snapshots = [snapshot]
        self.start_offset = self.end_offset = snapshot.offset

    def add_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        if not self.snapshots or snapshot > self.snapshots[-1]:
            self.snapshots.append(snapshot)

    def move_start(self, snapshot: OffsetAndEpoch) -> None:
        """What lies before one of the snapshots goes."""
        self.snapshots = [each for each in self.snapshots if each >= snapshot]
        self.start_offset = snapshot.offset
        while len(self._epochs) > 1 and self._epochs[1].offset <= self.start_offset:
            del self._epochs[0]
        if self._epochs and self._epochs[0].offset < self.start_offset:
            self._epochs[0] = OffsetAndEpoch(self.start_offset, self._epochs[0].epoch)
        if self.start_offset == self.end_offset:
            self._epochs.clear()

    def end_of_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch here up to `epoch`, and where it ends."""
        end = self.end_offset
        for start, found in reversed(self._epochs):
            if found <= epoch:
                return OffsetAndEpoch(end, found)
            end = start
        snapshot = self._snapshot_at_start
        if snapshot.epoch <= epoch:
            return OffsetAndEpoch(end, snapshot.epoch)
        return NOTHING

    def validate(self, offset: int, epoch: int) -> Valid | Diverging | SnapshotInstead:
        """The answer to a reader whose log ends at (offset, epoch)."""
        latest = self.snapshots[-1] if self.snapshots else None
        if latest is not None:
            earliest = self.snapshots[0]
            if (
                offset == 0
                or offset < self.start_offset
                or (offset == self.start_offset and epoch != earliest.epoch)
                or epoch < earliest.epoch
            ):
                return SnapshotInstead(latest)
        if offset == 0:
            return Valid()
        end = self.end_of_epoch(epoch)
        if end.epoch == epoch and offset <= end.offset:
            return Valid()
        return Diverging(end.epoch, end.offset)
