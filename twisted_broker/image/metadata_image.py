"""The cluster's metadata: every broker, topic, partition and setting at one
offset.

Owns the immutable `MetadataImage` and how records turn one into the next.

1. An image never changes. `apply` copies only the tables that its records touch, once for a whole
   batch of records.
2. A record that names something unknown is a bug of the writer, and raises: an image that guessed
   would spread the mistake.

Source: Kafka's `MetadataImage`; KRAFT 3.3; `RL 8.1`. Not here: framing and transactions
(`cluster/records.py`), the difference between two images (`image/metadata_delta.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from twisted_broker.image.acl_index import EMPTY_INDEX, AclIndex, AclIndexDraft
from twisted_broker.image.entries import (
    BrokerRegistration,
    ControllerRegistration,
    PartitionRegistration,
    TopicImage,
)
from twisted_broker.image.metadata_delta import (
    OTHER_TABLES,
    MetadataDelta,
    PartitionDelta,
    Removals,
)
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.schema import run_whole

__all__ = [
    "BROKER_LOGGER_RESOURCE",
    "BROKER_RESOURCE",
    "CLIENT_METRICS_RESOURCE",
    "EMPTY",
    "GROUP_RESOURCE",
    "METADATA_VERSION",
    "TOPIC_RESOURCE",
    "ConfigKey",
    "MetadataDelta",
    "MetadataImage",
    "PartitionDelta",
    "Removals",
]

TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE = (
    2,
    4,
    8,
    16,
    32,
)
METADATA_VERSION = "metadata.version"
RECORDS_PER_STEP = 500  # some two milliseconds of one turn

ConfigKey = tuple[int, str]
QuotaEntity = tuple[tuple[str, str | None], ...]
_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster at `offset` (the last record applied; -1: none), written under `epoch` at
    `timestamp_ms`.
    """

    offset: int = -1
    epoch: int = -1
    timestamp_ms: int = -1
    features: Mapping[str, int] = field(default_factory=dict)
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    controllers: Mapping[int, ControllerRegistration] = field(default_factory=dict)
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    configs: Mapping[ConfigKey, Mapping[str, str]] = field(default_factory=dict)
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    acls: Mapping[bytes, records.AccessControlEntryRecord] = field(default_factory=dict)
    scram: Mapping[tuple[int, str], records.UserScramCredentialRecord] = field(default_factory=dict)
    tokens: Mapping[str, records.DelegationTokenRecord] = field(default_factory=dict)
    next_producer_id: int = 0
    acl_index: AclIndex = field(default=EMPTY_INDEX, compare=False, repr=False)
    """Of `acls`."""

    def apply(
        self,
        batch: Iterable[Any],
        offset: int | None = None,
        epoch: int | None = None,
        timestamp_ms: int | None = None,
    ) -> tuple[MetadataImage, MetadataDelta]:
        """The image after `batch` (decoded records, in order; `offset`: that of the last one),
        and what changed.
        """
        return run_whole(self.apply_in_steps(batch, offset, epoch, timestamp_ms))

    def apply_in_steps(
        self,
        batch: Iterable[Any],
        offset: int | None = None,
        epoch: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Generator[None, None, tuple[MetadataImage, MetadataDelta]]:
        """As `apply`, pausing after every `RECORDS_PER_STEP`."""
        draft = _Draft(self)
        for number, record in enumerate(batch, 1):
            draft.replay(record)
            if number % RECORDS_PER_STEP == 0:
                yield
        return (
            yield from draft.finish(
                self.offset if offset is None else offset,
                self.epoch if epoch is None else epoch,
                self.timestamp_ms if timestamp_ms is None else timestamp_ms,
            )
        )

    @property
    def metadata_version(self) -> int:
        """The finalised metadata.version, 0 when there is none yet."""
        return self.features.get(METADATA_VERSION, 0)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The dynamic settings of a resource; broker name "" is the default of all brokers."""
        return self.configs.get((resource_type, name), _NOTHING)

    def partition(self, topic: str, partition: int) -> PartitionRegistration | None:
        found = self.topics_by_name.get(topic)
        return None if found is None else found.partitions.get(partition)

    def live_brokers(self) -> list[BrokerRegistration]:
        """Brokers that are not fenced, by id."""
        return [
            self.brokers[node] for node in sorted(self.brokers) if not self.brokers[node].fenced
        ]


class _Draft:
    """An image in the making: tables are copied when the first record touches them."""

    __slots__ = (
        "acl_index",
        "base",
        "brokers",
        "configs",
        "features",
        "open",
        "quotas",
        "tables",
        "touched",
    )

    def __init__(self, base: MetadataImage) -> None:
        self.base = base
        self.tables: dict[str, Any] = {}
        self.open: dict[bytes, TopicImage] = {}
        self.touched: dict[bytes, set[int] | None] = {}
        self.brokers: set[int] = set()
        self.configs: set[ConfigKey] = set()
        self.features: set[str] = set()
        self.quotas: set[QuotaEntity] = set()
        self.acl_index: AclIndexDraft | None = None

    def table(self, name: str) -> Any:
        """This draft's own copy of a table."""
        found = self.tables.get(name)
        if found is None:
            found = self.tables[name] = dict(getattr(self.base, name))
        return found

    def replay(self, record: Any) -> None:
        _REPLAY[type(record)](self, record)

    def finish(
        self, offset: int, epoch: int, timestamp_ms: int
    ) -> Generator[None, None, tuple[MetadataImage, MetadataDelta]]:
        # Put together last: a topic of many records is copied into the tables once.
        if self.open:
            self.table("topics_by_id").update(self.open)
            self.table("topics_by_name").update((topic.name, topic) for topic in self.open.values())
        if self.acl_index is not None:
            self.tables["acl_index"] = self.acl_index.finish()
        image = replace(
            self.base, offset=offset, epoch=epoch, timestamp_ms=timestamp_ms, **self.tables
        )
        delta = MetadataDelta(self.base, image)
        for topic_id, touched in self.touched.items():
            yield from delta.add_topic_in_steps(topic_id, touched)
        delta.brokers, delta.configs, delta.features = self.brokers, self.configs, self.features
        delta.others = {name for name in OTHER_TABLES if name in self.tables}
        delta.quotas = self.quotas
        delta.removed_ids = {
            topic_id for topic_id, touched in self.touched.items() if touched is None
        }
        return image, delta

    # topics and partitions
    def writable(self, topic_id: bytes) -> dict[int, PartitionRegistration]:
        """This draft's own copy of a topic's partitions."""
        topic = self.open.get(topic_id)
        if topic is None:
            base = self.topics()[topic_id]
            topic = self.open[topic_id] = TopicImage(base.name, topic_id, dict(base.partitions))
        partitions = topic.partitions
        assert isinstance(partitions, dict)
        return partitions

    def topics(self) -> Mapping[bytes, TopicImage]:
        """The topics of the base that no record removed."""
        found: Mapping[bytes, TopicImage] = self.tables.get("topics_by_id", self.base.topics_by_id)
        return found

    def touch(self, topic_id: bytes, partition: int) -> None:
        seen = self.touched.setdefault(topic_id, set())
        if seen is not None:
            seen.add(partition)

    def topic(self, record: records.TopicRecord) -> None:
        topic_id = bytes(record.topic_id)
        self.open[topic_id] = TopicImage(record.name, topic_id, {})
        self.touched.setdefault(topic_id, set())

    def partition(self, record: records.PartitionRecord) -> None:
        topic_id = bytes(record.topic_id)
        self.writable(topic_id)[record.partition_id] = PartitionRegistration.of(record)
        self.touch(topic_id, record.partition_id)

    def partition_change(self, record: records.PartitionChangeRecord) -> None:
        topic_id = bytes(record.topic_id)
        partitions = self.writable(topic_id)
        partitions[record.partition_id] = partitions[record.partition_id].changed(record)
        self.touch(topic_id, record.partition_id)

    def remove_topic(self, record: records.RemoveTopicRecord) -> None:
        topic_id = bytes(record.topic_id)
        # It may have been created in the same batch.
        topic = self.open.pop(topic_id, None) or self.topics()[topic_id]
        self.table("topics_by_id").pop(topic_id, None)
        self.table("topics_by_name").pop(topic.name, None)
        self.touched[topic_id] = None
        # Settings go by the topic's name: a later topic of that name must not inherit them.
        if self.table("configs").pop((TOPIC_RESOURCE, topic.name), None) is not None:
            self.configs.add((TOPIC_RESOURCE, topic.name))

    def clear_elr(self, record: records.ClearElrRecord) -> None:
        chosen = [
            topic
            for topic in ({**self.topics(), **self.open}).values()
            if record.topic_name in ("", topic.name)
        ]
        for topic in chosen:
            # A copy: `writable` may replace the mapping that is walked.
            for number, partition in list(topic.partitions.items()):
                if partition.elr or partition.last_known_elr:
                    changed = partition._replace(
                        elr=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1
                    )
                    self.writable(topic.id)[number] = changed
                    self.touch(topic.id, number)

    # nodes
    def register_broker(self, record: records.RegisterBrokerRecord) -> None:
        self.put_broker(BrokerRegistration.of(record))

    def unregister_broker(self, record: records.UnregisterBrokerRecord) -> None:
        del self.table("brokers")[record.broker_id]
        self.brokers.add(record.broker_id)

    def change_broker(self, record: records.BrokerRegistrationChangeRecord) -> None:
        self.put_broker(self.table("brokers")[record.broker_id].changed(record))

    def fence_broker(self, record: records.FenceBrokerRecord) -> None:
        self.put_broker(self.table("brokers")[record.id]._replace(fenced=True))

    def unfence_broker(self, record: records.UnfenceBrokerRecord) -> None:
        self.put_broker(self.table("brokers")[record.id]._replace(fenced=False))

    def put_broker(self, registration: BrokerRegistration) -> None:
        self.table("brokers")[registration.id] = registration
        self.brokers.add(registration.id)

    def register_controller(self, record: records.RegisterControllerRecord) -> None:
        self.table("controllers")[record.controller_id] = ControllerRegistration.of(record)

    # settings and the rest
    def feature(self, record: records.FeatureLevelRecord) -> None:
        self.features.add(record.name)
        # Level 0 is Kafka's "not finalised".
        if record.feature_level == 0:
            self.table("features").pop(record.name, None)
        else:
            self.table("features")[record.name] = record.feature_level

    def config(self, record: records.ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        self.configs.add(key)
        _put_inner(self.table("configs"), key, record.name, record.value)

    def quota(self, record: records.ClientQuotaRecord) -> None:
        entity = tuple(
            sorted(
                ((e.entity_type, e.entity_name) for e in record.entity), key=lambda pair: pair[0]
            )
        )
        self.quotas.add(entity)
        _put_inner(
            self.table("client_quotas"), entity, record.key, None if record.remove else record.value
        )

    def producer_ids(self, record: records.ProducerIdsRecord) -> None:
        self.tables["next_producer_id"] = record.next_producer_id

    def acl(self, record: records.AccessControlEntryRecord) -> None:
        acls, index = self.table("acls"), self.indexed_acls()
        before = acls.get(bytes(record.id))
        if before is not None:
            index.remove(before)
        acls[bytes(record.id)] = record
        index.add(record)

    def remove_acl(self, record: records.RemoveAccessControlEntryRecord) -> None:
        self.indexed_acls().remove(self.table("acls").pop(bytes(record.id)))

    def indexed_acls(self) -> AclIndexDraft:
        """This draft's own index of the ACLs."""
        if self.acl_index is None:
            self.acl_index = AclIndexDraft(self.base.acl_index)
        return self.acl_index

    def scram(self, record: records.UserScramCredentialRecord) -> None:
        self.table("scram")[record.mechanism, record.name] = record

    def remove_scram(self, record: records.RemoveUserScramCredentialRecord) -> None:
        del self.table("scram")[record.mechanism, record.name]

    def token(self, record: records.DelegationTokenRecord) -> None:
        self.table("tokens")[record.token_id] = record

    def remove_token(self, record: records.RemoveDelegationTokenRecord) -> None:
        del self.table("tokens")[record.token_id]

    def nothing(self, record: Any) -> None:
        """Records that move the offset only."""


def _put_inner(table: dict[Any, Any], key: Any, name: str, value: Any) -> None:
    """Sets or (None) removes one entry of an inner mapping, which is copied; an empty one goes."""
    inner = {**table.get(key, {}), name: value}
    if value is None:
        del inner[name]
    if inner:
        table[key] = inner
    else:
        table.pop(key, None)


_REPLAY: dict[type, Callable[[_Draft, Any], None]] = {
    records.RegisterBrokerRecord: _Draft.register_broker,
    records.UnregisterBrokerRecord: _Draft.unregister_broker,
    records.TopicRecord: _Draft.topic,
    records.PartitionRecord: _Draft.partition,
    records.ConfigRecord: _Draft.config,
    records.PartitionChangeRecord: _Draft.partition_change,
    records.FenceBrokerRecord: _Draft.fence_broker,
    records.UnfenceBrokerRecord: _Draft.unfence_broker,
    records.RemoveTopicRecord: _Draft.remove_topic,
    records.DelegationTokenRecord: _Draft.token,
    records.UserScramCredentialRecord: _Draft.scram,
    records.FeatureLevelRecord: _Draft.feature,
    records.ClientQuotaRecord: _Draft.quota,
    records.ProducerIdsRecord: _Draft.producer_ids,
    records.BrokerRegistrationChangeRecord: _Draft.change_broker,
    records.AccessControlEntryRecord: _Draft.acl,
    records.RemoveAccessControlEntryRecord: _Draft.remove_acl,
    records.NoOpRecord: _Draft.nothing,
    records.ZkMigrationRecord: _Draft.nothing,
    records.RemoveUserScramCredentialRecord: _Draft.remove_scram,
    records.RemoveDelegationTokenRecord: _Draft.remove_token,
    records.RegisterControllerRecord: _Draft.register_controller,
    records.ClearElrRecord: _Draft.clear_elr,
}

EMPTY = MetadataImage()
