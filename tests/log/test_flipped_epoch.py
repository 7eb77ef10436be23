"""A leader epoch that nobody led: where it begins, and what the line says."""

from __future__ import annotations

from tests.log.batches import NOW_MS, batch, open_log, values
from twisted_broker.log.flipped_epoch import flipped_epoch, start_of_last_epoch
from twisted_broker.testing.sim.disk import SimDisk

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
