"""Records of `__consumer_offsets`, against segments that Apache Kafka 4.3.1 wrote (golden/: one
consumer, kafka-python, 1 broker).
"""

import contextlib
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.coordinator import group_records
from twisted_broker.coordinator.group_records import (
    CommittedOffset,
    GroupMetadata,
    GroupRecord,
    MalformedRecord,
    MemberSnapshot,
    OffsetRecord,
    batch_of,
    group_record,
    java_hash,
    offset_record,
    partition_for,
    read_record,
)
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.records import Record, iterate_batches, set_offsets_and_epoch

GOLDEN = Path(__file__).parent / "golden"
SEGMENTS = {
    "deleted-group": ("gone", 5),
    "simple-group": ("simple", 26),
    "dynamic-group": ("readers", 28),
    "static-group": ("static", 38),
}


def golden_records(name: str) -> list[Record]:
    return [
        record
        for batch in iterate_batches((GOLDEN / f"{name}.log").read_bytes(), check_crc=True)
        for record in batch.records()
    ]


@pytest.mark.parametrize("name", SEGMENTS)
def test_kafkas_records_come_back_as_the_same_bytes(name):
    """Every record of 4.3.1 is read, and written again it is equal to the byte: versions, tags,
    order of fields.
    """
    records = golden_records(name)
    assert records
    for record in records:
        read = read_record(record.key, record.value, record.offset)
        if isinstance(read, OffsetRecord):
            again = offset_record(read.group_id, read.topic, read.partition, read.value)
        else:
            assert isinstance(read, GroupRecord)
            again = group_record(read.group_id, read.value)
        assert again == (record.key, record.value)


@pytest.mark.parametrize("name", SEGMENTS)
def test_kafkas_batches_come_back_as_the_same_bytes(name):
    """A batch of the same records at the same time is equal to the byte, checksum included, once
    the log has given it its offset.
    """
    for batch in iterate_batches((GOLDEN / f"{name}.log").read_bytes()):
        ours = bytearray(
            batch_of([(r.key or b"", r.value) for r in batch.records()], batch.max_timestamp)
        )
        set_offsets_and_epoch(ours, batch.base_offset, batch.partition_leader_epoch)
        assert ours == batch.to_bytes()


@pytest.mark.parametrize(("group", "partition"), SEGMENTS.values())
def test_a_group_lives_where_kafka_put_it(group, partition):
    """The partition is Java's hash of the group id modulo 50."""
    assert partition_for(group, 50) == partition


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("polygenelubricants", -(2**31)),
        ("ü", 252),
        ("😀", 0xD83D * 31 + 0xDE00),
    ],
)
def test_javas_hash(text, expected):
    """UTF-16 units, 32 bits; the smallest integer has no absolute value and goes to partition 0."""
    assert java_hash(text) == expected
    if expected == -(2**31):
        assert partition_for(text, 50) == 0


def test_what_the_golden_segments_say():
    """The content, not only the bytes: members, static instance, offsets with topic ids,
    tombstones.
    """
    simple = read_record(
        golden_records("simple-group")[0].key, golden_records("simple-group")[0].value
    )
    assert isinstance(simple, OffsetRecord) and simple.value is not None
    assert (
        simple.topic,
        simple.partition,
        simple.value.offset,
        simple.value.metadata,
        simple.value.leader_epoch,
    ) == ("pageviews", 0, 3, "note", -1)
    assert any(simple.value.topic_id)
    groups = [
        r
        for r in (read_record(x.key, x.value) for x in golden_records("static-group"))
        if isinstance(r, GroupRecord)
    ]
    last = groups[-1].value
    assert (
        last is not None
        and last.members[0].instance_id == "i-1"
        and last.members[0].session_timeout_ms == 45000
        and last.protocol == "range"
    )
    gone = golden_records("deleted-group")
    assert [r.value for r in gone[-2:]] == [None, None] and [
        type(read_record(r.key, None)) for r in gone[-2:]
    ] == [OffsetRecord, GroupRecord]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32s, int64s = st.integers(-(2**31), 2**31 - 1), st.integers(-1, 2**63 - 1)


