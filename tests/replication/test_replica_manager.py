"""The replica manager of one node: appends, fetches, what waits, and the order of effects (RL 1)."""

from __future__ import annotations

import tracemalloc

import pytest
from twisted.internet.defer import CancelledError

from tests.replication.rig import TOPIC_ID, TP, WALL_MS, Rig, at, batch, consumer, follower, registration
from twisted_broker.cluster.registrations import TopicImage
from twisted_broker.config import LogConfig
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.checkpoints import HIGH_WATERMARK as HIGH_WATERMARK_FILE
from twisted_broker.log.checkpoints import read_offsets
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.replication import leader_isr
from twisted_broker.replication.fetch_data import TXN_COMMITTED
from twisted_broker.replication.replica_manager import INTERNAL_TOPICS, ReplicaManager
from twisted_broker.wire.errors import BrokerError, ErrorCode

OTHER = TopicPartition("other", 0)
OTHER_ID = bytes(reversed(range(16)))


def led(replicas=(1,), isr=None, **settings) -> Rig:
    rig = Rig(**settings)
    rig.topic(states={0: registration(1, replicas, isr)})
    return rig


def parked_produce(rig: Rig, timeout_ms: int = 1000, count: int = 1):
    outcomes = rig.replicas.produce([(TP, batch(count))], -1)
    assert rig.replicas.must_wait(outcomes)
    done: list = []
    rig.replicas.wait_for_replicas(outcomes, timeout_ms).addBoth(done.append)
    return outcomes[0], done


def parked_fetch(rig: Rig, params=None, *requests):
    params = params or consumer()
    requests = list(requests) or [at(0)]
    first = rig.replicas.fetch(params, requests)
    assert not ReplicaManager.answers_at_once(params, first)
    done: list = []
    deferred = rig.replicas.delayed_fetch(params, first)
    deferred.addBoth(done.append)
    return deferred, done


# appending


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_other_than_minus_one_zero_one(acks):
    """RL 1.6: INVALID_REQUIRED_ACKS for every partition, base offset -1, nothing written."""
    rig = led()
    outcomes = rig.replicas.produce([(TP, batch()), (OTHER, batch())], acks)
    assert [(outcome.error, outcome.base_offset) for outcome in outcomes] == [(ErrorCode.INVALID_REQUIRED_ACKS, -1)] * 2
    assert rig.partition().log.log_end_offset == 0


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_internal_topics_take_records_from_coordinators_only(topic):
    """RL 1.6: INVALID_TOPIC_EXCEPTION for clients; the broker's own coordinators write there."""
    rig = Rig()
    rig.topic(topic)
    tp = TopicPartition(topic, 0)
    assert rig.produce(tp=tp).error == ErrorCode.INVALID_TOPIC_EXCEPTION
    (outcome,) = rig.replicas.append([(tp, batch())], -1, origin=AppendOrigin.COORDINATOR)
    assert (outcome.error, outcome.base_offset) == (ErrorCode.NONE, 0)


def test_errors_are_per_partition():
    """RL 1.6: unknown, led elsewhere, corrupt: each its own error, and the others go on."""
    rig = led()
    rig.topic("other", {0: registration(2, (2, 3))}, OTHER_ID)
    corrupt = bytearray(batch())
    corrupt[-1] ^= 1
    entries = [(TopicPartition("none", 0), batch()), (OTHER, batch()), (TP, bytes(corrupt)), (TP, batch()), (TopicPartition("t", 7), batch())]
    assert [outcome.error for outcome in rig.replicas.produce(entries, 1)] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_a_bug_in_one_append_is_that_partitions_alone(monkeypatch):
    """docs/ARCHITECTURE.md 8: an unexpected error answers UNKNOWN_SERVER_ERROR for its partition; the next one is appended."""
    rig = led()
    rig.topic("other", None, OTHER_ID)
    real = type(rig.partition().log).append_as_leader

    def broken(log, *arguments, **options):
        if log.topic_partition == TP:
            raise RuntimeError("bug")
        return real(log, *arguments, **options)

    monkeypatch.setattr(type(rig.partition().log), "append_as_leader", broken)
    outcomes = rig.replicas.produce([(TP, batch()), (OTHER, batch())], 1)
    assert [outcome.error for outcome in outcomes] == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]


