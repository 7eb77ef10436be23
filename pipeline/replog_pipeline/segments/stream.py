"""The positions of a stream over closed segments: where it may go now, and the files between two
positions.

1. A position is the next offset to be read, by "TOPIC-PARTITION"; a partition that is not named is
   read from its start.
2. A stream goes to the beginning of the active segment, and never past what is visible to it (high
   watermark, first open transaction).
3. A position that the log no longer has, or does not have yet, ends the query with one line: the
   topic was created again, or retention was faster.

Source: our own. Not here: Spark (`datasource`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.log_folder import Folder
from replog_pipeline.segments.log_view import View, log_end, unique_folders, view
from replog_pipeline.segments.options import SegmentOptions
from replog_pipeline.segments.plan import FileTask, file_tasks, narrowed

Positions = dict[str, int]


def first_positions(options: SegmentOptions) -> Positions:
    """Where a new stream begins."""
    found = {}
    for folder in unique_folders(options.directories, options.topics):
        seen = narrowed(View(folder, folder.start, None), options.start, {})
        found[_name(folder)] = seen.start
    return found


def closed_ends(options: SegmentOptions, start: Mapping[str, int]) -> Positions:
    """As far as a stream at `start` may go now; never behind it.

    PipelineError when a log ends before `start`.
    """
    ends = dict(start)
    for folder in unique_folders(options.directories, options.topics):
        name, end = _name(folder), _closed_end(folder, options)
        if end < start.get(name, 0) and log_end(folder) < start[name]:
            raise PipelineError(
                f"stream: {name} ends before offset {start[name]} (was the topic created again?): "
                "start with a new checkpoint"
            )
        ends[name] = max(end, start.get(name, 0))
    return ends


def bounded(
    ends: Mapping[str, int], start: Mapping[str, int], target: Mapping[str, int]
) -> Positions:
    """`ends` without what came after `target` was taken, and never behind `start`."""
    return {
        name: min(end, max(target.get(name, 0), start.get(name, 0)))
        for name, end in ends.items()
        if name in target or name in start
    }


def stream_plan(
    options: SegmentOptions,
    columns: Sequence[str],
    start: Mapping[str, int],
    end: Mapping[str, int],
) -> list[FileTask]:
    """The files from `start` to `end`. PipelineError when a position is not in the log."""
    tasks: list[FileTask] = []
    for folder in unique_folders(options.directories, options.topics):
        name = _name(folder)
        first, last = start.get(name, folder.start), end.get(name, folder.start)
        if first < last:
            _check(folder, name, first, last)
            seen = view(folder, options.isolation, options.upto, "aborted" in columns)._replace(
                start=first, end=last
            )
            tasks += file_tasks(seen, options, columns)
    return tasks


def _closed_end(folder: Folder, options: SegmentOptions) -> int:
    active = folder.segments[-1].base_offset if folder.segments else folder.start
    seen = view(folder, options.isolation, options.upto)
    return max(folder.start, active if seen.end is None else min(active, seen.end))


def _check(folder: Folder, name: str, first: int, last: int) -> None:
    if first < folder.start:
        raise PipelineError(
            f"stream: offset {first} of {name} is gone, the log starts at {folder.start} "
            "(retention): start with a new checkpoint"
        )
    if last > folder.segments[-1].base_offset:
        raise PipelineError(
            f"stream: {name} has no closed segment up to offset {last} (was the topic made "
            "anew?): start with a new checkpoint"
        )


def _name(folder: Folder) -> str:
    return f"{folder.topic}-{folder.partition}"
