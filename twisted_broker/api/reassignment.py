"""ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46): passed on
to the controller.

Source: KIP-455, KIP-460, KIP-590. Not here: the decisions (`cluster/partition_requests.py`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.wire.messages import reassignment as reassignment_messages


async def elect_leaders(
    context: RequestContext, request: reassignment_messages.ElectLeadersRequest
) -> reassignment_messages.ElectLeadersResponse:
    """Waits until the leaders are in the metadata log."""
    answer: reassignment_messages.ElectLeadersResponse = await context.forwarding.forward(
        context, reassignment_messages.ElectLeadersResponse
    )
    return answer


async def alter_partition_reassignments(
    context: RequestContext, request: reassignment_messages.AlterPartitionReassignmentsRequest
) -> reassignment_messages.AlterPartitionReassignmentsResponse:
    """Waits until the wish is in the metadata log, not until replicas have moved."""
    answer: reassignment_messages.AlterPartitionReassignmentsResponse = (
        await context.forwarding.forward(
            context, reassignment_messages.AlterPartitionReassignmentsResponse
        )
    )
    return answer


async def list_partition_reassignments(
    context: RequestContext, request: reassignment_messages.ListPartitionReassignmentsRequest
) -> reassignment_messages.ListPartitionReassignmentsResponse:
    """What the controller knows to be under way."""
    answer: reassignment_messages.ListPartitionReassignmentsResponse = (
        await context.forwarding.forward(
            context, reassignment_messages.ListPartitionReassignmentsResponse
        )
    )
    return answer
