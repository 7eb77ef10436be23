"""Reading `__consumer_offsets`: what the log says, at every cut of a read; in slices, side by
side; what may happen meanwhile.
"""

from __future__ import annotations

import errno
import gc
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.coordinator.broker_run import WALL_MS, BrokerRun
from tests.coordinator.memory_store import MemoryStore
from tests.coordinator.test_group_coordinator import now
from twisted_broker import garbage_collection, turns
from twisted_broker.coordinator import coordinator_loader
from twisted_broker.coordinator.coordinator_loader import RECORDS_PER_STEP, load_steps
from twisted_broker.coordinator.coordinator_shard import CoordinatorShard
from twisted_broker.coordinator.group_offsets import GroupOffsets
from twisted_broker.coordinator.group_records import (
    CommittedOffset,
    GroupMetadata,
    MalformedRecord,
    OffsetRecord,
    batch_of,
    group_record,
    offset_record,
    partition_for,
    read_record,
)
from twisted_broker.coordinator.offset_metadata_manager import OffsetToCommit
from twisted_broker.log.errors import OutOfDescriptors
from twisted_broker.wire.compression import GZIP, NONE
from twisted_broker.wire.control_batch import build_end_marker
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.legacy import build_message_set
from twisted_broker.wire.records import BatchBuilder, Record, iterate_batches

INDEX = partition_for("g", 50)


def offset(group: str, place: int, value: int | None):
    return offset_record(
        group, "t", place, None if value is None else CommittedOffset(value, 1, "", WALL_MS)
    )


def batch(records, **how) -> bytes:
    builder = BatchBuilder(**how)
    for key, value in records:
        builder.append(WALL_MS, key, value)
    return builder.build()


def loaded(store: MemoryStore, index: int = INDEX) -> CoordinatorShard:
    shard = CoordinatorShard(BrokerRun(store, lead=False).coordinator.context, index, 1)
    for _ in load_steps(shard, []):
        pass
    return shard


def commits_of(shard: CoordinatorShard) -> dict[str, dict[tuple[str, int], tuple[int, int]]]:
    return {
        name: {place: (c.offset, c.record_offset) for place, c in entry.offsets.committed.items()}
        for name, entry in shard.groups.items()
    }


# what the log says
def told_by_every_record(log: bytes) -> dict[str, dict[tuple[str, int], tuple[int, int]]]:
    """The plain reading: every record decoded, in log order."""
    offsets: dict[str, GroupOffsets] = {}
    groups: set[str] = set()
    in_transaction: dict[int, set[str]] = {}
    for each in iterate_batches(log):
        if each.is_control:
            is_commit = next(iter(each.records())).key == b"\0\0\0\1"
            for name in in_transaction.pop(each.producer_id, ()):
                offsets[name].end_transaction(each.producer_id, is_commit)
            continue
        for record in each.records():
            try:
                read = read_record(record.key, record.value, record.offset)
            except MalformedRecord:
                continue
            assert read is not None
            if not isinstance(read, OffsetRecord):
                (groups.discard if read.value is None else groups.add)(read.group_id)
                continue
            held = offsets.setdefault(read.group_id, GroupOffsets())
            if read.value is None:
                held.remove((read.topic, read.partition), record.offset)
            elif each.is_transactional:
                held.put_transactional(each.producer_id, (read.topic, read.partition), read.value)
                in_transaction.setdefault(each.producer_id, set()).add(read.group_id)
            else:
                held.put((read.topic, read.partition), read.value)
    names = groups | {name for name, held in offsets.items() if not held.is_empty()}
    return {
        n: {
            p: (c.offset, c.record_offset)
            for p, c in offsets.get(n, GroupOffsets()).committed.items()
        }
        for n in names
    }


