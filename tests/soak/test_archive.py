"""The judge of a soak of the archive can say no; what the archive says is read; a short run."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from random import Random

import pytest

from replog_pipeline.machine import jars
from tests.soak.archive import main
from tests.soak.archive_process import ArchiveProcess
from tests.soak.topics import PARTITIONS, Row, judged, value_of

LACKING = jars.missing(jars.of(["kafka", "delta", "s3"]))


def written(count: int) -> list[Row]:
    """As a topic of three partitions gives them."""
    chance = Random(1)
    rows: list[Row] = [
        (
            number % PARTITIONS,
            number // PARTITIONS,
            b"key",
            value_of(number, chance),
            number,
            (("number", b"%d" % number),),
        )
        for number in range(count)
    ]
    return sorted(rows, key=lambda row: row[:2])


def test_a_table_that_is_its_topic_passes() -> None:
    rows = written(9)
    found = judged("a", rows, iter(rows), 9)
    assert (found.rows, found.ends, found.problems) == (9, {0: 3, 1: 3, 2: 3}, [])


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (lambda rows: rows[:4] + rows[5:], r"the table of a has \(1, 2, .* the topic has \(1, 1"),
        (lambda rows: rows[:4] + rows[3:], r"the table of a has \(1, 0, .* the topic has \(1, 1"),
        (lambda rows: rows[:-1], r"the table of a has None where the topic has \(2, 2"),
        (lambda rows: [*rows, rows[0]], r"the table of a has \(0, 0, .*, the topic has not"),
        (lambda rows: [*rows[:8], (*rows[8][:4], 0, rows[8][5])], "the table of a has"),
        (lambda rows: [*rows[:8], (*rows[8][:5], ())], "the table of a has"),
    ],
)
def test_any_difference_is_named(spoilt, said: str) -> None:
    rows = written(9)
    (problem,) = judged("a", rows, iter(spoilt(rows)), 9).problems
    assert re.match(said, problem), problem


def test_what_the_topic_itself_lost_or_repeats_is_named() -> None:
    rows = written(9)
    assert judged("a", rows, iter(rows), 10).problems == ["a: 1 records come never, the first is 9"]
    again = [*rows, (2, 3, *rows[0][2:])]
    assert judged("a", again, iter(again), 9).problems == [
        "a: 1 records come more than once, the first is 0"
    ]
    hole = [row for row in rows if row[:2] != (0, 1)]
    assert judged("a", hole, iter(hole), 9).problems == [
        "a-0: 2 stands where 1 must",
        "a: 1 records come never, the first is 3",
    ]


def test_batches_are_read_from_what_it_says(tmp_path: Path) -> None:
    process = ArchiveProcess(tmp_path / "archive", [], {})
    process.lives = 1
    process.log.write_text(
        "archive: load-a, batch 7, 12,345 offsets: 2.5 s\n"
        "archive: 6 tables, 10 records in 2 batches since the start; 1,234 offsets behind; last\n"
        "archive: load-b, batch 8, 1 offs"
    )
    process._popen([sys.executable, "-c", "import sys; sys.exit(3)"])
    deadline = time.monotonic() + 60
    while not (ended := process.look()):
        assert time.monotonic() < deadline
    assert ended.startswith("it ended with status 3: ")
    (batch,) = process.batches
    assert (batch.topic, batch.offsets, batch.seconds) == ("load-a", 12345, 2.5)
    assert process.behind == [1234]
    (tmp_path / "archive" / "collections-1").mkdir()
    (tmp_path / "archive" / "collections-1" / "7.log").write_text(
        "[1.0s][info][gc] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 24M->7M(258M) 3.1ms\n"
    )
    assert process.heap_after_collections() == [7]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(LACKING), reason="run `replog pipeline jars --store s3` once")
def test_three_minutes(tmp_path: Path) -> None:
    assert main(["--minutes", "3", "--rate", "200", "--keep", str(tmp_path / "run")]) == 0
