"""Topic names out of a consumer's subscription. Ring 0.

Owns the reading of the first fields of Kafka's consumer protocol (what JoinGroup's metadata holds in a group of type "consumer").

1. Versions only ever append fields, so version 0's layout reads all of them.
2. Counts and lengths are checked against the bytes that are there before anything is made of them.

Source: `ConsumerProtocolSubscription.json` of Apache Kafka 4.3.1. Leaves out owned partitions, generation, rack: clients' own business.
"""

from __future__ import annotations

import struct

_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")


class MalformedSubscription(ValueError):
    """The metadata is not a consumer's subscription."""


def subscribed_topics(metadata: bytes) -> list[str]:
    """The topics of one subscription; raises MalformedSubscription."""
    try:
        (version,) = _SHORT.unpack_from(metadata, 0)
        (count,) = _INT.unpack_from(metadata, 2)
        if version < 0 or not 0 <= count <= (len(metadata) - 6) // 2:
            raise MalformedSubscription(f"version {version}, {count} topics in {len(metadata)} bytes")
        topics, position = [], 6
        for _ in range(count):
            (length,) = _SHORT.unpack_from(metadata, position)
            end = position + 2 + length
            if length < 0 or end > len(metadata):
                raise MalformedSubscription(f"a topic name of {length} bytes at {position}")
            topics.append(str(metadata[position + 2 : end], "utf-8"))
            position = end
        return topics
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedSubscription(str(error)) from None
