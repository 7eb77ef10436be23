"""A cluster in ZooKeeper mode: production brokers, a simulated ZooKeeper, and two machines that run
for controller.

Owns `ZooKeeperCluster` and its machines' settings. Brokers are n1, n2 ..; the others k11 and k12.

Not here: faults (`simulation/zookeeper/faults.py`), what must hold
(`simulation/zookeeper/checks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config import SAMPLE_VALUES
from twisted_broker.interfaces import Runtime
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.server.zookeeper_membership import ZooKeeperMembership
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.node import CLIENT_PORT, CLUSTER_ID, SimNode
from twisted_broker.simulation.world import SimWorld
from twisted_broker.simulation.zookeeper.controller_channels import FIRST_OTHER
from twisted_broker.simulation.zookeeper.ensemble import MACHINE, PORT, Ensemble
from twisted_broker.simulation.zookeeper.machine import ControllerMachine
from twisted_broker.simulation.zookeeper.session import SimZooKeeper
from twisted_broker.zookeeper.protocol_versions import protocol_of
from twisted_broker.zookeeper.znodes import CLUSTER_ID as CLUSTER_ID_PATH

_CANDIDATES = 2


class ZooKeeperNode(SimNode):
    """A machine whose broker is a member of a ZooKeeper cluster."""

    def make_broker(self, runtime: Runtime, on_fatal: Callable[[str], None]) -> KafkaServer:
        def client(runtime: Runtime, config: BrokerConfig) -> SimZooKeeper:
            return SimZooKeeper(runtime, self.name, config.integer("zookeeper.session.timeout.ms"))

        return KafkaServer(
            BrokerConfig(dict(self.settings)),
            runtime,
            self.cluster_id,
            on_fatal=on_fatal,
            membership=partial(ZooKeeperMembership, zookeeper=client),
        )


class ZooKeeperCluster(SimCluster):
    """`protocol`: the inter-broker protocol, 2.6 or 3.9. `counted(kind)` is called with what the
    controllers did.
    """

    def __init__(
        self,
        seed: int,
        brokers: int,
        settings: Mapping[str, str],
        conditions: NetworkConditions,
        protocol: str,
        counted: Callable[[str], None],
        *,
        shuffle: bool,
        trace: bool = False,
    ) -> None:
        SimWorld.__init__(self, seed, conditions, shuffle=shuffle, trace=trace)
        self.protocol = protocol_of(protocol)
        self.nodes = {
            f"n{number}": ZooKeeperNode(self, number, _settings(number, protocol, settings))
            for number in range(1, brokers + 1)
        }
        self.controllers: list[str] = []
        self.brokers = list(self.nodes)
        self.ensemble = Ensemble(self)
        self.ensemble.struck = counted
        self.ensemble.tree.create(
            CLUSTER_ID_PATH, f'{{"version":"1","id":"{CLUSTER_ID}"}}'.encode()
        )
        self.candidates = {
            machine.name: machine
            for machine in (
                ControllerMachine(
                    self,
                    FIRST_OTHER + number,
                    self.protocol,
                    int(settings["zookeeper.session.timeout.ms"]),
                    counted,
                )
                for number in range(_CANDIDATES)
            )
        }

    def start(self, join_seconds: float = 0.0) -> None:
        for machine in self.candidates.values():
            machine.start()
        super().start(join_seconds)


def _settings(number: int, protocol: str, settings: Mapping[str, str]) -> dict[str, str]:
    return (
        dict(SAMPLE_VALUES)
        | {
            "node.id": str(number),
            "process.roles": "broker",
            "log.dirs": "/data",
            "listeners": f"PLAINTEXT://n{number}:{CLIENT_PORT}",
            "zookeeper.connect": f"{MACHINE}:{PORT}",
            "inter.broker.protocol.version": protocol,
            "offsets.topic.num.partitions": "1",
        }
        | dict(settings)
    )
