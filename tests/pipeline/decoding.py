"""What the tests of the decoder share: rows out of the vectors, the same rows out of the plain
walk, and batches to try them on.
"""

from __future__ import annotations

import base64
import json
import random
import struct
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from replog_pipeline.columns import ALL_COLUMNS
from replog_pipeline.decoder import Request, decode_segment
from twisted_broker.wire.compression import CODEC_NAMES
from twisted_broker.wire.records import (
    BatchBuilder,
    BatchView,
    batch_crc,
    iterate_batches,
    next_sequence,
)

GOLDEN = Path(__file__).parent / "golden" / "kafka-4.3.1.tar.gz"
TOPIC, PARTITION = "sample", 3
FIRST_MS = 1_700_000_000_000

Row = dict[str, Any]


def decoded(data: bytes, columns: Iterable[str] = ALL_COLUMNS, **request: Any) -> list[Row]:
    """The decoder's rows."""
    asked = Request(tuple(columns), TOPIC, PARTITION, **request)
    return [row for batch in decode_segment(data, asked) for row in plain(batch)]


def plain(batch: Any) -> list[Row]:
    """The rows of an Arrow batch, timestamps in milliseconds and headers as pairs."""
    if "timestamp" in batch.schema.names:
        index = batch.schema.get_field_index("timestamp")
        batch = batch.set_column(index, "timestamp", batch.column(index).cast("int64"))
    rows: list[Row] = batch.to_pylist()
    for row in rows:
        if row.get("timestamp") is not None:
            row["timestamp"] //= 1000
        if row.get("headers") is not None:
            row["headers"] = [(each["key"], each["value"]) for each in row["headers"]]
    return rows


def walked(data: bytes, control: bool = False) -> list[Row]:
    """The rows that the wire package's plain walk finds, with every column that needs no other
    batch.
    """
    return [
        row
        for batch in iterate_batches(data)
        if control or not batch.is_control
        for row in _walked_batch(batch)
    ]


def _walked_batch(batch: BatchView) -> list[Row]:
    of_batch = {
        "topic": TOPIC,
        "partition": PARTITION,
        "timestampType": batch.timestamp_type,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "leaderEpoch": batch.partition_leader_epoch,
        "batchOffset": batch.base_offset,
        "batchLastOffset": batch.last_offset,
        "codec": CODEC_NAMES[batch.codec],
        "crcOk": batch.is_valid_crc(),
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "aborted": False,
    }
    return [
        of_batch
        | {
            "key": record.key,
            "value": record.value,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampMs": record.timestamp,
            "headers": [(_text(name), content) for name, content in record.headers] or None,
            "sequence": -1
            if batch.base_sequence == -1
            else next_sequence(batch.base_sequence, record.offset - batch.base_offset),
        }
        for record in batch.records()
    ]


def _text(name: str) -> str:
    """A header's name as Java has it: what is no UTF-8 is replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def segment(
    seed: int, batches: int = 40, most_records: int = 12, codecs: Iterable[int] = range(5)
) -> bytes:
    """Batches of random records: nulls, headers, holes between offsets, all codecs, all flags;
    many enough to walk in lock-step.
    """
    chance, offset, out = random.Random(seed), 0, []
    choices = list(codecs)
    for _ in range(batches):
        builder = _builder(chance, offset, chance.choice(choices))
        delta = 0
        for _ in range(chance.randint(1, most_records)):
            delta += chance.choice((0, 0, 0, 1, 130))
            builder.append(
                FIRST_MS + chance.randint(-(10**9), 10**9),
                _content(chance),
                _content(chance),
                _headers(chance),
                delta,
            )
            delta += 1
        out.append(builder.build(delta + chance.choice((-1, -1, 5))))
        offset += delta + 10
    return b"".join(out)


def _builder(chance: random.Random, offset: int, codec: int) -> BatchBuilder:
    producer = chance.random() < 0.5
    return BatchBuilder(
        base_offset=offset,
        codec=codec,
        leader_epoch=chance.randint(0, 9),
        timestamp_type=chance.choice((0, 0, 1)),
        log_append_time_ms=FIRST_MS,
        producer_id=chance.randint(0, 2**62) if producer else -1,
        producer_epoch=3 if producer else -1,
        base_sequence=2**31 - 4 if producer else -1,
        is_transactional=producer and chance.random() < 0.5,
    )


def _content(chance: random.Random) -> bytes | None:
    size = chance.choice((None, 0, 1, 10, 63, 64, 100, 8190, 8200))
    return None if size is None else chance.randbytes(size)


def _headers(chance: random.Random) -> list[tuple[str, bytes | None]]:
    names, contents = ("", "trace", "é", "k" * 100), (None, b"", b"v", b"w" * 200)
    return [
        (chance.choice(names), chance.choice(contents))
        for _ in range(chance.choice((0, 0, 1, 3, 40)))
    ]


def with_crc(batch: bytearray) -> bytes:
    """The batch with the CRC that its bytes ask for."""
    struct.pack_into(">I", batch, 17, batch_crc(batch, 0, len(batch)))
    return bytes(batch)


def unpack_golden(directory: Path) -> Path:
    """Apache Kafka's log directory (see `golden/README.md`), in `directory`."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(directory, filter="data")
    return directory


@cache
def expected() -> tuple[tuple[Row, bool], ...]:
    """The records that a consumer of Apache Kafka saw, and whether it saw them under
    read_committed too.
    """
    with tarfile.open(GOLDEN) as archive:
        file = archive.extractfile("./expected.jsonl")
        assert file is not None
        return tuple(_expected(json.loads(line)) for line in file)


def _expected(line: list[Any]) -> tuple[Row, bool]:
    topic, partition, offset, timestamp, kind, key, value, headers, committed = line
    pairs = [(name, _bytes(content)) for name, content in headers] if headers else None
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "timestampType": kind,
        "key": _bytes(key),
        "value": _bytes(value),
        "headers": pairs,
    }, committed


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
