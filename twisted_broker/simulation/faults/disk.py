"""Disk faults: a disk stalls, is slow, or fails, for its worker or for the reactor itself.

Owns those faults (`faults/base.py` says what a fault is) and `repair`. Not here: what a loss of
power does to unsynced writes (`simulation/disk.py`).
"""

from __future__ import annotations

from errno import EIO, ENOSPC

from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.faults.base import FaultInjector
from twisted_broker.simulation.node import QUICK_DISK_MS, SimNode


def stall(injector: FaultInjector, node: SimNode) -> None:
    """No job of its disk ends for a while."""
    if node.is_up and not node.stalled:
        clock = node.clock
        node.stall_disk()
        injector.schedule(
            lambda: node.resume_disk() if node.clock is clock and node.stalled else None, 12.0
        )


def slow_disk(injector: FaultInjector, node: SimNode) -> None:
    """From now on its work takes longer, or is quick again."""
    node.disk_delay_ms = injector.random.choice((QUICK_DISK_MS, (5, 50), (50, 400)))
    injector.note(f"disk of {node.name} takes {node.disk_delay_ms} ms")


def slow_reads(injector: FaultInjector, node: SimNode) -> None:
    """What it read before is in memory no longer: where the reactor reads by itself, it waits."""
    if node.is_up:
        injector.note(f"{node.name} has nothing in memory")
        node.disk.evict()
        _wait_for_disk(injector, node)


def slow_writes(injector: FaultInjector, node: SimNode) -> None:
    """Too much is not on the disk yet: where the reactor writes, it waits."""
    if node.is_up:
        node.disk.dirty_limit_bytes = injector.random.choice((0, 2000))
        injector.note(f"{node.name} writes no faster than its disk")
        _wait_for_disk(injector, node)


def _wait_for_disk(injector: FaultInjector, node: SimNode) -> None:
    """For some seconds the reactor waits in each such call: a little, or once for long."""
    disk, random = node.disk, injector.random
    is_stall, most = random.random() < 0.4, random.choice((0.02, 0.3, 1.5))

    def blocked(operation: str, path: str) -> None:
        disk.blocked.clear()
        if not node.is_up or node.clock.paused or injector.ended:
            return
        injector.counted(f"reactor waits for a {operation}")
        if is_stall:
            ends()
        seconds = 4 + random.random() * 8 if is_stall else random.random() * most
        injector.pause_for(node, seconds)
        clock = node.clock
        injector.clock.callLater(
            seconds * 0.99,
            lambda: _look_at_session(injector, node) if node.clock is clock else None,
        )

    def ends() -> None:
        disk.quick()

    disk.on_blocked = blocked
    injector.clock.callLater(2 + random.random() * 4, ends)


def _look_at_session(injector: FaultInjector, node: SimNode) -> None:
    """Just before it goes on: whether the controller has fenced it."""
    brokers = [injector.cluster.nodes[name].broker for name in injector.cluster.controllers]
    controllers = [None if each is None else each.parts.controller for each in brokers]
    running = [each for each in controllers if each is not None]
    newest = max((each.committed for each in running), key=lambda each: each.offset, default=None)
    known = None if newest is None else newest.brokers.get(node.node_id)
    if node.clock.paused and known is not None and known.fenced:
        injector.counted("session expired in a wait")


def disk_error(injector: FaultInjector, node: SimNode) -> None:
    """The only log directory fails: the broker ends itself."""
    if node.is_up:
        fault = Fault(
            injector.random.choice((EIO, ENOSPC)),
            injector.random.choice(("write", "sync", "rename")),
            times=1,
        )
        injector.note(f"disk of {node.name}: error {fault.error} in the next {fault.operation}")
        node.disk.faults.append(fault)
    injector.clock.callLater(5 + injector.random.random() * 5, _replace, injector, node)


def _replace(injector: FaultInjector, node: SimNode) -> None:
    """A process that goes on without its disk is replaced, as an operator would."""
    if (
        node.is_up
        and not node.clock.paused
        and not node.stopping
        and node.broker is not None
        and not node.broker.log_manager.directories.online()
    ):
        node.kill()
    injector.restart(node)


def repair(node: SimNode) -> None:
    """Nothing fails or is slow any more."""
    node.disk.faults.clear()
    node.disk.crash_at = None
    node.disk.capacity_bytes = None
    node.disk.quick()
    node.disk_delay_ms = QUICK_DISK_MS
