"""Transactional ids through requests, storage, markers, time and failover."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import capturedLogs, formatEvent

from tests.coordinator.memory_store import MemoryStore
from tests.coordinator.transaction.transaction_run import (
    OWN,
    T0,
    T1,
    T2,
    Cluster,
    Held,
    TransactionRun,
    image_of,
)
from twisted_broker import turns as turns_module
from twisted_broker.coordinator.bucket_dict import EACH
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.transaction import transaction_state_manager
from twisted_broker.coordinator.transaction.transaction_coordinator import END_WAIT_MS, NO_PRODUCER
from twisted_broker.coordinator.transaction.transaction_decisions import ProducerIdAndEpoch
from twisted_broker.coordinator.transaction.transaction_log import batch_of, transaction_record
from twisted_broker.coordinator.transaction.transaction_metadata import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EXHAUSTED_EPOCH,
    LAST_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionMetadata,
)
from twisted_broker.image.metadata_image import MetadataDelta, MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import OutOfDescriptors
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import iterate_batches

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


@pytest.fixture(params=[0, 1, 2])
def run(request: Any) -> TransactionRun:
    """At each level of transaction.version."""
    return TransactionRun(version=request.param)


# the ordinary way
def test_a_transaction_below_version_2() -> None:
    run = TransactionRun()
    producer = run.init()
    assert producer == ProducerIdAndEpoch(1001, 0)
    assert run.add(producer, T0, T1) is NONE
    assert run.coordinator.verify_partitions("id", producer, [T0, T2]) == {
        T0: NONE,
        T2: ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert run.end(producer) == NO_PRODUCER
    assert run.logged() == [EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT]
    assert {s.leader.port: s.partitions for s in run.cluster.sent} == {9091: [T0], 9092: [T1]}
    marker = run.cluster.sent[0].request.markers[0]
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (1001, 0, True)
    assert (marker.coordinator_epoch, marker.transaction_version) == (0, 0)
    assert run.add(producer, T2) is NONE
    assert run.end(producer, False) == NO_PRODUCER
    assert run.logged()[4:] == [ONGOING, PREPARE_ABORT, COMPLETE_ABORT]
    assert not run.cluster.sent[-1].request.markers[0].transaction_result


def test_a_transaction_under_version_2() -> None:
    """Each has its epoch, which its markers carry, and its end answers with the next one."""
    run = TransactionRun(version=2)
    producer = run.begun(T0, client=2)
    after = run.end(producer, client=2)
    assert after == ProducerIdAndEpoch(1001, 1)
    marker = run.cluster.sent[0].request.markers[0]
    assert (marker.producer_epoch, marker.transaction_version) == (1, 2)
    assert run.end(producer, client=2) == after  # it comes again
    assert run.end(producer, False, client=2) is ErrorCode.INVALID_TXN_STATE
    assert run.add(producer, T0, client=2) is ErrorCode.PRODUCER_FENCED  # a late request
    assert run.add(after, T1, client=2) is NONE
    assert run.end(after, False, client=2) == ProducerIdAndEpoch(1001, 2)


def test_an_abort_of_nothing() -> None:
    """No marker is to be written, and the epoch is raised."""
    run = TransactionRun(version=2)
    producer = run.init()
    assert run.end(producer, False, client=2) == ProducerIdAndEpoch(1001, 1)
    assert run.logged() == [EMPTY, PREPARE_ABORT, COMPLETE_ABORT] and not run.cluster.sent


def test_partitions_that_are_there_cost_no_record(run: TransactionRun) -> None:
    producer = run.begun(T0, T1)
    before = len(run.logged())
    assert run.add(producer, T1) is NONE
    assert len(run.logged()) == before


def test_an_id_that_is_too_long_for_a_record_is_refused_and_not_kept() -> None:
    """A request's string may be longer than a record's, whose length has 16 bits."""
    run = TransactionRun()
    for name in ("x" * 32768, "\u20ac" * 10923):
        assert run.init(name) is ErrorCode.INVALID_REQUEST
    assert all(not shard.transactions for shard in run.coordinator.states.shards.values())
    assert run.init("x" * 32767) == ProducerIdAndEpoch(1001, 0)


# who is served
def test_another_coordinator(run: TransactionRun) -> None:
    producer = run.begun()
    run.coordinator.states.unload(partition_for("id", 3), 1)
    assert run.init() is NOT_COORDINATOR
    assert run.add(producer) is NOT_COORDINATOR
    assert run.end(producer) is NOT_COORDINATOR
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        run.coordinator.describe("id")


def test_an_unload_of_an_earlier_epoch_changes_nothing(run: TransactionRun) -> None:
    run.lead_all(3)
    run.coordinator.states.unload(partition_for("id", 3), 2)
    assert isinstance(run.init(), ProducerIdAndEpoch)


def test_while_it_is_loaded() -> None:
    run = TransactionRun()
    producer = run.begun()
    run.store.commits = {index: Deferred() for index in range(3)}
    after = run.successor()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert after.init() is loading and after.add(producer) is loading
    assert after.end(producer) is loading
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        after.coordinator.describe("id")
    assert after.coordinator.states.is_loading
    for commit in after.store.commits.values():
        commit.callback(True)
    after.settle()
    assert not after.coordinator.states.is_loading
    assert after.end(producer) == NO_PRODUCER


def test_a_partition_led_elsewhere_before_it_was_committed_is_not_served() -> None:
    run = TransactionRun()
    run.begun()
    run.store.commits = {index: Deferred() for index in range(3)}
    after = run.successor()
    for commit in after.store.commits.values():
        commit.callback(False)
    after.settle()
    assert after.init() is not None and not isinstance(after.init(), ProducerIdAndEpoch)


def test_what_does_not_exist(run: TransactionRun) -> None:
    producer = ProducerIdAndEpoch(1, 0)
    mapping, invalid = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_REQUEST
    assert run.add(producer) is mapping and run.end(producer) is mapping
    for work in (run.init(""), run.add(producer, name=""), run.end(producer, name="")):
        assert work is invalid


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_are_bounded(timeout_ms: int) -> None:
    run = TransactionRun()
    assert run.init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert run.init(timeout_ms=900_000) == ProducerIdAndEpoch(1001, 0)


# producers
def test_a_second_instance_fences_the_first(run: TransactionRun) -> None:
    first, second = run.init(), run.init()
    assert second == ProducerIdAndEpoch(first.producer_id, first.epoch + 1)
    assert run.add(first) is ErrorCode.PRODUCER_FENCED
    assert run.end(first) is ErrorCode.PRODUCER_FENCED
    assert run.init(expected=first) is ErrorCode.PRODUCER_FENCED
    assert run.add(second) is NONE


def test_a_second_instance_aborts_what_is_open(run: TransactionRun) -> None:
    """It comes again until the markers are written; the first one is fenced at once."""
    run.cluster.answers = False
    first = run.begun(T0)
    assert run.init() is CONCURRENT
    assert run.logged()[-1] is PREPARE_ABORT
    assert run.end(first) in (ErrorCode.PRODUCER_FENCED, CONCURRENT)
    assert run.init() is CONCURRENT
    marker = run.cluster.sent[0].request.markers[0]
    assert (marker.producer_epoch, marker.transaction_result) == (first.epoch + 1, False)
    run.cluster.sent[0].answer()
    assert run.logged()[-1] is COMPLETE_ABORT
    second = run.init()
    assert second == ProducerIdAndEpoch(first.producer_id, first.epoch + 2)
    assert run.end(first) is ErrorCode.PRODUCER_FENCED


def test_init_waits_for_the_markers(run: TransactionRun) -> None:
    run.cluster.answers = False
    producer = run.begun(T0)
    run.end(producer)
    assert run.init() is CONCURRENT and run.add(producer) is CONCURRENT
    run.cluster.sent[0].answer()
    assert isinstance(run.init(), ProducerIdAndEpoch)


def test_the_next_transaction_waits_for_the_markers_of_the_one_before(run: TransactionRun) -> None:
    """AddPartitionsToTxn and AddOffsetsToTxn right after EndTxn: librdkafka pauses 20 and 100 ms
    when it gets CONCURRENT_TRANSACTIONS, for a marker that takes a millisecond.
    """
    run.cluster.answers = False
    producer = run.begun(T0)
    run.end(producer)
    answer = run.add_waiting(producer, T2)
    assert answer == []
    run.cluster.sent[0].answer()
    run.settle()
    assert answer == [ErrorCode.NONE] and run.metadata().partitions == {T2}
    assert run.metadata().state is ONGOING
    run.pass_ms(2 * END_WAIT_MS)
    assert answer == [ErrorCode.NONE] and run.coordinator._until_complete == {}


def test_who_waits_for_markers_is_answered_in_any_case(run: TransactionRun) -> None:
    """When they take long, when the broker stops, when the partition is led elsewhere; a producer
    that is fenced does not wait.
    """
    run.cluster.answers = False
    producer = run.begun(T0)
    run.end(producer)
    fenced = ProducerIdAndEpoch(producer.producer_id, producer.epoch - 1)
    assert run.add_waiting(fenced) == [CONCURRENT]
    answers = [run.add_waiting(producer), run.add_waiting(producer)]
    run.pass_ms(END_WAIT_MS - 1)
    assert answers == [[], []]
    run.pass_ms(1)
    assert answers == [[CONCURRENT], [CONCURRENT]] and run.coordinator._until_complete == {}
    late = run.add_waiting(producer)
    run.successor()
    run.pass_ms(END_WAIT_MS)
    assert late == [ErrorCode.NOT_COORDINATOR]
    run.lead_all(run.epoch + 2)
    last = run.add_waiting(producer)
    run.coordinator.stop()
    run.settle()
    assert len(last) == 1 and run.coordinator._until_complete == {}


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_connection_may_go_while_its_client_waits_for_markers(
    run: TransactionRun, is_complete: bool
) -> None:
    """Nothing of the request is left behind, and nothing goes wrong when its time is over."""
    run.cluster.answers = False
    producer = run.begun(T0)
    run.end(producer)
    calls = len(run.clock.getDelayedCalls())
    waiting = ensureDeferred(run.coordinator.add_partitions("id", producer, (T2,), waits=True))
    other = run.add_waiting(producer, T2)
    waiting.addErrback(lambda failure: failure.trap(CancelledError)).cancel()
    assert len(run.clock.getDelayedCalls()) == calls + 1
    if is_complete:
        run.cluster.sent[0].answer()
        run.settle()
    run.pass_ms(END_WAIT_MS)
    assert other == [ErrorCode.NONE if is_complete else CONCURRENT]
    assert run.coordinator._until_complete == {}


def test_an_answer_that_was_lost(run: TransactionRun) -> None:
    """KIP-360: the producer goes on with what it knows, and may come again."""
    producer = run.init()
    again = run.init(expected=producer)
    assert again == ProducerIdAndEpoch(producer.producer_id, 1)
    assert run.init(expected=producer) == again


def test_an_answer_that_was_lost_with_its_coordinator(run: TransactionRun) -> None:
    """The epoch before is not in the log: the next coordinator cannot know that it comes again."""
    producer = run.init()
    again = run.init(expected=producer)
    after = run.successor()
    assert after.init(expected=producer) is ErrorCode.PRODUCER_FENCED
    assert after.init(expected=again) == ProducerIdAndEpoch(producer.producer_id, 2)


def test_two_instances_begin_at_once_at_an_exhausted_epoch() -> None:
    """Both wait for a producer id: the first one's replaces the id, the second one's is left."""
    run = TransactionRun()
    run.init()
    run.metadata().producer_epoch = EXHAUSTED_EPOCH
    run.waiting_ids = []
    answers: list[Any] = []
    for _ in range(2):
        ensureDeferred(run.coordinator.init_producer_id("id", 1000)).addBoth(answers.append)
    first, second = run.waiting_ids
    first.callback(7)
    second.callback(8)
    assert answers == [ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(7, 1)]
    assert run.add(answers[0]) is ErrorCode.PRODUCER_FENCED and run.add(answers[1]) is NONE


def test_an_exhausted_epoch_gets_a_new_id(run: TransactionRun) -> None:
    run.init()
    run.metadata().producer_epoch = EXHAUSTED_EPOCH
    assert run.init() == ProducerIdAndEpoch(1002, 0)
    assert run.add(ProducerIdAndEpoch(1001, EXHAUSTED_EPOCH)) is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


def test_an_exhausted_epoch_at_the_end_of_a_transaction() -> None:
    """The markers carry the last epoch; the producer goes on with a new id, also after a
    failover between the two.
    """
    run = TransactionRun(version=2)
    run.init()
    run.metadata().producer_epoch = EXHAUSTED_EPOCH
    last = ProducerIdAndEpoch(1001, EXHAUSTED_EPOCH)
    run.add(last, T0, client=2)
    run.cluster.answers = False
    assert run.end(last, client=2) == ProducerIdAndEpoch(1002, 0)
    assert run.cluster.sent[0].request.markers[0].producer_epoch == LAST_EPOCH
    run.cluster.answers = True
    after = run.successor()
    assert run.cluster.sent[1].request.markers[0].producer_epoch == LAST_EPOCH
    assert after.end(last, client=2) == ProducerIdAndEpoch(1002, 0)
    assert after.add(ProducerIdAndEpoch(1002, 0), T0, client=2) is NONE


def test_no_producer_ids() -> None:
    """The controller does not answer: the client comes again."""
    run = TransactionRun(version=2)
    run.ids_fail = True
    assert run.init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not run.logged()
    run.ids_fail = False
    producer = run.begun(T0, client=2)
    run.metadata().producer_epoch = EXHAUSTED_EPOCH
    run.ids_fail = True
    last = ProducerIdAndEpoch(producer.producer_id, EXHAUSTED_EPOCH)
    assert run.end(last, client=2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert run.init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert run.metadata().pending is None
    run.ids_fail = False
    assert run.end(last, client=2).epoch == 0


def test_two_instances_begin_at_once() -> None:
    """Both wait for a producer id: one of them gets its own."""
    run = TransactionRun()
    run.waiting_ids = []
    run.store.held = []
    answers: list[Any] = []
    for _ in range(2):
        ensureDeferred(run.coordinator.init_producer_id("id", 1000)).addBoth(answers.append)
    for number, waiting in enumerate(run.waiting_ids):
        waiting.callback(7 + number)
    assert [answer.value.code for answer in answers] == [CONCURRENT]
    run.store.release()
    assert answers[1] == ProducerIdAndEpoch(7, 0)


def test_leadership_lost_while_waiting_for_a_producer_id() -> None:
    run = TransactionRun()
    run.waiting_ids = []
    answers: list[Any] = []
    ensureDeferred(run.coordinator.init_producer_id("id", 1000)).addErrback(answers.append)
    run.successor()
    run.waiting_ids[0].callback(7)
    assert [answer.value.code for answer in answers] == [NOT_COORDINATOR]


# storage
def test_nothing_is_taken_over_before_it_is_replicated(run: TransactionRun) -> None:
    producer = run.init()
    run.store.held = []
    assert run.add(producer, T0) is None
    assert run.metadata().state is EMPTY and run.add(producer, T1) is CONCURRENT
    assert run.end(producer) is CONCURRENT
    run.store.release()
    assert run.metadata().state is ONGOING
    run.store.held = []
    assert run.end(producer) is None
    assert not run.cluster.sent  # the outcome is not durable
    run.replicate()
    assert run.cluster.sent and run.metadata().state is COMPLETE_COMMIT


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_refused_append_changes_nothing(refusal: ErrorCode, expected: ErrorCode) -> None:
    run = TransactionRun()
    run.store.refuse = refusal
    assert run.init() is expected
    shards = run.coordinator.states.shards.values()
    assert not any(shard.transactions or shard.id_bytes for shard in shards)
    run.store.refuse = None
    producer = run.init()
    run.store.refuse = refusal
    assert run.add(producer) is expected
    assert (run.metadata().state, run.metadata().pending) == (EMPTY, None)
    run.store.refuse = None
    assert run.add(producer) is NONE
    run.store.refuse = refusal
    assert run.end(producer) is expected and run.init() is expected
    assert (run.metadata().state, run.metadata().pending) == (ONGOING, None)
    assert run.metadata().producer_epoch == producer.epoch
    run.store.refuse = None
    assert run.end(producer) == NO_PRODUCER


def test_an_append_that_timed_out_counts_when_it_is_replicated(run: TransactionRun) -> None:
    """It is in the log: nothing else begins until its outcome is known, then the markers
    follow.
    """
    producer = run.begun(T0)
    run.store.held = []
    answers: list[Any] = []
    ending = ensureDeferred(run.coordinator.end_transaction("id", producer, True))
    ending.addErrback(answers.append)
    (decided,) = run.store.time_out()
    assert [answer.value.code for answer in answers] == [NOT_AVAILABLE]
    run.store.held = None
    assert run.end(producer, False) is CONCURRENT and run.init() is CONCURRENT
    assert not run.cluster.sent
    decided.callback(3)
    run.settle()
    assert run.metadata().state is COMPLETE_COMMIT
    assert [sent.partitions for sent in run.cluster.sent] == [[T0]]


def test_an_append_that_timed_out_and_is_lost(run: TransactionRun) -> None:
    """Leadership went with it: the next coordinator knows what is true."""
    producer = run.begun(T0)
    run.store.held = []
    ensureDeferred(run.coordinator.end_transaction("id", producer, True)).addErrback(lambda _: None)
    (decided,) = run.store.time_out()
    run.successor()
    decided.errback(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    run.settle()
    assert not run.cluster.sent or run.cluster.sent[0].request.markers[0].coordinator_epoch == 1


def test_an_answer_after_the_unload_changes_nothing(run: TransactionRun) -> None:
    producer = run.begun(T0)
    run.store.held = []
    answers: list[Any] = []
    ending = ensureDeferred(run.coordinator.end_transaction("id", producer, True))
    ending.addErrback(answers.append)
    index = partition_for("id", 3)
    run.coordinator.states.unload(index, 1)
    run.store.release()
    assert [answer.value.code for answer in answers] == [NOT_COORDINATOR]
    assert not run.cluster.sent


def test_complete_is_appended_until_it_is_stored(run: TransactionRun) -> None:
    """Nothing else begins meanwhile."""
    run.cluster.answers = False
    producer = run.begun(T0)
    run.end(producer)
    run.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    run.cluster.sent[0].answer()
    run.pass_ms(10_000)
    assert run.metadata().state is PREPARE_COMMIT
    assert run.init() is CONCURRENT and run.add(producer) is CONCURRENT
    run.store.refuse = None
    run.pass_ms(1_000)
    assert run.logged()[-2:] == [PREPARE_COMMIT, COMPLETE_COMMIT]
    assert len(run.cluster.sent) == 1
    assert run.add(producer, T1) is NONE


def test_complete_that_timed_out_is_appended_once(run: TransactionRun) -> None:
    run.cluster.answers = False
    producer = run.begun(T0)
    run.end(producer)
    run.store.held = []
    run.cluster.sent[0].answer()
    (decided,) = run.store.time_out()
    run.store.held = None
    run.pass_ms(10_000)
    assert run.add(producer) is CONCURRENT
    decided.callback(9)
    assert run.logged()[-2:] == [PREPARE_COMMIT, COMPLETE_COMMIT]
    assert run.add(producer) is NONE


# failover
def test_one_that_cannot_be_resumed_keeps_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    run, real = TransactionRun(), TransactionMetadata.prepare_complete
    run.cluster.answers = False
    for name in ("id", "a", "d"):  # of one partition
        run.end(run.begun(T0, name=name), name=name)

    def fails_for_the_first(self: TransactionMetadata, wall_ms: int) -> Any:
        if self.transactional_id == "id":
            raise ValueError("written wrongly")
        return real(self, wall_ms)

    monkeypatch.setattr(TransactionMetadata, "prepare_complete", fails_for_the_first)
    run.cluster.answers = True
    with capturedLogs() as logged:
        later = run.successor()
    assert any("transaction of 'id' is not completed" in formatEvent(each) for each in logged)
    assert [later.logged(name)[-1] for name in ("id", "a", "d")] == [
        PREPARE_COMMIT,
        COMPLETE_COMMIT,
        COMPLETE_COMMIT,
    ]


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_coordinator_writes_the_markers(run: TransactionRun, commit: bool) -> None:
    """Under its own epoch; the one before sends nothing more."""
    run.cluster.answers = False
    producer = run.begun(T0, T1)
    run.end(producer, commit)
    sent = list(run.cluster.sent)
    run.cluster.answers = True
    after = run.successor()
    assert len(after.coordinator.states.load_times) >= 1
    again = run.cluster.sent[len(sent) :]
    assert sorted(p for each in again for p in each.partitions) == [T0, T1]
    assert {m.coordinator_epoch for each in again for m in each.request.markers} == {1}
    assert after.logged()[-1] is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    count = len(run.cluster.sent)
    for each in sent:
        each.answer({T0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    run.pass_ms(5_000)
    assert len(run.cluster.sent) == count
    assert after.logged().count(after.logged()[-1]) == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_same_broker_is_elected_again_with_a_marker_in_flight(
    run: TransactionRun, is_lost: bool
) -> None:
    """`shouldNotLoseTxnCompletionAfterLoad` of Kafka's `TransactionMarkerChannelManagerTest`. The
    answer is to a marker of the epoch before: the new one's is sent, and completes it once.
    """
    run.cluster.answers = False
    producer = run.begun(T0)
    run.end(producer)
    (old,) = run.cluster.sent
    run.lead_all(1)
    if is_lost:
        old.lose()
    else:
        old.answer()
    run.pass_ms(1_000)
    assert run.logged()[-1] is PREPARE_COMMIT and run.add(producer) is CONCURRENT
    (_, new) = run.cluster.sent
    (marker,) = new.request.markers
    assert (marker.coordinator_epoch, new.partitions) == (1, [T0])
    new.answer()
    run.pass_ms(10_000)
    assert run.logged()[-2:] == [PREPARE_COMMIT, COMPLETE_COMMIT]
    assert len(run.cluster.sent) == 2 and not run.coordinator.markers.waiting
    assert run.add(producer) is NONE


def test_an_unload_with_markers_queued_leaves_other_partitions_theirs(run: TransactionRun) -> None:
    """`shouldRemoveMarkersForTxnPartitionWhenPartitionEmigrated` of Kafka's
    `TransactionMarkerChannelManagerTest`: those of both wait for the same broker.
    """
    run.cluster.answers = False
    first, gone = "id", next(n for n in map(str, range(9)) if partition_for(n, 3) == 0)
    kept = next(n for n in map(str, range(9)) if partition_for(n, 3) == 1)
    for name in (first, gone, kept):
        run.end(run.begun(T0, name=name), name=name)
    producers = {name: run.metadata(name).producer_id for name in (gone, kept)}
    run.coordinator.states.unload(0, 1)
    run.cluster.sent[0].answer()
    run.pass_ms(1_000)
    sent = [each.producer_id for each in run.cluster.sent[1].request.markers]
    assert producers[kept] in sent and producers[gone] not in sent
    run.cluster.sent[1].answer()
    run.pass_ms(1_000)
    assert run.metadata(kept).state is COMPLETE_COMMIT and run.logged(gone)[-1] is PREPARE_COMMIT
    assert isinstance(run.init(kept), ProducerIdAndEpoch) and run.init(gone) is NOT_COORDINATOR
    assert len(run.cluster.sent) == 2 and not run.coordinator.markers.waiting


def test_an_unload_in_the_middle_of_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the partition is served, and no marker is sent."""
    monkeypatch.setattr(turns_module, "PIECES_PER_TURN", 1)
    run = TransactionRun()
    run.cluster.answers = False
    run.end(run.begun(T0))
    run.successor().coordinator.stop()
    sent, index = len(run.cluster.sent), partition_for("id", 3)
    after = TransactionRun(run.store, run.clock, run.cluster, epoch=2, lead=False)
    reads = run.store.reads
    run.store.on_read = lambda index: after.coordinator.states.unload(index, 3)
    after.coordinator.states.load(index, 2)
    after.pass_ms(5_000)
    assert run.store.reads > reads and not after.coordinator.states.shards
    assert not after.coordinator.states.is_loading and not after.coordinator.states.load_times
    assert after.init() is NOT_COORDINATOR and len(run.cluster.sent) == sent


