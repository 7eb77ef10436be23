"""`replog verify` on the directory of Apache Kafka 4.3.1, and each invariant broken on a copy."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.log.batches import DIRECTORY, NOW_MS, open_log
from tests.log.batches import batch as log_batch
from tests.log.test_producer_rebuild import disk, with_an_abort_not_indexed
from twisted_broker.cli.main import main
from twisted_broker.cli.verify import verify_directory
from twisted_broker.log import producer_rebuild
from twisted_broker.wire.records import build_batch, set_offsets_and_epoch

SEGMENT = "00000000000000000000.log"
FIRST, SECOND = "00000000000000000006", "00000000000000000009"


def findings(directory: Path, with_records: bool = True) -> list[str]:
    return [str(finding) for finding in verify_directory(directory, with_records).findings]


def test_kafkas_directory_is_clean(golden: Path) -> None:
    """Nothing to find in what Kafka wrote: the summary counts it and the exit status is 0."""
    result = CliRunner().invoke(main, ["verify", "--records", str(golden)], catch_exceptions=False)
    assert result.exit_code == 0
    assert (
        result.stdout
        == "7 partitions, 18 segments, 677 batches, 740 records, 54,896 bytes: no findings\n"
    )


@pytest.mark.parametrize(
    "name", ["codecs-0", "segments-0", "transactions-0", "__cluster_metadata-0"]
)
def test_one_partition_alone(golden: Path, name: str) -> None:
    """A partition's directory can be checked by itself."""
    assert findings(golden / name) == []


def write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def second_batch(path: Path) -> int:
    """Where the second batch of a segment begins."""
    return 12 + int(struct.unpack_from(">qi", path.read_bytes())[1])


def patch_batch(path: Path, position: int, base_offset: int, epoch: int) -> None:
    data = bytearray(path.read_bytes())
    set_offsets_and_epoch(data, base_offset, epoch, position)
    path.write_bytes(data)