def strange_log(random: Random, batches: int = 60) -> MemoryStore:
    """Commits, tombstones, groups, transactions that end either way or not, compressed batches,
    values that cannot be read.
    """
    store = MemoryStore()

    def records(count: int) -> list:
        found = []
        for _ in range(count):
            group = random.choice("abc")
            kind = random.random()
            if kind < 0.05:
                found.append((offset(group, 0, 1)[0], b"\0\x09bad"))
            elif kind < 0.15:
                found.append(
                    group_record(group, random.choice([None, GroupMetadata(group, "consumer", 3)]))
                )
            else:
                found.append(
                    offset(
                        group, random.randrange(3), None if kind < 0.3 else random.randrange(1000)
                    )
                )
        return found

    for _ in range(batches):
        kind, producer = random.random(), random.randrange(1, 4)
        if kind < 0.15:
            store.put(
                INDEX,
                batch(
                    records(2),
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=0,
                    is_transactional=True,
                ),
            )
        elif kind < 0.3:
            store.put(INDEX, build_end_marker(producer, 0, random.random() < 0.5, 0, WALL_MS))
        elif kind < 0.4:
            store.put(INDEX, batch(records(5), codec=GZIP))
        else:
            store.put(INDEX, batch(records(random.choice([1, 1, 1, 7]))))
    return store


@pytest.mark.parametrize("seed", range(40))
def test_values_that_wait_say_what_every_record_in_its_turn_says(seed, monkeypatch):
    """At any size of a read and any number of keys that may wait, with reads that end within a
    batch.
    """
    random = Random(seed)
    monkeypatch.setattr(
        coordinator_loader, "SLICE_BYTES", random.choice([1, 100, 333, 1000, 128 * 1024])
    )
    monkeypatch.setattr(coordinator_loader, "PENDING_KEYS", random.choice([1, 3, 20_000]))
    monkeypatch.setattr(coordinator_loader, "VALUES_PER_STEP", random.choice([1, 64]))
    store = strange_log(random)
    assert commits_of(loaded(store)) == told_by_every_record(bytes(store.logs[INDEX]))


def test_an_older_value_counts_where_the_last_one_cannot_be_read():
    """An offset that is too old makes a consumer read twice; none at all could make it skip."""
    store = MemoryStore()
    store.put(INDEX, batch([offset("g", 0, 5), offset("g", 1, 6)]))
    store.put(INDEX, batch([(offset("g", 0, 7)[0], b"\0\x09from the future")]))
    assert commits_of(loaded(store)) == {"g": {("t", 0): (5, 0), ("t", 1): (6, 1)}}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_what_an_old_broker_wrote_is_read(magic: int, codec: int) -> None:
    """A cluster with `log.message.format.version` below 0.11 keeps its groups so."""
    old = [offset("g", 0, 5), offset("g", 1, 6), offset("g", 0, None)]
    records = [Record(n, -1, key, value, []) for n, (key, value) in enumerate(old)]
    new = batch([offset("g", 2, 7)], base_offset=3)
    replay = coordinator_loader._Replay(0)
    list(replay.replay(build_message_set(records, magic=magic, codec=codec) + new))
    list(replay.decode_latest())
    committed = replay.offsets["g"].committed
    assert {place: c.offset for place, c in committed.items()} == {("t", 1): 6, ("t", 2): 7}
    assert replay.position == 4


# in slices
def test_a_batch_larger_than_a_read_is_taken_in_steps(monkeypatch):
    """Whole, though one read asks for a hundred bytes, and no step walks more than its records."""
    monkeypatch.setattr(coordinator_loader, "SLICE_BYTES", 100)
    store = MemoryStore()
    count = 20 * RECORDS_PER_STEP
    store.put(INDEX, batch_of([offset("g", n, n) for n in range(count)], WALL_MS))
    shard = CoordinatorShard(BrokerRun(store, lead=False).coordinator.context, INDEX, 1)
    steps = sum(1 for _ in load_steps(shard, []))
    assert len(shard.groups["g"].offsets.committed) == count and store.reads == 1 and steps >= 20


def test_no_step_raises_many_groups():
    """A hundred thousand empty groups of one partition must not hold the reactor."""
    store = MemoryStore()
    for start in range(0, 1000, 100):
        store.put(
            INDEX,
            batch_of(
                [
                    group_record(f"g{n}", GroupMetadata(f"g{n}", "consumer", 1))
                    for n in range(start, start + 100)
                ],
                WALL_MS,
            ),
        )
        store.put(
            INDEX, batch_of([offset(f"o{n}", 0, n) for n in range(start, start + 100)], WALL_MS)
        )
    shard = CoordinatorShard(BrokerRun(store, lead=False).coordinator.context, INDEX, 1)
    before = 0
    for _ in load_steps(shard, []):
        assert len(shard.groups) - before <= coordinator_loader.GROUPS_PER_STEP
        before = len(shard.groups)
    assert len(shard.groups) == 2000


