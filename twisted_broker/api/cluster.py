"""DescribeCluster (60), DescribeQuorum (55), UnregisterBroker (64).

1. DescribeCluster lists brokers, from this broker's image; controllers answer on their own
   listener.
2. The quorum's leader answers DescribeQuorum; removal of a broker is decided by the controller.
   Both are passed on.

Source: Kafka's `KafkaApis`, `KRaftMetadataCache`, `AuthHelper`; KIP-700, KIP-919, KIP-1073.
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.security.acl import Operation
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import cluster as cluster_messages

BROKERS, CONTROLLERS = 1, 2


async def describe_cluster(
    context: RequestContext, request: cluster_messages.DescribeClusterRequest
) -> cluster_messages.DescribeClusterResponse:
    """Live brokers, and from version 2 on fenced ones when they are requested."""
    if request.endpoint_type == CONTROLLERS:
        raise BrokerError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this listener belongs to a broker")
    if request.endpoint_type != BROKERS:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"unknown endpoint type {request.endpoint_type}",
        )
    image: MetadataImage = context.metadata.image
    brokers = []
    for node in sorted(image.brokers):
        broker = image.brokers[node]
        endpoint = broker.listeners.get(context.listener.name)
        if endpoint is not None and (not broker.fenced or request.include_fenced_brokers):
            row = cluster_messages.DescribeClusterBroker(
                broker_id=node, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            if context.version >= 2:
                row.is_fenced = broker.fenced
            brokers.append(row)
    response = cluster_messages.DescribeClusterResponse(
        error_message=None,
        cluster_id=context.broker.cluster_id,
        controller_id=any_live_broker(context, image),
        brokers=brokers,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.cluster_operations()
    return response


def any_live_broker(context: RequestContext, image: MetadataImage) -> int:
    """The id that clients are given as the controller: of any live broker, since each passes
    requests on; -1 when none lives. In a ZooKeeper cluster it is the controller itself.
    """
    if context.broker.control_requests is not None:
        return context.broker.control_requests.controller_id
    live = image.live_brokers()
    return context.broker.runtime.random.choice(live).id if live else -1


async def describe_quorum(
    context: RequestContext, request: cluster_messages.DescribeQuorumRequest
) -> cluster_messages.DescribeQuorumResponse:
    if not context.may_on_cluster(Operation.DESCRIBE):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    answer: cluster_messages.DescribeQuorumResponse = await context.forwarding.forward(
        context, cluster_messages.DescribeQuorumResponse
    )
    return answer
