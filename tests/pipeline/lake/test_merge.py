"""Small Parquet files merged under the ledger: which, and what a run leaves that ends at any point.

Without Spark: what it would write is written by the test.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.conflict import AnotherWriterError
from replog_pipeline.lake.file_sizing import FILES_AT_ONCE, small_files
from replog_pipeline.lake.files import LocalFiles
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.lake.parquet import LEDGERS, REPLACED, STAGING, ParquetTable
from tests.pipeline.lake.test_files import committed, stage, visible

DAY = "date=2013-01-01"
OLD, NEW = [f"{DAY}/part-0.parquet", "date=2013-01-02/part-1.parquet"], f"{DAY}/merged.parquet"


@pytest.fixture
def table(tmp_path: Path) -> ParquetTable:
    """Of two batches, a file each."""
    made = ParquetTable(None, LocalFiles(tmp_path / "lake"))
    committed(made, 2)
    return made


def merged(table: ParquetTable) -> tuple[Ledger, dict[str, object]]:
    """The next batch and its entry: one file in place of both."""
    after = table.ledger().after({}, {})
    return after, stage(table, after, [NEW]) | {REPLACED: OLD}


def test_a_merge_brings_no_offset_and_takes_the_place_of_its_files(table: ParquetTable) -> None:
    before = table.ledger()
    after, entry = merged(table)
    table.commit(after, entry)
    table.publish(entry)
    assert visible(table) == table.live() == [NEW]
    assert (table.ledger().next, table.ledger().batch) == (before.next, before.batch + 1)
    third = table.ledger().after({}, {("t", 0): 9})
    more = stage(table, third, ["date=2013-01-03/part-2.parquet"])
    table.commit(third, more)
    table.publish(more)
    table.recover()
    assert visible(table) == sorted(table.live()) == [NEW, "date=2013-01-03/part-2.parquet"]


class Killed(BaseException):
    """As if the process had ended here."""


def dying_after(calls: int, *names: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Files whose `calls`-th change is the last."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        left = [calls]

        def counted(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                if not left[0]:
                    raise Killed
                left[0] -= 1
                return method(*args)

            return call

        for name in names:
            monkeypatch.setattr(LocalFiles, name, counted(getattr(LocalFiles, name)))

    return patch


@pytest.mark.parametrize("calls", range(5))
def test_whatever_is_done_the_rows_are_there_once_and_the_next_run_finishes(
    table: ParquetTable, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The changes are: the commit, two removals, a move; and all of them."""
    after, entry = merged(table)
    with monkeypatch.context() as patch:
        dying_after(calls, "create", "remove", "move")(patch)
        try:
            table.commit(after, entry)
            table.publish(entry)
        except Killed:
            assert calls < 4
    seen = visible(table)
    assert not (NEW in seen and {*OLD} & {*seen}), "a reader who lists files has rows twice"
    assert table.live() == ([NEW] if calls else OLD)
    table.recover()
    table.recover()
    assert visible(table) == ([NEW] if calls else OLD)


def test_of_two_writers_of_the_batch_the_merge_may_lose(table: ParquetTable) -> None:
    after, entry = merged(table)
    taken = table.ledger().after({}, {("t", 0): 9})
    table.commit(taken, stage(table, taken, ["date=2013-01-03/part-2.parquet"]))
    with pytest.raises(AnotherWriterError):
        table.commit(after, entry)
    table.recover()
    assert visible(table) == [*OLD, "date=2013-01-03/part-2.parquet"]


def test_a_lost_merge_is_seen_too(table: ParquetTable) -> None:
    after, entry = merged(table)
    table.commit(after, entry)
    table.publish(entry)
    Path(table.files.path(f"{LEDGERS}/{after.batch:020d}.json")).unlink()
    with pytest.raises(PipelineError, match=r"merged\.parquet is in no ledger"):
        table.recover()


def test_small_files_of_a_date_are_merged_where_there_are_two() -> None:
    sizes = {"date=1/a": 1, "date=1/b": 49, "date=1/c": 50, "date=2/a": 1, "date=3/a": 0} | {
        "date=4/a": 9,
        "date=4/b": 9,
    }
    found = list(small_files([*sizes], lambda name: sizes[name], 100))
    assert found == [["date=1/a", "date=1/b", "date=4/a", "date=4/b"]]
    assert list(small_files([*sizes], lambda name: sizes[name], 2)) == []


def test_a_merge_takes_whole_dates_and_not_all_at_once() -> None:
    names = [f"date={day:02d}/{number:03d}" for day in range(7) for number in range(400)]
    found = list(small_files(names, lambda name: 0, 100))
    assert [len(each) for each in found] == [800, 800, 800, 400]
    assert [name for each in found for name in each] == names
    large = [f"date=1/{number:05d}" for number in range(2 * FILES_AT_ONCE)]
    assert list(small_files(large, lambda name: 0, 100)) == [large]


def test_what_killed_runs_left_goes_when_it_is_old(table: ParquetTable) -> None:
    old, young = f"{STAGING}/3-old", f"{STAGING}/3-young"
    draft = f"{LEDGERS}/.{3:020d}.json.draft"
    names = [f"{old}/{DAY}/part-9.parquet", f"{young}/{DAY}/part-9.parquet", draft]
    for name in names:
        table.files.create(name, b"")
    back = time.time() - 8 * 24 * 3600
    base = Path(table.files.path())
    for path in (*sorted((base / old).rglob("*")), base / old, base / young, base / draft):
        os.utime(path, (back, back))
    assert table.remove_orphans(7 * 24) == 2
    left = [name for name in names if table.files.exists(name)]
    assert left == [names[1]], "its file is young, so its writer may be at work elsewhere"
    assert visible(table) == table.live() == OLD
