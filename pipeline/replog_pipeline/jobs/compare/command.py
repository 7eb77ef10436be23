"""`replog pipeline compare`. Paths that are no directories are refused before Spark is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from replog_pipeline.jobs.compare.job import CompareConfig, CompareResult, planned, run
from replog_pipeline.segments.log_view import HIGH_WATERMARK, LOG_END
from replog_pipeline.sources import split


@click.command("compare")
@click.argument("directories", nargs=-1, required=True, metavar="DIR DIR [DIR]...")
@click.option("--topics", default="", metavar="TOPIC[,TOPIC]", help="Only these topics.")
@click.option(
    "--upto",
    type=click.Choice([HIGH_WATERMARK, LOG_END]),
    default=HIGH_WATERMARK,
    show_default=True,
    help=(
        "Compare up to the lowest high watermark that a directory recorded, or up to the "
        "lowest log end."
    ),
)
@click.option(
    "--json", "as_json", is_flag=True, help="The result as one JSON object on standard output."
)
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def command(directories: Sequence[str], topics: str, upto: str, as_json: bool, quiet: bool) -> None:
    """Compare the replicas of partitions that several brokers' log directories hold.

    The exit status is 1 if they differ.
    """
    from replog_pipeline import session

    config = CompareConfig(tuple(directories), split(topics), upto, quiet)
    planned(config)
    result = run(session.build("replog compare", formats=()), config)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        print_result(result)
    sys.exit(1 if result.findings else 0)


def print_result(result: CompareResult) -> None:
    """For people. A remark that holds for many partitions of a topic is shown once."""
    alike: dict[tuple[str, str], list[int]] = {}
    for partition in result.partitions:
        for remark in partition.remarks:
            alike.setdefault((partition.topic, remark), []).append(partition.partition)
    for (topic, remark), numbers in alike.items():
        more = f" and {len(numbers) - 1} more of its partitions" if len(numbers) > 1 else ""
        click.echo(f"{topic}-{numbers[0]}{more}: {remark}")
    for finding in result.findings:
        click.echo(str(finding))
    compared = sum(partition.compared for partition in result.partitions)
    count = len(result.findings)
    click.echo(
        f"{compared} of {len(result.partitions)} partitions compared up to the lowest "
        f"{result.config.upto.replace('_', ' ')}: "
        f"{result.batches:,} batches, {result.bytes:,} bytes, {count or 'no'} "
        f"finding{'s' * (count != 1)}"
    )
