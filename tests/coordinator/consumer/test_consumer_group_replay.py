"""Consumer groups out of the records of a log (GN 2.103-2.106)."""

import random

import pytest

from tests.coordinator.consumer.consumer_run import ConsumerRun, stored
from tests.coordinator.consumer.topics import TA, TB, image, topic
from tests.coordinator.test_group_records import golden_records
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.records import (
    decode_record,
    epoch_record,
    group_tombstone,
    member_tombstones,
)
from twisted_broker.coordinator.group_replay import GroupReplay

ONE, TWO = topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]] * 3)


def replayed(records):
    replay = GroupReplay(ConsumerGroup)
    for key, value in records:
        record = decode_record(key, value)
        if record is not None:
            replay.apply(record)
    replay.finish()
    return replay.groups


def last_values(records):
    """As a load keeps them: the last value of each key, where the key came first."""
    return list(dict(records).items())


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("consumer-group-members", {"z1k": 3}),
        ("consumer-group-migrated", {}),
        ("consumer-group-pattern", {}),
        ("consumer-group-static", {}),
        ("consumer-group-topic-changes", {"ggrow": 6}),
    ],
)
@pytest.mark.parametrize("kept", [list, last_values])
def test_what_kafkas_segments_leave(name, groups, kept):
    """GN 2.103: record by record, and the last value of each key; by their epochs."""
    records = [(record.key, record.value) for record in golden_records(name)]
    assert {each.group_id: each.epoch for each in replayed(kept(records)).values()} == groups


@pytest.mark.parametrize("until", range(1, 12))
def test_every_prefix_of_kafkas_segment_is_a_group(until):
    """GN 6.25: at the end of each batch no partition has two owners."""
    records = [(record.key, record.value) for record in golden_records("consumer-group-members")]
    group = replayed(records[: [5, 8, 12, 13, 16, 17, 18, 23, 26, 30, 33][until - 1]])["c1"]
    assert set(group._owners.values()) <= {1}
    assert group.epoch >= group.assignment_epoch


def test_the_order_of_what_compaction_leaves_does_not_matter():
    """GN 2.105: members change hands of partitions, leave, come back; any order of the last
    values gives the live group.
    """
    run = ConsumerRun(image(ONE, TWO), assignment_interval_ms=0)
    for member_id in "abc":
        run.join(member_id, names=("ta", "tb"), instance_id=f"i{member_id}")
    for _ in range(4):
        for member_id, member in list(run.group.members.items()):
            told = run.send(member_id, member.epoch)
            run.send(member_id, told.member_epoch, owned=frozenset(member.assigned))
    run.send("a", -2, instance_id="ia")
    run.join("d", names=("ta",), instance_id="ia")
    run.remove("b")
    records = last_values([each for batch in run.batches for each in batch])
    for seed in range(30):
        shuffled = random.Random(seed).sample(records, len(records))
        assert stored(replayed(shuffled)["g"]) == stored(run.group)


@pytest.mark.parametrize("kept", [list, last_values])
def test_a_group_that_was_deleted_and_made_again_starts_over(kept):
    """GN 2.2."""
    run = ConsumerRun(image(ONE), assignment_interval_ms=0)
    for number in range(5):
        run.join("a", names=("ta",) if number % 2 else ())
        run.send("a", -1)
    run.delete()
    deleted = [each for batch in run.batches for each in batch]
    assert not replayed(kept(deleted))
    again = ConsumerRun(image(ONE), assignment_interval_ms=0)
    again.join("a")
    made = [each for batch in again.batches for each in batch]
    assert stored(replayed(kept(deleted + made))["g"]) == stored(again.group)


def test_tombstones_make_no_group():
    """GN 2.103: those of what is unknown are ignored."""
    replay = GroupReplay(ConsumerGroup)
    for record in [*member_tombstones("g", "m"), group_tombstone("g")]:
        replay.apply(record)
    replay.finish()
    assert not replay.groups


def test_a_tombstone_of_the_group_before_those_of_its_members_counts():
    """GN 2.105: order is not insisted on."""
    run = ConsumerRun(image(ONE))
    run.join("a")
    replay = GroupReplay(ConsumerGroup)
    for batch in run.batches:
        for record in batch:
            replay.apply(decode_record(*record))
    for record in [group_tombstone("g"), *member_tombstones("g", "a")]:
        replay.apply(record)
    replay.finish()
    assert not replay.groups


def test_a_group_stays_when_its_tombstone_was_not_the_last_word():
    replay = GroupReplay(ConsumerGroup)
    replay.apply(epoch_record("g", 5, 0))
    replay.apply(group_tombstone("g"))
    replay.apply(epoch_record("g", 2, 7))
    replay.finish()
    assert (replay.groups["g"].epoch, replay.groups["g"].metadata_hash) == (2, 7)
