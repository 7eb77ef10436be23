"""What a leader lets in (RL 3.2; RELIABILITY 3.2 LogValidatorTest, 5.3 record batches)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from tests.log.batches import NOW_MS, all_batches, all_records, batch, config, marker, open_log
from twisted_broker.log import validation
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.validation import RecordsRefused
from twisted_broker.wire import records_count
from twisted_broker.wire.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from twisted_broker.wire.compression import compress
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.legacy import build_message_set
from twisted_broker.wire.records import (
    BatchBuilder,
    BatchView,
    batch_crc,
    set_log_append_time,
)

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def new_log(**settings: Any) -> Log:
    files = MemoryFileSystem()
    files.make_directories("/data")
    return open_log(files, settings=config(**settings))


def refused(
    code: ErrorCode, log: Log, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT
) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(data, 0, NOW_MS, origin=origin)
    assert caught.value.code == code, caught.value
    assert log.log_end_offset == 0 and log.segments.active.size == 0
    return caught.value


def patched(data: bytes, position: int, layout: str, value: int, fix_crc: bool = True) -> bytes:
    """The batch with one header field overwritten, and its CRC right again."""
    buffer = bytearray(data)
    struct.pack_into(layout, buffer, position, value)
    if fix_crc:
        struct.pack_into(">I", buffer, 17, batch_crc(buffer, 0, len(buffer)))
    return bytes(buffer)


@pytest.mark.parametrize("size", range(1, 80))
def test_a_cut_batch_is_no_batch(size: int) -> None:
    """RL 3.2, RELIABILITY 5.3: records that end anywhere inside the batch are INVALID_RECORD, as
    Kafka has it: to send them again does not help.
    """
    data = batch(b"x" * 30)
    if size < len(data):
        refused(ErrorCode.INVALID_RECORD, new_log(), data[:size])


def test_every_flipped_bit_is_refused() -> None:
    """RL 3.2, RELIABILITY 5.3: a bit flipped anywhere but in base offset and leader epoch is
    refused; those two are the leader's to write.
    """
    data = batch(b"value", producer_id=3, producer_epoch=0, base_sequence=0)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        log = new_log()
        if 12 <= position < 16:
            assert log.append_as_leader(bytes(flipped), 5, NOW_MS).first_offset == 0
            assert all_batches(log)[0].partition_leader_epoch == 5
        else:
            with pytest.raises(BrokerError):
                log.append_as_leader(bytes(flipped), 5, NOW_MS)
            assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("position", "layout", "value", "code"),
    [
        (0, ">q", 5, ErrorCode.INVALID_RECORD),
        (57, ">i", 0, ErrorCode.INVALID_RECORD),
        (57, ">i", 2, ErrorCode.INVALID_RECORD),
        (57, ">i", -1, ErrorCode.INVALID_RECORD),
        (57, ">i", 2**31 - 1, ErrorCode.INVALID_RECORD),
        (23, ">i", 2**31 - 1, ErrorCode.INVALID_RECORD),
        (23, ">i", -1, ErrorCode.INVALID_RECORD),
        (23, ">i", -(2**31), ErrorCode.INVALID_RECORD),
        (16, ">b", 3, ErrorCode.CORRUPT_MESSAGE),
        (16, ">b", -1, ErrorCode.CORRUPT_MESSAGE),
        (21, ">h", 5, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (21, ">h", 7, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (21, ">h", 0x20, ErrorCode.INVALID_RECORD),
        (21, ">h", 0x08, ErrorCode.INVALID_TIMESTAMP),
        (43, ">q", 9, ErrorCode.INVALID_RECORD),
        (8, ">i", 48, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", -1, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", 2**31 - 1, ErrorCode.INVALID_RECORD),
    ],
)
def test_header_games(position: int, layout: str, value: int, code: ErrorCode) -> None:
    """RL 3.2, RELIABILITY 5.3: counts, deltas, magic, codec, control bit, producer without
    sequence, lengths: each refused with its code.
    """
    error = refused(
        code, new_log(), patched(batch(b"x"), position, layout, value, fix_crc=position != 8)
    )
    assert error.message


def test_a_base_offset_counts_before_the_size_and_the_crc() -> None:
    """Kafka's order: a producer gives up at INVALID_RECORD, and sends again what is CORRUPT."""
    data = patched(batch(b"value"), 0, ">q", 7, fix_crc=False)[:-1] + b"?"
    refused(ErrorCode.INVALID_RECORD, new_log(max_message_bytes=len(data) - 1), data)


