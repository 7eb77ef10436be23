"""How long a rebalance waits, and for whom."""

from tests.coordinator.group_run import GroupRun
from twisted_broker.coordinator.classic_group import ClassicGroupState
from twisted_broker.coordinator.effects import TimerKind
from twisted_broker.wire.errors import ErrorCode as E

S = ClassicGroupState


# the rebalance
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
