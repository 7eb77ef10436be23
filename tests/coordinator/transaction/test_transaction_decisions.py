"""The state table, row by row, and the stories of KIP-98, KIP-360 and KIP-890."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_broker.coordinator.transaction.transaction_decisions import (
    NEEDS_PRODUCER_ID,
    ProducerIdAndEpoch,
    add_partitions,
    begin_producer,
    end_transaction,
    fence_and_abort,
    verify_partitions,
)
from twisted_broker.coordinator.transaction.transaction_metadata import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    EXHAUSTED_EPOCH,
    LAST_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_EPOCH_FENCE,
    VALID_PREVIOUS_STATES,
    InvalidTransition,
    TransactionMetadata,
    TransactionState,
    TxnTransitMetadata,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import BrokerError, ErrorCode

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOW = 1_000_000
FENCED, INVALID, CONCURRENT, MAPPING = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


def metadata(state: TransactionState = EMPTY, epoch: int = 5, **more: Any) -> TransactionMetadata:
    values: dict[str, Any] = {
        "timeout_ms": 60_000,
        "last_update_ms": NOW,
        "producer_epoch": epoch,
        "state": state,
        "partitions": [T0] if state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT) else [],
        "start_ms": NOW if state is not EMPTY else -1,
    }
    return TransactionMetadata("id", 10, **values | more)


def producer(epoch: int = 5, producer_id: int = 10) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id, epoch)


def outcome(decide: Any, *args: Any, **more: Any) -> Any:
    """The state it leads to, the refusal, or what else it says."""
    try:
        step = decide(*args, **more)
    except BrokerError as refusal:
        return refusal.code
    return step.state if isinstance(step, TxnTransitMetadata) else step


def take(of: TransactionMetadata, step: Any) -> TxnTransitMetadata:
    assert isinstance(step, TxnTransitMetadata)
    of.complete(step)
    return step


# the table itself
def test_every_pair_of_states() -> None:
    """What the table has is taken, anything else is refused; DEAD and the fence are never
    written.
    """
    for before in TransactionState:
        for after in TransactionState:
            of = metadata(before)
            transit = of.unchanged()
            if before in VALID_PREVIOUS_STATES[after]:
                of._check(after)
            else:
                with pytest.raises(InvalidTransition):
                    of._check(after)
            assert of.unchanged() == transit


def test_pending_comes_first() -> None:
    """Between a decision and its record nothing else is decided."""
    of = metadata()
    add_partitions(of, producer(), [T0], 0, NOW)
    assert of.state is EMPTY and not of.partitions
    assert outcome(add_partitions, of, producer(), [T1], 0, NOW) is CONCURRENT
    assert outcome(begin_producer, of, 1000, None, NOW) is CONCURRENT
    assert outcome(end_transaction, of, producer(), True, 0, NOW) is CONCURRENT
    assert outcome(end_transaction, of, producer(), True, 2, NOW) is CONCURRENT
    assert outcome(fence_and_abort, of, 2, NOW) is CONCURRENT
    with pytest.raises(InvalidTransition):
        of.prepare_dead()
    of.withdraw()
    assert outcome(add_partitions, of, producer(), [T1], 0, NOW) is ONGOING


def test_complete_only_what_is_pending() -> None:
    of = metadata(ONGOING)
    step = of.prepare_abort_or_commit(PREPARE_COMMIT, 0, NOW)
    of.withdraw()
    with pytest.raises(InvalidTransition):
        of.complete(step)
    assert of.state is ONGOING


@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_markers_only_when_prepared(state: TransactionState) -> None:
    with pytest.raises(InvalidTransition):
        metadata(state).marker_written(T0)


@pytest.mark.parametrize("state", [DEAD, PREPARE_EPOCH_FENCE])
def test_states_that_are_never_written(state: TransactionState) -> None:
    """A log that holds one is damaged: no answer but an error, and no step from there."""
    of = metadata(state)
    unknown = ErrorCode.UNKNOWN_SERVER_ERROR
    assert outcome(begin_producer, of, 1000, None, NOW) is unknown
    assert outcome(add_partitions, of, producer(), [T0], 0, NOW) is unknown
    assert outcome(end_transaction, of, producer(), False, 0, NOW) is unknown
    assert outcome(end_transaction, of, producer(), False, 2, NOW) is unknown


# InitProducerId
@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_a_new_instance_raises_the_epoch(state: TransactionState) -> None:
    of = metadata(state, last_producer_epoch=4)
    step = take(of, begin_producer(of, 1234, None, NOW + 1))
    assert (step.state, step.producer_id, step.producer_epoch) == (EMPTY, 10, 6)
    assert (step.last_producer_epoch, step.timeout_ms, step.start_ms) == (-1, 1234, -1)
    assert step.last_update_ms == NOW + 1


def test_the_first_epoch_is_zero() -> None:
    of = metadata(epoch=-1)
    assert take(of, begin_producer(of, 1000, None, NOW)).producer_epoch == 0


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_init_waits_for_the_markers(state: TransactionState) -> None:
    assert outcome(begin_producer, metadata(state), 1000, None, NOW) is CONCURRENT


def test_init_while_a_transaction_is_open() -> None:
    """It is aborted first; the one that knows an old epoch is fenced by the abort's raise."""
    of = metadata(ONGOING)
    assert begin_producer(of, 1000, None, NOW) is None
    assert of.pending is None
    assert outcome(begin_producer, of, 1000, producer(1, 99), NOW) is FENCED


