"""A producer snapshot of many producers, written a slice at a time.

Owns `SnapshotWriter`.

1. The file holds the producers as they were when it was begun: whoever changes an entry calls
   `keep` first.
2. One slice is encoded in a turn of the reactor; the worker writes it, and the head with the CRC
   last. Until then a reader finds the file damaged, and takes an older one.
3. The file is synced with its head: the sync of the roll may have been before it.

Source: our own; Kafka's `ProducerStateManager.writeSnapshot` encodes and writes all in one go.
Not here: the format (`producer_snapshot.py`), when a snapshot is due (`producer_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from crc32c import crc32c

from twisted_broker.interfaces import IDiskWorker, IFile
from twisted_broker.log.producer_snapshot import (
    COUNT,
    HEAD_BYTES,
    ProducerEntry,
    encode_head,
    encode_row,
)

SLICE_PRODUCERS = 4000
"""To encode so many takes 2 to 3 ms."""


class SnapshotOwner(Protocol):
    """Whose producers these are."""

    def snapshot_ended(self, offset: int, is_whole: bool) -> None: ...


class SnapshotWriter:
    """Writes the snapshot at `offset` to `file`, which is its own from now on; `start` begins.

    Unless it is cancelled `owner` hears of the end, or `on_fatal` of an error.
    """

    __slots__ = (
        "_count",
        "_crc",
        "_disk",
        "_entries",
        "_file",
        "_kept",
        "_next",
        "_owner",
        "_ready",
        "_running",
        "is_cancelled",
        "offset",
        "on_fatal",
    )

    def __init__(
        self,
        offset: int,
        entries: list[ProducerEntry],
        file: IFile,
        disk: IDiskWorker,
        on_fatal: Callable[[OSError], object],
        owner: SnapshotOwner,
    ) -> None:
        self.offset, self.on_fatal = offset, on_fatal
        self._owner = owner
        self._entries, self._file, self._disk = entries, file, disk
        # By the entry, not its id: one that expired may be followed by another of the same id.
        self._kept: dict[ProducerEntry, bytes] = {}
        self._next = 0
        self._crc = crc32c(COUNT.pack(len(entries)))
        self.is_cancelled = self._running = False
        self._ready = True

    def move_to(self, owner: SnapshotOwner) -> None:
        """The producers are another's from now on."""
        self._owner = owner

    def keep(self, entry: ProducerEntry) -> None:
        """Keeps the row of an entry that is about to change."""
        if entry not in self._kept:
            self._kept[entry] = encode_row(entry)

    def cancel(self) -> None:
        """No further slice; the file is left as it is."""
        self.is_cancelled = True

    def start(self) -> None:
        """Goes on as long as the worker answers at once."""
        if self._running:
            return
        self._running = True
        try:
            while self._ready:
                self._ready = False
                self._write_slice()
        finally:
            self._running = False

    def _write_slice(self) -> None:
        begin, kept = self._next, self._kept
        entries = self._entries[begin : begin + SLICE_PRODUCERS]
        self._next = begin + len(entries)
        is_last = self._next == len(self._entries)
        rows = [(kept.get(entry) if kept else None) or encode_row(entry) for entry in entries]
        self._disk.submit(lambda: self._write(begin, rows, is_last), self._slice_written)

    def _write(self, begin: int, rows: list[bytes], is_last: bool) -> None:
        """On the worker."""
        content = b"".join(rows)
        if rows:
            self._file.write_at(HEAD_BYTES + begin * len(rows[0]), (content,))
        self._crc = crc32c(content, self._crc)
        if is_last:
            self._file.write_at(0, (encode_head(len(self._entries), self._crc),))
            self._file.sync()

    def _slice_written(self, _: object, error: BaseException | None) -> None:
        if not self.is_cancelled and error is None and self._next < len(self._entries):
            self._ready = True
            self.start()
            return
        self._file.close()
        if self.is_cancelled:
            return
        self._owner.snapshot_ended(self.offset, error is None)
        if error is not None:
            self.on_fatal(
                error
                if isinstance(error, OSError)
                else OSError(f"a producer snapshot cannot be written: {error!r}")
            )
