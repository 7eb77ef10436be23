"""A broker's own metadata log: what it holds, how it is cut, what becomes of damage."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.cluster.controller_fixture import PORT, ControllerFixture, served
from tests.cluster.fixtures import CLUSTER_ID, decoded
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.metadata_check import read_durable_end
from twisted_broker.cluster.metadata_loader import MetadataLoader, MetadataRegression
from twisted_broker.cluster.metadata_recovery import Target, read_source, recover
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.cluster.observer_log import MOST_DAMAGED_LOGS, SYNC_MS, open_observer_log
from twisted_broker.cluster.records import build_batch
from twisted_broker.cluster.snapshots import SnapshotId, list_snapshots, snapshot_bytes
from twisted_broker.interfaces import Runtime
from twisted_broker.log.checkpoints import read_whole
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.log.meta_properties import MetaProperties, write_meta_properties
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.records import iterate_batches

CONTROLLERS = "/data/__cluster_metadata-0"
OWN_LOG = "/own/__cluster_metadata-0"
LOG = f"{OWN_LOG}/{0:020d}.log"


class Follower:
    """An observer with a log in `/own` of a disk of its own."""

    def __init__(
        self, fixture: ControllerFixture, files: Any = None, unique: int = 7, **settings: str
    ) -> None:
        self.fixture = fixture
        self.files = files if files is not None else MemoryFileSystem()
        self.files.make_directories("/own")
        self.broken: list[BaseException] = []
        self.warnings: list[str] = []
        self.own_log, self.base, self.told = open_observer_log(
            self.files,
            InlineWorker(),
            "/own",
            fixture.now,
            unique,
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
            own_log=self.own_log,
            base=self.base,
            on_fatal=self.ended.append,
        )
        self.observer.start()
        fixture.settle()

    def stop(self) -> Follower:
        self.observer.stop()
        self.own_log.finish()
        self.fixture.settle()
        return self

    def again(self) -> Follower:
        return Follower(self.fixture, self.files)


@pytest.fixture
def fixture() -> ControllerFixture:
    fixture = served({"metadata.max.idle.interval.ms": "0"})
    fixture.join(7)
    fixture.create_topic("t", 20)
    return fixture


def log_of(files: MemoryFileSystem, directory: str) -> bytes:
    found = sorted(
        path for path in files.nodes if path.startswith(directory) and path.endswith(".log")
    )
    return b"".join(read_whole(files, path) or b"" for path in found)


def test_the_log_is_the_controllers_byte_for_byte(fixture: ControllerFixture) -> None:
    member = Follower(fixture)
    fixture.create_topic("u", 3)
    fixture.settle()
    assert log_of(member.files, OWN_LOG) == log_of(fixture.files, CONTROLLERS) != b""


def test_a_restart_goes_on_from_the_log(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image is there before anybody is asked, and only what came since is fetched, behind
    the last batch that is compared.
    """
    member = Follower(fixture).stop()
    before = member.observer.image
    fixture.create_topic("meanwhile")
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
    assert min(asked) == again.own_log.last_batch.base_offset > 5
    assert log_of(again.files, OWN_LOG) == log_of(fixture.files, CONTROLLERS)


def test_a_controllers_snapshot_takes_the_logs_place() -> None:
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
    fixture.create_topic("t", 40)
    fixture.advance(0.5)
    member = Follower(fixture)
    fixture.create_topic("after")
    fixture.settle()
    (snapshot,) = list_snapshots(member.files, OWN_LOG)
    assert read_whole(member.files, f"{OWN_LOG}/{snapshot.file_name}") == read_whole(
        fixture.files, f"{CONTROLLERS}/{snapshot.file_name}"
    )
    assert (
        member.own_log.log.log_start_offset == snapshot.end_offset
        and member.own_log.end_offset == fixture.controller.log.end_offset
    )
    again = member.stop().again()
    assert again.base.topics_by_name == fixture.controller.image.topics_by_name


def test_the_log_is_truncated_behind_a_snapshot_of_its_own(fixture: ControllerFixture) -> None:
    member = Follower(fixture, metadata_log_max_record_bytes_between_snapshots="1000")
    fixture.create_topic("u", 30)
    fixture.settle()
    (snapshot,) = list_snapshots(member.files, OWN_LOG)
    assert member.own_log.log.segments.first.base_offset >= snapshot.end_offset
    again = member.again()
    assert (
        again.base == fixture.controller.image and again.observer.image == fixture.controller.image
    )


