"""The log directories of a broker.

Owns `LogDirectories`: which of them work, jobs for their workers, and files to be removed later.

1. A failing directory takes its own logs offline and no others;
   `on_directory_failure(directory, error)` is called once.
2. A job that fails because of the disk fails its directory; a file that is gone already is no
   failure, nor is a worker that was stopped.
3. Where descriptors are short nothing fails: one line a minute says so, and work is tried again.

Ring 1. Source: Kafka's `LogManager` (live and offline log directories), `LogDirFailureChannel`; RL
1.12. Not here: one directory's content (`log_directory.py`), the logs (`log_manager.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable

from twisted.logger import Logger

from twisted_broker.interfaces import IDelayedCall, IDiskWorker, Runtime
from twisted_broker.log.errors import (
    LogDirFailure,
    OutOfDescriptors,
    WorkerStopped,
    is_out_of_descriptors,
)
from twisted_broker.log.log import Log
from twisted_broker.log.log_directory import LogDirectory
from twisted_broker.log.segments import RemoveLater
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.primitives import NULL_UUID

_logger = Logger()
# Descriptors come free when clients leave: soon enough for a retry, too often for a line each.
_AGAIN_SECONDS, _WARN_AGAIN_MS = 1.0, 60_000
# A delay that was shortened acts after this time at the latest.
LONGEST_STEP = 60.0


class LogDirectories:
    """`paths` as in `log.dirs`; `most_files`: how many segment files all of them keep open.

    `metadata_path`: where the metadata log is; `metadata_alone`, when it is none of `paths`. That
    one is locked and formatted like the others, and holds no partition.
    """

    def __init__(
        self,
        runtime: Runtime,
        paths: Iterable[str],
        most_files: int,
        on_directory_failure: Callable[[LogDirectory, OSError], None],
        metadata_path: str = "",
    ) -> None:
        self._runtime, self._on_directory_failure = runtime, on_directory_failure
        known = list(dict.fromkeys(posixpath.normpath(path) for path in paths))
        share = max(8, most_files // len(known))
        self.by_path: dict[str, LogDirectory] = {
            path: LogDirectory(
                runtime.files,
                path,
                runtime.disk(path),
                share,
                runtime.random,
                self._warn,
                # A worker of its own: reads of old records must not wait for a sync or a recovery.
                reader=runtime.disk(path),
            )
            for path in known
        }
        self.metadata_alone: LogDirectory | None = None
        if metadata_path and posixpath.normpath(metadata_path) not in self.by_path:
            path = posixpath.normpath(metadata_path)
            self.metadata_alone = LogDirectory(
                runtime.files, path, runtime.disk(path), 0, runtime.random, self._warn
            )
        self._delayed: dict[int, IDelayedCall] = {}
        self._delayed_count = 0
        self._warned_ms: int | None = None

    def _warn(self, text: str) -> None:
        _logger.warn("{text}", text=text)

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.by_path.values() if directory.failed is None]

    def offline(self) -> list[str]:
        return [path for path, directory in self.by_path.items() if directory.failed is not None]

    def offline_in_place_of(self, directory_id: bytes) -> list[str]:
        """The offline directories of which one is, or may be, that with this id; empty where it is
        online, or none of these. One that failed before its id was read may be any.
        """
        known = {directory.directory_id: directory for directory in self.by_path.values()}
        found = known.get(directory_id)
        if found is not None:
            return [] if found.failed is None else [found.path]
        return [
            path
            for path, directory in self.by_path.items()
            if directory.failed is not None and directory.directory_id == NULL_UUID
        ]

    def of(self, log: Log) -> LogDirectory:
        return self.by_path[posixpath.dirname(log.directory)]

    def claimed(self) -> list[LogDirectory]:
        """All that are locked and formatted."""
        alone = self.metadata_alone
        return [*self.by_path.values(), *([] if alone is None else [alone])]

    def at(self, path: str) -> LogDirectory:
        """The log directory with this path, that of the metadata included."""
        alone = self.metadata_alone
        return alone if alone is not None and alone.path == path else self.by_path[path]

    def worker(self, path: str) -> IDiskWorker:
        """The disk worker of a log directory."""
        return self.at(path).disk

    def descriptors(self) -> int:
        """What open segments take, or may take."""
        return sum(
            max(directory.pool.wanted, len(directory.pool)) for directory in self.by_path.values()
        )

    def previous_broker_epoch(self) -> int:
        """The broker epoch in the clean shutdown files; -1 unless every directory is here, has one,
        and all say the same.

        A directory that was away has the epoch of an older stop: what its logs lost since is not
        known.
        """
        epochs = {
            each.previous_broker_epoch if each.failed is None else -1
            for each in self.by_path.values()
        }
        return epochs.pop() if len(epochs) == 1 else -1

    # -- failures

    def refusal(self, directory: LogDirectory, error: OSError) -> BrokerError:
        """What to raise where a log cannot be made for `error`; fails the directory as `fail`."""
        self.fail(directory.path, error)
        kind = OutOfDescriptors if is_out_of_descriptors(error) else LogDirFailure
        return kind(directory.path, error)

    def fail(self, path: str, error: OSError) -> None:
        """Takes a directory and its logs offline, for good; not where descriptors are short."""
        directory = self.at(path)
        if directory.failed is not None:
            return
        if is_out_of_descriptors(error):
            self._warn_out_of_descriptors(path, error)
            return
        directory.failed = error
        _logger.error(
            "log directory {path} is offline until a restart: {error}", path=path, error=error
        )
        if directory is not self.metadata_alone:
            self._on_directory_failure(directory, error)

    def _warn_out_of_descriptors(self, path: str, error: OSError) -> None:
        now_ms = self._runtime.now_ms()
        if self._warned_ms is None or now_ms - self._warned_ms >= _WARN_AGAIN_MS:
            self._warned_ms = now_ms
            _logger.error(
                "{path}: {error}; raise the limit of open files (ulimit -n, LimitNOFILE), or "
                "lower max.connections",
                path=path,
                error=error,
            )

    # -- work on the disk, now and later

    def submit(
        self,
        directory: LogDirectory,
        job: Callable[[], object],
        again: Callable[[], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """`again` is called a little later where descriptors were short, `then` when it is
        done.
        """

        def done(_: object, error: BaseException | None) -> None:
            # A file that is gone was deleted with its log meanwhile.
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                self.fail(directory.path, error)
                if again is not None and is_out_of_descriptors(error):
                    self.call_later(_AGAIN_SECONDS, again)
            elif error is not None and not isinstance(error, (OSError, WorkerStopped)):
                _logger.error(
                    "a disk job of {path} failed: {error!r}", path=directory.path, error=error
                )
            elif error is None and then is not None:
                then()

        if directory.failed is None:
            directory.disk.submit(job, done)

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        """Calls after `delay` seconds unless the broker stops before."""
        # Kept by number: a timer whose call refers to it would be a reference cycle.
        self._delayed_count += 1
        self._delayed[self._delayed_count] = self._runtime.clock.callLater(
            delay, self._due, self._delayed_count, call
        )

    def call_after(
        self, delay: Callable[[], float], call: Callable[[], None], waited: float | None = None
    ) -> None:
        """As `call_later`; `delay()`, a setting, may change while this waits, as it does since
        `waited` seconds.
        """
        left = delay() - (waited or 0.0)
        if waited is not None and left <= 0:
            call()
            return
        step = min(max(left, 0.0), LONGEST_STEP)
        self.call_later(step, lambda: self.call_after(delay, call, (waited or 0.0) + step))

    def _due(self, number: int, call: Callable[[], None]) -> None:
        del self._delayed[number]
        call()

    def cancel_delayed(self) -> None:
        """Nothing that `call_later` was given is called any more."""
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()

    def remover(self, directory: LogDirectory) -> RemoveLater:
        """Takes files that are renamed `.deleted`: they go after a delay."""

        def remove_later(paths: list[str], delay: Callable[[], float]) -> None:
            self.call_after(delay, lambda: self._submit_removal(directory, paths))

        return remove_later

    def remover_at_once(self, directory: LogDirectory) -> RemoveLater:
        """As `remover`, without a delay: of a log that nobody reads, and whose directory gets
        another name.
        """
        return lambda paths, _: self._submit_removal(directory, paths)

    def _submit_removal(self, directory: LogDirectory, paths: list[str]) -> None:
        self.submit(
            directory,
            lambda: self._remove(paths),
            lambda: self._submit_removal(directory, paths),
        )

    def _remove(self, paths: list[str]) -> None:
        files = self._runtime.files
        for path in paths:
            if files.exists(path):
                files.remove(path)

    def remove_tree(self, directory: LogDirectory, path: str) -> None:
        self.submit(
            directory,
            lambda: self._runtime.files.remove_tree(path),
            lambda: self.remove_tree(directory, path),
        )
