"""What one client writes with a codec, every other reads back: keys, values and headers, equal
to the byte.
"""

from __future__ import annotations

import uuid

import pytest

from tests.compat import clients
from tests.compat.clients import ALL, Headers, Kcat, Row
from tests.compat.raw import Connection, create_topic

HEADERS: Headers = (("trace", b"0123"), ("kind", b"test"))
PER_PRODUCER = 40
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PRODUCERS = {client.name: client for client in ALL}


def rows_of(client: str, codec: str) -> list[Row]:
    return [
        (
            f"{client}/{codec}/{number}".encode(),
            f"value {number} ".encode() * (1 + number % 7),
            HEADERS,
        )
        for number in range(PER_PRODUCER)
    ]


@pytest.fixture(scope="session")
def written(broker: object) -> dict[str, tuple[str, list[Row]]]:
    """codec -> (topic, every row that all clients wrote with it)."""
    out = {}
    for codec in CODECS:
        topic, rows = f"codec-{codec}-{uuid.uuid4().hex[:8]}", []
        with Connection(broker.address) as connection:  # type: ignore[attr-defined]
            assert create_topic(connection, topic, partitions=2) == 0
        for client in ALL:
            if codec in client.codecs and (client.name != "kcat" or Kcat.is_there()):
                client.produce(broker.bootstrap, topic, codec, rows_of(client.name, codec))  # type: ignore[attr-defined]
                rows += rows_of(client.name, codec)
        out[codec] = topic, rows
    return out


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", [client.name for client in ALL])
def test_every_client_reads_every_codec(
    broker: object, written: dict[str, tuple[str, list[Row]]], reader: str, codec: str
) -> None:
    """Each consumer, in a group of its own, gets exactly what all the producers wrote with this
    codec.
    """
    if reader == "kcat" and not Kcat.is_there():
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    topic, rows = written[codec]
    found = PRODUCERS[reader].consume(broker.bootstrap, topic, f"group-{reader}-{topic}", len(rows))  # type: ignore[attr-defined]
    assert sorted(found) == sorted(rows)


def test_null_keys_and_values(broker: object, topic: str) -> None:
    """Null and empty are different things, for keys and for values, on the way there and back."""
    rows: list[Row] = [
        (None, b"no key", ()),
        (b"tombstone", None, ()),
        (b"", b"", ()),
        (b"\xff\x00", b"\x00\xff", ()),
    ]
    with Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert create_topic(connection, topic) == 0
    clients.KafkaPython().produce(broker.bootstrap, topic, "gzip", rows)  # type: ignore[attr-defined]
    found = clients.Confluent().consume(broker.bootstrap, topic, f"group-{topic}", len(rows))  # type: ignore[attr-defined]
    assert found == rows
