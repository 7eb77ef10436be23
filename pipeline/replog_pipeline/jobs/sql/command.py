"""`replog pipeline sql`. Arguments are checked before Spark is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from replog_pipeline.jobs.sql.job import ENGINES, FORMATS, ROWS_SHOWN, SqlConfig, check, run
from replog_pipeline.jobs.sql.views import given
from replog_pipeline.kafka_cluster import ClientConfig
from replog_pipeline.progress import Progress
from replog_pipeline.sources.client_config import client_options
from replog_pipeline.stores.spark_conf import spark_options
from twisted_broker.cli.number_types import WholeNumber


@click.command("sql")
@click.argument("query")
@click.option(
    "--from",
    "texts",
    required=True,
    multiple=True,
    metavar="[NAME=]SOURCE",
    help="kafka://HOST:PORT/TOPIC[,TOPIC], segments:DIRECTORY or a table's PATH, a Delta "
    "table's also as it was: PATH@v12, PATH@2026-01-31T12:00:00Z; repeat it.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="A table for people, or CSV (both on standard output), or files in --to.",
)
@click.option("--to", metavar="FOLDER", help="A new folder, for CSV or Parquet.")
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    default=ROWS_SHOWN,
    show_default=True,
    metavar="N",
    help="Rows of a table.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    show_default=True,
    help="auto: DuckDB for tables of this machine where it means the same, Spark for the rest.",
)
@client_options
@spark_options
@click.option("--quiet", is_flag=True, help="No progress.")
def command(
    query: str,
    texts: Sequence[str],
    form: str,
    to: str | None,
    limit: int,
    engine: str,
    client: ClientConfig,
    conf: dict[str, str],
    quiet: bool,
) -> None:
    """Run a QUERY of Spark SQL over topics, log directories and tables, each a view of its name.

    Columns: key, value, topic, partition, offset, timestamp, timestampType, headers and date.
    """
    from replog_pipeline import session
    from replog_pipeline.jobs.sql.duck import attempted

    config = SqlConfig(query, given(texts, client), form, to, limit, engine)
    if attempted(config, check(config), sys.stdout):
        return
    tables = [("--from", each.place) for each in config.named if each.source is None]
    stores = session.check_stores([*tables, ("--to", to or "")], conf)
    progress = Progress(quiet)
    formats = ("kafka", "delta", *stores)
    spark = session.build("replog sql", conf=conf, formats=formats, tell=progress.say)
    warning = session.lost_on_workers(spark, to) if to else ""
    if warning:
        click.echo(f"replog pipeline: {warning}", err=True)
    run(spark, config)
