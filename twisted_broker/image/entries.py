"""A broker, a controller, a topic, a partition, as the metadata log has them.

Owns the immutable values of which a `MetadataImage` is made, how each is read from its record, and
how a change record alters it.

1. Values never change; a change makes a new one.
2. A partition's epoch rises with every change record; its leader epoch rises whenever the record
   names a leader, even the same one.
3. Replicas and their directories are two tuples of the same length.

Source: Kafka's `PartitionRegistration`, `BrokerRegistration`, `DirectoryId`; KIP-858, KIP-966; `RL
8.3`. Not here: which change to make (`cluster/partition_change.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twisted_broker.wire.messages import metadata_records as records

NO_LEADER = -1
NO_LEADER_CHANGE = -2
RECOVERED, RECOVERING = 0, 1

UNASSIGNED = bytes(16)
LOST = bytes(15) + b"\x01"
MIGRATING = bytes(15) + b"\x02"


def is_reserved_directory(directory_id: bytes) -> bool:
    """Whether an id is one of the hundred that name no directory."""
    return directory_id[:15] == bytes(15) and directory_id[15] < 100


class Endpoint(NamedTuple):
    """Where a listener is reached. `security_protocol`: Kafka's number, 0 PLAINTEXT."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class FeatureRange(NamedTuple):
    """The versions of a feature that a node can work with."""

    min_version: int
    max_version: int

    def contains(self, level: int) -> bool:
        return self.min_version <= level <= self.max_version


class BrokerRegistration(NamedTuple):
    """A broker as it registered: `epoch` is the offset of its registration record."""

    id: int
    epoch: int
    incarnation_id: bytes
    listeners: Mapping[str, Endpoint]
    features: Mapping[str, FeatureRange]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[bytes, ...]
    cordoned: tuple[bytes, ...] | None = None

    @classmethod
    def of(cls, record: records.RegisterBrokerRecord) -> BrokerRegistration:
        """From its record."""
        return cls(
            record.broker_id,
            record.broker_epoch,
            bytes(record.incarnation_id),
            {
                e.name: Endpoint(e.name, e.host, e.port, e.security_protocol)
                for e in record.end_points
            },
            {
                f.name: FeatureRange(f.min_supported_version, f.max_supported_version)
                for f in record.features
            },
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple(map(bytes, record.log_dirs)),
            None
            if record.cordoned_log_dirs is None
            else tuple(map(bytes, record.cordoned_log_dirs)),
        )

    def changed(self, record: records.BrokerRegistrationChangeRecord) -> BrokerRegistration:
        """After a change record: 1 sets fenced (or in controlled shutdown), -1 clears fenced, 0
        leaves it.
        """
        return self._replace(
            fenced=self.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=self.in_controlled_shutdown or record.in_controlled_shutdown > 0,
            directories=tuple(map(bytes, record.log_dirs)) or self.directories,
            cordoned=self.cordoned
            if record.cordoned_log_dirs is None
            else tuple(map(bytes, record.cordoned_log_dirs)),
        )

    @property
    def may_be_in_isr(self) -> bool:
        return not self.fenced and not self.in_controlled_shutdown

    def has_online_directory(self, directory_id: bytes) -> bool:
        """Whether a replica assigned to `directory_id` may serve: its directory is alive, or not
        known yet.
        """
        # The broker picks the directory itself and reports it later.
        if directory_id in (UNASSIGNED, MIGRATING):
            return True
        # Below metadata.version 17 registrations name no directories.
        return directory_id != LOST and (not self.directories or directory_id in self.directories)


class ControllerRegistration(NamedTuple):
    """A controller as it registered."""

    id: int
    incarnation_id: bytes
    listeners: Mapping[str, Endpoint]
    features: Mapping[str, FeatureRange]

    @classmethod
    def of(cls, record: records.RegisterControllerRecord) -> ControllerRegistration:
        """From its record."""
        return cls(
            record.controller_id,
            bytes(record.incarnation_id),
            {
                e.name: Endpoint(e.name, e.host, e.port, e.security_protocol)
                for e in record.end_points
            },
            {
                f.name: FeatureRange(f.min_supported_version, f.max_supported_version)
                for f in record.features
            },
        )


class PartitionRegistration(NamedTuple):
    """One partition: `elr` and `last_known_elr` are KIP-966's eligible leader replicas and those
    once known.
    """

    replicas: tuple[int, ...]
    directories: tuple[bytes, ...]
    isr: tuple[int, ...]
    removing: tuple[int, ...]
    adding: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    leader: int
    leader_recovery_state: int
    leader_epoch: int
    partition_epoch: int

    @classmethod
    def of(cls, record: records.PartitionRecord) -> PartitionRegistration:
        """From its record; replicas without directories (older metadata versions) are
        MIGRATING.
        """
        replicas = tuple(record.replicas)
        return cls(
            replicas,
            tuple(map(bytes, record.directories)) or (MIGRATING,) * len(replicas),
            tuple(record.isr),
            tuple(record.removing_replicas),
            tuple(record.adding_replicas),
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
            record.leader,
            record.leader_recovery_state,
            record.leader_epoch,
            record.partition_epoch,
        )

    def record(self, topic_id: bytes, partition: int) -> records.PartitionRecord:
        """The record that says all of it."""
        return records.PartitionRecord(
            partition_id=partition,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing),
            adding_replicas=list(self.adding),
            leader=self.leader,
            leader_recovery_state=self.leader_recovery_state,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories),
            eligible_leader_replicas=list(self.elr) or None,
            last_known_elr=list(self.last_known_elr) or None,
        )

    def changed(self, record: records.PartitionChangeRecord) -> PartitionRegistration:
        """After a change record; fields that it leaves out stay."""
        replicas = self.replicas if record.replicas is None else tuple(record.replicas)
        if record.directories is not None:
            directories = tuple(map(bytes, record.directories))
        else:
            directories = (
                self.directories if record.replicas is None else self.directories_of(replicas)
            )
        # Kafka raises the epoch for any leader that is named, so that naming the same one fences
        # old fetches.
        leader_named = record.leader != NO_LEADER_CHANGE
        return PartitionRegistration(
            replicas,
            directories,
            self.isr if record.isr is None else tuple(record.isr),
            self.removing if record.removing_replicas is None else tuple(record.removing_replicas),
            self.adding if record.adding_replicas is None else tuple(record.adding_replicas),
            self.elr
            if record.eligible_leader_replicas is None
            else tuple(record.eligible_leader_replicas),
            self.last_known_elr if record.last_known_elr is None else tuple(record.last_known_elr),
            record.leader if leader_named else self.leader,
            self.leader_recovery_state
            if record.leader_recovery_state == -1
            else record.leader_recovery_state,
            self.leader_epoch + leader_named,
            self.partition_epoch + 1,
        )

    def may_elect(self, broker_id: int) -> bool:
        """Whether this replica is in the ISR, or eligible, or was when last known."""
        return broker_id in self.isr or broker_id in self.elr or broker_id in self.last_known_elr

    def directory_of(self, broker_id: int) -> bytes:
        """The directory of a broker's replica; UNASSIGNED when it has none."""
        for replica, directory in zip(self.replicas, self.directories, strict=True):
            if replica == broker_id:
                return directory
        return UNASSIGNED

    def directories_of(self, replicas: tuple[int, ...]) -> tuple[bytes, ...]:
        """Directories for another list of replicas: known ones keep theirs."""
        return tuple(self.directory_of(replica) for replica in replicas)


class TopicImage(NamedTuple):
    """A topic and its partitions."""

    name: str
    id: bytes
    partitions: Mapping[int, PartitionRegistration]
