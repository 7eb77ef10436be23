"""`log/filesystem.py` where the system has less than Linux."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from twisted_broker.log import filesystem
from twisted_broker.log.filesystem import OsFileSystem


@pytest.fixture
def no_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_pwritev", filesystem._pwritev_by_one)
    monkeypatch.setattr(filesystem, "_preadv", filesystem._preadv_by_one)
    monkeypatch.setattr(filesystem, "_NO_WAIT", 0)


@pytest.mark.usefixtures("no_vectors")
def test_several_buffers_are_one_write(tmp_path: Path) -> None:
    """No `pwritev`, no `preadv`: the same bytes at the same place, and the same ends."""
    file = OsFileSystem().open(str(tmp_path / "log"), create=True)
    parts = [b"%d," % number for number in range(2000)]
    assert file.write_at(3, parts) == len(b"".join(parts))
    buffer = bytearray(100_000)
    assert file.read_into(3, buffer) == len(b"".join(parts))
    assert bytes(buffer[: len(b"".join(parts))]) == b"".join(parts)
    assert file.read_into(1 << 20, buffer) == 0
    assert file.is_resident(0, 3) and file.read_resident(3, 2) == b"0,"
    file.close()


def test_a_directory_is_locked_without_locks_of_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `flock`: also against the same process, and free when it is given back."""
    monkeypatch.setattr(filesystem, "_HAS_FILE_LOCKS", False)
    files, path = OsFileSystem(), str(tmp_path / ".lock")
    release = files.lock(path)
    with pytest.raises(BlockingIOError):
        files.lock(path)
    release()
    files.lock(path)()


@pytest.mark.parametrize(
    ("refusal", "then"),
    [(None, ["full"]), (errno.ENOTSUP, ["full", "sync"]), (errno.EIO, ["full"])],
)
def test_synced_is_on_the_disk(
    refusal: int | None, then: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where F_FULLFSYNC is (macOS) it is what syncs; `fsync` only on a file system without it, and
    never after a failed one.
    """
    calls: list[str] = []

    def full(fd: int, command: int) -> int:
        assert command == 51
        calls.append("full")
        if refusal is not None:
            raise OSError(refusal, os.strerror(refusal))
        return 0

    file = OsFileSystem().open(str(tmp_path / "log"), create=True)
    monkeypatch.setattr(filesystem, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("sync"))
    if refusal == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.sync()
    else:
        file.sync()
    assert calls == then
    file.close()
