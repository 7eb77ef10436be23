"""Idempotent producers by bytes: a duplicate is answered with its first offset, a gap and an old
epoch are refused.
"""

from __future__ import annotations

import signal
import struct
import threading
import time
from pathlib import Path

import crc32c
import pytest

from tests.compat import raw
from tests.compat.cluster_processes import Cluster
from tests.compat.conftest import BrokerFactory

OUT_OF_ORDER, INVALID_EPOCH, TRANSACTION_STATE, CORRUPT = 45, 47, 48, 2
NOT_ENOUGH_REPLICAS, PRODUCER_ID_MAPPING = 19, 49
INIT_PRODUCER_ID, FIND_COORDINATOR = 22, 10
NOT_YET = (3, 6)  # the topic, or who leads it, is not known yet
TRANSACTIONAL = 0x10
LIMIT_SECONDS = 60


def zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def batch(
    values: list[bytes],
    producer_id: int,
    epoch: int,
    sequence: int,
    attributes: int = 0,
    timestamp: int = 1_700_000_000_000,
) -> bytes:
    """A batch of magic 2 with these values."""
    records = b""
    for delta, value in enumerate(values):
        body = (
            b"\0" + zigzag(0) + zigzag(delta) + zigzag(-1) + zigzag(len(value)) + value + zigzag(0)
        )
        records += zigzag(len(body)) + body
    last = len(values) - 1
    tail = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            last,
            timestamp,
            timestamp,
            producer_id,
            epoch,
            sequence,
            len(values),
        )
        + records
    )
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c.crc32c(tail)) + tail


def produce(
    connection: raw.Connection, topic: str, records: bytes, transactional_id: str | None = None
) -> tuple[int, int]:
    """Produce v3: (error, base offset)."""
    body = raw.string(transactional_id) + raw.produce_body(topic, 0, records)
    return raw.produced(connection.call(raw.PRODUCE, 3, body), 3)


def new_producer(connection: raw.Connection) -> tuple[int, int]:
    """InitProducerId v0: (id, epoch)."""
    reader = connection.call(INIT_PRODUCER_ID, 0, raw.string(None) + struct.pack(">i", 60_000))
    _, error, producer_id, epoch = reader.take("ihqh")
    assert error == 0
    return producer_id, epoch


def test_sequences(broker: object, topic: str) -> None:
    """RL 3.2: five batches are remembered; duplicates get their offset again, a gap is
    OUT_OF_ORDER_SEQUENCE_NUMBER, an old epoch is refused.
    """
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
        producer_id, epoch = new_producer(connection)
        assert new_producer(connection)[0] != producer_id
        for number in range(5):
            assert produce(
                connection, topic, batch([b"a", b"b"], producer_id, epoch, 2 * number)
            ) == (0, 2 * number)
        for number in range(5):
            assert produce(
                connection, topic, batch([b"a", b"b"], producer_id, epoch, 2 * number)
            ) == (0, 2 * number)
        assert (
            produce(connection, topic, batch([b"gap"], producer_id, epoch, 12))[0] == OUT_OF_ORDER
        )
        assert produce(connection, topic, batch([b"next"], producer_id, epoch, 10)) == (0, 10)
        assert produce(connection, topic, batch([b"new epoch"], producer_id, epoch + 1, 0)) == (
            0,
            11,
        )
        assert (
            produce(connection, topic, batch([b"old epoch"], producer_id, epoch, 11))[0]
            == INVALID_EPOCH
        )
        assert (
            raw.fetched(connection.call(raw.FETCH, 4, raw.fetch_body(4, topic, 0, 12)), 4)[1] == 12
        )


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_five_in_flight_survive_a_restart(new_broker: BrokerFactory, topic: str, end: str) -> None:
    """RL 3.2, 3.6: whatever of five requests in flight is sent again to a broker that was
    restarted meanwhile gets the offset it has.
    """
    broker = new_broker().start()
    with raw.Connection(broker.address) as connection:
        assert raw.create_topic(connection, topic) == 0
        producer_id, epoch = new_producer(connection)
        sent = [
            batch([b"a", b"b"], producer_id, epoch, 2 * number, timestamp=int(time.time() * 1000))
            for number in range(7)
        ]
        assert [produce(connection, topic, each) for each in sent] == [
            (0, 2 * number) for number in range(7)
        ]
    getattr(broker, end)()
    broker.start()
    with raw.Connection(broker.address) as connection:
        deadline = time.monotonic() + LIMIT_SECONDS
        while (first := produce(connection, topic, sent[2]))[
            0
        ] in NOT_YET and time.monotonic() < deadline:
            time.sleep(0.01)
        assert first == (0, 4)
        assert [produce(connection, topic, each) for each in sent[3:]] == [
            (0, 2 * number) for number in range(3, 7)
        ]
        assert produce(
            connection,
            topic,
            batch([b"next"], producer_id, epoch, 14, timestamp=int(time.time() * 1000)),
        ) == (0, 14)


def test_a_damaged_batch_is_refused(broker: object, topic: str) -> None:
    """A wrong CRC is CORRUPT_MESSAGE, and nothing is appended."""
    data = bytearray(batch([b"value"], -1, -1, -1))
    data[-2] ^= 0x40
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
        assert produce(connection, topic, bytes(data))[0] == CORRUPT
        assert raw.fetched(connection.call(raw.FETCH, 4, raw.fetch_body(4, topic, 0, 0)), 4)[
            1:
        ] == (0, b"")


def test_a_transactional_batch_of_no_transaction_is_refused(broker: object, topic: str) -> None:
    """INVALID_TXN_STATE or, of a producer id that belongs to no transactional id, its mapping's
    error: nothing is written that no marker would end.
    """
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
        deadline = time.monotonic() + 30
        code = NOT_ENOUGH_REPLICAS  # until the transaction's coordinator is there
        while code == NOT_ENOUGH_REPLICAS and time.monotonic() < deadline:
            connection.call(FIND_COORDINATOR, 1, raw.string("t") + b"\1")
            producer_id, epoch = new_producer(connection)
            records = batch([b"x"], producer_id, epoch, 0, TRANSACTIONAL)
            code = produce(connection, topic, records, "t")[0]
        assert code in (TRANSACTION_STATE, PRODUCER_ID_MAPPING)
        assert raw.fetched(connection.call(raw.FETCH, 4, raw.fetch_body(4, topic, 0, 0)), 4)[
            1:
        ] == (0, b"")


def test_a_producer_that_starts_while_the_controller_is_away(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It is told to come again before its own patience ends, and has its id when the controller
    is back.
    """
    from kafka import KafkaProducer

    cluster = Cluster(tmp_path, count=1).start()
    broker, controller = cluster.brokers[1], cluster.controller
    request.addfinalizer(controller.kill)
    request.addfinalizer(broker.kill)
    first = KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=False)
    first.send("t", b"first").get(LIMIT_SECONDS)
    first.close()
    assert controller.process is not None
    process = controller.process
    process.send_signal(signal.SIGSTOP)
    back = threading.Timer(12, process.send_signal, [signal.SIGCONT])
    back.start()
    try:
        producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap,
            enable_idempotence=True,
            request_timeout_ms=8_000,
        )
        assert producer.send("t", b"second").get(LIMIT_SECONDS).offset == 1
        assert not back.is_alive()
        producer.close()
    finally:
        back.cancel()
        process.send_signal(signal.SIGCONT)
