"""The share coordinator at work: leadership, loading, commits, pruning (GN 3.80-3.89; Kafka's
ShareCoordinatorServiceTest).
"""

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.coordinator.broker_run import TurnClock
from tests.coordinator.consumer.topics import TA, TB, image, topic
from tests.coordinator.memory_store import MemoryStore
from twisted_broker.coordinator.group_records import batch_of
from twisted_broker.coordinator.share_state.records import decode_record, state_partition_for
from twisted_broker.coordinator.share_state.share_coordinator import (
    ShareCoordinator,
    ShareCoordinatorContext,
    ShareCoordinatorSettings,
)
from twisted_broker.coordinator.share_state.values import (
    ReadState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    WriteState,
)
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode

KEY, OTHER = SharePartitionKey("g", TA, 0), SharePartitionKey("g", TB, 0)
ONE, TWO = topic("ta", TA, [[None]]), topic("tb", TB, [[None]])
PARTITIONS = 1
SETTINGS = ShareCoordinatorSettings(
    updates_per_snapshot=1, prune_interval_ms=10_000, cold_snapshot_interval_ms=1_000_000
)


def result(waiting):
    """What it fired with: a value, an error code, or None while it waits."""
    found: list[Any] = []
    waiting.addBoth(found.append)
    if not found:
        return "waits"
    value = getattr(found[0], "value", found[0])
    return value.code if isinstance(value, BrokerError) else value


class CoordinatorRun:
    def __init__(self, settings=SETTINGS):
        self.clock, self.store = TurnClock(), MemoryStore(PARTITIONS)
        self.image, self.is_stale = image(ONE, TWO), False
        self.settings = settings
        self.coordinator = self.new()
        self.lead()

    def new(self):
        return ShareCoordinator(
            ShareCoordinatorContext(
                self.clock,
                lambda: 1_000_000 + int(self.clock.seconds() * 1000),
                self.store,
                self.settings,
                Turns(self.clock),
                lambda: self.image,
                lambda: self.is_stale,
            )
        )

    def lead(self, epoch=0):
        self.coordinator.load(0, epoch)
        self.turns()

    def turns(self, number=20):
        for _ in range(number):
            self.clock.advance(0)

    def initialize(self, key=KEY, epoch=1, start=-1):
        return result(self.coordinator.initialize(key, epoch, start))

    def write(self, *state, key=KEY):
        return result(self.coordinator.write(key, WriteState(*state)))

    def read(self, epoch=-1, key=KEY):
        return result(self.coordinator.read(key, epoch))

    def summary(self, key=KEY):
        return result(self.coordinator.summary(key))

    @property
    def partitions(self):
        return self.coordinator.shards[0].share.partitions


@pytest.fixture
def run():
    return CoordinatorRun()


def test_what_is_written_is_read_by_the_next_leader(run):
    assert run.initialize(start=5) is None
    assert run.write(1, 0, 6, 2, (StateBatch(7, 8, 2, 1),)) is None
    assert run.write(1, 0, 7, 2, (StateBatch(9, 9, 0, 1),)) is None
    written = run.partitions
    run.coordinator.unload(0, 1)
    assert run.read() is ErrorCode.NOT_COORDINATOR
    run.coordinator = run.new()
    run.lead(2)
    assert run.partitions == written
    expected = ReadState(1, 7, (StateBatch(7, 8, 2, 1), StateBatch(9, 9, 0, 1)))
    assert run.read(0) == expected
    assert run.coordinator.shards[0].share.next_offset == run.store.ends[0]


def test_who_does_not_lead_says_so(run):
    run.coordinator.unload(0, 0)
    for call in (run.initialize, run.read, run.summary, lambda: run.write(1, 0, 0)):
        assert call() is ErrorCode.NOT_COORDINATOR
    assert result(run.coordinator.delete(KEY)) is ErrorCode.NOT_COORDINATOR
    assert not run.coordinator.serves(KEY)
    run.lead(1)
    assert run.coordinator.serves(KEY)
    run.is_stale = True
    assert run.read() is ErrorCode.NOT_COORDINATOR


def test_nothing_is_answered_before_the_partition_is_read_and_committed(run):
    run.initialize(start=3)
    committed: Deferred[bool] = Deferred()
    run.store.commits[0] = committed
    run.coordinator = run.new()
    run.coordinator.load(0, 1)
    assert run.read() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    run.turns()
    assert run.read() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    del run.store.commits[0]
    committed.callback(True)
    run.turns()
    assert run.read() == ReadState(1, 3)


def test_a_partition_lost_while_it_is_not_committed_is_not_served(run):
    committed: Deferred[bool] = Deferred()
    run.store.commits[0] = committed
    run.coordinator = run.new()
    run.lead(1)
    committed.callback(False)
    run.turns()
    assert run.read() is ErrorCode.NOT_COORDINATOR


def test_an_older_leader_epoch_ends_nothing(run):
    run.lead(5)
    shard = run.coordinator.shards[0]
    run.coordinator.load(0, 4)
    run.coordinator.unload(0, 4)
    assert run.coordinator.shards[0] is shard
    run.coordinator.unload(0, 5)
    assert not run.coordinator.shards