@pytest.mark.parametrize(("at_once", "is_kept"), [(50, True), (5000, False)])
def test_a_large_load_is_not_walked_by_the_garbage_collector(monkeypatch, at_once, is_kept):
    """Values that wait and groups: a full collection of a million groups takes seconds.

    A small load changes nothing.
    """
    monkeypatch.setattr(coordinator_loader, "FREEZE_EVERY", at_once)
    store = MemoryStore()
    store.put(INDEX, batch_of([offset(f"o{n}", 0, n) for n in range(100)], WALL_MS))
    monkeypatch.setattr(garbage_collection._survivors, "freezes", True)  # as in twistd's process
    gc.unfreeze()
    before = gc.get_freeze_count()
    try:
        shard = loaded(store)
        assert (gc.get_freeze_count() > before) is is_kept and len(shard.groups) == 100
    finally:
        gc.unfreeze()


def test_partitions_are_read_side_by_side_and_the_others_are_served(monkeypatch):
    """A short partition does not wait for a long one; while both are read a third serves, and
    only theirs are LOAD_IN_PROGRESS.
    """
    monkeypatch.setattr(coordinator_loader, "SLICE_BYTES", 1)
    names = {partition_for(name, 50): name for name in ("g", "h", "i")}
    assert len(names) == 3
    long, short, other = names
    store = MemoryStore()
    for n in range(400):
        store.put(long, batch_of([offset(names[long], 0, n)], WALL_MS))
    for n in range(20):
        store.put(short, batch_of([offset(names[short], 0, n)], WALL_MS))
    run = BrokerRun(store, lead=False)
    worst, reads = [0.0], []

    def read(index: int) -> None:
        run.clock.rightNow += 0.001
        reads.append(index)

    store.on_read = read
    for index in names:
        run.coordinator.runtime.load(index, 1)
    served_at: dict[Any, Any] = {}
    for turn in range(10_000):
        assert now(run.commit(OffsetToCommit("t", 0, turn), group=names[other]))[("t", 0)] is E.NONE
        for index in (long, short):
            try:
                run.fetched(names[index])
                served_at.setdefault(index, turn)
            except BrokerError as error:
                assert error.code is E.COORDINATOR_LOAD_IN_PROGRESS
        if len(served_at) == 2:
            break
        began = run.clock.seconds()
        run.clock.turn()
        worst[0] = max(worst[0], run.clock.seconds() - began)
    assert served_at[short] <= 12 and served_at[long] >= 90
    assert worst[0] <= turns.SECONDS_PER_TURN + 0.001 + 1e-9
    assert all(len(set(reads[at : at + 2])) == 2 for at in range(0, 40, 2))
    assert run.fetched(names[long]) == {("t", 0): 399} and run.fetched(names[short]) == {
        ("t", 0): 19
    }


# what may happen meanwhile
def partition_with_everything() -> MemoryStore:
    """Groups with members, groups without, offsets."""
    run = BrokerRun()
    names = [name for n in range(2000) if partition_for(name := f"n{n}", 50) == INDEX][:6]
    for name in names[:3]:
        run.stable(name)
    for name in names:
        described = run.coordinator.describe(name)
        who = {"member": described.members[0][0], "generation": 1} if described is not None else {}
        now(run.commit(OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 1), group=name, **who))
    run.coordinator.stop()
    return run.store


def in_small_steps(monkeypatch) -> None:
    for name in ("RECORDS_PER_STEP", "VALUES_PER_STEP", "GROUPS_PER_STEP", "SLICE_BYTES"):
        monkeypatch.setattr(coordinator_loader, name, 1)
    monkeypatch.setattr("twisted_broker.coordinator.coordinator_runtime.SESSIONS_PER_STEP", 1)
    monkeypatch.setattr("twisted_broker.coordinator.coordinator_shard.UNLOADED_PER_STEP", 1)
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)


def test_a_load_ends_where_its_partition_fails_before_all_is_committed():
    """RL 1.3: no shard stays that loads for ever; the next leader epoch loads it."""
    store = partition_with_everything()
    run = BrokerRun(store, lead=False)
    store.commits[INDEX] = Deferred()
    run.coordinator.runtime.load(INDEX, 1)
    run.settle()
    assert run.coordinator.runtime.is_loading
    store.commits.pop(INDEX).callback(False)
    run.settle()
    assert INDEX not in run.coordinator.runtime.shards and not run.coordinator.runtime.is_loading
    run.coordinator.runtime.load(INDEX, 2)
    run.settle()
    assert len(run.listed()) == 6


