"""Kafka's cases of a heartbeat (GN 6.1), each by the line of the contract that it pins."""

from dataclasses import replace

import pytest

from tests.coordinator.consumer.consumer_run import ConsumerRun
from tests.coordinator.consumer.topics import TA, TB, image, topic
from twisted_broker.coordinator.consumer import target
from twisted_broker.coordinator.consumer.group import ConsumerGroupState
from twisted_broker.coordinator.consumer.member import (
    STABLE,
    UNRELEASED,
    UNREVOKED,
    ConsumerGroupMember,
)
from twisted_broker.coordinator.consumer.records import (
    member_tombstone,
    partition_metadata_tombstone,
)
from twisted_broker.coordinator.group_decision import GroupTimer
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.group_records import ConsumerGroupPartitionMetadataValue

ONE, TWO = topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]] * 3)
SESSION, REBALANCE = GroupTimer.SESSION, GroupTimer.REBALANCE


def tas(*numbers):
    return frozenset((TA, number) for number in numbers)


def run_of(*members, **settings):
    """A group whose members have settled; without the interval of assignments unless it is set."""
    run = ConsumerRun(image(ONE, TWO), **({"assignment_interval_ms": 0} | settings))
    for member_id in members:
        run.join(member_id)
    settle(run)
    return run


def settle(run):
    """Every member gives up at once what it must."""
    for _ in range(3):
        for member_id, member in list(run.group.members.items()):
            answer = run.send(member_id, member.epoch)
            if answer.assignment is not None:
                run.send(member_id, answer.member_epoch, owned=answer.assignment)


def refused(code, run, *arguments, **fields):
    batches, timers = len(run.batches), dict(run.timers)
    with pytest.raises(BrokerError) as refusal:
        run.send(*arguments, **fields)
    assert refusal.value.code is code
    assert (len(run.batches), run.timers) == (batches, timers), "a refusal changed something"


def types(batch):
    """Types of records; negative: a tombstone."""
    numbers = [int.from_bytes(key[:2], "big") for key, _ in batch]
    return [
        -number if value is None else number
        for number, (_, value) in zip(numbers, batch, strict=True)
    ]


# who sends it
def test_only_epoch_0_joins():
    """GN 2.13."""
    run = run_of("a")
    for epoch in (1, 2, 77):
        refused(ErrorCode.UNKNOWN_MEMBER_ID, run, "stranger", epoch)
        refused(ErrorCode.UNKNOWN_MEMBER_ID, run, "stranger", epoch, instance_id="i")


def test_epochs_that_are_not_the_members():
    """GN 2.14: greater, and smaller unless an answer may have been lost."""
    run = run_of("a", "b")
    member = run.group.members["a"]
    assert (member.epoch, member.previous_epoch, member.assigned.keys()) == (3, 2, tas(0, 1))
    refused(ErrorCode.FENCED_MEMBER_EPOCH, run, "a", 4)
    refused(ErrorCode.FENCED_MEMBER_EPOCH, run, "a", 1, owned=tas(0))
    refused(ErrorCode.FENCED_MEMBER_EPOCH, run, "a", 2)
    refused(ErrorCode.FENCED_MEMBER_EPOCH, run, "a", 2, owned=tas(0, 3))
    assert run.send("a", 2, owned=tas(0)).member_epoch == 3
    assert run.send("a", 2, owned=frozenset()).member_epoch == 3


@pytest.mark.parametrize("state", [STABLE, UNREVOKED, UNRELEASED])
def test_joining_again_keeps_what_the_member_has(state):
    """GN 2.14: epoch 0 in each state; the answer has the whole assignment."""
    run = run_of("a")
    run.join("b")
    if state is UNREVOKED:
        assert run.send("a", 2).assignment == tas(0, 1)
    member_id, has = ("b", frozenset()) if state is UNRELEASED else ("a", tas(0, 1))
    if state is STABLE:
        run, has = run_of("a"), tas(0, 1, 2, 3)
    before = run.group.members[member_id]
    assert before.state is state
    again = run.join(member_id)
    assert again.assignment == has
    assert again.member_epoch == (3 if state is UNREVOKED else before.epoch)


