"""Rounds among the broker's other work: which log, when, and what may come in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.log.batches import NOW_MS, TOPIC_ID, batch, config, marker
from tests.log.cleaner.rounds import COMPACT, append, batch_of
from tests.log.manual_worker import ManualWorker
from tests.log.test_log_manager import A, B, World
from twisted_broker.broker_config import LiveConfig
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.cleaner import log_cleaner, selection
from twisted_broker.log.cleaner.cleaning import CannotBeCleaned, CleaningPlan, CleaningResult, clean
from twisted_broker.log.cleaner.log_cleaner import PiecewiseWorker
from twisted_broker.log.cleaner.selection import LogToClean, log_to_clean
from twisted_broker.log.log import Log
from twisted_broker.log.log_manager import LogManager
from twisted_broker.log.segment import file_name
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.replication.explain.cleaning_state import Cleaning, cleaning_state
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.stalling_worker import StallingWorker
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.schema import run_whole

BACKOFF = 15.0
C = TopicPartition("c", 0)


class HeldWorker:
    """Runs a round when it is told to."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.waiting: list[tuple[CleaningPlan, Callable[..., None]]] = []
        self.rates: list[float] = []
        self.is_stopped = False

    def submit(
        self, plan: CleaningPlan, bytes_per_second: float, done: Callable[..., None]
    ) -> None:
        self.waiting.append((plan, done))
        self.rates.append(bytes_per_second)

    def end(self) -> None:
        self.run(InterruptedError("ended"))

    def run(self, error: Exception | None = None) -> CleaningPlan:
        plan, done = self.waiting.pop()
        if error is not None:
            done(None, error)
            return plan
        try:
            *_, result = clean(self._files, plan)
        except (OSError, CannotBeCleaned) as met:
            done(None, met)
        else:
            assert isinstance(result, CleaningResult)
            done(result, None)
        return plan

    def stop(self) -> None:
        self.is_stopped = True


def held(world: World) -> tuple[LogManager, HeldWorker]:
    """A manager whose rounds wait for the test."""
    manager, worker = world.manager(start=False), HeldWorker(world.files)
    runtime: Runtime = manager.runtime
    object.__setattr__(runtime, "cleaner", lambda: worker)
    started: list[object] = []
    manager.start("cluster-of-tests").addBoth(started.append)
    assert started == [None]
    return manager, worker


def compacted(
    manager: LogManager, partition: TopicPartition = A, count: int = 30, **settings: Any
) -> Log:
    values = {"cleanup_policy": COMPACT, "segment_bytes": 400, "file_delete_delay_ms": 0}
    log = manager.get_or_create(partition, TOPIC_ID, config(**(values | settings)), is_new=True)
    fill(log, count)
    return log


def fill(log: Log, count: int) -> None:
    for number in range(count):
        append(log, (b"k%d" % (number % 3), b"v%d" % number))


def pass_time(world: World, seconds: float = BACKOFF) -> None:
    for _ in range(20):
        world.clock.advance(seconds / 20)


def records(log: Log) -> int:
    return sum(header[-1] for segment in log.segments for header in segment.headers())


def offsets(world: World) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for path in ("/d1", "/d2"):
        found |= checkpoints.read_offsets(world.files, path, checkpoints.CLEANER_OFFSET)
    return found


def left_behind(world: World, log: Log) -> list[str]:
    names = world.files.listdir(log.directory)
    return [name for name in names if name.endswith((".cleaned", ".swap"))]


def test_a_dirty_log_is_cleaned_and_the_checkpoint_follows() -> None:
    """RL 3.6, 3.7: `cleaner-offset-checkpoint` says up to where; a restart believes it."""
    world = World()
    manager = world.manager()
    log = compacted(manager)
    before = records(log)
    pass_time(world)
    assert records(log) < before
    bound = log.segments.active.base_offset
    assert offsets(world) == {A: bound}
    assert world.files.size("/d1/cleaner-offset-checkpoint")
    # Not again: nothing is dirty.
    operations = world.files.operations
    pass_time(world)
    assert world.files.operations == operations
    world.stop(manager)
    # It is known after a restart as well.
    again = world.manager()
    again.get_or_create(A, TOPIC_ID, log.config)
    operations = world.files.operations
    pass_time(world)
    assert world.files.operations == operations


