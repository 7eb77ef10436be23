"""The persister: coordinators found, called, asked over the wire, tried again (GN 3.76)."""

from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock

from twisted_broker.coordinator.share_state.values import (
    ReadState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    WriteState,
)
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.share.persister import TRIES, Persister
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import share_state as wire

TOPIC = b"t" * 16
KEY, OTHER = SharePartitionKey("g", TOPIC, 0), SharePartitionKey("g", TOPIC, 1)
HERE, THERE = BrokerEndPoint(1, "here", 9092), BrokerEndPoint(2, "there", 9092)
STATE = WriteState(3, 7, 5, 2, (StateBatch(5, 6, 2, 1),))


class Own:
    """This broker's coordinator: `answers` in turn."""

    def __init__(self):
        self.asked, self.answers = [], []

    def __getattr__(self, kind):
        def ask(*arguments):
            self.asked.append((kind, *arguments))
            return self.answers.pop(0)

        return ask


class Connection:
    """To another broker; `sent` has the requests, each with the Deferred of its answer."""

    def __init__(self):
        self.api_versions, self.sent, self.closed = {}, [], False

    def negotiate(self):
        self.api_versions = {key: (0, 1) for key in range(83, 88)}
        return succeed(None)

    def highest_version(self, key, ours):
        return min(ours, self.api_versions[key][1])

    def send(self, request, version):
        answer: Deferred[Any] = Deferred()
        self.sent.append((request, version, answer))
        return answer

    def close(self):
        self.closed = True


class Run:
    def __init__(self, at=HERE):
        self.clock, self.own, self.at = Clock(), Own(), at
        self.connections = []
        self.persister = Persister(
            1, self.clock, Random(5), self.own, lambda key: self.at, self._connect
        )

    def _connect(self, endpoint, client_id):
        self.connections.append(Connection())
        return self.connections[-1]

    def answer(self, number, *results):
        """The answer to a request: one result for each partition of the topic."""
        request, _, answer = self.connections[-1].sent[number]
        kind = type(request).__name__.removesuffix("Request")
        response = getattr(wire, f"{kind}Response")
        topic = response.FIELDS[0].element
        answer.callback(response(results=[topic(topic_id=TOPIC, partitions=list(results))]))


def code_of(deferred):
    found: list[Any] = []
    deferred.addErrback(lambda failure: found.append(failure.value))
    assert found, "nothing failed"
    return found[0].code


def result_of(deferred):
    found: list[Any] = []
    deferred.addCallback(found.append)
    return found[0]


def test_the_own_coordinator_is_called():
    run = Run()
    run.own.answers = [succeed(ReadState(3, 5))]
    assert result_of(run.persister.read(KEY, 7)) == ReadState(3, 5)
    assert run.own.asked == [("read", KEY, 7)]


def test_what_passes_is_tried_again_ever_later_and_then_given_up():
    run = Run()
    run.own.answers = [fail(BrokerError(ErrorCode.NOT_COORDINATOR)) for _ in range(TRIES)]
    answer = run.persister.write(KEY, STATE)
    for number, seconds in enumerate((1, 2, 4, 8), 1):
        assert len(run.own.asked) == number
        run.clock.advance(seconds * 0.75)
        assert len(run.own.asked) == number
        run.clock.advance(seconds * 0.46)
    assert code_of(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not run.clock.getDelayedCalls()


def test_what_does_not_pass_is_told_at_once():
    run = Run()
    run.own.answers = [fail(BrokerError(ErrorCode.FENCED_STATE_EPOCH))]
    assert code_of(run.persister.write(KEY, STATE)) == ErrorCode.FENCED_STATE_EPOCH


def test_without_a_coordinator_it_is_looked_for_again():
    run = Run(at=None)
    answer = run.persister.delete(KEY)
    run.at, run.own.answers = HERE, [succeed(None)]
    run.clock.advance(1.3)
    assert result_of(answer) is None


def test_calls_of_one_kind_and_group_are_joined_while_one_is_under_way():
    run = Run(at=THERE)
    first, second, third = (
        run.persister.write(key, STATE) for key in (KEY, OTHER, KEY._replace(partition=2))
    )
    run.persister.read(KEY, 7)
    run.persister.write(KEY._replace(group_id="h"), STATE)
    (connection,) = run.connections
    assert [(type(each[0]).__name__, each[0].group_id) for each in connection.sent] == [
        ("WriteShareGroupStateRequest", "g"),
        ("ReadShareGroupStateRequest", "g"),
        ("WriteShareGroupStateRequest", "h"),
    ]
    run.answer(0, wire.StatePartitionResult(partition=0))
    assert result_of(first) is None
    joined, version, _ = connection.sent[3]
    assert version == 1
    assert [each.partition for each in joined.topics[0].partitions] == [1, 2]
    run.answer(
        3,
        wire.StatePartitionResult(partition=1, error_code=ErrorCode.FENCED_LEADER_EPOCH),
        wire.StatePartitionResult(partition=2),
    )
    assert code_of(second) == ErrorCode.FENCED_LEADER_EPOCH
    assert result_of(third) is None


@pytest.mark.parametrize(
    ("ask", "result", "found"),
    [
        (
            lambda each: each.read(KEY, 7),
            wire.ReadStatePartitionResult(
                state_epoch=3,
                start_offset=5,
                state_batches=[
                    wire.ShareGroupStateBatch(
                        first_offset=5, last_offset=6, delivery_state=2, delivery_count=1
                    )
                ],
            ),
            ReadState(3, 5, (StateBatch(5, 6, 2, 1),)),
        ),
        (
            lambda each: each.summary(KEY),
            wire.ReadStateSummaryPartitionResult(
                state_epoch=3, leader_epoch=4, start_offset=5, delivery_complete_count=2
            ),
            StateSummary(3, 4, 5, 2),
        ),
        (lambda each: each.initialize(KEY, 3, -1), wire.StatePartitionResult(), None),
        (lambda each: each.delete(KEY), wire.StatePartitionResult(), None),
    ],
)
def test_another_brokers_answer_is_that_of_the_own(ask, result, found):
    run = Run(at=THERE)
    answer = ask(run.persister)
    run.answer(0, result)
    assert result_of(answer) == found


def test_a_partition_that_an_answer_lacks_is_an_error():
    run = Run(at=THERE)
    answer = run.persister.delete(KEY)
    run.answer(0)
    assert code_of(answer) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_lost_connection_is_tried_again_where_the_coordinator_is_then():
    run = Run(at=THERE)
    answer = run.persister.write(KEY, STATE)
    run.at, run.own.answers = HERE, [succeed(None)]
    run.connections[0].sent[0][2].errback(ConnectionLost())
    run.clock.advance(1.3)
    assert result_of(answer) is None
    assert run.own.asked == [("write", KEY, STATE)]


def test_a_coordinator_with_another_address_is_connected_anew():
    run = Run(at=THERE)
    run.persister.write(KEY, STATE)
    waiting = run.persister.write(OTHER, STATE)
    run.at = THERE._replace(port=9093)
    run.persister.write(KEY._replace(partition=3), STATE)
    assert run.connections[0].closed
    run.clock.advance(1.3)
    run.answer(0, wire.StatePartitionResult(partition=3))
    run.answer(1, wire.StatePartitionResult(partition=1))
    assert result_of(waiting) is None


def test_after_its_end_all_fails_and_nothing_is_left():
    run = Run(at=None)
    answer = run.persister.read(KEY, 7)
    run.persister.close()
    assert code_of(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert code_of(run.persister.read(KEY, 7)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not run.clock.getDelayedCalls()
