"""The parts that requests of consumer, share and streams groups have in common.

Owns `described_groups`, `check_shown` and `message_of`.

1. A description is bounded as DescribeGroups' is: groups without room get
   COORDINATOR_LOAD_IN_PROGRESS, with which clients ask again.
2. A group with a topic that the client may not see is not shown.

Source: Apache Kafka 4.3.1 `KafkaApis`. Not here: what each kind shows (`consumer_groups`,
`share_groups`, `streams_groups`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from twisted_broker.api.context import RequestContext
from twisted_broker.api.groups import MOST_DESCRIBED_BYTES
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError, ErrorCode


def message_of(refusal: BrokerError) -> str | None:
    """The code's own sentence is not sent, as in Kafka."""
    return None if refusal.message == refusal.code.sentence else refusal.message


async def described_groups(
    context: RequestContext,
    request: Any,
    made: Callable[..., Any],
    fill: Callable[[Any], Awaitable[int]],
) -> list[Any]:
    """One of each id that `request` names: `made` with its id, then filled in by `fill`, which
    returns about how many bytes that takes, or raises BrokerError.
    """
    described = []
    left_bytes = MOST_DESCRIBED_BYTES
    async for group_id in context.each(request.group_ids):
        group = made(group_id=group_id)
        try:
            if left_bytes <= 0:
                raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            left_bytes -= await fill(group)
        except BrokerError as refusal:
            group.error_code, group.error_message = refusal.code, message_of(refusal)
        else:
            if request.include_authorized_operations:
                group.authorized_operations = context.authorized_operations(
                    ResourceType.GROUP, group_id
                )
        described.append(group)
    return described


async def check_shown(context: RequestContext, topics: Iterable[str], refusal: str) -> None:
    """Raises BrokerError, with that sentence, unless the client may describe every topic."""
    async for name in context.each(topics):
        if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, refusal)
