"""A disk that loses what was not synced, tears what was being written, lies, stalls and fails, under a seed.

Owns `SimDisk` (twin of the disk), `Fault` and `StallingWorker`.

1. What a process sees is always what it wrote; what a crash leaves is decided only then, by the seed.
2. A file's unsynced writes survive a crash one by one, in any subset; the newest one kept may be torn at any sector boundary (or byte).
3. A created, renamed or removed name is durable only after `sync_directory` of its directory; of those that are not, a crash keeps a prefix.
4. Operations that change the disk are counted; the count is where faults and crashes are placed.

Source: ALICE (OSDI '14); RELIABILITY 6.2. Left out: what a device does to data that was synced, but for `flip_bit` and `damage`.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from twisted_broker.interfaces import Buffer, IClock
from twisted_broker.log.memory import MemoryFile, MemoryFileSystem, Node

T = TypeVar("T")
_SECTOR_BYTES = 512
_Write = tuple[int, bytes | None]
"""(position, bytes), or (size, None) for a truncation"""


class Crash(BaseException):
    """The machine stops here. Not an Exception: nothing may catch and go on."""


class Fault:
    """`error` (an errno) is raised by operations named `operation` ("" any) on paths containing `path`, after `skip` of them, `times` times."""

    def __init__(self, error: int, operation: str = "", path: str = "", skip: int = 0, times: int = 1 << 30) -> None:
        self.error, self.operation, self.path, self.skip, self.times = error, operation, path, skip, times

    def strikes(self, operation: str, path: str) -> bool:
        if self.operation not in ("", operation) or self.path not in path:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return self.times >= 0


class SimNode(Node):
    """`durable` is the content as of the last sync; `pending` what came since."""

    __slots__ = ("durable", "pending")

    def __init__(self) -> None:
        super().__init__()
        self.durable = b""
        self.pending: list[_Write] = []


class SimFile(MemoryFile):
    """An open file of a `SimDisk`."""

    node: SimNode

    def __init__(self, disk: SimDisk, path: str, node: SimNode, read_only: bool) -> None:
        super().__init__(path, node, read_only)
        self._disk = disk

    def read_at(self, position: int, length: int) -> bytes:
        self._disk.fault("read", self.path)
        return super().read_at(position, length)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        content = b"".join(buffers)
        room = self._disk.room_for(max(0, position + len(content) - self.node.length))
        if room < len(content) and room < max(0, position + len(content) - self.node.length):
            super().write_at(position, (content[:room],))
            self.node.pending.append((position, content[:room]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._disk.step("write", self.path, lambda part: self._torn(position, content, part))
        self.node.pending.append((position, content))
        return super().write_at(position, (content,))

    def _torn(self, position: int, content: bytes, part: float) -> None:
        self.node.pending.append((position, content[: int(len(content) * part)]))

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", self.path)
        self.node.pending.append((size, None))
        super().truncate(size)

    def sync(self) -> None:
        self._disk.step("sync", self.path)
        super().sync()
        self.node.durable = bytes(self.node.data) + bytes(self.node.length - len(self.node.data))
        self.node.pending.clear()


class SimDisk(MemoryFileSystem):
    """`crash_at`: the number of the changing operation during which the machine stops. `faults` may be changed at any time."""

    def __init__(self, seed: int = 0, crash_at: int | None = None, capacity_bytes: int | None = None) -> None:
        super().__init__()
        self.random = Random(seed)
        self.crash_at, self.capacity_bytes = crash_at, capacity_bytes
        self.faults: list[Fault] = []
        self.operations = 0
        self.history: list[tuple[str, str]] = []
        self.crashed: Callable[[], None] = lambda: None
        """told when the machine stops in an operation, before `Crash` is raised: nothing it does afterwards may count"""
        self._durable_names: dict[str, Node] = {}
        self._durable_directories: set[str] = {"/"}
        self._pending_names: list[tuple[str, Callable[[], None]]] = []

    # -- faults

    def fault(self, operation: str, path: str) -> None:
        for fault in self.faults:
            if fault.strikes(operation, path):
                raise OSError(fault.error, os.strerror(fault.error), path)

    def step(self, operation: str, path: str, torn: Callable[[float], None] | None = None) -> None:
        """Counts a changing operation; the machine may stop in it, or it may fail."""
        if self.crash_at is not None and self.operations >= self.crash_at:
            if torn is not None:
                torn(self.random.random())
            self.crashed()
            raise Crash(f"at operation {self.operations}: {operation} {path}")
        self.operations += 1
        self.history.append((operation, path))
        self.fault(operation, path)

    def room_for(self, growth: int) -> int:
        """How much of this growth fits."""
        if self.capacity_bytes is None:
            return growth
        return max(0, min(growth, self.capacity_bytes - sum(len(node.data) for node in self.nodes.values())))

    # -- the file system

    def _new_node(self) -> SimNode:
        return SimNode()

    def _opened(self, path: str, node: Node, read_only: bool) -> MemoryFile:
        self.fault("open", path)
        assert isinstance(node, SimNode)
        return SimFile(self, path, node, read_only)

    def _create(self, path: str) -> Node:
        self._check_parent(path)
        self.step("create", path)
        node = super()._create(path)
        self._name(path, lambda: self._durable_names.__setitem__(path, node))
        return node

    def _add_directory(self, path: str) -> None:
        self.step("mkdir", path)
        super()._add_directory(path)
        self._name(path, lambda: self._durable_directories.add(path))

    def rename(self, source: str, target: str) -> None:
        self.step("rename", source)
        is_directory = source in self.directories
        super().rename(source, target)
        self._name(target, lambda: self._rename_durably(source, target, is_directory))

    def _rename_durably(self, source: str, target: str, is_directory: bool) -> None:
        if not is_directory:
            node = self._durable_names.pop(source, None)
            self._durable_names[target] = node if node is not None else SimNode()
            return
        for name in [name for name in self._durable_names if name.startswith(source + "/")]:
            self._durable_names[target + name[len(source) :]] = self._durable_names.pop(name)
        for name in [name for name in self._durable_directories if name == source or name.startswith(source + "/")]:
            self._durable_directories.discard(name)
            self._durable_directories.add(target + name[len(source) :])

    def remove(self, path: str) -> None:
        self._node(path)
        self.step("remove", path)
        super().remove(path)
        self._name(path, lambda: self._durable_names.pop(path, None))

    def _remove_directory(self, path: str) -> None:
        self.step("rmdir", path)
        super()._remove_directory(path)
        self._name(path, lambda: self._durable_directories.discard(path))

    def _name(self, path: str, apply: Callable[[], object]) -> None:
        self._pending_names.append((posixpath.dirname(path), lambda: (apply(), None)[1]))

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory", path)
        super().sync_directory(path)
        for directory, apply in self._pending_names:
            if directory == path:
                apply()
        self._pending_names = [(directory, apply) for directory, apply in self._pending_names if directory != path]

    # -- what is left

    def sync_all(self) -> None:
        """Makes everything durable, without counting."""
        for node in self.nodes.values():
            assert isinstance(node, SimNode)
            node.durable = bytes(node.data) + bytes(node.length - len(node.data))
            node.pending.clear()
        self._durable_names, self._durable_directories = dict(self.nodes), set(self.directories)
        self._pending_names.clear()

    def after_kill(self) -> SimDisk:
        """What another process finds when this one was killed: everything written, synced or not."""
        return self._rebuilt({path: bytes(node.data) + bytes(node.length - len(node.data)) for path, node in self.nodes.items()}, self.directories)

    def after_power_loss(self, keep: float = 0.5, torn_at_byte: bool = False) -> SimDisk:
        """What is found after a power failure, which ends this disk. `keep`: the chance of each unsynced write and name (0 loses all)."""
        self._keep_some_names(keep)
        content = {path: self._survives(node, keep, torn_at_byte) for path, node in self._durable_names.items()}
        reachable = {path for path in self._durable_directories if self._is_reachable(path)}
        return self._rebuilt({path: data for path, data in content.items() if posixpath.dirname(path) in reachable}, reachable)

    def _is_reachable(self, directory: str) -> bool:
        return directory in self._durable_directories and (directory == "/" or self._is_reachable(posixpath.dirname(directory)))

    def _keep_some_names(self, keep: float) -> None:
        """Per directory, a prefix of the pending changes of names."""
        ended: set[str] = set()
        for directory, apply in self._pending_names:
            if directory in ended or self.random.random() >= keep:
                ended.add(directory)
            else:
                apply()
        self._pending_names.clear()

    def _survives(self, node: Node, keep: float, torn_at_byte: bool) -> bytes:
        assert isinstance(node, SimNode)
        content = bytearray(node.durable)
        kept = [write for write in node.pending if self.random.random() < keep]
        for number, (position, data) in enumerate(kept):
            if data is None:
                del content[position:]
                content.extend(bytes(position - len(content)))
                continue
            if number == len(kept) - 1:
                data = self._torn(position, data, torn_at_byte)
            content.extend(bytes(max(0, position - len(content))))
            content[position : position + len(data)] = data
        return bytes(content)

    def _torn(self, position: int, data: bytes, at_byte: bool) -> bytes:
        """A prefix of a write, ending at a sector boundary of the file (or anywhere)."""
        end = self.random.randint(0, len(data))
        if not at_byte and end < len(data):
            end = max(0, (position + end) // _SECTOR_BYTES * _SECTOR_BYTES - position)
        return data[:end]

    def _rebuilt(self, content: dict[str, bytes], directories: set[str]) -> SimDisk:
        disk = SimDisk(self.random.randrange(1 << 30), capacity_bytes=self.capacity_bytes)
        disk.directories = set(directories)
        for path, data in content.items():
            node = SimNode()
            node.data, node.length = bytearray(data), len(data)
            disk.nodes[path] = node
        disk.sync_all()
        return disk

    # -- damage to what is there

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        self._node(path).data[position] ^= 1 << bit

    def cut(self, path: str, size: int) -> None:
        node = self._node(path)
        del node.data[size:]
        node.length = size

    def damage(self, path: str, position: int, data: bytes) -> None:
        """Overwrites bytes behind everybody's back."""
        node = self._node(path)
        node.data[position : position + len(data)] = data
        node.length = max(node.length, len(node.data))

    def content(self, path: str) -> bytes:
        node = self._node(path)
        return bytes(node.data) + bytes(node.length - len(node.data))


class StallingWorker:
    """A disk worker whose jobs take `delay_ms` of simulated time each, one after another; `stalled` holds all back."""

    def __init__(self, clock: IClock, delay_ms: Callable[[], int] = lambda: 0) -> None:
        self._clock, self._delay_ms = clock, delay_ms
        self._jobs: list[tuple[Callable[[], object], Callable[..., None]]] = []
        self._running = False
        self.stalled = False

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._jobs.append((job, done))
        self._next()

    def side_by_side(self, jobs: Sequence[Callable[[], object]]) -> None:
        for job in jobs:
            job()

    def resume(self) -> None:
        """Ends a stall."""
        self.stalled = False
        self._next()

    def _next(self) -> None:
        if self._jobs and not self._running and not self.stalled:
            self._running = True
            self._clock.callLater(self._delay_ms() / 1000, self._run)

    def _run(self) -> None:
        self._running = False
        if self.stalled:
            return
        job, done = self._jobs.pop(0)
        try:
            result = job()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)
        self._next()

    def stop(self) -> None:
        """Jobs that wait never run."""
        self._jobs.clear()
