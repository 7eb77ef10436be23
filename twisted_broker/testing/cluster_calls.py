"""A test's calls of its cluster, in the cluster's process.

Owns `ClusterCalls`: topics, records, groups, what is waited for. Each method is one call of the
socket; its arguments and its result are what JSON has, bytes in base64.

1. A call returns when what it says holds at every broker: a topic is known to all of them and has
   leaders. Or it raises, after `within` seconds, with what is missing.
2. Records are written by an idempotent producer, with acks=all: one that is written twice, or not,
   is a fault of the cluster.

Ring 2: it talks to the brokers as clients do, beside those of the test. Source: our own.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import DeferredLock
from twisted.internet.error import ConnectError, ConnectionClosed

from twisted_broker.consumer.cluster_client import ClientConnection, ClusterClient
from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.errors import BrokersUnreachable
from twisted_broker.consumer.group_offsets import commit_offsets
from twisted_broker.consumer.rebalance import assigned_partitions
from twisted_broker.consumer.record_iterator import records_of
from twisted_broker.image.entries import PartitionRegistration, TopicImage
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError, error_of
from twisted_broker.wire.legacy import iterate_entries
from twisted_broker.wire.messages import fetch, groups, list_offsets, offsets, topics, transactions
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest
from twisted_broker.wire.record_builder import BatchBuilder
from twisted_broker.wire.record_walk import Record

_PRODUCE, _FETCH, _LIST_OFFSETS, _CREATE_TOPICS, _INIT_PRODUCER_ID = 12, 12, 9, 7, 4
_FIND_COORDINATOR, _DESCRIBE_GROUPS, _OFFSET_FETCH = 4, 5, 8
_DESCRIBE_CONSUMER_GROUPS = 0
_OF_NO_CONSUMER_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
_EARLIEST, _LATEST = -2, -1
_DESCRIBE_TRANSACTIONS, _OF_GROUPS, _OF_TRANSACTIONS = 0, 0, 1
_ADD_PARTITIONS_TO_TXN, _END_TXN = 3, 3
_PRODUCE_IN_TRANSACTION = 11
"""Partitions are added to the transaction before."""
_TRANSACTIONS = {"commit": "CompleteCommit", "abort": "CompleteAbort", "open": "Ongoing"}
_ISOLATIONS = ("read_uncommitted", "read_committed")
_MINUTE_MS = 60_000
_PAUSE_MS, _WAIT_MS = 20, 200
_BATCH_BYTES = 500_000
_UNREACHABLE = (ConnectionError, ConnectError, ConnectionClosed, BrokersUnreachable)
"""Python's, and Twisted's: one that was struck is not there for now"""
T = TypeVar("T")


OWN_CLIENT = "twisted-broker-test"
"""The client id of a test's own requests: no fault of requests strikes them."""


class _Producer:
    """`transactional_id` None: without transactions."""

    def __init__(self, id: int, epoch: int, transactional_id: str | None = None) -> None:
        self.id, self.epoch, self.transactional_id = id, epoch, transactional_id
        self.sequences: dict[TopicPartition, int] = defaultdict(int)


