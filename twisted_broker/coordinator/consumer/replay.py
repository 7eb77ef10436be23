"""Consumer groups out of the records of a log. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ConsumerGroupReplay`.

1. It applies what the live path applied. Records of different keys may come in any order, as they
   do from a compacted log, and values that were overtaken by later ones may be missing.
2. A tombstone makes no group. A group whose own tombstone was the last of its key is gone, unless
   it has members: one that never had a record of type 3 may be there.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.replay`. Not here: reading and decoding
(`coordinator_loader.py`), which kind of group a name is when the log has more than one.
"""

from __future__ import annotations

from typing import Any

from twisted_broker.coordinator.bucket_dict import BucketDict
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.records import ConsumerGroupRecord
from twisted_broker.wire.messages.group_records import ConsumerGroupMetadataKey


class ConsumerGroupReplay:
    """`groups` by their ids, once all is read."""

    __slots__ = ("_deleted", "groups")

    def __init__(self) -> None:
        self.groups: BucketDict[str, ConsumerGroup] = BucketDict()
        self._deleted: set[str] = set()

    def apply(self, record: ConsumerGroupRecord) -> None:
        key: Any = record[0]
        group_id, value = key.group_id, record[1]
        group = self.groups.get(group_id)
        if group is None:
            if value is None:
                return
            group = self.groups[group_id] = ConsumerGroup(group_id)
        group.apply(record)
        if isinstance(key, ConsumerGroupMetadataKey):
            self._deleted.discard(group_id)
            if value is None:
                self._drop(group)

    def _drop(self, group: ConsumerGroup) -> None:
        """Its own tombstone is the last that is written, and need not be the last that is read."""
        if group.members:
            self._deleted.add(group.group_id)
        else:
            del self.groups[group.group_id]

    def finish(self) -> None:
        """All is read: drops what is gone."""
        for group_id in self._deleted:
            group = self.groups.get(group_id)
            if group is not None and not group.members:
                del self.groups[group_id]
        self._deleted.clear()
