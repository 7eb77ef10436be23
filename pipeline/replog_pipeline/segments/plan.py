"""Which files are read for a query, and what of each: one task per segment file, several for a
large one (`splits`).

1. A file is read only if its folder and its offsets are admitted; a segment ends where the next one
   begins.
2. Requested offsets that are deleted, or not there yet, are an error: nothing is skipped
   silently.
3. All bytes of a segment that another one follows must be right; in the active one, all below the
   high watermark.

Source: our own. Not here: Spark (`datasource`), filters (`filters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from replog_pipeline.columns import Offsets
from replog_pipeline.decoder import Request
from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.filters import MAX_OFFSET, Pruning
from replog_pipeline.segments.log_view import COMMITTED, View, log_end, unique_folders, view
from replog_pipeline.segments.options import SegmentOptions
from replog_pipeline.segments.splits import pieces


class FileTask(NamedTuple):
    """One segment file and what is wanted of it, none of which is before the byte `position`."""

    path: str
    request: Request
    position: int = 0


def plan(
    options: SegmentOptions, columns: Sequence[str], pruning: Pruning | None = None
) -> list[FileTask]:
    """The files of a batch query. PipelineError for what is not there."""
    pruning = pruning or Pruning()
    _check_named(options, options.start, "startingOffsets")
    _check_named(options, options.end, "endingOffsets")
    tasks: list[FileTask] = []
    for folder in unique_folders(options.directories, options.topics):
        key = folder.topic, folder.partition
        if options.only_named and key not in options.start:
            continue
        if pruning.admits(*key):
            seen = narrowed(
                view(folder, options.isolation, options.upto, "aborted" in columns),
                options.start,
                options.end,
            )
            tasks += file_tasks(seen, options, columns, pruning.start, pruning.end)
    return tasks


def narrowed(seen: View, start: Offsets, end: Offsets) -> View:
    """The view between the requested offsets. PipelineError when it has not got them."""
    key = seen.folder.topic, seen.folder.partition
    first, last = start.get(key, seen.start), end.get(key, seen.end)
    if first < seen.start:
        raise PipelineError(
            f"startingOffsets: offset {first} of {_name(key)} is gone: its log starts at "
            f"{seen.start} (retention)"
        )
    if key in start or key in end:
        asked, there = (
            max(first, end.get(key, 0)),
            log_end(seen.folder) if seen.end is None else seen.end,
        )
        if asked > there:
            raise PipelineError(
                f"offsets: {_name(key)} is visible up to offset {there}, not {asked}: read "
                "later, or with the option upto=log_end"
            )
    return seen._replace(start=first, end=last)


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]}-{key[1]}"


def file_tasks(
    seen: View,
    options: SegmentOptions,
    columns: Sequence[str],
    start: int = 0,
    end: int = MAX_OFFSET,
) -> list[FileTask]:
    """The files of a folder that hold offsets both of the view and of `start` to `end`."""
    start, end = max(start, seen.start), min(end, MAX_OFFSET if seen.end is None else seen.end)
    tasks = []
    segments = seen.folder.segments
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else None
        first, last = (
            max(start, segment.base_offset),
            min(end, MAX_OFFSET if following is None else following),
        )
        if first < last and segment.size:
            tasks += [
                FileTask(
                    segment.path,
                    _request(seen, options, columns, each.start, each.end, following),
                    each.position,
                )
                for each in pieces(segment, first, last)
            ]
    return tasks


def _request(
    seen: View,
    options: SegmentOptions,
    columns: Sequence[str],
    start: int,
    end: int,
    following: int | None,
) -> Request:
    folder = seen.folder
    return Request(
        tuple(columns),
        folder.topic,
        folder.partition,
        start,
        None if end == MAX_OFFSET else end,
        options.control,
        options.crc,
        tuple(
            each for each in seen.aborted if each.first_offset < end and each.last_offset >= start
        ),
        options.isolation == COMMITTED,
        folder.high_watermark or 0 if following is None else None,
        options.lenient,
    )


def _check_named(options: SegmentOptions, offsets: Offsets, name: str) -> None:
    if not offsets:
        return
    there = {
        (folder.topic, folder.partition)
        for folder in unique_folders(options.directories, options.topics)
    }
    for topic, partition in offsets:
        if (topic, partition) not in there:
            raise PipelineError(
                f"{name}: {topic}-{partition} is no partition of the topics that are read"
            )
