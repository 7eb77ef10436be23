"""Seconds to archive a topic to Delta, beside a plain connector job that writes the same table.

    python -m benchmarks.pipeline_archive [RECORDS] [ROUNDS]

1. RECORDS (5,000,000) of 100 random bytes in four partitions of one broker of ours. Both jobs run
   in one Spark session on all cores of this machine, by turns, ROUNDS (3) times, each into a new
   folder; one small turn of each comes before and is not counted.
2. The plain job is what a user would write: the connector with our session's poll settings, the
   same columns, partitioned by day, Delta's defaults. `archive` does the same and its ledger, its
   guards, and its count.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.requests import Connection, batch, produce, produce_error_at
from benchmarks.servers import Program, program
from twisted_broker.pipeline import session
from twisted_broker.pipeline.jobs import archive
from twisted_broker.pipeline.jobs.archive.job import OPEN_WRITERS
from twisted_broker.pipeline.sources.connector import POLLING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
BATCH_RECORDS = 1_000
DIFFERENT_BATCHES = 50
WARM_RECORDS = 200_000


def fill(server: Program, topic: str, records: int) -> None:
    """The topic with `records`, spread evenly."""
    batches = [batch(BATCH_RECORDS, 100) for _ in range(DIFFERENT_BATCHES)]
    with Connection(server.address) as connection:
        connection.create(topic, PARTITIONS)
        for number in range(records // BATCH_RECORDS):
            connection.socket.sendall(
                in_partition(
                    produce(topic, batches[number % DIFFERENT_BATCHES], -1),
                    topic,
                    number % PARTITIONS,
                )
            )
            at = produce_error_at(topic) - 4
            if bytes(connection.receive()[at : at + 2]) != b"\0\0":
                raise RuntimeError(f"Produce to {topic} was refused")


def in_partition(frame: bytes, topic: str, partition: int) -> bytes:
    """A Produce for partition 0, sent to another."""
    at = frame.index(topic.encode()) + len(topic) + 4
    return frame[:at] + partition.to_bytes(4, "big") + frame[at + 4 :]


def plain(spark: SparkSession, bootstrap: str, topic: str, to: str) -> int:
    """A connector job as one writes it."""
    own = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    records = spark.read.format("kafka").options(**POLLING | own).load()
    archive.transform(records).write.format("delta").mode("append").partitionBy("date").save(to)
    return rows_in(to)


def ours(spark: SparkSession, bootstrap: str, topic: str, to: str) -> int:
    return archive.run(spark, archive.ArchiveConfig(f"kafka://{bootstrap}/{topic}", to)).rows


def rows_in(to: str) -> int:
    """What Delta counted in the first commit."""
    lines = (Path(to) / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    info = next(json.loads(line)["commitInfo"] for line in lines if "commitInfo" in line)
    return int(info["operationMetrics"]["numOutputRows"])


Job = Callable[["SparkSession", str, str, str], int]


def seconds(job: Job, spark: SparkSession, bootstrap: str, topic: str, records: int) -> float:
    """One turn; the table is removed afterwards."""
    place = tempfile.mkdtemp(prefix="archive-")
    spark.conf.unset(OPEN_WRITERS)
    try:
        began = time.perf_counter()
        rows = job(spark, bootstrap, topic, f"{place}/lake")
        spent = time.perf_counter() - began
    finally:
        shutil.rmtree(place)
    if rows != records:
        raise RuntimeError(f"{rows} rows of {records} records")
    return spent


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    server = program("ours")
    server.start()
    try:
        bootstrap = f"{server.address[0]}:{server.address[1]}"
        fill(server, "warm", WARM_RECORDS)
        fill(server, "records", records)
        spark = session.build("benchmark", formats=("kafka", "delta"))
        jobs: dict[str, Job] = {"plain connector job": plain, "archive": ours}
        found: dict[str, list[float]] = {name: [] for name in jobs}
        for job in jobs.values():
            seconds(job, spark, bootstrap, "warm", WARM_RECORDS)
        for _ in range(rounds):
            for name, job in jobs.items():
                found[name].append(seconds(job, spark, bootstrap, "records", records))
                print(f"{name:20} {found[name][-1]:6.2f} s", flush=True)
        medians = {name: statistics.median(each) for name, each in found.items()}
        print(
            f"median: archive {medians['archive']:.2f} s, plain "
            f"{medians['plain connector job']:.2f} s; {records / medians['archive']:,.0f} records/s"
        )
        spark.stop()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
