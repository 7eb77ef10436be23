"""A snapshot of another controller, on its way to the disk.

1. Its bytes are in `NAME.part` until it is whole; it gets its name when it is durable.
2. All calls are jobs of the disk worker, in the order in which they were submitted.

Source: Kafka's `RawSnapshotWriter`, `FileRawSnapshotWriter`; KIP-630; QU 3.14. Not here: which
piece comes next (`raft/follower.py`).
"""

from __future__ import annotations

import posixpath

from twisted_broker.interfaces import IFile, IFileSystem

SUFFIX = ".part"


class NotBegun(OSError):
    """Its file could not be opened."""


class SnapshotDownload:
    """Of one directory: one at a time. All methods raise OSError."""

    def __init__(self, files: IFileSystem, directory: str) -> None:
        self._files, self._directory = files, directory
        self._path, self._size = "", 0
        self._file: IFile | None = None

    def start(self, name: str) -> None:
        """From its beginning; what an earlier one left goes, also of an earlier run."""
        self.drop()
        for left in self._files.listdir(self._directory):
            if left.endswith(SUFFIX):
                self._files.remove(posixpath.join(self._directory, left))
        self._path, self._size = posixpath.join(self._directory, name), 0
        self._file = self._files.open(f"{self._path}{SUFFIX}", create=True)

    def append(self, content: bytes) -> None:
        """Nothing, where no file could be opened."""
        if self._file is not None:
            self._file.write_at(self._size, (content,))
            self._size += len(content)

    def finish(self) -> None:
        file, self._file = self._file, None
        if file is None:
            raise NotBegun(f"{self._path}{SUFFIX}")
        try:
            file.sync()
        finally:
            file.close()
        self._files.rename(f"{self._path}{SUFFIX}", self._path)
        self._files.sync_directory(self._directory)

    def drop(self) -> None:
        """It is given up."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._files.remove(f"{self._path}{SUFFIX}")
