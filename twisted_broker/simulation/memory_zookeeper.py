"""ZooKeeper in memory: one tree, sessions that expire, watches that fire once.

Owns `MemoryEnsemble` (the servers) and `MemoryZooKeeper` (a client, an `IZooKeeper`).

1. Answers come in a later turn of the clock, in order. A client that was disconnected fails its
   calls; with `lose_answers` they are done, and their answers are lost.
2. A session that expires takes its ephemeral nodes along.

Source: `zookeeper/port.py`. Not here: the wire protocol, ACLs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, succeed

from twisted_broker.interfaces import IClock
from twisted_broker.zookeeper.port import (
    BadVersionError,
    ConnectionLossError,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    SessionEvent,
)

T = TypeVar("T")


@dataclass
class _Node:
    data: bytes
    czxid: int
    owner: int = 0
    version: int = 0
    sequence: int = 0

    @property
    def stat(self) -> NodeStat:
        return NodeStat(self.version, self.czxid, self.owner)


@dataclass
class MemoryEnsemble:
    """The tree, as all clients see it."""

    nodes: dict[str, _Node] = field(default_factory=dict)
    zxid: int = 100
    sessions: int = 0
    watches: dict[str, list[Callable[[], None]]] = field(default_factory=dict)

    def create(
        self, path: str, data: bytes, owner: int = 0, sequence: bool = False
    ) -> tuple[str, NodeStat]:
        """Parents are made; raises NodeExistsError."""
        parent = path.rpartition("/")[0]
        if parent and parent not in self.nodes:
            self.create(parent, b"")
        if sequence:
            above = self.nodes[parent]
            path = f"{path}{above.sequence:010}"
            above.sequence += 1
        if path in self.nodes:
            raise NodeExistsError(path)
        self.zxid += 1
        self.nodes[path] = _Node(data, self.zxid, owner)
        self._fire(parent)
        return path, self.nodes[path].stat

    def delete(self, path: str) -> None:
        """Raises NoNodeError."""
        if self.nodes.pop(path, None) is None:
            raise NoNodeError(path)
        self.zxid += 1
        self._fire(path.rpartition("/")[0])

    def set(self, path: str, data: bytes, version: int = -1) -> int:
        """The new version. Raises NoNodeError, BadVersionError."""
        node = self.node(path)
        if version not in (-1, node.version):
            raise BadVersionError(f"{path} is at version {node.version}, not {version}")
        self.zxid += 1
        node.data, node.version = data, node.version + 1
        return node.version

    def node(self, path: str) -> _Node:
        """Raises NoNodeError."""
        if path not in self.nodes:
            raise NoNodeError(path)
        return self.nodes[path]

    def children(self, path: str) -> list[str]:
        """Names, sorted."""
        self.node(path)
        start = path + "/"
        return sorted(
            each[len(start) :]
            for each in self.nodes
            if each.startswith(start) and "/" not in each[len(start) :]
        )

    def end_session(self, session: int) -> None:
        """Its ephemeral nodes go."""
        for path in [
            path for path, node in self.nodes.items() if session and node.owner == session
        ]:
            self.delete(path)

    def _fire(self, path: str) -> None:
        for watch in self.watches.pop(path, []):
            watch()


class MemoryZooKeeper:
    """A client. `connect`, `disconnect`, `expire` are what the network and the servers do."""

    def __init__(self, ensemble: MemoryEnsemble, clock: IClock) -> None:
        self.ensemble, self._clock = ensemble, clock
        self.session_id = 0
        self.connected = False
        self.lose_answers = False
        self._listener: Callable[[SessionEvent], None] = lambda event: None

    def start(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listener = listener
        self._clock.callLater(0, self.connect)

    def stop(self) -> Deferred[None]:
        self.ensemble.end_session(self.session_id)
        self.connected, self.session_id = False, 0
        return succeed(None)

    def connect(self) -> None:
        """In the session of before, if that lives."""
        if not self.session_id:
            self.ensemble.sessions += 1
            self.session_id = self.ensemble.sessions
        self.connected = True
        self._listener(SessionEvent.CONNECTED)

    def disconnect(self) -> None:
        """The session may go on."""
        self.connected = False
        self._listener(SessionEvent.SUSPENDED)

    def expire(self) -> None:
        """The session ends; `connect` opens another one."""
        self.connected = False
        self.ensemble.end_session(self.session_id)
        self.session_id = 0
        self._listener(SessionEvent.EXPIRED)

    def _call(self, work: Callable[[], T]) -> Deferred[T]:
        done: Deferred[T] = Deferred()
        lost = not self.connected
        outcome: Any = None
        if not lost:
            try:
                outcome = work()
            except Exception as error:
                outcome = error
            lost = self.lose_answers
        if lost:
            outcome = ConnectionLossError("the connection to ZooKeeper is lost")
        fire = done.errback if isinstance(outcome, Exception) else done.callback
        self._clock.callLater(0, fire, outcome)
        return done

    def get(self, path: str) -> Deferred[tuple[bytes, NodeStat]]:
        return self._call(lambda: (self.ensemble.node(path).data, self.ensemble.node(path).stat))

    def set(self, path: str, data: bytes, version: int) -> Deferred[int]:
        return self._call(lambda: self.ensemble.set(path, data, version))

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> Deferred[tuple[str, NodeStat]]:
        owner = self.session_id if ephemeral else 0
        return self._call(lambda: self.ensemble.create(path, data, owner, sequence))

    def delete(self, path: str) -> Deferred[None]:
        return self._call(lambda: self.ensemble.delete(path))

    def children(self, path: str, changed: Callable[[], None] | None = None) -> Deferred[list[str]]:
        def listed() -> list[str]:
            found = self.ensemble.children(path)
            if changed is not None:
                self.ensemble.watches.setdefault(path, []).append(changed)
            return found

        return self._call(listed)
