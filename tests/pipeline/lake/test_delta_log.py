"""What a Delta table's commits say of themselves, on files alone: without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.delta import LOG, REACHED, DeltaTable
from replog_pipeline.lake.files import LocalFiles
from replog_pipeline.lake.ledger import Ledger

KNOWN = Ledger().after({"t": None}, {("t", 0): 6})


METRICS = {
    "WRITE": {"numFiles": "{}", "numOutputRows": "6"},
    "MERGE": {
        "numTargetFilesAdded": "{}",
        "numTargetRowsInserted": "3",
        "numTargetRowsUpdated": "2",
        "numTargetRowsDeleted": "1",
        "numOutputRows": "90",
    },
}
KINDS = pytest.mark.parametrize("kind", METRICS)


def commit(table: DeltaTable, version: int, text: str, files: int = 2, kind: str = "WRITE") -> Path:
    """As Delta 4.4 writes an append, or a merge."""
    metrics = {name: value.format(files) for name, value in METRICS[kind].items()}
    info = {"operation": kind, "userMetadata": text, "operationMetrics": metrics}
    actions = [{"commitInfo": info}, {"txn": {"appId": "replog-archive", "version": 1}}]
    actions += [
        {"add": {"path": f"date=2023-01-01/part-{number}.parquet", "size": 1}}
        for number in range(files)
    ]
    table.files.create(
        f"{LOG}/{version:020d}.json",
        "".join(json.dumps(action) + "\n" for action in actions).encode(),
    )
    return Path(table.files.path(f"{LOG}/{version:020d}.json"))


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(None, LocalFiles(tmp_path / "lake"))  # no Spark for what is tested here


def test_a_ledger_is_found_below_the_commits_of_others(table: DeltaTable) -> None:
    commit(table, 0, KNOWN.to_text())
    table.files.create(
        f"{LOG}/{1:020d}.json",
        b'{"commitInfo":{"operation":"OPTIMIZE","operationMetrics":{"numAddedFiles":"1"}}}\n{"add":{}}\n',
    )
    assert table.ledger() == KNOWN and table.committed_rows(KNOWN) == 6


def test_an_empty_batch_is_a_whole_commit(table: DeltaTable) -> None:
    commit(table, 0, KNOWN.to_text(), files=0)
    assert table.ledger() == KNOWN


def test_an_append_of_no_rows_whose_empty_file_was_counted_is_a_whole_commit(
    table: DeltaTable,
) -> None:
    """As Delta writes an upsert's first batch where it has tombstones alone."""
    path = commit(table, 0, KNOWN.to_text(), files=0)
    empty = path.read_text().replace('"numFiles": "0"', '"numFiles": "1"')
    path.write_text(empty.replace('"numOutputRows": "6"', '"numOutputRows": "0"'))
    assert table.ledger() == KNOWN and table.committed_rows(KNOWN) == 0


def test_a_merge_that_marks_rows_by_a_deletion_vector_is_counted(table: DeltaTable) -> None:
    """Where the table has `delta.enableDeletionVectors`: the file is added again with the vector,
    and not counted as a file.
    """
    path = commit(table, 0, KNOWN.to_text(), files=1, kind="MERGE")
    counted = path.read_text().replace(
        '"numOutputRows"', '"numTargetDeletionVectorsAdded": "1", "numOutputRows"'
    )
    marked = json.dumps({"add": {"path": "part-9.parquet", "deletionVector": {"offset": 1}}})
    path.write_text(counted + marked + "\n")
    assert table.ledger() == KNOWN
    path.write_text(counted)
    with pytest.raises(PipelineError, match=r"is cut short"):
        table.ledger()


@KINDS
def test_the_rows_that_a_commit_changed_are_counted(table: DeltaTable, kind: str) -> None:
    commit(table, 0, KNOWN.to_text(), kind=kind)
    assert table.committed_rows(KNOWN) == 6


@KINDS
def test_a_commit_that_is_cut_anywhere_is_named(table: DeltaTable, kind: str) -> None:
    """Also between two lines, where every line that is left can be read."""
    path = commit(table, 0, KNOWN.to_text(), kind=kind)
    whole = path.read_bytes()
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(
            PipelineError, match=r"_delta_log/00000000000000000000.json is cut short: restore it"
        ):
            table.ledger()
    path.write_bytes(whole[:-1])
    assert table.ledger() == KNOWN


def test_a_ledger_of_another_version_is_named(table: DeltaTable) -> None:
    commit(table, 0, KNOWN.to_text().replace('"version": 1', '"version": 7'))
    with pytest.raises(
        PipelineError,
        match=r"_delta_log: .* version 7, but this replog knows 1 and 2: use a newer replog",
    ):
        table.ledger()


def test_a_copy_of_the_ledger_is_kept_beside_the_log(table: DeltaTable) -> None:
    """Of the newest batch alone; what a killed run did not copy, the next one does."""
    later = KNOWN.after({"t": None}, {("t", 0): 9})
    commit(table, 0, KNOWN.to_text())
    assert table.remembered() is None
    table.recover()
    assert table.remembered() == KNOWN
    table.remember(later)
    assert table.remembered() == later and len(table.files.names(REACHED)) == 1
    table.recover()
    assert table.remembered() == later


def test_a_copy_that_is_cut_short_is_none(table: DeltaTable) -> None:
    table.files.create(f"{REACHED}/{1:020d}.json", KNOWN.to_text().encode()[:9])
    assert table.remembered() is None
