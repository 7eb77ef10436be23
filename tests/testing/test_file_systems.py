"""One suite for every file system: memory, the real disk, the simulated disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.simulation.disk import SimDisk

Place = tuple[IFileSystem, str]


@pytest.fixture(params=["memory", "disk", "simulated"])
def place(request: Any, tmp_path: Path) -> Place:
    makers: dict[str, Callable[[], Place]] = {
        "memory": lambda: (MemoryFileSystem(), "/root"),
        "disk": lambda: (OsFileSystem(), str(tmp_path)),
        "simulated": lambda: (SimDisk(7), "/root"),
    }
    files, root = makers[request.param]()
    files.make_directories(root)
    return files, root


def write(files: IFileSystem, path: str, data: bytes, position: int = 0) -> None:
    file = files.open(path, create=True)
    file.write_at(position, (data,))
    file.close()


def read(files: IFileSystem, path: str) -> bytes:
    file = files.open(path, read_only=True)
    data = file.read_at(0, file.size())
    file.close()
    return data


def test_a_position_before_the_file_is_an_error(place: Place) -> None:
    """Not the file's end, as a slice of Python would have it."""
    files, root = place
    write(files, f"{root}/a", b"content")
    file = files.open(f"{root}/a", read_only=True)
    with pytest.raises(OSError, match=r"EINVAL|Invalid|negative"):
        file.read_at(-1, 4)
    file.close()


def test_reads_back_what_was_written_by_position(place: Place) -> None:
    """Writes of several buffers land one after another at their position; reads end at the end
    of the file.
    """
    files, root = place
    file = files.open(root + "/a", create=True)
    assert file.write_at(0, (b"abc", bytearray(b"def"), memoryview(b"ghi"))) == 9
    assert file.write_at(3, (b"DEF",)) == 3
    assert file.read_at(2, 5) == b"cDEFg"
    assert file.read_at(7, 100) == b"hi"
    assert file.read_at(9, 5) == b""
    buffer = bytearray(4)
    assert file.read_into(7, buffer) == 2
    assert buffer == b"hi\0\0"
    assert file.size() == files.size(root + "/a") == 9


def test_a_gap_and_a_longer_size_read_as_zeros(place: Place) -> None:
    """A write beyond the end, and truncate to more, leave zeros; truncate to less cuts."""
    files, root = place
    file = files.open(root + "/a", create=True)
    file.write_at(3, (b"x",))
    file.truncate(6)
    assert file.read_at(0, 10) == b"\0\0\0x\0\0"
    file.truncate(2)
    file.truncate(4)
    assert file.read_at(0, 10) == bytes(4)
    file.sync()


def test_many_buffers_are_written_whole(place: Place) -> None:
    """More buffers than one system call takes are still written."""
    files, root = place
    file = files.open(root + "/a", create=True)
    assert file.write_at(0, [b"ab"] * 3000) == 6000
    assert file.read_at(0, 6000) == b"ab" * 3000


def test_missing_files_are_file_not_found(place: Place) -> None:
    """Opening, sizing, removing, listing and renaming what is not there raise FileNotFoundError."""
    files, root = place
    for call in (
        lambda: files.open(root + "/no"),
        lambda: files.size(root + "/no"),
        lambda: files.remove(root + "/no"),
        lambda: files.listdir(root + "/no"),
        lambda: files.rename(root + "/no", root + "/yes"),
        lambda: files.open(root + "/no/file", create=True),
        lambda: files.remove_tree(root + "/no"),
        lambda: files.sync_directory(root + "/no"),
    ):
        with pytest.raises(FileNotFoundError):
            call()


def test_what_is_a_file(place: Place) -> None:
    files, root = place
    write(files, root + "/a", b"")
    assert files.is_file(root + "/a")
    assert not files.is_file(root) and not files.is_file(root + "/no")


def test_rename_replaces_and_keeps_open_files(place: Place) -> None:
    """A rename replaces its target in one step; who had the old file open still reads it."""
    files, root = place
    write(files, root + "/old", b"old")
    write(files, root + "/new", b"new")
    held = files.open(root + "/old")
    files.rename(root + "/new", root + "/old")
    assert read(files, root + "/old") == b"new"
    assert held.read_at(0, 3) == b"old"
    assert files.listdir(root) == ["old"]


def test_removed_files_stay_readable_to_holders(place: Place) -> None:
    """A removed file is gone by name and whole for those who hold it."""
    files, root = place
    write(files, root + "/a", b"abc")
    held = files.open(root + "/a")
    files.remove(root + "/a")
    assert not files.exists(root + "/a")
    assert held.read_at(0, 3) == b"abc"


def test_directories(place: Place) -> None:
    """Directories are made with their parents, listed in order, renamed with their content,
    removed with it.
    """
    files, root = place
    files.make_directories(root + "/x/y")
    files.make_directories(root + "/x/y")
    write(files, root + "/x/y/b", b"1")
    write(files, root + "/x/y/a", b"2")
    assert files.listdir(root + "/x/y") == ["a", "b"]
    assert files.listdir(root + "/x") == ["y"]
    files.rename(root + "/x", root + "/z")
    assert read(files, root + "/z/y/a") == b"2"
    assert (
        files.is_directory(root + "/z/y")
        and not files.is_directory(root + "/z/y/a")
        and not files.exists(root + "/x")
    )
    files.sync_directory(root + "/z")
    files.remove_tree(root + "/z")
    assert files.listdir(root) == []


def test_lock_is_held_once(place: Place) -> None:
    """A lock can be taken again only after its release."""
    files, root = place
    release = files.lock(root + "/.lock")
    with pytest.raises(BlockingIOError):
        files.lock(root + "/.lock")
    release()
    files.lock(root + "/.lock")()


def test_a_file_opened_for_reading_cannot_be_written(place: Place) -> None:
    """Writing through a read-only file is EBADF."""
    files, root = place
    write(files, root + "/a", b"abc")
    file = files.open(root + "/a", read_only=True)
    with pytest.raises(OSError) as caught:
        file.write_at(0, (b"x",))
    assert caught.value.errno == errno.EBADF


def test_free_bytes_and_times(place: Place) -> None:
    """Usable space is part of the total; a file has a modification time that is a number."""
    files, root = place
    write(files, root + "/a", b"abc")
    total, usable = files.free_bytes(root)
    assert 0 < usable <= total
    assert files.modified_ms(root + "/a") >= 0
