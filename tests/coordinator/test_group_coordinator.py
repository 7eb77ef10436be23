"""The coordinator of a broker: leadership, loading, restarts, limits, administration."""

from dataclasses import replace

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from tests.coordinator.broker_run import BrokerRun, subscription
from tests.coordinator.memory_store import MemoryStore
from tests.coordinator.test_group_records import GOLDEN, SEGMENTS
from twisted_broker import turns
from twisted_broker.coordinator import coordinator_loader, coordinator_runtime
from twisted_broker.coordinator.group_records import (
    GroupRecord,
    OffsetRecord,
    partition_for,
    read_record,
)
from twisted_broker.coordinator.offset_metadata_manager import OffsetToCommit
from twisted_broker.coordinator.rebalance import GroupSettings
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.records import BatchBuilder, iterate_batches


def now(deferred: Deferred):
    """The answer that must be there already."""
    assert deferred.called, "not answered yet"
    answer = deferred.result
    if isinstance(answer, Failure):
        deferred.addErrback(lambda _: None)
        answer.raiseException()
    return answer


def waiting(deferred: Deferred) -> bool:
    return not deferred.called


# finding the shard
def test_only_the_leader_of_the_groups_partition_serves_it():
    """NOT_COORDINATOR from every entry point."""
    run = BrokerRun(lead=False)
    assert now(run.join()).error is E.NOT_COORDINATOR
    assert now(run.sync("m", 1)).error is E.NOT_COORDINATOR
    assert run.coordinator.heartbeat("g", "m", None, 1) is E.NOT_COORDINATOR
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        run.coordinator.leave("g", [("m", None)])
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        run.commit(OffsetToCommit("t", 0, 1))
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        run.coordinator.fetch_offsets("g", [])
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        run.partitions("g")


@pytest.mark.parametrize("group", ["", "x" * 32768])
def test_a_group_needs_an_id_that_fits_a_record(group):
    """INVALID_GROUP_ID for the empty id and for one that no record could hold."""
    run = BrokerRun()
    assert now(run.join(group)).error is E.INVALID_GROUP_ID
    assert now(run.sync("m", 1, group=group)).error is E.INVALID_GROUP_ID
    assert run.coordinator.heartbeat(group, "m", None, 1) is E.INVALID_GROUP_ID


def test_old_clients_may_commit_under_the_empty_group_id():
    """Kafka lets simple consumers keep offsets under the empty id."""
    run = BrokerRun()
    assert now(run.commit(OffsetToCommit("t", 0, 5), group="")) == {("t", 0): E.NONE}
    assert run.fetched("") == {("t", 0): 5}


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_the_session_timeout_has_limits(session_ms):
    """group.min.session.timeout.ms and group.max.session.timeout.ms: INVALID_SESSION_TIMEOUT
    outside.
    """
    assert now(BrokerRun().join(session_ms=session_ms)).error is E.INVALID_SESSION_TIMEOUT


def test_texts_that_no_record_could_hold_are_refused():
    """Flexible versions carry longer strings than `__consumer_offsets` can."""
    run = BrokerRun()
    assert now(run.join(instance="i" * 40_000)).error is E.INVALID_REQUEST
    assert now(run.join(protocols={"p" * 40_000: b""})).error is E.INVALID_REQUEST
    answer = run.join(client="c" * 32_000)
    run.settle()
    assert now(answer).error is E.NONE and len(now(answer).member_id) == 255 + 37


def test_a_join_with_an_id_creates_no_group():
    """Only a member that nobody knows yet can found a group."""
    run = BrokerRun()
    assert now(run.join(member="m")).error is E.UNKNOWN_MEMBER_ID
    assert run.listed() == []


def test_a_refused_join_leaves_no_group():
    """No group, no timer, no record."""
    run = BrokerRun()
    assert now(run.join(protocols={})).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert run.listed() == [] and not run.clock.getDelayedCalls()[1:]


def test_unknown_groups():
    """Sync, heartbeat, leave and describe of a group that does not exist."""
    run = BrokerRun()
    assert now(run.sync("m", 1)).error is E.UNKNOWN_MEMBER_ID
    assert run.coordinator.heartbeat("g", "m", None, 1) is E.UNKNOWN_MEMBER_ID
    assert [a.error for a in now(run.coordinator.leave("g", [("m", None)]))] == [
        E.UNKNOWN_MEMBER_ID
    ]
    assert run.coordinator.describe("g") is None


