"""The state of a move of a replica between two of this broker's directories.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Move` and `Assignment`. Source: KIP-113, KIP-858. Not here: how a move goes on
(`alter_log_dirs_manager`).
"""

from __future__ import annotations

from enum import Enum

from twisted_broker.replication.partition.partition import Partition


class Assignment(Enum):
    """What the controller was told of a move."""

    NONE = "copying"
    QUEUED = "waiting for the controller"
    ACCEPTED = "accepted by the controller"


class Move:
    """`source`, `target`: ids of directories. `error`: why it stands still, empty while it goes
    on. `is_synced`: the future log is durable and marked, as it was after `truncations`
    truncations.
    """

    __slots__ = (
        "assignment",
        "began_ms",
        "error",
        "is_synced",
        "leader_epoch",
        "partition",
        "source",
        "target",
        "truncations",
    )

    def __init__(self, partition: Partition, source: bytes, target: bytes, began_ms: int) -> None:
        self.partition, self.source, self.target = partition, source, target
        self.began_ms = began_ms
        self.assignment = Assignment.NONE
        self.is_synced = False
        self.truncations = 0
        self.leader_epoch = -1
        self.error = ""
