"""`__consumer_offsets` is made as the settings say, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher

from tests.memory_broker import MemoryBroker
from tests.test_broker_joining import memory_broker, memory_controller
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.offsets_topic import OffsetsTopic
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.topic_names import OFFSETS_TOPIC
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.messages.groups import HeartbeatRequest
from twisted_broker.wire.messages.offsets import FindCoordinatorRequest, FindCoordinatorResponse
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest
from twisted_broker.wire.messages.topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

FACTOR = "offsets.topic.replication.factor"


class Controller:
    """Answers when it is told to; shows an image without brokers."""

    def __init__(self, **settings: str) -> None:
        self.image = MetadataImage()
        self.clock = Clock()
        self.waiting: list[Deferred[CreateTopicsResponse]] = []
        self.requests: list[CreateTopicsRequest] = []
        config = BrokerConfig({name.replace("_", "."): each for name, each in settings.items()})
        self.topic = OffsetsTopic(self, config, self.create, self.clock)

    def create(self, request: CreateTopicsRequest) -> Deferred[CreateTopicsResponse]:
        self.requests.append(request)
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def answer(self, error: ErrorCode, message: str | None = None) -> None:
        result = CreatableTopicResult(
            name=OFFSETS_TOPIC, error_code=error.value, error_message=message
        )
        self.waiting.pop().callback(CreateTopicsResponse(topics=[result]))


@pytest.fixture
def lines() -> Any:
    found: list[str] = []

    def keep(event: Any) -> None:
        if "reason" in event:
            found.append(event["log_format"].format(**event))

    globalLogPublisher.addObserver(keep)
    yield found
    globalLogPublisher.removeObserver(keep)


@pytest.mark.parametrize("factor", ["1", "3"])
def test_the_factor_is_the_settings_however_many_brokers_live(factor: str) -> None:
    controller = Controller(offsets_topic_replication_factor=factor)
    controller.topic.create()
    assert [each.topics[0].replication_factor for each in controller.requests] == [int(factor)]
    assert controller.topic.is_being_created


@pytest.mark.parametrize(("leader", "is_made"), [(-1, False), (0, True), (3, True)])
def test_who_waits_is_answered_when_all_partitions_have_a_leader(
    leader: int, is_made: bool
) -> None:
    """Broker 0 is somebody, -1 nobody."""
    controller = Controller()
    controller.topic.create()
    ended: list[None] = []
    controller.topic.wait_until_created().addCallback(ended.append)
    topic_id = bytes(15) + b"\1"
    made: list[Any] = [records.TopicRecord(name=OFFSETS_TOPIC, topic_id=topic_id)]
    for number, node in enumerate((3, leader)):
        made.append(
            records.PartitionRecord(
                partition_id=number, topic_id=topic_id, replicas=[3], isr=[3], leader=node
            )
        )
    controller.image, _ = controller.image.apply(made)
    controller.topic.image_changed()
    assert ended == [None] * is_made


def test_this_broker_is_named_when_it_has_taken_over_its_roles() -> None:
    """The image may be some turns ahead of them: a request would meet NOT_COORDINATOR."""
    controller = Controller(node_id="3")
    controller.topic.create()
    topic_id = bytes(15) + b"\1"
    made: list[Any] = [
        records.TopicRecord(name=OFFSETS_TOPIC, topic_id=topic_id),
        records.RegisterBrokerRecord(
            broker_id=3,
            end_points=[
                records.BrokerEndpoint(name="L", host="h", port=9, security_protocol=0),
            ],
            fenced=False,
        ),
    ]
    made += [
        records.PartitionRecord(
            partition_id=number, topic_id=topic_id, replicas=[3], isr=[3], leader=3
        )
        for number in range(2)
    ]
    ended: list[Any] = []
    controller.topic.wait_until_created().addCallback(ended.append)
    controller.image, _ = controller.image.apply(made)
    controller.topic.image_changed()
    controller.answer(ErrorCode.NONE)
    key = next(name for name in "abcdefgh" if partition_for(name, 2) == 1)
    controller.topic.leadership_gained(0)
    # Who comes only now waits as well.
    controller.topic.wait_until_created().addCallback(ended.append)
    assert not ended and controller.topic.coordinator(key, "L") is None
    controller.topic.leadership_gained(1)
    assert ended == [None, None]
    found = controller.topic.coordinator(key, "L")
    assert found is not None and found[0] == 3
    controller.topic.leadership_lost(1)
    assert controller.topic.coordinator(key, "L") is None
    assert not [call for call in controller.clock.getDelayedCalls() if call.active()]


@pytest.mark.parametrize("key_type", [0, 1])
def test_the_first_request_to_a_coordinator_of_a_new_cluster_is_served(
    key_type: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty partitions are taken over in several turns, here of a busy broker."""
    monkeypatch.setattr("twisted_broker.server.metadata_publisher._PARTITIONS_A_PIECE", 1)
    monkeypatch.setattr("twisted_broker.server.metadata_publisher._PIECES_A_TURN", 1)
    broker = MemoryBroker().start()
    call_later = broker.clock.callLater

    def slowly(seconds: float, call: Any, *arguments: Any, **more: Any) -> Any:
        is_roles = getattr(call, "__name__", "") == "_next_deltas"
        return call_later(0.01 if is_roles else seconds, call, *arguments, **more)

    monkeypatch.setattr(broker.clock, "callLater", slowly)
    connection = broker.connection()
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["zz"])
    found: FindCoordinatorResponse = broker.run(connection.send(request, 4))
    assert found.coordinators[0].error_code == ErrorCode.NONE
    first: Any = (
        HeartbeatRequest(group_id="zz", generation_id=1, member_id="m")
        if key_type == 0
        else InitProducerIdRequest(transactional_id="zz", transaction_timeout_ms=60_000)
    )
    answer = broker.run(connection.send(first, 4))
    assert answer.error_code == (ErrorCode.UNKNOWN_MEMBER_ID if key_type == 0 else ErrorCode.NONE)
    connection.close()
    broker.stop()


