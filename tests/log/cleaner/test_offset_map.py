"""The map of newest offsets, against a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.log.cleaner.offset_map import NEWEST, SLOT_BYTES, OffsetMap


@given(st.lists(st.binary(max_size=3), max_size=60))
def test_the_newest_offset_of_each_key(keys: list[bytes]) -> None:
    offsets, expected = OffsetMap(64), dict[bytes, int]()
    for offset, key in enumerate(keys):
        offsets.put(key, offset)
        expected[key] = offset
    assert offsets.size == len(expected)
    assert {key: offsets.get(key) for key in expected} == expected
    assert offsets.get(b"never put") == -1


def test_a_nearly_full_map_finds_every_key() -> None:
    """Keys whose slots are taken are found behind, past the end of the table too."""
    offsets = OffsetMap(32)
    for number in range(31):
        offsets.put(b"%d" % number, number)
    assert [offsets.get(b"%d" % number) for number in range(31)] == list(range(31))
    assert offsets.get(b"31") == -1


def test_its_memory_is_what_was_given() -> None:
    offsets = OffsetMap(1000)
    before = len(offsets._table)
    for number in range(900):
        offsets.put(b"key %d" % number * 100, number)
    assert len(offsets._table) == before == 1000 * SLOT_BYTES


def test_marks_say_the_same_by_offset() -> None:
    """Offsets without a key, and those that were put over, have none."""
    offsets = OffsetMap(16, 5, 12)
    for offset, key in ((5, b"a"), (6, b"b"), (8, b"a"), (11, b"c")):
        offsets.put(key, offset)
    offsets.mark_newest()
    assert [5 + at for at, mark in enumerate(offsets.marks) if mark == NEWEST] == [6, 8, 11]


def test_marks_take_no_more_memory_than_the_map() -> None:
    """Offsets may be far apart: then records are read again."""
    assert len(OffsetMap(4, 10, 10 + 4 * SLOT_BYTES).marks) == 4 * SLOT_BYTES
    wide = OffsetMap(4, 10, 11 + 4 * SLOT_BYTES)
    wide.put(b"a", 90)
    wide.mark_newest()
    assert wide.marks is None and wide.get(b"a") == 90
