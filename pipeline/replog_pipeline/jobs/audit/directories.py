"""`audit` of log directories: each task reads a whole segment; the rules between batches are
then checked per partition, on the headers.

1. Stage one reads bytes and sends back headers (70 bytes a batch) with what is wrong inside
   batches; stage two gathers the headers of each partition.
2. Retention may delete the first segments meanwhile: the check then begins at the first one left.
3. The heavy part runs in as many tasks as there are segments, and sequences are followed across
   segments.

Not here: the checks (`segments.check`, `check`), policies (`cleanup`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from replog_pipeline import flat_rows
from replog_pipeline.decoder import HEADER, Stop
from replog_pipeline.jobs.audit.check import Facts, Segment, check_partition
from replog_pipeline.jobs.audit.findings import Finding, Summary
from replog_pipeline.segments.check import check
from replog_pipeline.segments.log_folder import Folder
from replog_pipeline.transforms.faults import Fault

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

SEGMENT = "directory string, topic string, partition int, base bigint, path string"
SCANNED = SEGMENT + ", headers binary, faults string, end bigint, size bigint, stop string"
FOUND = "finding string, summary string"
Key = tuple[str, str, int]


def segment_rows(folders: Sequence[Folder]) -> list[tuple[str, str, int, int, str]]:
    """Rows of `SEGMENT`, the largest first: the last tasks should be short ones."""
    sized = [
        (
            segment.size,
            (each.directory, each.topic, each.partition, segment.base_offset, segment.path),
        )
        for each in folders
        for segment in each.segments
    ]
    return [row for _, row in sorted(sized, key=lambda pair: -pair[0])]


def transform(segments: DataFrame, facts: Mapping[Key, Facts]) -> DataFrame:
    """Rows of `SEGMENT` to rows of `FOUND`: per partition one summary, and its findings."""

    def judged(key: tuple[Any, ...], table: pyarrow.Table) -> pyarrow.Table:
        directory, topic, partition = (value.as_py() for value in key)
        rows = judge(facts[directory, topic, partition], table.to_pylist())
        return flat_rows.table(rows, FOUND)

    scanned = segments.mapInArrow(flat_rows.mapper(scan, SCANNED), SCANNED)
    return scanned.groupBy("directory", "topic", "partition").applyInArrow(judged, FOUND)


def scan(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One segment, read whole."""
    try:
        size = os.stat(row["path"]).st_size
        found = check(row["path"])
    except FileNotFoundError:
        return
    faults = json.dumps([tuple(fault) for fault in found.faults])
    yield {
        **row,
        "headers": found.headers.tobytes(),
        "faults": faults,
        "end": found.end,
        "size": size,
        "stop": found.stop.name,
    }


def judge(facts: Facts, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Rows of `SCANNED` of one partition to rows of `FOUND`."""
    segments = [
        Segment(
            row["base"],
            row["path"],
            np.frombuffer(row["headers"], HEADER),
            [Fault(*fault) for fault in json.loads(row["faults"])],
            row["end"],
            row["size"],
            Stop[row["stop"]],
        )
        for row in sorted(rows, key=lambda row: row["base"])
    ]
    if segments:
        facts = replace(facts, start=max(facts.start, segments[0].base))
    findings, summary = check_partition(facts, segments)
    yield {"summary": json.dumps(summary)}
    yield from ({"finding": json.dumps(finding)} for finding in findings)


def gathered(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Finding], list[Summary]]:
    """Rows of `FOUND`, in order of partitions and offsets."""
    told = list(rows)
    findings = [Finding(*json.loads(row["finding"])) for row in told if row["finding"]]
    summaries = [Summary(*json.loads(row["summary"])) for row in told if row["summary"]]
    findings.sort(
        key=lambda each: (each.directory, each.topic, each.partition, each.offset, each.kind)
    )
    return findings, sorted(
        summaries, key=lambda each: (each.directory, each.topic, each.partition)
    )
