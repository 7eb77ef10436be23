"""A broker's own copy of the metadata: what it holds, how it is cut, what becomes of damage."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.cluster.controller_fixture import PORT, ControllerFixture, served
from tests.cluster.fixtures import CLUSTER_ID
from twisted_broker.cluster.metadata_check import read_mark
from twisted_broker.cluster.metadata_copy import open_metadata_copy
from twisted_broker.cluster.metadata_loader import MetadataRegression
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.cluster.records import build_batch
from twisted_broker.cluster.snapshots import list_snapshots
from twisted_broker.config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.log.checkpoints import read_whole
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.testing.sim.disk import SimDisk
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest

CONTROLLERS = "/data/__cluster_metadata-0"
COPY = "/own/__cluster_metadata-0"
LOG = f"{COPY}/{0:020d}.log"


class Follower:
    """An observer with a copy in `/own` of a disk of its own."""

    def __init__(self, fixture: ControllerFixture, files: Any = None, **settings: str) -> None:
        self.fixture = fixture
        self.files = files if files is not None else MemoryFileSystem()
        self.files.make_directories("/own")
        self.broken: list[BaseException] = []
        self.warnings: list[str] = []
        self.copy, self.base, self.told = open_metadata_copy(
            self.files,
            InlineWorker(),
            "/own",
            fixture.now,
            7,
            self.broken.append,
            self.warnings.append,
        )
        config = BrokerConfig(
            {"node.id": "2", **{name.replace("_", "."): value for name, value in settings.items()}}
        )
        runtime = Runtime(
            fixture.clock,
            fixture.now,
            fixture.network,
            self.files,
            lambda directory: InlineWorker(),
            Random(2),
        )
        self.ended: list[BaseException] = []
        self.observer = MetadataObserver(
            runtime,
            config,
            CLUSTER_ID,
            [("127.0.0.1", PORT)],
            copy=self.copy,
            base=self.base,
            on_fatal=self.ended.append,
        )
        self.observer.start()
        fixture.settle()

    def stop(self) -> Follower:
        self.observer.stop()
        self.copy.finish()
        self.fixture.settle()
        return self

    def again(self) -> Follower:
        return Follower(self.fixture, self.files)


def create(fixture: ControllerFixture, name: str, partitions: int = 1) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    assert (
        fixture.ask("create_topics", CreateTopicsRequest(topics=[topic]), 7).topics[0].error_code
        == 0
    )


@pytest.fixture
def fixture() -> ControllerFixture:
    fixture = served({"metadata.max.idle.interval.ms": "0"})
    fixture.join(7)
    create(fixture, "t", 20)
    return fixture


def log_of(files: MemoryFileSystem, directory: str) -> bytes:
    found = sorted(
        path for path in files.nodes if path.startswith(directory) and path.endswith(".log")
    )
    return b"".join(read_whole(files, path) or b"" for path in found)


def test_the_copy_is_the_log_byte_for_byte(fixture: ControllerFixture) -> None:
    member = Follower(fixture)
    create(fixture, "u", 3)
    fixture.settle()
    assert log_of(member.files, COPY) == log_of(fixture.files, CONTROLLERS) != b""


def test_a_restart_goes_on_from_the_copy(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image is there before anybody is asked, and only what came since is fetched, behind
    the last batch that is compared.
    """
    member = Follower(fixture).stop()
    before = member.observer.image
    create(fixture, "meanwhile")
    asked: list[int] = []
    request = MetadataObserver._request
    monkeypatch.setattr(
        MetadataObserver,
        "_request",
        lambda self, version: (asked.append(self._loader.fetch_offset), request(self, version))[1],
    )
    again = member.again()
    assert again.base == before
    assert again.observer.image == fixture.controller.image and again.ended == []
    assert min(asked) == again.copy.last_batch.base_offset > 5
    assert log_of(again.files, COPY) == log_of(fixture.files, CONTROLLERS)


def test_a_controllers_snapshot_takes_the_copys_place() -> None:
    """It is a checkpoint file of the same bytes; the log goes on behind it; a restart begins
    from both.
    """
    fixture = served(
        {
            "metadata.log.max.record.bytes.between.snapshots": "2000",
            "metadata.max.idle.interval.ms": "0",
        }
    )
    fixture.join(7)
    create(fixture, "t", 40)
    fixture.advance(0.5)
    member = Follower(fixture)
    create(fixture, "after")
    fixture.settle()
    (snapshot,) = list_snapshots(member.files, COPY)
    assert read_whole(member.files, f"{COPY}/{snapshot.file_name}") == read_whole(
        fixture.files, f"{CONTROLLERS}/{snapshot.file_name}"
    )
    assert (
        member.copy.log.log_start_offset == snapshot.end_offset
        and member.copy.end_offset == fixture.controller.log.end_offset
    )
    again = member.stop().again()
    assert again.base.topics_by_name == fixture.controller.image.topics_by_name


def test_the_copy_is_cut_behind_a_snapshot_of_its_own(fixture: ControllerFixture) -> None:
    member = Follower(fixture, metadata_log_max_record_bytes_between_snapshots="1000")
    create(fixture, "u", 30)
    fixture.settle()
    (snapshot,) = list_snapshots(member.files, COPY)
    assert member.copy.log.segments.first.base_offset >= snapshot.end_offset
    again = member.again()
    assert (
        again.base == fixture.controller.image and again.observer.image == fixture.controller.image
    )


