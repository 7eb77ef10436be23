"""How much is free on the disks of the log directories. Ring 1.

Owns `FreeSpace`: what was found last, and the lines before a disk is full.

1. A directory's worker looks at its disk: a disk that does not answer holds up nobody else, and is
   not looked at again meanwhile.
2. One warning when less than `replog.log.dir.free.warn.bytes` is free, one line when there is a
   tenth more again; a disk that goes up and down about the limit says nothing. The service starts
   it with the broker (`broker_service.py`): a simulated disk is not looked at.
3. A directory that fails is forgotten.

Source: our own; Kafka leaves it to what watches the machine. Not here: what happens when a disk is
full (`log_directories.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.log.log_directory import LogDirectory
from twisted_broker.periodic import PeriodicTask

if TYPE_CHECKING:
    from twisted_broker.log.log_directories import LogDirectories

SECONDS = 30.0
_logger = Logger()


class FreeSpace:
    """`found`: (total, free) bytes by path of the directory."""

    __slots__ = ("_asked", "_config", "_directories", "_low", "_runtime", "_task", "found")

    def __init__(self, runtime: Runtime, config: BrokerConfig, directories: LogDirectories) -> None:
        self._runtime, self._config, self._directories = runtime, config, directories
        self.found: dict[str, tuple[int, int]] = {}
        self._low: set[str] = set()
        self._asked: set[str] = set()
        self._task = PeriodicTask(runtime.clock, self.look, "looking at the disks")

    @property
    def limit(self) -> int:
        """With fewer bytes free a disk is nearly full."""
        return self._config.integer("replog.log.dir.free.warn.bytes")

    def start(self) -> None:
        """Looks now, and every `SECONDS`."""
        self._task.start(SECONDS)
        self.look()

    def stop(self) -> None:
        self._task.stop()

    def look(self) -> None:
        """Has each directory's worker look at its disk; `found` changes when the worker is done."""
        online = self._directories.online()
        for path in self.found.keys() - {directory.path for directory in online}:
            del self.found[path]
            self._low.discard(path)
        for directory in online:
            if directory.path not in self._asked:
                self._look_at(directory)

    def _look_at(self, directory: LogDirectory) -> None:
        path = directory.path
        self._asked.add(path)

        def done(found: tuple[int, int] | None, error: BaseException | None) -> None:
            self._asked.discard(path)
            # A disk that fails is found by those who read and write.
            if found is not None and error is None and directory.failed is None:
                self._found(path, *found)

        directory.disk.submit(lambda: self._runtime.files.free_bytes(path), done)

    def _found(self, path: str, total: int, free: int) -> None:
        self.found[path] = (total, free)
        limit = self.limit
        if free < limit and path not in self._low:
            self._low.add(path)
            _logger.warn(
                "disk nearly full directory={path} free.bytes={free} total.bytes={total} "
                "replog.log.dir.free.warn.bytes={limit}: shorten retention, delete topics or move "
                "replicas away",
                path=path,
                free=free,
                total=total,
                limit=limit,
            )
        elif path in self._low and free >= limit + limit // 10:
            self._low.discard(path)
            _logger.info(
                "disk has room again directory={path} free.bytes={free} total.bytes={total}",
                path=path,
                free=free,
                total=total,
            )
