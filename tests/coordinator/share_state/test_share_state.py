"""The state of share partitions: batches, records, decisions (GN 3.80-3.89; Kafka's
ShareCoordinatorShardTest, PersisterStateBatchCombinerTest).
"""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.coordinator.consumer.topics import TA, TB, image, topic
from tests.coordinator.test_group_records import golden_records
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.coordinator.share_state.batches import combine
from twisted_broker.coordinator.share_state.records import (
    coordinator_key,
    decode_record,
    state_partition_for,
)
from twisted_broker.coordinator.share_state.share_state import ShareState
from twisted_broker.coordinator.share_state.values import (
    ReadState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    WriteState,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
)
from twisted_broker.wire.primitives import uuid_from_text

KEY = SharePartitionKey("g", TA, 0)
OTHER = SharePartitionKey("g", TA, 1)
IMAGE = image(topic("ta", TA, [[None]] * 2), topic("tb", TB, [[None]]))
AVAILABLE, DONE, ARCHIVED = 0, 2, 4


def batches(*each):
    return tuple(StateBatch(*fields) for fields in each)


class ShareRun:
    """A state with its log; everything that is decided is written and applied."""

    def __init__(self, updates_per_snapshot=500):
        self.state, self.log, self.wall_ms = ShareState(), [], 1_000
        self.updates_per_snapshot = updates_per_snapshot

    def put(self, record):
        if record is not None:
            self.log.append(encode_record(record))
            self.state.apply(record, len(self.log) - 1)
        return record

    def initialize(self, state_epoch=1, start_offset=-1, key=KEY):
        return self.put(self.state.initialize(key, state_epoch, start_offset, IMAGE, self.wall_ms))

    def read(self, leader_epoch=-1, key=KEY):
        record, found = self.state.read(
            key, leader_epoch, IMAGE, self.wall_ms, self.updates_per_snapshot
        )
        return self.put(record), found

    def write(self, *state, key=KEY):
        return self.put(
            self.state.write(
                key, WriteState(*state), IMAGE, self.wall_ms, self.updates_per_snapshot
            )
        )

    def delete(self, key=KEY):
        return self.put(self.state.delete(key, IMAGE))

    def summary(self, key=KEY):
        return self.state.summary(key, IMAGE)

    def replayed(self, begin=0):
        state = ShareState()
        for offset, record in enumerate(self.log):
            if offset >= begin:
                state.apply(decode_record(*record), offset)
        return state


def refused(call):
    with pytest.raises(BrokerError) as caught:
        call()
    return caught.value.code


# batches
@pytest.mark.parametrize(
    ("so_far", "new", "start", "combined"),
    [
        ([], [], -1, []),
        ([], [(10, 19, 0, 1), (12, 13, 2, 1)], -1,
         [(10, 11, 0, 1), (12, 13, 2, 1), (14, 19, 0, 1)]),
        ([(0, 9, 0, 1)], [(10, 12, 0, 1)], -1, [(0, 12, 0, 1)]),
        ([(0, 9, 0, 1)], [(10, 12, 0, 2)], -1, [(0, 9, 0, 1), (10, 12, 0, 2)]),
        ([(0, 9, 2, 1)], [(0, 9, 0, 1)], -1, [(0, 9, 2, 1)]),
        ([(0, 9, 2, 1)], [(5, 14, 0, 2)], -1, [(0, 4, 2, 1), (5, 14, 0, 2)]),
        ([(0, 9, 0, 2)], [(3, 14, 2, 1)], -1, [(0, 9, 0, 2), (10, 14, 2, 1)]),
        ([(0, 9, 0, 1), (20, 29, 0, 1)], [(5, 24, 4, 1)], -1,
         [(0, 4, 0, 1), (5, 24, 4, 1), (25, 29, 0, 1)]),
        ([(0, 9, 0, 1), (12, 12, 2, 1)], [], 5, [(5, 9, 0, 1), (12, 12, 2, 1)]),
        ([(0, 9, 0, 1)], [(20, 21, 0, 1)], 10, [(20, 21, 0, 1)]),
        ([(0, 9, 0, 1)], [(3, 8, 2, 1)], 30, []),
        ([], [(9, 3, 0, 1)], -1, []),
    ],
)  # fmt: skip
def test_batches_are_combined(so_far, new, start, combined):
    """GN 3.83: the higher (count, state) wins an overlap; neighbours that are alike are one."""
    assert combine(batches(*so_far), batches(*new), start) == batches(*combined)


BATCH = st.builds(
    lambda first, length, state, count: StateBatch(first, first + length, state, count),
    st.integers(0, 12),
    st.integers(0, 6),
    st.sampled_from([AVAILABLE, DONE, ARCHIVED]),
    st.integers(1, 3),
)


