"""Records of `__consumer_offsets`: bytes <-> offsets and groups.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the versions that are written, and the types that records become when they are read.

1. Written as Apache Kafka 4.3.1 writes: an offset as value version 4 (topic id in a tagged field),
   version 1 when it carries an expiry of its own; a group as version 3; a tombstone as a null
   value.
2. Read: offset values 0-4 under key types 0 and 1, group values 0-4 under key type 2. Any other key
   type is another coordinator's and is left alone (None); bytes that do not fit raise
   `MalformedRecord`, so that a load can skip and count them.
3. Every group and all its offsets live in one partition: Java's hash of the group id modulo the
   number of partitions.

Source: FILE_FORMATS 4; `GroupCoordinatorRecordHelpers`, `GroupCoordinatorRecordSerde`, `Utils.abs`.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from twisted_broker.wire.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.wire.records import BatchBuilder
from twisted_broker.wire.schema import decode, decode_from, encode, encode_in_slices

LEGACY_OFFSET, OFFSET, GROUP = 0, 1, 2
OFFSET_VERSION, OFFSET_VERSION_WITH_EXPIRY, GROUP_VERSION = 4, 1, 3
NEWEST_OFFSET_VERSION = NEWEST_GROUP_VERSION = 4
NO_EXPIRY = -1
# Strings of these records have a length of 16 bits.
LONGEST_TEXT_BYTES = 32767
# Limit of the members' subscriptions and assignments in one group record: writing them takes
# 4 ms of one turn for each MiB. A topic takes batches of 1 MiB unless it is set otherwise.
MOST_MEMBER_BYTES = 8 << 20
_SHORT = struct.Struct(">h")
# What nearly all clients write is read in one step: an offset of version 4 with no metadata, with
# and without a topic id (one tagged field, 0, of 16 bytes).
_PLAIN = struct.Struct(">hqiBqB")
_PLAIN_WITH_ID = struct.Struct(">hqiBq3s16s")
_EMPTY_TEXT, _ONLY_TOPIC_ID = 1, b"\x01\x00\x10"


class MalformedRecord(ValueError):
    """A record of `__consumer_offsets` that cannot be read."""


class CommittedOffset(NamedTuple):
    """One committed offset; `record_offset` is where its record lies in the log, -1 while that
    is not known. A tuple, as a load makes a million of them.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: bytes = NULL_UUID
    record_offset: int = -1


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member, as a group's record holds it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The content of one group record."""

    group_id: str
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = -1
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """`value` None: a tombstone."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """`value` None: a tombstone."""

    group_id: str
    value: GroupMetadata | None


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """Whose transaction a batch belongs to."""

    id: int
    epoch: int


NOT_TRANSACTIONAL = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
KeyValue = tuple[bytes, bytes | None]


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 units, wrapped to 32 bits with a sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for i in range(0, len(units), 2):
        result = (31 * result + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result


def partition_for(group_id: str, partitions_count: int) -> int:
    """The partition of `__consumer_offsets` that holds the group."""
    hashed = java_hash(group_id)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions_count


def fits_record(*texts: str | None) -> bool:
    """Whether each could be a string of a record, whose length has 16 bits."""
    return all(
        len(text) <= LONGEST_TEXT_BYTES // 4 or len(text.encode()) <= LONGEST_TEXT_BYTES
        for text in texts
        if text
    )


# writing
def offset_record(
    group_id: str, topic: str, partition: int, committed: CommittedOffset | None
) -> KeyValue:
    """The record of a committed offset; None: its tombstone."""
    key = _SHORT.pack(OFFSET) + encode(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition), 0
    )
    if committed is None:
        return key, None
    version = (
        OFFSET_VERSION if committed.expire_timestamp_ms == NO_EXPIRY else OFFSET_VERSION_WITH_EXPIRY
    )
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    )
    return key, _SHORT.pack(version) + encode(value, version)


def group_record(group_id: str, metadata: GroupMetadata | None) -> KeyValue:
    """The record of a group; None: its tombstone. Raises MESSAGE_TOO_LARGE."""
    key = _SHORT.pack(GROUP) + encode(GroupMetadataKey(group=group_id), 0)
    if metadata is None:
        return key, None
    return key, _SHORT.pack(GROUP_VERSION) + encode(_group_value(metadata), GROUP_VERSION)


def group_record_in_steps(metadata: GroupMetadata) -> Generator[None, None, KeyValue]:
    """As `group_record`, pausing after every FEW_ELEMENTS members. Raises MESSAGE_TOO_LARGE."""
    key = _SHORT.pack(GROUP) + encode(GroupMetadataKey(group=metadata.group_id), 0)
    value = _group_value(metadata)
    yield
    parts: list[bytes] = [_SHORT.pack(GROUP_VERSION)]
    yield from encode_in_slices(value, GROUP_VERSION, parts)
    return key, b"".join(parts)


def _group_value(metadata: GroupMetadata) -> GroupMetadataValue:
    if member_bytes(metadata) > MOST_MEMBER_BYTES:
        raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE)
    return GroupMetadataValue(
        protocol_type=metadata.protocol_type,
        generation=metadata.generation,
        protocol=metadata.protocol,
        leader=metadata.leader,
        current_state_timestamp=metadata.state_timestamp_ms,
        members=[_member_record(m) for m in metadata.members],
    )


def member_bytes(metadata: GroupMetadata) -> int:
    """The bytes of the subscriptions and assignments in a group's record."""
    return sum(len(m.subscription) + len(m.assignment) for m in metadata.members)


