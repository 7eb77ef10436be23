"""`archive --mode upsert`: a table at the last value of each key, whatever ended a run, and
whatever comes again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replog_pipeline import sources
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive, maintain, replay
from replog_pipeline.jobs.archive.job import transform
from replog_pipeline.lake import table
from replog_pipeline.lake.delta import DeltaTable
from replog_pipeline.lake.last_values import last_of_each_key
from replog_pipeline.values.settings import decoding
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.jobs.test_archive_killed import running
from tests.pipeline.records import OLD_MS, Written, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Killed(BaseException):
    """As if the process had ended here."""


def keyed(count: int, first: int = 0) -> list[Written]:
    """Of 7 keys, each in one of two partitions; every fifth a tombstone, timestamps go back."""
    return [
        Written(
            partition=number % 7 % 2,
            key=f"key-{number % 7}".encode(),
            value=None if number % 5 == 4 else f"value-{number}".encode(),
            timestamp=OLD_MS - number * 1000,
        )
        for number in range(first, first + count)
    ]


def last_values(written: Iterable[Written]) -> dict[bytes | None, bytes]:
    found: dict[bytes | None, bytes] = {}
    for each in written:
        if each.value is None:
            found.pop(each.key, None)
        else:
            found[each.key] = each.value
    return found


def rows(spark: SparkSession, lake: Path) -> dict[bytes, bytes]:
    found = table.existing(spark, str(lake)).read().select("key", "value").collect()
    values = {bytes(row.key): bytes(row.value) for row in found}
    assert len(values) == len(found), "a key has two rows"
    return values


def killing(method: Callable[..., Any], after: bool) -> Callable[..., Any]:
    def killed(*args: Any, **named: Any) -> None:
        if after:
            method(*args, **named)
        raise Killed

    return killed


def test_a_table_is_at_the_last_value_of_each_key_whatever_ended_a_run_or_comes_again(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, url = tmp_path / "lake", f"kafka://{broker.bootstrap}/{topic}"
    written = keyed(20)
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, written)
    config = archive.ArchiveConfig(url, str(lake), upsert=True)
    assert archive.run(spark, config).batches == 1
    assert rows(spark, lake) == last_values(written)
    for method, after in (("committed_rows", False), ("upsert", True)):
        more = keyed(13, first=len(written))
        produce(broker.bootstrap, topic, more)
        written += more
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(DeltaTable, method, killing(getattr(DeltaTable, method), after))
            archive.run(spark, config)
        assert rows(spark, lake) == last_values(written)
        assert archive.run(spark, config).rows == 0
    # Older records of all keys that the table has come again, as a batch of its own.
    target = table.existing(spark, str(lake))
    ledger = target.ledger()
    first = sources.Wanted(end={(topic, 0): 3, (topic, 1): 3})
    older = last_of_each_key(transform(sources.read(spark, sources.parse(url), first)))
    again = older.join(target.read().select("key"), "key", "left_semi").select(*older.columns)
    kept = rows(spark, lake)
    assert again.count() > 2
    assert target.upsert(again, ledger.after({}, {})) == 0
    assert rows(spark, lake) == kept
    # A batch of tombstones of keys that are not there: the ledger goes on all the same.
    produce(broker.bootstrap, topic, [Written(0, b"never", None, OLD_MS)])
    assert archive.run(spark, config).rows == 0
    assert archive.run(spark, config).batches == 0
    maintain.run(spark, maintain.MaintainConfig(str(lake)))
    assert rows(spark, lake) == kept
    with pytest.raises(PipelineError, match="holds the last value of each key: give --mode upsert"):
        archive.run(spark, archive.ArchiveConfig(url, str(lake)))
    with pytest.raises(PipelineError, match="a replay needs a table archived without"):
        replay.run(spark, replay.ReplayConfig(str(lake), f"{url}-again"))


def test_fields_are_added_by_a_merge_and_a_record_without_key_is_one_line(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    lake, schema = tmp_path / "lake", tmp_path / "schema.json"
    url = f"kafka://{broker.bootstrap}/{topic}"
    tables.create(broker.bootstrap, topic, 1)

    def config(*fields: str) -> archive.ArchiveConfig:
        properties = {field: {"type": "integer"} for field in fields}
        schema.write_text(json.dumps({"properties": properties}))
        chosen = decoding("json", str(schema))
        return archive.ArchiveConfig(url, str(lake), upsert=True, decoding=chosen)

    def written(key: bytes | None, value: bytes | None) -> Written:
        return Written(0, key, value, OLD_MS)

    produce(broker.bootstrap, topic, [written(b"a", b'{"x": 1}'), written(b"b", b'{"x": 2}')])
    archive.run(spark, config("x"))
    later = [written(b"a", b'{"x": 3, "y": 4}'), written(b"c", b"none"), written(b"b", None)]
    produce(broker.bootstrap, topic, later)
    assert archive.run(spark, config("x", "y")).rows == 3
    found = table.existing(spark, str(lake)).read().orderBy("key").collect()
    assert [
        (row.value_decoded and row.value_decoded.asDict(), row.decode_error) for row in found
    ] == [
        ({"x": 3, "y": 4}, None),
        (None, "malformed"),
    ]
    produce(broker.bootstrap, topic, [written(b"a", None), written(None, b"{}")])
    with pytest.raises(PipelineError, match=f"{topic}-0 at offset 6 has no key: --mode upsert"):
        archive.run(spark, config("x", "y"))
    assert table.existing(spark, str(lake)).read().count() == 2


@pytest.mark.long
def test_kill_9_amid_merges(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    lake, url, written = tmp_path / "lake", f"kafka://{broker.bootstrap}/{topic}", keyed(400)
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, written)
    for batches in (2, 5):
        with running(
            url, lake, "delta", "--mode", "upsert", "--max-records", "20", batches=batches
        ):
            pass
    archive.run(spark, archive.ArchiveConfig(url, str(lake), upsert=True))
    assert rows(spark, lake) == last_values(written)
