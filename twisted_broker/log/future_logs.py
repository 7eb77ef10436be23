"""A log that moves to another directory: its name, its settings, and what is left of a move after a
crash.

Owns the name of a future log (`topic-partition.<32 hex>-future`), the mark of one that takes a
current log's place, and which of two logs counts when a crash left both.

1. A future log is marked, durably, before it is renamed, and again where it was truncated since.
   The log that it replaces is deleted only when the new name, and all records up to the swap, are
   durable, after a restart as well. The mark goes when all logs that it replaced are durably gone.
   So a crash leaves the old log alone, both with one of them marked, or the new one alone.
2. Of two logs the one counts whose last record has the newer leader epoch (the other lacks a
   truncation that came after the swap), then the longer one: until the old log is deleted nothing
   is acknowledged as synced that the new one lacks. Two that end alike hold the same records.
3. Whatever `flush.messages` says, a future log syncs only when it rolls, after a truncation and
   before the swap: the current log holds the same records.

Source: RL 3.8; Kafka's `LogManager.replaceCurrentWithFutureLog`, which refuses to start with both.
Pure. Not here: when (`replication.fetcher.alter_log_dirs_manager`), the swap (`log_moves.py`).
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING

from twisted_broker.interfaces import IFileSystem, TopicPartition
from twisted_broker.log.checkpoints import read_whole
from twisted_broker.log_config import LogConfig
from twisted_broker.settings import LONG_MAX

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

FUTURE_SUFFIX = "-future"
PROMOTED = "replog.promoted"
"""A file in a log's directory: it takes, or took, the place of a log in another directory."""
# Bytes of one name on Linux's file systems; topic names are ASCII.
LONGEST_NAME = 255


def future_name(topic_partition: TopicPartition, unique: int) -> str:
    """The directory's name. It holds the whole topic: where it is longer than LONGEST_NAME the log
    cannot be moved.
    """
    return f"{topic_partition}.{unique:032x}{FUTURE_SUFFIX}"


def future_config(config: LogConfig) -> LogConfig:
    """Its topic's settings, without syncs that appends wait for."""
    return replace(config, flush_messages=LONG_MAX)


def mark_promoted(files: IFileSystem, directory: str, replaced: str, synced_upto: int) -> None:
    """Marks a future log, durably, when all below `synced_upto` is durable: on the disk worker.
    Raises OSError.
    """
    path = posixpath.join(directory, PROMOTED)
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.write_at(0, (f"{synced_upto} in place of {replaced}\n".encode(),))
        file.sync()
    finally:
        file.close()
    files.sync_directory(directory)


def unmark_promoted(files: IFileSystem, directory: str) -> None:
    """The log that it replaced is gone, durably. Raises OSError."""
    files.remove(posixpath.join(directory, PROMOTED))


def marked_upto(log: Log) -> int:
    """Up to where a marked log was durable; -1 for one that is not marked. Raises OSError."""
    content = read_whole(log.pool.files, posixpath.join(log.directory, PROMOTED))
    if content is None:
        return -1
    number = content.partition(b" ")[0]
    return int(number) if number.isdigit() else 0


def one_that_counts(first: Log, second: Log) -> Log | None:
    """Of two logs of one partition that a crash left; None when neither is marked, so that it was
    no move. Raises OSError.
    """
    ends = [(*_newest(log), marked_upto(log), log) for log in (first, second)]
    if all(mark < 0 for *_, mark, _ in ends):
        return None
    return max(ends, key=lambda end: end[:3])[3]


def newer_of(first: Log, second: Log) -> Log:
    """Of two logs of one replica that no move left. What one of them held as committed, the newer
    one holds or has deleted: of one epoch both fetched from the same leader, and a later leader had
    all that was committed before it. Raises OSError.
    """
    end = min(first.log_end_offset, second.log_end_offset)
    return max((first, second), key=lambda log: (log.log_start_offset > end, *_newest(log)))


def _newest(log: Log) -> tuple[int, int]:
    """The leader epoch of its last whole record, and the offset after that. The last entry of the
    epochs' checkpoint does not do: it may be durable where records below it are not.
    """
    end = _whole_end(log)
    return log.leader_epochs.epoch_for_offset(end - 1) if end > log.log_start_offset else -1, end


def _whole_end(log: Log) -> int:
    """Where the log ends, or where the first offsets are missing that were not durable: what is
    missing below was left out by a cleaner.
    """
    gaps = [] if log.gap is None else [log.gap, log.gap.torn_tail]
    mark = marked_upto(log)
    torn = [gap.offset for gap in gaps if gap is not None and gap.torn and gap.offset >= mark]
    return min([log.log_end_offset, *torn])
