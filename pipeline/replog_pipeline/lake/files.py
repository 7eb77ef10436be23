"""The few calls on files that a table's ledger needs, on this machine's disk or through Hadoop's
FileSystem.

1. `create` is the commit: the file appears whole under its name, or not at all; of two that create
   the same name one gets False.
2. Locally that is a hard link of a synced file (through Hadoop: `hadoop_files`).
3. `lock` keeps a second writer on this machine away and ends with the process, however it ends.
   Elsewhere only the commit decides.

Names are relative to the table's folder, with `/`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from replog_pipeline.errors import PipelineError


class IFiles(Protocol):
    """One table's folder."""

    def exists(self, name: str) -> bool: ...
    def is_folder(self, name: str = "") -> bool: ...
    def names(self, folder: str = "") -> list[str]:
        """What is in a folder, sorted; empty when there is none."""
        ...

    def walk(self, folder: str) -> list[str]:
        """The files below a folder, relative to it, sorted."""
        ...

    def read(self, name: str) -> bytes: ...
    def create(self, name: str, content: bytes) -> bool: ...
    def size(self, name: str) -> int: ...
    def modified(self, name: str) -> float:
        """When it was last written: seconds since 1970."""
        ...

    def sync(self, folder: str) -> None:
        """The files below are on the disk when this returns, where the file system lets us say
        so.
        """
        ...

    def move(self, source: str, target: str) -> None: ...
    def remove(self, name: str) -> None:
        """With all below; nothing happens when it is not there."""
        ...

    def path(self, name: str = "") -> str:
        """As Spark takes it."""
        ...

    def lock(self) -> contextlib.AbstractContextManager[None]: ...
    def check_lock(self) -> None:
        """PipelineError where another machine may have taken the lock meanwhile."""
        ...


def of(spark: Any, place: str) -> IFiles:
    """The files at a path or URI."""
    folder = local(place)
    if folder is not None:
        return LocalFiles(folder)
    from replog_pipeline.lake.hadoop_files import HadoopFiles

    return HadoopFiles(spark, place)


def local(place: str) -> Path | None:
    """The folder of a place on this machine; None for a URI of another scheme."""
    if place.startswith("file:"):
        place = "/" + place.removeprefix("file:").lstrip("/")
    return None if "://" in place else Path(place)


def check_writable(place: Path, setting: str = "--to") -> None:
    """PipelineError unless files can be made in this folder, or it can be made.

    Nothing stays behind.
    """
    nearest = next(each for each in (place.absolute(), *place.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise not_writable(error, nearest, setting) from error


def not_writable(error: OSError, place: Path, setting: str = "--to") -> PipelineError:
    return PipelineError(
        f"{setting}: {place}: {error.strerror or error}: name a folder that can be written to"
    )


class LocalFiles:
    """On this machine, or on a shared mount."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def path(self, name: str = "") -> str:
        return str(self.folder / name)

    def exists(self, name: str) -> bool:
        return (self.folder / name).exists()

    def is_folder(self, name: str = "") -> bool:
        return (self.folder / name).is_dir()

    def names(self, folder: str = "") -> list[str]:
        path = self.folder / folder
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def walk(self, folder: str) -> list[str]:
        base = self.folder / folder
        return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def create(self, name: str, content: bytes) -> bool:
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            write_synced(draft, content)
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(target.parent)
        return True

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def modified(self, name: str) -> float:
        return (self.folder / name).stat().st_mtime

    def sync(self, folder: str) -> None:
        base = self.folder / folder
        for path in (base, *base.rglob("*")):
            sync_folder(path)  # files alike

    def move(self, source: str, target: str) -> None:
        path = self.folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.folder / source, path)

    def remove(self, name: str) -> None:
        path = self.folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Creates the folder; one that is still empty at the end is removed again."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise not_writable(error, self.folder) from error
        try:
            take_lock(descriptor, self.folder)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    self.folder.rmdir()
        finally:
            os.close(descriptor)

    def check_lock(self) -> None:
        """It ends with the process."""


def take_lock(descriptor: int, folder: Path | str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PipelineError(
            f"another archive writes to {folder}: a table has one writer; wait for it or stop it"
        ) from None


def write_synced(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
