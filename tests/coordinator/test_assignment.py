"""The way of an assignment from the leader's SyncGroup to every member."""

from tests.coordinator.group_run import GroupRun
from twisted_broker.coordinator.classic_group import ClassicGroupState
from twisted_broker.coordinator.effects import TimerKind
from twisted_broker.wire.errors import ErrorCode as E

S = ClassicGroupState


# syncing
def test_followers_wait_for_the_leaders_assignment():
    """A follower's sync is parked and answered together with the leader's."""
    run = GroupRun()
    (leader, _), (follower, _) = run.join_twice(), run.join_twice()
    run.advance(0)
    early = run.sync(follower)
    assert early.answer is None
    mine = run.sync(leader, assignments={leader: b"L", follower: b"F"})
    assert (early.sync.assignment, mine.sync.assignment, run.group.state) == (b"F", b"L", S.STABLE)
    assert (mine.sync.protocol_type, mine.sync.protocol_name) == ("consumer", "range")


def test_who_gets_the_assignment_has_a_whole_session_from_then_on():
    """A follower may have waited for nearly its session; who did not ask yet gains nothing."""
    run = GroupRun()
    (leader, _), (follower, _), (late, _) = (run.join_twice(session_ms=10_000) for _ in range(3))
    run.advance(0)
    run.sync(follower)
    before = run.timers[(TimerKind.SESSION, late)]
    run.advance(4_000)
    run.sync(leader, assignments={leader: b"L", follower: b"F", late: b"late"})
    assert run.timers[(TimerKind.SESSION, follower)] == run.now_ms + 10_000
    assert run.timers[(TimerKind.SESSION, leader)] == run.now_ms + 10_000
    assert run.timers[(TimerKind.SESSION, late)] == before


def test_a_late_follower_is_answered_at_once():
    """In a stable group a sync gets the stored assignment."""
    run = GroupRun()
    (leader, _), (follower, _) = run.join_twice(), run.join_twice()
    run.advance(0)
    run.sync(leader, assignments={follower: b"F"})
    assert run.sync(follower).sync.assignment == b"F"


def test_members_without_an_assignment_get_an_empty_one():
    """Whom the leader left out gets nothing, whom it made up is ignored, in memory and in the
    record.
    """
    run = GroupRun()
    (leader, _), (follower, _) = run.join_twice(), run.join_twice()
    run.advance(0)
    run.sync(leader, assignments={leader: b"L", "nobody": b"N"})
    assert run.sync(follower).sync.assignment == b""
    assert [m.assignment for m in run.stored[-1].members] == [b"L", b""]


def test_a_second_sync_of_a_parked_member_answers_the_first():
    """No sync is forgotten when a newer one takes its place."""
    run = GroupRun()
    (leader, _), (follower, _) = run.join_twice(), run.join_twice()
    run.advance(0)
    first, second = run.sync(follower), run.sync(follower)
    assert first.sync.error is E.UNKNOWN_MEMBER_ID and second.answer is None
    run.sync(leader, assignments={follower: b"F"})
    assert second.sync.assignment == b"F"


def test_nobody_sees_an_assignment_before_it_is_stored():
    """The generation is stable only when its record is replicated."""
    run = GroupRun()
    run.hold_writes = True
    leader, _ = run.join_twice()
    run.advance(0)
    token = run.sync(leader, assignments={leader: b"L"})
    assert token.answer is None and run.group.state is S.COMPLETING_REBALANCE
    run.finish_write()
    assert token.sync.assignment == b"L" and run.group.state is S.STABLE


def test_an_assignment_that_cannot_be_stored_starts_another_round():
    """Everybody who waits is told why, and the group prepares anew."""
    run = GroupRun()
    run.hold_writes = True
    (leader, _), (follower, _) = run.join_twice(), run.join_twice()
    run.advance(0)
    tokens = [run.sync(follower), run.sync(leader, assignments={leader: b"L"})]
    run.finish_write(E.NOT_COORDINATOR)
    assert [t.sync.error for t in tokens] == [
        E.NOT_COORDINATOR
    ] * 2 and run.group.state is S.PREPARING_REBALANCE


def test_a_stored_assignment_of_an_earlier_generation_is_ignored():
    """A record that ends after the next round began does not make that round stable."""
    run = GroupRun()
    run.hold_writes = True
    leader, _ = run.join_twice()
    run.advance(0)
    token = run.sync(leader, assignments={leader: b"old"})
    run.join(leader, protocols={"range": b"new"})
    assert token.sync.error is E.REBALANCE_IN_PROGRESS and run.group.generation == 2
    run.finish_write()
    assert run.group.state is S.COMPLETING_REBALANCE and run.group.members[leader].assignment == b""


def test_sync_is_refused_in_protocol_order():
    """Unknown member, then generation, then protocol, then the rebalance."""
    run = GroupRun()
    leader, _ = run.stable(2)
    assert run.sync("stranger", generation=99).sync.error is E.UNKNOWN_MEMBER_ID
    assert run.sync(leader, generation=99, kind="x").sync.error is E.ILLEGAL_GENERATION
    assert run.sync(leader, kind="x").sync.error is E.INCONSISTENT_GROUP_PROTOCOL
    assert run.sync(leader, name="x").sync.error is E.INCONSISTENT_GROUP_PROTOCOL
    run.join(leader)
    assert run.sync(leader).sync.error is E.REBALANCE_IN_PROGRESS


def test_members_that_do_not_sync_in_time_are_removed():
    """The sync timer takes out who joined and never asked for its assignment, even when the rest
    is stable.
    """
    run = GroupRun()
    (leader, _), (silent, _) = (
        run.join_twice(session_ms=50_000, rebalance_ms=20_000),
        run.join_twice(session_ms=50_000, rebalance_ms=20_000),
    )
    run.advance(0)
    run.sync(leader, assignments={leader: b"L"})
    run.advance(20_000)
    assert list(run.group.members) == [leader] and run.group.state is S.PREPARING_REBALANCE
    assert run.heartbeat(silent) is E.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_sync_is_replaced():
    """The sync timer takes the leader out; who waits for it is told to join again and leads."""
    run = GroupRun()
    (leader, _), (follower, _) = (
        run.join_twice(session_ms=50_000, rebalance_ms=20_000),
        run.join_twice(session_ms=50_000, rebalance_ms=20_000),
    )
    run.advance(0)
    parked = run.sync(follower)
    run.advance(20_000)
    assert (
        parked.sync.error is E.REBALANCE_IN_PROGRESS
        and run.group.leader == follower
        and leader not in run.group.members
    )
