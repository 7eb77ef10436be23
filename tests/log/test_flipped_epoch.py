"""A leader epoch that nobody led: where it begins, and what the line says."""

from __future__ import annotations

import pytest

from tests.log.batches import NOW_MS, batch, open_log, values
from twisted_broker.log.flipped_epoch import flipped_epoch, start_of_last_epoch
from twisted_broker.testing.sim.disk import SimDisk
from twisted_broker.wire.records import set_offsets_and_epoch

_EPOCH_AT = 12


def test_the_remedy_drops_the_batch_and_nothing_before_it() -> None:
    """RELIABILITY 6.2: no checksum covers leader epochs. After an unclean stop a flipped one is the
    last batch's; the file ends before it when the line's command was run.
    """
    disk = SimDisk(1)
    log = open_log(disk)
    assert start_of_last_epoch(log) is None
    for number in range(4):
        log.append_as_leader(batch(b"%d" % number), 1, NOW_MS)
    path = log.segments.active.log.path
    position = log.segments.active.position_of(2)
    log.close()
    disk.damage(path, position + _EPOCH_AT, (129).to_bytes(4, "big"))
    found = open_log(disk)
    start = start_of_last_epoch(found)
    assert start == (129, path, position, 2) and found.log_end_offset == 3
    line = flipped_epoch(found.directory, start)
    assert f"`truncate -s {position} {path}`" in line and f"move {found.directory} away" in line
    assert "truncate" not in flipped_epoch(found.directory, None)
    found.segments.close()
    disk.shorten(path, position)
    again = open_log(disk)
    assert values(again) == [b"0", b"1"] and again.leader_epochs.entries() == [(1, 0)]


@pytest.mark.parametrize("epoch", [-1, 0, 3])
@pytest.mark.parametrize("flipped", [-(1 << 31), -2, -17])
def test_an_epoch_below_none_is_damage(epoch: int, flipped: int) -> None:
    """RL 3.6: -1 is of a broker that knew no epochs; what is below it nobody wrote. Recovery
    ends the log there, as at a bad byte (seed 450931).
    """
    disk = SimDisk(1)
    log = open_log(disk)
    for number in range(4):
        data = bytearray(batch(b"%d" % number))
        set_offsets_and_epoch(data, number, epoch)
        log.append_as_follower(bytes(data), epoch, NOW_MS)
    path, position = log.segments.active.log.path, log.segments.active.position_of(2)
    log.close()
    whole = open_log(disk)
    assert whole.log_end_offset == 4 and whole.dropped_at_load is None
    whole.segments.close()
    disk.damage(path, position + _EPOCH_AT, flipped.to_bytes(4, "big", signed=True))
    found = open_log(disk)
    assert values(found) == [b"0", b"1"]
    assert found.dropped_at_load is not None and "from offset 2 on" in found.dropped_at_load
    assert found.leader_epochs.entries() == ([] if epoch < 0 else [(epoch, 0)])
