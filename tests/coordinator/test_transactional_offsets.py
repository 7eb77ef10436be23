"""Offsets of transactions: pending until their marker, whatever overtakes what."""

from __future__ import annotations

from itertools import permutations

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from tests.coordinator.broker_run import BrokerRun
from tests.coordinator.test_group_coordinator import now, waiting
from twisted_broker.coordinator import group_offsets, offset_metadata_manager
from twisted_broker.coordinator.group_offsets import GroupOffsets
from twisted_broker.coordinator.group_records import (
    CommittedOffset,
    ProducerIdAndEpoch,
    partition_for,
)
from twisted_broker.coordinator.group_requests import JoinAnswer
from twisted_broker.coordinator.offset_metadata_manager import (
    CommitAnswer,
    CommitRequest,
    OffsetToCommit,
)
from twisted_broker.log.verification import Guard, VerificationStateEntry
from twisted_broker.wire.control_batch import COMMIT, control_record_type
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.records import iterate_batches

P, Q = ("t", 0), ("t", 1)
PRODUCER = ProducerIdAndEpoch(7, 3)
INDEX = partition_for("g", 50)
GUARD = VerificationStateEntry(0, 3, -1, False)


def txn_commit(
    run: BrokerRun,
    *offsets: OffsetToCommit,
    producer: ProducerIdAndEpoch = PRODUCER,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    group: str = "g",
) -> Deferred[CommitAnswer]:
    request = CommitRequest(group, member, instance, generation, offsets=offsets, producer=producer)
    return run.coordinator.commit_transactional(request, lambda index: succeed(GUARD))


def end(
    run: BrokerRun, is_commit: bool, producer: ProducerIdAndEpoch = PRODUCER, index: int = INDEX
) -> Deferred[E]:
    return run.coordinator.complete_transaction(index, producer.id, producer.epoch, 0, is_commit)


def one(offset: int, partition: int = 0) -> OffsetToCommit:
    return OffsetToCommit("t", partition, offset)


def stable(run: BrokerRun, partition: int = 0) -> int | E | None:
    (found,) = run.coordinator.fetch_offsets("g", [("t", partition, bytes(16))], True)
    return found.error or (found.committed.offset if found.committed else None)


# ring 0: the order of the log decides
@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_ends_what_lies_before_it_in_whichever_order_they_are_stored(order, is_commit):
    """Records 1 and 2 of one producer's transactions with the first one's marker between them."""
    offsets = GroupOffsets()
    offsets.replay(P, CommittedOffset(100), 0)
    offsets.start_write(P, 7)
    offsets.start_write(Q, 7)

    def first() -> None:
        offsets.replay(P, CommittedOffset(101), 1, 7)
        offsets.end_write(P, 7)

    def marker() -> None:
        offsets.end_transaction(7, is_commit, 2)

    def second() -> None:
        offsets.replay(Q, CommittedOffset(103), 3, 7)
        offsets.end_write(Q, 7)

    for step in order:
        (first, marker, second)[step]()
    assert offsets.committed[P].offset == (101 if is_commit else 100)
    assert not offsets.is_unstable(P) and Q not in offsets.committed
    assert offsets.is_unstable(Q) and offsets.is_in_transaction(7)
    offsets.end_transaction(7, True, 4)
    assert offsets.committed[Q].offset == 103 and not offsets.has_unsettled()
    assert not offsets.is_in_transaction(7)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_of_a_transactions_offsets_the_last_in_the_log_is_committed(order):
    """A transaction commits a partition's offset three times; what is stored first does not
    matter.
    """
    offsets = GroupOffsets()
    for number in order:
        offsets.replay(P, CommittedOffset(100 + number), number, 7)
    offsets.end_transaction(7, True, 3)
    assert offsets.committed[P].offset == 102


def test_a_refused_write_leaves_no_marker_behind():
    """A marker is kept for what is in flight, and goes with it: a later transaction is not ended
    by it.
    """
    offsets = GroupOffsets()
    offsets.start_write(P, 7)
    offsets.end_transaction(7, True, 1)
    offsets.end_write(P, 7)
    offsets.replay(P, CommittedOffset(5), 0, 7)
    assert offsets.transactional == {7: {P: CommittedOffset(5, record_offset=0)}}


