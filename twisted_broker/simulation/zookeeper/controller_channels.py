"""The simulated controller's requests to brokers, sent as Apache Kafka's controller does: one
request in flight to each, in order, again until it is answered or the broker is gone.

Owns `ControllerChannels` and `Leadership`, the content of a partition's `state` as the controller
knows it.

1. A request carries the controller's epoch, and the broker's epoch as it was when the request was
   made. What waits for a broker that left is dropped.
2. A LeaderAndIsr may come once more, behind newer ones (`repeat_roles`): Kafka's controller sends a
   request again on a new connection, and what the one it gave up still holds is read later.

Source: KRAFT 2.2; Kafka 3.9's `ControllerChannelManager`. Not here: what is to be sent
(`simulation/zookeeper/controller.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, ensureDeferred
from twisted.internet.task import deferLater

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.zookeeper.protocol_versions import InterBrokerProtocol

FIRST_OTHER = 11
"""From this id on brokers hold no replicas (`simulation/zookeeper/machine.py`): nothing is sent to
them."""
_AGAIN_SECONDS = 0.1
_REQUEST_TIMEOUT_MS = 30_000
_ROLES_KEPT = 20


class Leadership(NamedTuple):
    """`version`: of the node, the partition epoch."""

    leader: int
    leader_epoch: int
    controller_epoch: int
    isr: tuple[int, ...]
    recovering: bool
    version: int


class Assigned(NamedTuple):
    """A partition's replicas: all of them, and those that a reassignment adds or removes."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class LiveBroker(NamedTuple):
    """A broker's node: `epoch` is its czxid."""

    id: int
    epoch: int
    host: str
    port: int


class _Channel:
    """To one broker under one epoch."""

    def __init__(self, runtime: Runtime, node_id: int, broker: LiveBroker) -> None:
        self.runtime, self.broker = runtime, broker
        self.queue: deque[tuple[Any, int, Callable[[Any], None]]] = deque()
        self.roles: deque[messages.LeaderAndIsrRequest] = deque(maxlen=_ROLES_KEPT)
        """the latest that were sent to it"""
        self.closed = self.busy = False
        self.connection = BrokerConnection(
            runtime,
            broker.host,
            broker.port,
            f"controller-{node_id}",
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            connect_timeout_ms=2000,
        )

    def put(self, request: Any, version: int, answered: Callable[[Any], None]) -> None:
        self.queue.append((request, version, answered))
        if not self.busy:
            self.busy = True
            ensureDeferred(self._work())

    async def _work(self) -> None:
        while self.queue and not self.closed:
            request, version, answered = self.queue[0]
            try:
                answer = await self.connection.send(request, version)
            except CancelledError:
                return
            except Exception:
                clock: Any = self.runtime.clock
                await deferLater(clock, _AGAIN_SECONDS, lambda: None)
                continue
            if not self.closed:
                self.queue.popleft()
                answered(answer)
        self.busy = False

    def close(self) -> None:
        self.closed = True
        self.queue.clear()
        self.connection.close()


