"""When a delayed fetch completes, case by case (RL 1.9; letters as in Kafka's DelayedFetch)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.replication.fixtures import (
    LOCAL,
    TOPIC_ID,
    TP,
    WALL_MS,
    Fixture,
    at,
    batch,
    consumer,
    follower,
    registration,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.replication.partition.fetch_data import TXN_COMMITTED
from twisted_broker.replication.purgatory.delayed_operations import DelayedFetch
from twisted_broker.wire.errors import ErrorCode

OTHER = TopicPartition("t", 1)


def led(replicas=(1, 2), leader_epoch: int = 3) -> Fixture:
    fixture = Fixture()
    fixture.topic(
        states={
            0: registration(LOCAL, replicas, None, leader_epoch),
            1: registration(LOCAL, (1,), None, leader_epoch),
        }
    )
    return fixture


def delayed(fixture: Fixture, params, *requests) -> DelayedFetch:
    first = fixture.replicas.fetch(params, list(requests))
    for result in first:
        result.release()
    return DelayedFetch(params, first, fixture.replicas.partition)


def test_nothing_happened():
    """None of the cases: it waits."""
    fixture = led()
    assert not delayed(fixture, consumer(), at(0)).is_complete()
    assert not delayed(fixture, follower(2), at(0)).is_complete()


def test_case_a_led_elsewhere():
    """RL 1.9 A: this broker no longer leads it."""
    fixture = led()
    waiting = delayed(fixture, consumer(), at(0))
    fixture.topic(states={0: registration(2, (1, 2), None, 4, 1), 1: registration()})
    assert waiting.is_complete()


def test_case_a_a_follower_may_go_on_serving():
    """RL 1.9 A: a consumer that may read from followers goes on waiting here when the leader
    changes.
    """
    fixture = led()
    waiting = delayed(fixture, consumer(only_leader=False), at(0))
    fixture.topic(states={0: registration(2, (1, 2), None, 4, 1), 1: registration()})
    assert not waiting.is_complete()


def test_case_b_the_replica_is_gone():
    """RL 1.9 B: the partition was moved away from this broker."""
    fixture = led()
    waiting = delayed(fixture, consumer(only_leader=False), at(0))
    fixture.topic(states={0: registration(2, (2, 3), None, 4, 1), 1: registration()})
    assert waiting.is_complete()


def test_case_c_unknown():
    """RL 1.9 C: the topic was deleted; or deleted and made anew, under another id."""
    fixture = led()
    waiting = delayed(fixture, consumer(), at(0, topic_id=TOPIC_ID))
    fixture.topic(topic_id=b"n" * 16)
    assert waiting.is_complete()
    fixture.remove_topic()
    assert waiting.is_complete()


def test_case_d_offline():
    """RL 1.9 D: its directory failed."""
    fixture = led()
    waiting = delayed(fixture, consumer(), at(0))
    fixture.replicas.directory_failed("/data", OSError("EIO"))
    assert waiting.is_complete()


def test_case_e_fenced():
    """RL 1.9 E: the leader epoch it carries is an older one now."""
    fixture = led()
    waiting = delayed(fixture, consumer(), at(0, current_leader_epoch=3))
    fixture.topic(
        states={0: registration(LOCAL, (1, 2), None, 4, 1), 1: registration(LOCAL, (1,), None, 3)}
    )
    assert waiting.is_complete()


def test_case_f_rolled():
    """RL 1.9 F: the end is on a newer segment than the fetch offset and above it: answered though
    min_bytes are not there.
    """
    fixture = led()
    fixture.produce(tp=OTHER)
    waiting = delayed(fixture, consumer(min_bytes=1 << 20), at(0, OTHER))
    assert not waiting.is_complete()
    fixture.partition(OTHER).log.roll(WALL_MS)
    fixture.produce(tp=OTHER)
    assert waiting.is_complete()


def test_case_f_never_at_equal_offsets():
    """RL 1.9 F: equal offsets never satisfy it: a roll at the end of the log alone changes
    nothing.
    """
    fixture = led()
    fixture.produce(tp=OTHER)
    waiting = delayed(fixture, consumer(), at(1, OTHER))
    held = fixture.partition(OTHER)
    before = held.log.watermarks.high_watermark_metadata
    held.log.roll(WALL_MS)
    held.advance_high_watermark(fixture.runtime.now_ms())
    assert before.on_older_segment(held.log.watermarks.high_watermark_metadata)
    assert not waiting.is_complete()


def test_case_f_truncated():
    """RL 1.9 F: the log was cut below the fetch offset: the reader must hear of it, on the same
    segment and on an older one.
    """
    fixture = led()
    fixture.produce(3, tp=OTHER)
    fixture.produce(3, tp=OTHER)
    waiting = delayed(fixture, consumer(), at(6, OTHER))
    fixture.partition(OTHER).log.truncate_to(3)
    assert waiting.is_complete()
    fixture.partition(OTHER).log.roll(WALL_MS)
    fixture.produce(3, tp=OTHER)
    waiting = delayed(fixture, consumer(), at(6, OTHER))
    assert not waiting.is_complete()
    fixture.partition(OTHER).log.truncate_to(2)
    assert waiting.is_complete()


def test_beyond_the_high_watermark_is_not_truncated():
    """RL 1.9 F: a fetch above the high watermark but within the log waits for it."""
    fixture = led()
    fixture.produce(5)
    assert not delayed(fixture, consumer(), at(3)).is_complete()


@pytest.mark.parametrize("short_by", [0, 1])
def test_case_g_enough_bytes(short_by):
    """RL 1.9 G: the bytes between fetch and end offset, over all partitions, reach min_bytes."""
    fixture = led((1,))
    size = len(batch())
    waiting = delayed(fixture, consumer(min_bytes=3 * size + short_by), at(0), at(0, OTHER))
    fixture.produce()
    fixture.produce(tp=OTHER)
    assert not waiting.is_complete()
    fixture.produce()
    assert waiting.is_complete() == (short_by == 0)


def test_case_g_counts_at_most_the_partitions_limit():
    """RL 1.9 G: a partition counts with at most its own limit."""
    fixture = led((1,))
    waiting = delayed(fixture, consumer(min_bytes=200), at(0, max_bytes=100))
    for _ in range(10):
        fixture.produce()
    assert not waiting.is_complete()


def test_case_g_takes_the_readers_end():
    """RL 1.9 G: a follower counts to the log end, a consumer to the high watermark, read_committed
    to the last stable offset.
    """
    fixture = led()
    consuming, replicating = (
        delayed(fixture, consumer(), at(0)),
        delayed(fixture, follower(2), at(0)),
    )
    fixture.produce()
    assert (consuming.is_complete(), replicating.is_complete()) == (False, True)
    committed, everything = (
        delayed(fixture, consumer(isolation=TXN_COMMITTED), at(0, OTHER)),
        delayed(fixture, consumer(), at(0, OTHER)),
    )
    open_transaction = batch(
        producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    fixture.replicas.append(
        [(OTHER, open_transaction)],
        1,
        origin=AppendOrigin.COORDINATOR,
        guards={OTHER: NOT_REQUIRED},
    )
    assert (committed.is_complete(), everything.is_complete()) == (False, True)


def test_case_h_diverging():
    """RL 1.9 H: the leader's end of the reader's last epoch lies below its fetch offset now."""
    fixture = led((1,))
    fixture.produce(5)
    waiting = delayed(fixture, consumer(), at(5, last_fetched_epoch=3))
    assert not waiting.is_complete()
    fixture.topic(states={0: registration(LOCAL, (1,), None, 7, 1), 1: registration()})
    assert not waiting.is_complete()
    log = fixture.partition().log
    log.truncate_to(3)
    log.leader_epochs.assign(7, 3)
    fixture.produce(2)
    assert log.log_end_offset == 5
    assert waiting.is_complete()


def test_case_h_is_not_known():
    """RL 1.9 H: an epoch that this log does not know any more."""
    fixture = led((1,))
    fixture.produce(5)
    waiting = delayed(fixture, consumer(), at(5, last_fetched_epoch=3))
    fixture.partition().log.leader_epochs.clear()
    assert waiting.is_complete()


def test_other_partition_of_the_same_topic():
    """Only the partitions asked for count."""
    fixture = led((1,))
    waiting = delayed(fixture, consumer(), at(0, TP))
    fixture.produce(tp=OTHER)
    assert not waiting.is_complete()


def idle_follower() -> tuple[Fixture, Any, list[Any]]:
    """A follower at the leader's end, whose fetch waits; its first read; what its Deferred
    gives.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(1, (1, 2), (1, 2))})
    fixture.produce(1)
    fixture.replicas.fetch(follower(2), [at(1)])
    given: list[Any] = []
    (first,) = fixture.replicas.fetch(follower(2), [at(1)])
    fixture.replicas.delayed_fetch(follower(2), [first]).addCallback(given.append)
    assert not given
    return fixture, first, given


def test_a_follower_that_would_read_the_same_does_not_read_again() -> None:
    """RL 1.9: time is up and nothing was written: what was read at first is what a second read
    gives.
    """
    fixture, first, given = idle_follower()
    fixture.advance(10)
    ((result,),) = given
    assert result is first
    assert (result.error, result.high_watermark, result.log_start_offset, result.size) == (
        ErrorCode.NONE,
        1,
        0,
        0,
    )


@pytest.mark.parametrize("what", ["records", "log start", "leader"])
def test_a_follower_that_would_read_something_else_reads_again(what: str) -> None:
    """RL 1.9: records, watermarks, roles: whatever changed is read anew."""
    fixture, first, given = idle_follower()
    if what == "records":
        fixture.produce(1)
    elif what == "log start":
        log = fixture.partition().log
        assert log is not None
        log.increment_log_start_offset(1)  # as retention does: it wakes nobody
    else:
        fixture.topic(states={0: registration(2, (1, 2), (1, 2), 1, 1)})
    fixture.advance(10)
    ((result,),) = given
    assert result is not first
    result.release()
