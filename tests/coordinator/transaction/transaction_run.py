"""A transaction coordinator on a memory store and a `Clock`, with leaders that answer when the test
says so.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from tests.coordinator.broker_run import WALL_MS, TurnClock
from tests.coordinator.memory_store import MemoryStore
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.transaction.transaction_context import (
    TransactionContext,
    TransactionSettings,
)
from twisted_broker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from twisted_broker.coordinator.transaction.transaction_decisions import ProducerIdAndEpoch
from twisted_broker.coordinator.transaction.transaction_log import read_record
from twisted_broker.coordinator.transaction.transaction_marker_sender import (
    TransactionMarkerSender,
)
from twisted_broker.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
)
from twisted_broker.image.entries import (
    BrokerRegistration,
    Endpoint,
    PartitionRegistration,
    TopicImage,
)
from twisted_broker.image.metadata_image import MetadataDelta, MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from twisted_broker.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
OWN = TopicPartition("__transaction_state", 0)
LISTENER = "PLAINTEXT"


def image_of(leaders: dict[TopicPartition, int], fenced: frozenset[int] = frozenset()) -> Any:
    """Brokers 1 to 3 at ports 9091 to 9093; a leader for each partition, -1 none. The coordinator's
    own topic is there, too.
    """
    topics: dict[str, dict[int, PartitionRegistration]] = {}
    for (topic, index), leader in ({OWN: 1} | leaders).items():
        topics.setdefault(topic, {})[index] = PartitionRegistration(
            (1, 2, 3), (), (1, 2, 3), (), (), (), (), leader, 0, 0, 0
        )
    named = {
        name: TopicImage(name, name.encode().ljust(16, b"\0"), partitions)
        for name, partitions in topics.items()
    }
    brokers = {
        number: BrokerRegistration(
            number,
            number,
            bytes(16),
            {LISTENER: Endpoint(LISTENER, "broker", 9090 + number)},
            {},
            None,
            number in fenced,
            False,
            (),
        )
        for number in (1, 2, 3)
    }
    by_id = {topic.id: topic for topic in named.values()}
    return MetadataImage(brokers=brokers, topics_by_name=named, topics_by_id=by_id)


@dataclass
class Held:
    """What a partition knows of the only producer; `is_open`: a transaction of that epoch."""

    epoch: int
    coordinator_epoch: int = 0
    is_open: bool = True

    def refuses(self, marker: WritableTxnMarker) -> bool:
        is_its_own = marker.producer_epoch == self.epoch and marker.transaction_version >= 2
        return marker.producer_epoch < self.epoch or (
            is_its_own and self.is_open and self.epoch < 32767
        )


class Leader:
    """The connection to one broker: keeps what it is sent, answers as it is set."""

    def __init__(self, cluster: Cluster, host: str, port: int) -> None:
        self.cluster, self.host, self.port = cluster, host, port
        self.api_versions: dict[int, tuple[int, int]] = {}
        self.closed = False

    def negotiate(self) -> Deferred[Any]:
        if self.cluster.down:
            return fail(ConnectionLost("down"))
        self.api_versions = {27: self.cluster.versions, 61: (0, 0)}
        return succeed(self.api_versions)

    def highest_version(self, api_key: int, ours: int) -> int:
        return min(self.api_versions[api_key][1], ours)

    def send(self, request: Any, version: int) -> Deferred[Any]:
        if isinstance(request, DescribeProducersRequest):
            return self._describe(request)
        sent = Sent(self, request, version)
        self.cluster.sent.append(sent)
        if self.cluster.answers:
            sent.answer()
        return sent.waiting

    def _describe(self, request: DescribeProducersRequest) -> Deferred[Any]:
        self.cluster.described.append(request)
        if self.cluster.describe_fails:
            return fail(ConnectionLost("lost"))
        response = DescribeProducersResponse()
        for topic in request.topics:
            answer = TopicResponse(name=topic.name)
            for index in topic.partition_indexes:
                partition = PartitionResponse(partition_index=index)
                partition.error_code = self.cluster.describe_error
                partition.active_producers.append(ProducerState(producer_id=7, producer_epoch=9))
                held = self.cluster.held.get(TopicPartition(topic.name, index))
                if held is not None:
                    partition.active_producers.append(
                        ProducerState(
                            producer_id=1001,
                            producer_epoch=held.epoch,
                            coordinator_epoch=held.coordinator_epoch,
                            current_txn_start_offset=5 if held.is_open else -1,
                        )
                    )
                answer.partitions.append(partition)
            response.topics.append(answer)
        return succeed(response)

    def close(self) -> None:
        self.closed = True


class Sent:
    """One WriteTxnMarkers request."""

    def __init__(self, leader: Leader, request: WriteTxnMarkersRequest, version: int) -> None:
        self.leader, self.request, self.version = leader, request, version
        self.waiting: Deferred[Any] = Deferred()
        self.written: list[tuple[tuple[int, int, bool], TopicPartition]] = []

    @property
    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic.name, index)
            for marker in self.request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]

    def answer(self, errors: dict[TopicPartition, ErrorCode] | None = None) -> None:
        """NONE for all, but what `errors` or the cluster's errors name, and what a partition
        refuses.
        """
        errors = dict(self.leader.cluster.errors if errors is None else errors)
        for marker in self.request.markers:
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    partition = TopicPartition(topic.name, index)
                    held = self.leader.cluster.held.get(partition)
                    if held is None or partition in errors:
                        continue
                    if held.refuses(marker):
                        errors[partition] = ErrorCode.INVALID_PRODUCER_EPOCH
                    else:
                        held.epoch, held.is_open = marker.producer_epoch, False
        self.written = [
            (
                (marker.producer_id, marker.producer_epoch, marker.transaction_result),
                TopicPartition(topic.name, index),
            )
            for marker in self.request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
            if TopicPartition(topic.name, index) not in errors
        ]
        self.waiting.callback(
            WriteTxnMarkersResponse(
                markers=[
                    WritableTxnMarkerResult(
                        producer_id=marker.producer_id,
                        topics=[
                            WritableTxnMarkerTopicResult(
                                name=topic.name,
                                partitions=[
                                    WritableTxnMarkerPartitionResult(
                                        partition_index=index,
                                        error_code=errors.get(
                                            TopicPartition(topic.name, index), ErrorCode.NONE
                                        ),
                                    )
                                    for index in topic.partition_indexes
                                ],
                            )
                            for topic in marker.topics
                        ],
                    )
                    for marker in self.request.markers
                ]
            )
        )

    def lose(self) -> None:
        self.leader.api_versions = {}
        self.waiting.errback(ConnectionLost("lost"))


class Cluster:
    """The leaders of partitions; `answers`: at once."""

    def __init__(self) -> None:
        self.image = image_of({T0: 1, T1: 2, T2: 1})
        self.sent: list[Sent] = []
        self.connections: list[Leader] = []
        self.answers, self.down = True, False
        self.versions = (1, 2)
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.held: dict[TopicPartition, Held] = {}
        self.described: list[DescribeProducersRequest] = []
        self.describe_error, self.describe_fails = ErrorCode.NONE, False

    def connect(self, host: str, port: int) -> Leader:
        self.connections.append(Leader(self, host, port))
        return self.connections[-1]


class TransactionRun:
    """One broker's coordinator; `successor` gives the next one on the same store and clock."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        clock: TurnClock | None = None,
        cluster: Cluster | None = None,
        *,
        version: int = 0,
        epoch: int = 0,
        lead: bool = True,
        **settings: int,
    ) -> None:
        self.store, self.clock = store or MemoryStore(partitions=3), clock or TurnClock()
        self.cluster, self.version, self.epoch = cluster or Cluster(), version, epoch
        self.next_id = 1000
        self.ids_fail = False
        self.waiting_ids: list[Deferred[int]] | None = None
        context = TransactionContext(
            self.clock,
            self.wall_ms,
            self.store,
            TransactionSettings(**settings),
            Turns(self.clock),
            lambda: self.version,
            self.next_producer_id,
        )
        self.coordinator = TransactionCoordinator(
            context,
            lambda on_complete: TransactionMarkerSender(
                self.clock, self.cluster, LISTENER, self.cluster.connect, on_complete
            ),
        )
        self.coordinator.start()
        if lead:
            self.lead_all(epoch)

    def wall_ms(self) -> int:
        return WALL_MS + int(self.clock.seconds() * 1000)

    async def next_producer_id(self) -> int:
        if self.ids_fail:
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT)
        if self.waiting_ids is not None:
            self.waiting_ids.append(Deferred())
            return await self.waiting_ids[-1]
        self.next_id += 1
        return self.next_id

    def lead_all(self, epoch: int = 0) -> None:
        for index in range(self.store.partitions):
            self.coordinator.states.load(index, epoch)
        self.settle()

    def successor(self, **settings: int) -> TransactionRun:
        """Another broker takes over."""
        for index in range(self.store.partitions):
            self.coordinator.states.unload(index, self.epoch + 1)
        return TransactionRun(
            self.store,
            self.clock,
            self.cluster,
            version=self.version,
            epoch=self.epoch + 1,
            **settings,
        )

    def replicate(self) -> None:
        """What is held, and all that follows."""
        held, self.store.held = self.store.held or [], None
        for waiting, offset in held:
            waiting.callback(offset)

    def settle(self) -> None:
        """Lets everything happen that waits for no time."""
        while any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
            self.clock.advance(0)

    def pass_ms(self, milliseconds: int) -> None:
        """Time goes from timer to timer, as a reactor sees it."""
        until = self.clock.seconds() + milliseconds / 1000
        while due := [c.getTime() for c in self.clock.getDelayedCalls() if c.getTime() <= until]:
            self.clock.advance(max(min(due) - self.clock.seconds(), 0))
        self.clock.advance(until - self.clock.seconds())
        self.settle()

    def change_image(self, image: Any) -> None:
        before, self.cluster.image = self.cluster.image, image
        self.coordinator.markers.image_changed(MetadataDelta.between(before, image))
        self.settle()

    # requests
    def ask(self, work: Awaitable[Any]) -> Any:
        """What it gives; the error code that it raises; None while it waits."""
        found: list[Any] = []
        ensureDeferred(work).addBoth(found.append)
        self.settle()
        if not found:
            return None
        if isinstance(found[0], Failure):
            if isinstance(found[0].value, BrokerError):
                return found[0].value.code
            found[0].raiseException()
        return found[0]

    def init(
        self,
        name: str = "id",
        expected: ProducerIdAndEpoch | None = None,
        timeout_ms: int = 60_000,
    ) -> Any:
        return self.ask(self.coordinator.init_producer_id(name, timeout_ms, expected))

    def add(
        self,
        producer: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        name: str = "id",
        client: int = 0,
    ) -> Any:
        adding = self.coordinator.add_partitions(name, producer, partitions or (T0,), client)
        return self.ask(self._none(adding))

    def add_waiting(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> list[Any]:
        """As `add`, of a client that may have to wait; its answer once it is there."""
        found: list[Any] = []
        adding = self.coordinator.add_partitions("id", producer, partitions or (T0,), waits=True)
        waiting: Any = ensureDeferred(self._none(adding))
        waiting.addErrback(lambda failure: failure.value.code).addCallback(found.append)
        self.settle()
        return found

    async def _none(self, work: Awaitable[None]) -> ErrorCode:
        await work
        return ErrorCode.NONE

    def end(
        self, producer: ProducerIdAndEpoch, commit: bool = True, name: str = "id", client: int = 0
    ) -> Any:
        return self.ask(self.coordinator.end_transaction(name, producer, commit, client))

    def begun(self, *partitions: TopicPartition, name: str = "id", client: int = 0) -> Any:
        """A producer with an open transaction."""
        producer = self.init(name)
        assert self.add(producer, *partitions, name=name, client=client) is ErrorCode.NONE
        return producer

    # what there is
    def metadata(self, name: str = "id") -> TransactionMetadata:
        shard = self.coordinator.states.shards[partition_for(name, self.store.partitions)]
        return shard.transactions[name]

    def logged(self, name: str = "id") -> list[TransactionState | None]:
        """The states of the id in the log; None: a tombstone."""
        found: list[TransactionState | None] = []
        for key, value in self.store.records(partition_for(name, self.store.partitions)):
            read = read_record(key, value)
            if read is not None and read.transactional_id == name:
                found.append(None if read.value is None else read.value.state)
        return found
