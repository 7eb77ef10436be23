"""A classic group request by request, after the behaviours that Apache Kafka's
GroupCoordinatorTest and GroupMetadataTest name.
"""

import pytest

from tests.coordinator.group_run import GroupRun
from twisted_broker.coordinator.effects import TimerKind
from twisted_broker.coordinator.group_state import GroupState, group_from_snapshot
from twisted_broker.coordinator.rebalance import GroupSettings
from twisted_broker.wire.errors import ErrorCode as E

S = GroupState


# joining
def test_a_new_dynamic_member_is_told_its_id_first():
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


def test_the_first_member_leads_and_is_told_all_members():
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
    run.carry_out(run.core.commits_offsets(member))
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


def test_a_static_member_that_leaves_by_name_is_gone():
    """An administrator removes by instance id; the place is free at once."""
    run, leader, follower = static_pair()
    assert run.leave(("", "i-2"))[0].error is E.NONE and list(run.group.members) == [leader]
    assert run.leave((follower, "i-2"))[0].error is E.UNKNOWN_MEMBER_ID


# records, loading, unloading
def test_a_group_comes_back_from_its_record():
    """What was stored is a stable group with the same members, leader, protocol; sessions run
    from the load on.
    """
    run = GroupRun()
    members = run.stable(2, session_ms=10_000)
    loaded = GroupRun(group=group_from_snapshot(run.stored[-1], run.now_ms))
    loaded.carry_out(loaded.core.loaded(loaded.now_ms))
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
    loaded = GroupRun(GroupSettings(0, 2), group_from_snapshot(run.stored[-1], run.now_ms))
    loaded.carry_out(loaded.core.loaded(loaded.now_ms))
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
    run.carry_out(run.core.unloaded(E.NOT_COORDINATOR, run.now_ms))
    assert (
        all(t.answer is not None for t in run.tokens)
        and not run.timers
        and run.group.state is S.DEAD
    )
    assert run.join(leader).join.error is E.COORDINATOR_NOT_AVAILABLE
    assert run.core.heartbeat(leader, None, 1)[0] is E.COORDINATOR_NOT_AVAILABLE


def test_a_new_groups_record_is_empty():
    """As 4.3.1 writes it: no type, no members, generation 0; and its failure answers the join."""
    run = GroupRun()
    run.hold_writes = True
    token = run.join(known=False)
    run.carry_out(run.core.created())
    assert (
        run.stored[0].protocol_type,
        run.stored[0].protocol,
        run.stored[0].generation,
        run.stored[0].members,
    ) == ("", None, 0, ())
    run.finish_write(E.COORDINATOR_NOT_AVAILABLE)
    assert token.join.error is E.COORDINATOR_NOT_AVAILABLE and not run.group.members
    assert (TimerKind.SESSION, "client-1") not in run.timers
