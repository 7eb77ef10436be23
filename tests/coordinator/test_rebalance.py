"""How long a rebalance waits, and for whom."""

from tests.coordinator.group_run import GroupRun
from twisted_broker.coordinator.classic_group import ClassicGroupState
from twisted_broker.coordinator.effects import TimerKind
from twisted_broker.wire.errors import ErrorCode as E

S = ClassicGroupState


# the rebalance
def test_a_rebalance_says_why_it_begins():
    """Kafka's "Preparing to rebalance": the group, its generation, how many, the reason."""
    run = GroupRun()
    leader, follower = run.stable(2, session_ms=10_000)
    (first,) = run.started
    assert (first.group_id, first.generation, first.members) == ("g", 0, 1)
    assert first.reason == f"member {leader} joined"
    run.join(leader)
    assert run.started[-1].reason == f"member {leader} joined again"
    run.join(follower)
    run.synced([leader, follower])
    run.leave((follower, None))
    run.join(leader)
    run.synced([leader])
    assert (run.started[-1].reason, run.started[-1].members) == (f"member {follower} left", 1)
    count = len(run.started)
    run.advance(10_000)
    assert run.started[-1].reason == f"the session of member {leader} expired"
    assert len(run.started) == count + 1


def test_members_that_do_not_sync_are_the_reason():
    """A new rebalance without them."""
    run = GroupRun()
    leader, follower = run.stable(2, session_ms=900_000)
    run.join(leader, session_ms=900_000)
    run.join(follower, session_ms=900_000)
    run.sync(leader, assignments={leader: b"x"})
    run.advance(60_000)
    assert run.started[-1].reason == "without SyncGroup in time: 1"


def test_static_members_and_lost_assignments_are_reasons():
    """What a client or the disk did."""
    run = GroupRun()
    (leader,) = run.stable()
    run.join(leader)
    run.hold_writes = True
    run.sync(leader, assignments={leader: b"x"})
    run.finish_write(E.COORDINATOR_NOT_AVAILABLE)
    assert run.started[-1].reason == (
        "the assignment could not be stored: COORDINATOR_NOT_AVAILABLE"
    )


def test_a_rebalance_ends_when_all_members_joined():
    """The last join completes the round for all, in the next generation."""
    run = GroupRun()
    leader, follower = run.stable(2)
    newcomer = run.join_twice()[1]
    parked = run.join(leader)
    assert newcomer.answer is None
    run.join(follower)
    assert newcomer.join.generation == 2 and len(parked.join.members) == 3


def test_a_rebalance_leaves_out_who_does_not_come_in_time():
    """At the rebalance timeout missing members are gone, and one that joined leads if the leader
    is among them.
    """
    run = GroupRun()
    leader, follower = run.stable(2, session_ms=50_000, rebalance_ms=20_000)
    run.join(follower, protocols={"range": b"new"}, session_ms=50_000, rebalance_ms=20_000)
    parked = run.tokens[-1]
    run.advance(19_999)
    assert parked.answer is None
    run.advance(1)
    assert parked.join.leader == follower and list(run.group.members) == [follower]
    assert (
        run.heartbeat(leader) is E.UNKNOWN_MEMBER_ID
        and (TimerKind.SESSION, leader) not in run.timers
    )


def test_the_longest_rebalance_timeout_counts():
    """A round waits as long as its most patient member."""
    run = GroupRun()
    run.stable(session_ms=50_000, rebalance_ms=10_000)
    newcomer = run.join_twice(rebalance_ms=30_000, session_ms=50_000)[1]
    run.advance(29_999)
    assert newcomer.answer is None
    run.advance(1)
    assert newcomer.join.error is E.NONE


def test_a_member_whose_join_is_parked_does_not_expire():
    """A parked request is a sign of life."""
    run = GroupRun()
    leader, _ = run.stable(2, session_ms=6_000, rebalance_ms=60_000)
    parked = run.join(leader, session_ms=6_000)
    run.advance(5_000)
    assert run.heartbeat(run.group.member_list()[1][0]) is E.REBALANCE_IN_PROGRESS
    run.advance(5_999)
    assert parked.answer is None and leader in run.group.members
    run.advance(1)
    assert parked.join.error is E.NONE and list(run.group.members) == [leader]


def test_a_new_member_waits_five_minutes_at_most():
    """A newcomer is never older than five minutes without an answer: its client may be long
    gone.
    """
    run = GroupRun()
    run.stable(session_ms=1_000_000, rebalance_ms=1_000_000)
    token = run.join_twice(rebalance_ms=1_000_000)[1]
    run.advance(5 * 60 * 1000)
    assert token.join.error is E.UNKNOWN_MEMBER_ID and len(run.group.members) == 1
