"""A machine of a test's cluster: its clock, its disk and its place on the network.

Owns `Machine`: what runs on it is gone at once when it is killed, waits when it is frozen, and is
found by the next process as the disk has it.

1. Nothing of a process happens after its death: its timers never run, its connections are reset
   (without power: silent until it is back), its files are closed and its locks are free.
2. A disk in memory can lose what was not synced, fill up, fail and stall. That of a directory
   (`data`) only stalls: it is the system's.
3. A job of a disk waits while that stalls; nothing else does.

Source: `simulation/node.py`, on a real clock. Not here: brokers (`running_cluster.py`).
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple
from weakref import WeakSet

from twisted.internet.defer import maybeDeferred

from twisted_broker.interfaces import Runtime
from twisted_broker.log.filesystem import OsFile, OsFileSystem
from twisted_broker.net.network import ReactorNetwork
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.stalling_worker import StallingWorker
from twisted_broker.testing.live_network import LiveNetwork, MachineNetwork

OPERATIONS = ("any", "create", "fsync", "open", "read", "remove", "rename", "truncate", "write")
_NAMES = {"any": "", "fsync": "sync"}


class Address(NamedTuple):
    """Of a socket."""

    host: str
    port: int


def _text(address: Any) -> str:
    return f"{address.host}:{address.port}"


def _bound(address: Any) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address.host, address.port))
    return made


class _MemoryDisk(SimDisk):
    """One that remembers nothing of what was done to it."""

    def __init__(self, seed: int, wall_ms: Callable[[], int]) -> None:
        super().__init__(seed)
        self._wall_ms = wall_ms
        self.history = deque(maxlen=0)  # type: ignore[assignment]
        self.done: set[str] = set()
        """operations since somebody cleared it"""

    def fault(self, operation: str, path: str) -> None:
        self.done.add(operation)
        super().fault(operation, path)

    def _another(self) -> SimDisk:
        assert self._wall_ms is not None
        made = _MemoryDisk(self.random.randrange(1 << 30), self._wall_ms)
        made.capacity_bytes = self.capacity_bytes
        return made

    def killed(self) -> None:
        self._locks.clear()


class _Worker(StallingWorker):
    """`slow_by(job)`: does it, and how many seconds it takes."""

    def __init__(self, clock: NodeClock, slow_by: Callable[[Callable[[], None]], float]) -> None:
        super().__init__(clock)
        self._slow_by = slow_by

    def _do(self, job: Callable[[], object], done: Callable[..., None]) -> None:
        # What it does is done at once, and heard of when its time is over.
        found: list[Any] = []
        seconds = self._slow_by(
            lambda: super(_Worker, self)._do(job, lambda *end: found.extend(end))
        )
        if not seconds:
            done(*found)
            return
        self._running = True
        self._clock.callLater(seconds, self._heard, done, found)

    def _heard(self, done: Callable[..., None], found: list[Any]) -> None:
        self._running = False
        done(*found)
        self._next()


class _OpenFile(OsFile):
    """One that can be found again, as long as somebody holds it."""


class _Directory(OsFileSystem):
    """The system's disk, of a process that can be killed."""

    def __init__(self) -> None:
        super().__init__()
        self._open_files: WeakSet[OsFile] = WeakSet()
        self._held: list[Callable[[], None]] = []

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> OsFile:
        made = _OpenFile(path, super().open(path, create=create, read_only=read_only).fileno())
        self._open_files.add(made)
        return made

    def lock(self, path: str) -> Callable[[], None]:
        release = super().lock(path)
        self._held.append(release)

        def release_once() -> None:
            if release in self._held:
                self._held.remove(release)
                release()

        return release_once

    def killed(self) -> None:
        """As the system does for a process that ended."""
        for each in [*self._open_files]:
            each.close()
        self._open_files.clear()
        for release in self._held:
            release()
        self._held.clear()


