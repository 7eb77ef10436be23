"""Open files of the logs, few at a time, and slices of them that outlive what happens to the log.

Owns `OpenFiles` (how many stay open), `SegmentFile` (one file, open or not) and `FileSlice` (bytes
to be sent later, and whether sending them would wait for a disk).

1. A referenced file is never closed; others are, oldest unused first, when more than `capacity` are
   open. Opening one looks at a few of them only: a fetch may reference thousands.
2. A slice's bytes are those at its creation, or `SliceGone`: a truncation raises the file's
   generation.
3. A file that is removed or closed while referenced stays readable until the last reference goes.

Source: docs/ARCHITECTURE.md 2 (slices), a bounded LRU of open files. Not here: how a slice is sent
(`net`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted_broker.interfaces import Buffer, IDiskWorker, IFile, IFileSystem
from twisted_broker.log.errors import is_out_of_descriptors

_LOAD_BYTES = 262144
_MOST_TRIED = 64


class SliceGone(Exception):
    """The bytes of a slice are no longer what they were: its connection must close."""


class OpenFiles:
    """At most about `capacity` files open; more only while more are referenced.

    `capacity` sinks below `wanted` where descriptors are short, and recovers. `reader` reads what
    the system does not hold in memory; None: it is read where it is needed.
    """

    __slots__ = ("_open", "capacity", "files", "reader", "wanted")

    def __init__(
        self, files: IFileSystem, capacity: int = 512, reader: IDiskWorker | None = None
    ) -> None:
        self.files, self.capacity, self.wanted = files, capacity, capacity
        self.reader = reader
        self._open: deque[SegmentFile] = deque()

    def add(self, file: SegmentFile) -> None:
        if len(self._open) >= self.capacity:
            self._evict(_MOST_TRIED)
            # Grows back one by one after a shortage halved it: descriptors may be free again.
            self.capacity += self.capacity < self.wanted
        self._open.append(file)

    def discard(self, file: SegmentFile) -> None:
        if file in self._open:
            self._open.remove(file)

    def __len__(self) -> int:
        return len(self._open)

    def __bool__(self) -> bool:
        return bool(self._open)

    def _evict(self, most: int | None = None) -> None:
        """Second chance: the first visit spares a file that was used, the next one closes it.
        `most`: how many files are visited; later calls close what is still too much.
        """
        waiting = self._open
        tries = 2 * len(waiting)
        for _ in range(tries if most is None else min(tries, most)):
            file = waiting.popleft()
            # A slice that waits to be sent needs its descriptor.
            if file.references == 0 and not file.recently_used:
                file.shut()
                if len(waiting) < self.capacity:
                    return
            else:
                file.recently_used = False
                waiting.append(file)


class SegmentFile:
    """One file of a log. `path` may change (the directory was renamed); what is open stays open."""

    __slots__ = (
        "_close_when_released",
        "_file",
        "generation",
        "path",
        "pool",
        "recently_used",
        "references",
    )

    def __init__(self, pool: OpenFiles, path: str) -> None:
        self.pool, self.path = pool, path
        self.generation = self.references = 0
        self.recently_used = False
        self._close_when_released = False
        self._file: IFile | None = None

    def open(self) -> IFile:
        """The open file; opens it when needed. FileNotFoundError when it does not exist."""
        self.recently_used = True
        file = self._file
        return file if file is not None else self._reopen(create=False)

    def create(self) -> IFile:
        """As `open`, but makes the file when it does not exist."""
        self.recently_used = True
        file = self._file
        return file if file is not None else self._reopen(create=True)

    def _reopen(self, create: bool) -> IFile:
        try:
            file = self.pool.files.open(self.path, create=create)
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            # The pool shrinks: a segment can be opened again, a client's connection cannot.
            self.pool.capacity = max(8, len(self.pool) // 2)
            self.pool._evict()
            file = self.pool.files.open(self.path, create=create)
        self._file = file
        self.pool.add(self)
        return file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def exists(self) -> bool:
        return self._file is not None or self.pool.files.exists(self.path)

    def acquire(self) -> None:
        self.open()
        self.references += 1

    def release(self) -> None:
        self.references -= 1
        assert self.references >= 0, self.path
        if self._close_when_released and self.references == 0:
            self.close()

    def load(
        self, position: int, length: int, done: Callable[[BaseException | None], None]
    ) -> None:
        """Has these bytes read away from the reactor, so that the system holds them in memory;
        then calls `done(error)`. The file stays open until then.
        """
        reader, file = self.pool.reader, self.open()
        assert reader is not None
        self.references += 1

        def job() -> None:
            at, end = position, position + length
            while at < end and (count := len(file.read_at(at, min(_LOAD_BYTES, end - at)))):
                at += count

        def loaded(_: None, error: BaseException | None) -> None:
            self.release()
            done(error)

        reader.submit(job, loaded)

    def truncate(self, size: int) -> None:
        """Truncates the file; every slice of it is gone (`SliceGone`)."""
        self.generation += 1
        self.open().truncate(size)

    def sync(self) -> None:
        self.open().sync()

    def close(self) -> None:
        """Closes now, or with the last reference."""
        if self.references:
            self._close_when_released = True
            return
        self._close_when_released = False
        if self._file is not None:
            self.pool.discard(self)
            self.shut()

    def shut(self) -> None:
        """Closes at once; the pool has forgotten the file already."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def remove(self) -> None:
        """Deletes the file's name; references stay readable."""
        self.close()
        if self.pool.files.exists(self.path):
            self.pool.files.remove(self.path)

    def rename(self, path: str) -> None:
        if self.pool.files.exists(self.path):
            self.pool.files.rename(self.path, path)
        self.path = path


