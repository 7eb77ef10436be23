"""`replog dump-log` on the files of Apache Kafka 4.3.1 and on damaged copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from crc32c import crc32c

from twisted_broker.cli.main import main
from twisted_broker.cli.verify import verify_directory
from twisted_broker.cluster.last_batch import LastBatch, write_last_batch
from twisted_broker.cluster.scram_changes import parse_user
from twisted_broker.cluster.snapshots import SnapshotId, snapshot_frame
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.wire.compression import GZIP, NONE
from twisted_broker.wire.legacy import build_message_set
from twisted_broker.wire.messages import metadata_records
from twisted_broker.wire.records import Record

SEGMENT = "00000000000000000000.log"
LAST_BATCH = "00000000000000000008-0000000001.last-batch"


def dump(path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, rows)."""
    result = CliRunner().invoke(
        main, ["dump-log", "--json", *options, str(path)], catch_exceptions=False
    )
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def rows_of(path: Path, kind: str, *options: str) -> list[dict[str, Any]]:
    status, rows = dump(path, *options)
    assert status == 0, [row for row in rows if row["kind"] == "damage"]
    return [row for row in rows if row["kind"] == kind]


def test_batches_of_every_codec(golden: Path) -> None:
    """One line a batch: offsets, codec, producer, sequence, as Kafka wrote them."""
    batches = rows_of(golden / "codecs-0" / SEGMENT, "batch")
    assert [row["codec"] for row in batches] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [(row["base_offset"], row["last_offset"], row["records"]) for row in batches] == [
        (n, n + 4, 5) for n in range(0, 25, 5)
    ]
    assert all(
        row["base_sequence"] == 0 and row["producer_epoch"] == 0 and not row["control"]
        for row in batches
    )
    assert len({row["producer_id"] for row in batches}) == 5
    assert (
        batches[0]["position"] == 0
        and sum(row["bytes"] for row in batches) == (golden / "codecs-0" / SEGMENT).stat().st_size
    )


def test_records_of_every_codec(golden: Path) -> None:
    """Keys, values, headers, nulls, for each codec the same."""
    records = rows_of(golden / "codecs-0" / SEGMENT, "record", "--records")
    assert [row["offset"] for row in records] == list(range(25))
    for start, codec in zip(
        range(0, 25, 5), ("none", "gzip", "snappy", "lz4", "zstd"), strict=True
    ):
        of_batch = records[start : start + 5]
        assert [row["key"] for row in of_batch] == ["k0", "k1", "k2", "k3", "tombstone"]
        assert of_batch[0]["value"] == f"{codec} value 0 " * 3 and of_batch[4]["value"] is None
        assert (
            of_batch[1]["headers"] == [["h", "x"], ["empty", None]] and "headers" not in of_batch[0]
        )


def test_markers_and_aborted_transactions(golden: Path) -> None:
    """Control records say what they decided; the transaction index names the aborted ranges."""
    records = rows_of(golden / "transactions-0", "record", "--records")
    assert [row["marker"] for row in records if "marker" in row] == [
        "commit",
        "abort",
        "commit",
        "abort",
    ]
    aborted = rows_of(golden / "transactions-0" / "00000000000000000000.txnindex", "aborted")
    assert [(row["first_offset"], row["last_offset"]) for row in aborted] == [(4, 7), (12, 15)]


def test_indexes_and_snapshots(golden: Path) -> None:
    """Offset index, time index and producer snapshot entry by entry."""
    directory = golden / "segments-0"
    segment = rows_of(directory / "00000000000000000009.log", "batch")
    index = rows_of(directory / "00000000000000000009.index", "index")
    assert [(row["offset"], row["position"]) for row in index] == [
        (row["last_offset"], row["position"]) for row in segment[1:]
    ]
    times = rows_of(directory / "00000000000000000009.timeindex", "timeindex")
    assert {(row["offset"], row["timestamp"]) for row in times} <= {
        (row["last_offset"], row["max_timestamp"]) for row in segment
    }
    producer = rows_of(directory / "00000000000000000040.snapshot", "producer")
    assert [(row["epoch"], row["last_sequence"], row["last_offset"]) for row in producer] == [
        (0, 39, 39)
    ]


