"""The sparse indexes, the transaction index and the leader epochs (RL 3.1, 3.3, 6.3; RELIABILITY
3.2).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.batches import NOW_MS, batch, config, open_log
from twisted_broker.interfaces import IFile
from twisted_broker.log import index as indexes
from twisted_broker.log import txn_index
from twisted_broker.log.append_info import AppendOrigin, EndMarker
from twisted_broker.log.index import Index, OffsetIndex, TimeIndex
from twisted_broker.log.leader_epochs import UNDEFINED, LeaderEpochFileCache
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.reading import aborted_transactions
from twisted_broker.log.segment_file import OpenFiles, SegmentFile
from twisted_broker.log.txn_index import AbortedTxn, TransactionIndex
from twisted_broker.log.verification import NOT_REQUIRED

BASE = 1000


def a_file() -> SegmentFile:
    files = MemoryFileSystem()
    files.make_directories("/d")
    return SegmentFile(OpenFiles(files), "/d/index")


def offset_index(max_bytes: int = 80) -> OffsetIndex:
    index = OffsetIndex(a_file(), BASE, max_bytes)
    index.create()
    return index


def time_index(max_bytes: int = 120) -> TimeIndex:
    index = TimeIndex(a_file(), BASE, max_bytes)
    index.create()
    return index


def test_offset_index_layout_and_lookup() -> None:
    """Kafka's record formats: entries of relative offset and position; a look-up gives the last
    one at or below.
    """
    index = offset_index()
    index.append(BASE + 5, 100)
    index.append(BASE + 9, 230)
    assert index.file.open().read_at(0, 99) == struct.pack(">iiii", 5, 100, 9, 230)
    assert [index.lookup(BASE + offset) for offset in (0, 4, 5, 8, 9, 10**6)] == [
        0,
        0,
        100,
        100,
        230,
        230,
    ]
    assert (index.last_offset, index.last_position, index.entries) == (BASE + 9, 230, 2)


def test_offset_index_refuses_disorder() -> None:
    """RL 3.1: offsets grow; an append that does not is a bug."""
    index = offset_index()
    index.append(BASE + 5, 100)
    with pytest.raises(AssertionError):
        index.append(BASE + 5, 200)
    with pytest.raises(AssertionError):
        index.append(BASE - 1, 200)
    with pytest.raises(AssertionError):
        index.append(BASE + 2**31, 200)


def test_offset_index_fullness_and_truncation() -> None:
    """RL 3.1: full at its size; truncation drops the entries at and above an offset, in memory
    and on disk.
    """
    index = offset_index(24)
    for number in range(1, 4):
        assert not index.is_full
        index.append(BASE + number * 2, number * 10)
    assert index.is_full
    index.truncate_to(BASE + 4)
    assert index.pairs() == [(2, 10)] and index.file.open().size() == 8
    index.truncate_to(BASE)
    assert index.entries == 0 and index.last_offset == BASE


@given(
    entries=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500)), max_size=60),
    tail=st.sampled_from([b"", bytes(8), bytes(800), b"\0\0\0", b"\xff" * 5]),
    probes=st.lists(st.integers(0, 3000), max_size=20),
)
def test_a_reloaded_index_says_the_same(
    entries: list[tuple[int, int]], tail: bytes, probes: list[int]
) -> None:
    """RL 3.6: loading finds exactly the entries, behind whatever preallocated or torn tail, and
    `trim` removes that tail.
    """
    index = offset_index(10**6)
    offset = position = 0
    for offset_step, position_step in entries:
        offset, position = offset + offset_step, position + position_step
        index.append(BASE + offset, position)
    said = index.pairs(), [index.lookup(BASE + probe) for probe in probes]
    size = index.file.open().size()
    index.file.open().write_at(size, (tail,))
    for loaded_bytes in (0, indexes.LOADED_BYTES):  # looked up where it lies, and loaded
        index.unload()
        with patch.object(indexes, "LOADED_BYTES", loaded_bytes):
            ends = index.entries, index.last_position
            backwards = list(index.positions_backwards())
            found = [index.lookup(BASE + probe) for probe in probes]
            bounds = [index.offset_from(probe) for probe in probes]
        assert (index.pairs(), found) == said
        assert ends == (len(entries), position)
        assert backwards == [value for _, value in reversed(said[0])]
        assert bounds == [
            next((BASE + key for key, value in said[0] if value >= probe), -1) for probe in probes
        ]
    assert index.is_sound() == (not tail)
    index.trim()
    assert index.file.open().size() == size and index.is_sound()


def test_time_index() -> None:
    """Kafka's record formats: entries of timestamp and relative offset, only when the time grew;
    the last slot is kept for roll and close.
    """
    index = time_index(36)
    index.append(50, BASE + 3)
    index.append(50, BASE + 4)
    index.append(40, BASE + 5)
    index.append(60, BASE + 6)
    assert index.is_full
    index.append(70, BASE + 7)
    assert index.last_entry == (60, BASE + 6)
    index.append(70, BASE + 7, even_if_full=True)
    assert index.file.open().read_at(0, 99) == struct.pack(">qiqiqi", 50, 3, 60, 6, 70, 7)
    assert [index.lookup(timestamp) for timestamp in (49, 50, 69, 99)] == [
        (-1, BASE),
        (50, BASE + 3),
        (60, BASE + 6),
        (70, BASE + 7),
    ]
    index.truncate_to(BASE + 7)
    assert index.last_entry == (60, BASE + 6)
    index.unload()
    assert index.last_entry == (60, BASE + 6)
    index.truncate_to(BASE)
    index.append(50, BASE)
    index.unload()
    assert index.last_entry == (50, BASE), "the first record may be the newest"


@given(
    entries=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), max_size=60),
    tail=st.sampled_from([b"", bytes(12), bytes(1200), b"\0\0\0"]),
    probes=st.lists(st.integers(0, 3000), max_size=20),
)
def test_a_time_index_says_the_same_where_it_lies(
    entries: list[tuple[int, int]], tail: bytes, probes: list[int]
) -> None:
    index = time_index(10**6)
    timestamp = offset = 0
    for time_step, offset_step in entries:
        timestamp, offset = timestamp + time_step, offset + offset_step
        index.append(timestamp, BASE + offset)
    said = index.entries, index.last_entry, [index.lookup(probe) for probe in probes]
    index.file.open().write_at(index.file.open().size(), (tail,))
    index.unload()
    with patch.object(indexes, "LOADED_BYTES", 0):
        assert (index.entries, index.last_entry, [index.lookup(each) for each in probes]) == said


class _Read:
    """A file whose bytes that were read are counted."""

    def __init__(self, file: IFile) -> None:
        self._inner, self.bytes = file, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read_at(self, position: int, length: int) -> bytes:
        self.bytes += length
        return self._inner.read_at(position, length)


def counted(index: Index) -> _Read:
    """The file of the index from now on."""
    read = _Read(index.file.open())
    index.file._file = read
    return read


def test_a_large_index_that_is_only_looked_up_is_not_loaded() -> None:
    """Loading those of a segment of 1 GiB takes 0.2 s and 5 MB: a consumer that reads a topic from
    its beginning, or asks for a time, comes by all of them.
    """
    count = 3 * indexes.LOADED_BYTES // 8
    offsets, times = offset_index(16 * count), time_index(24 * count)
    for number in range(1, count + 1):
        offsets.append(BASE + 2 * number, 100 * number)
        times.append(10 * number, BASE + 2 * number)
    middle = count // 2
    for index in (offsets, times):
        index.unload()
    files = [counted(offsets), counted(times)]
    assert offsets.lookup(BASE + 2 * middle + 1) == 100 * middle
    assert offsets.offset_from(100 * middle) == BASE + 2 * middle
    assert offsets.last_position == 100 * count
    backwards = offsets.positions_backwards()
    assert [next(backwards) for _ in range(3)] == [100 * (count - row) for row in range(3)]
    assert times.lookup(10 * middle + 5) == (10 * middle, BASE + 2 * middle)
    assert times.last_entry == (10 * count, BASE + 2 * count)
    assert not (offsets.is_full or times.is_full)
    for read in files:
        assert read.bytes < 4000
    # What is written is in memory.
    offsets.append(BASE + 2 * count + 1, 100 * count + 1)
    assert offsets.lookup(BASE + 2 * count + 2) == 100 * count + 1
    assert files[0].bytes > 8 * count


def test_a_flipped_sign_in_a_large_index_is_no_position() -> None:
    """What lies in the file is not checked: the disk would be read below 0, an error that takes
    the log directory offline.
    """
    file = a_file()
    index = OffsetIndex(file, BASE, 1 << 20)
    index.create()
    count = 2 * indexes.LOADED_BYTES // 8
    for number in range(1, count + 1):
        index.append(BASE + number, number)
    index.close()
    for row in (count // 2, count - 2):
        file.open().write_at(8 * row + 4, (struct.pack(">i", -7),))
    found = OffsetIndex(file, BASE, 1 << 20)
    assert found.lookup(BASE + count // 2 + 1) == 0
    assert found.lookup(BASE + count // 2 + 2) == count // 2 + 2
    assert 0 in list(found.positions_backwards())
    assert min(found.positions_backwards()) == 0


def test_the_active_segments_indexes_are_in_memory_when_a_log_is_loaded() -> None:
    """They are loaded beside the reactor then, not with the first append."""
    files = MemoryFileSystem()
    log = open_log(files, settings=config(index_interval_bytes=1))
    for _ in range(50):
        log.append_as_leader(batch(), 0, NOW_MS)
    log.close()
    with patch.object(indexes, "LOADED_BYTES", 0):
        log = open_log(files, settings=config(index_interval_bytes=1), clean=True)
        active = log.segments.active
        assert active.offset_index.entries > 40
        read = [counted(active.offset_index), counted(active.time_index)]
        before = active.offset_index.entries
        for _ in range(2):
            log.append_as_leader(batch(), 0, NOW_MS)
        assert active.offset_index.entries > before
        assert [each.bytes for each in read] == [0, 0]


def test_a_missing_index_has_no_entries() -> None:
    """RL 3.6: without a file there are no entries, and `trim` makes an empty one."""
    index = OffsetIndex(a_file(), BASE, 80)
    assert index.entries == 0 and index.lookup(BASE + 5) == 0 and not index.is_sound()
    index.trim()
    assert index.is_sound()


def txn(producer: int, first: int, last: int, stable: int) -> AbortedTxn:
    return AbortedTxn(producer, first, last, stable)


def test_transaction_index() -> None:
    """RL 3.3: aborted transactions that touch the range, and whether a later segment may hold
    more.
    """
    index = TransactionIndex(a_file(), 0)
    assert index.entries() == [] and not index.file.exists()
    entries = [txn(1, 0, 10, 11), txn(2, 5, 15, 13), txn(3, 18, 35, 25), txn(4, 32, 50, 40)]
    for entry in entries:
        index.append(entry)
    cases = (
        (0, 100, entries, False),
        (0, 32, entries[:3], True),
        (16, 33, entries[2:], True),
        (0, 9, entries[:1], True),
        (0, 12, entries[:2], True),
    )
    for start, upper, expected, complete in cases:
        found: list[AbortedTxn] = []
        assert index.collect(start, upper, found) is complete
        assert found == expected
    assert index.file.open().read_at(0, 34) == struct.pack(">hqqqq", 0, 1, 0, 10, 11)


class _Looked(list[AbortedTxn]):
    """Counts the entries that are looked at."""

    looks = 0

    def __getitem__(self, row: Any) -> Any:
        self.looks += 1
        return super().__getitem__(row)

    def __iter__(self) -> Iterator[AbortedTxn]:
        for row in range(len(self)):
            yield self[row]


def test_a_reader_at_the_end_passes_over_very_many_aborted_transactions() -> None:
    """Each fetch of committed records comes by here."""
    index, many = TransactionIndex(a_file(), 0), 10_000
    for number in range(many):
        index.append(txn(1, 2 * number, 2 * number + 1, 2 * number + 2))
    looked = _Looked(index.entries())
    index._entries = looked
    found: list[AbortedTxn] = []
    assert index.collect(2 * many - 2, 2 * many, found)
    assert [each.first_offset for each in found] == [2 * many - 2]
    assert looked.looks < 4 * many.bit_length()


@given(
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.booleans()), max_size=40),
    asked=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=20),
)
def test_aborted_transactions_are_found_where_they_lie(
    steps: list[tuple[int, int, bool]], asked: list[tuple[int, int]]
) -> None:
    index = TransactionIndex(a_file(), 0)
    last = stable = 0
    for back, step, is_alone in steps:
        last += step
        stable = max(stable, last + 1 if is_alone else last - back)
        index.append(txn(1, max(0, last - back), last, stable))

    def found() -> list[tuple[bool, list[AbortedTxn]]]:
        answers = []
        for start, length in asked:
            entries: list[AbortedTxn] = []
            answers.append((index.collect(start, start + length, entries), entries))
        return answers

    said = found()
    with patch.object(txn_index, "MOST_KEPT", 0), patch.object(txn_index, "_READ_ROWS", 3):
        index.unload()
        assert index._entries is None or not steps
        assert found() == said
        index.append(txn(1, last + 1, last + 1, last + 2))  # in memory again
        assert index.entries()[:-1] == TransactionIndex(index.file, 0).entries()[:-1]


def test_many_aborted_transactions_of_an_old_segment_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million are 0.2 GB, and stay until retention: in a segment that is written no more, and
    after a start.
    """
    monkeypatch.setattr(txn_index, "MOST_KEPT", 3)
    files = MemoryFileSystem()
    log = open_log(files)
    for number in range(4):
        for _ in range(2 * number):
            log.append_as_leader(
                batch(producer_id=7, producer_epoch=0, base_sequence=-1, is_transactional=True),
                0,
                NOW_MS,
                origin=AppendOrigin.COORDINATOR,
                guard=NOT_REQUIRED,
            )
            log.append_end_marker(EndMarker(7, 0, 0, False), 0, NOW_MS)
        log.roll(NOW_MS)

    def kept() -> list[int]:
        return [len(segment.txn_index._entries or ()) for segment in log.segments]

    end = log.log_end_offset
    assert kept() == [2, 0, 0, 0]
    before = [aborted_transactions(log.segments, offset, end) for offset in range(0, end, 3)]
    assert [len(each) for each in before][:2] == [12, 11] and kept() == [2, 0, 0, 0]
    log.close()
    log = open_log(files, clean=True)
    assert [aborted_transactions(log.segments, offset, end) for offset in range(0, end, 3)] == (
        before
    )
    assert kept() == [2, 0, 0, 0]