def _member_record(member: MemberSnapshot) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.subscription,
        assignment=member.assignment,
    )


def batch_of(
    records: Sequence[KeyValue],
    wall_ms: int,
    producer: ProducerIdAndEpoch = NOT_TRANSACTIONAL,
) -> bytes:
    """One batch; its base sequence is 0 as in Kafka's, whether there is a producer or not."""
    builder = _builder(producer)
    for key, value in records:
        builder.append(wall_ms, key, value)
    return builder.build()


def batch_in_steps(
    records: Iterable[KeyValue],
    wall_ms: int,
    per_step: int,
    producer: ProducerIdAndEpoch = NOT_TRANSACTIONAL,
) -> Generator[None, None, bytes]:
    """As `batch_of`, pausing after every `per_step` records."""
    builder = _builder(producer)
    for number, (key, value) in enumerate(records, 1):
        builder.append(wall_ms, key, value)
        if number % per_step == 0:
            yield
    return builder.build()


def _builder(producer: ProducerIdAndEpoch) -> BatchBuilder:
    return BatchBuilder(
        base_sequence=0,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        is_transactional=producer.id >= 0,
    )


# reading
def read_record(
    key: bytes | None, value: bytes | None, record_offset: int = -1
) -> OffsetRecord | GroupRecord | None:
    """One record; None when its key is of a type that is not ours. Raises MalformedRecord."""
    if key is None or len(key) < 2:
        raise MalformedRecord("a record without a key")
    (kind,) = _SHORT.unpack_from(key)
    try:
        if kind in (OFFSET, LEGACY_OFFSET):
            name = decode(OffsetCommitKey, key, 0, 2)
            return OffsetRecord(
                name.group, name.topic, name.partition, read_offset(value, record_offset)
            )
        if kind == GROUP:
            group_id = decode(GroupMetadataKey, key, 0, 2).group
            return GroupRecord(group_id, _read_group(group_id, value))
    except WireError as error:
        raise MalformedRecord(str(error)) from None
    return None


def _read_value(cls: Any, value: bytes, newest: int) -> Any:
    if len(value) < 2:
        raise MalformedRecord("a value without a version")
    (version,) = _SHORT.unpack_from(value)
    if not 0 <= version <= newest:
        raise MalformedRecord(f"{cls.__name__} of version {version}")
    return decode_from(cls, value, version, 2)[0]


def read_offset(value: bytes | None, record_offset: int) -> CommittedOffset | None:
    """The value of an offset's record. Raises MalformedRecord, or WireError."""
    if value is None:
        return None
    topic_id = NULL_UUID
    if len(value) == _PLAIN_WITH_ID.size:
        version, offset, epoch, text, timestamp_ms, tags, topic_id = _PLAIN_WITH_ID.unpack(value)
        is_plain = version == 4 and text == _EMPTY_TEXT and tags == _ONLY_TOPIC_ID
    elif len(value) == _PLAIN.size:
        version, offset, epoch, text, timestamp_ms, tags = _PLAIN.unpack(value)
        is_plain = version == 4 and text == _EMPTY_TEXT and tags == 0
    else:
        is_plain = False
    if is_plain:
        return CommittedOffset(offset, epoch, "", timestamp_ms, NO_EXPIRY, topic_id, record_offset)
    v = _read_value(OffsetCommitValue, value, NEWEST_OFFSET_VERSION)
    return CommittedOffset(
        v.offset,
        v.leader_epoch,
        v.metadata,
        v.commit_timestamp,
        v.expire_timestamp,
        v.topic_id,
        record_offset,
    )


def _read_group(group_id: str, value: bytes | None) -> GroupMetadata | None:
    if value is None:
        return None
    v = _read_value(GroupMetadataValue, value, NEWEST_GROUP_VERSION)
    members = tuple(
        MemberSnapshot(
            m.member_id,
            m.group_instance_id,
            m.client_id,
            m.client_host,
            m.session_timeout if m.rebalance_timeout < 0 else m.rebalance_timeout,
            m.session_timeout,
            bytes(m.subscription),
            bytes(m.assignment),
        )
        for m in v.members
    )
    return GroupMetadata(
        group_id,
        v.protocol_type,
        v.generation,
        v.protocol,
        v.leader,
        v.current_state_timestamp,
        members,
    )
