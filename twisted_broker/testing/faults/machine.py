"""Machine faults: a process dies, stops or is paused, a machine loses power.

Owns those faults (`faults/base.py` says what a fault is). Not here: network faults, disk faults,
triggered faults.
"""

from __future__ import annotations

from twisted_broker.testing.faults.base import FaultInjector, resume
from twisted_broker.testing.sim.node import SimNode


def kill(injector: FaultInjector, node: SimNode) -> None:
    if node.is_up:
        node.kill()
    injector.schedule(lambda: injector.restart(node))


def power(injector: FaultInjector, node: SimNode) -> None:
    if node.is_up:
        node.lose_power()
    injector.schedule(lambda: injector.restart(node))


def flap(injector: FaultInjector, node: SimNode) -> None:
    """Power comes and goes: what the machine sent before may arrive after it is back."""
    if node.is_up:
        node.lose_power()
    injector.clock.callLater(injector.random.random() * 0.1, injector.restart, node)
    injector.clock.callLater(0.5 + injector.random.random() * 1.5, _flap_again, injector, node)


def _flap_again(injector: FaultInjector, node: SimNode) -> None:
    if node.is_up and not injector.ended:
        node.lose_power()
    injector.clock.callLater(injector.random.random() * 0.1, injector.restart, node)


def crash(injector: FaultInjector, node: SimNode) -> None:
    """Power is lost in one of the next operations on the disk."""
    if node.is_up:
        node.disk.crash_at = node.disk.operations + injector.random.randrange(60)
    injector.clock.callLater(4 + injector.random.random() * 6, injector.restart, node)


def stop(injector: FaultInjector, node: SimNode) -> None:
    """SIGTERM."""
    if node.is_up and not node.clock.paused:
        node.stop()
    # After the longest controlled shutdown (10 s).
    injector.clock.callLater(11 + injector.random.random() * 5, injector.restart, node)


def pause(injector: FaultInjector, node: SimNode) -> None:
    if node.is_up and not node.clock.paused:
        clock = node.clock
        node.pause()
        injector.schedule(lambda: resume(node, clock), 15.0)
