"""Faults of the network: ways that are blocked, connections that die.

Owns those faults (`fault_base` says what a fault is). Leaves out: delays, which are the weather's
(`sim_network`).
"""

from __future__ import annotations

from twisted_broker.testing.faults.base import Trouble
from twisted_broker.testing.sim.node import SimNode


def partition(trouble: Trouble, node: SimNode) -> None:
    """A machine is cut off from some others and some producers, both ways."""
    others = [
        name
        for name in (*trouble.cluster.nodes, *trouble.producers)
        if name != node.name and trouble.random.random() < 0.7
    ]
    trouble.note(f"{node.name} is cut off from {others}")
    for other in others:
        trouble.cluster.network.block(node.name, other)
        trouble.cluster.network.block(other, node.name)
    trouble.soon(lambda: _heal(trouble), 15.0)


def one_way(trouble: Trouble, node: SimNode) -> None:
    other = trouble.random.choice(
        [name for name in trouble.cluster.nodes if name != node.name] or ["p0"]
    )
    way = (node.name, other) if trouble.random.random() < 0.5 else (other, node.name)
    trouble.note(f"nothing gets from {way[0]} to {way[1]}")
    trouble.cluster.network.block(*way)
    trouble.soon(lambda: _heal(trouble), 15.0)


def _heal(trouble: Trouble) -> None:
    trouble.note("the network heals")
    trouble.cluster.network.heal()


def cut(trouble: Trouble, node: SimNode) -> None:
    """Some of its connections die."""
    trouble.note(f"connections of {node.name} die")
    for near in list(trouble.cluster.network.connections):
        if node.name in (near.clock.name, near.peer.clock.name) and trouble.random.random() < 0.4:
            trouble.cluster.network.cut(near)
