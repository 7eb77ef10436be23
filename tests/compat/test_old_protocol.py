"""The oldest clients: message sets of magic 0 and 1 in Produce v0-v2 and Fetch v0-v3, as
kafka-python 1.x and afkak send them.
"""

from __future__ import annotations

import zlib

import pytest
from kafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from tests.compat import raw
from tests.compat.clients import AioKafka, Confluent

CODEC_NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}
TIMESTAMP_MS = 1_600_000_000_000


def message_set(magic: int, codec: str, values: list[bytes]) -> bytes:
    builder = LegacyRecordBatchBuilder(
        magic=magic, compression_type=CODEC_NUMBERS[codec], batch_size=1 << 20
    )
    for number, value in enumerate(values):
        assert (
            builder.append(
                number,
                timestamp=TIMESTAMP_MS + number if magic else None,
                key=b"k%d" % number,
                value=value,
            )
            is not None
        )
    return bytes(builder.build())


def read_set(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of every message; its CRC is checked, and that it is of magic 0 or 1."""
    found = []
    records = MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert isinstance(batch, LegacyRecordBatch) and batch.validate_crc()
        found += [(record.offset, record.key, record.value) for record in batch]
    return found


@pytest.mark.parametrize("codec", CODEC_NUMBERS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_producer_new_consumer(broker: object, topic: str, version: int, codec: str) -> None:
    """A message set of the producer's time is converted on the way in and read by a client of
    today.
    """
    magic = 1 if version == 2 else 0
    values = [b"value %d" % number * 5 for number in range(20)]
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
        for round_number in range(2):
            answer = connection.call(
                raw.PRODUCE, version, raw.produce_body(topic, 0, message_set(magic, codec, values))
            )
            assert raw.produced(answer, version) == (0, 20 * round_number)
    for client in (AioKafka(), Confluent()):
        found = client.consume(broker.bootstrap, topic, f"{client.name}-{topic}", 40)  # type: ignore[attr-defined]
        assert [value for _, value, _ in found] == values * 2
        assert [key for key, _, _ in found] == [b"k%d" % number for number in range(20)] * 2


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_new_producer_old_consumer(broker: object, topic: str, version: int, codec: str) -> None:
    """Batches of today reach a consumer of Fetch v0-v3 as messages of magic 0 or 1, headers
    dropped, offsets and order kept.
    """
    rows = [(b"k%d" % number, b"value %d" % number * 3, (("h", b"x"),)) for number in range(50)]
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
        Confluent().produce(broker.bootstrap, topic, codec, rows)  # type: ignore[attr-defined]
        found: list[tuple[int, bytes | None, bytes | None]] = []
        while len(found) < 50:
            answer = connection.call(
                raw.FETCH, version, raw.fetch_body(version, topic, 0, len(found))
            )
            error, high_watermark, records = raw.fetched(answer, version)
            assert (error, high_watermark) == (0, 50)
            got = [message for message in read_set(records) if message[0] >= len(found)]
            assert got, "a fetch below the high watermark must bring something"
            found += got
    assert found == [(number, key, value) for number, (key, value, _) in enumerate(rows)]


@pytest.mark.parametrize("version", [0, 2])
def test_old_both_ways(broker: object, topic: str, version: int) -> None:
    """What an old producer wrote, an old consumer reads, from the middle of a compressed set
    too.
    """
    magic = 1 if version == 2 else 0
    values = [bytes([65 + number]) * 100 for number in range(26)]
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
        answer = connection.call(
            raw.PRODUCE, version, raw.produce_body(topic, 0, message_set(magic, "gzip", values))
        )
        assert raw.produced(answer, version) == (0, 0)
        _, _, records = raw.fetched(
            connection.call(raw.FETCH, version, raw.fetch_body(version, topic, 0, 13)), version
        )
    assert [(offset, value) for offset, _, value in read_set(records) if offset >= 13] == list(
        enumerate(values)
    )[13:]


def test_a_damaged_old_message_is_refused(broker: object, topic: str) -> None:
    """A wrong CRC is answered with CORRUPT_MESSAGE (2), and nothing is appended."""
    data = bytearray(message_set(1, "none", [b"intact"]))
    data[-1] ^= 1
    assert zlib.crc32(bytes(data[16:])) != int.from_bytes(data[12:16], "big")
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
        answer = connection.call(raw.PRODUCE, 2, raw.produce_body(topic, 0, bytes(data)))
        assert raw.produced(answer, 2)[0] == 2
        assert raw.fetched(connection.call(raw.FETCH, 3, raw.fetch_body(3, topic, 0, 0)), 3) == (
            0,
            0,
            b"",
        )
