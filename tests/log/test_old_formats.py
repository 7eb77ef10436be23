"""A log whose leader writes magic 0 or 1, as a follower keeps it (RL 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.log.batches import DIRECTORY, NOW_MS, batch, open_log
from twisted_broker.log.errors import OffsetsOutOfOrder, UnexpectedAppendOffset
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.wire.legacy import build_message_set
from twisted_broker.wire.records import CorruptRecordError, Record
from twisted_broker.wire.schema import run_whole

NONE, GZIP = 0, 1


def messages(magic: int, offsets: Sequence[int], codec: int = NONE) -> bytes:
    """Of one record an offset, whose time is `NOW_MS` + offset; a wrapper where compressed."""
    records = [Record(n, NOW_MS + n if magic else -1, b"k", b"v%d" % n, []) for n in offsets]
    return build_message_set(records, magic=magic, codec=codec)


def content(log: Log) -> bytes:
    return b"".join(
        log.pool.files.open(segment.log.path).read_at(0, segment.size) for segment in log.segments
    )


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_a_follower_takes_what_its_leader_has_as_it_is(magic: int, codec: int) -> None:
    """To the byte, and the same after a restart and after a loss of power."""
    files = MemoryFileSystem()
    log = open_log(files)
    first = messages(magic, range(5), codec)
    second = messages(magic, range(5, 9), codec)
    info = log.append_as_follower(first + second[:20], 3, NOW_MS)
    assert (info.last_offset, log.log_end_offset) == (4, 5)
    log.append_as_follower(second, 3, NOW_MS)
    assert (log.log_end_offset, content(log)) == (9, first + second)
    for clean in (True, False):
        again = open_log(files, clean=clean)
        assert (again.log_end_offset, content(again)) == (9, first + second)


def test_a_damaged_message_is_not_taken() -> None:
    log = open_log(MemoryFileSystem())
    data = bytearray(messages(1, range(2)))
    data[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        log.append_as_follower(bytes(data), 0, NOW_MS)
    assert log.log_end_offset == 0


def test_offsets_grow_and_do_not_overlap() -> None:
    log = open_log(MemoryFileSystem())
    log.append_as_follower(messages(1, range(4)), 0, NOW_MS)
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(messages(1, range(2)), 0, NOW_MS)
    with pytest.raises(OffsetsOutOfOrder):
        log.append_as_follower(messages(1, (6, 5)), 0, NOW_MS)
    log.append_as_follower(messages(1, (9,)), 0, NOW_MS)  # the leader compacted what is missing
    assert log.log_end_offset == 10


def test_formats_may_follow_each_other() -> None:
    """Where the leader's format went up or down, what is before the change comes first."""
    log = open_log(MemoryFileSystem())
    new = batch(b"a", b"b", base_offset=4, leader_epoch=2)
    parts = (messages(0, range(2)) + messages(1, range(2, 4)), new, messages(1, range(6, 8)))
    left = whole = b"".join(parts)
    ends = []
    while left:
        log.append_as_follower(left, 5, NOW_MS)
        ends.append(log.log_end_offset)
        left = whole[len(content(log)) :]
    assert ends == [4, 6, 8] and content(log) == whole


def test_older_records_end_what_is_known_of_epochs() -> None:
    """As Kafka does: their leader writes no epochs; a truncation goes by the high watermark then;
    a restart knows no more.
    """
    files = MemoryFileSystem()
    log = open_log(files)
    log.append_as_follower(batch(b"a", base_offset=0, leader_epoch=2), 5, NOW_MS)
    assert log.leader_epochs.entries() == [(2, 0)]
    log.append_as_follower(messages(1, (1,)), 5, NOW_MS)
    assert log.leader_epochs.entries() == []
    for clean in (True, False):
        assert open_log(files, clean=clean).leader_epochs.entries() == []
    log.append_as_follower(batch(b"a", base_offset=2, leader_epoch=6), 6, NOW_MS)
    assert log.leader_epochs.entries() == [(6, 2)]


@pytest.mark.parametrize("codec", [NONE, GZIP])
@pytest.mark.parametrize("restart", [None, True, False])
def test_a_time_is_found_in_messages_of_magic_1(codec: int, restart: bool | None) -> None:
    """The record itself, within a wrapper, too; the largest time of the log is one of theirs."""
    files = MemoryFileSystem()
    log = open_log(files)
    for start in range(0, 30, 3):
        log.append_as_follower(messages(1, range(start, start + 3), codec), 0, NOW_MS)
    if restart is not None:
        log = open_log(files, clean=restart)
    for offset in (0, 1, 16, 29):
        found = run_whole(log.find_offset_by_timestamp(NOW_MS + offset))
        assert found is not None and (found.timestamp, found.offset) == (NOW_MS + offset, offset)
    assert run_whole(log.find_offset_by_timestamp(NOW_MS + 30)) is None
    largest = run_whole(log.max_timestamp_offset())
    assert largest is not None and largest.offset == 29
    assert log.segments.active.first_timestamp() == NOW_MS + (0 if codec == NONE else 2)


def test_magic_0_has_no_times() -> None:
    log = open_log(MemoryFileSystem())
    log.append_as_follower(messages(0, range(4)), 0, NOW_MS)
    assert run_whole(log.find_offset_by_timestamp(0)) is None
    assert run_whole(log.max_timestamp_offset()) is None
    assert log.segments.active.first_timestamp() == -1


def test_a_wrapper_is_truncated_whole() -> None:
    log = open_log(MemoryFileSystem())
    log.append_as_follower(messages(1, range(4), GZIP) + messages(1, range(4, 8), GZIP), 0, NOW_MS)
    assert log.end_below(6) == 4
    log.truncate_to(log.end_below(6))
    assert log.log_end_offset == 4 and content(log) == messages(1, range(4), GZIP)


def test_the_directory_is_an_old_brokers() -> None:
    """A leader of ours goes on after them with batches."""
    files = MemoryFileSystem()
    log = open_log(files)
    log.append_as_follower(messages(0, range(3)), 0, NOW_MS)
    log.append_as_leader(batch(b"new"), 1, NOW_MS)
    assert log.log_end_offset == 4 and files.exists(f"{DIRECTORY}/leader-epoch-checkpoint")