# records
def test_the_records_of_a_groups_life():
    """As in 4.3.1's log: an empty group, the assignment, the empty generation after the last one
    left, tombstones.
    """
    run = BrokerRun()
    member = run.stable()
    run.coordinator.leave("g", [(member, None)])
    now(run.commit(OffsetToCommit("t", 0, 1)))
    assert now(run.coordinator.delete_group("g")) is E.NONE
    written = [read_record(k, v) for k, v in run.records("g")]
    kinds = [
        (type(r), None if r.value is None else getattr(r.value, "generation", "offset"))
        for r in written
    ]
    assert kinds == [
        (GroupRecord, 0),
        (GroupRecord, 1),
        (GroupRecord, 2),
        (OffsetRecord, "offset"),
        (OffsetRecord, None),
        (GroupRecord, None),
    ]
    assert written[1].value.members[0].assignment == b"all" and written[2].value.members == ()


def test_a_group_survives_a_restart():
    """Members go on with heartbeats in the same generation; offsets are there; sessions start
    anew.
    """
    run = BrokerRun()
    member = run.stable()
    now(run.commit(OffsetToCommit("t", 3, 42, 7, "note"), member=member, generation=1))
    after = run.restarted()
    assert after.coordinator.heartbeat("g", member, None, 1) is E.NONE
    assert now(after.sync(member, 1)).assignment == b"all"
    found = after.coordinator.fetch_offsets("g", [("t", 3, bytes(16))])[0].committed
    assert found is not None and (found.offset, found.leader_epoch, found.metadata) == (
        42,
        7,
        "note",
    )
    after.pass_ms(10_000)
    assert after.coordinator.heartbeat("g", member, None, 1) is E.UNKNOWN_MEMBER_ID


def test_what_was_deleted_stays_deleted_after_a_restart():
    """Tombstones are replayed: single offsets and whole groups."""
    run = BrokerRun()
    now(run.commit(OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 1), group="a"))
    now(run.commit(OffsetToCommit("t", 0, 1), group="b"))
    now(run.coordinator.delete_offsets("a", [("t", 0)]))
    assert now(run.coordinator.delete_group("b")) is E.NONE
    after = run.restarted()
    assert after.fetched("a") == {("t", 1): 1} and [g.group_id for g in after.listed()] == ["a"]


def test_kafkas_own_log_is_served():
    """Segments of 4.3.1 load: an emptied dynamic group with offsets, a static member still in
    its group, a simple and a deleted group.
    """
    store = MemoryStore()
    for name, (_, partition) in SEGMENTS.items():
        store.load_file(partition, (GOLDEN / f"{name}.log").read_bytes())
    run = BrokerRun(store)
    assert sorted((g.group_id, g.protocol_type, g.state) for g in run.listed()) == [
        ("readers", "consumer", "Empty"),
        ("simple", "", "Empty"),
        ("static", "consumer", "Stable"),
    ]
    assert run.fetched("readers") == {("pageviews", 0): 5, ("pageviews", 1): 5} and run.fetched(
        "simple"
    ) == {("pageviews", 0): 3}
    described = run.coordinator.describe("static")
    assert described is not None and described.members[0][1:4] == ("i-1", "st", "/127.0.0.1")
    again = run.join("static", instance="i-1", topics=("pageviews",))
    assert now(again).error is E.NONE and now(again).generation == 2


# loading
def test_while_a_partition_is_read_its_groups_wait(monkeypatch):
    """COORDINATOR_LOAD_IN_PROGRESS until all is read; a heartbeat meanwhile is NONE; the reading
    goes in slices.
    """
    monkeypatch.setattr(coordinator_loader, "SLICE_BYTES", 100)
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    for partition in range(5):
        now(run.commit(OffsetToCommit("t", partition, partition)))
    run.coordinator.stop()
    after = BrokerRun(run.store, run.clock, lead=False)
    index, before = partition_for("g", 50), run.store.reads
    after.coordinator.runtime.load(index, 1)
    for number in range(1, 7):
        assert run.store.reads - before == number - 1
        with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            after.fetched()
        assert now(after.join()).error is E.COORDINATOR_LOAD_IN_PROGRESS
        assert now(after.sync("m", 1)).error is E.COORDINATOR_LOAD_IN_PROGRESS
        assert after.coordinator.heartbeat("g", "m", None, 1) is E.NONE
        assert after.coordinator.runtime.is_loading
        run.clock.turn()
    assert after.fetched() == {("t", p): p for p in range(5)}


