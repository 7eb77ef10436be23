"""`replog verify --replicas`: the replicas of every partition, as several log directories hold
them, are equal up to the high watermark.

1. Batches are compared: offsets, leader epoch, CRC, size; and each CRC with its bytes.
   Batches that differ are shown in pairs.
2. From the latest start of any replica (log start, or what a cleaner has passed) to the highest
   high watermark that a replica recorded.
3. A replica that ends before that high watermark is a finding: it was away, or lost records.
4. Replicas of different topic ids are no replicas of each other: a finding, and not compared.
5. By name, for a mirror and its source: topic ids and leader epochs are not compared, and internal
   topics, which no mirror copies, are left out. A partition that one cluster lacks is a finding;
   where it lacks the whole topic, it is one when the topic was chosen (`topics`), else named: a
   mirror copies some topics only, and its target may have others. That no partition is in both
   clusters is a finding.

Source: RL 9; the intent of Kafka's ReplicaVerificationTool. Only reads. Not here: what a single
log must meet (`verify_log`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from twisted_broker.cli.batches import FileBatch, checksum_damage, read_batches
from twisted_broker.cli.progress import ProgressCallback, silent
from twisted_broker.cli.report import Report
from twisted_broker.cli.rows import Damage
from twisted_broker.cli.verify import PARTITION, is_in_use, read_checkpoints
from twisted_broker.java_numbers import is_digits
from twisted_broker.log.checkpoints import read_partition_metadata
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.topic_names import INTERNAL_TOPICS, METADATA_DIRECTORY
from twisted_broker.wire.primitives import uuid_text
from twisted_broker.wire.records import BatchView

# Replicas that differ once mostly differ to the end.
PAIRS_SHOWN = 10


class Batch(NamedTuple):
    """What makes two batches the same. `leader_epoch` None: it is not compared."""

    base_offset: int
    last_offset: int
    leader_epoch: int | None
    crc: int
    size: int

    def __str__(self) -> str:
        epoch = "" if self.leader_epoch is None else f" epoch {self.leader_epoch}"
        return (
            f"offsets {self.base_offset}..{self.last_offset}{epoch} CRC {self.crc:#010x} "
            f"({self.size} bytes)"
        )


class Replica:
    """One copy of a partition.

    `high_watermark` as recorded, `start` where it may be compared from, `end` its log end.
    """

    def __init__(self, path: Path, high_watermark: int, start: int) -> None:
        self.path = path
        self.high_watermark = high_watermark
        self.segments = sorted(
            (int(file.stem), file) for file in path.glob("*.log") if is_digits(file.stem)
        )
        first = self.segments[0][0] if self.segments else 0
        self.start = max(start, first)
        self.end = self._end()

    def _end(self) -> int:
        end = self.segments[-1][0] if self.segments else 0
        for found in read_batches(self.segments[-1][1]) if self.segments else ():
            if isinstance(found, FileBatch):
                end = batch_of(found).last_offset + 1
        return end

    @property
    def topic_id(self) -> str:
        found = read_partition_metadata(OsFileSystem(), str(self.path))
        return "" if found is None else uuid_text(found)

    def batches(
        self, start: int, upto: int, report: Report, by_name: bool = False
    ) -> Iterator[Batch]:
        """Batches that begin within [start, upto). Damage goes to the report and ends a segment."""
        for index, (_, file) in enumerate(self.segments):
            if index + 1 < len(self.segments) and self.segments[index + 1][0] <= start:
                continue
            report.segments += 1
            for found in read_batches(file):
                if isinstance(found, Damage):
                    report.findings.append(found)
                    break
                batch = batch_of(found)
                if batch.base_offset >= upto:
                    return
                if batch.base_offset >= start:
                    report.batches += 1
                    report.records += _count(found)
                    report.bytes += batch.size
                    damage = checksum_damage(file, found)
                    if damage is not None:
                        report.findings.append(damage)
                    yield batch._replace(leader_epoch=None) if by_name else batch


def _count(found: FileBatch) -> int:
    """As its header says; one of a wrapper of magic 0 or 1, which does not."""
    return found.view.records_count if isinstance(found.view, BatchView) else 1


def batch_of(found: FileBatch) -> Batch:
    view = found.view
    if isinstance(view, BatchView):
        return Batch(
            view.base_offset, view.last_offset, view.partition_leader_epoch, view.crc, found.size
        )
    return Batch(view.offset, view.offset, -1, view.crc, found.size)


def verify_replicas(
    directories: Sequence[Path],
    on_progress: ProgressCallback = silent,
    by_name: bool = False,
    topics: re.Pattern[str] | None = None,
) -> Report:
    """Compares every partition that two or more of the log directories hold. `by_name`: they may
    be of several clusters, as those of a mirror and its source; then `topics` are those that must
    be in both.
    """
    report = Report()
    partitions: dict[str, list[Replica]] = {}
    for directory in directories:
        report.in_use = report.in_use or is_in_use(directory)
        known = read_checkpoints(directory, report)
        for entry in sorted(directory.iterdir()):
            if (
                entry.is_dir()
                and PARTITION.fullmatch(entry.name)
                and entry.name != METADATA_DIRECTORY
                and not (by_name and _is_left_out(entry.name, topics))
            ):
                start = max(
                    known[name].get(entry.name, 0)
                    for name in ("log-start-offset-checkpoint", "cleaner-offset-checkpoint")
                )
                replica = Replica(
                    entry, known["replication-offset-checkpoint"].get(entry.name, 0), start
                )
                partitions.setdefault(entry.name, []).append(replica)
    if by_name:
        _find_lacking(directories, partitions, topics, report)
    for name, replicas in sorted(partitions.items()):
        report.partitions += 1
        on_progress(name, report.bytes)
        if len(replicas) > 1 and (by_name or _same_topic(replicas, report)):
            compare(replicas, report, by_name)
    return report


def _topic(name: str) -> str:
    return name.rpartition("-")[0]


def _is_left_out(name: str, topics: re.Pattern[str] | None) -> bool:
    topic = _topic(name)
    return topic in INTERNAL_TOPICS or (topics is not None and topics.fullmatch(topic) is None)


def _find_lacking(
    directories: Sequence[Path],
    partitions: Mapping[str, Sequence[Replica]],
    topics: re.Pattern[str] | None,
    report: Report,
) -> None:
    """What only one of the clusters has."""
    if topics is not None and not partitions:
        report.add(
            directories[-1],
            -1,
            f"no topic of either cluster has a name that --topics {topics.pattern} matches",
        )
        return
    cluster_ids = {directory: _cluster_id(directory) for directory in directories}
    clusters = len(set(cluster_ids.values()))

    def in_all(replicas: Sequence[Replica]) -> bool:
        if clusters > 1:
            return len({cluster_ids[replica.path.parent] for replica in replicas}) == clusters
        # Two clusters that were given the same id; each gives its topics ids of its own.
        return len({replica.topic_id for replica in replicas}) > 1

    there = {name for name, replicas in partitions.items() if in_all(replicas)}
    in_both = {_topic(name) for name in there}
    if not there:
        report.add(directories[-1], -1, "has no partition that another cluster's directory has")
    for name, replicas in sorted(partitions.items()):
        if name in there:
            continue
        if _topic(name) in in_both or topics is not None:
            problem = "no directory of the other cluster has this partition"
            report.add(replicas[0].path, -1, problem)
        else:
            report.alone.add(_topic(name))


def _cluster_id(directory: Path) -> str:
    """Empty where the directory does not say."""
    try:
        found = read_meta_properties(OsFileSystem(), str(directory))
    except (CheckpointError, OSError):
        return ""
    return "" if found is None else found.cluster_id or ""


def _same_topic(replicas: Sequence[Replica], report: Report) -> bool:
    """Whether all that say have the same topic id; a log that was only just made may not say
    yet.
    """
    known = [(replica, replica.topic_id) for replica in replicas if replica.topic_id]
    for other, topic_id in known[1:]:
        if topic_id != known[0][1]:
            report.add(other.path, -1, f"topic id {topic_id}, {known[0][0].path} has {known[0][1]}")
            return False
    return True


def compare(replicas: Sequence[Replica], report: Report, by_name: bool = False) -> None:
    """Holds each replica against the one with the highest high watermark."""
    reference = max(replicas, key=lambda replica: (replica.high_watermark, replica.end))
    start = max(replica.start for replica in replicas)
    once = report  # what is damaged in the reference is reported once
    for replica in replicas:
        if replica.end < reference.high_watermark:
            report.add(
                replica.path,
                -1,
                f"ends at {replica.end}, the high watermark is {reference.high_watermark}",
            )
        if replica is not reference:
            upto = min(reference.high_watermark, replica.end, reference.end)
            _compare_pairs(
                reference,
                replica,
                paired(
                    reference.batches(start, upto, once, by_name),
                    replica.batches(start, upto, report, by_name),
                ),
                report,
            )
            once = Report()


def _compare_pairs(
    reference: Replica,
    other: Replica,
    pairs: Iterator[tuple[Batch | None, Batch | None]],
    report: Report,
) -> None:
    differing = 0
    for mine, theirs in pairs:
        differing += 1
        if differing <= PAIRS_SHOWN:
            report.add(
                other.path,
                -1,
                f"has {theirs or 'nothing'}, {reference.path} has {mine or 'nothing'}",
            )
    if differing > PAIRS_SHOWN:
        report.add(
            other.path, -1, f"differs from {reference.path} in {differing - PAIRS_SHOWN} more pairs"
        )


def paired(
    first: Iterator[Batch], second: Iterator[Batch]
) -> Iterator[tuple[Batch | None, Batch | None]]:
    """The pairs that differ, side by side by offset; None where one has nothing."""
    mine, theirs = next(first, None), next(second, None)
    while mine is not None or theirs is not None:
        if mine == theirs:
            mine, theirs = next(first, None), next(second, None)
        elif theirs is None or (mine is not None and mine.last_offset < theirs.base_offset):
            # Only on one side: compaction, or a gap.
            yield mine, None
            mine = next(first, None)
        elif mine is None or theirs.last_offset < mine.base_offset:
            yield None, theirs
            theirs = next(second, None)
        else:
            yield mine, theirs
            ends = mine.last_offset, theirs.last_offset
            if ends[0] <= ends[1]:
                mine = next(first, None)
            if ends[1] <= ends[0]:
                theirs = next(second, None)
