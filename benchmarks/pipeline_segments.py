"""The decoder beside a plain Python loop, and `segments:` beside the tuned connector, in one run.

    python -m benchmarks.pipeline_segments [RECORDS] [ROUNDS] [--server ours|kafka]

1. RECORDS (5,000,000) of 100 random bytes in four partitions of one broker, as its clients' batches
   of 1,000 records, uncompressed.
2. One core: the decoder and the wire package's plain walk over the same files, by turns, in CPU
   seconds of this process: other programs on the machine change them little. The loop takes the
   first files only (it is slow) and both are given per record.
3. Spark on all cores of this machine: the same aggregate over both sources, by turns, ROUNDS (3)
   times; one turn of each comes before and is not counted. The connector reads from the broker
   whose directory `segments:` reads. Wall-clock seconds, and CPU seconds of Spark and its workers
   (without the broker's): on a busy machine only the second says something.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from benchmarks.pipeline_archive import fill
from benchmarks.servers import Program, program
from replog_pipeline import session, sources
from replog_pipeline.columns import COLUMNS
from replog_pipeline.decoder import Request, decode_segment
from twisted_broker.wire.records import iterate_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "records"
LOOP_RECORDS = 300_000
CHECKPOINT_SECONDS = 120
COLUMN_SETS = {
    "all eight columns": COLUMNS,
    "offset, value": ("offset", "value"),
    "partition, offset": ("partition", "offset"),
}


class Spent(NamedTuple):
    """Wall-clock and CPU seconds of one turn."""

    seconds: float
    cpu: float


def decode(data: bytes, columns: Iterable[str]) -> int:
    """The number of records, decoded to Arrow."""
    return sum(batch.num_rows for batch in decode_segment(data, Request(tuple(columns), TOPIC)))


def loop(data: bytes, columns: Iterable[str]) -> int:
    """The number of records, as Python objects by the plain walk."""
    return sum(1 for batch in iterate_batches(data, check_crc=True) for _ in batch.records())


def per_second(
    read: Callable[[bytes, Iterable[str]], int], data: bytes, columns: Iterable[str]
) -> float:
    began = time.process_time()
    return read(data, columns) / (time.process_time() - began)


def one_core(directory: Path, rounds: int) -> None:
    files = sorted(directory.glob(f"{TOPIC}-*/*.log"))
    data = files[0].read_bytes()
    short = data[: min(len(data), LOOP_RECORDS * 110)]
    short = short[
        : [
            batch.offset + batch.size_in_bytes
            for batch in iterate_batches(short, partial_tail=True)
        ][-1]
    ]
    rates: dict[str, list[float]] = {}
    decode(short, COLUMNS)
    for _ in range(rounds):
        rates.setdefault("plain loop", []).append(per_second(loop, short, COLUMNS))
        for name, columns in COLUMN_SETS.items():
            rates.setdefault(f"decoder, {name}", []).append(per_second(decode, data, columns))
    for name, each in rates.items():
        ratio = statistics.median(each) / statistics.median(rates["plain loop"])
        print(
            f"| one core: {name} | {statistics.median(each) / 1e6:.2f} M records/s | "
            f"{ratio:.1f} times the loop |",
            flush=True,
        )


def total(spark: SparkSession, source: sources.Source, columns: Iterable[str]) -> int:
    """The number of records, after every value of the columns was looked at."""
    from pyspark.sql import functions

    frame = sources.read(spark, source, sources.Wanted(tuple(columns)))
    sums = [functions.sum("offset")] + [functions.sum(functions.length("value"))] * (
        "value" in frame.columns
    )
    return int(frame.agg(functions.count("*"), *sums).collect()[0][0])


def cpu_of_children() -> float:
    """CPU seconds of the JVM and the Python workers so far, those that ended included."""
    spent = 0.0
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


def turn(
    spark: SparkSession, source: sources.Source, columns: Iterable[str], records: int
) -> Spent:
    cpu, began = cpu_of_children(), time.perf_counter()
    found = total(spark, source, columns)
    spent = Spent(time.perf_counter() - began, cpu_of_children() - cpu)
    if found != records:
        raise RuntimeError(f"{found} rows of {records} records from {source}")
    return spent


def in_spark(server: Program, directory: Path, records: int, rounds: int) -> None:
    both = {
        "connector": sources.KafkaSource(f"{server.address[0]}:{server.address[1]}", (TOPIC,)),
        "segments": sources.SegmentsSource((str(directory),), (TOPIC,)),
    }
    spark = session.build("benchmark", formats=("kafka",))
    for name, columns in COLUMN_SETS.items():
        found: dict[str, list[Spent]] = {kind: [] for kind in both}
        for number in range(rounds + 1):
            for kind, source in both.items():
                spent = turn(spark, source, columns, records)
                if number:
                    found[kind].append(spent)
        wall, cpu = (
            {
                kind: statistics.median(getattr(each, what) for each in all_)
                for kind, all_ in found.items()
            }
            for what in Spent._fields
        )
        print(
            f"| Spark: {name} | connector {wall['connector']:.2f} s, {cpu['connector']:.2f} "
            f"CPU s; segments {wall['segments']:.2f} s, "
            f"{cpu['segments']:.2f} CPU s | {wall['connector'] / wall['segments']:.2f} times "
            "as fast |",
            flush=True,
        )
    spark.stop()


def await_checkpoint(directory: Path, records: int) -> None:
    """Until the high-watermark checkpoint covers what was produced."""
    path, deadline = (
        directory / "replication-offset-checkpoint",
        time.monotonic() + CHECKPOINT_SECONDS,
    )
    while (
        sum(int(line.split()[2]) for line in _lines(path) if line.startswith(f"{TOPIC} ")) < records
    ):
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{path} does not cover {records} records after {CHECKPOINT_SECONDS} s"
            )
        time.sleep(0.5)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("records", nargs="?", type=int, default=5_000_000)
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("--server", default="ours")
    given = parser.parse_args()
    server = program(given.server)
    server.start()
    try:
        fill(server, TOPIC, given.records)
        directory = server.directory / "data"
        await_checkpoint(directory, given.records)
        print(f"{given.records:,} records of 100 bytes, {os.cpu_count()} cores, {server.name}")
        one_core(directory, given.rounds)
        in_spark(server, directory, given.records, given.rounds)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
