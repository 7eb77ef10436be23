"""A table's files through Hadoop's FileSystem, on whatever Spark reaches.

1. `create` renames a draft: HDFS and its likes refuse an existing name. An object store makes the
   object under its name at once, whole, on the condition that there is none (S3: `If-None-Match`).
2. No lock between machines: of two writers the commit decides, where the file system has a rename
   that is atomic. A store has none, so writers on this machine lock a file of the cache folder,
   named after the place; between machines there is a lease (`lease`).

Not here: sync (the file system's own promise on close).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator
from typing import Any

from replog_pipeline.errors import PipelineError, text_of
from replog_pipeline.lake.files import LocalFiles, take_lock
from replog_pipeline.lake.lease import Lease
from replog_pipeline.machine import cache
from replog_pipeline.stores.places import JARS, bucket, scheme

IF_ABSENT = "fs.option.create.conditional.overwrite"
THERE_ALREADY = ("RemoteFileChangedException", "FileAlreadyExistsException", "Status Code: 412")


class HadoopFiles:
    """Any file system that Spark reaches, through its JVM."""

    lease: Lease | None = None

    def __init__(self, spark: Any, place: str) -> None:
        self.place = place.rstrip("/")
        self.jvm = spark._jvm
        self.system = self._of("").getFileSystem(spark._jsc.hadoopConfiguration())

    def _of(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(self.path(name))

    def path(self, name: str = "") -> str:
        return f"{self.place}/{name}" if name else self.place

    def exists(self, name: str) -> bool:
        return bool(self.system.exists(self._of(name)))

    def is_folder(self, name: str = "") -> bool:
        return self.exists(name) and bool(self.system.getFileStatus(self._of(name)).isDirectory())

    def names(self, folder: str = "") -> list[str]:
        return (
            sorted(
                status.getPath().getName() for status in self.system.listStatus(self._of(folder))
            )
            if self.is_folder(folder)
            else []
        )

    def walk(self, folder: str) -> list[str]:
        if not self.is_folder(folder):
            return []
        found = []
        for status in self.system.listStatus(self._of(folder)):
            name = status.getPath().getName()
            below = (
                self.walk(f"{folder}/{name}" if folder else name) if status.isDirectory() else None
            )
            found += [name] if below is None else [f"{name}/{each}" for each in below]
        return sorted(found)

    def read(self, name: str) -> bytes:
        stream = self.system.open(self._of(name))
        try:
            return bytes(self.jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, name: str, content: bytes) -> bool:
        if scheme(self.place) in JARS:
            return self.create_object(name, content)
        folder, _, last = name.rpartition("/")
        draft = self._of(f"{folder}/.{last}.{uuid.uuid4().hex}")
        stream = self.system.create(draft, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        created = not self.exists(name) and bool(self.system.rename(draft, self._of(name)))
        self.system.delete(draft, False)
        return created

    def create_object(self, name: str, content: bytes) -> bool:
        """The object appears when its stream is closed."""
        try:
            stream = (
                self.system.createFile(self._of(name))
                .overwrite(False)
                .opt(IF_ABSENT, "true")
                .recursive()
                .build()
            )
            stream.write(bytearray(content))
            stream.close()
        except Exception as error:
            if any(each in text_of(error) for each in THERE_ALREADY):
                return False
            raise
        return True

    def size(self, name: str) -> int:
        return int(self.system.getFileStatus(self._of(name)).getLen())

    def modified(self, name: str) -> float:
        return int(self.system.getFileStatus(self._of(name)).getModificationTime()) / 1000

    def sync(self, folder: str) -> None:
        """Nothing: closed files are the file system's."""

    def move(self, source: str, target: str) -> None:
        self.system.mkdirs(self._of(target).getParent())
        if not self.system.rename(self._of(source), self._of(target)):
            raise PipelineError(
                f"{self.path(source)} could not be renamed to {self.path(target)}: see the "
                "file system's log"
            )

    def remove(self, name: str) -> None:
        self.system.delete(self._of(name), True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            if scheme(self.place) in JARS:
                is_here = self.take_lock_here(held)
                self.lease = Lease(self, machine() if is_here else uuid.uuid4().hex)
                held.enter_context(self.lease.held())
            yield

    def check_lock(self) -> None:
        """PipelineError where another machine may have taken the lock meanwhile."""
        if self.lease is not None:
            self.lease.check()

    def server(self) -> str:
        """HOST:PORT of the store, "" for the provider's own. Of the environment too: without keys
        in it Spark leaves its address to Amazon's library.
        """
        configuration, (name, _) = self.system.getConf(), bucket(self.place)
        found = (
            configuration.get(f"fs.s3a.bucket.{name}.endpoint")
            or configuration.get("fs.s3a.endpoint")
            or os.environ.get("AWS_ENDPOINT_URL", "")
        )
        return str(found).rpartition("://")[2].rstrip("/")

    def take_lock_here(self, held: contextlib.ExitStack) -> bool:
        """Whether there is a lock. PipelineError when another process on this machine has it."""
        name = f"{self.server()} {self.place}"
        path = cache.folder() / "locks" / hashlib.sha256(name.encode()).hexdigest()[:32]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return False  # a machine without a cache folder has no lock
        held.callback(os.close, descriptor)
        take_lock(descriptor, self.place)
        return True


def machine() -> str:
    """A name of this machine's cache folder, kept there."""
    files = LocalFiles(cache.folder() / "locks")
    files.create("machine", uuid.uuid4().hex.encode())
    return files.read("machine").decode()
