"""A file system in memory, for `--data memory` and for tests.

Owns `MemoryFileSystem` and its files, and `InlineWorker`, the disk worker that does each job at
once.

1. A removed or replaced file lives on for those who hold it open, as on a disk.
2. A hole made by `truncate` costs no memory until it is written.

Source: `interfaces.IFileSystem`. Not here: loss and faults (`simulation/disk.py`).
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from twisted_broker.interfaces import Buffer

T = TypeVar("T")
directory_of = lru_cache(4096)(posixpath.dirname)
"""The directory that a path lies in."""


class Inode:
    """A file's content: `data` is what was written, `length` the size with the hole behind it."""

    __slots__ = ("data", "length", "modified_ms")

    def __init__(self) -> None:
        self.data, self.length, self.modified_ms = bytearray(), 0, 0


class MemoryFile:
    """An open file of `MemoryFileSystem`."""

    def __init__(
        self,
        path: str,
        node: Inode,
        read_only: bool = False,
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        self.path, self.node, self._read_only, self._wall_ms = path, node, read_only, wall_ms
        self.closed = False

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return self.node.length

    def read_at(self, position: int, length: int) -> bytes:
        self._check_open()
        if position < 0:  # as the real disk does
            raise OSError(errno.EINVAL, "negative position", self.path)
        node = self.node
        found = bytes(memoryview(node.data)[position : position + length])
        hole = min(length, node.length - position) - len(found)
        return found if hole <= 0 else found + bytes(hole)

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        found = self.read_at(position, len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def is_resident(self, position: int, length: int) -> bool:
        return True

    def read_resident(self, position: int, length: int) -> bytes | None:
        return self.read_at(position, length) if self.is_resident(position, length) else None

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._check_writable()
        data, start = self.node.data, position
        if position > len(data):
            data.extend(bytes(position - len(data)))
        for part in buffers:
            data[position : position + len(part)] = part
            position += len(part)
        self.node.length = max(self.node.length, position)
        self._touch()
        return position - start

    def truncate(self, size: int) -> None:
        self._check_writable()
        del self.node.data[size:]
        self.node.length = size
        self._touch()

    def sync(self) -> None:
        self._check_open()

    def close(self) -> None:
        self.closed = True

    def _touch(self) -> None:
        if self._wall_ms is not None:
            self.node.modified_ms = self._wall_ms()

    def _check_open(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, "file is closed", self.path)

    def _check_writable(self) -> None:
        self._check_open()
        if self._read_only:
            raise OSError(errno.EBADF, "file is open for reading only", self.path)


class MemoryFileSystem:
    """Files by absolute path. `wall_ms` gives their modification times (0 without it)."""

    def __init__(
        self, wall_ms: Callable[[], int] | None = None, total_bytes: int = 1 << 40
    ) -> None:
        self.nodes: dict[str, Inode] = {}
        self.directories: set[str] = {"/"}
        self.total_bytes = total_bytes
        self._wall_ms = wall_ms
        self._locks: set[str] = set()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> MemoryFile:
        node = self.nodes.get(path)
        if node is None:
            if path in self.directories:
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = self._create(path)
        return self._opened(path, node, read_only)

    def _opened(self, path: str, node: Inode, read_only: bool) -> MemoryFile:
        return MemoryFile(path, node, read_only, self._wall_ms)

    def _create(self, path: str) -> Inode:
        self._check_parent(path)
        node = self.nodes[path] = self._new_node()
        return node

    def _new_node(self) -> Inode:
        node = Inode()
        if self._wall_ms is not None:
            node.modified_ms = self._wall_ms()
        return node

    def exists(self, path: str) -> bool:
        return path in self.nodes or path in self.directories

    def is_directory(self, path: str) -> bool:
        return path in self.directories

    def is_file(self, path: str) -> bool:
        return path in self.nodes

    def size(self, path: str) -> int:
        return self._node(path).length

    def modified_ms(self, path: str) -> int:
        return 0 if path in self.directories else self._node(path).modified_ms

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        self._node(path).modified_ms = wall_ms

    def listdir(self, path: str) -> list[str]:
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        prefix = path.rstrip("/") + "/"
        start, found = len(prefix), []
        for names in (self.nodes, self.directories):
            found += [name[start:] for name in names if name.startswith(prefix)]
        return sorted(name for name in found if name and "/" not in name)

    def make_directories(self, path: str) -> None:
        if path in self.nodes:
            raise FileExistsError(errno.EEXIST, "is a file", path)
        if path not in self.directories:
            self.make_directories(posixpath.dirname(path))
            self._add_directory(path)

    def _add_directory(self, path: str) -> None:
        self.directories.add(path)

    def rename(self, source: str, target: str) -> None:
        self._check_parent(target)
        if source in self.directories:
            self._rename_directory(source, target)
        else:
            node = self._node(source)
            if target in self.directories:
                raise IsADirectoryError(errno.EISDIR, "is a directory", target)
            del self.nodes[source]
            self.nodes[target] = node

    def _rename_directory(self, source: str, target: str) -> None:
        if self.exists(target) and (target in self.nodes or self.listdir(target)):
            raise OSError(errno.ENOTEMPTY, "target is not empty", target)
        prefix = source + "/"
        for name in [name for name in self.nodes if name.startswith(prefix)]:
            self.nodes[target + name[len(source) :]] = self.nodes.pop(name)
        for name in [
            name for name in self.directories if name == source or name.startswith(prefix)
        ]:
            self.directories.discard(name)
            self.directories.add(target + name[len(source) :])

    def remove(self, path: str) -> None:
        self._node(path)
        del self.nodes[path]

    def remove_tree(self, path: str) -> None:
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        for name in self.listdir(path):
            child = posixpath.join(path, name)
            if child in self.directories:
                self.remove_tree(child)
            else:
                self.remove(child)
        self._remove_directory(path)

    def _remove_directory(self, path: str) -> None:
        self.directories.discard(path)

    def sync_directory(self, path: str) -> None:
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)

    def free_bytes(self, path: str) -> tuple[int, int]:
        used = sum(len(node.data) for node in self.nodes.values())
        return self.total_bytes, max(0, self.total_bytes - used)

    def lock(self, path: str) -> Callable[[], None]:
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "lock is held", path)
        self.open(path, create=True).close()
        self._locks.add(path)
        return lambda: self._locks.discard(path)

    def _node(self, path: str) -> Inode:
        node = self.nodes.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _check_parent(self, path: str) -> None:
        if directory_of(path) not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory_of(path))


class InlineWorker:
    """A disk worker that runs each job at once and reports before `submit` returns: for disks that
    never stall.
    """

    def submit(
        self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        try:
            result = job()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    def side_by_side(self, jobs: Sequence[Callable[[], object]]) -> None:
        for job in jobs:
            job()

    def stop(self) -> None:
        """Nothing waits here."""