def test_goes_on_after_an_error() -> None:
    """KIP-360: with the epoch that it knows, raised; when it comes again, the same answer."""
    of = metadata()
    step = take(of, begin_producer(of, 1000, producer(5), NOW))
    assert (step.producer_epoch, step.last_producer_epoch) == (6, 5)
    again = take(of, begin_producer(of, 1000, producer(5), NOW))
    assert (again.producer_epoch, again.last_producer_epoch) == (6, 5)
    assert outcome(begin_producer, of, 1000, producer(4), NOW) is FENCED
    assert outcome(begin_producer, of, 1000, producer(7), NOW) is FENCED


def test_a_new_instance_fences_the_one_that_goes_on() -> None:
    of = metadata()
    take(of, begin_producer(of, 1000, producer(5), NOW))
    take(of, begin_producer(of, 1000, None, NOW))
    assert of.producer_epoch == 7
    for epoch in (5, 6):
        assert outcome(begin_producer, of, 1000, producer(epoch), NOW) is FENCED


def test_another_producer_id_is_fenced() -> None:
    assert outcome(begin_producer, metadata(), 1000, producer(5, 11), NOW) is FENCED


def test_after_expiry_any_producer_id_goes_on() -> None:
    """Its id expired and a new one was made: what it knew does not matter."""
    of = metadata(epoch=-1)
    step = take(of, begin_producer(of, 1000, producer(3, 77), NOW))
    assert (step.producer_id, step.producer_epoch, step.last_producer_epoch) == (10, 0, -1)


def test_an_exhausted_epoch_gets_a_new_id() -> None:
    of = metadata(epoch=EXHAUSTED_EPOCH)
    assert begin_producer(of, 1000, None, NOW) is NEEDS_PRODUCER_ID
    assert of.pending is None
    step = take(of, begin_producer(of, 1000, None, NOW, 20))
    assert (step.producer_id, step.producer_epoch) == (20, 0)
    assert (step.previous_producer_id, step.last_producer_epoch) == (10, -1)


def test_an_exhausted_epoch_that_goes_on_may_come_again() -> None:
    of = metadata(epoch=EXHAUSTED_EPOCH)
    take(of, begin_producer(of, 1000, producer(EXHAUSTED_EPOCH), NOW, 20))
    assert (of.producer_id, of.producer_epoch, of.last_producer_epoch) == (20, 0, EXHAUSTED_EPOCH)
    again = take(of, begin_producer(of, 1000, producer(EXHAUSTED_EPOCH), NOW))
    assert (again.producer_id, again.producer_epoch) == (20, 0)
    assert outcome(begin_producer, of, 1000, producer(EXHAUSTED_EPOCH - 1), NOW) is FENCED


def test_the_last_raise_may_come_again() -> None:
    """The epoch is exhausted by it: no new id for the same request."""
    of = metadata(epoch=EXHAUSTED_EPOCH - 1)
    before = producer(EXHAUSTED_EPOCH - 1)
    assert take(of, begin_producer(of, 1000, before, NOW)).producer_epoch == EXHAUSTED_EPOCH
    assert take(of, begin_producer(of, 1000, before, NOW)).producer_epoch == EXHAUSTED_EPOCH
    assert of.producer_id == 10
    assert outcome(begin_producer, of, 1000, producer(3), NOW) is FENCED