def append_line(path: Path, line: str) -> None:
    version, count, *rest = path.read_text().splitlines()
    path.write_text("\n".join([version, str(int(count) + 1), *rest, line]) + "\n")


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped bit": (
        lambda d: write(d / "codecs-0" / SEGMENT, 80, b"\xaa"),
        "codecs-0/00000000000000000000.log: at byte 0 the CRC",
    ),
    "torn tail": (
        lambda d: (
            (d / "codecs-0" / SEGMENT).open("ab").write(b"\0\0\0\0\0\0\0\x19\0\0\1\0\0\0\0\0\2")
        ),
        "above the recovery point 25: the next start truncates it",
    ),
    "offsets going back": (
        lambda d: patch_batch(
            d / "codecs-0" / SEGMENT, second_batch(d / "codecs-0" / SEGMENT), 3, 0
        ),
        "offset 3 follows 4",
    ),
    "epoch going back": (
        lambda d: patch_batch(d / "codecs-0" / SEGMENT, 0, 0, 7),
        "leader epoch 0 of offset 5 follows epoch 7",
    ),
    "epoch unknown to the checkpoint": (
        lambda d: patch_batch(d / "appendtime-0" / SEGMENT, 0, 0, 3),
        "has leader epoch 3, the checkpoint says 0",
    ),
    "epoch checkpoint gone": (
        lambda d: (d / "codecs-0" / "leader-epoch-checkpoint").unlink(),
        "the checkpoint says -1",
    ),
    "epoch above the log end": (
        lambda d: append_line(d / "codecs-0" / "leader-epoch-checkpoint", "5 99"),
        "epoch 5 begins at offset 99",
    ),
    "epochs shrinking": (
        lambda d: append_line(d / "codecs-0" / "leader-epoch-checkpoint", "0 3"),
        "does not grow",
    ),
    "overlapping segments": (
        lambda d: shutil.copy(
            d / "segments-0" / f"{FIRST}.log", d / "segments-0" / "00000000000000000007.log"
        ),
        "the segment begins at offset 7, the one before ends at 9",
    ),
    "index pointing between batches": (
        lambda d: write(d / "segments-0" / f"{SECOND}.index", 4, struct.pack(">i", 100)),
        "where no batch begins",
    ),
    "index pointing too far": (
        lambda d: write(d / "segments-0" / f"{SECOND}.index", 12, struct.pack(">i", 9999)),
        "behind the last batch",
    ),
    "index that skips a batch": (
        lambda d: write(d / "segments-0" / f"{SECOND}.index", 0, struct.pack(">i", 0)),
        "where offset 10 begins",
    ),
    "index out of order": (
        lambda d: write(d / "segments-0" / f"{SECOND}.index", 8, struct.pack(">i", 1)),
        "does not grow",
    ),
    "index gone": (
        lambda d: (d / "segments-0" / f"{SECOND}.index").unlink(),
        "the index is missing",
    ),
    "time index with a wrong time": (
        lambda d: write(d / "segments-0" / f"{SECOND}.timeindex", 6, b"\0\0"),
        "the largest up to there is",
    ),
    "time index beyond the segment": (
        lambda d: write(d / "segments-0" / f"{SECOND}.timeindex", 20, struct.pack(">i", 50)),
        "above the segment's last",
    ),
    "index without segment": (
        lambda d: (d / "segments-0" / "00000000000000000030.log").unlink(),
        "has no segment",
    ),
    "marker missing": (
        lambda d: write(
            d / "transactions-0" / "00000000000000000000.txnindex", 18, struct.pack(">q", 6)
        ),
        "there is no marker",
    ),
    "marker of another producer": (
        lambda d: write(d / "transactions-0" / "00000000000000000000.txnindex", 9, b"\x07"),
        "not ",
    ),
    "transaction that begins before what its index says": (
        lambda d: write(
            d / "transactions-0" / "00000000000000000000.txnindex", 10, struct.pack(">q", 6)
        ),
        "the transaction of producer 6 that ends at offset 7 begins at 4, not at 6",
    ),
    "transaction that reaches into the one before": (
        lambda d: write(
            d / "transactions-0" / "00000000000000000000.txnindex", 44, struct.pack(">q", 11)
        ),
        "that ends at offset 15 begins behind the marker at 11, not at 11",
    ),
    "producer snapshot": (
        lambda d: write(d / "segments-0" / "00000000000000000040.snapshot", 30, b"\x07"),
        "CRC is",
    ),
    "snapshot beyond the log": (
        lambda d: (d / "segments-0" / "00000000000000000040.snapshot").rename(
            d / "segments-0" / "00000000000000000041.snapshot"
        ),
        "is of offset 41, the log ends at 40",
    ),
    "snapshot that knows the future": (
        lambda d: (d / "segments-0" / "00000000000000000040.snapshot").rename(
            d / "segments-0" / "00000000000000000036.snapshot"
        ),
        "has written offset 39 already",
    ),
    "high watermark above the end": (
        lambda d: bump(d / "replication-offset-checkpoint"),
        "codecs-0: high watermark 99",
    ),
    "recovery point above the end": (
        lambda d: bump(d / "recovery-point-offset-checkpoint"),
        "codecs-0: recovery point 99",
    ),
    "checkpoint of a partition that is not there": (
        lambda d: append_line(d / "replication-offset-checkpoint", "ghost 0 1"),
        "ghost-0 is not there",
    ),
    "checkpoint twice": (
        lambda d: append_line(d / "replication-offset-checkpoint", "codecs 0 1"),
        "codecs-0 is there twice",
    ),
    "checkpoint that does not parse": (
        lambda d: (d / "log-start-offset-checkpoint").write_text("0\n3\n"),
        "3 entries are announced, 0",
    ),
    "meta.properties gone": (
        lambda d: (d / "meta.properties").unlink(),
        "meta.properties: is missing",
    ),
    "meta.properties broken": (
        lambda d: (d / "meta.properties").write_text("version=1\nnode.id=1\n"),
        "cluster.id is missing",
    ),
    "topic id gone": (
        lambda d: (d / "codecs-0" / "partition.metadata").unlink(),
        "partition.metadata: is missing",
    ),
    "topic id shared": (
        lambda d: shutil.copy(d / "codecs-0" / "partition.metadata", d / "segments-0"),
        "is also that of codecs",
    ),
    "left-over segment": (lambda d: (d / "codecs-0" / f"{SEGMENT}.swap").touch(), "is left over"),
    "left-over checkpoint": (
        lambda d: (d / "cleaner-offset-checkpoint.tmp").touch(),
        "is left over",
    ),
    "stray partition": (lambda d: (d / f"codecs-1.{'0' * 32}-stray").mkdir(), "was set aside"),
    "strange file": (
        lambda d: (d / "codecs-0" / "notes.txt").touch(),
        "does not belong to a partition",
    ),
    "strange directory": (lambda d: (d / "notes").mkdir(), "is not a partition"),
    "quorum state": (
        lambda d: (d / "__cluster_metadata-0" / "quorum-state").write_text("{}"),
        "leaderEpoch is missing",
    ),
    "metadata snapshot": (
        lambda d: write(
            d / "__cluster_metadata-0" / "00000000000000000624-0000000001.checkpoint",
            200,
            b"\0\1\2",
        ),
        "00000000000000000624-0000000001.checkpoint: at byte",
    ),
}


def bump(path: Path) -> None:
    path.write_text(path.read_text().replace("codecs 0 25", "codecs 0 99"))


@pytest.mark.parametrize("name", BREAKS)
def test_each_invariant_is_looked_at(copy: Path, name: str) -> None:
    """A copy that breaks one invariant gives a finding that says so, and exit status 1."""
    break_it, expected = BREAKS[name]
    break_it(copy)
    found = findings(copy)
    assert any(expected in line for line in found), found
    result = CliRunner().invoke(main, ["verify", "--records", str(copy)], catch_exceptions=False)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[:-1] == found and f": {len(found)} finding" in lines[-1]


