"""Where the logs of partitions end, asked of whoever leads them. Ring 1.

Owns `EndOffsets`.

1. What this broker leads it reads itself. Each other leader is asked once for all its partitions,
   on a connection of its own, which is closed then: tools ask that, now and then.
2. What is not known is left out.

Source: Apache Kafka 4.3.1 `NetworkPartitionMetadataClient`. Not here: who wants to know it
(`api/share_groups.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.error import ConnectError, ConnectionClosed

from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.wire.errors import BrokerError, WireError
from twisted_broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

_LATEST = -1
_CONSUMER = -1
_VERSION = 7
_LOST = (ConnectError, ConnectionClosed, OSError, WireError, BrokerError)


class EndOffsets:
    """`own(partition)`: the high watermark of one that is led here, None of any other; `listener`:
    the name of the listener between brokers.
    """

    __slots__ = ("_connect", "_image", "_listener", "_own")

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        own: Callable[[TopicPartition], int | None],
        listener: str,
        connect: Callable[[BrokerEndPoint, str], BrokerConnection],
    ) -> None:
        self._image, self._own, self._listener, self._connect = image, own, listener, connect

    async def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Their high watermarks."""
        found: dict[TopicPartition, int] = {}
        by_leader: dict[BrokerEndPoint, list[TopicPartition]] = {}
        for partition in partitions:
            own = self._own(partition)
            leader = None if own is not None else self._leader(partition)
            if own is not None:
                found[partition] = own
            elif leader is not None:
                by_leader.setdefault(leader, []).append(partition)
        for leader, led in by_leader.items():
            connection = self._connect(leader, "share-group-lag")
            try:
                found.update(await _ask(connection, led))
            except _LOST:
                continue  # nothing is known of these
            finally:
                connection.close()
        return found

    def _leader(self, partition: TopicPartition) -> BrokerEndPoint | None:
        image = self._image()
        topic = image.topics_by_name.get(partition.topic)
        known = None if topic is None else topic.partitions.get(partition.partition)
        broker = None if known is None else image.brokers.get(known.leader)
        endpoint = None if broker is None else broker.listeners.get(self._listener)
        if broker is None or endpoint is None or broker.fenced:
            return None
        return BrokerEndPoint(broker.id, endpoint.host, endpoint.port)


async def _ask(
    connection: BrokerConnection, partitions: list[TopicPartition]
) -> dict[TopicPartition, int]:
    await connection.negotiate()
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for each in partitions:
        topics.setdefault(each.topic, []).append(
            ListOffsetsPartition(partition_index=each.partition, timestamp=_LATEST)
        )
    request = ListOffsetsRequest(
        replica_id=_CONSUMER,
        topics=[ListOffsetsTopic(name=name, partitions=led) for name, led in topics.items()],
    )
    version = connection.highest_version(request.api_key, _VERSION)
    response: Any = await connection.send(request, version)
    return {
        TopicPartition(topic.name, each.partition_index): each.offset
        for topic in response.topics
        for each in topic.partitions
        if not each.error_code
    }
