"""A replica moves between directories while it serves (RL 3.8; ReplicaAlterLogDirsThreadTest, and
those of ReplicaManagerTest and PartitionTest that concern it).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.defer import ensureDeferred

from tests.replication.fixtures import (
    LOCAL,
    TP,
    WALL_MS,
    at,
    batch,
    code_of,
    consumer,
    make_log,
    registration,
)
from tests.replication.moving import DIRECTORIES, Moving
from twisted_broker.image.entries import TopicImage
from twisted_broker.image.metadata_image import MetadataDelta
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.future_logs import PROMOTED, mark_promoted, one_that_counts
from twisted_broker.log.log import Log
from twisted_broker.log.log_directory import LogDirectory
from twisted_broker.log.log_manager import LogManager
from twisted_broker.log.log_moves import LogMoves
from twisted_broker.log.memory import InlineWorker
from twisted_broker.replication import role_change
from twisted_broker.replication.directory_moves import alter_replica_log_dirs
from twisted_broker.replication.explain.explanation import explain
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.replication.fetcher.directory_move import Assignment
from twisted_broker.replication.fetcher.fetch_session_handler import (
    RequestedPartition,
    RequestedPartitions,
)
from twisted_broker.replication.fetcher.local_leader_endpoint import (
    LocalLeaderEndPoint,
    MoveThrottle,
)
from twisted_broker.replication.fetcher.truncation_decision import LeaderEpochRequest
from twisted_broker.replication.partition.events import (
    HighWatermarkAdvanced,
    LogTruncated,
    ReplicaStopped,
)
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import set_offsets_and_epoch

OTHER_ID = bytes(range(1, 17))
SLOW = {"replica_alter_log_dirs_io_max_bytes_per_second": "100"}


def replicated(offset: int) -> bytes:
    """A batch as a leader of epoch 0 sends it."""
    data = bytearray(batch())
    set_offsets_and_epoch(data, offset, 0)
    return bytes(data)


def filled(records: int = 30, **options: Any) -> Moving:
    moving = Moving(**options).start()
    moving.produce(records)
    return moving


def test_a_future_log_takes_the_logs_place_and_the_old_one_is_deleted() -> None:
    """RL 3.8, 7.1: same records, in the other directory; the controller knew before
    (shouldReplaceCurrentLogDirWhenCaughtUp).
    """
    moving = filled()
    source, target, before = moving.place, moving.other, moving.records()
    moving.move(target)
    assert moving.names(target) == ["t-0-future"]
    moving.settle()
    assert moving.place == target and moving.records() == before
    assert moving.names(target) == ["t-0"] and moving.names(source) == ["t-0-delete"]
    target_id = moving.log_manager.directories.by_path[target].directory_id
    assert moving.assignments.assigned == [target_id] and not moving.assignments.reverted
    moving.produce()
    assert moving.log.log_end_offset == len(before) + 1 == moving.log.high_watermark
    moving.clock.advance(61)
    assert moving.names(source) == []
    assert not moving.replicas.moves.moves and not moving.log_manager.moves.futures


def test_a_partition_of_which_an_effect_failed_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KIP-858: it stops, and the controller hears that nobody holds it here: another one leads."""
    moving = Moving().start()
    effects = {**moving.replicas.effects._table, HighWatermarkAdvanced: (failing,)}
    monkeypatch.setattr(moving.replicas.effects, "_table", effects)
    moving.replicas.produce([(TP, batch())], -1)
    moving.turns(1)
    assert moving.partition.offline and moving.assignments.lost == [TP]


def test_a_partition_that_is_gone_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller would refuse it, twice a second for ever."""
    moving = Moving().start()
    effects = {**moving.replicas.effects._table, ReplicaStopped: (failing,)}
    monkeypatch.setattr(moving.replicas.effects, "_table", effects)
    moving.publish(topics_by_name={}, topics_by_id={})
    moving.turns(1)
    assert TP not in moving.replicas.partitions and moving.assignments.lost == []


def failing(*_: Any) -> None:
    raise ValueError("an effect")


@pytest.mark.parametrize(
    ("module", "name"), [(Partition, "make_leader"), (role_change, "resolve_gap")]
)
def test_a_partition_that_cannot_take_its_role_is_reported(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-858: its directory goes on, so nobody else would say that it does not lead."""
    monkeypatch.setattr(module, name, failing)
    moving = Moving().start()
    assert moving.partition.offline and moving.assignments.lost == [TP]


