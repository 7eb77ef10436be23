"""Clients' requests that a member of a ZooKeeper cluster sends on to the controller, or refuses.

Owns `ZooKeeperForwarding`, and producer ids by block of `/latest_producer_id_block`.

1. Nothing of a client's is passed on: it is answered NOT_CONTROLLER, and goes to the controller
   that Metadata names. Topics that a broker makes itself are requested there.
2. No producer id is given twice: a block is this broker's once its conditional write succeeded; one
   whose answer was lost is left.

Source: KRAFT 2.3; Kafka 3.9's `ZkProducerIdManager`, `KafkaApis.maybeForwardToController`. Not
here: the way there (`cluster/controller_channel.py`).
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from twisted_broker.cluster.controller_channel import ControllerChannel, RegisteredBroker
from twisted_broker.cluster.forwarding_manager import (
    LONGEST_WAIT_MS,
    ForwardableRequest,
    ForwardingManager,
    ProducerIdManager,
)
from twisted_broker.interfaces import Runtime
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from twisted_broker.zookeeper.port import (
    BadVersionError,
    IZooKeeper,
    NodeExistsError,
    NoNodeError,
    ZooKeeperError,
)
from twisted_broker.zookeeper.znodes import (
    PRODUCER_ID_BLOCK,
    PRODUCER_IDS_PER_BLOCK,
    producer_block_json,
    read_producer_block,
)


class ZooKeeperForwarding(ForwardingManager):
    """`producer_blocks`: whose znode gives producer ids; None: the controller does."""

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        channel: ControllerChannel,
        member: RegisteredBroker,
        producer_blocks: IZooKeeper | None,
    ) -> None:
        super().__init__(runtime, node_id, channel, member)
        if producer_blocks is not None:
            self.producer_ids = ZnodeProducerIds(runtime, node_id, channel, member, producer_blocks)

    async def forward(
        self, context: ForwardableRequest, response_class: Any, timeout_ms: int = LONGEST_WAIT_MS
    ) -> Any:
        """Raises BrokerError(NOT_CONTROLLER)."""
        raise BrokerError(
            ErrorCode.NOT_CONTROLLER,
            "this broker is a member of a ZooKeeper cluster, and never its controller",
        )

    def create_for(
        self, context: ForwardableRequest, request: CreateTopicsRequest
    ) -> Deferred[CreateTopicsResponse]:
        """As this node: a ZooKeeper cluster's controller takes no Envelope."""
        return self.create_topics(request)


class ZnodeProducerIds(ProducerIdManager):
    """Blocks of `/latest_producer_id_block`, below inter-broker protocol 3.0."""

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        channel: ControllerChannel,
        member: RegisteredBroker,
        zookeeper: IZooKeeper,
    ) -> None:
        super().__init__(runtime, node_id, channel, member)
        self._zookeeper = zookeeper

    async def _next_block(self) -> tuple[int, int]:
        while True:
            try:
                return await self._try_block()
            except (BadVersionError, NodeExistsError):
                continue  # another broker took that one
            except ZooKeeperError as error:
                raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error

    async def _try_block(self) -> tuple[int, int]:
        try:
            data, stat = await self._zookeeper.get(PRODUCER_ID_BLOCK)
        except NoNodeError:
            await self._zookeeper.create(PRODUCER_ID_BLOCK, producer_block_json(self._node_id, 0))
            return 0, PRODUCER_IDS_PER_BLOCK
        start = read_producer_block(data) + 1
        # Before it is written: Kafka's brokers read a long. A block below this broker's last one is
        # written and left, so that the znode comes to where there are new ids.
        self._check_block(start, PRODUCER_IDS_PER_BLOCK, 0)
        await self._zookeeper.set(
            PRODUCER_ID_BLOCK, producer_block_json(self._node_id, start), stat.version
        )
        return start, PRODUCER_IDS_PER_BLOCK
