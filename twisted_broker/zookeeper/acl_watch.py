"""The ACLs of a ZooKeeper cluster, as its brokers have them.

Owns `AclWatch`: reads all at the start, and those of a resource at each announcement.

1. All are read before a listener opens; a node that cannot be understood ends the start: one of its
   ACLs may deny.
2. An announcement is read once, in order; a new session reads everything again.
3. Later a node that cannot be understood is one line, and leaves that resource's ACLs as they were.

Source: Kafka 3.9's `AclAuthorizer`. Not here: what ACLs allow (`security/standard_authorizer.py`),
changes (`api/zookeeper_changes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.interfaces import Runtime
from twisted_broker.wire.messages.metadata_records import AccessControlEntryRecord
from twisted_broker.zookeeper.acl_znodes import (
    CHANGE_PREFIX,
    CHANGES,
    Pattern,
    folders,
    read_acls,
    read_change,
)
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.port import (
    IZooKeeper,
    NodeExistsError,
    NoNodeError,
    ZooKeeperError,
)
from twisted_broker.zookeeper.znodes import ZnodeError

_logger = Logger()
_RETRY_SECONDS = 0.5
Acls = Sequence[AccessControlEntryRecord]


class AclWatch:
    """What it reads goes to `state`."""

    def __init__(self, runtime: Runtime, zookeeper: IZooKeeper, state: ClusterState) -> None:
        self._runtime, self._zookeeper, self._state = runtime, zookeeper, state
        self._lock: DeferredLock = DeferredLock()
        self._known: dict[Pattern, Acls] = {}
        self._seen = dict.fromkeys(CHANGES, -1)
        self._stopped = False
        self._watching: set[Deferred[None]] = set()

    def stop(self) -> None:
        """Nothing is read any more."""
        self._stopped = True
        for each in list(self._watching):
            each.cancel()

    async def load(self) -> None:
        """All of them, and the watch; tried again until it works. Raises ZnodeError."""
        await self._lock.acquire()
        try:
            while not self._stopped:
                try:
                    await self._load()
                    return
                except ZooKeeperError as error:
                    _logger.debug("ACLs are read again: {error}", error=error)
                    await self._pause()
        finally:
            self._lock.release()

    async def _load(self) -> None:
        # The watches first: what changes while ACLs are read is read again.
        for path in CHANGES:
            names = await self._children(path)
            self._seen[path] = max(map(_number, names), default=-1)
        found: dict[Pattern, Acls] = dict.fromkeys(self._known, ())
        for folder, pattern_type, kind in folders():
            with suppress(NoNodeError):
                for name in await self._zookeeper.children(folder):
                    pattern = Pattern(pattern_type, kind, name)
                    found[pattern] = await self._read(pattern)
        self._take(found)

    async def _read(self, pattern: Pattern) -> Acls:
        try:
            data, _ = await self._zookeeper.get(pattern.path)
        except NoNodeError:
            return ()
        return read_acls(pattern, data)

    async def read_again(self, patterns: Iterable[Pattern]) -> None:
        """What these nodes hold now, whether announced or not; nothing where ZooKeeper does not
        answer: their announcements come.
        """
        await self._lock.acquire()
        try:
            for pattern in patterns:
                with suppress(ZooKeeperError, ZnodeError):
                    self._take({pattern: await self._read(pattern)})
        finally:
            self._lock.release()

    def _take(self, found: Mapping[Pattern, Acls]) -> None:
        removed = [acl for each in found for acl in self._known.get(each, ())]
        self._known.update(found)
        for each in [pattern for pattern, acls in found.items() if not acls]:
            del self._known[each]
        self._state.set_acls(removed, [acl for acls in found.values() for acl in acls])

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
        work = ensureDeferred(self._take_changes())
        self._watching.add(work)
        work.addErrback(_log_failure).addBoth(lambda result: self._watching.discard(work))

    async def _take_changes(self) -> None:
        await self._lock.acquire()
        try:
            for path in CHANGES:
                names = await self._children(path)
                for name in sorted(names, key=_number):
                    if _number(name) > self._seen[path]:
                        await self._take_one(f"{path}/{name}")
                        self._seen[path] = _number(name)
        except ZooKeeperError as error:
            _logger.debug("announced ACLs are read again: {error}", error=error)
            await self._pause()
            if not self._stopped:
                self._runtime.clock.callLater(0, self._changed)
        finally:
            self._lock.release()

    async def _take_one(self, path: str) -> None:
        with suppress(NoNodeError):  # old ones are removed after 15 minutes
            data, _ = await self._zookeeper.get(path)
            try:
                pattern = read_change(path, data)
                self._take({pattern: await self._read(pattern)})
            except ZnodeError as error:
                _logger.error("{error}: the ACLs stay as they were", error=error)

    def _pause(self) -> Deferred[None]:
        return deferLater(self._runtime.clock, _RETRY_SECONDS, lambda: None)  # type: ignore[arg-type]


def _number(name: str) -> int:
    digits = name.removeprefix(CHANGE_PREFIX)
    return int(digits) if digits.isdecimal() else -1


def _log_failure(failure: Failure) -> None:
    if failure.check(CancelledError) is None:
        _logger.failure("reading changed ACLs failed", failure)