def test_transaction_index_reload_truncation_and_damage() -> None:
    """RL 3.5, 3.6: cut by marker; a torn entry, one of another version or out of order ends it
    and is not sound.
    """
    index = TransactionIndex(a_file(), 0)
    for number in range(4):
        index.append(txn(number, number * 10, number * 10 + 5, number * 10 + 6))
    index.truncate_to(25)
    assert [entry.producer_id for entry in TransactionIndex(index.file, 0).entries()] == [0, 1]
    index.file.open().write_at(68, (b"\0" * 20,))
    torn = TransactionIndex(index.file, 0)
    assert len(torn.entries()) == 2 and not torn.is_sound()
    index.file.open().write_at(34, (b"\0\7",))
    assert len(TransactionIndex(index.file, 0).entries()) == 1
    index.reset()
    assert TransactionIndex(index.file, 0).entries() == [] and index.is_sound()


# -- leader epochs


def cache(*entries: tuple[int, int]) -> LeaderEpochFileCache:
    return LeaderEpochFileCache(list(entries))


def test_epochs_grow_and_contradictions_go() -> None:
    """RL 6.3: a new epoch is noted once; one that contradicts the newest entries removes them."""
    changes: list[int] = []
    epochs = LeaderEpochFileCache([(1, 0), (2, 10), (5, 20)], lambda: changes.append(1))
    assert not epochs.assign(5, 20) and not epochs.assign(5, 30) and not epochs.assign(-1, 40)
    assert changes == []
    assert epochs.assign(7, 30) and epochs.entries() == [(1, 0), (2, 10), (5, 20), (7, 30)]
    assert epochs.assign(6, 15) and epochs.entries() == [(1, 0), (2, 10), (6, 15)]
    assert epochs.assign(6, 12) and epochs.entries() == [(1, 0), (2, 10), (6, 12)]
    assert len(changes) == 3