def test_only_one_batch_from_a_client() -> None:
    """RL 3.2: a producer sends one batch per partition; more is INVALID_RECORD, bytes behind it
    are not appended.
    """
    refused(ErrorCode.INVALID_RECORD, new_log(), batch(b"a") + batch(b"b"))
    refused(ErrorCode.CORRUPT_MESSAGE, new_log(), batch(b"a") + bytes(40))
    log = new_log()
    assert (
        log.append_as_leader(batch(b"a") + b"rest", 0, NOW_MS).last_offset == 0
    )  # Kafka's trimInvalidBytes
    assert log.segments.active.size == len(batch(b"a"))


def test_several_batches_from_inside_the_broker() -> None:
    """RL 3.2: coordinators may write several batches at once; the outcome spans them."""
    log = new_log()
    info = log.append_as_leader(
        batch(b"a", b"b") + batch(b"c"), 0, NOW_MS, origin=AppendOrigin.COORDINATOR
    )
    assert (info.first_offset, info.last_offset, info.records_count) == (0, 2, 3)


def test_no_control_batches_from_clients() -> None:
    """RL 3.2: an end marker from a client is INVALID_RECORD, with or without a sequence; so is
    the control flag on other records.
    """
    numbered = patched(marker(1, commit=True), 53, ">i", 0)
    flagged = patched(batch(b"x"), 21, ">h", CONTROL_FLAG)
    for data in (marker(1, commit=True), numbered, flagged):
        error = refused(ErrorCode.INVALID_RECORD, new_log(), data)
        assert data is not numbered or "control" in str(error)


def test_no_transactional_records_without_a_producer() -> None:
    """No cleaner could write them anew: Kafka's builder of batches refuses them, too."""
    for kind in ("delete", "compact"):
        data = patched(batch(b"x"), 21, ">h", TRANSACTIONAL_FLAG)
        log = new_log(cleanup_policy=frozenset({kind}))
        assert "producer id" in str(refused(ErrorCode.INVALID_RECORD, log, data))


def test_size_limit() -> None:
    """RL 3.2: `max.message.bytes` counts the batch as it is, compressed."""
    data = batch(b"x" * 1000)
    assert new_log(max_message_bytes=len(data)).append_as_leader(data, 0, NOW_MS).first_offset == 0
    refused(ErrorCode.MESSAGE_TOO_LARGE, new_log(max_message_bytes=len(data) - 1), data)
    packed = batch(b"x" * 1000, codec=1)
    assert (
        new_log(max_message_bytes=len(packed)).append_as_leader(packed, 0, NOW_MS).first_offset == 0
    )


@pytest.mark.parametrize("shift_ms", [-101, -100, 0, 50, 51])
def test_timestamp_bounds(shift_ms: int) -> None:
    """RL 3.2: the largest timestamp must lie within before/after of now; -1 means none and
    passes.
    """
    log = new_log(message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=50)
    data = batch(b"x", timestamp=NOW_MS + shift_ms)
    if -100 <= shift_ms <= 50:
        assert log.append_as_leader(data, 0, NOW_MS).first_offset == 0
    else:
        refused(ErrorCode.INVALID_TIMESTAMP, log, data)
    assert log.append_as_leader(batch(b"x", timestamp=-1), 0, NOW_MS).first_offset >= 0


def times(*shifts_ms: int, codec: int = 0, **header: int) -> bytes:
    """A batch of records at these distances from now; `header` overwrites base or max timestamp."""
    builder = BatchBuilder(codec=codec)
    for shift_ms in shifts_ms:
        builder.append(NOW_MS + shift_ms, b"k", b"v")
    data = bytearray(builder.build())
    for name, shift_ms in header.items():
        struct.pack_into(">q", data, {"base": 27, "largest": 35}[name], NOW_MS + shift_ms)
    struct.pack_into(">I", data, 17, batch_crc(data, 0, len(data)))
    return bytes(data)


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize(
    ("shifts_ms", "header", "bad"),
    [
        ((0, 51, 10, 90), {}, [1, 3]),
        ((60, 0, -5), {"largest": 0}, [0]),
        ((-101, 0, 20), {}, [0]),
        ((0, -101, 20), {}, [1]),
    ],
)
def test_the_records_outside_the_bounds_are_named(
    shifts_ms: tuple[int, ...], header: dict[str, int], bad: list[int], codec: int
) -> None:
    """KIP-467: INVALID_TIMESTAMP says which records; also one at the base that the header's largest
    time hides, or one in the middle where the topic bounds the past.
    """
    log = new_log(message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=50)
    error = refused(ErrorCode.INVALID_TIMESTAMP, log, times(*shifts_ms, codec=codec, **header))
    assert isinstance(error, RecordsRefused)
    assert [entry.batch_index for entry in error.record_errors] == bad


