"""A controller on a network in memory, and brokers' sides that follow and join it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from tests.cluster.fixtures import CLUSTER_ID, DIRECTORY_ID, Fixture
from twisted_broker.api.context import BrokerParts, ListenerName
from twisted_broker.api.dispatch import Dispatcher
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.alter_partition_manager import AlterPartitionManager
from twisted_broker.cluster.broker_lifecycle_manager import BrokerLifecycleManager
from twisted_broker.cluster.controller_channel import ControllerChannel
from twisted_broker.cluster.features import SUPPORTED_FEATURES
from twisted_broker.cluster.forwarding_manager import ForwardingManager
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.image.entries import Endpoint, FeatureRange
from twisted_broker.image.metadata_image import MetadataDelta
from twisted_broker.interfaces import Runtime
from twisted_broker.net.connection_limits import ConnectionCounts, ConnectionFactory
from twisted_broker.simulation.memory_network import MemoryNetwork
from twisted_broker.wire.messages.topics import CreatableReplicaAssignment, CreatableTopic

PORT = 9093


class ControllerFixture(Fixture):
    """The fixture's controller behind port 9093."""

    def __init__(self, worker: Any = None, settings: dict[str, str] | None = None) -> None:
        super().__init__(worker, settings)
        self.network = MemoryNetwork(self.clock)
        self.runtime.network = self.network
        self.port: Any = None
        self.factory: Any = None

    def place_topic(self, name: str, *replicas: list[int]) -> bytes:
        """A topic with these replicas of partition 0, 1, ...; its id."""
        assignments = [
            CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in enumerate(replicas)
        ]
        topic = CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        (result,) = self.create_topics(topic)
        assert result.error_code == 0
        self.settle()
        topic_id: bytes = result.topic_id
        return topic_id

    def serve(self, port: int = PORT) -> None:
        """Starts to listen; the controller must have been started."""
        parts = BrokerParts(
            node_id=1,
            cluster_id=CLUSTER_ID,
            config=self.config,
            runtime=self.runtime,
            authorizer=self.authorizer,
            controller=self.controller,
        )
        dispatcher = Dispatcher(parts, ListenerName("CONTROLLER", True))
        counts = ConnectionCounts(1000, 1000)
        self.factory = ConnectionFactory(
            self.runtime, dispatcher, counts, frame_limit=1 << 26, idle_ms=0
        )
        self.network.listen("127.0.0.1", port, self.factory).addCallback(
            lambda opened: setattr(self, "port", opened)
        )
        assert self.port is not None

    def crash(self) -> None:
        """The controller's process is gone: port and connections too."""
        if self.controller._ticks.running:
            self.controller._ticks.stop()
        self.port.stopListening()
        self.factory.close_all()

    def settle(self) -> None:
        """Everything that is due now has happened."""
        while any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
            self.clock.advance(0)

    def pass_time(self, seconds: float) -> None:
        """In steps from timer to timer."""
        end = self.clock.seconds() + seconds
        self.settle()
        while (
            due := min((call.getTime() for call in self.clock.getDelayedCalls()), default=end)
        ) < end:
            self.clock.advance(max(0.0, due - self.clock.seconds()))
            self.settle()
        self.clock.advance(end - self.clock.seconds())
        self.settle()


class MemberSide:
    """A broker's side: what `kafka_server.py` joins, without replicas."""

    def __init__(
        self,
        served: ControllerFixture,
        node: int,
        bootstrap: list[tuple[str, int]] | None = None,
        **settings: str,
    ) -> None:
        self.served, self.node = served, node
        self.config = BrokerConfig({"node.id": str(node), **settings})
        self.runtime = Runtime(
            served.clock,
            served.now,
            served.network,
            served.files,
            served.runtime.disk,
            Random(node),
        )
        self.ended: list[BaseException] = []
        self.observer = MetadataObserver(
            self.runtime,
            self.config,
            CLUSTER_ID,
            bootstrap or [("127.0.0.1", PORT)],
            on_fatal=self.ended.append,
        )
        self.deltas: list[MetadataDelta] = []
        self.observer.subscribe(self.deltas.append)
        self.refused: list[str] = []
        self.lifecycle = BrokerLifecycleManager(
            self.runtime,
            self.config,
            self.observer,
            self.channel("lifecycle"),
            self.refused.append,
        )
        self.isr_changes = AlterPartitionManager(
            self.runtime, node, self.channel("isr"), self.lifecycle
        )
        self.forwarding = ForwardingManager(
            self.runtime, node, self.channel("forwarding"), self.lifecycle
        )

    def channel(self, purpose: str) -> ControllerChannel:
        return ControllerChannel(self.runtime, self.observer, purpose)

    def follow(self) -> MemberSide:
        self.observer.start()
        self.served.settle()
        return self

    def join(
        self,
        previous: int = -1,
        incarnation: bytes = b"",
        ready: bool = True,
        cluster_id: str = CLUSTER_ID,
        features: Mapping[str, FeatureRange] = SUPPORTED_FEATURES,
    ) -> MemberSide:
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 9000 + self.node)
        directory = DIRECTORY_ID[:15] + bytes([self.node])
        self.lifecycle.start(
            cluster_id,
            incarnation or bytes([self.node]) * 16,
            [endpoint],
            features,
            [directory],
            previous,
        )
        if ready:
            self.lifecycle.caught_up.addCallbacks(
                lambda _: self.lifecycle.ready_to_unfence(), lambda failure: None
            )
        self.lifecycle.unfenced.addErrback(lambda failure: None)
        self.served.settle()
        return self

    def stop(self) -> None:
        self.lifecycle.stop()
        self.observer.stop()
        self.isr_changes.stop()
        self.forwarding.stop()
        self.served.settle()


def served(settings: dict[str, str] | None = None, worker: Any = None) -> ControllerFixture:
    """A started controller that is reachable."""
    fixture = ControllerFixture(worker, settings)
    fixture.start()
    fixture.serve()
    return fixture
