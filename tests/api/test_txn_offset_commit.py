"""TxnOffsetCommit through its codec: permissions, the transaction's coordinator, the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from tests.api.group_api import TOPIC_IDS, ApiRun, each_version, image, topic
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.verification import NOT_REQUIRED, Guard, VerificationStateEntry
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import OFFSETS_TOPIC
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

PARTITION = TopicPartition(OFFSETS_TOPIC, partition_for("g", 50))
GUARD = VerificationStateEntry(0, 3, -1, False)


class TwinOfTheManager:
    """Answers each call with `code`."""

    def __init__(self) -> None:
        self.code = E.NONE
        self.calls: list[tuple[Any, ...]] = []

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Deferred[dict[TopicPartition, E]]:
        self.calls.append((transactional_id, producer_id, producer_epoch, *partitions, add))
        return succeed(dict.fromkeys(partitions, self.code))


class VerifyingManager(ReplicaManager):
    """What verifies a transaction, and nothing else of a replica manager."""

    def __init__(self, run: TxnRun) -> None:
        self.run = run

    def begin_verification(self, *how: Any) -> Guard:
        self.run.begun.append(how)
        return self.run.guard

    def end_verification(self, *how: Any) -> None:
        self.run.ended.append(how)


class TxnRun(ApiRun):
    """`guard`: what the log says to this verification."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = TwinOfTheManager()
        self.guard: Guard = GUARD
        self.begun: list[tuple[Any, ...]] = []
        self.ended: list[tuple[Any, ...]] = []
        self.parts.runtime.now_ms = lambda: round(1000 * self.clock.seconds())
        self.parts.add_partitions_to_txn = self.manager  # type: ignore[assignment]
        self.parts.replica_manager = VerifyingManager(self)


def commit(*places: tuple[str, int, int], **more: Any) -> TxnOffsetCommitRequest:
    values: dict[str, Any] = {"transactional_id": "x", "group_id": "g", "producer_id": 7}
    return TxnOffsetCommitRequest(
        **{**values, "producer_epoch": 3, **more},
        topics=[
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata="m"
                    )
                ],
            )
            for name, index, offset in places
        ],
    )


def errors(answer: Any) -> list[int]:
    return [p.error_code for t in answer.topics for p in t.partitions]


@each_version("TxnOffsetCommit")
def test_committing(version):
    """Pending under the producer; the transaction's coordinator is asked first, or told."""
    run = TxnRun()
    answer = run.ask(commit(("x", 0, 1), ("t", 0, 42), ("t", 9, 1), ("u", 1, 7)), version)
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(answer) == [unknown, E.NONE, unknown, E.NONE]
    adds = version >= 5
    assert run.manager.calls == [("x", 7, 3, PARTITION, adds)]
    assert run.begun == [(PARTITION, 7, 3, -1, adds)] and run.store.guards == [GUARD]
    assert run.fetched() == {} and run.ended == []
    run.coordinator.complete_transaction(PARTITION.partition, 7, 3, 0, True)
    assert run.fetched() == {("t", 0): 42, ("u", 1): 7}
    stored = run.coordinator.fetch_offsets("g", [("t", 0, bytes(16))])[0].committed
    assert stored is not None and stored.topic_id == TOPIC_IDS["t"] and stored.metadata == "m"


def test_a_transaction_that_is_open_in_the_partition_is_not_verified_again():
    run = TxnRun()
    run.guard = None
    assert errors(run.ask(commit(("t", 0, 1)), 5)) == [E.NONE]
    assert run.manager.calls == [] and run.store.guards == [None]


def test_verification_can_be_switched_off():
    """Not where the partition is to be added."""
    run = TxnRun()
    run.parts.config = BrokerConfig({"transaction.partition.verification.enable": "false"})
    assert errors(run.ask(commit(("t", 0, 1)), 4)) == [E.NONE]
    assert run.manager.calls == run.begun == [] and run.store.guards == [NOT_REQUIRED]
    assert errors(run.ask(commit(("t", 0, 1)), 5)) == [E.NONE]
    assert len(run.manager.calls) == 1


