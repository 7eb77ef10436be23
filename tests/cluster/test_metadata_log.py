"""The metadata log on disk: what is durable when, epochs, restarts, snapshots."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from tests.cluster.fixtures import CLUSTER_ID, Fixture, StalledWorker, decoded, short_at_the_second
from tests.log.manual_worker import ManualWorker
from twisted_broker.cluster import metadata_log, metadata_store
from twisted_broker.cluster.metadata_check import (
    MetadataDamage,
    read_durable_end,
    write_durable_end,
)
from twisted_broker.cluster.quorum_state import (
    read_quorum_state,
    write_quorum_state,
)
from twisted_broker.cluster.records import DIRECTORIES_LEVEL, build_batch
from twisted_broker.cluster.snapshots import SnapshotId, list_snapshots
from twisted_broker.log.checkpoints import read_partition_metadata, read_whole
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.log import Log
from twisted_broker.raft.election_state import ElectionState
from twisted_broker.raft.replica_key import ReplicaKey
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.topic_names import METADATA_TOPIC_ID
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.records import iterate_batches
from twisted_broker.wire.schema import Record, run_whole

DIRECTORY = "/data/__cluster_metadata-0"


def batches(fixture: Fixture) -> list[Any]:
    log = fixture.controller.log.log
    found = log.read(log.log_start_offset, 1 << 20).slice
    assert found is not None
    return list(iterate_batches(found.read()))


def test_nothing_is_applied_answered_or_served_before_it_is_durable() -> None:
    """RL 8.1: a stalled disk holds back the answer, the image and the high watermark, not the
    next decision.
    """
    worker = StalledWorker()
    fixture = Fixture(worker).start()
    assert fixture.controller.committed.offset == -1 and fixture.controller.log.high_watermark == 0
    worker.run()
    epoch = None
    registered = fixture.send("broker_registration", fixture.registration(), 4)
    registered.addCallback(lambda answer: answer.broker_epoch)
    assert not registered.called and fixture.controller.image.brokers == {}
    assert 1 in fixture.controller.decided.brokers
    worker.run()
    epoch = registered.result
    assert fixture.controller.image.brokers[1].epoch == epoch
    assert fixture.controller.log.high_watermark == fixture.controller.log.end_offset


def test_what_was_encoded_before_is_appended_where_the_log_ends() -> None:
    """In steps, in one batch, the same as without."""
    fixture = Fixture().start()
    controller = fixture.controller
    found = [
        records.TopicRecord(name=f"t{n}", topic_id=n.to_bytes(16, "big")) for n in range(1, 1201)
    ]
    steps = controller.prepare(found)
    assert next(steps) is None and next(steps) is None
    prepared = run_whole(steps)
    end = controller.log.end_offset
    controller.write([records.NoOpRecord()])
    controller.write(found, prepared)
    assert len(controller.image.topics_by_name) == 1200
    written = batches(fixture)[-1]
    assert (written.base_offset, written.last_offset) == (end + 1, end + 1200)
    whole = build_batch(
        found, end + 1, controller.epoch, fixture.now(), controller.decided.metadata_version or 0
    )
    assert whole == written.buffer[written.offset : written.offset + written.size_in_bytes]


def test_several_batches_that_were_encoded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision of more than one batch, encoded and applied in steps, is one metadata transaction
    as well; what was decided meanwhile stays.
    """
    monkeypatch.setattr(metadata_log, "RECORDS_PER_BATCH", 1000)
    found = [
        records.TopicRecord(name=f"t{n}", topic_id=n.to_bytes(16, "big")) for n in range(1, 3501)
    ]
    written: list[list[bytes]] = []
    for is_prepared in (False, True):
        fixture = Fixture().start()
        controller, end = fixture.controller, fixture.controller.log.end_offset
        if is_prepared:
            steps = controller.prepare(found)
            pauses = 0
            while True:
                try:
                    next(steps)
                except StopIteration as done:
                    prepared = done.value
                    break
                pauses += 1
            assert pauses > 2 * 3500 / 500
            controller.write([records.TopicRecord(name="meanwhile", topic_id=b"m" * 16)])
            controller.write(found, prepared)
            assert "meanwhile" in controller.image.topics_by_name
            end += 1
        else:
            controller.write(found)
        new = [batch for batch in batches(fixture) if batch.base_offset >= end]
        assert [batch.records_count for batch in new] == [1000, 1000, 1000, 502]
        assert new[0].base_offset == end and controller.log.end_offset == end + 3502
        # From the timestamps on: the offset and the CRC before them belong to the place.
        written.append([batch.to_bytes()[61:] for batch in new])
        assert len(controller.image.topics_by_name) == 3500 + is_prepared
        again = fixture.open().log.replay()
        assert again.topics_by_name == controller.image.topics_by_name
    assert written[0] == written[1]