def test_a_refusal_names_the_setting_once_a_minute(lines: list[str]) -> None:
    """Whoever waits is answered, and the next request tries again."""
    controller = Controller()
    for seconds in (0, 1, 58, 2):
        controller.clock.advance(seconds)
        controller.topic.create()
        ended: list[None] = []
        controller.topic.wait_until_created().addCallback(ended.append)
        controller.answer(ErrorCode.INVALID_REPLICATION_FACTOR, "1 broker(s) are registered")
        assert ended == [None] and not controller.topic.is_being_created
    assert len(controller.requests) == 4
    remedy = f"start more brokers, or set {FACTOR} (now 3) to their number"
    assert lines == 2 * [
        "__consumer_offsets is not created, no group is served: INVALID_REPLICATION_FACTOR: "
        f"1 broker(s) are registered; {remedy}"
    ]
    controller.topic.create()
    controller.waiting.pop().errback(ConnectionError("no controller"))
    assert lines[2:] == ["__consumer_offsets is not created, no group is served: no controller"]


def test_brokers_that_join_one_after_another_serve_groups_when_they_are_enough() -> None:
    """The first two alone say that there is no coordinator; with the third one the topic is made
    with three replicas, and nobody has to make it whole.
    """
    controller = memory_controller().start()
    brokers: list[Any] = []
    for node_id in (1, 2, 3):
        more = {"node_id": node_id, "port": 9190 + node_id}
        brokers.append(memory_broker(controller, offsets_topic_replication_factor="3", **more))
        brokers[-1].runtime.random.seed(node_id)  # no two directories of one id
        brokers[-1].start()
        found = find_coordinator(brokers[0], 9191)
        if node_id < 3:
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    for _ in range(10):
        if found.error_code:
            controller.pass_time(0.5)
            found = find_coordinator(brokers[0], 9191)
    assert found.error_code == ErrorCode.NONE and found.node_id in (1, 2, 3)
    topic = brokers[0].broker.parts.metadata.image.topics_by_name[OFFSETS_TOPIC]
    assert {len(each.replicas) for each in topic.partitions.values()} == {3}
    for broker in (*brokers, controller):
        broker.stop()


def find_coordinator(broker: Any, port: int) -> FindCoordinatorResponse:
    connection = broker.connection(port)
    answer = broker.run(connection.send(FindCoordinatorRequest(key="g"), 3))
    connection.close()
    assert isinstance(answer, FindCoordinatorResponse)
    return answer
