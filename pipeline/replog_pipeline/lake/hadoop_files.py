"""A table's files through Hadoop's FileSystem, on whatever Spark reaches.

1. `create` renames a draft. HDFS and its likes refuse an existing name; not every object store
   does, so keep Parquet tables off those and use Delta, which has its own way there.
2. No lock: of two writers the commit decides.

Not here: sync (the file system's own promise on close).
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from replog_pipeline.errors import PipelineError


class HadoopFiles:
    """Any file system that Spark reaches, through its JVM."""

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

    def lock(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
