"""What a whole broker does with a client over its quota: the answer at once with the wait in it,
then silence. On a network and a clock in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.protocol import ClientFactory

from tests.api.data_plane import DenyList
from tests.log.batches import batch
from tests.memory_broker import MemoryBroker
from tests.net.echo import Far, framed
from twisted_broker.interfaces import TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.status.metric_text import Exposition
from twisted_broker.status.metrics import BrokerCollector
from twisted_broker.status.view import BrokerView
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages.cluster import DescribeClusterRequest
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.groups import ListGroupsRequest
from twisted_broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twisted_broker.wire.messages.mirror import (
    AppendMirroredRequest,
    MirroredPartition,
    MirroredTopic,
)
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredEntry,
    ComponentData,
    DescribeClientQuotasRequest,
    OpData,
    QuotaEntityData,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from twisted_broker.wire.messages.transactions import WriteTxnMarkersRequest
from twisted_broker.wire.schema import encode


class Quotas:
    """A broker with topic `t`, and one connection of client id `test`."""

    def __init__(self) -> None:
        self.broker = MemoryBroker().start()
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        self.broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
        self.broker.pass_time(1)
        self.connection = self.broker.connection()

    def alter(self, entity: dict[str, str | None], **values: float | None) -> int:
        """The error code."""
        entry = AlteredEntry(
            entity=[QuotaEntityData(entity_type=k, entity_name=n) for k, n in entity.items()],
            ops=[
                OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in values.items()
            ],
        )
        answer = self.broker.ask(AlterClientQuotasRequest(entries=[entry]), 1)
        self.broker.pass_time(1)
        code: int = answer.entries[0].error_code
        return code

    def ask(self, request: Any, version: int) -> tuple[Any, float]:
        """The answer of the one connection, and how long it took."""
        before = self.broker.clock.seconds()
        answer = self.broker.run(self.connection.send(request, version))
        return answer, self.broker.clock.seconds() - before

    def produce(self, size: int, acks: int = 1) -> tuple[Any, float]:
        data = PartitionProduceData(index=0, records=batch(bytes(size)))
        request = ProduceRequest(
            acks=acks,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name="t", partition_data=[data])],
        )
        return self.ask(request, 9)

    def wait(self) -> float:
        """How long the connection waits."""
        _, took = self.ask(MetadataRequest(topics=[]), 12)
        return took


@pytest.fixture
def quotas() -> Iterator[Quotas]:
    made = Quotas()
    yield made
    made.connection.close()
    made.broker.stop()


def fetch(offset: int, session_id: int = 0, epoch: int = -1, most: int = 1 << 20) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=most)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 24,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="t", partitions=[partition])] if epoch <= 0 else [],
    )


def test_without_quotas_nothing_is_measured_and_nobody_waits(quotas: Quotas) -> None:
    parts = quotas.broker.broker.parts
    answer, _ = quotas.produce(500_000)
    assert answer.throttle_time_ms == 0 and quotas.wait() == 0
    assert not parts.quotas.active
    assert len(parts.quotas.produce) == len(parts.quotas.request) == 0


@pytest.mark.parametrize("acks", [1, -1])
def test_a_producer_over_its_rate_waits_after_its_answer(quotas: Quotas, acks: int) -> None:
    """RL 5.3: by client id."""
    assert quotas.alter({"client-id": "test"}, producer_byte_rate=1000) == 0
    answer, took = quotas.produce(30_000, acks)
    # About 30 KiB at 1 KB a second in a window of 10 s: 20 s more.
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert 20_000 < answer.throttle_time_ms < 21_000 and took < 1
    assert quotas.wait() == pytest.approx(answer.throttle_time_ms / 1000, abs=0.01)


def test_a_producer_without_answers_waits_too(quotas: Quotas) -> None:
    quotas.alter({"user": None}, producer_byte_rate=1000)
    data = PartitionProduceData(index=0, records=batch(bytes(30_000)))
    request = ProduceRequest(
        acks=0,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="t", partition_data=[data])],
    )
    frame = encode_request_header(RequestHeader(0, 9, 1, "test")) + encode(request, 9)
    clients: list[Far] = []
    broker = quotas.broker
    broker.network.connect("127.0.0.1", 9092, ClientFactory.forProtocol(Far), 1).addCallback(
        clients.append
    )
    broker.pass_time(0.1)
    clients[0].transport.write(framed(frame))
    broker.pass_time(1)
    log = broker.broker.log_manager.logs[TopicPartition("t", 0)]
    assert log.log_end_offset == 1 and clients[0].data == b""
    found = [
        each
        for factory in broker.broker.sockets.factories
        for each in factory.connections
        if each.throttled
    ]
    assert len(found) == 1
    broker.pass_time(18)
    assert found[0].throttled
    broker.pass_time(2)
    assert not found[0].throttled
    clients[0].transport.loseConnection()


def test_a_fetch_beyond_the_quota_is_empty_and_costs_nothing(quotas: Quotas) -> None:
    """RL 5.3: by user and client id."""
    for _ in range(3):
        quotas.produce(8000)
    quotas.alter({"user": "ANONYMOUS", "client-id": None}, consumer_byte_rate=2000)
    first, _ = quotas.ask(fetch(0, epoch=0, most=10_000), 12)
    session = first.session_id
    assert session and len(first.responses[0].partitions[0].records) == 10_000
    assert first.throttle_time_ms == 0
    # 20,000 bytes are ten windows; what is besides the records is above that.
    second, took = quotas.ask(fetch(0, session, 1), 12)
    assert 0 < second.throttle_time_ms < 200 and not second.responses and took < 0.1
    assert second.session_id == session and second.error_code == 0
    # When the wait is over the session goes on, and the records come.
    third, took = quotas.ask(fetch(0, session, 2), 12)
    assert took * 1000 == pytest.approx(second.throttle_time_ms, abs=1)
    assert len(third.responses[0].partitions[0].records) == 10_000
    assert third.throttle_time_ms == 0


def test_a_fetch_reads_no_more_than_its_quota_gives(quotas: Quotas) -> None:
    """More would never be sent."""
    for _ in range(3):
        quotas.produce(8000)
    quotas.alter({"client-id": "test"}, consumer_byte_rate=1000)
    for _ in range(3):
        answer, _ = quotas.ask(fetch(0), 12)
        if answer.responses:
            break
    assert len(answer.responses[0].partitions[0].records) == 10_000


def test_a_full_fetch_that_is_throttled_opens_no_session(quotas: Quotas) -> None:
    quotas.produce(8000)
    quotas.alter({"client-id": "test"}, consumer_byte_rate=1000)
    answers = [quotas.ask(fetch(0, epoch=0), 12)[0] for _ in range(2)]
    assert [bool(each.session_id) for each in answers] == [True, False]
    assert answers[1].throttle_time_ms > 0


def test_a_followers_fetch_costs_nothing(quotas: Quotas) -> None:
    quotas.produce(8000)
    quotas.alter({"client-id": None}, consumer_byte_rate=1, request_percentage=0.001)
    request = fetch(0)
    request.replica_id = 2
    answer, _ = quotas.ask(request, 11)
    assert answer.throttle_time_ms == 0


def test_who_may_not_act_as_a_node_is_not_exempt_as_one(
    quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a node sends costs nothing; refused, the same requests make their client wait."""
    quotas.alter({"user": "ANONYMOUS"}, request_percentage=1)
    (dispatcher,) = [
        each for each in quotas.broker.broker.sockets.dispatchers if not each.listener.is_controller
    ]
    ticks = iter(range(1000))
    monkeypatch.setattr(dispatcher, "seconds", lambda: next(ticks) * 0.1)
    follower = fetch(0)
    follower.replica_id = 2
    sent: list[tuple[Any, int]] = [(WriteTxnMarkersRequest(markers=[]), 1), (follower, 11)]
    denied = DenyList(("CLUSTER_ACTION", "kafka-cluster"), ("ALTER", "kafka-cluster"))
    for request, version in sent:
        for _ in range(5):
            assert quotas.ask(request, version)[1] < 0.1
    # The quota is not used up: whoever waits now, waits for these requests.
    dispatcher.broker.authorizer = denied
    for request, version in sent:
        quotas.broker.pass_time(60)
        assert max(quotas.ask(request, version)[1] for _ in range(5)) > 0.1


