"""A large segment in pieces gives the rows of the whole, whatever its index says; and the pieces
are where a sound index allows them.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest

from replog_pipeline.segments import splits
from replog_pipeline.segments.log_folder import Segment, folders
from replog_pipeline.segments.options import parse_options
from replog_pipeline.segments.plan import FileTask, plan
from replog_pipeline.segments.rows import segment_rows
from replog_pipeline.segments.splits import indexed, pieces
from tests.pipeline.kafka_files import unpack
from twisted_broker.wire.records import BatchBuilder, set_offsets_and_epoch

BASE, BATCHES, RECORDS, TASK = 100, 40, 5, 2000
END = BASE + BATCHES * RECORDS
Entries = list[tuple[int, int]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "LARGE_BYTES", 2 * TASK)
    monkeypatch.setattr(splits, "TASK_BYTES", TASK)


def batch(number: int) -> bytes:
    """`RECORDS` records of some hundred bytes."""
    builder = BatchBuilder()
    for record in range(RECORDS):
        builder.append(1000 + number, b"%d" % record, bytes(60))
    made = bytearray(builder.build())
    set_offsets_and_epoch(made, BASE + number * RECORDS, 3)
    return bytes(made)


@pytest.fixture
def sound(tmp_path: Path) -> Entries:
    """A partition's folder with one segment; what its index holds: every batch but the first."""
    folder, entries, data = tmp_path / "orders-0", [], b""
    folder.mkdir()
    for number in range(BATCHES):
        if data:
            entries.append((number * RECORDS + RECORDS - 1, len(data)))
        data += batch(number)
    (folder / f"{BASE:020d}.log").write_bytes(data)
    (tmp_path / "replication-offset-checkpoint").write_text(f"0\n1\norders 0 {END}\n")
    return entries


def write(place: Path, entries: Entries, tail: bytes = b"") -> None:
    content = b"".join(struct.pack(">ii", *entry) for entry in entries)
    (place / "orders-0" / f"{BASE:020d}.index").write_bytes(content + tail)


def tasks(place: Path, **options: str) -> list[FileTask]:
    return plan(parse_options({"path": str(place), **options}), ("offset", "key"))


def offsets(found: list[FileTask]) -> list[int]:
    """As the tasks read them, one after the other."""
    return [
        offset
        for task in found
        for rows in segment_rows(*task)
        for offset in rows.column("offset").to_pylist()
    ]


def test_pieces_are_about_as_large_as_wanted_and_follow_on(tmp_path: Path, sound: Entries) -> None:
    write(tmp_path, sound, bytes(800))  # space taken in advance
    found = tasks(tmp_path)
    size = (tmp_path / "orders-0" / f"{BASE:020d}.log").stat().st_size
    assert len(found) in (size // TASK, size // TASK + 1) and found[0].position == 0
    places = [*(task.position for task in found), size]
    assert all(TASK // 2 < after - before < 2 * TASK for before, after in pairwise(places))
    assert [task.request.start for task in found[1:]] == [task.request.end for task in found[:-1]]
    assert offsets(found) == list(range(BASE, END))


@pytest.mark.parametrize(
    ("start", "end"),
    [(BASE + 7, END - 3), (BASE + 90, BASE + 110), (END - 1, END), (BASE, BASE + 1)],
)
def test_a_range_takes_the_pieces_that_hold_it(
    tmp_path: Path, sound: Entries, start: int, end: int
) -> None:
    write(tmp_path, sound)
    said = {
        "startingOffsets": f'{{"orders": {{"0": {start}}}}}',
        "endingOffsets": f'{{"orders": {{"0": {end}}}}}',
    }
    found = tasks(tmp_path, **said)
    assert len(found) < len(tasks(tmp_path)) or end - start > 100
    assert offsets(found) == list(range(start, end))


WRONG = {
    "none": lambda entries: [],
    "into the middle of batches": lambda entries: [
        (offset, position + 70) for offset, position in entries
    ],
    "offsets before those batches": lambda entries: [
        (offset - RECORDS, position) for offset, position in entries if offset > RECORDS
    ],
    "beyond the file": lambda entries: [(offset, position + 10**6) for offset, position in entries],
    "not growing": lambda entries: entries[:1] * 40,
    "negative": lambda entries: [(-offset, -position) for offset, position in entries],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_an_index_that_is_wrong_makes_no_cut_and_loses_nothing(
    tmp_path: Path, sound: Entries, wrong
) -> None:
    write(tmp_path, wrong(sound))
    found = tasks(tmp_path)
    assert len(found) == 1
    assert offsets(found) == list(range(BASE, END))


def test_an_index_of_appends_of_many_batches_cuts_where_they_begin(
    tmp_path: Path, sound: Entries
) -> None:
    """Its entries have the last offset of the whole append."""
    write(tmp_path, [(sound[at + 3][0], sound[at][1]) for at in range(0, len(sound) - 4, 4)])
    found = tasks(tmp_path)
    assert len(found) > 3 and offsets(found) == list(range(BASE, END))


def test_without_an_index_or_with_few_bytes_there_is_one_task(
    tmp_path: Path, sound: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(tasks(tmp_path)) == 1
    write(tmp_path, sound)
    monkeypatch.setattr(splits, "LARGE_BYTES", 1 << 20)
    assert len(tasks(tmp_path)) == 1


def test_damage_is_found_in_the_piece_that_holds_it(tmp_path: Path, sound: Entries) -> None:
    write(tmp_path, sound)
    path = tmp_path / "orders-0" / f"{BASE:020d}.log"
    content = bytearray(path.read_bytes())
    content[sound[20][1] + 100] ^= 1
    path.write_bytes(content)
    found = tasks(tmp_path)
    fails = []
    for task in found:
        try:
            offsets([task])
        except Exception as error:
            fails.append((task, str(error)))
    ((task, said),) = fails
    assert task.request.start <= BASE + 21 * RECORDS < (task.request.end or END)
    assert f"byte {sound[20][1]}" in said and f"offset {BASE + 21 * RECORDS}" in said


def test_apache_kafkas_indexes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever its files have entries, each names a batch."""
    monkeypatch.setattr(splits, "LARGE_BYTES", 0)
    monkeypatch.setattr(splits, "TASK_BYTES", 1)
    segments = [
        segment
        for folder in folders(str(unpack(tmp_path)))
        for segment in folder.segments
        if segment.size
    ]
    entries = {
        segment: len(indexed(Path(segment.path).with_suffix(".index"))) for segment in segments
    }
    assert sum(entries.values()) > 0
    for segment, count in entries.items():
        assert len(list(pieces(segment, 0, 1 << 62))) == count + 1


def test_a_segment_that_retention_took_since_it_was_listed_is_one_task_which_will_tell(
    tmp_path: Path, sound: Entries
) -> None:
    write(tmp_path, sound)
    (piece,) = pieces(Segment(7, str(tmp_path / "orders-0" / "gone.log"), 9 * TASK), 0, 1 << 62)
    assert piece == (7, 1 << 62, 0)
    (tmp_path / "orders-0" / f"{BASE:020d}.log").unlink()
    assert (
        len(
            list(
                pieces(
                    Segment(BASE, str(tmp_path / "orders-0" / f"{BASE:020d}.log"), 9 * TASK),
                    0,
                    1 << 62,
                )
            )
        )
        == 1
    )