def test_a_tombstone_removes_what_a_transaction_wrote_before_it():
    """And the transaction with its last offset, so that its group may be removed."""
    offsets = GroupOffsets()
    offsets.replay(P, CommittedOffset(5), 0, 7)
    offsets.replay(P, CommittedOffset(6), 2, 8)
    offsets.replay(P, None, 1)
    assert list(offsets.transactional) == [8]
    offsets.replay(P, None, 3)
    assert offsets.is_empty()


@pytest.mark.parametrize("producer_id", [-1, 7])
def test_a_tombstone_removes_what_lies_before_it_and_enters_after_it(producer_id):
    """A commit that timed out may be decided behind a later tombstone; one behind the tombstone in
    the log stays, and nothing is kept when no write is in flight.
    """
    offsets = GroupOffsets()
    for of_producer in (producer_id, -1, producer_id):
        offsets.start_write(P, of_producer)
    offsets.replay(P, None, 1)
    offsets.end_write(P)
    offsets.replay(P, CommittedOffset(5), 0, producer_id)
    offsets.end_write(P, producer_id)
    assert offsets.committed == offsets.transactional == {}
    offsets.replay(P, CommittedOffset(6), 2, producer_id)
    offsets.end_write(P, producer_id)
    offsets.end_transaction(7, True)
    assert offsets.committed == {P: CommittedOffset(6, record_offset=2)}
    offsets.replay(P, None, 3)
    offsets.replay(P, CommittedOffset(7), 0)
    assert offsets.committed == {P: CommittedOffset(7, record_offset=0)}


def test_a_marker_of_many_offsets_enters_in_steps(monkeypatch):
    """Half-way some are committed; what is left is unstable, goes with a tombstone, and a next
    transaction's is not touched.
    """
    monkeypatch.setattr(group_offsets, "OFFSETS_PER_STEP", 2)
    offsets = GroupOffsets()
    for number in range(5):
        offsets.replay(("t", number), CommittedOffset(number), number, 7)
    steps = offsets.end_transaction_in_steps(7, True, 5)
    next(steps)
    left = [p for p in range(5) if offsets.is_unstable(("t", p))]
    assert len(left) == 3 and len(offsets.committed) == 2
    assert set(*offsets.partitions()) == {("t", p) for p in range(5)}
    offsets.replay(("t", left[0]), None, 6)
    offsets.replay(("t", left[1]), CommittedOffset(77), 7, 7)
    for _ in steps:
        pass
    assert {p: offsets.committed[p].offset for p in offsets.committed} == {
        ("t", p): p for p in range(5) if p != left[0]
    }
    assert list(offsets.transactional) == [7] and list(offsets.transactional[7]) == [("t", left[1])]


# through the coordinator
@pytest.mark.parametrize(("is_commit", "expected"), [(True, 5), (False, 1)])
def test_an_offset_of_a_transaction_counts_from_its_marker_on(is_commit, expected):
    """Pending, UNSTABLE_OFFSET_COMMIT meanwhile; in memory and after a failover alike."""
    run = BrokerRun()
    now(run.commit(one(1)))
    assert now(txn_commit(run, one(5))) == {P: E.NONE}
    assert run.store.guards[-1] is GUARD
    assert run.fetched() == {P: 1} and stable(run) is E.UNSTABLE_OFFSET_COMMIT
    run = run.restarted()
    assert run.fetched() == {P: 1} and stable(run) is E.UNSTABLE_OFFSET_COMMIT
    assert now(end(run, is_commit)) is E.NONE
    assert run.fetched() == {P: expected} and stable(run) == expected
    assert run.coordinator.runtime.shards[INDEX].offsets.open_transactions == {}
    assert stable(run.restarted()) == expected
    batches = list(iterate_batches(bytes(run.store.logs[INDEX])))
    assert [(b.producer_id, b.producer_epoch, b.is_transactional) for b in batches[-2:]] == [
        (7, 3, True),
        (7, 3, True),
    ]
    (record,) = batches[-1].records()
    assert batches[-1].is_control and (control_record_type(record.key) == COMMIT) == is_commit