@pytest.mark.parametrize("repeated", [1, 2, 3])
def test_a_full_heartbeat_sent_again_gets_the_same_answer(repeated):
    """GN 2.26, 7.9: whether or not anything changed."""
    run = run_of("a", "b")
    full = {"names": ("ta",), "rebalance_timeout_ms": 10_000, "owned": tas(0, 1)}
    answers = [run.send("a", 3, **full) for _ in range(1 + repeated)]
    assert {(each.member_epoch, each.assignment) for each in answers} == {(3, tas(0, 1))}


@pytest.mark.parametrize("left_out", ["names", "rebalance_timeout_ms", "owned"])
def test_an_unchanged_assignment_is_sent_for_full_heartbeats_only(left_out):
    """GN 2.26."""
    run = run_of("a")
    full = {"names": ("ta",), "rebalance_timeout_ms": 10_000, "owned": tas(0, 1, 2, 3)}
    assert run.send("a", 2, **full).assignment == tas(0, 1, 2, 3)
    del full[left_out]
    assert run.send("a", 2, **full).assignment is None


def test_a_heartbeat_that_says_nothing_new_writes_nothing():
    run = run_of("a", "b")
    batches = len(run.batches)
    for _ in range(2):
        answer = run.send("a", 3)
        assert (answer.member_id, answer.member_epoch, answer.assignment) == ("a", 3, None)
    assert len(run.batches) == batches


def test_a_member_that_waits_writes_its_state_once():
    """GN 2.32: its first step at its own epoch makes the previous one the same, then nothing."""
    run = run_of("a")
    run.join("b")
    for expected in ([8], None, None):
        batches = len(run.batches)
        run.send("b", 3)
        assert (types(run.batches[-1]) if len(run.batches) > batches else None) == expected


def test_the_group_takes_so_many_members():
    """GN 2.11: a static replacement is a new member, too."""
    run = run_of("a", max_size=2)
    run.join("s", instance_id="i")
    run.send("s", -2, instance_id="i")
    join = {"names": ("ta",), "rebalance_timeout_ms": 1, "owned": frozenset()}
    refused(ErrorCode.GROUP_MAX_SIZE_REACHED, run, "c", 0, **join)
    refused(ErrorCode.GROUP_MAX_SIZE_REACHED, run, "t", 0, instance_id="i", **join)
    run.join("a")


# static members
def test_an_instance_in_use_is_not_given_to_anybody():
    """GN 2.15: not even to the same member id."""
    run = run_of()
    run.join("s", instance_id="i")
    join = {"names": ("ta",), "rebalance_timeout_ms": 1, "owned": frozenset(), "instance_id": "i"}
    refused(ErrorCode.UNRELEASED_INSTANCE_ID, run, "s", 0, **join)
    refused(ErrorCode.UNRELEASED_INSTANCE_ID, run, "t", 0, **join)


def test_static_members_going_on():
    """GN 2.17, 2.51."""
    run = run_of()
    run.join("s", instance_id="i")
    for epoch in (2, -1, -2):
        refused(ErrorCode.UNKNOWN_MEMBER_ID, run, "s", epoch, instance_id="unknown")
        refused(ErrorCode.FENCED_INSTANCE_ID, run, "t", epoch, instance_id="i")
    refused(ErrorCode.FENCED_MEMBER_EPOCH, run, "s", 9, instance_id="i")
    assert run.send("s", 2).member_epoch == 2, "found by its id"


def test_a_static_member_that_left_for_a_while_is_fenced_at_every_epoch():
    """GN 2.14, 2.50."""
    run = run_of()
    run.join("s", instance_id="i")
    run.send("s", -2, instance_id="i")
    for epoch in (1, 2, 3):
        refused(ErrorCode.FENCED_MEMBER_EPOCH, run, "s", epoch, instance_id="i")