def test_the_dirtiest_log_comes_first() -> None:
    world = World()
    manager, worker = held(world)
    compacted(manager, A, 30)
    pass_time(world)
    worker.run()
    fill(manager.logs[A], 40)
    compacted(manager, B, 30)
    pass_time(world)
    assert worker.waiting[0][0].directory.endswith(str(B))  # all of it is dirty
    worker.run()
    pass_time(world)
    assert worker.run().directory.endswith(str(A))


def test_two_threads_clean_the_two_dirtiest() -> None:
    """`log.cleaner.threads`; Kafka's `testGrabFilthiestCompactedLogIgnoresInProgressPartitions`."""
    world = World(log_cleaner_threads="2")
    manager, worker = held(world)
    for partition in (A, B, C):
        compacted(manager, partition, 30)
        pass_time(world)
        worker.run()
    for partition, count in ((A, 10), (B, 40), (C, 20)):
        fill(manager.logs[partition], count)
    pass_time(world)
    assert [plan.directory[-3:] for plan, _ in worker.waiting] == [str(B), str(C)]
    assert list(manager.cleaner.running) == [B, C]
    worker.run()
    pass_time(world)
    assert list(manager.cleaner.running) == [B, A]


@pytest.mark.parametrize("offset", [-1, 5, 31])
def test_from_an_offset_that_is_outside_the_log_all_of_it_is_dirty(offset: int) -> None:
    """Kafka's `testDirtyOffsetResetIfLargerThanEndOffset`, `..IfSmallerThanStartOffset`."""
    log = compacted(World().manager())
    log.increment_log_start_offset(10)
    assert log.log_end_offset == 30 and log_to_clean(log, offset, NOW_MS).first_dirty == 10
    assert log_to_clean(log, 12, NOW_MS).first_dirty == 12


@pytest.mark.parametrize("is_log_start", [True, False])
def test_nothing_is_dirty_below_the_active_segment(is_log_start: bool) -> None:
    """Kafka's `testLogStartOffsetLargerThanActiveSegmentBaseOffset`,
    `testDirtyOffsetLargerThanActiveSegmentBaseOffset`: no round, and no error.
    """
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    inside = log.segments.active.base_offset + 1
    if is_log_start:
        log.increment_log_start_offset(inside)
    else:
        manager.directories.of(log).cleaner_offsets[A] = inside
    pass_time(world)
    assert not worker.waiting and not manager.cleaner.uncleanable and not world.failed
    found = log_to_clean(log, None if is_log_start else inside, NOW_MS)
    assert (found.first_dirty, found.cleanable_bytes, found.is_due) == (inside, 0, False)


def test_a_log_that_cannot_be_looked_at_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's `testGrabFilthiestCompactedLogThrowsException`: the other is cleaned."""
    world = World()
    manager, worker = held(world)
    compacted(manager)
    compacted(manager, B)

    def look(log: Log, checkpoint: int | None, wall_ms: int) -> LogToClean:
        if log.topic_partition == A:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "who knows")
        return log_to_clean(log, checkpoint, wall_ms)

    monkeypatch.setattr(log_cleaner, "log_to_clean", look)
    pass_time(world)
    assert "who knows" in manager.cleaner.uncleanable[A] and not world.failed
    assert worker.run().directory.endswith(str(B))


def test_the_offsets_of_a_directory_that_failed_are_left_as_they_are() -> None:
    """Kafka's `testHandleLogDirFailureShouldRemoveDirAndData`: the other directory's go on."""
    world = World()
    manager, worker = held(world)
    log, other = compacted(manager), compacted(manager, B)
    assert log.directory.startswith("/d1/") and other.directory.startswith("/d2/")
    for _ in range(2):
        pass_time(world)
        worker.run()
    pass_time(world, 1)
    before = offsets(world)
    assert set(before) == {A, B}
    fill(log, 40)
    fill(other, 40)
    log.fail(OSError(errno.EIO, "Input/output error"))
    pass_time(world)
    assert worker.run().directory.endswith(str(B)) and world.failed == ["/d1"]
    pass_time(world)
    assert not worker.waiting
    assert offsets(world) == {A: before[A], B: other.segments.active.base_offset}


def test_a_log_that_is_clean_enough_waits() -> None:
    """RL 3.7: `min.cleanable.dirty.ratio`; `max.compaction.lag.ms` overrules it."""
    world = World()
    manager, worker = held(world)
    log = compacted(manager, count=30, min_cleanable_dirty_ratio=0.99)
    pass_time(world)
    worker.run()
    fill(log, 20)
    pass_time(world)
    assert not worker.waiting
    lag = {"min_cleanable_dirty_ratio": 0.99, "max_compaction_lag_ms": 1000}
    log.update_config(config(cleanup_policy=COMPACT, segment_bytes=400, **lag))
    pass_time(world)
    assert worker.waiting


