"""What a record batch costs: header, CRC, walk, build, per codec; beside kafka-python's pure Python
classes.

    python benchmarks/records.py [SECONDS_PER_FIGURE]

Each figure is the best of five runs: other programs only ever make it worse.
"""

from __future__ import annotations

import platform
import random
import sys
import time
from collections.abc import Callable
from functools import partial

from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatch

from twisted_broker.wire.compression import CODEC_NAMES
from twisted_broker.wire.legacy import (
    build_message_set,
    convert_down,
    convert_up,
    iterate_entries,
    iterate_messages,
)
from twisted_broker.wire.records import (
    BatchBuilder,
    BatchView,
    Record,
    batch_crc,
    read_batch_header,
    read_valid_batch,
    set_offsets_and_epoch,
)

RECORDS = 1000
RUNS = 5


def best(call: Callable[[], object], seconds: float) -> float:
    """Seconds for one call, the best of the runs."""
    call()
    started = time.perf_counter()
    call()
    loops = max(1, int(seconds / RUNS / max(time.perf_counter() - started, 1e-7)))
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        for _ in range(loops):
            call()
        times.append((time.perf_counter() - started) / loops)
    return min(times)


def sample(value_bytes: int, headers: int = 0) -> list[Record]:
    """Records with a key of 10 bytes and a value of words, which compress about as JSON does."""
    words = [b"%06x" % random.Random(seed).getrandbits(24) for seed in range(100)]
    chosen = random.Random(1)
    extra: list[tuple[str, bytes | None]] = [
        (f"header-{index}", b"value") for index in range(headers)
    ]
    return [
        Record(
            index,
            1_700_000_000_000 + index,
            b"key-%06d" % index,
            b" ".join(chosen.choices(words, k=value_bytes // 7 + 1))[:value_bytes],
            extra,
        )
        for index in range(RECORDS)
    ]


def build(records: list[Record], codec: int = 0) -> bytes:
    builder = BatchBuilder(codec=codec)
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder.build()


def build_theirs(records: list[Record], codec: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value, record.headers)
    return bytes(builder.build())


def read_theirs(raw: bytes) -> int:
    return sum(1 for _ in DefaultRecordBatch(raw))


def read_ours(raw: bytes) -> int:
    return sum(1 for _ in BatchView(raw).records())


def line(name: str, ours: float, theirs: float | None, per: int = 1) -> None:
    """Microseconds per thing."""
    other = f"{theirs / per * 1e6:10.3f}" if theirs is not None else "         -"
    print(f"{name:58s} {ours / per * 1e6:10.3f} {other}")


def headers_and_checksums(seconds: float) -> None:
    large = build(sample(100))[:61]
    records = sample(87)
    raw = build(records)
    buffer = bytearray(raw)
    line(
        "read header, us",
        best(lambda: read_batch_header(raw, 0), seconds),
        best(lambda: DefaultRecordBatch.HEADER_STRUCT.unpack_from(large), seconds),
    )
    line(
        "view, us",
        best(lambda: BatchView(raw, 0), seconds),
        best(lambda: DefaultRecordBatch(raw), seconds),
    )
    line(
        "patch base offset and leader epoch, us",
        best(lambda: set_offsets_and_epoch(buffer, 10, 1), seconds),
        None,
    )
    valid = best(lambda: read_valid_batch(raw, 0), seconds)
    line(
        f"header and CRC of a batch of {len(raw)} bytes, us",
        valid,
        best(lambda: DefaultRecordBatch(raw).validate_crc(), seconds),
    )
    line("    of it the CRC alone (GB/s right)", best(lambda: crc32c(raw), seconds), None)
    line(
        f"    batch_crc without copy ({len(raw) / valid / 1e9:.1f} GB/s with the header)",
        best(lambda: batch_crc(raw, 0, len(raw)), seconds),
        None,
    )


def walks(seconds: float) -> None:
    for name, records in (
        ("10-byte values", sample(10)),
        ("100-byte values", sample(100)),
        ("1000-byte values, 3 headers", sample(1000, 3)),
    ):
        raw = build(records)
        line(
            f"walk, {name}, us a record",
            best(partial(read_ours, raw), seconds),
            best(partial(read_theirs, raw), seconds),
            RECORDS,
        )
        ours, theirs = (
            best(partial(build, records), seconds),
            best(partial(build_theirs, records), seconds),
        )
        line(f"build, {name}, us a record", ours, theirs, RECORDS)


def codecs(seconds: float) -> None:
    records = sample(100)
    for codec in range(1, 5):
        raw = build(records, codec)
        name = CODEC_NAMES[codec]
        line(
            f"read, {name} ({len(raw)} bytes), us a record",
            best(partial(read_ours, raw), seconds),
            best(partial(read_theirs, raw), seconds),
            RECORDS,
        )
        ours, theirs = (
            best(partial(build, records, codec), seconds),
            best(partial(build_theirs, records, codec), seconds),
        )
        line(f"build, {name}, us a record", ours, theirs, RECORDS)


def message_sets(seconds: float) -> None:
    records = sample(100)
    raw, batch = build_message_set(records, 1), build(records)
    messages = [message.to_bytes() for message in iterate_messages(raw)]
    line(
        "v1 messages read, us a record",
        best(lambda: sum(1 for _ in iterate_messages(raw)), seconds),
        best(
            lambda: sum(1 for message in messages for _ in LegacyRecordBatch(message, 1)), seconds
        ),
        RECORDS,
    )
    line("v1 up to v2, us a record", best(lambda: convert_up(raw), seconds), None, RECORDS)
    line(
        "v2 down to v1, us a record",
        best(lambda: list(convert_down(iterate_entries(batch), 1, 0)), seconds),
        None,
        RECORDS,
    )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}")
    print(f"{'':58s} {'ours':>10s} {'kafka-python':>10s}")
    headers_and_checksums(seconds)
    walks(seconds)
    codecs(seconds)
    message_sets(seconds)


if __name__ == "__main__":
    main()