def test_a_batch_whose_records_lie(copy: Path) -> None:
    """With --records a batch with a right CRC is still read: a count that its records do not
    bear out is a finding.
    """
    path = copy / "appendtime-0" / SEGMENT
    batch = build_batch(1, 0, 0, 0, 1, 1, -1, -1, -1, 1, b"\x7f" * 8)
    with path.open("ab") as file:
        file.write(batch)
    assert findings(copy, with_records=False) == []
    assert any("cannot be read" in line for line in findings(copy))


def test_a_directory_in_use(copy: Path) -> None:
    """While a broker holds the lock, a half-written batch and files about to be deleted are no
    finding, and the summary says so.
    """
    with (copy / "codecs-0" / SEGMENT).open("ab") as file:
        file.write(b"\0\0\0\0\0\0\0\x19\0\0")
    (copy / "codecs-0" / "00000000000000000000.log.cleaned").touch()
    assert len(findings(copy)) == 2
    hold = (
        "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(copy / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        report = verify_directory(copy)
        assert holder.stdin is not None
        holder.stdin.close()
    assert report.findings == [] and report.summary().endswith(
        "no findings (the directory is in use)"
    )


def test_what_awaits_deletion_is_counted(copy: Path) -> None:
    """Segments and partitions about to be deleted, and a checkpoint that was never written, are
    no finding.
    """
    for suffix in (".log", ".index"):
        (copy / "codecs-0" / f"00000000000000000000{suffix}.deleted").touch()
    (copy / f"codecs-1.{'0' * 32}-delete").mkdir()
    (copy / "cleaner-offset-checkpoint").write_bytes(b"")
    report = verify_directory(copy)
    assert report.findings == [] and report.summary().endswith(
        "no findings (3 names await deletion)"
    )


@pytest.mark.parametrize("appended", [False, True])
def test_what_the_next_start_indexes_is_counted(
    tmp_path: Path, appended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop while producers are looked for takes the offset index of each segment that is to be
    gone over: no damage. One that lacks it before others that have one is a finding.
    """
    monkeypatch.setattr(producer_rebuild, "AT_ONCE_BYTES", 0)
    files = disk()
    log, _ = with_an_abort_not_indexed(files)
    log.roll(NOW_MS)
    if appended:
        log.append_as_leader(log_batch(b"x"), 0, NOW_MS)
    log.finish()()
    log.release_files()
    directory = tmp_path / "events-0"
    directory.mkdir()
    for name in files.listdir(DIRECTORY):
        (directory / name).write_bytes(files.content(f"{DIRECTORY}/{name}"))
    report = verify_directory(directory)
    assert report.findings == [] and report.summary().endswith(
        "no findings (1 segment awaits its offset index from the next start)"
    )
    assert not (directory / f"{0:020d}.index").exists()
    if appended:
        (directory / f"{14:020d}.index").write_bytes(b"")
        assert findings(directory) == [
            f"{directory / f'{0:020d}.index'}: the index is missing; the next start rebuilds it"
        ]
    again = open_log(files, clean=True, recovery_point=log.log_end_offset)
    assert files.exists(again.segments.at(0).offset_index.file.path)


def test_a_copy_in_progress_is_checked_as_a_log(copy: Path) -> None:
    """RL 3.8: what a clean stop leaves of a move is no finding; a damaged copy is."""
    future = copy / f"segments-0.{'a' * 32}-future"
    (copy / "segments-0").rename(future)
    (future / "replog.promoted").write_text("in place of /elsewhere/segments-0\n")
    report = verify_directory(copy)
    assert findings(copy) == [] and report.copies == 1
    assert "(1 copy in progress between directories)" in report.summary()
    segment = min(future.glob("*.log"))
    write(segment, 30, b"\xff")
    assert any("-future" in finding for finding in findings(copy))


def test_nothing_is_written(copy: Path) -> None:
    """Reading leaves names, bytes and times as they were."""
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in copy.rglob("*")
        if path.is_file()
    }
    findings(copy)
    CliRunner().invoke(main, ["dump-log", "--records", str(copy)])
    assert {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in copy.rglob("*")
        if path.is_file()
    } == before


@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("partition", ["rich-0", "stamped-0"])
def test_the_golden_logs_of_the_log_tests(tmp_path: Path, state: str, partition: str) -> None:
    """The partitions of another run of Kafka, stopped in order and killed: nothing to find."""
    with tarfile.open(
        Path(__file__).parents[1] / "log" / "golden" / "kafka-4.3.1.tar.gz"
    ) as archive:
        archive.extractall(tmp_path, filter="data")
    report = verify_directory(tmp_path / state / partition, with_records=True)
    assert report.findings == [] and report.records > 10


def test_a_transaction_whose_records_a_cleaner_took(copy: Path) -> None:
    """RL 3.7: its marker and the entry of the index stay, and are no finding."""
    segment = copy / "transactions-0" / SEGMENT
    content = segment.read_bytes()
    segment.write_bytes(content[:552] + content[664:])
    assert not [each for each in findings(copy / "transactions-0") if ".txnindex" in each]
