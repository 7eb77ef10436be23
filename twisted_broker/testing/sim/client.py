"""Clients of a simulated cluster: they speak the protocol, and nothing else.

Owns `Client`, what all of them can do, and `Admin`. Not here: records (`testing/sim/producer.py`,
`testing/sim/consumer.py`), groups, transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectionClosed, TimeoutError
from twisted.internet.task import deferLater

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.testing.sim.client_notes import Notes
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import configs, topics
from twisted_broker.wire.messages import metadata as meta

_LOST = (ConnectionClosed, ConnectError, TimeoutError, CancelledError)
_REQUEST_TIMEOUT_MS = 6_000
Address = tuple[str, int]


class Client:
    """Knows the brokers, the leaders as of the last time it asked, and keeps a connection to
    each broker.
    """

    def __init__(
        self, runtime: Runtime, name: str, brokers: Sequence[Address], notes: Notes
    ) -> None:
        self.runtime, self.name, self.brokers, self.notes = runtime, name, list(brokers), notes
        self.random = cast(Random, runtime.random)  # a simulated machine has the whole of it
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        self.addresses: dict[int, Address] = {}
        self.stopped = False
        self._connections: dict[Address, BrokerConnection] = {}

    def connection(self, address: Address) -> BrokerConnection:
        found = self._connections.get(address)
        if found is None:
            found = BrokerConnection(
                self.runtime,
                *address,
                self.name,
                request_timeout_ms=_REQUEST_TIMEOUT_MS,
                connect_timeout_ms=2_000,
            )
            self._connections[address] = found
        return found

    async def ask(self, address: Address, request: Any, version: int) -> Any:
        """The answer, None when none came."""
        try:
            return await self.connection(address).send(request, version)
        except _LOST:
            return None

    async def ask_any(self, request: Any, version: int) -> Any:
        return await self.ask(self.random.choice(self.brokers), request, version)

    async def epoch_of_leader(self, partition: TopicPartition) -> int:
        """The leader epoch to ask under, -1 when no leader is known; looks for one first."""
        if self.leaders.get(partition, (-1, -1))[0] not in self.addresses:
            await self.refresh(partition.topic)
        leader, epoch = self.leaders.get(partition, (-1, -1))
        return epoch if leader in self.addresses else -1

    async def ask_leader(self, partition: TopicPartition, request: Any, version: int) -> Any:
        """The answer of the leader whose epoch `epoch_of_leader` gave."""
        address = self.addresses.get(self.leaders.get(partition, (-1, -1))[0])
        if address is None:
            await self.pause(0.2)
            return None
        return await self.ask(address, request, version)

    async def refresh(self, topic: str) -> None:
        """Learns the leaders of a topic; older metadata than what is known changes nothing."""
        request = meta.MetadataRequest(
            topics=[meta.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        answer = await self.ask_any(request, 9)
        if answer is None:
            return
        self.addresses |= {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for found in answer.topics:
            for each in found.partitions:
                partition = TopicPartition(topic, each.partition_index)
                if each.leader_epoch >= self.leaders.get(partition, (-1, -1))[1]:
                    self.leaders[partition] = (each.leader_id, each.leader_epoch)

    def forget_leader(self, partition: TopicPartition) -> None:
        _, epoch = self.leaders.get(partition, (-1, -1))
        self.leaders[partition] = (-1, epoch)

    def pause(self, seconds: float) -> Deferred[None]:
        paused: Deferred[None] = deferLater(self.runtime.clock, seconds, lambda: None)  # type: ignore[arg-type]
        return paused

    def note(self, what: str) -> None:
        self.notes.note(self.name, what)


class Admin(Client):
    """Makes topics and changes their settings; tries until it is done."""

    async def create(
        self, name: str, partitions: int, replicas: int, settings: dict[str, str]
    ) -> bool:
        wanted = topics.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[
                topics.CreatableTopicConfig(name=key, value=value)
                for key, value in sorted(settings.items())
            ],
        )
        while not self.stopped:
            answer = await self.ask_any(
                topics.CreateTopicsRequest(topics=[wanted], timeout_ms=_REQUEST_TIMEOUT_MS), 7
            )
            code = (
                ErrorCode.REQUEST_TIMED_OUT
                if answer is None
                else error_of(answer.topics[0].error_code)
            )
            self.note(f"create {name}: {code.name}")
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return True
            await self.pause(0.3)
        return False

    async def change(self, topic: str, name: str, value: str) -> None:
        """One try: it may have been done when no answer came."""
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2,
            resource_name=topic,
            configs=[
                configs.IncrementalAlterConfigsRequestAlterableConfig(
                    name=name, config_operation=0, value=value
                )
            ],
        )
        answer = await self.ask_any(configs.IncrementalAlterConfigsRequest(resources=[resource]), 1)
        code = "no answer" if answer is None else error_of(answer.responses[0].error_code).name
        self.note(f"{topic} {name}={value}: {code}")
