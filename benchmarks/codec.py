"""Microseconds to read and write the hot messages, beside kafka-python and kio: `python -m
benchmarks.codec [SECONDS]`.

Each figure is the best of five runs in one process, bytes to objects and back, without sockets;
SECONDS (0.2) is the length of one run. Compare only within one run. The two libraries are left out
where they do not know the version or are not installed.
"""

import io
import sys
from collections.abc import Callable
from timeit import Timer
from typing import Any

from twisted_broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from twisted_broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from twisted_broker.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from twisted_broker.wire.schema import Message, decode, encode

# An empty batch of format 2, which the libraries' readers of records accept.
BATCH = bytes.fromhex(
    "0000000000000000000000310000000002a2b9c1430000000000000000000000000000000000000000ffffffffffffffffffffffffffff00000000"
)


def messages() -> list[tuple[str, Message, int]]:
    """(what it is, message, version)."""
    records = TopicProduceData(name="orders", partition_data=[PartitionProduceData(records=BATCH)])
    produce = ProduceRequest(acks=-1, timeout_ms=30000, topic_data=[records])
    produced = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="orders", partition_responses=[PartitionProduceResponse(base_offset=7)]
            )
        ]
    )
    fetch = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=[FetchTopic(topic="orders", partitions=[FetchPartition(fetch_offset=7)])],
    )
    partitions = [FetchPartition(partition=number, fetch_offset=7) for number in range(100)]
    many = FetchRequest(
        max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=partitions)]
    )
    answers = [
        PartitionData(partition_index=number, high_watermark=9, records=BATCH)
        for number in range(100)
    ]
    fetched = FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=answers)])
    offsets = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name="orders", partitions=[ListOffsetsPartition(timestamp=-1)])]
    )
    return [
        ("Produce request v9, 1 partition", produce, 9),
        ("Produce request v3, 1 partition", produce, 3),
        ("Produce answer v9, 1 partition", produced, 9),
        ("Fetch request v12, 1 partition", fetch, 12),
        ("Fetch request v12, 100 partitions", many, 12),
        ("Fetch answer v12, 100 partitions", fetched, 12),
        ("ListOffsets request v6, 1 partition", offsets, 6),
        ("Metadata answer v9, 1,000 partitions", metadata(1000), 9),
    ]


def metadata(count: int) -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(
            partition_index=number, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]
        )
        for number in range(count)
    ]
    brokers = [
        MetadataResponseBroker(node_id=number, host="localhost", port=9092) for number in range(3)
    ]
    return MetadataResponse(
        brokers=brokers, topics=[MetadataResponseTopic(name="orders", partitions=partitions)]
    )


def microseconds(call: Callable[[], Any], seconds: float) -> float:
    timer = Timer(call)
    count, spent = timer.autorange()
    number = max(1, int(count * seconds / spent))
    return min(timer.repeat(5, number)) / number * 1e6


def kafka_python(
    cls: type[Message], encoded: bytes, version: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from kafka.protocol import consumer, metadata, producer

    theirs = next(
        getattr(module, cls.__name__)
        for module in (consumer, metadata, producer)
        if hasattr(module, cls.__name__)
    )
    message = theirs.decode(encoded, version=version)
    message._header = None
    return lambda: theirs.decode(encoded, version=version), lambda: message.encode(version=version)


def kio(
    cls: type[Message], encoded: bytes, version: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from kio.index import load_payload_module
    from kio.serial import entity_reader, entity_writer
    from kio.static.constants import EntityType

    kind: Any = EntityType.request if cls.__name__.endswith("Request") else EntityType.response
    entity = getattr(load_payload_module(cls.api_key, version, kind), cls.__name__)  # type: ignore[attr-defined]
    read, write = entity_reader(entity), entity_writer(entity)
    message, _ = read(encoded, 0)
    return lambda: read(encoded, 0), lambda: write(io.BytesIO(), message)


def figures(
    library: Callable[..., tuple[Callable[[], Any], Callable[[], Any]]],
    arguments: tuple[Any, ...],
    seconds: float,
) -> str:
    try:
        read, write = library(*arguments)
    except Exception as error:
        return f"{type(error).__name__:>17}"
    return f"{microseconds(read, seconds):8.2f} {microseconds(write, seconds):8.2f}"


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.2
    print(
        f"{'us, read and write; Python ' + sys.version.split()[0]:38} {'twisted-broker':>17} "
        f"{'kafka-python':>17} {'kio':>17}"
    )
    for name, message, version in messages():
        cls, encoded = type(message), encode(message, version)

        def ours(
            cls: type[Message] = cls,
            encoded: bytes = encoded,
            version: int = version,
            message: Message = message,
        ) -> Any:
            return lambda: decode(cls, encoded, version), lambda: encode(message, version)

        others = [
            figures(library, (cls, encoded, version), seconds) for library in (kafka_python, kio)
        ]
        print(f"{name:38} {figures(ours, (), seconds)} {' '.join(others)}")


if __name__ == "__main__":
    main()
