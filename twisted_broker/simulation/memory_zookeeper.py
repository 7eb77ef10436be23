"""The servers of ZooKeeper in memory: one tree, sessions that expire, watches that fire once.

Owns `MemoryEnsemble`.

1. A session that expires takes its ephemeral nodes along.

Source: `zookeeper/port.py`. Not here: the wire protocol, ACLs, a client (the tests' own).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from twisted_broker.zookeeper.port import (
    BadVersionError,
    NodeExistsError,
    NodeStat,
    NoNodeError,
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