def test_a_partition_whose_directory_failed_is_not_reported_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heartbeats say it of the directory, and which one it was is kept."""

    def offline(*_: Any) -> None:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "may be in a directory that is offline")

    monkeypatch.setattr(LogManager, "get_or_create", offline)
    moving = Moving().start()
    assert moving.partition.offline and moving.assignments.lost == []


def test_it_serves_while_it_moves() -> None:
    """RL 3.8: records that come in each turn are in the copy when it is swapped, and a consumer
    that waits is answered from either.
    """
    moving = filled(state=registration(LOCAL, (1,)))
    target = moving.other
    moving.move(target)
    for _ in range(200):
        moving.produce()
        moving.turns()
        if moving.place == target:
            break
    assert moving.place == target
    assert moving.log.high_watermark == moving.log.log_end_offset
    waiting: list[Any] = []
    params = consumer(max_wait_ms=60_000)
    end = moving.log.log_end_offset
    moving.move(moving.other)
    moving.replicas.delayed_fetch(params, moving.replicas.fetch(params, [at(end)])).addCallback(
        waiting.append
    )
    moving.settle()
    moving.produce()
    (result,) = waiting[0]
    assert result.size and result.slice.read()
    result.release()


def test_the_swap_waits_for_the_controller() -> None:
    """KIP-858: until it accepted the log stays, and the copy follows it (shouldReplaceCurrentLogDir
    WhenCaughtUpWithAfterAssignmentRequestHasBeenCompleted).
    """
    moving = filled(answers=False)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(3)
    move = moving.replicas.moves.moves[TP]
    assert move.assignment is Assignment.QUEUED and moving.place == source
    moving.produce(5)
    moving.settle(3)
    future = moving.partition.future_log
    assert future is not None and future.log_end_offset == moving.log.log_end_offset
    assert moving.place == source
    moving.produce()
    moving.assignments.answer()
    moving.settle()
    assert moving.place == target and moving.assignments.done == 1


def test_the_directory_where_it_is_cancels_the_move() -> None:
    """RL 3.8; KIP-113: the copy goes, and the controller hears what it may have heard otherwise
    (shouldRevertAnyScheduledAssignmentRequestIfAssignmentIsCancelled).
    """
    moving = filled(answers=False)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(1)
    moving.move(source)
    assert moving.partition.future_log is None and not moving.replicas.moves.moves
    assert moving.names(target) == ["t-0-delete"] and moving.place == source
    source_id = moving.log_manager.directories.by_path[source].directory_id
    assert moving.assignments.reverted == [source_id]
    # An answer that comes late is of no move.
    moving.assignments.answer()
    moving.settle()
    moving.produce()
    assert moving.place == source


def test_another_target_begins_a_new_future_log() -> None:
    moving = filled(**SLOW)
    target = moving.other
    moving.move(target)
    moving.clock.advance(1)
    third = "/c"
    moving.move(third)
    assert moving.names(target) == ["t-0-delete"] and moving.names(third) == ["t-0-future"]
    assert not moving.assignments.reverted, "the controller was told of nothing yet"
    moving.settle(3600)
    assert moving.place == third


def test_the_same_target_again_goes_on() -> None:
    moving = filled(**SLOW)
    target = moving.other
    moving.move(target)
    moving.clock.advance(1)
    future = moving.partition.future_log
    moving.move(target)
    assert moving.partition.future_log is future


@pytest.mark.parametrize(
    ("name", "path", "code"),
    [
        (TP, "/elsewhere", ErrorCode.LOG_DIR_NOT_FOUND),
        (TopicPartition("t", 7), "/b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("x" * 230, 0), "/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_what_is_refused(name: TopicPartition, path: str, code: ErrorCode) -> None:
    """ReplicaManager.alterReplicaLogDirs: each with its code, nothing begun."""
    moving = filled(1)
    assert code_of(alter_replica_log_dirs, moving.replicas, name, path) == code
    assert not moving.replicas.moves.moves and not moving.log_manager.preferred


def test_no_move_begins_while_a_directory_is_offline() -> None:
    """It may hold a copy: there must not be two."""
    moving = filled(1)
    moving.log_manager.directories.fail("/c", OSError("EIO"))
    for path in (moving.other, "/c"):
        assert code_of(moving.move, path) == ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(moving.move, moving.place) == ErrorCode.NONE


def test_a_replica_that_is_not_here_yet_is_made_where_it_was_asked_for() -> None:
    """KIP-113: what kafka-reassign-partitions relies on."""
    moving = Moving().start()
    moving.take_role(registration(2, (2,)))
    assert code_of(moving.move, "/c") == ErrorCode.REPLICA_NOT_AVAILABLE
    moving.take_role(registration(LOCAL, (2, 1), leader_epoch=1, partition_epoch=1))
    assert moving.place == "/c" and not moving.log_manager.preferred


def test_a_replica_that_is_added_is_made_though_a_directory_is_offline() -> None:
    """KIP-455, KIP-858: it was not here before, so no directory can hold it; else the reassignment
    would wait for the failed disk.
    """
    moving = Moving().start()
    moving.take_role(registration(2, (2,)))
    moving.log_manager.directories.fail("/a", OSError("EIO"))
    moving.take_role(registration(2, (2, LOCAL), (2,), partition_epoch=1))
    assert not moving.partition.offline and moving.place in ("/b", "/c")


@pytest.mark.parametrize(
    ("isr", "assigned", "is_made"),
    [((2,), "/b", True), ((2,), "/a", False), ((2,), "", False), ((2, LOCAL), "/b", False)],
    ids=["counted nowhere", "in the offline one", "in an unknown one", "in sync"],
)
def test_a_start_makes_what_is_in_no_offline_directory(
    isr: tuple[int, ...], assigned: str, is_made: bool
) -> None:
    """KIP-858: the controller knows its directory, which is here without it, and counts on nothing
    that it had.
    """
    before = Moving(state=registration(2, (2,))).start()
    directory = before.log_manager.directories.by_path.get(assigned)
    files = before.stop()
    state = registration(2, (2, LOCAL), isr, partition_epoch=1)._replace(
        directories=(bytes(16), bytes(16) if directory is None else directory.directory_id)
    )
    again = WithoutOne(files, state=state)
    again.files.remove("/a/meta.properties")
    again.files.make_directories("/a/meta.properties")
    again.start()
    assert again.log_manager.directories.offline() == ["/a"]
    assert again.partition.offline != is_made
    assert not is_made or again.place == assigned


class WithoutOne(Moving):
    """A directory fails before there are replicas."""

    def _directory_failed(self, path: str, error: OSError) -> None:
        self.failed.append(path)


def test_one_move_at_a_time_in_the_order_of_names() -> None:
    """RL 1.1: the next begins when the first is done (shouldFetchOneReplicaAtATime)."""
    moving = Moving(num_replica_alter_log_dirs_threads="1", **SLOW)
    moving.start()
    from tests.replication.fixtures import TOPIC_ID

    topic = TopicImage("t", TOPIC_ID, {number: registration() for number in range(3)})
    moving.publish(topics_by_name={"t": topic}, topics_by_id={TOPIC_ID: topic})
    names = [TopicPartition("t", number) for number in range(3)]
    for name in names:
        moving.replicas.produce([(name, batch()), (name, batch()), (name, batch())], 1)
    for name in reversed(names):
        log = moving.replicas.partitions[name].log
        assert log is not None
        target = "/b" if log.directory.startswith("/a") else "/a"
        alter_replica_log_dirs(moving.replicas, name, target)
    order: list[TopicPartition] = []
    while moving.replicas.moves.moves:
        begun = [
            name
            for name, move in moving.replicas.moves.moves.items()
            if move.partition.future_log is not None and move.partition.future_log.log_end_offset
        ]
        assert len(begun) <= 1
        order += [name for name in begun if name not in order]
        moving.clock.advance(0.05)
    assert order == names


def test_the_rate_bounds_all_moves_together() -> None:
    """`replica.alter.log.dirs.io.max.bytes.per.second`, at once when it changes."""
    moving = filled(30, **SLOW)
    size = moving.log.size_in_bytes
    target = moving.other
    moving.move(target)
    moving.settle(size / 100 - 5)
    assert moving.place != target, "faster than the rate"
    moving.settle(10)
    assert moving.place == target


def test_a_rate_that_changes_counts_for_a_future_log_that_waits() -> None:
    moving = filled(30, replica_alter_log_dirs_io_max_bytes_per_second="1")
    target, live = moving.other, moving.replicas.config
    moving.move(target)
    moving.settle(60)
    assert moving.place != target
    fast = {"replica.alter.log.dirs.io.max.bytes.per.second": str(2**40)}
    live._values |= live.with_dynamic(fast, {})._values
    moving.settle(3)
    assert moving.place == target


def test_the_windows_of_the_rate_are_settings() -> None:
    """`alter.log.dirs.replication.quota.window.*`: what is copied counts so long, and the
    explanation says that it waits.
    """
    moving = filled(
        30,
        **SLOW,
        alter_log_dirs_replication_quota_window_num="2",
        alter_log_dirs_replication_quota_window_size_seconds="3",
    )
    moving.move(moving.other)
    quota = moving.replicas.moves.throttle.quota
    moving.settle(1)
    now_ms = moving.replicas.runtime.now_ms()
    assert quota.byte_rate(now_ms + 5_000) > 0 and quota.byte_rate(now_ms + 7_000) == 0
    quota.record(1000, moving.replicas.runtime.now_ms())
    reason = quota.reason(moving.replicas.runtime.now_ms())
    assert reason.startswith("throttled: ")
    assert reason.endswith(", above replica.alter.log.dirs.io.max.bytes.per.second=100")
    (move,) = moving.replicas.moves.moves.values()
    told = explain(
        moving.partition,
        Moment(moving.replicas.runtime.now_ms(), 0),
        move=move,
        move_throttled=reason,
    )
    assert told.moving is not None and told.moving.why.endswith(f"copying, {reason}")


def test_a_follower_moves_as_well_and_goes_on_following() -> None:
    """RL 1.8: replica -3 reads to the log end, whoever leads."""
    moving = Moving(state=registration(2, (2, 1))).start()
    for offset in range(5):
        moving.partition.append_as_follower(replicated(offset), 0, 0)
    target = moving.other
    assert moving.log.high_watermark == 0
    moving.move(target)
    moving.settle()
    assert moving.place == target
    assert (moving.log.log_end_offset, moving.log.high_watermark) == (5, 0)
    assert moving.log.leader_epochs.latest_epoch == 0


def test_what_the_log_truncates_its_future_log_truncates() -> None:
    """ReplicaAlterLogDirsThreadTest: records of another history are not swapped in."""
    moving = Moving(state=registration(2, (2, 1)), answers=False).start()

    def append(offset: int, epoch: int) -> None:
        data = bytearray(batch(value=f"{offset} of {epoch}".encode()))
        data[:8] = offset.to_bytes(8, "big")
        data[12:16] = epoch.to_bytes(4, "big")
        moving.partition.append_as_follower(bytes(data), epoch, 0)

    for offset in range(6):
        append(offset, 0)
    target = moving.other
    moving.move(target)
    moving.settle(2)
    assert moving.partition.future_log is not None
    assert moving.partition.future_log.log_end_offset == 6
    moving.take_role(registration(2, (2, 1), leader_epoch=1, partition_epoch=1))
    moving.partition.truncate_to(3, 0)
    for offset in range(3, 8):
        append(offset, 1)
    moving.replicas.drain()
    moving.settle(3)
    before = moving.records()
    moving.assignments.answer()
    moving.settle(3)
    assert moving.place == target and moving.records() == before
    assert moving.log.leader_epochs.entries() == [(0, 0), (1, 3)]


def test_a_future_log_that_no_file_can_be_opened_for_is_truncated_a_little_later() -> None:
    """Its log was truncated while descriptors were short: the move goes on when they are not."""
    moving = Moving(state=registration(2, (2, 1)), answers=False).start()
    for offset in range(6):
        moving.partition.append_as_follower(replicated(offset), 0, 0)
    target = moving.other
    moving.move(target)
    moving.settle(2)
    copy = moving.partition.future_log
    assert copy is not None and copy.log_end_offset == 6
    moving.partition.truncate_to(3, 0)
    too_many, file = OSError(errno.EMFILE, "too many"), copy.segments.active.log.open()
    with patch.object(file, "read_at", side_effect=too_many):
        moving.replicas.drain()
        moving.clock.advance(0.5)
    move = moving.replicas.moves.moves[TP]
    assert move.error and copy.log_end_offset == 6 and not moving.failed
    moving.assignments.answer()
    moving.settle(5)
    assert moving.place == target and moving.log.log_end_offset == 3


def in_transaction(state: Any, **settings: str) -> tuple[Moving, Callable[[int], None], Log]:
    """A follower that holds offsets 0 and 1, the latter of a transaction that is open; what appends
    another one; and the copy in the other directory, which has both.
    """
    moving = Moving(state=state, answers=False, **settings).start()

    def append(offset: int, **more: Any) -> None:
        data = bytearray(batch(value=b"%d" % offset, **more))
        set_offsets_and_epoch(data, offset, 0)
        moving.partition.append_as_follower(bytes(data), 0, WALL_MS)

    append(0)
    append(1, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    moving.move(moving.other)
    moving.settle(20)
    copy = moving.partition.future_log
    assert copy is not None and copy.log_end_offset == 2
    return moving, append, copy


def test_a_future_log_has_no_more_than_its_log() -> None:
    """RL 6.7: what the log is truncated to be fetched again is of one leader epoch, so no epoch
    tells the copy; by its next read the log may be longer than the copy is.
    """
    moving, append, _ = in_transaction(registration(2, (2, 1), (2,)), **SLOW)
    target = moving.other
    append(2)
    moving.replicas.drain()
    moving.clock.advance(0.02)  # the mover waits for its rate, then it reads
    moving.partition.truncate_to(1, WALL_MS)
    moving.replicas.drain()
    append(3)
    append(4)
    moving.replicas.drain()
    moving.settle(60)
    before = moving.records()
    moving.assignments.answer()
    moving.settle(60)
    assert moving.place == target and moving.records() == before and len(before) == 3


def test_a_future_log_that_missed_a_transactions_end_is_fetched_again() -> None:
    """RL 6.7: as a follower's; nobody counts on a copy."""
    moving, append, copy = in_transaction(registration(2, (2, 1)))
    target = moving.other
    append(4)
    moving.replicas.drain()
    moving.settle(3)
    assert copy.truncations == 1 and copy.log_end_offset == 5
    before = moving.records()
    moving.assignments.answer()
    moving.settle(3)
    assert moving.place == target and moving.records() == before