@given(
    texts,
    texts,
    int32s,
    st.builds(
        CommittedOffset,
        int64s,
        int32s,
        texts,
        int64s,
        st.just(-1),
        st.binary(min_size=16, max_size=16),
        st.just(7),
    ),
)
def test_offsets_come_back(group, topic, partition, committed):
    """Version 4: everything, the topic id too."""
    assert read_record(*offset_record(group, topic, partition, committed), 7) == OffsetRecord(
        group, topic, partition, committed
    )


@given(texts, texts, int64s, st.integers(0, 2**62))
def test_offsets_with_their_own_expiry_come_back(group, topic, offset, expire_ms):
    """Version 1: an old client's retention time; there is no room for leader epoch and topic id."""
    committed = CommittedOffset(offset, -1, "m", 5, expire_ms)
    assert read_record(*offset_record(group, topic, 0, committed)) == OffsetRecord(
        group, topic, 0, committed
    )


members = st.builds(
    MemberSnapshot,
    texts,
    st.none() | texts,
    texts,
    texts,
    st.integers(0, 2**31 - 1),
    int32s,
    st.binary(max_size=9),
    st.binary(max_size=9),
)


@given(
    texts,
    texts,
    int32s,
    st.none() | texts,
    st.none() | texts,
    int64s,
    st.lists(members, max_size=3),
)
def test_groups_come_back(group, kind, generation, protocol, leader, timestamp_ms, found):
    """Version 3: everything of the group and its members."""
    metadata = GroupMetadata(group, kind, generation, protocol, leader, timestamp_ms, tuple(found))
    assert read_record(*group_record(group, metadata)) == GroupRecord(group, metadata)


@pytest.mark.parametrize("kind", [3, 8, 16, 17, 99])
def test_other_coordinators_records_are_left_alone(kind):
    """Keys of the protocol of KIP-848, of share and streams groups."""
    assert read_record(kind.to_bytes(2, "big") + b"anything", b"value") is None


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_bytes_do_more_than_be_malformed(key, value):
    """Whatever lies in the log, reading it ends in a record, None or MalformedRecord."""
    for prefix in (b"", b"\0\0", b"\0\1", b"\0\2"):
        with contextlib.suppress(MalformedRecord):
            read_record(prefix + key, value)


def test_reading_records_needs_no_reactor():
    """Ring 0: the records and the core import nothing of Twisted."""
    modules = "twisted_broker.coordinator.group_requests, twisted_broker.coordinator.group_offsets"
    program = f"import sys, {modules}; sys.exit(any(m.startswith('twisted.') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_value_in_one_step_says_what_the_whole_decoder_says(monkeypatch):
    """With and without a topic id, and with each byte of them changed."""
    values = [
        offset_record("g", "t", 1, CommittedOffset(5, 3, "", 1000, topic_id=topic_id))[1] or b""
        for topic_id in (bytes(range(16)), b"\0" * 16)
    ]
    assert [len(value) for value in values] == [
        group_records._PLAIN_WITH_ID.size,
        group_records._PLAIN.size,
    ]
    changed = [
        value[:place] + bytes([byte]) + value[place + 1 :]
        for value in values
        for place in range(len(value))
        for byte in (0, 1, 2, 4, 0x10, 0xFF)
    ]

    def read(value):
        try:
            return group_records.read_offset(value, 7)
        except (MalformedRecord, WireError):
            return None

    in_one_step = [read(value) for value in changed]
    for name in ("_PLAIN", "_PLAIN_WITH_ID"):
        monkeypatch.setattr(group_records, name, struct.Struct(">99s"))
    assert in_one_step == [read(value) for value in changed]
    assert None in in_one_step
