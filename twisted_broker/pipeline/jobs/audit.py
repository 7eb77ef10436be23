"""`replog pipeline audit`: is everything there that must be there, once, in order and undamaged?

1. Of log directories: gaps, duplicates, order, sequences and epochs of producers and leaders, CRCs, record counts, torn segments, hanging and torn
   transactions; from the log start to the high watermark. Of a cluster's topics: gaps, duplicates and order of what a consumer gets.
2. What was assumed (policy, ends) is said with the result. Nothing is written.
3. A directory that is none is refused before Spark is started.

Source: SPARK.md 7. Left out: replicas among each other (`compare`), files beside the logs (`replog verify`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from twisted_broker.pipeline import sources
from twisted_broker.pipeline.jobs import audit_policy, audit_rows, audit_segments
from twisted_broker.pipeline.jobs.audit_check import Facts
from twisted_broker.pipeline.jobs.audit_findings import Finding, Summary
from twisted_broker.pipeline.jobs.audit_policy import Policy
from twisted_broker.pipeline.jobs.metadata_policies import cleanup_policies
from twisted_broker.pipeline.log_folder import Folder, folders
from twisted_broker.pipeline.progress import Progress
from twisted_broker.pipeline.sources import KafkaSource, SegmentsSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HANGING_AFTER_SECONDS = 900  # transaction.max.timeout.ms of a broker
METADATA = "__cluster_metadata"
"""The controllers' log: its high watermark is in no checkpoint."""
WIRE_LIMITS = "read through a broker: gaps, duplicates and order only; batches, producers and transactions are seen with segments:DIRECTORY"


@dataclass(frozen=True)
class AuditConfig:
    """`policies`: POLICY or TOPIC=POLICY. `allow_holes`: offsets, in a cluster's topics. `hanging_after` a last record: seconds."""

    source: sources.Source
    policies: tuple[str, ...] = ()
    allow_holes: int = 0
    hanging_after: int = HANGING_AFTER_SECONDS
    quiet: bool = True


@dataclass
class AuditResult:
    """Findings by partition and offset, what was looked at, and what was taken for granted."""

    source: str
    findings: list[Finding]
    partitions: list[Summary]
    remarks: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source, "remarks": self.remarks, "partitions": [each._asdict() for each in self.partitions],
            "findings": [each._asdict() for each in self.findings],
        }  # fmt: skip


def run(spark: SparkSession, config: AuditConfig) -> AuditResult:
    """Audits; reads only."""
    said = audit_policy.given(config.policies)
    with Progress(config.quiet).step(f"audited {config.source}", spark):
        if isinstance(config.source, KafkaSource):
            return of_topics(spark, config, config.source, said)
        return of_folders(spark, config, known_folders(config.source), said)


def of_topics(spark: SparkSession, config: AuditConfig, source: KafkaSource, said: dict[str, Policy]) -> AuditResult:
    findings, summaries, policies = audit_rows.run(spark, source, said, config.allow_holes)
    remarks = [WIRE_LIMITS, *(f"{topic}: cleanup.policy {policy} ({policy.source})" for topic, policy in policies.items())]
    if config.allow_holes:
        remarks.append(f"holes up to {config.allow_holes} offsets are taken for end markers of transactions")
    return AuditResult(str(source), findings, summaries, remarks)


def of_folders(spark: SparkSession, config: AuditConfig, found: Sequence[Folder], said: dict[str, Policy]) -> AuditResult:
    recorded = {directory: cleanup_policies(directory) for directory in {each.directory for each in found}}
    policies = {_key(each): audit_policy.of_folder(each, said, recorded[each.directory]) for each in found}
    facts = {_key(each): _facts(each, policies[_key(each)], config) for each in found}
    rows = audit_segments.segment_rows(found)
    tasks = max(1, min(len(rows), 4 * spark.sparkContext.defaultParallelism))
    frame = spark.createDataFrame(rows, audit_segments.SEGMENT).repartition(tasks)
    findings, summaries = audit_segments.gathered(row.asDict() for row in audit_segments.transform(frame, facts).collect())
    return AuditResult(str(config.source), findings, summaries, [*_remarks(found, policies)])