def test_what_a_future_log_dropped_is_not_left_behind_by_its_swap() -> None:
    """RL 3.8: files that wait for `file.delete.delay.ms` are known by their directory's name,
    which the swap changes. Those of the log wait as before: it is read.
    """
    moving = filled(answers=False)
    moving.move(moving.other)
    moving.settle(1)
    copy = moving.partition.future_log
    assert copy is not None
    copy.roll(WALL_MS)
    moving.produce(3)
    moving.settle(1)
    moving.log.truncate_to(10, WALL_MS)
    moving.partition.emit(LogTruncated(moving.partition))
    moving.replicas.drain()
    moving.settle(1)
    moving.assignments.answer()
    moving.settle()
    assert moving.log is copy and len(moving.records()) == 10

    def left() -> list[str]:
        return [name for name in moving.files.listdir(copy.directory) if "deleted" in name]

    assert not left()
    moving.log.roll(WALL_MS)
    moving.log.truncate_to(5, WALL_MS)
    assert left()
    moving.clock.advance(61)
    assert not left()


def test_a_new_leader_epoch_does_not_end_the_move() -> None:
    moving = filled(answers=False)
    target = moving.other
    moving.move(target)
    moving.settle(1)
    moving.take_role(registration(2, (2, 1), leader_epoch=1, partition_epoch=1))
    moving.settle(1)
    moving.take_role(registration(LOCAL, (2, 1), leader_epoch=2, partition_epoch=2, isr=(1,)))
    moving.produce(3)
    moving.assignments.answer()
    moving.settle()
    assert moving.place == target and moving.log.log_end_offset == 33
    assert moving.log.leader_epochs.latest_epoch == 2
    assert not moving.replicas.moves.failed


