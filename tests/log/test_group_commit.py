"""Syncs by `flush.messages`: acknowledged is synced, and one sync takes all that came meanwhile."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest
from twisted.internet.task import Clock

from tests.log.batches import NOW_MS, all_batches, batch, config, open_log
from tests.log.manual_worker import ManualWorker
from twisted_broker.log.log import Log
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.stalling_worker import StallingWorker


def online_log(files: SimDisk | None = None, **settings: object) -> tuple[Log, ManualWorker]:
    """An empty log whose name and epochs are durable, over a disk that stands still."""
    files = files or SimDisk(1)
    files.make_directories("/data")
    log = open_log(files, settings=config(**settings))
    worker = ManualWorker()
    log.durability.disk = worker
    log.leader_epochs.assign(0, 0)
    worker.run_all()
    return log, worker


def append(log: Log, count: int = 1) -> None:
    for _ in range(count):
        log.append_as_leader(batch(), 0, NOW_MS)


def test_one_sync_is_on_its_way_however_many_appends_come() -> None:
    """Kafka's flush.messages=1: nothing is settled before its sync; the second sync takes all
    that came during the first.
    """
    log, worker = online_log(flush_messages=1)
    append(log, 2000)
    assert (
        len(worker.jobs) == 1
        and log.durability.acknowledgeable_end.offset == 0
        and log.log_end_offset == 2000
    )
    worker.run_one()
    assert (
        log.durability.recovery_point,
        log.durability.acknowledgeable_end.offset,
        len(worker.jobs),
    ) == (1, 1, 1)
    worker.run_one()
    assert (
        log.durability.recovery_point,
        log.durability.acknowledgeable_end,
        len(worker.jobs),
    ) == (2000, log.segments.log_end, 0)
    assert log.durability.awaiting_sync is None


def test_only_the_append_that_makes_a_sync_due_waits() -> None:
    """Kafka's flush.messages=3: two of three are answered at once; what comes during the sync
    waits only if it makes another due.
    """
    log, worker = online_log(flush_messages=3)
    append(log, 2)
    assert log.durability.awaiting_sync is None and not worker.jobs
    append(log, 1)
    assert log.durability.acknowledgeable_end.offset == 2 and len(worker.jobs) == 1
    append(log, 2)
    worker.run_one()
    assert (
        log.durability.awaiting_sync is None
        and log.durability.acknowledgeable_end.offset == 5
        and not worker.jobs
    )
    append(log, 1)
    append(log, 4)
    assert log.durability.acknowledgeable_end.offset == 5
    worker.run_one()
    assert log.durability.acknowledgeable_end.offset == 6 and len(worker.jobs) == 1
    worker.run_one()
    assert log.durability.acknowledgeable_end.offset == 10 and log.durability.recovery_point == 10


def test_the_place_of_what_is_settled_is_that_of_its_batch() -> None:
    """RL 2.3: the high watermark is compared by places, over segments as well."""
    log, worker = online_log(flush_messages=1, segment_bytes=300)
    places = []
    for _ in range(9):
        append(log)
        places.append(log.durability.acknowledgeable_end)
        assert places[-1] == log.offset_metadata(places[-1].offset)
    while worker.jobs:
        worker.run_one()
        assert log.durability.acknowledgeable_end == log.offset_metadata(
            log.durability.acknowledgeable_end.offset
        )
    assert log.durability.acknowledgeable_end.offset == 9 and len(log.segments) > 2


def test_all_syncs_share_the_one() -> None:
    """Rolls, flush.ms and flush.messages: one job at a time, and the next one reaches as far as
    any asked.
    """
    log, worker = online_log(flush_messages=5, segment_bytes=150)
    for _ in range(20):
        append(log)
        log.durability.flush()
    assert len(worker.jobs) == 1
    worker.run_all()
    assert log.durability.recovery_point == 20 and log.durability.awaiting_sync is None


def test_a_replica_counts_what_it_fetches() -> None:
    """RL 6.4: a follower's records are settled when they are synced."""
    leader, _ = online_log()
    append(leader, 3)
    log, worker = online_log(flush_messages=1)
    told: list[int] = []
    for one in all_batches(leader):
        log.append_as_follower(one.to_bytes(), 0, NOW_MS)
        end = log.log_end_offset
        log.durability.when_synced(end, lambda end=end: told.append(end))  # type: ignore[misc]
    assert log.durability.acknowledgeable_end.offset == 0 and not told
    worker.run_one()
    assert told == [1]
    worker.run_one()
    assert told == [1, 2, 3]
    log.durability.when_synced(3, lambda: told.append(4))
    assert told[-1] == 4


@pytest.mark.parametrize("end", [0, 1, 2, 4])
def test_a_truncation_while_a_sync_runs(end: int) -> None:
    """RL 3.5: that sync says nothing about the log any more; what is left and due is synced
    anew, what was cut waits for nothing.
    """
    log, worker = online_log(flush_messages=1)
    told: list[str] = []
    append(log, 2)
    worker.run_one()
    append(log, 3)
    log.durability.when_synced(5, lambda: told.append("told"))
    log.truncate_to(end, NOW_MS)
    assert log.durability.acknowledgeable_end.offset == min(1, end)
    worker.run_all()
    assert (
        log.durability.recovery_point == end
        and log.durability.awaiting_sync is None
        and told == ["told"]
    )
    append(log)
    assert log.durability.acknowledgeable_end.offset == end
    worker.run_all()
    assert log.durability.acknowledgeable_end.offset == end + 1


def test_a_failed_sync_settles_nothing_and_is_not_tried_again() -> None:
    """RL 1.12: the log is offline; whoever waits is told and finds that."""
    files = SimDisk(1)
    log, worker = online_log(files, flush_messages=1)
    synced: list[object] = []
    told: list[str] = []
    log.on_synced = synced.append
    append(log, 2)
    log.durability.when_synced(2, lambda: told.append("told"))
    files.faults.append(Fault(errno.EIO, "sync", ".log"))
    worker.run_all()
    assert (
        log.failed is not None
        and log.durability.recovery_point == 0
        and not synced
        and told == ["told"]
    )


@pytest.mark.parametrize("seed", range(40))
def test_what_is_settled_survives_a_power_failure(seed: int) -> None:
    """RELIABILITY 6.2: with flush.messages=1 everything below the settled end is there
    afterwards, whatever else is lost.
    """
    chance = random.Random(seed)
    disk = SimDisk(seed)
    disk.make_directories("/data")
    disk.sync_all()
    settings = config(flush_messages=1, segment_bytes=700)
    log = open_log(disk, settings=settings)
    clock = Clock()
    log.durability.disk = StallingWorker(clock, lambda: chance.randrange(5))
    for number in range(chance.randrange(1, 50)):
        log.append_as_leader(batch(b"%d" % number), number // 9, NOW_MS)
        if chance.random() < 0.15:
            begins = [one.base_offset for one in all_batches(log)][-4:]
            log.truncate_to(chance.choice(begins), NOW_MS)
        clock.advance(chance.randrange(8) / 1000)
    settled = [
        one.to_bytes()
        for one in all_batches(log)
        if one.last_offset < log.durability.acknowledgeable_end.offset
    ]
    left = disk.after_power_loss(keep=chance.random())
    found = open_log(left, settings=replace(settings, flush_messages=1 << 40))
    assert [one.to_bytes() for one in all_batches(found)][: len(settled)] == settled
