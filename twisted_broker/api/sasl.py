"""SASL's APIs: what a broker tells of SCRAM users.

Source: Kafka's `KafkaApis`, `ScramImage`; KIP-554. Not here: changes of users
(`cluster/scram_changes.py`).
"""

from __future__ import annotations

from twisted_broker.api import audit
from twisted_broker.api.context import RequestContext
from twisted_broker.cluster import scram_changes
from twisted_broker.security.acl import CLUSTER_NAME, Operation
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import sasl


async def describe_user_scram_credentials(
    context: RequestContext, request: sasl.DescribeUserScramCredentialsRequest
) -> sasl.DescribeUserScramCredentialsResponse:
    if not context.may_on_cluster(Operation.DESCRIBE):
        audit.denied(context, [CLUSTER_NAME])
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    names = None if request.users is None else [each.name for each in request.users]
    return sasl.DescribeUserScramCredentialsResponse(
        error_message=None, results=scram_changes.describe(context.metadata.image, names)
    )