def test_what_comes_during_a_sync_shares_the_next_one() -> None:
    """RL 8.1, group commit: three changes behind one sync are durable with the second."""
    worker = StalledWorker()
    fixture = Fixture(worker).start()
    worker.run()
    first = fixture.send("broker_registration", fixture.registration(1, b"1" * 16), 4)
    others = [
        fixture.send("broker_registration", fixture.registration(broker, bytes([broker]) * 16), 4)
        for broker in (2, 3, 4)
    ]
    assert len(worker.jobs) == 1
    worker.run()
    assert first.called and not any(each.called for each in others)
    assert len(worker.jobs) == 1
    worker.run()
    assert all(each.called for each in others) and sorted(fixture.controller.image.brokers) == [
        1,
        2,
        3,
        4,
    ]


def test_a_second_decision_sees_the_first_before_it_is_durable() -> None:
    """Invariant 1 and 3 of the controller: the same topic twice: the second is refused, and its
    refusal waits for the first to be durable.
    """
    worker = StalledWorker()
    fixture = Fixture(worker).start()
    worker.run()
    registered = fixture.send("broker_registration", fixture.registration(1, bytes([1]) * 16), 4)
    worker.run()
    beat = fixture.lifecycle_beat(1, registered.result.broker_epoch)
    worker.run()
    assert beat.called
    first, second = fixture.send_creation("t"), fixture.send_creation("t")
    assert not first.called and not second.called
    worker.run()
    worker.run()
    assert first.result.topics[0].error_code == 0
    assert second.result.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_disk_that_fails_ends_the_controller() -> None:
    """RL 8.1: nobody is told of a change that may be lost; afterwards everything is
    NOT_CONTROLLER.
    """
    worker = StalledWorker()
    fixture = Fixture(worker).start()
    worker.run()
    waiting = fixture.send("broker_registration", fixture.registration(), 4)
    worker.run(OSError(5, "the disk is gone"))
    with pytest.raises(BrokerError) as caught:
        waiting.result.raiseException()
    assert caught.value.code is ErrorCode.NOT_CONTROLLER and len(fixture.fatal) == 1
    waiting.addErrback(lambda failure: None)
    with pytest.raises(BrokerError) as caught:
        fixture.register()
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    assert fixture.controller.image.brokers == {}