class CallFailed(Exception):
    """What a call could not do; `str()` is for the test that called."""


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(content: bytes | memoryview | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _address(broker: KafkaServer, listener: str | None = None) -> str:
    """Of that listener; None: of the first one for clients."""
    return next(
        each.address
        for each in broker.listeners
        if (not each.is_controller if listener is None else each.name == listener)
    )


class _OwnClient(ClusterClient):
    """One that knows which `brokers` run: it does not wait for one that is silent."""

    def __init__(
        self,
        runtime: Runtime,
        config: ConsumerConfig,
        brokers: Sequence[KafkaServer],
        listener: str | None,
    ) -> None:
        super().__init__(runtime, config)
        self._running, self._listener = brokers, listener

    def any_order(self) -> list[BrokerEndPoint]:
        """Raises BrokersUnreachable: none runs."""
        if not self._running:
            raise BrokersUnreachable("no broker runs: restart one, or thaw it")
        running = {_address(each, self._listener) for each in self._running}
        order = super().any_order()
        # A name that is advertised is no address: then each may be one that runs.
        return [each for each in order if f"{each.host}:{each.port}" in running] or order


class ClusterCalls:
    """Of a cluster that runs. `requests(api)`: how many of them clients sent; `listener`: by which
    the brokers are asked, None: as clients do. Methods raise CallFailed, and TimeoutError after
    `within` seconds.
    """

    def __init__(
        self,
        brokers: Sequence[KafkaServer],
        runtime: Runtime,
        requests: Callable[[str], int] = lambda api: 0,
        listener: str | None = None,
    ) -> None:
        self._brokers, self._runtime, self.requests = brokers, runtime, requests
        self._listener = listener
        self.bootstrap = ",".join(_address(broker) for broker in brokers)
        asked = ",".join(_address(broker, listener) for broker in brokers)
        config = ConsumerConfig({"bootstrap.servers": asked, "client.id": OWN_CLIENT})
        self._client = _OwnClient(runtime, config, brokers, listener)
        self._producer: _Producer | None = None
        self._appending = DeferredLock()
        """one batch of that producer at a time: the next one's sequence number follows"""
        self._transactions = 0
        """that were begun"""
        self._next_unkeyed: dict[str, int] = defaultdict(int)

    def another(self) -> ClusterCalls:
        """With connections of its own."""
        return ClusterCalls(self._brokers, self._runtime, self.requests, self._listener)

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()

    # topics

    async def make_topic(
        self,
        name: str,
        partitions: int | None = None,
        replicas: int | None = None,
        settings: dict[str, str] | None = None,
        within: float = 30.0,
    ) -> int:
        """Makes it where it is missing; how many partitions it has."""
        found = self._topic(name)
        if found is None:
            await self._create(name, partitions, replicas, settings or {}, within)
            found = await self._until(lambda: self._served(name), within, f"topic {name}")
        count = len(found.partitions)
        if partitions not in (None, count):
            raise CallFailed(f"topic {name} has {count} partitions, not {partitions}")
        return count

    async def _create(
        self,
        name: str,
        partitions: int | None,
        replicas: int | None,
        settings: dict[str, str],
        within: float,
    ) -> None:
        topic = topics.CreatableTopic(
            name=name,
            num_partitions=partitions or -1,
            replication_factor=replicas or -1,
            configs=[
                topics.CreatableTopicConfig(name=key, value=value)
                for key, value in settings.items()
            ],
        )
        request = topics.CreateTopicsRequest(topics=[topic], timeout_ms=int(within * 1000))
        answer = (await self._client.send_to_any(request, _CREATE_TOPICS)).topics[0]
        if answer.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
            code = error_of(answer.error_code).name
            raise CallFailed(f"topic {name}: {answer.error_message or code}")

    def _topic(self, name: str) -> TopicImage | None:
        """As every broker knows it, with the same partitions."""
        found = None
        for broker in self._brokers:
            assert broker.broker_server is not None
            found = broker.broker_server.observer.image.topics_by_name.get(name)
            if found is None:
                return None
        return found

    def _served(self, name: str) -> TopicImage | None:
        """Where each partition is led by a broker that knows so."""
        topic = self._topic(name)
        if topic is None:
            return None
        leading = set()
        for broker in self._brokers:
            assert broker.broker_server is not None
            partitions = broker.broker_server.replica_manager.partitions
            leading |= {
                number
                for number in topic.partitions
                if (own := partitions.get(TopicPartition(name, number))) is not None
                and own.is_leader
            }
        return topic if len(leading) == len(topic.partitions) else None

    async def leader(self, topic: str, partition: int, within: float = 30.0) -> int:
        """The id of the broker that leads it, as all that run know."""
        name = TopicPartition(topic, partition)

        def found() -> int | None:
            known = self._topic(topic)
            if known is None or partition not in known.partitions:
                return None
            leader = known.partitions[partition].leader
            for broker in self._brokers:
                if broker.config.node_id == leader and broker.broker_server is not None:
                    own = broker.broker_server.replica_manager.partitions.get(name)
                    return leader if own is not None and own.is_leader else None
            return None

        return await self._until(found, within, f"a leader of {name}")

    def topic_named(self, identity: bytes) -> str | None:
        """The topic with that id."""
        for broker in self._brokers:
            assert broker.broker_server is not None
            found = broker.broker_server.observer.image.topics_by_id.get(identity)
            if found is not None:
                return found.name
        return None

    def id_of(self, topic: str) -> bytes:
        """Raises CallFailed."""
        found = self._topic(topic)
        if found is None:
            raise CallFailed(f"there is no topic {topic}")
        return found.id

    async def starts(self, topic: str, within: float = 30.0) -> dict[int, int]:
        """Where the log of each partition begins."""
        found = self._topic(topic)
        return {
            number: await self._offset(TopicPartition(topic, number), _EARLIEST, False, within)
            for number in (() if found is None else found.partitions)
        }

    def partitions_of(self, topic: str) -> int:
        """How many. Raises CallFailed."""
        found = self._topic(topic)
        if found is None:
            raise CallFailed(f"there is no topic {topic}")
        return len(found.partitions)

    def registration(self, topic: str, partition: int) -> PartitionRegistration:
        """As the first broker that runs knows it. Raises CallFailed."""
        found = self._topic(topic)
        if found is None or partition not in found.partitions:
            raise CallFailed(f"there is no partition {topic}-{partition}")
        return found.partitions[partition]

    async def until_registered(
        self,
        topic: str,
        partition: int,
        holds: Callable[[PartitionRegistration], bool],
        within: float = 30.0,
    ) -> None:
        """Ends when every broker that runs knows that."""

        def found() -> bool | None:
            for broker in self._brokers:
                assert broker.broker_server is not None
                known = broker.broker_server.observer.image.topics_by_name.get(topic)
                if known is None or not holds(known.partitions[partition]):
                    return None
            return True

        await self._until(found, within, f"what was asked of {topic}-{partition}")

    async def ask_any(self, request: Any, version: int) -> Any:
        """Any broker."""
        return await self._client.send_to_any(request, version)

    async def pause(self) -> None:
        """Before something is looked at again."""
        await self._client.pause(_PAUSE_MS)

    async def ask_coordinator(
        self,
        group: str,
        request: Any,
        version: int,
        within: float,
        error: Callable[[Any], int] = lambda answer: int(answer.error_code),
    ) -> Any:
        """Of a group; `error` of its answer. Raises CallFailed: it refuses."""

        async def asked(coordinator: ClientConnection) -> Any:
            found = await coordinator.send(request, version)
            _check(error(found), None)
            return found

        return await self._at_coordinator(group, asked, within)

    # records

    async def produce(
        self,
        topic: str,
        records: list[dict[str, Any]],
        within: float = 30.0,
        transaction: str | None = None,
    ) -> list[tuple[int, int]]:
        """Partition and offset of each. A record has `key`, `value`, `headers`, `timestamp` and
        `partition`, each of which may be missing: the key decides then where it goes, as Java's
        clients decide; without one they go round. `transaction`: they are one, which is committed,
        aborted or left open.
        """
        if transaction is not None and transaction not in _TRANSACTIONS:
            right = ", ".join(_TRANSACTIONS)
            raise CallFailed(f"a transaction is to {right}, not {transaction!r}")
        count = await self.make_topic(topic, within=within)
        where = [self._partition(topic, count, record) for record in records]
        placed: dict[int, list[int]] = defaultdict(list)
        for index, partition in enumerate(where):
            placed[partition].append(index)
        found = [(-1, -1)] * len(records)
        producer = None if transaction is None else await self._begun(topic, [*placed], within)
        for partition, indexes in placed.items():
            for part in _parts(records, indexes):
                name = TopicPartition(topic, partition)
                written = [records[index] for index in part]
                if producer is None:
                    first = await self._append_alone(name, written, within)
                else:
                    first = await self._append(producer, name, written, within)
                for delta, index in enumerate(part):
                    found[index] = (partition, first + delta)
        if producer is not None and transaction != "open":
            await self._end(producer, transaction == "commit", within)
        return found

    async def _begun(self, topic: str, partitions: list[int], within: float) -> _Producer:
        """A transaction, with an id of its own: none fences another one."""
        self._transactions += 1
        name = f"{OWN_CLIENT}-{self._transactions}"
        producer = await self._made_producer(name, within)
        request = transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                transactions.AddPartitionsToTxnTopic(name=topic, partitions=partitions)
            ],
        )

        async def asked(coordinator: ClientConnection) -> None:
            answer = await coordinator.send(request, _ADD_PARTITIONS_TO_TXN)
            for each in answer.results_by_topic_v3_and_below[0].results_by_partition:
                _check(each.partition_error_code, None)

        await self._at_coordinator(name, asked, within, _OF_TRANSACTIONS)
        return producer

    async def _end(self, producer: _Producer, commits: bool, within: float) -> None:
        """Ends when its markers are written."""
        name = producer.transactional_id
        assert name is not None
        request = transactions.EndTxnRequest(
            transactional_id=name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=commits,
        )

        async def asked(coordinator: ClientConnection) -> None:
            _check((await coordinator.send(request, _END_TXN)).error_code, None)

        async def ended() -> None:
            state = await self.transaction_state(name, within)
            if state != _TRANSACTIONS["commit" if commits else "abort"]:
                raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)

        await self._at_coordinator(name, asked, within, _OF_TRANSACTIONS)
        await self._again(ended, within, f"the coordinator of transactional id {name}")

    def _partition(self, topic: str, count: int, record: dict[str, Any]) -> int:
        if record.get("partition") is not None:
            return int(record["partition"])
        key = _bytes(record.get("key"))
        if key is not None:
            return (murmur2(key) & 0x7FFFFFFF) % count
        self._next_unkeyed[topic] += 1
        return (self._next_unkeyed[topic] - 1) % count

    async def _append_alone(
        self, name: TopicPartition, records: list[dict[str, Any]], within: float
    ) -> int:
        """As part of no transaction; the offset of the first."""
        await self._appending.acquire()
        producer, self._producer = self._producer, None
        try:
            producer = producer or await self._made_producer(None, within)
            first = await self._append(producer, name, records, within)
            # Of a batch that failed nobody knows whether it was written: its producer, whose next
            # sequence number is not known either, is not used again.
            self._producer = producer
            return first
        finally:
            self._appending.release()

    async def _append(
        self,
        producer: _Producer,
        name: TopicPartition,
        records: list[dict[str, Any]],
        within: float,
    ) -> int:
        """The offset of the first."""
        is_part = producer.transactional_id is not None
        batch = BatchBuilder(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequences[name],
            is_transactional=is_part,
        )
        for record in records:
            timestamp = record.get("timestamp")
            headers = [(key, _bytes(value)) for key, value in record.get("headers") or ()]
            batch.append(
                self._runtime.wall_ms() if timestamp is None else timestamp,
                _bytes(record.get("key")),
                _bytes(record.get("value")),
                headers,
            )
        data = PartitionProduceData(index=name.partition, records=batch.build())
        request = ProduceRequest(
            transactional_id=producer.transactional_id,
            acks=-1,
            timeout_ms=int(within * 1000),
            topic_data=[TopicProduceData(name=name.topic, partition_data=[data])],
        )

        async def sent(leader: ClientConnection) -> int:
            version = _PRODUCE_IN_TRANSACTION if is_part else _PRODUCE
            answer = await leader.send(request, version)
            found = answer.responses[0].partition_responses[0]
            _check(found.error_code, found.error_message)
            return int(found.base_offset)

        first = await self._at_leader(name, sent, within)
        producer.sequences[name] += len(records)
        return first

    async def _made_producer(self, name: str | None, within: float) -> _Producer:
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=0 if name is None else _MINUTE_MS
        )

        def made(answer: Any) -> _Producer:
            _check(answer.error_code, None)
            return _Producer(answer.producer_id, answer.producer_epoch, name)

        async def asked() -> _Producer:
            return made(await self._client.send_to_any(request, _INIT_PRODUCER_ID))

        async def asked_coordinator(coordinator: ClientConnection) -> _Producer:
            return made(await coordinator.send(request, _INIT_PRODUCER_ID))

        if name is None:
            return await self._again(asked, within, "a producer id")
        return await self._at_coordinator(name, asked_coordinator, within, _OF_TRANSACTIONS)

    async def records(
        self,
        topic: str,
        at_least: int = 0,
        isolation: str = "read_uncommitted",
        within: float = 10.0,
    ) -> list[dict[str, Any]]:
        """Of all partitions, in order of partition and offset: those that are there, or `at_least`
        as many, which it waits for.
        """
        if isolation not in _ISOLATIONS:
            raise CallFailed(f"isolation is {' or '.join(_ISOLATIONS)}, not {isolation!r}")
        committed_only = isolation == "read_committed"
        deadline = self._runtime.clock.seconds() + within
        count = await self.make_topic(topic, within=within)
        names = [TopicPartition(topic, number) for number in range(count)]
        positions = {
            name: await self._offset(name, _EARLIEST, committed_only, within) for name in names
        }
        found: dict[int, list[dict[str, Any]]] = {number: [] for number in range(count)}
        while True:
            for name in names:
                end = await self._offset(name, _LATEST, committed_only, within)
                while positions[name] < end:
                    positions[name] = await self._read(
                        name, positions[name], end, committed_only, found[name.partition], within
                    )
            have = sum(map(len, found.values()))
            if have >= at_least:
                return [record for number in range(count) for record in found[number]]
            if self._runtime.clock.seconds() >= deadline:
                raise TimeoutError(
                    f"topic {topic} has {have} records after {within:g} s, not {at_least}"
                )
            await self._client.pause(_PAUSE_MS)

    async def _offset(
        self, name: TopicPartition, timestamp: int, committed_only: bool, within: float
    ) -> int:
        asked = list_offsets.ListOffsetsPartition(
            partition_index=name.partition, current_leader_epoch=-1, timestamp=timestamp
        )
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(committed_only),
            topics=[list_offsets.ListOffsetsTopic(name=name.topic, partitions=[asked])],
        )

        async def sent(leader: ClientConnection) -> int:
            found = (await leader.send(request, _LIST_OFFSETS)).topics[0].partitions[0]
            _check(found.error_code, None)
            return int(found.offset)

        return await self._at_leader(name, sent, within)

    async def _read(
        self,
        name: TopicPartition,
        offset: int,
        end: int,
        committed_only: bool,
        into: list[dict[str, Any]],
        within: float,
    ) -> int:
        """Reads records below `end`; where to go on."""
        asked = fetch.FetchPartition(
            partition=name.partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = fetch.FetchRequest(
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            isolation_level=int(committed_only),
            topics=[fetch.FetchTopic(topic=name.topic, partitions=[asked])],
        )

        async def sent(leader: ClientConnection) -> Any:
            found = (await leader.send(request, _FETCH)).responses[0].partitions[0]
            _check(found.error_code, None)
            return found

        data = await self._at_leader(name, sent, within)
        content = bytes(data.records or b"")
        size, reached = 0, offset
        for entry in iterate_entries(content, partial_tail=True):
            size += entry.size_in_bytes
            reached = entry.last_offset + 1
        aborted = [
            (each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
        ]
        into += (
            _described(name.partition, record)
            for record in records_of(content[:size], offset, aborted)
            if record.offset < end
        )
        return min(reached, end)  # what came meanwhile is read another time

    # groups

    async def group(self, name: str, within: float = 30.0) -> dict[str, Any]:
        """Its state, its members with what is assigned to them, its offsets and its lag."""

        async def asked(coordinator: ClientConnection) -> Any:
            new = groups.ConsumerGroupDescribeRequest(group_ids=[name])
            found = (await coordinator.send(new, _DESCRIBE_CONSUMER_GROUPS)).groups[0]
            if found.error_code in _OF_NO_CONSUMER_GROUP:
                request = groups.DescribeGroupsRequest(groups=[name])
                found = (await coordinator.send(request, _DESCRIBE_GROUPS)).groups[0]
            _check(found.error_code, None)
            return found

        described = await self._at_coordinator(name, asked, within)
        committed = await self._committed(name, within)
        lag = 0
        for topic, partition, offset in committed:
            end = await self._offset(TopicPartition(topic, partition), _LATEST, False, within)
            lag += max(0, end - offset)
        return {
            "state": described.group_state,
            "members": [
                {
                    "id": each.member_id,
                    "client_id": each.client_id,
                    "assigned": _assigned(each),
                }
                for each in described.members
            ],
            "offsets": committed,
            "lag": lag,
        }

    async def _committed(self, name: str, within: float) -> list[tuple[str, int, int]]:
        async def asked(coordinator: ClientConnection) -> Any:
            group = offsets.OffsetFetchRequestGroup(group_id=name, topics=None)
            request = offsets.OffsetFetchRequest(groups=[group])
            found = (await coordinator.send(request, _OFFSET_FETCH)).groups[0]
            _check(found.error_code, None)
            return found

        found = await self._at_coordinator(name, asked, within)
        return [
            (topic.name, each.partition_index, each.committed_offset)
            for topic in found.topics
            for each in topic.partitions
        ]

    async def set_offsets(
        self, name: str, positions: list[tuple[str, int, int]], within: float = 30.0
    ) -> None:
        """Commits topic, partition, offset for a group without members."""
        wanted = {TopicPartition(topic, number): (at, -1) for topic, number, at in positions}

        async def asked(coordinator: ClientConnection) -> None:
            await commit_offsets(coordinator, name, wanted)

        await self._at_coordinator(name, asked, within)

    # transactions

    async def transaction_state(self, transactional_id: str, within: float = 30.0) -> str:
        """Kafka's word; Dead: there is no such id."""

        async def asked(coordinator: ClientConnection) -> str:
            request = transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id])
            answer = await coordinator.send(request, _DESCRIBE_TRANSACTIONS)
            found = answer.transaction_states[0]
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return "Dead"
            _check(found.error_code, None)
            return str(found.transaction_state)

        return await self._at_coordinator(transactional_id, asked, within, _OF_TRANSACTIONS)

    async def transactions(self) -> dict[str, str]:
        """State by transactional id, as the brokers that answer at once know it."""
        await self._client.metadata([])
        found: dict[str, str] = {}
        for broker in self._brokers:
            endpoint = self._client.broker(broker.config.node_id)
            if endpoint is None:
                continue
            connection = self._client.connection(endpoint)
            try:
                answer = await connection.send(transactions.ListTransactionsRequest(), 0)
            except (BrokerError, *_UNREACHABLE):
                continue
            for each in answer.transaction_states:
                found[each.transactional_id] = each.transaction_state
        return found

    # whom to ask

    async def _at_leader(
        self, name: TopicPartition, ask: Callable[[ClientConnection], Awaitable[T]], within: float
    ) -> T:
        async def asked() -> T:
            metadata = await self._client.metadata([name.topic])
            found = metadata.topics[name.topic].partitions.get(name.partition)
            if found is None:
                raise CallFailed(f"topic {name.topic} has no partition {name.partition}")
            if found.leader is None:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)
            return await ask(self._client.connection(found.leader))

        return await self._again(asked, within, f"the leader of {name}")

    async def _at_coordinator(
        self,
        key: str,
        ask: Callable[[ClientConnection], Awaitable[T]],
        within: float,
        key_type: int = _OF_GROUPS,
    ) -> T:
        async def asked() -> T:
            request = offsets.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            answer = await self._client.send_to_any(request, _FIND_COORDINATOR)
            found = answer.coordinators[0]
            _check(found.error_code, found.error_message)
            await self._client.metadata([])
            endpoint = self._client.broker(found.node_id)
            if endpoint is None:
                raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return await ask(self._client.connection(endpoint))

        whose = "group" if key_type == _OF_GROUPS else "transactional id"
        return await self._again(asked, within, f"the coordinator of {whose} {key}")

    async def _again(self, ask: Callable[[], Awaitable[T]], within: float, whom: str) -> T:
        """Until it is not refused for now."""
        deadline = self._runtime.clock.seconds() + within
        while True:
            try:
                return await ask()
            except BrokerError as error:
                if not error.code.retriable:
                    raise CallFailed(f"{whom} refuses: {error}") from None
                refusal = str(error)
            except _UNREACHABLE as error:
                refusal = str(error)
            if self._runtime.clock.seconds() >= deadline:
                raise TimeoutError(f"{whom} refuses for {within:g} s: {refusal}")
            await self._client.pause(_PAUSE_MS)

    async def _until(self, found: Callable[[], T | None], within: float, what: str) -> T:
        deadline = self._runtime.clock.seconds() + within
        while (result := found()) is None:
            if self._runtime.clock.seconds() >= deadline:
                raise TimeoutError(f"{what} is not served by all brokers after {within:g} s")
            await self._client.pause(_PAUSE_MS)
        return result