def test_a_wrong_largest_timestamp_is_put_right() -> None:
    """The records count, not what the header says of them: Kafka's LogValidator."""
    log = new_log()
    for largest in (10_000_000, -500):
        log.append_as_leader(times(0, 7, 3, largest=largest), 0, NOW_MS)
    for one in all_batches(log):
        assert (one.max_timestamp, one.is_valid_crc()) == (NOW_MS + 7, True)


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_producer_does_not_claim_log_append_time(kind: str) -> None:
    """RL 3.2: the broker's time is the broker's; every record of such a batch is named."""
    data = bytearray(batch(b"a", b"b", timestamp=NOW_MS))
    set_log_append_time(data, NOW_MS)
    error = refused(ErrorCode.INVALID_TIMESTAMP, new_log(message_timestamp_type=kind), bytes(data))
    assert isinstance(error, RecordsRefused) and len(error.record_errors) == 2


def test_ordinary_times_need_no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose header lies within the bounds is not walked, however old its topic allows."""
    monkeypatch.setattr(validation, "_walked", None)
    log = new_log()
    for data in (times(0, -5, 3), times(-(10**12), 50), batch(b"x", timestamp=-1)):
        log.append_as_leader(data, 0, NOW_MS)


@pytest.mark.parametrize("codec", CODECS.values())
def test_log_append_time(codec: int) -> None:
    """RL 3.2: LogAppendTime stamps attributes, max timestamp and CRC, and every record then
    carries that time; the answer says it.
    """
    log = new_log(message_timestamp_type="LogAppendTime")
    info = log.append_as_leader(batch(b"a", b"b", timestamp=5, codec=codec), 0, NOW_MS)
    assert info.log_append_time_ms == NOW_MS
    (one,) = all_batches(log)
    assert one.is_valid_crc() and one.timestamp_type == 1 and one.codec == codec
    assert [record.timestamp for record in all_records(log)] == [NOW_MS, NOW_MS]


@pytest.mark.parametrize("wanted", CODECS)
@pytest.mark.parametrize("sent", CODECS.values())
def test_recompression(wanted: str, sent: int) -> None:
    """RL 3.2: `compression.type` other than producer: the batch is packed anew when its codec
    differs, and only then.
    """
    log = new_log(compression_type=wanted)
    data = batch(b"a" * 50, b"b" * 50, codec=sent, producer_id=4, producer_epoch=1, base_sequence=7)
    log.append_as_leader(data, 0, NOW_MS)
    (one,) = all_batches(log)
    assert one.codec == CODECS[wanted]
    assert (one.producer_id, one.producer_epoch, one.base_sequence) == (4, 1, 7)
    assert [record.value for record in all_records(log)] == [b"a" * 50, b"b" * 50]
    if CODECS[wanted] == sent:
        assert one.to_bytes()[16:] == data[16:]


@pytest.mark.parametrize(("kind", "flag"), [("CreateTime", 0), ("LogAppendTime", 1)])
def test_a_batch_that_is_packed_anew_has_the_times_of_its_topic(kind: str, flag: int) -> None:
    """RL 3.2: compressed by the broker or not, consumers see the producer's times with
    `message.timestamp.type=CreateTime`, else the broker's.
    """
    log = new_log(compression_type="lz4", message_timestamp_type=kind)
    log.append_as_leader(batch(b"a", b"b", timestamp=NOW_MS - 9, step_ms=4), 0, NOW_MS)
    (one,) = all_batches(log)
    times = [NOW_MS - 9, NOW_MS - 5] if not flag else [NOW_MS, NOW_MS]
    assert (one.codec, one.timestamp_type, one.max_timestamp) == (CODECS["lz4"], flag, times[1])
    assert [record.timestamp for record in all_records(log)] == times


def test_compacted_topics_need_keys() -> None:
    """RL 3.2: records without key are refused, each named by its index; nothing of the batch is
    written.
    """
    log = new_log(cleanup_policy=frozenset({"compact"}))
    builder = BatchBuilder()
    for key in (b"k", None, b"l", None):
        builder.append(NOW_MS, key, b"v")
    error = refused(ErrorCode.INVALID_RECORD, log, builder.build())
    assert isinstance(error, RecordsRefused)
    assert [entry.batch_index for entry in error.record_errors] == [1, 3]
    assert log.append_as_leader(batch(b"v", key=b"k"), 0, NOW_MS).first_offset == 0


def test_records_are_walked_on_demand_only() -> None:
    """RL 3.2: a batch whose records are broken passes by its header, and is INVALID_RECORD with
    `replog.validate.records`.
    """
    data = bytearray(batch(b"value"))
    data[61] = 0x7F
    struct.pack_into(">I", data, 17, batch_crc(data, 0, len(data)))
    assert new_log().append_as_leader(bytes(data), 0, NOW_MS).first_offset == 0
    refused(ErrorCode.INVALID_RECORD, new_log(validate_records=True), bytes(data))


def test_walked_timestamps_are_checked_one_by_one() -> None:
    """RL 3.2: when records are walked, each one outside the bounds is named."""
    log = new_log(validate_records=True, message_timestamp_before_max_ms=100)
    error = refused(
        ErrorCode.INVALID_TIMESTAMP,
        log,
        batch(b"a", b"b", b"c", timestamp=NOW_MS - 201, step_ms=100),
    )
    assert isinstance(error, RecordsRefused) and [
        entry.batch_index for entry in error.record_errors
    ] == [0, 1]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_message_sets_are_converted_up(magic: int, codec: int) -> None:
    """RL 3.2: a set of magic 0 or 1 becomes one batch of magic 2 with the same records; magic 0
    has no times.
    """
    log = new_log()
    builder = BatchBuilder()
    for number in range(5):
        builder.append(NOW_MS + number, b"k%d" % number, b"v%d" % number)
    source = builder.build()
    data = build_message_set(list(BatchView(source).records()), magic=magic, codec=codec)
    info = log.append_as_leader(data, 0, NOW_MS)
    assert (info.first_offset, info.last_offset) == (0, 4)
    (one,) = all_batches(log)
    assert one.magic == 2 and one.codec == codec
    assert [(record.key, record.value, record.timestamp) for record in one.records()] == [
        (b"k%d" % number, b"v%d" % number, NOW_MS + number if magic else -1) for number in range(5)
    ]


def test_a_damaged_message_set_is_corrupt() -> None:
    """RL 3.2: the CRC of an old message is checked before conversion."""
    data = bytearray(build_message_set(list(BatchView(batch(b"x")).records()), magic=1, codec=0))
    data[-1] ^= 1
    refused(ErrorCode.CORRUPT_MESSAGE, new_log(), bytes(data))


@pytest.mark.parametrize("build", [lambda: b"", lambda: b"\0" * 16, lambda: b"\0" * 200])
def test_bytes_that_are_no_records(build: Callable[[], bytes]) -> None:
    """RELIABILITY 5.3: nothing, and zeros, are CORRUPT_MESSAGE or INVALID_RECORD, never a crash."""
    log = new_log()
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(build(), 0, NOW_MS)
    assert caught.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def claiming(payload: bytes, count: int, codec: int = 0) -> bytes:
    """A batch with this payload that says that `count` records are in it."""
    body = struct.pack(">hiqqqhii", codec, count - 1, NOW_MS, NOW_MS, -1, -1, -1, count) + payload
    head = struct.pack(">qiib", 0, 49 + len(payload), -1, 2)
    return head + struct.pack(">I", crc32c(body)) + body


def records_bytes(count: int) -> bytes:
    """The smallest records there are, as a producer numbers them."""
    return batch(*[b""] * count)[61:]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("count", [1, 1000, 2**31 - 1])
def test_a_batch_without_records_takes_no_offsets(codec: int, count: int) -> None:
    """RL 3.2: 61 bytes cannot hold a record, whatever they claim."""
    refused(ErrorCode.INVALID_RECORD, new_log(), claiming(b"", count, codec))


@pytest.mark.parametrize("count", [11, 200, 2**31 - 1])
def test_more_records_than_the_bytes_can_hold(count: int) -> None:
    """RL 3.2: a record has at least 7 bytes."""
    refused(ErrorCode.INVALID_RECORD, new_log(), claiming(bytes(70), count))


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_compressed_batch_that_claims_much_is_counted(codec: int) -> None:
    """RL 3.2: more records than compressed bytes: right counts pass, others are refused; nothing
    that inflates to much is waited for.
    """
    held = 6000
    payload = compress(codec, records_bytes(1) * held)
    assert len(payload) < held
    log = new_log()
    assert log.append_as_leader(claiming(payload, held, codec), 0, NOW_MS).last_offset == held - 1
    for count in (held + 1, held - 1, 2**31 - 1):
        refused(ErrorCode.INVALID_RECORD, new_log(), claiming(payload, count, codec))
    zeros = compress(codec, bytes(1 << 20))
    refused(ErrorCode.INVALID_RECORD, new_log(), claiming(zeros, len(zeros) + 1, codec))
    broken = payload[:-3]
    refused(ErrorCode.INVALID_RECORD, new_log(), claiming(broken, held, codec))


@pytest.mark.parametrize("value_bytes", [0, 49, 56, 57, 58, 100, 8177, 8178, 8179, 9_000])
def test_records_of_any_length_are_counted(value_bytes: int) -> None:
    """RL 3.2: a length takes one byte, two or three; nothing is refused for it."""
    held = 600
    payload = compress(4, batch(bytes(value_bytes))[61:] * held)
    assert len(payload) < held
    info = new_log().append_as_leader(claiming(payload, held, 4), 0, NOW_MS)
    assert info.last_offset == held - 1
    refused(ErrorCode.INVALID_RECORD, new_log(), claiming(payload, held + 1, 4))


def test_a_batch_that_costs_too_much_to_count_is_to_be_split() -> None:
    """RL 3.2: MESSAGE_TOO_LARGE, at which producers send smaller ones."""
    payload = compress(4, records_bytes(1) * (records_count.MOST_RECORDS + 1))
    refused(
        ErrorCode.MESSAGE_TOO_LARGE, new_log(), claiming(payload, records_count.MOST_RECORDS + 1, 4)
    )
    bomb = compress(4, bytes(records_count.MOST_BYTES + 1))
    assert len(bomb) < 4000
    refused(ErrorCode.MESSAGE_TOO_LARGE, new_log(), claiming(bomb, 4000, 4))


@pytest.mark.parametrize("codec", range(1, 5))
def test_what_is_walked_is_bounded(codec: int) -> None:
    """RL 3.2: of a compacted topic, too; a larger max.message.bytes allows more."""
    compacted: dict[str, Any] = {"cleanup_policy": frozenset({"compact"})}
    bomb = compress(codec, bytes(records_count.MOST_BYTES + 1))
    most = len(bomb) + 1000
    refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        new_log(**compacted, max_message_bytes=most),
        claiming(bomb, 1, codec),
    )
    refused(  # inflated, and no records
        ErrorCode.INVALID_RECORD,
        new_log(**compacted, max_message_bytes=max(most, records_count.MOST_BYTES // 4)),
        claiming(bomb, 1, codec),
    )
    many = compress(codec, records_bytes(1) * (records_count.MOST_RECORDS + 1))
    refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        new_log(**compacted),
        claiming(many, records_count.MOST_RECORDS + 1, codec),
    )


@pytest.mark.parametrize("codec", range(1, 5))
def test_honest_batches_are_not_inflated(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ARCHITECTURE 1: record bytes stay bytes where the count is plausible."""
    monkeypatch.setattr(records_count, "decompress", lambda *_: pytest.fail("it was inflated"))
    data = batch(*[b"value %d" % number for number in range(50)], codec=codec)
    assert new_log().append_as_leader(data, 0, NOW_MS).last_offset == 49


def test_a_follower_takes_what_its_leader_has() -> None:
    """RL 6.4: what once was let in, by an older broker, is replicated."""
    log = new_log()
    assert log.append_as_follower(claiming(b"", 1000), 0, NOW_MS).last_offset == 999
