"""Batches of another cluster in a leader's log: offsets kept, nothing twice, nothing missed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.batches import NOW_MS, all_batches, batch, config, marker, open_log
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.mirrored_batches import with_leader_epoch
from twisted_broker.settings import LONG_MAX
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import (
    BatchBuilder,
    CorruptRecordError,
    iterate_batches,
    set_offsets_and_epoch,
)

SOURCE = "the-cluster/the-topic"


def new_log(files: MemoryFileSystem | None = None, **more: Any) -> Log:
    if files is None:
        files = MemoryFileSystem()
        files.make_directories("/data")
    return open_log(files, settings=config(**({"replog_mirror_source": SOURCE} | more)))


def at(offset: int, data: bytes, epoch: int = 0) -> bytes:
    """A batch as the source's log holds it."""
    placed = bytearray(data)
    set_offsets_and_epoch(placed, offset, epoch)
    return bytes(placed)


def without_epoch(data: bytes) -> bytes:
    return data[:12] + data[16:]


def held(log: Log) -> list[bytes]:
    return [without_epoch(one.to_bytes()) for one in all_batches(log)]


def refused(code: ErrorCode, call: Any) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def test_offsets_and_bytes_stay_and_the_epoch_is_ours() -> None:
    log = new_log(message_timestamp_type="LogAppendTime", compression_type="gzip")
    sent = [
        at(5, batch(b"a", b"b"), epoch=40),
        at(7, batch(b"c", codec=4, producer_id=9, producer_epoch=3, base_sequence=6), epoch=41),
        at(20, batch(b"d", timestamp=1), epoch=41),
    ]
    info = log.append_mirrored(b"".join(sent), 3, NOW_MS)
    assert (info.first_offset, info.last_offset, info.records_count) == (5, 20, 4)
    assert held(log) == [without_epoch(one) for one in sent]
    assert {one.partition_leader_epoch for one in all_batches(log)} == {3}
    assert log.leader_epochs.entries() == [(3, 5)]
    assert log.log_end_offset == 21


def test_what_is_there_counts_and_is_not_written_again() -> None:
    log = new_log()
    first, second = at(0, batch(b"a", b"b")), at(2, batch(b"c"))
    log.append_mirrored(first, 1, NOW_MS)
    # The source's epoch is another than ours, and another than it was.
    info = log.append_mirrored(at(0, batch(b"a", b"b"), epoch=8) + second, 2, NOW_MS)
    assert (info.first_offset, info.last_offset, info.records_count) == (0, 2, 1)
    assert log.append_mirrored(first + second, 2, NOW_MS).duplicate
    assert held(log) == [without_epoch(first), without_epoch(second)]


@pytest.mark.parametrize(
    "other",
    [
        at(0, batch(b"x", b"b")),
        at(0, batch(b"a")),
        at(1, batch(b"b")),
        at(0, batch(b"a", b"b", b"c")),
    ],
)
def test_other_records_under_the_same_offsets_are_refused(other: bytes) -> None:
    """Other bytes, a batch that begins elsewhere, one that reaches beyond the log end."""
    log = new_log()
    log.append_mirrored(at(0, batch(b"a", b"b")), 1, NOW_MS)
    refused(ErrorCode.INVALID_RECORD, lambda: log.append_mirrored(other, 1, NOW_MS))
    assert log.log_end_offset == 2


def test_a_producer_is_refused_and_a_mirror_on_an_ordinary_topic() -> None:
    log = new_log()
    refused(ErrorCode.POLICY_VIOLATION, lambda: log.append_as_leader(batch(b"a"), 0, NOW_MS))
    plain = new_log(replog_mirror_source="")
    refused(ErrorCode.POLICY_VIOLATION, lambda: plain.append_mirrored(at(0, batch()), 0, NOW_MS))
    plain.append_as_leader(batch(b"a"), 0, NOW_MS)
    # The setting acts at once, both ways.
    plain.update_config(config(replog_mirror_source=SOURCE))
    refused(ErrorCode.POLICY_VIOLATION, lambda: plain.append_as_leader(batch(), 0, NOW_MS))
    log.update_config(config())
    log.append_as_leader(batch(b"a"), 0, NOW_MS)


