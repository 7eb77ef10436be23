"""What heartbeats of share groups decide, and their records (GN 3.1-3.12; the share cases of
Kafka's GroupMetadataManagerTest and ShareGroupTest). The run checks live state against a replay.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.coordinator.consumer.topics import TA, TB, image, topic
from tests.coordinator.share.share_run import ONE, TWO, ShareRun, whole
from tests.coordinator.test_group_records import GOLDEN
from twisted_broker.coordinator.group_replay import GroupReplay
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.coordinator.share import states
from twisted_broker.coordinator.share.decision import ShareGroupDecision
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.records import ShareStates, StateTopic, decode_record
from twisted_broker.coordinator.share.requests import ShareHeartbeatRequest, check_request
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.primitives import uuid_from_text
from twisted_broker.wire.records import iterate_batches

TS1, TS2 = uuid_from_text("YjS8fyVbTBemDzN3yl8jSA"), uuid_from_text("q2Zb5xnjQeqsQ7D3sqSEWw")


def tas(*numbers):
    return frozenset((TA, each) for each in numbers)


@pytest.fixture
def run():
    return ShareRun()


# golden logs
def golden(name):
    """The batches of a segment that holds one group."""
    content = (GOLDEN / f"{name}.log").read_bytes()
    return [
        [(record.key, record.value) for record in batch.records()]
        for batch in iterate_batches(content, check_crc=True)
    ]


@pytest.mark.parametrize("name", ["share-group-members", "share-group-offsets"])
def test_kafkas_records_come_back_as_the_same_bytes(name):
    """Types 10 to 15, values and tombstones."""
    batches = golden(name)
    for key, value in (record for batch in batches for record in batch):
        assert encode_record(decode_record(key, value)) == (key, value)


def in_one_order(batch):
    """With its records of type 13 in the order of their keys: Kafka's is a hash map's."""
    targets = iter(sorted(each for each in batch if each[0][:2] == b"\0\x0d"))
    return [next(targets) if each[0][:2] == b"\0\x0d" else each for each in batch]


class GoldenRun(ShareRun):
    def __init__(self, group_id, topics):
        super().__init__(assignment_interval_ms=1_000)
        self.group, self.image, self.batches = ShareGroup(group_id), image(*topics), []

    def carry_out(self, decision):
        if decision.records:
            self.batches.append([encode_record(each) for each in decision.records])
        self.decision = decision
        decision.apply(self.group)
        return decision.answer

    def at(self, wall_ms, member_id, epoch, names=None, client_id=""):
        self.wall_ms = wall_ms
        return self.beat(member_id, epoch, names, client_id=client_id, client_host="/127.0.0.1")


def test_two_members_come_and_go_as_on_kafka():
    """GN 3.1-3.10: the records that 4.3.1 wrote for these heartbeats, to the byte."""
    run = GoldenRun("sg1", [topic("ts1", TS1, [[None]])])
    first = run.at(1795823493554, "mem1", 0, ("ts1",), "share1")
    assert (first.member_epoch, first.assignment) == (2, frozenset())
    assert run.decision.initialize == {(TS1, 0): -1} and run.decision.state_epoch == 2
    run.initialized()
    second = run.at(1795823501870, "mem2", 0, ("ts1",), "share2")
    assert (second.member_epoch, second.assignment) == (3, {(TS1, 0)})
    run.at(1795823501870, "mem1", -1)
    left = run.at(1795823501870, "mem2", -1)
    assert (left.member_epoch, left.heartbeat_interval_ms) == (-1, 0)
    expected = golden("share-group-members")
    assert len(run.batches) == len(expected) == 5
    assert list(map(in_one_order, run.batches)) == list(map(in_one_order, expected))


def test_offsets_are_set_and_deleted_as_on_kafka():
    """GN 3.12, 3.91, 3.92: as above. Kafka writes some records that change nothing."""
    run = GoldenRun("sg2", [topic("ts2", TS2, [[None]])])
    run.carry_out(states.alter(run.group, {"ts2": {0: 3, 7: 9}}, run.environment()))
    assert run.decision.answer[0].partitions == {0: E.NONE, 7: E.UNKNOWN_TOPIC_OR_PARTITION}
    assert (run.decision.initialize, run.decision.state_epoch) == ({(TS2, 0): 3}, 1)
    run.initialized()
    joined = run.at(1795823600901, "k1", 0, ("ts2",), "share1")
    assert joined.assignment == {(TS2, 0)}
    run.at(1795823604169, "k2", 0, ("ts2",), "share2")
    run.at(1795823604169, "k1", -1)
    run.at(1795823604169, "k2", -1)
    run.carry_out(states.begin_deleting_topics(run.group, ["ts2", "nobody"], run.image))
    assert [each.error for each in run.decision.answer] == [
        E.NONE,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert run.decision.delete == {(TS2, 0)}
    run.carry_out(states.deleted(run.group, [TS2]))
    run.carry_out(states.begin_deleting(run.group, run.image))
    assert not run.decision.delete
    run.batches.append([encode_record(each) for each in run.group.tombstones()])
    expected = golden("share-group-offsets")
    kafkas_more = [expected[0], *expected[-3:-1]]
    expected = [each for each in expected if not any(each is more for more in kafkas_more)]
    assert list(map(in_one_order, run.batches)) == list(map(in_one_order, expected))


# requests
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"names": None}, "SubscribedTopicNames must be set in first request."),
        ({"names": ()}, "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_what_is_wrong_without_the_group(changes, message):
    """GN 3.2."""
    fields = {"group_id": "g", "member_id": "a", "member_epoch": 0, "names": ("ta",)}
    check_request(ShareHeartbeatRequest(**fields))
    check_request(ShareHeartbeatRequest(**(fields | {"member_epoch": -1, "names": None})))
    with pytest.raises(BrokerError) as caught:
        check_request(ShareHeartbeatRequest(**(fields | changes)))
    assert (caught.value.code, caught.value.message) == (E.INVALID_REQUEST, message)


def test_members_and_epochs(run):
    """GN 3.2, 3.3: the present epoch, the one before and 0 are let in."""
    assert run.refused("a", 1) is E.UNKNOWN_MEMBER_ID
    assert run.refused("a", -1) is E.UNKNOWN_MEMBER_ID
    assert run.join("a").member_epoch == 2
    run.initialized()
    assert run.beat("a", 2).member_epoch == 3
    for epoch in (0, 2, 3):
        assert run.beat("a", epoch, ("ta",)).member_epoch == 3
    for epoch in (1, 4):
        assert run.refused("a", epoch) is E.FENCED_MEMBER_EPOCH
    assert run.refused("b", 3) is E.UNKNOWN_MEMBER_ID


def test_a_full_group():
    run = ShareRun(max_size=1)
    run.join("a")
    assert run.refused("b", 0, ("ta",)) is E.GROUP_MAX_SIZE_REACHED
    run.join("a")
    run.beat("a", -1)
    run.join("b")


def test_a_first_member_gets_nothing_before_there_are_states(run):
    """GN 3.6, 3.10."""
    assert run.join("a").assignment == frozenset()
    assert run.records() == [10, 11, 13, 12, 14, 15]
    assert run.beat("a", 2).assignment is None and run.records() == []
    run.decision = ShareGroupDecision(initialize=dict.fromkeys(tas(0, 1, 2, 3), -1))
    run.initialized()
    assert run.group.states == ShareStates({}, {TA: StateTopic("ta", frozenset(range(4)))}, {})
    answer = run.beat("a", 2)
    assert (answer.member_epoch, answer.assignment) == (3, tas(0, 1, 2, 3))
    assert run.records() == [11, 13, 12, 14]
    assert run.beat("a", 3).assignment is None and run.records() == []


def test_the_answer_has_an_assignment_when_it_was_asked_for(run):
    run.joined("a")
    for epoch, names in ((0, ("ta",)), (3, ("ta",))):
        assert run.beat("a", epoch, names).assignment == tas(0, 1, 2, 3)
        assert run.records() == []


def test_new_partitions_raise_no_epoch_during_the_interval():
    """GN 3.4."""
    run = ShareRun(assignment_interval_ms=1_000)
    run.join("a")
    run.initialized()
    assert run.beat("a", 2).member_epoch == 2 and run.records() == [11]
    assert run.beat("a", 2).member_epoch == 2 and run.records() == []
    run.wall_ms += 1_000
    answer = run.beat("a", 2)
    assert (answer.member_epoch, answer.assignment) == (3, tas(0, 1, 2, 3))


def test_members_share_partitions(run):
    run.joined("a", "b", "c", "d", "e")
    owners = [run.group.target(name) for name in "abcde"]
    assert frozenset().union(*owners) == tas(0, 1, 2, 3)
    assert all(owners)


def test_another_subscription(run):
    run.joined("a", "b")
    answer = run.beat("a", run.group.members["a"].epoch, ("tb",))
    assert run.records()[:2] == [10, 11] and answer.assignment == frozenset()
    assert run.decision.initialize == {(TB, 0): -1, (TB, 1): -1}
    run.initialized()
    assert run.beat("a", answer.member_epoch).assignment == {(TB, 0), (TB, 1)}
    run.beat("b", run.group.members["b"].epoch)
    assert run.group.members["b"].assigned == tas(0, 1, 2, 3)


def test_a_change_that_is_no_subscription_bumps_nothing(run):
    run.joined("a")
    run.beat("a", 3, client_id="other", rack_id="r")
    assert run.records() == [10] and run.group.epoch == 3


def test_a_topic_that_does_not_exist_counts_for_nothing(run):
    answer = run.join("a", ("nobody",))
    assert answer.assignment == frozenset() and run.records() == [10, 11, 13, 12, 14]
    assert run.group.metadata_hash == 0
    run.image = image(ONE, TWO, topic("nobody", b"n" * 16, [[None]]))
    run.group.topics_changed({"nobody"})
    run.beat("a", 2)
    assert run.records() == [11, 13, 12, 14, 15] or run.records() == [11, 12, 14, 15]
    assert run.decision.initialize == {(b"n" * 16, 0): -1}


def test_partitions_that_are_added_get_a_state(run):
    run.joined("a")
    run.image = image(topic("ta", TA, [[None]] * 6), TWO)
    run.group.topics_changed({"ta"})
    answer = run.beat("a", 3)
    assert answer.member_epoch == 4
    assert run.decision.initialize == {(TA, 4): -1, (TA, 5): -1}
    run.initialized()
    assert run.beat("a", 4).assignment == tas(*range(6))


def test_a_deleted_topic(run):
    """GN 3.11."""
    run.joined("a", names=("ta", "tb"))
    run.image = image(TWO)
    run.group.topics_changed({"ta"})
    run.carry_out(states.topics_gone(run.group, run.image))
    assert run.records() == [15] and set(run.group.states.initialized) == {TB}
    answer = run.beat("a", run.group.members["a"].epoch)
    assert answer.assignment == {(TB, 0), (TB, 1)}
    run.carry_out(states.topics_gone(run.group, run.image))
    assert run.records() == []


def test_leaving_and_removal(run):
    """GN 3.7."""
    run.joined("a", "b")
    epoch = run.group.epoch
    answer = run.beat("b", -1)
    assert (answer.member_id, answer.member_epoch) == ("b", -1)
    assert run.records() == [14, 13, 10, 11] and run.group.epoch == epoch + 1
    assert run.group.metadata_hash != 0
    run.remove("a")
    assert run.group.metadata_hash == 0 and run.group.state.value == "Empty"
    assert run.join("a").assignment == tas(0, 1, 2, 3)


# states
def test_what_is_not_answered_is_asked_again_later():
    """GN 3.10."""
    run = ShareRun(initialize_retry_ms=30_000)
    run.join("a")
    assert len(run.decision.initialize) == 4
    run.wall_ms += 29_999
    run.beat("a", 2)
    assert not run.decision.initialize
    run.wall_ms += 1
    run.beat("a", 2)
    assert len(run.decision.initialize) == 4 and run.records() == [15]


def test_after_a_load_what_was_not_answered_is_asked_at_once(run):
    run.join("a")
    replay = GroupReplay(ShareGroup)
    for each in run.log:
        replay.apply(decode_record(*each))
    run.group = replay.groups["g"]
    run.beat("a", 2)
    assert len(run.decision.initialize) == 4


def test_what_was_refused_is_forgotten_and_asked_again(run):
    run.join("a")
    run.initialized(failed=[(TA, 1)])
    assert run.group.states.initializing == {}
    assert run.group.states.initialized[TA].partitions == {0, 2, 3}
    answer = run.beat("a", 2)
    assert answer.assignment == tas(0, 2, 3)
    assert run.decision.initialize == {(TA, 1): -1}


def test_a_group_with_members_keeps_its_states(run):
    run.joined("a")
    for decide in (
        lambda: states.begin_deleting(run.group, run.image),
        lambda: states.begin_deleting_topics(run.group, ["ta"], run.image),
        lambda: states.alter(run.group, {"ta": {0: 1}}, run.environment()),
    ):
        with pytest.raises(BrokerError) as caught:
            decide()
        assert caught.value.code is E.NON_EMPTY_GROUP


def test_a_topic_whose_states_are_deleted_may_come_back(run):
    """GN 3.11."""
    run.joined("a")
    run.beat("a", -1)
    run.carry_out(states.begin_deleting_topics(run.group, ["ta"], run.image))
    assert run.decision.delete == tas(0, 1, 2, 3)
    again = states.begin_deleting_topics(run.group, ["ta"], run.image)
    assert again.delete == tas(0, 1, 2, 3)
    run.join("a")
    assert run.group.states.deleting == {} and len(run.decision.initialize) == 4
    run.carry_out(states.deleted(run.group, [TA]))
    assert run.records() == []


def test_deleting_a_group_deletes_what_was_left_over(run):
    run.joined("a", names=("ta", "tb"))
    run.beat("a", -1)
    run.carry_out(states.begin_deleting_topics(run.group, ["tb"], run.image))
    run.carry_out(states.begin_deleting(run.group, run.image))
    assert run.decision.delete == tas(0, 1, 2, 3) | {(TB, 0), (TB, 1)}
    run.image = image()
    run.carry_out(states.topics_gone(run.group, run.image))
    assert run.group.states == ShareStates()


def test_a_group_of_offsets_alone_is_read_back_also_after_a_group_that_was_deleted(run):
    """The key of its own tombstone may come behind that of its states."""
    run.join("a")
    run.initialized()
    run.beat("a", -1)
    run.log += map(encode_record, run.group.tombstones())
    alone = states.alter(ShareGroup("g"), {"ta": {0: 5}}, run.environment())
    run.log += map(encode_record, alone.records)
    latest = dict(run.log)
    replay = GroupReplay(ShareGroup)
    for key, value in latest.items():
        replay.apply(decode_record(key, value))
    replay.finish()
    assert replay.groups["g"].states.initializing[TA].partitions == {0}
    assert not replay.groups["g"].is_unwritten


class ShareGroupMachine(RuleBasedStateMachine):
    """Members come, go and read other topics; topics change; the share coordinator answers late or
    never. After each decision the log says what the group is (`ShareRun.check`).
    """

    def __init__(self):
        super().__init__()
        self.run = ShareRun(assignment_interval_ms=1_000)
        self.asked = {}

    members = st.sampled_from("abcd")

    def note(self):
        self.asked |= getattr(self.run.decision, "initialize", {})

    @rule(member=members, names=st.sampled_from([("ta",), ("tb",), ("ta", "tb"), ("ta", "x")]))
    def join(self, member, names):
        answer = self.run.join(member, names)
        assert answer.assignment is not None and answer.member_epoch > 0
        self.note()

    @rule(member=members, late=st.booleans())
    def beat(self, member, late):
        known = self.run.group.members.get(member)
        if known is not None:
            epoch = known.previous_epoch if late and known.previous_epoch > 0 else known.epoch
            assert self.run.beat(member, epoch).member_epoch >= known.epoch
            self.note()

    @rule(member=members)
    def leave(self, member):
        if member in self.run.group.members:
            self.run.beat(member, -1)

    @rule(ms=st.integers(0, 20_000))
    def time_passes(self, ms):
        self.run.wall_ms += ms

    @rule(data=st.data())
    def answered(self, data):
        some = [each for each in sorted(self.asked) if data.draw(st.booleans())]
        failed = [each for each in some if data.draw(st.booleans())]
        done = [each for each in some if each not in failed]
        for each in some:
            del self.asked[each]
        self.run.carry_out(states.initialized(self.run.group, done, failed, self.run.image))

    @rule(topics=st.sampled_from([(ONE, TWO), (ONE,), (TWO,), ()]))
    def topics_change(self, topics):
        self.run.image = image(*topics)
        self.run.group.topics_changed({"ta", "tb"})
        self.run.carry_out(states.topics_gone(self.run.group, self.run.image))

    @rule()
    def delete(self):
        if self.run.group.is_empty:
            self.run.carry_out(states.begin_deleting(self.run.group, self.run.image))
            self.run.carry_out(
                states.deleted(self.run.group, list(self.run.group.known_states.deleting))
            )


ShareGroupMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestShareGroupMachine = ShareGroupMachine.TestCase


def test_steps_of_a_large_target(run):
    """A thousand partitions for many members yield in between."""
    run.image = image(topic("ta", TA, [[None]] * 1_000))
    run.settings = type(run.settings)(assignment_interval_ms=0, max_size=1000)
    run.joined("a")
    steps = whole(iter_steps(run))
    assert steps > 1


def iter_steps(run):
    from twisted_broker.coordinator.share.heartbeat import heartbeat

    count = 0
    request = ShareHeartbeatRequest("g", "b", 0, names=("ta",))
    for _ in heartbeat(run.group, request, run.environment()):
        count += 1
    return count
    yield
