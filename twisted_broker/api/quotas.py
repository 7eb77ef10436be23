"""DescribeClientQuotas (48): the quotas of clients as this broker's metadata has them.

1. Permission is DescribeConfigs on the cluster.
2. A refusal has no list of entries.

Source: Kafka's `KafkaApis.handleDescribeClientQuotasRequest`. Not here: AlterClientQuotas
(`api/controller.py`), which entities match (`cluster/quota_changes.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.cluster.quota_changes import QuotaFilter
from twisted_broker.security.acl import Operation
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedEntry,
    QuotaEntityData,
    ValueData,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext

_ENTRY_ELEMENTS = 4


async def describe_client_quotas(
    context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Waits for nothing but its turns."""
    try:
        if not context.may_on_cluster(Operation.DESCRIBE_CONFIGS):
            raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        chosen = QuotaFilter(request.components, request.strict)
    except BrokerError as refused:
        return DescribeClientQuotasResponse(
            error_code=refused.code, error_message=refused.message, entries=None
        )
    entries = []
    # The image stays as it is while others are served.
    async for entity, values in context.each(context.metadata.image.client_quotas.items()):
        if not chosen.matches(entity):
            continue
        context.elements_left -= _ENTRY_ELEMENTS
        entries.append(
            DescribedEntry(
                entity=[
                    QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ],
                values=[ValueData(key=key, value=value) for key, value in values.items()],
            )
        )
    return DescribeClientQuotasResponse(entries=entries)