def test_complete_that_is_refused_until_the_unload(run: TransactionRun) -> None:
    """`shouldAbortAppendToLogOnEndTxnWhenNotCoordinatorError` of Kafka's
    `TransactionMarkerChannelManagerTest`: the append knew first that the partition is led
    elsewhere.
    """
    run.cluster.answers = False
    run.end(run.begun(T0))
    run.store.refuse = ErrorCode.NOT_LEADER_OR_FOLLOWER
    run.cluster.sent[0].answer()
    assert run.coordinator.retrying == 1
    run.coordinator.states.unload(partition_for("id", 3), 1)
    run.store.refuse = None
    run.pass_ms(10_000)
    assert run.logged()[-1] is PREPARE_COMMIT and len(run.cluster.sent) == 1
    assert run.coordinator.retrying == run.coordinator.markers.waiting == 0


def test_the_next_coordinator_knows_what_is_open(run: TransactionRun) -> None:
    producer = run.begun(T0, name="open")
    done = run.begun(T1, name="done")
    run.end(done, name="done")
    start_ms = run.metadata("open").start_ms
    after = run.successor()
    assert after.metadata("open").partitions == {T0}
    assert after.metadata("open").start_ms == start_ms
    assert after.add(producer, T1, name="open") is NONE
    assert after.end(producer, name="open") == NO_PRODUCER
    assert after.end(done, name="done") == NO_PRODUCER  # comes again
    assert after.metadata("done").state is COMPLETE_COMMIT