# delayed produce


def test_no_delayed_produce_alone_or_without_need():
    """RL 1.7: with an ISR of one nothing waits; nor when every append failed."""
    rig = led()
    outcomes = rig.replicas.produce([(TP, batch())], -1)
    assert not rig.replicas.must_wait(outcomes)
    shared = led((1, 2))
    outcomes = shared.replicas.produce([(OTHER, batch())], -1)
    assert not shared.replicas.must_wait(outcomes)
    assert outcomes[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_produce_waits_for_the_high_watermark_not_for_the_log_end():
    """RL 1.7: satisfied when the high watermark passed the last appended offset, by the fetch that moves it."""
    rig = led((1, 2))
    outcome, done = parked_produce(rig, count=3)
    rig.produce()
    assert not done
    rig.replicas.fetch(follower(2), [at(2)])
    assert not done
    rig.replicas.fetch(follower(2), [at(3)])
    assert (done, outcome.error, outcome.base_offset) == ([None], ErrorCode.NONE, 0)


def test_at_timeout_the_rest_times_out():
    """RL 1.7: what is satisfied stays so; the rest answers REQUEST_TIMED_OUT."""
    rig = led((1, 2))
    rig.topic("other", None, OTHER_ID)
    outcomes = rig.replicas.produce([(TP, batch()), (OTHER, batch())], -1)
    done: list = []
    rig.replicas.wait_for_replicas(outcomes, 1000).addBoth(done.append)
    rig.advance(0.999)
    assert not done
    rig.advance(0.01)
    assert (done, [outcome.error for outcome in outcomes]) == ([None], [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE])


def test_becoming_follower_completes_parked_produces_and_fetches():
    """RL 1.4, 1.7: led elsewhere: NOT_LEADER_OR_FOLLOWER at once; parked fetches are read anew."""
    rig = led((1, 2))
    outcome, produced = parked_produce(rig)
    _, fetched = parked_fetch(rig)
    rig.topic(states={0: registration(2, (1, 2), None, 1, 1)})
    assert (produced, outcome.error) == ([None], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert fetched == [None]


def test_a_new_epoch_of_the_same_leader_fences_parked_fetches():
    """RL 1.9 E: whoever waits under the old leader epoch is told at once; who named none waits on."""
    rig = led((1, 2, 3))
    _, fenced = parked_fetch(rig, consumer(60_000), at(0, current_leader_epoch=0))
    _, other = parked_fetch(rig, consumer(60_000), at(0))
    rig.topic(states={0: registration(1, (1, 2), None, 1, 1)})
    assert (fenced, other) == ([None], [])
    (result,) = rig.replicas.fetch(consumer(), [at(0, current_leader_epoch=0)])
    assert result.error == ErrorCode.FENCED_LEADER_EPOCH


def test_a_removed_partition_completes_what_waits():
    """RL 1.5, 1.7: a deleted topic: UNKNOWN_TOPIC_OR_PARTITION at once, and its log is deleted."""
    rig = led((1, 2))
    outcome, produced = parked_produce(rig)
    _, fetched = parked_fetch(rig)
    rig.remove_topic()
    assert (produced, outcome.error) == ([None], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert fetched == [None]
    assert rig.log_manager.deleted == [TP]


def test_a_shrunken_isr_answers_after_append():
    """RL 1.7: reached, but below min.insync.replicas at that moment: NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
    rig = Rig()
    rig.topic(states={0: registration(1, (1, 2, 3), (1, 2))}, overrides={"min.insync.replicas": "2"})
    outcome, done = parked_produce(rig)
    rig.topic(states={0: registration(1, (1, 2, 3), (1,), 0, 1)}, overrides={"min.insync.replicas": "1"})
    assert (done, outcome.error) == ([None], ErrorCode.NONE)
    rig.topic(states={0: registration(1, (1, 2, 3), (1, 2), 0, 2)}, overrides={"min.insync.replicas": "2"})
    outcome, done = parked_produce(rig)
    rig.partition().isr_state = type(rig.partition().isr_state)(frozenset({1}))
    rig.partition().log.set_high_watermark(2)
    rig.replicas.produce_purgatory.check(TP)
    assert (done, outcome.error) == ([None], ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


# fetching


def test_a_waiting_fetch_is_answered_the_moment_data_arrives():
    """RL 1.14, no clock moves between the append and the answer."""
    rig = led()
    _, done = parked_fetch(rig)
    rig.produce()
    assert done == [None]
    (result,) = rig.replicas.fetch(consumer(), [at(0)], record_progress=False)
    assert (result.size > 0, result.high_watermark) == (True, 1)
    assert rig.clock.getDelayedCalls() == [] or rig.replicas.fetch_purgatory.waiting == 0


def test_at_its_time_a_fetch_is_answered_empty():
    """RL 1.9: time-out apart from all conditions."""
    rig = led()
    _, done = parked_fetch(rig, consumer(max_wait_ms=500))
    rig.advance(0.499)
    assert not done
    rig.advance(0.01)
    assert done == [None]


def test_answers_at_once():
    """RL 1.8: no wait, nothing asked, min_bytes there, an error: each is answered by the first read."""
    rig = led()
    empty = rig.replicas.fetch(consumer(), [at(0)])
    assert ReplicaManager.answers_at_once(consumer(max_wait_ms=0), empty)
    assert ReplicaManager.answers_at_once(consumer(), [])
    assert ReplicaManager.answers_at_once(consumer(min_bytes=0), empty)
    assert not ReplicaManager.answers_at_once(consumer(), empty)
    assert ReplicaManager.answers_at_once(consumer(), rig.replicas.fetch(consumer(), [at(5)]))
    rig.produce()
    assert ReplicaManager.answers_at_once(consumer(), rig.replicas.fetch(consumer(), [at(0)]))


def test_a_diverging_epoch_is_answered_at_once():
    """RL 1.8: the reader must truncate, it need not wait."""
    rig = led((1, 2))
    rig.produce(3)
    rig.topic(states={0: registration(1, (1, 2), None, 4, 1)})
    rig.produce(3)
    results = rig.replicas.fetch(follower(2), [at(5, last_fetched_epoch=0)])
    assert results[0].diverging_epoch == (0, 3)
    assert ReplicaManager.answers_at_once(follower(2), results)


def test_the_response_limit_shrinks_in_the_order_of_the_request():
    """RL 1.8: the first non-empty partition may exceed the limit by one whole batch; what follows gets what is left."""
    rig = led()
    rig.topic("other", None, OTHER_ID)
    rig.produce(value=b"x" * 1000)
    rig.produce(tp=OTHER, value=b"x" * 1000)
    first, second = rig.replicas.fetch(consumer(max_bytes=10), [at(0), at(0, OTHER)])
    assert first.size > 1000
    assert second.size == 0
    assert second.high_watermark == 1
    first, second = rig.replicas.fetch(consumer(max_bytes=1 << 20), [at(0, OTHER), at(0)])
    assert first.size > 1000 < second.size


def test_a_partition_limit_still_gives_one_whole_batch():
    """RL 1.8 (KIP-74): version >= 3: progress is possible however small the partition's limit."""
    rig = led()
    rig.produce(value=b"x" * 1000)
    (result,) = rig.replicas.fetch(consumer(), [at(0, max_bytes=10)])
    assert result.size > 1000


def test_hard_limits_cut_the_first_batch():
    """RL 1.8: version <= 2: an oversized first batch is cut at the partition's limit."""
    rig = led()
    rig.produce(value=b"x" * 1000)
    (result,) = rig.replicas.fetch(consumer(hard_max_bytes=True), [at(0, max_bytes=100)])
    assert (result.size, result.cut_short) == (100, True)


def test_a_later_batch_that_does_not_fit_is_not_cut():
    """RL 1.8: version >= 3: after the first partition with data a first batch that does not fit is left for the next fetch."""
    rig = led()
    rig.topic("other", None, OTHER_ID)
    rig.produce()
    rig.produce(tp=OTHER, value=b"x" * 1000)
    first, second = rig.replicas.fetch(consumer(max_bytes=300), [at(0), at(0, OTHER)])
    assert first.size > 0
    assert second.size == 0


def test_one_bad_partition_does_not_spoil_the_others():
    """ReplicaManagerTest: topic id mismatch, unknown partition, out of range: each its own error with -1 watermarks; the good one is read."""
    rig = led()
    rig.produce()
    requests = [at(0, topic_id=OTHER_ID), at(0, OTHER), at(9), at(0, topic_id=TOPIC_ID)]
    results = rig.replicas.fetch(consumer(), requests)
    assert [result.error for result in results] == [
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NONE,
    ]
    assert [(result.high_watermark, result.last_stable_offset, result.log_start_offset) for result in results[:3]] == [(-1, -1, -1)] * 3
    assert results[3].size > 0


def test_a_fetch_beyond_the_high_watermark_waits():
    """ReplicaManagerTest: above the high watermark but within the log it is empty and waits; it is not an error."""
    rig = led((1, 2))
    rig.produce(5)
    _, done = parked_fetch(rig, consumer(), at(3))
    rig.produce()
    assert not done
    rig.replicas.fetch(follower(2), [at(6)])
    assert done == [None]


def test_the_second_read_does_not_count_a_followers_progress_again():
    """RL 1.9: completion reads anew and leaves the follower's state alone."""
    rig = led((1, 2))
    rig.produce(2)
    rig.replicas.fetch(follower(2), [at(2)])
    rig.advance(1)
    before = rig.partition().remote_replicas[2].last_fetch_ms
    rig.replicas.fetch(follower(2), [at(2)], record_progress=False)
    assert rig.partition().remote_replicas[2].last_fetch_ms == before


def test_first_read_slices_are_given_back():
    """A fetch that goes on to wait holds no file."""
    rig = led()
    rig.produce()
    params = consumer(min_bytes=10_000)
    first = rig.replicas.fetch(params, [at(0)])
    file = first[0].slice.file
    assert file.references == 1
    rig.replicas.delayed_fetch(params, first)
    assert file.references == 0


def test_a_cancelled_fetch_leaves():
    """docs/ARCHITECTURE.md 7: on disconnect parked fetches are cancelled: nothing of them stays, and data that comes later finds nobody."""
    rig = led()
    deferred, done = parked_fetch(rig)
    deferred.cancel()
    assert done[0].check(CancelledError)
    rig.produce()
    assert rig.replicas.fetch_purgatory.waiting == 0


def test_read_committed_stops_at_the_last_stable_offset():
    """RL 1.8, ReplicaManagerTest: with an open transaction read_committed sees less, and gets a list of aborted ones."""
    rig = led()
    rig.produce(2)
    transactional = batch(3, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    (outcome,) = rig.replicas.append([(TP, transactional)], 1, origin=AppendOrigin.COORDINATOR)
    assert outcome.error == ErrorCode.NONE
    rig.replicas.drain()
    committed = rig.replicas.fetch(consumer(isolation=TXN_COMMITTED), [at(0)])[0]
    everything = rig.replicas.fetch(consumer(), [at(0)])[0]
    assert (committed.high_watermark, committed.last_stable_offset, committed.aborted_transactions) == (5, 2, [])
    assert everything.size > committed.size
    assert everything.aborted_transactions is None
    _, done = parked_fetch(rig, consumer(isolation=TXN_COMMITTED), at(2))
    rig.produce()
    assert not done


def test_memory_of_waiting_fetches():
    """RL 4.2: 100,000 waiting fetches take under 200 MB: params, request, condition, Deferred, timer and lists are under 2,000 bytes together."""
    rig = led()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = []
        for offset in range(5_000):
            params = consumer(max_wait_ms=30_000 + offset)
            kept.append(rig.replicas.delayed_fetch(params, rig.replicas.fetch(params, [at(0, TopicPartition(*TP))])))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert rig.replicas.fetch_purgatory.waiting == 5_000
    assert used < 5_000 * 2_000
    rig.produce()
    assert all(deferred.called for deferred in kept)


# deleting records


def test_delete_records_waits_for_live_followers():
    """RL 2.8: complete when every live replica's log start moved; the low watermark is in the answer."""
    rig = led((1, 2))
    rig.produce(10)
    rig.replicas.fetch(follower(2), [at(10, log_start_offset=0)])
    outcomes = rig.replicas.delete_records([(TP, 6)])
    done: list = []
    rig.replicas.wait_for_deletion(outcomes, 1000).addBoth(done.append)
    assert not done
    rig.replicas.fetch(follower(2), [at(10, log_start_offset=6)])
    assert (done, outcomes[0].error, outcomes[0].low_watermark) == ([None], ErrorCode.NONE, 6)


def test_delete_records_does_not_wait_for_who_died_meanwhile():
    """RL 2.8: the low watermark is that of the living; a follower that the controller fences holds nobody up."""
    rig = led((1, 2, 3))
    rig.produce(10)
    for broker in (2, 3):
        rig.replicas.fetch(follower(broker), [at(10, log_start_offset=0)])
    outcomes = rig.replicas.delete_records([(TP, 6)])
    done: list = []
    rig.replicas.wait_for_deletion(outcomes, 60_000).addBoth(done.append)
    rig.replicas.fetch(follower(2), [at(10, log_start_offset=6)])
    assert not done
    rig.publish(brokers={**rig.image.brokers, 3: rig.image.brokers[3]._replace(fenced=True)})
    assert (done, outcomes[0].error, outcomes[0].low_watermark) == ([None], ErrorCode.NONE, 6)


def test_delete_records_alone_is_at_once_and_times_out_otherwise():
    """RL 2.8: alone nothing waits; at the time-out REQUEST_TIMED_OUT and -1."""
    rig = led()
    rig.produce(10)
    outcomes = rig.replicas.delete_records([(TP, -1)])
    assert rig.replicas.wait_for_deletion(outcomes, 1000).called
    assert (outcomes[0].error, outcomes[0].low_watermark) == (ErrorCode.NONE, 10)
    shared = led((1, 2))
    shared.produce(10)
    shared.replicas.fetch(follower(2), [at(10, log_start_offset=0)])
    outcomes = shared.replicas.delete_records([(TP, 5)])
    shared.replicas.wait_for_deletion(outcomes, 100)
    shared.advance(0.2)
    assert (outcomes[0].error, outcomes[0].low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)


def test_a_fetch_below_the_new_log_start_is_told():
    """RL 2.8: records below the log start are gone at once: OFFSET_OUT_OF_RANGE."""
    rig = led()
    rig.produce(10)
    rig.replicas.delete_records([(TP, 5)])
    assert rig.replicas.fetch(consumer(), [at(4)])[0].error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert rig.replicas.fetch(consumer(), [at(5)])[0].log_start_offset == 5


# events


def test_effects_run_in_order_and_to_the_end():
    """docs/ARCHITECTURE.md 4: first in, first out, to empty; what an effect causes waits for its turn, and nothing runs inside itself."""
    rig = led()
    rig.topic("other", None, OTHER_ID)
    order: list = []
    deferred, _ = parked_fetch(rig)

    def answered(_):
        order.append("t answered")
        rig.replicas.produce([(OTHER, batch())], 1)
        order.append("other appended")

    deferred.addCallback(answered)
    other, _ = parked_fetch(rig, consumer(), at(0, OTHER))
    other.addCallback(lambda _: order.append("other answered"))
    rig.produce()
    assert order == ["t answered", "other appended", "other answered"]


def test_an_effect_that_raises_fails_its_partition_only(monkeypatch):
    """RL 1: the partition goes offline with KAFKA_STORAGE_ERROR; events of others still have their effects."""
    rig = led()
    rig.topic("other", None, OTHER_ID)
    _, done = parked_fetch(rig, consumer(), at(0, OTHER))
    parked_fetch(rig)
    real = rig.replicas.fetch_purgatory.__class__.check

    def broken(purgatory, key):
        if key == TP and not rig.partition().offline:
            raise RuntimeError("effect")
        return real(purgatory, key)

    monkeypatch.setattr(rig.replicas.fetch_purgatory.__class__, "check", broken)
    rig.replicas.produce([(TP, batch()), (OTHER, batch())], 1)
    assert done == [None]
    assert rig.produce().error == ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.produce(tp=OTHER).error == ErrorCode.NONE


def test_a_coordinators_append_takes_effect_in_the_next_turn():
    """`append` runs nothing inside its caller; `drain`, or the reactor's next turn, does."""
    rig = led()
    _, done = parked_fetch(rig)
    rig.replicas.append([(TP, batch())], -1, origin=AppendOrigin.COORDINATOR)
    assert not done
    rig.advance(0)
    assert done == [None]


# roles


def test_leadership_is_told_to_observers():
    """RL 1.3: coordinators learn what they gained or lost, after all partitions have their roles."""
    rig = Rig()
    told: list = []

    class Observer:
        def leadership_gained(self, tp, leader_epoch):
            told.append(("gained", str(tp), leader_epoch, rig.partition(tp).is_leader))

        def leadership_lost(self, tp, leader_epoch):
            told.append(("lost", str(tp), leader_epoch))

    rig.replicas.role_observers.append(Observer())
    rig.topic(states={0: registration(), 1: registration(2, (1, 2))})
    rig.topic(states={0: registration(2, (1, 2), None, 1, 1), 1: registration(1, (1, 2), None, 1, 1)})
    rig.topic(states={0: registration(2, (1, 2), None, 1, 1), 1: registration(1, (1, 2), (1,), 1, 2)})
    rig.remove_topic()
    assert told == [
        ("gained", "t-0", 0, True),
        ("lost", "t-0", 1),
        ("gained", "t-1", 1, True),
        ("lost", "t-0", 1),
        ("lost", "t-1", 1),
    ]


def test_a_replica_that_was_removed_from_here():
    """RL 1.5: no longer assigned: dropped, its log deleted, NOT_LEADER_OR_FOLLOWER to clients."""
    rig = led((1, 2))
    rig.topic(states={0: registration(2, (2, 3), None, 1, 1)})
    assert rig.log_manager.deleted == [TP]
    assert rig.produce().error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_deleted_and_made_anew_in_one_delta():
    """RL 1.3: the old one goes first: the new topic of the same name starts empty under its own id."""
    rig = led()
    rig.produce(5)
    rig.topic(topic_id=OTHER_ID)
    assert rig.log_manager.deleted == [TP]
    assert (rig.partition().topic_id, rig.partition().log.log_end_offset) == (OTHER_ID, 0)


def test_the_log_of_another_topic_is_never_deleted():
    """RL 1.5: a partition that could not be opened, because the log there belongs to a newer topic of its name, goes without that log."""
    rig = Rig()
    rig.topic("x", None, b"x" * 16)  # the first delta, which sets strays aside, is over
    rig.log_manager.get_or_create(TP, OTHER_ID, LogConfig(), True)
    rig.log_manager.broken[TP] = BrokerError(ErrorCode.INCONSISTENT_TOPIC_ID)
    rig.topic()
    assert rig.produce().error == ErrorCode.KAFKA_STORAGE_ERROR
    rig.remove_topic()
    assert rig.log_manager.deleted == []


def test_a_log_that_cannot_be_created_is_that_partition_offline_only():
    """RL 1.12, ReplicaManagerTest: the partition answers KAFKA_STORAGE_ERROR, the others of the delta work."""
    rig = Rig()
    rig.log_manager.broken[TP] = LogDirFailure("/other-disk", OSError("no"))
    rig.topic(states={0: registration(), 1: registration()})
    assert rig.produce().error == ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.replicas.fetch(consumer(), [at(0)])[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.produce(tp=TopicPartition("t", 1)).error == ErrorCode.NONE


def test_a_failing_directory_takes_only_its_partitions(monkeypatch):
    """RL 1.12: a disk error of an append takes its directory's partitions offline, and answers those who wait there."""
    rig = led()
    _, done = parked_fetch(rig)
    log = rig.partition().log
    monkeypatch.setattr(type(log), "append_as_leader", lambda *_, **__: (_ for _ in ()).throw(LogDirFailure("/data", OSError("EIO"))))
    assert rig.produce().error == ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.partition().offline
    assert done == [None]


def test_topic_settings_act_while_running():
    """RL 1.11: an override reaches the log without a restart."""
    rig = led()
    rig.topic(overrides={"max.message.bytes": "100"})
    assert rig.produce(value=b"x" * 200).error == ErrorCode.MESSAGE_TOO_LARGE
    rig.topic(overrides={})
    assert rig.produce(value=b"x" * 200).error == ErrorCode.NONE


def test_strays_are_set_aside_at_the_start():
    """ReplicaManagerTest: logs that the first picture does not place here, or that belong to another topic of the name, are kept as strays."""
    rig = Rig()
    for tp in (TP, OTHER, TopicPartition("t", 1)):
        rig.log_manager.get_or_create(tp, TOPIC_ID, LogConfig(), True)
    two = TopicImage("t", TOPIC_ID, {0: registration(), 1: registration(2, (2,))})
    by_name = {"t": two, "other": TopicImage("other", OTHER_ID, {0: registration()})}
    rig.publish(topics_by_name=by_name, topics_by_id={topic.id: topic for topic in by_name.values()})
    assert sorted(rig.log_manager.strays) == [OTHER, TopicPartition("t", 1)]
    assert rig.produce().error == rig.produce(tp=OTHER).error == ErrorCode.NONE


def test_missed_and_stale_updates():
    """ReplicaManagerTest: an update that skips versions is taken; an older one is not."""
    rig = led()
    rig.topic(states={0: registration(1, (1,), None, 7, 30)})
    rig.topic(states={0: registration(2, (1, 2), None, 6, 20)})
    assert (rig.partition().is_leader, rig.partition().leader_epoch) == (True, 7)


# the ISR, over the controller


def test_isr_expansion_and_shrinking_go_to_the_controller():
    """RL 2.5: one change in flight per partition; the answer moves the ISR, marks the rate and tries what waits."""
    rig = led((1, 2), (1,))
    rig.produce()
    rig.replicas.fetch(follower(2), [at(1)])
    (proposal, _), *_ = rig.controller.asked
    assert proposal.members == ((1, 101), (2, 102))
    outcome, done = parked_produce(rig)
    rig.controller.confirm()
    assert (rig.replicas.isr_expands, sorted(rig.partition().isr_state.isr)) == (1, [1, 2])
    assert not done
    rig.advance(31)
    rig.advance(15)
    rig.controller.confirm()
    assert (rig.replicas.isr_shrinks, sorted(rig.partition().isr_state.isr)) == (1, [1])
    assert (done, outcome.error) == ([None], ErrorCode.REQUEST_TIMED_OUT)


def test_a_confirmed_shrink_answers_parked_produces():
    """RL 2.5: after success the high watermark may advance, and what waits is tried."""
    rig = led((1, 2))
    outcome, done = parked_produce(rig, timeout_ms=120_000)
    rig.advance(60)
    rig.controller.confirm()
    assert (done, outcome.error) == ([None], ErrorCode.NONE)


def test_a_retriable_refusal_is_sent_again():
    """RL 2.5: others are retried with the same content."""
    rig = led((1, 2), (1,))
    rig.replicas.fetch(follower(2), [at(0)])
    rig.controller.refuse(ErrorCode.NOT_CONTROLLER)
    assert len(rig.controller.asked) == 1
    rig.controller.confirm()
    assert sorted(rig.partition().isr_state.isr) == [1, 2]


def test_a_lost_leadership_withdraws_the_change():
    """RL 2.5: what was proposed under a leadership that is over is not sent again."""
    rig = led((1, 2), (1,))
    rig.replicas.fetch(follower(2), [at(0)])
    rig.topic(states={0: registration(2, (1, 2), (2,), 1, 1)})
    assert rig.controller.withdrawn == [(TOPIC_ID, 0)]


# periodic tasks, stopping, starting


def test_high_watermarks_are_checkpointed():
    """RL 1.12: every 5 s from the first role change on, for leaders and followers alike."""
    rig = Rig()
    rig.topic(states={0: registration(), 1: registration(2, (1, 2))})
    rig.produce(3)
    assert read_offsets(rig.files, "/data", HIGH_WATERMARK_FILE) == {}
    rig.advance(5.1)
    assert read_offsets(rig.files, "/data", HIGH_WATERMARK_FILE) == {TP: 3, TopicPartition("t", 1): 0}


def test_a_created_replica_starts_from_the_checkpoint_clamped_to_its_end():
    """RL 1.12: at start the high watermark is min(checkpoint, log end), not below the log start."""
    rig = led((1, 2))
    rig.produce(5)
    rig.partition().log.set_high_watermark(3)
    rig.replicas.shutdown()
    again = Rig()
    again.files = rig.files
    again.log_manager = rig.log_manager
    again.runtime.files = rig.files
    again.replicas = ReplicaManager(1, again.runtime, again.config, rig.log_manager, again, None)
    rig.partition().log.set_high_watermark(0)
    again.topic(states={0: registration(1, (1, 2))})
    assert again.partition().log.high_watermark == 3


def test_a_checkpoint_that_is_damaged_counts_as_empty():
    """RL 1.12: the high watermark starts at the log start and is found anew."""
    rig = Rig()
    file = rig.files.open(f"/data/{HIGH_WATERMARK_FILE}", create=True)
    file.write_at(0, (b"nonsense",))
    rig.topic()
    assert rig.partition().log.high_watermark == 0


def test_shutdown():
    """Everything that waits is answered as if its time were up; high watermarks are on disk; nothing is left on the clock."""
    rig = led((1, 2))
    outcome, produced = parked_produce(rig, 60_000)
    _, fetched = parked_fetch(rig, consumer(max_wait_ms=60_000))
    rig.replicas.shutdown()
    assert (produced, outcome.error, fetched) == ([None], ErrorCode.REQUEST_TIMED_OUT, [None])
    assert read_offsets(rig.files, "/data", HIGH_WATERMARK_FILE) == {TP: 0}
    assert rig.clock.getDelayedCalls() == []


def test_a_failing_periodic_task_goes_on(monkeypatch):
    """A LoopingCall whose function raised would stop for good."""
    rig = led((1, 2))
    calls: list = []

    def sometimes(partition, now_ms):
        calls.append(now_ms)
        if len(calls) == 1:
            raise RuntimeError("once")

    monkeypatch.setattr(leader_isr, "maybe_shrink", sometimes)
    rig.advance(31)
    assert len(calls) == 2


def test_the_answer_carries_the_append_time_of_the_log():
    """Produce v2+: LogAppendTime topics answer with the broker's time, CreateTime ones with -1."""
    rig = Rig()
    rig.topic(overrides={"message.timestamp.type": "LogAppendTime"})
    assert rig.produce().log_append_time_ms == WALL_MS
    rig.topic("other", None, OTHER_ID)
    assert rig.produce(tp=OTHER).log_append_time_ms == -1