def test_a_transaction_of_several_groups_ends_in_all_of_them():
    """One marker for the partition; other producers' offsets stay pending."""
    groups = [f"g{number}" for number in range(3)]
    run = BrokerRun()
    run.store.partitions = 1
    run.lead_all(1)
    other = ProducerIdAndEpoch(8, 0)
    for group in groups:
        now(txn_commit(run, one(4), group=group))
    now(txn_commit(run, one(9), group=groups[0], producer=other))
    assert now(end(run, True, index=0)) is E.NONE
    assert [run.fetched(group) for group in groups] == [{P: 4}] * 3
    assert run.coordinator.runtime.shards[0].offsets.open_transactions == {8: {groups[0]}}
    assert now(end(run, True, other, 0)) is E.NONE and run.fetched(groups[0]) == {P: 9}


def test_a_commit_that_timed_out_is_ended_by_its_marker_when_it_is_decided():
    """The offset is stored after its marker entered memory: the marker lies behind it."""
    run = BrokerRun()
    run.store.held = []
    answer = txn_commit(run, one(5))
    (outcome,) = run.store.time_out()
    assert now(answer) == {P: E.COORDINATOR_NOT_AVAILABLE}
    run.store.held = None
    assert now(end(run, True)) is E.NONE
    assert stable(run) is E.UNSTABLE_OFFSET_COMMIT
    outcome.callback(0)
    assert stable(run) == 5 == stable(run.restarted())


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_producer_whose_last_offsets_enter_behind_its_marker_is_forgotten(is_commit):
    """No other marker comes for it: its name would be kept until the partition is unloaded."""
    run = BrokerRun()
    run.store.held = []
    answer = txn_commit(run, one(5))
    (outcome,) = run.store.time_out()
    assert now(answer) == {P: E.COORDINATOR_NOT_AVAILABLE}
    run.store.held = None
    assert now(end(run, is_commit)) is E.NONE
    shard = run.coordinator.runtime.shards[INDEX]
    assert shard.offsets.open_transactions == {7: {"g"}}  # in flight
    outcome.callback(0)
    assert shard.offsets.open_transactions == {}


def test_a_marker_that_timed_out_counts_when_it_is_decided():
    """Answered with an error, so that it comes again; memory follows the log."""
    run = BrokerRun()
    now(txn_commit(run, one(5)))
    run.store.held = []
    answer = end(run, True)
    assert waiting(answer) and stable(run) is E.UNSTABLE_OFFSET_COMMIT
    (outcome,) = run.store.time_out()
    assert now(answer) is E.REQUEST_TIMED_OUT
    outcome.callback(1)
    assert stable(run) == 5
    run.store.held = None
    assert now(end(run, True)) is E.NONE and stable(run) == 5


@pytest.mark.parametrize("code", [E.INVALID_PRODUCER_EPOCH, E.TRANSACTION_COORDINATOR_FENCED])
def test_a_marker_that_is_refused_ends_nothing(code):
    run = BrokerRun()
    now(txn_commit(run, one(5)))
    run.store.refuse = code
    assert now(end(run, True)) is code and stable(run) is E.UNSTABLE_OFFSET_COMMIT


def test_a_marker_for_a_partition_that_is_not_served_here():
    """NOT_LEADER_OR_FOLLOWER, also while it is read: the transaction's coordinator tries again."""
    run = BrokerRun(lead=False)
    assert now(end(run, True)) is E.NOT_LEADER_OR_FOLLOWER
    run.store.commits[INDEX] = Deferred()
    run.lead_all()
    assert now(end(run, True)) is E.NOT_LEADER_OR_FOLLOWER
    run.store.commits[INDEX].callback(True)
    run.settle()
    assert now(end(run, True)) is E.NONE
    run.coordinator.runtime.unload(INDEX)
    assert now(end(run, True)) is E.NOT_LEADER_OR_FOLLOWER


def test_a_later_plain_commit_outlives_the_marker():
    run = BrokerRun()
    now(txn_commit(run, one(5)))
    now(run.commit(one(9)))
    assert now(end(run, True)) is E.NONE and stable(run) == 9


