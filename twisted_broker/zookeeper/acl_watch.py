"""The ACLs of a ZooKeeper cluster, as its brokers have them.

Owns `AclWatch`: reads all at the start, and those of a resource at each announcement.

1. All are read before a listener opens; a node that cannot be understood ends the start: one of its
   ACLs may deny.
2. A new session reads everything again.
3. Later a node that cannot be understood is one line, and leaves that resource's ACLs as they were.

Source: Kafka 3.9's `AclAuthorizer`. Not here: what ACLs allow (`security/standard_authorizer.py`),
changes (`api/zookeeper_changes.py`), when announcements are read (`change_notifications.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from twisted.logger import Logger

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
from twisted_broker.zookeeper.change_notifications import ChangeNotifications
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.port import IZooKeeper, NoNodeError, ZooKeeperError
from twisted_broker.zookeeper.znodes import ZnodeError

_logger = Logger()
Acls = Sequence[AccessControlEntryRecord]


class AclWatch:
    """What it reads goes to `state`."""

    def __init__(self, runtime: Runtime, zookeeper: IZooKeeper, state: ClusterState) -> None:
        self._zookeeper, self._state = zookeeper, state
        self._known: dict[Pattern, Acls] = {}
        self._notifications = ChangeNotifications(
            runtime, zookeeper, CHANGES, CHANGE_PREFIX, self._take_one, "ACLs"
        )

    def stop(self) -> None:
        """Nothing is read any more."""
        self._notifications.stop()

    async def load(self) -> None:
        """All of them, and the watch; tried again until it works. Raises ZnodeError."""
        await self._notifications.tried_again(self._load)

    async def _load(self) -> None:
        await self._notifications.begin()
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
        await self._notifications.lock.acquire()
        try:
            for pattern in patterns:
                with suppress(ZooKeeperError, ZnodeError):
                    self._take({pattern: await self._read(pattern)})
        finally:
            self._notifications.lock.release()

    def _take(self, found: Mapping[Pattern, Acls]) -> None:
        removed = [acl for each in found for acl in self._known.get(each, ())]
        self._known.update(found)
        for each in [pattern for pattern, acls in found.items() if not acls]:
            del self._known[each]
        self._state.set_acls(removed, [acl for acls in found.values() for acl in acls])

    async def _take_one(self, path: str) -> None:
        data, _ = await self._zookeeper.get(path)
        try:
            pattern = read_change(path, data)
            self._take({pattern: await self._read(pattern)})
        except ZnodeError as error:
            _logger.error("{error}: the ACLs stay as they were", error=error)
