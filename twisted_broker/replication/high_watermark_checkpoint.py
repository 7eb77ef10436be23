"""The high watermarks on disk: one `replication-offset-checkpoint` per log directory.

Owns reading them once and writing them now and then, for leaders and followers alike.

1. A log that is opened begins with its checkpointed high watermark, not above its end and not below
   its start.
2. A write happens aside on the directory's disk worker, at most one at a time per directory. The
   worker reads the values, too, each as it is then: with 20,000 logs that takes longer than a turn
   of the reactor may. The reactor only lists the logs.
3. A directory that cannot be read or written is reported; the others go on. A checkpoint that is
   damaged counts as empty.
4. The file also says up to which offset the metadata was applied: metadata that ends below it is an
   older copy (`cluster.metadata_check`). A change of that offset alone makes no write due, except
   where no disk of this node keeps the metadata: then the next start knows it from here only.

Source: RL 1.12. Not here: the file's format (`log.checkpoints`).
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from twisted.logger import Logger

from twisted_broker.interfaces import IDiskWorker, IFileSystem, TopicPartition
from twisted_broker.log.checkpoints import (
    HIGH_WATERMARK,
    metadata_rows,
    read_offsets,
    write_offsets,
)
from twisted_broker.log.errors import (
    CheckpointError,
    LogDirFailure,
    OutOfDescriptors,
    is_out_of_descriptors,
)
from twisted_broker.topic_names import METADATA_TOPIC
from twisted_broker.wire.errors import BrokerError

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_logger = Logger()


class HighWatermarkCheckpoint:
    """`worker_of(directory)` is where writes run; `failed(directory, error)` is called with a
    directory that cannot be read or written.
    """

    __slots__ = ("_failed", "_files", "_loaded", "_worker_of", "_writing", "_written")

    def __init__(
        self,
        files: IFileSystem,
        worker_of: Callable[[str], IDiskWorker],
        failed: Callable[[str, OSError], None],
    ) -> None:
        self._files = files
        self._worker_of = worker_of
        self._failed = failed
        self._loaded: dict[str, dict[TopicPartition, int]] = {}
        self._writing: set[str] = set()
        self._written: dict[str, dict[TopicPartition, int]] = {}

    def start(self, log: Log) -> None:
        """Gives a log that was just opened its high watermark. Raises OutOfDescriptors (to be tried
        again), LogDirFailure.
        """
        waiting = self._waiting(posixpath.dirname(log.directory))
        # Once only: a log of that name made later must not take it. A log whose role was put off
        # for lack of descriptors comes here again, and keeps what it has.
        high_watermark = waiting.pop(log.topic_partition, log.high_watermark)
        log.set_high_watermark(max(log.log_start_offset, min(high_watermark, log.log_end_offset)))

    def keep(self, log: Log) -> None:
        """The row of a log that is not listed for `write` any more, though its directory goes on:
        the next start needs it.
        """
        waiting = self._loaded.get(posixpath.dirname(log.directory))
        if waiting is not None:
            # Where it has not begun yet the row that it is to begin with stays.
            waiting.setdefault(log.topic_partition, _row(log))

    def _waiting(self, directory: str) -> dict[TopicPartition, int]:
        """Rows of logs that have not begun yet. Raises as `start`."""
        found = self._loaded.get(directory)
        if found is None:
            found = self._loaded[directory] = self._read(directory)
        return found

    def _read(self, directory: str) -> dict[TopicPartition, int]:
        try:
            found = read_offsets(self._files, directory, HIGH_WATERMARK)
            return {each: offset for each, offset in found.items() if each.topic != METADATA_TOPIC}
        except CheckpointError as error:
            # Not fatal: a high watermark that begins too low grows again with the next fetches.
            _logger.warn("{error}; high watermarks begin at the log start offsets", error=error)
            return {}
        except OSError as error:
            self._failed(directory, error)
            if is_out_of_descriptors(error):
                raise OutOfDescriptors(directory, error) from error
            raise LogDirFailure(directory, error) from error

    def write(self, logs: Iterable[Log], metadata_end: int, is_metadata_kept: bool = True) -> None:
        """Begins to write where any changed since the last time. `metadata_end`: the offset
        behind the metadata that was applied, 0 for none; `is_metadata_kept`: whether that metadata
        is on this node's disks as well.
        """
        for directory, its in _by_directory(logs).items():
            # One write at a time per directory: what changed meanwhile goes with the next round.
            if directory not in self._writing:
                written = self._written.get(directory)
                self._submit(directory, its, metadata_end, is_metadata_kept, written)

    def write_last(self, logs: Iterable[Log], metadata_end: int) -> None:
        """Writes all (shutdown): done before anything that is submitted to the workers later."""
        for directory, its in _by_directory(logs).items():
            self._submit(directory, its, metadata_end, True, None)

    def _submit(
        self,
        directory: str,
        logs: list[Log],
        metadata_end: int,
        is_metadata_kept: bool,
        written: dict[TopicPartition, int] | None,
    ) -> None:
        try:
            # A log that the checkpoint names and that has not been loaded yet keeps its row.
            waiting = dict(self._waiting(directory))
        except BrokerError:
            return  # the next round writes, or the directory is offline
        self._writing.add(directory)

        def job() -> dict[TopicPartition, int]:
            offsets = waiting | {log.topic_partition: _row(log) for log in logs}
            rows = offsets | metadata_rows(metadata_end) if metadata_end else offsets
            compared = offsets if is_metadata_kept else rows
            if compared != written:
                write_offsets(self._files, directory, HIGH_WATERMARK, rows)
            return compared

        self._worker_of(directory).submit(
            job, lambda rows, error: self._done(directory, rows, error)
        )

    def _done(
        self,
        directory: str,
        rows: dict[TopicPartition, int] | None,
        error: BaseException | None,
    ) -> None:
        self._writing.discard(directory)
        if error is None and rows is not None:
            self._written[directory] = rows
        elif isinstance(error, OSError):
            self._failed(directory, error)
        else:
            _logger.error(
                "writing the high watermark checkpoint of {directory} failed: {error!r}",
                directory=directory,
                error=error,
            )


def _row(log: Log) -> int:
    return log.durability.high_watermark_to_checkpoint(log.high_watermark)


def _by_directory(logs: Iterable[Log]) -> dict[str, list[Log]]:
    found: dict[str, list[Log]] = defaultdict(list)
    for log in logs:
        found[log.directory.rpartition("/")[0]].append(log)
    return found