def by_offset(found):
    return {
        offset: (each.delivery_count, each.delivery_state)
        for each in found
        for offset in range(each.first_offset, each.last_offset + 1)
    }


@settings(max_examples=80)
@given(st.lists(st.lists(BATCH, max_size=4), max_size=4), st.integers(-1, 15))
def test_each_offset_keeps_the_greatest_it_was_given(writes, start):
    greatest: dict[int, tuple[int, int]] = {}
    found: tuple[StateBatch, ...] = ()
    for new in writes:
        found = combine(found, new, -1)
        for each in new:
            for offset, state in by_offset([each]).items():
                greatest[offset] = max(greatest.get(offset, (0, 0)), state)
    found = combine(found, (), start)
    assert by_offset(found) == {at: each for at, each in greatest.items() if at >= start}
    for before, after in pairwise(found):
        assert before.last_offset < after.first_offset
        assert before[2:] != after[2:] or before.last_offset + 1 < after.first_offset


# records
@pytest.mark.parametrize(("index", "count"), [(0, 8), (29, 8), (3, 8), (31, 1)])
def test_kafkas_records_come_back_as_the_same_bytes(index, count):
    """GN 3.81, and the partition they are in (3.80)."""
    records = list(golden_records(f"share-state-{index}"))
    assert len(records) == count
    for record in records:
        ours = decode_record(record.key, record.value)
        assert ours is not None
        name: Any = ours[0]
        assert encode_record(ours) == (record.key, record.value)
        key = SharePartitionKey(name.group_id, bytes(name.topic_id), name.partition)
        assert state_partition_for(key, 50) == index


def test_a_golden_log_is_what_the_same_requests_write():
    """GN 3.82-3.87: the records that 4.3.1 wrote for these requests, to the byte."""
    records = list(golden_records("share-state-3"))
    topic_id = uuid_from_text("YjS8fyVbTBemDzN3yl8jSA")
    known = image(topic("t", topic_id, [[None]]))
    key, state = SharePartitionKey("z1state", topic_id, 0), ShareState()
    written: list[Any] = []
    snapshots: Any = [decode_record(records[each].key, records[each].value) for each in (0, 6)]
    times = [value.create_timestamp for _, value in snapshots]

    def put(record):
        state.apply(record, len(written))
        written.append(encode_record(record))

    put(state.initialize(key, 5, -1, known, times[0]))
    put(state.read(key, 3, known, 0, 500)[0])
    sent = WriteState(5, 3, 10, 2, batches((10, 19, AVAILABLE, 1), (12, 13, DONE, 1)))
    for _ in range(3):
        put(state.write(key, sent, known, 0, 500))
    put(state.read(key, 4, known, 0, 500)[0])
    put(state.initialize(key, 7, 7, known, times[1]))
    put(state.delete(key, known))
    assert written == [(each.key, each.value) for each in records]


def test_a_share_partition_is_named_as_find_coordinator_names_it():
    assert coordinator_key(SharePartitionKey("a:b", TA, 3)) == "a:b:XigU19zKRKWcoH-RhPvrAQ:3"


# requests
def test_initializing_begins_anew():
    """GN 3.84."""
    run = ShareRun()
    run.initialize(state_epoch=2)
    assert run.summary() == StateSummary(2, 0, -1, -1)
    run.write(2, 0, 5, 0, batches((5, 9, AVAILABLE, 1)))
    key, value = run.initialize(state_epoch=2, start_offset=7)
    assert (value.snapshot_epoch, value.delivery_complete_count) == (1, 0)
    assert run.read()[1] == ReadState(2, 7)
    assert refused(lambda: run.initialize(state_epoch=1)) is ErrorCode.FENCED_STATE_EPOCH
    run.initialize(state_epoch=-1)
    assert isinstance(key, ShareSnapshotKey)


def test_initializing_twice_forgets_nothing():
    """The first try arrives behind one that was made later and answered (seed 447959)."""
    run = ShareRun()
    run.initialize(state_epoch=2)
    accepted = batches((0, 2, DONE, 1))
    run.write(2, 0, 0, 3, accepted)
    assert run.initialize(state_epoch=2) is None
    assert run.read()[1] == ReadState(2, 0, accepted)


@pytest.mark.parametrize(
    "key", [SharePartitionKey("g", TA, 9), SharePartitionKey("g", b"?" * 16, 0)]
)
def test_what_is_not_in_the_metadata(key):
    run = ShareRun()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(lambda: run.initialize(key=key)) is unknown
    assert refused(lambda: run.delete(key)) is unknown
    assert refused(lambda: run.summary(key)) is unknown
    # Whether it is initialised comes first.
    assert refused(lambda: run.read(key=key)) is ErrorCode.INVALID_REQUEST
    assert refused(lambda: run.write(1, 0, 0, key=key)) is ErrorCode.INVALID_REQUEST


