"""`replog pipeline compare`: whether the replicas in several log directories are equal up to the
high watermark; if not, where they diverge.

1. Only batch headers are compared (offsets, leader epoch, CRC, size), so it is as fast as files can
   be read. CRCs are checked by `audit`.
2. A finding names the first offset at which the replicas of a partition differ, the last
   batch that they share with its leader epoch, and what each has there: file, byte, offsets, leader
   epoch. Or it says that they are of different topics.
3. Missing partitions, different log starts and cleaned ranges are remarks. Nothing beyond the
   compared end is read.

Source: RL 9; Kafka's ReplicaVerificationTool. Not here: what may be compared (`ranges`), the
comparison (`transforms.replicas`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from replog_pipeline import flat_rows
from replog_pipeline.errors import PipelineError, as_pipeline_error
from replog_pipeline.jobs.compare import ranges
from replog_pipeline.jobs.compare.findings import Parting, partings
from replog_pipeline.jobs.compare.ranges import Partition
from replog_pipeline.jobs.compare.task import GONE, PIECE, READ, ROW, compare_piece
from replog_pipeline.progress import Progress
from replog_pipeline.segments.log_folder import folders
from replog_pipeline.segments.log_view import HIGH_WATERMARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class CompareConfig:
    """`directories`: two or more log directories; `topics`: only these; `upto`: HIGH_WATERMARK
    or LOG_END.
    """

    directories: tuple[str, ...]
    topics: tuple[str, ...] = ()
    upto: str = HIGH_WATERMARK
    quiet: bool = True


@dataclass
class CompareResult:
    """What was compared and what was found; `bytes` and `batches` are of all replicas together."""

    config: CompareConfig
    partitions: list[Partition]
    findings: list[Parting] = field(default_factory=list)
    batches: int = 0
    bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "directories": list(self.config.directories),
            "upto": self.config.upto,
            "batches": self.batches,
            "bytes": self.bytes,
            "partitions": [partition.to_json() for partition in self.partitions],
            "findings": [asdict(finding) for finding in self.findings],
        }


def transform(pieces: DataFrame) -> DataFrame:
    """Pieces (`task.PIECE`) to what was read and where replicas part (`task.ROW`)."""
    return pieces.mapInArrow(flat_rows.mapper(compare_piece, ROW), ROW)


def planned(config: CompareConfig) -> list[Partition]:
    """The partitions to compare.

    Raises PipelineError, before Spark is started, for directories that are none.
    """
    if len({os.path.realpath(directory) for directory in config.directories}) < max(
        2, len(config.directories)
    ):
        raise PipelineError(
            "compare takes two or more different log directories: replog pipeline compare DIR "
            "DIR [DIR]"
        )
    found = [
        folder
        for directory in config.directories
        for folder in folders(directory, config.topics, internal=True)
    ]
    partitions = ranges.plan(found, config.upto)
    if all(len(partition.replicas) < 2 for partition in partitions):
        raise PipelineError(
            "compare: no partition is in two of these directories: name the log directories "
            "of brokers of one cluster"
        )
    return partitions


@as_pipeline_error
def run(spark: SparkSession, config: CompareConfig) -> CompareResult:
    """Compares; reads only."""
    partitions = planned(config)
    result = CompareResult(
        config,
        partitions,
        [Parting.of_ids(partition) for partition in partitions if partition.problem],
    )
    pieces = [piece for partition in partitions for piece in ranges.pieces(partition)]
    if pieces:
        tasks = min(len(pieces), 4 * spark.sparkContext.defaultParallelism)
        frame = spark.createDataFrame(pieces, PIECE).repartition(tasks)
        with Progress(config.quiet).step(
            f"compared {len(partitions)} partitions in {len(pieces)} pieces", spark
        ):
            rows = [row.asDict() for row in transform(frame).collect()]
        result.batches = sum(row["batches"] for row in rows if row["kind"] == READ)
        result.bytes = sum(row["bytes"] for row in rows if row["kind"] == READ)
        result.findings += partings(rows)
        note_gone(partitions, rows)
    return result


def note_gone(partitions: Sequence[Partition], rows: Sequence[Mapping[str, Any]]) -> None:
    """Remarks of the segments that retention took while they were to be read."""
    gone = {(row["topic"], row["partition"]): row["file"] for row in rows if row["kind"] == GONE}
    for partition in partitions:
        if (partition.topic, partition.partition) in gone:
            partition.remarks.append(
                f"{gone[partition.topic, partition.partition]} was deleted meanwhile: not "
                "compared there"
            )
