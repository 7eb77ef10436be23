"""Memory follows the sockets, not what clients ask for."""

from __future__ import annotations

import os
import socket
import struct

import psutil

from tests.compat import raw
from tests.compat.conftest import BrokerFactory
from tests.compat.test_idempotence import batch, produce

READERS = 100
LOG_BYTES = 40_000_000
MAX_GROWTH_MB = 60


def test_readers_that_do_not_read(new_broker: BrokerFactory, topic: str) -> None:
    """A hundred clients ask for 40 MB each and read nothing: the broker stays small, and serves
    one that reads every byte of it.
    """
    broker = new_broker().start()
    process = psutil.Process(broker.process.pid)
    with raw.Connection(broker.address, timeout=60) as connection:
        assert raw.create_topic(connection, topic) == 0
        records = batch([os.urandom(900_000)], -1, -1, -1)
        count = LOG_BYTES // len(records)
        for number in range(count):
            assert produce(connection, topic, records) == (0, number)
        before = process.memory_info().rss
        request = raw.fetch_body(4, topic, 0, 0, max_bytes=2 * LOG_BYTES)
        frame = raw.sized(
            struct.pack(">hhi", raw.FETCH, 4, raw.CORRELATION_ID) + raw.string("slow") + request
        )
        waiting = [socket.create_connection(broker.address, 20) for _ in range(READERS)]
        for reader in waiting:
            reader.sendall(frame)
        first = [reader.recv(4) for reader in waiting]
        assert all(struct.unpack(">i", size)[0] > LOG_BYTES * 0.9 for size in first)
        error, high_watermark, got = raw.fetched(connection.call(raw.FETCH, 4, request), 4)
        assert (error, high_watermark) == (0, count) and len(got) == count * len(records)
        grown = (process.memory_info().rss - before) / 1e6
        for reader in waiting:
            reader.close()
    assert grown < MAX_GROWTH_MB, f"{grown:.0f} MB"
