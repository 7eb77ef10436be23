"""The mark of a log that was made anew while an older log of its partition was out of reach.

Owns `MADE_ANEW`, what it says, and whether it says that of two logs one counts.

A replica may leave this broker while its log's directory is offline, and be added again: the old
log stays where it is, the new one is made in another directory. A start that finds both needs to
know which one counts. The mark names the old log and how far it went. Where that one went further
since, it was served again meanwhile, while the new log was out of reach: then nobody here knows.

Pure. Source: this package; Kafka's `LogManager.loadLog` refuses to start with both. Not here: two
logs that a move left (`future_logs.py`), who writes the mark and sets the old log aside
(`log_directory.py`, `log_manager.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from twisted_broker.interfaces import IFileSystem
from twisted_broker.java_numbers import is_digits
from twisted_broker.log.checkpoints import read_whole, write_aside

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

MADE_ANEW = "replog.made-anew"
"""A file in a log's directory: the older logs of its partition that it does without, one a line."""


class LeftLog(NamedTuple):
    """A log that could not be deleted: its newest leader epoch, its end offset, its path."""

    topic_id: bytes | None
    epoch: int
    end: int
    path: str


def left(log: Log) -> LeftLog:
    """What is known of a log whose directory is offline."""
    return LeftLog(log.topic_id, log.leader_epochs.latest_epoch, log.log_end_offset, log.directory)


def mark_made_anew(
    files: IFileSystem, directory: str, logs: Iterable[LeftLog], sync: bool = True
) -> None:
    """Marks the log in `directory`; durably with `sync`: on the disk worker. Raises OSError."""
    lines = "".join(f"{log.epoch} {log.end} {log.path}\n" for log in logs)
    write_aside(files, posixpath.join(directory, MADE_ANEW), lines.encode(), sync)


def unmark_made_anew(files: IFileSystem, directory: str) -> None:
    """None of the older logs is there any more, durably. Raises OSError."""
    files.remove(posixpath.join(directory, MADE_ANEW))


def is_made_anew(log: Log, other: Log) -> bool:
    """Whether `log` was made without `other`, which nobody has written to since. Raises OSError."""
    content = read_whole(log.pool.files, posixpath.join(log.directory, MADE_ANEW)) or b""
    for line in content.decode("utf-8", "replace").splitlines():
        epoch, _, rest = line.partition(" ")
        end, _, path = rest.partition(" ")
        if path == other.directory and is_digits(epoch.removeprefix("-")) and is_digits(end):
            return other.leader_epochs.latest_epoch <= int(epoch) and other.log_end_offset <= int(
                end
            )
    return False
