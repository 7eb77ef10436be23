"""Verifying and adding partitions with the coordinator: batches, fencing, failures (KIP-890;
Kafka's AddPartitionsToTxnManagerTest).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionLost

from tests.replication.fixtures import broker_registration, registration
from twisted_broker.coordinator.add_partitions_to_txn_manager import (
    _MOST_PARTITIONS,
    AddPartitionsToTxnManager,
)
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.image.entries import Endpoint, TopicImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from twisted_broker.wire.schema import decode, encode

A, B, OTHER = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NONE = ErrorCode.NONE


class Wire:
    """A connection whose answers the test gives; requests go through the codec."""

    def __init__(self, endpoint: Any, client_id: str) -> None:
        self.endpoint, self.client_id = endpoint, client_id
        self.api_versions: dict[int, tuple[int, int]] = {}
        self.serves = (0, 5)
        self.sent: list[tuple[Any, int, Deferred]] = []
        self.closed = False

    def negotiate(self) -> Deferred:
        self.api_versions = {24: self.serves}
        return succeed(self.api_versions)

    def highest_version(self, api_key: int, ours: int) -> int:
        return min(ours, self.api_versions[api_key][1])

    def send(self, request: Any, version: int) -> Deferred:
        answer: Deferred = Deferred()
        seen = decode(type(request), encode(request, version), version)
        self.sent.append((seen, version, answer))
        return answer

    def close(self) -> None:
        self.closed = True
        for _, _, answer in self.sent:
            if not answer.called:
                answer.errback(ConnectionLost())

    def named(self, number: int = -1) -> dict[str, tuple[bool, list[TopicPartition]]]:
        """What a request said: transactional id -> (verify only, partitions)."""
        return {
            each.transactional_id: (
                each.verify_only,
                [
                    TopicPartition(topic.name, index)
                    for topic in each.topics
                    for index in topic.partitions
                ],
            )
            for each in self.sent[number][0].transactions
        }

    def answer(self, code: ErrorCode = NONE, number: int = -1, **codes: ErrorCode) -> None:
        """One code for all partitions of a transaction, `code` where none is named."""
        request, version, answer = self.sent[number]
        response = AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index,
                                    partition_error_code=codes.get(each.transactional_id, code),
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in request.transactions
            ]
        )
        answer.callback(decode(type(response), encode(response, version), version))


class Made:
    """A manager in a cluster of brokers 1 and 2, which coordinate one partition each."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []
        self.image = self.image_with({0: 1, 1: 2})
        self.seconds = 100.0
        self.manager = AddPartitionsToTxnManager(
            1, self, "PLAINTEXT", self.connect, lambda: self.seconds
        )

    def image_with(self, leaders: dict[int, int], port: int = 9000) -> Any:
        partitions = {
            index: registration(leader=leader, replicas=(1, 2)) for index, leader in leaders.items()
        }
        topic = TopicImage("__transaction_state", bytes(15) + b"\x07", partitions)
        brokers = {
            broker: broker_registration(broker)._replace(
                listeners={"PLAINTEXT": Endpoint("PLAINTEXT", "h", port + broker)}
            )
            for broker in (1, 2)
        }
        return SimpleNamespace(topics_by_name={topic.name: topic}, brokers=brokers)

    def connect(self, endpoint: Any, client_id: str) -> Wire:
        self.wires.append(Wire(endpoint, client_id))
        return self.wires[-1]

    def call(
        self,
        transactional_id: str,
        *partitions: TopicPartition,
        epoch: int = 0,
        add: bool = False,
        producer_id: int = 7,
    ) -> list[dict[TopicPartition, ErrorCode]]:
        answers: list = []
        self.manager.verify_or_add(
            transactional_id, producer_id, epoch, partitions or (A,), add
        ).addBoth(answers.append)
        return answers


def ids_of(partition: int, count: int = 3) -> list[str]:
    """Transactional ids that partition `partition` of 2 coordinates."""
    numbered = (f"t{number}" for number in range(1000))
    return [name for name in numbered if partition_for(name, 2) == partition][:count]


X, Y, Z = ids_of(0)
ELSEWHERE = ids_of(1)[0]


