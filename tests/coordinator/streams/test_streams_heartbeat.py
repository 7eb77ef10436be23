"""Kafka's cases of heartbeats of streams groups (GN 6.4, 6.5), each by the line of the contract
that it pins.
"""

from dataclasses import replace

import pytest

from tests.coordinator.streams.streams_run import (
    ONE,
    StreamsRun,
    info,
    subtopology,
    tasks,
    topics,
    topology,
)
from twisted_broker.coordinator.group_decision import GroupTimer
from twisted_broker.coordinator.streams.configure import StatusCode as Code
from twisted_broker.coordinator.streams.describe import describe
from twisted_broker.coordinator.streams.group import StreamsGroupState as State
from twisted_broker.coordinator.streams.member import (
    STABLE,
    UNRELEASED,
    UNREVOKED,
    MemberState,
    StreamsGroupMember,
)
from twisted_broker.coordinator.streams.offsets import check_commit
from twisted_broker.coordinator.streams.reconcile import reconcile
from twisted_broker.coordinator.streams.tasks import AssignedTasks, Tasks
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.group_records import CopartitionGroup
from twisted_broker.wire.schema import run_whole

ALL = tasks(s0=range(4))
STATEFUL = topology(subtopology("0", ["in"], changelogs=["log"]))


def refused(call, *arguments, **fields):
    with pytest.raises(BrokerError) as error:
        call(*arguments, **fields)
    return error.value.code


def codes(answer):
    return [each.code for each in answer.status]


def types(batch):
    return [(int.from_bytes(key[:2], "big"), value is not None) for key, value in batch]


# requests
NO_TASKS: dict[str, frozenset] = dict.fromkeys(("active", "standby", "warmup"), frozenset())
JOIN = {"rebalance_timeout_ms": 1, "topology": ONE, **NO_TASKS}