def test_small_files(golden: Path) -> None:
    """Checkpoints, ids, quorum state and shutdown file."""
    checkpoint = rows_of(golden / "replication-offset-checkpoint", "checkpoint")
    assert {(row["topic"], row["partition"]): row["offset"] for row in checkpoint}[
        "codecs", 0
    ] == 25
    assert rows_of(golden / "codecs-0" / "leader-epoch-checkpoint", "epoch")[0]["start_offset"] == 0
    assert rows_of(golden / "meta.properties", "meta")[0]["cluster.id"] == "goldenGoldenGolden0000"
    assert (
        len(rows_of(golden / "codecs-0" / "partition.metadata", "partition")[0]["topic_id"]) == 22
    )
    assert rows_of(golden / "__cluster_metadata-0" / "quorum-state", "quorum")[0]["leaderId"] == 1
    assert rows_of(golden / ".kafka_cleanshutdown", "clean_shutdown")[0]["brokerEpoch"] == 11


def test_the_last_batch_of_a_copys_snapshot(copy: Path) -> None:
    """Its fields by name; `verify` knows the file, and finds a flipped bit in it."""
    last = LastBatch(6, 7, 1, 84, 77, 1)
    files, directory = OsFileSystem(), copy / "__cluster_metadata-0"
    write_last_batch(files, str(directory), SnapshotId(8, 1), last)
    (row,) = rows_of(directory / LAST_BATCH, "last_batch")
    assert last._asdict().items() <= row.items()
    assert verify_directory(copy).findings == []
    content = bytearray((directory / LAST_BATCH).read_bytes())
    content[2] ^= 1
    (directory / LAST_BATCH).write_bytes(content)
    assert "does not match its CRC" in str(verify_directory(copy).findings)


def test_the_metadata_log_and_its_snapshots(golden: Path) -> None:
    """Records of the metadata log by name and field, in the log and framed in a snapshot."""
    log = rows_of(golden / "__cluster_metadata-0" / SEGMENT, "record", "--records")
    topics = [row["name"] for row in log if row.get("record") == "TopicRecord"]
    assert {"codecs", "segments", "transactions", "deleted"} <= set(topics)
    assert log[0]["control"] == "LeaderChangeMessage" and log[0]["leader_id"] == 1
    snapshot = rows_of(
        golden / "__cluster_metadata-0" / "00000000000000000624-0000000001.checkpoint",
        "record",
        "--records",
    )
    assert (
        snapshot[0]["control"] == "SnapshotHeaderRecord"
        and snapshot[-1]["control"] == "SnapshotFooterRecord"
    )
    assert "deleted" not in [row["name"] for row in snapshot if row.get("record") == "TopicRecord"]


def test_secrets_of_the_metadata_log_are_hidden(tmp_path: Path) -> None:
    """Keys of SCRAM's users, and settings that hold a password."""
    user = parse_user("SCRAM-SHA-256=[name=alice,password=top-secret]", b"the-salt")
    settings = [
        metadata_records.ConfigRecord(resource_type=4, resource_name="1", name=name, value=value)
        for name, value in (
            ("listener.name.clients.plain.sasl.jaas.config", "top-secret"),
            ("my.plugin.password", "top-secret"),
            ("num.io.threads", "3"),
        )
    ]
    settings.append(
        metadata_records.ConfigRecord(
            resource_type=16, resource_name="m", name="interval.ms", value="7"
        )
    )
    path = tmp_path / "00000000000000000005-0000000001.checkpoint"
    path.write_bytes(b"".join(snapshot_frame([user, *settings], 0, 0, 0, 30)))
    rows = {row.get("name"): row for row in rows_of(path, "record", "--records")}
    assert rows["alice"]["iterations"] == 4096 and rows["num.io.threads"]["value"] == "3"
    assert rows["interval.ms"]["value"] == "7"
    assert {rows["alice"][name] for name in ("salt", "stored_key", "server_key")} == {"[hidden]"}
    assert "top-secret" not in str(rows)


