"""The voters at one place of the metadata log; immutable.

1. A node is a voter when its id is in the set and its directory id is the set's, or the set has
   none for it.
2. Sets that follow each other differ by one voter, so that two majorities always meet.

Source: Kafka's `VoterSet`; QU 1.1, 4.6. Not here: where in the log a set begins
(`voter_history.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from twisted_broker.raft.replica_key import Address, Endpoint, ReplicaKey


class VoterNode(NamedTuple):
    """A voter: its listeners, the controllers' first one first, and the kraft.versions it
    serves.
    """

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    min_version: int = 0
    max_version: int = 0

    @property
    def id(self) -> int:
        return self.key.id

    def is_voter(self, key: ReplicaKey) -> bool:
        """Whether `key` is this voter."""
        if key.id != self.id:
            return False
        return not self.key.has_directory or self.key.directory_id == key.directory_id

    def serves(self, kraft_version: int) -> bool:
        return self.min_version <= kraft_version <= self.max_version


class VoterSet:
    """`majority`: how many votes decide."""

    __slots__ = ("_nodes",)

    def __init__(self, nodes: Iterable[VoterNode] = ()) -> None:
        self._nodes = {node.id: node for node in nodes}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._nodes == other._nodes

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._nodes)))

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"VoterSet({sorted(self._nodes)})"

    @property
    def nodes(self) -> tuple[VoterNode, ...]:
        return tuple(self._nodes.values())

    @property
    def keys(self) -> tuple[ReplicaKey, ...]:
        return tuple(node.key for node in self._nodes.values())

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(self._nodes)

    @property
    def majority(self) -> int:
        return len(self._nodes) // 2 + 1

    def get(self, node_id: int) -> VoterNode | None:
        return self._nodes.get(node_id)

    def address(self, node_id: int) -> Address | None:
        """Where a voter's first listener is; None when that is not known."""
        node = self._nodes.get(node_id)
        if node is None or not node.endpoints:
            return None
        return Address(node.endpoints[0].host, node.endpoints[0].port)

    def is_voter(self, key: ReplicaKey) -> bool:
        node = self._nodes.get(key.id)
        return node is not None and node.is_voter(key)

    def is_only_voter(self, key: ReplicaKey) -> bool:
        return len(self._nodes) == 1 and self.is_voter(key)

    def with_voter(self, node: VoterNode) -> VoterSet:
        """With one more, or with another of the same id in its place."""
        return VoterSet({**self._nodes, node.id: node}.values())

    def without(self, node_id: int) -> VoterSet:
        return VoterSet(node for node in self._nodes.values() if node.id != node_id)

    def shares_majority(self, other: VoterSet) -> bool:
        """Whether any majority of this set meets any of the other: they differ by one voter at
        most.
        """
        mine, theirs = set(self.keys), set(other.keys)
        return len(mine - theirs) < 2 and len(theirs - mine) < 2