def test_a_request_says_verify_or_add_and_goes_to_the_coordinator_of_the_id() -> None:
    """KIP-890: version 5 in both cases; each coordinator has its own connection."""
    made = Made()
    first, second = made.call(X, A, OTHER, B), made.call(ELSEWHERE, B, add=True)
    one, two = made.wires
    assert (one.endpoint.id, two.endpoint.id) == (1, 2)
    assert one.named() == {X: (True, [A, B, OTHER])} and one.sent[0][1] == 5
    assert two.named() == {ELSEWHERE: (False, [B])}
    one.answer()
    made.seconds += 0.25
    two.answer()
    assert (made.manager.answers, list(made.manager.times_ms)) == (2, [0, 250])
    assert made.manager.total_ms == 250
    assert first == [{A: NONE, OTHER: NONE, B: NONE}] and second == [{B: NONE}]
    assert made.manager.failures == 0


def test_what_comes_while_a_request_is_under_way_goes_into_the_next_one() -> None:
    """One request per broker at a time; its answers go to whom they belong."""
    made = Made()
    answers = {name: made.call(name) for name in (X, Y, Z)}
    (wire,) = made.wires
    assert len(wire.sent) == 1 and list(wire.named()) == [X]
    wire.answer(ErrorCode.NOT_COORDINATOR)
    assert list(wire.named()) == [Y, Z] and not answers[Y]
    wire.answer(**{Y: ErrorCode.INVALID_TXN_STATE, Z: ErrorCode.PRODUCER_FENCED})
    assert [answers[name][0][A] for name in (X, Y, Z)] == [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ]
    assert made.manager.failures == 3 and len(wire.sent) == 2


