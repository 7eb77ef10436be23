"""Where the logs of partitions end, here and at other leaders."""

from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError as Refused

from tests.api.group_api import broker, image, topic
from twisted_broker.coordinator.end_offsets import EndOffsets
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

OWN, OTHER, FAR = (TopicPartition("t", number) for number in range(3))


class Connection:
    """To a broker whose partitions end at 40 and its number; an odd one has an error."""

    def __init__(self, node_id: int, is_there: bool) -> None:
        self.node_id, self.is_there = node_id, is_there
        self.asked: list[Any] = []
        self.is_closed = False

    def negotiate(self) -> Deferred[None]:
        return succeed(None) if self.is_there else fail(Refused())

    def highest_version(self, api_key: int, version: int) -> int:
        assert (api_key, version) == (2, 7)
        return version

    def send(self, request: Any, version: int) -> Deferred[ListOffsetsResponse]:
        self.asked += request.topics
        found = [
            ListOffsetsTopicResponse(
                name=each.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=one.partition_index,
                        error_code=6 if one.partition_index % 2 else 0,
                        offset=40 + one.partition_index,
                    )
                    for one in each.partitions
                ],
            )
            for each in request.topics
        ]
        return succeed(ListOffsetsResponse(topics=found))

    def close(self) -> None:
        self.is_closed = True


class Run:
    def __init__(self, leader: int = 2, is_there: bool = True, fenced: bool = False) -> None:
        self.image = image(
            topic("t", b"T" * 16, 5, leader), brokers=(broker(1), broker(2, fenced=fenced))
        )
        self.connections: list[Connection] = []
        self.is_there = is_there

    def connect(self, endpoint: Any, client_id: str) -> Any:
        self.connections.append(Connection(endpoint.id, self.is_there))
        return self.connections[-1]

    def of(self, *partitions: TopicPartition) -> Any:
        ends = EndOffsets(lambda: self.image, {OWN: 7}.get, "PLAINTEXT", self.connect)
        found: list[Any] = []
        ensureDeferred(ends.of(partitions)).addCallback(found.append)
        return found[0]


def test_what_is_led_here_is_read_here():
    run = Run()
    assert run.of(OWN) == {OWN: 7} and not run.connections


def test_another_leader_is_asked_once_for_all():
    run = Run()
    last = TopicPartition("t", 4)
    assert run.of(OWN, OTHER, FAR, last) == {OWN: 7, FAR: 42, last: 44}
    (connection,) = run.connections
    (asked,) = connection.asked
    assert connection.node_id == 2 and connection.is_closed
    assert [(each.partition_index, each.timestamp) for each in asked.partitions] == [
        (1, -1),
        (2, -1),
        (4, -1),
    ]


def test_what_nobody_knows_is_left_out():
    assert Run(leader=-1).of(FAR) == {}
    assert Run(fenced=True).of(FAR) == {}
    assert Run().of(TopicPartition("t", 9), TopicPartition("u", 0)) == {}
    run = Run(is_there=False)
    assert run.of(OWN, FAR) == {OWN: 7} and run.connections[0].is_closed