def test_records_may_wait_for_all_of_the_longest_lag() -> None:
    """KIP-354: `max.compaction.lag.ms` is over when the oldest record that is not clean is older
    than it, not as old.
    """
    log = compacted(World().manager(), max_compaction_lag_ms=1000)
    assert not log_to_clean(log, None, NOW_MS + 1000).is_overdue
    assert log_to_clean(log, None, NOW_MS + 1001).is_overdue


def test_a_topic_that_is_not_compacted_is_left_alone() -> None:
    world = World()
    manager, worker = held(world)
    log = compacted(manager, cleanup_policy=frozenset({"delete"}))
    pass_time(world)
    assert not worker.waiting
    log.update_config(config(cleanup_policy=frozenset({"compact", "delete"}), segment_bytes=400))
    pass_time(world)
    assert worker.waiting


def test_cleaning_can_be_switched_off() -> None:
    world = World(log_cleaner_enable="false")
    manager, worker = held(world)
    compacted(manager)
    pass_time(world)
    assert not worker.waiting
    world = World(log_cleaner_threads="0")
    manager, worker = held(world)
    compacted(manager)
    pass_time(world)
    assert not worker.waiting


def test_a_log_that_was_deleted_as_its_round_came_to_an_end() -> None:
    """A topic of the same name that was made since is not touched."""
    world = World()
    manager, worker = held(world)
    worker.end = lambda: None  # too late
    compacted(manager)
    pass_time(world)
    manager.delete(A)
    log = compacted(manager, count=10)
    before = records(log)
    worker.run()
    pass_time(world, 1)
    assert records(log) == before and not left_behind(world, log)
    assert not world.failed and A not in offsets(world)


def test_a_new_topic_of_the_name_waits_for_the_round_of_the_old_one() -> None:
    """Two rounds would write the same files."""
    world = World()
    manager, worker = held(world)
    worker.end = lambda: None  # it takes a while
    compacted(manager)
    pass_time(world)
    manager.delete(A)
    log = compacted(manager, count=40)
    before = records(log)
    pass_time(world)
    assert len(worker.waiting) == 1
    worker.run()
    assert records(log) == before and not left_behind(world, log)
    pass_time(world)
    worker.run()
    pass_time(world, 1)
    assert records(log) < before