# AddPartitionsToTxn
@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_the_first_partition_begins_the_transaction(state: TransactionState) -> None:
    of = metadata(state)
    step = take(of, add_partitions(of, producer(), [T0], 2, NOW + 5))
    assert (step.state, step.partitions, step.start_ms) == (ONGOING, {T0}, NOW + 5)
    assert (step.producer_epoch, step.client_transaction_version) == (5, 2)


def test_more_partitions() -> None:
    of = metadata(ONGOING)
    step = take(of, add_partitions(of, producer(), [T1], 0, NOW + 5))
    assert (step.partitions, step.start_ms, step.last_update_ms) == ({T0, T1}, NOW, NOW + 5)
    assert add_partitions(of, producer(), [T0, T1], 0, NOW) is None
    assert of.pending is None


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_no_partition_while_it_ends(state: TransactionState) -> None:
    """The late marker of the last transaction never ends the next one."""
    assert outcome(add_partitions, metadata(state), producer(), [T0], 0, NOW) is CONCURRENT
    assert outcome(verify_partitions, metadata(state), producer(), [T0]) is CONCURRENT


def test_who_may_add() -> None:
    of = metadata(ONGOING)
    for decide in (
        lambda who: outcome(add_partitions, of, who, [T0], 0, NOW),
        lambda who: outcome(verify_partitions, of, who, [T0]),
    ):
        assert decide(producer(5, 11)) is MAPPING
        assert decide(producer(4)) is FENCED
        assert decide(producer(6)) is FENCED