def test_a_partition_that_cannot_be_read_is_not_served_until_its_next_epoch(run):
    run.initialize(start=3)

    def fail_to_read(index):
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)

    run.coordinator, run.store.on_read = run.new(), fail_to_read
    run.lead(1)
    assert run.read() is ErrorCode.NOT_COORDINATOR
    run.store.on_read = lambda index: None
    run.lead(2)
    assert run.read() == ReadState(1, 3)


def test_records_that_are_no_records_are_skipped(run):
    run.initialize(start=3)
    run.store.put(0, batch_of([(b"\0\0x", b"\0\0"), (b"\0\x09later", b"?")], 0))
    run.coordinator = run.new()
    run.lead(1)
    assert run.read() == ReadState(1, 3)


# appends
@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_record_that_is_refused_changes_nothing(run, refusal, answer):
    run.initialize(start=3)
    before = dict(run.partitions)
    run.store.refuse = refusal
    assert run.write(1, 0, 4, 0) is answer
    assert run.partitions == before
    run.store.refuse = None
    assert run.write(1, 0, 4, 0) is None


def test_answers_wait_until_the_record_is_committed(run):
    run.initialize(start=3)
    run.store.held = []
    written = run.coordinator.write(KEY, WriteState(1, 0, 4, 0))
    read, other = run.coordinator.read(KEY, -1), run.coordinator.summary(OTHER)
    assert (result(written), result(read)) == ("waits", "waits")
    assert result(other) == StateSummary()
    answers: list[Any] = []
    for waiting in (written, read):
        waiting.addBoth(answers.append)
    run.store.release()
    assert len(answers) == 2


def test_what_is_not_known_to_be_committed_is_not_told(run):
    run.initialize(start=3)
    run.store.held = []
    written = run.coordinator.write(KEY, WriteState(1, 0, 4, 0))
    (decided,) = run.store.time_out()
    assert result(written) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert run.read() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    decided.callback(0)
    assert run.read() == ReadState(1, 4)


def test_answers_that_wait_when_the_leadership_goes(run):
    run.initialize(start=3)
    run.store.held = []
    answers: list[Any] = []
    run.coordinator.write(KEY, WriteState(1, 0, 4, 0)).addBoth(answers.append)
    run.coordinator.unload(0, 1)
    assert answers[0].value.code is ErrorCode.NOT_COORDINATOR
    run.store.release()


# what keeps the log short
def test_the_log_begins_at_the_oldest_snapshot_that_counts(run):
    run.coordinator.start()
    run.initialize(start=3)
    run.clock.advance(10)
    run.turns()
    assert run.store.starts == {}
    for start in range(4, 9):
        run.write(1, 0, start, 0)
    run.clock.advance(10)
    run.turns()
    needed = run.partitions[KEY].snapshot_offset
    assert run.store.starts == {0: needed} and needed > 2
    before = dict(run.partitions)
    run.coordinator.stop()
    assert not run.clock.getDelayedCalls()
    run.coordinator = run.new()
    run.lead(1)
    assert run.partitions == before


def test_nothing_is_pruned_for_a_snapshot_that_may_be_lost(run):
    run.initialize(start=3)
    for start in range(4, 8):
        run.write(1, 0, start, 0)
    committed: Deferred[bool] = Deferred()
    run.store.commits[0] = committed
    run.coordinator.start()
    run.clock.advance(10)
    run.turns()
    assert run.store.starts == {}
    del run.store.commits[0]
    committed.callback(True)
    run.turns()
    assert run.store.starts
    run.coordinator.stop()


def test_old_share_partitions_get_a_snapshot():
    settings = ShareCoordinatorSettings(prune_interval_ms=10_000, cold_snapshot_interval_ms=1_000)
    run = CoordinatorRun(settings)
    run.coordinator.start()
    run.initialize(start=3)
    for _ in range(3):
        run.clock.advance(1)
        run.turns()
    records: Any = [decode_record(*each) for each in run.store.records(0)]
    assert [value.snapshot_epoch for _, value in records] == [0, 1]
    run.coordinator.stop()


def test_share_partitions_of_deleted_topics_go(run):
    run.initialize()
    run.initialize(OTHER)
    run.image = image(TWO)
    run.coordinator.topics_deleted()
    run.turns()
    assert set(run.partitions) == {OTHER}


def test_share_partitions_of_topics_that_went_meanwhile_go_when_they_are_loaded(run):
    run.initialize()
    run.initialize(OTHER)
    run.image = image(ONE)
    run.coordinator = run.new()
    run.lead(1)
    assert set(run.partitions) == {KEY}


def test_what_could_not_be_deleted_is_tried_again(run):
    run.coordinator.start()
    run.initialize()
    run.image = image(TWO)
    run.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    run.coordinator.topics_deleted()
    run.turns()
    assert KEY in run.partitions
    run.store.refuse = None
    run.clock.advance(10)
    run.turns()
    assert not run.partitions
    run.coordinator.stop()


def test_a_group_whose_name_fits_no_record(run):
    assert run.initialize(KEY._replace(group_id="x" * 40_000)) is ErrorCode.INVALID_REQUEST


def test_share_partitions_are_spread():
    assert len({state_partition_for(KEY._replace(group_id=f"g{i}"), 50) for i in range(99)}) > 30
