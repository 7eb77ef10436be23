"""What is free on the disks of log directories: one line before a disk is full, one when it has
room again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.logger import formatEvent, globalLogPublisher

from tests.memory_broker import MemoryBroker
from twisted_broker.log.free_space import SECONDS
from twisted_broker.log.memory import MemoryFileSystem

GIB = 1 << 30


class Disk(MemoryFileSystem):
    """Has as much room as the test says, or fails."""

    free: int | None = 5 * GIB

    def free_bytes(self, path: str) -> tuple[int, int]:
        if self.free is None:
            raise OSError(5, "Input/output error", path)
        return 10 * GIB, self.free


class HeldWorker:
    """Does nothing until `run`."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[..., None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[..., None]) -> None:
        self.jobs.append((job, done))

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job, done in jobs:
            done(job(), None)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    found: list[str] = []

    def take(event: Any) -> None:
        if "disk" in (text := formatEvent(event)):
            found.append(text)

    globalLogPublisher.addObserver(take)
    yield found
    globalLogPublisher.removeObserver(take)


def test_one_line_when_it_is_nearly_full_and_one_when_it_is_not(lines: list[str]) -> None:
    """Issue 12: however often it is looked at; about the limit there is no storm."""
    disk = Disk()
    broker = MemoryBroker(disk).start()
    space = broker.broker.log_manager.free_space
    space.start()
    assert space.found == {"/data": (10 * GIB, 5 * GIB)} and lines == []
    for free in (GIB - 1, 5, GIB, GIB + GIB // 20, 7, GIB + GIB // 20):
        disk.free = free
        broker.pass_time(SECONDS)
        assert space.found["/data"][1] == free
    assert len(lines) == 1
    assert "disk nearly full directory=/data free.bytes=1073741823 " in lines[0]
    assert "replog.log.dir.free.warn.bytes=1073741824: shorten retention" in lines[0]
    disk.free = 2 * GIB
    broker.pass_time(SECONDS)
    assert lines[1:] == [
        "disk has room again directory=/data free.bytes=2147483648 total.bytes=10737418240"
    ]
    disk.free = 0
    broker.pass_time(SECONDS)
    assert len(lines) == 3
    broker.stop()


def test_zero_never_warns(lines: list[str]) -> None:
    disk = Disk()
    disk.free = 0
    broker = MemoryBroker(disk, replog_log_dir_free_warn_bytes="0").start()
    broker.broker.log_manager.free_space.start()
    broker.pass_time(2 * SECONDS)
    assert lines == []


def test_a_disk_that_does_not_answer_is_looked_at_once(lines: list[str]) -> None:
    """Its last figures stay; one that fails, or whose directory failed, has none."""
    disk = Disk()
    broker = MemoryBroker(disk).start()
    manager = broker.broker.log_manager
    (directory,) = manager.directories.online()
    before, held = directory.disk, HeldWorker()
    directory.disk = held  # type: ignore[assignment]
    space = manager.free_space
    for _ in range(3):
        space.look()
    assert len(held.jobs) == 1 and space.found == {}
    held.run()
    space.look()
    assert len(held.jobs) == 1 and space.found == {"/data": (10 * GIB, 5 * GIB)}
    held.run()
    directory.disk, disk.free = before, None
    space.look()
    assert space.found == {"/data": (10 * GIB, 5 * GIB)} and lines == []
    manager.directories.fail("/data", OSError(5, "Input/output error"))
    space.look()
    assert space.found == {}