class ControllerChannels:
    """`topic_id(topic)`: 16 zero bytes where the protocol has none. `refused(answer)` is called
    with an answer that refuses a request as a whole.
    """

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        epoch: int,
        protocol: InterBrokerProtocol,
        topic_id: Callable[[str], bytes],
        refused: Callable[[Any], None],
    ) -> None:
        self._runtime, self.node_id, self._epoch = runtime, node_id, epoch
        self._topic_id, self._refused = topic_id, refused
        # Of LeaderAndIsr, StopReplica, UpdateMetadata: nothing is negotiated.
        self._versions = (7, 4, 8) if protocol.topic_ids else (4, 3, 6)
        self._channels: dict[int, _Channel] = {}

    @property
    def brokers(self) -> dict[int, LiveBroker]:
        """To which something is sent."""
        return {node: channel.broker for node, channel in self._channels.items()}

    def add(self, broker: LiveBroker) -> None:
        self._channels[broker.id] = _Channel(self._runtime, self.node_id, broker)

    def remove(self, node_id: int) -> None:
        channel = self._channels.pop(node_id, None)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        for node_id in list(self._channels):
            self.remove(node_id)

    def _put(
        self, node_id: int, request: Any, version: int, answered: Callable[[Any], None]
    ) -> None:
        channel = self._channels.get(node_id)
        if channel is None or node_id >= FIRST_OTHER:
            return
        request.controller_id, request.controller_epoch = self.node_id, self._epoch
        request.broker_epoch = channel.broker.epoch

        def checked(answer: Any) -> None:
            if answer.error_code:
                self._refused(answer)
            answered(answer)

        channel.put(request, version, checked)

    def leader_and_isr(
        self,
        node_id: int,
        states: Mapping[TopicPartition, tuple[Leadership, Assigned]],
        is_new: bool,
    ) -> None:
        """Roles of one broker."""
        if not states:
            return
        topics = [
            messages.LeaderAndIsrTopicState(
                topic_name=topic,
                topic_id=self._topic_id(topic),
                partition_states=[
                    messages.LeaderAndIsrPartitionState(
                        partition_index=name.partition,
                        controller_epoch=state.controller_epoch,
                        leader=state.leader,
                        leader_epoch=state.leader_epoch,
                        isr=list(state.isr),
                        partition_epoch=state.version,
                        replicas=list(assigned.replicas),
                        adding_replicas=list(assigned.adding),
                        removing_replicas=list(assigned.removing),
                        is_new=is_new,
                        leader_recovery_state=int(state.recovering),
                    )
                    for name, (state, assigned) in sorted(states.items())
                    if name.topic == topic
                ],
            )
            for topic in sorted({name.topic for name in states})
        ]
        leaders = {state.leader for state, _ in states.values()}
        live = self.brokers
        request = messages.LeaderAndIsrRequest(
            topic_states=topics,
            live_leaders=[
                messages.LeaderAndIsrLiveLeader(broker_id=node, host_name=it.host, port=it.port)
                for node, it in live.items()
                if node in leaders
            ],
        )
        self._put(node_id, request, self._versions[0], lambda answer: None)
        if node_id in self._channels:
            self._channels[node_id].roles.append(request)

    def repeat_roles(
        self,
        node_id: int,
        random: Random,
        leader_epoch: Callable[[TopicPartition], int | None],
    ) -> None:
        """One of the LeaderAndIsr that a broker was sent, as far as it says less than what this
        controller knows by now: `leader_epoch(name)`, None where the broker has no such replica any
        more, and would make it anew.
        """
        channel = self._channels.get(node_id)
        if channel is None or not channel.roles:
            return
        sent = random.choice(channel.roles)
        topics = []
        for topic in sent.topic_states:
            older = []
            for state in topic.partition_states:
                known = leader_epoch(TopicPartition(topic.topic_name, state.partition_index))
                if known is not None and state.leader_epoch < known:
                    older.append(state)
            if older and topic.topic_id == self._topic_id(topic.topic_name):
                topics.append(
                    messages.LeaderAndIsrTopicState(
                        topic_name=topic.topic_name,
                        topic_id=topic.topic_id,
                        partition_states=older,
                    )
                )
        if topics:
            request = messages.LeaderAndIsrRequest(
                topic_states=topics, live_leaders=sent.live_leaders
            )
            self._put(node_id, request, self._versions[0], lambda answer: None)

    def stop_replicas(
        self,
        node_id: int,
        stops: Iterable[tuple[TopicPartition, int]],
        delete: bool,
        answered: Callable[[Any], None] = lambda answer: None,
    ) -> None:
        """Partitions and their leader epochs."""
        found = sorted(stops)
        request = messages.StopReplicaRequest(
            topic_states=[
                messages.StopReplicaTopicState(
                    topic_name=topic,
                    partition_states=[
                        messages.StopReplicaPartitionState(
                            partition_index=name.partition,
                            leader_epoch=epoch,
                            delete_partition=delete,
                        )
                        for name, epoch in found
                        if name.topic == topic
                    ],
                )
                for topic in sorted({name.topic for name, _ in found})
            ]
        )
        self._put(node_id, request, self._versions[1], answered)

    def update_metadata(
        self,
        node_ids: Iterable[int],
        states: Mapping[TopicPartition, tuple[Leadership, Assigned]],
    ) -> None:
        """To these brokers; no states: only who is alive."""
        live = self.brokers
        for node_id in node_ids:
            request = messages.UpdateMetadataRequest(
                topic_states=[
                    messages.UpdateMetadataTopicState(
                        topic_name=topic,
                        topic_id=self._topic_id(topic),
                        partition_states=[
                            messages.UpdateMetadataPartitionState(
                                partition_index=name.partition,
                                controller_epoch=state.controller_epoch,
                                leader=state.leader,
                                leader_epoch=state.leader_epoch,
                                isr=list(state.isr),
                                zk_version=state.version,
                                replicas=list(assigned.replicas),
                                offline_replicas=[
                                    each for each in assigned.replicas if each not in live
                                ],
                            )
                            for name, (state, assigned) in sorted(states.items())
                            if name.topic == topic
                        ],
                    )
                    for topic in sorted({name.topic for name in states})
                ],
                live_brokers=[
                    messages.UpdateMetadataBroker(
                        id=node,
                        rack=None,
                        endpoints=[
                            messages.UpdateMetadataEndpoint(
                                port=it.port, host=it.host, listener="PLAINTEXT"
                            )
                        ],
                    )
                    for node, it in sorted(live.items())
                ],
            )
            self._put(node_id, request, self._versions[2], lambda answer: None)
