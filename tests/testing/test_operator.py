"""The simulated operator does what a node's line says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted_broker.cluster.metadata_check import LogEnd
from twisted_broker.log.flipped_epoch import EpochStart, flipped_epochs
from twisted_broker.testing.faults.metadata import _Rescue
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


def test_a_damaged_copy_is_no_witness_of_an_older_controller() -> None:
    """How far it went is only a number, which the older controller's log reaches (seed 1120280):
    that is one of the cases that nobody can know.
    """
    for known_end, durable_end, is_witness in ((0, 126, True), (126, 126, False), (126, 127, True)):
        copy = SimpleNamespace(
            failed=None, known_end=LogEnd(known_end, -1), _durable_end=durable_end
        )
        role = SimpleNamespace(
            copy=copy, observer=SimpleNamespace(image=SimpleNamespace(offset=176))
        )
        node: Any = SimpleNamespace(broker=SimpleNamespace(role=role))
        rescue: Any = _Rescue.__new__(_Rescue)
        rescue._older_end, rescue._end = 118, 177
        assert rescue._knows_more(node) is is_witness
