"""What a consumer would see of partitions on disk: from which offset to which, and which
transactions of it were aborted.

1. Nothing past the high-watermark checkpoint, unless `upto="log_end"`; under read_committed nothing
   past the first open transaction either.
2. Transactions are followed from the log's start to the end of the view, by headers, and only when
   somebody wants to know.
3. Under `log_end` the end is None for a reader (it reads until the bytes end), and a number for
   whoever asks for offsets.
4. The checkpoint is written every few seconds: the view of a running broker's directory lags behind
   by as much.

Source: RL 3.3; Kafka's ReplicaManager.checkpointHighWatermarks,
UnifiedLog.lastStableOffset. Not here: rows (`rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from replog_pipeline.decoder import AbortedTransaction, TransactionLog, last_offsets
from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.chunks import chunks
from replog_pipeline.segments.log_folder import Folder, folders
from twisted_broker.wire.records import CorruptRecordError

HIGH_WATERMARK: Final = "high_watermark"
LOG_END: Final = "log_end"
UPTO: Final = (HIGH_WATERMARK, LOG_END)
UNCOMMITTED: Final = "read_uncommitted"
COMMITTED: Final = "read_committed"
ISOLATION: Final = (UNCOMMITTED, COMMITTED)


class View(NamedTuple):
    """The visible offsets of a folder, `end` exclusive (None: to the last whole batch), and its
    aborted transactions if they were requested.
    """

    folder: Folder
    start: int
    end: int | None
    aborted: tuple[AbortedTransaction, ...] = ()


def view(
    folder: Folder,
    isolation: str = UNCOMMITTED,
    upto: str = HIGH_WATERMARK,
    with_aborted: bool = False,
) -> View:
    """What is visible of this folder.

    PipelineError: no high-watermark checkpoint, a control record that cannot be read.
    """
    end = None if upto == LOG_END else committed_end(folder)
    if isolation != COMMITTED and not with_aborted:
        return View(folder, folder.start, end)
    log = transactions(folder, end)
    if isolation == COMMITTED and (first := log.first_open()) is not None:
        end = first
    return View(folder, folder.start, end, tuple(log.aborted))


def committed_end(folder: Folder) -> int:
    """The high watermark of the checkpoint."""
    if folder.high_watermark is None:
        raise PipelineError(
            f"segments: {folder.directory} has no replication-offset-checkpoint, so nobody "
            "knows what is committed: "
            "copy the file too, or read all that is there with the option upto=log_end"
        )
    return max(folder.high_watermark, folder.start)


def transactions(folder: Folder, end: int | None) -> TransactionLog:
    """The transactions of the folder's batches below `end`."""
    log = TransactionLog()
    for segment in folder.segments:
        if end is not None and segment.base_offset >= end:
            break
        try:
            for chunk in chunks(segment.path):
                table = (
                    chunk.headers
                    if end is None
                    else chunk.headers[chunk.headers["baseOffset"] < end]
                )
                table = table.copy()
                table["position"] -= chunk.position
                log.follow(chunk.data, table)
        except CorruptRecordError as error:
            raise PipelineError(
                f"segments: {segment.path}: {error.message}: let the broker recover the log, "
                "or take another replica"
            ) from error
    return log


def log_end(folder: Folder) -> int:
    """The offset after the last whole batch. OSError."""
    if not folder.segments:
        return folder.start
    end = folder.segments[-1].base_offset
    for chunk in chunks(folder.segments[-1].path):
        if len(chunk.headers):
            end = int(np.max(last_offsets(chunk.headers[-1:]))) + 1
    return max(end, folder.start)


def extents(
    directories: Sequence[str],
    topics: Sequence[str] = (),
    isolation: str = UNCOMMITTED,
    upto: str = HIGH_WATERMARK,
) -> dict[tuple[str, int], tuple[int, int]]:
    """(topic, partition) -> (start, end), end exclusive, as a reader with these options sees it
    now.
    """
    found = {}
    for folder in unique_folders(directories, topics):
        seen = view(folder, isolation, upto)
        found[folder.topic, folder.partition] = (
            seen.start,
            log_end(folder) if seen.end is None else seen.end,
        )
    return found


def unique_folders(directories: Sequence[str], topics: Sequence[str] = ()) -> list[Folder]:
    """The folders of all directories (those of one broker).

    PipelineError when two of them hold the same partition.
    """
    found: dict[tuple[str, int], Folder] = {}
    for folder in _in_any(directories, topics):
        other = found.setdefault((folder.topic, folder.partition), folder)
        if other is not folder:
            raise PipelineError(
                f"segments: {other.path} and {folder.path} are replicas of one partition: "
                "read one of them, or compare them"
            )
    return [found[key] for key in sorted(found)]


def _in_any(directories: Sequence[str], topics: Sequence[str]) -> list[Folder]:
    """The folders of the topics, each of which must be in at least one of the directories."""
    if len(directories) == 1:
        return folders(directories[0], topics)
    found = [
        folder
        for directory in directories
        for folder in folders(directory)
        if not topics or folder.topic in topics
    ]
    for topic in topics:
        if topic not in {folder.topic for folder in found}:
            raise PipelineError(f"segments: no partition of {topic} in {', '.join(directories)}")
    return found
