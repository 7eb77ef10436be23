"""The decisions write what Apache Kafka 4.3.1 wrote for the same requests, to the byte: each test
goes through one golden segment. Only the order of targets within a batch may differ: Kafka's is
that of a hash map.
"""

import uuid
from dataclasses import replace

from tests.coordinator.consumer.consumer_run import ConsumerRun
from tests.coordinator.consumer.topics import TA, TB, image, topic, topic_id
from tests.coordinator.test_group_records import GOLDEN
from twisted_broker.coordinator.classic_group import group_from_metadata
from twisted_broker.coordinator.consumer.records import decode_record
from twisted_broker.coordinator.group_records import GroupRecord, read_record
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from twisted_broker.wire.messages.group_records import ConsumerGroupCurrentMemberAssignmentValue
from twisted_broker.wire.records import iterate_batches
from twisted_broker.wire.schema import encode

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


FIRST_TA = uuid.UUID("e64f3ab8-d636-4565-8568-16cf6d91195b").bytes
FIRST_TB = uuid.UUID("f41dfb2b-675d-4f44-8c11-9519a4e9045c").bytes
FIRST = image(topic("ta", FIRST_TA, [[None]] * 4), topic("tb", FIRST_TB, [[None]] * 3), offset=74)


def topics_in_order(record):
    """A record of type 8 with its topics by id: Kafka's order is that of a hash map."""
    read = decode_record(*record)
    assert read is not None
    key, value = read
    if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
        value.assigned_partitions.sort(key=lambda topic: topic.topic_id)
    return encode_record((key, value))


def whole_batches(name, group_id):
    """As `golden_batches`, with the records of the classic group."""
    batches = []
    for batch in iterate_batches((GOLDEN / f"{name}.log").read_bytes(), check_crc=True):
        records = [(record.key, record.value) for record in batch.records()]
        if group_id.encode() in (records[0][0] or b""):
            batches.append(records)
    return batches


def as_sets(batches):
    """What another order of members does not change."""
    made = []
    for batch in batches:
        tombstones = [key for key, value in batch if value is None]
        values = [each for each in batch if each[1] is not None]
        last = classic_value(batch[-1])
        if last is not None:
            values.pop()
            members = sorted(last.members, key=lambda each: each.member_id)
            last = replace(last, members=tuple(members), leader=None)
        made.append((set(tombstones), in_one_order(values), last))
    return made


def classic_value(record):
    """What a record says of a classic group."""
    read = read_record(record[0], record[1], 0)
    return read.value if isinstance(read, GroupRecord) else None


def batch_kind(key):
    return int.from_bytes(key[:2], "big")


def test_a_classic_group_is_upgraded_and_downgraded():
    """GN 2.110 to 2.120."""
    batches = whole_batches("consumer-group-migrated", "u1")
    classic = group_from_metadata(classic_value(batches[1][0]), 0)
    one, two, three = str(classic.leader), "n1", "Dny4vlaDScirtgtwM_MTIw"
    # What the log of the classic group does not have.
    classic.members[one].protocols["range"] = classic.members[one].protocols["cooperative-sticky"]
    run = ConsumerRun(image(ONE), 1795823413226, "u1", assignment_interval_ms=0)

    def protocols(*names, owned=None, generation=-1):
        subscription = ConsumerProtocolSubscription(topics=["ta"], generation_id=generation)
        if owned is not None:
            subscription.owned_partitions = [
                ConsumerProtocolSubscriptionTopicPartition(topic="ta", partitions=owned)
            ]
        return dict.fromkeys(names, b"\0\3" + encode(subscription, 3))

    joined = run.upgrade(classic, two, client_id="probe2")
    assert (joined.member_epoch, joined.assignment) == (2, frozenset())
    assert run.send(two, 2, client_id="probe2").assignment is None
    assert run.beat(one, 1) is E.REBALANCE_IN_PROGRESS
    both = "cooperative-sticky", "range"
    told = run.join_classic(one, protocols(*both, owned=[0, 1, 2, 3], generation=1))
    assert (told.generation, told.protocol_name, told.leader) == (1, "cooperative-sticky", "")
    assert (
        run.sync(one, 1).hex() == "0003000000010002746100000002" + "00000000" + "00000001ffffffff"
    )
    assert run.beat(one, 1) is E.REBALANCE_IN_PROGRESS
    told = run.join_classic(one, protocols(*both, owned=[0, 1], generation=1))
    assert told.generation == 2 and run.beat(one, 2) is E.NONE
    assert run.send(two, 2, client_id="probe2").assignment == tas(2, 3)
    run.wall_ms = 1795823415512
    assert run.join_classic("", {"range": b"x"}, new=three, known=True).error is (
        E.MEMBER_ID_REQUIRED
    ), "the id is handed out before the metadata is read"
    told = run.join_classic(three, protocols("cooperative-sticky"))
    assert told.generation == 3
    run.wall_ms = 1795823415659
    run.send(two, -1)
    kafkas = batches[2:9]
    for number, (ours, theirs) in enumerate(zip(run.batches, kafkas, strict=True)):
        assert as_sets([ours]) == as_sets([theirs]), number
    kinds = [[batch_kind(key) for key, _ in batch] for batch in (run.batches[-1], kafkas[-1])]
    assert kinds[0] == kinds[1], "tombstones in the order that a Java broker can replay"


def assert_written_in_a_row(run):
    """As `assert_written`; Kafka put two decisions into one batch."""
    ours = [each for batch in run.batches for each in batch]
    golden = golden_batches("consumer-group-first", run.group.group_id)
    assert ours == [topics_in_order(each) for batch in golden for each in batch]


def test_the_first_member_of_a_group_has_a_pattern():
    """GN 2.2, 2.20: it joins at epoch 1, and the group has no record of its own yet."""
    run = ConsumerRun(FIRST, 1795869139650, "gp")
    assert run.join("m", names=None, pattern="t.*").member_epoch == 1
    run.resolve()
    run.wall_ms = 1795869140350
    assert run.send("m", 1).member_epoch == 2
    assert_written_in_a_row(run)


def test_the_first_member_of_a_group_wants_nothing():
    """GN 2.2, 2.20."""
    run = ConsumerRun(FIRST, 1795869139650, "ge")
    assert run.join("m", names=()).member_epoch == 1
    assert_written_in_a_row(run)


def test_a_dynamic_member_takes_over_an_instance():
    """GN 2.16: under the id that it has; its own partitions come free."""
    run = ConsumerRun(FIRST, 1795869140379, "gd")
    run.join("a")
    run.join("c", instance_id="j")
    run.send("c", -2, instance_id="j")
    back = run.join("a", instance_id="j")
    assert (back.member_epoch, back.assignment) == (2, frozenset())
    assert_written_in_a_row(run)
