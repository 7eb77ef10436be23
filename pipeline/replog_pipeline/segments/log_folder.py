"""The contents of a log directory: partitions, their segment files, and their checkpoints.
No Spark, and no record is read.

1. A directory is a log directory (TOPIC-PARTITION folders and checkpoints) or one such folder,
   whose checkpoints are its parent's.
2. Without a list of topics all are meant but the internal ones (`__...`). Folders on their way out
   (`-delete`, `-stray`, `-future`) are none.
3. A checkpoint without an entry for a partition says 0, as a broker that starts takes it; no
   checkpoint file at all is None.
4. A segment that a cleaner was about to put in place (`.swap`) means that the folder is incomplete:
   it is refused, since rows would be missing.

Source: FILE_FORMATS 1 and 2; Kafka's LogManager, LogLoader. Not here: batches (`decoder`), who may
see what (`log_view`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from replog_pipeline.errors import PipelineError
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.checkpoints import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    read_offsets,
    read_partition_metadata,
)
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.wire.primitives import uuid_text

CLEANER: Final = "cleaner-offset-checkpoint"
_FOLDER: Final = re.compile(r"([A-Za-z0-9._-]{1,249})-(\d{1,10})")
_SEGMENT: Final = re.compile(r"(\d{20})\.log")
_SWAP: Final = re.compile(r"\d{20}\.log\.swap")


@dataclass(frozen=True)
class Segment:
    """A `.log` file, and its size in bytes when it was listed."""

    base_offset: int
    path: str
    size: int


@dataclass(frozen=True)
class Folder:
    """One replica of one partition.

    `segments` by base offset, the active one last; `topic_id` as Kafka prints it.
    """

    directory: str
    topic: str
    partition: int
    path: str
    segments: tuple[Segment, ...]
    high_watermark: int | None
    log_start: int | None
    cleaned_to: int | None
    topic_id: str | None

    @property
    def start(self) -> int:
        """The first offset that a reader may ask for."""
        first = self.segments[0].base_offset if self.segments else 0
        return max(self.log_start or 0, first)


@dataclass(frozen=True)
class _Checkpoints:
    """The offset checkpoints of one log directory; None where there is no such file."""

    files: OsFileSystem = field(default_factory=OsFileSystem)
    known: dict[str, dict[TopicPartition, int] | None] = field(default_factory=dict)

    def of(self, directory: str, name: str, partition: TopicPartition) -> int | None:
        if name not in self.known:
            there = self.files.exists(os.path.join(directory, name))
            self.known[name] = read_offsets(self.files, directory, name) if there else None
        offsets = self.known[name]
        return None if offsets is None else offsets.get(partition, 0)


def folders(directory: str, topics: Sequence[str] = (), *, internal: bool = False) -> list[Folder]:
    """The partitions in `directory`, sorted; `internal`: with those of `__...` topics.

    PipelineError: no directory, nothing in it, a topic that is not there, files that cannot be
    read.
    """
    place = Path(os.path.abspath(directory))
    if not place.is_dir():
        raise PipelineError(
            f"segments: {directory} is no directory: name a log directory of a broker, or one "
            "TOPIC-PARTITION folder in it"
        )
    try:
        places = (
            [place]
            if _is_partition(place)
            else sorted(each for each in place.iterdir() if _is_partition(each))
        )
    except OSError as error:
        raise _unreadable(error) from error
    if not places:
        raise PipelineError(
            f"segments: there is no TOPIC-PARTITION folder in {directory}: name a log "
            "directory of a broker (log.dirs)"
        )
    named = [
        each for each in places if _wanted(_name(each)[0], topics, internal or place in places)
    ]
    missing = [topic for topic in topics if topic not in {_name(each)[0] for each in named}]
    if missing or not named:
        have = ", ".join(sorted({_name(each)[0] for each in places}))
        raise PipelineError(
            "segments: no partition of "
            f"{missing[0] if missing else 'a topic that is not internal'} in {directory}; "
            f"there is: {have}"
        )
    return _read(named)


def _read(places: Sequence[Path]) -> list[Folder]:
    checkpoints = _Checkpoints()
    try:
        return sorted(
            (_folder(each, checkpoints) for each in places),
            key=lambda each: (each.topic, each.partition),
        )
    except CheckpointError as error:
        raise PipelineError(
            f"segments: {error}: start the broker on this directory once, or remove the file"
        ) from error
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> PipelineError:
    return PipelineError(
        f"segments: {error.filename}: {error.strerror}: run as a user who may read the "
        "broker's files"
    )


def _folder(place: Path, checkpoints: _Checkpoints) -> Folder:
    topic, partition = _name(place)
    directory, key = str(place.parent), TopicPartition(topic, partition)
    topic_id = read_partition_metadata(checkpoints.files, str(place))
    high_watermark, log_start, cleaned_to = (
        checkpoints.of(directory, name, key) for name in (HIGH_WATERMARK, LOG_START_OFFSET, CLEANER)
    )
    return Folder(
        directory,
        topic,
        partition,
        str(place),
        segments(place),
        high_watermark,
        log_start,
        cleaned_to,
        None if topic_id is None else uuid_text(topic_id),
    )


def segments(place: Path) -> tuple[Segment, ...]:
    """The segments in a partition's folder.

    PipelineError when a cleaning stopped half-way. OSError.
    """
    found = []
    for name in sorted(os.listdir(place)):
        if _SWAP.fullmatch(name):
            raise PipelineError(
                f"segments: {place} is being cleaned ({name}): try again, or start the "
                "broker on this directory once"
            )
        if match := _SEGMENT.fullmatch(name):
            path = place / name
            try:
                segment = Segment(int(match[1]), str(path), path.stat().st_size)
                check_readable(path)
            except FileNotFoundError:  # retention took it since the listing
                continue
            found.append(segment)
    return tuple(found)


def check_readable(path: Path) -> None:
    """OSError, here on the driver, and not first in a task."""
    if not os.access(path, os.R_OK):
        path.open("rb").close()


def _is_partition(place: Path) -> bool:
    return (
        _FOLDER.fullmatch(place.name) is not None
        and place.is_dir()
        and any(_SEGMENT.fullmatch(name) for name in os.listdir(place))
    )


def _name(place: Path) -> tuple[str, int]:
    match = _FOLDER.fullmatch(place.name)
    assert match is not None, "asked of a folder that was taken for a partition"
    return match[1], int(match[2])


def _wanted(topic: str, topics: Sequence[str], named_itself: bool) -> bool:
    return topic in topics if topics else named_itself or not topic.startswith("__")
