"""Produce of transactional producers: who is asked before the append, and what the client is
answered (KIP-890; Kafka's ReplicaManagerTest, "transaction verification").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.api.data_plane import Api
from tests.api.test_produce import OTHER_ID, asked, codes
from tests.replication.fixtures import TP, Fixture, batch, registration
from twisted_broker.api.produce import produce
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import EndMarker
from twisted_broker.log_config import LogConfig
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.produce import ProduceResponse

NONE = ErrorCode.NONE
OTHER = TopicPartition("t", 1)
P = 7
FOR_GOOD = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


class Coordinator:
    """In place of the manager: notes what it is asked, answers as the test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.waiting: list[Deferred] = []

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Deferred:
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def answer(self, code: ErrorCode = NONE, **codes: ErrorCode) -> None:
        partitions = self.asked[-1][3]
        self.waiting[-1].callback({each: codes.get(f"p{each[1]}", code) for each in partitions})


class Made(Api):
    """The topic `t` of two partitions, led here; partition 1 by `leader`."""

    def __init__(self, leader: int = 1, **settings: Any) -> None:
        fixture = Fixture(**settings)
        fixture.topic(
            states={0: registration(), 1: registration(leader=leader, replicas=(1, 2))}
            if leader != 1
            else {0: registration(), 1: registration()}
        )
        self.coordinator = Coordinator()
        super().__init__(fixture, add_partitions_to_txn=self.coordinator)

    def send(self, *batches: tuple[int, bytes], version: int = 11, **options: Any) -> list:
        """The answer's codes, once it is there."""
        answers: list = []
        request = asked(
            *[("t", index, records) for index, records in batches],
            version=version,
            **{"transactional_id": "x", **options},
        )
        got = self.ask(produce, ProduceResponse, request, version)
        self.last.addCallback(lambda _: answers.extend(codes(got[0])))
        self.last.addErrback(lambda _: answers.append(got[0]))
        return answers

    def end(self, index: int = 0) -> int:
        return self.fixture.replicas.partitions[TopicPartition("t", index)].log.log_end_offset


def records(sequence: int = 0, epoch: int = 0, producer: int = P, **options: Any) -> bytes:
    return batch(
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        **{"is_transactional": True, **options},
    )


@pytest.mark.parametrize(("version", "adds"), [(3, False), (11, False), (12, True), (13, True)])
def test_the_first_batch_waits_for_the_coordinator_and_no_other_does(
    version: int, adds: bool
) -> None:
    """Verify-only below version 12, added from there on; what is open goes on without it."""
    api = Made()
    answers = api.send((0, records()), version=version)
    assert not answers and api.end() == 0 and not api.context.appended
    assert api.coordinator.asked == [("x", P, 0, [TP], adds)]
    api.coordinator.answer()
    assert answers == [NONE] and api.end() == 1 and api.context.appended
    assert api.send((0, records(1)), version=version) == [NONE]
    assert len(api.coordinator.asked) == 1


def test_records_that_are_not_transactional_go_with_a_transactional_id() -> None:
    """Nobody is asked about them."""
    api = Made()
    assert api.send((0, batch())) == [NONE]
    assert not api.coordinator.asked


def test_verification_may_be_switched_off_but_version_2_adds_all_the_same() -> None:
    """transaction.partition.verification.enable."""
    api = Made(**{"transaction.partition.verification.enable": "false"})
    assert api.send((0, records())) == [NONE]
    assert not api.coordinator.asked
    api.send((1, records()), version=12)
    assert api.coordinator.asked == [("x", P, 0, [OTHER], True)]


def test_switched_off_what_was_added_needs_no_guard() -> None:
    """A marker between the coordinator's answer and the append does not refuse it then."""
    api = Made(**{"transaction.partition.verification.enable": "false"})
    answers = api.send((0, records(0, 1)), version=12)
    api.fixture.replicas.append_end_markers([(TP, EndMarker(P, 1, 0, False, 2))])
    api.coordinator.answer()
    assert answers == [NONE] and api.end() == 2