def test_internal_topics(golden: Path) -> None:
    """Committed offsets, groups and transactions by name and field."""
    offsets = rows_of(golden / "__consumer_offsets-0", "record", "--records")
    commits = [row for row in offsets if row["record"] == "OffsetCommit"]
    assert [(row["group"], row["topic"], row["offset"]) for row in commits] == [
        ("readers", "codecs", 25)
    ]
    assert {row["record"] for row in offsets} == {"OffsetCommit", "GroupMetadata"}
    transactions = rows_of(golden / "__transaction_state-0", "record", "--records")
    assert {row["transactional_id"] for row in transactions} == {"t1"}


def test_a_whole_directory(golden: Path) -> None:
    """A directory is every file in it; all is readable, and text says the same number of facts
    as JSON.
    """
    status, rows = dump(golden, "--records")
    assert status == 0 and {
        "batch",
        "record",
        "index",
        "timeindex",
        "aborted",
        "snapshot",
        "checkpoint",
    } <= {row["kind"] for row in rows}
    text = CliRunner().invoke(main, ["dump-log", "--records", str(golden)]).stdout.splitlines()
    assert sum(line.startswith("  ") for line in text) == len(rows)


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_flipped_bit_is_found_at_its_batch(copy: Path, codec: int) -> None:
    """The damaged batch is named by its first byte, and the batches behind it are shown all the
    same.
    """
    path = copy / "codecs-0" / SEGMENT
    batch = rows_of(path, "batch")[codec]
    data = bytearray(path.read_bytes())
    data[batch["position"] + 70] ^= 4
    path.write_bytes(data)
    status, rows = dump(path, "--records")
    assert status == 1
    assert [row["position"] for row in rows if row["kind"] == "damage"] == [batch["position"]]
    assert (
        sum(row["kind"] == "batch" for row in rows) == 5
        and sum(row["kind"] == "record" for row in rows) == 20
    )


def test_a_cut_at_every_byte(copy: Path) -> None:
    """Wherever a segment ends too early, the whole batches before are shown and the rest is
    damage at the right byte, unless it is all zeros.
    """
    path = copy / "codecs-0" / SEGMENT
    data = path.read_bytes()
    starts = [row["position"] for row in rows_of(path, "batch")] + [len(data)]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        status, rows = dump(path)
        whole = [start for start in starts if start <= size]
        damage = [row["position"] for row in rows if row["kind"] == "damage"]
        assert (status, damage) == ((1, [whole[-1]]) if any(data[whole[-1] : size]) else (0, [])), (
            size
        )
        assert sum(row["kind"] == "batch" for row in rows) == len(whole) - 1


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000009.index",
        "00000000000000000009.timeindex",
        "00000000000000000040.snapshot",
        "partition.metadata",
    ],
)
def test_small_files_cut_at_every_byte(copy: Path, name: str) -> None:
    """A cut small file never raises, and is damage unless the cut falls between entries."""
    path = copy / "segments-0" / name
    data = path.read_bytes()
    entry = {".index": 8, ".timeindex": 12}.get(path.suffix, len(data))
    for size in range(len(data)):
        path.write_bytes(data[:size])
        status, _ = dump(path)
        assert status == (0 if entry < len(data) and size % entry == 0 else 1), size


