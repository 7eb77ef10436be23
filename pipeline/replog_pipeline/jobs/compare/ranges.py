"""What `compare` may compare: per partition the range of offsets in which all replicas must be
equal, and the files they are in.

1. Up to the lowest high watermark that a directory recorded. With
   `log_end`: up to the lowest log end.
2. From the highest start: log start, first segment, or what a cleaner has passed (cleaners act on
   each replica in their own time).
3. A partition is split at segments of its first replica into pieces of about `PIECE_BYTES`; a task
   reads one piece of all replicas.
4. Missing partitions and different starts are remarks; replicas under different topic ids are a
   finding and not compared.

Source: RL 9; `cli.verify_replicas`. Not here: reading (`task`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.log_folder import Folder
from replog_pipeline.segments.log_view import LOG_END, log_end

PIECE_BYTES = 256 << 20


@dataclass
class Partition:
    """Replicas of one partition and the range [start, end) that is compared; `end_by` is the
    directory that sets the end.
    """

    topic: str
    partition: int
    replicas: Sequence[Folder]
    start: int = 0
    end: int = 0
    end_by: str = ""
    remarks: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def compared(self) -> bool:
        """Whether there is anything that several replicas must hold alike."""
        return len(self.replicas) > 1 and not self.problem and self.start < self.end

    def to_json(self) -> dict[str, Any]:
        told = {
            name: getattr(self, name)
            for name in ("topic", "partition", "start", "end", "end_by", "compared", "remarks")
        }
        return told | {"directories": [replica.directory for replica in self.replicas]}


def plan(folders: Sequence[Folder], upto: str) -> list[Partition]:
    """Every partition of the directories, in order.

    Raises PipelineError if a directory does not know its high watermarks.
    """
    grouped: dict[tuple[str, int], list[Folder]] = {}
    for folder in folders:
        grouped.setdefault((folder.topic, folder.partition), []).append(folder)
    directories = list(dict.fromkeys(folder.directory for folder in folders))
    return [
        _partition(topic, number, replicas, directories, upto)
        for (topic, number), replicas in sorted(grouped.items())
    ]


def _partition(
    topic: str, number: int, replicas: Sequence[Folder], directories: Sequence[str], upto: str
) -> Partition:
    made = Partition(topic, number, replicas)
    missing = [
        directory
        for directory in directories
        if directory not in {replica.directory for replica in replicas}
    ]
    if missing:
        made.remarks.append(f"not in {', '.join(missing)}")
    ids = {replica.topic_id: replica.directory for replica in replicas if replica.topic_id}
    if len(ids) > 1:
        made.problem = "different topics of one name: " + ", ".join(
            f"{topic_id} in {directory}" for topic_id, directory in ids.items()
        )
    made.end, made.end_by = min((_end(replica, upto), replica.directory) for replica in replicas)
    _begin(made)
    if len(replicas) > 1 and made.start >= made.end:
        made.remarks.append(
            f"nothing to compare: from {made.start} to {made.end}, which {made.end_by} recorded"
        )
    return made


def _end(replica: Folder, upto: str) -> int:
    if upto == LOG_END:
        return log_end(replica)
    if replica.high_watermark is None:
        raise PipelineError(
            f"{replica.directory} has no replication-offset-checkpoint, so how far it may be "
            "read is not known: "
            "name a broker's log directory, or compare all there is with --upto log_end"
        )
    return replica.high_watermark


def _begin(made: Partition) -> None:
    """Where the range starts, and what is to be said of it."""
    starts = {replica.directory: replica.start for replica in made.replicas}
    cleaned = max(replica.cleaned_to or 0 for replica in made.replicas)
    made.start = max([cleaned, *starts.values()])
    if len(set(starts.values())) > 1:
        made.remarks.append(
            "log starts differ: "
            + ", ".join(f"{start} in {directory}" for directory, start in starts.items())
        )
    if cleaned > max(starts.values()):
        made.remarks.append(f"a cleaner has passed offsets up to {cleaned}: not compared before")


def pieces(made: Partition) -> Iterator[dict[str, Any]]:
    """The partition's range in rows of `task.PIECE`; none when there is nothing to compare."""
    if not made.compared:
        return
    points = [made.start, *_split_points(made), made.end]
    for start, end in pairwise(points):
        copies = [
            {"directory": replica.directory, "files": _files(replica, start, end)}
            for replica in made.replicas
        ]
        yield {
            "topic": made.topic,
            "partition": made.partition,
            "start": start,
            "end": end,
            "upto": made.end,
            "copies": copies,
        }


def _split_points(made: Partition) -> Iterator[int]:
    size = 0
    for segment in made.replicas[0].segments:
        if size >= PIECE_BYTES and made.start < segment.base_offset < made.end:
            yield segment.base_offset
            size = 0
        size += segment.size


def _files(replica: Folder, start: int, end: int) -> list[dict[str, Any]]:
    """The segments that can hold offsets within [start, end), each with the offsets that belong
    into it.
    """
    ends = [segment.base_offset for segment in replica.segments[1:]]
    paired = zip(replica.segments, [*ends, None], strict=True)
    return [
        {"path": segment.path, "base": segment.base_offset, "after": after}
        for segment, after in paired
        if segment.base_offset < end and (after is None or after > start)
    ]
