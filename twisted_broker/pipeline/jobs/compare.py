"""`replog pipeline compare`: do the replicas in several log directories hold the same, up to the high watermark? If not: where do they part?

1. Only batch headers are compared (offsets, leader epoch, CRC, size), so it is as fast as files can be read. CRCs are checked by `audit`.
2. A finding names the first offset at which the replicas of a partition are not alike, the last batch that they share with its leader epoch, and what
   each has there: file, byte, offsets, leader epoch. Or it says that they are of different topics.
3. Missing partitions, different log starts and cleaned ranges are remarks. What lies beyond the compared end is not looked at.

Source: RL 9; Kafka's ReplicaVerificationTool. Left out: what may be compared (`compare_plan`), the comparison (`transforms.replicas`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from twisted_broker.pipeline import flat_rows
from twisted_broker.pipeline.errors import PipelineError
from twisted_broker.pipeline.jobs import compare_plan
from twisted_broker.pipeline.jobs.compare_findings import Parting, partings
from twisted_broker.pipeline.jobs.compare_plan import Partition
from twisted_broker.pipeline.jobs.compare_worker import GONE, PIECE, READ, ROW, compare_piece
from twisted_broker.pipeline.log_folder import folders
from twisted_broker.pipeline.log_view import HIGH_WATERMARK, LOG_END
from twisted_broker.pipeline.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class CompareConfig:
    """`directories`: two or more log directories; `topics`: only these; `upto`: HIGH_WATERMARK or LOG_END."""

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
            "directories": list(self.config.directories), "upto": self.config.upto, "batches": self.batches, "bytes": self.bytes,
            "partitions": [partition.to_json() for partition in self.partitions], "findings": [asdict(finding) for finding in self.findings],
        }  # fmt: skip


def transform(pieces: DataFrame) -> DataFrame:
    """Pieces (`compare_worker.PIECE`) to what was read and where replicas part (`compare_worker.ROW`)."""
    return pieces.mapInArrow(flat_rows.mapper(compare_piece, ROW), ROW)


def planned(config: CompareConfig) -> list[Partition]:
    """The partitions to compare. Raises PipelineError, before Spark is started, for directories that are none."""
    if len({os.path.realpath(directory) for directory in config.directories}) < max(2, len(config.directories)):
        raise PipelineError("compare takes two or more different log directories: replog pipeline compare DIR DIR [DIR]")
    found = [folder for directory in config.directories for folder in folders(directory, config.topics, internal=True)]
    partitions = compare_plan.plan(found, config.upto)
    if all(len(partition.replicas) < 2 for partition in partitions):
        raise PipelineError("compare: no partition is in two of these directories: name the log directories of brokers of one cluster")
    return partitions


def run(spark: SparkSession, config: CompareConfig) -> CompareResult:
    """Compares; reads only."""
    partitions = planned(config)
    result = CompareResult(config, partitions, [Parting.of_ids(partition) for partition in partitions if partition.problem])
    pieces = [piece for partition in partitions for piece in compare_plan.pieces(partition)]
    if pieces:
        tasks = min(len(pieces), 4 * spark.sparkContext.defaultParallelism)
        frame = spark.createDataFrame(pieces, PIECE).repartition(tasks)
        with Progress(config.quiet).step(f"compared {len(partitions)} partitions in {len(pieces)} pieces", spark):
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
            partition.remarks.append(f"{gone[partition.topic, partition.partition]} was deleted meanwhile: not compared there")


def tell(result: CompareResult) -> None:
    """For people. A remark that holds for many partitions of a topic is told once."""
    alike: dict[tuple[str, str], list[int]] = {}
    for partition in result.partitions:
        for remark in partition.remarks:
            alike.setdefault((partition.topic, remark), []).append(partition.partition)
    for (topic, remark), numbers in alike.items():
        click.echo(f"{topic}-{numbers[0]}{f' and {len(numbers) - 1} more of its partitions' if len(numbers) > 1 else ''}: {remark}")
    for finding in result.findings:
        click.echo(str(finding))
    compared = sum(partition.compared for partition in result.partitions)
    count = len(result.findings)
    click.echo(f"{compared} of {len(result.partitions)} partitions compared up to the lowest {result.config.upto.replace('_', ' ')}: "
               f"{result.batches:,} batches, {result.bytes:,} bytes, {count or 'no'} finding{'s' * (count != 1)}")  # fmt: skip


@click.command("compare")
@click.argument("directories", nargs=-1, required=True, metavar="DIR DIR [DIR]...")
@click.option("--topics", default="", metavar="TOPIC[,TOPIC]", help="Only these topics.")
@click.option("--upto", type=click.Choice([HIGH_WATERMARK, LOG_END]), default=HIGH_WATERMARK, show_default=True,
              help="Compare up to the lowest high watermark that a directory recorded, or up to the lowest log end.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object on standard output.")
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def command(directories: Sequence[str], topics: str, upto: str, as_json: bool, quiet: bool) -> None:
    """Compare the replicas of partitions that several brokers' log directories hold. The exit status is 1 if they differ."""
    from twisted_broker.pipeline import session
    from twisted_broker.pipeline.sources import split

    config = CompareConfig(tuple(directories), split(topics), upto, quiet)
    planned(config)
    result = run(session.build("replog compare", formats=()), config)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        tell(result)
    sys.exit(1 if result.findings else 0)