def test_no_round_begins_before_the_files_of_the_last_one_are_gone() -> None:
    """A stalled disk would remove what the next round has written."""
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    stalling = StallingWorker(world.clock)
    stalling.stalled = True
    manager.directories.of(log).disk = stalling
    worker.run(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    pass_time(world)
    assert not worker.waiting
    stalling.resume()
    pass_time(world)
    assert worker.waiting


@pytest.mark.parametrize("offset", [3, 0])
def test_a_log_that_was_truncated_meanwhile(offset: int) -> None:
    """RL 3.5: what the round wrote is of records that are gone."""
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    log.truncate_to(offset, NOW_MS)
    fill(log, 40)
    before = records(log)
    worker.run()
    pass_time(world, 1)
    assert records(log) == before and not left_behind(world, log)


def test_a_round_whose_result_is_not_taken_removes_its_own_files_only() -> None:
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    log.truncate_to(0, NOW_MS)
    foreign = f"{log.directory}/notes.cleaned"
    world.files.open(foreign, create=True).close()
    worker.run()
    pass_time(world, 1)
    assert left_behind(world, log) == ["notes.cleaned"]


@pytest.mark.parametrize("offset", [0, 1, 6])
@pytest.mark.parametrize("count", [0, 40])
def test_a_truncation_while_a_round_reads_is_no_damage(offset: int, count: int) -> None:
    """An unclean election: a file is shorter than it was, or has other batches, and the next round
    cleans what it has. A disk that fails all the same is heard.
    """
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    log.truncate_to(offset, NOW_MS)
    for number in range(count):
        append(log, (b"longer k%d" % (number % 3), b"longer v%d" % number))
    worker.run()
    pass_time(world, 1)
    assert not manager.cleaner.uncleanable and not left_behind(world, log)
    fill(log, 40)
    before = records(log)
    pass_time(world)
    worker.run()
    pass_time(world, 1)
    assert records(log) < before
    fill(log, 400)
    pass_time(world)
    log.truncate_to(log.segments.active.base_offset, NOW_MS)
    worker.run(OSError(errno.EIO, "Input/output error"))
    assert world.failed == ["/d1"]


def test_a_log_that_is_truncated_while_another_one_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What follows behind the truncation is not committed: no round reads it, however far the
    first look went.
    """
    monkeypatch.setattr(log_cleaner, "LOGS_PER_STEP", 1)
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    compacted(manager, C, 1)
    manager.cleaner.look()
    assert not worker.waiting
    log.truncate_to(11, NOW_MS)
    for number in range(30):
        records_of = batch_of((b"k%d" % (number % 3), b"later"))
        log.append_as_leader(records_of, 0, NOW_MS, guard=NOT_REQUIRED)
    assert log.segments.active.base_offset > log.high_watermark == 11
    pass_time(world, 1)
    ((plan, _),) = worker.waiting
    assert plan.upper_bound <= 11


def test_a_round_of_what_was_truncated_leaves_the_recovery_point_at_the_end() -> None:
    """RL 3.5: what is appended there next is not synced by that."""
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    plan, done = worker.waiting.pop()
    *_, result = clean(world.files, plan)
    log.truncate_to(3, NOW_MS)
    done(result, None)
    pass_time(world, 1)
    assert log.durability.recovery_point <= log.log_end_offset == 3


@pytest.mark.parametrize("between", ["nothing", "truncation", "stop"])
def test_a_log_of_many_producers_is_planned_in_turns(
    between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is the round's from the first turn on; what comes between two of them ends it as it
    would later.
    """
    monkeypatch.setattr(selection, "PRODUCERS_PER_STEP", 1)
    world = World()
    manager, worker = held(world)
    cleaner, log = manager.cleaner, compacted(manager)
    for number in range(200):
        append(log, (b"k", b"v"), producer_id=number, producer_epoch=0, base_sequence=0)
    cleaner.look()
    assert not worker.waiting and cleaner.is_cleaning(log)
    cleaner.look()
    if between == "truncation":
        log.truncate_to(7, NOW_MS)
    elif between == "stop":
        cleaner.stop()
    pass_time(world, 1)
    assert len(worker.waiting) == (between in ("nothing", "truncation"))
    before = records(log)
    if worker.waiting:
        worker.run()
        pass_time(world, 1)
    assert (records(log) < before) == (between == "nothing") and not left_behind(world, log)
    assert between == "stop" or not cleaner.is_cleaning(log)


def test_a_disk_that_fails_while_a_round_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: Any) -> Iterator[None]:
        yield
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(log_cleaner, "plan_for", failing)
    world = World()
    manager, worker = held(world)
    compacted(manager)
    pass_time(world)
    assert not worker.waiting and not manager.cleaner.running and world.failed == ["/d1"]


def test_a_topic_that_is_compacted_no_more_keeps_its_records() -> None:
    """Kafka's `LogManagerTest.testTopicConfigChangeStopCleaningIfCompactIsRemoved`: a round that
    ran meanwhile is not taken.
    """
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    before = records(log)
    pass_time(world)
    log.update_config(config(cleanup_policy=frozenset({"delete"}), segment_bytes=400))
    worker.run()
    pass_time(world, 1)
    assert records(log) == before and not left_behind(world, log)
    assert A not in offsets(world) and A not in manager.cleaner.running


def test_retention_waits_for_the_round() -> None:
    world = World()
    manager, worker = held(world)
    log = compacted(manager, cleanup_policy=frozenset({"compact", "delete"}), retention_bytes=0)
    pass_time(world)
    before = log.segments.bases()
    manager.upkeep.delete_old_segments()
    assert log.segments.bases() == before
    worker.run()
    pass_time(world, 1)
    manager.upkeep.delete_old_segments()
    pass_time(world, 1)
    assert len(log.segments) < 3


def test_what_it_makes_of_a_log_is_explained() -> None:
    """Dirty, being cleaned, clean with the last round's figures, uncleanable; a log that is not
    compacted has nothing to explain.
    """
    world = World()
    manager, worker = held(world)
    log, cleaner = compacted(manager), manager.cleaner
    plain = manager.get_or_create(B, TOPIC_ID, config(), is_new=True)
    assert cleaner.view(plain) is None

    def explained() -> Cleaning:
        found = cleaning_state(cleaner.view(log), Moment(0, manager.runtime.wall_ms()))
        assert found is not None
        return found

    first = explained()
    assert (first.phase, first.dirty_ratio, first.last_ms) == ("due", 1.0, -1)
    assert (
        first.why == f"to be cleaned next: 100% dirty ({first.dirty_bytes:,} bytes never cleaned)"
    )
    pass_time(world)
    assert explained().phase == "cleaning"
    worker.run()
    pass_time(world, 1)
    found = explained()
    bound = log.segments.active.base_offset
    assert (found.phase, found.clean_up_to, found.dirty_bytes) == ("clean enough", bound, 0)
    assert found.last_ms > NOW_MS and "; last cleaned " in found.why
    assert f": {first.dirty_bytes:,} bytes to {found.clean_bytes:,}" in found.why
    fill(log, 30)
    pass_time(world)
    worker.run(CannotBeCleaned("00000000000000000000.log is damaged"))
    found = explained()
    assert found.phase == "uncleanable" and "00000000000000000000.log is damaged" in found.why
    manager.delete(A)
    assert not cleaner._last