def test_what_a_mirror_appends_is_produced(quotas: Quotas) -> None:
    quotas.alter({"client-id": "test"}, producer_byte_rate=1000)
    part = MirroredPartition(partition=0, records=batch(bytes(30_000)))
    topic = MirroredTopic(topic_id=bytes(16), partitions=[part])
    answer, _ = quotas.ask(AppendMirroredRequest(timeout_ms=1000, topics=[topic]), 0)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert quotas.wait() > 1


def test_time_of_the_thread_is_waited_for(quotas: Quotas, monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 5.3: the clock in memory stands still within a turn: the test says what a request took."""
    quotas.alter({"user": "ANONYMOUS"}, request_percentage=1)
    (dispatcher,) = [
        each for each in quotas.broker.broker.sockets.dispatchers if not each.listener.is_controller
    ]
    ticks = iter(range(1000))
    monkeypatch.setattr(dispatcher, "seconds", lambda: next(ticks) * 0.1)
    # A tenth of a second is one per cent of ten windows; a window is the longest wait.
    answers = [quotas.ask(DescribeClusterRequest(), 0)[0] for _ in range(4)]
    assert answers[0].throttle_time_ms == 0
    assert {each.throttle_time_ms for each in answers[1:]} <= set(range(1, 1001))
    encoded, _ = quotas.ask(ListGroupsRequest(), 4)  # encoded by its own function
    assert encoded.throttle_time_ms > 0 and encoded.error_code == 0


def test_mutations_beyond_the_quota_are_refused_or_waited_for(quotas: Quotas) -> None:
    """KIP-599: strict from CreateTopics 6, DeleteTopics 5, CreatePartitions 3 on."""
    quotas.alter({"user": "ANONYMOUS"}, controller_mutation_rate=1)

    def create(name: str, version: int, partitions: int = 20) -> tuple[Any, float]:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        return quotas.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), version)

    answer, _ = create("a", 7)
    assert answer.topics[0].error_code == 0 and answer.throttle_time_ms == 0
    refused, took = create("b", 7)
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    # 11 tokens were there, 20 are used.
    assert 8000 < refused.throttle_time_ms <= 9000 and took < 1
    assert "b" not in quotas.broker.broker.broker_server.observer.image.topics_by_name
    assert quotas.wait() == pytest.approx(refused.throttle_time_ms / 1000, abs=0.01)
    taken, _ = create("b", 7, 2)
    assert taken.topics[0].error_code == 0
    late, _ = create("c", 5, 3)
    assert late.topics[0].error_code == 0 and late.throttle_time_ms > 0
    quotas.wait()
    grow = CreatePartitionsTopic(name="c", count=5, assignments=None)
    for version, code in ((3, 0), (3, ErrorCode.THROTTLING_QUOTA_EXCEEDED)):
        answer, _ = quotas.ask(CreatePartitionsRequest(topics=[grow], timeout_ms=9), version)
        assert answer.results[0].error_code == code
        grow = CreatePartitionsTopic(name="c", count=7, assignments=None)
    quotas.wait()
    for name, code in (("c", 0), ("b", ErrorCode.THROTTLING_QUOTA_EXCEEDED)):
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)
        answer, _ = quotas.ask(gone, 6)
        assert answer.responses[0].error_code == code


def test_topics_created_by_a_clients_metadata_are_charged_to_it(quotas: Quotas) -> None:
    """What is beyond its tokens is created when it asks again later. Another client's at once."""
    quotas.alter({"client-id": "test"}, controller_mutation_rate=1)

    def named(connection: BrokerConnection, *names: str) -> set[str]:
        topics = [MetadataRequestTopic(name=each) for each in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=True)
        quotas.broker.run(connection.send(request, 12))
        quotas.broker.pass_time(0.1)
        return quotas.broker.broker.broker_server.observer.image.topics_by_name.keys() & set(names)

    assert 11 <= len(named(quotas.connection, *(f"n{number}" for number in range(20)))) <= 12
    assert not named(quotas.connection, "late")
    other = BrokerConnection(quotas.broker.runtime, "127.0.0.1", 9092, "other")
    assert named(other, "others") == {"others"}
    quotas.broker.pass_time(3)
    assert named(quotas.connection, "late") == {"late"}


def test_a_broker_is_not_made_to_wait_at_its_controller(quotas: Quotas) -> None:
    """Topics that it creates itself count; what its clients sent goes on."""
    quotas.alter({"user": "ANONYMOUS"}, controller_mutation_rate=1)
    broker = quotas.broker
    at_controller = broker.connection(9093)

    def create(name: str) -> Any:
        topic = CreatableTopic(name=name, num_partitions=20, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        return broker.run(at_controller.send(request, 7))

    create("a")
    refused = create("b")
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused.throttle_time_ms > 8000
    before = broker.clock.seconds()
    create("c")
    assert broker.clock.seconds() - before < 1
    # One that may not act as a broker waits.
    parts = next(
        each for each in broker.broker.sockets.dispatchers if each.listener.is_controller
    ).broker
    allowed, parts.authorizer = parts.authorizer, DenyList(("CLUSTER_ACTION", "kafka-cluster"))
    create("d")
    parts.authorizer = allowed
    before = broker.clock.seconds()
    create("e")
    assert broker.clock.seconds() - before > 7
    at_controller.close()


def test_a_quota_that_is_raised_or_removed_counts_at_once(quotas: Quotas) -> None:
    quotas.alter({"client-id": "test"}, producer_byte_rate=1000)
    assert quotas.produce(30_000)[0].throttle_time_ms > 0
    quotas.alter({"client-id": "test"}, producer_byte_rate=1_000_000)
    assert quotas.produce(30_000)[0].throttle_time_ms == 0
    quotas.alter({"client-id": "test"}, producer_byte_rate=None)
    assert not quotas.broker.broker.parts.quotas.active


def test_quotas_are_there_again_after_a_restart(quotas: Quotas) -> None:
    quotas.alter({"client-id": "test"}, producer_byte_rate=1000, controller_mutation_rate=2)
    quotas.connection.close()
    quotas.broker.stop()
    quotas.broker = MemoryBroker(quotas.broker.files).start()
    quotas.connection = quotas.broker.connection()
    parts = quotas.broker.broker.parts
    for found in (parts.quotas, parts.controller_quotas):
        assert found.produce.limit(("", "test")) == 1000
        assert found.controller_mutation.limit(("", "test")) == 2
        assert found.fetch.limit(("", "test")) == math.inf


def test_quotas_are_described_as_they_were_set(quotas: Quotas) -> None:
    quotas.alter({"client-id": "a", "user": None}, producer_byte_rate=1, request_percentage=2.5)
    quotas.alter({"client-id": "a"}, consumer_byte_rate=7)
    component = ComponentData(entity_type="client-id", match_type=0, match="a")
    for strict, count in ((False, 2), (True, 1)):
        request = DescribeClientQuotasRequest(components=[component], strict=strict)
        answer = quotas.broker.ask(request, 1)
        assert len(answer.entries) == count
    (entry,) = answer.entries
    assert [(each.entity_type, each.entity_name) for each in entry.entity] == [("client-id", "a")]
    assert [(each.key, each.value) for each in entry.values] == [("consumer_byte_rate", 7)]
    bad = DescribeClientQuotasRequest(components=[component, component])
    answer = quotas.broker.ask(bad, 1)
    assert answer.error_code == ErrorCode.INVALID_REQUEST and answer.entries is None


def test_a_scrape_shows_who_used_what_and_who_waits(quotas: Quotas) -> None:
    quotas.alter({"user": None, "client-id": "test"}, producer_byte_rate=1000)
    answer, _ = quotas.produce(30_000)
    quotas.alter({"user": None}, controller_mutation_rate=1)
    broker = quotas.broker
    parts, bound_routes = broker.broker.parts, broker.broker.bound_routes
    out = Exposition()
    for _ in BrokerCollector(BrokerView(lambda: parts, bound_routes)).collect(out):
        pass
    lines = dict(
        line.rsplit(" ", 1)
        for line in b"".join(out.text()).decode().splitlines()
        if not line.startswith("#")
    )
    labels = '{user="ANONYMOUS",client_id="test"}'
    assert float(lines[f"kafka_server_produce_byte_rate{labels}"]) > 2000
    assert float(lines[f"kafka_server_produce_throttle_time{labels}"]) == answer.throttle_time_ms
    waited = lines['kafka_network_requestmetrics_throttletimems_sum{request="Produce"}']
    assert float(waited) == answer.throttle_time_ms
    assert lines["replog_throttled_connections"] == "1"
