"""ZooKeeper as the rest of this package sees it.

Owns `IZooKeeper`, its errors and `NodeStat`. Met by `kazoo_client.py`, and in memory by
`tests/zookeeper/memory_zookeeper.py`.

1. Each call answers once, by Deferred, on the reactor's thread; a call whose connection was lost
   fails with `ConnectionLossError`, and may have been done or not.
2. A session ends for good with `SESSION_EXPIRED`: its ephemeral nodes are gone. The client opens
   the next one by itself, and says `CONNECTED` then.

Source: ZooKeeper's Programmer's Guide. Not here: which nodes there are (`znodes.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from twisted.internet.defer import Deferred


class SessionEvent(Enum):
    """What became of the session."""

    CONNECTED = "connected"
    SUSPENDED = "not connected: the session may still live"
    EXPIRED = "expired"


class ZooKeeperError(Exception):
    """A call failed; `str()` is one line."""


class NoNodeError(ZooKeeperError):
    """The node is not there."""


class NodeExistsError(ZooKeeperError):
    """The node is there already."""


class BadVersionError(ZooKeeperError):
    """The node's version is another: someone else wrote it."""


class ConnectionLossError(ZooKeeperError):
    """The connection or session ended before the answer."""


class NodeStat(NamedTuple):
    """`version` counts writes, `czxid` is the transaction that created the node,
    `ephemeral_owner` the session that it lives with (0: none).
    """

    version: int
    czxid: int
    ephemeral_owner: int


class IZooKeeper(Protocol):
    """A client with one session at a time. Calls fail with the errors above."""

    @property
    def session_id(self) -> int:
        """0 while there is none."""
        ...

    def start(self, listener: Callable[[SessionEvent], None]) -> None:
        """Connects, and goes on connecting until `stop`."""
        ...

    def stop(self) -> Deferred[None]:
        """Ends the session: its ephemeral nodes go at once. Never fails."""
        ...

    def get(self, path: str) -> Deferred[tuple[bytes, NodeStat]]: ...

    def set(self, path: str, data: bytes, version: int) -> Deferred[int]:
        """Writes if the node's version is still `version` (-1: whatever it is); the new one."""
        ...

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> Deferred[tuple[str, NodeStat]]:
        """The path, with its number where `sequence`; missing parents are made."""
        ...

    def delete(self, path: str) -> Deferred[None]: ...

    def children(self, path: str, changed: Callable[[], None] | None = None) -> Deferred[list[str]]:
        """Names, sorted. `changed()` is called once, when they change after this answer, or the
        session ends.
        """
        ...