def test_a_record_that_cannot_be_read_is_skipped() -> None:
    """The one before it counts; the others are served."""
    run = TransactionRun()
    producer = run.begun(T0)
    index = partition_for("id", 3)
    key = transaction_record("id", None, 0)[0]
    run.store.put(index, batch_of([(key, b"\0\x09rubbish")], 0))
    after = run.successor()
    assert after.end(producer) == NO_PRODUCER


def test_a_partition_that_cannot_be_read_is_not_served() -> None:
    run = TransactionRun()
    run.begun(T0)

    def broken(index: int) -> None:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)

    run.store.on_read = broken
    after = run.successor()
    assert after.init() is NOT_COORDINATOR
    after.store.on_read = lambda index: None
    after.lead_all(2)
    assert after.init() is CONCURRENT  # the open transaction is aborted first


def test_a_partition_for_which_no_descriptor_is_free_is_read_later() -> None:
    run = TransactionRun()
    run.begun(T0)

    def short(index: int) -> None:
        raise OutOfDescriptors("/d", OSError(errno.EMFILE, "Too many open files"))

    run.store.on_read = short
    after = run.successor()
    after.pass_ms(3_000)
    assert after.init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    after.store.on_read = lambda index: None
    after.pass_ms(1_000)
    assert after.init() is CONCURRENT  # the open transaction is aborted first


