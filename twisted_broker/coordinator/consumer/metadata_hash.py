"""The hash by which a group notices that its topics have changed.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `TopicHashes`, one for a shard.

1. The value is in `__consumer_offsets` and equals Apache Kafka's: a group that moves from or to a
   Java broker does not rebalance for it.
2. The hash of a topic is remembered as long as the topic and the brokers are the same objects of
   the image; `MOST_REMEMBERED` of them bound the memory.
3. Names that are not in the image are left out. No topics: 0.

Source: Apache Kafka 4.3.1 `Utils.computeTopicHash`, `computeGroupHash` (XXH3-64 of hash4j).
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Mapping

from xxhash import xxh3_64

from twisted_broker.image.entries import BrokerRegistration, TopicImage
from twisted_broker.image.metadata_image import MetadataImage

NO_TOPICS = 0
MOST_REMEMBERED = 20_000
# Each costs a microsecond or two (`turns.py`, invariant 4).
PARTITIONS_PER_STEP, TOPICS_PER_STEP = 500, 500
_INT, _LONG = struct.Struct("<i"), struct.Struct("<q")
_MAGIC = b"\0"


class TopicHashes:
    """Hashes of topics, computed when they are asked for."""

    __slots__ = ("_brokers", "_remembered")

    def __init__(self) -> None:
        self._brokers: Mapping[int, BrokerRegistration] = {}
        self._remembered: dict[bytes, tuple[TopicImage, int]] = {}

    def of_group(self, image: MetadataImage, names: Iterable[str]) -> Generator[None, None, int]:
        """The hash of a group that subscribes to `names`, in steps."""
        hashes = []
        for number, name in enumerate(sorted(names), 1):
            topic = image.topics_by_name.get(name)
            if topic is not None:
                hashes.append((yield from self._of_topic(image, topic)))
            if number % TOPICS_PER_STEP == 0:
                yield
        if not hashes:
            return NO_TOPICS
        return _signed(xxh3_64(b"".join(map(_LONG.pack, hashes))).intdigest())

    def _of_topic(self, image: MetadataImage, topic: TopicImage) -> Generator[None, None, int]:
        if image.brokers is not self._brokers or len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
            self._brokers = image.brokers
        found = self._remembered.get(topic.id)
        if found is not None and found[0] is topic:
            return found[1]
        result = yield from topic_hash(image, topic)
        if image.brokers is self._brokers:  # nobody asked with another image meanwhile
            self._remembered[topic.id] = topic, result
        return result


def topic_hash(image: MetadataImage, topic: TopicImage) -> Generator[None, None, int]:
    """The hash of one topic, in steps."""
    hasher = xxh3_64(_MAGIC + topic.id[7::-1] + topic.id[:7:-1])
    hasher.update(_text(topic.name))
    hasher.update(_INT.pack(len(topic.partitions)))
    for index, partition in sorted(topic.partitions.items()):
        parts = [_INT.pack(index)]
        brokers = (image.brokers.get(node) for node in partition.replicas)
        racks = (each.rack for each in brokers if each is not None)
        for rack in sorted(each for each in racks if each is not None):
            parts += _INT.pack(_units(rack)), _text(rack)
        hasher.update(b"".join(parts))
        if index % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
            yield
    return _signed(hasher.intdigest())


def _text(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass") + _INT.pack(_units(text))


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
