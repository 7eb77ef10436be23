"""The steps of the demo: each is a job as `replog pipeline` runs it, and prints the command that
does the same.

1. Produce flights to a replicated topic, archive it, audit it, replay the table into a second
   topic, archive that: the two tables must be equal.
2. Stop the cluster. Its log directories are data: compare the replicas, audit them, and write the
   report.
3. The topics keep records for ever (`retention.ms=-1`): those of 2013 are older than any retention.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replog_pipeline import sources
from replog_pipeline.columns import COLUMNS
from replog_pipeline.demo import flights as data_set
from replog_pipeline.demo.cluster import Cluster
from replog_pipeline.demo.flights import ALL
from replog_pipeline.demo.producers import installed
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive, audit, compare, replay, report
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.lake import table
from replog_pipeline.lake.files import check_writable
from replog_pipeline.progress import Progress
from replog_pipeline.sources import kafka_admin
from twisted_broker.installed import install

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, AGAIN = "flights", "flights-again"
PARTITIONS, REPLICAS = 6, 3
SETTINGS = {"retention.ms": "-1", "min.insync.replicas": "2"}


@dataclass
class Outcome:
    """`records`: produced and acknowledged.

    `findings`: of all audits and comparisons, and of the two tables; none when all is well.
    """

    records: int = 0
    findings: list[str] = field(default_factory=list)
    page: Path | None = None


def check(directory: Path) -> None:
    """What can be known before Spark is started.

    PipelineError: a directory that is in use, a package that is missing.
    """
    if directory.exists() and not directory.is_dir():
        raise PipelineError(f"--data: {directory} is a file; name a new folder")
    if directory.exists() and any(directory.iterdir()):
        raise PipelineError(f"--data: {directory} is not empty; name a new folder")
    check_writable(directory, "--data")
    next(data_set.flights(1))
    if not installed():
        raise PipelineError(f"no client to produce with: {install('demo')}")


def run(
    spark: SparkSession, directory: Path, flights: int = ALL, progress: Progress | None = None
) -> Outcome:
    """Runs the demo below `directory`, which must be new or empty. Raises PipelineError."""
    check(directory)
    demo = Demo(spark, directory, progress or Progress(quiet=True))
    with Cluster(directory / "cluster") as cluster:
        demo.produce(cluster.bootstrap, flights)
        demo.round_trip(cluster.bootstrap)
    demo.look_at_files(cluster.log_directories)
    return demo.outcome


class Demo:
    """The steps, in `directory`."""

    def __init__(self, spark: SparkSession, directory: Path, progress: Progress) -> None:
        self.spark, self.directory, self.progress = spark, directory, progress
        self.first, self.second = (
            str(directory / "tables" / TOPIC),
            str(directory / "tables" / AGAIN),
        )
        self.outcome = Outcome()

    def produce(self, bootstrap: str, flights: int) -> None:
        """By every stock client that is installed, side by side."""
        clients = installed()
        kafka_admin.create_topic(
            self.spark, KafkaCluster(bootstrap), TOPIC, PARTITIONS, REPLICAS, SETTINGS
        )
        self.progress.say(
            f"three brokers at {bootstrap}; topic {TOPIC}: {PARTITIONS} partitions on "
            f"{REPLICAS} brokers each"
        )
        with self.progress.step(
            f"produced {flights:,} flights of 2013 with {' and '.join(clients)}, acks=all"
        ):
            self.outcome.records = sum(
                await_all(
                    [
                        start(client, bootstrap, flights, part, len(clients))
                        for part, client in enumerate(clients)
                    ]
                )
            )

    def round_trip(self, bootstrap: str) -> None:
        source, again = f"kafka://{bootstrap}/{TOPIC}", f"kafka://{bootstrap}/{AGAIN}"
        self.archive(source, self.first)
        self.say(f"audit --from {source}")
        self.found(
            audit.run(
                self.spark, audit.AuditConfig(sources.parse(source), quiet=self.progress.quiet)
            )
        )
        self.say(f"replay --from {self.first} --to {again}")
        replay.run(self.spark, replay.ReplayConfig(self.first, again), self.progress)
        self.archive(again, self.second)
        with self.progress.step("compared the two tables, row by row"):
            self.outcome.findings += differences(self.read(self.first), self.read(self.second))

    def archive(self, source: str, target: str) -> None:
        self.say(f"archive --from {source} --to {target}")
        rows = archive.run(self.spark, archive.ArchiveConfig(source, target), self.progress).rows
        if rows != self.outcome.records:
            self.outcome.findings.append(
                f"{target} has {rows:,} rows of {self.outcome.records:,} records"
            )

    def read(self, target: str) -> DataFrame:
        return table.existing(self.spark, target).read()

    def look_at_files(self, directories: list[Path]) -> None:
        """With no broker running."""
        self.progress.say("the cluster is stopped; from here on its files are read")
        names = tuple(map(str, directories))
        self.say(f"compare {' '.join(names)}")
        self.found(compare.run(self.spark, compare.CompareConfig(names, quiet=self.progress.quiet)))
        self.say(f"audit --from segments:{','.join(names)}")
        self.found(
            audit.run(
                self.spark,
                audit.AuditConfig(sources.SegmentsSource(names), quiet=self.progress.quiet),
            )
        )
        source = sources.SegmentsSource(names[:1], (TOPIC,))
        self.say(f"report --from '{source}' --to {self.directory / 'report'}")
        self.outcome.page = report.run(
            self.spark,
            report.ReportConfig(source, self.directory / "report", quiet=self.progress.quiet),
        ).page

    def say(self, command: str) -> None:
        self.progress.say(f"$ replog pipeline {command}")

    def found(self, result: Any) -> None:
        for finding in result.findings:
            self.progress.say(str(finding))
        self.outcome.findings += map(str, result.findings)


def start(
    client: str, bootstrap: str, flights: int, part: int, parts: int
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "replog_pipeline.demo.producers",
        client,
        bootstrap,
        TOPIC,
        str(flights),
        str(part),
        str(parts),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def await_all(producers: list[subprocess.Popen[str]]) -> list[int]:
    """What each of them produced. Raises PipelineError, after all have ended, if one failed."""
    outputs = [producer.communicate() for producer in producers]
    for producer, (_, error) in zip(producers, outputs, strict=True):
        if producer.returncode:
            raise PipelineError(
                f"a producer failed: {(error.strip().splitlines() or ['no reason given'])[-1]}"
            )
    return [int(output) for output, _ in outputs]


def differences(first: DataFrame, second: DataFrame) -> list[str]:
    """How many records of two tables are not alike, the topic's name aside; a partition and an
    offset say which belong together.
    """
    from pyspark.sql.functions import struct

    place = ["partition", "offset"]
    content = struct(*(name for name in COLUMNS if name not in (*place, "topic")))
    both = first.select(*place, content.alias("first")).join(
        second.select(*place, content.alias("second")), place, "full_outer"
    )
    unlike = both.where("not (first <=> second)").count()
    return [f"{unlike:,} records of the two tables differ"] if unlike else []
