"""Keeps the state of share partitions by their share coordinators, wherever these are. Ring 1.

Owns `Persister`, which meets `IPersister`.

1. The coordinator is the leader of the key's partition of `__share_group_state`, as the metadata
   say it; this broker's own is called directly, with the same outcomes.
2. Errors that pass (nobody coordinates, it loads, the connection is lost) are tried again: `TRIES`
   times in all, after 1 s, then twice as long each time, 20 percent more or less. What is left
   in the end is COORDINATOR_NOT_AVAILABLE.
3. Calls to one broker of one kind and one group are joined while one is under way, up to
   `MOST_JOINED`. Of one share partition the later never overtakes the earlier if its caller waits
   for each.
4. Only its callers' requests wait; after `close` all of them fail.

Source: GN 3.76; Apache Kafka 4.3.1 `DefaultStatePersister`, `PersisterStateManager`. Not here:
what a coordinator does with it (`coordinator/share_state`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.logger import Logger

from twisted_broker.coordinator.share_state.persister import IPersister
from twisted_broker.coordinator.share_state.values import (
    ReadState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    WriteState,
)
from twisted_broker.interfaces import IClock, IDelayedCall, IRandom
from twisted_broker.net.client import BrokerConnection
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError, error_of
from twisted_broker.wire.messages import share_state as wire

TRIES = 5
MOST_JOINED = 1000
_FIRST_WAIT, _LONGEST_WAIT, _JITTER_PERCENT = 1.0, 30.0, 20
_LOST = (ConnectError, ConnectionClosed, OSError, WireError)
_PASSING = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_logger = Logger()
Find = Callable[[SharePartitionKey], BrokerEndPoint | None]
"""The broker that coordinates it; None while there is none."""


class _Kind(NamedTuple):
    """One of the five requests: its classes, its highest version, and how one share partition
    of it is asked and answered.
    """

    request: type[Any]
    topic: type[Any]
    version: int
    asked: Callable[..., Any]
    answered: Callable[[Any], Any]


def _written(partition: int, state: WriteState) -> wire.WriteStatePartition:
    return wire.WriteStatePartition(
        partition=partition,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        state_batches=[
            wire.ShareGroupStateBatch(
                first_offset=first, last_offset=last, delivery_state=state_, delivery_count=count
            )
            for first, last, state_, count in state.batches
        ],
    )


def _read(found: wire.ReadStatePartitionResult) -> ReadState:
    return ReadState(
        found.state_epoch,
        found.start_offset,
        tuple(
            StateBatch(
                each.first_offset, each.last_offset, each.delivery_state, each.delivery_count
            )
            for each in found.state_batches
        ),
    )


_KINDS = {
    "initialize": _Kind(
        wire.InitializeShareGroupStateRequest,
        wire.InitializeStateTopic,
        0,
        lambda partition, epoch, start: wire.InitializeStatePartition(
            partition=partition, state_epoch=epoch, start_offset=start
        ),
        lambda found: None,
    ),
    "read": _Kind(
        wire.ReadShareGroupStateRequest,
        wire.ReadStateTopic,
        0,
        lambda partition, epoch: wire.ReadStatePartition(partition=partition, leader_epoch=epoch),
        _read,
    ),
    "write": _Kind(
        wire.WriteShareGroupStateRequest, wire.WriteStateTopic, 1, _written, lambda found: None
    ),
    "delete": _Kind(
        wire.DeleteShareGroupStateRequest,
        wire.DeleteStateTopic,
        0,
        lambda partition: wire.DeleteStatePartition(partition=partition),
        lambda found: None,
    ),
    "summary": _Kind(
        wire.ReadShareGroupStateSummaryRequest,
        wire.ReadStateTopic,
        1,
        lambda partition: wire.ReadStatePartition(partition=partition, leader_epoch=-1),
        lambda found: StateSummary(
            found.state_epoch,
            found.leader_epoch,
            found.start_offset,
            found.delivery_complete_count,
        ),
    ),
}


class _Call:
    """One share partition's request until it is answered."""

    __slots__ = ("answer", "arguments", "key", "kind", "tries")

    def __init__(self, kind: str, key: SharePartitionKey, arguments: tuple[Any, ...]) -> None:
        self.kind, self.key, self.arguments = kind, key, arguments
        self.tries = 0
        self.answer: Deferred[Any] = Deferred()


class _Broker:
    """A coordinating broker, with the requests that wait for it or are under way, by kind and
    group.
    """

    __slots__ = ("busy", "connection", "endpoint", "waiting")

    def __init__(self, endpoint: BrokerEndPoint, connection: BrokerConnection) -> None:
        self.endpoint, self.connection = endpoint, connection
        self.waiting: dict[tuple[str, str], list[_Call]] = {}
        self.busy: set[tuple[str, str]] = set()