def test_damage_is_refused_before_a_byte_is_written() -> None:
    log = new_log()
    good = at(0, batch(b"a"))
    flipped = bytearray(at(1, batch(b"b")))
    flipped[-1] ^= 1
    for data in (good + bytes(flipped), good + at(1, batch(b"b"))[:-1]):
        with pytest.raises(CorruptRecordError):
            log.append_mirrored(data, 0, NOW_MS)
    refused(ErrorCode.INVALID_RECORD, lambda: log.append_mirrored(at(3, batch()) + good, 0, NOW_MS))
    refused(ErrorCode.INVALID_RECORD, lambda: log.append_mirrored(b"", 0, NOW_MS))
    assert log.log_end_offset == 0 and log.size_in_bytes == 0


def test_the_last_offset_that_there_is_is_refused() -> None:
    """A log end of 2^63 has no place in a Fetch's answer: followers would get none, of any
    partition.
    """
    log = new_log()
    last = at(LONG_MAX - 1, batch(b"a", b"b"))
    refused(ErrorCode.INVALID_RECORD, lambda: log.append_mirrored(last, 0, NOW_MS))
    assert log.log_end_offset == 0
    log.append_mirrored(at(LONG_MAX - 2, batch(b"a", b"b")), 0, NOW_MS)
    assert log.log_end_offset == LONG_MAX
    log.update_config(config())  # an ordinary topic now
    refused(ErrorCode.INVALID_RECORD, lambda: log.append_as_leader(batch(b"c"), 0, NOW_MS))
    assert log.log_end_offset == LONG_MAX


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"\0" * 6), (b"\0\0", b"\0" * 6), (b"\0\0\0\1", None), (b"\0\0\0\1", b"\0\0")],
)
def test_a_marker_that_nobody_can_read_is_refused(key: bytes | None, value: bytes | None) -> None:
    """Before a byte is written: consumers of committed records would stop there for good."""
    log = new_log()
    builder = BatchBuilder(
        base_offset=3, producer_id=7, producer_epoch=0, is_control=True, is_transactional=True
    )
    builder.append(NOW_MS, key, value)
    sent = at(0, batch(b"a")) + builder.build()
    refused(ErrorCode.INVALID_RECORD, lambda: log.append_mirrored(sent, 0, NOW_MS))
    assert log.log_end_offset == 0 and log.segments.active.size == 0


def test_transactions_of_the_source_have_the_same_end_here() -> None:
    """Markers travel; the last stable offset and the index of aborted transactions follow."""
    log = new_log()
    fields = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    log.append_mirrored(at(0, batch(b"a", base_sequence=0, **fields)), 0, NOW_MS)
    log.set_high_watermark(1)
    assert log.last_stable_offset == 0
    log.append_mirrored(marker(7, False, offset=1), 0, NOW_MS)
    log.set_high_watermark(2)
    assert log.last_stable_offset == 2
    found = log.read(0, 1 << 20, read_committed=True)
    assert [(txn.producer_id, txn.first_offset) for txn in found.aborted or ()] == [(7, 0)]
    assert found.slice is not None
    found.slice.release()


def test_a_log_that_begins_far_above() -> None:
    """More than an index entry can say lies between the segment's base and the first offset."""
    log = new_log()
    log.append_mirrored(at(1 << 40, batch(b"a")), 0, NOW_MS)
    log.append_mirrored(at((1 << 40) + (1 << 33), batch(b"b")), 0, NOW_MS)
    assert [one.base_offset for one in all_batches(log)] == [1 << 40, (1 << 40) + (1 << 33)]


