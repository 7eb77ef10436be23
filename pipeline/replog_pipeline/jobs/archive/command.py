"""`replog pipeline archive`. Arguments are checked before Spark is started."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from replog_pipeline import sources
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.archive import bad_records, bounds, topics, value_columns
from replog_pipeline.jobs.archive.decode_options import decode_options
from replog_pipeline.jobs.archive.figures import Figures
from replog_pipeline.jobs.archive.heartbeat import heartbeat
from replog_pipeline.jobs.archive.job import (
    MAINTAIN_EVERY,
    ArchiveConfig,
    check_layout,
    check_upsert,
    run,
)
from replog_pipeline.jobs.archive.metrics import serving
from replog_pipeline.jobs.archive.signals import on_signals
from replog_pipeline.kafka_cluster import ClientConfig
from replog_pipeline.lake import guards, layout, table
from replog_pipeline.lake.file_sizing import MOST_MB, TARGET_MB
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.progress import LINE_SECONDS, Progress
from replog_pipeline.sources import extents
from replog_pipeline.sources.client_config import client_options
from replog_pipeline.stores.spark_conf import spark_options
from twisted_broker.cli.number_types import Number, WholeNumber

if TYPE_CHECKING:
    from replog_pipeline.values.settings import Decoding


LONGEST_INTERVAL = 7 * 86400.0
"""Seconds: a week."""


class Format(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A format of tables; of Iceberg, which many will look for, why it is none."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> str:
        if str(value) == table.ICEBERG:
            self.fail(table.NO_ICEBERG, param, context)
        found: str = super().convert(value, param, context)
        return found


@click.command("archive")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="URL",
    help="kafka://HOST:PORT/TOPIC[,TOPIC], with patterns as orders-.*, or segments:DIRECTORY.",
)
@click.option(
    "--to",
    required=True,
    metavar="PATH",
    help="The table: a folder, or a URI that Spark can write.",
)
@click.option(
    "--partition-by",
    metavar="COLUMNS",
    help="Of a new Delta table, its folders: of date, topic, partition; date unless said.",
)
@click.option("--format", type=Format([*table.FORMATS]), help="Of a new table; delta unless said.")
@click.option(
    "--mode",
    type=click.Choice(["append", "upsert"]),
    default="append",
    show_default=True,
    help="append: every record. upsert: the last value of each key; tombstones delete (Delta).",
)
@click.option(
    "--key",
    type=click.Choice(["key"]),
    is_flag=False,
    flag_value="key",
    help="Of --mode upsert: by which column; the record's key, which needs not be said.",
)
@click.option("--available-now", is_flag=True, help="What is there now, then end (the default).")
@click.option(
    "--continuous",
    is_flag=True,
    help=(
        "Go on until SIGTERM or Ctrl-C (after the batch at work), also when brokers are away "
        "meanwhile."
    ),
)
@click.option(
    "--interval",
    type=Number(min=0.1, max=LONGEST_INTERVAL),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Between two looks of --continuous.",
)
@click.option(
    "--max-records",
    type=WholeNumber(min=1),
    metavar="N",
    help="At most so many records in one batch.",
)
@click.option(
    "--read-committed", is_flag=True, help="Only what is not in an open or aborted transaction."
)
@click.option(
    "--allow-gaps",
    is_flag=True,
    help=(
        "Go on when records were deleted before they were archived; each gap is told, the "
        "status is 1."
    ),
)
@click.option(
    "--since",
    metavar="TIME|OFFSETS",
    help='Where a new table begins: 2026-01-31T12:00:00Z, or {"0": 1000}.',
)
@click.option("--until", metavar="TIME|OFFSETS", help="Where the archive ends.")
@click.option(
    "--on-bad-record",
    type=click.Choice(bad_records.CHOICES),
    help=(
        "A timestamp that Spark cannot hold, a value that --decode cannot read, no key for --mode "
        "upsert: fail; null, as far as it can be a row; dead-letter, a file beside the table."
    ),
)
@click.option(
    "--target-file-mb",
    "file_mb",
    type=WholeNumber(min=1, max=MOST_MB),
    default=TARGET_MB,
    show_default=True,
    metavar="N",
    help="A batch makes one file for each date, and more only of what is larger than N MiB.",
)
@click.option(
    "--maintain-every",
    type=WholeNumber(min=0),
    default=MAINTAIN_EVERY,
    show_default=True,
    metavar="N",
    help="Of --continuous: small files are merged after every N batches; 0: never.",
)
@click.option(
    "--table-per-topic",
    is_flag=True,
    help="A table for each topic, in the folder of its name in --to; always so with patterns.",
)
@click.option(
    "--group",
    metavar="NAME",
    help="Commit what the table has reached as this consumer group's offsets, for tools that show "
    "lag.",
)
@click.option(
    "--metrics-port",
    type=WholeNumber(0, 65535),
    metavar="PORT",
    help="Metrics for Prometheus at http://127.0.0.1:PORT/metrics; 0: a free port.",
)
@decode_options
@client_options
@spark_options
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(
    source: str,
    to: str,
    format: str | None,
    mode: str,
    key: str | None,
    available_now: bool,
    continuous: bool,
    interval: float,
    max_records: int | None,
    read_committed: bool,
    allow_gaps: bool,
    since: str | None,
    until: str | None,
    on_bad_record: str | None,
    file_mb: int,
    maintain_every: int,
    partition_by: str | None,
    table_per_topic: bool,
    group: str | None,
    metrics_port: int | None,
    decoding: Decoding | None,
    client: ClientConfig,
    conf: dict[str, str],
    as_json: bool,
    quiet: bool,
) -> None:
    """Copy topics into a Delta or Parquet table, partitioned by the day of the timestamp, each
    record exactly once. Of a pattern each topic gets its table, also those that come later.

    Where the last run ended stands in the table itself; run it again after any failure.
    """
    from replog_pipeline import session

    if available_now and continuous:
        raise PipelineError("--available-now and --continuous exclude one another: leave one out")
    if until and continuous:
        raise PipelineError("--until: a --continuous archive does not end: leave one out")
    isolation = "read_committed" if read_committed else "read_uncommitted"
    config = ArchiveConfig(
        source,
        to,
        format,
        interval if continuous else None,
        max_records,
        isolation,
        allow_gaps,
        file_mb,
        client,
        group,
        decoding,
        mode == "upsert",
        on_bad_record,
        bounds.parse(since, "--since"),
        bounds.parse(until, "--until"),
        maintain_every,
        layout.parse(partition_by),
    )
    if key and not config.upsert:
        raise PipelineError("--key: of --mode upsert alone")
    progress = Progress(quiet, line_seconds=None if continuous else LINE_SECONDS)  # a heartbeat
    is_cluster = source.startswith("kafka://")
    many = table_per_topic or bool(
        is_cluster and sources.parse_pattern(source, "--from", client).patterns
    )
    if group is not None and not (group and is_cluster):
        raise PipelineError("--group: name a group, and a cluster as --from (kafka://)")
    if many:
        topics.check(config)
    else:
        check(config)
    stores = session.check_stores([("--to", to)], conf)
    figures = Figures()
    with serving(figures, metrics_port) as address:
        if address:
            progress.say(f"archive: metrics at {address}")
        formats = ("kafka", "delta", *stores)
        spark = session.build("replog archive", conf=conf, formats=formats, tell=progress.say)
        warning = session.lost_on_workers(spark, to)
        if warning:
            click.echo(f"replog pipeline: {warning}", err=True)
        beating = heartbeat(figures, progress) if continuous else nullcontext()
        with on_signals() as stopper, beating:  # after the session, which takes SIGINT for itself
            job = topics.run_topics if many else run
            result = job(spark, config, progress, stopper, figures)
    click.echo(json.dumps(result.to_json()) if as_json else str(result))
    sys.exit(2 if result.refused else 1 if result.findings else 0)


def check(config: ArchiveConfig) -> None:
    """What can be known of one table and its source without Spark. PipelineError."""
    url = sources.parse(config.source, client=config.client)
    ledger = table.check_to(config.to, config.format)
    check_upsert(config, config.format or table.format_here(config.to))
    guards.check_mode(ledger or Ledger(), config.upsert, config.to)
    guards.check_isolation(ledger or Ledger(), config.isolation, config.to)
    check_layout(config, config.format or table.format_here(config.to), ledger)
    found = extents.check(url)
    value_columns.check_before(config.decoding, found.ids if found else (), ledger, config.to)
    if ledger and ledger.batch and found:
        guards.check_topics(ledger, found, config.to)