def test_a_log_that_ends_at_its_snapshot_knows_another_log(fixture: ControllerFixture) -> None:
    """No batch of the log is left to compare, and the other log has the same epoch at every
    offset: what stands beside the snapshot tells.
    """
    member = Follower(fixture, metadata_log_max_record_bytes_between_snapshots="1").stop()
    (snapshot,) = list_snapshots(member.files, OWN_LOG)
    assert snapshot.end_offset == member.own_log.end_offset and not log_of(member.files, OWN_LOG)
    before = member.observer.image
    own = member.again()
    assert own.ended == [] and own.observer.image == before == fixture.controller.image
    own.stop()
    fixture.crash()
    other = served({"metadata.max.idle.interval.ms": "0"})
    other.join(7)
    other.create_topic("another", 60)
    assert other.controller.log.end_offset > snapshot.end_offset
    assert other.controller.epoch == snapshot.epoch
    again = Follower(other, member.files)
    (error,) = again.ended
    assert isinstance(error, MetadataRegression) and "has another batch at offset" in str(error)
    assert again.observer.image == before and again.own_log.end_offset == snapshot.end_offset
    again.stop()


def left(disk: SimDisk, end: str) -> SimDisk:
    """What another process finds."""
    return disk.after_kill() if end == "kill" else disk.after_power_loss(keep=float(end))


@pytest.mark.parametrize("end", ["kill", "0", "0.5", "1"])
def test_a_crash_around_a_snapshot_leaves_a_batch_to_compare(
    fixture: ControllerFixture, end: str
) -> None:
    """At whatever operation: what is left of the log ends with a batch that is known, and it is
    the controller's.
    """
    log = log_of(fixture.files, CONTROLLERS)
    whole = {each.last_offset: each for each in iterate_batches(log)}

    def follow(disk: SimDisk) -> None:
        disk.make_directories("/own")
        own_log, base, _ = open_observer_log(disk, InlineWorker(), "/own", fixture.now, 7)
        disk.sync_all()
        loader = MetadataLoader(base, own_log.transactions, own_log.last_batch, own_log.append)
        for batch in whole.values():
            data = log[batch.offset : batch.offset + batch.size_in_bytes]
            loader.batches(data, batch.last_offset + 1)
            own_log.consider_snapshot(loader.image, loader.last_batch, 0, 1, 0)

    untouched = SimDisk(1)
    follow(untouched)
    names = untouched.listdir(OWN_LOG)
    assert len([name for name in names if name.endswith((".checkpoint", ".last-batch"))]) == 2
    at_snapshots = 0
    for at in range(untouched.operations):
        disk = SimDisk(at, crash_at=at)
        with pytest.raises(Crash):
            follow(disk)
        own_log, base, told = open_observer_log(
            left(disk, end), InlineWorker(), "/own", fixture.now, 7
        )
        if base.offset < 0:
            continue
        last = own_log.last_batch
        assert not told and last is not None and last.is_same(whole[base.offset])
        at_snapshots += (
            bool(own_log.snapshots) and base.offset + 1 == own_log.snapshots[-1].end_offset
        )
    assert at_snapshots > 20


@pytest.mark.parametrize("change", ["removed", "damaged"])
def test_a_log_whose_last_batch_is_not_known_goes_on(
    fixture: ControllerFixture, change: str
) -> None:
    """An older version wrote none; nothing is refused for a damaged one."""
    member = Follower(fixture, metadata_log_max_record_bytes_between_snapshots="1").stop()
    (name,) = [each for each in member.files.listdir(OWN_LOG) if each.endswith(".last-batch")]
    if change == "removed":
        member.files.remove(f"{OWN_LOG}/{name}")
    else:
        member.files.nodes[f"{OWN_LOG}/{name}"].data[4] ^= 1
    fixture.create_topic("u")
    again = member.again()
    assert again.told == "" and again.ended == []
    assert again.observer.image == fixture.controller.image
    again.stop()


