"""Who is a member of a classic group, after the behaviours that Apache Kafka's
GroupCoordinatorTest and GroupMetadataTest name: join, heartbeat, leave, the end of a session.
"""

import pytest

from tests.coordinator.group_run import GroupRun
from twisted_broker.coordinator.classic_group import ClassicGroupState
from twisted_broker.coordinator.rebalance import GroupSettings
from twisted_broker.wire.errors import ErrorCode as E

S = ClassicGroupState


# joining
def test_a_new_dynamic_member_gets_its_id_first():
    """KIP-394: from v4 on a join without an id gets MEMBER_ID_REQUIRED and an id, and makes no
    member.
    """
    run = GroupRun()
    answer = run.join().join
    assert (answer.error, answer.generation) == (E.MEMBER_ID_REQUIRED, -1)
    assert (
        answer.member_id.startswith("client-")
        and not run.group.members
        and answer.member_id in run.group.pending_joins
    )


def test_an_old_client_joins_at_once():
    """Below v4 a join without an id makes a member."""
    run = GroupRun()
    token = run.join(known=False)
    run.advance(0)
    assert token.join.error is E.NONE and token.join.member_id in run.group.members


def test_the_first_member_leads_and_gets_all_members():
    """The leader's answer lists the members with their metadata; a follower's lists nobody."""
    run = GroupRun()
    (first, one), (second, two) = run.join_twice(), run.join_twice()
    run.advance(0)
    assert (
        one.join.leader == two.join.leader == first
        and one.join.generation == two.join.generation == 1
    )
    assert (
        one.join.members == ((first, None, b"range-metadata"), (second, None, b"range-metadata"))
        and two.join.members == ()
    )
    assert (one.join.protocol_type, one.join.protocol_name) == ("consumer", "range")


def test_a_pending_member_that_never_returns_expires():
    """A member id that was given out and not used lives for one session."""
    run = GroupRun()
    run.join(session_ms=10_000)
    run.advance(9_999)
    assert run.group.pending_joins
    run.advance(1)
    assert not run.group.pending_joins and not run.timers


def test_a_rebalance_waits_for_pending_members():
    """A member that was told its id and has not come back yet is waited for, until its session
    is over.
    """
    run = GroupRun()
    member = run.stable()[0]
    run.join(session_ms=10_000)
    again = run.join(member)
    assert again.answer is None and run.group.state is S.PREPARING_REBALANCE
    run.advance(10_000)
    assert again.join.error is E.NONE and again.join.generation == 2


def test_an_unknown_member_id_is_refused():
    """UNKNOWN_MEMBER_ID, and the answer repeats the id that was asked for."""
    run = GroupRun()
    run.stable()
    answer = run.join("stranger").join
    assert (answer.error, answer.member_id) == (E.UNKNOWN_MEMBER_ID, "stranger")


@pytest.mark.parametrize(
    ("kind", "protocols"),
    [("connect", {"range": b""}), ("consumer", {"other": b""}), ("consumer", {})],
)
def test_a_member_that_shares_no_protocol_is_refused(kind, protocols):
    """Another protocol type, no common protocol, no protocol at all:
    INCONSISTENT_GROUP_PROTOCOL, the group unmoved.
    """
    run = GroupRun()
    run.stable()
    assert run.join(kind=kind, protocols=protocols).join.error is E.INCONSISTENT_GROUP_PROTOCOL
    assert run.group.state is S.STABLE


@pytest.mark.parametrize(("kind", "protocols"), [("", {"range": b""}), ("consumer", {})])
def test_an_empty_group_wants_a_type_and_a_protocol(kind, protocols):
    """The first member must name a protocol type and at least one protocol."""
    assert (
        GroupRun().join(kind=kind, protocols=protocols).join.error is E.INCONSISTENT_GROUP_PROTOCOL
    )


def test_the_protocol_with_most_votes_wins():
    """Each member votes for the first of its protocols that all members know."""
    run = GroupRun()
    tokens = [
        run.join_twice(protocols=p)[1]
        for p in (
            {"range": b"a", "sticky": b"b"},
            {"own": b"", "sticky": b"d", "range": b"c"},
            {"sticky": b"f", "range": b"e"},
        )
    ]
    run.advance(0)
    assert {t.join.protocol_name for t in tokens} == {"sticky"}
    assert [metadata for _, _, metadata in tokens[0].join.members] == [b"b", b"d", b"f"]


def test_new_members_prolong_the_initial_delay():
    """group.initial.rebalance.delay.ms starts again for newcomers, up to the rebalance timeout."""
    run = GroupRun(GroupSettings(initial_rebalance_delay_ms=3000))
    first = run.join_twice(rebalance_ms=7000)[1]
    run.advance(2000)
    second = run.join_twice(rebalance_ms=7000)[1]
    run.advance(3999)
    assert first.answer is None and second.answer is None
    run.advance(1)
    assert len(first.join.members) == 2


def test_a_lone_member_waits_the_initial_delay_once():
    """KIP-134: only those that come while it runs prolong it, not the one that began it."""
    run = GroupRun(GroupSettings(initial_rebalance_delay_ms=3000))
    alone = run.join_twice(rebalance_ms=60_000)[1]
    run.advance(2999)
    assert alone.answer is None
    run.advance(1)
    assert len(alone.join.members) == 1


def test_the_initial_delay_ends_at_the_rebalance_timeout():
    """Members that keep coming cannot put off the first generation for ever."""
    run = GroupRun(GroupSettings(initial_rebalance_delay_ms=3000))
    first = run.join_twice(rebalance_ms=7000)[1]
    for _ in range(3):
        run.advance(2000)
        run.join_twice(rebalance_ms=7000)
    run.advance(999)
    assert first.answer is None
    run.advance(1)
    assert len(first.join.members) == 4


def test_a_stable_follower_that_asks_again_gets_the_same_generation():
    """A repeated join of a follower with the same protocols disturbs nobody."""
    run = GroupRun()
    _, follower = run.stable(2)
    answer = run.join(follower).join
    assert (answer.error, answer.generation, answer.members) == (
        E.NONE,
        1,
        (),
    ) and run.group.state is S.STABLE


def test_a_stable_leader_that_joins_again_starts_a_rebalance():
    """The leader joins again when it wants to assign anew (its topics grew)."""
    run = GroupRun()
    leader, follower = run.stable(2)
    assert run.join(leader).answer is None and run.group.state is S.PREPARING_REBALANCE
    assert run.heartbeat(follower) is E.REBALANCE_IN_PROGRESS


def test_changed_metadata_starts_a_rebalance():
    """A follower whose subscription changed makes everybody join again."""
    run = GroupRun()
    _, follower = run.stable(2)
    assert (
        run.join(follower, protocols={"range": b"other topics"}).answer is None
        and run.group.state is S.PREPARING_REBALANCE
    )


def test_a_lost_join_answer_can_be_asked_for_again():
    """While CompletingRebalance a repeated join gets the running generation, the leader with its
    members.
    """
    run = GroupRun()
    (leader, _), (follower, _) = run.join_twice(), run.join_twice()
    run.advance(0)
    assert len(run.join(leader).join.members) == 2 and run.join(follower).join.members == ()
    assert run.group.state is S.COMPLETING_REBALANCE and run.group.generation == 1


def test_a_second_join_of_a_parked_member_answers_the_first():
    """No request is forgotten: the join that a newer one replaces is answered."""
    run = GroupRun()
    member, other = run.stable(2)
    first = run.join(member)
    second = run.join(member)
    assert first.join.error is E.UNKNOWN_MEMBER_ID and second.answer is None
    run.join(other)
    assert second.join.error is E.NONE