def test_an_empty_partition_is_served_at_once():
    """A new broker's first group does not wait for a turn of the reactor."""
    run = BrokerRun(lead=False)
    run.coordinator.runtime.load(partition_for("g", 50), 0)
    assert run.fetched() == {}


def test_a_partition_that_cannot_be_read_is_not_served():
    """NOT_COORDINATOR for its groups; the other partitions are served."""
    run = BrokerRun()
    now(run.commit(OffsetToCommit("t", 0, 1)))
    index = partition_for("g", 50)
    run.store.logs[index][16] = 9  # a magic that nobody knows
    after = run.restarted()
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        after.fetched()
    assert after.fetched("other") == {}


def test_unreadable_records_are_skipped():
    """One bad value must not take a partition's groups away."""
    run = BrokerRun()
    now(run.commit(OffsetToCommit("t", 0, 1)))
    builder = BatchBuilder()
    builder.append(0, b"\0\1\0", b"bad")
    builder.append(0, b"\0\2\0\1g", b"\0\x63")
    run.store.put(partition_for("g", 50), builder.build())
    assert run.restarted().fetched() == {("t", 0): 1}


def test_losing_leadership_answers_what_is_parked_and_stops_all_timers():
    """Nothing of a partition that went elsewhere is left behind."""
    run = BrokerRun(initial_rebalance_delay_ms=3000)
    parked = run.join()
    assert waiting(parked)
    run.coordinator.runtime.unload(partition_for("g", 50), 1)
    assert now(parked).error is E.NOT_COORDINATOR
    run.coordinator.stop()
    assert not run.clock.getDelayedCalls()


def test_an_older_epochs_news_is_ignored():
    """A resignation or a leadership of an epoch that is over changes nothing."""
    run = BrokerRun()
    index = partition_for("g", 50)
    run.coordinator.runtime.load(index, 5)
    run.settle()
    member = run.stable()
    run.coordinator.runtime.unload(index, 4)
    run.coordinator.runtime.load(index, 5)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.NONE


def test_a_load_that_leadership_overtakes_ends(monkeypatch):
    """A partition that is lost while it is read is not read on."""
    monkeypatch.setattr(coordinator_loader, "SLICE_BYTES", 1)
    run = BrokerRun()
    for offset in range(3):
        now(run.commit(OffsetToCommit("t", 0, offset)))
    run.coordinator.stop()
    after, index = BrokerRun(run.store, run.clock, lead=False), partition_for("g", 50)
    after.coordinator.runtime.load(index, 1)
    after.coordinator.runtime.unload(index, 2)
    reads = run.store.reads
    after.settle()
    assert run.store.reads == reads and index not in after.coordinator.runtime.shards


def test_a_write_that_ends_after_leadership_changes_nothing():
    """What an old shard's append answers does not reach the new one."""
    run = BrokerRun()
    run.store.held = []
    answer = run.join()
    run.settle()
    member = now(answer).member_id
    parked = run.sync(member, 1, {member: b"x"})
    run.coordinator.runtime.unload(partition_for("g", 50), 1)
    assert now(parked).error is E.NOT_COORDINATOR
    run.store.release()
    assert partition_for("g", 50) not in run.coordinator.runtime.shards


# storage that refuses
@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_the_error_of_members_when_an_assignment_cannot_be_stored(refusal, told):
    """The log's refusals in the coordinator's words."""
    run = BrokerRun()
    answer = run.join()
    run.settle()
    run.store.refuse = refusal
    assert now(run.sync(now(answer).member_id, 1, {})).error is told


def test_a_group_that_cannot_be_deleted_is_there_as_before():
    """Its offsets are told, and it can be deleted later."""
    run = BrokerRun()
    now(run.commit(OffsetToCommit("t", 0, 1)))
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    assert now(run.coordinator.delete_group("g")) is E.COORDINATOR_NOT_AVAILABLE
    run.store.refuse = None
    assert run.fetched() == {("t", 0): 1} and now(run.coordinator.delete_group("g")) is E.NONE


