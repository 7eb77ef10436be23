"""`replog pipeline report`. The directory is checked before Spark is started."""

from __future__ import annotations

import json

import click

from replog_pipeline import sources
from replog_pipeline.jobs.report.job import PAGE, ReportConfig, checked, run
from replog_pipeline.kafka_cluster import ClientConfig
from replog_pipeline.sources import KafkaSource, extents
from replog_pipeline.sources.client_config import client_options


@click.command("report")
@click.option("--from", "source", required=True, metavar="SOURCE", help=sources.SHAPES)
@click.option(
    "--to",
    required=True,
    metavar="DIR",
    help=f"The directory for {PAGE} and the tables (CSV); new, empty, or an earlier report's.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="The tables as one JSON object on standard output, too (without the minutes).",
)
@client_options
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def command(source: str, to: str, as_json: bool, client: ClientConfig, quiet: bool) -> None:
    """Show what is in topics: traffic, partitions, batches, codecs, keys, compaction, lag; as
    tables and as an HTML page.
    """
    from replog_pipeline import session

    config = ReportConfig(sources.parse(source, client=client), to, quiet)
    checked(to)
    extents.check(config.source)
    if isinstance(config.source, KafkaSource):
        spark = session.build("replog report", formats=("kafka",))
    else:
        spark = session.build("replog report", formats=())
    result = run(spark, config)
    click.echo(json.dumps(result.to_json()) if as_json else "\n".join(map(str, result.files)))