def test_group_max_size_turns_newcomers_away():
    """GROUP_MAX_SIZE_REACHED for a newcomer in every state; members stay."""
    run = GroupRun(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    members = run.stable(2)
    assert run.join(known=False).join.error is E.GROUP_MAX_SIZE_REACHED
    assert run.join(members[1]).join.error is E.NONE
    parked = [run.join(m) for m in members[:1]]
    assert run.group.state is S.PREPARING_REBALANCE
    parked.append(run.join(members[1]))
    assert [t.join.error for t in parked] == [E.NONE, E.NONE]


def test_the_last_one_to_come_back_to_a_group_that_shrank_is_turned_away():
    """When the limit fell below a group's size, who joins first stays."""
    run = GroupRun()
    leader, second, third = run.stable(3)
    run.with_settings(max_size=2)
    first = run.join(leader)
    assert run.join(second).answer is None
    assert run.join(third).join.error is E.GROUP_MAX_SIZE_REACHED
    assert first.join.generation == 2 and len(first.join.members) == 2


# heartbeats and sessions
def test_heartbeats_keep_a_member():
    """Each heartbeat starts the session anew; without one it ends."""
    run = GroupRun()
    member = run.stable(session_ms=10_000)[0]
    for _ in range(5):
        run.advance(9_000)
        assert run.heartbeat(member) is E.NONE
    run.advance(10_000)
    assert run.heartbeat(member) is E.UNKNOWN_MEMBER_ID


def test_heartbeats_are_checked():
    """Unknown member, another generation, unknown instance: each its error."""
    run = GroupRun()
    member = run.stable()[0]
    assert run.heartbeat("stranger") is E.UNKNOWN_MEMBER_ID
    assert run.heartbeat(member, generation=7) is E.ILLEGAL_GENERATION
    assert run.heartbeat(member, instance="unknown") is E.UNKNOWN_MEMBER_ID


def test_a_member_that_dies_takes_its_share_into_a_rebalance():
    """A session's end makes the others join again, under a new leader."""
    run = GroupRun()
    _leader, follower = run.stable(2, session_ms=10_000)
    run.advance(9_000)
    run.heartbeat(follower)
    run.advance(1_000)
    assert (
        list(run.group.members) == [follower] and run.heartbeat(follower) is E.REBALANCE_IN_PROGRESS
    )
    assert run.join(follower).join.leader == follower


def test_the_last_member_that_dies_leaves_an_empty_group():
    """The next generation is empty and stored, so that a later broker starts from there."""
    run = GroupRun()
    run.stable(session_ms=10_000)
    run.advance(10_000)
    assert run.group.state is S.EMPTY and run.group.generation == 2 and run.stored[-1].members == ()
    assert run.stored[-1].protocol_type == "consumer" and not run.timers


def test_an_accepted_commit_is_a_sign_of_life():
    """A commit starts the session anew like a heartbeat."""
    run = GroupRun()
    member = run.stable(session_ms=10_000)[0]
    run.advance(9_000)
    run.manager.membership.offsets_committed(run.group, member)
    run.run_effects()
    run.advance(9_000)
    assert member in run.group.members


# leaving
def test_leaving_starts_a_rebalance():
    """The others are told to join again; the leader's place goes to one of them."""
    run = GroupRun()
    leader, follower = run.stable(2)
    assert [a.error for a in run.leave((leader, None))] == [E.NONE]
    assert run.group.leader == follower and run.heartbeat(follower) is E.REBALANCE_IN_PROGRESS


def test_a_batch_leaves_with_an_error_for_each():
    """LeaveGroup v3: by member id, by instance id, unknown ones refused, one rebalance for all."""
    run = GroupRun()
    run.stable(2)
    static = run.join(instance="i")
    for member_id in list(run.group.members)[:2]:
        run.join(member_id)
    run.synced(list(run.group.members))
    errors = [
        a.error
        for a in run.leave(
            ("", "i"),
            ("stranger", None),
            ("", "other"),
            (run.group.leader, None),
            (static.join.member_id, "i"),
        )
    ]
    assert errors == [E.NONE, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.NONE, E.UNKNOWN_MEMBER_ID]


def test_a_pending_member_can_leave():
    """A member id that was given out and is not wanted is taken back at once."""
    run = GroupRun()
    run.stable()
    pending = run.join().join.member_id
    assert [a.error for a in run.leave((pending, None))] == [E.NONE]
    assert not run.group.pending_joins and run.group.state is S.PREPARING_REBALANCE


def test_a_member_with_a_parked_join_that_leaves_is_answered():
    """ControlledShutdown answers the leaver's own parked join."""
    run = GroupRun()
    leader, follower = run.stable(2)
    parked = run.join(leader)
    run.leave((leader, None))
    assert parked.join.error is E.UNKNOWN_MEMBER_ID
    assert run.join(follower).join.leader == follower


def test_the_last_one_to_leave_ends_the_rebalance():
    """A round waits for nobody who left."""
    run = GroupRun()
    leader, follower = run.stable(2)
    parked = run.join(leader)
    run.leave((follower, None))
    assert parked.join.error is E.NONE and parked.join.generation == 2
