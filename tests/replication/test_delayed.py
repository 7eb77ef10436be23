"""When a delayed fetch completes, case by case (RL 1.9; letters as in Kafka's DelayedFetch)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.replication.rig import LOCAL, TOPIC_ID, TP, WALL_MS, Rig, at, batch, consumer, follower, registration
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.replication.delayed import DelayedFetch
from twisted_broker.replication.fetch_data import TXN_COMMITTED
from twisted_broker.wire.errors import ErrorCode

OTHER = TopicPartition("t", 1)


def led(replicas=(1, 2), leader_epoch: int = 3) -> Rig:
    rig = Rig()
    rig.topic(states={0: registration(LOCAL, replicas, None, leader_epoch), 1: registration(LOCAL, (1,), None, leader_epoch)})
    return rig


def delayed(rig: Rig, params, *requests) -> DelayedFetch:
    first = rig.replicas.fetch(params, list(requests))
    for result in first:
        result.release()
    return DelayedFetch(params, first, rig.replicas.partition)


def test_nothing_happened():
    """None of the cases: it waits."""
    rig = led()
    assert not delayed(rig, consumer(), at(0)).is_complete()
    assert not delayed(rig, follower(2), at(0)).is_complete()


def test_case_a_led_elsewhere():
    """(A) this broker no longer leads it."""
    rig = led()
    waiting = delayed(rig, consumer(), at(0))
    rig.topic(states={0: registration(2, (1, 2), None, 4, 1), 1: registration()})
    assert waiting.is_complete()


def test_case_a_a_follower_may_go_on_serving():
    """(A) a consumer that may read from followers goes on waiting here when the leader changes."""
    rig = led()
    waiting = delayed(rig, consumer(only_leader=False), at(0))
    rig.topic(states={0: registration(2, (1, 2), None, 4, 1), 1: registration()})
    assert not waiting.is_complete()


def test_case_b_the_replica_is_gone():
    """(B) the partition was moved away from this broker."""
    rig = led()
    waiting = delayed(rig, consumer(only_leader=False), at(0))
    rig.topic(states={0: registration(2, (2, 3), None, 4, 1), 1: registration()})
    assert waiting.is_complete()


def test_case_c_unknown():
    """(C) the topic was deleted; or deleted and made anew, under another id."""
    rig = led()
    waiting = delayed(rig, consumer(), at(0, topic_id=TOPIC_ID))
    rig.topic(topic_id=b"n" * 16)
    assert waiting.is_complete()
    rig.remove_topic()
    assert waiting.is_complete()


def test_case_d_offline():
    """(D) its directory failed."""
    rig = led()
    waiting = delayed(rig, consumer(), at(0))
    rig.replicas.directory_failed("/data", OSError("EIO"))
    assert waiting.is_complete()


def test_case_e_fenced():
    """(E) the leader epoch it carries is an older one now."""
    rig = led()
    waiting = delayed(rig, consumer(), at(0, current_leader_epoch=3))
    rig.topic(states={0: registration(LOCAL, (1, 2), None, 4, 1), 1: registration(LOCAL, (1,), None, 3)})
    assert waiting.is_complete()


def test_case_f_rolled():
    """(F) the end is on a newer segment than the fetch offset and above it: answered though min_bytes are not there."""
    rig = led()
    rig.produce(tp=OTHER)
    waiting = delayed(rig, consumer(min_bytes=1 << 20), at(0, OTHER))
    assert not waiting.is_complete()
    rig.partition(OTHER).log.roll(WALL_MS)
    rig.produce(tp=OTHER)
    assert waiting.is_complete()


def test_case_f_never_at_equal_offsets():
    """(F) equal offsets never satisfy it: a roll at the end of the log alone changes nothing."""
    rig = led()
    rig.produce(tp=OTHER)
    waiting = delayed(rig, consumer(), at(1, OTHER))
    rig.partition(OTHER).log.roll(WALL_MS)
    assert not waiting.is_complete()


def test_case_f_truncated():
    """(F) the log was cut below the fetch offset: the reader must hear of it, on the same segment and on an older one."""
    rig = led()
    rig.produce(3, tp=OTHER)
    rig.produce(3, tp=OTHER)
    waiting = delayed(rig, consumer(), at(6, OTHER))
    rig.partition(OTHER).log.truncate_to(3)
    assert waiting.is_complete()
    rig.partition(OTHER).log.roll(WALL_MS)
    rig.produce(3, tp=OTHER)
    waiting = delayed(rig, consumer(), at(6, OTHER))
    assert not waiting.is_complete()
    rig.partition(OTHER).log.truncate_to(2)
    assert waiting.is_complete()


def test_beyond_the_high_watermark_is_not_truncated():
    """(F) a fetch above the high watermark but within the log waits for it."""
    rig = led()
    rig.produce(5)
    assert not delayed(rig, consumer(), at(3)).is_complete()


@pytest.mark.parametrize("short_by", [0, 1])
def test_case_g_enough_bytes(short_by):
    """(G) the bytes between fetch and end offset, over all partitions, reach min_bytes."""
    rig = led((1,))
    size = len(batch())
    waiting = delayed(rig, consumer(min_bytes=3 * size + short_by), at(0), at(0, OTHER))
    rig.produce()
    rig.produce(tp=OTHER)
    assert not waiting.is_complete()
    rig.produce()
    assert waiting.is_complete() == (short_by == 0)


def test_case_g_counts_at_most_the_partitions_limit():
    """(G) a partition counts with at most its own limit."""
    rig = led((1,))
    waiting = delayed(rig, consumer(min_bytes=200), at(0, max_bytes=100))
    for _ in range(10):
        rig.produce()
    assert not waiting.is_complete()


def test_case_g_takes_the_readers_end():
    """(G) a follower counts to the log end, a consumer to the high watermark, read_committed to the last stable offset."""
    rig = led()
    consuming, replicating = delayed(rig, consumer(), at(0)), delayed(rig, follower(2), at(0))
    rig.produce()
    assert (consuming.is_complete(), replicating.is_complete()) == (False, True)
    committed, everything = delayed(rig, consumer(isolation=TXN_COMMITTED), at(0, OTHER)), delayed(rig, consumer(), at(0, OTHER))
    open_transaction = batch(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    rig.replicas.append([(OTHER, open_transaction)], 1, origin=AppendOrigin.COORDINATOR)
    assert (committed.is_complete(), everything.is_complete()) == (False, True)


def test_case_h_diverging():
    """(H) the leader's end of the reader's last epoch lies below its fetch offset now."""
    rig = led((1,))
    rig.produce(5)
    waiting = delayed(rig, consumer(), at(5, last_fetched_epoch=3))
    assert not waiting.is_complete()
    rig.topic(states={0: registration(LOCAL, (1,), None, 7, 1), 1: registration()})
    assert not waiting.is_complete()
    log = rig.partition().log
    log.truncate_to(3)
    log.leader_epochs.assign(7, 3)
    rig.produce(2)
    assert log.log_end_offset == 5
    assert waiting.is_complete()


def test_case_h_cannot_be_told():
    """(H) an epoch that this log does not know any more."""
    rig = led((1,))
    rig.produce(5)
    waiting = delayed(rig, consumer(), at(5, last_fetched_epoch=3))
    rig.partition().log.leader_epochs.clear()
    assert waiting.is_complete()


def test_other_partition_of_the_same_topic():
    """Only the partitions asked for count."""
    rig = led((1,))
    waiting = delayed(rig, consumer(), at(0, TP))
    rig.produce(tp=OTHER)
    assert not waiting.is_complete()


def idle_follower() -> tuple[Rig, list[Any]]:
    """A follower at the leader's end, whose fetch waits; what its Deferred gives."""
    rig = Rig()
    rig.topic(states={0: registration(1, (1, 2), (1, 2))})
    rig.produce(1)
    rig.replicas.fetch(follower(2), [at(1)])
    given: list[Any] = []
    rig.replicas.delayed_fetch(follower(2), rig.replicas.fetch(follower(2), [at(1)])).addCallback(given.append)
    assert not given
    return rig, given


def test_a_follower_that_would_read_the_same_does_not_read_again() -> None:
    """RL 1.9: time is up and nothing was written: what was read at first is what a second read gives."""
    rig, given = idle_follower()
    rig.advance(10)
    ((result,),) = given
    assert (result.error, result.high_watermark, result.log_start_offset, result.size) == (ErrorCode.NONE, 1, 0, 0)


@pytest.mark.parametrize("what", ["records", "log start", "leader"])
def test_a_follower_that_would_read_something_else_reads_again(what: str) -> None:
    """RL 1.9: records, watermarks, roles: whatever changed is read anew."""
    rig, given = idle_follower()
    if what == "records":
        rig.produce(1)
    elif what == "log start":
        log = rig.partition().log
        assert log is not None
        log.increment_log_start_offset(1)  # as retention does: it wakes nobody
    else:
        rig.topic(states={0: registration(2, (1, 2), (1, 2), 1, 1)})
    rig.advance(10)
    assert given == [None]
