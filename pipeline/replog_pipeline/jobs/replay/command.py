"""`replog pipeline replay`. Arguments are checked before Spark is started."""

from __future__ import annotations

import json

import click

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.replay.job import ReplayConfig, destination, run
from replog_pipeline.jobs.replay.origin import check_origin, check_other
from replog_pipeline.kafka_cluster import ClientConfig
from replog_pipeline.progress import Progress
from replog_pipeline.sources import reachable
from replog_pipeline.sources.client_config import client_options, source_client_options
from replog_pipeline.stores.spark_conf import spark_options
from twisted_broker.cli.number_types import WholeNumber
from twisted_broker.wire.compression import CODEC_NAMES


@click.command("replay")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="SOURCE",
    help="A table's PATH, segments:DIRECTORY or kafka://HOST:PORT/TOPIC.",
)
@click.option(
    "--to",
    required=True,
    metavar="URL",
    help="kafka://HOST:PORT/TOPIC; the topic is created if it is not there.",
)
@click.option("--topic", help="Which of the source's topics, when it holds several.")
@click.option("--compression", type=click.Choice(CODEC_NAMES), default="none", show_default=True)
@click.option(
    "--replication",
    type=WholeNumber(-1, 32767),
    default=-1,
    help="Replicas of a topic that is created; the cluster's default (-1) unless said.",
)
@client_options
@source_client_options
@spark_options
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(
    source: str,
    to: str,
    topic: str | None,
    compression: str,
    replication: int,
    client: ClientConfig,
    source_client: ClientConfig,
    conf: dict[str, str],
    as_json: bool,
    quiet: bool,
) -> None:
    """Produce a table or a log directory back into a topic: keys, values, headers, timestamps,
    partitions and order as they were.

    Run it again after any failure: it goes on where the target ends, and no record is written
    twice.
    """
    from replog_pipeline import session

    target = destination(to, client)
    if not replication:
        raise PipelineError(
            "--replication 0: write 1 or more replicas, or leave it out for the cluster's default"
        )
    if source_client.properties and not source.startswith("kafka:"):
        raise PipelineError(
            f"--from-kafka-config, --from-kafka-option: --from {source} is no cluster; "
            "leave them out"
        )
    config = ReplayConfig(
        source,
        to,
        topic,
        compression,
        replication,
        client,
        source_client if source_client.properties else None,
    )
    topic_id = check_origin(source, topic, config.reads_by)
    check_other(topic_id, reachable.topic_ids(target, "--to").get(target.topics[0]), to)
    formats = ("kafka", "delta", *session.check_stores([("--from", source)], conf))
    progress = Progress(quiet)
    spark = session.build("replog replay", conf=conf, formats=formats, tell=progress.say)
    result = run(spark, config, progress)
    there = result.records - result.written
    click.echo(
        json.dumps(result.to_json())
        if as_json
        else f"{result.written:,} records written to {to}, {there:,} were there"
    )
