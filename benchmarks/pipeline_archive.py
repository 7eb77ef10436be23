"""Records per second of `archive` to Delta and Parquet, beside a plain connector job that writes
the same table.

    python -m benchmarks.pipeline_archive [--records 5000000] [--partitions 1,4,16]
        [--formats delta,parquet] [--rounds 3] [--batches 20] [--heap 1g] [--server ours]

1. RECORDS (a list, as 5000000,50000000) of 100 random bytes, spread evenly over so many partitions
   of one broker (`ours`, `kafka`: see `servers`), which is a new one for each row of the table. All
   jobs run in one Spark session on all cores of this machine, with a heap of HEAP, by turns, ROUNDS
   times, each into a new folder; one small turn of each comes before and is not counted.
2. The plain job is what a user would write: the connector with our session's poll settings, the
   same columns, partitioned by day, the format's defaults. `archive` does the same and its ledger,
   its guards, its count, and brings each day's rows together.
3. Then one more archive in BATCHES batches (0: none), and what a full collection leaves of the
   heap after each fifth of them and at the end: it must be flat.
4. CPU is that of Spark's JVM and its workers for a million records, without the broker: it holds up
   on a machine that others use too, records per second do not.
5. At the end the start of our session beside Spark's own with the same jars, each in a process of
   its own, by turns, ROUNDS times.

One table in Markdown on standard output; each turn as it ends on standard error. A disk needs room
for about four times the records: the log, a table, and the shuffle.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
import pyarrow.parquet as pq

from benchmarks.meter import cpu_seconds
from benchmarks.requests import Connection, batch, produce, produce_error_at
from benchmarks.servers import Program, program
from replog_pipeline import session
from replog_pipeline.jobs import archive
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.sources.connector import POLLING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
BATCH_RECORDS = 1_000
DIFFERENT_BATCHES = 50
WARM_RECORDS = 200_000
MEASURES = 5
FORMATS = ("delta", "parquet")
STARTS = {
    "ours": "session.build('start', conf=HEAP, formats=('kafka', 'delta'))",
    "Spark's own": (
        "SparkSession.builder.config(map=HEAP | session.ALONE | session.DELTA | {'spark.jars': "
        "','.join(map(str, jars.provide(jars.ALL, print)))}).getOrCreate()"
    ),
}
START = """
import os, sys, time
began = time.perf_counter()
from pyspark.sql import SparkSession
from replog_pipeline import session
from replog_pipeline.machine import jars, java
os.environ['JAVA_HOME'] = str(java.find().for_spark())
HEAP = {'spark.driver.memory': sys.argv[1]}
spark = %s
print(time.perf_counter() - began)
spark.stop()
"""


def fill(server: Program, topic: str, records: int, partitions: int = PARTITIONS) -> None:
    """The topic with `records`, spread evenly."""
    batches = [batch(BATCH_RECORDS, 100) for _ in range(DIFFERENT_BATCHES)]
    with Connection(server.address) as connection:
        connection.create(topic, partitions)
        for number in range(records // BATCH_RECORDS):
            connection.socket.sendall(
                in_partition(
                    produce(topic, batches[number % DIFFERENT_BATCHES], -1),
                    topic,
                    number % partitions,
                )
            )
            at = produce_error_at(topic) - 4
            if bytes(connection.receive()[at : at + 2]) != b"\0\0":
                raise RuntimeError(f"Produce to {topic} was refused")


def in_partition(frame: bytes, topic: str, partition: int) -> bytes:
    """A Produce for partition 0, sent to another."""
    at = frame.index(topic.encode()) + len(topic) + 4
    return frame[:at] + partition.to_bytes(4, "big") + frame[at + 4 :]


def plain(spark: SparkSession, bootstrap: str, topic: str, to: str, form: str) -> int:
    """A connector job as one writes it."""
    own = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    records = spark.read.format("kafka").options(**POLLING | own).load()
    archive.transform(records).write.format(form).mode("append").partitionBy("date").save(to)
    return rows_in(to, form)


def ours(spark: SparkSession, bootstrap: str, topic: str, to: str, form: str) -> int:
    config = archive.ArchiveConfig(f"kafka://{bootstrap}/{topic}", to, form)
    return archive.run(spark, config).rows


def rows_in(to: str, form: str) -> int:
    """What Delta counted in the first commit, or what the Parquet files say they have."""
    if form == "parquet":
        return sum(pq.read_metadata(path).num_rows for path in Path(to).rglob("*.parquet"))
    lines = (Path(to) / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    info = next(json.loads(line)["commitInfo"] for line in lines if "commitInfo" in line)
    return int(info["operationMetrics"]["numOutputRows"])


Job = Callable[["SparkSession", str, str, str, str], int]
JOBS: dict[str, Job] = {"plain": plain, "archive": ours}


class Turn(NamedTuple):
    """What one job took."""

    seconds: float
    cpu: float


def turn(
    job: Job, spark: SparkSession, server: Program, topic: str, form: str, records: int
) -> Turn:
    """One turn; the table is removed afterwards."""
    place = tempfile.mkdtemp(prefix="archive-")
    try:
        began, used = time.perf_counter(), cpu_seconds(workers(server))
        rows = job(spark, address(server), topic, f"{place}/lake", form)
        spent = Turn(time.perf_counter() - began, cpu_seconds(workers(server)) - used)
    finally:
        shutil.rmtree(place)
    if rows != records:
        raise RuntimeError(f"{rows} rows of {records} records")
    return spent


def address(server: Program) -> str:
    return f"{server.address[0]}:{server.address[1]}"


def workers(server: Program) -> list[int]:
    """This process and all that Spark started."""
    children = psutil.Process().children(recursive=True)
    return [os.getpid(), *(child.pid for child in children if child.pid not in server.pids)]


class Measuring(Stopper):
    """Before each batch; `found`: megabytes that a full collection left, every so many batches."""

    def __init__(self, spark: SparkSession, every: int) -> None:
        super().__init__()
        self.spark, self.every = spark, every
        self.batches = -1
        self.found: list[int] = []

    def is_set(self) -> bool:
        self.batches += 1
        if self.batches and self.batches % self.every == 0:
            self.found.append(live_megabytes(self.spark))
        return False


def live_megabytes(spark: SparkSession) -> int:
    """What a full collection leaves."""
    lang = spark._jvm.java.lang
    lang.System.gc()
    heap = lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
    return int(heap.getUsed()) >> 20


def heap(spark: SparkSession, server: Program, form: str, records: int, batches: int) -> list[int]:
    """Megabytes that are live after each fifth of an archive in so many batches."""
    measuring = Measuring(spark, max(1, batches // MEASURES))
    with tempfile.TemporaryDirectory(prefix="archive-") as place:
        config = archive.ArchiveConfig(
            f"kafka://{address(server)}/records",
            f"{place}/lake",
            form,
            max_records=-(-records // batches),
        )
        archive.run(spark, config, stopper=measuring)
    return [*measuring.found, live_megabytes(spark)]


def measured(
    spark: SparkSession, server: Program, records: int, partitions: int, given: argparse.Namespace
) -> None:
    """The rows of one topic."""
    fill(server, "warm", WARM_RECORDS, partitions)
    fill(server, "records", records, partitions)
    for form in given.formats:
        found: dict[str, list[Turn]] = {name: [] for name in JOBS}
        for job in JOBS.values():
            turn(job, spark, server, "warm", form, WARM_RECORDS)
        for number in range(given.rounds):
            for name in [*JOBS][:: 1 if number % 2 == 0 else -1]:
                found[name].append(turn(JOBS[name], spark, server, "records", form, records))
                say(f"{records} in {partitions}, {form}, {name}: {found[name][-1]}")
        live = heap(spark, server, form, records, given.batches) if given.batches else []
        print(row(records, partitions, form, found, live), flush=True)


def row(
    records: int, partitions: int, form: str, found: dict[str, list[Turn]], live: list[int]
) -> str:
    """A line of the table."""
    rate, cpu = (
        {name: of(statistics.median(each[part] for each in turns)) for name, turns in found.items()}
        for part, of in enumerate((lambda spent: records / spent, lambda used: used))
    )
    ratio = statistics.median(
        mine.seconds / other.seconds
        for mine, other in zip(found["archive"], found["plain"], strict=True)
    )
    millions = records / 1e6
    cells = (
        f"{millions:g} M",
        f"{partitions}",
        form,
        *(f"{rate[name]:,.0f}" for name in JOBS),
        f"{1 / ratio:.2f}",
        *(f"{cpu[name] / millions:.2f}" for name in JOBS),
        ", ".join(map(str, live)),
    )
    return f"| {' | '.join(cells)} |"


HEADER = """\
| records | partitions | table | plain, records/s | archive, records/s | archive / plain | \
plain, CPU s per M | archive, CPU s per M | live heap in batches, MB |
|--:|--:|---|--:|--:|--:|--:|--:|---|"""


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def starts(rounds: int, size: str) -> str:
    """Medians of a session's start, in seconds."""
    found: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(rounds):
        for name, build in STARTS.items():
            done = subprocess.run(
                [sys.executable, "-c", START % build, size],
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            found[name].append(float(done.stdout.split()[-1]))
            say(f"session's start, {name}: {found[name][-1]:.2f} s")
    return ", ".join(f"{name} {statistics.median(each):.2f} s" for name, each in found.items())


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_archive")
    parser.add_argument("--records", type=numbers, default=[5_000_000])
    parser.add_argument("--partitions", type=numbers, default=[1, 4, 16])
    parser.add_argument("--formats", type=lambda text: text.split(","), default=[*FORMATS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--server", default="ours")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    server = program(given.server)
    spark = session.build(
        "benchmark", conf={"spark.driver.memory": given.heap}, formats=("kafka", "delta")
    )
    print(HEADER, flush=True)
    for records in given.records:
        for partitions in given.partitions:
            server.start()
            try:
                measured(spark, server, records, partitions, given)
            finally:
                server.stop()
    spark.stop()
    print(f"\nSession's start, median of {given.rounds}: {starts(given.rounds, given.heap)}")


if __name__ == "__main__":
    main()
