"""Groups of one newer kind out of the records of a log. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `GroupReplay`.

1. It applies the same records as the live path. Records of different keys may come in any order, as
   they do from a compacted log, and values that were overtaken by later ones may be missing.
2. A tombstone makes no group. A group whose own tombstone was the last of its key is gone, unless
   it holds something: one that never had a record with its epoch may be there.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.replay`. Not here: reading and decoding
(`coordinator_loader.py`), which kind of group a name is when the log has more than one.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from twisted_broker.coordinator.bucket_dict import BucketDict
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.record_codec import StoredRecord

G = TypeVar("G", bound=ModernGroup)


class GroupReplay(Generic[G]):
    """Of the groups of class `kind`; `groups` by their ids, once all is read."""

    __slots__ = ("_deleted", "_kind", "groups")

    def __init__(self, kind: type[G]) -> None:
        self.groups: BucketDict[str, G] = BucketDict()
        self._kind = kind
        self._deleted: set[str] = set()

    def apply(self, record: StoredRecord) -> None:
        key: Any = record[0]
        group_id, value = key.group_id, record[1]
        group = self.groups.get(group_id)
        if group is None:
            if value is None:
                return
            group = self.groups[group_id] = self._kind(group_id)
        group.apply(record)
        if isinstance(key, self._kind.key_type):
            self._deleted.discard(group_id)
            if value is None:
                self._drop(group)

    def _drop(self, group: G) -> None:
        """Its own tombstone is the last that is written, and need not be the last that is read."""
        if group.holds_anything:
            self._deleted.add(group.group_id)
        else:
            del self.groups[group.group_id]

    def finish(self) -> None:
        """All is read: drops groups and members that are gone."""
        for group_id in self._deleted:
            group = self.groups.get(group_id)
            if group is not None and not group.holds_anything:
                del self.groups[group_id]
        self._deleted.clear()
