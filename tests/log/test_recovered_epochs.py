"""Leader epochs after an unclean stop: what the batches say, what the checkpoint says, and which of
them a lost truncation or a flipped bit has changed. RL 3.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.log.batches import DIRECTORY, NOW_MS, TOPIC_ID, TP, batch, config, open_log
from twisted_broker.log.checkpoints import LEADER_EPOCH, epochs_text
from twisted_broker.log.gaps import resolve_gap
from twisted_broker.log.log import Log
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment import OpenFiles, file_name
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.wire.records import set_offsets_and_epoch

COMPACTED = config(cleanup_policy=frozenset({"compact"}))
Epochs = Sequence[tuple[int, int]]
"""(epoch, where it begins)"""


def path_of(base: int) -> str:
    return f"{DIRECTORY}/{file_name(base, '.log')}"


class Copy:
    """A follower's log. `segments`: the epoch of the record at each offset, -1 for none."""

    def __init__(self, *segments: Mapping[int, int]) -> None:
        self.disk = SimDisk(1)
        self.log = open_log(self.disk, settings=COMPACTED)
        for number, segment in enumerate(segments):
            if number:
                self.log.roll(NOW_MS)
            self.put(segment)

    def put(self, records: Mapping[int, int]) -> None:
        for offset, epoch in records.items():
            data = bytearray(batch(b"v"))
            set_offsets_and_epoch(data, offset, epoch)
            self.log.append_as_follower(bytes(data), epoch, NOW_MS)

    def flip(self, base: int, record: int, byte: int, bit: int) -> None:
        """In a record's header, all of which are as long."""
        start = (
            record * self.log.segments.first.size // len(list(self.log.segments.first.headers()))
        )
        self.disk.sync_all()
        self.disk.flip_bit(path_of(base), start + byte, bit)

    def recovered(
        self, recovery_point: int, checkpoint: Epochs | None = None, start: int = 0
    ) -> Log:
        """As this broker loads it after a kill, and leads."""
        self.log.close()
        if checkpoint is not None:
            path = f"{DIRECTORY}/{LEADER_EPOCH}"
            self.disk.shorten(path, 0)
            epochs, starts = zip(*checkpoint, strict=True)
            self.disk.damage(path, 0, epochs_text(epochs, starts))
        self.disk.sync_all()
        self.left = self.disk.after_kill()
        found = load_log(
            OpenFiles(self.left, 16),
            DIRECTORY,
            TP,
            TOPIC_ID,
            COMPACTED,
            recovery_point=recovery_point,
            log_start_offset=start,
            wall_ms=NOW_MS,
        )
        resolve_gap(found, False, NOW_MS)
        return found


def epochs(log: Log) -> Epochs:
    return log.leader_epochs.entries()


def test_epochs_below_the_recovery_point_stay() -> None:
    """Also where the batches at both ends of what is below have none."""
    copy = Copy({0: 3, 1: -1, 2: 3, 3: -1}, {4: 4})
    copy.log.set_high_watermark(5)
    copy.log.increment_log_start_offset(1)
    assert epochs(copy.recovered(4, start=1)) == [(3, 1), (4, 4)]


@pytest.mark.parametrize("epoch", [5, 7])
def test_an_epoch_that_its_batch_contradicts_drops_nothing(epoch: int) -> None:
    """By a flipped bit in the checkpoint (simulation, seed 1092326)."""
    copy = Copy({0: 3, 1: 5}, {2: epoch}, {3: epoch})
    found = copy.recovered(2, [(3, 0), (9, 1)])
    assert found.log_end_offset == 4 and found.dropped_at_load is None
    assert epochs(found) == [(3, 0), (5, 1), (7, 2)][: 2 + (epoch == 7)]


@pytest.mark.parametrize("lost", [(20,), (10, 20)])
def test_segments_that_a_lost_truncation_brought_back_go(lost: Sequence[int]) -> None:
    """The newest epoch below the recovery point is known by its batch: older ones behind it are of
    the segments that were deleted. The first of these that is looked at may be empty, or itself
    have come back.
    """
    copy = Copy(
        dict.fromkeys(range(10), 3),
        dict.fromkeys(range(10, 20), 3),
        dict.fromkeys(range(20, 25), 3),
    )
    old = {base: copy.disk.content(path_of(base)) for base in lost}
    copy.log.truncate_to(5, NOW_MS)
    copy.put(dict.fromkeys(range(5, 10), 7))
    if len(lost) == 1:
        copy.log.roll(NOW_MS)
    for base, content in old.items():
        copy.disk.open(path_of(base), create=True).write_at(0, (content,))
    found = copy.recovered(10)
    assert not any(segment.size for segment in list(found.segments)[2:])


@pytest.mark.parametrize(("byte", "bit"), [(15, 2), (6, 0)], ids=["its epoch", "its base offset"])
def test_a_flipped_bit_in_a_batch_changes_no_epoch_known(byte: int, bit: int) -> None:
    """Both are outside the checksum; below the recovery point the checkpoint is believed."""
    copy = Copy({0: 3, 1: 4, 2: 5, 3: 5}, {4: 6})
    copy.flip(0, 2, byte, bit)
    assert epochs(copy.recovered(4)) == [(3, 0), (4, 1), (5, 2), (6, 4)]


def test_an_overlap_at_the_recovery_point() -> None:
    """No segment is looked at, the epochs known are, still."""
    copy = Copy(dict.fromkeys(range(5), 3), dict.fromkeys(range(5, 8), 3))
    old = copy.disk.content(path_of(5))
    copy.log.truncate_to(3, NOW_MS)
    copy.put(dict.fromkeys(range(3, 10), 7))
    copy.disk.open(path_of(5), create=True).write_at(0, (old,))
    assert epochs(copy.recovered(5, [(3, 0), (7, 3), (9, 8)])) == [(3, 0), (7, 3)]
