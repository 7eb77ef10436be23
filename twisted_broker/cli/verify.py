"""`replog verify`: every invariant of a log directory, or of one partition in it.

1. Checkpoints are read before the logs, so that a log that grows meanwhile is no finding.
2. `meta.properties` is there and well-formed; every checkpoint parses, names partitions that are
   there (after a clean stop), and lies within their logs; the high watermark is not above the log
   end.
3. All partitions of a topic have one topic id, and no two topics share one.
4. Directories that were set aside, and temporary files, are findings unless a broker runs; what
   awaits its deletion, and copies of logs that move between directories, are counted.
5. A copy in progress meets what a log meets.
6. What a single log must meet is in `verify_log`.

Source: Kafka's LogManager and LogLoader. Only reads.
"""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

from twisted_broker.cli.dump import LEFT_OVER, OFFSET_CHECKPOINTS, file_rows, kind_of
from twisted_broker.cli.progress import ProgressCallback, silent
from twisted_broker.cli.report import Report
from twisted_broker.cli.rows import Damage
from twisted_broker.cli.small_files import offset_checkpoint_rows
from twisted_broker.cli.verify_log import LogCheck
from twisted_broker.topic_names import METADATA_DIRECTORY, METADATA_TOPIC

PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-([0-9]+)")
SET_ASIDE = re.compile(r"(.+)\.[0-9a-f]{32}-(delete|future|stray)")
APPLIED = f"{METADATA_TOPIC}-"  # rows that say how far the metadata was applied: no partition
STRAY = "was set aside: no topic of the cluster"
AT_MOST_LOG_END = {
    "recovery-point-offset-checkpoint": "recovery point",
    "log-start-offset-checkpoint": "log start",
    "replication-offset-checkpoint": "high watermark",
    "cleaner-offset-checkpoint": "cleaner's offset",
}
Checkpoints = dict[str, dict[str, int]]


def verify_directory(
    directory: Path, with_records: bool = False, on_progress: ProgressCallback = silent
) -> Report:
    """Checks `directory` and returns all that was found."""
    report = Report()
    if (
        PARTITION.fullmatch(directory.resolve().name)
        and not (directory / "meta.properties").exists()
        and any(directory.glob("*.log"))
    ):
        return verify_partition(directory, report, with_records, on_progress)
    report.in_use = is_in_use(directory)
    clean = (directory / ".kafka_cleanshutdown").exists()
    checkpoints = read_checkpoints(directory, report)
    logs = {
        partition_name(entry): entry
        for entry in sorted(directory.iterdir())
        if top_level(entry, report)
    }
    checks: dict[str, LogCheck] = {}
    recovery_points, starts = (
        checkpoints["recovery-point-offset-checkpoint"],
        checkpoints["log-start-offset-checkpoint"],
    )
    for name, path in logs.items():
        if report.in_use and not path.exists():
            continue
        checks[name] = LogCheck(
            path,
            report,
            with_records,
            on_progress,
            recovery_points.get(name, 0),
            starts.get(name, 0),
        )
        checks[name].run()
    check_checkpoints(directory, report, checkpoints, checks, clean)
    check_topic_ids(report, checks)
    return report


def partition_name(entry: Path) -> str:
    """That of a log's directory, or of a copy in progress."""
    aside = SET_ASIDE.fullmatch(entry.name)
    return entry.name if aside is None else aside[1]


def verify_partition(
    directory: Path, report: Report, with_records: bool, on_progress: ProgressCallback
) -> Report:
    """One partition; what its log directory says of its start is believed."""
    parent = directory.resolve().parent
    report.in_use = is_in_use(parent)
    start = read_checkpoints(parent, Report())["log-start-offset-checkpoint"].get(
        directory.resolve().name, 0
    )
    LogCheck(directory, report, with_records, on_progress, log_start=start).run()
    return report


def is_in_use(directory: Path) -> bool:
    """Whether a broker holds the directory's lock: Java's is a record lock, ours may be one of
    the whole file.
    """
    try:
        with (directory / ".lock").open("rb") as file:
            # One of them holds: a record lock as Java takes it, or flock where the system has no
            # other.
            for lock in (fcntl.lockf, fcntl.flock):
                lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                lock(file, fcntl.LOCK_UN)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        # Held: a broker runs on it, and its files change while they are read.
        return True
    return False