def test_a_topic_that_went_is_unknown_after_the_epochs():
    run = ShareRun()
    run.initialize(2)
    run.read(3)

    def write(state_epoch, leader_epoch):
        state = WriteState(state_epoch, leader_epoch, 0)
        return lambda: run.state.write(KEY, state, image(), 0, 500)

    assert refused(write(1, 2)) is ErrorCode.FENCED_LEADER_EPOCH
    assert refused(write(1, 3)) is ErrorCode.FENCED_STATE_EPOCH
    assert refused(write(2, 3)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(lambda: run.state.read(KEY, 2, image(), 0, 500)) is ErrorCode.FENCED_LEADER_EPOCH
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(lambda: run.state.read(KEY, 3, image(), 0, 500)) is unknown


def test_negative_partitions_are_invalid():
    run, key = ShareRun(), SharePartitionKey("g", TA, -1)
    for call in (
        lambda: run.initialize(key=key),
        lambda: run.read(key=key),
        lambda: run.write(1, 0, 0, key=key),
        lambda: run.delete(key),
        lambda: run.summary(key),
    ):
        assert refused(call) is ErrorCode.INVALID_REQUEST


def test_writes_are_fenced():
    """GN 3.85: an epoch of -1 is not compared, a higher one passes and is not stored."""
    run = ShareRun()
    run.initialize(5)
    run.read(3)
    assert refused(lambda: run.write(5, 2, 0)) is ErrorCode.FENCED_LEADER_EPOCH
    assert refused(lambda: run.write(4, 3, 0)) is ErrorCode.FENCED_STATE_EPOCH
    for epochs in ((5, 3), (-1, -1), (9, 8)):
        run.write(*epochs, 1, 0)
    assert run.summary() == StateSummary(5, 3, 1, 0)


def test_a_read_with_a_higher_leader_epoch_fences_the_leader_before():
    """GN 3.86."""
    run = ShareRun()
    run.initialize()
    (key, value), found = run.read(4)
    assert isinstance(key, ShareUpdateKey) and value.leader_epoch == 4
    assert found == ReadState(1, -1)
    assert run.read(4)[0] is None and run.read(-1)[0] is None
    assert refused(lambda: run.read(3)) is ErrorCode.FENCED_LEADER_EPOCH
    # Initialising begins at leader epoch 0, but does not let the older leader in again.
    run.initialize(2)
    assert run.summary().leader_epoch == 0
    assert refused(lambda: run.write(2, 3, 0)) is ErrorCode.FENCED_LEADER_EPOCH


def test_a_read_as_a_snapshot_keeps_the_state():
    run = ShareRun(updates_per_snapshot=0)
    run.initialize(1, 5)
    run.write(1, 0, 6, 1, batches((6, 8, DONE, 1)))
    (key, value), found = run.read(2)
    assert isinstance(key, ShareSnapshotKey)
    assert (value.snapshot_epoch, value.leader_epoch, value.delivery_complete_count) == (2, 2, 1)
    assert found.batches == run.read()[1].batches == batches((6, 8, DONE, 1))


def test_a_snapshot_follows_so_many_updates():
    """GN 3.85."""
    run = ShareRun(updates_per_snapshot=2)
    run.initialize()
    kinds = []
    for number in range(7):
        key, value = run.write(-1, -1, -1, number, batches((number, number, DONE, 1)))
        kinds.append((key.record_type, value.snapshot_epoch))
    assert kinds == [(1, 0), (1, 0), (0, 1), (1, 1), (1, 1), (0, 2), (1, 2)]
    assert run.read()[1].batches == batches((0, 6, DONE, 1))


def test_a_write_without_a_start_keeps_it():
    run = ShareRun()
    run.initialize(1, 10)
    run.write(1, 0, -1, 2, batches((10, 12, AVAILABLE, 1)))
    assert run.read()[1] == ReadState(1, 10, batches((10, 12, AVAILABLE, 1)))
    run.write(1, 0, 11, 0)
    assert run.read()[1] == ReadState(1, 11, batches((11, 12, AVAILABLE, 1)))


def test_deleting():
    """GN 3.87."""
    run = ShareRun()
    assert run.delete() is None
    run.initialize(7)
    run.read(3)
    assert run.delete()[1] is None
    assert run.summary() == StateSummary(0, 0, -1, -1)
    assert refused(run.read) is ErrorCode.INVALID_REQUEST
    # It fences nobody any more.
    run.initialize(1)
    assert run.read(1)[1] == ReadState(1, -1)


# what keeps the log short
def test_what_the_oldest_snapshot_holds_is_needed():
    """GN 3.89; Kafka's ShareCoordinatorOffsetsManagerTest."""
    run = ShareRun(updates_per_snapshot=1)
    assert run.state.first_needed_offset() == 0
    run.initialize()
    run.initialize(key=OTHER)
    assert run.state.first_needed_offset() == 0
    run.write(1, 0, 0)
    run.write(1, 0, 1)
    assert run.state.first_needed_offset() == 1
    run.initialize(2, key=OTHER)
    assert run.state.first_needed_offset() == 3
    run.delete()
    assert run.state.first_needed_offset() == 4
    run.delete(OTHER)
    assert run.state.first_needed_offset() == len(run.log) == 7


def test_share_partitions_that_nobody_writes_get_one_snapshot():
    """GN 3.89: once, not again and again."""
    run = ShareRun()
    run.initialize(1, 5)
    run.wall_ms += 100
    run.initialize(1, 6, key=OTHER)

    def snapshots():
        return [run.put(each) for each in run.state.cold_snapshots(run.wall_ms, 100)]

    ((key, value),) = snapshots()
    assert (key.partition, value.start_offset, value.snapshot_epoch) == (0, 5, 1)
    assert (value.create_timestamp, value.write_timestamp) == (1_000, 1_100)
    assert run.state.first_needed_offset() == 1
    assert snapshots() == []
    run.wall_ms += 100
    assert [key.partition for key, _ in snapshots()] == [0, 1]
    run.wall_ms += 1_000
    assert snapshots() == []


def test_an_update_whose_snapshot_is_gone_changes_nothing():
    run = ShareRun()
    run.initialize()
    run.write(1, 0, 3)
    run.delete()
    run.initialize(2, 8)
    replayed = run.replayed(begin=1)
    assert replayed.partitions == run.state.partitions


class ShareStateMachine(RuleBasedStateMachine):
    """Whatever is asked: the log says what the state is, also from where it may begin."""

    def __init__(self):
        super().__init__()
        self.run = ShareRun(updates_per_snapshot=2)
        self.begin = 0

    def ask(self, call):
        before = dict(self.run.state.partitions)
        count = len(self.run.log)
        try:
            call()
        except BrokerError:
            assert self.run.state.partitions == before and len(self.run.log) == count

    keys = st.sampled_from(
        [KEY, OTHER, SharePartitionKey("h", TB, 0), SharePartitionKey("h", TB, 5)]
    )
    epochs = st.integers(-1, 3)

    @rule(key=keys, epoch=epochs, start=st.integers(-1, 5))
    def initialize(self, key, epoch, start):
        self.ask(lambda: self.run.initialize(epoch, start, key))

    @rule(key=keys, epoch=epochs)
    def read(self, key, epoch):
        self.ask(lambda: self.run.read(epoch, key))

    @rule(
        key=keys,
        state_epoch=epochs,
        leader_epoch=epochs,
        start=st.integers(-1, 9),
        new=st.lists(BATCH, max_size=3),
    )
    def write(self, key, state_epoch, leader_epoch, start, new):
        def write():
            before = self.run.state.partitions.get(key)
            self.run.write(state_epoch, leader_epoch, start, len(new), tuple(new), key=key)
            assert leader_epoch in (-1, *range(before.fence, 9))
            assert state_epoch in (-1, *range(before.state_epoch, 9))

        self.ask(write)

    @rule(key=keys)
    def delete(self, key):
        self.ask(lambda: self.run.delete(key))

    @rule(ms=st.integers(0, 150))
    def time_passes(self, ms):
        self.run.wall_ms += ms
        for record in self.run.state.cold_snapshots(self.run.wall_ms, 100):
            self.run.put(record)

    @rule()
    def prune(self):
        self.begin = self.run.state.first_needed_offset()

    @invariant()
    def a_replay_gives_the_same(self):
        assert self.run.replayed().partitions == self.run.state.partitions
        pruned = self.run.replayed(self.begin).partitions
        # What fences leaders may lie before the beginning; initialising leaves it there.
        assert {key: each._replace(fence=0) for key, each in pruned.items()} == {
            key: each._replace(fence=0) for key, each in self.run.state.partitions.items()
        }


ShareStateMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestShareStateMachine = ShareStateMachine.TestCase


def test_a_snapshot_says_all():
    run = ShareRun()
    run.initialize(3, 4)
    run.write(3, 0, 5, 2, batches((6, 7, DONE, 1)))
    state = run.state.partitions[KEY]
    key, value = state.snapshot(KEY)
    assert isinstance(value, ShareSnapshotValue)
    again = ShareState()
    again.apply((key, value), 9)
    assert again.partitions[KEY] == state._replace(snapshot_epoch=1, snapshot_offset=9, updates=0)