def test_what_cannot_be_cleaned_is_left_alone() -> None:
    world = World()
    manager = world.manager()
    log = compacted(manager)
    path = f"{log.directory}/{file_name(0, '.log')}"
    world.files.flip_bit(path, 100)
    pass_time(world)
    assert path in manager.cleaner.uncleanable[A]
    assert not world.failed and log.failed is None and not left_behind(world, log)
    other = compacted(manager, B)
    before = records(other)
    pass_time(world)
    assert records(other) < before  # the others are not held up
    manager.delete(A)
    assert not manager.cleaner.uncleanable


PASSES = (errno.ENOSPC, errno.EMFILE, errno.EINTR, errno.ENOMEM)


@pytest.mark.parametrize(
    "error", [*(OSError(each, os.strerror(each)) for each in PASSES), MemoryError()]
)
def test_what_passes_is_tried_again(error: Exception) -> None:
    """A full disk fails appends, not reads: the directory stays. The process that cleans may be
    killed by somebody, or find no memory for a moment.
    """
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    before = records(log)
    pass_time(world)
    worker.run(error)
    assert not world.failed and log.failed is None and not manager.cleaner.uncleanable
    pass_time(world)
    worker.run()
    pass_time(world, 1)
    assert records(log) < before


def change(manager: LogManager, **settings: str) -> None:
    """As the broker is told of them."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    live = manager.config
    assert isinstance(live, LiveConfig)
    live.replace(live.with_dynamic(dict(live.cluster) | named, {}))


CHANGES = {
    "log_cleaner_threads": ("1", "2"),
    "log_cleaner_backoff_ms": ("3600000", "300"),
    "log_cleaner_dedupe_buffer_size": ("1000", "134217728"),
    "log_cleaner_io_buffer_load_factor": ("0.1", "0.9"),
    "log_cleaner_io_max_bytes_per_second": ("10", "1e12"),
}


def live(world: World) -> tuple[LogManager, HeldWorker]:
    manager, worker = held(world)
    config = LiveConfig(manager.config)
    manager.config = manager.cleaner._config = config
    config.subscribe(lambda _: manager.cleaner.settings_changed())
    return manager, worker


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_ends_a_round_and_the_next_one_has_it(name: str) -> None:
    """As in Kafka's `LogCleaner.reconfigure`: at 10 bytes a second it would last for years."""
    before, after = CHANGES[name]
    world = World(**{name: before})
    manager, worker = live(world)
    log = compacted(manager)
    whole = records(log)
    pass_time(world, 3600)
    old = worker.waiting[0][0]
    change(manager, num_replica_fetchers="3")
    assert worker.waiting[0][0] is old  # no setting of the cleaner's
    change(manager, **{name: after})
    pass_time(world, 0.001)
    assert len(worker.waiting) == 1 and worker.waiting[0][0] is not old
    new = worker.waiting[0][0]
    if name == "log_cleaner_io_max_bytes_per_second":
        assert worker.rates == [10, 1e12]
    elif name == "log_cleaner_dedupe_buffer_size":
        assert old.map_slots < new.map_slots
    elif name == "log_cleaner_io_buffer_load_factor":
        assert (old.load_factor, new.load_factor) == (0.1, 0.9)
    worker.run()
    pass_time(world, 1)
    assert records(log) < whole and not manager.cleaner.uncleanable


def test_a_changed_setting_ends_the_pause() -> None:
    world = World(log_cleaner_backoff_ms="3600000")
    manager, worker = live(world)
    pass_time(world)
    change(manager, log_cleaner_backoff_ms="300")
    log = compacted(manager)
    pass_time(world, 0.3)
    worker.run()
    pass_time(world, 0.01)
    fill(log, 60)
    pass_time(world, 0.3)
    assert worker.waiting
    change(manager, log_cleaner_backoff_ms="3600000")
    world.stop(manager)
    assert not world.clock.getDelayedCalls()