def test_nobody_gets_the_partitions_of_a_static_member_until_its_session_ends():
    """GN 2.50, 6.26."""
    run = run_of()
    run.join("s", instance_id="i")
    run.send("s", -2, instance_id="i")
    run.join("b")
    assert run.send("b", 3).assignment is None
    run.expire(SESSION, "s")
    assert run.send("b", 3).assignment == tas(0, 1, 2, 3)


def test_a_static_member_may_come_back_under_its_own_id_and_with_other_topics():
    """GN 2.16, 6.1: then the group epoch rises."""
    run = run_of()
    run.join("s", instance_id="i")
    run.send("s", -2, instance_id="i")
    assert run.join("s", instance_id="i").member_epoch == 2
    run.send("s", -2, instance_id="i")
    back = run.join("t", names=("tb",), instance_id="i")
    assert (back.member_epoch, run.group.epoch) == (3, 3)
    assert back.assignment == {(TB, number) for number in range(3)}
    assert not run.group.has_owner((TA, 0))


def test_the_target_of_a_successor_is_written_once_while_it_stays_the_same():
    """GN 2.16, 2.24: it has the old one's, with which the new target is compared."""
    run = run_of("a")
    run.join("s", instance_id="i")
    settle(run)
    run.send("s", -2, instance_id="i")
    run.change_topics(image(topic("ta", TA, [["r1"]] * 4)))
    run.join("t", instance_id="i")
    assert types(run.batches[-1]) == [-8, -7, -5, 5, 7, 8, 3, 6, 8]


def test_a_member_that_takes_over_an_instance_is_one_member():
    """GN 2.16: what it had under its id before comes free."""
    run = run_of("a", "b")
    run.join("s", instance_id="i")
    settle(run)
    run.send("s", -2, instance_id="i")
    run.change_topics(image(topic("ta", TA, [[None]] * 5)))
    run.join("a", instance_id="i")
    settle(run)
    assert run.group.members.keys() == {"a", "b"}
    assert run.group.subscriptions.members == 2
    owned = [len(each.assigned) for each in run.group.members.values()]
    assert sorted(owned) == [2, 3]


def test_an_instance_stays_with_its_holder_when_a_member_that_had_it_is_gone():
    """GN 2.105: whatever the order of their records."""
    group = run_of().group
    for member_id in ("old", "new"):
        group.apply(ConsumerGroupMember(member_id, instance_id="i").metadata_record("g"))
    group.apply(member_tombstone("g", "old"))
    assert group.static == {"i": "new"}


# what changes
def test_a_member_that_wants_nothing_bumps_nothing():
    """GN 2.20, 7.3."""
    run = run_of("a")
    answer = run.join("b", names=())
    assert (answer.member_epoch, answer.assignment, run.group.epoch) == (2, frozenset(), 2)
    assert types(run.batches[-1]) == [5, 8]


@pytest.mark.parametrize(
    "changed",
    [
        {"rack_id": "r"},
        {"assignor": "range"},
        {"rebalance_timeout_ms": 7},
        {"client_id": "other"},
        {"client_host": "/10.0.0.1"},
    ],
)
def test_changes_that_bump_nothing(changed):
    """GN 2.18, 2.19: only the member is written."""
    run = run_of("a")
    run.send("a", 2, **changed)
    assert (types(run.batches[-1]), run.group.epoch) == ([5], 2)


def test_names_are_kept_sorted_and_their_order_is_no_change():
    """GN 2.18."""
    run = run_of()
    run.join("a", names=("tb", "ta"))
    assert run.group.members["a"].names == ("ta", "tb")
    batches = len(run.batches)
    run.send("a", 2, names=("ta", "tb", "ta"))
    assert len(run.batches) == batches


def test_topics_that_do_not_exist_count_when_they_do():
    """GN 2.61, 2.70."""
    run = ConsumerRun(image(), assignment_interval_ms=0)
    answer = run.join("a", names=("ta",))
    assert (answer.member_epoch, answer.assignment, run.group.metadata_hash) == (2, frozenset(), 0)
    run.change_topics(image(ONE))
    assert run.send("a", 2).assignment == tas(0, 1, 2, 3)


