"""Who leads which partition, and connections to them.

1. `leader` queries the cluster again only after `forget`; a connection is used until then.
2. A temporary failure (no leader yet, a broker that is away) is `OSError`, as a broken connection
   is: the caller waits and retries. A permanent refusal is a PipelineError.
"""

from __future__ import annotations

from dataclasses import dataclass

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.replay.connection import Connection
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

ERRORS = {int(code): code for code in ErrorCode}


class NotNowError(OSError):
    """The cluster cannot serve this at the moment."""


@dataclass(frozen=True)
class Topic:
    """`leaders`: partition -> node id, -1 while there is none.

    `brokers`: node id -> (host, port).
    """

    id: bytes
    leaders: dict[int, int]
    brokers: dict[int, tuple[str, int]]


class Cluster:
    """The brokers at `address`, for one topic."""

    def __init__(self, address: KafkaCluster, topic: str) -> None:
        self.address, self.topic = address, topic
        self._found: Topic | None = None
        self._connections: dict[int, Connection] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.forget()

    def forget(self) -> None:
        """Close all connections; query again who leads."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._found = None

    def leader(self, partition: int) -> Connection:
        """A connection to the partition's leader."""
        found = self.described()
        node = found.leaders.get(partition, -1)
        if node not in found.brokers:
            raise NotNowError(f"{self.topic}-{partition} has no leader")
        if node not in self._connections:
            self._connections[node] = Connection(*found.brokers[node], self.address.client)
        return self._connections[node]

    def described(self) -> Topic:
        """The topic as any of the bootstrap brokers knows it."""
        if self._found is None:
            self._found = self._ask_any()
        return self._found

    def _ask_any(self) -> Topic:
        failure: OSError = NotNowError(f"no broker in {self.address}")
        for address in self.address.bootstrap.split(","):
            host, _, port = address.rpartition(":")
            try:
                return self._ask(host.strip("[]"), int(port))
            except OSError as error:
                failure = error
        raise failure

    def _ask(self, host: str, port: int) -> Topic:
        connection = Connection(host, port, self.address.client)
        try:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=self.topic)], allow_auto_topic_creation=False
            )
            answer = connection.call(request, MetadataResponse)
        finally:
            connection.close()
        check(answer.topics[0].error_code, f"topic {self.topic}")
        leaders = {each.partition_index: each.leader_id for each in answer.topics[0].partitions}
        return Topic(
            answer.topics[0].topic_id,
            leaders,
            {each.node_id: (each.host, each.port) for each in answer.brokers},
        )


def check(error_code: int, what: str) -> None:
    """NotNowError for a code that may pass, PipelineError for one that does not; nothing for
    none.
    """
    if error_code:
        code = ERRORS[error_code]
        if code.retriable:
            raise NotNowError(f"{what}: {code.name}")
        raise PipelineError(f"{what}: {code.sentence} ({code.name})")