def test_end_offset_for() -> None:
    """RL 6.3: exact, in between, older than all, newer than all, undefined, and on an empty
    cache.
    """
    epochs = cache((2, 5), (4, 9), (7, 20))
    asked = (-1, 0, 2, 3, 4, 6, 7, 8)
    assert [epochs.end_offset_for(epoch, 33) for epoch in asked] == [
        UNDEFINED,
        (0, 5),
        (2, 9),
        (2, 9),
        (4, 20),
        (4, 20),
        (7, 33),
        UNDEFINED,
    ]
    assert cache().end_offset_for(0, 5) == UNDEFINED


def test_epoch_for_offset_and_neighbours() -> None:
    """RL 6.3: which epoch an offset belongs to; the one before."""
    epochs = cache((2, 5), (4, 9))
    assert [epochs.epoch_for_offset(offset) for offset in (4, 5, 8, 9, 99)] == [-1, 2, 2, 4, 4]
    assert (epochs.previous_epoch(4), epochs.previous_epoch(2)) == (2, -1)


def test_epoch_truncation() -> None:
    """RL 3.5: from the end, epochs that begin there go; from the start, the one that holds the
    offset begins there.
    """
    epochs = cache((1, 0), (2, 10), (3, 20))
    epochs.truncate_from_end(20)
    assert epochs.entries() == [(1, 0), (2, 10)]
    epochs.truncate_from_start(12)
    assert epochs.entries() == [(2, 12)]
    epochs.truncate_from_start(12)
    epochs.truncate_from_start(5)
    assert epochs.entries() == [(2, 12)]
    epochs.truncate_from_end(3)
    assert epochs.entries() == []


