"""Faults of disks: they stand still, grow slow, and fail.

Owns those faults (`fault_base` says what a fault is) and `mend`. Leaves out: what a loss of power
does to unsynced writes (`sim_disk`).
"""

from __future__ import annotations

from errno import EIO, ENOSPC

from twisted_broker.testing.faults.base import Trouble
from twisted_broker.testing.sim.disk_faults import Fault
from twisted_broker.testing.sim.node import QUICK_DISK_MS, SimNode


def stall(trouble: Trouble, node: SimNode) -> None:
    if node.is_up and not node.stalled:
        clock = node.clock
        node.stall_disk()
        trouble.soon(
            lambda: node.resume_disk() if node.clock is clock and node.stalled else None, 12.0
        )


def slow_disk(trouble: Trouble, node: SimNode) -> None:
    """From now on its work takes longer, or is quick again."""
    node.disk_delay_ms = trouble.random.choice((QUICK_DISK_MS, (5, 50), (50, 400)))
    trouble.note(f"disk of {node.name} takes {node.disk_delay_ms} ms")


def disk_error(trouble: Trouble, node: SimNode) -> None:
    """The only log directory fails: the broker ends itself."""
    if node.is_up:
        fault = Fault(
            trouble.random.choice((EIO, ENOSPC)),
            trouble.random.choice(("write", "sync", "rename")),
            times=1,
        )
        trouble.note(f"disk of {node.name}: error {fault.error} in the next {fault.operation}")
        node.disk.faults.append(fault)
    trouble.clock.callLater(5 + trouble.random.random() * 5, _replace, trouble, node)


def _replace(trouble: Trouble, node: SimNode) -> None:
    """A process that goes on without its disk is replaced, as an operator would."""
    if (
        node.is_up
        and not node.clock.paused
        and not node.stopping
        and node.broker is not None
        and not node.broker.log_manager.directories.online()
    ):
        node.kill()
    trouble.again(node)


def mend(node: SimNode) -> None:
    """Nothing fails or is slow any more."""
    node.disk.faults.clear()
    node.disk.crash_at = None
    node.disk_delay_ms = QUICK_DISK_MS