def test_verify() -> None:
    """A partition that is not in the transaction: the producer aborts and goes on (KIP-890)."""
    of = metadata(ONGOING)
    assert verify_partitions(of, producer(), [T0, T1]) == {
        T0: ErrorCode.NONE,
        T1: ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert verify_partitions(metadata(EMPTY), producer(), [T0]) == {
        T0: ErrorCode.TRANSACTION_ABORTABLE
    }


def test_verify_while_a_step_is_pending() -> None:
    """The answer is of what is durable: the append itself is checked again."""
    of = metadata(ONGOING)
    add_partitions(of, producer(), [T1], 0, NOW)
    for _ in range(2):
        assert verify_partitions(of, producer(), [T0, T1]) == {
            T0: ErrorCode.NONE,
            T1: ErrorCode.TRANSACTION_ABORTABLE,
        }
        of.withdraw()
        end_transaction(of, producer(), True, 0, NOW)


# EndTxn below version 2
ABORT, COMMIT = False, True
BEFORE_2 = [
    (EMPTY, ABORT, INVALID),
    (EMPTY, COMMIT, INVALID),
    (ONGOING, ABORT, PREPARE_ABORT),
    (ONGOING, COMMIT, PREPARE_COMMIT),
    (PREPARE_COMMIT, ABORT, INVALID),
    (PREPARE_COMMIT, COMMIT, CONCURRENT),
    (PREPARE_ABORT, ABORT, CONCURRENT),
    (PREPARE_ABORT, COMMIT, INVALID),
    (COMPLETE_COMMIT, ABORT, INVALID),
    (COMPLETE_COMMIT, COMMIT, None),
    (COMPLETE_ABORT, ABORT, None),
    (COMPLETE_ABORT, COMMIT, INVALID),
]


@pytest.mark.parametrize(("state", "how", "expected"), BEFORE_2)
def test_end_below_version_2(state: TransactionState, how: bool, expected: object) -> None:
    assert outcome(end_transaction, metadata(state), producer(), how, 0, NOW) is expected
    for epoch in (4, 6):
        of = metadata(state)
        assert outcome(end_transaction, of, producer(epoch), how, 0, NOW) is FENCED
    of = metadata(state)
    assert outcome(end_transaction, of, producer(5, 11), how, 0, NOW) is MAPPING


def test_end_below_version_2_keeps_the_epoch() -> None:
    of = metadata(ONGOING)
    step = take(of, end_transaction(of, producer(), COMMIT, 0, NOW + 1))
    assert (step.producer_epoch, step.partitions, step.start_ms) == (5, {T0}, NOW)
    of.marker_written(T0)
    done = take(of, of.prepare_complete(NOW + 2))
    assert (done.state, done.producer_epoch, done.partitions) == (COMPLETE_COMMIT, 5, frozenset())
    assert done.last_update_ms == NOW + 2


# EndTxn under version 2: (state, commit or abort, the epoch, outcome)
NOW_, AGAIN, LATER, OLD = 0, -1, 1, -2
UNDER_2 = [
    (EMPTY, ABORT, NOW_, PREPARE_ABORT),
    (EMPTY, ABORT, AGAIN, FENCED),
    (EMPTY, COMMIT, NOW_, INVALID),
    (EMPTY, COMMIT, AGAIN, FENCED),
    (ONGOING, ABORT, NOW_, PREPARE_ABORT),
    (ONGOING, ABORT, AGAIN, FENCED),
    (ONGOING, COMMIT, NOW_, PREPARE_COMMIT),
    (ONGOING, COMMIT, AGAIN, FENCED),
    (PREPARE_COMMIT, COMMIT, AGAIN, CONCURRENT),
    (PREPARE_COMMIT, ABORT, AGAIN, INVALID),
    (PREPARE_COMMIT, COMMIT, NOW_, FENCED),
    (PREPARE_COMMIT, ABORT, NOW_, FENCED),
    (PREPARE_ABORT, ABORT, AGAIN, CONCURRENT),
    (PREPARE_ABORT, COMMIT, AGAIN, INVALID),
    (PREPARE_ABORT, COMMIT, NOW_, FENCED),
    (PREPARE_ABORT, ABORT, NOW_, FENCED),
    (COMPLETE_COMMIT, COMMIT, AGAIN, None),
    (COMPLETE_COMMIT, ABORT, AGAIN, INVALID),
    (COMPLETE_COMMIT, COMMIT, NOW_, INVALID),
    (COMPLETE_COMMIT, ABORT, NOW_, PREPARE_ABORT),
    (COMPLETE_ABORT, ABORT, AGAIN, None),
    (COMPLETE_ABORT, COMMIT, AGAIN, INVALID),
    (COMPLETE_ABORT, COMMIT, NOW_, INVALID),
    (COMPLETE_ABORT, ABORT, NOW_, PREPARE_ABORT),
    *[
        (state, how, other, FENCED)
        for state in (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT)
        for how in (ABORT, COMMIT)
        for other in (LATER, OLD)
    ],
]


@pytest.mark.parametrize(("state", "how", "offset", "expected"), UNDER_2)
def test_end_under_version_2(
    state: TransactionState, how: bool, offset: int, expected: object
) -> None:
    of = metadata(state)
    assert outcome(end_transaction, of, producer(5 + offset), how, 2, NOW) is expected
    of = metadata(state)
    assert outcome(end_transaction, of, producer(5 + offset, 11), how, 2, NOW) is MAPPING


def test_every_transaction_has_its_epoch() -> None:
    """KIP-890: the end raises it; a request of the last transaction is fenced in the next one."""
    of = metadata(ONGOING, client_transaction_version=2)
    step = take(of, end_transaction(of, producer(5), COMMIT, 2, NOW))
    assert (step.producer_epoch, step.last_producer_epoch) == (6, 5)
    of.marker_written(T0)
    done = take(of, of.prepare_complete(NOW))
    assert (done.state, done.producer_id, done.producer_epoch) == (COMPLETE_COMMIT, 10, 6)
    assert outcome(add_partitions, of, producer(5), [T1], 2, NOW) is FENCED
    assert outcome(add_partitions, of, producer(6), [T1], 2, NOW) is ONGOING


def test_an_exhausted_epoch_ends_with_a_new_id() -> None:
    """The markers carry the last epoch of the old id; the producer goes on with the new one."""
    of = metadata(ONGOING, EXHAUSTED_EPOCH, client_transaction_version=2)
    last = producer(EXHAUSTED_EPOCH)
    assert end_transaction(of, last, COMMIT, 2, NOW) is NEEDS_PRODUCER_ID
    assert of.pending is None
    step = take(of, end_transaction(of, last, COMMIT, 2, NOW, 20))
    assert (step.producer_id, step.producer_epoch, step.next_producer_id) == (10, LAST_EPOCH, 20)
    assert outcome(end_transaction, of, last, COMMIT, 2, NOW) is CONCURRENT
    of.marker_written(T0)
    done = take(of, of.prepare_complete(NOW))
    assert (done.producer_id, done.producer_epoch, done.next_producer_id) == (20, 0, -1)
    assert done.previous_producer_id == 10
    assert end_transaction(of, last, COMMIT, 2, NOW) is None
    assert outcome(end_transaction, of, last, ABORT, 2, NOW) is INVALID
    assert outcome(add_partitions, of, producer(0, 20), [T0], 2, NOW) is ONGOING


def test_an_abort_of_nothing_under_version_2() -> None:
    """The client may have lost the answer of its first append: its abort must raise the epoch."""
    of = metadata()
    step = take(of, end_transaction(of, producer(), ABORT, 2, NOW + 3))
    assert (step.partitions, step.start_ms, step.producer_epoch) == (frozenset(), NOW + 3, 6)
    done = take(of, of.prepare_complete(NOW + 4))
    assert (done.state, done.producer_epoch) == (COMPLETE_ABORT, 6)


# timeouts and fences
@pytest.mark.parametrize(("version", "last_epoch", "written"), [(0, -1, 0), (1, -1, 0), (2, 5, 2)])
def test_a_fence_raises_the_epoch(version: int, last_epoch: int, written: int) -> None:
    """`written`: version 1 is in no record, as `endTransactionWithTV1` of Kafka's coordinator."""
    of = metadata(ONGOING, last_producer_epoch=3)
    step = take(of, fence_and_abort(of, version, NOW))
    assert (step.state, step.producer_epoch) == (PREPARE_ABORT, 6)
    assert step.last_producer_epoch == last_epoch
    assert step.client_transaction_version == written
    for how in (ABORT, COMMIT):
        assert outcome(end_transaction, of, producer(5), how, 0, NOW) is FENCED
    of.marker_written(T0)
    take(of, of.prepare_complete(NOW))
    assert (of.state, of.producer_epoch) == (COMPLETE_ABORT, 6)
    assert outcome(add_partitions, of, producer(5), [T0], 0, NOW) is FENCED


def test_a_fence_of_the_last_epoch() -> None:
    of = metadata(ONGOING, EXHAUSTED_EPOCH)
    take(of, fence_and_abort(of, 1, NOW))
    assert of.producer_epoch == LAST_EPOCH
    of.marker_written(T0)
    take(of, of.prepare_complete(NOW))
    assert take(of, begin_producer(of, 1, None, NOW, 20)).producer_id == 20

    of = metadata(ONGOING, EXHAUSTED_EPOCH)
    assert fence_and_abort(of, 2, NOW) is NEEDS_PRODUCER_ID
    take(of, fence_and_abort(of, 2, NOW, 20))
    of.marker_written(T0)
    take(of, of.prepare_complete(NOW))
    assert (of.producer_id, of.producer_epoch) == (20, 0)


@pytest.mark.parametrize("state", [s for s in TransactionState if s is not ONGOING])
def test_only_an_open_transaction_is_fenced(state: TransactionState) -> None:
    assert outcome(fence_and_abort, metadata(state), 2, NOW) is INVALID


def test_when_it_is_timed_out() -> None:
    of = metadata(ONGOING)
    assert not of.is_timed_out(NOW + 60_000)
    assert of.is_timed_out(NOW + 60_001)
    of.pending = PREPARE_COMMIT
    assert not of.is_timed_out(NOW + 60_001)
    for state in TransactionState:
        if state is not ONGOING:
            assert not metadata(state).is_timed_out(NOW + 10**9)
    assert not metadata(ONGOING, timeout_ms=2**31 - 1).is_timed_out(NOW + 2**40)


def test_when_it_is_expired() -> None:
    """Never with a transaction open."""
    for state in TransactionState:
        of = metadata(state)
        at_rest = state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
        assert of.is_expired(NOW + 1000, 1000) is at_rest
        assert not of.is_expired(NOW + 999, 1000)
        of.pending = ONGOING
        assert not of.is_expired(NOW + 1000, 1000)


@pytest.mark.parametrize("version", [0, 2])
def test_a_clock_that_goes_back(version: int) -> None:
    """`testTolerateTimeShiftDuringAddPartitions` and others of Kafka's `TransactionMetadataTest`:
    each step is taken, with its own time.
    """
    of, earlier = metadata(EMPTY), NOW - 10**6
    assert take(of, begin_producer(of, 60_000, None, NOW - 1)).last_update_ms == NOW - 1
    assert take(of, add_partitions(of, producer(6), [T0], version, NOW - 2)).start_ms == NOW - 2
    more = take(of, add_partitions(of, producer(6), [T1], version, earlier))
    assert (more.start_ms, more.last_update_ms) == (NOW - 2, earlier)
    assert not of.is_timed_out(earlier)
    step = take(of, end_transaction(of, producer(6), True, version, earlier))
    assert (step.state, step.start_ms) == (PREPARE_COMMIT, NOW - 2)
    of.marker_written(T0)
    of.marker_written(T1)
    done = take(of, of.prepare_complete(earlier - 1))
    assert (done.state, done.last_update_ms) == (COMPLETE_COMMIT, earlier - 1)
    assert not of.is_expired(earlier - 2, 1000)


def test_no_epoch_is_raised_beyond_the_exhausted_one() -> None:
    """`testBumpEpochNotAllowedIfEpochsExhausted` of Kafka's `TransactionMetadataTest`."""
    of = metadata(epoch=EXHAUSTED_EPOCH)
    with pytest.raises(InvalidTransition):
        of.prepare_increment_producer_epoch(1000, None, NOW)
    assert (of.pending, of.producer_epoch) == (None, EXHAUSTED_EPOCH)


def test_a_fence_at_the_last_epoch_of_all() -> None:
    """`testFenceProducerNotAllowedIfItWouldOverflow` of Kafka's `TransactionMetadataTest`: the
    epoch stays, and the transaction ends all the same.
    """
    of = metadata(ONGOING, LAST_EPOCH)
    step = take(of, fence_and_abort(of, 0, NOW))
    assert (step.state, step.producer_epoch, LAST_EPOCH) == (PREPARE_ABORT, 32767, 32767)


def test_the_states_of_kafka() -> None:
    """`testTransactionStateIdAndNameMapping` of Kafka's `TransactionMetadataTest`."""
    assert {int(state): state.text for state in TransactionState} == {
        0: "Empty",
        1: "Ongoing",
        2: "PrepareCommit",
        3: "PrepareAbort",
        4: "CompleteCommit",
        5: "CompleteAbort",
        6: "Dead",
        7: "PrepareEpochFence",
    }


# any order of requests
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["begin", "go on", "add", "end", "fence", "marker", "complete", "withdraw"]
        ),
        st.integers(-2, 1),
        st.booleans(),
        st.sampled_from([0, 2]),
    ),
    max_size=40,
)


