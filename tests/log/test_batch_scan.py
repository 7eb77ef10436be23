"""Batches are found whatever piece of the file they happen to lie in (RL 3.3, 3.6)."""

from __future__ import annotations

import struct

import pytest

from tests.log.batches import batch
from twisted_broker.interfaces import IFile
from twisted_broker.log import batch_scan
from twisted_broker.log.batch_scan import (
    BatchPlace,
    find_batch,
    place_at,
    scan,
    scan_headers,
    valid_batches,
)
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.wire.batch_fields import BASE_OFFSET
from twisted_broker.wire.legacy import build_message_set
from twisted_broker.wire.records import CorruptRecordError, Record

COUNTS = (1, 3, 1, 1, 7, 2, 1, 12, 1, 1, 4, 1)
CHUNKS = range(61, 300)


def written() -> tuple[IFile, list[BatchPlace]]:
    """A file of batches of different sizes, and where each of them is."""
    content, places, offset = bytearray(), [], 1000
    for row, count in enumerate(COUNTS):
        data = bytearray(batch(*[b"v" * (row % 5)] * count))
        struct.pack_into(">q", data, 0, offset)
        places.append(BatchPlace(len(content), len(data), offset, offset + count - 1, 2))
        content += data
        offset += count
    files = MemoryFileSystem()
    file = files.open("/log", create=True)
    file.write_at(0, (content,))
    return file, places


@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_walk_finds_every_batch(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in pieces of any size, a header and a batch may end anywhere."""
    for name in ("_FIND_CHUNK", "_SCAN_CHUNK", "_HEADERS_CHUNK", "_RECOVERY_CHUNK"):
        monkeypatch.setattr(batch_scan, name, chunk)
    file, places = written()
    end = file.size()
    assert list(scan(file, 0, end)) == places
    checked = list(valid_batches(file, end))
    assert [place for place, _ in checked] == places
    assert [view.base_offset for _, view in checked] == [place.base_offset for place in places]
    headers = list(scan_headers(file, 0, end))
    assert [(position, header[BASE_OFFSET]) for position, header in headers] == [
        (place.position, place.base_offset) for place in places
    ]
    for place in places:
        for offset in range(place.base_offset, place.last_offset + 1):
            assert find_batch(file, 0, end, offset) == place
    assert find_batch(file, 0, end, places[-1].last_offset + 1) is None
    file.truncate(places[-1].position + 20)
    end = file.size()
    assert [place for place, _ in valid_batches(file, end)] == places[:-1]
    for walk in (scan, scan_headers):
        with pytest.raises(CorruptRecordError):
            list(walk(file, 0, end))
    with pytest.raises(CorruptRecordError):
        find_batch(file, 0, end, places[-1].base_offset)


@pytest.mark.parametrize("chunk", [27, 61, 4608])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_smallest_message_of_an_old_broker_is_found(
    chunk: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Magic 0 without key and value: 26 bytes, one less than the head of a batch. Not found, a
    start after a kill would cut it off.
    """
    for name in ("_FIND_CHUNK", "_SCAN_CHUNK", "_HEADERS_CHUNK", "_RECOVERY_CHUNK"):
        monkeypatch.setattr(batch_scan, name, chunk)
    data = build_message_set([Record(n, -1, None, None, []) for n in range(count)], magic=0)
    assert len(data) == 26 * count
    file = MemoryFileSystem().open("/log", create=True)
    file.write_at(0, (data,))
    places = [BatchPlace(26 * n, 26, n, n, 0) for n in range(count)]
    end = len(data)
    assert list(scan(file, 0, end)) == places
    assert [place for place, _ in valid_batches(file, end)] == places
    assert [(at, header[BASE_OFFSET]) for at, header in scan_headers(file, 0, end)] == [
        (place.position, place.base_offset) for place in places
    ]
    for place in places:
        assert find_batch(file, 0, end, place.base_offset) == place
    file.truncate(end - 1)
    assert [place for place, _ in valid_batches(file, end - 1)] == places[:-1]
    for walk in (scan, scan_headers):
        with pytest.raises(CorruptRecordError):
            list(walk(file, 0, end - 1))
    with pytest.raises(CorruptRecordError):
        find_batch(file, 0, end - 1, count - 1)


@pytest.mark.parametrize("magic", [-1, 3, 127])
def test_an_unknown_magic_is_damage(magic: int) -> None:
    """A walk ends before it."""
    file, places = written()
    end, damaged = file.size(), places[5]
    file.write_at(damaged.position + 16, (struct.pack(">b", magic),))
    assert [place for place, _ in valid_batches(file, end)] == places[:5]
    for walk in (scan, scan_headers):
        with pytest.raises(CorruptRecordError):
            list(walk(file, 0, end))
    with pytest.raises(CorruptRecordError):
        find_batch(file, 0, end, places[-1].base_offset)


@pytest.mark.parametrize("delta", [-1, -(2**31)])
def test_a_batch_that_ends_before_it_begins_is_damage(delta: int) -> None:
    file, places = written()
    end, damaged = file.size(), places[5]
    file.write_at(damaged.position + 23, (struct.pack(">i", delta),))
    assert [place for place, _ in valid_batches(file, end)] == places[:5]
    for walk in (scan, scan_headers):
        with pytest.raises(CorruptRecordError):
            list(walk(file, 0, end))
    with pytest.raises(CorruptRecordError):
        find_batch(file, 0, end, places[-1].base_offset)


@pytest.mark.parametrize("length", [-1, 0, 13, 14, 48])
def test_a_length_that_holds_no_header_is_damage(length: int) -> None:
    """Lengths that an entry of magic 0 or 1 may have are too short for a batch."""
    file, places = written()
    head = bytearray(file.read_at(0, 61))
    struct.pack_into(">i", head, 8, length)
    with pytest.raises(CorruptRecordError):
        place_at(head, 0, 0, file.size())
    end, damaged = file.size(), places[5]
    file.write_at(damaged.position + 8, (struct.pack(">i", length),))
    assert [place for place, _ in valid_batches(file, end)] == places[:5]
    for walk in (scan, scan_headers):
        with pytest.raises(CorruptRecordError):
            list(walk(file, 0, end))
    with pytest.raises(CorruptRecordError):
        find_batch(file, 0, end, places[-1].base_offset)
