"""Record batches: header, views, iteration, patches, control batches; against bytes written by
Apache Kafka 4.3.1 and by kafka-python.
"""

from __future__ import annotations

import struct

import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from twisted_broker.wire import records as r
from twisted_broker.wire.errors import ErrorCode

from .record_samples import GOLDEN, fill, golden_record, small_batch

TWELVE = [golden_record(index, index) for index in range(12)]
PLAIN = ["client-none", "idempotent"]
COMPRESSED = [
    f"{side}-{codec}"
    for side in ("client", "broker")
    for codec in ("gzip", "snappy", "lz4", "zstd")
]


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", PLAIN + COMPRESSED)
def test_reads_what_kafka_wrote(name: str) -> None:
    """A log written by Kafka 4.3.1 gives back the records that were sent, for every codec of
    librdkafka and of the Java broker (RL 3.1).
    """
    (batch,) = r.iterate_batches(golden(name), check_crc=True)
    assert list(batch.records(sequential=True)) == TWELVE
    assert (
        batch.base_offset,
        batch.last_offset,
        batch.next_offset,
        batch.records_count,
        batch.magic,
    ) == (0, 11, 12, 12, 2)
    assert (batch.base_timestamp, batch.max_timestamp) == (
        TWELVE[0].timestamp,
        TWELVE[-1].timestamp,
    )


def test_log_append_time_of_kafka() -> None:
    """With LogAppendTime every record carries the batch's max timestamp, whatever its delta
    says.
    """
    (batch,) = r.iterate_batches(golden("append-time"), check_crc=True)
    assert batch.timestamp_type == r.LOG_APPEND_TIME
    assert [record.timestamp for record in batch.records()] == [batch.max_timestamp] * 12
    assert [record.value for record in batch.records()] == [record.value for record in TWELVE]


@pytest.mark.parametrize("name", PLAIN)
def test_writes_kafkas_bytes(name: str) -> None:
    """Without a codec our builder makes the very bytes that lie in Kafka's log (RL 3.1)."""
    bytes_of_kafka = golden(name)
    state = 0 if name == "idempotent" else -1
    builder = r.BatchBuilder(
        leader_epoch=0, producer_id=state, producer_epoch=state, base_sequence=state
    )
    assert fill(builder, TWELVE).build() == bytes_of_kafka


def test_transactions_of_kafka() -> None:
    """Commit and abort markers are recognised, and ours are byte for byte Kafka's."""
    first, commit, second, abort = r.iterate_batches(golden("transactions"), check_crc=True)
    assert [batch.is_transactional for batch in (first, commit, second, abort)] == [True] * 4
    assert [batch.is_control for batch in (first, commit, second, abort)] == [
        False,
        True,
        False,
        True,
    ]
    assert (
        second.base_sequence,
        second.last_sequence,
        commit.base_sequence,
        commit.last_sequence,
    ) == (3, 4, -1, -1)
    for marker, is_commit in ((commit, True), (abort, False)):
        (record,) = marker.records()
        assert r.control_record_type(record.key) == int(is_commit)
        epoch = r.end_marker_coordinator_epoch(record.value)
        ours = r.build_end_marker(
            marker.producer_id,
            marker.producer_epoch,
            is_commit,
            epoch,
            record.timestamp,
            base_offset=marker.base_offset,
            leader_epoch=0,
        )
        assert ours == marker.to_bytes()


@pytest.mark.parametrize(("name", "types"), [("leader-change", [2]), ("snapshot", [3, None, 4])])
def test_quorum_control_batches_of_kafka(name: str, types: list[int | None]) -> None:
    """Leader change and snapshot frames are read, and rebuilt from type and value to the same
    bytes.
    """
    batches = list(r.iterate_batches(golden(name), check_crc=True))
    for batch, wanted in zip(batches, types, strict=True):
        assert batch.is_control == (wanted is not None)
        if wanted is None:
            continue
        (record,) = batch.records()
        assert r.control_record_type(record.key) == wanted
        assert record.value is not None
        ours = r.build_control_batch(
            wanted,
            record.value,
            record.timestamp,
            base_offset=batch.base_offset,
            leader_epoch=batch.partition_leader_epoch,
        )
        assert ours == batch.to_bytes()


def test_header_in_one_read() -> None:
    """The hot path's tuple has Kafka's 13 fields in their order, and says the same as the view."""
    batch = small_batch()
    header = r.read_batch_header(b"xyz" + batch, 3)
    view = r.BatchView(batch)
    assert header == struct.unpack_from(">qiibIhiqqqhii", batch)
    assert header == (
        view.base_offset,
        view.length,
        view.partition_leader_epoch,
        view.magic,
        view.crc,
        view.attributes,
        view.last_offset_delta,
        view.base_timestamp,
        view.max_timestamp,
        view.producer_id,
        view.producer_epoch,
        view.base_sequence,
        view.records_count,
    )
    assert r.read_valid_batch(b"xyz" + batch, 3) == header
    assert r.batch_crc(memoryview(b"xyz" + batch), 3, len(batch)) == view.crc
    assert r.peek_magic(b"xyz" + batch, 3) == 2
    assert r.batch_head(view.base_offset, view.length, view.partition_leader_epoch) == batch[:16]


