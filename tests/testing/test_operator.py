"""The simulated operator does what a node's line says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted_broker.log.flipped_epoch import EpochStart, flipped_epochs
from twisted_broker.testing.sim.disk import SimDisk
from twisted_broker.testing.sim.reach import Reach
from twisted_broker.testing.sim.run import Run


def test_every_log_that_the_line_names_is_shortened() -> None:
    """Leader epochs were flipped in several on one machine: with one of them left as it is, the
    node ends again, and what it led is away for good.
    """
    disk = SimDisk(1)
    found = []
    for number in range(3):
        directory = f"/data/t0-{number}"
        disk.make_directories(directory)
        path = f"{directory}/{0:020d}.log"
        disk.open(path, create=True).write_at(0, (b"x" * 200,))
        found.append((directory, EpochStart(1 << 20, path, 70 + number, 1)))
    node: Any = SimpleNamespace(
        disk=disk, ended_because=flipped_epochs(found), ready=False, is_up=False
    )
    run: Any = Run.__new__(Run)
    run.cluster, run.reach = SimpleNamespace(nodes={"n1": node}), Reach()
    run._drop_flipped_epochs()
    assert [disk.size(start.path) for _, start in found] == [70, 71, 72]
    assert node.ended_because == ""
