"""A cluster as its client sees it: connections to its brokers, and its metadata.

Owns `ClientConnection` (versions negotiated at each connection), `ClusterClient` (the brokers that
are known, one connection to each) and `ClusterMetadata`.

1. A version is the highest that both sides know, by ApiVersions of that very connection.
2. Brokers are tried in shuffled order, those of the last metadata first, then `bootstrap.servers`:
   a cluster whose brokers all moved is found again.
3. Connections are bounded by the brokers of the last metadata; of others they are closed.

Source: RL 7.2; Kafka's `NetworkClient`, `Metadata`. Not here: fetching (`consumer_endpoint`),
groups, TLS and SASL (`net/client_connector.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred

from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.errors import (
    AuthenticationFailed,
    BrokersUnreachable,
    InvalidSetting,
)
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.net.client import BrokerConnection, RequestTimedOut
from twisted_broker.net.client_connector import SecurityRefused, client_connector, lost_words
from twisted_broker.net.connector import Connector
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.security.client_security import ClientSecurity
from twisted_broker.settings import ConfigError
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError, error_of
from twisted_broker.wire.messages import list_offsets as listing
from twisted_broker.wire.messages import metadata as meta

METADATA, LIST_OFFSETS = 13, 11  # the highest versions that we speak
_CONNECT_TIMEOUT_MS = 10_000
_BOOTSTRAP = -1
IS_IT_KAFKA = "is it a Kafka broker?"


class PartitionMetadata(NamedTuple):
    """Its leader, None when there is none that is known, and its leader epoch (-1 not known)."""

    leader: BrokerEndPoint | None
    leader_epoch: int


class TopicMetadata(NamedTuple):
    """One topic; `error` NONE: its partitions are all of them."""

    error: ErrorCode
    topic_id: bytes
    is_internal: bool
    partitions: dict[int, PartitionMetadata]


class ClusterMetadata(NamedTuple):
    """What one broker answered."""

    cluster_id: str | None
    brokers: dict[int, BrokerEndPoint]
    topics: dict[str, TopicMetadata]


class ClientConnection:
    """A connection to one broker."""

    def __init__(
        self,
        runtime: Runtime,
        endpoint: BrokerEndPoint,
        client_id: str,
        request_timeout_ms: int,
        connector: Connector,
    ) -> None:
        self.endpoint = endpoint
        self.raw = BrokerConnection(
            runtime,
            endpoint.host,
            endpoint.port,
            client_id,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=min(_CONNECT_TIMEOUT_MS, request_timeout_ms),
            connector=connector,
        )

    async def version(self, api_key: int, ours: int) -> int:
        """The version to speak. Raises BrokerError(UNSUPPORTED_VERSION), connection errors."""
        if not self.raw.api_versions:
            await self.raw.negotiate()
        return self.raw.highest_version(api_key, ours)

    async def send(self, request: Any, ours: int, timeout_ms: int | None = None) -> Any:
        """The answer, at the highest version that both know, `ours` at most."""
        version = await self.version(request.api_key, ours)
        return await self.raw.send(request, version, timeout_ms=timeout_ms)

    def close(self) -> None:
        self.raw.close()


class ClusterClient:
    """`close()` ends all connections. `option`: of a command line, where its settings of TLS and
    SASL are from; `addresses`: what errors name before them. Raises `InvalidSetting`, of TLS's
    files.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ConsumerConfig,
        option: str = "",
        addresses: str = "bootstrap.servers=",
    ) -> None:
        self.runtime = runtime
        self._addresses = addresses
        self.client_id = config.text("client.id")
        self._option = f"{option}: " if option else ""
        self._connector = connector_of(runtime, config.security, self.client_id, self._option)
        self._timeout_ms = config.integer("request.timeout.ms")
        self._bootstrap = [BrokerEndPoint(_BOOTSTRAP, *server) for server in config.servers]
        self._brokers: dict[int, BrokerEndPoint] = {}
        self._connections: dict[BrokerEndPoint, ClientConnection] = {}
        self._asked: ClientConnection | None = None
        self._closed = False

    @property
    def waits_for(self) -> str:
        """Where the first of its brokers is not known yet: what is waited for, in words; else
        empty.
        """
        if self._asked is None or self._brokers:
            return ""
        raw = self._asked.raw
        address = f"{self._addresses}{raw.host}:{raw.port}"
        if not raw.connected:
            return f"{address}: there is no connection yet; check the address"
        return f"{address}: it took the connection and has not answered yet; {IS_IT_KAFKA}"

    def connect(self, endpoint: BrokerEndPoint, client_id: str) -> ClientConnection:
        """A connection of the caller's own, which closes it."""
        return ClientConnection(
            self.runtime, endpoint, client_id, self._timeout_ms, self._connector
        )

    def connection(self, endpoint: BrokerEndPoint) -> ClientConnection:
        """The one that all share."""
        found = self._connections.get(endpoint)
        if found is None:
            found = self._connections[endpoint] = self.connect(endpoint, self.client_id)
        return found

    def broker(self, broker_id: int) -> BrokerEndPoint | None:
        """As of the last metadata."""
        return self._brokers.get(broker_id)

    def any_order(self) -> list[BrokerEndPoint]:
        """Whom to ask what any broker answers, one after the other."""
        known = list(self._brokers.values())
        self.runtime.random.shuffle(known)
        first = list(self._bootstrap)
        self.runtime.random.shuffle(first)
        return [*known, *first]

    async def send_to_any(self, request: Any, ours: int) -> Any:
        """The answer of the first broker that gives one. Raises `BrokersUnreachable`, with
        `AuthenticationFailed` where brokers are there, and BrokerError(UNSUPPORTED_VERSION) of the
        last.
        """
        failures: list[str] = []
        refused = 0
        unsupported: BrokerError | None = None
        tried: set[tuple[str, int]] = set()
        for endpoint in self.any_order():
            if (endpoint.host, endpoint.port) in tried:
                continue
            tried.add((endpoint.host, endpoint.port))
            connection = self._asked = self.connection(endpoint)
            try:
                return await connection.send(request, ours)
            except CancelledError:
                raise
            except BrokerError as error:
                unsupported = error
            except SecurityRefused as error:
                refused += 1
                failures.append(str(error))
            except Exception as error:
                # A listener that wants SASL answers ApiVersions, and nothing else. Once brokers
                # are known it is right, and this one stops.
                address = f"{endpoint.host}:{endpoint.port}"
                words = (str(error) or type(error).__name__).removeprefix(f"{address} ")
                if not self._brokers and connection.raw.answers <= 1:
                    words = lost_words(error, self._connector.protocol).removeprefix(f"{address} ")
                    if isinstance(error, RequestTimedOut) and not connection.raw.answers:
                        words += f" ({IS_IT_KAFKA})"
                failures.append(f"{address}: {words}")
            finally:
                self._asked = None
            if self._closed:
                break
        if unsupported is not None:
            raise unsupported
        servers = ",".join(f"{each.host}:{each.port}" for each in self._bootstrap)
        if failures and refused == len(failures):
            raise AuthenticationFailed(self._option + "; ".join(failures))
        raise BrokersUnreachable(
            f"no broker of {self._addresses}{servers} answered ({'; '.join(failures)}); "
            "check the addresses, and that the brokers run"
        )

    async def metadata(self, topics: Iterable[str] | None) -> ClusterMetadata:
        """Of `topics`, None for all; none is created by this."""
        answer = await self.send_to_any(metadata_request(topics), METADATA)
        found = cluster_metadata(answer)
        self._keep(found.brokers)
        return found

    def _keep(self, brokers: dict[int, BrokerEndPoint]) -> None:
        # An answer without brokers is of one that knows none yet: the others stay known.
        if not brokers:
            return
        self._brokers = brokers
        keep = {*brokers.values(), *self._bootstrap}
        for gone in [each for each in self._connections if each not in keep]:
            self._connections.pop(gone).close()

    def close(self) -> None:
        self._closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def pause(self, milliseconds: int) -> Deferred[None]:
        """Fires after that time."""
        done: Deferred[None] = Deferred(lambda _: timer.cancel() if timer.active() else None)
        timer = self.runtime.clock.callLater(milliseconds / 1000, done.callback, None)
        return done


