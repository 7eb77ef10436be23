"""Topic names out of a consumer's subscription (what JoinGroup's metadata holds in a group of type
"consumer"). Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `topics_count`, `subscribed_topics` and `MalformedSubscription`.

1. Versions only ever append fields, so version 0's layout reads all of them.

Source: Apache Kafka 4.3.1 `ConsumerProtocol`. Not here: owned partitions, generation, rack,
which only clients use.
"""

from __future__ import annotations

from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from twisted_broker.wire.schema import decode_from

_VERSION_BYTES, _COUNT_BYTES = 2, 4


class MalformedSubscription(ValueError):
    """The metadata is not a consumer's subscription."""


def topics_count(metadata: bytes) -> int:
    """How many topics a subscription claims to name, without reading them; raises
    MalformedSubscription.
    """
    if len(metadata) < _VERSION_BYTES + _COUNT_BYTES:
        raise MalformedSubscription(f"no topics in {len(metadata)} bytes")
    return int.from_bytes(metadata[_VERSION_BYTES : _VERSION_BYTES + _COUNT_BYTES], "big")


def subscribed_topics(metadata: bytes) -> list[str]:
    """The topics of one subscription; raises MalformedSubscription."""
    if len(metadata) < _VERSION_BYTES or metadata[0] & 0x80:
        raise MalformedSubscription(f"no version in {len(metadata)} bytes")
    try:
        return decode_from(ConsumerProtocolSubscription, metadata, 0, _VERSION_BYTES)[0].topics
    except WireError as error:
        raise MalformedSubscription(str(error)) from None
