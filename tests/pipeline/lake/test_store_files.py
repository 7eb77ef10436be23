"""A table's files on an object store: created on a condition, locked on this machine."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.hadoop_files import IF_ABSENT, HadoopFiles, machine
from replog_pipeline.lake.lease import Lease


class Store:
    """Hadoop's FileSystem of a store, as far as `create` uses it: an object appears on close."""

    def __init__(self, **settings: str) -> None:
        self.objects: dict[str, bytes] = {}
        self.settings = settings or {"fs.s3a.endpoint": "http://here"}

    def getConf(self) -> dict[str, str]:
        return self.settings

    def createFile(self, name: str) -> Draft:
        return Draft(self.objects, name)


class Draft:
    def __init__(self, objects: dict[str, bytes], name: str) -> None:
        self.objects, self.name, self.conditional, self.content = objects, name, False, b""

    def overwrite(self, allowed: bool) -> Draft:
        assert not allowed
        return self

    def opt(self, name: str, value: str) -> Draft:
        self.conditional = (name, value) == (IF_ABSENT, "true")
        return self

    def recursive(self) -> Draft:
        return self

    def build(self) -> Draft:
        return self

    def write(self, content: bytes) -> None:
        self.content += content

    def close(self) -> None:
        if self.conditional and self.name in self.objects:
            raise OSError("org.apache.hadoop.fs.s3a.RemoteFileChangedException: Status Code: 412")
        self.objects[self.name] = bytes(self.content)


def files(store: Any, place: str = "s3a://lake/t") -> HadoopFiles:
    path = SimpleNamespace(getFileSystem=lambda conf: store)
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=lambda name: name))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    found = HadoopFiles.__new__(HadoopFiles)
    found.place, found.jvm, found.system = place, jvm, path.getFileSystem(None)
    return found


def test_of_two_that_create_one_object_one_is_refused() -> None:
    store = Store()
    assert files(store).create("_replog/format", b"delta")
    assert not files(store).create("_replog/format", b"other")
    assert store.objects == {"s3a://lake/t/_replog/format": b"delta"}


def test_what_else_fails_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()

    def fail(draft: Draft) -> None:
        raise OSError("the network is gone")

    monkeypatch.setattr(Draft, "close", fail)
    with pytest.raises(OSError, match="the network is gone"):
        files(store).create("_replog/format", b"delta")


@pytest.fixture
def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other machines `test_lease` tells."""
    monkeypatch.setattr(Lease, "held", lambda self: nullcontext())


@pytest.mark.usefixtures("no_lease")
def test_one_archive_of_a_table_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("REPLOG_CACHE", str(tmp_path))
    one, same, other = files(Store()), files(Store()), files(Store(), "s3a://lake/u")
    refused = pytest.raises(PipelineError, match="another archive writes to s3a://lake/t: a table")
    with one.lock(), other.lock(), refused, same.lock():
        pass
    with same.lock():
        pass


@pytest.mark.usefixtures("no_lease")
@pytest.mark.parametrize(
    "settings",
    [
        {"fs.s3a.endpoint": "http://here/"},
        {"fs.s3a.endpoint": "here"},
        {"fs.s3a.bucket.lake.endpoint": "http://here", "fs.s3a.endpoint": "http://there"},
        {"fs.s3a.access.key": "by an option, so Spark leaves the environment's address alone"},
    ],
)
def test_the_lock_is_the_same_however_the_server_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path, settings: dict[str, str]
) -> None:
    monkeypatch.setenv("REPLOG_CACHE", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://here")
    refused = pytest.raises(PipelineError, match="another archive writes to s3a://lake/t")
    with files(Store()).lock(), refused, files(Store(**settings)).lock():
        pass
    with files(Store()).lock(), files(Store(**{"fs.s3a.endpoint": "http://there"})).lock():
        pass


@pytest.mark.usefixtures("no_lease")
def test_without_a_cache_folder_there_is_no_lock_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLOG_CACHE", "/proc/cache")
    with files(Store()).lock(), files(Store()).lock():
        pass


def test_a_machine_has_one_name(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("REPLOG_CACHE", str(tmp_path / "one"))
    name = machine()
    assert machine() == name
    monkeypatch.setenv("REPLOG_CACHE", str(tmp_path / "other"))
    assert machine() != name
