"""The bytes that classic consumers put into JoinGroup and get from SyncGroup, as a consumer group
sees it. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the reading of subscriptions, and the reading and writing of assignments of the protocol type
"consumer".

1. A version of the future is read as the newest one that is known.
2. Topics that do not exist count for nothing.

Source: Apache Kafka 4.3.1 `ConsumerProtocol`, `Utils.toTopicPartitionMap`,
`toConsumerProtocolAssignment`.
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.coordinator.consumer.partitions import (
    NOTHING,
    Target,
    TopicIdPartition,
    by_topic,
)
from twisted_broker.coordinator.subscription import MalformedSubscription
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from twisted_broker.wire.schema import decode_from, encode

NEWEST_VERSION = 3
_VERSION_BYTES = 2
_Topics = Iterable[
    ConsumerProtocolAssignmentTopicPartition | ConsumerProtocolSubscriptionTopicPartition
]


class UnknownUserData(MalformedSubscription):
    """An assignor of the client's own has put something into an assignment."""


def version_of(data: bytes) -> int:
    """Raises MalformedSubscription."""
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if len(data) < _VERSION_BYTES or version < 0:
        raise MalformedSubscription(f"no version in {len(data)} bytes")
    return min(version, NEWEST_VERSION)


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """Raises MalformedSubscription."""
    version = version_of(metadata)
    try:
        return decode_from(ConsumerProtocolSubscription, metadata, version, _VERSION_BYTES)[0]
    except WireError as error:
        raise MalformedSubscription(str(error)) from None


def owned_partitions(subscription: ConsumerProtocolSubscription, image: MetadataImage) -> Target:
    """The partitions that the member says it has."""
    return _partitions(subscription.owned_partitions, image)


def read_assignment(data: bytes, image: MetadataImage) -> Target:
    """The partitions that a member was given. Raises MalformedSubscription."""
    if not data:
        return NOTHING
    version = version_of(data)
    try:
        read = decode_from(ConsumerProtocolAssignment, data, version, _VERSION_BYTES)[0]
    except WireError as error:
        raise MalformedSubscription(str(error)) from None
    if read.user_data:
        raise UnknownUserData("user data of an assignor")
    return _partitions(read.assigned_partitions, image)


def write_assignment(
    partitions: Iterable[TopicIdPartition], image: MetadataImage, version: int
) -> bytes:
    """An assignment, as the member gets it."""
    topics = [
        ConsumerProtocolAssignmentTopicPartition(
            topic=image.topics_by_id[topic_id].name, partitions=numbers
        )
        for topic_id, numbers in by_topic(partitions)
        if topic_id in image.topics_by_id
    ]
    assignment = ConsumerProtocolAssignment(assigned_partitions=topics)
    return version.to_bytes(_VERSION_BYTES, "big") + encode(assignment, version)


def _partitions(topics: _Topics, image: MetadataImage) -> Target:
    named = ((image.topics_by_name.get(each.topic), each.partitions) for each in topics)
    return frozenset(
        (topic.id, number) for topic, numbers in named if topic is not None for number in numbers
    )
