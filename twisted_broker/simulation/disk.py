"""A simulated disk that, under a seed, loses what was not synced, tears the last write, fills up
and fails.

Owns `SimDisk`, the twin of the disk.

1. A process always sees what it did; what a loss of power leaves is drawn when it happens.
2. It may be slow for the reactor itself: a read of what was evicted, and a write beyond
   `dirty_limit_bytes` that are not synced, are noted in `blocked`, unless a worker does them.
3. `after_kill` and `after_power_loss` give a new `SimDisk`; the old one must not be used after.

Source: ALICE (OSDI '14); RELIABILITY 6.2. Not here: damage to synced data, but for `flip_bit`,
`lose`, `put`, `shorten` and `damage`; time (`simulation/stalling_worker.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from copy import deepcopy
from random import Random

from twisted_broker.log.memory import Inode, MemoryFile, MemoryFileSystem
from twisted_broker.simulation.disk_faults import DiskFaults
from twisted_broker.simulation.durable_names import DurableNames
from twisted_broker.simulation.file import SimFile, SimInode, blocks


class SimDisk(DiskFaults, MemoryFileSystem):
    """`capacity_bytes`: of all files together; None without end. `crash_at`, `faults`: see
    `DiskFaults`.
    """

    def __init__(
        self, seed: int = 0, crash_at: int | None = None, capacity_bytes: int | None = None
    ) -> None:
        MemoryFileSystem.__init__(self)
        DiskFaults.__init__(self, Random(seed), crash_at)
        self.capacity_bytes = capacity_bytes
        self.dirty_limit_bytes: int | None = None
        self.blocked: list[tuple[str, str]] = []
        """(operation, path) of each for which the reactor would have waited for the disk"""
        self.on_blocked: Callable[[str, str], None] = lambda operation, path: None
        self.is_in_worker: Callable[[], bool] = lambda: False
        self._names = DurableNames()

    def room_for(self, growth: int) -> int:
        """How much of this growth fits."""
        if self.capacity_bytes is None:
            return growth
        return max(
            0,
            min(growth, self.capacity_bytes - sum(len(node.data) for node in self.nodes.values())),
        )

    # -- the page cache

    def evict(self, path: str = "") -> None:
        """What is synced of the files whose path contains this is in memory no longer. What is not
        synced cannot be dropped.
        """
        for name, node in self.nodes.items():
            sim = _inode(node)
            if path in name and not sim.pending and sim.length:
                sim.evicted.update(blocks(0, sim.length))

    def quick(self) -> None:
        """Nobody waits for it any more."""
        self.dirty_limit_bytes = None
        self.on_blocked = lambda operation, path: None
        for node in self.nodes.values():
            _inode(node).evicted.clear()

    def read(self, path: str, node: SimInode, position: int, length: int) -> None:
        """Called before each read: what it waits for is in memory afterwards."""
        if not node.evicted:
            return
        wanted = node.evicted.intersection(blocks(position, min(length, node.length - position)))
        if wanted:
            node.evicted -= wanted
            self._wait("read", path)

    def written(self, path: str, node: SimInode, position: int, length: int) -> None:
        """Called at each write."""
        if node.evicted:
            node.evicted.difference_update(blocks(position, length))
        limit = self.dirty_limit_bytes
        if limit is not None and self._dirty_bytes() > limit:
            self._wait("write", path)

    def _dirty_bytes(self) -> int:
        return sum(
            len(data)
            for node in self.nodes.values()
            for _, data in _inode(node).pending
            if data is not None
        )

    def _wait(self, operation: str, path: str) -> None:
        if not self.is_in_worker():
            self.blocked.append((operation, path))
            self.on_blocked(operation, path)

    # -- the file system

    def _new_node(self) -> SimInode:
        return SimInode()

    def _opened(self, path: str, node: Inode, read_only: bool) -> MemoryFile:
        self.fault("open", path)
        return SimFile(self, path, _inode(node), read_only)

    def _create(self, path: str) -> Inode:
        self._check_parent(path)
        self.step("create", path)
        node = super()._create(path)
        self._names.created(path, node)
        return node

    def _add_directory(self, path: str) -> None:
        self.step("mkdir", path)
        super()._add_directory(path)
        self._names.directory_added(path)

    def rename(self, source: str, target: str) -> None:
        self.step("rename", source)
        is_directory = source in self.directories
        super().rename(source, target)
        self._names.renamed(source, target, is_directory)

    def remove(self, path: str) -> None:
        self._node(path)
        self.step("remove", path)
        super().remove(path)
        self._names.removed(path)

    def _remove_directory(self, path: str) -> None:
        self.step("rmdir", path)
        super()._remove_directory(path)
        self._names.directory_removed(path)

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory", path)
        super().sync_directory(path)
        self._names.sync(path)

    # -- what is left

    def sync_all(self) -> None:
        """Makes everything durable, without counting."""
        for node in self.nodes.values():
            _inode(node).sync()
        self._names.sync_all(self.nodes, self.directories)

    def after_kill(self) -> SimDisk:
        """What another process finds when this one was killed: everything written. What was not
        synced is not synced there either: a loss of power may take it yet.
        """
        disk = self._another()
        # Together: the names hold the files.
        disk.nodes, disk.directories, disk._names = deepcopy(
            (self.nodes, self.directories, self._names)
        )
        return disk

    def _another(self) -> SimDisk:
        return SimDisk(self.random.randrange(1 << 30), capacity_bytes=self.capacity_bytes)

    def after_power_loss(self, keep: float = 0.5, torn_at_byte: bool = False) -> SimDisk:
        """What is found after a power failure, which ends this disk.

        `keep`: the chance of each unsynced write and name (0 loses all).
        """
        self._names.lose_power(self.random, keep)
        content = {
            path: _inode(node).after_power_loss(self.random, keep, torn_at_byte)
            for path, node in self._names.files.items()
        }
        reachable = self._names.reachable()
        return self._rebuilt(
            {path: data for path, data in content.items() if posixpath.dirname(path) in reachable},
            reachable,
        )

    def _rebuilt(self, content: Mapping[str, bytes], directories: set[str]) -> SimDisk:
        disk = self._another()
        disk.directories = set(directories)
        for path, data in content.items():
            node = SimInode()
            node.data, node.length = bytearray(data), len(data)
            disk.nodes[path] = node
        disk.sync_all()
        return disk

    # -- damage to what is there

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """In what a process reads, and in what a loss of power leaves of it."""
        node = _inode(self._node(path))
        node.data[position] ^= 1 << bit
        if position < len(node.durable):
            durable = bytearray(node.durable)
            durable[position] ^= 1 << bit
            node.durable = bytes(durable)

    def lose(self, directory: str) -> None:
        """A directory and all in it are gone, whatever was synced."""
        inside = directory + "/"
        self._names.forget(directory)
        for path in [path for path in self.nodes if path.startswith(inside)]:
            del self.nodes[path]
        self.directories = {
            path for path in self.directories if path != directory and not path.startswith(inside)
        }

    def put(self, path: str, content: bytes) -> None:
        """A file as it was elsewhere: durable, and neither counted nor refused."""
        directory = posixpath.dirname(path)
        while directory not in self.directories:
            self.directories.add(directory)
            directory = posixpath.dirname(directory)
        node = SimInode()
        node.data, node.length = bytearray(content), len(content)
        node.sync()
        self.nodes[path] = node
        self._names.put(path, node)

    def shorten(self, path: str, size: int) -> None:
        """Drops the end of a file, behind everybody's back."""
        node = self._node(path)
        del node.data[size:]
        node.length = size

    def damage(self, path: str, position: int, data: bytes) -> None:
        """Overwrites bytes behind everybody's back."""
        node = self._node(path)
        node.data[position : position + len(data)] = data
        node.length = max(node.length, len(node.data))

    def content(self, path: str) -> bytes:
        return _inode(self._node(path)).content()


def _inode(node: Inode) -> SimInode:
    assert isinstance(node, SimInode)
    return node