class Machine:
    """`name`: on the network. `data`: whether its files are the system's. `is_frozen`, `is_on`:
    whether a process runs there.
    """

    def __init__(
        self, name: str, network: LiveNetwork, reactor: Any, data: bool, seed: int
    ) -> None:
        self.name = name
        self._network = network
        network.names.add(name)
        self._disk: _MemoryDisk | _Directory = (
            _Directory() if data else _MemoryDisk(seed, self.wall_ms)
        )
        self._key_files = OsFileSystem()
        self._real = ReactorNetwork(reactor)
        self.clock = NodeClock(network.sim, name)
        self.clock.dead = True
        self.random = Random()
        self._workers: list[StallingWorker] = []
        self._is_stalled, self._disk_seconds, self._slow = False, 0.0, ""
        self._ports: list[tuple[Any, Any]] = []
        self._held: list[socket.socket] = []
        self.lost_power = False
        self.skew_ms = 0
        """of its calendar alone"""

    @property
    def is_on(self) -> bool:
        return not self.clock.dead

    @property
    def is_frozen(self) -> bool:
        return self.clock.paused

    def wall_ms(self) -> int:
        """Of its calendar."""
        return self._network.sim.calendar_ms() + self.skew_ms

    def switch_on(self) -> Runtime:
        """The world of the next process."""
        assert not self.is_on
        self.clock = NodeClock(self._network.sim, self.name)
        self._workers = []
        network = MachineNetwork(self._network, self.clock, self._real)
        self._ports = network.ports
        return Runtime(
            clock=self.clock,
            wall_ms=self.wall_ms,
            network=network,
            files=self._disk,
            disk=self._worker,
            random=self.random,
            key_files=self._key_files,
        )

    def _worker(self, directory: str) -> StallingWorker:
        made = _Worker(self.clock, self._slow_by)
        made.stalled = self._is_stalled
        self._workers.append(made)
        return made

    async def off(self) -> None:
        """The process is gone: its connections are reset, its ports refuse."""
        self.clock.switch_off()
        self._network.switch_off(self.name, silent=False)
        self._gone()
        await self._close_ports()

    def _gone(self) -> None:
        for each in self._connections():
            each.reset()
        self._disk.killed()

    def check_can_lose(self) -> None:
        """Raises ValueError."""
        self._memory_disk()

    def lose_power(self, keep: float) -> None:
        """Nobody hears of it: connections are silent, until the machine is back. `keep`: the chance
        of each write that was not synced to survive.
        """
        self.clock.switch_off()
        self._network.switch_off(self.name, silent=True)
        self.lost_power = True
        if isinstance(self._disk, SimDisk) and keep < 1:
            self._disk = self._disk.after_power_loss(keep)  # type: ignore[assignment]

    async def power_is_back(self) -> None:
        """Before `switch_on`."""
        if self.lost_power:
            self.lost_power = False
            self._gone()
            await self._close_ports()

    async def _close_ports(self) -> None:
        """They refuse from now on; nobody else gets them (`let_ports_go`)."""
        ports, self._ports = self._ports, []
        for each, address in ports:
            await maybeDeferred(each.stopListening)
            self._held.append(_bound(address))

    def let_ports_go(self) -> None:
        """For the next process."""
        for each in self._held:
            each.close()
        self._held.clear()

    @property
    def sockets(self) -> dict[str, int]:
        """Descriptors by address: of those on which it listens, and those that it holds."""
        found = {_text(address): port.fileno() for port, address in self._ports}
        return found | {
            _text(Address(*each.getsockname()[:2])): each.fileno() for each in self._held
        }

    def take_sockets(self, sockets: Mapping[str, int]) -> None:
        """In a fork: listens on these, which may be others than those that it has."""
        for port, address in self._ports:
            descriptor = sockets.get(_text(address))
            if descriptor is None:  # a restart has let it go, as it does that of the status page
                with _bound(address) as made:
                    os.dup2(made.fileno(), port.fileno(), inheritable=False)
            else:
                os.dup2(descriptor, port.fileno(), inheritable=False)
            port.socket.setblocking(False)
            port.socket.listen(port.backlog)

    def let_in(self, lets: bool) -> None:
        """Whether it takes connections of clients; others wait."""
        for port, _ in self._ports:
            (port.startReading if lets else port.stopReading)()

    def files(self) -> tuple[Iterable[str], dict[str, bytes]]:
        """Directories, and the content of its files by path. Raises ValueError."""
        disk = self._memory_disk()
        return disk.directories, {path: disk.content(path) for path in disk.nodes}

    def freeze(self) -> None:
        """Nothing of it runs; nothing is closed."""
        self.clock.pause()

    def thaw(self) -> None:
        """What fell due meanwhile runs now, late."""
        self.clock.resume()

    # its disk

    def _memory_disk(self) -> _MemoryDisk:
        """Raises ValueError."""
        if not isinstance(self._disk, _MemoryDisk):
            raise ValueError("with data= the disk is the system's: it cannot be made to fail")
        return self._disk

    def fill_disk(self) -> None:
        """No file grows any more (ENOSPC)."""
        disk = self._memory_disk()
        disk.capacity_bytes = sum(len(node.data) for node in disk.nodes.values())

    def fail_disk(self, operation: str, error: str, times: int | None) -> None:
        """The next calls of `operation` raise `error`. Raises ValueError."""
        number = getattr(errno, error, None)
        if operation not in OPERATIONS:
            raise ValueError(f"{operation!r} is none of a disk's: {', '.join(OPERATIONS)}")
        if not isinstance(number, int):
            raise ValueError(f"{error!r} is no error of a system, as EIO is, or EROFS")
        fault = Fault(number, _NAMES.get(operation, operation))
        if times is not None:
            fault.times = times
        self._memory_disk().faults.append(fault)

    def slow_disk(self, seconds: float, operation: str = "any") -> None:
        """Each job of a disk's worker (a sync, a cold read, the load of a log) in which `operation`
        is done takes so long. Raises ValueError.
        """
        right = [each for each in OPERATIONS if each != "write"]
        if operation not in right:
            raise ValueError(f"nobody waits for {operation!r}: slow are {', '.join(right)}")
        if operation != "any":
            self._memory_disk()
        self._disk_seconds, self._slow = seconds, _NAMES.get(operation, operation)

    def _slow_by(self, job: Callable[[], None]) -> float:
        """Seconds that this job takes, which is done now."""
        if not isinstance(self._disk, _MemoryDisk):
            job()
            return self._disk_seconds
        self._disk.done.clear()
        job()
        return self._disk_seconds if not self._slow or self._slow in self._disk.done else 0.0

    def stall_disk(self) -> None:
        """Jobs of its workers wait."""
        self._is_stalled = True
        for each in self._workers:
            each.stalled = True

    def heal_disk(self) -> None:
        """As if nothing had been done to it."""
        self._is_stalled, self._disk_seconds, self._slow = False, 0.0, ""
        if isinstance(self._disk, _MemoryDisk):
            self._disk.capacity_bytes = None
            self._disk.faults.clear()
        for each in self._workers:
            each.resume()

    def corrupt_disk(self, topic: str, partition: int, offset: int) -> None:
        """Flips a bit of the batch that has this offset, behind the broker's back. Raises
        ValueError.
        """
        disk, end = self._memory_disk(), f"/{topic}-{partition}/"
        for path in sorted(disk.nodes, reverse=True):
            if end not in path or not path.endswith(".log"):
                continue
            for base, position, size in _batches(disk.content(path)):
                last = base + int.from_bytes(disk.content(path)[position + 23 : position + 27])
                if base <= offset <= last:
                    disk.flip_bit(path, position + size - 1)
                    return
        raise ValueError(f"{self.name} has no offset {offset} of {topic}-{partition} on its disk")

    def _connections(self) -> list[Any]:
        return [each for each in self._network.tcp if each.clock is self.clock]

    async def close(self) -> None:
        """Leaves nothing with the reactor."""
        self.let_ports_go()
        await self._real.close()


def _batches(content: bytes) -> Iterator[tuple[int, int, int]]:
    """First offset, position and size of each batch of a segment."""
    position = 0
    while position + 61 <= len(content):
        base = int.from_bytes(content[position : position + 8])
        size = 12 + int.from_bytes(content[position + 8 : position + 12])
        yield base, position, size
        position += size