def test_leadership_may_go_at_any_step_of_a_load(monkeypatch):
    """Nothing is left behind: no shard, no timer, no further read; and the next leader epoch
    loads all of it.
    """
    in_small_steps(monkeypatch)
    store = partition_with_everything()
    turns = 0
    while True:
        run = BrokerRun(store, lead=False)
        run.coordinator.stop()
        run = BrokerRun(store, lead=False)
        idle = len(run.clock.getDelayedCalls())
        run.coordinator.runtime.load(INDEX, 1)
        for _ in range(turns):
            run.clock.turn()
        is_done = (
            len(run.clock.getDelayedCalls()) == idle + 3 and turns > 0
        )  # the sessions of three members
        run.coordinator.runtime.unload(INDEX, 2)
        reads = store.reads
        run.settle()
        assert store.reads == reads and INDEX not in run.coordinator.runtime.shards
        assert len(run.clock.getDelayedCalls()) == idle
        run.coordinator.runtime.load(INDEX, 3)
        run.settle()
        assert len(run.listed()) == 6 and not run.coordinator.runtime.is_loading
        if is_done:
            break
        turns += 1
    assert turns > 30


def test_a_new_leader_epoch_begins_the_load_anew(monkeypatch):
    """This broker may be elected again while it reads."""
    in_small_steps(monkeypatch)
    run = BrokerRun(partition_with_everything(), lead=False)
    run.coordinator.runtime.load(INDEX, 1)
    run.clock.turn()
    run.coordinator.runtime.load(INDEX, 2)
    run.settle()
    assert len(run.listed()) == 6 and run.coordinator.runtime.shards[INDEX].leader_epoch == 2


@pytest.mark.parametrize(
    "error",
    [BrokerError(E.KAFKA_STORAGE_ERROR), OSError("disk"), BrokerError(E.NOT_LEADER_OR_FOLLOWER)],
)
@pytest.mark.parametrize("good_reads", [0, 3])
def test_a_read_that_fails_ends_one_load_only(monkeypatch, error, good_reads):
    """NOT_COORDINATOR for its groups, the other partitions load; the next leader epoch tries
    again.
    """
    monkeypatch.setattr(coordinator_loader, "SLICE_BYTES", 1)
    store = partition_with_everything()
    other = (INDEX + 1) % 50
    for n in range(10):
        store.put(other, batch_of([offset("x", 0, n)], WALL_MS))
    left = [good_reads]

    def read(index: int) -> None:
        if index == INDEX:
            if not left[0]:
                raise error
            left[0] -= 1

    store.on_read = read
    run = BrokerRun(store)
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        run.fetched("g")
    assert [g.group_id for g in run.listed()] == ["x"]
    left[0] = 1000
    run.coordinator.runtime.load(INDEX, 1)
    run.settle()
    assert len(run.listed()) == 7