class FileSlice:
    """`length` bytes of a file from `position`, referenced until `release()`; counts as its
    length in an answer.
    """

    __slots__ = ("_released", "file", "generation", "length", "position")

    def __init__(self, file: SegmentFile, position: int, length: int) -> None:
        file.acquire()
        self.file, self.position, self.length = file, position, length
        self.generation = file.generation
        self._released = False

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        return True

    def check(self) -> None:
        """Raises SliceGone when the file was truncated since."""
        if self.generation != self.file.generation or self._released:
            raise SliceGone(self.file.path)

    def open_file(self) -> IFile:
        self.check()
        return self.file.open()

    def fileno(self) -> int:
        """The descriptor for `sendfile`, -1 where there is none; raises SliceGone."""
        return self.open_file().fileno()

    def read(self) -> bytes:
        """All bytes; raises SliceGone, also on a short read."""
        data = self.open_file().read_at(self.position, self.length)
        if len(data) != self.length:
            raise SliceGone(self.file.path)
        return data

    def read_resident(self) -> Buffer | None:
        """As `read`; None when that would wait for a disk, and somebody else can read."""
        file = self.open_file()
        if self.file.pool.reader is None:
            return self.read()
        return file.read_resident(self.position, self.length)

    def is_resident(self, skip: int, length: int) -> bool:
        """Whether `length` bytes from byte `skip` can be sent without waiting for a disk."""
        return self.file.pool.reader is None or self.open_file().is_resident(
            self.position + skip, length
        )

    def load(self, skip: int, length: int, done: Callable[[BaseException | None], None]) -> None:
        """Has `length` bytes from byte `skip` brought into memory, and what a sequential reader
        looks at next; then `done(error)`.
        """
        self.check()
        self.file.load(self.position + skip, length + _LOAD_BYTES, done)

    def read_into(self, buffer: bytearray | memoryview, skip: int = 0) -> int:
        """Fills `buffer` from the slice's byte `skip`; returns the count. Raises SliceGone."""
        wanted = min(len(buffer), self.length - skip)
        count = self.open_file().read_into(self.position + skip, memoryview(buffer)[:wanted])
        if count != wanted:
            raise SliceGone(self.file.path)
        return count

    def narrow(self, length: int, skip: int = 0) -> None:
        """Shortens the slice to `length` bytes from its byte `skip` on."""
        assert skip + length <= self.length
        self.position += skip
        self.length = length

    def release(self) -> None:
        """Drops the reference; harmless when done again."""
        if not self._released:
            self._released = True
            self.file.release()
