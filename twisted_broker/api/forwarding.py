"""Requests that a broker passes on to the controller as they are.

1. Which ones: the rows of `api/routes.py` with `forward` and no module of their own.
2. The answer comes when the controller's records are durable; for AlterPartitionReassignments that
   is the request for the move, not the end of it. It comes within the time that the request names
   (`timeout_ms`), and before the client's own time limit.

Source: KIP-590; Kafka's `KafkaApis.forwardToController`. Not here: the decisions (`cluster`), who
may ask (the controller decides), how it gets there (`cluster/forwarding_manager.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted_broker.api.context import RequestContext
from twisted_broker.cluster.forwarding_manager import LONGEST_WAIT_MS


def forwarded(response_class: Any) -> Callable[[RequestContext, Any], Awaitable[Any]]:
    """The request function of a row; its answer is a `response_class`."""

    async def forward(context: RequestContext, request: Any) -> Any:
        timeout_ms = getattr(request, "timeout_ms", LONGEST_WAIT_MS)
        return await context.forwarding.forward(context, response_class, timeout_ms)

    return forward
