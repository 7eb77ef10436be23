"""`replog pipeline audit`. A path that is no directory is refused before Spark is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from replog_pipeline import sources
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.audit import cleanup
from replog_pipeline.jobs.audit.job import (
    HANGING_AFTER_SECONDS,
    AuditConfig,
    AuditResult,
    known_folders,
    run,
)
from replog_pipeline.kafka_cluster import ClientConfig
from replog_pipeline.sources import KafkaSource, SegmentsSource, reachable
from replog_pipeline.sources.client_config import client_options
from twisted_broker.cli.number_types import WholeNumber


@click.command("audit")
@click.option("--from", "source", required=True, metavar="SOURCE", help=sources.SHAPES)
@click.option(
    "--cleanup-policy",
    "policies",
    multiple=True,
    metavar="[TOPIC=]POLICY",
    help="delete, compact or compact,delete, of one topic or all; compacted logs may have holes.",
)
@click.option(
    "--allow-holes",
    type=WholeNumber(min=0),
    default=0,
    show_default=True,
    metavar="OFFSETS",
    help="kafka:// only: holes up to this are passed over. (End markers of transactions are none.)",
)
@click.option(
    "--hanging-after",
    type=WholeNumber(min=0),
    default=HANGING_AFTER_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="segments: only: an open transaction hangs so long after its last record.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="The result as one JSON object on standard output."
)
@client_options
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def command(
    source: str,
    policies: Sequence[str],
    allow_holes: int,
    hanging_after: int,
    client: ClientConfig,
    as_json: bool,
    quiet: bool,
) -> None:
    """Look for gaps, duplicates, sequence jumps, damaged batches and hanging transactions.

    The exit status is 1 if there are any.
    """
    from replog_pipeline import session

    url = sources.parse(source, client=client)
    config = AuditConfig(url, tuple(policies), allow_holes, hanging_after, quiet)
    said = cleanup.given(config.policies)
    known = (
        {each.topic for each in known_folders(config.source)}
        if isinstance(config.source, SegmentsSource)
        else {*config.source.topics}
    )
    unknown = sorted({*said} - {cleanup.ALL} - known)
    if unknown:
        raise PipelineError(
            f"--cleanup-policy: {unknown[0]} is no topic of {config.source}; there is: "
            f"{', '.join(sorted(known))}"
        )
    if isinstance(config.source, KafkaSource):
        reachable.found(config.source)
    formats = ("kafka",) if isinstance(config.source, KafkaSource) else ()
    result = run(session.build("replog audit", formats=formats), config)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        print_result(result)
    sys.exit(1 if result.findings else 0)


def print_result(result: AuditResult) -> None:
    """For people."""
    for remark in result.remarks:
        click.echo(remark)
    for finding in result.findings:
        click.echo(str(finding))
    listed = len(result.findings) + sum(finding.more for finding in result.findings)
    records = sum(each.records for each in result.partitions)
    open_ones = sum(max(0, each.open) for each in result.partitions)
    still = f", {open_ones} open transaction{'s' * (open_ones != 1)}" if open_ones else ""
    click.echo(
        f"{len(result.partitions)} partitions, {records:,} records{still}: {listed or 'no'} "
        f"finding{'s' * (listed != 1)}"
    )
