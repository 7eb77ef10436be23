"""The log directories of a broker, and the logs found in them.

Owns `LogDirectories`: which directories work, which logs they hold, jobs for their workers, files
to be removed later.

1. A failing directory takes its own logs offline and no others; `directory_failed(path, error)`
   hears of it once.
2. A job that fails for the disk's sake fails its directory; a file that is gone already is no
   failure.
3. Descriptors that are short fail nothing: one line a minute says so, and the work comes again.

Ring 1. Source: Kafka's `LogManager`, `LogDirFailureChannel`; RL 1.12. Left out: one directory's
content (`log_directory.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator

from twisted.logger import Logger

from twisted_broker.config import BrokerConfig, LogConfig
from twisted_broker.interfaces import IDelayedCall, IDiskWorker, Runtime, TopicPartition
from twisted_broker.log.errors import is_out_of_descriptors
from twisted_broker.log.log import Log
from twisted_broker.log.log_directory import LogDirectory
from twisted_broker.settings import INT_MAX

_log = Logger()
_AGAIN_SECONDS, _TELL_AGAIN_MS = 1.0, 60_000


def _unknown(topic: str) -> LogConfig | None:
    return None


class LogDirectories:
    """`config_of(topic)` gives a topic's settings while loading; None: not known yet, the broker's
    own until `get_or_create`.

    `most_files`: what the process's limit leaves for segments.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        cluster_id: str,
        config_of: Callable[[str], LogConfig | None] | None = None,
        directory_failed: Callable[[str, OSError], None] | None = None,
        most_files: int = INT_MAX,
    ) -> None:
        self.runtime, self.config, self.cluster_id = runtime, config, cluster_id
        self.config_of = config_of if config_of is not None else _unknown
        self.directory_failed = directory_failed
        paths = list(dict.fromkeys(posixpath.normpath(path) for path in config.log_directories))
        share = max(8, min(config.integer("replog.max.open.segments"), most_files) // len(paths))
        self.directories: dict[str, LogDirectory] = {
            path: LogDirectory(
                runtime.files, path, runtime.disk(path), share, runtime.random, self._warn
            )
            for path in paths
        }
        self.logs: dict[TopicPartition, Log] = {}
        self._delayed: set[IDelayedCall] = set()
        self._told_ms: int | None = None

    def descriptors(self) -> int:
        """What open segments take, or may take."""
        return sum(
            max(directory.pool.wanted, len(directory.pool))
            for directory in self.directories.values()
        )

    def _warn(self, text: str) -> None:
        _log.warn("{text}", text=text)

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories.values() if directory.failed is None]

    def offline(self) -> list[str]:
        return [
            path for path, directory in self.directories.items() if directory.failed is not None
        ]

    def previous_broker_epoch(self) -> int:
        """The broker epoch that the marks of a clean stop tell; -1 unless every directory is here,
        has one, and all tell the same.

        A directory that was away tells of an older stop: what its logs lack since nobody knows.
        """
        told = {
            each.previous_broker_epoch if each.failed is None else -1
            for each in self.directories.values()
        }
        return told.pop() if len(told) == 1 else -1

    def directory_of(self, log: Log) -> LogDirectory:
        return self.directories[posixpath.dirname(log.directory)]

    def worker(self, directory: str) -> IDiskWorker:
        """The disk worker of a log directory."""
        return self.directories[directory].disk

    def fail_directory(self, path: str, error: OSError) -> None:
        """Takes a directory and its logs offline, for good."""
        self._fail_directory(self.directories[path], error)

    def _fail_directory(self, directory: LogDirectory, error: OSError) -> None:
        if directory.failed is not None:
            return
        if is_out_of_descriptors(error):
            self._tell_out_of_descriptors(directory.path, error)
            return
        directory.failed = error
        _log.error("log directory {path} is offline: {error}", path=directory.path, error=error)
        for log in [
            log for log in self.logs.values() if posixpath.dirname(log.directory) == directory.path
        ]:
            log.fail(error)
        if self.directory_failed is not None:
            self.directory_failed(directory.path, error)

    def _tell_out_of_descriptors(self, path: str, error: OSError) -> None:
        now_ms = self.runtime.now_ms()
        if self._told_ms is None or now_ms - self._told_ms >= _TELL_AGAIN_MS:
            self._told_ms = now_ms
            _log.error(
                "{path}: {error}: a higher limit of open files (ulimit -n, LimitNOFILE), or a "
                "lower max.connections, is needed",
                path=path,
                error=error,
            )

    def _log_failed(self, log: Log) -> None:
        assert log.failed is not None
        self._fail_directory(self.directory_of(log), log.failed)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The log, offline or not; None when there is none."""
        return self.logs.get(topic_partition)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self.logs.values()))

    def _logs_of(self, directory: LogDirectory) -> list[Log]:
        return [
            log
            for log in self.logs.values()
            if log.failed is None and posixpath.dirname(log.directory) == directory.path
        ]

    def _submit(
        self,
        directory: LogDirectory,
        job: Callable[[], object],
        again: Callable[[], None] | None = None,
    ) -> None:
        """`again` is called a little later where descriptors were short."""

        def done(_: object, error: BaseException | None) -> None:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                self._fail_directory(directory, error)
                if again is not None and is_out_of_descriptors(error):
                    self._later(_AGAIN_SECONDS, again)
            elif error is not None and not isinstance(error, OSError):
                _log.error("disk job failed: {error!r}", error=error)

        if directory.failed is None:
            directory.disk.submit(job, done)

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        """Calls after `delay` seconds unless the broker stops before."""

        def due() -> None:
            self._delayed.discard(timer)
            call()

        timer = self.runtime.clock.callLater(delay, due)
        self._delayed.add(timer)

    def _remover(self, directory: LogDirectory) -> Callable[[list[str]], None]:
        """What a log calls with files that are renamed `.deleted`: they go after the delay."""
        delay = self.config.integer("log.segment.delete.delay.ms") / 1000

        def remove(paths: list[str]) -> None:
            for path in paths:
                if self.runtime.files.exists(path):
                    self.runtime.files.remove(path)

        def submit(paths: list[str]) -> None:
            self._submit(directory, lambda: remove(paths), lambda: submit(paths))

        return lambda paths: self._later(delay, lambda: submit(paths))

    def _remove_tree(self, directory: LogDirectory, path: str) -> None:
        self._submit(
            directory,
            lambda: self.runtime.files.remove_tree(path),
            lambda: self._remove_tree(directory, path),
        )
