"""Requests that only the controller may serve, passed on by the broker that got them from a client.

Owns `ForwardingManager` (Envelope), the topics that a broker has created, and the blocks of
producer ids.

1. A topic that a client's Metadata creates is created as that client, in an Envelope; those that
   coordinators need, as the node.
2. The controller sees the client's own bytes, principal and address; its answer goes back as it is.
3. While no controller answers, it is tried again until the request's time is over:
   REQUEST_TIMED_OUT. That is before the client's own 30 s: a client that gave up first would never
   learn why, and some give up for good.
4. No producer id is given twice: an id comes from a block that the controller gave to this broker
   alone. Blocks only go up: one that does not is refused, as its ids may be in use. A broker that
   is denied one requests it less and less often (`denials.py`).

Source: Kafka's `ForwardingManager`, `DefaultAutoTopicCreationManager`, `RPCProducerIdManager`;
KIP-590, KIP-730; `RL 8.1`. Not here: permission (the controller decides), which requests are passed
on (`api/routes.py`).
"""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterable
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.cluster.controller_channel import (
    DENIED_TO_NODE,
    ControllerChannel,
    RegisteredBroker,
    check_answer,
)
from twisted_broker.cluster.denials import Denials
from twisted_broker.interfaces import Runtime
from twisted_broker.security.principal import Principal, encode_principal
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.header import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from twisted_broker.wire.messages.broker_lifecycle import EnvelopeRequest
from twisted_broker.wire.messages.producer_ids import AllocateProducerIdsRequest
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from twisted_broker.wire.schema import decode_in_slices, encode

_logger = Logger()
T = TypeVar("T")

LONGEST_WAIT_MS = 20_000
"""For a client's request to the controller: clients wait 30 s (request.timeout.ms)."""
_SHORTEST_WAIT_MS = 1_000
"""The least wait, for a request that names less: time for the way to the controller and back."""
_CREATE_TOPICS_VERSION = 7  # every controller of KRaft's has it
PRODUCER_ID_WAIT_MS, PRODUCER_ID_PAUSE_MS = 5_000, 50
_MOST_PRODUCER_ID = 2**63 - 1


def packed_address(host: str) -> bytes:
    """A client's address in network order; all zeros when it is none (in-memory transports)."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        # Not an address (memory networks): 0.0.0.0, as the field wants four bytes.
        return bytes(4)


class ForwardableRequest(Protocol):
    """A client's request (`api.context.RequestContext`): its bytes with their header, and who
    sent them from where.
    """

    raw_request: bytes | memoryview
    principal: Principal
    client_host: str
    client_id: str | None
    correlation_id: int
    api_key: int
    version: int

    async def in_slices(self, work: Generator[None, None, T]) -> T: ...


class ForwardingManager:
    """Requests for the active controller. `producer_ids` hands out ids."""

    def __init__(
        self, runtime: Runtime, node_id: int, channel: ControllerChannel, member: RegisteredBroker
    ) -> None:
        self._runtime = runtime
        self.channel = channel
        self.producer_ids = ProducerIdManager(runtime, node_id, channel, member)
        self._creating: set[str] = set()
        self._denials = Denials("clients' requests to the controller")

    async def forward(
        self, context: ForwardableRequest, response_class: Any, timeout_ms: int = LONGEST_WAIT_MS
    ) -> Any:
        """Passes the request of `context` on; its answer, a `response_class`. `timeout_ms`: what
        the request names.

        Raises BrokerError.
        """
        wait_ms = min(max(timeout_ms, _SHORTEST_WAIT_MS), LONGEST_WAIT_MS)
        return await self._pass_on(
            context,
            bytes(context.raw_request),
            context.api_key,
            context.version,
            response_class,
            wait_ms,
        )

    async def _pass_on(
        self,
        context: ForwardableRequest,
        data: bytes,
        api_key: int,
        version: int,
        response_class: Any,
        wait_ms: int,
    ) -> Any:
        """A request for the client of `context`, its bytes with their header."""
        envelope = EnvelopeRequest(
            request_data=data,
            request_principal=encode_principal(context.principal),
            client_host_address=packed_address(context.client_host),
        )
        sent = ensureDeferred(self.channel.send_until_answered(envelope, 0, wait_ms))
        answer = await _within(sent, self._runtime, wait_ms)
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # The broker is denied, not its client; how often this is sent depends on clients.
            denied = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, DENIED_TO_NODE)
            self._denials.pause_ms(denied, 0)
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)
        check_answer(answer.error_code)
        self._denials.succeeded()
        if answer.response_data is None:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the controller's answer is empty")
        _, offset = decode_response_header(answer.response_data, api_key, version)
        return await context.in_slices(
            decode_in_slices(response_class, answer.response_data, version, offset)
        )

    def create_topics(self, request: CreateTopicsRequest) -> Deferred[CreateTopicsResponse]:
        """Has topics created on this broker's own behalf."""
        return ensureDeferred(self.channel.send_until_answered(request, _CREATE_TOPICS_VERSION))

    def create_for(
        self, context: ForwardableRequest, request: CreateTopicsRequest
    ) -> Deferred[CreateTopicsResponse]:
        """Has topics created that a client named: as that client, with its permission, its quota
        and its line in the audit log.
        """
        header = RequestHeader(
            request.api_key, _CREATE_TOPICS_VERSION, context.correlation_id, context.client_id
        )
        data = encode_request_header(header) + encode(request, _CREATE_TOPICS_VERSION)
        return ensureDeferred(
            self._pass_on(
                context,
                data,
                request.api_key,
                _CREATE_TOPICS_VERSION,
                CreateTopicsResponse,
                LONGEST_WAIT_MS,
            )
        )

    def create_in_background(
        self, context: ForwardableRequest, topics: Iterable[CreatableTopic]
    ) -> None:
        """Has topics created that the client of `context` named; one that is being created already
        is not requested again, and nobody waits.
        """
        fresh = [topic for topic in topics if topic.name not in self._creating]
        if fresh:
            names = {topic.name for topic in fresh}
            self._creating |= names
            request = CreateTopicsRequest(topics=fresh, timeout_ms=30_000)
            self.create_for(context, request).addBoth(self._created, names)

    def _created(self, outcome: CreateTopicsResponse | Failure, names: set[str]) -> None:
        self._creating -= names
        if isinstance(outcome, Failure):
            _logger.warn(
                "creating topics {names} failed: {error}", names=sorted(names), error=outcome.value
            )
            return
        for topic in outcome.topics:
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                _logger.warn(
                    "creating topic {name} failed: {error}",
                    name=topic.name,
                    error=topic.error_message,
                )

    def stop(self) -> None:
        """Passes nothing on any more."""
        self.channel.close()


