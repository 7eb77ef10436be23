"""Directories written by Apache Kafka 4.3.1 open here, and say what Kafka's own clients read from
them.

`golden/kafka-4.3.1.tar.gz` holds `clean` (stopped in order) and `killed` (SIGKILL, an open
transaction, preallocated indexes): topic `rich` with five segments, all codecs, idempotent and
transactional producers, aborted and overlapping transactions, DeleteRecords to offset 3; topic
`stamped` with LogAppendTime. `expected.json` is what confluent-kafka read from that broker before
it stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.log.batches import (
    NOW_MS,
    all_batches,
    all_records,
    batch,
    config,
    marker,
    open_log,
    slice_bytes,
    values,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.batch_scan import scan
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment_file import OpenFiles
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.wire.control_batch import control_record_type
from twisted_broker.wire.records import Record, iterate_batches
from twisted_broker.wire.schema import run_whole

ARCHIVE = Path(__file__).parent / "golden" / "kafka-4.3.1.tar.gz"
EXPECTED_STABLE = {"clean": 140, "killed": 154}


@cache
def members(state: str) -> dict[str, bytes]:
    """Path -> content of one of the two directories."""
    found = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            if member.isfile() and member.name.startswith(state + "/"):
                content = archive.extractfile(member)
                assert content is not None
                found["/" + member.name] = content.read()
    return found


def unpack(state: str) -> MemoryFileSystem:
    files = MemoryFileSystem()
    for path, content in members(state).items():
        files.make_directories(os.path.dirname(path))
        files.open(path, create=True).write_at(0, (content,))
    return files


def expected(files: MemoryFileSystem, state: str) -> dict[str, Any]:
    content = checkpoints.read_whole(files, f"/{state}/expected.json")
    assert content is not None
    found: dict[str, Any] = json.loads(content)
    return found


def load(files: MemoryFileSystem, state: str, topic: str) -> Log:
    """The log as the log manager would load it, with the high watermark at its end."""
    partition, directory = TopicPartition(topic, 0), f"/{state}"
    log = load_log(
        OpenFiles(files),
        f"{directory}/{topic}-0",
        partition,
        None,
        config(index_interval_bytes=300),
        wall_ms=NOW_MS,
        log_start_offset=checkpoints.read_offsets(
            files, directory, checkpoints.LOG_START_OFFSET
        ).get(partition, 0),
        recovery_point=checkpoints.read_offsets(files, directory, checkpoints.RECOVERY_POINT).get(
            partition, 0
        ),
        clean=checkpoints.read_clean_shutdown(files, directory) is not None,
    )
    log.set_high_watermark(log.log_end_offset)
    return log


def plain(record: Record) -> list[Any]:
    headers = [[name, (content or b"").decode()] for name, content in record.headers]
    return [
        record.offset,
        record.timestamp,
        (record.key or b"").decode(),
        (record.value or b"").decode(),
        headers,
    ]


def committed(log: Log) -> list[Record]:
    """What a read_committed consumer shows, by the aborted lists of its fetches."""
    shown: list[Record] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        info = log.read(offset, 2000, log.watermarks.last_stable_metadata, read_committed=True)
        assert info.aborted is not None
        pending = sorted(info.aborted, key=lambda entry: entry.first_offset)
        aborting: set[int] = set()
        for one in iterate_batches(slice_bytes(info), partial_tail=True):
            while pending and pending[0].first_offset <= one.last_offset:
                aborting.add(pending.pop(0).producer_id)
            offset = one.next_offset
            records = list(one.records())
            if one.is_control:
                if control_record_type(records[0].key) == 0:
                    aborting.discard(one.producer_id)
            elif not (one.is_transactional and one.producer_id in aborting):
                shown += records
    return shown


@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("topic", ["rich", "stamped"])
def test_records_are_those_that_kafkas_clients_read(state: str, topic: str) -> None:
    """RL 3.1: every record of every codec with offset, time, key, value and headers; log start
    and end too.
    """
    files = unpack(state)
    said = expected(files, state)[f"{topic}/read_uncommitted"]
    log = load(files, state, topic)
    assert (log.log_start_offset, log.log_end_offset) == (said["low"], said["high"])
    assert [plain(record) for record in all_records(log) if record.offset >= said["low"]] == said[
        "records"
    ]


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_read_committed_shows_what_kafka_shows(state: str) -> None:
    """RL 3.3: last stable offset and aborted transactions come right out of Kafka's files, also
    recovered ones.
    """
    files = unpack(state)
    said = expected(files, state)["rich/read_committed"]
    log = load(files, state, "rich")
    assert log.last_stable_offset == EXPECTED_STABLE[state]
    assert [plain(record) for record in committed(log) if record.offset >= said["low"]] == said[
        "records"
    ]


@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("topic", ["rich", "stamped"])
def test_offsets_by_time_are_kafkas(state: str, topic: str) -> None:
    """RL 3.4: ListOffsets by timestamp answers what Kafka answered."""
    files = unpack(state)
    log = load(files, state, topic)
    for timestamp, offset in expected(files, state)[f"{topic}/times"]:
        found = run_whole(log.find_offset_by_timestamp(timestamp))
        assert (-1 if found is None else found.offset) == offset, timestamp


def test_opening_a_clean_directory_changes_nothing() -> None:
    """RL 3.6: after a clean stop nothing is scanned, rebuilt or rewritten."""
    files = unpack("clean")
    before = {path: bytes(node.data) for path, node in files.nodes.items()}
    for topic in ("rich", "stamped"):
        load(files, "clean", topic)
    assert {path: bytes(node.data) for path, node in files.nodes.items()} == before


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_every_index_entry_of_kafka_is_found_again(state: str) -> None:
    """RL 3.1: indexes, compared by look-up: each offset is found at its batch through Kafka's
    index and through one made anew.
    """
    files = unpack(state)
    log = load(files, state, "rich")
    for segment in log.segments:
        entries = segment.offset_index.pairs()
        places = {
            place.last_offset: place.position for place in scan(segment.log.open(), 0, segment.size)
        }
        for relative, position in entries:
            assert places[segment.base_offset + relative] == position
        assert entries or segment.size < 1000
        for last, position in places.items():
            place = segment.locate(last)
            assert place is not None and place.position == position


def test_aborted_transactions_are_rebuilt_as_kafka_wrote_them() -> None:
    """RL 3.6: the transaction index recovered from the batches equals Kafka's own file, byte for
    byte.
    """
    files = unpack("killed")
    name = "/killed/rich-0/00000000000000000153.txnindex"
    written = checkpoints.read_whole(files, name)
    assert written
    log = load(files, "killed", "rich")
    assert checkpoints.read_whole(files, name) == written
    assert [entry.last_stable_offset for entry in log.segments.active.txn_index.entries()] != []


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_producer_state_from_kafkas_snapshot_equals_a_replay(state: str) -> None:
    """RL 3.2: loading Kafka's newest snapshot gives the state that replaying the whole log
    gives.
    """
    files = unpack(state)
    log = load(files, state, "rich")
    for offset in sorted(log.producers.snapshots):
        log.producers.remove_snapshot(offset)
    loaded = {number: described(entry) for number, entry in log.producers.producers.items()}
    ongoing = dict(log.producers.ongoing)
    log.watermarks.log_start_offset = 0
    log.producers.map_end_offset = -1
    log.rebuild.after_load(NOW_MS)
    assert {number: described(entry) for number, entry in log.producers.producers.items()} == loaded
    assert log.producers.ongoing == ongoing
    assert len(loaded) >= 8


def described(entry: Any) -> tuple[Any, ...]:
    last = entry.batches[-1][:3] if entry.batches else None
    return (
        entry.producer_epoch,
        entry.coordinator_epoch,
        entry.last_timestamp,
        entry.current_txn_first_offset,
        last,
    )


def test_epochs_and_identity() -> None:
    """RL 3.1: leader epochs, topic id, cluster, node and directory ids are read from Kafka's
    small files.
    """
    files = unpack("killed")
    assert load(files, "killed", "rich").leader_epochs.entries() == [(0, 3), (2, 140)]
    properties = read_meta_properties(files, "/killed")
    assert (
        properties is not None
        and properties.node_id == 1
        and properties.cluster_id is not None
        and properties.directory_id is not None
    )
    topic_id = checkpoints.read_partition_metadata(files, "/killed/rich-0")
    assert topic_id is not None and len(topic_id) == 16


def test_the_log_goes_on_where_kafka_stopped() -> None:
    """RL 3.2: appends continue at Kafka's log end, also in its open transaction; a duplicate of
    Kafka's last batch is known.
    """
    files = unpack("killed")
    log = load(files, "killed", "rich")
    newest = [
        one
        for one in all_batches(log)
        if one.producer_id >= 0 and not one.is_control and not one.is_transactional
    ][-1]
    again = batch(
        *[record.value or b"" for record in newest.records()],
        producer_id=newest.producer_id,
        producer_epoch=newest.producer_epoch,
        base_sequence=newest.base_sequence,
    )
    info = log.append_as_leader(again, 3, NOW_MS)
    assert info.duplicate and info.first_offset == newest.base_offset
    assert log.append_as_leader(batch(b"next"), 3, NOW_MS).first_offset == 161


KAFKA_JARS = os.environ.get("KAFKA_JARS", "")


@pytest.mark.skipif(
    not KAFKA_JARS, reason="Apache Kafka's tools: set KAFKA_JARS to a folder of its jars"
)
def test_kafkas_dump_tool_reads_our_files(tmp_path: Path) -> None:
    """RL 3.1: `DumpLogSegments` finds our segments, indexes, time indexes, transaction index and
    snapshots in order.
    """
    log = rich_log(str(tmp_path / "events-0"))
    log.close()
    names = sorted(path.name for path in (tmp_path / "events-0").iterdir())
    dumped = [
        str(tmp_path / "events-0" / name)
        for name in names
        if name.endswith((".log", ".index", ".timeindex", ".txnindex", ".snapshot"))
    ]
    assert {name.rpartition(".")[2] for name in names} >= {
        "log",
        "index",
        "timeindex",
        "txnindex",
        "snapshot",
    }
    tool = ["java", "-cp", f"{KAFKA_JARS}/*", "org.apache.kafka.tools.DumpLogSegments"]
    command = [*tool, "--deep-iteration", "--print-data-log", "--files", ",".join(dumped)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    bad = (
        "mismatch",
        "out of order",
        "exception",
        "invalid",
        "corrupt",
        "isvalid: false",
        "is followed by",
        "not found",
    )
    lines = (done.stdout + done.stderr).splitlines()
    # The tool itself says this of the first record of every file that does not begin at offset 0.
    assert not [
        line
        for line in lines
        if any(word in line.lower() for word in bad)
        and not line.strip().startswith("-1 is followed by")
    ]
    assert done.stdout.count("payload: ") >= 100


def rich_log(directory: str) -> Log:
    """A log of ours with several segments, codecs, idempotent and aborted batches."""
    log = open_log(OsFileSystem(), directory, config(segment_bytes=4000, index_interval_bytes=300))
    for number in range(100):
        log.append_as_leader(
            batch(b"value %d" % number, timestamp=NOW_MS - 1000 + number, codec=number % 5),
            0,
            NOW_MS,
        )
        if number % 10 == 0:
            transactional = {
                "producer_id": 7,
                "producer_epoch": 0,
                "base_sequence": number // 10,
                "is_transactional": True,
            }
            log.append_as_leader(
                batch(b"in transaction", timestamp=NOW_MS, **transactional),
                0,
                NOW_MS,
                guard=NOT_REQUIRED,
            )
            log.append_as_leader(
                marker(7, commit=number % 20 == 0), 0, NOW_MS, origin=AppendOrigin.COORDINATOR
            )
    assert len(log.segments) > 2 and values(log)
    return log