def test_racks_that_change_bump_the_epoch_and_move_nothing():
    """GN 2.21, 2.144."""
    run = run_of("a")
    run.change_topics(image(topic("ta", TA, [["r1"]] * 4), TWO))
    answer = run.send("a", 2)
    assert (answer.member_epoch, answer.assignment) == (3, None)
    assert types(run.batches[-1]) == [3, 6, 8]


def test_topics_that_are_not_of_the_group_are_compared_and_change_nothing():
    """GN 2.21."""
    run = run_of("a")
    run.change_topics(image(ONE))
    assert run.group.must_compare_metadata
    assert run.send("a", 2).member_epoch == 2
    assert not run.group.must_compare_metadata


def test_a_group_that_was_loaded_compares_the_hash_again():
    """GN 2.70."""
    run = run_of("a")
    assert run.replayed().must_compare_metadata and not run.group.must_compare_metadata


def test_metadata_that_changes_while_a_decision_is_made_is_seen_by_the_next():
    """GN 0.8: the mark is that of the image which the decision looked at."""
    run = run_of("a")
    mark = run.group.metadata_mark()
    run.group.metadata_changed()
    run.group.metadata_compared(mark)
    assert run.group.must_compare_metadata


def test_what_kafka_4_0_wrote_of_partitions_is_taken_away_by_the_next_bump():
    """GN 2.21, 2.102: type 4, before type 3."""
    run = run_of("a")
    old = partition_metadata_tombstone("g")[0], ConsumerGroupPartitionMetadataValue(topics=[])
    run.group.apply(old)
    run.batches.append([encode_record(old)])
    assert run.group.has_partition_metadata
    run.send("a", 2, names=("tb",))
    assert types(run.batches[-1])[:3] == [5, -4, 3]
    assert not run.group.has_partition_metadata


# the target
def test_the_interval_delays_the_target_until_a_heartbeat_after_it():
    """GN 2.22, 7.2."""
    run = run_of("a", assignment_interval_ms=1_000)
    run.wall_ms += 999
    assert run.join("b").member_epoch == 2
    assert run.send("a", 2).assignment is None
    run.wall_ms += 1
    assert run.send("a", 2).assignment == tas(0, 1)


def test_a_wall_clock_that_was_set_back_delays_and_an_interval_of_0_does_not():
    """GN 2.22."""
    run = run_of("a", assignment_interval_ms=1_000)
    run.wall_ms -= 10_000
    assert run.join("b").member_epoch == 2
    run.settings = replace(run.settings, assignment_interval_ms=0)
    assert run.send("b", 2).member_epoch == 3


def test_the_assignor_that_most_members_name():
    """GN 2.23: members that name none do not vote, and the vote of one that leaves is gone."""
    run = run_of()
    for member_id, assignor in [("a", "range"), ("b", None), ("c", None)]:
        run.join(member_id, names=("ta", "tb"), assignor=assignor)
    settle(run)
    assert run.group.target("a") == {(TA, 0), (TA, 1), (TB, 0)}
    run.join("d", assignor="uniform")
    counts = run.group.subscriptions
    assert counts.preferred_assignor(("uniform", "range")) == "uniform"
    assert counts.preferred_assignor(("range", "uniform")) == "range", "a tie: the first configured"
    run.remove("a")
    assert counts.preferred_assignor(("range", "uniform")) == "uniform"


def test_an_assignor_that_fails_changes_nothing(monkeypatch):
    """GN 2.23."""
    run = run_of("a")
    batches = len(run.batches)
    monkeypatch.setattr(target, "ASSIGNORS", {"uniform": lambda spec: 1 / 0})
    with pytest.raises(ZeroDivisionError):
        run.join("b")
    assert "b" not in run.group.members and len(run.batches) == batches


