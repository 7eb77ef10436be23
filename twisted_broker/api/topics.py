"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): passed on to the controller.

Source: KIP-590. Not here: the decisions (`cluster/topic_changes.py`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.wire.messages import topics as topics_messages


async def create_topics(
    context: RequestContext, request: topics_messages.CreateTopicsRequest
) -> topics_messages.CreateTopicsResponse:
    """Waits until the topics are in the metadata log."""
    answer: topics_messages.CreateTopicsResponse = await context.forwarding.forward(
        context, topics_messages.CreateTopicsResponse
    )
    return answer


async def delete_topics(
    context: RequestContext, request: topics_messages.DeleteTopicsRequest
) -> topics_messages.DeleteTopicsResponse:
    """Waits until the removals are in the metadata log."""
    answer: topics_messages.DeleteTopicsResponse = await context.forwarding.forward(
        context, topics_messages.DeleteTopicsResponse
    )
    return answer


async def create_partitions(
    context: RequestContext, request: topics_messages.CreatePartitionsRequest
) -> topics_messages.CreatePartitionsResponse:
    """Waits until the partitions are in the metadata log."""
    answer: topics_messages.CreatePartitionsResponse = await context.forwarding.forward(
        context, topics_messages.CreatePartitionsResponse
    )
    return answer
