"""InitProducerId (22): an id for an idempotent or a transactional producer.

1. Every call without a transactional id gets an id of its own, at epoch 0; which id the producer
   had before does not matter.
2. With a transactional id, for which a client needs WRITE, the coordinator of the id decides.
   Clients before v4 know PRODUCER_FENCED as INVALID_PRODUCER_EPOCH.
3. An id without an epoch, or an epoch without an id, is INVALID_REQUEST.

Source: Kafka's `KafkaApis.handleInitProducerIdRequest`; KIP-98, KIP-360. Not here: blocks of
ids (`cluster/forwarding_manager.py`), epochs (`coordinator/transaction`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.api.transactions import older_codes
from twisted_broker.coordinator.transaction.transaction_decisions import ProducerIdAndEpoch
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse

FIRST_WITH_PRODUCER_FENCED = 4


async def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Without a transactional id it waits only for a new block of ids; if none comes,
    COORDINATOR_LOAD_IN_PROGRESS makes the client retry. With one it waits for the coordinator, too.
    """
    name = request.transactional_id
    if name is not None and not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if name is None and not (
        context.may_on_cluster(Operation.IDEMPOTENT_WRITE, noted=False)
        or context.may_on_any(Operation.WRITE, ResourceType.TOPIC)
    ):
        context.may_on_cluster(Operation.IDEMPOTENT_WRITE)  # for the audit
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "give both producer id and epoch, or neither")
    if name is not None:
        return await _init_transactional(context, request, name)
    try:
        producer_id = await context.forwarding.producer_ids.next()
    except BrokerError as error:
        raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from None
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _init_transactional(
    context: RequestContext, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    expected = None
    if request.producer_id != -1:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    with older_codes(context.version < FIRST_WITH_PRODUCER_FENCED):
        producer = await context.transactions.init_producer_id(
            transactional_id, request.transaction_timeout_ms, expected
        )
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