@pytest.mark.parametrize(
    ("epoch", "fields", "message"),
    [
        (0, {"instance_id": "i"}, "Static membership"),
        (0, {"has_task_offsets": True}, "TaskOffsets"),
        (0, {"has_task_end_offsets": True}, "TaskEndOffsets"),
        (1, {"warmup": ALL}, "WarmupTasks"),
        (0, {"topology": topology(subtopology("0", ["in"], regex=["x"]))}, "Regular expressions"),
        (0, {"rack_id": " "}, "RackId"),
        (0, {"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs"),
        (0, {"active": None}, "ActiveTasks"),
        (0, {"standby": ALL}, "StandbyTasks"),
        (0, {"warmup": None}, "WarmupTasks"),
        (0, {"topology": None}, "Topology"),
        (-2, {"topology": None}, "InstanceId"),
        (-3, {"topology": None}, "MemberEpoch is -3"),
        (1, {"topology": None, "standby": None}, "all must be non-null"),
        (1, {}, "Topology can only"),
    ],
)
def test_what_can_be_said_without_the_group(epoch, fields, message):
    """GN 4.3."""
    run = StreamsRun()
    with pytest.raises(BrokerError) as error:
        run.send("a", epoch, **(JOIN | fields))
    assert error.value.code is E.INVALID_REQUEST and message in error.value.message
    assert not run.batches


@pytest.mark.parametrize(
    "wrong",
    [
        topology(subtopology("0", ["in"], changelogs=[info("c", 1)])),
        topology(subtopology("0", ["in"]), epoch=-1),
        topology(subtopology("0", ["in"]), subtopology("0", ["in"])),
        topology(subtopology("0", ["in"], repartition=[info("r", -1)])),
        topology(subtopology("0", ["in"], copartition=[([1], [])])),
        topology(subtopology("0", ["in"], copartition=[([], [0])])),
    ],
)
def test_a_topology_that_is_none(wrong):
    """GN 4.3; numbers that are of nothing: Kafka answers UNKNOWN_SERVER_ERROR to those."""
    assert refused(StreamsRun().join, "a", wrong) is E.STREAMS_INVALID_TOPOLOGY


# members
def test_a_member_joins_keeps_alive_and_leaves():
    """GN 4.5, 4.14, 4.32."""
    run = StreamsRun()
    joined = run.join("a")
    assert (joined.member_epoch, joined.tasks, joined.status) == (2, Tasks(ALL), ())
    assert types(run.batches[0]) == [(n, True) for n in (19, 23, 17, 21, 20, 22)]
    assert run.send("a", 2).tasks is None and len(run.batches) == 1, "nothing changed"
    again = run.join("a")
    assert (again.member_epoch, again.tasks) == (2, Tasks(ALL)) and len(run.batches) == 1
    left = run.send("a", -1)
    assert (left.member_epoch, left.heartbeat_interval_ms, left.status) == (-1, 0, ())
    assert types(run.batches[1]) == [(22, False), (21, False), (19, False), (17, True)]
    assert (run.group.state, run.group.epoch) == (State.EMPTY, 3)
    assert refused(run.send, "a", -1) is E.UNKNOWN_MEMBER_ID
    assert run.join("a").member_epoch == 4


def test_epochs_of_a_member():
    """GN 4.4, 2.14 with tasks."""
    run = StreamsRun()
    run.join("a")
    run.join("b")
    told = run.send("a", 2, ALL)
    assert (told.member_epoch, told.tasks.active) == (2, tasks(s0=[0, 1]))
    assert run.send("a", 2, tasks(s0=[0, 1])).member_epoch == 3
    assert refused(run.send, "a", 4) is E.FENCED_MEMBER_EPOCH
    assert refused(run.send, "a", 1) is E.FENCED_MEMBER_EPOCH
    assert refused(run.send, "a", 2) is E.FENCED_MEMBER_EPOCH, "it says nothing of its tasks"
    assert refused(run.send, "a", 2, tasks(s0=[0, 2])) is E.FENCED_MEMBER_EPOCH
    assert refused(run.send, "a", 2, (tasks(s0=[0]), ALL, frozenset())) is E.FENCED_MEMBER_EPOCH
    assert run.send("a", 2, tasks(s0=[0])).member_epoch == 3, "an answer was lost"
    assert refused(run.send, "c", 3) is E.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_not_even_its_own():
    """GN 4.4."""
    run = StreamsRun(max_size=1)
    run.join("a")
    assert refused(run.join, "b") is E.GROUP_MAX_SIZE_REACHED
    assert refused(run.join, "a") is E.GROUP_MAX_SIZE_REACHED
    assert run.send("a", 2).member_epoch == 2


@pytest.mark.parametrize(
    "change",
    [
        {"rack_id": "r"},
        {"rebalance_timeout_ms": 7},
        {"process_id": "q"},
        {"endpoint": ("h", 1)},
        {"tags": (("k", "v"),)},
        {"client_id": "other"},
        {"client_host": "/127.0.0.2"},
    ],
)
def test_any_change_of_a_member_bumps_and_stays(change):
    """GN 4.6."""
    run = StreamsRun()
    run.join("a")
    assert run.send("a", 2, **change).member_epoch == 3
    written = len(run.batches)
    kept = {name: value for name, value in change.items() if name.startswith("client")}
    assert run.send("a", 3, **kept).member_epoch == 3 and len(run.batches) == written


def test_a_process_id_that_changes_moves_its_tasks():
    """GN 6.29: who holds what is known by the new one."""
    run = StreamsRun()
    run.join("a", process_id="p")
    run.send("a", 2, process_id="q")
    assert run.group.is_held(("0", 0), "q") and not run.group.is_held(("0", 0), "p")


# the topology
def test_a_topology_is_the_first_ones():
    """GN 4.7."""
    run = StreamsRun()
    run.join("a", topology(subtopology("0", ["in"]), epoch=3))
    other = topology(subtopology("1", ["in"]), epoch=3)
    assert refused(run.join, "b", other) is E.INVALID_REQUEST
    newer = topology(subtopology("0", ["in"]), epoch=4)
    assert refused(run.join, "b", newer) is E.INVALID_REQUEST
    stale = run.join("b", topology(subtopology("x", ["in"]), epoch=2))
    assert codes(stale) == [Code.STALE_TOPOLOGY] and run.group.topology.epoch == 3
    assert codes(run.send("b", stale.member_epoch)) == [Code.STALE_TOPOLOGY]
    reordered = run.join("a", topology(subtopology("0", ["in"]), epoch=3))
    assert reordered.status == ()


def test_sources_come_and_then_internal_topics_and_then_tasks():
    """GN 4.8, 4.9, 4.12, 4.15, 4.16: NotReady until all are there; the empty target is written."""
    run = StreamsRun(topics())
    joined = run.join("a", STATEFUL)
    assert (joined.member_epoch, codes(joined)) == (2, [Code.MISSING_SOURCE_TOPICS])
    assert (run.group.state, run.group.validated_topology_epoch) == (State.NOT_READY, -1)
    assert types(run.batches[0])[3:] == [(21, True), (20, True), (22, True)]
    run.change_topics(topics(**{"in": 2}))
    missing = run.send("a", 2)
    assert (missing.member_epoch, codes(missing)) == (3, [Code.MISSING_INTERNAL_TOPICS])
    assert [each.name for each in missing.to_create] == ["log"]
    assert run.send("a", 3).to_create == missing.to_create, "until it is there"
    run.change_topics(topics(**{"in": 2, "log": 2}))
    ready = run.send("a", 3)
    assert (ready.member_epoch, ready.tasks.active, codes(ready)) == (4, tasks(s0=[0, 1]), [])
    assert run.group.state is State.STABLE


def test_topics_that_grow_or_go():
    """GN 4.8."""
    run = StreamsRun()
    run.join("a")
    run.change_topics(topics(**{"in": 5}))
    assert run.send("a", 2).tasks.active == tasks(s0=range(5))
    run.change_topics(topics())
    gone = run.send("a", 3)
    assert (gone.tasks.active, codes(gone)) == (frozenset(), [Code.MISSING_SOURCE_TOPICS])
    assert run.group.state is State.NOT_READY


def test_a_topic_that_is_not_the_groups_is_no_news():
    run = StreamsRun()
    run.join("a")
    assert not run.group.must_compare_metadata
    run.group.topics_changed({"other"})
    assert not run.group.must_compare_metadata
    run.group.topics_changed({"other", "in"})
    assert run.group.must_compare_metadata
    written = len(run.batches)
    run.send("a", 2)
    assert len(run.batches) == written and not run.group.must_compare_metadata


def test_tasks_that_there_are_not():
    """GN 4.9."""
    run = StreamsRun()
    run.join("a")
    assert refused(run.send, "a", 2, tasks(s0=[4])) is E.INVALID_REQUEST
    assert refused(run.send, "a", 2, tasks(s1=[0])) is E.INVALID_REQUEST
    assert refused(run.send, "a", 2, frozenset({("0", -1)})) is E.INVALID_REQUEST
    assert run.send("a", 2, ALL).member_epoch == 2


# the target
def test_the_first_target_waits_for_the_delay():
    """GN 4.5, 4.11."""
    run = StreamsRun(initial_rebalance_delay_ms=3_000)
    for member_id in ("a", "b"):
        joined = run.join(member_id)
        assert (joined.member_epoch, joined.tasks, codes(joined)) == (
            1,
            Tasks(),
            [Code.ASSIGNMENT_DELAYED],
        )
    assert run.group.state is State.ASSIGNING
    run.end_delay()
    assert types(run.batches[-1]) == [(21, True), (21, True), (20, True)]
    got = run.send("a", 1, frozenset())
    assert (got.member_epoch, len(got.tasks.active), got.status) == (3, 2, ())
    run.send("b", 1, frozenset())
    run.remove("a", "b")
    assert codes(run.join("c")) == [Code.ASSIGNMENT_DELAYED], "an empty group waits again"


def test_a_delay_that_ends_for_nobody():
    run = StreamsRun(initial_rebalance_delay_ms=3_000)
    run.join("a")
    run.remove("a")
    written = len(run.batches)
    run.end_delay()
    assert len(run.batches) == written


def test_targets_are_not_computed_within_the_interval():
    """GN 4.12."""
    run = StreamsRun(assignment_interval_ms=1_000)
    run.join("a")
    second = run.join("b")
    assert (second.member_epoch, codes(second)) == (2, [Code.ASSIGNMENT_DELAYED])
    run.wall_ms += 1_000
    assert (run.send("b", 2).status, run.group.assignment_epoch) == ((), 3)


def test_standbys_that_are_configured_bump():
    """GN 4.10."""
    run = StreamsRun(topics(**{"in": 2, "log": 2}))
    run.join("a", STATEFUL)
    run.join("b", STATEFUL)
    run.settings = replace(run.settings, num_standby_replicas=1)
    run.send("b", 3)
    assert run.group.assignment_configs == {"num.standby.replicas": "1"}
    assert run.group.target("b").standby == tasks(s0=[0])


# reconciliation
def group_with(**members):
    """A group whose members have what is said: active, standby, pending active."""
    run = StreamsRun()
    for member_id, (process_id, active, standby, pending) in members.items():
        member = StreamsGroupMember(
            member_id,
            process_id=process_id,
            epoch=10,
            previous_epoch=9,
            state=UNREVOKED if pending else STABLE,
            assigned=AssignedTasks(dict.fromkeys(active, 8), standby),
            pending=AssignedTasks(dict.fromkeys(pending, 8)),
        )
        run.group.apply(member.metadata_record("app"))
        run.group.apply(member.assignment_record("app"))
    return run.group


T0, T1, T2 = tasks(s0=[0]), tasks(s0=[1]), tasks(s0=[2])
NONE: frozenset = frozenset()


@pytest.mark.parametrize(
    ("has", "target", "owned", "epoch", "state", "assigned", "pending"),
    [
        ((T0, NONE, NONE), Tasks(T0), None, 11, STABLE, Tasks(T0), Tasks()),
        ((T0, NONE, NONE), Tasks(T0 | T1), None, 11, STABLE, Tasks(T0 | T1), Tasks()),
        ((T0, NONE, NONE), Tasks(T1), None, 10, UNREVOKED, Tasks(), Tasks(T0)),
        ((T0, NONE, NONE), Tasks(T1), Tasks(T0), 10, UNREVOKED, Tasks(), Tasks(T0)),
        ((T0, NONE, NONE), Tasks(T1), Tasks(), 11, STABLE, Tasks(T1), Tasks()),
        ((T0, NONE, T1), Tasks(T0), None, 10, UNREVOKED, Tasks(T0), Tasks(T1)),
        ((T0, NONE, T1), Tasks(T0), Tasks(T0 | T1), 10, UNREVOKED, Tasks(T0), Tasks(T1)),
        ((T0, NONE, T1), Tasks(T0), Tasks(T0), 11, STABLE, Tasks(T0), Tasks()),
        ((T0, NONE, T1), Tasks(T2), Tasks(T0), 11, UNREVOKED, Tasks(), Tasks(T0)),
        ((T0, NONE, T1), Tasks(T0 | T1), Tasks(T0), 11, UNRELEASED, Tasks(T0), Tasks()),
        ((T0, T1, NONE), Tasks(T0 | T1), Tasks(T0), 11, UNRELEASED, Tasks(T0), Tasks()),
        ((T0, T1, NONE), Tasks(T0, T1 | T2), None, 11, STABLE, Tasks(T0, T1 | T2), Tasks()),
        ((T0, NONE, NONE), Tasks(T0, T0), None, 11, UNRELEASED, Tasks(T0), Tasks()),
        ((T0, T1, NONE), Tasks(T0), Tasks(NONE, T1), 10, UNREVOKED, Tasks(T0), Tasks(NONE, T1)),
    ],
    ids=[
        "nothing changes but the epoch",
        "one more",
        "must give up and says nothing",
        "must give up",
        "had given up already",
        "says nothing",
        "still has what it gave up",
        "gave up",
        "gave up and must give up again",
        "its own task comes back",
        "its own standby becomes active",
        "one more standby",
        "standby of its own active task",
        "must give up a standby",
    ],
)
def test_steps_of_a_member(has, target, owned, epoch, state, assigned, pending):
    """GN 4.30."""
    group = group_with(a=("p", *has))
    after = reconcile(group, group.members["a"], 11, target, owned)
    assert (after.epoch, after.state) == (epoch, state)
    assert after.assigned.without_epochs() == assigned
    assert after.pending.without_epochs() == pending
    assert after.previous_epoch == (9 if after is group.members["a"] else 10)
    assert all(after.assigned.active[task] == 8 for task in assigned.active & has[0])
    assert all(after.assigned.active[task] == 11 for task in assigned.active - has[0])


@pytest.mark.parametrize(
    ("other", "target", "state"),
    [
        (("q", T1, NONE, NONE), Tasks(T1), UNRELEASED),
        (("q", NONE, NONE, T1), Tasks(T1), UNRELEASED),
        (("q", NONE, T1, NONE), Tasks(T1), STABLE),
        (("p", NONE, T1, NONE), Tasks(T1), UNRELEASED),
        (("q", T1, NONE, NONE), Tasks(NONE, T1), STABLE),
        (("p", T1, NONE, NONE), Tasks(NONE, T1), UNRELEASED),
        (("p", NONE, T1, NONE), Tasks(NONE, T1), UNRELEASED),
        (("q", NONE, T1, NONE), Tasks(NONE, T1), STABLE),
        (("p", NONE, T1, NONE), Tasks(NONE, NONE, T1), UNRELEASED),
        (("q", T1, NONE, NONE), Tasks(NONE, NONE, T1), STABLE),
    ],
    ids=[
        "active elsewhere",
        "pending elsewhere",
        "standby in another process",
        "standby in this process",
        "standby of what is active in another process",
        "standby of what is active in this process",
        "standby twice in a process",
        "standby in two processes",
        "warm-up of a standby in this process",
        "warm-up of what is active in another process",
    ],
)
def test_what_others_have(other, target, state):
    """GN 4.30."""
    group = group_with(a=("p", NONE, NONE, NONE), b=other)
    after = reconcile(group, group.members["a"], 11, target, None)
    assert (after.epoch, after.state) == (11, state)
    assert any(after.assigned) is (state is STABLE)


def test_a_member_that_is_where_it_should_be_or_waits():
    """GN 4.30: an unreleased member tries at every heartbeat; an unknown state must join again."""
    group = group_with(a=("p", T0, NONE, NONE))
    member = group.members["a"]
    assert reconcile(group, member, 10, Tasks(T0 | T1), None) is member
    waiting = replace(member, state=UNRELEASED)
    assert reconcile(group, waiting, 10, Tasks(T0 | T1), None).state is STABLE
    unknown = replace(member, state=MemberState.UNKNOWN)
    for owned in (None, Tasks(T0)):
        assert refused(reconcile, group, unknown, 11, Tasks(T0), owned) is E.FENCED_MEMBER_EPOCH
    assert reconcile(group, unknown, 11, Tasks(T0), Tasks()).epoch == 11


def test_timers_of_a_member():
    """GN 4.13, 2.80, 2.82."""
    run = StreamsRun(session_timeout_ms=45_000)
    run.join("a")
    assert run.timers == {(GroupTimer.SESSION, "a"): (45_000, None)}
    run.join("b")
    run.send("a", 2, ALL)
    assert run.timers[GroupTimer.REBALANCE, "a"] == (10_000, 2)
    run.send("a", 2, tasks(s0=[0, 1]))
    assert (GroupTimer.REBALANCE, "a") not in run.timers
    run.expire(GroupTimer.SESSION, "a")
    assert run.send("b", 3).tasks.active == ALL


# shutdown, endpoints
def test_the_application_is_shut_down():
    """GN 4.31: told to all until the last is gone; not stored."""
    run = StreamsRun()
    run.join("a")
    run.join("b")
    told = run.send("a", 2, shutdown_application=True)
    assert codes(told) == [Code.SHUTDOWN_APPLICATION] and " a " in told.status[0].detail
    assert codes(run.send("b", 3, shutdown_application=True)) == [Code.SHUTDOWN_APPLICATION]
    assert run.group.shutdown_member_id == "a"
    run.send("a", -1)
    assert codes(run.join("c")) == [Code.SHUTDOWN_APPLICATION]
    run.send("b", -1, shutdown_application=True)
    run.send("c", -1)
    assert run.join("d").status == ()


def test_endpoints_are_told_when_they_are_news():
    """GN 4.14."""
    run = StreamsRun(topics(**{"in": 2, "log": 2}), num_standby_replicas=1)
    joined = run.join("a", STATEFUL, endpoint=("h", 1))
    assert (joined.endpoint_epoch, joined.endpoints) == (0, (("h", 1, [("in", [0, 1])], []),))
    assert run.send("a", 2).endpoints is None
    told = run.send("a", 2, endpoint_epoch=-1)
    assert told.endpoints == joined.endpoints
    run.join("b", STATEFUL)
    told = run.send("a", 2, tasks(s0=[0, 1]))
    assert (told.endpoint_epoch, told.endpoints) == (1, (("h", 1, [("in", [0])], []),))
    assert run.send("a", 2, tasks(s0=[0]), endpoint_epoch=1).endpoints is None
    moved = run.send("a", 3, endpoint_epoch=1)
    assert moved.endpoint_epoch == 2, "what was its own active task is its standby now"
    assert moved.endpoints == (("h", 1, [("in", [0])], [("in", [1])]),)
    run.reload()
    assert run.send("a", 3, endpoint_epoch=2).endpoint_epoch == 0, "it is not stored"


def test_a_topic_with_fewer_partitions_than_the_member_has_tasks():
    app = topology(subtopology("0", ["few", "many"]))
    run = StreamsRun(topics(few=1, many=3))
    joined = run.join("a", app, endpoint=("h", 1), endpoint_epoch=-1)
    assert joined.endpoints[0].active == [("few", [0]), ("many", [0, 1, 2])]


def test_endpoints_of_a_group_that_is_not_ready():
    joined = StreamsRun(topics()).join("a", endpoint=("h", 1), endpoint_epoch=-1)
    assert joined.endpoints == (("h", 1, [], []),)


# after a load
def test_a_loaded_group_goes_on_without_a_bump():
    """GN 7.38: what is not stored is made anew."""
    run = StreamsRun()
    run.join("a")
    written = len(run.batches)
    run.reload()
    assert run.group.state is State.STABLE
    assert run.send("a", 2).member_epoch == 2
    assert len(run.batches) == written and run.group.configured.is_ready


# offsets, description
def test_who_may_commit():
    """GN 4.33."""
    run = StreamsRun()
    run.join("a")
    run.join("b")
    run.send("a", 2, ALL)
    run.send("a", 2, tasks(s0=[0, 1]))
    run.send("b", 3, frozenset())

    def outcome(member_id, epoch, *partitions, knows=True):
        try:
            check_commit(run.group, member_id, epoch, partitions, knows)
        except BrokerError as error:
            return error.code
        return E.NONE

    assert outcome("a", 3, ("in", 3)) is E.NONE, "its own epoch"
    assert outcome("a", 2, ("in", 0), ("in", 1)) is E.NONE
    assert outcome("a", 2, ("in", 0), ("in", 2)) is E.STALE_MEMBER_EPOCH
    assert outcome("b", 2, ("in", 2)) is E.STALE_MEMBER_EPOCH, "got later"
    assert outcome("a", 2, ("other", 0)) is E.STALE_MEMBER_EPOCH
    assert outcome("a", 4) is E.STALE_MEMBER_EPOCH
    assert outcome("c", 3) is E.UNKNOWN_MEMBER_ID
    assert outcome("a", 3, knows=False) is E.UNSUPPORTED_VERSION
    assert outcome("", -1) is E.UNKNOWN_MEMBER_ID
    run.remove("a", "b")
    assert outcome("", -1) is E.NONE


def test_a_description():
    """GN 4.52: the counts that were decided, once it is ready."""
    run = StreamsRun(topics(**{"in": 2}))
    app = topology(
        subtopology("0", ["in"], sinks=["r"]),
        subtopology("1", repartition=["r"], changelogs=[info("c", cleanup_policy="compact")]),
        epoch=4,
    )
    run.join("a", app)
    before = run_whole(describe(run.group)).answer
    assert (before.state, before.group_epoch, before.topology_epoch) == ("NotReady", 2, 4)
    assert before.subtopologies[1].repartition_sources[0].partitions == 0
    run.change_topics(topics(**{"in": 2, "r": 2, "c": 2}))
    run.send("a", 2)
    after = run_whole(describe(run.group)).answer
    first, second = after.subtopologies
    assert (first.sources, first.sinks) == (["in"], ["r"])
    assert (second.repartition_sources[0].partitions, second.changelogs[0].partitions) == (2, 2)
    assert second.changelogs[0].configs == (("cleanup.policy", "compact"),)
    assert after.members == [(run.group.members["a"], Tasks(tasks(s0=[0, 1], s1=[0, 1])))]


def test_a_group_is_subscribed_to_its_sources_while_it_has_members():
    """GN 4.33: expiry."""
    run = StreamsRun(topics(**{"in": 2, "log": 2}))
    run.join("a", STATEFUL)
    assert run.group.is_subscribed_to("in") and not run.group.is_subscribed_to("log")
    run.remove("a")
    assert not run.group.is_subscribed_to("in")


def test_copartition_groups_of_a_request_are_kept():
    """The record has them as they were sent."""
    app = topology(subtopology("0", ["in"], copartition=[([0], [])]))
    run = StreamsRun()
    run.join("a", app)
    (kept,) = run.group.topology.value.subtopologies[0].copartition_groups
    assert kept == CopartitionGroup(
        source_topics=[0], source_topic_regex=[], repartition_source_topics=[]
    )