@pytest.mark.parametrize(
    ("epoch", "older", "newer"),
    [
        (1, ErrorCode.NETWORK_EXCEPTION, None),
        (2, ErrorCode.INVALID_PRODUCER_EPOCH, None),
        (0, None, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_an_id_waits_once(epoch: int, older: ErrorCode | None, newer: ErrorCode | None) -> None:
    """The same epoch is a retry, a newer one fences what waits, an older one is fenced."""
    made = Made()
    made.call(X)
    before, after = made.call(Y, A, epoch=1), made.call(Y, B, epoch=epoch)
    assert [each[A] for each in before] == ([] if older is None else [older])
    assert [each[B] for each in after] == ([] if newer is None else [newer])
    (wire,) = made.wires
    wire.answer()
    assert wire.named() == {Y: (True, [A] if older is None else [B])}
    wire.answer()
    assert (after if older is not None else before)[-1].popitem()[1] == NONE


def test_an_epoch_says_nothing_beside_another_producer_id() -> None:
    """The last epoch of an id is followed by a new id at epoch 0, which must not be refused for
    what a former instance still waits for. Only the coordinator knows which of the two is right.
    """
    made = Made()
    made.call(X)
    former = made.call(Y, A, epoch=32766)
    successor = made.call(Y, B, epoch=0, producer_id=8)
    assert former == [{A: ErrorCode.NETWORK_EXCEPTION}] and not successor
    again = made.call(Y, A, epoch=32766)
    assert successor == [{B: ErrorCode.NETWORK_EXCEPTION}] and not again


def test_without_a_coordinator_nothing_is_sent() -> None:
    """No topic, no leader, a leader that is fenced or not registered: COORDINATOR_NOT_AVAILABLE at
    once.
    """
    made = Made()
    fenced, unregistered = made.image_with({0: 1, 1: 2}), made.image_with({0: 1, 1: 2})
    fenced.brokers[1] = fenced.brokers[1]._replace(fenced=True)
    del unregistered.brokers[1]
    for image in (
        SimpleNamespace(topics_by_name={}, brokers={}),
        made.image_with({0: -1, 1: -1}),
        fenced,
        unregistered,
    ):
        made.image = image
        assert made.call(X) == [{A: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert not made.wires


def test_a_lost_connection_is_an_error_that_is_retried() -> None:
    """NETWORK_EXCEPTION; the next call uses the connection again."""
    made = Made()
    answers, waiting = made.call(X), made.call(Y)
    (wire,) = made.wires
    wire.sent[0][2].errback(ConnectionLost())
    assert answers == [{A: ErrorCode.NETWORK_EXCEPTION}]
    wire.answer()
    assert waiting == [{A: NONE}]
    wire.api_versions = {}
    wire.negotiate = lambda: fail(ConnectionLost())
    assert made.call(X) == [{A: ErrorCode.NETWORK_EXCEPTION}]


def test_a_coordinator_too_old_verifies_nothing_and_adds_nothing() -> None:
    """Below version 4 the append goes on, as in Kafka; but nothing is taken for added."""
    made = Made()
    connect = made.manager._connect

    def old(endpoint: Any, client_id: str) -> Any:
        wire: Any = connect(endpoint, client_id)
        wire.serves = (0, 3)
        return wire

    made.manager._connect = old
    assert made.call(X) == [{A: NONE}]
    assert made.call(X, add=True) == [{A: ErrorCode.INVALID_TXN_STATE}]
    assert not made.wires[0].sent


def test_an_error_of_the_whole_answer_is_everybodys_and_own_permissions_are_not_shown() -> None:
    """CLUSTER_AUTHORIZATION_FAILED is this broker's problem: the client sees INVALID_TXN_STATE."""
    made = Made()
    for code, seen in (
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
    ):
        answers = made.call(X, A, B)
        made.wires[0].sent[-1][2].callback(AddPartitionsToTxnResponse(error_code=code))
        assert answers == [{A: seen, B: seen}]


def test_what_an_answer_leaves_out_is_not_verified() -> None:
    """A broken coordinator neither lets an append in nor keeps it waiting."""
    made = Made()
    answers = made.call(X)
    made.wires[0].sent[-1][2].callback(AddPartitionsToTxnResponse())
    assert answers == [{A: ErrorCode.COORDINATOR_NOT_AVAILABLE}]


def test_a_bug_answers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised, whoever waits is answered."""
    made = Made()
    monkeypatch.setattr(
        Wire, "highest_version", lambda self, *_: (_ for _ in ()).throw(BrokerError(NONE))
    )
    assert made.call(X) == [{A: ErrorCode.NETWORK_EXCEPTION}]


def test_a_request_carries_a_bounded_number_of_partitions() -> None:
    """At least one transaction, however large it is."""
    made = Made()
    made.call(X)
    many = [TopicPartition("a", number) for number in range(_MOST_PARTITIONS)]
    made.call(Y, *many)
    made.call(Z)
    (wire,) = made.wires
    wire.answer()
    assert list(wire.named()) == [Y]
    wire.answer()
    assert list(wire.named()) == [Z]


def test_a_new_address_is_a_new_connection_and_a_close_answers_all() -> None:
    """A coordinator that came back; a stop of this broker."""
    made = Made()
    before, waiting = made.call(X), made.call(Y)
    made.image = made.image_with({0: 1, 1: 2}, port=9100)
    after = made.call(X)
    assert made.wires[0].closed and made.wires[1].endpoint.port == 9101
    assert before == waiting == [{A: ErrorCode.NETWORK_EXCEPTION}] and not after
    later = made.call(Y)
    made.manager.close()
    assert after == later == [{A: ErrorCode.NETWORK_EXCEPTION}]
    assert made.call(X) == [{A: ErrorCode.COORDINATOR_NOT_AVAILABLE}]


def call_again(made: Made, first: str, then: str) -> list[Any]:
    """`then` is called for as soon as `first` is answered: as the next request of a connection."""
    answers: list[Any] = []

    def answered(_: Any) -> None:
        made.manager.verify_or_add(then, 7, 0, (A,), False).addBoth(answers.append)

    made.manager.verify_or_add(first, 7, 0, (A,), False).addCallback(answered)
    return answers


def test_who_calls_again_when_a_new_address_is_known_shares_its_connection() -> None:
    """Another connection would belong to nobody, and never be closed."""
    made = Made()
    again = call_again(made, X, Y)
    made.image = made.image_with({0: 1, 1: 2}, port=9100)
    after = made.call(Z)
    assert [wire.closed for wire in made.wires] == [True, False]
    for _ in range(2):
        made.wires[1].answer()
    assert after == again == [{A: NONE}]


def test_who_calls_again_when_brokers_are_gone_stops_nobody() -> None:
    """Each is dropped once."""
    made = Made()
    again = call_again(made, X, Y)
    other = made.call(ELSEWHERE)
    image = made.image_with({0: 3, 1: 3})
    listeners = {"PLAINTEXT": Endpoint("PLAINTEXT", "h", 9003)}
    image.brokers = {3: broker_registration(3)._replace(listeners=listeners)}
    made.image = image
    after = made.call(Z)
    assert other == [{A: ErrorCode.NETWORK_EXCEPTION}]
    assert [wire.closed for wire in made.wires] == [True, True, False]
    for _ in range(2):
        made.wires[2].answer()
    assert after == again == [{A: NONE}]
