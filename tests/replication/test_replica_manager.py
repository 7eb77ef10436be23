"""The replica manager of one node: appends, fetches, what waits, and the order of effects (RL
1.1-1.14).
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from twisted.internet.defer import CancelledError

from tests.coordinator.broker_run import TurnClock
from tests.replication.fixtures import (
    TOPIC_ID,
    TP,
    WALL_MS,
    Fixture,
    at,
    batch,
    consumer,
    follower,
    registration,
    tried_again_under,
)
from twisted_broker.image.entries import TopicImage
from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    EMPTY,
    TOPIC_RESOURCE,
    MetadataDelta,
    PartitionDelta,
    Removals,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.checkpoints import HIGH_WATERMARK as HIGH_WATERMARK_FILE
from twisted_broker.log.checkpoints import metadata_offset, read_offsets
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.memory import MemoryFile
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.log_config import LogConfig, topic_config
from twisted_broker.replication import role_change
from twisted_broker.replication.partition.fetch_data import TXN_COMMITTED
from twisted_broker.replication.partition.isr_state import CommittedIsr
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.topic_names import METADATA_TOPIC
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.primitives import NULL_UUID

OTHER = TopicPartition("other", 0)
OTHER_ID = bytes(reversed(range(16)))


def led(replicas=(1,), isr=None, **settings) -> Fixture:
    fixture = Fixture(**settings)
    fixture.topic(states={0: registration(1, replicas, isr)})
    return fixture


def parked_produce(fixture: Fixture, timeout_ms: int = 1000, count: int = 1):
    outcomes = fixture.replicas.produce([(TP, batch(count))], -1)
    assert fixture.replicas.delayed_produce(outcomes)
    done: list = []
    fixture.replicas.wait_for_replicas(outcomes, timeout_ms).addBoth(done.append)
    return outcomes[0], done


def parked_fetch(fixture: Fixture, params=None, *asked):
    params = params or consumer()
    requests = list(asked) or [at(0)]
    first = fixture.replicas.fetch(params, requests)
    assert not ReplicaManager.answers_at_once(params, first)
    done: list = []
    deferred = fixture.replicas.delayed_fetch(params, first)
    deferred.addCallback(released).addBoth(done.append)
    return deferred, done


def released(second_read) -> None:
    for result in second_read:
        result.release()


# appending


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_other_than_minus_one_zero_one(acks):
    """RL 1.6: INVALID_REQUIRED_ACKS for every partition, base offset -1, nothing written."""
    fixture = led()
    outcomes = fixture.replicas.produce([(TP, batch()), (OTHER, batch())], acks)
    assert [(outcome.error, outcome.base_offset) for outcome in outcomes] == [
        (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    ] * 2
    assert fixture.partition().log.log_end_offset == 0


@pytest.mark.parametrize(
    "topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"]
)
def test_internal_topics_take_records_from_coordinators_only(topic):
    """RL 1.6: INVALID_TOPIC_EXCEPTION for clients; the broker's own coordinators write there."""
    fixture = Fixture()
    fixture.topic(topic)
    tp = TopicPartition(topic, 0)
    assert fixture.produce(tp=tp).error == ErrorCode.INVALID_TOPIC_EXCEPTION
    (outcome,) = fixture.replicas.append([(tp, batch())], -1, origin=AppendOrigin.COORDINATOR)
    assert (outcome.error, outcome.base_offset) == (ErrorCode.NONE, 0)


def test_errors_are_per_partition():
    """RL 1.6: unknown, led elsewhere, corrupt: each its own error, and the others go on."""
    fixture = led()
    fixture.topic("other", {0: registration(2, (2, 3))}, OTHER_ID)
    corrupt = bytearray(batch())
    corrupt[-1] ^= 1
    entries = [
        (TopicPartition("none", 0), batch()),
        (OTHER, batch()),
        (TP, bytes(corrupt)),
        (TP, batch()),
        (TopicPartition("t", 7), batch()),
    ]
    assert [outcome.error for outcome in fixture.replicas.produce(entries, 1)] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_a_bug_in_one_append_is_that_partitions_alone(monkeypatch):
    """docs/ARCHITECTURE.md 8: an unexpected error answers UNKNOWN_SERVER_ERROR for its
    partition; the next one is appended.
    """
    fixture = led()
    fixture.topic("other", None, OTHER_ID)
    file, write_at = fixture.partition().log.segments.active.log.open(), MemoryFile.write_at

    def broken(written, *arguments):
        if written is file:
            raise RuntimeError("bug")
        return write_at(written, *arguments)

    monkeypatch.setattr(MemoryFile, "write_at", broken)
    outcomes = fixture.replicas.produce([(TP, batch()), (OTHER, batch())], 1)
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NONE,
    ]


# delayed produce


