"""Records of consumer groups against segments that Apache Kafka 4.3.1 wrote (golden/consumer-*)."""

import base64
import struct

import pytest

from tests.coordinator.test_group_records import golden_records
from twisted_broker.coordinator.consumer.records import decode_record
from twisted_broker.coordinator.group_records import MalformedRecord
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.wire.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)

SEGMENTS = {
    "consumer-group-first": (25, {3, 5, 6, 7, 8, 16}),
    "consumer-group-members": (38, {3, 4, 5, 6, 7, 8}),
    "consumer-group-migrated": (35, {3, 4, 5, 6, 7, 8}),
    "consumer-group-pattern": (36, {3, 4, 5, 6, 7, 8, 16}),
    "consumer-group-static": (21, {3, 4, 5, 6, 7, 8}),
    "consumer-group-topic-changes": (22, {3, 5, 6, 7, 8}),
}


def read(name):
    decoded = ((record, decode_record(record.key, record.value)) for record in golden_records(name))
    return [(record, ours) for record, ours in decoded if ours is not None]


@pytest.mark.parametrize("name", SEGMENTS)
def test_kafkas_records_come_back_as_the_same_bytes(name):
    """GN 2.100, 2.101: every type, values and tombstones, to the byte."""
    records = read(name)
    count, types = SEGMENTS[name]
    assert (len(records), {ours[0].record_type for _, ours in records}) == (count, types)
    for record, ours in records:
        assert encode_record(ours) == (record.key, record.value)


def test_what_the_golden_segments_say():
    """GN 2.100: fields of each type, tagged ones included."""
    first = [ours for _, ours in read("consumer-group-members")]
    (key, member), (_, group), _, (_, target), (_, current) = first[:5]
    assert key == ConsumerGroupMemberMetadataKey(group_id="c1", member_id="m1")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["ta"], "")
    assert (member.rebalance_timeout_ms, member.client_host) == (10_000, "/127.0.0.1")
    assert member.classic_member_metadata is None
    assert group == ConsumerGroupMetadataValue(epoch=2, metadata_hash=1770705088942171562)
    assert target == ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=2, assignment_timestamp=1795823354039
    )
    assert (current.member_epoch, current.previous_member_epoch, current.state) == (2, 0, 0)
    (assigned,) = current.assigned_partitions
    assert assigned.topic_id == base64.urlsafe_b64decode("XigU19zKRKWcoH-RhPvrAQ==")
    assert (assigned.partitions, assigned.assignment_epochs) == ([0, 1, 2, 3], [2, 2, 2, 2])
    pattern = [ours for _, ours in read("consumer-group-pattern") if ours[0].record_type == 16]
    name = ConsumerGroupRegularExpressionKey(group_id="g3", regular_expression="t.*")
    resolved = ConsumerGroupRegularExpressionValue(
        topics=["ta", "tb"], version=282, timestamp=1795823198675
    )
    assert pattern == [(name, resolved), (name, None)]
    migrated = [ours for _, ours in read("consumer-group-migrated")]
    classic = migrated[0][1].classic_member_metadata
    assert classic is not None
    assert classic.supported_protocols[0].name == "cooperative-sticky"


def test_a_value_of_a_newer_version_is_read_as_far_as_version_0_goes():
    """GN 2.106."""
    key, value = encode_record(
        (ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=7))
    )
    assert value is not None
    tag_of_a_later_version = b"\x01\x05\x01x"
    newer = struct.pack(">h", 1) + value[2:-1] + tag_of_a_later_version
    assert decode_record(key, newer) == decode_record(key, value)


def test_an_absent_list_of_epochs_is_not_an_empty_one():
    """GN 2.103: a log of Kafka 4.2 or older has none."""
    name = "consumer-group-members"
    current = next(o[1] for _, o in read(name) if o[0].record_type == 8 and o[1] is not None)
    assert isinstance(current, ConsumerGroupCurrentMemberAssignmentValue)
    current.assigned_partitions[0].assignment_epochs = None
    key = next(o[0] for _, o in read(name) if o[0].record_type == 8)
    again = decode_record(*encode_record((key, current)))
    assert again is not None and again[1] == current


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"\0", None),
        (b"\0\3", None),
        (b"\0\3\0\1g", b""),
        (b"\0\3\0\1g", b"\xff\xff"),
        (b"\0\3\0\1g", b"\0\0\0"),
    ],
)
def test_bytes_that_are_no_record_are_refused(key, value):
    with pytest.raises(MalformedRecord):
        decode_record(key, value)


@pytest.mark.parametrize("other", [0, 1, 2, 9, 15, 17, 32767])
def test_records_of_another_kind_are_left_alone(other):
    assert decode_record(struct.pack(">h", other) + b"\0\1g", None) is None
