"""An archive in a process of its own that tells how much of the heap is in use, after a collection,
every so many batches.

    python -m tests.pipeline.jobs.archive_heap URL TABLE FORMAT BATCHES RECORDS_OF_A_BATCH EVERY

One JSON array of megabytes on standard output. The size of the heap comes from PYSPARK_SUBMIT_ARGS.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from replog_pipeline import session
from replog_pipeline.jobs import archive
from replog_pipeline.jobs.archive.signals import Stopper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEANS = "kafka.consumer:type=app-info,id=consumer-*"


def live_megabytes(spark: SparkSession) -> int:
    """What a full collection leaves."""
    lang = spark._jvm.java.lang
    lang.System.gc()
    return (
        int(lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed())
        >> 20
    )


def consumers(spark: SparkSession) -> int:
    """How many consumers are open in this JVM: each has a bean."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    classes, arguments = (
        gateway.new_array(jvm.java.lang.Class, 2),
        gateway.new_array(jvm.java.lang.Object, 2),
    )
    for at, name in enumerate(("ObjectName", "QueryExp")):
        classes[at] = jvm.java.lang.Class.forName(f"javax.management.{name}")
    arguments[0] = jvm.javax.management.ObjectName(BEANS)
    ask = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethod(
        "queryNames", classes
    )
    return len(
        ask.invoke(jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer(), arguments)
    )


class Measuring(Stopper):
    """Asked before every batch: measures before each `every`-th, and ends the archive after
    `batches`.
    """

    def __init__(self, spark: SparkSession, batches: int, every: int) -> None:
        super().__init__()
        self.spark, self.batches, self.every = spark, batches, every
        self.done = -1
        self.found: list[int] = []

    def is_set(self) -> bool:
        self.done += 1
        if self.done and self.done % self.every == 0:
            self.found.append(live_megabytes(self.spark))
        return self.done == self.batches


def main() -> None:
    url, to, form, *numbers = sys.argv[1:]
    batches, records, every = map(int, numbers)
    spark = session.build("heap", formats=("kafka", "delta"))
    measuring = Measuring(spark, batches, every)
    config = archive.ArchiveConfig(url, to, form, max_records=records)
    done = archive.run(spark, config, stopper=measuring)
    if done.batches != batches:
        raise RuntimeError(f"{done.batches} batches, not {batches}: the topic is too short")
    print(json.dumps(measuring.found))
    spark.stop()


if __name__ == "__main__":
    main()