def test_a_snapshot_that_is_overdue_comes_with_the_next_records(fixture: ControllerFixture) -> None:
    """`metadata.log.max.snapshot.interval.ms`: nothing came when it was over."""
    member = Follower(fixture, metadata_log_max_snapshot_interval_ms="3000")
    fixture.pass_time(2.9)
    fixture.create_topic("early")
    fixture.settle()
    assert list_snapshots(member.files, OWN_LOG) == []
    fixture.pass_time(2.0)
    fixture.create_topic("late")
    fixture.settle()
    (snapshot,) = list_snapshots(member.files, OWN_LOG)
    assert snapshot.end_offset == member.own_log.end_offset


def test_a_torn_tail_of_the_log_is_fetched_again(fixture: ControllerFixture) -> None:
    member = Follower(fixture)
    size = member.files.size(LOG)
    member.observer.stop()
    member.files.open(LOG).truncate(size - 10)
    again = member.again()
    assert again.told == "" and 0 <= again.base.offset < fixture.controller.image.offset
    assert again.observer.image == fixture.controller.image and log_of(
        again.files, OWN_LOG
    ) == log_of(fixture.files, CONTROLLERS)


@pytest.mark.parametrize("seed", range(12))
def test_a_loss_of_power_takes_the_end_of_the_log_and_no_more(
    fixture: ControllerFixture, seed: int
) -> None:
    """Nothing was synced but what a snapshot covers: what is left opens as a prefix of the log; or
    it has a hole with good batches behind it, which a flipped bit may have made as well, and is
    kept aside. Either way following goes on.
    """
    disk = SimDisk(seed)
    disk.make_directories("/own")
    disk.sync_all()
    member = Follower(
        fixture, disk, metadata_log_max_record_bytes_between_snapshots=("1000", "1000000")[seed % 2]
    )
    for number in range(4):
        fixture.create_topic(f"u{number}", 10)
        fixture.settle()
    member.observer.stop()
    again = Follower(fixture, disk.after_power_loss(keep=0.5))
    kept = [name for name in again.files.listdir("/own") if name.endswith("-stray")]
    assert again.base.offset == -1 if again.told else not kept
    assert [name for name in kept if name in again.told] == kept
    assert again.observer.image == fixture.controller.image and again.ended == []


def test_a_damaged_log_is_kept_aside_and_fetched_anew(fixture: ControllerFixture) -> None:
    member = Follower(fixture).stop()
    damaged = bytearray(member.files.nodes[LOG].data)
    member.files.nodes[LOG].data[200] ^= 1
    again = member.again()
    aside = f"__cluster_metadata-0.{7:032x}-stray"
    assert aside in again.told and LOG in again.told and "\n" not in again.told
    assert len(again.files.nodes[f"/own/{aside}/{0:020d}.log"].data) == len(damaged)
    assert again.observer.image == fixture.controller.image and again.ended == []


def test_a_damaged_log_is_not_fetched_from_a_controller_that_is_behind_it(
    fixture: ControllerFixture,
) -> None:
    """What the damaged log shows is the least that a controller must have; the next start knows
    it as well.
    """
    member = Follower(fixture).stop()
    reached = fixture.controller.log.end_offset
    member.files.nodes[LOG].data[200] ^= 1
    fixture.crash()
    other = served({"metadata.max.idle.interval.ms": "0"})
    for _ in range(2):
        again = Follower(other, member.files)
        assert again.own_log.known_end.end_offset == reached and again.base.offset == -1
        other.pass_time(30.0)
        (error,) = again.ended
        assert isinstance(error, MetadataRegression) and error.applied.end_offset == reached
        assert again.observer.image.offset == -1 and again.own_log.end_offset == 0
        again.stop()


