"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): passed on to the controller.

Source: KIP-590. Left out: the decisions (`cluster/topic_changes.py`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.wire.messages import topics as wire


async def create_topics(context: RequestContext, request: wire.CreateTopicsRequest) -> wire.CreateTopicsResponse:
    """Waits until the topics are in the metadata log."""
    answer: wire.CreateTopicsResponse = await context.forwarding.forward(context, wire.CreateTopicsResponse)
    return answer


async def delete_topics(context: RequestContext, request: wire.DeleteTopicsRequest) -> wire.DeleteTopicsResponse:
    """Waits until the removals are in the metadata log."""
    answer: wire.DeleteTopicsResponse = await context.forwarding.forward(context, wire.DeleteTopicsResponse)
    return answer


async def create_partitions(context: RequestContext, request: wire.CreatePartitionsRequest) -> wire.CreatePartitionsResponse:
    """Waits until the partitions are in the metadata log."""
    answer: wire.CreatePartitionsResponse = await context.forwarding.forward(context, wire.CreatePartitionsResponse)
    return answer
