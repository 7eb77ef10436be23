"""`replog pipeline maintain`. Arguments are checked before Spark is started."""

from __future__ import annotations

import json

import click

from replog_pipeline.jobs.maintain.job import (
    MOST_HOURS,
    MaintainConfig,
    check,
    run,
)
from replog_pipeline.lake.file_sizing import MOST_MB, TARGET_MB
from replog_pipeline.lake.maintained import RETAIN_HOURS
from replog_pipeline.progress import Progress
from replog_pipeline.stores.spark_conf import spark_options
from twisted_broker.cli.number_types import WholeNumber


@click.command("maintain")
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@click.option(
    "--target-file-mb",
    "file_mb",
    type=WholeNumber(min=1, max=MOST_MB),
    default=TARGET_MB,
    show_default=True,
    metavar="N",
    help="Files are merged up to about N MiB.",
)
@click.option(
    "--retain-hours",
    type=WholeNumber(min=RETAIN_HOURS, max=MOST_HOURS),
    default=RETAIN_HOURS,
    show_default=True,
    metavar="H",
    help="What was replaced or left behind in the last H hours stays.",
)
@spark_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each table.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(
    tables: tuple[str, ...],
    file_mb: int,
    retain_hours: int,
    conf: dict[str, str],
    as_json: bool,
    quiet: bool,
) -> None:
    """Merge the small files of tables (the --to of an archive), one after another, and remove what
    killed runs left behind.

    Run it again after any failure. No archive may run meanwhile on a Parquet table, nor on a table
    in an object store; on any other Delta table it may.
    """
    from replog_pipeline import session

    for place in tables:
        check(place)
    stores = session.check_stores([("maintain", place) for place in tables], conf)
    formats = ("delta", *stores)
    progress = Progress(quiet)
    spark = session.build("replog maintain", conf=conf, formats=formats, tell=progress.say)
    for place in tables:
        result = run(spark, MaintainConfig(place, file_mb, retain_hours), progress)
        click.echo(json.dumps(result.to_json()) if as_json else str(result))