# administration
def test_describe_shows_metadata_of_stable_groups_only():
    """Protocol and metadata are empty while a round runs; members keep the assignment they had,
    as in Apache Kafka.
    """
    run = BrokerRun()
    member = run.stable()
    stable = run.coordinator.describe("g")
    assert stable is not None and (stable.state, stable.protocol_type, stable.protocol) == (
        "Stable",
        "consumer",
        "range",
    )
    assert stable.members == ((member, None, "client", "/127.0.0.1", subscription("t"), b"all"),)
    run.join()
    moving = run.coordinator.describe("g")
    assert moving is not None and moving.state == "PreparingRebalance" and moving.protocol == ""
    assert [m[4:] for m in moving.members] == [(b"", b"all"), (b"", b"")]
    run.join(member=member)
    moving = run.coordinator.describe("g")
    assert (
        moving is not None
        and moving.state == "CompletingRebalance"
        and moving.members[0][4:] == (b"", b"all")
    )


def test_only_empty_groups_are_deleted():
    """NON_EMPTY_GROUP with members, GROUP_ID_NOT_FOUND for none."""
    run = BrokerRun()
    member = run.stable()
    with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
        run.coordinator.delete_group("g")
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        run.coordinator.delete_group("nobody")
    run.coordinator.leave("g", [(member, None)])
    assert (
        now(run.coordinator.delete_group("g")) is E.NONE and run.coordinator.describe("g") is None
    )


def test_a_group_is_left_alone_while_it_is_being_deleted():
    """Between the tombstone's append and its replication nobody joins or commits; afterwards the
    name is free.
    """
    run = BrokerRun()
    now(run.commit(OffsetToCommit("t", 0, 1)))
    run.store.held = []
    deleted = run.coordinator.delete_group("g")
    assert now(run.join()).error is E.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
        run.commit(OffsetToCommit("t", 0, 2))
    run.store.release()
    assert now(deleted) is E.NONE and run.fetched() == {}


def test_a_group_with_many_offsets_is_deleted_in_batches_of_bounded_size():
    """No batch of tombstones outgrows what the topic takes; the group's own tombstone is the
    last one.
    """
    run = BrokerRun()
    committed = run.commit(*(OffsetToCommit("t", p, p) for p in range(1200)))
    run.settle()
    now(committed)
    deleted = run.coordinator.delete_group("g")
    assert waiting(deleted)
    run.settle()
    assert now(deleted) is E.NONE
    counts = [
        b.records_count for b in iterate_batches(bytes(run.store.logs[partition_for("g", 50)]))
    ]
    assert counts == [1200, 500, 500, 201]
    assert isinstance(read_record(*run.records("g")[-1]), GroupRecord)


def test_memory_is_bounded_by_a_number_of_groups():
    """Beyond the limit a new group takes the place of an idle one; when none is idle it is
    refused.
    """
    run = BrokerRun(max_groups=2)
    assert now(run.join("one", known=True)).error is E.MEMBER_ID_REQUIRED
    run.pass_ms(10_000)
    run.stable("two")
    run.stable("three")
    assert {g.group_id for g in run.listed()} == {"two", "three"}
    assert now(run.join("four")).error is E.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
        run.commit(OffsetToCommit("t", 0, 1), group="five")


def test_repeated_searches_for_an_idle_group_come_by_every_group(monkeypatch):
    """Each looks at few groups; the next one goes on behind them."""
    monkeypatch.setattr(coordinator_runtime, "GROUPS_CHECKED_FOR_EVICTION", 2)
    names = (f"g{number}" for number in range(10_000))
    one_partition = (name for name in names if partition_for(name, 50) == 7)
    run = BrokerRun(max_groups=9)
    for _ in range(8):
        now(run.commit(OffsetToCommit("t", 0, 1), group=next(one_partition)))
    idle = next(one_partition)
    assert now(run.join(idle, known=True)).error is E.MEMBER_ID_REQUIRED
    run.pass_ms(10_000)
    outcomes = [now(run.join(next(one_partition), known=True)).error for _ in range(5)]
    refused = [E.COORDINATOR_NOT_AVAILABLE] * 4
    assert outcomes == [*refused, E.MEMBER_ID_REQUIRED]
    assert idle not in {g.group_id for g in run.listed()}


def test_settings_change_while_running():
    """group.max.size and the interval of expiry are live."""
    run = BrokerRun(offsets_retention_ms=1)
    run.stable()
    now(run.commit(OffsetToCommit("t", 0, 1), group="other"))
    run.coordinator.update_settings(
        replace(
            run.coordinator.context.settings,
            group=GroupSettings(0, 1),
            retention_check_interval_ms=1000,
        )
    )
    assert now(run.join()).error is E.GROUP_MAX_SIZE_REACHED
    run.pass_ms(1000)
    assert run.fetched("other") == {}