def test_a_preallocated_index(copy: Path) -> None:
    """Zeros behind the entries are room; anything else there is damage at its byte."""
    path = copy / "segments-0" / "00000000000000000009.index"
    entries = rows_of(path, "index")
    with path.open("r+b") as file:
        file.truncate(1 << 20)
    assert rows_of(path, "index") == entries
    with path.open("r+b") as file:
        file.seek(123_456)
        file.write(b"\1")
    status, rows = dump(path)
    assert status == 1 and [row["position"] for row in rows if row["kind"] == "damage"] == [123_456]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("replication-offset-checkpoint", "0\n2\ncodecs 0 25\n"),
        ("replication-offset-checkpoint", "1\n0\n"),
        ("replication-offset-checkpoint", "0\n1\ncodecs zero 25\n"),
        ("meta.properties", "version=7\n"),
        ("meta.properties", "version=1\nnode.id=one\ncluster.id=x\n"),
        ("__cluster_metadata-0/quorum-state", "{"),
        ("__cluster_metadata-0/quorum-state", "[]"),
        ("__cluster_metadata-0/" + LAST_BATCH, "0 6 7 1 84 77 1 5\n"),
        ("__cluster_metadata-0/" + LAST_BATCH, f"1 2 {crc32c(b'1 2')}\n"),
        ("__cluster_metadata-0/" + LAST_BATCH, ""),
        ("codecs-0/leader-epoch-checkpoint", "0\n1\n0\n"),
        ("codecs-0/partition.metadata", "version: 0\ntopic_id: short"),
        ("strange.file", "what?"),
    ],
)
def test_text_files_that_are_wrong(copy: Path, name: str, text: str) -> None:
    """A checkpoint with a wrong count, version or line, broken properties and JSON, and a file
    nobody knows: damage, exit status 1.
    """
    (copy / name).write_text(text)
    status, rows = dump(copy / name)
    assert status == 1 and any(row["kind"] == "damage" for row in rows)


def test_zeros_between_batches(copy: Path) -> None:
    """A preallocated tail of zeros is fine; zeros in the middle hide what follows and are
    damage.
    """
    path = copy / "codecs-0" / SEGMENT
    data = path.read_bytes()
    path.write_bytes(data + bytes(5000))
    assert len(rows_of(path, "batch")) == 5
    path.write_bytes(data + bytes(5000) + data)
    status, rows = dump(path)
    assert status == 1 and [row["position"] for row in rows if row["kind"] == "damage"] == [
        len(data)
    ]


@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_old_brokers(tmp_path: Path, magic: int) -> None:
    """A segment of magic 0 or 1, single messages and a compressed wrapper: shown, and clean for
    `verify`; a wrong CRC is found.
    """
    path = tmp_path / "old-0" / SEGMENT
    path.parent.mkdir()
    (path.parent / "partition.metadata").write_text("version: 0\ntopic_id: " + "A" * 21 + "Q")
    records = [
        Record(
            offset,
            1_600_000_000_000 + offset if magic else -1,
            b"k%d" % offset,
            b"v%d" % offset,
            [],
        )
        for offset in range(6)
    ]
    single, wrapper = (
        build_message_set(records[:2], magic, NONE),
        build_message_set(records[2:], magic, GZIP),
    )
    path.write_bytes(single + wrapper)
    assert [row["offset"] for row in rows_of(path, "message")] == [0, 1, 5]
    assert [
        (row["offset"], row["key"], row["value"]) for row in rows_of(path, "record", "--records")
    ] == [(n, f"k{n}", f"v{n}") for n in range(6)]
    report = verify_directory(path.parent)
    assert (report.findings, report.records) == ([], 6)
    path.write_bytes(single + wrapper[:-1] + bytes([wrapper[-1] ^ 1]))
    status, rows = dump(path, "--records")
    assert status == 1 and [row["position"] for row in rows if row["kind"] == "damage"] == [
        len(single)
    ]


def test_damage_of_a_whole_file_has_no_position(tmp_path: Path) -> None:
    """`at byte -1` would be looked for."""
    (tmp_path / "notes").write_text("hello")
    result = CliRunner().invoke(main, ["dump-log", str(tmp_path / "notes")], catch_exceptions=False)
    assert (
        result.exit_code == 1
        and "  DAMAGE: not a file that a broker writes" in result.stdout.splitlines()
    )
