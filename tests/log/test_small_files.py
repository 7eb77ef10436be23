"""Checkpoints and properties, byte for byte as Kafka writes them (FILE_FORMATS 1, 2; RL 1.12)."""

from __future__ import annotations

import errno

import pytest

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash, Fault
from twisted_broker.wire.primitives import uuid_text

ROWS = {TopicPartition("a-b", 0): 5, TopicPartition("a", 12): 2**40, TopicPartition("a", 2): 0}
TEXT = b"0\n3\na 2 0\na 12 1099511627776\na-b 0 5\n"
ID = bytes(range(16))


def disk() -> SimDisk:
    made = SimDisk(1)
    made.make_directories("/d")
    made.sync_all()
    return made


def put(files: SimDisk, name: str, content: bytes) -> None:
    file = files.open("/d/" + name, create=True)
    file.truncate(0)
    file.write_at(0, (content,))


def test_offset_checkpoints() -> None:
    """RL 1.12, FILE_FORMATS 1: version, count, a row a partition; absent means empty; any white
    space separates.
    """
    files = disk()
    assert checkpoints.read_offsets(files, "/d", "x") == {}
    checkpoints.write_offsets(files, "/d", "x", ROWS)
    assert files.content("/d/x") == TEXT
    assert checkpoints.read_offsets(files, "/d", "x") == ROWS
    put(files, "y", b"0\n1\na\t2   7\n")
    assert checkpoints.read_offsets(files, "/d", "y") == {TopicPartition("a", 2): 7}


