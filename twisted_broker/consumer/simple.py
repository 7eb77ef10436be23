"""A consumer of one broker: each method is one request, and what it answers (`offset_before` may
need a second one).

Owns `SimpleConsumer` and `PartitionRecords`.

1. It follows no leader, keeps no offset, and tries nothing again: what a broker refuses is raised,
   or, of a fetch, in the partition's `error`.

Source: RL 7.6; Kafka 0.8's `SimpleConsumer`. Not here: groups and streams (`streams`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from twisted_broker.consumer.cluster_client import (
    METADATA,
    ClientConnection,
    ClusterMetadata,
    cluster_metadata,
    connector_of,
    list_offset,
    metadata_request,
)
from twisted_broker.consumer.consumer_config import security_of
from twisted_broker.consumer.group_offsets import commit_offsets, committed_offsets
from twisted_broker.consumer.record_iterator import records_of
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.replication.fetcher.leader_endpoint import (
    EARLIEST,
    LATEST,
    BrokerEndPoint,
)
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.legacy import iterate_entries
from twisted_broker.wire.messages import fetch as fetch_messages
from twisted_broker.wire.record_walk import Record

__all__ = ["EARLIEST", "LATEST", "PartitionRecords", "SimpleConsumer"]
_FETCH_BY_NAME: Final = 12


class PartitionRecords(NamedTuple):
    """Of one partition, from the offset requested on; `next_offset`: to fetch next."""

    error: ErrorCode
    records: list[Record]
    next_offset: int
    high_watermark: int
    log_start_offset: int


class SimpleConsumer:
    """Of the broker at `host`:`port`; all times in ms. `runtime` None: the program's reactor.
    `settings`: of TLS and SASL, by a Java client's names; `oauth_token`: as of `ConsumerConnector`.
    Raises `InvalidSetting`.

    Methods raise `BrokerError`, and Twisted's connection errors; a `ConnectError` with one line
    where TLS or SASL failed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str = "replog-simple-consumer",
        runtime: Runtime | None = None,
        request_timeout_ms: int = 30_000,
        settings: Mapping[str, Any] | None = None,
        oauth_token: Callable[[], str] | None = None,
    ) -> None:
        if runtime is None:
            from twisted_broker.consumer.reactor_runtime import reactor_runtime

            runtime = reactor_runtime()
        self._connection = ClientConnection(
            runtime,
            BrokerEndPoint(-1, host, port),
            client_id,
            request_timeout_ms,
            connector_of(runtime, security_of(settings or {}, oauth_token), client_id),
        )

    async def fetch(
        self,
        offsets: Mapping[TopicPartition, int],
        max_wait_ms: int = 100,
        min_bytes: int = 1,
        partition_max_bytes: int = 1 << 20,
        committed_only: bool = False,
    ) -> dict[TopicPartition, PartitionRecords]:
        """What this broker, as their leader, has from these offsets on."""
        topics: dict[str, fetch_messages.FetchTopic] = {}
        for name, offset in offsets.items():
            topic = topics.setdefault(name.topic, fetch_messages.FetchTopic(topic=name.topic))
            topic.partitions.append(
                fetch_messages.FetchPartition(
                    partition=name.partition,
                    fetch_offset=offset,
                    partition_max_bytes=partition_max_bytes,
                )
            )
        request = fetch_messages.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            isolation_level=int(committed_only),
            topics=list(topics.values()),
        )
        answer = await self._connection.send(request, _FETCH_BY_NAME)
        return {
            name: _partition_records(data, offsets[name])
            for topic in answer.responses
            for data in topic.partitions
            if (name := TopicPartition(topic.topic, data.partition_index)) in offsets
        }

    async def offset_before(self, topic_partition: TopicPartition, timestamp: int) -> int:
        """All records below it are older than `timestamp` (ms): it is the offset of the first that
        is not, or the log's end. EARLIEST: the log's start; LATEST: its end.
        """
        offset, _ = await list_offset(self._connection, topic_partition, timestamp)
        if offset < 0:
            offset, _ = await list_offset(self._connection, topic_partition, LATEST)
        return offset

    async def topic_metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        """Brokers, partitions and leaders of `topics`, None for all."""
        return cluster_metadata(await self._connection.send(metadata_request(topics), METADATA))

    async def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """For a group without members, of which this broker is the coordinator."""
        positions = {name: (offset, -1) for name, offset in offsets.items()}
        await commit_offsets(self._connection, group_id, positions)

    async def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """What a group committed, -1 where it did not."""
        found = await committed_offsets(self._connection, group_id, partitions)
        return {name: offset for name, (offset, _) in found.items()}

    def close(self) -> None:
        self._connection.close()


def _partition_records(data: fetch_messages.PartitionData, begin: int) -> PartitionRecords:
    content = bytes(data.records or b"")
    size, next_offset = 0, begin
    for entry in iterate_entries(content, partial_tail=True):
        size += entry.size_in_bytes
        next_offset = entry.last_offset + 1
    aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]
    return PartitionRecords(
        error_of(data.error_code),
        list(records_of(content[:size], begin, aborted)),
        next_offset,
        data.high_watermark,
        data.log_start_offset,
    )
