"""The commit of a Parquet table, on files alone: without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Barrier, Thread

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.conflict import AnotherWriterError
from replog_pipeline.lake.files import LocalFiles
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.lake.parquet import LEDGERS, STAGING, ParquetTable
from replog_pipeline.lake.table import claim, found_format

FILES = ["date=2013-01-01/part-0.parquet", "date=2013-01-02/part-1.parquet"]


@pytest.fixture
def table(tmp_path: Path) -> ParquetTable:
    return ParquetTable(None, LocalFiles(tmp_path / "lake"))  # no Spark for what is tested here


def stage(table: ParquetTable, after: Ledger, files: list[str] = FILES) -> dict[str, object]:
    """What Spark leaves in staging, and the entry that would commit it."""
    staging = f"{STAGING}/{after.batch}-{after.attempt}"
    for name in files:
        path = Path(table.files.path(f"{staging}/{name}"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return {"replog": after.to_json(), "files": files, "staging": staging, "rows": 2}


def visible(table: ParquetTable) -> list[str]:
    return [name for name in table.files.walk("") if not name.startswith("_")]


def test_of_many_that_create_a_name_one_does(tmp_path: Path) -> None:
    files, gate, won = LocalFiles(tmp_path), Barrier(8), []

    def create(number: int) -> None:
        gate.wait()
        if files.create("ledger/1.json", b"%d" % number * 1000):
            won.append(number)

    threads = [Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and files.read("ledger/1.json") == b"%d" % won[0] * 1000
    assert files.names("ledger") == ["1.json"]


def test_a_file_goes_as_a_folder_does_and_what_is_not_there_is_no_obstacle(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.create("a/one", b"1")
    files.create("a/two", b"")
    files.sync("a")
    assert files.size("a/one") == 1 and files.modified("a/one") > 0
    files.remove("a/one")
    files.remove("a/one")
    assert files.names("a") == ["two"]
    files.remove("a")
    assert files.names() == []


def test_a_table_has_one_writer_at_a_time(tmp_path: Path) -> None:
    one, other = LocalFiles(tmp_path), LocalFiles(tmp_path)
    with one.lock(), pytest.raises(PipelineError, match="another archive writes"), other.lock():
        pass
    with other.lock():
        pass


def test_an_empty_folder_made_for_the_lock_goes_again(tmp_path: Path) -> None:
    with LocalFiles(tmp_path / "a" / "lake").lock():
        assert (tmp_path / "a" / "lake").is_dir()
    assert not (tmp_path / "a" / "lake").exists()


def test_rows_are_seen_after_the_commit_and_not_before(table: ParquetTable) -> None:
    after = Ledger().after({"t": None}, {("t", 0): 2})
    entry = stage(table, after)
    assert visible(table) == [] and table.ledger() == Ledger()
    table.commit(after, entry)
    table.publish(entry)
    assert visible(table) == FILES and table.ledger() == after


def test_a_writer_that_died_before_its_commit_leaves_nothing_behind(table: ParquetTable) -> None:
    dead = Ledger().after({"t": None}, {("t", 0): 2})
    stage(table, dead)
    table.recover()
    after = Ledger().after({"t": None}, {("t", 0): 2})
    entry = stage(table, after)
    table.commit(after, entry)
    table.publish(entry)
    table.clean(1)
    assert visible(table) == FILES and table.files.names(STAGING) == []


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_writer_that_died_after_its_commit_is_finished(table: ParquetTable, moved: int) -> None:
    after = Ledger().after({"t": None}, {("t", 0): 2})
    entry = stage(table, after)
    table.commit(after, entry)
    for name in FILES[:moved]:
        table.files.move(f"{entry['staging']}/{name}", name)
    table.recover()
    table.recover()
    assert visible(table) == FILES and table.files.names(STAGING) == []


@pytest.mark.parametrize("moved", [0, 1])
def test_a_batch_whose_writer_died_elsewhere_is_finished_by_a_later_one(
    table: ParquetTable, moved: int
) -> None:
    """On another machine, that is: here the lock makes the later one recover first."""
    first = Ledger().after({"t": None}, {("t", 0): 2})
    entry = stage(table, first)
    table.commit(first, entry)
    for name in FILES[:moved]:
        table.files.move(f"{entry['staging']}/{name}", name)
    lost = stage(
        table, Ledger().after({"t": None}, {("t", 0): 2}), ["date=2013-01-01/lost.parquet"]
    )
    second = first.after({"t": None}, {("t", 0): 4})
    later = stage(table, second, ["date=2013-01-03/part-2.parquet"])
    table.commit(second, later)
    table.publish(later)
    table.clean(second.batch)
    assert visible(table) == [*FILES, "date=2013-01-03/part-2.parquet"]
    assert table.files.names(STAGING) == [] and lost["staging"] != entry["staging"]


def test_the_second_of_two_writers_of_a_batch_loses(table: ParquetTable) -> None:
    one, other = (
        Ledger().after({"t": None}, {("t", 0): 2}),
        Ledger().after({"t": None}, {("t", 0): 3}),
    )
    entries = stage(table, one), stage(table, other, ["date=2013-01-01/part-9.parquet"])
    table.commit(one, entries[0])
    with pytest.raises(AnotherWriterError, match="batch 1"):
        table.commit(other, entries[1])
    table.recover()
    assert visible(table) == FILES and table.ledger() == one


def test_a_file_of_the_table_that_is_gone_is_named(table: ParquetTable) -> None:
    after = Ledger().after({"t": None}, {("t", 0): 2})
    entry = stage(table, after)
    table.commit(after, entry)
    Path(table.files.path(f"{entry['staging']}/{FILES[1]}")).unlink()
    with pytest.raises(
        PipelineError, match=r"date=2013-01-02/part-1\.parquet is named by the table's ledger"
    ):
        table.recover()


def committed(table: ParquetTable, batches: int) -> list[dict[str, object]]:
    """So many batches of a file each, and their entries."""
    known, entries = Ledger(), []
    for number in range(batches):
        known = known.after({"t": None}, {("t", 0): 2 * number + 2})
        entries.append(stage(table, known, [f"date=2013-01-0{number + 1}/part-{number}.parquet"]))
        table.commit(known, entries[-1])
        table.publish(entries[-1])
    return entries


def lose(table: ParquetTable, *batches: int) -> None:
    for batch in batches:
        Path(table.files.path(f"{LEDGERS}/{batch:020d}.json")).unlink()


@pytest.mark.parametrize(
    ("lost", "orphan", "more"),
    [([3], 2, ""), ([2, 3], 1, " and 1 more"), ([1, 2, 3], 0, " and 2 more")],
)
def test_files_that_no_ledger_names_stop_an_archive_and_a_replay(
    table: ParquetTable, lost: list[int], orphan: int, more: str
) -> None:
    claim(table)
    committed(table, 3)
    table.recover()
    lose(table, *lost)
    before = table.files.walk("")
    for act in (table.recover, table.read):
        with pytest.raises(PipelineError) as raised:
            act()
        text = str(raised.value)
        assert f"date=2013-01-0{orphan + 1}/part-{orphan}.parquet{more} is in no ledger" in text
        assert f"{LEDGERS}/{lost[0]:020d}.json" in text and "restore it" in text
    assert table.files.walk("") == before


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_ledger_before_the_newest_is_named_though_its_files_are_gone_too(
    table: ParquetTable, lost: int
) -> None:
    entries = committed(table, 3)
    lose(table, lost)
    Path(table.files.path(entries[lost - 1]["files"][0])).unlink()  # type: ignore[index]
    with pytest.raises(PipelineError, match=f"{lost:020d}.json is gone, but later ones are there"):
        table.recover()


def test_what_a_killed_run_left_in_staging_is_no_lost_ledger(table: ParquetTable) -> None:
    committed(table, 2)
    left = stage(table, Ledger(2).after({"t": None}, {("t", 0): 9}))
    Path(table.files.path("_temporary")).mkdir()
    for name in (
        f"{left['staging']}/_temporary/0/part-8.parquet",
        "date=2013-01-01/.part-0.parquet.crc",
        "date=2013-01-01/_SUCCESS",
    ):
        table.files.create(name, b"")
    table.recover()


def test_removing_what_no_ledger_names_lets_the_archive_go_on(table: ParquetTable) -> None:
    entries = committed(table, 2)
    lose(table, 2)
    Path(table.files.path(entries[1]["files"][0])).unlink()  # type: ignore[index]
    table.recover()
    assert table.ledger().next == {("t", 0): 2}


def test_a_ledger_of_another_version_is_named(table: ParquetTable) -> None:
    table.files.create(f"{LEDGERS}/{1:020d}.json", b'{"replog": {"version": 9}}')
    with pytest.raises(
        PipelineError,
        match=r"0001\.json: a ledger of version 9, but this replog knows 1 and 2: use a newer",
    ):
        table.ledger()


@pytest.mark.parametrize(
    "content", ['{"replog": {"version": 1}}', '{"replog": {"version": 1, "topics": 3}}', "[]", "3"]
)
def test_a_ledger_without_its_parts_is_damaged(table: ParquetTable, content: str) -> None:
    table.files.create(f"{LEDGERS}/{1:020d}.json", content.encode())
    with pytest.raises(
        PipelineError,
        match=r"0001\.json(: a ledger without| is damaged| is no ledger of replog).*restore it",
    ):
        table.ledger()


def test_a_damaged_ledger_is_named(table: ParquetTable) -> None:
    table.files.create(f"{LEDGERS}/{1:020d}.json", b"{")
    with pytest.raises(PipelineError, match=r"00000000000000000001.json is damaged"):
        table.ledger()


def test_a_ledger_of_others_is_named(table: ParquetTable) -> None:
    table.files.create(f"{LEDGERS}/{1:020d}.json", json.dumps({"x": 1}).encode())
    with pytest.raises(PipelineError, match="no ledger of replog"):
        table.ledger()


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("")
    with pytest.raises(PipelineError, match="is a file, not a table"):
        found_format(LocalFiles(tmp_path / "file"))
    with pytest.raises(PipelineError, match=r"holds notes\.txt and is no table"):
        found_format(LocalFiles(tmp_path / "other"))
    assert found_format(LocalFiles(tmp_path / "nothing")) is None


def test_what_a_first_batch_left_that_died_is_no_obstacle(table: ParquetTable) -> None:
    claim(table)
    claim(table)
    leftover = Path(table.files.path(f"{STAGING}/1-x/date=2013-01-01/part-0.parquet"))
    leftover.parent.mkdir(parents=True)
    leftover.write_text("")
    assert found_format(table.files) == "parquet"
    table.recover()
