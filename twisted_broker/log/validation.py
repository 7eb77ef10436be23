"""A leader's checks of the records that it appends.

Owns `check_header` (every batch), and `prepare` (batches whose records must be looked at or
rewritten).

1. A batch that needs nothing but its header is neither copied nor walked; base offset and leader
   epoch are written over its first 16 bytes.
2. Records are walked in these cases only: a compacted topic; conversion of magic 0 and 1;
   recompression; `replog.validate.records`; a topic that bounds how far in the past a time may lie;
   a base or largest time in the header that is out of bounds or contradicts the other; a producer's
   batch that claims LogAppendTime. A walk names every refused record (KIP-467) and corrects a
   largest time that no record has. Records are counted where a compressed batch claims more of them
   than it has bytes. A walk is bounded: a compressed batch has `MOST_RECORDS` and decompresses to
   `most_inflated` at most.
3. The number of records fits the bytes: what claims more than they can hold takes no offsets
   (`wire.records_count`).
4. Whatever is refused, is refused before a byte is written.
5. A mirrored topic takes nothing from a client. Its batches always go through `prepare`, which
   checks that, so that other topics pay nothing for the check.

Source: Kafka's `LogValidator`, `UnifiedLog.analyzeAndValidateRecords`; RL 3.2. Not here: producer
sequences (`producer_append.py`).
"""

from __future__ import annotations

from crc32c import crc32c

from twisted_broker.interfaces import Buffer
from twisted_broker.log.append_info import AppendOrigin, RecordError
from twisted_broker.log_config import LogConfig
from twisted_broker.settings import LONG_MAX
from twisted_broker.wire.corrupt_record import OutputLimitError
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.legacy import convert_up
from twisted_broker.wire.records import (
    CODEC_MASK,
    CONTROL_FLAG,
    CREATE_TIME,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAX_OUTPUT_BYTES,
    SMALLEST_RECORD,
    TRANSACTIONAL_FLAG,
    BatchBuilder,
    BatchHeader,
    BatchView,
    CorruptRecordError,
    InvalidRecordError,
    Record,
    UnsupportedCodecError,
    check_first_entry,
    check_records_count,
    iterate_batches,
    set_log_append_time,
    set_max_timestamp,
)
from twisted_broker.wire.records_count import MOST_BYTES, MOST_RECORDS

_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_ZSTD = 4
_MOST_RATIO = 8  # honest batches that compress better are smaller than `MOST_BYTES`
_CLIENT = AppendOrigin.CLIENT


class RecordsRefused(BrokerError):
    """Some records of a batch are refused: `record_errors` says which."""

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def needs_preparation(config: LogConfig) -> bool:
    """Whether batches of this topic are always looked into or rewritten."""
    return (
        config.compact
        or config.validate_records
        or config.message_timestamp_type != "CreateTime"
        or config.compression_type != "producer"
        or config.message_timestamp_before_max_ms != LONG_MAX
        or config.replog_mirror_source != ""
    )


def check_header(
    header: BatchHeader, records: Buffer, config: LogConfig, origin: AppendOrigin, wall_ms: int
) -> bool:
    """Whether a batch (magic 2, whole in `records`) may be appended as it is; False: its times are
    to be looked at one by one. Raises BrokerError for what its header or CRC forbids.
    """
    (
        base_offset,
        length,
        _,
        _,
        crc,
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        _,
        base_sequence,
        count,
    ) = header
    if base_offset and origin == _CLIENT:  # before size and CRC, as Kafka
        raise InvalidRecordError(f"a producer's batch begins at offset {base_offset}, not 0")
    if length + LOG_OVERHEAD > config.max_message_bytes:
        raise too_large(length + LOG_OVERHEAD, config)
    if crc32c(memoryview(records)[21:]) != crc:
        raise CorruptRecordError("CRC mismatch")
    if count != delta + 1 or count <= 0:
        raise InvalidRecordError(f"{count} records, but the last offset delta is {delta}")
    if origin == _CLIENT:
        if attributes & CONTROL_FLAG:
            raise InvalidRecordError("clients may not write control records")
        if producer_id >= 0:
            if base_sequence < 0:
                raise InvalidRecordError(
                    f"producer {producer_id} sent the invalid sequence {base_sequence}"
                )
        elif attributes & TRANSACTIONAL_FLAG:
            # No coordinator would end that transaction, and no cleaner could rewrite the batch.
            raise InvalidRecordError("transactional records without a producer id")
    if attributes & CODEC_MASK > _ZSTD:
        raise UnsupportedCodecError(f"there is no codec {attributes & CODEC_MASK}")
    # The check that an honest batch passes is inline: every append comes through here.
    if count * SMALLEST_RECORD > len(records) - HEADER_BYTES:
        check_records_count(records, attributes & CODEC_MASK, count)
    if attributes & CONTROL_FLAG:
        return True
    if attributes & LOG_APPEND_TIME_FLAG:
        return False
    return config.message_timestamp_type != "CreateTime" or (
        base_timestamp <= max_timestamp
        and (base_timestamp == -1 or _in_bounds(base_timestamp, config, wall_ms))
        and (max_timestamp == base_timestamp or _in_bounds(max_timestamp, config, wall_ms))
    )


def _in_bounds(timestamp: int, config: LogConfig, wall_ms: int) -> bool:
    age_ms = wall_ms - timestamp
    return (
        age_ms <= config.message_timestamp_before_max_ms
        and -age_ms <= config.message_timestamp_after_max_ms
    )


