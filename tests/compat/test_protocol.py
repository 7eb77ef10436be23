"""Behaviour of the wire that a client sees and that no client library shows."""

from __future__ import annotations

import struct
import threading
import time

import pytest

from tests.compat import raw
from tests.compat.test_old_protocol import message_set

UNSUPPORTED_VERSION, INVALID_TOPIC, UNKNOWN_TOPIC = 35, 17, 3
LONG_WAIT_MS = 5_000
MARGIN_SECONDS = 1.0
BAD_NAMES = (
    "",
    ".",
    "..",
    "a/b",
    "../../etc/passwd",
    "a\\b",
    "a\0b",
    "a b",
    "ä",
    "x" * 250,
    "a\nb",
    "a:b",
    "%2e%2e",
)


def test_api_versions_that_are_too_new(broker: object) -> None:
    """An ApiVersions of a later version is answered with error 35 in the layout of v0, and with
    the versions that are served.
    """
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        answer = connection.call(raw.API_VERSIONS, 99, b"\0\5some\6bytes\0")
        assert answer.take("h") == UNSUPPORTED_VERSION
        served = {
            key: (low, high)
            for key, low, high in (answer.take("hhh") for _ in range(answer.take("i")))
        }
        answer.assert_end()
        assert served[raw.API_VERSIONS][0] == 0
        again = connection.call(raw.API_VERSIONS, 0, b"")
        assert again.take("h") == 0


def test_produce_is_offered_from_version_0(broker: object) -> None:
    """librdkafka compresses only when Produce v0 is offered."""
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        answer = connection.call(raw.API_VERSIONS, 0, b"")
        assert answer.take("h") == 0
        served = {
            key: (low, high)
            for key, low, high in (answer.take("hhh") for _ in range(answer.take("i")))
        }
    assert served[raw.PRODUCE][0] == 0 and served[raw.PRODUCE][1] >= 12
    assert served[raw.FETCH][0] == 0 and served[raw.FETCH][1] >= 17


def test_a_waiting_fetch_is_answered_when_data_arrives(broker: object, topic: str) -> None:
    """A fetch that may wait 5 s is answered with the acknowledgement of new data, not at its
    time; a second is for a busy machine.
    """
    with raw.Connection(broker.address) as reader, raw.Connection(broker.address) as writer:  # type: ignore[attr-defined]
        assert raw.create_topic(writer, topic) == 0
        late = []
        for offset in range(10):
            arrived: list[float] = []
            reader.send(raw.FETCH, 4, raw.fetch_body(4, topic, 0, offset, max_wait_ms=LONG_WAIT_MS))
            waiting = threading.Thread(
                target=lambda arrived=arrived: (reader.receive(), arrived.append(time.monotonic()))
            )
            waiting.start()
            waiting.join(0.05)
            assert waiting.is_alive(), "an empty fetch must wait"
            answer = writer.call(
                raw.PRODUCE, 2, raw.produce_body(topic, 0, message_set(1, "none", [b"x"]))
            )
            acknowledged = time.monotonic()
            assert raw.produced(answer, 2) == (0, offset)
            waiting.join(LONG_WAIT_MS / 1000 + 5)
            late.append(arrived[0] - acknowledged)
    assert sorted(late)[len(late) // 2] < MARGIN_SECONDS, late
    assert max(late) < LONG_WAIT_MS / 1000 / 2, late


def test_an_empty_fetch_waits_for_its_time(broker: object, topic: str) -> None:
    """Without data the answer comes when max_wait is over, not before, and is empty."""
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
        began = time.monotonic()
        answer = connection.call(raw.FETCH, 4, raw.fetch_body(4, topic, 0, 0, max_wait_ms=300))
        took = time.monotonic() - began
        assert raw.fetched(answer, 4) == (0, 0, b"")
    assert took >= 0.29


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_names_that_are_no_topic_are_refused(broker: object, name: str) -> None:
    """A name that could leave its directory is refused by CreateTopics, Metadata with
    auto-creation, Produce and Fetch alike.
    """
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, name) == INVALID_TOPIC
        assert raw.leaders(connection, name) == [(INVALID_TOPIC, -1)]
        answer = connection.call(
            raw.PRODUCE, 2, raw.produce_body(name, 0, message_set(1, "none", [b"x"]))
        )
        assert raw.produced(answer, 2)[0] in (INVALID_TOPIC, UNKNOWN_TOPIC)
        assert raw.fetched(connection.call(raw.FETCH, 4, raw.fetch_body(4, name, 0, 0)), 4)[0] in (
            INVALID_TOPIC,
            UNKNOWN_TOPIC,
        )


BROKEN_FRAMES = {
    "negative length": struct.pack(">i", -1),
    "huge length": struct.pack(">i", 2**31 - 1),
    "unknown api": struct.pack(">ihhi", 8, 9999, 0, 1),
    "unknown version": struct.pack(">ihhih", 10, 3, 9999, 1, -1),
    "too short for a header": struct.pack(">i", 3) + b"abc",
}


@pytest.mark.parametrize("frame", BROKEN_FRAMES.values(), ids=BROKEN_FRAMES)
def test_a_broken_frame_closes_its_connection_only(broker: object, frame: bytes) -> None:
    """What cannot be a request ends its own connection; a neighbour's next request is answered
    as before.
    """
    with raw.Connection(broker.address) as bad, raw.Connection(broker.address) as good:  # type: ignore[attr-defined]
        bad.socket.sendall(frame)
        assert bad.is_closed_by_peer()
        assert good.call(raw.API_VERSIONS, 0, b"").take("h") == 0
