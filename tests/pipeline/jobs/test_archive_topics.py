"""`archive` of several topics, a table each: which topics, what stops one table and what stops all,
and what comes and goes meanwhile.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from replog_pipeline.cli import pipeline
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.archive.figures import Figures
from replog_pipeline.jobs.archive.job import Archive, ArchiveConfig
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.jobs.archive.topics import Topics, check, run_topics
from replog_pipeline.lake import table
from replog_pipeline.lake.files import LocalFiles
from replog_pipeline.progress import Progress
from replog_pipeline.sources import extents, kafka_admin, parse_pattern
from replog_pipeline.sources.away import BrokersAwayError
from replog_pipeline.sources.extents import Extent
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.jobs.test_archive_watched import committed
from tests.pipeline.records import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("names", "matching"),
    [
        ("a", ["a"]),
        ("a,b.c", ["a", "b.c"]),
        ("b..*", ["b.c", "bxc"]),
        ("a.*,__consumer_offsets", ["a", "ab", "__consumer_offsets"]),
        (".*", ["a", "ab", "b.c", "bxc"]),
        ("a|bxc", ["a", "bxc"]),
    ],
)
def test_which_topics(names: str, matching: list[str]) -> None:
    found = parse_pattern(f"kafka://h:1/{names}", "--from")
    there = ["a", "ab", "b.c", "bxc", "__consumer_offsets"]
    assert [topic for topic in there if found.matches(topic)] == matching


def test_what_is_no_pattern() -> None:
    for url, line in {
        "kafka://h:1/a(": r"'a\(' is no topic name, and no regular expression",
        "kafka://h:1/": "names no topic",
        "segments:/x": "write kafka://HOST:PORT",
    }.items():
        with pytest.raises(PipelineError, match=f"--from: .*{line}"):
            parse_pattern(url, "--from")


class Model:
    """A cluster's topics (name -> its id and end) and what a look does; each batch takes all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, to: Path, names: str) -> None:
        self.ends: dict[str, tuple[str, int]] = {}
        self.caught: list[str] = []
        self.first = 0
        self.faults: dict[str, Exception] = {}
        self.said = io.StringIO()
        monkeypatch.setattr(kafka_admin, "topics", self.listed)
        monkeypatch.setattr(extents, "of_cluster", self.extent)
        monkeypatch.setattr(Archive, "catch_up", lambda archive: self.catch_up(archive))  # noqa: PLW0108  a method: bound to the archive
        source = f"kafka://h:1/{names}"
        self.figures = Figures()
        self.topics = Topics(
            None,
            ArchiveConfig(source, str(to), "parquet"),
            parse_pattern(source, "--from"),
            Progress(stream=self.said),
            Stopper(),
            self.figures,
            lambda count: self.first % count,
        )

    def listed(self, *_: object) -> list[str]:
        if "cluster" in self.faults:
            raise self.faults["cluster"]
        return sorted(self.ends)

    def extent(self, spark: object, source: object, isolation: str) -> Extent:
        if "extent" in self.faults:
            raise self.faults["extent"]
        ends = {(name, 0): end for name, (_, end) in self.ends.items()}
        ids = {name: each for name, (each, _) in self.ends.items()}
        return Extent(ids, dict.fromkeys(ends, 0), ends)

    def catch_up(self, archive: Archive) -> None:
        topic = Path(archive.config.to).name
        self.caught.append(topic)
        if topic in self.faults:
            raise self.faults[topic]
        each, end = self.ends[topic]
        if end:
            archive.result.ledger = archive.result.ledger.after({topic: each}, {(topic, 0): end})

    def look(self) -> list[str]:
        """Which tables the look opened."""
        self.caught = []
        self.topics.look()
        return self.caught

    def lines(self) -> list[str]:
        found = self.said.getvalue().splitlines()
        self.said.truncate(self.said.seek(0))
        return found


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Model:
    made = Model(monkeypatch, tmp_path / "lake", "t.*")
    made.ends = {"t1": ("id1", 5), "t2": ("id2", 0), "other": ("id3", 9)}
    return made


def test_a_table_that_is_there_already_is_passed_over(model: Model) -> None:
    assert model.look() == ["t1", "t2"] and model.look() == []
    model.ends["t2"], model.ends["t3"] = ("id2", 1), ("id4", 1)
    assert model.look() == ["t2", "t3"]
    assert model.look() == [] and model.lines() == []
    assert (model.figures.tables, sum(model.figures.lag.values())) == (3, 0)
    model.ends["t1"] = ("another", 5)
    assert model.look() == ["t1"], "made anew with as many records: the guards must see it"


def test_a_look_begins_where_the_lot_says_and_goes_round(model: Model) -> None:
    model.first = 1
    assert model.look() == ["t2", "t1"]


def test_what_refuses_one_table_stops_no_other_and_is_said_once(model: Model) -> None:
    model.faults["t1"] = PipelineError("created anew")
    for _ in range(2):
        assert model.look()[0] == "t1"
    assert model.lines() == ["archive: topic t1: created anew"]
    assert model.topics.result.refused == {"t1": "created anew"} and model.figures.failing == 1
    model.faults["t1"] = PipelineError("another line")
    model.look()
    assert model.lines() == ["archive: topic t1: another line"]
    model.faults.clear()
    assert model.look() == ["t1"] and model.look() == []
    assert not model.topics.result.refused and not model.figures.failing


