"""The base of groups of the newer protocols. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ModernGroup`. `apply` alone changes the stored state; it serves the live path and the replay
of a log.

1. Epochs only rise while the group exists. A new one stands at epoch 1, without a record.
2. Every change of the metadata that it subscribes to is compared once: a heartbeat that looks at
   the metadata takes a mark before it begins.

Source: Apache Kafka 4.3.1 `ModernGroup`, `StreamsGroup`. Not here: what each kind has beside it
(`consumer/group.py`, `streams/group.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from enum import Enum
from typing import Any, ClassVar

from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.wire.structs import Record

FIRST_EPOCH = 1
NEVER_ASSIGNED_MS = 0
NO_ASSIGNMENT_EPOCH = -1


class ModernGroup:
    """One group. `is_dead`: it was deleted, or its partition is led elsewhere. A kind of groups has
    `apply_by_type`, what a record of each type does, called with the group, the key, the value; and
    `key_type`, of the record with its epoch, whose tombstone is the group's.
    """

    group_type: ClassVar[str]
    protocol_type: ClassVar[str]
    apply_by_type: ClassVar[Mapping[int, Callable[[Any, Any, Any], None]]]
    key_type: ClassVar[type[Record]]
    members: dict[str, Any]
    __slots__ = (
        "_metadata_changes",
        "_metadata_seen",
        "assigned_at_ms",
        "assignment_epoch",
        "epoch",
        "group_id",
        "is_dead",
        "metadata_hash",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = self.assignment_epoch = FIRST_EPOCH
        self.assigned_at_ms = NEVER_ASSIGNED_MS
        self.metadata_hash = 0
        self.is_dead = False
        self._metadata_changes, self._metadata_seen = 1, 0

    @property
    def state(self) -> Enum:
        """By the name that clients see."""
        raise NotImplementedError

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_unwritten(self) -> bool:
        """Whether no record of it was ever applied: a heartbeat has made it, and was refused."""
        return not self.members and self.epoch == FIRST_EPOCH

    @property
    def holds_anything(self) -> bool:
        """Whether it goes on although its own tombstone was read: that need not be the last."""
        return bool(self.members)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads it."""
        raise NotImplementedError

    def topics_changed(self, names: Set[str]) -> None:
        """If it subscribes to one of them, the next heartbeat compares the hash."""
        raise NotImplementedError

    def tombstones(self) -> Iterator[StoredRecord]:
        """Of everything, in the order in which a Java broker can replay them."""
        raise NotImplementedError

    def apply(self, record: StoredRecord) -> None:
        """One record of this group."""
        key, value = record
        self.apply_by_type[key.record_type](self, key, value)

    # the metadata that decisions have seen
    def metadata_changed(self) -> None:
        """A topic that it subscribes to has: the next heartbeat compares the hash."""
        self._metadata_changes += 1

    def metadata_mark(self) -> int:
        """The view of the metadata with which a decision begins."""
        return self._metadata_changes

    def metadata_compared(self, mark: int) -> None:
        """A decision that took `mark` compared the hash and is carried out."""
        self._metadata_seen = max(self._metadata_seen, mark)

    @property
    def must_compare_metadata(self) -> bool:
        return self._metadata_seen < self._metadata_changes

    # what every kind stores
    def _assignment_at(self, epoch: int, wall_ms: int) -> None:
        self.assignment_epoch, self.assigned_at_ms = epoch, wall_ms

    def _without_assignment(self) -> None:
        self._assignment_at(NO_ASSIGNMENT_EPOCH, NEVER_ASSIGNED_MS)

    def _apply_epoch(self, key: Any, value: Any) -> None:
        if value is not None:
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash

    def _apply_target_epoch(self, key: Any, value: Any) -> None:
        if value is None:
            self._without_assignment()
        else:
            self._assignment_at(value.assignment_epoch, value.assignment_timestamp)