def test_a_disk_that_fails_ends_the_log_only(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Follower(fixture)
    end = member.own_log.end_offset
    error = OSError(5, "the disk is gone")

    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr(member.own_log.log.segments.active.log.open(), "write_at", refuse)
    fixture.create_topic("u")
    fixture.settle()
    assert member.broken == [error] and member.own_log.end_offset == end
    assert member.observer.image == fixture.controller.image and member.ended == []
    member.stop()


def test_a_log_that_is_not_written_any_more_says_so_once(fixture: ControllerFixture) -> None:
    """A batch that does not follow what is there: the metadata is followed on, the disk is well,
    and one line says what becomes of the own_log.
    """
    member = Follower(fixture)
    end = member.own_log.end_offset
    behind = build_batch([records.NoOpRecord()], end - 1, fixture.controller.epoch, 0, 30)
    member.own_log.append(behind)
    fixture.create_topic("u")
    fixture.settle()
    (line,) = member.warnings
    assert OWN_LOG in line and "until its next start" in line
    assert member.observer.image == fixture.controller.image
    assert member.broken == member.ended == [] and member.own_log.end_offset == end
    member.stop()


def test_a_snapshot_that_ends_within_a_batch(fixture: ControllerFixture) -> None:
    """Old controllers wrote such: the log begins with that batch, whole, as Kafka's followers do;
    a restart counts only what the snapshot does not hold, and following goes on.
    """
    end = fixture.controller.log.end_offset
    fixture.create_topic("u", 3)
    log = log_of(fixture.files, CONTROLLERS)
    straddling = next(each for each in iterate_batches(log) if each.base_offset == end)
    assert straddling.last_offset > end
    loader = MetadataLoader()
    loader.batches(log[: straddling.offset], end)
    image = loader.image.apply(decoded(straddling)[:2], end + 1, 1, 0)[0]
    snapshot = SnapshotId(end + 2, 1)
    files = MemoryFileSystem()
    files.make_directories("/own")
    own_log, _, _ = open_observer_log(files, InlineWorker(), "/own", fixture.now, 7)
    own_log.install(b"".join(snapshot_bytes(image, 0)), snapshot)
    own_log.append(log[straddling.offset :])
    assert own_log.failed is None and own_log.end_offset == fixture.controller.log.end_offset
    own_log.finish()
    again = Follower(fixture, files)
    assert again.base == fixture.controller.image and again.told == ""
    assert again.ended == [] and again.observer.image == fixture.controller.image
    again.stop()
    write_meta_properties(files, "/own", MetaProperties(CLUSTER_ID, 2, b"c" * 16))
    source = read_source(files, "/own")
    assert source.image == fixture.controller.image
    recover(files, source, Target("/new", node_id=1), 0, Random(1).randbytes)


def test_within_a_transaction_no_snapshot_is_written(fixture: ControllerFixture) -> None:
    """A snapshot there would lack what the transaction has held back so far."""
    member = Follower(fixture, metadata_log_max_record_bytes_between_snapshots="1")
    before = list_snapshots(member.files, OWN_LOG)
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
    assert (
        member.own_log.end_offset == log.end_offset
        and list_snapshots(member.files, OWN_LOG) == before
    )
    again = member.stop().again()
    log.append([records.EndTransactionRecord()], 30)
    log.sync()
    fixture.pass_time(1.0)
    assert "held" in again.observer.image.topics_by_name


@pytest.mark.parametrize("position", [0, 7, 8, 15, 40])
def test_a_flipped_bit_above_the_durable_end_is_damage(
    fixture: ControllerFixture, position: int
) -> None:
    """The durable end of a log lags behind its end, and all of it was committed: good batches
    behind a bad one are no torn tail, whichever field the bit is in (base offset, length, leader
    epoch).
    """
    member = Follower(fixture)
    member.observer.stop()
    assert read_durable_end(member.files, OWN_LOG) == 0
    data = member.files.nodes[LOG].data
    third = [batch.offset for batch in iterate_batches(bytes(data))][2]
    data[third + position] ^= 1
    damaged = bytes(data)
    again = member.again()
    aside = f"__cluster_metadata-0.{7:032x}-stray"
    assert aside in again.told and f"at byte {third}" in again.told
    assert bytes(again.files.nodes[f"/own/{aside}/{0:020d}.log"].data) == damaged
    assert again.observer.image == fixture.controller.image and again.ended == []


@pytest.mark.parametrize("at", [12, 14, 15])
def test_a_flipped_epoch_at_the_very_end_is_not_believed(
    fixture: ControllerFixture, at: int
) -> None:
    """No batch follows the LeaderChange, and a log has no quorum-state: the leader-epoch
    checkpoint contradicts it. Believed, every controller would lead an older epoch for ever.
    """
    member = Follower(fixture)
    fixture.crash()
    member.observer.stop()
    fixture.controller = fixture.open()
    fixture.controller.log.replay()
    fixture.controller.log.begin_epoch()
    newest = log_of(fixture.files, CONTROLLERS)[len(log_of(member.files, OWN_LOG)) :]
    member.own_log.append(newest)
    assert [batch.is_control for batch in iterate_batches(newest)] == [True]
    data = member.files.nodes[LOG].data
    last = [batch.offset for batch in iterate_batches(bytes(data))][-1]
    data[last + at] ^= 0b100
    again = member.again()
    assert again.base.epoch == 1 and again.own_log.known_end.epoch <= 1
    assert again.observer.leader_epoch <= 1
    again.stop()


def test_the_durable_end_moves_while_records_come(fixture: ControllerFixture) -> None:
    """Not only at a clean stop: a log that was killed is known to have gone as far."""
    member = Follower(fixture)
    fixture.create_topic("u")
    fixture.settle()
    end = member.own_log.end_offset
    assert read_durable_end(member.files, OWN_LOG) == 0
    fixture.pass_time(SYNC_MS / 1000)
    fixture.join(7)
    fixture.settle()
    assert end < (read_durable_end(member.files, OWN_LOG) or 0) <= member.own_log.end_offset


def test_the_durable_end_moves_with_a_snapshot(fixture: ControllerFixture) -> None:
    member = Follower(fixture, metadata_log_max_record_bytes_between_snapshots="1000")
    fixture.create_topic("u", 30)
    fixture.settle()
    (snapshot,) = list_snapshots(member.files, OWN_LOG)
    assert read_durable_end(member.files, OWN_LOG) == snapshot.end_offset > 0


def test_the_newest_damaged_logs_are_kept(fixture: ControllerFixture) -> None:
    """A disk that rots does not fill up with them; a controller's log is not one of them."""
    member = Follower(fixture).stop()
    own = f"/own/__cluster_metadata-0.{99:032x}-stray"
    member.files.make_directories(own)
    member.files.open(f"{own}/quorum-state", create=True)
    for number in range(MOST_DAMAGED_LOGS + 2):
        member.files.nodes[LOG].data[200] ^= 1
        fixture.create_topic(f"u{number}")
        again = Follower(fixture, member.files, unique=number).stop()
        assert f"{number:032x}-stray" in again.told
    kept = {name for name in member.files.listdir("/own") if name.endswith("-stray")}
    newest = range(2, MOST_DAMAGED_LOGS + 2)
    assert kept == {f"__cluster_metadata-0.{each:032x}-stray" for each in (*newest, 99)}


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_a_crash_while_a_damaged_log_is_replaced_forgets_nothing(
    fixture: ControllerFixture, keep: float
) -> None:
    """At whatever operation: the next start knows how far it went, or finds it damaged again."""

    def damaged(crash_at: int | None = None) -> SimDisk:
        disk = SimDisk(1, crash_at=crash_at)
        disk.make_directories("/own")
        for path in sorted(member.files.directories):
            disk.make_directories(path)
        for path, node in member.files.nodes.items():
            disk.open(path, create=True).write_at(0, (bytes(node.data),))
        disk.sync_all()
        return disk

    member = Follower(fixture).stop()
    reached = member.own_log.end_offset
    member.files.nodes[LOG].data[200] ^= 1
    whole = damaged()
    before = whole.operations
    opened = open_observer_log(whole, InlineWorker(), "/own", fixture.now, 7)
    assert opened[0].known_end.end_offset == reached
    for at in range(before, whole.operations):
        disk = damaged(crash_at=at)
        with pytest.raises(Crash):
            open_observer_log(disk, InlineWorker(), "/own", fixture.now, 7)
        left = disk.after_power_loss(keep)
        own_log, _, _ = open_observer_log(left, InlineWorker(), "/own", fixture.now, 8)
        assert own_log.known_end.end_offset == reached
        assert not left.is_directory(f"{OWN_LOG}.new")


def test_a_clean_end_syncs_all_of_it(fixture: ControllerFixture) -> None:
    member = Follower(fixture).stop()
    assert (
        read_durable_end(member.files, OWN_LOG)
        == member.own_log.end_offset
        == fixture.controller.log.end_offset
    )


def test_a_clean_end_on_a_disk_that_fails_is_a_failure_of_the_disk(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Follower(fixture)
    before = read_durable_end(member.files, OWN_LOG)
    error = OSError(5, "the disk is gone")

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(type(member.own_log.log), "finish", refuse)
    member.own_log.finish()
    assert member.broken == [error] and read_durable_end(member.files, OWN_LOG) == before
