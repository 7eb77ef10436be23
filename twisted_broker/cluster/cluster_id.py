"""Which cluster an empty broker belongs to: its controller's.

Owns `fetch_cluster_id`, called once, before a new broker's directories are formatted.

1. The addresses are tried in turn until one answers; a controller that cannot be reached is logged
   once, then every 30 seconds.
2. DescribeCluster for controllers (KIP-919), in the highest version known to both. Not before
   the controller knows its cluster's features: an Apache Kafka controller that only just started
   refuses it, with an error and a trace in its log.

Source: KIP-919; Kafka's `kafka-storage format` needs the id by hand. Not here: comparing it with a
directory's (`log.log_directory`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle

from twisted.internet.defer import CancelledError
from twisted.internet.task import deferLater
from twisted.logger import Logger

from twisted_broker.cluster.controller_channel import Address, check_answer
from twisted_broker.interfaces import Runtime
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.connector import PLAIN, Connector
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.cluster import DescribeClusterRequest

_logger = Logger()
# DescribeCluster's endpoint type.
_CONTROLLERS = 2
_DESCRIBE_CLUSTER = 60
_PAUSE_MS, _TIMEOUT_MS, _LOG_AGAIN_MS = 100, 5_000, 30_000


async def fetch_cluster_id(
    runtime: Runtime,
    addresses: Sequence[Address],
    given_up: Callable[[], bool],
    connector: Connector = PLAIN,
) -> str:
    """The id of the cluster that the first of `addresses` (controllers) to answer belongs to.

    BrokerError once `given_up()`; whoever cancels this has given up, too.
    """
    logged_ms: int | None = None
    for host, port in cycle(addresses):
        try:
            return await fetch_cluster_id_once(runtime, host, port, connector)
        except Exception as error:
            if given_up():
                break
            now_ms = runtime.now_ms()
            if logged_ms is None or now_ms - logged_ms >= _LOG_AGAIN_MS:
                logged_ms = now_ms
                _logger.warn(
                    "no controller answers at {host}:{port} yet, retrying: {error}",
                    host=host,
                    port=port,
                    error=error,
                )
        with suppress(CancelledError):
            await deferLater(runtime.clock, _PAUSE_MS / 1000)  # type: ignore[arg-type]
        if given_up():
            break
    raise BrokerError(
        ErrorCode.BROKER_NOT_AVAILABLE, "stopped before a controller answered with the cluster's id"
    )


async def fetch_cluster_id_once(
    runtime: Runtime, host: str, port: int, connector: Connector = PLAIN
) -> str:
    """The id of the cluster of the controller there. BrokerError, or what the connection raises."""
    connection = BrokerConnection(
        runtime,
        host,
        port,
        "cluster-id",
        request_timeout_ms=_TIMEOUT_MS,
        connect_timeout_ms=_TIMEOUT_MS,
        connector=connector,
    )
    try:
        await connection.negotiate()
        if connection.features_epoch < 0:
            raise BrokerError(
                ErrorCode.BROKER_NOT_AVAILABLE, "it has not loaded the metadata of its cluster yet"
            )
        version = connection.highest_version(_DESCRIBE_CLUSTER, 1)
        answer = await connection.send(DescribeClusterRequest(endpoint_type=_CONTROLLERS), version)
        check_answer(answer.error_code)
        found: str = answer.cluster_id
        return found
    finally:
        connection.close()