def connector_of(
    runtime: Runtime, security: ClientSecurity, client_id: str, source: str = ""
) -> Connector:
    """How brokers are reached. Raises `InvalidSetting`; its line begins with `source`."""
    try:
        return client_connector(runtime, security, client_id)
    except ConfigError as error:
        raise InvalidSetting(f"{source}{error}") from None


def metadata_request(topics: Iterable[str] | None) -> meta.MetadataRequest:
    """For `topics`, None for all."""
    return meta.MetadataRequest(
        topics=None
        if topics is None
        else [meta.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
    )


def cluster_metadata(answer: meta.MetadataResponse) -> ClusterMetadata:
    """Raises `BrokerError` for an error of the whole answer."""
    if answer.error_code:
        raise BrokerError(error_of(answer.error_code))
    brokers = {
        each.node_id: BrokerEndPoint(each.node_id, each.host, each.port) for each in answer.brokers
    }
    return ClusterMetadata(
        answer.cluster_id,
        brokers,
        {each.name: _topic(each, brokers) for each in answer.topics if each.name is not None},
    )


def _topic(found: meta.MetadataResponseTopic, brokers: dict[int, BrokerEndPoint]) -> TopicMetadata:
    return TopicMetadata(
        error_of(found.error_code),
        bytes(found.topic_id),
        found.is_internal,
        {
            each.partition_index: PartitionMetadata(brokers.get(each.leader_id), each.leader_epoch)
            for each in found.partitions
        },
    )


async def list_offset(
    connection: ClientConnection,
    topic_partition: TopicPartition,
    timestamp: int,
    leader_epoch: int = -1,
    committed_only: bool = False,
) -> tuple[int, int]:
    """(offset, timestamp) of the first record at or after `timestamp` (ms), -1 where there is none;
    of LATEST and EARLIEST. Raises `BrokerError`.
    """
    partition = listing.ListOffsetsPartition(
        partition_index=topic_partition.partition,
        current_leader_epoch=leader_epoch,
        timestamp=timestamp,
    )
    topic = listing.ListOffsetsTopic(name=topic_partition.topic, partitions=[partition])
    request = listing.ListOffsetsRequest(
        replica_id=-1, isolation_level=int(committed_only), topics=[topic]
    )
    response = await connection.send(request, LIST_OFFSETS)
    for each in response.topics:
        for answer in each.partitions:
            if (each.name, answer.partition_index) == topic_partition:
                if answer.error_code:
                    raise BrokerError(error_of(answer.error_code))
                return answer.offset, answer.timestamp
    raise WireError(f"{connection.endpoint} left {topic_partition} out of its answer")