@pytest.mark.parametrize("version", [11, 12])
def test_an_older_epoch_is_refused_before_anybody_is_asked(version: int) -> None:
    """INVALID_PRODUCER_EPOCH, which a producer recovers from by aborting."""
    api = Made()
    api.fixture.replicas.append_end_markers([(TP, EndMarker(P, 3, 0, False, 2))])
    assert api.send((0, records(0, 2)), version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert not api.coordinator.asked and api.end() == 1


def test_one_partition_refused_leaves_the_other_alone() -> None:
    """Each has its own answer; the refused one's guard is gone, nothing is left behind."""
    api = Made()
    answers = api.send((0, records()), (1, records()))
    api.coordinator.answer(p0=ErrorCode.INVALID_TXN_STATE)
    assert answers == [ErrorCode.INVALID_TXN_STATE, NONE] and (api.end(0), api.end(1)) == (0, 1)
    assert not api.fixture.partition().log.producers.verifications


@pytest.mark.parametrize("version", [11, 12])
def test_a_mirrored_topic_is_not_added_to_the_transaction(version: int) -> None:
    """Else the marker of its end would take an offset that is the source's."""
    api = Made()
    api.fixture.partition().update_config(LogConfig(replog_mirror_source="cluster topic"), 0)
    assert api.send((0, records()), version=version) == [ErrorCode.POLICY_VIOLATION]
    assert not api.coordinator.asked and api.end() == 0


def test_a_partition_led_elsewhere_is_not_asked_about() -> None:
    """NOT_LEADER_OR_FOLLOWER, as without a transaction; the other goes on."""
    api = Made(leader=2)
    answers = api.send((1, records()), (0, records()))
    assert api.coordinator.asked == [("x", P, 0, [TP], False)]
    api.coordinator.answer()
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER, NONE]
    assert api.send((1, records())) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize(
    ("code", "version", "seen"),
    [
        (ErrorCode.NETWORK_EXCEPTION, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 3, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 11, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 11, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_the_client_gets_codes_that_a_produce_may_answer(
    code: ErrorCode, version: int, seen: ErrorCode
) -> None:
    """What may pass keeps its verification (its lowest sequence goes first), a refusal for good
    does not.
    """
    api = Made()
    answers = api.send((0, records()), version=version)
    api.coordinator.answer(code)
    assert answers == [seen] and api.end() == 0
    kept = P in api.fixture.partition().log.producers.verifications
    assert kept == (code not in FOR_GOOD)


def test_a_transaction_that_still_ends_is_waited_for() -> None:
    """CONCURRENT_TRANSACTIONS: asked again, with the guard of then: its marker came meanwhile."""
    api = Made()
    answers = api.send((0, records(0, 1)), version=12)
    api.coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert not answers
    api.fixture.replicas.append_end_markers([(TP, EndMarker(P, 1, 0, True, 2))])
    api.fixture.clock.advance(0.019)
    assert len(api.coordinator.asked) == 1
    api.fixture.clock.advance(0.001)
    assert len(api.coordinator.asked) == 2
    api.coordinator.answer()
    assert answers == [NONE] and api.end() == 2


def test_the_question_that_waited_across_the_marker_lets_the_next_transaction_in() -> None:
    """Version 2 begins while the markers of the one before are still to be written."""
    api = Made()
    api.send((0, records()), version=12)
    api.coordinator.answer()
    answers = api.send((0, records(0, 1)), version=12)
    api.fixture.replicas.append_end_markers([(TP, EndMarker(P, 1, 0, True, 2))])
    api.coordinator.answer()
    assert answers == [NONE] and api.end() == 3 and len(api.coordinator.asked) == 2


def test_a_guard_that_is_gone_when_the_coordinator_agrees_is_made_anew() -> None:
    """The one before wrote nothing here: its marker ends every verification."""
    api = Made()
    answers = api.send((0, records(0, 1)), (1, records(0, 1)), version=12)
    api.fixture.replicas.append_end_markers([(TP, EndMarker(P, 1, 0, True, 2))])
    api.coordinator.answer()
    assert not answers and api.coordinator.asked[1:] == [("x", P, 1, [TP, OTHER], True)]
    api.coordinator.answer()
    assert answers == [NONE, NONE] and (api.end(0), api.end(1)) == (2, 1)


def test_of_what_was_ended_meanwhile_nothing_is_let_in() -> None:
    """Verified, then ended by a marker of the next epoch: the coordinator is not asked again."""
    api = Made()
    answers = api.send((0, records()), version=12)
    api.fixture.replicas.append_end_markers([(TP, EndMarker(P, 1, 0, False, 2))])
    api.coordinator.answer()
    assert answers == [ErrorCode.INVALID_PRODUCER_EPOCH] and api.end() == 1
    assert len(api.coordinator.asked) == 1


def test_a_client_that_adds_partitions_itself_is_answered_at_once() -> None:
    """Below version 12 it tries again by itself, and does not know CONCURRENT_TRANSACTIONS here."""
    api = Made()
    answers = api.send((0, records()), version=11)
    api.coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert answers == [ErrorCode.NOT_ENOUGH_REPLICAS] and len(api.coordinator.asked) == 1


def test_but_not_for_ever() -> None:
    """add.partitions.to.txn.retry.backoff.max.ms; then the client tries, which knows the code from
    version 12 on.
    """
    api = Made()
    answers = api.send((0, records()), version=12)
    for _ in range(5):
        assert not answers
        api.coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        api.fixture.clock.advance(0.03)
    assert answers == [ErrorCode.CONCURRENT_TRANSACTIONS] and len(api.coordinator.asked) == 5


def test_an_answer_behind_the_marker_lets_nothing_in() -> None:
    """The transaction was aborted while its coordinator answered: INVALID_TXN_STATE."""
    api = Made()
    answers = api.send((0, records()))
    api.fixture.replicas.append_end_markers([(TP, EndMarker(P, 0, 0, False))])
    api.coordinator.answer()
    assert answers == [ErrorCode.INVALID_TXN_STATE] and api.end() == 1


def test_a_former_instance_that_is_refused_takes_no_verification_from_its_successor() -> None:
    """Both wait for the coordinator: INVALID_TXN_STATE would end the new producer for good."""
    api = Made()
    former = api.send((0, records(5, 0)), version=12)
    successor = api.send((0, records(0, 1)), version=12)
    api.coordinator.waiting[0].callback({TP: ErrorCode.INVALID_PRODUCER_EPOCH})
    api.coordinator.answer()
    assert former == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert successor == [NONE] and api.end() == 1


def test_a_leadership_lost_meanwhile_is_the_answer() -> None:
    """As of any produce: the client looks for the new leader."""
    api = Made()
    answers = api.send((0, records()))
    api.fixture.partition().make_follower(registration(leader=2, leader_epoch=1), None)
    api.coordinator.answer()
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_topic_made_anew_meanwhile_gets_nothing_that_names_its_former_id() -> None:
    """With the guards switched off nothing else refuses it."""
    api = Made(**{"transaction.partition.verification.enable": "false"})
    answers = api.send((0, records()), version=13)
    api.fixture.topic(topic_id=OTHER_ID, states={0: registration(), 1: registration()})
    api.coordinator.answer()
    assert answers == [ErrorCode.UNKNOWN_TOPIC_ID] and api.end() == 0


def test_two_producers_in_a_request_are_refused() -> None:
    """INVALID_PRODUCER_ID_MAPPING for all of it; the coordinator knows one per transaction."""
    api = Made()
    (refused,) = api.send((0, records()), (1, records(producer=8)))
    assert isinstance(refused.value, BrokerError)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert not api.coordinator.asked and (api.end(0), api.end(1)) == (0, 0)


def test_a_repeated_batch_is_answered_as_before() -> None:
    """The answer was lost: nothing is written twice."""
    api = Made()
    api.send((0, records()))
    api.coordinator.answer()
    assert api.send((0, records())) == [NONE] and api.end() == 1


def test_with_acks_0_a_refusal_closes_the_connection() -> None:
    """There is no answer to put it in."""
    api = Made()
    answers = api.send((0, records()), acks=0)
    api.coordinator.answer(ErrorCode.INVALID_TXN_STATE)
    assert "acks=0 and 1 partitions refused" in str(answers[0].value)
