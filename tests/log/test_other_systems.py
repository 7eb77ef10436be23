"""`log/filesystem.py` where the system has less than Linux."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    monkeypatch.setattr(filesystem, "_SET_LOCK", None)
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


# A Python that was built with an old libc lacks the names of what Linux has.
WITHOUT_NAMES = """
import fcntl, os
for name in ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK"):
    if hasattr(fcntl, name):
        delattr(fcntl, name)
if hasattr(os, "RWF_NOWAIT"):
    del os.RWF_NOWAIT
"""
HOLDER = """
import sys
from twisted_broker.log.filesystem import OsFileSystem
OsFileSystem().lock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""
AS_JAVA = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")


@pytest.fixture
def without_names(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as such a Python loads it, from its source."""
    for name in ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK"):
        monkeypatch.delattr(fcntl, name, raising=False)
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    assert filesystem.__file__ is not None
    source = Path(filesystem.__file__).with_name("filesystem.py")
    spec = importlib.util.spec_from_file_location("without_names", source)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@on_linux
@pytest.mark.parametrize("holder", [HOLDER, WITHOUT_NAMES + HOLDER, AS_JAVA])
def test_two_processes_never_hold_one_directory(
    holder: str, without_names: Any, tmp_path: Path
) -> None:
    """Whatever Python runs each, and beside Java: their locks are of one kind."""
    path = str(tmp_path / ".lock")
    with subprocess.Popen(
        [sys.executable, "-c", holder, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        for files in (OsFileSystem(), without_names.OsFileSystem()):
            with pytest.raises(BlockingIOError):
                files.lock(path)
        other.kill()
    OsFileSystem().lock(path)()


@on_linux
def test_a_read_that_would_wait_is_known_without_the_names(
    without_names: Any, tmp_path: Path
) -> None:
    assert without_names.lacks() == "" and without_names._NO_WAIT == 8
    content = bytes(range(256)) * 4096
    (tmp_path / "log").write_bytes(content)
    file = without_names.OsFileSystem().open(str(tmp_path / "log"))
    assert file.is_resident(0, len(content))
    assert file.read_resident(5, 70_000) == content[5:70_005]
    assert file.read_resident(len(content) - 3, 7) is None  # the end of the file
    assert file._no_wait == 8  # it was that call that read
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        without_names._read_now(-1, (bytearray(1),), 0, 8)
    file.close()


@on_linux
def test_where_no_call_is_there_a_line_says_so(
    without_names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(without_names, "_NO_WAIT", 0)
    assert "have no preadv2" in without_names.lacks()
    monkeypatch.setattr(without_names.ctypes, "CDLL", lambda name, **options: object())
    assert without_names._preadv2() == (None, 0)


def test_what_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask: the keys of SCRAM users are in the metadata log."""
    files, before = OsFileSystem(), os.umask(0)
    try:
        files.make_directories(str(tmp_path / "data" / "broker-1" / "t-0"))
        files.open(str(tmp_path / "data" / "file"), create=True).close()
        files.lock(str(tmp_path / "data" / ".lock"))()
    finally:
        os.umask(before)
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    assert modes == {
        "data": 0o700,
        "data/broker-1": 0o700,
        "data/broker-1/t-0": 0o700,
        "data/file": 0o600,
        "data/.lock": 0o600,
    }
    files.make_directories(str(tmp_path / "data"))  # it is there
    with pytest.raises(FileExistsError):
        files.make_directories(str(tmp_path / "data" / "file"))


@on_linux
def test_the_tests_of_files_pass_without_the_names() -> None:
    files = ["test_segment_file.py", "test_clean_shutdown.py", "test_small_files.py"]
    paths = [str(Path(__file__).parent / name) for name in files]
    program = f"{WITHOUT_NAMES}\nimport sys, pytest\nsys.exit(pytest.main({paths!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout
