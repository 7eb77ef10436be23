"""The announcements of a ZooKeeper cluster: sequential children of a node, one for each change.

Owns `ChangeNotifications`, by which ACLs and settings are kept up to date.

1. A notification is read once, in order; those of before the start are not needed.
2. One reads at a time: what is read at a change, and what others read under `tried_again`.
3. What ZooKeeper does not answer is tried again; a new session reads everything (`begin`).

Source: Kafka 3.9's `ZkNodeChangeNotificationListener`. Not here: what a notification says
(`acl_watch.py`, `config_watch.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.interfaces import Runtime
from twisted_broker.java_numbers import is_digits
from twisted_broker.zookeeper.port import (
    IZooKeeper,
    NodeExistsError,
    NoNodeError,
    ZooKeeperError,
)

_logger = Logger()
_RETRY_SECONDS = 0.5


class ChangeNotifications:
    """Below `paths`, each child named `prefix` and a number. `take_one(path)` reads one; log lines
    name `what` they are about.
    """

    def __init__(
        self,
        runtime: Runtime,
        zookeeper: IZooKeeper,
        paths: Sequence[str],
        prefix: str,
        take_one: Callable[[str], Awaitable[None]],
        what: str,
    ) -> None:
        self._runtime, self._zookeeper, self._what = runtime, zookeeper, what
        self._prefix, self._take_one = prefix, take_one
        self.lock: DeferredLock = DeferredLock()
        self._seen = dict.fromkeys(paths, -1)
        self._stopped = False
        self._watching: set[Deferred[None]] = set()

    def stop(self) -> None:
        """Nothing is read any more."""
        self._stopped = True
        for each in list(self._watching):
            each.cancel()

    async def tried_again(self, read: Callable[[], Awaitable[None]]) -> None:
        """Under the lock, until ZooKeeper answers."""
        await self.lock.acquire()
        try:
            while not self._stopped:
                try:
                    await read()
                    return
                except ZooKeeperError as error:
                    _logger.debug("{what} are read again: {error}", what=self._what, error=error)
                    await self._pause()
        finally:
            self.lock.release()

    async def begin(self) -> None:
        """Sets the watches, before everything is read: what changes meanwhile is read again."""
        for path in self._seen:
            names = await self._children(path)
            self._seen[path] = max(map(self._number, names), default=-1)

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._zookeeper.children(path, self._changed)
        except NoNodeError:
            with suppress(NodeExistsError):
                await self._zookeeper.create(path, b"")
            return await self._zookeeper.children(path, self._changed)

    def _changed(self) -> None:
        if self._stopped:
            return
        work = ensureDeferred(self._take())
        self._watching.add(work)
        work.addErrback(self._log_failure).addBoth(lambda result: self._watching.discard(work))

    async def _take(self) -> None:
        await self.lock.acquire()
        try:
            for path in self._seen:
                names = await self._children(path)
                for name in sorted(names, key=self._number):
                    if self._number(name) > self._seen[path]:
                        with suppress(NoNodeError):  # old ones are removed after 15 minutes
                            await self._take_one(f"{path}/{name}")
                        self._seen[path] = self._number(name)
        except ZooKeeperError as error:
            # The next session reads everything; of this one the watch may be lost.
            _logger.debug("changed {what} are read again: {error}", what=self._what, error=error)
            await self._pause()
            if not self._stopped:
                self._runtime.clock.callLater(0, self._changed)
        finally:
            self.lock.release()

    def _pause(self) -> Deferred[None]:
        return deferLater(self._runtime.clock, _RETRY_SECONDS, lambda: None)  # type: ignore[arg-type]

    def _number(self, name: str) -> int:
        digits = name.removeprefix(self._prefix)
        return int(digits) if is_digits(digits) else -1

    def _log_failure(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            _logger.failure("reading changed {what} failed", failure, what=self._what)
