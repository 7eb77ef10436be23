"""Brokers' requests to the simulated controller: ControlledShutdown, AlterPartition,
AllocateProducerIds.

Owns `BrokerRequests`; each is an event among the others.

Source: KRAFT 2.3; Kafka 3.9's `KafkaController`, `ZkProducerIdManager`. Not here: the connections
(`simulation/zookeeper/machine.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.zookeeper.controller_channels import Leadership
from twisted_broker.simulation.zookeeper.controller_context import (
    NO_LEADER,
    ControllerContext,
    Moved,
)
from twisted_broker.simulation.zookeeper.controller_events import ControllerEvents
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as lifecycle
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.wire.messages.producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from twisted_broker.zookeeper.port import BadVersionError, ConnectionLossError, NoNodeError
from twisted_broker.zookeeper.znodes import (
    PRODUCER_ID_BLOCK,
    PRODUCER_IDS_PER_BLOCK,
    producer_block_json,
    read_producer_block,
)


class BrokerRequests:
    """`look_at_reassignments` is an event where an ISR changed: one may go on."""

    def __init__(
        self,
        context: ControllerContext,
        events: ControllerEvents,
        look_at_reassignments: Callable[[], Awaitable[None]],
    ) -> None:
        self._context, self._events = context, events
        self._look_at_reassignments = look_at_reassignments

    async def serve(self, request: Any, version: int) -> Any:
        """The answer; as an event among the others."""
        answer: Deferred[Any] = Deferred()
        handlers: dict[Any, Callable[[Any], Awaitable[Any]]] = {
            messages.ControlledShutdownRequest: self._shut_down,
            lifecycle.AlterPartitionRequest: self._alter_partitions,
            AllocateProducerIdsRequest: self._allocate_producer_ids,
        }
        handler = handlers[type(request)]

        async def event() -> None:
            try:
                found = await handler(request)
            except Moved:
                answer.callback(_not_controller(request))
                raise
            answer.callback(found)

        self._events.put(None, event)
        return await answer

    def _refusal(self, broker_id: int, broker_epoch: int) -> ErrorCode:
        if not self._context.epoch:
            return ErrorCode.NOT_CONTROLLER
        live = self._context.live.get(broker_id)
        if live is None or broker_epoch < live.epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE

    async def _shut_down(
        self, request: messages.ControlledShutdownRequest
    ) -> messages.ControlledShutdownResponse:
        refused = self._refusal(request.broker_id, request.broker_epoch)
        if refused is not ErrorCode.NONE:
            return messages.ControlledShutdownResponse(error_code=refused)
        leaving = request.broker_id
        self._context.shutting_down.add(leaving)

        def decide(name: TopicPartition, state: Leadership) -> Leadership | None:
            if state.leader != leaving:
                return None
            others = [each for each in state.isr if each not in self._context.shutting_down]
            leader = next(
                (each for each in self._context.assigned[name].replicas if each in others),
                NO_LEADER,
            )
            if leader not in self._context.live:
                return None
            return state._replace(
                leader=leader, leader_epoch=state.leader_epoch + 1, isr=tuple(others)
            )

        held = [
            name
            for name, each in self._context.assigned.items()
            if leaving in each.replicas
            and len(each.replicas) > 1
            and name.topic not in self._context.deleting
        ]
        self._context.send_roles(await self._context.decide(held, decide))
        followed = [
            name
            for name in held
            if name in self._context.states and self._context.states[name].leader != leaving
        ]
        stops = [(name, self._context.states[name].leader_epoch) for name in followed]
        if stops:
            self._context.sender.stop_replicas(leaving, stops, False)
        await self._take_out_of(leaving, followed)
        left = [
            messages.RemainingPartition(topic_name=name.topic, partition_index=name.partition)
            for name in held
            if name in self._context.states and self._context.states[name].leader == leaving
        ]
        self._context.counted("controlled shutdown")
        return messages.ControlledShutdownResponse(remaining_partitions=left)

    async def _take_out_of(self, node_id: int, names: Iterable[TopicPartition]) -> None:
        def decide(_: TopicPartition, state: Leadership) -> Leadership | None:
            if node_id not in state.isr or len(state.isr) == 1 or state.leader == node_id:
                return None
            isr = tuple(each for each in state.isr if each != node_id)
            return state._replace(leader_epoch=state.leader_epoch + 1, isr=isr)

        self._context.send_roles(await self._context.decide(names, decide), without=[node_id])

    async def _alter_partitions(
        self, request: lifecycle.AlterPartitionRequest
    ) -> lifecycle.AlterPartitionResponse:
        refused = self._refusal(request.broker_id, request.broker_epoch)
        if refused is not ErrorCode.NONE:
            return lifecycle.AlterPartitionResponse(error_code=refused)
        by_id = {topic_id: topic for topic, topic_id in self._context.topic_ids.items()}
        response = lifecycle.AlterPartitionResponse()
        changed = []
        for topic in request.topics:
            answers = []
            for wanted in topic.partitions:
                name = TopicPartition(by_id.get(bytes(topic.topic_id), ""), wanted.partition_index)
                code = await self._alter_partition(name, request.broker_id, wanted)
                found = lifecycle.AlterPartitionResponsePartitionData(
                    partition_index=name.partition, error_code=code
                )
                if code is ErrorCode.NONE:
                    changed.append(name)
                    state = self._context.states[name]
                    found.leader_id, found.leader_epoch = state.leader, state.leader_epoch
                    found.isr, found.partition_epoch = list(state.isr), state.version
                    found.leader_recovery_state = int(state.recovering)
                answers.append(found)
            response.topics.append(
                lifecycle.AlterPartitionResponseTopicData(
                    topic_id=topic.topic_id, partitions=answers
                )
            )
        self._context.update_metadata(self._context.live, changed)
        if changed:
            self._events.put("reassign", self._look_at_reassignments)
        return response

    async def _alter_partition(
        self,
        name: TopicPartition,
        broker_id: int,
        wanted: lifecycle.AlterPartitionRequestPartitionData,
    ) -> ErrorCode:
        state = self._context.states.get(name)
        if state is None or name.topic in self._context.deleting:
            return ErrorCode.UNKNOWN_TOPIC_ID
        isr = tuple(wanted.new_isr) or tuple(each.broker_id for each in wanted.new_isr_with_epochs)
        if wanted.leader_epoch > state.leader_epoch:
            return ErrorCode.NOT_CONTROLLER
        if wanted.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH

        def is_there(state: Leadership | None) -> bool:
            asked = (broker_id, isr, bool(wanted.leader_recovery_state))
            return state is not None and (state.leader, state.isr, state.recovering) == asked

        if is_there(state):
            return ErrorCode.NONE
        if wanted.partition_epoch < state.version:
            return ErrorCode.INVALID_UPDATE_VERSION
        if wanted.leader_recovery_state and len(isr) > 1:
            return ErrorCode.INVALID_REQUEST
        if any(
            each not in self._context.live or each in self._context.shutting_down for each in isr
        ):
            return ErrorCode.INELIGIBLE_REPLICA
        try:
            self._context.states[name] = await self._context.write(
                name,
                state._replace(
                    isr=isr,
                    recovering=bool(wanted.leader_recovery_state),
                    version=wanted.partition_epoch,
                ),
            )
        except BadVersionError:
            await self._context.check_fence()
            await self._context.read_states([name])
            # Perhaps its own write, whose answer was lost with the connection.
            written = is_there(self._context.states.get(name))
            return ErrorCode.NONE if written else ErrorCode.INVALID_UPDATE_VERSION
        except ConnectionLossError:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    async def _allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> AllocateProducerIdsResponse:
        refused = self._refusal(request.broker_id, request.broker_epoch)
        if refused is not ErrorCode.NONE:
            return AllocateProducerIdsResponse(error_code=refused)
        try:
            start = await self._take_block(request.broker_id)
        except BadVersionError as error:
            raise Moved from error
        return AllocateProducerIdsResponse(
            producer_id_start=start, producer_id_len=PRODUCER_IDS_PER_BLOCK
        )

    async def _take_block(self, broker_id: int) -> int:
        zookeeper, fence = self._context.zookeeper, self._context.fence
        try:
            data, stat = await zookeeper.get(PRODUCER_ID_BLOCK)
        except NoNodeError:
            await zookeeper.create(
                PRODUCER_ID_BLOCK, producer_block_json(broker_id, 0), fence=fence
            )
            return 0
        start = read_producer_block(data) + 1
        block = producer_block_json(broker_id, start)
        await zookeeper.set(PRODUCER_ID_BLOCK, block, stat.version, fence)
        return start


def _not_controller(request: Any) -> Any:
    answers: Mapping[Any, Any] = {
        messages.ControlledShutdownRequest: messages.ControlledShutdownResponse,
        lifecycle.AlterPartitionRequest: lifecycle.AlterPartitionResponse,
        AllocateProducerIdsRequest: AllocateProducerIdsResponse,
    }
    return answers[type(request)](error_code=ErrorCode.NOT_CONTROLLER)
