"""What stands beside a copy's snapshot of the batch that it ends with."""

from __future__ import annotations

import pytest

from twisted_broker.cluster.last_batch import (
    LastBatch,
    read_last_batch,
    remove_last_batches,
    write_last_batch,
)
from twisted_broker.cluster.snapshots import SnapshotId
from twisted_broker.log.memory import MemoryFileSystem

DIRECTORY = "/own/__cluster_metadata-0"
SNAPSHOT = SnapshotId(43, 7)
NAME = f"{DIRECTORY}/{43:020d}-{7:010d}.last-batch"
LAST = LastBatch(41, 42, 7, 184, 2**32 - 1, 6)


@pytest.fixture
def files() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directories(DIRECTORY)
    write_last_batch(files, DIRECTORY, SNAPSHOT, LAST)
    return files


def test_what_was_written_is_read(files: MemoryFileSystem) -> None:
    """An old directory has none."""
    assert bytes(files.nodes[NAME].data) == b"0 41 42 7 184 4294967295 6 115667168\n"
    assert read_last_batch(files, DIRECTORY, SNAPSHOT) == LAST
    assert read_last_batch(files, DIRECTORY, SnapshotId(44, 7)) is None


def test_every_flipped_bit_and_every_cut_counts_as_none(files: MemoryFileSystem) -> None:
    """Believed, it would refuse the right controller."""
    data = files.nodes[NAME].data
    whole = bytes(data)
    for at in range(len(whole)):
        for bit in range(8):
            data[at] ^= 1 << bit
            assert read_last_batch(files, DIRECTORY, SNAPSHOT) is None
            data[at] ^= 1 << bit
        data[:] = whole[:at]
        assert read_last_batch(files, DIRECTORY, SNAPSHOT) is None
        data[:] = whole
    assert read_last_batch(files, DIRECTORY, SNAPSHOT) == LAST


@pytest.mark.parametrize("other", [{"last_offset": 43}, {"epoch": 6}])
def test_one_that_ends_elsewhere_counts_as_none(
    files: MemoryFileSystem, other: dict[str, int]
) -> None:
    write_last_batch(files, DIRECTORY, SNAPSHOT, LAST._replace(**other))
    assert read_last_batch(files, DIRECTORY, SNAPSHOT) is None


def test_those_of_older_snapshots_are_removed(files: MemoryFileSystem) -> None:
    """Its own and later ones stay: the next snapshot may be about to come."""
    for snapshot in (SnapshotId(5, 7), SnapshotId(44, 7)):
        write_last_batch(files, DIRECTORY, snapshot, LAST)
    files.open(f"{DIRECTORY}/{0:020d}.log", create=True)
    remove_last_batches(files, DIRECTORY, SNAPSHOT)
    assert files.listdir(DIRECTORY) == [
        f"{0:020d}.log",
        f"{43:020d}-{7:010d}.last-batch",
        f"{44:020d}-{7:010d}.last-batch",
    ]