def test_a_long_commit_and_its_marker_let_others_be_served(monkeypatch):
    """Both enter memory in steps; while some have not, they are unstable."""
    for module in (group_offsets, offset_metadata_manager):
        monkeypatch.setattr(module, "OFFSETS_PER_STEP", 2)
    run = BrokerRun()
    answers: list[object] = []
    txn_commit(run, *[one(4, partition) for partition in range(7)]).addCallback(answers.append)
    assert answers == []
    run.settle()
    assert answers == [{("t", p): E.NONE for p in range(7)}]
    end(run, True).addCallback(answers.append)
    assert len(answers) == 1 and 0 < len(run.fetched()) < 7
    assert {stable(run, p) for p in range(7)} == {4, E.UNSTABLE_OFFSET_COMMIT}
    run.settle()
    assert answers[1] is E.NONE
    assert run.fetched(require_stable=True) == {("t", p): 4 for p in range(7)}


# who may
def test_a_producer_that_names_no_member_commits_in_any_state():
    """As before KIP-447; a plain commit of nobody is refused."""
    run = BrokerRun()
    run.stable()
    assert now(txn_commit(run, one(5))) == {P: E.NONE}
    with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
        run.commit(one(5))


def test_a_member_of_an_older_generation_is_fenced():
    """KIP-447: member, generation and static member are checked."""
    run = BrokerRun()
    member = run.stable(instance="i")
    good = {"member": member, "generation": 1, "instance": "i"}
    assert now(txn_commit(run, one(5), **good)) == {P: E.NONE}
    for change, error in (
        ({"generation": 0}, "ILLEGAL_GENERATION"),
        ({"member": "stranger", "instance": None}, "UNKNOWN_MEMBER_ID"),
        ({"member": "stranger"}, "FENCED_INSTANCE_ID"),
        ({"instance": "nobody"}, "UNKNOWN_MEMBER_ID"),
        ({"generation": -1}, "ILLEGAL_GENERATION"),
    ):
        with pytest.raises(BrokerError, match=error):
            now(txn_commit(run, one(6), **{**good, **change}))
    with pytest.raises(BrokerError, match="ILLEGAL_GENERATION"):
        now(txn_commit(run, one(6), member="m", generation=1, group="unknown"))
    with pytest.raises(BrokerError, match="INVALID_GROUP_ID"):
        txn_commit(run, one(6), group="")


def test_a_member_commits_its_transaction_while_the_group_completes_a_rebalance():
    """A plain commit is sent back to the rebalance then; a transaction's is not."""
    run = BrokerRun()
    joined: list[JoinAnswer] = []
    run.join().addCallback(joined.append)
    run.settle()
    how = {"member": joined[0].member_id, "generation": joined[0].generation}
    with pytest.raises(BrokerError, match="REBALANCE_IN_PROGRESS"):
        run.commit(one(5), **how)
    assert now(txn_commit(run, one(5), **how)) == {P: E.NONE}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
    ],
)
def test_what_is_not_verified_is_not_written(code, told):
    run = BrokerRun()
    request = CommitRequest("g", offsets=(one(5),), producer=PRODUCER)
    with pytest.raises(BrokerError, match=told.name):
        now(run.coordinator.commit_transactional(request, lambda index: fail(BrokerError(code))))
    assert run.store.logs == {} and run.listed() == []


def test_a_group_that_moves_while_its_transaction_is_verified_is_not_written():
    run = BrokerRun()
    verified: Deferred[Guard] = Deferred()
    request = CommitRequest("g", offsets=(one(5),), producer=PRODUCER)
    answer = run.coordinator.commit_transactional(request, lambda index: verified)
    run.coordinator.runtime.unload(INDEX)
    verified.callback(GUARD)
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        now(answer)
    assert run.store.logs == {}


# what removes them
def test_a_deleted_group_takes_its_pending_offsets_along():
    """Tombstones for them, too: the marker that comes later brings nothing back."""
    run = BrokerRun()
    now(txn_commit(run, one(5)))
    assert now(run.coordinator.delete_group("g")) is E.NONE
    assert now(end(run, True)) is E.NONE
    assert run.listed() == [] == run.restarted().listed()


def test_offsets_of_an_open_transaction_do_not_expire():
    """Nor does their group; after the marker they do."""
    run = BrokerRun(offsets_retention_ms=1000, retention_check_interval_ms=500)
    now(run.commit(one(1)))
    now(txn_commit(run, one(5)))
    run.pass_ms(5000)
    assert run.fetched() == {P: 1}
    assert now(end(run, False)) is E.NONE
    run.pass_ms(1000)
    assert run.listed() == []