def test_no_delayed_produce_alone_or_without_need():
    """RL 1.7: with an ISR of one nothing waits; nor when every append failed, nor without
    records.
    """
    fixture = led()
    assert not fixture.replicas.delayed_produce(fixture.replicas.produce([], -1))
    outcomes = fixture.replicas.produce([(TP, batch())], -1)
    assert not fixture.replicas.delayed_produce(outcomes)
    shared = led((1, 2))
    outcomes = shared.replicas.produce([(OTHER, batch())], -1)
    assert not shared.replicas.delayed_produce(outcomes)
    assert outcomes[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_produce_waits_for_the_high_watermark_not_for_the_log_end():
    """RL 1.7, 1.10: satisfied when the high watermark passed the last appended offset, by the fetch
    that moves it.
    """
    fixture = led((1, 2))
    outcome, done = parked_produce(fixture, count=3)
    fixture.produce()
    assert not done
    fixture.replicas.fetch(follower(2), [at(2)])
    assert not done
    fixture.replicas.fetch(follower(2), [at(3)])
    assert (done, outcome.error, outcome.base_offset) == ([None], ErrorCode.NONE, 0)


def test_at_timeout_the_rest_times_out():
    """RL 1.7: what is satisfied stays so; the rest answers REQUEST_TIMED_OUT."""
    fixture = led((1, 2))
    fixture.topic("other", None, OTHER_ID)
    outcomes = fixture.replicas.produce([(TP, batch()), (OTHER, batch())], -1)
    done: list = []
    fixture.replicas.wait_for_replicas(outcomes, 1000).addBoth(done.append)
    fixture.advance(0.999)
    assert not done
    fixture.advance(0.01)
    assert (done, [outcome.error for outcome in outcomes]) == (
        [None],
        [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE],
    )


def test_becoming_follower_completes_parked_produces_and_fetches():
    """RL 1.4, 1.7: led elsewhere: NOT_LEADER_OR_FOLLOWER at once; parked fetches are read anew."""
    fixture = led((1, 2))
    outcome, produced = parked_produce(fixture)
    _, fetched = parked_fetch(fixture)
    fixture.topic(states={0: registration(2, (1, 2), None, 1, 1)})
    assert (produced, outcome.error) == ([None], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert fetched == [None]


def test_a_new_epoch_of_the_same_leader_fences_parked_fetches():
    """RL 1.9 E: whoever waits under the old leader epoch is told at once; who named none waits
    on.
    """
    fixture = led((1, 2, 3))
    _, fenced = parked_fetch(fixture, consumer(60_000), at(0, current_leader_epoch=0))
    _, other = parked_fetch(fixture, consumer(60_000), at(0))
    fixture.topic(states={0: registration(1, (1, 2), None, 1, 1)})
    assert (fenced, other) == ([None], [])
    (result,) = fixture.replicas.fetch(consumer(), [at(0, current_leader_epoch=0)])
    assert result.error == ErrorCode.FENCED_LEADER_EPOCH


def test_a_removed_partition_completes_what_waits():
    """RL 1.5, 1.7: a deleted topic: UNKNOWN_TOPIC_OR_PARTITION at once, and its log is deleted."""
    fixture = led((1, 2))
    outcome, produced = parked_produce(fixture)
    _, fetched = parked_fetch(fixture)
    fixture.remove_topic()
    assert (produced, outcome.error) == ([None], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert fetched == [None]
    assert fixture.log_manager.deleted == [TP]


def test_a_shrunken_isr_answers_after_append():
    """RL 1.7: reached, but below min.insync.replicas at that moment:
    NOT_ENOUGH_REPLICAS_AFTER_APPEND.
    """
    fixture = Fixture()
    fixture.topic(
        states={0: registration(1, (1, 2, 3), (1, 2))}, overrides={"min.insync.replicas": "2"}
    )
    outcome, done = parked_produce(fixture)
    fixture.topic(
        states={0: registration(1, (1, 2, 3), (1,), 0, 1)}, overrides={"min.insync.replicas": "1"}
    )
    assert (done, outcome.error) == ([None], ErrorCode.NONE)
    fixture.topic(
        states={0: registration(1, (1, 2, 3), (1, 2), 0, 2)}, overrides={"min.insync.replicas": "2"}
    )
    outcome, done = parked_produce(fixture)
    fixture.partition().isr_state = CommittedIsr(frozenset({1}))
    fixture.partition().log.set_high_watermark(2)
    fixture.replicas.produce_purgatory.check_and_complete(TP)
    assert (done, outcome.error) == ([None], ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


# fetching


def test_a_waiting_fetch_is_answered_the_moment_data_arrives():
    """RL 1.14, no clock moves between the append and the answer."""
    fixture = led()
    _, done = parked_fetch(fixture)
    fixture.produce()
    assert done == [None]
    (result,) = fixture.replicas.fetch(consumer(), [at(0)], record_progress=False)
    assert (result.size > 0, result.high_watermark) == (True, 1)
    assert fixture.clock.getDelayedCalls() == [] or fixture.replicas.fetch_purgatory.waiting == 0


def test_at_its_time_a_fetch_is_answered_empty():
    """RL 1.9: time-out apart from all conditions."""
    fixture = led()
    _, done = parked_fetch(fixture, consumer(max_wait_ms=500))
    fixture.advance(0.499)
    assert not done
    fixture.advance(0.01)
    assert done == [None]


def test_answers_at_once():
    """RL 1.8: no wait, nothing asked, min_bytes there, an error: each is answered by the first
    read.
    """
    fixture = led()
    empty = fixture.replicas.fetch(consumer(), [at(0)])
    assert ReplicaManager.answers_at_once(consumer(max_wait_ms=0), empty)
    assert ReplicaManager.answers_at_once(consumer(), [])
    assert ReplicaManager.answers_at_once(consumer(min_bytes=0), empty)
    assert not ReplicaManager.answers_at_once(consumer(), empty)
    assert ReplicaManager.answers_at_once(consumer(), fixture.replicas.fetch(consumer(), [at(5)]))
    fixture.produce()
    assert ReplicaManager.answers_at_once(consumer(), fixture.replicas.fetch(consumer(), [at(0)]))


def test_a_diverging_epoch_is_answered_at_once():
    """RL 1.8: the reader must truncate, it need not wait."""
    fixture = led((1, 2))
    fixture.produce(3)
    fixture.topic(states={0: registration(1, (1, 2), None, 4, 1)})
    fixture.produce(3)
    results = fixture.replicas.fetch(follower(2), [at(5, last_fetched_epoch=0)])
    assert results[0].diverging_epoch == (0, 3)
    assert ReplicaManager.answers_at_once(follower(2), results)


def test_the_response_limit_shrinks_in_the_order_of_the_request():
    """RL 1.8: the first non-empty partition may exceed the limit by one whole batch; what
    follows gets what is left.
    """
    fixture = led()
    fixture.topic("other", None, OTHER_ID)
    fixture.produce(value=b"x" * 1000)
    fixture.produce(tp=OTHER, value=b"x" * 1000)
    first, second = fixture.replicas.fetch(consumer(max_bytes=10), [at(0), at(0, OTHER)])
    assert first.size > 1000
    assert second.size == 0
    assert second.high_watermark == 1
    first, second = fixture.replicas.fetch(consumer(max_bytes=1 << 20), [at(0, OTHER), at(0)])
    assert first.size > 1000 < second.size


def test_a_partition_limit_still_gives_one_whole_batch():
    """RL 1.8 (KIP-74): version >= 3: progress is possible however small the partition's limit."""
    fixture = led()
    fixture.produce(value=b"x" * 1000)
    (result,) = fixture.replicas.fetch(consumer(), [at(0, max_bytes=10)])
    assert result.size > 1000


def test_hard_limits_cut_the_first_batch():
    """RL 1.8: version <= 2: an oversized first batch is cut at the partition's limit."""
    fixture = led()
    fixture.produce(value=b"x" * 1000)
    (result,) = fixture.replicas.fetch(consumer(hard_max_bytes=True), [at(0, max_bytes=100)])
    assert (result.size, result.first_entry_incomplete) == (100, True)


def test_a_later_batch_that_does_not_fit_is_not_cut():
    """RL 1.8: version >= 3: after the first partition with data a first batch that does not fit
    is left for the next fetch.
    """
    fixture = led()
    fixture.topic("other", None, OTHER_ID)
    fixture.produce()
    fixture.produce(tp=OTHER, value=b"x" * 1000)
    first, second = fixture.replicas.fetch(consumer(max_bytes=300), [at(0), at(0, OTHER)])
    assert first.size > 0
    assert second.size == 0


def test_one_bad_partition_does_not_spoil_the_others():
    """ReplicaManagerTest: topic id mismatch, unknown partition, out of range: each its own error
    with -1 watermarks; the good one is read.
    """
    fixture = led()
    fixture.produce()
    requests = [at(0, topic_id=OTHER_ID), at(0, OTHER), at(9), at(0, topic_id=TOPIC_ID)]
    results = fixture.replicas.fetch(consumer(), requests)
    assert [result.error for result in results] == [
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NONE,
    ]
    assert [
        (result.high_watermark, result.last_stable_offset, result.log_start_offset)
        for result in results[:3]
    ] == [(-1, -1, -1)] * 3
    assert results[3].size > 0


def test_a_fetch_beyond_the_high_watermark_waits():
    """ReplicaManagerTest: above the high watermark but within the log it is empty and waits; it
    is not an error.
    """
    fixture = led((1, 2))
    fixture.produce(5)
    _, done = parked_fetch(fixture, consumer(), at(3))
    fixture.produce()
    assert not done
    fixture.replicas.fetch(follower(2), [at(6)])
    assert done == [None]


def test_the_second_read_does_not_count_a_followers_progress_again():
    """RL 1.9: completion reads anew and leaves the follower's state alone."""
    fixture = led((1, 2))
    fixture.produce(2)
    fixture.replicas.fetch(follower(2), [at(2)])
    fixture.advance(1)
    before = fixture.partition().remote_replicas[2].last_fetch_ms
    fixture.replicas.fetch(follower(2), [at(2)], record_progress=False)
    assert fixture.partition().remote_replicas[2].last_fetch_ms == before


@pytest.mark.parametrize("when", ["records", "time"])
def test_what_wakes_a_followers_fetch_does_not_count_its_progress_again(when: str):
    """RL 1.9: the second read is later than the request: the follower is as far as it was when
    it sent that.
    """
    fixture = led((1, 2))
    fixture.produce(2)
    params = follower(2, max_wait_ms=5_000, min_bytes=10_000 if when == "time" else 1)
    first = fixture.replicas.fetch(params, [at(2)])
    remote = fixture.partition().remote_replicas[2]
    before = (remote.last_fetch_ms, remote.last_caught_up_ms, remote.log_end_offset)
    given: list = []
    fixture.replicas.delayed_fetch(params, first).addCallback(given.append)
    fixture.advance(1)
    fixture.produce(3)
    fixture.advance(5 if when == "time" else 0)
    ((result,),) = given
    assert result.size > 0, "it was read anew"
    assert (remote.last_fetch_ms, remote.last_caught_up_ms, remote.log_end_offset) == before


def test_the_second_read_has_the_limits_of_the_first():
    """RL 1.9: of each partition and of the whole; the first partition that has records gives one
    whole batch, the next what is left.
    """
    fixture = led()
    fixture.topic("other", None, OTHER_ID)
    size = len(batch(value=b"x" * 1000))

    def second_read(*requests, **options) -> list[int]:
        params = consumer(min_bytes=4 * size, **options)
        given: list = []
        first = fixture.replicas.fetch(params, list(requests))
        assert not ReplicaManager.answers_at_once(params, first)
        fixture.replicas.delayed_fetch(params, first).addCallback(given.append)
        for _ in range(2):
            fixture.produce(value=b"x" * 1000)
            fixture.produce(tp=OTHER, value=b"x" * 1000)
        fixture.advance(1)
        sizes = [result.size for result in given[0]]
        for result in given[0]:
            result.release()
        return sizes

    assert second_read(at(0, max_bytes=10), at(0, OTHER)) == [size, 2 * size]
    assert second_read(at(2), at(2, OTHER), max_bytes=10) == [size, 0]
    assert second_read(at(4, max_bytes=100), at(4, OTHER), hard_max_bytes=True) == [100, 2 * size]


def test_first_read_slices_are_given_back():
    """A fetch that goes on to wait holds no file."""
    fixture = led()
    fixture.produce()
    params = consumer(min_bytes=10_000)
    first = fixture.replicas.fetch(params, [at(0)])
    file = first[0].slice.file
    assert file.references == 1
    fixture.replicas.delayed_fetch(params, first)
    assert file.references == 0


def test_a_cancelled_fetch_leaves():
    """docs/ARCHITECTURE.md 7: on disconnect parked fetches are cancelled: nothing of them stays,
    and data that comes later finds nobody.
    """
    fixture = led()
    deferred, done = parked_fetch(fixture)
    deferred.cancel()
    assert done[0].check(CancelledError)
    fixture.produce()
    assert fixture.replicas.fetch_purgatory.waiting == 0


def test_read_committed_stops_at_the_last_stable_offset():
    """RL 1.8, ReplicaManagerTest: with an open transaction read_committed sees less, and gets a
    list of aborted ones.
    """
    fixture = led()
    fixture.produce(2)
    transactional = batch(
        3, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    (outcome,) = fixture.replicas.append(
        [(TP, transactional)],
        1,
        origin=AppendOrigin.COORDINATOR,
        guards={TP: NOT_REQUIRED},
    )
    assert outcome.error == ErrorCode.NONE
    fixture.replicas.drain()
    committed = fixture.replicas.fetch(consumer(isolation=TXN_COMMITTED), [at(0)])[0]
    everything = fixture.replicas.fetch(consumer(), [at(0)])[0]
    assert (
        committed.high_watermark,
        committed.last_stable_offset,
        committed.aborted_transactions,
    ) == (5, 2, [])
    assert everything.size > committed.size
    assert everything.aborted_transactions is None
    _, done = parked_fetch(fixture, consumer(isolation=TXN_COMMITTED), at(2))
    fixture.produce()
    assert not done


def test_memory_of_waiting_fetches():
    """RL 4.2: 100,000 waiting fetches take under 200 MB: params, request, condition, Deferred,
    timer and lists are under 2,000 bytes together.
    """
    fixture = led()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = []
        for offset in range(5_000):
            params = consumer(max_wait_ms=30_000 + offset)
            kept.append(
                fixture.replicas.delayed_fetch(
                    params, fixture.replicas.fetch(params, [at(0, TopicPartition(*TP))])
                )
            )
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert fixture.replicas.fetch_purgatory.waiting == 5_000
    assert used < 5_000 * 2_000
    fixture.produce()
    assert all(deferred.called for deferred in kept)


def test_who_waited_for_a_topic_is_not_answered_by_its_successor():
    """RL 1.7: deleted and made again in one delta: what the new log reaches says nothing of what
    the old one had (simulation, seeds 421226, 421579).
    """
    fixture = led((1, 2))
    outcome, produced = parked_produce(fixture)
    fixture.topic(topic_id=OTHER_ID, states={0: registration(1, (1,))})
    fixture.produce(5)
    assert (produced, outcome.error) == ([None], ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_successor_does_not_answer_for_what_was_appended_before_the_wait_began():
    """RL 1.7: a long request appends in many turns, and waits when all is appended; its topic is
    made anew between two of them.
    """
    fixture = led((1, 2))
    (outcome,) = fixture.replicas.produce([(TP, batch(4))], -1)
    fixture.topic(topic_id=OTHER_ID, states={0: registration(1, (1,))})
    fixture.produce(5)
    assert not fixture.replicas.delayed_produce([outcome])
    assert outcome.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_led_in_between_may_have_truncated_what_was_appended_before_the_wait_began():
    """RL 1.7: the same, while another broker leads for a moment: the offsets are others' by then,
    and committed. A new epoch of the same leader truncates nothing.
    """
    fixture = led((1, 2))
    (outcome,) = fixture.replicas.produce([(TP, batch(4))], -1)
    fixture.topic(states={0: registration(1, (1, 2), leader_epoch=1, partition_epoch=1)})
    assert fixture.replicas.delayed_produce([outcome])
    fixture.topic(states={0: registration(2, (1, 2), leader_epoch=2, partition_epoch=2)})
    fixture.replicas.partitions[TP].truncate_to(0, WALL_MS)
    fixture.topic(states={0: registration(1, (1,), leader_epoch=3, partition_epoch=3)})
    fixture.produce(9)
    assert not fixture.replicas.delayed_produce([outcome])
    assert outcome.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_successor_does_not_answer_for_records_deleted_before_the_wait_began():
    """RL 2.8, as RL 1.7: DeleteRecords of very many partitions."""
    fixture = led((1, 2))
    fixture.produce(10)
    fixture.replicas.fetch(follower(2), [at(10, log_start_offset=0)])
    (outcome,) = outcomes = fixture.replicas.delete_records([(TP, 6)])
    fixture.topic(topic_id=OTHER_ID, states={0: registration(1, (1,))})
    done: list = []
    fixture.replicas.wait_for_deletion(outcomes, 1000).addBoth(done.append)
    assert (done, outcome.error) == ([None], ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_deletion_of_records_is_not_answered_by_a_topics_successor():
    """RL 2.8."""
    fixture = led((1, 2))
    fixture.produce(10)
    fixture.replicas.fetch(follower(2), [at(10, log_start_offset=0)])
    (outcome,) = outcomes = fixture.replicas.delete_records([(TP, 6)])
    done: list = []
    fixture.replicas.wait_for_deletion(outcomes, 1000).addBoth(done.append)
    fixture.topic(topic_id=OTHER_ID, states={0: registration(1, (1,))})
    fixture.produce(5)
    assert (done, outcome.error) == ([None], ErrorCode.NOT_LEADER_OR_FOLLOWER)


# deleting records


def test_delete_records_waits_for_live_followers():
    """RL 2.8: complete when every live replica's log start moved; the low watermark is in the
    answer.
    """
    fixture = led((1, 2))
    fixture.produce(10)
    fixture.replicas.fetch(follower(2), [at(10, log_start_offset=0)])
    outcomes = fixture.replicas.delete_records([(TP, 6)])
    done: list = []
    fixture.replicas.wait_for_deletion(outcomes, 1000).addBoth(done.append)
    assert not done
    fixture.replicas.fetch(follower(2), [at(10, log_start_offset=6)])
    assert (done, outcomes[0].error, outcomes[0].low_watermark) == ([None], ErrorCode.NONE, 6)


def test_delete_records_does_not_wait_for_who_died_meanwhile():
    """RL 2.8: the low watermark is that of the living; a follower that the controller fences
    holds nobody up.
    """
    fixture = led((1, 2, 3))
    fixture.produce(10)
    for broker in (2, 3):
        fixture.replicas.fetch(follower(broker), [at(10, log_start_offset=0)])
    outcomes = fixture.replicas.delete_records([(TP, 6)])
    done: list = []
    fixture.replicas.wait_for_deletion(outcomes, 60_000).addBoth(done.append)
    fixture.replicas.fetch(follower(2), [at(10, log_start_offset=6)])
    assert not done
    fixture.publish(
        brokers={**fixture.image.brokers, 3: fixture.image.brokers[3]._replace(fenced=True)}
    )
    assert (done, outcomes[0].error, outcomes[0].low_watermark) == ([None], ErrorCode.NONE, 6)


def test_delete_records_ends_with_the_leadership():
    """RL 2.8: what waits is refused once another leads; it is not tried again on the follower."""
    fixture = led((1, 2))
    fixture.produce(10)
    fixture.replicas.fetch(follower(2), [at(10, log_start_offset=0)])
    outcomes = fixture.replicas.delete_records([(TP, 6)])
    done: list = []
    fixture.replicas.wait_for_deletion(outcomes, 60_000).addBoth(done.append)
    assert not done
    fixture.topic(states={0: registration(2, (1, 2), None, 6, 11)})
    assert (done, outcomes[0].error, outcomes[0].low_watermark) == (
        [None],
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        -1,
    )


def test_delete_records_alone_is_at_once_and_times_out_otherwise():
    """RL 2.8: alone nothing waits; at the time-out REQUEST_TIMED_OUT and -1."""
    fixture = led()
    fixture.produce(10)
    outcomes = fixture.replicas.delete_records([(TP, -1)])
    assert fixture.replicas.wait_for_deletion(outcomes, 1000).called
    assert (outcomes[0].error, outcomes[0].low_watermark) == (ErrorCode.NONE, 10)
    shared = led((1, 2))
    shared.produce(10)
    shared.replicas.fetch(follower(2), [at(10, log_start_offset=0)])
    outcomes = shared.replicas.delete_records([(TP, 5)])
    shared.replicas.wait_for_deletion(outcomes, 100)
    shared.advance(0.2)
    assert (outcomes[0].error, outcomes[0].low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)


def test_a_fetch_below_the_new_log_start_is_answered():
    """RL 2.8: records below the log start are gone at once: OFFSET_OUT_OF_RANGE."""
    fixture = led()
    fixture.produce(10)
    fixture.replicas.delete_records([(TP, 5)])
    assert fixture.replicas.fetch(consumer(), [at(4)])[0].error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fixture.replicas.fetch(consumer(), [at(5)])[0].log_start_offset == 5


# events


def test_effects_run_in_order_and_to_the_end():
    """RL 4.3: docs/ARCHITECTURE.md 4: first in, first out, to empty; what an effect causes waits
    for its turn, and nothing runs inside itself.
    """
    fixture = led()
    fixture.topic("other", None, OTHER_ID)
    order: list = []
    deferred, _ = parked_fetch(fixture)

    def answered(_):
        order.append("t answered")
        fixture.replicas.produce([(OTHER, batch())], 1)
        order.append("other appended")

    deferred.addCallback(answered)
    other, _ = parked_fetch(fixture, consumer(), at(0, OTHER))
    other.addCallback(lambda _: order.append("other answered"))
    fixture.produce()
    assert order == ["t answered", "other appended", "other answered"]


def test_an_effect_that_raises_fails_its_partition_only(monkeypatch):
    """RL 1.12: the partition goes offline with KAFKA_STORAGE_ERROR; events of others still have
    their effects.
    """
    fixture = led((1, 2))
    fixture.topic("other", {0: registration(1, (1, 2))}, OTHER_ID)
    submit = fixture.controller.submit

    def broken(proposal):
        if proposal.topic_id == TOPIC_ID:
            raise RuntimeError("effect")
        return submit(proposal)

    monkeypatch.setattr(fixture.controller, "submit", broken)
    fixture.replicas.produce([(TP, batch()), (OTHER, batch())], 1)
    fixture.advance(61)
    assert [proposal.topic_id for proposal, _ in fixture.controller.asked] == [OTHER_ID]
    assert fixture.produce().error == ErrorCode.KAFKA_STORAGE_ERROR
    assert fixture.produce(tp=OTHER).error == ErrorCode.NONE


def test_a_coordinators_append_takes_effect_in_the_next_turn():
    """`append` runs nothing inside its caller; `drain`, or the reactor's next turn, does."""
    fixture = led()
    _, done = parked_fetch(fixture)
    fixture.replicas.append([(TP, batch())], -1, origin=AppendOrigin.COORDINATOR)
    assert not done
    fixture.advance(0)
    assert done == [None]


# roles


class Observer:
    """Which leadership it heard of, under which epoch."""

    def __init__(self, fixture: Fixture) -> None:
        self.told: list[tuple[str, int]] = []
        fixture.replicas.subscribe(self)

    def leadership_gained(self, tp, leader_epoch):
        self.told.append(("gained", leader_epoch))

    def leadership_lost(self, tp, leader_epoch):
        self.told.append(("lost", leader_epoch))


def test_observers_hear_of_leadership_that_went_and_came_back_in_one_delta():
    """RL 1.3: another coordinator may have written under the epoch between."""
    fixture = Fixture()
    observer = Observer(fixture)
    fixture.topic(states={0: registration(1, (1, 2), None, 5, 10)})
    fixture.topic(states={0: registration(1, (1, 2), None, 6, 11)})
    fixture.topic(states={0: registration(1, (1, 2), None, 8, 13)})
    assert observer.told == [("gained", 5), ("gained", 8)]


def test_observers_hear_that_a_partition_that_failed_is_led_elsewhere():
    """RL 1.3, 1.12."""
    fixture = Fixture()
    observer = Observer(fixture)
    fixture.topic(states={0: registration(1, (1, 2), None, 5, 10)})
    fixture.partition().fail("its disk failed")
    fixture.topic(states={0: registration(2, (1, 2), (2,), 6, 11)})
    fixture.topic(states={0: registration(2, (1, 2), (2,), 7, 12)})
    assert observer.told == [("gained", 5), ("lost", 6)]


def test_observers_hear_of_leadership():
    """RL 1.3: coordinators learn what they gained or lost, after all partitions have their
    roles.
    """
    fixture = Fixture()
    told: list = []

    class Observer:
        def leadership_gained(self, tp, leader_epoch):
            told.append(("gained", str(tp), leader_epoch, fixture.partition(tp).is_leader))

        def leadership_lost(self, tp, leader_epoch):
            told.append(("lost", str(tp), leader_epoch))

    fixture.replicas.subscribe(Observer())
    fixture.topic(states={0: registration(), 1: registration(2, (1, 2))})
    fixture.topic(
        states={0: registration(2, (1, 2), None, 1, 1), 1: registration(1, (1, 2), None, 1, 1)}
    )
    fixture.topic(
        states={0: registration(2, (1, 2), None, 1, 1), 1: registration(1, (1, 2), (1,), 1, 2)}
    )
    fixture.remove_topic()
    assert told == [
        ("gained", "t-0", 0, True),
        ("lost", "t-0", 1),
        ("gained", "t-1", 1, True),
        ("lost", "t-0", 1),
        ("lost", "t-1", 1),
    ]


def test_a_replica_that_was_removed_from_here():
    """RL 1.5: no longer assigned: dropped, its log deleted, NOT_LEADER_OR_FOLLOWER to clients."""
    fixture = led((1, 2))
    fixture.topic(states={0: registration(2, (2, 3), None, 1, 1)})
    assert fixture.log_manager.deleted == [TP]
    assert fixture.produce().error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_deleted_and_made_anew_in_one_delta():
    """RL 1.3: the old one goes first: the new topic of the same name starts empty under its own
    id.
    """
    fixture = led()
    fixture.produce(5)
    fixture.topic(topic_id=OTHER_ID)
    assert fixture.log_manager.deleted == [TP]
    assert (fixture.partition().topic_id, fixture.partition().log.log_end_offset) == (OTHER_ID, 0)


def test_the_log_of_another_topic_is_never_deleted():
    """RL 1.5: a partition that could not be opened, because the log there belongs to a newer
    topic of its name, goes without that log.
    """
    fixture = Fixture()
    fixture.topic("x", None, b"x" * 16)  # the first delta, which sets strays aside, is over
    fixture.log_manager.get_or_create(TP, OTHER_ID, LogConfig(), True)
    fixture.log_manager.broken[TP] = BrokerError(ErrorCode.INCONSISTENT_TOPIC_ID)
    fixture.topic()
    assert fixture.produce().error == ErrorCode.KAFKA_STORAGE_ERROR
    fixture.remove_topic()
    assert fixture.log_manager.deleted == []


def test_a_log_that_cannot_be_created_is_that_partition_offline_only():
    """RL 1.12, ReplicaManagerTest: the partition answers KAFKA_STORAGE_ERROR, the others of the
    delta work.
    """
    fixture = Fixture()
    fixture.log_manager.broken[TP] = LogDirFailure("/other-disk", OSError("no"))
    fixture.topic(states={0: registration(), 1: registration()})
    assert fixture.produce().error == ErrorCode.KAFKA_STORAGE_ERROR
    assert fixture.replicas.fetch(consumer(), [at(0)])[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    assert fixture.produce(tp=TopicPartition("t", 1)).error == ErrorCode.NONE


def test_a_failing_directory_takes_only_its_partitions(monkeypatch):
    """RL 1.12: a disk error of an append takes its directory's partitions offline, and answers
    those who wait there.
    """
    fixture = led()
    _, done = parked_fetch(fixture)
    monkeypatch.setattr(MemoryFile, "write_at", lambda *_: (_ for _ in ()).throw(OSError("EIO")))
    assert fixture.produce().error == ErrorCode.KAFKA_STORAGE_ERROR
    assert fixture.partition().offline
    assert done == [None]


def test_topic_settings_act_while_running():
    """RL 1.11: an override reaches the log without a restart."""
    fixture = led()
    fixture.topic(overrides={"max.message.bytes": "100"})
    assert fixture.produce(value=b"x" * 200).error == ErrorCode.MESSAGE_TOO_LARGE
    fixture.topic(overrides={})
    assert fixture.produce(value=b"x" * 200).error == ErrorCode.NONE


def test_strays_are_set_aside_at_the_start():
    """ReplicaManagerTest: logs that the first picture does not place here, or that belong to
    another topic of the name, are kept as strays.
    """
    fixture = Fixture()
    for tp in (TP, OTHER, TopicPartition("t", 1)):
        fixture.log_manager.get_or_create(tp, TOPIC_ID, LogConfig(), True)
    two = TopicImage("t", TOPIC_ID, {0: registration(), 1: registration(2, (2,))})
    by_name = {"t": two, "other": TopicImage("other", OTHER_ID, {0: registration()})}
    fixture.publish(
        topics_by_name=by_name, topics_by_id={topic.id: topic for topic in by_name.values()}
    )
    assert sorted(fixture.log_manager.strays) == [OTHER, TopicPartition("t", 1)]
    assert fixture.produce().error == fixture.produce(tp=OTHER).error == ErrorCode.NONE


def started_after(fixture: Fixture, *changes: Any, known: Sequence[Any] = ()) -> None:
    """What a start applies: a snapshot held `known`, the log behind it `changes`."""
    (image, _), removals = EMPTY.apply(known, 0, 1), Removals()
    for record in changes:
        image, delta = image.apply([record], image.offset + 1, 1)
        removals.note(delta)
    first = MetadataDelta.between(EMPTY, image)
    first.removals, fixture.image = removals, image
    fixture.replicas.apply_delta(first, image)


def partition_record(number: int, *replicas: int) -> records.PartitionRecord:
    return records.PartitionRecord(
        topic_id=TOPIC_ID,
        partition_id=number,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        directories=[NULL_UUID] * len(replicas),
    )


def moved(number: int, *replicas: int) -> records.PartitionChangeRecord:
    return records.PartitionChangeRecord(
        topic_id=TOPIC_ID, partition_id=number, replicas=replicas, isr=replicas, leader=replicas[0]
    )


def test_a_start_deletes_what_a_record_removed_while_the_broker_was_away():
    """As a broker that runs. Another topic's log of that name, and one that lost its id, may be
    somebody's only copy: they are kept.
    """
    fixture = Fixture()
    for number, topic_id in enumerate((TOPIC_ID, OTHER_ID, None, TOPIC_ID)):
        name = TopicPartition("t", number)
        fixture.log_manager.get_or_create(name, topic_id, LogConfig(), True)
    started_after(
        fixture,
        records.TopicRecord(name="t", topic_id=TOPIC_ID),
        records.RemoveTopicRecord(topic_id=TOPIC_ID),
        records.TopicRecord(name="t", topic_id=b"n" * 16),
    )
    assert fixture.log_manager.deleted == [TopicPartition("t", 0), TopicPartition("t", 3)]
    assert fixture.log_manager.strays == [TopicPartition("t", 1), TopicPartition("t", 2)]


def test_a_start_deletes_a_replica_that_a_record_moved_away():
    """Not one that came back, nor one of which no record says that it was here."""
    fixture = Fixture()
    for number in range(3):
        name = TopicPartition("t", number)
        fixture.log_manager.get_or_create(name, TOPIC_ID, LogConfig(), True)
    started_after(
        fixture,
        moved(0, 2),
        moved(1, 2),
        moved(1, 2, 1),
        known=[
            records.TopicRecord(name="t", topic_id=TOPIC_ID),
            partition_record(0, 2, 1),
            partition_record(1, 2, 1),
            partition_record(2, 2),
        ],
    )
    assert fixture.log_manager.deleted == [TopicPartition("t", 0)]
    assert fixture.log_manager.strays == [TopicPartition("t", 2)]
    assert list(fixture.replicas.partitions) == [TopicPartition("t", 1)]


def test_behind_a_snapshot_only_the_removal_of_a_topic_still_counts():
    """A replica may have been added again, and left again, in what the snapshot hides."""
    topic = [records.TopicRecord(name="t", topic_id=TOPIC_ID), partition_record(0, 2, 1)]
    image, removals = EMPTY.apply(topic)[0], Removals()
    image, delta = image.apply([moved(0, 2)])
    removals.note(delta)
    assert removals.has(TOPIC_ID, 0, 1, image)
    removals.snapshot()
    assert not removals.has(TOPIC_ID, 0, 1, image)
    without, delta = image.apply([records.RemoveTopicRecord(topic_id=TOPIC_ID)])
    removals.note(delta)
    removals.snapshot()
    assert removals.has(TOPIC_ID, 0, 1, without)
    assert not removals.has(TOPIC_ID, 0, 1, image)  # where the topic lives it decides nothing


@pytest.mark.parametrize(
    ("records", "metadata", "is_stray"),
    [(1, None, True), (1, b"", True), (0, b"", False), (1, b"version: 0\ntopic_jd: x", False)],
    ids=["no file", "empty", "no records", "damaged"],
)
def test_records_of_nobody_knows_which_topic_are_strays(
    records: int, metadata: bytes | None, is_stray: bool
) -> None:
    """LogManager.isStrayKraftReplica: after a loss of power they may be those of a topic that was
    deleted and made again meanwhile (simulation, seed 300755: the new one took them over).
    """
    fixture = Fixture()
    log = fixture.log_manager.get_or_create(TP, None, LogConfig(), True)
    for _ in range(records):
        log.append_as_leader(batch(), 0, WALL_MS)
    fixture.files.make_directories(log.directory)
    if metadata is not None:
        path = f"{log.directory}/partition.metadata"
        fixture.files.open(path, create=True).write_at(0, (metadata,))
    fixture.topic()
    assert fixture.log_manager.strays == ([TP] if is_stray else [])
    assert fixture.partition(TP).log.log_end_offset == (0 if is_stray else records)


def test_missed_and_stale_updates():
    """ReplicaManagerTest: an update that skips versions is taken; an older one is not."""
    fixture = led()
    fixture.topic(states={0: registration(1, (1,), None, 7, 30)})
    fixture.topic(states={0: registration(2, (1, 2), None, 6, 20)})
    assert (fixture.partition().is_leader, fixture.partition().leader_epoch) == (True, 7)


def test_a_piece_that_comes_behind_a_role_that_was_tried_again():
    """A large delta is applied in many turns. What had found no descriptor before gets the newest
    role in one of them: the older one that comes with its piece is no older controller.
    """
    fixture = led((1, 2))
    images = tried_again_under(fixture, (1, 2), (1, 2))
    for before, after in pairwise(images):
        fixture.replicas.apply_delta(MetadataDelta.between(before, after), after)
    partition = fixture.partition()
    assert (partition.is_leader, partition.offline, partition.leader_epoch) == (True, False, 2)


@pytest.mark.parametrize("by_record", [True, False])
def test_a_role_that_is_tried_again_removes_nothing(by_record: bool) -> None:
    """The newest metadata has the replica elsewhere. What says so is still to come, and whether a
    record removed it, so that its log is deleted, or a snapshot lacks it.
    """
    fixture = led((1, 2))
    fixture.produce(3)
    images = tried_again_under(fixture, (1, 2), (2, 3))
    assert not (fixture.log_manager.deleted or fixture.log_manager.strays)
    for before, after in pairwise(images):
        assert fixture.partition().log.log_end_offset == 3
        delta = MetadataDelta.between(before, after)
        delta.by_comparison = not by_record
        fixture.replicas.apply_delta(delta, after)
    assert not fixture.replicas.partitions and not fixture.log_manager.logs
    assert fixture.log_manager.deleted == ([TP] if by_record else [])
    assert fixture.log_manager.strays == ([] if by_record else [TP])


def test_a_removal_that_comes_behind_the_role_that_came_after_it() -> None:
    """A replica was removed and added again. The role that was tried again is the one after: its
    log may count in the ISR by now, and the piece with the removal must not take it.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(2, (2, 1))})
    partition, log = fixture.partition(), fixture.partition().log
    images = tried_again_under(fixture, (2, 3), (2, 3, 1))
    assert partition.leader_epoch == 2
    for before, after in pairwise(images):
        fixture.replicas.apply_delta(MetadataDelta.between(before, after), after)
    assert not (fixture.log_manager.deleted or fixture.log_manager.strays)
    assert fixture.partition() is partition and partition.log is log


def test_a_running_leader_is_told_to_lead_an_epoch_that_its_log_is_beyond():
    """A snapshot of a controller that was set back, and has grown beyond: nothing else shows it to
    a broker that runs (docs/RELIABILITY.md), and its partition epochs are older as well.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(1, (1, 2), leader_epoch=5, partition_epoch=9)})
    fixture.produce(1)
    fixture.topic(states={0: registration(1, (1, 2), leader_epoch=3, partition_epoch=4)})
    partition = fixture.partition()
    assert partition.offline and "older than this replica" in partition.offline_because


def test_a_first_role_that_the_log_is_beyond_comes_before_the_image():
    """The controller of a ZooKeeper cluster sends roles first (LeaderAndIsr), then the metadata."""
    fixture = Fixture()
    fixture.topic(states={0: registration(1, leader_epoch=5, partition_epoch=9)})
    fixture.produce(1)
    fixture.replicas.partitions.clear()  # a new process
    state = registration(1, leader_epoch=3, partition_epoch=4)
    fixture.image = replace(fixture.image, topics_by_name={}, topics_by_id={})
    change = PartitionDelta("t", TOPIC_ID, 0, state, state)
    delta = MetadataDelta(fixture.image, fixture.image, partitions={(TOPIC_ID, 0): change})
    fixture.replicas.apply_delta(delta, fixture.image)
    assert fixture.partition().offline


# the ISR, over the controller


def test_isr_expansion_and_shrinking_go_to_the_controller():
    """RL 2.5, 1.13: one change in flight per partition; the answer moves the ISR, marks the rate
    and tries what waits.
    """
    fixture = led((1, 2), (1,))
    fixture.produce()
    fixture.replicas.fetch(follower(2), [at(1)])
    (proposal, _), *_ = fixture.controller.asked
    assert proposal.members == ((1, 101), (2, 102))
    outcome, done = parked_produce(fixture)
    fixture.controller.confirm()
    assert (fixture.replicas.effects.isr_expands, sorted(fixture.partition().isr_state.isr)) == (
        1,
        [1, 2],
    )
    assert not done
    fixture.advance(31)
    fixture.advance(15)
    fixture.controller.confirm()
    assert (fixture.replicas.effects.isr_shrinks, sorted(fixture.partition().isr_state.isr)) == (
        1,
        [1],
    )
    assert (done, outcome.error) == ([None], ErrorCode.REQUEST_TIMED_OUT)


def test_a_confirmed_shrink_answers_parked_produces():
    """RL 2.5: after success the high watermark may advance, and what waits is tried."""
    fixture = led((1, 2))
    outcome, done = parked_produce(fixture, timeout_ms=120_000)
    fixture.advance(60)
    fixture.controller.confirm()
    assert (done, outcome.error) == ([None], ErrorCode.NONE)


def test_a_retriable_refusal_is_sent_again():
    """RL 2.5: others are retried with the same content."""
    fixture = led((1, 2), (1,))
    fixture.replicas.fetch(follower(2), [at(0)])
    fixture.controller.refuse(ErrorCode.NOT_CONTROLLER)
    assert len(fixture.controller.asked) == 1
    fixture.controller.confirm()
    assert sorted(fixture.partition().isr_state.isr) == [1, 2]


def test_a_lost_leadership_withdraws_the_change():
    """RL 2.5: what was proposed under a leadership that is over is not sent again."""
    fixture = led((1, 2), (1,))
    fixture.replicas.fetch(follower(2), [at(0)])
    fixture.topic(states={0: registration(2, (1, 2), (2,), 1, 1)})
    assert fixture.controller.withdrawn == [(TOPIC_ID, 0)]


def test_a_leader_that_failed_withdraws_the_change():
    """RL 2.5: a shrink to the leader alone that reached the controller after the failure would
    leave nobody to be elected.
    """
    fixture = led((1, 2))
    fixture.produce()
    fixture.advance(60)
    assert len(fixture.controller.asked) == 1
    fixture.replicas.directory_failed("/data", OSError("EIO"))
    fixture.advance(0)
    assert fixture.controller.withdrawn == [(TOPIC_ID, 0)]
    fixture.controller.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not fixture.controller.asked


# periodic tasks, stopping, starting


def test_high_watermarks_are_checkpointed():
    """RL 1.12: every 5 s from the first role change on, for leaders and followers alike; with
    them how far the metadata was applied.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(), 1: registration(2, (1, 2))})
    fixture.produce(3)
    assert read_offsets(fixture.files, "/data", HIGH_WATERMARK_FILE) == {}
    fixture.advance(5.1)
    found = read_offsets(fixture.files, "/data", HIGH_WATERMARK_FILE)
    assert metadata_offset(found) == fixture.image.offset + 1 > 0
    assert partitions_of(found) == {TP: 3, TopicPartition("t", 1): 0}


def partitions_of(found):
    return {each: offset for each, offset in found.items() if each.topic != METADATA_TOPIC}


def test_a_created_replica_starts_from_the_checkpoint_clamped_to_its_end():
    """RL 1.12: at start the high watermark is min(checkpoint, log end), not below the log start."""
    fixture = led((1, 2))
    fixture.produce(5)
    fixture.partition().log.set_high_watermark(3)
    fixture.replicas.shutdown()
    again = Fixture()
    again.files = fixture.files
    again.log_manager = fixture.log_manager
    again.runtime.files = fixture.files
    again.replicas = ReplicaManager(
        1, again.runtime, again.config, fixture.log_manager, again, None
    )
    fixture.partition().log.set_high_watermark(0)
    again.topic(states={0: registration(1, (1, 2))})
    assert again.partition().log.high_watermark == 3


def test_a_checkpoint_that_is_damaged_counts_as_empty():
    """RL 1.12: the high watermark starts at the log start and is found anew."""
    fixture = Fixture()
    file = fixture.files.open(f"/data/{HIGH_WATERMARK_FILE}", create=True)
    file.write_at(0, (b"nonsense",))
    fixture.topic()
    assert fixture.partition().log.high_watermark == 0


def test_shutdown():
    """Everything that waits is answered as if its time were up; high watermarks are on disk;
    nothing is left on the clock.
    """
    fixture = led((1, 2))
    outcome, produced = parked_produce(fixture, 60_000)
    _, fetched = parked_fetch(fixture, consumer(max_wait_ms=60_000))
    fixture.replicas.shutdown()
    assert (produced, outcome.error, fetched) == ([None], ErrorCode.REQUEST_TIMED_OUT, [None])
    assert partitions_of(read_offsets(fixture.files, "/data", HIGH_WATERMARK_FILE)) == {TP: 0}
    assert fixture.clock.getDelayedCalls() == []


def test_a_failing_periodic_task_goes_on():
    """A LoopingCall whose function raised would stop for good."""
    calls: list = []

    class Sometimes(ReplicaManager):
        def shrink_isrs(self):
            calls.append(None)
            if len(calls) == 1:
                raise RuntimeError("once")

    class Failing(Fixture):
        manager = Sometimes

    fixture = Failing()
    fixture.topic(states={0: registration(1, (1, 2))})
    fixture.advance(31)
    assert len(calls) == 2


def test_the_answer_carries_the_append_time_of_the_log():
    """Produce v2+: LogAppendTime topics answer with the broker's time, CreateTime ones with -1."""
    fixture = Fixture()
    fixture.topic(overrides={"message.timestamp.type": "LogAppendTime"})
    assert fixture.produce().log_append_time_ms == WALL_MS
    fixture.topic("other", None, OTHER_ID)
    assert fixture.produce(tp=OTHER).log_append_time_ms == -1


def test_a_setting_that_is_refused_keeps_no_partition_from_its_role():
    """A topic with segments of less than 1 MiB, from a cluster of Apache Kafka 3.9: it took the
    roles of all that came in the same delta, and nobody would have led them.
    """
    fixture = Fixture()
    small, others = (
        TopicImage("t", TOPIC_ID, {0: registration()}),
        TopicImage("u", OTHER_ID, {0: registration()}),
    )
    fixture.publish(
        topics_by_name={"t": small, "u": others},
        topics_by_id={TOPIC_ID: small, OTHER_ID: others},
        configs={(TOPIC_RESOURCE, "t"): {"segment.bytes": "100000", "compression.type": "brotli"}},
    )
    assert fixture.produce().error is ErrorCode.NONE
    assert fixture.produce(tp=TopicPartition("u", 0)).error is ErrorCode.NONE
    assert fixture.partition().log.config.segment_bytes == 1048576


def test_a_setting_of_all_topics_is_put_together_once(monkeypatch):
    """`kafka-configs --entity-default` with 10,000 topics stopped the broker for 0.3 s."""
    fixture = Fixture()
    names = [f"t{number}" for number in range(50)]
    topics = [
        TopicImage(name, bytes([number]) * 16, {0: registration()})
        for number, name in enumerate(names, 1)
    ]
    own = {(TOPIC_RESOURCE, name): {"retention.ms": "1000"} for name in names[:10]}
    fixture.publish(
        topics_by_name={each.name: each for each in topics},
        topics_by_id={each.id: each for each in topics},
        configs=own,
    )
    made: list = []

    def counted(*arguments):
        made.append(topic_config(*arguments))
        return made[-1]

    monkeypatch.setattr(role_change, "topic_config", counted)
    fixture.publish(configs={**own, (BROKER_RESOURCE, ""): {"log.retention.bytes": "77"}})
    assert len(made) == 2
    assert [log.config.retention_ms for log in fixture.replicas.logs()].count(1000) == 10


def test_what_follows_from_a_failed_directory_is_done_some_partitions_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 1.12: none of ten thousand serves any more, at once; the rest takes turns. A topic that is
    made anew meanwhile is left alone.
    """
    monkeypatch.setattr("tests.replication.fixtures.Clock", TurnClock)
    monkeypatch.setattr("twisted_broker.replication.replica_manager.FAILED_PER_STEP", 3)
    monkeypatch.setattr("twisted_broker.turns.PIECES_PER_TURN", 1)
    stopped: list[TopicPartition] = []

    class Noting(ReplicaManager):
        def stop_fetching(self, names: Iterable[TopicPartition]) -> None:
            stopped.extend(names)

    class Noted(Fixture):
        manager = Noting

    fixture = Noted()
    fixture.topic("a", {number: registration() for number in range(8)}, b"a" * 16)
    fixture.topic("b", {0: registration()}, b"b" * 16)
    assert len(fixture.replicas.partitions) == 9
    fixture.replicas.drain()
    stopped.clear()
    fixture.replicas.directory_failed("/data", OSError("x"))
    assert all(each.offline for each in fixture.replicas.partitions.values()) and not stopped
    fixture.remove_topic("b")
    fixture.topic("b", {0: registration()}, b"c" * 16)
    stopped.clear()
    counts = [0]
    clock = fixture.clock
    assert isinstance(clock, TurnClock)
    while clock.calls and len(counts) < 20:
        clock.turn()
        counts.append(len(stopped))
    assert max(after - before for before, after in pairwise(counts)) <= 3
    assert len(stopped) >= 5 and TopicPartition("b", 0) not in stopped
    assert not fixture.replicas.partitions[TopicPartition("b", 0)].offline
