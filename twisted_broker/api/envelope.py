"""Envelope (key 58, version 0; controller listener): a client's request that its broker passes on.

1. The request inside is answered as if its client had come itself: its principal and address are
   those in the envelope.
2. Only APIs of the table with `forward` are accepted inside. The envelope's own error says what is
   wrong, in Kafka's order: PRINCIPAL_DESERIALIZATION_FAILURE without a principal that can be read,
   INVALID_REQUEST for the address or an API that is not forwarded, UNSUPPORTED_VERSION for a
   request inside that cannot be read.
3. What is inside counts against its client's quotas; its broker lets the client wait.
4. The envelope's own error stays NONE when the request inside was answered, whatever that answer
   says; but it is NOT_CONTROLLER where this controller does not lead: the broker tries another, and
   its client hears nothing of it.

Source: KIP-590, Kafka's `EnvelopeUtils`, `RequestChannel` (NOT_CONTROLLER),
`DefaultKafkaPrincipalBuilder` (the written form of a principal).
"""

from __future__ import annotations

import socket
from typing import Any

from twisted_broker.api import audit
from twisted_broker.api.context import REFUSAL_ELEMENTS, ForwardedContext, RequestContext
from twisted_broker.api.throttling import Metered, charge
from twisted_broker.security.principal import Principal, decode_principal
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.header import decode_request_header, encode_response_header
from twisted_broker.wire.messages.broker_lifecycle import EnvelopeRequest, EnvelopeResponse
from twisted_broker.wire.schema import decode_in_slices


async def envelope(context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    """Waits as long as the request inside does."""
    bound, inner, offset = _inside(context, request)
    try:
        requested = await context.in_slices(
            decode_in_slices(bound.request_class, inner.raw_request, inner.version, offset)
        )
    except WireError as error:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from None
    try:
        answer = await bound.call(inner, requested)
    except BrokerError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise
        answer = await inner.in_slices(
            bound.refuse_in_steps(requested, error.code, error.message), REFUSAL_ELEMENTS
        )
    finally:
        audit.denied(inner)
    if inner.metered is not None:
        answer = charge(context.dispatcher, bound, inner, answer)
    header = encode_response_header(inner.correlation_id, inner.api_key, inner.version)
    parts = [header]
    await inner.encode(answer, parts)
    return EnvelopeResponse(response_data=b"".join(parts))


def _inside(context: RequestContext, request: EnvelopeRequest) -> tuple[Any, RequestContext, int]:
    """What serves it, its context, and where its body begins."""
    frame = request.request_data
    principal = _principal(request.request_principal)
    address = _address(request.client_host_address)
    try:
        header, offset = decode_request_header(frame)
        bound = context.dispatcher.find(header.api_key, header.api_version)
    except WireError as error:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from None
    if bound is None or not bound.route.forward:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"API {header.api_key} is not forwarded")
    inner = ForwardedContext(
        context.broker,
        context.listener,
        header.api_key,
        header.api_version,
        header.correlation_id,
        header.client_id,
        address,
        principal,
        context.connection,
        frame,
        context.dispatcher,
    )
    if context.metered is not None:
        inner.metered = Metered(
            len(frame), context.broker.runtime.clock.seconds(), is_forwarded=True
        )
    return bound, inner, offset


def _principal(data: bytes | None) -> Principal:
    try:
        return decode_principal(b"" if data is None else data)
    except WireError as error:
        raise BrokerError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from None


def _address(packed: bytes) -> str:
    try:
        return socket.inet_ntop(
            socket.AF_INET6 if len(packed) == 16 else socket.AF_INET, bytes(packed)
        )
    except (ValueError, OSError):
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, "the client's address is not an IP address"
        ) from None