def test_a_torn_tail_of_the_copy_is_fetched_again(fixture: ControllerFixture) -> None:
    member = Follower(fixture)
    size = member.files.size(LOG)
    member.observer.stop()
    member.files.open(LOG).truncate(size - 10)
    again = member.again()
    assert again.told == "" and 0 <= again.base.offset < fixture.controller.image.offset
    assert again.observer.image == fixture.controller.image and log_of(again.files, COPY) == log_of(
        fixture.files, CONTROLLERS
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_loss_of_power_takes_the_end_of_the_copy_and_no_more(
    fixture: ControllerFixture, seed: int
) -> None:
    """Nothing was synced but what a snapshot covers: whatever is left opens without a fault, as
    a prefix of the log.
    """
    disk = SimDisk(seed)
    disk.make_directories("/own")
    disk.sync_all()
    member = Follower(
        fixture, disk, metadata_log_max_record_bytes_between_snapshots=("1000", "1000000")[seed % 2]
    )
    for number in range(4):
        create(fixture, f"u{number}", 10)
        fixture.settle()
    member.observer.stop()
    again = Follower(fixture, disk.after_power_loss(keep=0.5))
    assert again.told == ""
    assert again.observer.image == fixture.controller.image and again.ended == []


def test_a_damaged_copy_is_kept_aside_and_fetched_anew(fixture: ControllerFixture) -> None:
    member = Follower(fixture).stop()
    damaged = bytearray(member.files.nodes[LOG].data)
    member.files.nodes[LOG].data[200] ^= 1
    again = member.again()
    aside = f"__cluster_metadata-0.{7:032x}-stray"
    assert aside in again.told and LOG in again.told and "\n" not in again.told
    assert len(again.files.nodes[f"/own/{aside}/{0:020d}.log"].data) == len(damaged)
    assert again.observer.image == fixture.controller.image and again.ended == []


def test_a_damaged_copy_is_not_fetched_from_a_controller_that_is_behind_it(
    fixture: ControllerFixture,
) -> None:
    """What the damaged copy shows is the least that a controller must have; the next start knows
    it as well.
    """
    member = Follower(fixture).stop()
    reached = fixture.controller.log.end_offset
    member.files.nodes[LOG].data[200] ^= 1
    fixture.crash()
    other = served({"metadata.max.idle.interval.ms": "0"})
    for _ in range(2):
        again = Follower(other, member.files)
        assert again.copy.floor.end_offset == reached and again.base.offset == -1
        other.pass_time(30.0)
        (error,) = again.ended
        assert isinstance(error, MetadataRegression) and error.applied.end_offset == reached
        assert again.observer.image.offset == -1 and again.copy.end_offset == 0
        again.stop()


def test_a_disk_that_fails_ends_the_copy_only(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Follower(fixture)
    end = member.copy.end_offset
    error = OSError(5, "the disk is gone")

    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr(member.copy.log.segments.active.log.open(), "write_at", refuse)
    create(fixture, "u")
    fixture.settle()
    assert member.broken == [error] and member.copy.end_offset == end
    assert member.observer.image == fixture.controller.image and member.ended == []
    member.stop()


def test_a_copy_that_is_not_written_any_more_says_so_once(fixture: ControllerFixture) -> None:
    """A batch that does not follow what is there, as behind a snapshot that ended within one: the
    metadata is followed on, the disk is well, and one line says what becomes of the copy.
    """
    member = Follower(fixture)
    end = member.copy.end_offset
    behind = build_batch([records.NoOpRecord()], end - 1, fixture.controller.epoch, 0, 30)
    member.copy.append(behind)
    create(fixture, "u")
    fixture.settle()
    (line,) = member.warnings
    assert COPY in line and "until its next start" in line
    assert member.observer.image == fixture.controller.image
    assert member.broken == member.ended == [] and member.copy.end_offset == end
    member.stop()


def test_within_a_transaction_no_snapshot_is_written(fixture: ControllerFixture) -> None:
    """A snapshot there would lack what the transaction has held back so far."""
    member = Follower(fixture, metadata_log_max_record_bytes_between_snapshots="1")
    before = list_snapshots(member.files, COPY)
    log = fixture.controller.log
    log.append(
        [
            records.BeginTransactionRecord(name="x"),
            records.TopicRecord(name="held", topic_id=b"h" * 16),
        ],
        30,
    )
    log.sync()
    fixture.pass_time(1.0)
    assert member.copy.end_offset == log.end_offset and list_snapshots(member.files, COPY) == before
    again = member.stop().again()
    log.append([records.EndTransactionRecord()], 30)
    log.sync()
    fixture.pass_time(1.0)
    assert "held" in again.observer.image.topics_by_name


def test_a_clean_end_marks_all_of_it(fixture: ControllerFixture) -> None:
    member = Follower(fixture).stop()
    assert (
        read_mark(member.files, COPY) == member.copy.end_offset == fixture.controller.log.end_offset
    )
