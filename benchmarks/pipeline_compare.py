"""Gigabytes per second of `compare` and `audit` over logs in the page cache.

    python -m benchmarks.pipeline_compare [GIGABYTES] [ROUNDS] [PLACE]

1. GIGABYTES (2) per replica in PLACE (a temporary directory): one topic, four partitions, segments
   of 256 MB, batches of 145 records of 100 random bytes (16 KB), uncompressed. `compare` reads two
   replicas that are alike, `audit` one.
2. Measured is `run` in a session that has done one small turn: planning, all tasks, gathering; not
   the JVM's start. Best and median of ROUNDS (3).
3. CPU is that of this process, the JVM and the workers: it holds up on a machine that others use
   too, GB/s does not.
4. Then the same scans in this process, on one core and without Spark: what a task can do.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.meter import cpu_seconds
from replog_pipeline import session, sources
from replog_pipeline.jobs import audit, compare
from replog_pipeline.segments.check import check
from replog_pipeline.segments.chunks import headers
from twisted_broker.wire.records import BatchBuilder, set_offsets_and_epoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
SEGMENT_BYTES = 256 << 20
RECORDS = 145
WARM_GIGABYTES = 0.01


def one_batch() -> bytearray:
    builder = BatchBuilder()
    for number in range(RECORDS):
        builder.append(1_700_000_000_000 + number, b"key", os.urandom(100))
    return bytearray(builder.build())


def write(directory: Path, batch: bytearray, gigabytes: float) -> int:
    """Fills a log directory: the bytes written.

    The batches differ in their offsets, which no CRC covers.
    """
    ends, written = {}, 0
    for number in range(PARTITIONS):
        folder, offset, left = directory / f"load-{number}", 0, int(gigabytes * 1e9 / PARTITIONS)
        folder.mkdir(parents=True)
        while left > 0:
            with (folder / f"{offset:020d}.log").open("wb") as file:
                while file.tell() < min(left, SEGMENT_BYTES):
                    set_offsets_and_epoch(batch, offset, 0)
                    file.write(batch)
                    offset += RECORDS
                left -= file.tell()
                written += file.tell()
        ends[number] = offset
    lines = [f"load {number} {end}" for number, end in ends.items()]
    (directory / "replication-offset-checkpoint").write_text(
        "\n".join(["0", str(len(lines)), *lines]) + "\n"
    )
    return written


def measured(name: str, size: int, rounds: int, job: Callable[[], object]) -> None:
    """Prints GB/s of a job over `size` bytes."""
    spent, used = [], []
    for _ in range(rounds):
        began, cpu = time.perf_counter(), cpu_seconds(family())
        job()
        used.append(cpu_seconds(family()) - cpu)
        spent.append(time.perf_counter() - began)
    best, middle = (size / seconds / 1e9 for seconds in (min(spent), statistics.median(spent)))
    work = statistics.median(used) / (size / 1e9)
    print(
        f"{name:36} {size / 1e9:6.2f} GB   best {best:5.2f}, median {middle:5.2f} GB/s, "
        f"{work:5.2f} CPU s per GB",
        flush=True,
    )


def family() -> list[int]:
    """This process, and all that it started."""
    return [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]


def compared(spark: SparkSession, directories: tuple[str, ...]) -> None:
    sound(compare.run(spark, compare.CompareConfig(directories)))


def audited(spark: SparkSession, directory: str) -> None:
    sound(audit.run(spark, audit.AuditConfig(sources.parse(f"segments:{directory}"))))


def sound(result: compare.CompareResult | audit.AuditResult) -> None:
    if result.findings:
        raise RuntimeError(f"found in sound logs: {result.findings[0]}")


def main() -> None:
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with (
        nullcontext(sys.argv[3])
        if len(sys.argv) > 3
        else tempfile.TemporaryDirectory(prefix="compare-") as place
    ):
        warm, pair = ((f"{place}/{name}-a", f"{place}/{name}-b") for name in ("warm", "full"))
        batch = one_batch()
        for directory in warm:
            write(Path(directory), batch, WARM_GIGABYTES)
        size = sum(write(Path(directory), batch, gigabytes) for directory in pair)
        spark = session.build("benchmark", formats=())
        compared(spark, warm)
        audited(spark, warm[0])
        measured("compare, two replicas", size, rounds, lambda: compared(spark, pair))
        measured("audit, one replica", size // 2, rounds, lambda: audited(spark, pair[0]))
        spark.stop()
        first = next(Path(pair[0]).glob("load-0/*.log"))
        measured(
            "headers, one core, no Spark", first.stat().st_size, rounds, lambda: headers(first)
        )
        measured(
            "CRCs and counts, one core, no Spark",
            first.stat().st_size,
            rounds,
            lambda: check(first),
        )


if __name__ == "__main__":
    main()
