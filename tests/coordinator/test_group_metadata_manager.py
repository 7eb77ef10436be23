"""Groups that come and go with their partition, and a new group's first record."""

import pytest

from tests.coordinator.group_run import GroupRun
from twisted_broker.coordinator.classic_group import ClassicGroupState, group_from_metadata
from twisted_broker.coordinator.effects import TimerKind
from twisted_broker.coordinator.rebalance import GroupSettings
from twisted_broker.wire.errors import ErrorCode as E

S = ClassicGroupState


# records, loading, unloading
def test_a_group_comes_back_from_its_record():
    """What was stored is a stable group with the same members, leader, protocol; sessions run
    from the load on.
    """
    run = GroupRun()
    members = run.stable(2, session_ms=10_000)
    loaded = GroupRun(group=group_from_metadata(run.stored[-1], run.now_ms))
    loaded.manager.group_loaded(loaded.group, loaded.now_ms)
    loaded.run_effects()
    assert (
        loaded.group.state is S.STABLE
        and list(loaded.group.members) == members
        and loaded.group.leader == members[0]
    )
    assert loaded.heartbeat(members[0], generation=1) is E.NONE
    assert loaded.sync(members[1]).sync.assignment == b"part of " + members[1].encode()
    loaded.advance(10_000)
    assert not loaded.group.members


def test_a_group_that_is_too_large_after_the_load_gathers_anew():
    """group.max.size that fell while the group was on disk."""
    run = GroupRun()
    run.stable(3)
    loaded = GroupRun(GroupSettings(0, 2), group_from_metadata(run.stored[-1], run.now_ms))
    loaded.manager.group_loaded(loaded.group, loaded.now_ms)
    loaded.run_effects()
    assert loaded.group.state is S.PREPARING_REBALANCE


@pytest.mark.parametrize("state", [S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE, S.STABLE])
def test_unloading_answers_everything_and_stops_all_timers(state):
    """NOT_COORDINATOR for all that is parked, in each state; afterwards the group is dead."""
    run = GroupRun()
    (leader, _), (follower, _) = run.join_twice(), run.join_twice()
    if state is not S.PREPARING_REBALANCE:
        run.advance(0)
        run.sync(follower)
    if state is S.STABLE:
        run.sync(leader, assignments={})
    assert run.group.state is state
    run.manager.group_unloaded(run.group, E.NOT_COORDINATOR, run.now_ms)
    run.run_effects()
    assert (
        all(t.answer is not None for t in run.tokens)
        and not run.timers
        and run.group.state is S.DEAD
    )
    assert run.join(leader).join.error is E.COORDINATOR_NOT_AVAILABLE
    assert run.heartbeat(leader, 1) is E.COORDINATOR_NOT_AVAILABLE


def test_a_new_groups_record_is_empty():
    """As 4.3.1 writes it: no type, no members, generation 0; and its failure answers the join."""
    run = GroupRun()
    run.hold_writes = True
    token = run.join(known=False)
    run.manager.write_first_record(run.group)
    run.run_effects()
    assert (
        run.stored[0].protocol_type,
        run.stored[0].protocol,
        run.stored[0].generation,
        run.stored[0].members,
    ) == ("", None, 0, ())
    run.finish_write(E.COORDINATOR_NOT_AVAILABLE)
    assert token.join.error is E.COORDINATOR_NOT_AVAILABLE and not run.group.members
    assert (TimerKind.SESSION, "client-1") not in run.timers
