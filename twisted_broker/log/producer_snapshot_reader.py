"""A producer snapshot of many producers, loaded a slice at a time; a large map, freed likewise.

Owns `SnapshotReader` and `let_go`.

1. The worker reads the file and checks its CRC; the reactor decodes one slice in a turn.
2. A damaged snapshot is removed, and the one before it is read; with none left nothing is known.
3. Until all is loaded the state's map ends at the log's start: no transaction counts as decided.

Source: our own; Kafka's `ProducerStateManager.loadFromSnapshot` reads all in one go. Not here: the
format (`producer_snapshot.py`), what is read behind the snapshot (`producer_rebuild.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted_broker.interfaces import IDiskWorker, IFileSystem
from twisted_broker.log.checkpoints import read_whole
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.producer_snapshot import (
    HEAD_BYTES,
    ROW_BYTES,
    ProducerEntry,
    check_snapshot,
    decode_rows,
)
from twisted_broker.log.producer_snapshot_writer import SLICE_PRODUCERS

if TYPE_CHECKING:
    from twisted_broker.log.producer_state import ProducerStateManager


def snapshot_bytes(producers: int) -> int:
    """The size of a snapshot file."""
    return HEAD_BYTES + producers * ROW_BYTES


class SnapshotReader:
    """Loads the newest snapshot that is whole into `state`, which is empty; as of `wall_ms` expired
    producers are left out.
    """

    __slots__ = (
        "_content",
        "_count",
        "_files",
        "_next",
        "_offset",
        "_opened",
        "_path",
        "_state",
        "_wall_ms",
    )

    def __init__(self, files: IFileSystem, state: ProducerStateManager, wall_ms: int) -> None:
        self._files, self._state, self._wall_ms = files, state, wall_ms
        self._content: bytes | None = None
        self._offset = self._count = self._next = 0
        self._path = ""
        self._opened: list[tuple[int, int]] = []

    def next_job(self) -> Callable[[], bytes | None] | None:
        """Loads one slice. Returns the job that the worker must do before the next call, whose
        result `job_done` takes; None: the state is loaded. Raises OSError.
        """
        if self._content is None:
            offset = max(self._state.snapshots, default=-1)
            if offset < 0:
                return None
            files, path = self._files, self._state.path(offset)
            self._offset, self._path = offset, path
            return lambda: _read(files, path)
        upto = min(self._next + SLICE_PRODUCERS, self._count)
        rows = decode_rows(self._content, self._next, upto)
        self._opened += self._state.load_some(rows, self._wall_ms)
        self._next = upto
        if upto < self._count:
            return _nothing
        self._content = None
        self._state.loaded(self._offset, self._opened)
        return None

    def job_done(self, content: bytes | None, error: BaseException | None) -> bool:
        """Takes the result of the job. False: it failed, but not because of this file. Raises
        OSError.
        """
        if self._content is not None:
            return error is None  # nothing was to be read
        if isinstance(error, CheckpointError):
            self._state.remove_snapshot(self._offset)
        elif error is not None:
            return False
        elif content is not None:
            self._content, self._next = content, 0
            self._count = (len(content) - HEAD_BYTES) // ROW_BYTES
        elif self._state.path(self._offset) == self._path:
            self._state.snapshots.discard(self._offset)  # removed meanwhile
        return True


def _read(files: IFileSystem, path: str) -> bytes | None:
    """The checked content of a snapshot file, None where there is none. Raises CheckpointError,
    OSError.
    """
    content = read_whole(files, path)
    if content is not None:
        check_snapshot(path, content)
    return content


def let_go(entries: dict[int, ProducerEntry], disk: IDiskWorker | None) -> None:
    """Empties a map that nobody uses any more, one slice in a turn: the entries of 300,000
    producers take up to 60 ms to be freed.
    """
    if disk is not None and len(entries) > SLICE_PRODUCERS:
        _LettingGo(entries, disk).step()


class _LettingGo:
    __slots__ = ("_disk", "_entries", "_ready", "_running")

    def __init__(self, entries: dict[int, ProducerEntry], disk: IDiskWorker) -> None:
        self._entries, self._disk = entries, disk
        self._running = self._ready = False

    def step(self, _: None = None, error: BaseException | None = None) -> None:
        """Goes on as long as the worker answers at once."""
        self._ready = True
        if self._running:
            return
        self._running = True
        while self._ready and self._entries:
            self._ready = False
            left = len(self._entries) - SLICE_PRODUCERS
            while len(self._entries) > max(0, left):
                self._entries.popitem()
            self._disk.submit(_nothing, self.step)
        self._running = False


def _nothing() -> None:
    """A job that only gives the reactor a turn."""
