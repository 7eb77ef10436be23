"""What ConsumerGroupDescribe says (GN 1.7, 2.130)."""

from dataclasses import replace

from tests.coordinator.consumer.consumer_run import ConsumerRun
from tests.coordinator.consumer.topics import TA, TB, image, topic
from twisted_broker.coordinator.consumer.decision import ConsumerGroupSettings, Environment
from twisted_broker.coordinator.consumer.describe import (
    CLASSIC_MEMBER,
    CONSUMER_MEMBER,
    describe,
)
from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.wire.messages.group_records import ClassicMemberMetadata
from twisted_broker.wire.schema import run_whole

ONE, TWO = topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]] * 3)
ASSIGNORS = ("uniform", "range")


def described(run):
    settings = ConsumerGroupSettings(assignors=ASSIGNORS)
    return run_whole(describe(run.group, Environment(run.image, TopicHashes(), 0, settings))).answer


def test_what_is_pending_revocation_is_in_the_assignment_and_not_in_the_target():
    """GN 2.130."""
    run = ConsumerRun(image(ONE, TWO), assignment_interval_ms=0)
    run.join("a", names=("ta", "tb"), assignor="range")
    run.join("b")
    run.send("a", 2)
    group = described(run)
    assert (group.group_id, group.state, group.assignor) == ("g", "Reconciling", "range")
    assert (group.group_epoch, group.assignment_epoch) == (3, 3)
    a, b = group.members
    assert a.assignment == sorted([(TA, "ta", [0, 1, 2, 3]), (TB, "tb", [0, 1, 2])])
    assert a.target == sorted([(TA, "ta", [0, 1]), (TB, "tb", [0, 1, 2])])
    assert (b.assignment, b.target) == ([], [(TA, "ta", [2, 3])])
    assert run.group.members["a"].pending and a.member is run.group.members["a"]
    assert a.member_type == CONSUMER_MEMBER


def test_topics_that_are_gone_are_left_out():
    """GN 2.130."""
    run = ConsumerRun(image(ONE, TWO), assignment_interval_ms=0)
    run.join("a", names=("ta", "tb"))
    run.change_topics(image(TWO))
    (member,) = described(run).members
    assert member.assignment == member.target == [(TB, "tb", [0, 1, 2])]


def test_a_member_without_a_target_and_a_group_without_members():
    """GN 2.3, 2.130: an empty one keeps its epochs, and names the assignor that would be used."""
    run = ConsumerRun(image(ONE), assignment_interval_ms=5_000)
    run.join("a")
    run.join("b")
    group = described(run)
    assert (group.state, group.members[1].target) == ("Assigning", [])
    run.remove("a", "b")
    group = described(run)
    assert (group.state, group.members, group.assignor) == ("Empty", [], "uniform")
    assert (group.group_epoch, group.assignment_epoch) == (4, 2)


def test_members_of_the_classic_protocol_are_told_apart():
    """GN 1.7, 2.122."""
    run = ConsumerRun(image(ONE))
    run.join("a")
    classic = replace(run.group.members["a"], classic=ClassicMemberMetadata())
    run.group.apply(classic.metadata_record("g"))
    assert [each.member_type for each in described(run).members] == [CLASSIC_MEMBER]


def test_a_large_description_pauses():
    """By partitions, not by members."""
    run = ConsumerRun(image(ONE), assignment_interval_ms=0)
    for number in range(5):
        run.join(f"m{number}")
    settings = ConsumerGroupSettings(assignors=ASSIGNORS)
    environment = Environment(run.image, TopicHashes(), 0, settings)
    assert list(describe(run.group, environment)) == []
    run.group.targets |= {
        member: frozenset((TA, number) for number in range(900)) for member in run.group.targets
    }
    assert len(list(describe(run.group, environment))) >= 2
