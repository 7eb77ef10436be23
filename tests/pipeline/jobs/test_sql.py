"""`sql`: topics, log directories and tables as views."""

from __future__ import annotations

import csv
import io
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from replog_pipeline import session, sources
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive, sql
from replog_pipeline.jobs.sql import duck, results, views
from replog_pipeline.jobs.sql.command import command
from replog_pipeline.jobs.sql.job import SqlConfig, check
from replog_pipeline.kafka_cluster import PLAINTEXT
from tests.pipeline.jobs import tables
from tests.pipeline.records import numbered, produce

ROWS = 40


@pytest.fixture(scope="module")
def places(spark, broker, tmp_path_factory):
    """The same records in a topic (whose name needs quotes), its log directory and a table."""
    tables.create(broker.bootstrap, "sql.topic-1", 2)
    produce(broker.bootstrap, "sql.topic-1", numbered(ROWS, 2))
    tables.await_files(broker, "sql.topic-1", ROWS)
    topic = f"kafka://{broker.bootstrap}/sql.topic-1"
    lake = str(tmp_path_factory.mktemp("sql") / "lake")
    archive.run(spark, archive.ArchiveConfig(topic, lake, "parquet"))
    return {"topic": topic, "files": f"segments:{broker.data}?topics=sql.topic-1", "lake": lake}


def asked(spark, query, *froms, form="csv", limit=1000):
    out = io.StringIO()
    sql.run(spark, SqlConfig(query, views.given(froms, PLAINTEXT), form, None, limit), out)
    return out.getvalue()


