"""The real disk: files by descriptor and position.

Owns `OsFile` and `OsFileSystem`, the port `IFileSystem` over the operating system.

1. Reads and writes carry their position: there is no cursor to share. A short write is completed or
   raises.
2. A lock is held on the open file and gone with the process. Where the system can, it is a record
   lock as Java takes it, so that Apache Kafka and we keep each other out.

Ring 2. Source: `interfaces.IFileSystem`. Left out: the thread that syncs (`disk_worker.py`), the
bounded set of open files (`segment_file.py`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import sys
from collections.abc import Callable, Sequence

from twisted_broker.interfaces import Buffer

_MOST_BUFFERS = 512
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock of Linux


class OsFile:
    """One open descriptor."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path, self._fd = path, fd

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        return data + self.read_at(position + len(data), length - len(data))

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        view, done = memoryview(buffer), 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], position + done)
            if count == 0:
                break
            done += count
        return done

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        written = os.pwritev(self._fd, buffers[:_MOST_BUFFERS], position)
        total = 0
        for part in buffers:
            total += len(part)
        if written != total:
            self._complete(position, buffers, written)
        return total

    def _complete(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        rest = memoryview(b"".join(buffers))[written:]
        position += written
        while rest:
            count = os.pwrite(self._fd, rest, position)
            if count == 0:
                raise OSError(errno.EIO, "nothing written", self.path)
            rest, position = rest[count:], position + count

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFileSystem:
    """The disk of this machine."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> OsFile:
        flags = (
            (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        )
        return OsFile(path, os.open(path, flags, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        try:
            os.mkdir(path)  # nearly always only the last one is missing: one call then
        except (FileNotFoundError, FileExistsError):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> tuple[int, int]:
        volume = os.statvfs(path)
        return volume.f_frsize * volume.f_blocks, volume.f_frsize * volume.f_bavail

    def lock(self, path: str) -> Callable[[], None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock_open_file(fd)
        except OSError:
            os.close(fd)
            raise

        def release() -> None:
            with contextlib.suppress(OSError):
                os.close(fd)

        return release


def _lock_open_file(fd: int) -> None:
    """BlockingIOError when another holds it, in this process or in any other."""
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