def read_checkpoints(directory: Path, report: Report) -> Checkpoints:
    """checkpoint -> partition directory -> offset."""
    found: Checkpoints = {}
    for name in OFFSET_CHECKPOINTS:
        offsets = found[name] = {}
        if not (directory / name).exists():
            continue
        for item in offset_checkpoint_rows(directory / name):
            if isinstance(item, Damage):
                report.findings.append(item)
                continue
            partition = f"{item['topic']}-{item['partition']}"
            if partition.startswith(APPLIED):
                continue
            if partition in offsets:
                report.add(directory / name, -1, f"{partition} is there twice")
            offsets[partition] = item["offset"]
    if not (directory / "meta.properties").exists():
        report.add(directory / "meta.properties", -1, "is missing")
    return found


def top_level(entry: Path, report: Report) -> bool:
    """Checks what is no partition; True for a partition's directory."""
    aside = SET_ASIDE.fullmatch(entry.name)
    if entry.is_dir():
        if aside is None and PARTITION.fullmatch(entry.name):
            return True
        if aside is None:
            report.add(entry, -1, "is not a partition")
        elif aside[2] == "future":
            report.copies += 1
            return True
        elif aside[2] == "delete":
            report.awaiting_deletion += 1
        elif not report.in_use:
            damaged = entry.name.startswith(f"{METADATA_DIRECTORY}.")
            report.add(
                entry,
                -1,
                "was set aside: metadata that was damaged, or replaced" if damaged else STRAY,
            )
    elif entry.name != ".lock":
        top_level_file(entry, report)
    return False


def top_level_file(path: Path, report: Report) -> None:
    kind = kind_of(path)
    if LEFT_OVER.search(path.name) and kind is not None:
        if not report.in_use:
            report.add(path, -1, "is left over from a write that did not finish")
    elif kind is None:
        report.add(path, -1, "does not belong to a log directory")
    elif kind not in OFFSET_CHECKPOINTS:
        report.findings.extend(item for item in file_rows(path, False) if isinstance(item, Damage))


def check_checkpoints(
    directory: Path,
    report: Report,
    checkpoints: Checkpoints,
    checks: dict[str, LogCheck],
    clean: bool,
) -> None:
    """Invariant 2 for the offsets."""
    for name, offsets in checkpoints.items():
        for partition, offset in offsets.items():
            log = checks.get(partition)
            if log is None:
                if clean and not report.in_use and not any(directory.glob(f"{partition}.*-delete")):
                    report.add(directory / name, -1, f"{partition} is not there")
            elif offset > log.log_end:
                report.add(
                    directory / name,
                    -1,
                    f"{partition}: {AT_MOST_LOG_END[name]} {offset}, the log ends at {log.log_end}",
                )
            elif offset < 0:
                report.add(directory / name, -1, f"{partition}: {offset} is not an offset")
    starts = checkpoints["log-start-offset-checkpoint"]
    for partition, high_watermark in checkpoints["replication-offset-checkpoint"].items():
        if 0 < high_watermark < starts.get(partition, 0) and clean:
            report.add(
                directory / "replication-offset-checkpoint",
                -1,
                f"{partition}: high watermark {high_watermark} is below the log start",
            )


def check_topic_ids(report: Report, checks: dict[str, LogCheck]) -> None:
    """Invariant 3."""
    by_topic: dict[str, str] = {}
    by_id: dict[str, str] = {}
    for name, log in checks.items():
        topic = name.rpartition("-")[0]
        if not log.topic_id:
            continue
        path = log.directory / "partition.metadata"
        if by_topic.setdefault(topic, log.topic_id) != log.topic_id:
            report.add(
                path,
                -1,
                f"topic id {log.topic_id}, other partitions of {topic} have {by_topic[topic]}",
            )
        elif by_id.setdefault(log.topic_id, topic) != topic:
            report.add(path, -1, f"topic id {log.topic_id} is also that of {by_id[log.topic_id]}")
