"""Clients of a simulated cluster: they speak the protocol, and nothing else.

Owns `Client`, what all of them can do. Not here: records (`simulation/producer.py`,
`simulation/consumer.py`), groups (`simulation/member.py`), what an administrator does
(`simulation/admin.py`), transactions (`simulation/transactional_producer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectionClosed, TimeoutError
from twisted.internet.task import deferLater

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.simulation.schedule import Actor
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages import metadata as meta
from twisted_broker.wire.schema import encode_parts

_LOST = (ConnectionClosed, ConnectError, TimeoutError, CancelledError)
REQUEST_TIMEOUT_MS = 6_000
Address = tuple[str, int]


class Client:
    """Knows the brokers, the leaders as of its last Metadata answer, and keeps a connection to
    each broker.
    """

    def __init__(
        self, runtime: Runtime, name: str, brokers: Sequence[Address], notes: Notes
    ) -> None:
        self.runtime, self.name, self.brokers, self.notes = runtime, name, list(brokers), notes
        self.random = cast(Random, runtime.random)  # a simulated machine has the whole of it
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.addresses: dict[int, Address] = {}
        self.stopped = False
        self.actor: Actor
        """set before it acts"""
        self._connections: dict[Address, BrokerConnection] = {}

    def connection(self, address: Address) -> BrokerConnection:
        found = self._connections.get(address)
        if found is None:
            found = BrokerConnection(
                self.runtime,
                *address,
                self.name,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                connect_timeout_ms=2_000,
            )
            self._connections[address] = found
        return found

    async def send(self, address: Address, request: Any, version: int) -> Any:
        """The answer, None when none came."""
        try:
            return await self.connection(address).send(request, version)
        except _LOST:
            return None

    async def send_to_any(self, request: Any, version: int) -> Any:
        return await self.send(self.random.choice(self.brokers), request, version)

    async def epoch_of_leader(self, partition: TopicPartition) -> int:
        """The leader epoch to send under, -1 when no leader is known; looks for one first."""
        if self.leaders.get(partition, (-1, -1))[0] not in self.addresses:
            await self.refresh(partition.topic)
        leader, epoch = self.leaders.get(partition, (-1, -1))
        return epoch if leader in self.addresses else -1

    async def send_to_leader(self, partition: TopicPartition, request: Any, version: int) -> Any:
        """The answer of the leader whose epoch `epoch_of_leader` gave."""
        address = self.addresses.get(self.leaders.get(partition, (-1, -1))[0])
        if address is None:
            await self.pause(0.2)
            return None
        return await self.send(address, request, version)

    async def send_unanswered(self, partition: TopicPartition, request: Any, version: int) -> Any:
        """Sends what is not answered (acks=0); None when it could not be sent."""
        address = self.addresses.get(self.leaders.get(partition, (-1, -1))[0])
        if address is None:
            await self.pause(0.2)
            return None
        connection = self.connection(address)
        try:
            await connection.connect()
        except _LOST:
            return None
        protocol = connection._protocol
        if protocol is None or protocol.transport is None:
            return None
        header = RequestHeader(
            request.api_key, version, connection.next_correlation_id(), self.name
        )
        parts = [encode_request_header(header), *encode_parts(request, version)]
        length = sum(map(len, parts))
        protocol.transport.write(b"".join((length.to_bytes(4, "big"), *parts)))
        return True

    @staticmethod
    def name_with_id(partition: TopicPartition, topic_id: bytes) -> TopicPartition:
        """What facts of a topic that may be made again are noted under."""
        return TopicPartition(f"{partition.topic}@{topic_id.hex()}", partition.partition)

    async def refresh(self, topic: str) -> None:
        """Learns the leaders of a topic; older metadata than what is known changes nothing."""
        request = meta.MetadataRequest(
            topics=[meta.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        answer = await self.send_to_any(request, 12)
        if answer is None:
            return
        self.addresses |= {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for found in answer.topics:
            if not found.error_code and self.topic_ids.get(topic) != found.topic_id:
                self.topic_ids[topic] = bytes(found.topic_id)  # leader epochs begin anew
                self.leaders = {
                    each: known for each, known in self.leaders.items() if each.topic != topic
                }
            for each in found.partitions:
                partition = TopicPartition(topic, each.partition_index)
                if each.leader_epoch >= self.leaders.get(partition, (-1, -1))[1]:
                    self.leaders[partition] = (each.leader_id, each.leader_epoch)

    def forget_leader(self, partition: TopicPartition) -> None:
        _, epoch = self.leaders.get(partition, (-1, -1))
        self.leaders[partition] = (-1, epoch)

    async def next_action(self, gap: Callable[[Random], float]) -> bool:
        """Waits until its next action is due, which draws from a generator of its own; False: it
        has no more.
        """
        following = self.actor.next(self.runtime.clock.seconds(), gap)
        if following is None:
            return False
        seconds, self.random = following
        await self.pause(seconds)
        return True

    def pause(self, seconds: float) -> Deferred[None]:
        paused: Deferred[None] = deferLater(self.runtime.clock, seconds, lambda: None)  # type: ignore[arg-type]
        return paused

    def note(self, what: str) -> None:
        self.notes.note(self.name, what)
