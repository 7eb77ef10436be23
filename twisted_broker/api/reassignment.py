"""ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46): passed on to the controller.

Source: KIP-455, KIP-460, KIP-590. Left out: the decisions (`cluster/partition_requests.py`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.wire.messages import reassignment as wire


async def elect_leaders(context: RequestContext, request: wire.ElectLeadersRequest) -> wire.ElectLeadersResponse:
    """Waits until the leaders are in the metadata log."""
    answer: wire.ElectLeadersResponse = await context.forwarding.forward(context, wire.ElectLeadersResponse)
    return answer


async def alter_partition_reassignments(
    context: RequestContext, request: wire.AlterPartitionReassignmentsRequest
) -> wire.AlterPartitionReassignmentsResponse:
    """Waits until the wish is in the metadata log, not until replicas have moved."""
    answer: wire.AlterPartitionReassignmentsResponse = await context.forwarding.forward(context, wire.AlterPartitionReassignmentsResponse)
    return answer


async def list_partition_reassignments(
    context: RequestContext, request: wire.ListPartitionReassignmentsRequest
) -> wire.ListPartitionReassignmentsResponse:
    """What the controller knows to be under way."""
    answer: wire.ListPartitionReassignmentsResponse = await context.forwarding.forward(context, wire.ListPartitionReassignmentsResponse)
    return answer
