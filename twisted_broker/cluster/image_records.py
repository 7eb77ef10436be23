"""The records that say a whole image: the body of a snapshot.

1. Applying them to an empty image gives the image back.
2. The first record is the metadata.version: a reader needs it to understand the others.

Source: Kafka's `ImageWriter`s; `RL 8.1`. Not here: the snapshot's header, footer and file
(`snapshots.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted_broker.image.entries import BrokerRegistration, ControllerRegistration
from twisted_broker.image.metadata_image import METADATA_VERSION, MetadataImage
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.schema import Record


def image_records(image: MetadataImage) -> Iterator[Record]:
    """Every record that an empty image needs to become this one, in an order in which they can
    be applied; the same image gives the same records.
    """
    for name in sorted(image.features, key=lambda feature: (feature != METADATA_VERSION, feature)):
        yield records.FeatureLevelRecord(name=name, feature_level=image.features[name])
    for node in sorted(image.brokers):
        yield broker_record(image.brokers[node])
    for node in sorted(image.controllers):
        yield controller_record(image.controllers[node])
    for topic_name in sorted(image.topics_by_name):
        topic = image.topics_by_name[topic_name]
        yield records.TopicRecord(name=topic.name, topic_id=topic.id)
        for number in sorted(topic.partitions):
            yield topic.partitions[number].record(topic.id, number)
    for resource_type, resource in sorted(image.configs):
        for setting, value in sorted(image.configs[resource_type, resource].items()):
            yield records.ConfigRecord(
                resource_type=resource_type, resource_name=resource, name=setting, value=value
            )
    yield from _security_records(image)
    if image.next_producer_id:
        yield records.ProducerIdsRecord(
            broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id
        )


def _security_records(image: MetadataImage) -> Iterator[Record]:
    for entity in sorted(image.client_quotas, key=repr):
        for key, value in sorted(image.client_quotas[entity].items()):
            parts = [
                records.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
            ]
            yield records.ClientQuotaRecord(entity=parts, key=key, value=value, remove=False)
    for acl in sorted(image.acls):
        yield image.acls[acl]
    for credential in sorted(image.scram):
        yield image.scram[credential]
    for token in sorted(image.tokens):
        yield image.tokens[token]


def broker_record(broker: BrokerRegistration) -> records.RegisterBrokerRecord:
    """The record that registers a broker as it is now."""
    return records.RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            records.BrokerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in broker.listeners.values()
        ],
        features=[
            records.BrokerFeature(
                name=name,
                min_supported_version=supported.min_version,
                max_supported_version=supported.max_version,
            )
            for name, supported in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        cordoned_log_dirs=None if broker.cordoned is None else list(broker.cordoned),
    )


def controller_record(controller: ControllerRegistration) -> records.RegisterControllerRecord:
    """The record that registers a controller as it is now."""
    return records.RegisterControllerRecord(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=False,
        end_points=[
            records.ControllerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in controller.listeners.values()
        ],
        features=[
            records.ControllerFeature(
                name=name,
                min_supported_version=supported.min_version,
                max_supported_version=supported.max_version,
            )
            for name, supported in controller.features.items()
        ],
    )
