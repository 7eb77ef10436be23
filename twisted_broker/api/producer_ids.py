"""InitProducerId (22): an id for an idempotent producer.

1. Every call without a transactional id gets an id of its own, at epoch 0; which id the producer
   had before does not matter.
2. Transactions are not served: a transactional id is INVALID_REQUEST; so is an id without an
   epoch, or an epoch without an id.

Source: Kafka's `TransactionCoordinator.handleInitProducerId`; KIP-98, KIP-360. Not here: blocks of
ids (`cluster/forwarding_manager.py`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.security.acl import Operation
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse


async def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Waits only when a new block of ids is needed; then COORDINATOR_LOAD_IN_PROGRESS makes the
    client to retry.
    """
    if request.transactional_id is not None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "transactions are not supported")
    if not context.may_on_cluster(Operation.IDEMPOTENT_WRITE):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "give both producer id and epoch, or neither")
    try:
        producer_id = await context.forwarding.producer_ids.next()
    except BrokerError as error:
        raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from None
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