def test_a_leader_that_is_away_is_one_topics_and_a_cluster_that_is_away_all_tables(
    model: Model,
) -> None:
    away = BrokersAwayError("no answer")
    model.faults |= {"t1": away, "extent": away}
    assert model.look() == ["t1", "t2"]
    assert model.topics.result.refused == {"t1": "no answer"}
    model.faults["cluster"] = away
    with pytest.raises(BrokersAwayError):
        model.look()
    model.faults = {"t2": ValueError("a bug")}
    model.ends["t2"] = ("id2", 2)
    with pytest.raises(ValueError, match="a bug"):
        model.look()


def test_a_topic_that_goes_and_comes_again(model: Model, tmp_path: Path) -> None:
    """Its table is unlocked meanwhile; and while it is there nobody else may have it."""
    model.look()
    kept, files = model.ends.pop("t1"), LocalFiles(tmp_path / "lake" / "t1")
    assert model.look() == [] and model.lines() == [
        "archive: topic t1 is gone; its table stays as it is"
    ]
    assert ("t1", 0) not in model.figures.lag
    with files.lock():
        model.ends["t1"] = kept
        assert model.look() == [] and "another archive" in model.topics.result.refused["t1"]
    assert model.look() == ["t1"] and not model.topics.result.refused
    with pytest.raises(PipelineError, match="another archive"), files.lock():
        pass
    model.topics.close()
    with files.lock():
        pass


def test_a_name_must_be_there_at_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = Model(monkeypatch, tmp_path, "t.*,one")
    with pytest.raises(PipelineError, match="topic 'one' is not on the brokers at h:1"):
        model.look()
    model.ends["one"] = ("id", 1)
    assert model.look() == ["one"]
    del model.ends["one"]
    assert model.look() == [] and "topic one is gone" in model.lines()[0]


def test_a_folder_that_is_no_place_for_tables(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "lake")
    made = table.of_format(None, files, "parquet")
    table.claim(made)
    (tmp_path / "file").write_text("")
    for to, line in {
        "lake": "is a table; each topic gets one of its own",
        "file": "is a file",
    }.items():
        with pytest.raises(PipelineError, match=f"--to: .*{line}"):
            check(ArchiveConfig("kafka://127.0.0.1:1/a.*", str(tmp_path / to)))
    with pytest.raises(PipelineError, match="no broker accepts a connection"):
        check(ArchiveConfig("kafka://127.0.0.1:1/a.*", str(tmp_path / "new")))


def test_tables_grow_topics_come_and_one_is_made_anew(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    lake, bootstrap = tmp_path / "lake", broker.bootstrap
    names = [f"{topic}-{name}" for name in "abc"]
    for name in names[:2]:
        tables.create(bootstrap, name, 2)
        produce(bootstrap, name, numbered(10, 2))
    said, seen = io.StringIO(), Figures()

    class Told(Stopper):
        looks = 0

        def wait(self, seconds: float) -> bool:
            self.looks += 1
            if self.looks == 1:
                produce(bootstrap, names[0], numbered(10, 2, first=10))
                tables.delete(bootstrap, names[1])
                tables.create(bootstrap, names[1], 2)
                tables.create(bootstrap, names[2], 1)
                produce(bootstrap, names[2], numbered(5))
            return self.looks > 2

    config = ArchiveConfig(
        f"kafka://{bootstrap}/{topic}-.*",
        str(lake),
        "parquet",
        interval=0.1,
        group=f"{topic}-archives",
    )
    done = run_topics(spark, config, Progress(stream=said), Told(), seen)
    assert (done.rows, done.batches, len(done.tables)) == (35, 4, 3)
    assert set(done.refused) == {names[1]} and "was created anew" in done.refused[names[1]]
    assert said.getvalue().count("was created anew") == 1
    assert f"archive: {names[2]}, batch 1, 5 offsets" in said.getvalue()
    expected = [numbered(20, 2), numbered(10, 2), numbered(5)]
    for name, written in zip(names, expected, strict=True):
        assert tables.table_rows(spark, lake / name) == tables.expected(written)
    assert sum(seen.lag.values()) == 0 and (seen.tables, seen.failing) == (3, 1)
    offsets = committed(bootstrap, f"{topic}-archives")
    assert {offset for key, offset in offsets.items() if key[0] != names[1]} == {10, 5}

    line = ["archive", "--from", config.source, "--to", str(lake), "--json", "--quiet"]
    told = CliRunner().invoke(pipeline, line)
    assert told.exit_code == 2 and set(json.loads(told.stdout)["refused"]) == {names[1]}
    line[2] = f"kafka://{bootstrap}/{names[0]},{names[2]}"
    assert CliRunner().invoke(pipeline, [*line, "--table-per-topic"]).exit_code == 0
    line[2] = f"kafka://{bootstrap}/{topic}-x.*"
    told = CliRunner().invoke(pipeline, line)
    assert told.exit_code == 2 and f"no topic at {bootstrap} matches" in told.stderr