def test_three_members_step_by_step():
    """GN 2.30-2.35: the third gets what each of the others gives up, as it comes free."""
    run = ConsumerRun(image(topic("ta", TA, [[None]] * 6)), assignment_interval_ms=0)
    run.join("a")
    run.join("b")
    settle(run)
    assert run.group.state is ConsumerGroupState.STABLE
    joined = run.join("c")
    assert (joined.member_epoch, joined.assignment) == (4, frozenset())
    assert run.group.members["c"].state is UNRELEASED
    assert run.group.state is ConsumerGroupState.RECONCILING
    told = run.send("a", 3)
    assert (told.member_epoch, told.assignment) == (3, tas(0, 1))
    assert run.timers[REBALANCE, "a"] == (10_000, 3)
    assert run.send("c", 4).assignment is None, "not given up yet"
    assert run.send("a", 3, owned=tas(0, 1, 2)).assignment is None, "nor now"
    assert run.send("a", 3, owned=tas(0, 1)).member_epoch == 4
    assert (REBALANCE, "a") not in run.timers
    assert run.send("c", 4).assignment == tas(2)
    assert run.group.members["c"].state is UNRELEASED
    assert run.send("b", 3).assignment == tas(3, 4)
    assert run.send("b", 3, owned=tas(3, 4)).member_epoch == 4
    assert run.send("c", 4).assignment == tas(2, 5)
    assert run.group.state is ConsumerGroupState.STABLE


# leaving and timers
def test_leaving():
    """GN 2.50, 2.52."""
    run = run_of("a", "b")
    answer = run.send("a", -1)
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", -1, 0)
    assert types(run.batches[-1]) == [-8, -7, -5, 3]
    assert run.group.state is ConsumerGroupState.ASSIGNING
    refused(ErrorCode.UNKNOWN_MEMBER_ID, run, "a", -1)
    assert run.send("b", 3).assignment == tas(0, 1, 2, 3)
    run.send("b", -1)
    assert run.group.state is ConsumerGroupState.EMPTY
    assert run.group.epoch > run.group.assignment_epoch
    assert (run.group.metadata_hash, run.timers) == (0, {})


def test_several_removals_are_one_bump():
    """GN 2.54."""
    run = run_of("a", "b", "c")
    epoch = run.group.epoch
    run.remove("a", "c")
    assert types(run.batches[-1]) == [-8, -7, -5, -8, -7, -5, 3]
    assert run.group.epoch == epoch + 1


def test_the_session_is_begun_anew_by_every_heartbeat_with_the_setting_of_then():
    """GN 2.80."""
    run = run_of("a", session_timeout_ms=30_000)
    assert run.timers[SESSION, "a"] == (30_000, None)
    run.settings = replace(run.settings, session_timeout_ms=60_000)
    run.send("a", 2)
    assert run.timers[SESSION, "a"] == (60_000, None)
    run.expire(SESSION, "a")
    assert not run.group.members


def test_who_does_not_give_up_in_time_is_removed():
    """GN 2.82."""
    run = run_of("a")
    run.join("b")
    run.send("a", 2)
    run.expire(REBALANCE, "a")
    assert [*run.group.members] == ["b"]
    assert run.send("b", 3).assignment == tas(0, 1, 2, 3)


def test_a_rebalance_timer_of_an_older_epoch_removes_nobody():
    """GN 2.82."""
    run = run_of("a")
    run.join("b")
    run.send("a", 2)
    timer = run.timers[REBALANCE, "a"]
    run.send("a", 2, owned=tas(0, 1))
    run.timers[REBALANCE, "a"] = timer
    run.expire(REBALANCE, "a")
    assert "a" in run.group.members


def test_a_group_that_is_deleted_leaves_nothing():
    """GN 2.101, 2.103."""
    run = run_of("a", "b")
    run.send("b", 3, pattern="t.*")
    run.wall_ms += 20_000
    run.resolve()
    run.delete()
    gone = run.replayed()
    assert not gone.members and not gone.targets and not gone.patterns
    assert (gone.assignment_epoch, gone.static, gone._owners) == (-1, {}, {})
    assert types(run.batches[-1]) == [-8, -8, -7, -7, -6, -5, -5, -16, -4, -3]
