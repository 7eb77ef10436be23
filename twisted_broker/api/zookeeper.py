"""Requests of a ZooKeeper cluster's controller to a member: LeaderAndIsr, StopReplica,
UpdateMetadata. Served in that mode only.

Source: Kafka 3.9's `KafkaApis`. Not here: what is done (`zookeeper/control_requests.py`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.zookeeper.control_requests import ControlRequests


def _requests(context: RequestContext) -> ControlRequests:
    found = context.broker.control_requests
    assert isinstance(found, ControlRequests)
    return found


async def leader_and_isr(
    context: RequestContext, request: messages.LeaderAndIsrRequest
) -> messages.LeaderAndIsrResponse:
    return await _requests(context).leader_and_isr(request, context.version)


async def stop_replica(
    context: RequestContext, request: messages.StopReplicaRequest
) -> messages.StopReplicaResponse:
    return await _requests(context).stop_replica(request)


async def update_metadata(
    context: RequestContext, request: messages.UpdateMetadataRequest
) -> messages.UpdateMetadataResponse:
    return await _requests(context).update_metadata(request)