def test_a_write_that_fails_ends_the_controller(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.1: also where the disk refuses the append itself; a stop afterwards is no second
    failure.
    """

    def refuse(*_: object) -> int:
        raise OSError(5, "the disk is gone")

    monkeypatch.setattr(fixture.controller.log.log.segments.active.log.open(), "write_at", refuse)
    with pytest.raises(BrokerError):
        fixture.register()
    assert len(fixture.fatal) == 1
    with pytest.raises(BrokerError) as caught:
        fixture.register()
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    fixture.controller.stop()


def test_a_restart_replays_the_log_and_leads_a_new_epoch(fixture: Fixture) -> None:
    """RL 8.1: nothing is lost; quorum-state names the epoch; each start begins with a
    LeaderChange control batch.
    """
    fixture.join(1)
    fixture.send_creation("t", 3)
    before = fixture.controller.image
    for epoch in (2, 3):
        fixture.restart()
        state = read_quorum_state(fixture.files, DIRECTORY)
        assert state is not None and (state.leader_id, state.epoch) == (1, epoch) == (
            1,
            fixture.controller.epoch,
        )
        image = fixture.controller.image
        assert (
            image.topics_by_name == before.topics_by_name
            and image.brokers == before.brokers
            and image.configs == before.configs
        )
        changes = [batch for batch in batches(fixture) if batch.is_control]
        assert [batch.partition_leader_epoch for batch in changes] == list(range(1, epoch + 1))


def test_an_epoch_that_was_begun_is_never_led_again(fixture: Fixture) -> None:
    """RL 8.1: quorum-state is written first: even if the start failed right after it, the next
    epoch is another one.
    """
    files, seen = fixture.files, fixture.controller.epoch
    again = fixture.open()
    write = again.log._write
    again.log._write = lambda batch: (_ for _ in ()).throw(OSError(28, "full"))
    again.log.replay()
    with pytest.raises(OSError):
        again.log.begin_epoch()
    again.log._write = write
    state = read_quorum_state(files, DIRECTORY)
    assert state is not None and state.epoch == seen + 1
    fixture.restart()
    assert fixture.controller.epoch == seen + 2


def test_an_epoch_is_durable_before_it_is_used() -> None:
    """RL 8.1: quorum-state is synced, its name too, before anything of the epoch is: a loss of
    power leaves it when it leaves nothing else of this start.
    """
    fixture = Fixture(StalledWorker())
    disk = SimDisk(1)
    disk.make_directories("/data")
    disk.sync_all()
    fixture.runtime.files = fixture.files = disk
    fixture.controller = fixture.open()
    fixture.start()
    left = disk.after_power_loss(keep=0)
    assert left.content(f"{DIRECTORY}/{0:020d}.log") == b""
    assert read_quorum_state(left, DIRECTORY) == ElectionState(1, 1, ReplicaKey(1))


@pytest.mark.parametrize("leader", [None, 3])
def test_what_this_node_never_led_is_not_led(fixture: Fixture, leader: int | None) -> None:
    """A broker's copy has no quorum-state; a voter's names another leader: both may lack what was
    committed. Nothing is changed, and the line says what to do.
    """
    fixture.join(1)
    fixture.files.remove(f"{DIRECTORY}/quorum-state")
    if leader is not None:
        write_quorum_state(fixture.files, DIRECTORY, ElectionState(1, leader), [leader])
    before = {path: bytes(node.data) for path, node in fixture.files.nodes.items()}
    with pytest.raises(
        MetadataDamage,
        match=r"without the role controller.*recover --from /data --to /data` --move-aside",
    ):
        fixture.open()
    assert {path: bytes(node.data) for path, node in fixture.files.nodes.items()} == before


def test_what_founding_makes_is_led(fixture: Fixture) -> None:
    """Until the first record nothing says who leads: at whatever step a crash comes."""
    for name in list(fixture.files.listdir(DIRECTORY)):
        fixture.files.remove(f"{DIRECTORY}/{name}")
    write_durable_end(fixture.files, DIRECTORY, 0)
    fixture.open().log.log.close()
    assert f"{0:020d}.log" in fixture.files.listdir(DIRECTORY)
    assert fixture.restart().controller.epoch == 1


def test_the_bootstrap_is_one_transaction_in_one_batch(fixture: Fixture) -> None:
    """RL 8.1: a new cluster is finalised as a whole or not at all."""
    second = batches(fixture)[1]
    assert (second.base_offset, second.last_offset) == (1, 9)
    names = [type(record).__name__ for record in decoded(second)]
    assert (names[0], names[-1]) == ("BeginTransactionRecord", "EndTransactionRecord")
    assert names.count("FeatureLevelRecord") == 6


def test_an_idle_log_gets_an_empty_record_every_500_ms(fixture: Fixture) -> None:
    """RL 8.1, KIP-835: and none while other records come, nor when it is switched off."""
    end = fixture.controller.log.end_offset
    fixture.advance(2.0)
    assert fixture.controller.log.end_offset == end + 4
    quiet = Fixture(settings={"metadata.max.idle.interval.ms": "0"}).start()
    end = quiet.controller.log.end_offset
    quiet.advance(2.0)
    assert quiet.controller.log.end_offset == end


def test_a_snapshot_replaces_the_log_before_it() -> None:
    """RL 8.1: written when enough came, the log cut behind it, older ones removed; a restart
    begins from it.
    """
    fixture = Fixture(settings={"metadata.log.max.record.bytes.between.snapshots": "2000"}).start()
    fixture.join(1)
    fixture.send_creation("t", 40)
    fixture.advance(0.5)
    first = list_snapshots(fixture.files, DIRECTORY)
    assert len(first) == 1 and first[0].epoch == 1
    log = fixture.controller.log.log
    assert log.log_start_offset == first[0].end_offset
    assert min(segment.base_offset for segment in log.segments) > 0
    fixture.send_creation("u", 40)
    fixture.advance(0.5)
    (second,) = list_snapshots(fixture.files, DIRECTORY)
    assert second > first[0]
    before = fixture.controller.image
    fixture.send_creation("v")
    fixture.restart()
    image = fixture.controller.image
    assert image.topics_by_name["u"] == before.topics_by_name["u"] and "v" in image.topics_by_name
    assert image.features == before.features and image.next_producer_id == before.next_producer_id


@pytest.mark.parametrize("idle_ms", ["100", "500"])
def test_an_idle_log_is_cut_behind_snapshots(idle_ms: str) -> None:
    """RL 8.1: each tick writes an empty record, which no disk has in the same turn."""
    worker = ManualWorker()
    bytes_between = "1000"
    fixture = Fixture(
        worker,
        {
            "metadata.log.max.record.bytes.between.snapshots": bytes_between,
            "metadata.max.idle.interval.ms": idle_ms,
        },
    ).start()
    for _ in range(60):
        worker.run_all()
        fixture.advance(0.5)
    worker.run_all()
    log = fixture.controller.log
    assert len(log.snapshots) == 1 and log.end_offset > 60
    assert log.log.log_start_offset == log.snapshots[-1].end_offset > log.end_offset - 30
    before = fixture.controller.image
    worker.run_all()
    fixture.restart()
    assert fixture.controller.image.features == before.features


def test_no_snapshot_goes_beyond_what_is_known_to_be_durable() -> None:
    """After a start whose durable end is older, until a sync is done; here the first three find no
    descriptor.
    """
    worker = ManualWorker()
    settings = {"metadata.log.max.record.bytes.between.snapshots": "1000"}
    fixture = Fixture(worker, settings).start()
    worker.run_all()
    fixture.send_creation("t", 40)
    fixture.send_creation("u", 40)
    worker.run_all()
    fixture.controller._ticks.stop()
    write_durable_end(fixture.files, DIRECTORY, 1)
    fixture.restart()
    worker.run_one()  # the leader epochs
    for _ in range(3):
        _, synced = worker.jobs.pop(0)
        synced(None, OSError(errno.EMFILE, "no"))
        worker.run_all()
        fixture.clock.advance(0.5)
    for _ in range(2):
        worker.run_all()
        fixture.clock.advance(0.5)
    worker.run_all()
    log = fixture.controller.log
    assert log.log.log_start_offset == log.snapshots[-1].end_offset <= log.high_watermark


def test_where_descriptors_are_short_the_controller_goes_on() -> None:
    """EMFILE is not the disk's failure: a sync and a snapshot that found no free descriptor are
    made again, and nothing is answered before the sync was.
    """
    short = OSError(errno.EMFILE, "too many open files")
    worker = StalledWorker()
    fixture = Fixture(
        worker,
        {
            "metadata.log.max.snapshot.interval.ms": "1000",
            "metadata.max.idle.interval.ms": "0",
        },
    ).start()
    worker.run()
    registered = fixture.send("broker_registration", fixture.registration(), 4)
    worker.run(short)
    assert fixture.controller.log.failed is None and not registered.called
    assert 1 not in fixture.controller.image.brokers
    fixture.clock.advance(0.5)
    worker.run()
    assert registered.called and 1 in fixture.controller.image.brokers
    fixture.clock.advance(0.5)
    worker.run(short)
    assert fixture.controller.log.failed is None
    assert list_snapshots(fixture.files, DIRECTORY) == []
    fixture.clock.advance(1.0)
    worker.run()
    assert len(list_snapshots(fixture.files, DIRECTORY)) == 1


def test_a_sync_holds_its_files_no_longer_than_it_runs() -> None:
    """A reference that stays would keep the descriptor of a deleted segment for ever."""
    worker = StalledWorker()
    fixture = Fixture(worker, {"metadata.max.idle.interval.ms": "0"}).start()
    worker.run()
    segments = [segment.log for segment in fixture.controller.log.log.segments]
    fixture.send("broker_registration", fixture.registration(), 4)
    assert [file.references for file in segments] == [1]
    worker.run()
    assert [file.references for file in segments] == [0]
    fixture.send("broker_registration", fixture.registration(), 4)
    worker.run(OSError(errno.EMFILE, "too many open files"))
    assert [file.references for file in segments] == [0]


@pytest.mark.parametrize("was_open", [True, False])
def test_where_no_descriptor_is_left_the_durable_end_is_that_of_what_is_committed(
    was_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file stays open. Where it is not, nothing is committed until it can be: a flipped bit in
    what is above the durable end would be taken for a torn tail (seed 1021144).
    """
    fixture = Fixture().start()
    fixture.join(1)
    log, whole = fixture.controller.log, type(fixture.files).open

    def short(files: Any, path: str, **more: bool) -> Any:
        if path.endswith("replication-offset-checkpoint"):
            raise OSError(errno.EMFILE, "too many open files")
        return whole(files, path, **more)

    if not was_open:
        log._durable_end_file.close()
    before = log.high_watermark
    with monkeypatch.context() as patched:
        patched.setattr(type(fixture.files), "open", short)
        created = fixture.send_creation("t")
    assert log.failed is None and created.called is was_open
    if was_open:
        assert before < log.high_watermark == read_durable_end(fixture.files, DIRECTORY)
        return
    assert before == log.high_watermark == read_durable_end(fixture.files, DIRECTORY)
    fixture.clock.advance(0.5)
    assert created.called and log.high_watermark == read_durable_end(fixture.files, DIRECTORY)


def test_a_snapshot_by_time() -> None:
    """metadata.log.max.snapshot.interval.ms: after that time, if anything came."""
    fixture = Fixture(
        settings={
            "metadata.log.max.snapshot.interval.ms": "3000",
            "metadata.max.idle.interval.ms": "0",
        }
    ).start()
    fixture.advance(2.5)
    assert list_snapshots(fixture.files, DIRECTORY) == []
    fixture.advance(0.5)
    assert len(list_snapshots(fixture.files, DIRECTORY)) == 1
    fixture.advance(6.0)
    assert len(list_snapshots(fixture.files, DIRECTORY)) == 1


def test_a_snapshot_beyond_the_log_wins() -> None:
    """RL 8.1: a log that was lost behind its snapshot goes on from the snapshot's end."""
    fixture = Fixture(settings={"metadata.log.max.record.bytes.between.snapshots": "2000"}).start()
    fixture.join(1)
    fixture.send_creation("t", 40)
    fixture.advance(0.5)
    (snapshot,) = list_snapshots(fixture.files, DIRECTORY)
    for name in fixture.files.listdir(DIRECTORY):
        if (
            name.endswith((".log", ".index", ".timeindex", ".snapshot"))
            or name == "leader-epoch-checkpoint"
        ):
            fixture.files.remove(f"{DIRECTORY}/{name}")
    fixture.restart()
    assert len(fixture.controller.image.topics_by_name["t"].partitions) == 40
    assert fixture.controller.log.log.log_start_offset == snapshot.end_offset
    assert fixture.controller.epoch == 2


def test_a_torn_batch_at_the_end_was_never_promised(fixture: Fixture) -> None:
    """RL 3.6, 8.1: what a crash left half written is cut, and the log goes on behind the last
    whole batch.
    """
    fixture.send_creation("ignored")
    fixture.join(1)
    end = fixture.controller.log.end_offset
    path = f"{DIRECTORY}/{0:020d}.log"
    file = fixture.files.open(path)
    file.write_at(file.size(), [b"\x00" * 7 + b"\x09" + b"\x00\x00\x01\x00half of a batch"])
    fixture.restart()
    assert [batch.base_offset for batch in batches(fixture) if batch.is_control][-1] == end
    assert 1 in fixture.controller.image.brokers


@pytest.mark.parametrize("read_bytes", [1, 100, 700, 5000])
def test_a_replay_reads_the_log_in_pieces(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    """A batch that lies across the end of a read, or is longer than one, is read whole: a log
    may be longer than a read.
    """
    fixture.join(1)
    for number in range(8):
        fixture.send_creation(f"t{number}", 1 + 10 * number)
    before, written = fixture.controller.image, fixture.controller.log.bytes_since_snapshot
    monkeypatch.setattr(metadata_store, "READ_BYTES", read_bytes)
    again = fixture.open().log
    image = again.replay()
    assert written > 5000 and again.bytes_since_snapshot == written
    assert (image.offset, image.topics_by_name, image.brokers) == (
        before.offset,
        before.topics_by_name,
        before.brokers,
    )


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4])
def test_a_decision_of_several_batches_is_all_or_nothing(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """KIP-868: a crash between its batches leaves a transaction without an end, which the next
    controller aborts.
    """
    fixture.join(1)
    before, end = fixture.controller.image, fixture.controller.log.end_offset
    monkeypatch.setattr(metadata_log, "RECORDS_PER_BATCH", 10)
    fixture.send_creation("large", 30)
    written = [batch for batch in batches(fixture) if batch.base_offset >= end]
    assert len(written) == 4 and max(batch.records_count for batch in written) == 10
    assert len(fixture.controller.image.topics_by_name["large"].partitions) == 30
    path = f"{DIRECTORY}/{0:020d}.log"
    fixture.files.open(path).truncate(
        fixture.files.size(path) - sum(batch.size_in_bytes for batch in written[kept:])
    )
    fixture.files.remove(f"{DIRECTORY}/replication-offset-checkpoint")  # it was not synced
    fixture.restart()
    topics = fixture.controller.image.topics_by_name
    assert len(topics["large"].partitions) == 30 if kept == 4 else topics == before.topics_by_name
    fixture.send_creation("after", 30)
    fixture.restart()
    assert len(fixture.controller.image.topics_by_name["after"].partitions) == 30


def test_without_metadata_transactions_a_decision_is_several_batches(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below 3.6-IV1 nobody would understand one; the bootstrap, which is one already, is not put
    into another.
    """
    monkeypatch.setattr(metadata_log, "RECORDS_PER_BATCH", 2)
    log, end = fixture.controller.log, fixture.controller.log.end_offset
    found = [records.NoOpRecord() for _ in range(5)]
    assert log.append(found, 12) == end + 4
    assert (
        log.append([records.BeginTransactionRecord(), *found, records.EndTransactionRecord()], 30)
        == end + 11
    )
    assert log.append(found, 13) == end + 18


def test_the_names_of_snapshots() -> None:
    """FILE_FORMATS 3: 20 digits of offset, 10 of epoch."""
    assert SnapshotId(51, 1).file_name == "00000000000000000051-0000000001.checkpoint"


@pytest.mark.skipif(
    "KAFKA_JARS" not in os.environ,
    reason="Apache Kafka's tools: set KAFKA_JARS to a folder of its jars",
)
def test_kafkas_dump_tool_reads_log_and_snapshot(tmp_path: Path) -> None:
    """RL 8.1: readable by Kafka's dump tool, records decoded, snapshot included."""
    fixture = Fixture(settings={"metadata.log.max.record.bytes.between.snapshots": "2000"})
    fixture.runtime.files = fixture.files = OsFileSystem()  # type: ignore[assignment]
    fixture.directory = str(tmp_path)
    fixture.controller = fixture.open()
    fixture.start()
    fixture.join(1)
    fixture.send_creation("dumped", 40)
    log = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    assert '"name":"dumped"' in dump(log) and "LeaderChange" in dump(log)
    fixture.advance(0.5)
    (snapshot,) = list_snapshots(fixture.files, fixture.controller.log.directory)
    text = dump(log.parent / snapshot.file_name)
    assert "SnapshotHeader" in text and "SnapshotFooter" in text and '"name":"dumped"' in text


def dump(path: Path) -> str:
    tool = [
        "java",
        "-cp",
        os.environ["KAFKA_JARS"] + "/*",
        "org.apache.kafka.tools.DumpLogSegments",
    ]
    done = subprocess.run(
        [*tool, "--cluster-metadata-decoder", "--files", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Could not" not in done.stdout and "isvalid: false" not in done.stdout
    return done.stdout


@pytest.mark.parametrize("content", [b"", b"no json", b'{"data_version": 7}'])
def test_a_quorum_state_that_cannot_be_read_is_one_line_with_the_remedy(content: bytes) -> None:
    """Which epochs were led is not known then: nothing is led, nothing is changed."""
    fixture = Fixture().start()
    path = "/data/__cluster_metadata-0/quorum-state"
    file = fixture.files.open(path)
    file.truncate(0)
    file.write_at(0, [content])
    with pytest.raises(MetadataDamage) as caught:
        fixture.restart()
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and "\n" not in line
    assert "`replog metadata recover --from A_BROKERS_LOG_DIR --to /data`" in line
    assert read_whole(fixture.files, path) == content


def test_the_durable_end_is_synced_every_five_seconds() -> None:
    """In between it is only written: after a loss of power an older one is true as well. A clock
    that was put back does not put the sync off.
    """
    disk, worker, wall_ms = SimDisk(1), StalledWorker(), [0]
    disk.make_directories("/data")
    metadata_log.format_metadata(disk, "/data", CLUSTER_ID, True)
    disk.sync_all()
    log = metadata_log.open_metadata_log(
        disk, worker, "/data", 1, lambda: wall_ms[0], lambda offset: None, lambda error: None
    )
    log.begin_epoch()

    def is_synced(at_ms: int) -> bool:
        """After one more batch: a kill leaves the newest one; whether a loss of power does."""
        wall_ms[0] = at_ms
        log.append([records.NoOpRecord()], 1)
        log.sync()
        worker.run()
        left = (disk.after_kill(), disk.after_power_loss(keep=0))
        newest, after_power_loss = (read_durable_end(each, log.directory) for each in left)
        assert newest == log.end_offset and after_power_loss is not None
        return after_power_loss == newest

    times_ms = (60_000, 60_001, 64_999, 65_000, 65_001, 3_000, 3_001)
    assert [at_ms for at_ms in times_ms if is_synced(at_ms)] == [60_000, 65_000, 3_000]


def test_what_a_killed_process_wrote_counts_when_it_is_synced() -> None:
    """RL 8.1: a process wrote a batch and was killed before its sync; the next one takes it for
    committed, so it is durable first (simulation, one broker, seed 100162).
    """
    disk, worker = SimDisk(1), StalledWorker()
    disk.make_directories("/data")
    metadata_log.format_metadata(disk, "/data", CLUSTER_ID, True)
    disk.sync_all()

    def opened(files: SimDisk) -> metadata_log.MetadataLog:
        return metadata_log.open_metadata_log(
            files, worker, "/data", 1, lambda: 0, lambda offset: None, lambda error: None
        )

    log = opened(disk)
    log.begin_epoch()
    log.sync()
    worker.run()
    log.append([records.NoOpRecord()], 1)
    again = opened(disk)
    assert again.end_offset == log.end_offset == again.replay().offset + 1
    assert opened(disk.after_power_loss(keep=0)).end_offset == log.end_offset


def test_what_is_decided_after_the_stop_is_refused(fixture: Fixture) -> None:
    """A request, or a broker's fencing, that was decided in steps ends after the stop: the log is
    closed, its directory may be another process's already.
    """
    controller = fixture.controller
    work = controller.decide(lambda view: _one_pause([records.NoOpRecord()]), lambda found: found)
    next(work)
    controller.stop()
    before = {path: bytes(node.data) for path, node in fixture.files.nodes.items()}
    found, prepared = run_whole(work)
    failed: list[Any] = []
    controller.write(found, prepared).addErrback(failed.append)
    assert failed[0].value.code is ErrorCode.NOT_CONTROLLER
    assert {path: bytes(node.data) for path, node in fixture.files.nodes.items()} == before


def reported_late(worker: StalledWorker) -> list[Callable[[], None]]:
    """Does every job; what they came to is reported when these are called."""
    jobs, worker.jobs = worker.jobs, []
    reports: list[Callable[[], None]] = []
    for job, done in jobs:
        try:
            reports.append(partial(done, job(), None))
        except OSError as failure:
            reports.append(partial(done, None, failure))
    return reports


def test_a_stop_behind_a_sync_that_fails_raises_no_durable_end() -> None:
    """RL 8.1: what the kernel could not write it has dropped, and the sync of the stop, right
    behind, finds nothing left to write. Records that are lost would count as missing.
    """
    worker, disk = StalledWorker(), SimDisk()
    fixture = Fixture(worker)
    disk.make_directories("/data")
    fixture.files = fixture.runtime.files = disk
    fixture.controller = fixture.open()
    fixture.start()
    worker.run()
    disk.sync_all()
    before = read_durable_end(disk, DIRECTORY)
    waiting = fixture.send("broker_registration", fixture.registration(), 4)
    waiting.addErrback(lambda failure: failure.value.code)
    disk.faults.append(Fault(errno.EIO, "sync", ".log", times=1))
    reports = reported_late(worker)
    with capturedLogs() as lines:
        fixture.controller.stop()
        for report in reports + reported_late(worker):
            report()
    assert waiting.result is ErrorCode.NOT_CONTROLLER
    assert read_durable_end(disk, DIRECTORY) == before
    (line,) = [text for each in lines if "closing the metadata" in (text := formatEvent(each))]
    assert DIRECTORY in line and not fixture.fatal
    fixture.files = fixture.runtime.files = disk.after_power_loss(keep=0)
    again = fixture.open().log
    assert again.replay().brokers == {} and again.end_offset == before


def test_a_stop_behind_a_sync_is_the_last_that_is_done() -> None:
    """Its files are closed then, and its directory is unlocked: what came while that sync ran is
    synced by the stop.
    """
    worker = StalledWorker()
    fixture = Fixture(worker).start()
    worker.run()
    first = fixture.send("broker_registration", fixture.registration(), 4)
    second = fixture.send("broker_registration", fixture.registration(2, b"2" * 16), 4)
    for each in (first, second):
        each.addErrback(lambda failure: failure.value.code)
    fixture.controller.stop()
    for report in reported_late(worker):
        report()
    log = fixture.controller.log
    assert first.result is second.result is ErrorCode.NOT_CONTROLLER
    assert not worker.jobs and not len(log.log.pool)
    assert read_durable_end(fixture.files, DIRECTORY) == log.end_offset


def test_a_stop_behind_a_snapshot_leaves_the_log_as_it_is() -> None:
    """The next start finds the snapshot, and cuts the log behind the one after it."""
    worker = StalledWorker()
    settings = {
        "metadata.log.max.record.bytes.between.snapshots": "100",
        "metadata.max.idle.interval.ms": "0",
    }
    fixture = Fixture(worker, settings).start()
    worker.run()
    fixture.advance(0.5)
    assert len(worker.jobs) == 1  # the snapshot
    fixture.controller.stop()
    reports = reported_late(worker)
    before = {path: bytes(node.data) for path, node in fixture.files.nodes.items()}
    for report in reports:
        report()
    assert list_snapshots(fixture.files, DIRECTORY) and not worker.jobs
    assert {path: bytes(node.data) for path, node in fixture.files.nodes.items()} == before
    image = fixture.controller.image
    assert fixture.open().log.replay().features == image.features


def _one_pause(found: list[Record]) -> Generator[None, None, list[Record]]:
    yield
    return found


def test_a_transaction_that_stopped_midway_ends_the_log(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EMFILE at the second of its batches: what came behind the first would belong to it, and
    would go with it at the next start, acknowledged or not.
    """
    monkeypatch.setattr(metadata_log, "RECORDS_PER_BATCH", 10)
    fixture.join(1)
    calls = short_at_the_second(monkeypatch, Log, "append_as_follower")
    with pytest.raises(BrokerError):
        fixture.create_topic("halves", 40)
    assert len(calls) == 2 and len(fixture.fatal) == 1
    with pytest.raises(BrokerError):
        fixture.create_topic("behind")
    fixture.restart()
    fixture.create_topic("anew")
    fixture.restart()
    assert list(fixture.controller.image.topics_by_name) == ["anew"]


def test_records_that_cannot_be_encoded_begin_no_transaction(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_log, "RECORDS_PER_BATCH", 2)
    end = fixture.controller.log.end_offset
    cordoned = records.RegisterBrokerRecord(broker_id=2, cordoned_log_dirs=[b"c" * 16])
    with pytest.raises(ValueError):
        fixture.controller.log.append([records.NoOpRecord()] * 3 + [cordoned], DIRECTORIES_LEVEL)
    assert fixture.controller.log.end_offset == end


def test_behind_a_snapshot_where_descriptors_are_short() -> None:
    """The new segment is not made; what lies behind the snapshot goes all the same."""
    fixture = Fixture(
        settings={
            "metadata.log.max.record.bytes.between.snapshots": "2000",
            "metadata.max.idle.interval.ms": "0",
        }
    ).start()
    fixture.join(1)
    fixture.send_creation("t", 40)
    fixture.advance(0.5)
    (first,) = list_snapshots(fixture.files, DIRECTORY)
    open_file = fixture.files.open

    def short(path: str, **how: bool) -> Any:
        if path.endswith(".log") and how.get("create"):
            raise OSError(errno.EMFILE, "too many open files")
        return open_file(path, **how)

    fixture.files.open = short
    fixture.send_creation("u", 40)
    fixture.advance(0.5)
    (second,) = list_snapshots(fixture.files, DIRECTORY)
    assert second > first and not fixture.fatal
    fixture.files.open = open_file
    fixture.create_topic("v")
    fixture.restart()
    assert list(fixture.controller.image.topics_by_name) == ["t", "u", "v"]


@pytest.mark.parametrize("is_observer", [False, True])
def test_another_topic_id_beside_the_log_is_damage_of_its_file(
    fixture: Fixture, is_observer: bool
) -> None:
    """The metadata's is always the same. A flipped bit there stopped the controller, or a broker,
    at each start.
    """
    fixture.create_topics()
    path = f"{DIRECTORY}/partition.metadata"
    data = fixture.files.nodes[path].data
    before = bytes(data)
    data[-3] ^= 2
    other = read_partition_metadata(fixture.files, DIRECTORY)
    assert other is not None and other != METADATA_TOPIC_ID
    opened = metadata_store.open_directory(
        fixture.files, fixture.worker, "/data", fixture.now(), is_observer
    )
    assert opened.log.log_end_offset == fixture.controller.log.end_offset
    assert read_whole(fixture.files, path) == before