def test_a_change_while_a_round_is_planned_is_in_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(log_cleaner_io_max_bytes_per_second="10")
    manager, worker = live(world)
    log = compacted(manager)
    planned = selection.plan_for

    def plan_for(*arguments: Any) -> Any:
        if not worker.rates:
            change(manager, log_cleaner_io_max_bytes_per_second="1e12")
        return planned(*arguments)

    monkeypatch.setattr(log_cleaner, "plan_for", plan_for)
    pass_time(world)
    assert worker.rates == [1e12]
    worker.run()
    pass_time(world, 1)
    assert not manager.cleaner.running and not left_behind(world, log)


@pytest.mark.parametrize("text", ["0", "-5"])
def test_a_rate_that_is_none_is_a_byte_a_second(text: str) -> None:
    """Kafka's setting has no bounds; dividing by 0 left the log alone until a restart."""
    world = World(log_cleaner_io_max_bytes_per_second=text)
    manager, worker = held(world)
    compacted(manager)
    pass_time(world)
    assert worker.rates == [1]


def test_a_deleted_topic_ends_its_round() -> None:
    """A new one of its name need not wait for it, nor any other."""
    world = World()
    manager, worker = held(world)
    compacted(manager)
    pass_time(world)
    assert worker.waiting
    other = compacted(manager, B)
    before = records(other)
    manager.delete(A)
    pass_time(world, 0.01)
    assert A not in manager.cleaner.running
    assert worker.run().directory.endswith(str(B))
    pass_time(world, 1)
    assert records(other) < before and not world.failed


def test_a_topic_that_is_compacted_no_more_ends_its_round() -> None:
    """Retention waits for the round, as slow as it may be."""
    world = World()
    manager, worker = held(world)
    log = compacted(manager, retention_bytes=0)
    pass_time(world)
    deleted = frozenset({"delete"})
    log.update_config(config(cleanup_policy=deleted, segment_bytes=400, retention_bytes=0))
    pass_time(world)
    assert not worker.waiting and not manager.cleaner.running and not left_behind(world, log)
    manager.upkeep.delete_old_segments()
    pass_time(world, 1)
    assert len(log.segments) < 3


def test_what_could_not_be_cleaned_is_tried_again_with_other_settings() -> None:
    """Of the cleaner or of the topic; with the same ones it is left alone."""
    world = World()
    manager, worker = live(world)
    log = compacted(manager)
    before = records(log)
    pass_time(world)
    worker.run(CannotBeCleaned("why"))
    log.update_config(log.config)
    change(manager, num_replica_fetchers="3")
    pass_time(world)
    assert not worker.waiting and manager.cleaner.uncleanable == {A: "why"}
    change(manager, log_cleaner_dedupe_buffer_size="100000")
    pass_time(world)
    worker.run(CannotBeCleaned("still"))
    pass_time(world)
    assert not worker.waiting and manager.cleaner.uncleanable == {A: "still"}
    log.update_config(replace(log.config, delete_retention_ms=5))
    pass_time(world)
    worker.run()
    pass_time(world, 1)
    assert records(log) < before and not manager.cleaner.uncleanable


def test_a_round_in_memory_is_ended_between_two_pieces() -> None:
    """`PiecewiseWorker`."""
    world = World()
    manager, _ = held(world)
    log = compacted(manager)
    disk = ManualWorker()
    turns = Turns(world.clock)
    worker = PiecewiseWorker(manager.runtime, disk, turns)
    todo = run_whole(selection.plan_for(log_to_clean(log, None, NOW_MS), NOW_MS, 1000, 0.9))
    found: list[Any] = []
    worker.submit(todo, 1.0, lambda *both: found.append(both))
    pass_time(world, 0.1)
    worker.end()
    while not found:
        disk.run_all()
        pass_time(world, 0.1)
    assert isinstance(found[0][1], InterruptedError)


def test_a_disk_that_fails_takes_the_directory_offline() -> None:
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    worker.run(OSError(errno.EIO, "Input/output error"))
    assert log.failed is not None and len(world.failed) == 1


def test_a_stop_ends_rounds() -> None:
    """Clean; the next start finds no traces and cleans again."""
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    waiting = worker.waiting.pop()
    pieces = clean(world.files, waiting[0])
    next(pieces)
    world.stop(manager)
    assert worker.is_stopped
    again = world.manager()
    found = again.get_or_create(A, TOPIC_ID, log.config)
    assert not left_behind(world, found)
    before = records(found)
    found.set_high_watermark(found.log_end_offset)
    pass_time(world)
    assert records(found) < before