def test_the_only_epoch_begins_where_the_log_does() -> None:
    """RL 3.5: after DeleteRecords or retention within an epoch its start is the log's, in Kafka's
    file as well; told again, nothing is written.
    """
    written: list[int] = []
    epochs = LeaderEpochFileCache([(1, 0)], lambda: written.append(1))
    epochs.truncate_from_start(5)
    epochs.truncate_from_start(5)
    assert epochs.entries() == [(1, 5)] and written == [1]
    assert epochs.epoch_for_offset(4) == -1


@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["assign", "end", "start"]), st.integers(0, 20), st.integers(0, 60)
        ),
        max_size=40,
    ),
    asked=st.integers(-2, 25),
)
def test_epochs_always_grow(moves: list[tuple[str, int, int]], asked: int) -> None:
    """RL 6.3: after any moves, epochs and start offsets grow strictly, and an answer names an
    epoch at or below the one asked.
    """
    epochs = cache()
    for move, epoch, offset in moves:
        if move == "assign":
            epochs.assign(epoch, offset)
        elif move == "end":
            epochs.truncate_from_end(offset)
        else:
            epochs.truncate_from_start(offset)
        for column in zip(*epochs.entries(), strict=True):
            assert list(column) == sorted(set(column))
    found, end = epochs.end_offset_for(asked, 100)
    assert found <= max(asked, -1) and (end >= 0) == (found >= 0)
