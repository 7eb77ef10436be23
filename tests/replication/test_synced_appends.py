"""`flush.messages` over replicas: who is answered, and what is shown, when the disk has it."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from twisted.internet.defer import ensureDeferred

from tests.log.manual_worker import ManualWorker
from tests.replication.fixtures import TP, WALL_MS, Fixture, at, batch, follower, registration
from tests.replication.moving import Moving
from tests.replication.pair import nodes
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.explain.explanation import explain
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.replication.explain.waiting_requests import waiting_requests
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.stalling_worker import StallingWorker
from twisted_broker.wire.errors import ErrorCode

SYNCED = {"flush.messages": "1"}


def led(replicas=(1,), **overrides: str) -> tuple[Fixture, ManualWorker]:
    """A leader whose disk stands still."""
    fixture = Fixture()
    fixture.topic(states={0: registration(1, replicas, replicas)}, overrides=SYNCED | overrides)
    log, worker = fixture.partition().log, ManualWorker()
    log.durability.disk, log.on_synced = worker, fixture.log_manager.log_synced
    return fixture, worker


def parked(fixture: Fixture, acks: int, timeout_ms: int = 1000):
    outcome = fixture.produce(acks=acks)
    assert fixture.replicas.delayed_produce([outcome], acks)
    done: list = []
    fixture.replicas.wait_for_replicas([outcome], timeout_ms, acks).addBoth(done.append)
    assert not done
    return outcome, done


@pytest.mark.parametrize("acks", [1, -1])
def test_acknowledged_means_synced(acks):
    """Kafka's flush.messages=1: neither acks=1 nor acks=-1 is answered before the leader's disk
    has the record.
    """
    fixture, worker = led()
    outcome, done = parked(fixture, acks)
    other, other_done = parked(fixture, acks)
    worker.run_one()
    assert done and outcome.error == ErrorCode.NONE and not other_done
    worker.run_one()
    assert other_done and other.error == ErrorCode.NONE and not worker.jobs


def test_acks_0_waits_for_nothing():
    """RL 1.7."""
    fixture, _ = led()
    assert not fixture.replicas.delayed_produce([fixture.produce(acks=0)], 0)


def test_without_the_setting_acks_1_waits_for_nothing():
    """RL 1.7: the default is replication, not the disk."""
    fixture = Fixture()
    fixture.topic()
    fixture.partition().log.durability.disk = ManualWorker()
    assert not fixture.replicas.delayed_produce([fixture.produce(acks=1)], 1)


def test_nothing_is_shown_before_it_is_synced():
    """RL 2.3: the high watermark of the only replica waits for its disk, and moves with the
    sync.
    """
    fixture, worker = led()
    fixture.produce(3)
    fixture.produce(2)
    log = fixture.partition().log
    assert log.high_watermark == 0 and log.log_end_offset == 5
    worker.run_one()
    assert log.high_watermark == 3 and log.watermarks.high_watermark_metadata.position > 0
    worker.run_one()
    assert log.high_watermark == 5


def test_followers_that_were_faster_do_not_move_it():
    """RL 2.3: the leader counts as far as it synced, whatever its followers hold."""
    fixture, worker = led((1, 2))
    outcome, done = parked(fixture, -1)
    fixture.replicas.fetch(follower(2), [at(0)])
    fixture.replicas.fetch(follower(2), [at(1)])
    assert not done and fixture.partition().log.high_watermark == 0
    worker.run_one()
    assert done and outcome.error == ErrorCode.NONE and fixture.partition().log.high_watermark == 1


def test_a_failed_sync_is_answered_with_kafka_storage_error():
    """RL 1.12: the directory is offline, and so is what waits there."""
    fixture, worker = led()
    log = fixture.partition().log
    log.on_fatal = lambda failed: fixture.replicas.directory_failed("/data", failed.failed)
    first, first_done = parked(fixture, 1)
    second, second_done = parked(fixture, -1)
    _, report = worker.jobs.pop()
    report(None, OSError(errno.EIO, "no"))
    fixture.advance(0)
    assert first_done and second_done and not worker.jobs
    assert first.error == second.error == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_lost_leadership_is_answered_at_once():
    """RL 1.7: who waits does not wait for the disk of a broker that leads no more."""
    fixture, worker = led((1, 2))
    outcome, done = parked(fixture, 1)
    fixture.topic(
        states={0: registration(2, (1, 2), (1, 2), leader_epoch=1, partition_epoch=1)},
        overrides=SYNCED,
    )
    assert done and outcome.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    worker.run_all()


def test_a_stalled_disk_times_out():
    """RL 1.7: REQUEST_TIMED_OUT after the request's time; the sync that comes later harms
    nothing. A stop answers the same.
    """
    fixture, worker = led()
    outcome, done = parked(fixture, 1, 1000)
    fixture.advance(1.1)
    assert done and outcome.error == ErrorCode.REQUEST_TIMED_OUT
    outcome, done = parked(fixture, 1, 10_000)
    fixture.replicas.shutdown()
    assert done and outcome.error == ErrorCode.REQUEST_TIMED_OUT
    worker.run_all()


def test_a_follower_asks_for_more_when_it_has_synced():
    """RL 6.4: a fetch offset says what is held; the next round waits for the sync of this one."""
    a, b = nodes(2)
    b.log.update_config(replace(LogConfig(), flush_messages=1))
    b.log.durability.disk = worker = ManualWorker()
    a.lead(1, (1, 2))
    a.append(2)
    fetcher = b.follow(a, 1)
    finished: list = []
    ensureDeferred(fetcher.do_work()).addBoth(finished.append)
    assert b.log.log_end_offset == 2 and not finished and a.log.high_watermark == 0
    worker.run_all()
    assert finished == [True] and a.log.high_watermark == 0
    b.round()
    assert a.log.high_watermark == 2


def began(fetcher: Fetcher) -> list[object]:
    """Holds what a round of the fetcher returned, when it is over."""
    finished: list[object] = []
    ensureDeferred(fetcher.do_work()).addBoth(finished.append)
    return finished


@pytest.mark.parametrize("truncates_on_fetch", [True, False])
def test_what_another_fetcher_left_unsynced_is_waited_for(truncates_on_fetch):
    """RL 6.4: the leader changed while a follower's disk was busy, so another fetcher goes on: the
    new leader must not count what that disk does not have.
    """
    a, b = nodes(2)
    a.lead(1, (1, 2))
    a.append()
    b.follow(a, 1)
    b.round()
    b.log.update_config(replace(LogConfig(), flush_messages=1))
    b.log.durability.disk = worker = ManualWorker()
    a.append(2)
    assert not began(b.fetcher) and b.log.log_end_offset == 3
    a.lead(2, (1, 2))
    fetcher = b.follow(a, 2, truncates_on_fetch=truncates_on_fetch)
    finished = began(fetcher)
    assert not finished and a.log.high_watermark <= 1
    worker.run_all()
    assert finished and a.log.high_watermark <= 3
    b.catch_up(2)
    assert a.log.high_watermark == 3


def another_leader_below_the_checkpoint():
    """The leader, and the one before it, which will truncate below what its recovery-point
    checkpoint says.
    """
    a, b = nodes(2)
    b.lead(0, (1, 2))
    b.append(5)
    b.log.set_high_watermark(5)
    b.log.roll(0)
    b.log.durability.point_written(*b.log.durability.point_in_write())
    a.lead(1, (1, 2))
    a.append(4)
    return a, b


def test_another_fetcher_appends_nothing_before_the_checkpoint_of_a_truncation():
    """RL 3.5, 6.3: the same where the leader changes before that is written."""
    a, b = another_leader_below_the_checkpoint()
    assert not began(b.follow(a, 1))
    end = b.log.log_end_offset
    a.lead(2, (1, 2))
    finished = began(b.follow(a, 2))
    assert not finished and b.log.log_end_offset == end < 4
    b.log.durability.point_written(*b.log.durability.point_in_write())
    b.catch_up(2)
    assert finished and b.content() == a.content()


@pytest.mark.parametrize("truncates_on_fetch", [True, False])
def test_a_follower_that_was_truncated_below_its_high_watermark_waits(truncates_on_fetch):
    """RL 3.5, 6.3: after an unclean election: nothing is appended where the recovery-point
    checkpoint says that it was synced before.
    """
    a, b = another_leader_below_the_checkpoint()
    fetcher = b.follow(a, 1, truncates_on_fetch=truncates_on_fetch)
    finished: list = []
    ensureDeferred(fetcher.do_work()).addBoth(finished.append)
    assert b.log.log_end_offset < 5 and not finished
    end = b.log.log_end_offset
    b.log.durability.point_written(*b.log.durability.point_in_write())
    assert finished == [True]
    assert truncates_on_fetch == (b.log.log_end_offset == end)
    b.round()
    assert b.content() == a.content()


def test_a_fetcher_that_waits_for_the_disk_can_be_stopped():
    """RL 6.1: what waits for a stalled disk ends with its fetcher; the sync that comes later
    harms nothing.
    """
    a, b = nodes(2)
    b.log.update_config(replace(LogConfig(), flush_messages=1))
    b.log.durability.disk = worker = ManualWorker()
    a.lead(1, (1, 2))
    a.append()
    fetcher = b.follow(a, 1)
    fetcher.start()
    assert b.log.log_end_offset == 1
    b.stop_following()
    worker.run_all()
    assert b.log.durability.recovery_point == 1


def test_what_waits_is_explained():
    """RL 1.7, 2.3: the leader's own disk is named."""
    fixture, _ = led()
    parked(fixture, 1)
    watching = fixture.replicas.produce_purgatory.watching(TP)
    (told,) = waiting_requests(fixture.partition(), watching)
    assert (told.needs, told.has) == (1, 0) and "flush.messages" in told.why
    reason = explain(
        fixture.partition(), Moment(fixture.runtime.now_ms(), WALL_MS)
    ).high_watermark_waits
    assert reason is not None and reason.rule == "own sync" and reason.behind == 1


def test_a_retry_after_a_kill_is_not_answered_before_its_record_is_synced():
    """RL 1.7, 3.6: the record lies in the log that a killed process left, and no disk has it. The
    producer's retry is a duplicate: it waits as the first try did.
    """
    disk = SimDisk(1)
    killed = Moving(disk, overrides=SYNCED).start()
    killed.log.durability.disk = ManualWorker()
    record = batch(producer_id=7, producer_epoch=0, base_sequence=0)

    def produce(moving: Moving):
        outcomes = moving.replicas.produce([(TP, record)], 1)
        done: list[None] = []
        assert not outcomes[0].error and moving.replicas.delayed_produce(outcomes, 1)
        moving.replicas.wait_for_replicas(outcomes, 60_000, 1).addCallback(done.append)
        return done

    assert produce(killed) == []
    found = disk.after_kill()
    again = Moving(found, worker=StallingWorker, overrides=SYNCED).start()
    assert again.log.high_watermark == 0
    done = produce(again)
    assert not done and len(again.records()) == 1
    again.turns(20)
    assert done and again.log.high_watermark == 1
    dark = Moving(found.after_power_loss(0.0), overrides=SYNCED).start()
    assert len(dark.records()) == 1