def test_what_is_appended_behind_a_truncation_is_dirty() -> None:
    world = World()
    manager = world.manager()
    log = compacted(manager)
    pass_time(world)
    assert offsets(world)[A] > 6
    log.truncate_to(6, NOW_MS)
    assert offsets(world)[A] == 6
    fill(log, 40)
    before = records(log)
    pass_time(world)
    assert records(log) < before


def test_after_a_restart_a_marker_above_the_high_watermark_decides_nothing() -> None:
    """It is in the snapshot of producers that was loaded, and may be truncated yet: what its
    transaction would replace must stay (seed 974158).
    """
    world = World()
    manager = world.manager()
    log = compacted(manager, count=6)
    fields: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 0,
        "base_sequence": 0,
        "is_transactional": True,
    }
    append(log, (b"k0", b"not decided"), **fields)
    fill(log, 20)
    high_watermark = log.log_end_offset
    log.append_as_leader(marker(7, True), 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == 6
    world.stop(manager)
    log = world.manager().get_or_create(A, TOPIC_ID, config(cleanup_policy=COMPACT))
    log.set_high_watermark(high_watermark)
    assert log_to_clean(log, None, NOW_MS).upper_bound == 0
    log.set_high_watermark(high_watermark + 1)
    assert log_to_clean(log, None, NOW_MS).upper_bound > 6


def test_an_offset_above_the_log_end_never_becomes_valid_again() -> None:
    """Kafka's `testCheckpointUpdatedForInvalidOffsetNotSelected`: recovery ended the log below it,
    or another broker wrote it; the log that grows past it was not cleaned there.
    """
    world = World()
    manager = world.manager()
    log = compacted(manager, cleanup_policy=frozenset({"delete"}))
    log.durability.flush()
    end = log.log_end_offset
    world.files = world.files.after_kill()
    checkpoints.write_offsets(
        world.files, "/d1", checkpoints.CLEANER_OFFSET, {A: end + 20, B: end + 20}
    )
    again = world.manager()
    # B has no log here: nothing is known of it.
    assert offsets(world) == {A: end, B: end + 20}
    fill(again.logs[A], 40)
    world.files = world.files.after_kill()
    found = world.manager().get_or_create(A, TOPIC_ID, config(cleanup_policy=COMPACT))
    assert offsets(world)[A] == end
    found.set_high_watermark(found.log_end_offset)
    assert log_to_clean(found, offsets(world)[A], NOW_MS).first_dirty == end


def test_a_truncation_in_the_last_turn_of_a_round_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka's `testDoneCleaning`: what is appended behind it was not cleaned."""
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    replace = Log.replace_segments

    def replaced(each: Log, bases: Any, wall_ms: int) -> None:
        replace(each, bases, wall_ms)
        if bases[-1] == last:
            log.truncate_to(6, NOW_MS)
            fill(log, 40)

    last = worker.waiting[0][0].segments[-1].base_offset
    monkeypatch.setattr(Log, "replace_segments", replaced)
    worker.run()
    pass_time(world, 1)
    assert log.truncations == 1 and A not in manager.cleaner.running
    assert offsets(world).get(A, 0) <= 6


def test_what_the_checkpoint_calls_clean_is_durable() -> None:
    """A loss of power takes no segment back that the checkpoint is above."""
    world = World()
    manager = world.manager()
    log = compacted(manager)
    log.durability.flush()
    world.files.sync_all()
    old = [each.size for each in log.segments]
    pass_time(world)
    cleaned = [each.size for each in log.segments]
    assert cleaned != old
    world.files = world.files.after_power_loss(keep=0)
    assert offsets(world)[A] == log.segments.active.base_offset
    assert [each.size for each in world.manager().logs[A].segments] == cleaned


def test_the_recovery_point_on_disk_is_above_a_round_before_its_result_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 3.6: to the next start what the cleaner left out must not look like a torn tail."""
    world = World()
    manager = world.manager()
    log = compacted(manager)
    log.set_high_watermark(log.log_end_offset)
    log.durability.recovery_point = 0
    seen: list[int] = []
    replace = Log.replace_segments

    def replaced(each: Log, bases: Any, wall_ms: int) -> None:
        rows = checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT)
        seen.append(rows[A])
        replace(each, bases, wall_ms)

    monkeypatch.setattr(Log, "replace_segments", replaced)
    pass_time(world)
    assert seen and min(seen) >= log.segments.active.base_offset


def test_a_sync_that_runs_already_is_not_the_one_that_a_round_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 3.6: it may end below the round."""
    world = World()
    workers: dict[str, ManualWorker] = {}
    manager = world.manager(lambda path: workers.setdefault(path, ManualWorker()), start=False)
    worker = HeldWorker(world.files)
    object.__setattr__(manager.runtime, "cleaner", lambda: worker)
    manager.start("cluster-of-tests")

    def turns() -> None:
        for _ in range(10):
            for each in workers.values():
                each.run_all()
            world.clock.advance(0)

    turns()
    log = compacted(manager, file_delete_delay_ms=60_000)
    turns()
    disk = workers[log.directory.rpartition("/")[0]]
    log.durability.recovery_point = 0
    log.durability.flush(log.segments.bases()[1])  # the one that runs
    for _ in range(2):
        world.clock.advance(BACKOFF)
    seen: list[bool] = []
    replace = Log.replace_segments

    def replaced(each: Log, bases: Any, wall_ms: int) -> None:
        seen.append(log.durability.is_checkpointed(upper))
        replace(each, bases, wall_ms)

    monkeypatch.setattr(Log, "replace_segments", replaced)
    upper = worker.waiting[0][0].upper_bound
    assert log.durability.is_busy and disk.jobs
    worker.run()
    turns()
    assert seen and all(seen) and A not in manager.cleaner.running


def test_a_round_is_done_again_where_its_recovery_point_could_not_be_written() -> None:
    """RL 3.6: no descriptor was free for the checkpoint; nothing is replaced, nothing left."""
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    log.durability.recovery_point = 0
    sizes = [each.size for each in log.segments]
    world.files.faults.append(Fault(errno.EMFILE, "open", "recovery-point", times=1))
    log.durability.found_checkpoint(0)
    worker.run()
    pass_time(world, 0.5)
    assert [each.size for each in log.segments] == sizes and left_behind(world, log) == []
    assert A not in manager.cleaner.running and not world.failed
    pass_time(world)
    worker.run()
    pass_time(world, 1)
    assert [each.size for each in log.segments] != sizes


def test_files_of_a_round_that_cannot_be_listed_are_removed_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No descriptor was free. What the next round puts in place counts as unfinished beside them:
    a kill in the middle of that took the segments and what replaces them.
    """
    world = World()
    manager, worker = held(world)
    log = compacted(manager)
    pass_time(world)
    listdir = world.files.listdir

    def short(path: str) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    log.durability.recovery_point = 0
    world.files.faults.append(Fault(errno.EMFILE, "open", "recovery-point", times=1))
    log.durability.found_checkpoint(0)
    monkeypatch.setattr(world.files, "listdir", short)
    worker.run()
    pass_time(world)
    monkeypatch.setattr(world.files, "listdir", listdir)
    assert left_behind(world, log) and not worker.waiting and not world.failed
    pass_time(world, 2)
    assert not left_behind(world, log)
    pass_time(world)
    assert worker.waiting


def test_a_start_writes_no_offset_for_a_log_that_was_never_cleaned() -> None:
    """RL 3.7: `cleaner-offset-checkpoint` has what was cleaned, an empty log among it not."""
    world = World()
    manager = world.manager()
    manager.get_or_create(A, TOPIC_ID, config(cleanup_policy=COMPACT), is_new=True)
    world.stop(manager)
    world.manager()
    assert offsets(world) == {}


def test_a_new_topic_of_the_name_begins_dirty() -> None:
    world = World()
    manager = world.manager()
    compacted(manager)
    pass_time(world)
    manager.delete(A)
    pass_time(world, 1)
    log = compacted(manager, count=20)
    before = records(log)
    pass_time(world)
    assert records(log) < before


def test_records_below_the_cleaner_are_no_damage() -> None:
    """Holes that cleaning made are not taken for lost files after an unclean stop, whatever the
    topic's policy is by then.
    """
    world = World()
    manager = world.manager()
    log = compacted(manager, count=0)
    for number in range(60):
        append(log, (b"same", b"%d" % number))
    pass_time(world)
    log.roll(NOW_MS)
    bases = log.segments.bases()
    assert len(bases) > 2
    world.files = world.files.after_kill()
    again = world.manager()
    found = again.get_or_create(A, TOPIC_ID, config(segment_bytes=400))
    assert found.gap is None
    assert found.segments.bases() == bases
    append(found, (b"new", batch()))
