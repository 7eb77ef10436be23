"""A snapshot of another controller comes to the disk piece by piece."""

from __future__ import annotations

import pytest

from twisted_broker.cluster.snapshot_download import NotBegun, SnapshotDownload
from twisted_broker.log.memory import MemoryFileSystem

NAME = f"{7:020}-{1:010}.checkpoint"


@pytest.fixture
def files() -> MemoryFileSystem:
    found = MemoryFileSystem()
    found.make_directories("/meta")
    return found


def test_it_gets_its_name_when_it_is_whole(files: MemoryFileSystem) -> None:
    download = SnapshotDownload(files, "/meta")
    download.start(NAME)
    download.append(b"one ")
    download.append(b"two")
    assert files.listdir("/meta") == [f"{NAME}.part"]
    download.finish()
    assert files.listdir("/meta") == [NAME]
    file = files.open(f"/meta/{NAME}", read_only=True)
    assert file.read_at(0, 100) == b"one two"
    with pytest.raises(NotBegun):
        download.finish()


def test_what_was_given_up_goes_also_that_of_an_earlier_run(files: MemoryFileSystem) -> None:
    first = SnapshotDownload(files, "/meta")
    first.start(NAME)
    first.append(b"half")
    download = SnapshotDownload(files, "/meta")
    download.start("other.checkpoint")
    assert files.listdir("/meta") == ["other.checkpoint.part"]
    download.drop()
    download.drop()
    assert files.listdir("/meta") == []