def test_a_restart_with_many_ids_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece decodes 64 of them, or reads 256 records."""
    monkeypatch.setattr(turns_module, "PIECES_PER_TURN", 1)
    run = TransactionRun()
    values = [
        transaction_record(
            f"id-{number}",
            TransactionMetadata(
                f"id-{number}", number, timeout_ms=1, last_update_ms=0, producer_epoch=0
            ).unchanged(),
            0,
        )
        for number in range(3000)
    ]
    run.store.put(0, batch_of(values, 0))
    after = TransactionRun(run.store, lead=False)
    after.coordinator.states.load(0, 0)
    turns = 0
    while after.coordinator.states.is_loading:
        after.clock.turn()
        turns += 1
    assert turns > 3000 // 64 + 3000 // 256
    assert len(after.coordinator.states.shards[0].transactions) == 3000


@pytest.mark.parametrize("is_elected_again", [False, True])
def test_no_piece_of_a_load_or_unload_walks_over_all_ids(
    monkeypatch: pytest.MonkeyPatch, is_elected_again: bool
) -> None:
    """Prepared ones are found on the way; what is open goes with its id, not all at the end."""
    monkeypatch.setattr(turns_module, "PIECES_PER_TURN", 1)
    monkeypatch.setattr(transaction_state_manager, "CHECKED_PER_STEP", 100)
    looked = [0]

    class Counted:
        def __contains__(self, state: object) -> bool:
            looked[-1] += 1
            return state in PREPARED

    monkeypatch.setattr(transaction_state_manager, "PREPARED", Counted())
    store, count = MemoryStore(partitions=1), 3000
    for state in (ONGOING, PREPARE_COMMIT):
        names = [f"{state.name}-{number}" for number in range(count // 2)]
        open_ones = [
            TransactionMetadata(
                name,
                7,
                timeout_ms=10**9,
                last_update_ms=0,
                producer_epoch=0,
                state=state,
                partitions=[T0],
                start_ms=0,
            )
            for name in names
        ]
        values = [transaction_record(m.transactional_id, m.unchanged(), 0) for m in open_ones]
        store.put(0, batch_of(values, 0))
    run = TransactionRun(store, lead=False)
    run.coordinator.states.load(0, 0)
    while run.coordinator.states.is_loading:
        looked.append(0)
        run.clock.turn()
    assert sum(looked) == count and max(looked) <= 100
    shard = run.coordinator.states.shards[0]
    assert (len(shard.transactions), len(shard.ongoing)) == (count, count // 2)
    assert shard.id_bytes == sum(map(len, shard.transactions))
    for ids in (shard.transactions, shard.ongoing):
        assert max(map(len, ids.parts())) <= 2 * EACH  # no dict that takes long to grow or copy
    listed = [len(part) for part in run.coordinator.listings()]
    assert sum(listed) == count and max(listed) <= 500
    if is_elected_again:
        run.coordinator.states.load(0, 1)
    else:
        run.coordinator.states.unload(0, 1)
    for _ in range(count):
        before = len(shard.ongoing)
        run.clock.turn()
        assert before - len(shard.ongoing) <= 100
    assert not shard.transactions and not shard.ongoing


# time
def test_a_transaction_that_timed_out_is_aborted(run: TransactionRun) -> None:
    producer = run.begun(T0)
    run.pass_ms(59_000)
    assert run.metadata().state is ONGOING
    run.pass_ms(12_000)
    assert run.metadata().state is COMPLETE_ABORT
    assert run.add(producer) is ErrorCode.PRODUCER_FENCED
    assert run.end(producer) is ErrorCode.PRODUCER_FENCED
    marker = run.cluster.sent[0].request.markers[0]
    assert marker.producer_epoch == producer.epoch + 1
    assert marker.transaction_version == run.metadata().client_transaction_version
    assert marker.transaction_version == (2 if run.version == 2 else 0)
    assert run.init().epoch == producer.epoch + 2


def test_a_timeout_while_the_producer_commits(run: TransactionRun) -> None:
    """What is pending goes first; the abort is tried again by the next look."""
    producer = run.begun(T0)
    run.store.held = []
    assert run.end(producer) is None
    run.pass_ms(75_000)
    run.replicate()
    run.pass_ms(75_000)
    assert run.metadata().state is COMPLETE_COMMIT


def test_a_timeout_that_cannot_be_stored_is_tried_again(run: TransactionRun) -> None:
    run.begun(T0)
    run.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    run.pass_ms(200_000)
    assert (run.metadata().state, run.metadata().producer_epoch) == (ONGOING, 0)
    run.store.refuse = None
    run.pass_ms(10_000)
    assert (run.metadata().state, run.metadata().producer_epoch) == (COMPLETE_ABORT, 1)


def test_the_next_transaction_while_a_timeout_waits_for_a_producer_id() -> None:
    """`shouldNotAcceptSmallerEpochDuringTransactionExpiration` of Kafka's
    `TransactionCoordinatorTest`, by what can happen here: the one that was open too long is
    committed meanwhile; the next one has its own time.
    """
    run = TransactionRun(version=2)
    run.init()
    run.metadata().producer_epoch = EXHAUSTED_EPOCH
    producer = ProducerIdAndEpoch(1001, EXHAUSTED_EPOCH)
    assert run.add(producer, T0) is NONE
    run.waiting_ids = []
    run.pass_ms(71_000)
    assert run.waiting_ids and run.metadata().state is ONGOING
    assert run.end(producer) == NO_PRODUCER and run.add(producer, T1) is NONE
    for number, waiting in enumerate(run.waiting_ids):
        waiting.callback(2000 + number)
    run.settle()
    assert (run.metadata().state, run.metadata().pending) == (ONGOING, None)
    assert run.end(producer) == NO_PRODUCER
    assert run.logged()[-2:] == [PREPARE_COMMIT, COMPLETE_COMMIT]


def test_another_producer_while_a_fence_waits_for_a_producer_id() -> None:
    """`shouldFailToAbortTransactionOnHandleInitPidWhenProducerEpochIsSmaller` of Kafka's
    `TransactionCoordinatorTest`: one that goes on after an error does not abort what a newer
    instance has opened meanwhile.
    """
    run = TransactionRun(version=2)
    run.init()
    run.metadata().producer_epoch = EXHAUSTED_EPOCH
    first = ProducerIdAndEpoch(1001, EXHAUSTED_EPOCH)
    assert run.add(first, T0) is NONE
    run.waiting_ids = []
    answers: list[Any] = []
    going_on: Any = ensureDeferred(run.coordinator.init_producer_id("id", 60_000, first))
    going_on.addErrback(lambda failure: failure.value.code).addCallback(answers.append)
    (waiting,), run.waiting_ids = run.waiting_ids, None
    assert run.end(first) == NO_PRODUCER
    second = run.init()
    assert second == ProducerIdAndEpoch(1002, 0) and run.add(second, T1) is NONE
    waiting.callback(2000)
    run.settle()
    assert answers == [CONCURRENT]
    assert (run.metadata().state, run.metadata().producer_epoch) == (ONGOING, 0)
    assert run.init(expected=first) is ErrorCode.PRODUCER_FENCED
    assert run.end(second, client=2) == ProducerIdAndEpoch(1002, 1)


def test_many_timeouts_at_once(run: TransactionRun) -> None:
    for number in range(60):
        run.begun(T0, name=f"id-{number}")
    run.pass_ms(71_000)
    for number in range(60):
        assert run.metadata(f"id-{number}").state is COMPLETE_ABORT


EXPIRY = {"expiration_ms": 100_000, "expiration_interval_ms": 10_000}


def test_ids_expire(run: TransactionRun) -> None:
    run = TransactionRun(version=run.version, **EXPIRY)
    producer = run.begun(T0)
    run.end(producer)
    run.pass_ms(99_000)
    assert isinstance(run.init(), ProducerIdAndEpoch)
    run.pass_ms(90_000)
    assert run.metadata()
    run.pass_ms(20_000)
    assert run.logged()[-1] is None
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        run.coordinator.describe("id")
    assert run.add(producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert not run.successor().coordinator.states.shards[partition_for("id", 3)].transactions
    # What one knew of the id before: it gets a new one.
    assert run.successor().init(expected=producer).epoch == 0


def test_ids_never_expire_with_an_open_transaction(run: TransactionRun) -> None:
    run = TransactionRun(version=run.version, abort_interval_ms=10**9, **EXPIRY)
    run.begun(T0, name="open")
    run.cluster.answers = False
    ended = run.begun(T1, name="prepared")
    run.end(ended, name="prepared")
    run.pass_ms(300_000)
    assert run.metadata("open").state is ONGOING
    assert run.metadata("prepared").state is PREPARE_COMMIT


def test_an_expiry_that_cannot_be_stored(run: TransactionRun) -> None:
    run = TransactionRun(version=run.version, **EXPIRY)
    run.init()
    run.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    run.pass_ms(150_000)
    assert run.metadata().pending is None
    run.store.refuse = None
    assert isinstance(run.init(), ProducerIdAndEpoch)
    run.pass_ms(111_000)
    assert run.logged()[-1] is None


def test_an_expiry_under_way_blocks_the_id(run: TransactionRun) -> None:
    run = TransactionRun(version=run.version, **EXPIRY)
    run.init()
    run.store.held = []
    run.pass_ms(111_000)
    assert run.init() is CONCURRENT
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        run.coordinator.describe("id")
    assert [row for some in run.coordinator.listings() for row in some] == []
    run.store.release()
    run.store.held = None
    assert run.init().epoch == 0


def test_many_ids_expire_in_batches() -> None:
    run = TransactionRun(**EXPIRY)
    for number in range(450):
        run.init(f"id-{number}")
    before = sum(run.store.ends.values())
    run.pass_ms(111_000)
    assert not any(shard.transactions for shard in run.coordinator.states.shards.values())
    assert sum(run.store.ends.values()) == before + 450


def test_tombstones_come_in_batches_that_the_partition_takes() -> None:
    """`testTransactionExpirationShouldRespectBatchSize` of Kafka's `TransactionStateManagerTest`:
    ids whose tombstones are more than max.message.bytes together; 16 KiB where it allows more.
    """
    run = TransactionRun(**EXPIRY)
    names = [f"{number:03}" + "i" * 397 for number in range(450)]
    for most_bytes, fewest in ((4096, 45), (1_048_588, 11)):
        for name in names:
            assert isinstance(run.init(name), ProducerIdAndEpoch)
        run.store.max_message_bytes = most_bytes
        before = {index: len(log) for index, log in run.store.logs.items()}
        run.pass_ms(111_000)
        assert not any(shard.transactions for shard in run.coordinator.states.shards.values())
        batches = [
            batch
            for index, log in run.store.logs.items()
            for batch in iterate_batches(bytes(log[before[index] :]))
        ]
        assert sum(batch.records_count for batch in batches) == 450
        assert max(batch.size_in_bytes for batch in batches) <= min(most_bytes, 16 * 1024)
        assert fewest <= len(batches) <= fewest + 3 + 450 // 40


def test_an_id_whose_tombstone_alone_is_too_large() -> None:
    """It keeps no other, the refusal is told once for a round, and the id can be used."""
    run = TransactionRun(**EXPIRY)
    large = "i" * 500
    index = partition_for(large, 3)
    others = [name for name in map(str, range(30)) if partition_for(name, 3) == index]
    assert others
    for name in (large, *others):
        run.init(name)
    run.store.max_message_bytes = 400
    with capturedLogs() as told:
        run.pass_ms(105_000)  # one round
    assert list(run.coordinator.states.shards[index].transactions) == [large]
    (line,) = [formatEvent(event) for event in told]
    assert "could not be removed: 1," in line and "MESSAGE_TOO_LARGE" in line
    run.store.max_message_bytes = 1_048_588
    assert run.init(large).epoch == 1


@pytest.mark.parametrize("is_offline", [False, True])
def test_an_expiry_that_one_partition_refuses(is_offline: bool) -> None:
    """`testTransactionalExpirationWithOfflineLogDir` of Kafka's `TransactionStateManagerTest`: the
    ids of the others go.
    """
    run = TransactionRun(**EXPIRY)
    for number in range(20):
        run.init(f"id-{number}")
    index = partition_for("id-0", 3)
    kept = sorted(run.coordinator.states.shards[index].transactions)
    if is_offline:
        run.store.offline = {index}
    else:
        run.store.refuse_at = {index: ErrorCode.NOT_ENOUGH_REPLICAS}
    run.pass_ms(111_000)
    shards = run.coordinator.states.shards.values()
    assert sorted(name for shard in shards for name in shard.transactions) == kept
    run.store.refuse_at, run.store.offline = {}, set()
    run.pass_ms(10_000)
    assert not any(shard.transactions for shard in shards)


# bounds
def test_ids_are_bounded() -> None:
    run = TransactionRun(max_transactional_ids=2)
    assert isinstance(run.init("a"), ProducerIdAndEpoch)
    assert isinstance(run.init("b"), ProducerIdAndEpoch)
    assert run.init("c") is NOT_AVAILABLE
    assert isinstance(run.init("a"), ProducerIdAndEpoch)


def test_bytes_of_ids_are_bounded() -> None:
    run = TransactionRun(max_id_bytes=1000)
    assert isinstance(run.init("a" * 900), ProducerIdAndEpoch)
    assert run.init("b" * 200) is NOT_AVAILABLE
    assert isinstance(run.init("b" * 100), ProducerIdAndEpoch)


def test_an_id_of_wide_characters_counts_as_what_it_takes() -> None:
    """One character beyond U+FFFF makes four bytes of each in memory."""
    run = TransactionRun(max_id_bytes=1000)
    wide = "a" * 249 + "\U0001f511"
    assert run.init("b" + wide) is NOT_AVAILABLE
    assert isinstance(run.init(wide), ProducerIdAndEpoch)
    assert run.init("c") is NOT_AVAILABLE
    shards = run.coordinator.states.shards.values()
    assert sum(shard.id_bytes for shard in shards) == 1000
    for shard in shards:
        shard.remove(wide)
    assert not any(shard.id_bytes for shard in shards)


def test_stop_leaves_no_timer() -> None:
    run = TransactionRun()
    run.cluster.answers = False
    run.end(run.begun(T0))
    run.cluster.sent[0].answer({T0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    run.coordinator.stop()
    run.settle()
    assert not run.clock.getDelayedCalls()
    assert all(connection.closed for connection in run.cluster.connections)


# markers
def test_a_deleted_topic_ends_its_part(run: TransactionRun) -> None:
    gone = TopicPartition("gone", 0)
    producer = run.begun(T0, gone)
    run.end(producer)
    assert [sent.partitions for sent in run.cluster.sent] == [[T0]]
    assert run.metadata().state is COMPLETE_COMMIT


def test_a_topic_deleted_while_its_leader_is_asked(run: TransactionRun) -> None:
    producer = run.begun(T0)
    run.cluster.errors = {T0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    run.end(producer)
    run.pass_ms(1000)
    assert len(run.cluster.sent) > 3
    run.change_image(image_of({}))
    run.pass_ms(1000)
    assert run.metadata().state is COMPLETE_COMMIT


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_marker_is_sent_to_whoever_leads_then(error: ErrorCode) -> None:
    run = TransactionRun()
    producer = run.begun(T0, T2)
    run.cluster.errors = {T0: error}
    run.end(producer)
    assert run.metadata().partitions == {T0}
    run.cluster.image = image_of({T0: 3, T1: 2, T2: 1})
    run.cluster.errors = {}
    run.pass_ms(1000)
    assert [(s.leader.port, s.partitions) for s in run.cluster.sent[1:]] == [(9093, [T0])]
    assert run.metadata().state is COMPLETE_COMMIT


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
)
def test_a_marker_that_stays_refused_is_sent_more_and_more_rarely(error: ErrorCode) -> None:
    """After 100, 200, 400 and 800 ms, then each second; it holds nobody else's up."""
    run = TransactionRun()
    run.cluster.errors = {T0: error}
    run.end(run.begun(T0))
    run.pass_ms(1_450)
    assert len(run.cluster.sent) == 4
    run.pass_ms(100)
    assert len(run.cluster.sent) == 5
    run.pass_ms(10_000)
    assert len(run.cluster.sent) == 15
    run.end(run.begun(T2, name="other"), name="other")  # of the same broker
    assert run.metadata("other").state is COMPLETE_COMMIT
    run.cluster.errors = {}
    run.pass_ms(1_000)
    assert run.metadata().state is COMPLETE_COMMIT and len(run.cluster.sent) == 17
    # Its next transaction begins with the shortest wait.
    run.cluster.errors = {T0: error}
    run.end(run.begun(T0))
    run.cluster.errors = {}
    run.pass_ms(150)
    assert run.metadata().state is COMPLETE_COMMIT and len(run.cluster.sent) == 19


