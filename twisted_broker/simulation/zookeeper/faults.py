"""Faults of ZooKeeper and of the controller.

Owns `ZOOKEEPER_FAULTS` and `ZooKeeperFaults`, which draws them beside the usual ones, and their
repair.

Not here: the usual faults (`simulation/faults`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from twisted_broker.simulation.fault_schedule import FAULTS, Faults
from twisted_broker.simulation.faults.base import FaultInjector
from twisted_broker.simulation.node import SimNode
from twisted_broker.simulation.zookeeper.cluster import ZooKeeperCluster
from twisted_broker.simulation.zookeeper.ensemble import CONTROLLER, MACHINE
from twisted_broker.simulation.zookeeper.machine import ControllerMachine


def _cluster(injector: FaultInjector) -> ZooKeeperCluster:
    return cast(ZooKeeperCluster, injector.cluster)


def session_expires(injector: FaultInjector, node: SimNode) -> None:
    """A broker's session ends, its process does not."""
    _cluster(injector).ensemble.expire(node.name)


def answers_lost(injector: FaultInjector, node: SimNode) -> None:
    """The next writes of a broker are done, and it does not hear so."""
    _cluster(injector).ensemble.lose_answers(node.name, injector.random.randint(1, 3))


def watches_late(injector: FaultInjector, node: SimNode) -> None:
    """Whoever watches hears of changes seconds later; for a while."""
    ensemble = _cluster(injector).ensemble
    ensemble.watch_delay_seconds = injector.random.choice((0.5, 2.0, 5.0))
    injector.schedule(lambda: setattr(ensemble, "watch_delay_seconds", 0.0), 15.0)


def zookeeper_unreachable(injector: FaultInjector, node: SimNode) -> None:
    """A broker does not reach ZooKeeper, but all other brokers."""
    network = injector.cluster.network
    network.block(node.name, MACHINE)
    if injector.random.random() < 0.7:
        network.block(MACHINE, node.name)
    injector.schedule(network.heal, 12.0)


def zookeeper_stalls(injector: FaultInjector, node: SimNode) -> None:
    """Its servers answer nobody for a while: an election among them."""
    clock = _cluster(injector).ensemble.clock
    if not clock.paused:
        clock.pause()
        injector.schedule(lambda: clock.resume() if clock.paused else None, 5.0)


def _controller(injector: FaultInjector) -> ControllerMachine:
    """The machine of the controller, one at random where there is none."""
    candidates = list(_cluster(injector).candidates.values())
    acting = [each for each in candidates if each.controller is not None and each.controller.epoch]
    return injector.random.choice(acting or candidates)


def controller_dies(injector: FaultInjector, node: SimNode) -> None:
    """The controller's process; another one takes over when its session ends."""
    machine = _controller(injector)
    if machine.controller is not None:
        machine.kill()
    injector.schedule(lambda: _restart(machine), 6.0)


def _restart(machine: ControllerMachine) -> None:
    if machine.controller is None:
        machine.start()


def controller_session_expires(injector: FaultInjector, node: SimNode) -> None:
    """It is controller no more, and hears so later than the next one."""
    _cluster(injector).ensemble.expire(_controller(injector).name)


def controller_pauses(injector: FaultInjector, node: SimNode) -> None:
    """It stands still until it may have been replaced, and goes on with what it had decided."""
    machine = _controller(injector)
    clock = machine.clock
    if machine.controller is not None and not clock.paused:
        injector.note(f"{machine.name} is paused")
        clock.pause()
        injector.schedule(lambda: clock.resume() if clock.paused else None, 15.0)


def controller_cut_off(injector: FaultInjector, node: SimNode) -> None:
    """The controller does not reach some brokers, or ZooKeeper."""
    machine = _controller(injector)
    for name in (*injector.cluster.nodes, MACHINE):
        if injector.random.random() < 0.4:
            injector.cluster.network.block(machine.name, name)
    injector.schedule(injector.cluster.network.heal, 10.0)


def controller_moves(injector: FaultInjector, node: SimNode) -> None:
    """An operator deletes `/controller`: it was the way to make another one controller."""
    tree = _cluster(injector).ensemble.tree
    if CONTROLLER in tree.nodes:
        tree.delete(CONTROLLER)


def roles_come_late(injector: FaultInjector, node: SimNode) -> None:
    """A LeaderAndIsr comes once more, behind newer ones: on a connection that was given up."""
    controller = _controller(injector).controller
    if controller is not None:
        controller.repeat_roles(node.node_id, injector.random)


ZOOKEEPER_FAULTS: dict[str, Callable[[FaultInjector, SimNode], None]] = {
    "session expires": session_expires,
    "answers of ZooKeeper lost": answers_lost,
    "watches late": watches_late,
    "ZooKeeper unreachable": zookeeper_unreachable,
    "ZooKeeper stalls": zookeeper_stalls,
    "controller dies": controller_dies,
    "controller's session expires": controller_session_expires,
    "controller pauses": controller_pauses,
    "controller cut off": controller_cut_off,
    "controller moves": controller_moves,
    "roles come late": roles_come_late,
}


class ZooKeeperFaults(Faults):
    """The usual ones, and these."""

    table = FAULTS | ZOOKEEPER_FAULTS
    cluster: ZooKeeperCluster

    def heal(self) -> None:
        super().heal()
        self.cluster.ensemble.be_orderly()
        for clock in (
            self.cluster.ensemble.clock,
            *(machine.clock for machine in self.cluster.candidates.values()),
        ):
            if clock.paused:
                clock.resume()
        for machine in self.cluster.candidates.values():
            _restart(machine)
