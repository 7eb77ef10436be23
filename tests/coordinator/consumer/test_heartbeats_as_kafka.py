"""The decisions write what Apache Kafka 4.3.1 wrote for the same requests, to the byte: each test
goes through one golden segment. Only the order of targets within a batch may differ: Kafka's is
that of a hash map.
"""

from tests.coordinator.consumer.consumer_run import ConsumerRun
from tests.coordinator.consumer.topics import TA, TB, image, topic, topic_id
from tests.coordinator.test_group_records import GOLDEN
from twisted_broker.coordinator.consumer.records import decode_record
from twisted_broker.wire.records import iterate_batches

ONE, TWO = topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]] * 3)


def golden_batches(name, group_id):
    """Of one group; without offsets and classic groups' records."""
    batches = []
    for batch in iterate_batches((GOLDEN / f"{name}.log").read_bytes(), check_crc=True):
        records = [
            (record.key, record.value)
            for record in batch.records()
            if (read := decode_record(record.key, record.value)) is not None
            and getattr(read[0], "group_id", None) == group_id
        ]
        if records:
            batches.append(records)
    return batches


def in_one_order(batch):
    """The batch with its records of type 7, wherever they stand, in the order of their keys."""
    is_target = [key[:2] == b"\0\7" for key, _ in batch]
    targets = iter(sorted(each for each, is_one in zip(batch, is_target, strict=True) if is_one))
    return [
        next(targets) if is_one else each for each, is_one in zip(batch, is_target, strict=True)
    ]


def assert_written(run, name):
    expected = golden_batches(name, run.group.group_id)
    for number, (ours, kafkas) in enumerate(zip(run.batches, expected, strict=True)):
        assert in_one_order(ours) == in_one_order(kafkas), number


def tas(*numbers):
    return frozenset((TA, number) for number in numbers)


def test_two_members_one_leaves():
    """GN 2.2, 2.22, 2.24, 2.32, 2.52, 2.101, 2.102: epochs, interval, revocation, release."""
    run = ConsumerRun(image(ONE), 1795823354039, "c1")
    joined = run.join("m1")
    assert (joined.member_epoch, joined.assignment) == (2, tas(0, 1, 2, 3))
    run.wall_ms += 500
    joined = run.join("m2")
    assert (joined.member_epoch, joined.assignment) == (2, frozenset()), "within the interval"
    run.wall_ms = 1795823355541
    assert run.send("m2", 2).assignment is None, "it waits"
    told = run.send("m1", 2)
    assert (told.member_epoch, told.assignment) == (2, tas(0, 1))
    assert run.send("m1", 2).assignment is None, "a keep-alive is no confirmation"
    assert run.send("m1", 2, owned=tas(0, 1)).member_epoch == 3
    assert run.send("m2", 3).assignment == tas(2, 3)
    assert run.send("m1", -1).member_epoch == -1
    run.wall_ms = 1795823357972
    last = run.send("m2", 3)
    assert (last.member_epoch, last.assignment) == (4, tas(0, 1, 2, 3))
    run.send("m2", -1)
    run.delete()
    assert_written(run, "consumer-group-members")


def test_a_static_member_leaves_for_a_while_and_comes_back_under_another_id():
    """GN 2.16, 2.50: no bump, the partitions come back in the same batch."""
    run = ConsumerRun(image(ONE), 1795823197449, "g2")
    run.join("s1", instance_id="i1")
    for _ in range(2):
        left = run.send("s1", -2, instance_id="i1")
        assert (left.member_epoch, left.assignment) == (-2, None)
    back = run.join("s2", instance_id="i1")
    assert (back.member_epoch, back.assignment) == (2, tas(0, 1, 2, 3))
    run.send("s2", -1, instance_id="i1")
    run.delete()
    assert_written(run, "consumer-group-static")


def test_a_pattern_is_resolved_and_given_up():
    """GN 2.20, 2.60, 2.64, 2.65, 2.141: joining with it bumps nothing, its resolution does."""
    first = "aevgee2sR1qo8HpYNlAcHQ"
    run = ConsumerRun(image(ONE, TWO, offset=282), 1795823198003, "g3")
    run.join(first)
    assert run.join("m", names=()).member_epoch == 2
    assert run.join("mr", names=(), pattern="t.*").member_epoch == 2
    assert run.refresh_wanted
    run.wall_ms = 1795823198675
    run.resolve()
    run.wall_ms = 1795823199041
    told = run.send("mr", 2)
    assert (told.member_epoch, told.assignment) == (3, {(TB, number) for number in range(3)})
    run.wall_ms = 1795823200342
    told = run.send("mr", 3, names=("nope",), pattern="")
    assert (told.member_epoch, told.assignment) == (3, frozenset())
    run.send("mr", -1)
    run.send(first, -1)
    run.send("m", -1)
    run.delete()
    assert_written(run, "consumer-group-pattern")


def test_a_topic_grows_is_deleted_and_made_again():
    """GN 2.21, 2.70: each is noticed by the next heartbeat, by the hash."""
    old, new = topic_id("UOtVAvQ2RAyvQYtOEzJqHQ"), topic_id("AF7PHAvISSGFWwT_5N1Rbg")
    run = ConsumerRun(image(topic("tgrow", old, [[None]] * 2)), 1795823969260, "ggrow")
    fields = {"client_id": "q"}
    run.join("m", names=["tgrow"], **fields)
    run.change_topics(image(topic("tgrow", old, [[None]] * 3)))
    run.wall_ms = 1795823970896
    assert run.send("m", 2, **fields).assignment == {(old, number) for number in range(3)}
    run.change_topics(image())
    run.wall_ms = 1795823972492
    told = run.send("m", 3, **fields)
    assert (told.member_epoch, told.assignment) == (3, frozenset())
    assert run.send("m", 3, owned=frozenset(), **fields).member_epoch == 4
    run.change_topics(image(topic("tgrow", new, [[None]])))
    run.wall_ms = 1795823974032
    assert run.send("m", 4, **fields).assignment == {(new, 0)}
    run.send("m", -1)
    assert_written(run, "consumer-group-topic-changes")
