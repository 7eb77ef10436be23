"""`replog pipeline demo` and `make demo-pipeline`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from replog_pipeline.demo.flights import ALL
from replog_pipeline.progress import Progress
from twisted_broker.cli.number_types import WholeNumber


@click.command("demo")
@click.option(
    "--flights",
    type=WholeNumber(1, ALL),
    default=ALL,
    show_default=True,
    help="How many; all is the year 2013.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="A new folder for logs, tables and the report; a temporary one if not given. It stays.",
)
@click.option("--quiet", is_flag=True, help="Only the outcome.")
def command(flights: int, data: Path | None, quiet: bool) -> None:
    """Send a year of flights through a cluster of three brokers, and compare.

    They go into a table, back into a topic, and into a table again: are they equal?
    """
    from replog_pipeline import session
    from replog_pipeline.demo import steps

    progress = Progress(quiet)
    directory = (data or Path(tempfile.mkdtemp(prefix="replog-demo-"))).absolute()
    steps.check(directory)
    with progress.step("started Spark"):
        spark = session.build("replog demo", formats=("kafka", "delta"), tell=progress.say)
    outcome = steps.run(spark, directory, flights, progress)
    for finding in outcome.findings:
        click.echo(finding)
    if not outcome.findings:
        click.echo(
            f"{outcome.records:,} flights: produced, archived, replayed, archived again. The "
            "two tables are equal, the replicas too."
        )
    click.echo(
        f"Report: {outcome.page}\nAll files: {directory} (rm -r it when you have seen enough)"
    )
    sys.exit(1 if outcome.findings else 0)