@settings(max_examples=50, deadline=None, database=None, derandomize=True)
@given(REQUESTS, st.sampled_from([-1, 0, EXHAUSTED_EPOCH - 2, EXHAUSTED_EPOCH]))
def test_no_order_of_requests_breaks_an_invariant(
    requests: list[tuple[str, int, bool, int]], first_epoch: int
) -> None:
    """Epochs never go down under one id nor beyond the last one, a refusal changes nothing, and a
    transaction is complete only when no partition waits.
    """
    of = metadata(epoch=first_epoch)
    step: TxnTransitMetadata | None = None
    for name, offset, flag, version in requests:
        before, pending = of.unchanged(), of.pending
        who = ProducerIdAndEpoch(of.producer_id, of.producer_epoch + offset)
        found: Any = None
        try:
            if name in ("begin", "go on"):
                found = begin_producer(of, 1, who if name == "go on" else None, NOW, 99)
            elif name == "add":
                found = add_partitions(of, who, [T0 if flag else T1], version, NOW)
            elif name == "end":
                found = end_transaction(of, who, flag, version, NOW, 99)
            elif name == "fence":
                found = fence_and_abort(of, version, NOW, 99)
            elif name == "marker" and of.state in (PREPARE_COMMIT, PREPARE_ABORT):
                of.marker_written(T0 if flag else T1)
                if not of.partitions and of.pending is None:
                    step = of.prepare_complete(NOW)
            elif name == "complete" and step is not None and of.pending is not None:
                of.complete(step)
            elif name == "withdraw":
                of.withdraw()
        except BrokerError:
            assert (of.unchanged(), of.pending) == (before, pending)
        if isinstance(found, TxnTransitMetadata):
            step = found
        if of.producer_id == before.producer_id:
            assert before.producer_epoch <= of.producer_epoch <= LAST_EPOCH
        else:
            assert (of.producer_id, of.producer_epoch) == (99, 0)
        if of.state in (COMPLETE_COMMIT, COMPLETE_ABORT, EMPTY):
            assert not of.partitions
