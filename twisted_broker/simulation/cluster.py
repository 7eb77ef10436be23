"""A cluster of production brokers and our controller in one thread, under one seed.

Owns `SimCluster`: the world and the machines in it, and their settings.

Source: docs/ARCHITECTURE.md 3 (four ports), the simulations of FoundationDB and TigerBeetle. Not
here: which faults when (`simulation/fault_schedule.py`), what must hold
(`simulation/checks/cluster.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted_broker.config import SAMPLE_VALUES
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.node import CLIENT_PORT, CONTROLLER_PORT, SimNode
from twisted_broker.simulation.world import SimWorld


class SimCluster(SimWorld):
    """`brokers` machines n1, n2 ..; n1 is the controller too (n1 to n3 are, of `controllers`
    3), or nothing else and so many more are there (`controller_only`).

    `settings` are those of all brokers; `directories`: how many logs are spread over.
    """

    def __init__(
        self,
        seed: int,
        brokers: int,
        settings: Mapping[str, str],
        conditions: NetworkConditions,
        *,
        shuffle: bool,
        trace: bool = False,
        controller_only: bool = False,
        directories: int = 1,
        controllers: int = 1,
    ) -> None:
        super().__init__(seed, conditions, shuffle=shuffle, trace=trace)
        self.nodes = {
            f"n{number}": SimNode(
                self,
                number,
                _settings(number, brokers, settings, controller_only, directories, controllers),
            )
            for number in range(1, brokers + 1 + controller_only * controllers)
        }
        names = list(self.nodes)
        self.controllers = names[:controllers]
        self.brokers = names[controllers:] if controller_only else names
        """the names of the machines that clients know"""

    def start(self, join_seconds: float = 0.0) -> None:
        """A process on each machine, `join_seconds` after the one before it."""
        power = NodeClock(self.sim, "power")
        for number, node in enumerate(self.nodes.values()):
            if join_seconds and number:
                power.callLater(number * join_seconds, self._join, node)
            else:
                node.start()

    def _join(self, node: SimNode) -> None:
        if not node.incarnation:  # a fault may have started it before
            node.start()


def _settings(
    number: int,
    brokers: int,
    settings: Mapping[str, str],
    controller_only: bool,
    directories: int,
    controllers: int,
) -> dict[str, str]:
    values = dict(SAMPLE_VALUES) | {
        "node.id": str(number),
        "log.dirs": ",".join(("/data", "/data2", "/data3")[:directories]),
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "2",
        "share.coordinator.state.topic.num.partitions": "2",
    }
    values["listeners"] = f"PLAINTEXT://n{number}:{CLIENT_PORT}"
    if number <= controllers and controller_only:
        values["listeners"] = f"CONTROLLER://n{number}:{CONTROLLER_PORT}"
        values["process.roles"] = "controller"
    elif number <= controllers:
        values["listeners"] += f",CONTROLLER://n{number}:{CONTROLLER_PORT}"
    else:
        values |= {
            "process.roles": "broker",
            "controller.quorum.bootstrap.servers": f"n1:{CONTROLLER_PORT}",
        }
    if controllers > 1:
        values.setdefault("process.roles", "broker,controller")
        values["controller.quorum.voters"] = ",".join(
            f"{each}@n{each}:{CONTROLLER_PORT}" for each in range(1, controllers + 1)
        )
    values["offsets.topic.replication.factor"] = str(min(3, brokers))
    values["transaction.state.log.replication.factor"] = str(min(3, brokers))
    values["transaction.state.log.min.isr"] = str(min(2, brokers))
    values["share.coordinator.state.topic.replication.factor"] = str(min(3, brokers))
    values["share.coordinator.state.topic.min.isr"] = str(min(2, brokers))
    return values | dict(settings)
