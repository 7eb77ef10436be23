"""GetTelemetrySubscriptions and PushTelemetry (KIP-714): the wire's side of client telemetry.

1. No permission is asked. A client's properties are matched in slices.
2. A payload is inflated to `telemetry.max.bytes` at most, and to `MOST_BYTES` whatever that says,
   one payload at a time, and read in slices. One that would be larger is TELEMETRY_TOO_LARGE:
   clients try again. One that cannot be read is INVALID_RECORD: they give up.
3. Of a payload either all that there is room for is kept, or nothing.

Source: GN 5.3-5.9; Apache Kafka 4.3.1 `ClientMetricsManager`. Not here: what decides, and what is
kept (`telemetry/`); whether the APIs are listed (`api_versions.py`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.telemetry.instances import MOST_BYTES, ClientInstance, is_reserved
from twisted_broker.telemetry.otlp import points
from twisted_broker.wire import compression
from twisted_broker.wire.corrupt_record import (
    InvalidRecordError,
    OutputLimitError,
    UnsupportedCodecError,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from twisted_broker.wire.primitives import NULL_UUID, new_uuid, uuid_text

# In the order in which clients should choose.
_ACCEPTED = [compression.ZSTD, compression.LZ4, compression.GZIP, compression.SNAPPY]


def _now_ms(context: RequestContext) -> float:
    return 1000 * context.broker.runtime.clock.seconds()


def _most_bytes(context: RequestContext) -> int:
    return min(context.broker.config.integer("telemetry.max.bytes"), MOST_BYTES)


async def get_telemetry_subscriptions(
    context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    instance_id = request.client_instance_id
    if instance_id == NULL_UUID:
        instance_id = new_uuid(context.broker.runtime.random.randbytes)
    instance = await _instance(context, instance_id)
    context.telemetry.check_get(instance, _now_ms(context))
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=_ACCEPTED,
        push_interval_ms=instance.requested.interval_ms,
        telemetry_max_bytes=_most_bytes(context),
        delta_temporality=True,
        requested_metrics=list(instance.requested.metrics),
    )


async def push_telemetry(
    context: RequestContext, request: PushTelemetryRequest
) -> PushTelemetryResponse:
    instance_id = request.client_instance_id
    if is_reserved(instance_id):
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    instance = await _instance(context, instance_id)
    context.telemetry.check_push(
        instance,
        request.subscription_id,
        request.terminating,
        request.compression_type,
        len(request.metrics),
        _most_bytes(context),
        _now_ms(context),
    )
    if request.metrics:
        await _export(context, request, instance)
    return PushTelemetryResponse()


async def _instance(context: RequestContext, instance_id: bytes) -> ClientInstance:
    """The client's, made anew where it is not known or its subscriptions changed."""
    telemetry, connection = context.telemetry, context.connection
    subscriptions = telemetry.subscriptions(context.metadata.image.configs)
    version = subscriptions.version
    found = telemetry.find(instance_id, version, _now_ms(context))
    if found is not None:
        return found
    software = ("unknown", "unknown") if connection is None else connection.client_software
    client_id = context.client_id or ""
    properties = {
        "client_instance_id": uuid_text(instance_id),
        "client_id": client_id,
        "client_software_name": software[0],
        "client_software_version": software[1],
        "client_source_address": context.client_host,
        "client_source_port": _port(context),
    }
    requested = await context.in_slices(subscriptions.requested(properties))
    # Another request of the client may have come in between.
    found = telemetry.find(instance_id, version, _now_ms(context))
    if found is None:
        found = ClientInstance(
            instance_id, (client_id, *software), requested, version, connection, _now_ms(context)
        )
        telemetry.add(instance_id, found)
        if connection is not None:
            connection.tell_when_lost(telemetry.connection_lost)
    return found


def _port(context: RequestContext) -> str:
    transport = None if context.connection is None else context.connection.transport
    return "" if transport is None else str(getattr(transport.getPeer(), "port", ""))


async def _export(
    context: RequestContext, request: PushTelemetryRequest, instance: ClientInstance
) -> None:
    """Raises BrokerError."""
    telemetry = context.telemetry
    # One is inflated at a time: it may be much larger than its request.
    await context.broker.exports.acquire()
    began = context.broker.runtime.clock.seconds()
    try:
        inflated = compression.decompress(
            request.compression_type, request.metrics, _most_bytes(context)
        )
        found = await context.in_slices(points(inflated, instance.is_asked_for))
    except OutputLimitError:
        raise telemetry.fail(instance, ErrorCode.TELEMETRY_TOO_LARGE) from None
    except (InvalidRecordError, UnsupportedCodecError, ValueError):
        raise telemetry.fail(instance, ErrorCode.INVALID_RECORD) from None
    finally:
        context.broker.exports.release()
    telemetry.take(request.client_instance_id, instance, found.found)
    telemetry.left_out += abs(found.left_out)
    telemetry.exported += 1
    telemetry.export_seconds += context.broker.runtime.clock.seconds() - began