def test_a_marker_of_a_partition_without_leader_begins_with_the_shortest_wait(
    run: TransactionRun,
) -> None:
    run.cluster.errors = {T0: ErrorCode.NOT_ENOUGH_REPLICAS}
    run.end(run.begun(T0))
    run.pass_ms(10_000)
    run.change_image(image_of({T0: -1}))
    run.pass_ms(10_000)
    run.change_image(image_of({T0: 3}))
    run.cluster.errors = {}
    run.pass_ms(150)
    assert run.metadata().state is COMPLETE_COMMIT


@pytest.mark.parametrize(
    "error", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION]
)
def test_a_partition_that_can_hold_no_transaction(error: ErrorCode) -> None:
    run = TransactionRun()
    producer = run.begun(T0)
    run.cluster.errors = {T0: error}
    run.end(producer)
    assert run.metadata().state is COMPLETE_COMMIT


@pytest.mark.parametrize("is_known_by_its_epoch", [False, True])
def test_a_fenced_coordinator_completes_nothing(is_known_by_its_epoch: bool) -> None:
    run = TransactionRun()
    producer = run.begun(T0, T1)
    if is_known_by_its_epoch:
        run.cluster.held[T0] = Held(5, coordinator_epoch=1)
    else:
        run.cluster.errors = {T0: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
    run.end(producer)
    run.pass_ms(5_000)
    assert run.logged()[-1] is PREPARE_COMMIT
    assert len(run.cluster.sent) <= 2 and not run.coordinator.markers.waiting
    run.cluster.errors, run.cluster.held = {}, {}
    after = run.successor()
    assert after.logged()[-1] is COMPLETE_COMMIT


# a loss of power took the newest records of an id, and partitions kept what came after them
def markers_to(run: TransactionRun, partition: TopicPartition) -> list[tuple[int, bool]]:
    """Epoch and outcome of the markers that the partition took, in order."""
    return [
        (epoch, is_commit)
        for sent in run.cluster.sent
        for (_, epoch, is_commit), where in sent.written
        if where == partition
    ]


@pytest.mark.parametrize("commit", [True, False])
def test_a_later_transaction_whose_state_was_lost_is_aborted(
    run: TransactionRun, commit: bool
) -> None:
    """Its producer, which may still be there, hears of no commit; the next one has an epoch above
    that of every partition.
    """
    producer = run.begun(T0, T1, T2, client=run.version)
    run.cluster.held = {T0: Held(0), T1: Held(4)}
    lost = ProducerIdAndEpoch(producer.producer_id, 4)
    with capturedLogs() as logs:
        run.end(producer, commit=commit, client=run.version)
    run.pass_ms(2_000)
    epoch = producer.epoch + (run.version == 2)
    assert markers_to(run, T0) == markers_to(run, T2) == [(epoch, commit)]
    assert markers_to(run, T1) == [(5, False)]
    assert run.logged()[-1] is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    (line,) = [formatEvent(e) for e in logs if e["log_level"].name == "warn"]
    assert "'id'" in line and "t-1" in line and "epoch 4" in line and f"epoch {epoch}" in line
    for asked in (commit, not commit):
        assert run.end(lost, commit=asked, client=run.version) is ErrorCode.PRODUCER_FENCED
    assert run.init(expected=lost) is ErrorCode.PRODUCER_FENCED
    after = run.successor()
    following = after.init()
    assert following.producer_id == producer.producer_id and following.epoch > 5
    assert after.add(following, T1, client=run.version) is NONE
    after.end(following, client=run.version)
    assert markers_to(after, T1)[-1][1] and after.logged()[-1] is COMPLETE_COMMIT


def test_a_later_transaction_of_the_epoch_that_the_marker_has() -> None:
    """Under version 2 the next transaction begins with the epoch of the last one's marker."""
    run = TransactionRun(version=2)
    producer = run.begun(T0, client=2)
    run.cluster.held = {T0: Held(1)}
    assert run.end(producer, client=2) == ProducerIdAndEpoch(1001, 1)
    run.pass_ms(2_000)
    assert markers_to(run, T0) == [(2, False)] and run.logged()[-1] is COMPLETE_COMMIT
    assert run.end(ProducerIdAndEpoch(1001, 1), client=2) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("is_written", [False, True])
def test_a_coordinator_ends_while_it_aborts_what_was_lost(
    run: TransactionRun, is_written: bool
) -> None:
    producer = run.begun(T0, T1, client=run.version)
    run.cluster.held = {T0: Held(0), T1: Held(4)}
    run.cluster.answers = False
    run.end(producer, client=run.version)
    for sent in list(run.cluster.sent):
        sent.answer()
    run.pass_ms(100)
    abort = run.cluster.sent[-1]
    assert [marker.producer_epoch for marker in abort.request.markers] == [5]
    if is_written:
        run.cluster.held[T1] = Held(5, is_open=False)
    run.cluster.answers = True
    after = run.successor()
    after.pass_ms(2_000)
    assert after.logged()[-1] is COMPLETE_COMMIT
    assert markers_to(after, T1) == [(6 if is_written else 5, False)]
    assert after.init().epoch > after.cluster.held[T1].epoch


def test_an_abort_of_what_was_lost_is_sent_until_it_is_written(run: TransactionRun) -> None:
    producer = run.begun(T0, client=run.version)
    run.cluster.held = {T0: Held(4)}
    run.cluster.answers = False
    run.end(producer, client=run.version)
    run.cluster.sent[0].answer()
    run.pass_ms(100)
    run.cluster.sent[1].answer({T0: ErrorCode.NOT_ENOUGH_REPLICAS})
    run.cluster.answers = True
    run.pass_ms(2_000)
    assert [s.request.markers[0].producer_epoch for s in run.cluster.sent[1:]] == [5, 5]
    assert len(run.cluster.described) == 1 and run.logged()[-1] is COMPLETE_COMMIT


def test_a_leader_that_does_not_say_what_it_holds_is_asked_again(run: TransactionRun) -> None:
    producer = run.begun(T0, client=run.version)
    run.cluster.held = {T0: Held(4)}
    run.cluster.describe_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with capturedLogs() as logs:
        run.end(producer, client=run.version)
    assert any("TOPIC_AUTHORIZATION_FAILED" in str(formatEvent(event)) for event in logs)
    run.pass_ms(2_000)
    run.cluster.describe_error, run.cluster.describe_fails = NONE, True
    run.pass_ms(2_000)
    assert run.logged()[-1] is PREPARE_COMMIT and run.coordinator.markers.waiting == 0
    run.cluster.describe_fails = False
    run.pass_ms(2_000)
    assert run.logged()[-1] is COMPLETE_COMMIT and markers_to(run, T0) == [(5, False)]


def test_a_partition_that_was_refused_and_is_behind_now_gets_its_own_marker() -> None:
    """Another leader answers by then: nothing is known to be open there."""
    run = TransactionRun(version=2)
    producer = run.begun(T0, client=2)
    run.cluster.answers = False
    run.end(producer, client=2)
    run.cluster.held = {T0: Held(1, is_open=False)}
    run.cluster.answers = True
    run.cluster.sent[0].answer({T0: ErrorCode.INVALID_PRODUCER_EPOCH})
    run.pass_ms(2_000)
    assert markers_to(run, T0) == [(1, True)] and run.logged()[-1] is COMPLETE_COMMIT


def test_a_partition_that_holds_the_last_epoch_is_given_up(run: TransactionRun) -> None:
    producer = run.begun(T0, client=run.version)
    run.cluster.held = {T0: Held(LAST_EPOCH)}
    with capturedLogs() as logs:
        run.end(producer, client=run.version)
    run.pass_ms(2_000)
    assert run.logged()[-1] is PREPARE_COMMIT and not run.coordinator.markers.waiting
    (line,) = [formatEvent(e) for e in logs if e["log_level"].name == "error"]
    assert line is not None and "no epoch is left" in line


def test_an_abort_with_the_last_epoch_brings_a_new_producer_id(run: TransactionRun) -> None:
    producer = run.begun(T0, client=run.version)
    run.cluster.held = {T0: Held(EXHAUSTED_EPOCH)}
    run.end(producer, client=run.version)
    run.pass_ms(2_000)
    assert markers_to(run, T0) == [(LAST_EPOCH, False)] and run.logged()[-1] is COMPLETE_COMMIT
    lost = ProducerIdAndEpoch(1001, EXHAUSTED_EPOCH)
    assert run.end(lost, client=run.version) is ErrorCode.PRODUCER_FENCED
    assert run.init() == ProducerIdAndEpoch(1002, 0)


def test_no_leader_yet(run: TransactionRun) -> None:
    run.cluster.image = image_of({T0: -1, T1: 2}, fenced=frozenset({2}))
    producer = run.begun(T0, T1)
    run.end(producer)
    run.pass_ms(60_000)
    assert not run.cluster.sent and run.coordinator.markers.waiting == 1
    assert run.coordinator.markers.leaderless == 1
    run.change_image(image_of({T0: 3, T1: 2}))
    assert run.metadata().state is COMPLETE_COMMIT and not run.coordinator.markers.waiting


def test_a_change_elsewhere_is_none_for_what_has_no_leader(run: TransactionRun) -> None:
    """There may be ten thousand of them, at each change of the metadata."""
    there, other = TopicPartition("u", 0), TopicPartition("w", 0)
    run.cluster.image = image_of({T0: -1, there: -1, other: 3})
    producers = {name: run.begun(T0, name=name) for name in ("a", "b")}
    producers["c"] = run.begun(T0, there, name="c")
    for name, producer in producers.items():
        run.end(producer, name=name)
    looked_at: list[str] = []

    class Looked(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            looked_at.append(name)
            return super().get(name, default)

    for leader, expected in ((-1, set[str]()), (2, {"u"})):
        image = image_of({T0: -1, there: leader, other: 2})
        run.change_image(replace(image, topics_by_name=Looked(image.topics_by_name)))
        assert {"t", "u"}.intersection(looked_at) == expected
    assert run.metadata("c").partitions == {T0} and run.coordinator.markers.leaderless == 3
    run.change_image(image_of({there: 2, other: 2}))
    for name in producers:
        assert run.metadata(name).state is COMPLETE_COMMIT
    assert not run.coordinator.markers.waiting


def test_a_leader_in_a_zookeeper_cluster(run: TransactionRun) -> None:
    """The delta of an UpdateMetadata names no partition."""
    before, after = image_of({T0: -1, T1: 2}), image_of({T0: 3, T1: 2})
    run.cluster.image = before
    run.end(run.begun(T0))
    run.cluster.image = after
    run.coordinator.markers.image_changed(MetadataDelta(before, after))
    assert run.metadata().state is COMPLETE_COMMIT


def test_an_image_without_the_coordinators_own_topic_knows_of_no_deletion(
    run: TransactionRun,
) -> None:
    """In a ZooKeeper cluster the controller that begins tells a broker first which partitions it
    leads, then which topics there are: the markers of what was prepared before wait for that.
    """
    full, nothing = run.cluster.image, MetadataImage(brokers=run.cluster.image.brokers)
    run.cluster.answers = False
    run.end(run.begun(T0))
    run.cluster.answers, run.cluster.image = True, nothing
    after = run.successor()
    assert after.logged()[-1] is PREPARE_COMMIT and after.coordinator.markers.leaderless == 1
    run.cluster.image = full
    after.coordinator.markers.image_changed(MetadataDelta(nothing, full))
    after.pass_ms(1_000)
    assert run.cluster.sent[-1].written[0][1] == T0
    assert after.logged()[-1] is COMPLETE_COMMIT


def test_a_leader_that_is_there_again(run: TransactionRun) -> None:
    """No partition changed, its broker did."""
    run.cluster.image = image_of({T0: 2, T1: 2}, fenced=frozenset({2}))
    run.end(run.begun(T0, T1))
    assert not run.cluster.sent
    run.change_image(image_of({T0: 2, T1: 2}))
    assert [each.partitions for each in run.cluster.sent] == [[T0, T1]]
    assert run.metadata().state is COMPLETE_COMMIT


def test_what_has_no_leader_goes_with_its_coordinator(run: TransactionRun) -> None:
    """It would wait for a leader that may never come, once for each of this broker's terms."""
    run.cluster.image = image_of({T0: -1})
    gone = next(n for n in map(str, range(9)) if partition_for(n, 3) == 0)
    kept = next(n for n in map(str, range(9)) if partition_for(n, 3) == 1)
    for name in (gone, kept):
        run.end(run.begun(T0, name=name), name=name)
    run.coordinator.states.unload(0, 1)
    assert run.coordinator.markers.leaderless == 2
    run.change_image(image_of({T0: -1, OWN: 2}))
    assert run.coordinator.markers.leaderless == 1
    run.change_image(image_of({T0: 3, OWN: 2}))
    assert run.metadata(kept).state is COMPLETE_COMMIT and run.logged(gone)[-1] is PREPARE_COMMIT


def test_a_broker_that_is_gone(run: TransactionRun) -> None:
    """Its markers go to the next leader; the waits become longer."""
    run.cluster.down = True
    producer = run.begun(T0, T1)
    run.end(producer)
    run.pass_ms(10_000)
    assert run.metadata().state is PREPARE_COMMIT
    run.cluster.down = False
    run.pass_ms(1_100)
    assert run.metadata().state is COMPLETE_COMMIT


def test_a_lost_connection(run: TransactionRun) -> None:
    run.cluster.answers = False
    producer = run.begun(T0)
    run.end(producer)
    run.cluster.sent[0].lose()
    run.cluster.image = image_of({T0: 2})
    run.cluster.answers = True
    run.pass_ms(1_000)
    assert run.cluster.sent[1].leader.port == 9092
    assert run.metadata().state is COMPLETE_COMMIT


def test_an_answer_without_the_partition_is_none(run: TransactionRun) -> None:
    run.cluster.answers = False
    producer = run.begun(T0)
    run.end(producer)
    sent = run.cluster.sent[0]
    sent.request.markers, markers = [], sent.request.markers
    sent.answer()
    sent.request.markers = markers
    run.cluster.answers = True
    run.pass_ms(1000)
    assert len(run.cluster.sent) == 2 and run.metadata().state is COMPLETE_COMMIT


def test_an_older_broker_gets_version_1() -> None:
    run = TransactionRun(version=2)
    run.cluster.versions = (0, 1)
    run.end(run.begun(T0, client=2), client=2)
    assert run.cluster.sent[0].version == 1


def test_one_request_at_a_time_with_all_that_waits() -> None:
    """Per destination: what comes meanwhile goes with the next one."""
    run = TransactionRun()
    run.cluster.answers = False
    for name in "abcd":
        run.end(run.begun(T0, name=name), name=name)
    assert [len(sent.request.markers) for sent in run.cluster.sent] == [1]
    run.cluster.sent[0].answer()
    assert [len(sent.request.markers) for sent in run.cluster.sent] == [1, 3]
    run.cluster.sent[1].answer()
    assert all(run.metadata(name).state is COMPLETE_COMMIT for name in "abcd")
    assert len(run.cluster.connections) == 1


def test_a_large_transaction_in_several_requests() -> None:
    run = TransactionRun()
    many = [TopicPartition("large", index) for index in range(2500)]
    run.cluster.image = image_of(dict.fromkeys(many, 1))
    run.end(run.begun(*many))
    assert [len(sent.partitions) for sent in run.cluster.sent] == [1000, 1000, 500]
    assert run.metadata().state is COMPLETE_COMMIT


def test_a_broker_that_came_back_elsewhere(run: TransactionRun) -> None:
    producer = run.begun(T0)
    run.end(producer)
    moved = run.cluster.image.brokers[1]
    endpoint = moved.listeners["PLAINTEXT"]._replace(port=7777)
    run.cluster.image.brokers[1] = moved._replace(listeners={"PLAINTEXT": endpoint})
    assert run.add(producer, T0) is NONE
    run.end(producer, False)
    assert [each.port for each in run.cluster.connections] == [9091, 7777]
    assert run.cluster.connections[0].closed


# administration
def test_describe() -> None:
    run = TransactionRun()
    producer = run.begun(T1, T0)
    found = run.coordinator.describe("id")
    assert found.state is ONGOING and found.producer == producer
    assert found.partitions == [T0, T1] and found.timeout_ms == 60_000
    assert found.start_ms == run.wall_ms()
    run.cluster.answers = False
    run.end(producer)
    run.cluster.sent[0].answer()
    found = run.coordinator.describe("id")
    assert found.state is PREPARE_COMMIT and found.partitions == [T1]
    for name, expected in (("", "INVALID_REQUEST"), ("other", "TRANSACTIONAL_ID_NOT_FOUND")):
        with pytest.raises(BrokerError, match=expected):
            run.coordinator.describe(name)


def test_listings_in_steps() -> None:
    run = TransactionRun()
    for number in range(700):
        run.init(f"id-{number}")
    found = [row for some in run.coordinator.listings() for row in some]
    assert {row.transactional_id for row in found} == {f"id-{n}" for n in range(700)}
    assert {row.state for row in found} == {EMPTY}
    assert Cluster().answers


# before all is committed
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class Behind:
    """A coordinator that took over while the ISR is below its minimum: the last record of `later`,
    that of `unheard`, which is new, and the tombstone of `gone` are not committed; all of `durable`
    is, which was prepared.
    """

    def __init__(self) -> None:
        names = (name for n in range(2000) if partition_for(name := f"n{n}", 3) == 0)
        self.durable, self.later, self.unheard, self.gone = (next(names) for _ in range(4))
        run = TransactionRun()
        run.cluster.answers = False
        run.init(self.gone)
        durable = run.begun(T0, name=self.durable)
        self.later_producer = run.begun(T1, name=self.later)
        assert run.end(durable, name=self.durable) == NO_PRODUCER
        run.store.high_watermarks = dict(run.store.ends)
        assert run.end(self.later_producer, name=self.later) == NO_PRODUCER
        self.unheard_producer = run.init(self.unheard)
        run.store.put(0, batch_of([transaction_record(self.gone, None, 0)], run.wall_ms()))
        self.committed: Deferred[bool] = Deferred()
        run.store.commits = {0: self.committed}
        run.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
        run.coordinator.stop()
        run.cluster.sent.clear()
        run.cluster.answers = True
        self.run = run.successor()

    def commit_all(self) -> None:
        self.run.store.refuse = None
        self.committed.callback(True)
        self.run.pass_ms(2_000)

    def sent(self) -> set[TopicPartition]:
        return {partition for sent in self.run.cluster.sent for partition in sent.partitions}


def test_what_is_committed_is_served_while_other_ids_wait() -> None:
    """Kafka's `TransactionStateManager` serves whatever it has read, and sends its markers; what it
    tells may be lost with this leader.
    """
    behind = Behind()
    run, coordinator = behind.run, behind.run.coordinator
    run.pass_ms(60_000)
    assert run.init(behind.durable) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.describe(behind.durable).state is PREPARE_COMMIT
    assert behind.sent() == {T0}  # its outcome is durable, so it is told
    for name in (behind.later, behind.unheard, behind.gone):
        assert run.init(name) is LOADING
        with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            coordinator.describe(name)
    assert run.add(behind.unheard_producer, name=behind.unheard) is LOADING
    assert run.end(behind.later_producer, name=behind.later) is LOADING
    assert coordinator.states.is_loading
    new = next(name for n in range(2000) if partition_for(name := f"x{n}", 3) == 0)
    assert run.init(new) is NOT_AVAILABLE


def test_ids_that_waited_go_on_when_their_records_are_committed() -> None:
    """A tombstone counts, too."""
    behind = Behind()
    run, coordinator = behind.run, behind.run.coordinator
    behind.commit_all()
    assert behind.sent() == {T0, T1} and not coordinator.states.is_loading
    assert coordinator.describe(behind.durable).state is COMPLETE_COMMIT
    assert coordinator.describe(behind.later).state is COMPLETE_COMMIT
    assert run.add(behind.unheard_producer, name=behind.unheard) is ErrorCode.NONE
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        coordinator.describe(behind.gone)


@pytest.mark.parametrize("is_lost", [False, True])
def test_ids_that_waited_are_dropped_with_the_leadership(is_lost: bool) -> None:
    """Nothing of them is told, and no marker sent, whichever word comes first."""
    behind = Behind()
    states = behind.run.coordinator.states
    if is_lost:
        behind.committed.callback(False)
    else:
        states.unload(0, 2)
        behind.committed.callback(True)
    behind.run.pass_ms(5_000)
    assert 0 not in states.shards and not states.is_loading
    assert behind.run.init(behind.later) is NOT_COORDINATOR and T1 not in behind.sent()
