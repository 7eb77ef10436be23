"""Static members that come back under a new id."""

from tests.coordinator.group_run import GroupRun
from twisted_broker.coordinator.classic_group import ClassicGroupState
from twisted_broker.wire.errors import ErrorCode as E

S = ClassicGroupState


# static members
def static_pair(**how: object) -> tuple[GroupRun, str, str]:
    run = GroupRun()
    first, second = run.join(instance="i-1", **how), run.join(instance="i-2", **how)
    run.advance(0)
    run.synced([first.join.member_id, second.join.member_id])
    return run, first.join.member_id, second.join.member_id


def test_a_static_follower_comes_back_without_a_rebalance():
    """KIP-345: same instance, new member id, same generation and assignment; the change is
    stored.
    """
    run, leader, follower = static_pair()
    answer = run.join(instance="i-2").join
    assert (answer.error, answer.generation, answer.leader) == (
        E.NONE,
        1,
        leader,
    ) and answer.member_id != follower
    assert run.group.state is S.STABLE and [m.member_id for m in run.stored[-1].members] == [
        leader,
        answer.member_id,
    ]
    assert (
        run.sync(answer.member_id, instance="i-2").sync.assignment
        == b"part of " + follower.encode()
    )
    assert run.heartbeat(follower, instance="i-2") is E.FENCED_INSTANCE_ID
    assert run.sync(follower, instance="i-2").sync.error is E.FENCED_INSTANCE_ID
    assert run.join(follower, instance="i-2").join.error is E.FENCED_INSTANCE_ID


def test_a_static_leader_comes_back_and_skips_the_assignment():
    """KIP-814: from v9 on it is told its members and to assign nothing."""
    run, leader, _ = static_pair()
    answer = run.join(instance="i-1").join
    assert (
        answer.skip_assignment
        and answer.leader == answer.member_id != leader
        and len(answer.members) == 2
    )


def test_an_old_static_leader_must_not_think_that_it_leads():
    """Below v9 it is told the former leader's id, or it would assign in a stable generation."""
    run, leader, _ = static_pair()
    answer = run.join(instance="i-1", skip=False).join
    assert (
        answer.leader == leader != answer.member_id
        and not answer.members
        and not answer.skip_assignment
    )
    assert run.group.leader == answer.member_id


def test_a_static_member_whose_protocol_changes_the_selection_starts_a_rebalance():
    """A replaced static member may not keep a generation whose protocol would not be chosen now."""
    run = GroupRun()
    token = run.join(instance="i", protocols={"range": b"", "sticky": b""})
    run.advance(0)
    run.synced([token.join.member_id])
    again = run.join(instance="i", protocols={"sticky": b"", "range": b""})
    assert again.join.generation == 2 and again.join.protocol_name == "sticky"


def test_a_static_member_that_comes_back_in_a_rebalance_takes_its_place_in_it():
    """Its parked join is fenced, the new one counts."""
    run, leader, follower = static_pair()
    parked = run.join(leader, instance="i-1")
    taken = run.join(instance="i-1")
    assert parked.join.error is E.FENCED_INSTANCE_ID and taken.answer is None
    run.join(follower, instance="i-2")
    assert taken.join.leader == taken.join.member_id and len(taken.join.members) == 2


def test_a_static_member_that_comes_back_before_the_assignment_starts_anew():
    """In CompletingRebalance a replaced member means another round."""
    run = GroupRun()
    first, second = run.join(instance="i-1"), run.join(instance="i-2")
    run.advance(0)
    parked = run.sync(second.join.member_id, instance="i-2")
    again = run.join(instance="i-2")
    assert (
        parked.sync.error is E.FENCED_INSTANCE_ID
        and again.answer is None
        and run.group.state is S.PREPARING_REBALANCE
    )
    assert run.join(first.join.member_id, instance="i-1").join.generation == 2


def test_a_replacement_that_cannot_be_stored_is_undone():
    """The old member id has its place back, the new one is refused."""
    run, _, follower = static_pair()
    run.hold_writes = True
    token = run.join(instance="i-2")
    assert token.answer is None
    run.finish_write(E.COORDINATOR_NOT_AVAILABLE)
    assert token.join.error is E.COORDINATOR_NOT_AVAILABLE
    assert (
        run.heartbeat(follower, instance="i-2") is E.NONE
        and run.group.static_members["i-2"] == follower
    )


def test_a_static_member_stays_until_its_session_ends():
    """A rebalance without it goes on; its place is kept until the session is over."""
    run, leader, follower = static_pair(session_ms=30_000, rebalance_ms=10_000)
    parked = run.join(leader, instance="i-1", session_ms=30_000, rebalance_ms=10_000)
    run.advance(10_000)
    assert len(parked.join.members) == 2 and follower in run.group.members


def test_a_static_leader_that_does_not_come_in_time_leads_no_longer():
    """KIP-345: it keeps its place, and one that came is given the members to assign."""
    run, leader, follower = static_pair(session_ms=30_000, rebalance_ms=10_000)
    newcomer = run.join_twice(session_ms=30_000, rebalance_ms=10_000)[1]
    parked = run.join(follower, instance="i-2", session_ms=30_000, rebalance_ms=10_000)
    run.advance(10_000)
    assert parked.join.generation == 2 and parked.join.leader == follower
    assert [member for member, *_ in parked.join.members][:2] == [leader, follower]
    assert newcomer.join.leader == follower and not newcomer.join.members


def test_static_members_that_all_stay_away_get_no_new_generation():
    """KIP-345: whoever made the group rebalance went again, and the static members are waited for
    until their sessions end.
    """
    run, leader, follower = static_pair(session_ms=30_000, rebalance_ms=10_000)
    newcomer, parked = run.join_twice(session_ms=30_000, rebalance_ms=10_000)
    run.leave((newcomer, None))
    run.advance(20_000)
    assert parked.join.error is E.UNKNOWN_MEMBER_ID
    assert run.group.state is S.PREPARING_REBALANCE and run.group.generation == 1
    back = run.join(leader, instance="i-1", session_ms=30_000, rebalance_ms=10_000)
    run.join(follower, instance="i-2", session_ms=30_000, rebalance_ms=10_000)
    assert back.join.generation == 2 and len(back.join.members) == 2


def test_a_static_member_that_leaves_by_name_is_gone():
    """An administrator removes by instance id; the place is free at once."""
    run, leader, follower = static_pair()
    assert run.leave(("", "i-2"))[0].error is E.NONE and list(run.group.members) == [leader]
    assert run.leave((follower, "i-2"))[0].error is E.UNKNOWN_MEMBER_ID
