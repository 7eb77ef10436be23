"""What brokers say when they are asked directly, past all relays: who leads, who is in sync, where
partitions end.

One short connection per question, with a time-out: an asker that keeps nothing cannot be confused
by what it asks about. The client id is no node's.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.header import RequestHeader, decode_response_header, encode_request_header
from twisted_broker.wire.messages import list_offsets, metadata, topics
from twisted_broker.wire.schema import decode, encode_parts

Address = tuple[str, int]
NO_ANSWER = (OSError, WireError, EOFError)
_TIMEOUT_SECONDS = 3.0
READ_COMMITTED = 1
_LATEST = -1


class PartitionHistory(NamedTuple):
    """A partition, as one broker sees it. `isr` in order of id."""

    leader: int
    epoch: int
    isr: tuple[int, ...]


def ask(
    address: Address,
    request: Any,
    answer_class: type[Any],
    version: int,
    timeout: float = _TIMEOUT_SECONDS,
) -> Any:
    """The answer's message. Raises one of `NO_ANSWER`."""
    header = encode_request_header(RequestHeader(request.api_key, version, 1, "asking"))
    body = b"".join(map(bytes, [header, *encode_parts(request, version)]))
    with socket.create_connection(address, timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(len(body).to_bytes(4, "big") + body)
        answer = _exactly(connection, int.from_bytes(_exactly(connection, 4), "big"))
    _, at = decode_response_header(answer, request.api_key, version)
    return decode(answer_class, answer, version, at)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the broker closed the connection")
        data += more
    return bytes(data)


def standings(address: Address, topic: str | None = None) -> dict[TopicPartition, PartitionHistory]:
    """All partitions (of one topic) as this broker sees them."""
    asked = None if topic is None else [metadata.MetadataRequestTopic(name=topic)]
    answer = ask(
        address,
        metadata.MetadataRequest(topics=asked, allow_auto_topic_creation=False),
        metadata.MetadataResponse,
        9,
    )
    return {
        TopicPartition(found.name, each.partition_index): PartitionHistory(
            each.leader_id, each.leader_epoch, tuple(sorted(each.isr_nodes))
        )
        for found in answer.topics
        for each in found.partitions
    }


def ends(
    addresses: Mapping[int, Address], topic: str, isolation_level: int = 0
) -> dict[TopicPartition, int]:
    """Partition -> what its leader says consumers of that isolation level can read up to.

    LookupError when a leader is not known or does not lead.
    """
    found: dict[TopicPartition, int] = {}
    for partition, standing in standings(next(iter(addresses.values())), topic).items():
        asked = list_offsets.ListOffsetsPartition(
            partition_index=partition.partition,
            current_leader_epoch=standing.epoch,
            timestamp=_LATEST,
        )
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=[asked])],
        )
        answer = (
            ask(addresses[standing.leader], request, list_offsets.ListOffsetsResponse, 5)
            .topics[0]
            .partitions[0]
        )
        if answer.error_code:
            raise LookupError(f"{partition}: error {answer.error_code}")
        found[partition] = answer.offset
    return found


def create_topic(
    address: Address, name: str, partitions: int, replicas: int, settings: Mapping[str, str]
) -> int:
    """The error code: 0, or 36 where it is there already."""
    configs = [
        topics.CreatableTopicConfig(name=key, value=value) for key, value in settings.items()
    ]
    topic = topics.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, configs=configs
    )
    request = topics.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    answer = ask(address, request, topics.CreateTopicsResponse, 5, timeout=15)
    return int(answer.topics[0].error_code)


def delete_topic(address: Address, name: str) -> int:
    """The error code: 0, or 3 where it is gone already."""
    request = topics.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    answer = ask(address, request, topics.DeleteTopicsResponse, 4, timeout=15)
    return int(answer.responses[0].error_code)
