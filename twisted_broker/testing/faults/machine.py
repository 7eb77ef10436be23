"""Faults of machines: processes die, stop and stand still, power goes.

Owns those faults (`fault_base` says what a fault is). Leaves out: wires, disks, and faults that
wait for a moment (`fault_ambushes`).
"""

from __future__ import annotations

from twisted_broker.testing.faults.base import Trouble, go_on
from twisted_broker.testing.sim.node import SimNode


def kill(trouble: Trouble, node: SimNode) -> None:
    if node.is_up:
        node.kill()
    trouble.soon(lambda: trouble.again(node))


def power(trouble: Trouble, node: SimNode) -> None:
    if node.is_up:
        node.lose_power()
    trouble.soon(lambda: trouble.again(node))


def flap(trouble: Trouble, node: SimNode) -> None:
    """Power comes and goes: what the machine sent before may arrive after it is back."""
    if node.is_up:
        node.lose_power()
    trouble.clock.callLater(trouble.random.random() * 0.1, trouble.again, node)
    trouble.clock.callLater(0.5 + trouble.random.random() * 1.5, _flap_again, trouble, node)


def _flap_again(trouble: Trouble, node: SimNode) -> None:
    if node.is_up and not trouble.over:
        node.lose_power()
    trouble.clock.callLater(trouble.random.random() * 0.1, trouble.again, node)


def crash(trouble: Trouble, node: SimNode) -> None:
    """Power is lost in one of the next operations on the disk."""
    if node.is_up:
        node.disk.crash_at = node.disk.operations + trouble.random.randrange(60)
    trouble.clock.callLater(4 + trouble.random.random() * 6, trouble.again, node)


def stop(trouble: Trouble, node: SimNode) -> None:
    """SIGTERM."""
    if node.is_up and not node.clock.paused:
        node.stop()
    trouble.clock.callLater(11 + trouble.random.random() * 5, trouble.again, node)


def pause(trouble: Trouble, node: SimNode) -> None:
    if node.is_up and not node.clock.paused:
        clock = node.clock
        node.pause()
        trouble.soon(lambda: go_on(node, clock), 15.0)