def test_a_kill_takes_no_batch_behind_offsets_that_the_source_lacks() -> None:
    files = MemoryFileSystem()
    files.make_directories("/data")
    log = new_log(files)
    for offset in (0, 1, 5):
        log.append_mirrored(at(offset, batch(b"a")), 0, NOW_MS)
    log.release_files()
    found = open_log(files, settings=log.config, clean=False)
    assert found.gap is None and found.log_end_offset == 6


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_of_resends_and_restarts_gives_the_source(data: st.DataObject) -> None:
    """However requests overlap, and whenever the broker is killed or the leader epoch grows: the
    log holds the source's batches, each once.
    """
    draw = data.draw
    source: list[bytes] = []
    offset = 0
    for number in range(draw(st.integers(1, 8))):
        offset += draw(st.sampled_from([0, 0, 3]))
        count = draw(st.integers(1, 3))
        source.append(
            at(offset, batch(*[b"%d" % number] * count, timestamp=NOW_MS + number), epoch=number)
        )
        offset += count
    files = MemoryFileSystem()
    files.make_directories("/data")
    log, epoch = new_log(files, segment_bytes=200), 0
    done = 0
    while done < len(source):
        start = draw(st.integers(0, done))
        end = draw(st.integers(max(start + 1, done), len(source)))
        log.append_mirrored(b"".join(source[start:end]), epoch, NOW_MS)
        done = max(done, end)
        if draw(st.booleans()):
            if draw(st.booleans()):
                log.close()
            epoch += 1
            log = new_log(files, segment_bytes=200)
            done = len(held(log))
    assert held(log) == [without_epoch(one) for one in source]


def test_a_requests_own_buffer_is_not_copied() -> None:
    """A long frame can be written: only the epochs in it change."""
    sent = at(0, batch(b"a"), epoch=8) + at(1, batch(b"b"), epoch=9)
    held = bytearray(sent)
    found, _ = with_leader_epoch(memoryview(held), 3)
    assert found.obj is held
    assert [each.partition_leader_epoch for each in iterate_batches(held)] == [3, 3]
    copied, _ = with_leader_epoch(sent, 3)
    assert copied == held and sent != held


def test_many_batches_of_a_chunk_cost_one_write_of_each_index() -> None:
    """And the indexes hold what they would hold one batch at a time."""
    sent = [at(n, batch(b"x" * 300, timestamp=NOW_MS + n)) for n in range(40)]
    one_by_one, files = new_log(index_interval_bytes=1), MemoryFileSystem()
    for each in sent:
        one_by_one.append_mirrored(each, 3, NOW_MS)
    files.make_directories("/data")
    together = new_log(files, index_interval_bytes=1)
    writes: list[int] = []
    for index in (together.segments.active.offset_index, together.segments.active.time_index):
        file: Any = index.file.create()
        count = len(writes)
        writes.append(0)

        def write_at(position: int, parts: Any, file: Any = file, at: int = count) -> None:
            writes[at] += 1
            type(file).write_at(file, position, parts)

        file.write_at = write_at
    together.append_mirrored(b"".join(sent), 3, NOW_MS)
    assert writes == [1, 1]
    for name in ("offset_index", "time_index"):
        first, second = (getattr(log.segments.active, name) for log in (one_by_one, together))
        assert len(first.pairs()) == 39 and first.pairs() == second.pairs()
        assert first.file.open().read_at(0, 10_000) == second.file.open().read_at(0, 10_000)


def test_a_wrong_crc_is_refused_before_anything_is_changed() -> None:
    log = new_log()
    sent = bytearray(at(0, batch(b"a"), epoch=9) + at(1, batch(b"b"), epoch=9))
    sent[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        log.append_mirrored(memoryview(sent), 3, NOW_MS)
    assert log.log_end_offset == 0
    assert {each.partition_leader_epoch for each in iterate_batches(sent)} == {9}