def known_folders(source: SegmentsSource) -> list[Folder]:
    """The partitions of the directories. Raises PipelineError where there are none."""
    return [folder for directory in source.directories for folder in folders(directory, source.topics, internal=True)]


def _key(folder: Folder) -> audit_segments.Key:
    return folder.directory, folder.topic, folder.partition


def _facts(folder: Folder, policy: Policy, config: AuditConfig) -> Facts:
    end = None if folder.topic == METADATA else folder.high_watermark
    return Facts(
        folder.directory, folder.topic, folder.partition, folder.start, end, policy.compacts, policy.assumed,
        int(time.time() * 1000), config.hanging_after * 1000,
    )  # fmt: skip


def _remarks(found: Sequence[Folder], policies: dict[audit_segments.Key, Policy]) -> list[str]:
    said = {(each.topic, policies[_key(each)]) for each in found if not policies[_key(each)].assumed}
    assumed = sorted({each.topic for each in found if policies[_key(each)].assumed})
    remarks = [f"{topic}: cleanup.policy {policy} ({policy.source})" for topic, policy in sorted(said, key=lambda pair: pair[0])]
    if assumed:
        remarks.append(f"{', '.join(assumed)}: cleanup.policy delete is assumed (--cleanup-policy says else), unless batches show a cleaner's work")
    endless = sorted({each.directory for each in found if each.high_watermark is None})
    if endless:
        remarks.append(f"no replication-offset-checkpoint in {', '.join(endless)}: audited to the log end")
    return remarks


def tell(result: AuditResult) -> None:
    """For people."""
    for remark in result.remarks:
        click.echo(remark)
    for finding in result.findings:
        click.echo(str(finding))
    listed = len(result.findings) + sum(finding.more for finding in result.findings)
    records = sum(each.records for each in result.partitions)
    open_ones = sum(max(0, each.open) for each in result.partitions)
    still = f", {open_ones} open transaction{'s' * (open_ones != 1)}" if open_ones else ""
    click.echo(f"{len(result.partitions)} partitions, {records:,} records{still}: {listed or 'no'} finding{'s' * (listed != 1)}")


@click.command("audit")
@click.option("--from", "source", required=True, metavar="SOURCE", help=sources.SHAPES)
@click.option("--cleanup-policy", "policies", multiple=True, metavar="[TOPIC=]POLICY",
              help="delete, compact or compact,delete, of one topic or all; compacted logs may have holes.")  # fmt: skip
@click.option("--allow-holes", type=click.IntRange(min=0), default=0, show_default=True, metavar="OFFSETS",
              help="kafka:// only: holes up to this are taken for end markers of transactions.")  # fmt: skip
@click.option("--hanging-after", type=click.IntRange(min=0), default=HANGING_AFTER_SECONDS, show_default=True, metavar="SECONDS",
              help="segments: only: an open transaction hangs so long after its last record.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object on standard output.")
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def command(source: str, policies: Sequence[str], allow_holes: int, hanging_after: int, as_json: bool, quiet: bool) -> None:
    """Look for gaps, duplicates, sequence jumps, damaged batches and hanging transactions. The exit status is 1 if there are any."""
    from twisted_broker.pipeline import session

    config = AuditConfig(sources.parse(source), tuple(policies), allow_holes, hanging_after, quiet)
    audit_policy.given(config.policies)
    if isinstance(config.source, SegmentsSource):
        known_folders(config.source)
    formats = ("kafka",) if isinstance(config.source, KafkaSource) else ()
    result = run(session.build("replog audit", formats=formats), config)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        tell(result)
    sys.exit(1 if result.findings else 0)
