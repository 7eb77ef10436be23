"""Disk faults: a disk stalls, is slow, or fails.

Owns those faults (`faults/base.py` says what a fault is) and `repair`. Not here: what a loss of
power does to unsynced writes (`testing/sim/disk.py`).
"""

from __future__ import annotations

from errno import EIO, ENOSPC

from twisted_broker.testing.faults.base import FaultInjector
from twisted_broker.testing.sim.disk_faults import Fault
from twisted_broker.testing.sim.node import QUICK_DISK_MS, SimNode


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
    node.disk_delay_ms = QUICK_DISK_MS