def test_each_kind_of_source_answers_the_same(spark, places) -> None:
    query = (
        "with f as (select partition, count(*) as n, max(offset) as top, min(date) as d from {} "
        "group by partition) select * from f order by partition desc;"
    )
    found = {
        asked(spark, query.format("`sql.topic-1`"), places["topic"]),
        asked(spark, query.format("files"), f"files={places['files']}"),
        asked(spark, query.format("lake"), places["lake"]),
    }
    assert len(found) == 1
    rows = list(csv.DictReader(io.StringIO(found.pop())))
    assert [(row["partition"], row["n"], row["top"]) for row in rows] == [
        ("1", str(ROWS // 2), str(ROWS // 2 - 1)),
        ("0", str(ROWS // 2), str(ROWS // 2 - 1)),
    ]


@pytest.mark.parametrize(
    "query",
    [
        "select count(*), max(offset), sum(partition) from lake where value is not null",
        "select date, timestamp, cast(key as string) as k, value, headers from lake order by 2, 3",
        "select cast(key as string) as k, count(*) as n, avg(offset) as a from lake group by key "
        "order by k desc",
    ],
)
def test_both_engines_answer_the_same(spark, places, query) -> None:
    named, out = views.given([places["lake"]], PLAINTEXT), io.StringIO()
    config = SqlConfig(query, named, "csv")
    assert duck.attempted(config, check(config), out)
    assert out.getvalue() == asked(spark, query, places["lake"])


def test_sources_are_joined(spark, places) -> None:
    """A topic with what was archived of it: nothing is missing."""
    query = (
        "select count(*) as missing from `sql.topic-1` t "
        "left anti join lake using (partition, offset)"
    )
    assert asked(spark, query, places["topic"], places["lake"]) == "missing\n0\n"


def test_a_delta_table_as_it_was(spark, tmp_path: Path) -> None:
    """Before the second of two commits: by its version, and by a time between them."""
    lake = str(tmp_path / "lake")
    spark.range(2).write.format("delta").save(lake)
    time.sleep(0.01)  # commits are told apart by milliseconds
    between = datetime.now(UTC).isoformat()
    spark.range(3).write.format("delta").mode("append").save(lake)
    for at, count in (("", 5), ("@v0", 2), (f"@{between}", 2)):
        assert asked(spark, "select count(*) as n from t", f"t={lake}{at}") == f"n\n{count}\n"


def test_a_table_for_people_says_when_there_is_more(spark, places) -> None:
    query = (
        "select offset, cast(value as string) as v from lake where partition = 0 order by offset"
    )
    text = asked(spark, query, places["lake"], form="table", limit=3).splitlines()
    assert text[0].split() == ["offset", "v"] and len(text) == 6
    assert text[-1] == "the first 3 rows; --limit shows more, --format csv all"
    assert asked(spark, query, places["lake"], form="table").splitlines()[-1] == "20 rows"


def test_files_for_other_programs(spark, places, tmp_path: Path) -> None:
    named = views.given([places["lake"]], PLAINTEXT)
    query = "select partition, offset from lake"
    for form in ("parquet", "csv"):
        to = str(tmp_path / form)
        sql.run(spark, SqlConfig(query, named, form, to))
        there = spark.read.format(form).option("header", "true").load(to)
        assert there.count() == ROWS and there.columns == ["partition", "offset"]


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("select nothing from lake", "UNRESOLVED_COLUMN"),
        ("select * from orders", "there is: `lake`$"),
        ("selec 1", "none that Spark can read"),
        ("drop view lake", "none that Spark can read"),
        ("create table x as select 1", "none that Spark can read"),
        ("insert into lake select * from lake", "none that Spark can read"),
    ],
)
def test_a_wrong_query_is_one_line(spark, places, query: str, line: str) -> None:
    with pytest.raises(PipelineError, match=line):
        asked(spark, query, places["lake"])


def test_two_views_of_one_name(spark, places) -> None:
    with pytest.raises(PipelineError, match="lake and LAKE would be one view"):
        asked(spark, "select 1", places["lake"], f"LAKE={places['lake']}")


def test_a_view_leaves_nothing_in_the_session(spark, places) -> None:
    asked(spark, "select 1", places["lake"])
    assert not spark.catalog.tableExists("lake")


def test_what_is_wrong_is_found_before_spark_starts(tmp_path: Path) -> None:
    for arguments, line in {
        ("select 1", "--from", str(tmp_path / "no")): "there is no table",
        (" ; ", "--from", "segments:/"): "the query is empty",
        ("select 1", "--from", "x=kafka://h:1/a,b"): "one name for 2 topics",
        ("select 1", "--from", "segments:/", "--format", "parquet"): "say where to",
        ("select 1", "--from", "segments:/", "--to", "x"): "choose --format csv or parquet",
        (
            "select 1",
            "--from",
            "segments:/",
            "--format",
            "csv",
            "--to",
            str(tmp_path),
        ): "it is there already",
    }.items():
        outcome = CliRunner().invoke(command, list(arguments))
        assert isinstance(outcome.exception, PipelineError), arguments
        assert line in str(outcome.exception)


def test_a_source_with_a_name() -> None:
    named = views.given(["a=kafka://h:1/t", "kafka://h:1/t=1", "b=/x"], PLAINTEXT)
    assert [(each.name, each.place) for each in named] == [
        ("a", "kafka://h:1/t"),
        (None, "kafka://h:1/t=1"),
        ("b", "/x"),
    ]
    assert isinstance(named[0].source, sources.KafkaSource) and named[2].source is None
    check(SqlConfig("select 1", []))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (b"abc", "abc"),
        (b"\xff\x00", "0xff00"),
        (b"a\nb", "0x610a62"),
        (True, "true"),
        ([b"a", None], "[a, ]"),
        ({"k": b"v"}, "{k: v}"),
        (1.5, "1.5"),
    ],
)
def test_how_a_value_is_shown(value: object, text: str) -> None:
    assert results.shown(value) == text


def test_a_folder_of_each_worker_is_warned_of(spark, places, tmp_path, monkeypatch) -> None:
    """On a cluster, as `archive` does; the result stays on standard output."""
    monkeypatch.setattr(session, "build", lambda *args, **named: spark)
    monkeypatch.setattr(session, "lost_on_workers", lambda spark, place: f"warning: {place}")
    to = str(tmp_path / "out")
    arguments = ["select 1 as one", "--from", places["lake"], "--format", "csv"]
    done = CliRunner().invoke(command, [*arguments, "--to", to])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"replog pipeline: warning: {to}\n"
    done = CliRunner().invoke(command, arguments)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "one\n1\n", "")