class Persister:
    """`own`: this broker's coordinator. `connect` makes a connection to another broker."""

    def __init__(
        self,
        node_id: int,
        clock: IClock,
        random: IRandom,
        own: IPersister,
        find: Find,
        connect: Callable[[BrokerEndPoint, str], BrokerConnection],
    ) -> None:
        self._node_id, self._clock, self._random = node_id, clock, random
        self._own, self._find, self._connect = own, find, connect
        self._brokers: dict[int, _Broker] = {}
        self._delayed: dict[_Call, IDelayedCall] = {}
        self._closed = False

    def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int
    ) -> Deferred[None]:
        """See `IPersister`."""
        return self._begin("initialize", key, state_epoch, start_offset)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Deferred[ReadState]:
        """See `IPersister`."""
        return self._begin("read", key, leader_epoch)

    def write(self, key: SharePartitionKey, state: WriteState) -> Deferred[None]:
        """See `IPersister`."""
        return self._begin("write", key, state)

    def delete(self, key: SharePartitionKey) -> Deferred[None]:
        """See `IPersister`."""
        return self._begin("delete", key)

    def summary(self, key: SharePartitionKey) -> Deferred[StateSummary]:
        """See `IPersister`."""
        return self._begin("summary", key)

    def close(self) -> None:
        """All that waits fails."""
        self._closed = True
        delayed, self._delayed = self._delayed, {}
        for call, timer in delayed.items():
            timer.cancel()
            self._fail(call, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for broker in list(self._brokers.values()):
            self._drop(broker)

    def _begin(self, kind: str, key: SharePartitionKey, *arguments: Any) -> Deferred[Any]:
        call = _Call(kind, key, arguments)
        self._try(call)
        return call.answer

    def _try(self, call: _Call) -> None:
        self._delayed.pop(call, None)
        call.tries += 1
        endpoint = None if self._closed else self._find(call.key)
        if endpoint is None:
            self._again(call)
        elif endpoint.id == self._node_id:
            answer: Deferred[Any] = getattr(self._own, call.kind)(call.key, *call.arguments)
            answer.addCallbacks(call.answer.callback, self._refused, errbackArgs=(call,))
        else:
            broker = self._broker(endpoint)
            joined = call.kind, call.key.group_id
            broker.waiting.setdefault(joined, []).append(call)
            if joined not in broker.busy:
                ensureDeferred(self._send_waiting(broker, joined))

    def _refused(self, failure: Any, call: _Call) -> None:
        error = failure.value
        if isinstance(error, BrokerError):
            self._answer_error(call, error.code, error.message)
        else:
            _logger.failure("keeping the state of {key} failed", failure, key=call.key)
            self._fail(call, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _answer_error(self, call: _Call, code: ErrorCode, message: str | None) -> None:
        if code in _PASSING:
            self._again(call)
        else:
            self._fail(call, code, message)

    def _again(self, call: _Call) -> None:
        if self._closed or call.tries >= TRIES:
            self._fail(call, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (call.tries - 1))
        wait *= 1 + self._random.randrange(-_JITTER_PERCENT, _JITTER_PERCENT + 1) / 100
        self._delayed[call] = self._clock.callLater(wait, self._try, call)

    def _fail(self, call: _Call, code: ErrorCode, message: str | None = None) -> None:
        call.answer.errback(BrokerError(code, message))

    # other brokers
    def _broker(self, endpoint: BrokerEndPoint) -> _Broker:
        found = self._brokers.get(endpoint.id)
        if found is not None and found.endpoint == endpoint:
            return found
        if found is not None:
            self._drop(found)
        made = _Broker(endpoint, self._connect(endpoint, f"broker-{self._node_id}-share-persister"))
        self._brokers[endpoint.id] = made
        return made

    def _drop(self, broker: _Broker) -> None:
        """It has another address, or nothing is sent any more."""
        if self._brokers.get(broker.endpoint.id) is broker:
            del self._brokers[broker.endpoint.id]
        waiting = dict(broker.waiting)
        broker.waiting.clear()
        broker.connection.close()
        for calls in waiting.values():
            for call in calls:
                self._again(call)

    async def _send_waiting(self, broker: _Broker, joined: tuple[str, str]) -> None:
        broker.busy.add(joined)
        try:
            while joined in broker.waiting:
                calls = broker.waiting[joined]
                taken, left = calls[:MOST_JOINED], calls[MOST_JOINED:]
                if left:
                    broker.waiting[joined] = left
                else:
                    del broker.waiting[joined]
                await self._send(broker, joined, taken)
        finally:
            broker.busy.discard(joined)

    async def _send(self, broker: _Broker, joined: tuple[str, str], calls: list[_Call]) -> None:
        kind = _KINDS[joined[0]]
        try:
            found = await self._ask(broker, kind, joined[1], calls)
        except Exception as error:
            if not isinstance(error, (BrokerError, *_LOST)):
                _logger.failure("asking a share coordinator failed; this is a bug")
            for call in calls:
                code = error.code if isinstance(error, BrokerError) else None
                self._answer_error(call, code or ErrorCode.NETWORK_EXCEPTION, str(error))
            return
        for call in calls:
            result = found.get((call.key.topic_id, call.key.partition))
            if result is None:
                self._fail(call, ErrorCode.UNKNOWN_SERVER_ERROR)
            elif result.error_code:
                self._answer_error(call, error_of(result.error_code), result.error_message)
            else:
                call.answer.callback(kind.answered(result))

    async def _ask(
        self, broker: _Broker, kind: _Kind, group_id: str, calls: list[_Call]
    ) -> dict[tuple[bytes, int], Any]:
        connection = broker.connection
        if not connection.api_versions:
            await connection.negotiate()
        version = connection.highest_version(kind.request.api_key, kind.version)
        topics: dict[bytes, list[Any]] = {}
        for call in calls:
            asked = kind.asked(call.key.partition, *call.arguments)
            topics.setdefault(call.key.topic_id, []).append(asked)
        request = kind.request(
            group_id=group_id,
            topics=[
                kind.topic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )
        response = await connection.send(request, version)
        return {
            (topic.topic_id, partition.partition): partition
            for topic in response.results
            for partition in topic.partitions
        }