DAMAGED = [
    b"0\n",
    b"1\n0\n",
    b"0\n2\na 1 1\n",
    b"0\n1\na 1\n",
    b"0\n1\na 1 x\n",
    b"0\n1\na 1 1_0\n",
    b"0\n1\na 1 9223372036854775808\n",
    b"0\n1\na 2147483648 1\n",
    b"0\n0\na 1 1\n",
    b"\xff\n0\n",
    b"0\n1\na 1 12",
    b"\n",
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_checkpoints(content: bytes) -> None:
    """FILE_FORMATS 1: another version, a count that does not match, short rows, words for
    numbers, no end: CheckpointError.
    """
    files = disk()
    put(files, "x", content)
    with pytest.raises(CheckpointError):
        checkpoints.read_offsets(files, "/d", "x")


def test_every_cut_of_a_checkpoint_is_noticed() -> None:
    """RELIABILITY 6.2: a checkpoint cut at any byte is refused, never read short; one without
    content was never written and is empty.
    """
    files = disk()
    put(files, "x", b"")
    assert checkpoints.read_offsets(files, "/d", "x") == {}
    for size in range(1, len(TEXT)):
        put(files, "x", TEXT[:size])
        with pytest.raises(CheckpointError):
            checkpoints.read_offsets(files, "/d", "x")


def test_replacing_survives_a_crash_at_any_operation() -> None:
    """RL 1.12: written aside, synced, renamed, directory synced: a crash at any point leaves the
    old content or the new one, whole.
    """
    for seed in range(20):
        for at in range(20):
            files = disk()
            checkpoints.write_offsets(files, "/d", "x", {TopicPartition("t", 0): 1})
            files.random.seed(seed)
            files.operations, files.crash_at = 0, at
            try:
                checkpoints.write_offsets(files, "/d", "x", {TopicPartition("t", 0): 2})
            except Crash:
                pass
            else:
                assert checkpoints.read_offsets(files.after_power_loss(keep=0), "/d", "x") == {
                    TopicPartition("t", 0): 2
                }
                break
            found = checkpoints.read_offsets(files.after_power_loss(), "/d", "x")
            assert found in ({TopicPartition("t", 0): 1}, {TopicPartition("t", 0): 2})


def test_a_failing_replacement_leaves_the_old_content() -> None:
    """RL 1.12: an error on the way raises and changes nothing."""
    files = disk()
    checkpoints.write_offsets(files, "/d", "x", {TopicPartition("t", 0): 1})
    for operation in ("write", "sync", "rename"):
        files.faults = [Fault(errno.ENOSPC, operation)]
        with pytest.raises(OSError):
            checkpoints.write_offsets(files, "/d", "x", {TopicPartition("t", 0): 2})
    assert checkpoints.read_offsets(files, "/d", "x") == {TopicPartition("t", 0): 1}


def test_epoch_checkpoint() -> None:
    """Kafka's record formats: `epoch start` rows."""
    files = disk()
    assert checkpoints.epochs_text([0, 3], [0, 17]) == b"0\n2\n0 0\n3 17\n"
    put(files, "e", b"0\n2\n0 0\n3 17\n")
    assert checkpoints.read_epochs(files, "/d/e") == [(0, 0), (3, 17)]


def test_partition_metadata() -> None:
    """Kafka's record formats: 43 bytes, no final newline; damage is a CheckpointError."""
    files = disk()
    checkpoints.write_partition_metadata(files, "/d", ID)
    assert (
        files.content("/d/partition.metadata") == b"version: 0\ntopic_id: " + uuid_text(ID).encode()
    )
    assert files.size("/d/partition.metadata") == 43
    assert checkpoints.read_partition_metadata(files, "/d") == ID
    whole = files.content("/d/partition.metadata")
    for size in range(1, len(whole)):
        put(files, "partition.metadata", whole[:size])
        with pytest.raises(CheckpointError):
            checkpoints.read_partition_metadata(files, "/d")
    for lost in (b"", bytes(len(whole))):  # by a loss of power
        put(files, "partition.metadata", lost)
        assert checkpoints.read_partition_metadata(files, "/d") is None


@pytest.mark.parametrize(
    ("content", "epoch"),
    [
        (b'{"version":0,"brokerEpoch":12}', 12),
        (b"", -1),
        (b"{", -1),
        (b'{"version":1,"brokerEpoch":3}', -1),
        (b'{"version":0}', -1),
        (b"[]", -1),
        (None, None),
    ],
)
def test_clean_shutdown_mark(content: bytes | None, epoch: int | None) -> None:
    """FILE_FORMATS 1: the mark tells the broker epoch; an unreadable one is clean with an
    unknown epoch; none is unclean.
    """
    files = disk()
    if content is not None:
        put(files, ".kafka_cleanshutdown", content)
    assert checkpoints.read_clean_shutdown(files, "/d") == epoch
    checkpoints.write_clean_shutdown(files, "/d", 12)
    assert files.content("/d/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":12}'


def test_meta_properties() -> None:
    """FILE_FORMATS 1: versions 0 and 1 are read, 1 is written; what is neither is refused."""
    files = disk()
    assert read_meta_properties(files, "/d") is None
    write_meta_properties(files, "/d", MetaProperties("some-cluster", 7, ID))
    assert read_meta_properties(files, "/d") == MetaProperties("some-cluster", 7, ID)
    put(files, "meta.properties", b"#comment\nversion=0\nbroker.id=3\n")
    assert read_meta_properties(files, "/d") == MetaProperties(None, 3, None, 0)
    for bad in (
        b"",
        b"version=1\n",
        b"version=2\nnode.id=1\ncluster.id=x\n",
        b"version=1\nnode.id=x\ncluster.id=c\n",
        b"version=1\nnode.id=1_0\ncluster.id=c\n",
        b"version=1\nnode.id=2147483648\ncluster.id=c\n",
        b"version=1\nnode.id=-1\ncluster.id=c\n",
    ):
        put(files, "meta.properties", bad)
        with pytest.raises(CheckpointError):
            read_meta_properties(files, "/d")


@pytest.mark.parametrize(
    "content",
    [
        b"version=1\nnode.id=1\ncluster.id=\nAAAAAAAAAAAAAAAAAAAAA\n",
        b"version=1\nnode.id=1\n#luster.id=some-cluster\n",
        b"version=0\nbroker.id=1\ncluster.id=\n",
    ],
)
def test_meta_properties_without_a_cluster_id(content: bytes) -> None:
    """One flipped bit makes an end of line of the id's first letter, or a comment of its name: the
    line names the file and the remedy.
    """
    files = disk()
    put(files, "meta.properties", content)
    with pytest.raises(
        CheckpointError,
        match=r"^/d/meta\.properties: .*no cluster\.id: .*another node's meta\.properties has it",
    ):
        read_meta_properties(files, "/d")