def test_an_epoch_without_records_is_known_after_the_swap() -> None:
    moving = filled(3)
    target = moving.other
    moving.take_role(registration(LOCAL, (1,), leader_epoch=4, partition_epoch=1))
    moving.move(target)
    moving.settle()
    assert moving.place == target
    assert moving.log.leader_epochs.entries() == [(0, 0), (4, 3)]


def test_a_transaction_that_is_being_verified_goes_on_after_the_swap() -> None:
    """Its coordinator was asked before; the guard holds for the copy, too."""
    moving = filled()
    guard = moving.replicas.begin_verification(TP, 7, 0, 0, True)
    before, end = moving.log, moving.log.log_end_offset
    moving.move(moving.other)
    moving.settle()
    assert moving.log is not before and not before.producers.verifications
    records = batch(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    (outcome,) = moving.replicas.produce([(TP, records)], 1, {TP: guard})
    assert (outcome.error, moving.log.log_end_offset) == (ErrorCode.NONE, end + 1)


def test_what_was_deleted_does_not_come_back_with_the_future_log() -> None:
    """The low watermark counts the copy; it begins where the log begins."""
    moving = filled(10, answers=False)
    target = moving.other
    moving.move(target)
    moving.settle(1)
    moving.partition.delete_records(4)
    assert moving.partition.low_watermark() == 0
    moving.replicas.drain()
    moving.settle(3)
    assert moving.partition.low_watermark() == 4
    moving.assignments.answer()
    moving.settle()
    assert moving.place == target and moving.log.log_start_offset == 4


def test_a_future_log_begins_where_the_log_begins() -> None:
    """OFFSET_OUT_OF_RANGE at offset 0: it starts at the log's start, inside a batch as well."""
    moving = Moving().start()
    moving.replicas.produce([(TP, batch(4)), (TP, batch(4))], 1)
    moving.partition.delete_records(2)
    target = moving.other
    moving.move(target)
    moving.settle(5)
    assert moving.place == target
    assert (moving.log.log_start_offset, moving.log.log_end_offset) == (2, 8)
    (result,) = moving.replicas.fetch(consumer(), [at(2)])
    assert result.size
    result.release()


def test_a_deleted_topic_takes_its_future_log_along() -> None:
    moving = filled(answers=False)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(1)
    moving.publish(topics_by_name={}, topics_by_id={})
    assert not moving.replicas.moves.moves and not moving.log_manager.moves.futures
    assert moving.names(source) == moving.names(target) == ["t-0-delete"]
    moving.assignments.answer()
    moving.clock.advance(61)
    assert moving.names(source) == moving.names(target) == []


def copy_alone() -> Moving:
    """A start with the source's directory offline: of the replica only the copy is here."""
    moving = filled(answers=False)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(1)
    disk = moving.stop()
    disk.remove(f"{source}/meta.properties")
    disk.make_directories(f"{source}/meta.properties")
    again = WithoutOne(disk).start()
    assert again.failed == [source]
    assert again.partition.offline and again.names(target) == ["t-0-future"]
    return again


def test_a_deleted_topic_takes_a_future_log_without_a_log_along() -> None:
    """It is no copy of the topic's successor, whose log lies beside it: a swap would rename it onto
    that one, which takes a good directory offline.
    """
    again = copy_alone()
    (offline,) = again.failed
    again.publish(topics_by_name={}, topics_by_id={})
    assert not again.log_manager.moves.futures
    topic = TopicImage("t", OTHER_ID, {0: registration()})
    again.publish(topics_by_name={"t": topic}, topics_by_id={OTHER_ID: topic})
    again.produce(3)
    again.settle()
    assert again.failed == [offline]
    assert again.log.topic_id == OTHER_ID and len(again.records()) == 3


def test_a_future_log_without_a_log_that_a_snapshot_lacks_is_kept() -> None:
    """No record removed its partition, and it may be the only copy."""
    again = copy_alone()
    before = again.image
    again.image = replace(before, offset=before.offset + 1, topics_by_name={}, topics_by_id={})
    again.replicas.apply_delta(MetadataDelta.between(before, again.image), again.image)
    assert not again.log_manager.moves.futures
    (target,) = (each for each in ("/a", "/b") if each not in again.failed)
    assert again.names(target) == ["t-0-stray"]


@pytest.mark.parametrize("removed", [True, False])
def test_a_future_log_without_a_log_goes_at_a_start_if_a_record_removed_it(removed: bool) -> None:
    """Else it may be the only copy, and is kept."""
    again = copy_alone()
    again.log_manager.moves.settle(lambda log: False, lambda log: removed)
    assert not again.log_manager.moves.futures
    (target,) = (each for each in ("/a", "/b") if each not in again.failed)
    assert again.names(target) == (["t-0-delete"] if removed else ["t-0-stray"])


def test_a_target_that_fails_ends_the_move_only() -> None:
    """RL 1.12: the replica serves on where it is, and the controller hears that it stays."""
    moving = filled(answers=False)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(1)
    moving.log_manager.directories.fail(target, OSError("EIO"))
    assert moving.partition.future_log is None and not moving.replicas.moves.moves
    assert len(moving.assignments.reverted) == 1
    moving.produce()
    assert moving.place == source and not moving.partition.offline


def test_a_source_that_fails_takes_the_partition_offline() -> None:
    moving = filled(answers=False)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(1)
    moving.log_manager.directories.fail(source, OSError("EIO"))
    moving.clock.advance(1)
    assert moving.partition.offline and not moving.replicas.moves.moves
    source_id = moving.log_manager.directories.by_path[source].directory_id
    assert moving.assignments.reverted == [source_id]
    assert moving.names(target) == ["t-0-future"]


def test_an_append_to_the_future_log_that_fails_fails_its_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = filled()
    target = moving.other
    real = Log.append_as_follower

    def broken(log: Log, *arguments: Any) -> Any:
        if log.directory.startswith(target):
            raise log.fail(OSError("EIO"))
        return real(log, *arguments)

    monkeypatch.setattr(Log, "append_as_follower", broken)
    moving.move(target)
    moving.settle(3)
    assert moving.failed == [target] and not moving.partition.offline
    assert not moving.replicas.moves.moves
    moving.produce()


def test_a_rename_that_fails_leaves_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step: the target fails with it, the replica stays."""
    moving = filled()
    source, target = moving.place, moving.other
    real = Log.rename_directory

    def broken(log: Log, directory: str) -> None:
        if directory == f"{target}/t-0":
            raise OSError("EIO")
        real(log, directory)

    monkeypatch.setattr(Log, "rename_directory", broken)
    moving.move(target)
    moving.settle(3)
    assert moving.failed == [target] and moving.place == source
    assert not moving.partition.offline
    moving.produce()


def test_a_read_of_the_log_that_fails_fails_its_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = filled()
    source, target = moving.place, moving.other

    def broken(log: Log, *arguments: Any) -> Any:
        raise LogDirFailure(source, OSError("EIO"))

    moving.move(target)
    monkeypatch.setattr(Log, "read", broken)
    moving.settle(3)
    moving.clock.advance(1)
    assert moving.partition.offline and not moving.replicas.moves.moves


def test_with_flush_messages_nothing_is_acknowledged_unsynced() -> None:
    """What waited for the log's sync waits for the copy's."""
    moving = filled(5, overrides={"flush.messages": "1"})
    target = moving.other
    moving.move(target)
    assert moving.partition.future_log is not None
    assert moving.partition.future_log.durability.flush_messages > 1
    moving.settle()
    assert moving.place == target and moving.log.durability.flush_messages == 1
    moving.produce()
    assert moving.log.durability.recovery_point == moving.log.log_end_offset == 6


def test_retention_and_the_cleaner_leave_a_log_alone_that_moves() -> None:
    """RL 3.8: both go on when it is swapped; what was clean stays clean."""
    moving = Moving(answers=False, overrides={"retention.bytes": "200"}).start()
    for _ in range(10):
        moving.produce()
        moving.log.roll(WALL_MS)
    target = moving.other
    directory = moving.log_manager.directories.of(moving.log)
    directory.cleaner_offsets[TP] = 3
    moving.move(target)
    moving.settle(1)
    moving.log_manager.upkeep.delete_old_segments()
    moving.turns(5)
    assert moving.log.log_start_offset == 0
    assert not moving.log_manager.cleaner._may_be_cleaned(moving.log)
    moving.assignments.answer()
    moving.settle()
    assert moving.log_manager.directories.of(moving.log).cleaner_offsets[TP] == 3
    moving.log.roll(WALL_MS)
    moving.produce(3)
    moving.log_manager.upkeep.delete_old_segments()
    moving.turns(5)
    assert moving.place == target and moving.log.log_start_offset == 10


def test_a_restart_goes_on_with_the_future_log() -> None:
    moving = filled(**SLOW)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(5)
    begun = moving.partition.future_log
    assert begun is not None and 0 < begun.log_end_offset < 30
    end = begun.log_end_offset
    again = Moving(moving.stop()).start()
    assert again.place == source
    assert again.partition.future_log is not None
    assert again.partition.future_log.log_end_offset == end
    again.settle()
    assert again.place == target and len(again.records()) == 30


class HeldWorker(InlineWorker):
    """Runs nothing any more once it is held."""

    is_held = False

    def submit(self, job: Callable[[], Any], done: Callable[..., None]) -> None:
        if not self.is_held:
            super().submit(job, done)


def test_a_kill_before_the_future_logs_id_is_written() -> None:
    """KIP-113: a move that was answered is carried out. A copy without a topic id may be another
    topic's: it is made anew.
    """
    worker = HeldWorker()
    moving = filled(worker=lambda clock: worker, answers=False)
    source, target = moving.place, moving.other
    worker.is_held = True
    moving.move(target)
    moving.settle(1)
    copy = moving.partition.future_log
    assert copy is not None and copy.log_end_offset == 30
    assert "partition.metadata" not in moving.files.listdir(copy.directory)
    moving.files._locks.clear()  # its process is dead
    again = Moving(moving.files).start()
    assert again.place == source
    again.settle()
    assert again.place == target and len(again.records()) == 30
    again.clock.advance(61)
    assert again.names(source) == [] and again.names(target) == ["t-0"]


def test_a_future_log_with_a_hole_is_made_anew() -> None:
    """KIP-113: as one without an id, after a loss of power."""
    moving = filled(10, answers=False)
    source, target = moving.place, moving.other
    moving.move(target)
    copy = moving.partition.future_log
    assert copy is not None
    for end in (10, 20, 30):
        moving.settle(1)
        assert copy.log_end_offset == end
        copy.roll(WALL_MS)
        moving.produce(10)
    files, name = moving.stop(), copy.directory
    files.remove(f"{name}/{10:020}.log")
    for lost in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        files.remove(f"{target}/{lost}")
    again = Moving(files).start()
    begun = again.partition.future_log
    assert again.place == source and begun is not None and begun.directory != name
    again.settle()
    assert again.place == target and len(again.records()) == 40


def test_a_move_that_was_refused_is_not_begun_by_the_next_start() -> None:
    """KIP-113: no file could be opened in the copy's new directory, which goes."""
    moving = filled()
    source, target = moving.place, moving.other
    too_many = OSError(errno.EMFILE, "too many")
    with patch.object(moving.files, "open", side_effect=too_many), pytest.raises(BrokerError):
        moving.move(target)
    assert moving.names(target) == []
    again = Moving(moving.stop()).start()
    again.settle(5)
    assert again.place == source and not again.log_manager.moves.futures


def begun_anew_without_descriptors(seconds: float) -> Moving:
    """A start that finds a copy without an id, and for so long no descriptor for another."""
    moving = filled(answers=False)
    moving.move(moving.other)
    copy = moving.partition.future_log
    assert copy is not None
    files = moving.stop()
    files.remove(f"{copy.directory}/partition.metadata")
    again = Moving(files)
    with patch.object(LogDirectory, "create", side_effect=OSError(errno.EMFILE, "too many")):
        again.start()
        again.clock.advance(seconds)
        assert again.partition.future_log is None and not again.partition.offline
    return again


@pytest.mark.parametrize("seconds", [0.5, 5])
def test_a_future_log_that_no_file_can_be_opened_for_is_begun_a_little_later(
    seconds: float,
) -> None:
    """RL 3.8: the move was answered, and the damaged copy is gone."""
    again = begun_anew_without_descriptors(seconds)
    source, target = again.place, again.other
    again.clock.advance(1)
    assert again.log_manager.moves.future(TP) is not None
    again.clock.advance(1)
    again.settle()
    assert (again.place, len(again.records())) == (target, 30)
    again.clock.advance(61)
    assert again.names(source) == [] and again.names(target) == ["t-0"]


def test_a_move_that_was_ended_is_not_begun_again() -> None:
    """KIP-113: the directory where the replica is already ends it, begun anew or not yet."""
    again = begun_anew_without_descriptors(0.5)
    again.move(again.place)
    again.clock.advance(5)
    assert again.log_manager.moves.future(TP) is None


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_future_log_whose_move_has_not_begun_yet_is_given_up(elsewhere: bool) -> None:
    """KIP-113: between the making of a copy and its move the replica's directory is requested, or a
    third one: the copy goes, and no move to it begins.
    """
    again = begun_anew_without_descriptors(0.5)
    source, target = again.place, again.other
    again.clock.advance(0.6)
    assert again.log_manager.moves.future(TP) is not None and again.partition.future_log is None
    wanted = "/c" if elsewhere else source
    again.move(wanted)
    again.settle(5)
    again.clock.advance(61)
    assert again.place == wanted and len(again.records()) == 30
    assert again.names(target) == [] and not again.log_manager.moves.futures


def nearly_moved() -> tuple[Moving, str, bytes]:
    """30 records are in the copy, the controller was told and has not answered; the target,
    and its id.
    """
    moving = filled(answers=False)
    target = moving.other
    moving.move(target)
    moving.settle(1)
    return moving, target, moving.log_manager.directories.by_path[target].directory_id


def test_the_future_log_of_a_lost_log_takes_its_place_when_the_controller_knows_it() -> None:
    """KIP-858: the source is gone after the controller took the assignment."""
    moving, target, target_id = nearly_moved()
    source = moving.place
    files = moving.stop()
    files.remove_tree(f"{source}/t-0")
    again = Moving(files, state=registration()._replace(directories=(target_id,))).start()
    assert again.place == target and len(again.records()) == 30
    assert not again.log_manager.moves.futures


def test_a_move_that_was_accepted_and_not_done_whose_target_is_offline() -> None:
    """KIP-858: the metadata name the target, where a newer log may be as well. The log is not
    served then and loses nothing; it is served when the target is back, or is no log directory.
    """
    moving, target, target_id = nearly_moved()
    source = moving.place
    disk = moving.stop()
    properties = f"{target}/meta.properties"
    disk.rename(properties, "/kept")
    disk.make_directories(properties)
    state = registration()._replace(directories=(target_id,))
    without = WithoutOne(disk, state=state).start()
    assert without.log_manager.directories.offline() == [target]
    assert without.partition.offline and without.names(source) == ["t-0"]
    left = without.stop()
    left.remove_tree(properties)
    online = ",".join(each for each in DIRECTORIES.split(",") if each != target)
    alone = Moving(left, state=state, log_dirs=online).start()
    assert alone.place == source and len(alone.records()) == 30
    alone.stop()
    left.rename("/kept", properties)
    again = Moving(left, state=state).start()
    assert again.place == source and len(again.records()) == 30
    again.settle()
    assert again.place == target and len(again.records()) == 30


@pytest.mark.parametrize("behind", [0, 5])
@pytest.mark.parametrize("is_marked", [False, True])
def test_a_lost_log_that_comes_back_beside_the_future_log(behind: int, is_marked: bool) -> None:
    """RL 3.8: the copy that took its place has the mark that was written before the controller was
    told of it, so the longer one counts, and the other goes. Without the mark the other is kept as
    a stray.
    """
    disk = SimDisk(1)
    moving = filled(files=disk, answers=False)
    target, source = moving.other, moving.place
    moving.move(target)
    moving.settle(1)
    target_id = moving.log_manager.directories.by_path[target].directory_id
    moving.replicas.moves.shutdown()
    moving.produce(behind)
    moving.stop()
    disk.rename(f"{source}/t-0", "/unmounted")
    state = registration()._replace(directories=(target_id,))
    again = Moving(disk, state=state).start()
    assert again.place == target and len(again.records()) == 30
    again.stop()
    disk.rename("/unmounted", f"{source}/t-0")
    if not is_marked:
        disk.remove(f"{target}/t-0/{PROMOTED}")
    found = Moving(disk.after_kill(), state=state).start()
    assert len(found.records()) == 30 + behind
    other = "t-0-delete" if is_marked else "t-0-stray"
    assert sorted(found.names("/a") + found.names("/b")) == ["t-0", other]


def epoch_batch(offset: int, epoch: int) -> bytes:
    data = bytearray(batch(value=f"{offset} of {epoch}".encode()))
    data[:8] = offset.to_bytes(8, "big")
    data[12:16] = epoch.to_bytes(4, "big")
    return bytes(data)


def test_a_future_log_that_was_away_while_its_log_was_truncated() -> None:
    """KIP-101: shouldTruncateToEndOffsetOfLargestCommonEpoch: no mark was set, epochs show it."""
    moving = Moving(state=registration(2, (2, 1)), answers=False).start()
    for offset in range(6):
        moving.partition.append_as_follower(epoch_batch(offset, 0), 0, 0)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(2)
    files = moving.stop()
    (copy,) = [name for name in files.listdir(target) if name.endswith("-future")]
    files.rename(f"{target}/{copy}", f"/{copy}")
    state = registration(2, (2, 1), leader_epoch=1, partition_epoch=1)
    without = Moving(files, state=state).start()
    assert without.place == source and not without.log_manager.moves.futures
    without.partition.truncate_to(3, 0)
    for offset in range(3, 8):
        without.partition.append_as_follower(epoch_batch(offset, 1), 1, 0)
    before = without.records()
    without.stop()
    files.rename(f"/{copy}", f"{target}/{copy}")
    again = Moving(files, state=state).start()
    assert again.partition.future_log is not None
    assert again.partition.future_log.log_end_offset == 6
    again.settle()
    assert again.place == target and again.records() == before


def test_a_future_log_longer_than_its_log_goes_back() -> None:
    """OFFSET_OUT_OF_RANGE above the end, and epochs that say so: a loss of power took the log's
    unsynced end (shouldTruncateToReplicaOffset).
    """
    moving = filled(6, answers=False)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(2)
    files = moving.stop()
    for name in ("00000000000000000000.log", ".kafka_cleanshutdown"):
        place = f"{source}/t-0/{name}" if name.endswith(".log") else f"{source}/{name}"
        if name.endswith(".log"):
            file = files.open(place)
            file.truncate(file.size() // 2)
            file.close()
        else:
            files.remove(place)
    again = Moving(files).start()
    assert again.log.log_end_offset == 3
    again.produce(1)
    before = again.records()
    again.settle()
    assert again.place == target and again.records() == before


def test_a_move_that_the_controller_accepted_is_reverted_when_it_is_cancelled() -> None:
    """Also after the controller's answer."""
    moving = filled(answers=False)
    source, target = moving.place, moving.other
    moving.move(target)
    moving.settle(1)
    moving.produce()
    moving.assignments.answer()
    assert moving.replicas.moves.moves[TP].assignment is Assignment.ACCEPTED
    moving.move(source)
    source_id = moving.log_manager.directories.by_path[source].directory_id
    assert moving.assignments.reverted == [source_id] and moving.assignments.done == 0
    moving.settle()
    assert moving.place == source


def test_a_fenced_move_begins_again_with_the_next_epoch() -> None:
    """shouldUpdateLeaderEpochAfterFencedEpochError."""
    moving = filled(**SLOW)
    target = moving.other
    moving.move(target)
    moving.clock.advance(0.5)
    moving.partition.leader_epoch += 1
    moving.settle(2)
    move = moving.replicas.moves.moves[TP]
    assert move.error and TP in moving.replicas.moves.failed and moving.place != target
    moving.take_role(registration(LOCAL, (1,), leader_epoch=2, partition_epoch=1))
    assert not move.error and not moving.replicas.moves.failed
    moving.settle(60)
    assert moving.place == target


def test_a_failed_move_is_tried_again_when_it_is_requested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = filled()
    target = moving.other
    real = Log.append_as_follower

    def broken(log: Log, *arguments: Any) -> Any:
        raise ValueError("a fault")

    monkeypatch.setattr(Log, "append_as_follower", broken)
    moving.move(target)
    moving.settle(2)
    assert moving.replicas.moves.moves[TP].error == "a fault"
    assert not moving.failed and moving.place != target
    moving.produce()
    monkeypatch.setattr(Log, "append_as_follower", real)
    moving.move(target)
    moving.settle()
    assert moving.place == target and moving.log.log_end_offset == 31


def test_a_log_that_is_not_there_is_asked_again() -> None:
    """An error of the log's is an answer."""
    moving = filled(1)
    leader = LocalLeaderEndPoint(
        moving.replicas, MoveThrottle(lambda: 1000), lambda name: False, 1 << 20
    )
    name = TopicPartition("t", 9)
    found: list[Any] = []
    ensureDeferred(leader.fetch_epoch_ends({name: LeaderEpochRequest(0, 0)})).addCallback(
        found.append
    )
    requested = RequestedPartitions([name])
    requested.put(name, RequestedPartition(bytes(16), 0, 0, -1, 0, 100))
    assert leader.has_request(requested)
    ensureDeferred(leader.fetch(requested)).addCallback(found.append)
    moving.turns(2)
    ends, answers = found
    assert ends[name].error == answers[name].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_log_start_does_not_go_back_at_the_swap() -> None:
    """RL 3.4: DeleteRecords came after the copy's last read."""
    moving = filled(10, answers=False)
    moving.move(moving.other)
    moving.settle(1)
    moving.log.increment_log_start_offset(8)
    assert moving.log_manager.moves.swap(TP).log_start_offset == 8


def test_the_log_that_was_truncated_after_the_swap_counts() -> None:
    """RL 3.8: the old one is longer, by records of an epoch that ended."""
    old, new = make_log(directory="/a/t-0"), make_log(directory="/b/t-0")
    for log, epochs in ((old, [0] * 10), (new, [0] * 6 + [1] * 2)):
        for offset, epoch in enumerate(epochs):
            log.append_as_follower(epoch_batch(offset, epoch), epoch, WALL_MS)
    mark_promoted(new.pool.files, new.directory, old.directory, 10)
    assert one_that_counts(old, new) is one_that_counts(new, old) is new
    new.truncate_to(6, WALL_MS)
    assert one_that_counts(old, new) is old


COMPACTED: dict[str, Any] = {"overrides": {"cleanup.policy": "compact", "segment.ms": "5000"}}


def with_copied_holes() -> Moving:
    """A follower of a compacted partition whose leader was cleaned, with several segments, each
    named by its first batch, as Kafka names them: the holes are between them.
    """
    moving = Moving(state=registration(2, (1, 2), (1, 2)), **COMPACTED).start()
    for offset in range(0, 60, 3):
        if offset % 12 == 0:
            moving.log.roll(WALL_MS, offset)
        moving.partition.append_as_follower(
            batch(base_offset=offset, leader_epoch=0, timestamp=WALL_MS - 100_000 + offset * 700),
            0,
            WALL_MS,
        )
    assert len(moving.log.segments) > 3
    return moving


def kill_without_checkpoint(moving: Moving) -> None:
    """Its process is dead; no recovery point was written."""
    for path in ("/a", "/b", "/c"):
        if moving.files.exists(f"{path}/recovery-point-offset-checkpoint"):
            moving.files.remove(f"{path}/recovery-point-offset-checkpoint")
    moving.files._locks.clear()


@pytest.mark.parametrize("leader", [1, 2])
def test_a_hole_is_decided_about_when_somebody_leads(leader: int) -> None:
    """Who may be elected keeps what lies behind; it is fetched again where another one is."""
    moving = with_copied_holes()
    before = moving.records()
    kill_without_checkpoint(moving)
    nobody = registration(-1, (1, 2), (1,), 1, 1)
    again = Moving(moving.files, state=nobody, **COMPACTED).start()
    assert again.records() == before and again.log.gap is not None
    again.take_role(registration(leader, (1, 2), (leader,), 2, 2))
    assert again.log.gap is None and not again.partition.offline
    assert (again.records() == before) == (leader == 1)


def test_older_metadata_decides_about_no_hole() -> None:
    """A role that was tried again came from the newest metadata, in which nobody leads and this
    replica may; a piece that waited names the leader before.
    """
    moving = with_copied_holes()
    before = moving.records()
    kill_without_checkpoint(moving)
    nobody = registration(-1, (1, 2), (1,), 2, 2)
    again = Moving(moving.files, state=nobody, **COMPACTED).start()
    again.take_role(registration(2, (1, 2), (2, 1), 1, 1))
    assert again.records() == before and again.log.gap is not None
    again.take_role(registration(1, (1, 2), (1,), 3, 3))
    assert again.records() == before and again.partition.is_leader


def test_a_log_with_a_hole_is_moved_when_that_is_decided_about() -> None:
    """The copy would have the hole, and nobody would know that it is one."""
    moving = with_copied_holes()
    kill_without_checkpoint(moving)
    nobody = registration(-1, (1, 2), (1,), 1, 1)
    again = Moving(moving.files, state=nobody, **COMPACTED).start()
    source, target, before = again.place, again.other, again.records()
    again.move(target)
    again.settle(2)
    assert again.place == source and again.log.gap is not None
    again.take_role(registration(2, (1, 2), (2,), 2, 2))
    kept = again.records()
    assert again.log.gap is None and kept == before[: len(kept)] != before
    again.settle()
    assert again.place == target and again.records() == kept


def test_a_sole_member_of_the_isr_keeps_what_lies_behind_a_copied_hole() -> None:
    """A kill, not a loss of power: all is there, and nobody else has what it acknowledged."""
    moving = with_copied_holes()
    moving.partition.follow_high_watermark(58)
    led = registration(1, (1, 2), (1,), 1, 1)
    moving.take_role(led)
    moving.produce()
    before = moving.records()
    kill_without_checkpoint(moving)
    again = Moving(moving.files, state=led, **COMPACTED).start()
    assert again.records() == before and not again.partition.offline


def test_a_move_back_waits_for_the_end_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 3.8: the log that was replaced is there until the copy is durable; a rename onto it would
    fail, and take its whole directory offline.
    """
    moving = filled()
    source, target = moving.place, moving.other
    held: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        LogMoves, "_remove_replaced", lambda moves, *arguments: held.append(arguments)
    )
    moving.move(target)
    moving.settle()
    assert moving.place == target and moving.names(source) == ["t-0"]
    moving.move(source)
    moving.settle(2)
    assert moving.place == target and not moving.failed
    monkeypatch.undo()
    moving.log_manager.moves._remove_replaced(*held[0])
    moving.settle(5)
    assert moving.place == source and not moving.failed and len(moving.records()) == 30