def test_a_read_for_which_no_descriptor_is_free_is_tried_again(monkeypatch):
    """It passes; a partition that is given up is not served until a restart. It counts as loading
    until then, and ends with its leadership.
    """
    monkeypatch.setattr(coordinator_loader, "SLICE_BYTES", 1)
    store, left = partition_with_everything(), [3]

    def read(index: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OutOfDescriptors("/d", OSError(errno.EMFILE, "Too many open files"))

    store.on_read = read
    run = BrokerRun(store)
    run.pass_ms(5_000)
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        run.fetched("g")
    left[0] = 1000
    run.pass_ms(1_000)
    run.settle()
    assert len(run.listed()) == 6
    left[0] = 1
    run.coordinator.runtime.load(INDEX, 1)
    run.pass_ms(2_000)
    run.coordinator.runtime.unload(INDEX, 2)
    left[0] = 0
    run.pass_ms(2_000)
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        run.fetched("g")
    assert left[0] == 0 and not run.listed()  # read no more


def test_a_session_begins_when_its_partition_is_served(monkeypatch):
    """However long the load took: nobody could send a heartbeat that counts."""
    monkeypatch.setattr(coordinator_loader, "SLICE_BYTES", 1)
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    before = BrokerRun()
    member = before.stable(session_ms=6_000)
    before.coordinator.stop()

    def read(index: int) -> None:
        run.clock.rightNow += 30

    run = BrokerRun(before.store, lead=False)
    run.store.on_read = read
    run.coordinator.runtime.load(INDEX, 1)
    run.settle()
    assert run.clock.seconds() >= 60
    run.pass_ms(5_900)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.NONE
    run.pass_ms(6_100)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.UNKNOWN_MEMBER_ID


def test_a_large_partition_is_given_up_in_steps(monkeypatch):
    """It is not served from the first step on; what is parked is answered with the last one."""
    monkeypatch.setattr("twisted_broker.coordinator.coordinator_shard.UNLOADED_PER_STEP", 2)
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun(initial_rebalance_delay_ms=3000)
    names = [name for n in range(2000) if partition_for(name := f"n{n}", 50) == INDEX][:9]
    parked = [run.join(name) for name in names]
    idle = len(run.clock.getDelayedCalls())
    run.coordinator.runtime.unload(INDEX, 1)
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        run.fetched(names[0])
    assert sum(each.called for each in parked) == 2
    run.settle()
    assert [now(each).error for each in parked] == [E.NOT_COORDINATOR] * 9
    assert len(run.clock.getDelayedCalls()) < idle and not run.listed()


class Counted(GroupOffsets):
    """How many were made, and freed."""

    made = freed = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.made += 1

    def __del__(self) -> None:
        Counted.freed += 1


@pytest.mark.parametrize("begins_anew", [False, True])
def test_what_was_read_for_nothing_goes_in_steps(monkeypatch, begins_anew):
    """The partition is led elsewhere, or under a new epoch, when all is read: to free a million
    groups at once takes a second.
    """
    monkeypatch.setattr(coordinator_loader, "GroupOffsets", Counted)
    monkeypatch.setattr(Counted, "made", 0)
    monkeypatch.setattr(Counted, "freed", 0)
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    store, count = MemoryStore(partitions=1), 3_000
    store.put(0, batch_of([offset(f"g{n}", 0, n) for n in range(count)], WALL_MS))
    run = BrokerRun(store, lead=False)
    run.coordinator.runtime.load(0, 1)
    while Counted.made < count:
        run.clock.turn()
    if begins_anew:
        run.coordinator.runtime.load(0, 2)
    else:
        run.coordinator.runtime.unload(0, 2)
    most = 0
    while Counted.freed < count:
        before = Counted.freed
        run.clock.turn()
        most = max(most, Counted.freed - before)
    assert most <= coordinator_loader.FORGOTTEN_PER_STEP + 1  # one is in the reader's hands
    run.settle()
    assert len(run.listed()) == (count if begins_anew else 0)


# before all is committed
class Behind:
    """A coordinator whose partition's last records are not committed: of "g" a later offset of one
    partition, a tombstone of another, and an offset in a transaction; of `left` its last member's
    leave; of `new` all there is. `stays` has nothing there.
    """

    def __init__(self) -> None:
        self.left, self.stays, self.new = [
            name for n in range(2000) if partition_for(name := f"n{n}", 50) == INDEX
        ][:3]
        run = BrokerRun()
        member = run.stable(self.left)
        run.stable(self.stays)
        for place in range(4):
            now(run.commit(OffsetToCommit("t", place, 10)))
        self.store = run.store
        self.store.high_watermarks[INDEX] = self.store.ends[INDEX]
        for group, place, value in (("g", 0, 20), ("g", 1, None), (self.new, 0, 30)):
            self.store.put(INDEX, batch([offset(group, place, value)]))
        open_one = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        self.store.put(INDEX, batch([offset("g", 2, 40)], is_transactional=True, **open_one))
        run.coordinator.leave(self.left, [(member, None)])
        run.settle()
        run.coordinator.stop()
        self.committed: Deferred[bool] = Deferred()
        self.store.commits[INDEX] = self.committed
        self.run = BrokerRun(self.store, run.clock, lead=False)
        self.idle = len(run.clock.getDelayedCalls())

    def load(self, epoch: int = 1) -> None:
        self.run.coordinator.runtime.load(INDEX, epoch)
        self.run.settle()

    def pass_ms(self, milliseconds: int) -> None:
        self.run.pass_ms(milliseconds)
        self.run.settle()

    def commit_all(self) -> None:
        self.commit_all_in_steps()
        self.run.settle()

    def commit_all_in_steps(self) -> None:
        """What follows of it comes with the turns."""
        del self.store.commits[INDEX], self.store.high_watermarks[INDEX]
        self.committed.callback(True)

    def fetched(self, require_stable: bool = True, group: str = "g") -> list[int | E]:
        wanted = [("t", place, bytes(16)) for place in range(4)]
        found = self.run.coordinator.fetch_offsets(group, wanted, require_stable)
        return [f.error or (f.committed.offset if f.committed else -1) for f in found]


UNSTABLE = E.UNSTABLE_OFFSET_COMMIT


def test_what_lies_below_the_high_watermark_is_read_and_the_rest_unstable():
    """`CoordinatorLoaderImpl` reads up to the log end, and tells what is committed by the high
    watermark. Before a second has passed it may well move.
    """
    behind = Behind()
    behind.load()
    behind.pass_ms(900)
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        behind.fetched()
    behind.pass_ms(100)
    assert behind.fetched() == [UNSTABLE, UNSTABLE, UNSTABLE, 10]
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        behind.fetched(require_stable=False)  # an acknowledged commit would be taken back
    assert behind.fetched(group=behind.new) == [UNSTABLE, -1, -1, -1]
    behind.pass_ms(3_600_000)
    assert behind.fetched() == [UNSTABLE, UNSTABLE, UNSTABLE, 10]
    behind.commit_all()
    assert behind.fetched() == [20, -1, UNSTABLE, 10]
    assert behind.fetched(group=behind.new) == [30, -1, -1, -1]


def test_groups_are_told_as_they_were_committed_and_change_when_all_is():
    """A group whose last record may be lost is not told; sessions begin when a heartbeat counts."""
    behind = Behind()
    behind.load()
    behind.pass_ms(60_000)
    coordinator = behind.run.coordinator
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        coordinator.describe(behind.left)
    assert coordinator.describe(behind.stays).state == "Stable"
    assert not coordinator.runtime.is_loading and len(behind.run.listed()) == 4
    assert coordinator.heartbeat(behind.stays, "m", None, 1) is E.NONE
    assert now(behind.run.join(behind.stays)).error is E.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        behind.run.commit(OffsetToCommit("t", 0, 1))
    ended = coordinator.complete_transaction(INDEX, 7, 0, 0, True)
    assert now(ended) is E.NOT_LEADER_OR_FOLLOWER
    behind.commit_all()
    assert coordinator.describe(behind.left).state == "Empty"
    assert coordinator.describe(behind.stays).state == "Stable"
    assert now(coordinator.complete_transaction(INDEX, 7, 0, 0, True)) is E.NONE
    assert behind.fetched() == [20, -1, 40, 10]
    behind.pass_ms(11_000)
    assert coordinator.describe(behind.stays).state == "Empty"


def test_a_list_of_offsets_that_is_being_made_does_not_mix_the_two(monkeypatch):
    """The steps of a long list may lie on both sides of the moment in which all is committed."""
    monkeypatch.setattr("twisted_broker.coordinator.group_coordinator.SORTED_PER_STEP", 1)
    behind = Behind()
    behind.load()
    behind.pass_ms(1_000)
    listing = behind.run.coordinator.committed_partitions("g")
    next(listing)
    behind.commit_all()
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        next(listing)


def test_leadership_may_go_at_any_step_before_all_is_committed(monkeypatch):
    """What was not committed is dropped with it; no timer stays; the next load is a whole one."""
    in_small_steps(monkeypatch)
    turns, is_over = 0, False
    while not is_over:
        behind = Behind()
        clock, runtime = behind.run.clock, behind.run.coordinator.runtime
        runtime.load(INDEX, 1)
        for _ in range(turns):
            if any(call.getTime() <= clock.seconds() for call in clock.getDelayedCalls()):
                clock.turn()
            elif INDEX in behind.store.commits and runtime.is_loading:
                clock.advance(1)
            elif INDEX in behind.store.commits:
                behind.commit_all_in_steps()
            else:
                is_over = True
        runtime.unload(INDEX, 2)
        behind.store.commits.pop(INDEX, None)
        behind.pass_ms(2_000)
        assert not runtime.shards and len(clock.getDelayedCalls()) == behind.idle
        runtime.load(INDEX, 3)
        behind.pass_ms(0)
        assert behind.fetched() == [20, -1, UNSTABLE, 10]
        turns += 1
        assert turns < 1_000
    assert turns > 30
