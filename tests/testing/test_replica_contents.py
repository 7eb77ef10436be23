"""Logs that begin where retention left them are compared, and differences found."""

from __future__ import annotations

from random import Random

import pytest

from tests.log.batches import NOW_MS, TOPIC_ID, batch, config
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.log import Log
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment import OpenFiles
from twisted_broker.simulation.checks.replica_contents import Line, Mirror
from twisted_broker.simulation.disk import SimDisk


def replica(*values: bytes) -> tuple[Log, SimDisk]:
    """A log with one record in each segment."""
    disk = SimDisk()
    disk.make_directories("/d")
    name = TopicPartition("t", 0)
    log = load_log(OpenFiles(disk), "/d/t-0", name, TOPIC_ID, config(), random=Random(1))
    append(log, *values)
    return log, disk


def append(log: Log, *values: bytes) -> None:
    for value in values:
        log.roll(NOW_MS)
        log.append_as_leader(batch(value), 0, NOW_MS)


def mirror(log: Log, disk: SimDisk) -> Mirror:
    made = Mirror(log, disk)
    made.follow()
    return made


def delete_below(log: Log, offset: int) -> None:
    log.set_high_watermark(log.log_end_offset)
    log.increment_log_start_offset(offset)
    log.delete_old_segments(NOW_MS)
    assert log.segments.first.base_offset == offset


def test_a_line_goes_on_behind_what_was_deleted() -> None:
    """A leader that lost its first segments, and was restarted, extends what was committed."""
    log, disk = replica(b"a", b"b", b"c")
    line = Line()
    line.extend(mirror(log, disk), 3)
    delete_below(log, 2)
    append(log, b"d")
    again = mirror(log, disk)
    assert (again.start, again.end) == (2, 4)
    assert line.agrees(again, 3)
    line.extend(again, 4)
    assert (line.end, line.top) == (4, 4)
    whole, its_disk = replica(b"a", b"b", b"c", b"d")
    assert line.agrees(mirror(whole, its_disk), 4)


@pytest.mark.parametrize("deleted_upto", [0, 1, 2])
def test_a_difference_counts_above_the_log_start(deleted_upto: int) -> None:
    """RL 9.2: at offset 1; nobody is owed what was deleted."""
    one, other = mirror(*replica(b"a", b"b", b"c")), mirror(*replica(b"a", b"x", b"c"))
    line = Line()
    line.extend(one, 3)
    line.deleted_upto = deleted_upto
    equal = deleted_upto == 2
    assert one.agrees(other, 3, deleted_upto) is equal
    assert line.agrees(other, 3) is equal
    assert line.agrees(one, 3)


def test_after_an_unclean_election_only_what_the_leader_holds_is_committed() -> None:
    one, leader = mirror(*replica(b"a", b"b", b"c")), mirror(*replica(b"a", b"x"))
    line = Line()
    line.extend(one, 3)
    line.reset(leader, 7)
    assert (line.end, line.top, line.resets) == (1, 3, [(7, 1)])
    line.extend(leader, 2)
    assert line.agrees(leader, 2) and not line.agrees(one, 2)


def test_what_is_no_batch_is_said() -> None:
    """A file that lost what was in it is a broken rule, not an error of the checker."""
    mirror = Mirror(*replica(b"a"))
    with pytest.raises(ValueError, match="no whole batch at byte 0"):
        mirror._take(bytearray(20), 0)
    with pytest.raises(ValueError, match="no batch at byte 0, its length is 0"):
        mirror._take(bytearray(100), 0)


def test_an_unclean_election_keeps_what_the_new_leader_holds_below_what_was_deleted() -> None:
    """The log start was lost with it: of the deleted records it holds one, and another instead of
    the second (simulation, seed 300029: the second counted as kept, and was missed at the end).
    """
    log, disk = replica(b"a", b"b", b"c")
    line = Line()
    line.extend(mirror(log, disk), 3)
    line.deleted_upto = 3
    leader, its_disk = replica(b"a", b"other", b"another")
    line.reset(mirror(leader, its_disk), 1)
    assert (line.end, line.resets) == (1, [(1, 1)])


def test_an_unclean_election_of_a_log_that_ends_below_where_the_line_began() -> None:
    """Two in a row: of a log whose beginning was deleted, then of an empty one (seed 301901)."""
    line, (log, disk) = Line(), replica(b"a", b"b", b"c")
    delete_below(log, 2)
    line.extend(mirror(log, disk), 3)
    assert (line.start, line.end) == (2, 3)
    line.deleted_upto = 2
    empty, its_disk = replica()
    line.reset(mirror(empty, its_disk), 7)
    assert (line.end, line.resets) == (0, [(7, 0)])
    assert not line.deleted_upto, "what comes now is looked at from its first record on"
