"""Failures of a log beyond a refused request.

Owns `LogDirFailure` (the disk failed), `LogFileFailure` (a file of one log cannot be used, its
directory can), `OutOfDescriptors` (no disk failed: the process may open no more files for now),
`OffsetsOutOfOrder` and `UnexpectedAppendOffset` (a replica's records do not continue the log),
`WorkerStopped` (a disk job came too late), `CheckpointError`, and `is_out_of_descriptors`.

1. A disk failure takes its log offline until a restart: later reads and appends answer
   KAFKA_STORAGE_ERROR.
2. Errors of a name (ENOENT, EACCES ..) are of the one log whose file has it, as long as its
   directory can be used: other partitions go on.
3. EMFILE and ENFILE say nothing about the disk: what was refused for them is tried again, by the
   client or by the broker.

Source: Kafka's `KafkaStorageException`, `UnexpectedAppendOffsetException`,
`OffsetsOutOfOrderException`; RL 1.12.
"""

from __future__ import annotations

import errno

from twisted_broker.wire.errors import BrokerError, ErrorCode

_OF_A_NAME = frozenset(
    {
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
    }
)
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def is_out_of_descriptors(error: BaseException | None) -> bool:
    """Whether this is the process's or the machine's limit of open files, not the disk."""
    return isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS


def is_of_a_name(error: BaseException | None) -> bool:
    """Whether this may be the fault of one file's name, rather than of the disk."""
    return isinstance(error, OSError) and error.errno in _OF_A_NAME


class LogFailure(BrokerError):
    """A log is offline until a restart."""


class LogDirFailure(LogFailure):
    """A disk error in a log directory: `directory`, and `cause`, the OSError (None: no directory is
    left, each one's error was reported before).
    """

    def __init__(self, directory: str, cause: OSError | None = None) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR,
            (
                f"log directory {directory} is offline: "
                f"{cause if cause is not None else 'it failed before'}"
            ),
        )
        self.directory, self.cause = directory, cause


class LogFileFailure(LogFailure):
    """A file of the log in `directory` is missing or cannot be used; its log directory goes on."""

    def __init__(self, directory: str, cause: OSError) -> None:
        name = f" {cause.filename}" if cause.filename else ""
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the log in {directory} is offline: {cause.strerror or cause}{name}; put the file "
            "back, or remove that folder where other replicas have the records, and restart",
        )


class OutOfDescriptors(BrokerError):
    """No file can be opened for now. Clients try again at KAFKA_STORAGE_ERROR."""

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"no file can be opened in {path} for now: {cause.strerror}",
        )


class WorkerStopped(Exception):
    """A disk worker was stopped before this job came: nothing was done, and no disk failed."""


class OffsetsOutOfOrder(BrokerError):
    """Offsets in a replica's records go back."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


class UnexpectedAppendOffset(BrokerError):
    """A replica's records start below the log end."""

    def __init__(self, first_offset: int, last_offset: int, log_end_offset: int) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"records {first_offset}..{last_offset} start below the log end {log_end_offset}",
        )
        self.first_offset, self.last_offset = first_offset, last_offset


class CheckpointError(Exception):
    """A checkpoint, snapshot or properties file that cannot be understood: `path`, and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason
