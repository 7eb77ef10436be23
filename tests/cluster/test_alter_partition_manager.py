"""ISR changes on their way to a controller whose answers a test makes up (RL 1.2, 2.5; Kafka's
AlterPartitionManagerTest).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock

from twisted_broker.cluster import alter_partition_manager
from twisted_broker.cluster.alter_partition_manager import RETRY_MS, AlterPartitionManager
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.isr_state import IsrAnswer, IsrProposal
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as broker_lifecycle_messages
from twisted_broker.wire.schema import decode, encode

TOPIC_ID, OTHER_ID = bytes(range(16)), bytes(reversed(range(16)))
VERSION = 3


class Channel:
    """The way to the controller: keeps what was asked; each question is answered when the test
    says so.
    """

    def __init__(self) -> None:
        self.asked: list[broker_lifecycle_messages.AlterPartitionRequest] = []
        self._waiting: list[Deferred[Any]] = []

    async def send_once(self, request: Any, version: int) -> Any:
        self.asked.append(decode(type(request), encode(request, version), version))
        waiting: Deferred[Any] = Deferred()
        self._waiting.append(waiting)
        return await waiting

    def answer(self, outcome: Any) -> None:
        waiting = self._waiting.pop(0)
        if isinstance(outcome, Exception):
            waiting.errback(outcome)
        else:
            waiting.callback(decode(type(outcome), encode(outcome, VERSION), VERSION))

    def close(self) -> None:
        """Nothing to close."""


class Fixture:
    def __init__(self) -> None:
        self.clock, self.channel = Clock(), Channel()
        runtime: Any = SimpleNamespace(clock=self.clock)
        channel: Any = self.channel
        self.changes = AlterPartitionManager(runtime, 1, channel, SimpleNamespace(broker_epoch=42))

    def submit(self, partition: int, topic_id: bytes = TOPIC_ID) -> list[IsrAnswer]:
        found: list[IsrAnswer] = []
        members = ((1, 42), (2, 43))
        self.changes.submit(
            IsrProposal(TopicPartition("t", partition), topic_id, 5, 7, members, 0)
        ).addCallback(found.append)
        return found

    def asked_partitions(self) -> list[list[int]]:
        return [
            [each.partition_index for topic in request.topics for each in topic.partitions]
            for request in self.channel.asked
        ]


def response(
    *partitions: tuple[int, ErrorCode],
    topic_id: bytes = TOPIC_ID,
    error: ErrorCode = ErrorCode.NONE,
) -> broker_lifecycle_messages.AlterPartitionResponse:
    rows = [
        broker_lifecycle_messages.AlterPartitionResponsePartitionData(
            partition_index=number,
            error_code=int(code),
            leader_id=1,
            leader_epoch=5,
            isr=[1, 2],
            partition_epoch=8,
        )
        for number, code in partitions
    ]
    return broker_lifecycle_messages.AlterPartitionResponse(
        error_code=int(error),
        topics=[
            broker_lifecycle_messages.AlterPartitionResponseTopicData(
                topic_id=topic_id, partitions=rows
            )
        ],
    )


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_what_is_proposed_in_one_turn_goes_in_one_request(fixture: Fixture) -> None:
    """RL 1.2, 2.5: one AlterPartition with all that was collected: sender, broker epoch, and per
    partition epochs and members.
    """
    for number in range(3):
        fixture.submit(number)
    fixture.submit(0, OTHER_ID)
    fixture.clock.advance(0)
    (request,) = fixture.channel.asked
    assert (request.broker_id, request.broker_epoch) == (1, 42)
    named = [
        (topic.topic_id, [each.partition_index for each in topic.partitions])
        for topic in request.topics
    ]
    assert named == [(TOPIC_ID, [0, 1, 2]), (OTHER_ID, [0])]
    first = request.topics[0].partitions[0]
    assert (first.leader_epoch, first.partition_epoch, first.leader_recovery_state) == (5, 7, 0)
    assert [(each.broker_id, each.broker_epoch) for each in first.new_isr_with_epochs] == [
        (1, 42),
        (2, 43),
    ]


def test_the_next_request_leaves_at_once_after_a_good_answer(fixture: Fixture) -> None:
    """RL 1.2: one in flight; what came meanwhile waits for its answer and no longer."""
    first = fixture.submit(0)
    fixture.clock.advance(0)
    second = fixture.submit(1)
    fixture.clock.advance(10)
    assert fixture.asked_partitions() == [[0]]
    fixture.channel.answer(response((0, ErrorCode.NONE)))
    assert first[0].isr == frozenset({1, 2}) and first[0].partition_epoch == 8
    fixture.clock.advance(0)
    assert fixture.asked_partitions() == [[0], [1]] and not second


def test_each_partition_has_its_own_answer(fixture: Fixture) -> None:
    """RL 1.2, 2.5: errors are handed to the partition they belong to; what to do about them is
    its affair, so none is sent again from here.
    """
    codes = [
        ErrorCode.NONE,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ]
    answers = [fixture.submit(number) for number in range(len(codes))]
    fixture.clock.advance(0)
    fixture.channel.answer(response(*enumerate(codes)))
    assert [found[0].error for found in answers] == codes
    fixture.clock.advance(10)
    assert len(fixture.channel.asked) == 1


def test_a_partition_that_the_answer_leaves_out_is_asked_about_again(fixture: Fixture) -> None:
    """RL 1.2, AlterPartitionManagerTest: a partial answer: 50 ms later the rest goes again, and
    only the rest.
    """
    one, two = fixture.submit(0), fixture.submit(1)
    fixture.clock.advance(0)
    fixture.channel.answer(response((0, ErrorCode.NONE)))
    assert one and not two
    fixture.clock.advance((RETRY_MS - 1) / 1000)
    assert len(fixture.channel.asked) == 1
    fixture.clock.advance(0.002)
    assert fixture.asked_partitions() == [[0, 1], [1]]
    fixture.channel.answer(response((1, ErrorCode.NONE)))
    assert two


@pytest.mark.parametrize(
    "outcome",
    [
        ConnectionLost(),
        response(error=ErrorCode.STALE_BROKER_EPOCH),
        response(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
    ids=["lost", "stale", "refused"],
)
def test_an_error_of_the_whole_is_tried_again_with_what_is_still_wanted(
    fixture: Fixture, outcome: Any
) -> None:
    """RL 1.2: 50 ms later, with what came meanwhile and without what was withdrawn."""
    kept, withdrawn = fixture.submit(0), fixture.submit(1)
    fixture.clock.advance(0)
    fixture.channel.answer(outcome)
    assert not kept and not withdrawn
    fixture.changes.withdraw(TOPIC_ID, 1)
    assert withdrawn[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    fixture.submit(2)
    fixture.clock.advance(RETRY_MS / 1000)
    assert fixture.asked_partitions() == [[0, 1], [0, 2]]


def test_an_answer_about_what_was_withdrawn_counts_for_nobody(fixture: Fixture) -> None:
    """RL 2.5: withdrawn while it was under way, and proposed anew: the old answer is not the new
    proposal's.
    """
    fixture.submit(0)
    fixture.clock.advance(0)
    fixture.changes.withdraw(TOPIC_ID, 0)
    again = fixture.submit(0)
    fixture.channel.answer(response((0, ErrorCode.NONE)))
    assert not again
    fixture.clock.advance(RETRY_MS / 1000)
    assert fixture.asked_partitions() == [[0], [0]]


def test_after_a_stop_nothing_is_sent(fixture: Fixture) -> None:
    """Neither what is proposed nor what would be tried again."""
    fixture.submit(0)
    fixture.clock.advance(0)
    fixture.changes.stop()
    fixture.channel.answer(ConnectionLost())
    fixture.submit(1)
    fixture.clock.advance(10)
    assert fixture.asked_partitions() == [[0]]


def test_a_request_names_so_many_partitions_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of ISRs change when a follower comes back: the rest goes after the answer."""
    monkeypatch.setattr(alter_partition_manager, "MOST_PARTITIONS", 2)
    fixture = Fixture()
    found = [fixture.submit(number) for number in range(5)]
    fixture.clock.advance(0)
    for numbers in ((0, 1), (2, 3), (4,)):
        assert fixture.asked_partitions()[-1] == list(numbers)
        fixture.channel.answer(response(*((number, ErrorCode.NONE) for number in numbers)))
        fixture.clock.advance(0)
    assert len(fixture.channel.asked) == 3 and all(len(each) == 1 for each in found)