@pytest.mark.parametrize(
    ("code", "version", "told", "is_for_good"),
    [
        (E.INVALID_TXN_STATE, 4, E.INVALID_TXN_STATE, True),
        (E.INVALID_PRODUCER_EPOCH, 5, E.INVALID_PRODUCER_EPOCH, True),
        (E.TRANSACTION_ABORTABLE, 4, E.TRANSACTION_ABORTABLE, False),
        (E.TRANSACTION_ABORTABLE, 3, E.INVALID_TXN_STATE, False),
        (E.NETWORK_EXCEPTION, 5, E.COORDINATOR_LOAD_IN_PROGRESS, False),
    ],
)
def test_what_the_coordinator_refuses_is_not_written(code, version, told, is_for_good):
    """Each partition has the error; a guard that no append will bring goes."""
    run = TxnRun()
    run.manager.code = code
    assert errors(run.ask(commit(("t", 0, 1), ("x", 0, 1)), version)) == [
        told,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert run.store.logs == {} and bool(run.ended) == is_for_good


def test_the_end_of_the_transaction_before_is_waited_for():
    """CONCURRENT_TRANSACTIONS: asked again, with the guard of then: its marker came meanwhile."""
    run = TxnRun()
    run.manager.code = E.CONCURRENT_TRANSACTIONS
    answer = run.start(commit(("t", 0, 1)), 5)
    run.guard = VerificationStateEntry(0, 3, -1, True)
    run.clock.advance(0.019)
    assert len(run.manager.calls) == 1 and not answer.called
    run.manager.code = E.NONE
    run.clock.advance(0.001)
    run.settle()
    assert len(run.manager.calls) == 2 and run.store.guards == [run.guard]
    assert errors(answer.result) == [E.NONE]


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_topic_that_goes_while_the_transaction_is_verified(is_made_anew):
    """What was committed for it is removed when it goes: nothing comes behind that, for a later
    topic of the name would get it.
    """
    run = TxnRun()
    run.manager.code = E.CONCURRENT_TRANSACTIONS
    answer = run.start(commit(("t", 0, 42), ("u", 1, 7)), 5)
    run.source.image = image(
        *[topic("t", b"2" * 16, 1)] * is_made_anew, topic("u", TOPIC_IDS["u"], 2)
    )
    run.coordinator.cleanup.topics_deleted({"t": TOPIC_IDS["t"]})
    run.manager.code = E.NONE
    run.clock.advance(0.02)
    run.settle()
    assert errors(answer.result) == [E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE]
    run.coordinator.complete_transaction(PARTITION.partition, 7, 3, 0, True)
    assert run.fetched() == {("u", 1): 7}


def test_nothing_is_left_of_it():
    """All its topics go: no group is made for what is not committed."""
    run = TxnRun()
    run.manager.code = E.CONCURRENT_TRANSACTIONS
    answer = run.start(commit(("t", 0, 42), ("t", 1, 7)), 5)
    run.source.image = image()
    run.manager.code = E.NONE
    run.clock.advance(0.02)
    run.settle()
    assert errors(answer.result) == [E.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert run.store.logs == {} and not run.coordinator.runtime.shard_of("g").groups


def test_but_not_for_ever():
    """add.partitions.to.txn.retry.backoff.max.ms; then the client tries."""
    run = TxnRun()
    run.manager.code = E.CONCURRENT_TRANSACTIONS
    answer = run.start(commit(("t", 0, 1)), 5)
    for _ in range(5):
        assert not answer.called
        run.clock.advance(0.02)
    assert errors(answer.result) == [E.CONCURRENT_TRANSACTIONS]
    assert len(run.manager.calls) == 6 and run.store.logs == {}


def test_who_adds_partitions_itself_is_answered_at_once():
    """Below version 5 its own AddOffsetsToTxn has waited."""
    run = TxnRun()
    run.manager.code = E.CONCURRENT_TRANSACTIONS
    assert errors(run.ask(commit(("t", 0, 1)), 4)) == [E.CONCURRENT_TRANSACTIONS]
    assert len(run.manager.calls) == 1


def test_a_partition_that_is_not_led_here():
    """The coordinator is not even asked."""
    run = TxnRun()
    run.parts.replica_manager.begin_verification = lambda *how: _refuse()
    assert errors(run.ask(commit(("t", 0, 1)), 5)) == [E.NOT_COORDINATOR]
    assert run.manager.calls == []


def _refuse() -> Guard:
    raise BrokerError(E.NOT_LEADER_OR_FOLLOWER)


def test_who_may_commit_in_a_transaction():
    """WRITE on the transactional id, READ on the group, READ on each topic; in this order."""
    run = TxnRun()
    request = commit(("t", 0, 1), ("u", 0, 1))
    run.acl.denied.add((Operation.READ, ResourceType.TOPIC, "u"))
    assert errors(run.ask(request, 5)) == [E.NONE, E.TOPIC_AUTHORIZATION_FAILED]
    run.acl.denied.add((Operation.READ, ResourceType.GROUP, "g"))
    assert errors(run.ask(request, 5)) == [E.GROUP_AUTHORIZATION_FAILED] * 2
    run.acl.denied.add((Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x"))
    assert errors(run.ask(request, 5)) == [E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2


def test_the_member_is_fenced_by_its_generation():
    """KIP-447, from version 3 on; what refuses the commit is the error of each partition."""
    run = TxnRun()
    member = run.stable()
    good = {"member_id": member, "generation_id": 1}
    assert errors(run.ask(commit(("t", 0, 1), **good), 3)) == [E.NONE]
    assert (
        errors(run.ask(commit(("t", 0, 1), ("t", 1, 1), **{**good, "generation_id": 0}), 3))
        == [E.ILLEGAL_GENERATION] * 2
    )
    assert errors(run.ask(commit(("t", 0, 1)), 2)) == [E.NONE]


@pytest.mark.parametrize(
    ("who", "code"),
    [
        ({"producer_id": -1}, E.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_epoch": -1}, E.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_commit_without_a_producer_is_refused(who, code):
    run = TxnRun()
    answer = run.ask(commit(("t", 0, 1), **who), 5)
    assert errors(answer) == [code] and run.manager.calls == []
