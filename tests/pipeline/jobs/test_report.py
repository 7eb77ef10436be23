"""`report` through Spark: a directory whose content is known, and the same tables over the wire;
and what is refused without Spark.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from replog_pipeline import session, sources
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import report
from replog_pipeline.jobs.report import ReportConfig, counts
from replog_pipeline.jobs.report.batch_sizes import sizes
from replog_pipeline.jobs.report.command import command
from replog_pipeline.jobs.report.job import checked
from replog_pipeline.report.tables import Table
from replog_pipeline.sources.extents import Extent
from replog_pipeline.transforms.group_offsets import commit
from tests.pipeline import report_folder

COUNT = 600


def test_a_report_of_a_directory_shows_what_is_in_it(spark, tmp_path):
    report_folder.write(tmp_path / "log", COUNT)
    done = CliRunner().invoke(
        command,
        [
            "--from",
            f"segments:{tmp_path / 'log'}",
            "--to",
            str(tmp_path / "out"),
            "--json",
            "--quiet",
        ],
    )
    assert done.exception is None, done.exception
    told = json.loads(done.stdout)
    assert [
        (row["topic"], row["partition"], row["records"], row["last_offset"])
        for row in told["partitions"]
    ] == [
        ("metrics", 0, COUNT, COUNT - 1),
        ("orders", 0, COUNT, COUNT - 1),
        ("orders", 1, COUNT, COUNT - 1),
    ]
    assert {(row["topic"], row["codec"]): row["records"] for row in told["codecs"]} == {
        ("metrics", "lz4"): COUNT,
        ("orders", "none"): COUNT,
        ("orders", "zstd"): COUNT,
    }
    assert next(row["ratio"] for row in told["codecs"] if row["codec"] == "zstd") > 2
    metrics, orders = told["compaction"][:2]
    assert (metrics["without_key"], metrics["live_bytes"], metrics["keys"]) == (
        COUNT,
        metrics["bytes"],
        0,
    )
    assert (
        orders["live"] + orders["deleted"] == orders["keys"] < COUNT
        and orders["live_bytes"] < orders["bytes"] / 2
    )
    assert [row["rank"] for row in told["keys"]] == list(range(1, len(told["keys"]) + 1))
    committed = {
        (row["group"], row["topic"], row["partition"]): row["committed"] for row in told["lag"]
    }
    assert committed == report_folder.COMMITTED
    assert {row["lag"] for row in told["lag"]} == {COUNT - 300, COUNT - 10, COUNT - 500}
    with (tmp_path / "out" / "minutes.csv").open() as file:
        minutes = list(csv.DictReader(file))
    assert sum(int(row["records"]) for row in minutes) == 3 * COUNT
    assert len({row["time"] for row in minutes}) == report_folder.MINUTES
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


def test_a_report_of_a_cluster_equals_that_of_its_files(spark, kafka_files, tmp_path):
    wire = sources.parse(f"kafka://{kafka_files.broker.bootstrap}/rich,stamped")
    told = report.run(spark, ReportConfig(wire, tmp_path / "wire")).tables
    files = report.run(
        spark, ReportConfig(sources.parse(f"segments:{kafka_files.directory}"), tmp_path / "files")
    ).tables
    for name in ("minutes", "partitions", "keys", "compaction"):
        assert told[name] == files[name]
    assert told["codecs"].rows == [] and files["codecs"].rows
    assert "segments:DIRECTORY" in (tmp_path / "wire" / "report.html").read_text()


@pytest.mark.parametrize("days", [1, 365, 36_500])
def test_what_comes_to_the_driver_is_bounded_whatever_the_time_and_the_topics(
    spark, monkeypatch, days
):
    count, topics, partitions = 100_000, 30, 2
    columns = (
        f"concat('topic-', id % {topics}) as topic",
        f"cast(id % {partitions} as int) as partition",
        "id as offset",
        f"timestamp_seconds(cast(floor(id * {days * 86_400} / {count}) as bigint)) as timestamp",
        "cast(null as binary) as key",
        "cast('ab' as binary) as value",
    )
    monkeypatch.setattr(counts, "read", lambda *arguments: spark.range(count).selectExpr(*columns))
    sizes, collected = [], counts.collected
    monkeypatch.setattr(
        counts, "collected", lambda frame: sizes.append(len(found := collected(frame))) or found
    )
    keys = {
        (f"topic-{number % topics}", number % partitions): 0
        for number in range(topics * partitions)
    }
    told = counts.traffic(spark, None, Extent({}, keys, keys))
    assert (
        max(sizes) <= (counts.MOST_TOPICS + 1) * counts.MOST_BINS
        and sum(row[3] for row in told.minutes.rows) == count
    )
    assert len({row[2] for row in told.minutes.rows}) <= counts.MOST_BINS
    assert len({row[0] for row in told.minutes.rows}) == counts.MOST_TOPICS + 1
    assert (told.first, told.last) == (0, (count - 1) * days * 86_400 // count // 60) and sum(
        row[2] for row in told.partitions.rows
    ) == count


def test_an_earlier_report_is_replaced_and_other_files_are_not(tmp_path):
    (tmp_path / "report.html").write_text("old")
    assert checked(tmp_path) == tmp_path
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    for wrong, words in (
        (tmp_path / "other", "holds other files"),
        (tmp_path / "report.html", "is a file"),
    ):
        with pytest.raises(PipelineError, match=words):
            checked(wrong)


@pytest.mark.parametrize(
    ("source", "words"),
    [("segments:/etc", "no TOPIC-PARTITION folder"), ("kafka://:1/t", "has no HOST:PORT")],
)
def test_a_wrong_source_is_refused_before_spark_starts_and_nothing_is_written(
    monkeypatch, tmp_path, source, words
):
    monkeypatch.setattr(
        session, "build", lambda *arguments, **settings: pytest.fail("Spark was started")
    )
    done = CliRunner().invoke(command, ["--from", source, "--to", str(tmp_path / "out")])
    assert isinstance(done.exception, PipelineError) and words in str(done.exception)
    assert not (tmp_path / "out").exists()


def row(record):
    return {"key": record[1], "value": record[2], "offset": 9}


def test_a_committed_offset_is_read_of_its_record():
    made = row(report_folder.commit("g", "t", 3, 42))
    (found,) = commit(made)
    assert found == {
        "group": "g",
        "topic": "t",
        "partition": 3,
        "committed": 42,
        "written": report_folder.BEGIN_MS,
        "at": 9,
    }
    (deleted,) = commit(row(report_folder.commit("g", "t", 3, None)))
    assert deleted["committed"] == -1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"", b""),
        (b"\0\2\0\1g", b"\0\0"),
        (b"\0\1\0\5g", b"\0\3"),
        (b"\0\x11anything", b"x"),
        (row(report_folder.commit("g", "t", 0, 1))["key"], b"\0\x09zzzz"),
        (row(report_folder.commit("g", "t", 0, 1))["key"], b"\0"),
    ],
)
def test_other_records_and_broken_ones_are_passed_over(key, value):
    assert list(commit({"key": key, "value": value, "offset": 0})) == []


def test_tables_of_a_result_are_shown_without_the_minutes(tmp_path):
    table = Table("minutes", ("a",), [(1,)])
    result = report.ReportResult(
        "s",
        "now",
        tmp_path / "report.html",
        [],
        {"minutes": table, "keys": replace(table, name="keys", rows=[(b"k",)])},
    )
    assert result.to_json()["keys"] == [{"a": "k"}]
    assert "minutes" not in result.to_json()


def test_batches_are_counted_within_the_offsets_that_the_report_is_of(tmp_path):
    records = [(report_folder.BEGIN_MS, b"k", b"v" * 50)] * 10
    file = tmp_path / f"{0:020d}.log"
    marker = report_folder.made(35, records[:1], is_control=True)
    file.write_bytes(
        b"".join(
            [
                *(
                    report_folder.made(10 * at, records, codec=4 if at == 3 else 0)
                    for at in range(5)
                ),
                marker,
            ]
        )
    )
    found = {
        row["codec"]: row
        for row in sizes({"topic": "t", "path": str(file), "start": 15, "end": 40})
    }
    plain = len(report_folder.made(0, records)) - 61
    assert (
        found["none"]["batches"],
        found["none"]["records"],
        found["none"]["stored"],
        found["none"]["inflated"],
    ) == (2, 20, 2 * plain, 2 * plain)
    assert found["none"]["bucket"] == (plain + 61).bit_length() - 1
    assert (found["zstd"]["batches"], found["zstd"]["inflated"]) == (1, plain)
    assert found["zstd"]["stored"] < plain / 2