def _timestamp_problem(
    timestamp: int, attributes: int, config: LogConfig, wall_ms: int
) -> str | None:
    """Why a record may not carry this time; None when it may (CreateTime topics bound it)."""
    if attributes & LOG_APPEND_TIME_FLAG:
        return "a producer may not claim LogAppendTime"
    if (
        config.message_timestamp_type != "CreateTime"
        or timestamp == -1
        or _in_bounds(timestamp, config, wall_ms)
    ):
        return None
    return f"timestamp {timestamp} is outside the bounds of the topic"


def too_large(size_in_bytes: int, config: LogConfig) -> BrokerError:
    """The refusal of a batch over `max.message.bytes`."""
    return BrokerError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size_in_bytes} bytes, but max.message.bytes is {config.max_message_bytes}",
    )


def check_not_mirrored(source: str) -> None:
    """Raises BrokerError for a client's records, and for what would end in a marker among those of
    the source: `source` is the topic's `replog.mirror.source`.
    """
    if source:
        raise BrokerError(
            ErrorCode.POLICY_VIOLATION,
            f"the topic is a mirror of {source}: only replog mirror writes it",
        )


def prepare(
    records: Buffer, config: LogConfig, origin: AppendOrigin, wall_ms: int
) -> list[bytes | bytearray | memoryview]:
    """The batches to be appended, each whole and in its final form but for base offset and
    leader epoch. Raises BrokerError.
    """
    if origin == _CLIENT:
        check_not_mirrored(config.replog_mirror_source)
    if check_first_entry(records) < 2:
        return [_converted(records, config, origin, wall_ms)]
    # A partial batch at the end is dropped, as in Kafka.
    batches = list(iterate_batches(records, partial_tail=True))
    if origin == _CLIENT and len(batches) != 1:
        raise InvalidRecordError(
            f"{len(batches)} batches for one partition; a produce request carries one"
        )
    return [_prepared(batch, config, origin, wall_ms) for batch in batches]


def _prepared(
    batch: BatchView, config: LogConfig, origin: AppendOrigin, wall_ms: int
) -> bytes | bytearray | memoryview:
    whole = memoryview(batch.buffer)[batch.offset : batch.offset + batch.size_in_bytes]
    header: BatchHeader = (
        batch.base_offset,
        batch.length,
        batch.partition_leader_epoch,
        batch.magic,
        batch.crc,
        batch.attributes,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.records_count,
    )
    is_fine = check_header(header, whole, config, origin, wall_ms)
    if batch.is_control:
        return whole
    target = target_codec(config, batch.codec)
    if target != batch.codec:
        return _sized(
            _rebuilt(batch, list(_walked(batch, config, wall_ms)), target, config, wall_ms), config
        )
    largest = batch.max_timestamp
    if (
        not is_fine
        or config.compact
        or config.validate_records
        or config.message_timestamp_before_max_ms != LONG_MAX
    ):
        largest = max(record.timestamp for record in _walked(batch, config, wall_ms))
    if config.message_timestamp_type == "CreateTime" and largest == batch.max_timestamp:
        return whole
    stamped = bytearray(whole)
    if config.message_timestamp_type == "CreateTime":
        set_max_timestamp(stamped, CREATE_TIME, largest)
    else:
        set_log_append_time(stamped, wall_ms)
    return stamped


def target_codec(config: LogConfig, source: int) -> int:
    """The codec that a batch compressed with `source` is stored with."""
    return source if config.compression_type == "producer" else _CODECS[config.compression_type]


def _level(config: LogConfig, codec: int) -> int | None:
    return {
        1: config.compression_gzip_level,
        3: config.compression_lz4_level,
        4: config.compression_zstd_level,
    }.get(codec)


def most_inflated(config: LogConfig) -> int:
    """Bytes that a batch which is walked may decompress to: the reactor waits for it."""
    return min(max(MOST_BYTES, _MOST_RATIO * config.max_message_bytes), MAX_OUTPUT_BYTES)


def _walked(batch: BatchView, config: LogConfig, wall_ms: int) -> list[Record]:
    """The records of a batch, each checked; raises RecordsRefused with the index of every bad
    one.
    """
    found: list[Record] = []
    errors: list[RecordError] = []
    code = ErrorCode.INVALID_RECORD
    most = most_inflated(config)
    if batch.codec and batch.records_count > MOST_RECORDS:
        raise OutputLimitError(most)
    for index, record in enumerate(batch.records(most, sequential=True)):
        found.append(record)
        if config.compact and record.key is None:
            errors.append(RecordError(index, "a compacted topic takes no record without key"))
            continue
        problem = _timestamp_problem(record.timestamp, batch.attributes, config, wall_ms)
        if problem is not None:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append(RecordError(index, problem))
    if errors:
        raise RecordsRefused(code, f"{len(errors)} records of the batch are refused", tuple(errors))
    return found


def _rebuilt(
    batch: BatchView, records: list[Record], codec: int, config: LogConfig, wall_ms: int
) -> bytes:
    builder = BatchBuilder(
        codec=codec,
        level=_level(config, codec),
        timestamp_type=_timestamp_type(config),
        log_append_time_ms=wall_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
    )
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder.build()


def _timestamp_type(config: LogConfig) -> int:
    return LOG_APPEND_TIME if config.message_timestamp_type == "LogAppendTime" else 0


def _sized(batch: bytes, config: LogConfig) -> bytes:
    if len(batch) > config.max_message_bytes:
        raise too_large(len(batch), config)
    return batch


def _converted(
    records: Buffer, config: LogConfig, origin: AppendOrigin, wall_ms: int
) -> bytes | bytearray | memoryview:
    """A message set of magic 0 or 1 as one batch of magic 2."""
    codec = None if config.compression_type == "producer" else _CODECS[config.compression_type]
    level = None if codec is None else _level(config, codec)
    batch = convert_up(records, codec=codec, level=level, max_output_bytes=most_inflated(config))
    return _prepared(BatchView(batch), config, origin, wall_ms)
