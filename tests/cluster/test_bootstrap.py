"""What a new cluster begins with: `bootstrap.checkpoint`, by Kafka's tool and by ours."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.fixtures import CLUSTER_ID, Fixture
from twisted_broker.cluster.bootstrap import (
    DEFAULT,
    NAME,
    Bootstrap,
    bootstrap_records,
    check_levels,
    read_bootstrap,
    write_bootstrap,
)
from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.metadata_log import open_metadata_log
from twisted_broker.cluster.scram_changes import parse_user, stored_credential
from twisted_broker.cluster.snapshots import snapshot_frame
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.security.sasl.scram import SHA_256, SHA_512
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.schema import Record

# of `kafka-storage format` of Apache Kafka 4.3.1
KAFKAS = (Path(__file__).parents[1] / "wire/golden/records/snapshot.bin").read_bytes()
PATH = f"/data/{NAME}"
ELR, VERSION = "eligible.leader.replicas.version", "metadata.version"


@pytest.fixture
def files() -> MemoryFileSystem:
    made = MemoryFileSystem()
    made.make_directories("/data")
    return made


def put(files: MemoryFileSystem, content: bytes) -> None:
    files.open(PATH, create=True).write_at(0, (content,))


def put_records(files: MemoryFileSystem, *found: Record) -> None:
    put(files, b"".join(snapshot_frame(found, 0, 0, 0, 30)))


def founded(files: MemoryFileSystem) -> Fixture:
    """A controller at its first start on a directory with this file."""
    fixture = Fixture()
    fixture.files = fixture.runtime.files = files
    open_log = partial(open_metadata_log, files, fixture.worker, "/data", 1, fixture.now)
    fixture.controller = Controller(
        CLUSTER_ID,
        fixture.runtime,
        fixture.config,
        open_log,
        bootstrap=partial(read_bootstrap, files, "/data"),
    )
    return fixture.start()


def test_without_a_file_the_latest_levels(files: MemoryFileSystem) -> None:
    assert read_bootstrap(files, "/data") is DEFAULT
    assert founded(files).controller.image.features == DEFAULT.levels


def test_kafkas_file_is_understood_and_what_is_not_served_is_named(
    files: MemoryFileSystem,
) -> None:
    put(files, KAFKAS)
    assert read_bootstrap(files, "/data") == Bootstrap(
        {
            VERSION: 30,
            ELR: 1,
            "group.version": 1,
            "share.version": 1,
            "streams.version": 1,
            "transaction.version": 2,
        },
        {},
    )


def test_an_older_level_is_what_the_cluster_finalises(files: MemoryFileSystem) -> None:
    """KIP-778: for brokers of that release. Records are written as it knows them: a registration
    without cordoned directories.
    """
    write_bootstrap(files, "/data", {VERSION: 25, ELR: 0}, 1000)
    fixture = founded(files)
    assert fixture.controller.image.features == {VERSION: 25}
    assert fixture.join(1)
    again = fixture.restart()
    assert again.controller.image.features == {VERSION: 25} and 1 in again.controller.image.brokers


def test_the_file_counts_once(files: MemoryFileSystem) -> None:
    """A cluster that exists keeps its levels, whatever becomes of the file."""
    write_bootstrap(files, "/data", {VERSION: 25, ELR: 1}, 1000)
    fixture = founded(files)
    put(files, b"damage")
    assert fixture.restart().controller.image.features == {VERSION: 25, ELR: 1}


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({VERSION: 16}, "metadata.version can be 17 to 30, not 16"),
        ({VERSION: 31}, "metadata.version can be 17 to 30, not 31"),
        ({VERSION: 22, ELR: 1}, "eligible.leader.replicas.version needs metadata.version 23"),
        ({ELR: 1}, "metadata.version is missing"),
        ({VERSION: 30, "other.version": 1}, "other.version is not served; there are"),
    ],
)
def test_levels_that_a_new_cluster_cannot_have(levels: Mapping[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_levels(levels)


def test_a_file_that_cannot_be_used_says_what_to_do(files: MemoryFileSystem) -> None:
    """Nothing is founded: the log stays without a leader's epoch, so that the next start is again
    the first.
    """
    for content, message in (
        (KAFKAS[:-10], "is damaged"),
        (KAFKAS[:100] + b"\xff" + KAFKAS[101:], "is damaged"),
        (b"", "has no end"),
    ):
        put_records(files)
        files.open(PATH).truncate(0)
        put(files, content)
        with pytest.raises(CheckpointError, match=message):
            read_bootstrap(files, "/data")
    put_records(files, *bootstrap_records({VERSION: 99}))
    with pytest.raises(CheckpointError, match="can be 17 to 30, not 99; format the directory"):
        founded(files)
    files.open(PATH).truncate(0)
    put_records(files, *bootstrap_records({VERSION: 30}))
    assert founded(files).controller.image.features == {VERSION: 30}


def test_users_are_there_when_the_cluster_begins(files: MemoryFileSystem) -> None:
    """`--add-scram`, of Kafka's tool and of ours."""
    user = parse_user("SCRAM-SHA-512=[name=alice,password=secret]", b"salt")
    write_bootstrap(files, "/data", {VERSION: 30}, 0, [user])
    image = founded(files).controller.image
    found = stored_credential(image, SHA_512, "alice")
    assert found is not None and found.salt == b"salt" and found.iterations == 4096
    assert stored_credential(image, SHA_256, "alice") is None


def test_acls_are_refused_rather_than_forgotten(files: MemoryFileSystem) -> None:
    """No tool writes them."""
    put_records(
        files,
        *bootstrap_records({VERSION: 30}),
        records.AccessControlEntryRecord(resource_name="t"),
    )
    with pytest.raises(CheckpointError, match=r"AccessControlEntryRecord.*does not serve"):
        read_bootstrap(files, "/data")
