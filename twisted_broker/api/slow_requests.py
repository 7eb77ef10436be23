"""A line for each request that waited long, with what it waited for.

1. Only requests that waited for something are looked at, when they are answered: one comparison
   each. What holds the reactor itself is in the lines of `replog.reactor.slow.ms`.
2. A storm of them is a few lines (`event_lines.py`).

Source: Kafka's request log (`RequestChannel`). Not here: the times
of all requests (`dispatch.py`, shown by the metrics).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import IClock

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext
    from twisted_broker.api.routes import Route

_logger = Logger(namespace="replog.api")
_WAITS_FOR = {
    "Produce": "the in-sync replicas",
    "Fetch": "records",
    "DeleteRecords": "the other replicas' log starts",
    "AppendMirrored": "the in-sync replicas",
    "FindCoordinator": "the creation of the coordinator's topic",
    "InitProducerId": "producer ids of the controller, or the replicas of __transaction_state",
    "AddPartitionsToTxn": "the replicas of __transaction_state",
    "AddOffsetsToTxn": "the replicas of __transaction_state",
    "EndTxn": "the replicas of __transaction_state",
    "TxnOffsetCommit": "the transaction's coordinator, or the replicas of __consumer_offsets",
    "WriteTxnMarkers": "the in-sync replicas",
    "JoinGroup": "the other members",
    "SyncGroup": "the group's leader",
    "OffsetCommit": "the replicas of __consumer_offsets",
    "OffsetDelete": "the replicas of __consumer_offsets",
    "DeleteGroups": "the replicas of __consumer_offsets",
}


class SlowRequests:
    """`seconds`: what is slow, from `replog.request.slow.ms`; infinity where that is 0."""

    __slots__ = ("_lines", "seconds")

    def __init__(self, config: BrokerConfig, clock: IClock) -> None:
        slow_ms = config.integer("replog.request.slow.ms")
        self.seconds = slow_ms / 1000 if slow_ms else float("inf")
        self._lines = EventLines(_logger, clock, broker=config.node_id)

    def stop(self) -> None:
        """Writes what was only counted."""
        self._lines.stop()

    def waited(
        self, route: Route, context: RequestContext, seconds: float, on_controller: bool
    ) -> None:
        """A request waited that long for its answer."""
        waited_for = _WAITS_FOR.get(route.name)
        if waited_for is None:
            waited_for = "the controller" if route.forward and not on_controller else "its turn"
        if on_controller and waited_for == "its turn":
            waited_for = "the disk of the metadata log"
        self._lines.add(
            "slow request",
            api=route.name,
            version=context.version,
            client=context.client_host,
            client_id=context.client_id,
            ms=round(seconds * 1000),
            waited_for=waited_for,
        )
