"""Network faults: blocked directions between machines, connections that die.

Owns those faults (`faults/base.py` says what a fault is). Not here: delays
(`NetworkConditions` in `simulation/network.py`).
"""

from __future__ import annotations

from twisted_broker.simulation.faults.base import FaultInjector
from twisted_broker.simulation.node import SimNode


def partition(injector: FaultInjector, node: SimNode) -> None:
    """A machine is separated from some others and some producers, both ways."""
    others = [
        name
        for name in (*injector.cluster.nodes, *injector.producers)
        if name != node.name and injector.random.random() < 0.7
    ]
    injector.note(f"{node.name} is cut off from {others}")
    for other in others:
        injector.cluster.network.block(node.name, other)
        injector.cluster.network.block(other, node.name)
    injector.schedule(lambda: _heal(injector), 15.0)


def one_way(injector: FaultInjector, node: SimNode) -> None:
    """Packets between two machines are lost in one direction."""
    other = injector.random.choice(
        [name for name in injector.cluster.nodes if name != node.name] or ["p0"]
    )
    way = (node.name, other) if injector.random.random() < 0.5 else (other, node.name)
    injector.note(f"nothing gets from {way[0]} to {way[1]}")
    injector.cluster.network.block(*way)
    injector.schedule(lambda: _heal(injector), 15.0)


def _heal(injector: FaultInjector) -> None:
    injector.note("the network heals")
    injector.cluster.network.heal()


def break_connections(injector: FaultInjector, node: SimNode) -> None:
    """Some of its connections die."""
    injector.note(f"connections of {node.name} die")
    for near in list(injector.cluster.network.connections):
        if node.name in (near.clock.name, near.peer.clock.name) and injector.random.random() < 0.4:
            injector.cluster.network.break_connection(near)


def kill_before_answers(injector: FaultInjector, node: SimNode) -> None:
    """What it answers producers does not arrive; then its process is killed, and that is lost."""
    if node.is_up:
        injector.note(f"what {node.name} answers producers does not arrive")
        for producer in injector.producers:
            injector.cluster.network.block(node.name, producer)
        seconds = 0.2 + injector.random.random()
        injector.clock.callLater(seconds, _kill_without_answers, injector, node, node.incarnation)


def _kill_without_answers(injector: FaultInjector, node: SimNode, incarnation: int) -> None:
    network = injector.cluster.network
    for near in list(network.connections):
        names = {near.clock.name, near.peer.clock.name}
        if node.name in names and not names.isdisjoint(injector.producers):
            network.break_connection(near)
    if node.is_up and node.incarnation == incarnation:
        node.kill()
    _heal(injector)
    injector.schedule(lambda: injector.restart(node))


def half_open(injector: FaultInjector, node: SimNode) -> None:
    """Some of its connections stand on one side only: the other one hears nothing of it."""
    injector.note(f"connections of {node.name} are half open")
    for near in list(injector.cluster.network.connections):
        if node.name in (near.clock.name, near.peer.clock.name) and injector.random.random() < 0.4:
            injector.cluster.network.leave_half_open(near)


def late(injector: FaultInjector, node: SimNode) -> None:
    """It gives up some connections; what it had sent on them arrives later all the same."""
    injector.note(f"what {node.name} sends comes late")
    for near in list(injector.cluster.network.connections):
        if (
            near.clock.name == node.name
            and near.connected
            and not near.clock.dead
            and injector.random.random() < 0.5
        ):
            injector.cluster.network.give_up(near, injector.random.random() * 6)