def _within(work: Deferred[T], runtime: Runtime, wait_ms: int) -> Deferred[T]:
    """As `work`, but REQUEST_TIMED_OUT after `wait_ms`. What is in flight then stays so: ending it
    would end the connection, and with it what others sent.
    """

    def too_late(result: T | Failure, seconds: float) -> Failure:
        return Failure(
            BrokerError(ErrorCode.REQUEST_TIMED_OUT, "no active controller answered in time")
        )

    clock: Any = runtime.clock
    return work.addTimeout(wait_ms / 1000, clock, too_late)


class ProducerIdManager:
    """Producer ids, one at a time, from blocks of the controller."""

    def __init__(
        self, runtime: Runtime, node_id: int, channel: ControllerChannel, member: RegisteredBroker
    ) -> None:
        self._runtime = runtime
        self._node_id, self._channel, self._member = node_id, channel, member
        # `_end` is the end of the last block when that is used up: the next one begins there or
        # above. 0 after a start, when no block is known.
        self._next = self._end = 0
        self._is_refusal_logged = False
        self._denials = Denials("requests for producer ids")
        # The error of the last request for a block: raised to callers until the pause ends.
        self._failed: Exception | None = None
        self._paused_until_ms = 0
        self._is_fetching = False
        self._waiting: list[Deferred[None]] = []

    async def next(self) -> int:
        """A producer id that nobody else has.

        Raises BrokerError: REQUEST_TIMED_OUT after `PRODUCER_ID_WAIT_MS`, while the request for a
        block goes on and the client tries again. After a failure no block is requested for
        `PRODUCER_ID_PAUSE_MS`, or longer where it is denied.
        """
        deadline = self._runtime.now_ms() + PRODUCER_ID_WAIT_MS
        # Checked again after each wait: others that waited may have used the block up.
        while self._next >= self._end:
            if self._failed is not None and self._runtime.now_ms() < self._paused_until_ms:
                raise self._failed  # each client would have it requested again
            waiter: Deferred[None] = Deferred()
            self._waiting.append(waiter)
            if not self._is_fetching:
                self._is_fetching = True  # before the call: it may be answered within it
                ensureDeferred(self._fetch())
            await _within(waiter, self._runtime, max(0, deadline - self._runtime.now_ms()))
        found = self._next
        self._next += 1
        return found

    async def _fetch(self) -> None:
        try:
            start, length = await self._next_block()
            self._check_block(start, length, self._end)
        except Exception as error:
            self._failed = error
            pause_ms = self._denials.pause_ms(error, PRODUCER_ID_PAUSE_MS)
            self._paused_until_ms = self._runtime.now_ms() + pause_ms
        else:
            self._failed, self._is_refusal_logged = None, False
            self._denials.succeeded()
            self._next, self._end = start, start + length
        failed, self._is_fetching = self._failed, False
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if failed is None:
                waiter.callback(None)
            else:
                waiter.errback(failed)

    def _check_block(self, start: int, length: int, least: int) -> None:
        """Raises BrokerError(UNKNOWN_SERVER_ERROR) unless it has ids, and none below `least`."""
        if length > 0 and least <= start <= _MOST_PRODUCER_ID - length:
            return
        if not self._is_refusal_logged:
            self._is_refusal_logged = True
            _logger.error(
                "the controller gave producer ids {start} to {end}, which are no new ones (those "
                "are from {least} to {most}): another block is requested when one is needed",
                start=start,
                end=start + length - 1,
                least=least,
                most=_MOST_PRODUCER_ID,
            )
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "a block of producer ids is invalid")

    async def _next_block(self) -> tuple[int, int]:
        """Its first id, and how many there are."""
        request = AllocateProducerIdsRequest(
            broker_id=self._node_id, broker_epoch=self._member.broker_epoch
        )
        response = await self._channel.send_until_answered(request, 0)
        check_answer(response.error_code)
        return response.producer_id_start, response.producer_id_len
