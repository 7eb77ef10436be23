"""What a metadata delta means for the replicas of one broker.

Owns `LocalChanges`: which replicas this broker leads from now on, follows, or no longer has.

1. A partition is here once, as leader, follower or deletion. A topic deleted and created again under its name is a deletion of the old id
   and a partition of the new one.
2. A deletion says whether the topic went (its log goes too) or only the replica was moved away (its log goes as well, by Kafka's rule).

Source: Kafka's `TopicDelta.localChanges`, `LocalReplicaChanges`; `RL 1.3`. Left out: what is done about it (replication/role_change).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from twisted_broker.cluster.image import MetadataDelta
from twisted_broker.cluster.registrations import PartitionRegistration
from twisted_broker.interfaces import TopicPartition


class LocalReplica(NamedTuple):
    """A replica on this broker. `is_new`: it was not here under this topic id before; `epoch_rose`: its leader epoch is new here."""

    topic_id: bytes
    partition: PartitionRegistration
    is_new: bool
    epoch_rose: bool


@dataclass(slots=True)
class LocalChanges:
    """By partition; `deletes` holds (partition, topic id), since the same name may come back under another id in the same delta."""

    deletes: list[tuple[TopicPartition, bytes]] = field(default_factory=list)
    leaders: dict[TopicPartition, LocalReplica] = field(default_factory=dict)
    followers: dict[TopicPartition, LocalReplica] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.deletes or self.leaders or self.followers)


def local_changes(delta: MetadataDelta, node_id: int) -> LocalChanges:
    """Kafka's rule: a replica counts as leader or follower when anything in its registration changed."""
    changes = LocalChanges()
    for change in delta.partitions.values():
        name = TopicPartition(change.topic, change.partition)
        before, after = change.before, change.after
        was_here = before is not None and node_id in before.replicas
        if after is None or node_id not in after.replicas:
            if was_here:
                changes.deletes.append((name, change.topic_id))
            continue
        rose = not was_here or before is None or after.leader_epoch > before.leader_epoch
        replica = LocalReplica(change.topic_id, after, not was_here, rose)
        (changes.leaders if after.leader == node_id else changes.followers)[name] = replica
    return changes
