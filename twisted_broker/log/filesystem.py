"""The real disk: files by descriptor and position.

Owns `OsFile` and `OsFileSystem`, the port `IFileSystem` over the operating system.

1. Reads and writes carry their position: there is no cursor to share. A short write is completed or
   raises.
2. A lock is held on the open file and gone with the process. On Linux it is a record lock as Java
   takes it, so that Apache Kafka and we keep each other out, whatever Python runs us.
3. `is_resident` and `read_resident` wait for no disk (`preadv2` with RWF_NOWAIT). Where the system
   or the file system lacks that, all counts as resident (`lacks` says so). `preadv`, `pwritev` may
   be missing, too.
4. A few descriptors are kept in reserve: where the process may open no more, one of them is given
   for the file, so that a flood of connections does not stop the writing of a checkpoint. The
   reserve fills up again.
5. What is made is its owner's alone, whatever the umask: files 0600, directories 0700. What is
   there keeps its mode.
6. Synced means on the disk, not in its cache: where `fsync` promises less (macOS), F_FULLFSYNC is
   used.

Ring 2. Source: `interfaces.IFileSystem`. Not here: the thread that syncs (`disk_worker.py`), the
bounded set of open files (`segment_file.py`).

A Python that was built with an old libc, as those of uv are, has no names for what Linux has: the
numbers are Linux's own then, and `preadv2` is the libc's that runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from twisted_broker.interfaces import Buffer
from twisted_broker.log.errors import is_out_of_descriptors
from twisted_broker.subclassed import mypyc_attr

# Below IOV_MAX (1,024 on Linux); the rest is written by `_complete`.
_MOST_BUFFERS = 512
_IS_LINUX = sys.platform == "linux"
_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_NO_FULL_SYNC = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)
_PROBE = (bytearray(1),)
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock of Linux
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", 37 if _IS_LINUX else None)
_LINUX_NO_WAIT = 8  # RWF_NOWAIT
PreadV2 = Callable[[int, Sequence[bytearray], int, int], int]


def _pwritev_by_one(fd: int, buffers: Sequence[Buffer], position: int) -> int:
    return os.pwrite(fd, b"".join(buffers), position)


def _preadv_by_one(fd: int, buffers: Sequence[memoryview], position: int) -> int:
    data = os.pread(fd, len(buffers[0]), position)
    buffers[0][: len(data)] = data
    return len(data)


def _preadv2_of_libc() -> PreadV2 | None:
    """`os.preadv` with flags, for one buffer; None where this libc has no such call."""
    try:
        call = ctypes.CDLL(None, use_errno=True).preadv2
    except (AttributeError, OSError):
        return None
    # `struct iovec`: its address, and its length, which is as wide as a pointer
    vector_of: Any = ctypes.c_size_t * 2
    call.argtypes = (
        ctypes.c_int,
        ctypes.POINTER(vector_of),
        ctypes.c_int,
        ctypes.c_long,  # off_t, where it has 64 bits as a long has
        ctypes.c_int,
    )
    call.restype = ctypes.c_ssize_t

    def preadv2(fd: int, buffers: Sequence[bytearray], position: int, flags: int) -> int:
        (buffer,) = buffers
        length = len(buffer)
        content = (ctypes.c_char * length).from_buffer(buffer)
        vector = vector_of(ctypes.addressof(content), length)
        count = int(call(fd, ctypes.byref(vector), 1, position, flags))
        if count < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return count

    return preadv2


def _preadv2() -> tuple[PreadV2 | None, int]:
    """What reads without waiting, and its flag; None where nothing does."""
    if hasattr(os, "RWF_NOWAIT"):
        return os.preadv, os.RWF_NOWAIT
    if _IS_LINUX and ctypes.sizeof(ctypes.c_long) == 8:
        found = _preadv2_of_libc()
        return found, _LINUX_NO_WAIT if found is not None else 0
    return None, 0


_read_now, _NO_WAIT = _preadv2()


def lacks() -> str:
    """What this system lacks that a disk which stalls makes matter, in one line; or empty."""
    if _NO_WAIT or not _IS_LINUX:
        return ""
    return (
        "this Python and its libc have no preadv2: a read that has to wait for a disk holds all "
        "clients; use a Python for this system's libc (glibc 2.26 or newer)"
    )


# macOS before 11 has neither.
_pwritev = getattr(os, "pwritev", _pwritev_by_one)
_preadv = getattr(os, "preadv", _preadv_by_one)


@mypyc_attr(allow_interpreted_subclasses=True)
class OsFile:
    """One open descriptor."""

    __slots__ = ("_fd", "_no_wait", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path, self._fd, self._no_wait = path, fd, _NO_WAIT

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
            count = _preadv(self._fd, [view[done:]], position + done)
            # The end of the file.
            if count == 0:
                break
            done += count
        return done

    def is_resident(self, position: int, length: int) -> bool:
        """By the first and the last byte: the system reads ahead, and drops the oldest first."""
        if not self._no_wait or _read_now is None:
            return True
        try:
            _read_now(self._fd, _PROBE, position, self._no_wait)
            _read_now(self._fd, _PROBE, position + length - 1, self._no_wait)
        except BlockingIOError:
            return False
        except OSError as error:
            self._check_unsupported(error)
        return True

    def read_resident(self, position: int, length: int) -> Buffer | None:
        if not self._no_wait or _read_now is None:
            return self.read_at(position, length)
        data = bytearray(length)
        try:
            count = _read_now(self._fd, (data,), position, self._no_wait)
        except BlockingIOError:
            return None
        except OSError as error:
            self._check_unsupported(error)
            return self.read_at(position, length)
        return data if count == length else None

    def _check_unsupported(self, error: OSError) -> None:
        if error.errno not in _UNSUPPORTED:
            raise error
        self._no_wait = 0

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        written = _pwritev(self._fd, buffers[:_MOST_BUFFERS], position)
        total = 0
        for part in buffers:
            total += len(part)
        if written != total:
            self._complete(position, buffers, written)
        return total

    def _complete(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        left = memoryview(b"".join(buffers))[written:]
        position += written
        while left:
            count = os.pwrite(self._fd, left, position)
            if count == 0:
                raise OSError(errno.EIO, "nothing written", self.path)
            left, position = left[count:], position + count

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        _sync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@mypyc_attr(allow_interpreted_subclasses=True)
class OsFileSystem:
    """The disk of this machine.

    `reserve`: descriptors kept for when the process may open no more.
    """

    def __init__(self, reserve: int = 0) -> None:
        self._reserve = reserve
        self._kept: deque[int] = deque()
        self._fill()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> OsFile:
        flags = (
            (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        )
        return OsFile(path, self._open(path, flags))

    def _open(self, path: str, flags: int) -> int:
        while True:
            try:
                found = os.open(path, flags, _FILE_MODE)
            except OSError as error:
                # A log in the middle of a roll must not fail because clients took all descriptors:
                # the reserve is for that.
                if not is_out_of_descriptors(error) or not self._give_one():
                    raise
                continue
            if len(self._kept) < self._reserve:
                self._fill()
            return found

    def _give_one(self) -> bool:
        try:
            os.close(self._kept.pop())
        except IndexError:
            return False
        return True

    def _fill(self) -> None:
        # Filled as far as it goes; the next successful open tries again.
        with contextlib.suppress(OSError):
            while len(self._kept) < self._reserve:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def close(self) -> None:
        """Gives the reserve back."""
        self._reserve = 0
        while self._give_one():
            pass

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        os.utime(path, ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        try:
            # Nearly always only the last one is missing: one call then.
            os.mkdir(path, _DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        except FileNotFoundError:
            parent = os.path.dirname(path.rstrip("/"))
            if not parent or os.path.isdir(parent):
                raise
            self.make_directories(parent)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, _DIRECTORY_MODE)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> tuple[int, int]:
        volume = os.statvfs(path)
        return volume.f_frsize * volume.f_blocks, volume.f_frsize * volume.f_bavail

    def lock(self, path: str) -> Callable[[], None]:
        fd = self._open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            _lock_open_file(fd)
        except OSError:
            os.close(fd)
            raise

        def release() -> None:
            with contextlib.suppress(OSError):
                os.close(fd)

        return release


def _sync(fd: int) -> None:
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(fd)


def _lock_open_file(fd: int) -> None:
    """BlockingIOError when another holds it, in this process or in any other."""
    if _SET_LOCK is not None:
        fcntl.fcntl(fd, _SET_LOCK, _WHOLE_FILE)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
