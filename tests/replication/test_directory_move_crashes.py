"""A move between directories that a crash, or a loss of power, ends at any operation of the disk
(RL 3.8): one consistent state is found after each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.replication.fixtures import TP, batch
from tests.replication.moving import Moving
from twisted_broker.testing.sim.disk import SimDisk
from twisted_broker.testing.sim.disk_faults import Crash
from twisted_broker.testing.sim.stalling_worker import StallingWorker

LEFT: dict[str, Callable[[SimDisk], SimDisk]] = {
    "killed": lambda disk: disk.after_kill(),
    "power lost": lambda disk: disk.after_power_loss(0.0),
    "power half lost": lambda disk: disk.after_power_loss(0.5),
}
FLUSHED = {"flush.messages": "1"}


def prepared() -> tuple[SimDisk, int]:
    """A disk with three records, and how many operations a whole move takes from there."""
    disk = SimDisk(1)
    moving = Moving(disk, overrides=FLUSHED).start()
    moving.produce(3)
    moving.stop()
    disk.sync_all()
    whole = Run(disk.after_kill(), None)
    whole.go()
    assert whole.moving.place == "/b"
    assert whole.moving.names("/a") == [], whole.moving.names("/a")
    return disk, whole.disk.operations - whole.began


class Run:
    """A move under load from a prepared disk. `acknowledged`: values that a client was told of."""

    def __init__(self, disk: SimDisk, crash_after: int | None, left: str = "killed") -> None:
        self.disk = disk
        self.found: SimDisk | None = None
        self.acknowledged: list[bytes] = []
        self.moving = Moving(disk, worker=StallingWorker, overrides=FLUSHED).start()
        self.began = disk.operations
        if crash_after is not None:
            disk.crash_at = disk.operations + crash_after
        disk.crashed = lambda: self.crashed(left)

    def crashed(self, left: str) -> None:
        if self.found is None:
            self.found = LEFT[left](self.disk)

    def go(self) -> SimDisk | None:
        """What is left of it; None when it ended."""
        try:
            self.moving.move("/b")
            for number in range(12):
                if self.found is None and not self.moving.partition.offline:
                    self.produce(b"during %d" % number)
                self.moving.turns(2)
            self.moving.settle(3)
            self.moving.clock.advance(61)
            self.moving.turns(5)
        except Crash:
            pass
        return self.found

    def produce(self, value: bytes) -> None:
        replicas = self.moving.replicas
        outcomes = replicas.produce([(TP, batch(value=value))], 1)
        if outcomes[0].error:
            return

        def answered(_: Any) -> None:
            if self.found is None and not outcomes[0].error:
                self.acknowledged.append(value)

        if replicas.must_wait(outcomes, 1):
            replicas.wait_for_replicas(outcomes, 60_000, 1).addCallback(answered)
        else:
            answered(None)


@pytest.mark.parametrize(
    ("left", "step"), [("killed", 4), ("power lost", 1), ("power half lost", 4)]
)
def test_after_each_operation_one_consistent_state_is_found(left: str, step: int) -> None:
    """RL 3.8: all that was acknowledged as synced is there once, in order; the move goes on or is
    done; nothing of it is left over.
    """
    disk, operations = prepared()
    assert operations > 30
    places: set[str] = set()
    for number in range(0, operations, step):
        run = Run(disk.after_kill(), number, left)
        found = run.go()
        assert found is not None, number
        again = Moving(found, overrides=FLUSHED).start()
        places.add(again.place)
        values = check(again, run, number)
        again.settle()
        again.clock.advance(61)
        again.turns(5)
        assert check(again, run, number) == values
        again.move("/b")
        again.settle()
        again.clock.advance(61)
        again.turns(5)
        assert again.place == "/b", number
        assert again.names("/b") == ["t-0"] and again.names("/a") == [], number
        assert check(again, run, number) == values
        again.produce()
    assert places == {"/a", "/b"}


def check(again: Moving, run: Run, number: int) -> list[bytes]:
    assert not again.partition.offline, (number, again.partition.offline_because)
    values = [data[data.index(b"k") + 2 :].rstrip(b"\0") for data in again.records()]
    during = [value for value in values if value.startswith(b"during")]
    assert values[:3] == [b"v"] * 3, (number, values)
    missing = [value for value in run.acknowledged if value not in during]
    assert not missing, (number, missing)
    numbers = [int(value.split()[1]) for value in during]
    assert numbers == list(range(len(numbers))), (number, values)
    return values