@pytest.mark.parametrize("codec", range(5))
def test_kafka_python_agrees(codec: int) -> None:
    """kafka-python reads our batches and we read its, with every codec; uncompressed bytes are
    equal.
    """
    theirs = DefaultRecordBatchBuilder(2, codec, True, 9, 2, 5, 1 << 20)
    for record in TWELVE:
        theirs.append(record.offset, record.timestamp, record.key, record.value, record.headers)
    their_bytes = bytes(theirs.build())
    builder = r.BatchBuilder(
        codec=codec,
        producer_id=9,
        producer_epoch=2,
        base_sequence=5,
        is_transactional=True,
        leader_epoch=0,
    )
    our_bytes = fill(builder, TWELVE).build()
    if codec == 0:
        assert our_bytes == their_bytes
    assert list(r.BatchView(their_bytes).records(sequential=True)) == TWELVE
    read = DefaultRecordBatch(our_bytes)
    assert read.validate_crc()
    assert [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in read
    ] == [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in TWELVE
    ]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer(kind: type) -> None:
    """Views over bytes, bytearray and memoryview give the same records, as `bytes`."""
    buffer = kind(b"12345" + small_batch() + small_batch(codec=1, count=2))
    first, second = r.iterate_batches(buffer, 5)
    assert list(first.records()) == TWELVE[:3]
    assert list(second.records()) == TWELVE[:2]
    assert all(
        type(record.value) is bytes for record in first.records() if record.value is not None
    )
    assert bytes(buffer[5:]) == first.to_bytes() + second.to_bytes()


def test_offsets_and_epoch_outside_the_crc() -> None:
    """The leader writes base offset and leader epoch without touching the CRC (RL 3.2)."""
    buffer = bytearray(b"ab" + small_batch())
    before = r.BatchView(bytes(buffer), 2)
    r.set_offsets_and_epoch(buffer, 1_000_000_000_000, 77, 2)
    after = r.BatchView(buffer, 2)
    assert (after.base_offset, after.partition_leader_epoch, after.crc) == (
        1_000_000_000_000,
        77,
        before.crc,
    )
    assert after.is_valid_crc()
    assert [record.offset for record in after.records()] == [
        1_000_000_000_000 + delta for delta in range(3)
    ]


def test_log_append_time_patch() -> None:
    """LogAppendTime rewrites attributes, max timestamp and CRC, nothing else (RL 3.2);
    CreateTime takes it back.
    """
    original = small_batch(codec=4)
    buffer = bytearray(original)
    r.set_log_append_time(buffer, 1_800_000_000_000)
    batch = r.BatchView(buffer)
    assert batch.is_valid_crc()
    assert (batch.timestamp_type, batch.max_timestamp, batch.codec) == (
        r.LOG_APPEND_TIME,
        1_800_000_000_000,
        4,
    )
    assert {record.timestamp for record in batch.records()} == {1_800_000_000_000}
    assert (
        buffer[:17] + buffer[23:35] + buffer[43:] == original[:17] + original[23:35] + original[43:]
    )
    r.set_max_timestamp(buffer, r.CREATE_TIME, r.BatchView(original).max_timestamp)
    assert buffer == original


def test_compacted_batch() -> None:
    """A batch with holes keeps its last offset; walked as a producer's batch it is refused,
    walked plainly it is read.
    """
    builder = r.BatchBuilder(base_offset=10, delete_horizon_ms=5000)
    builder.append(4000, b"k", None, offset_delta=2)
    builder.append(6000, b"l", b"v", offset_delta=7)
    batch = r.BatchView(builder.build(last_offset_delta=9))
    assert [(record.offset, record.timestamp) for record in batch.records()] == [
        (12, 4000),
        (17, 6000),
    ]
    assert (batch.last_offset, batch.delete_horizon_ms, batch.max_timestamp) == (19, 5000, 6000)
    with pytest.raises(r.InvalidRecordError):
        batch.records(sequential=True)
    with pytest.raises(ValueError):
        builder.append(1, None, None, offset_delta=7)
    with pytest.raises(ValueError):
        builder.append(1, None, None, offset_delta=2**31)


def test_empty_batch() -> None:
    """What compaction leaves of an emptied batch is a header that keeps offsets, sequence and
    flags, and no records.
    """
    batch = r.BatchView(r.build_empty_batch(5, 9, 3, r.CREATE_TIME, 1234, 4, 1, 100, True, False))
    assert batch.is_valid_crc()
    assert (
        batch.size_in_bytes,
        batch.base_offset,
        batch.last_offset,
        batch.records_count,
        batch.last_sequence,
    ) == (61, 5, 9, 0, 104)
    assert (
        batch.base_timestamp,
        batch.max_timestamp,
        batch.is_transactional,
        batch.is_control,
    ) == (-1, 1234, True, False)
    assert list(batch.records()) == []


def test_builder_refuses() -> None:
    """A batch without records, a transaction without producer and a compressed control batch are
    mistakes of the caller.
    """
    with pytest.raises(ValueError):
        r.BatchBuilder().build()
    with pytest.raises(ValueError):
        r.BatchBuilder(is_transactional=True)
    with pytest.raises(ValueError):
        r.BatchBuilder(is_control=True, codec=1)


def test_sequence_wraps() -> None:
    """After sequence 2^31 - 1 comes 0, within a batch too."""
    builder = r.BatchBuilder(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert r.BatchView(fill(builder, TWELVE[:4]).build()).last_sequence == 1
    assert r.next_sequence(2**31 - 1, 1) == 0


def test_partial_tail() -> None:
    """A last batch that is cut short ends the walk where fetch answers are read, and is an error
    elsewhere; the good ones come first.
    """
    whole = small_batch()
    for cut in range(1, len(whole)):
        buffer = whole + whole[:cut]
        assert [batch.offset for batch in r.iterate_batches(buffer, partial_tail=True)] == [0]
        walk = r.iterate_batches(buffer)
        assert next(walk).offset == 0
        with pytest.raises(r.CorruptRecordError) as caught:
            next(walk)
        assert caught.value.position == len(whole)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(r.CorruptRecordError):
        list(r.iterate_batches(whole, end=len(whole) - 1))
