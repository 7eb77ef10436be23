"""Share sessions: which partitions a member fetches, and the count of its requests (KIP-932).
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ShareSession` and `ShareSessionCache`.

1. ShareFetch and ShareAcknowledge share one epoch: 0 opens, -1 closes, each other request raises it
   by one, also where its partitions fail.
2. A session belongs to the connection that opened it, and ends with it. One that is opened anew
   leaves what the old one's member had acquired under its locks.
3. There are at most `most` sessions, none is evicted for another. A restart knows none: clients
   open them anew.

Source: GN 3.30-3.36; Apache Kafka 4.3.1 `ShareSession`, `ShareSessionCache`,
`SharePartitionManager.newContext`. Unlike there, a connection may carry several members' sessions.
Not here: what happens to records when a session ends (`share_partition_manager.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from twisted_broker.java_numbers import INT_MAX
from twisted_broker.wire.errors import BrokerError, ErrorCode

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
SharePartitionId = tuple[bytes, int]
"""Topic id and number."""


class SessionKey(NamedTuple):
    """Whose it is."""

    group_id: str
    member_id: str


class ShareSession:
    """`partitions`: in the order of their last records, and whether each must be in the next
    answer. `epoch`: of the next request.
    """

    __slots__ = ("connection", "epoch", "key", "partitions")

    def __init__(
        self, key: SessionKey, partitions: Iterable[SharePartitionId], connection: Hashable
    ) -> None:
        self.key, self.connection = key, connection
        self.partitions: dict[SharePartitionId, bool] = dict.fromkeys(partitions, False)
        self.epoch = 1

    def next_epoch(self, epoch: int) -> None:
        """Raises INVALID_SHARE_SESSION_EPOCH for one that is not expected."""
        if epoch != self.epoch:
            raise BrokerError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        self.epoch = 1 if epoch == INT_MAX else epoch + 1

    def rotated(self, epoch: int) -> list[SharePartitionId]:
        """Its partitions, each request beginning with another."""
        partitions = list(self.partitions)
        first = epoch % len(partitions) if partitions else 0
        return partitions[first:] + partitions[:first]

    def must_show(self, partition: SharePartitionId, has_records: bool, has_error: bool) -> bool:
        """Whether an answer names the partition; noted as answered."""
        if partition not in self.partitions:
            return True  # forgotten meanwhile, by a later request
        must = self.partitions[partition] or has_records or has_error
        self.partitions[partition] = has_error
        if has_records:
            # The others have their turn first.
            self.partitions[partition] = self.partitions.pop(partition)
        return must


class ShareSessionCache:
    """All sessions of a broker. `most` is `group.share.max.share.sessions`."""

    __slots__ = ("_connections", "_members", "_sessions", "evictions", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._members: dict[str, int] = {}
        self._connections: dict[Hashable, set[SessionKey]] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """SharePartitionsCount."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def members_of(self, group_id: str) -> int:
        """How many members of the group have a session here."""
        return self._members.get(group_id, 0)

    def get(self, key: SessionKey) -> ShareSession:
        """Raises SHARE_SESSION_NOT_FOUND."""
        found = self._sessions.get(key)
        if found is None:
            raise BrokerError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return found

    def open(
        self, key: SessionKey, partitions: Iterable[SharePartitionId], connection: Hashable
    ) -> ShareSession:
        """Instead of one that it has. Raises SHARE_SESSION_LIMIT_REACHED."""
        self.remove(key)
        if len(self._sessions) >= self.most:
            raise BrokerError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = self._sessions[key] = ShareSession(key, partitions, connection)
        self._members[key.group_id] = self.members_of(key.group_id) + 1
        self._connections.setdefault(connection, set()).add(key)
        return session

    def remove(self, key: SessionKey) -> ShareSession | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            left = self._members[key.group_id] - 1
            if left:
                self._members[key.group_id] = left
            else:
                del self._members[key.group_id]
            keys = self._connections[session.connection]
            keys.discard(key)
            if not keys:
                del self._connections[session.connection]
        return session

    def of_connection(self, connection: Hashable) -> list[SessionKey]:
        """Whose sessions it carries."""
        return sorted(self._connections.get(connection, ()))

    def clear(self) -> None:
        """share.version went to 0."""
        for key in list(self._sessions):
            self.remove(key)