def _assigned(member: Any) -> list[tuple[str, int]]:
    """Topic and partition."""
    if isinstance(member, groups.DescribedGroupMember):
        try:
            found: Iterable[TopicPartition] = assigned_partitions(bytes(member.member_assignment))
        except WireError:  # of a group of another kind
            found = ()
    else:
        found = (
            TopicPartition(each.topic_name, number)
            for each in member.assignment.topic_partitions
            for number in each.partitions
        )
    return sorted((each.topic, each.partition) for each in found)


def _described(partition: int, record: Record) -> dict[str, Any]:
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [(name, _text(value)) for name, value in record.headers],
    }


def _check(code: int, message: str | None) -> None:
    if code:
        raise BrokerError(error_of(code), message)


def _parts(records: list[dict[str, Any]], indexes: list[int]) -> list[list[int]]:
    """Of one partition, in batches of a moderate size."""
    found: list[list[int]] = []
    size = 0
    for index in indexes:
        own = sum(len(records[index].get(each) or "") for each in ("key", "value"))
        if not found or size + own > _BATCH_BYTES:
            found.append([])
            size = 0
        found[-1].append(index)
        size += own
    return found


def murmur2(content: bytes) -> int:
    """As Java's clients hash a key: 32 bits."""
    length, mixer = len(content), 0x5BD1E995
    found = 0x9747B28C ^ length
    for at in range(0, length - length % 4, 4):
        word = int.from_bytes(content[at : at + 4], "little") * mixer & 0xFFFFFFFF
        word = (word ^ word >> 24) * mixer & 0xFFFFFFFF
        found = (found * mixer & 0xFFFFFFFF) ^ word
    rest = content[length - length % 4 :]
    if rest:
        found = (found ^ int.from_bytes(rest, "little")) * mixer & 0xFFFFFFFF
    found = (found ^ found >> 13) * mixer & 0xFFFFFFFF
    return found ^ found >> 15
