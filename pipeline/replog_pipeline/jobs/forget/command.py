"""`replog pipeline forget`. Arguments are checked before Spark is started."""

from __future__ import annotations

import json

import click

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.forget.job import ForgetConfig, check, run
from replog_pipeline.progress import Progress
from replog_pipeline.stores.spark_conf import spark_options


@click.command("forget")
@click.argument("table", metavar="TABLE")
@click.option(
    "--key", "keys", multiple=True, metavar="TEXT", help="A record's key; may be repeated."
)
@click.option("--key-hex", "hexes", multiple=True, metavar="HEX", help="One that is no text.")
@spark_options
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(
    table: str,
    keys: tuple[str, ...],
    hexes: tuple[str, ...],
    conf: dict[str, str],
    as_json: bool,
    quiet: bool,
) -> None:
    """Delete all records of some keys from a Delta table (the --to of an archive), also from its
    files and its older versions, and mark them, so that no replay writes them again.

    Stop the archive of this table first. Run it again after any failure.
    """
    from replog_pipeline import session

    try:
        found = (*(key.encode() for key in keys), *map(bytes.fromhex, hexes))
    except ValueError:
        raise PipelineError("--key-hex: write two hexadecimal digits for each byte") from None
    if not found:
        raise PipelineError("name a key: --key TEXT or --key-hex HEX")
    check(table)
    formats = ("delta", *session.check_stores([("forget", table)], conf))
    progress = Progress(quiet)
    spark = session.build("replog forget", conf=conf, formats=formats, tell=progress.say)
    result = run(spark, ForgetConfig(table, found), progress)
    click.echo(json.dumps(result.to_json()) if as_json else str(result))
