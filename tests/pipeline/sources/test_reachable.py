"""What is known of a cluster before Spark starts: by a scripted broker's answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.sources import reachable
from replog_pipeline.sources.urls import KafkaSource
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from twisted_broker.wire.primitives import uuid_text
from twisted_broker.wire.schema import encode

VERSION = 10
Answer = Callable[[bytes], bytes]


@contextmanager
def broker(answer: Answer) -> Iterator[str]:
    """HOST:PORT of a server that answers one request, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.settimeout(10)
                size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
                frame = connection.recv(size, socket.MSG_WAITALL)
                connection.sendall(answer(frame))

        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


def described(*topics: MetadataResponseTopic) -> Answer:
    def answer(frame: bytes) -> bytes:
        body = encode(MetadataResponse(topics=list(topics)), VERSION)
        told = frame[4:8] + b"\0" + body  # correlation id, no tags
        return len(told).to_bytes(4, "big") + told

    return answer


def topic(name: str, error: int = 0) -> MetadataResponseTopic:
    partitions = [MetadataResponsePartition(partition_index=number) for number in range(2)]
    return MetadataResponseTopic(
        error_code=error, name=name, topic_id=bytes(15) + b"\1", partitions=partitions
    )


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_topics_have_their_ids_and_partitions() -> None:
    with broker(described(topic("a"), topic("b"))) as bootstrap:
        found = reachable.found(KafkaSource(bootstrap, ("a", "b")))
    assert found is not None
    assert found.ids == dict.fromkeys("ab", uuid_text(bytes(15) + b"\1"))
    assert found.partitions == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'b' is not on the brokers at 127.0.0.1:"),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, "'b' is no valid topic name"),
    ],
)
def test_a_topic_that_is_not_there_is_refused(code: ErrorCode, words: str) -> None:
    with (
        broker(described(topic("a"), topic("b", code))) as bootstrap,
        pytest.raises(PipelineError) as raised,
    ):
        reachable.found(KafkaSource(bootstrap, ("a", "b")))
    assert words in str(raised.value)


def test_where_no_broker_listens_each_address_has_its_reason() -> None:
    away, gone = free_address(), free_address()
    with pytest.raises(PipelineError) as raised:
        reachable.check_address(KafkaSource(f"{away},{gone}", ("a",)), "--to")
    text = str(raised.value)
    assert text.startswith(f"--to: no broker accepts a connection ({away}: Connection refused; ")
    assert gone in text and text.endswith("do the brokers run?")


def test_one_of_the_addresses_is_enough() -> None:
    with broker(described(topic("a"))) as bootstrap:
        found = reachable.found(KafkaSource(f"{free_address()},{bootstrap}", ("a",)))
    assert found is not None and len(found.partitions) == 2


@pytest.mark.parametrize(
    "answer",
    [
        lambda frame: b"",
        lambda frame: b"\x15\x03\x03\x00\x02\x02\x46",
        lambda frame: b"\0\0\0\5" + frame[4:8] + b"\xff",
        described(topic("a", ErrorCode.LEADER_NOT_AVAILABLE)),
    ],
    ids=["hangs up", "TLS alert", "another form", "a leader is being elected"],
)
def test_what_this_client_cannot_judge_is_left_to_the_job(answer: Answer) -> None:
    with broker(answer) as bootstrap:
        assert reachable.found(KafkaSource(bootstrap, ("a",))) is None
