"""`replog verify --replicas`: copies of Kafka's directory, one of them changed."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner
from crc32c import crc32c

from twisted_broker.cli.main import main
from twisted_broker.cli.verify_replicas import Batch, paired, verify_replicas
from twisted_broker.wire.records import BatchBuilder, set_offsets_and_epoch

SEGMENT = "00000000000000000000.log"
PARTITION = "codecs-0"


@pytest.fixture
def three(golden: Path, tmp_path: Path) -> list[Path]:
    """Three brokers' log directories with the same partitions."""
    made = [tmp_path / f"broker-{number}" for number in (1, 2, 3)]
    for directory in made:
        shutil.copytree(golden, directory)
    return made


def as_mirror(directory: Path) -> Path:
    """Another cluster's directory: other topic ids, another cluster id."""
    properties = directory / "meta.properties"
    lines = properties.read_text().splitlines()
    properties.write_text(
        "".join(
            ("cluster.id=bWlycm9yLWNsdXN0ZXItMQ" if each.startswith("cluster.id=") else each) + "\n"
            for each in lines
        )
    )
    for entry in directory.glob("*/partition.metadata"):
        entry.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    return directory


def run(*arguments: object) -> tuple[int, list[str]]:
    result = CliRunner().invoke(main, ["verify", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output.splitlines()


def findings(directories: list[Path]) -> list[str]:
    return [str(finding) for finding in verify_replicas(directories).findings]


def second_batch(data: bytes) -> int:
    return 12 + int(struct.unpack_from(">qi", data)[1])


def test_equal_replicas_are_no_finding(three: list[Path]) -> None:
    """RL 9.2: the same bytes below the high watermark; the exit status says so."""
    status, lines = run("--replicas", *three)
    assert status == 0 and len(lines) == 1 and lines[0].endswith("no findings")
    (alone,) = run(three[0])[1]
    assert (" 0 records" in lines[0], " 0 records" in alone) == (False, False)


def test_a_pair_that_differs_is_shown_with_offset_epoch_and_crc(three: list[Path]) -> None:
    """One batch under another leader epoch: both sides in one line, exit status 1."""
    file = three[2] / PARTITION / SEGMENT
    data = bytearray(file.read_bytes())
    position = second_batch(data)
    (base,) = struct.unpack_from(">q", data, position)
    set_offsets_and_epoch(data, base, 7, position)
    file.write_bytes(data)
    status, lines = run("--replicas", *three)
    assert status == 1 and len(lines) == 2
    assert (
        f"{three[2] / PARTITION}: has offsets {base}.." in lines[0]
        and "epoch 7 CRC" in lines[0]
        and "epoch 0 CRC" in lines[0]
    )
    assert str(three[0] / PARTITION) in lines[0]


def test_a_flipped_bit_is_found_though_the_checksums_say_the_same(three: list[Path]) -> None:
    """Equal headers do not hide other bytes."""
    file = three[1] / PARTITION / SEGMENT
    data = bytearray(file.read_bytes())
    data[second_batch(data) - 1] ^= 1
    file.write_bytes(data)
    (finding,) = findings(three)
    assert "CRC" in finding and str(file) in finding


def test_a_replica_that_ends_early_is_a_finding(three: list[Path]) -> None:
    """Committed records that a replica does not have."""
    file = three[0] / PARTITION / SEGMENT
    file.write_bytes(file.read_bytes()[: second_batch(file.read_bytes())])
    (finding,) = findings(three)
    assert str(three[0] / PARTITION) in finding and "ends at" in finding


def test_above_the_high_watermark_replicas_may_differ(three: list[Path]) -> None:
    """RL 9.2: only what is committed is the same everywhere."""
    file = three[0] / PARTITION / SEGMENT
    data = file.read_bytes()
    builder = BatchBuilder(base_offset=high_watermark(three[0]), leader_epoch=3)
    builder.append(0, None, b"not committed")
    file.write_bytes(data + builder.build())
    assert findings(three) == []


def high_watermark(directory: Path) -> int:
    """The high watermark recorded for the partition."""
    for line in (directory / "replication-offset-checkpoint").read_text().splitlines()[2:]:
        topic, partition, offset = line.split()
        if f"{topic}-{partition}" == PARTITION:
            return int(offset)
    raise AssertionError(PARTITION)


def test_other_topics_of_the_name_are_no_replicas(three: list[Path]) -> None:
    """A topic that was deleted and made anew has another id."""
    (three[1] / PARTITION / "partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
    )
    (finding,) = findings(three)
    assert "topic id" in finding


@pytest.mark.parametrize("same_cluster_id", [False, True])
def test_a_mirror_and_its_source_are_compared_by_name(
    three: list[Path], same_cluster_id: bool
) -> None:
    """Topic ids and leader epochs differ there; everything else counts."""
    mirror = as_mirror(three[1])
    if same_cluster_id:
        shutil.copy(three[0] / "meta.properties", mirror)
    file = mirror / PARTITION / SEGMENT
    data = bytearray(file.read_bytes())
    (base,) = struct.unpack_from(">q", data, second_batch(data))
    set_offsets_and_epoch(data, base, 7, second_batch(data))
    file.write_bytes(data)
    status, lines = run("--replicas", "--by-name", three[0], mirror)
    assert status == 0 and lines[0].endswith("no findings")
    assert run("--replicas", three[0], mirror)[0] == 1
    data[second_batch(data) - 1] ^= 1
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21 : second_batch(data)])))
    file.write_bytes(data)
    status, lines = run("--replicas", "--by-name", three[0], mirror)
    assert status == 1 and len(lines) == 2
    assert f"{file.parent}: has offsets 0" in lines[0] and "epoch" not in lines[0]


def test_by_name_replicas_of_one_cluster_alone_are_no_comparison(
    three: list[Path],
) -> None:
    """The mirror's directory has nothing of the source: two of the source's do not stand for it."""
    first, second, mirror = three
    shutil.rmtree(mirror / PARTITION)
    status, lines = run("--replicas", "--by-name", first, second, mirror)
    assert status == 1 and "no partition that another" in lines[0]


def test_by_name_says_that_nothing_was_compared(three: list[Path]) -> None:
    """Else a wrong directory would pass for a perfect copy. Internal topics are not mirrored."""
    first, second = three[0], three[1]
    for entry in second.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
    for directory in (first, second):
        shutil.copytree(
            three[2] / PARTITION, directory / "__consumer_offsets-0", dirs_exist_ok=True
        )
    status, lines = run("--replicas", "--by-name", first, second)
    assert status == 1 and f"{second}: has no partition that another" in lines[0]
    assert run("--by-name", first)[0] == 2


def test_by_name_a_partition_that_one_cluster_lacks_is_a_finding(three: list[Path]) -> None:
    """The others of its topic are in both; whichever cluster lacks it."""
    source, mirror = three[0], as_mirror(three[1])
    shutil.copytree(source / PARTITION, source / "codecs-1")
    status, lines = run("--replicas", "--by-name", source, mirror)
    assert status == 1 and len(lines) == 2
    assert (
        lines[0].startswith(f"{source / 'codecs-1'}: ") and "no directory of the other" in lines[0]
    )
    shutil.move(source / "codecs-1", mirror / "codecs-1")
    status, lines = run("--replicas", "--by-name", source, mirror)
    assert status == 1 and lines[0].startswith(f"{mirror / 'codecs-1'}: ")


def test_by_name_a_topic_of_one_cluster_alone_is_named(three: list[Path]) -> None:
    """A mirror has chosen topics, and its target others: no finding, unless it is asked for."""
    source, mirror = three[0], as_mirror(three[1])
    for number in range(2):
        shutil.copytree(source / PARTITION, source / f"other-{number}")
    shutil.copytree(source / PARTITION, mirror / "__consumer_offsets-7")
    status, lines = run("--replicas", "--by-name", source, mirror)
    assert status == 0 and lines == [lines[0]]
    assert lines[0].endswith("no findings (in one cluster alone: other)")
    status, lines = run("--replicas", "--by-name", "--topics", "codecs|other", source, mirror)
    assert status == 1 and [line.partition(": ")[0] for line in lines[:-1]] == [
        str(source / f"other-{number}") for number in range(2)
    ]
    status, lines = run("--replicas", "--by-name", "--topics", "codecs", source, mirror)
    assert status == 0 and lines[0].endswith("no findings")
    status, lines = run("--replicas", "--by-name", "--topics", "ordres", source, mirror)
    assert status == 1 and "no topic of either cluster has a name that --topics ordres" in lines[0]


def test_by_name_replicas_are_spread_over_the_directories_of_a_cluster(three: list[Path]) -> None:
    """No broker of the source has all partitions: a partition is lacking where none has it."""
    first, second, mirror = three[0], three[1], as_mirror(three[2])
    shutil.copytree(first / PARTITION, mirror / "codecs-1")
    shutil.move(first / PARTITION, first / "codecs-1")
    status, lines = run("--replicas", "--by-name", first, second, mirror)
    assert status == 0, lines


@pytest.mark.parametrize("pattern", ["codecs", "("])
def test_topics_are_chosen_by_name_alone(three: list[Path], pattern: str) -> None:
    """Exit status 2, one line that names the option."""
    arguments = ["--replicas", "--topics", pattern, *three[:2]]
    status, lines = run(*arguments, *(["--by-name"] if pattern == "(" else []))
    assert status == 2 and "--topics" in lines[-1]


def test_what_only_one_of_them_has_is_not_compared(three: list[Path]) -> None:
    """A replication factor below the number of directories is no damage."""
    shutil.rmtree(three[0] / PARTITION)
    assert findings(three) == []


@pytest.mark.parametrize("arguments", [["a"], ["a", "b", "--records"]])
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    """Exit status 2: a single directory has no replicas to compare; records are not looked into."""
    for name in "ab":
        (tmp_path / name).mkdir()
    assert (
        run("--replicas", *(tmp_path / each if len(each) == 1 else each for each in arguments))[0]
        == 2
    )
    assert run(tmp_path / "a", tmp_path / "b")[0] == 2


def test_batches_are_paired_by_offset() -> None:
    """Other bounds, a hole on either side: each difference once, then in step again."""

    def batch(first: int, last: int, crc: int = 1) -> Batch:
        return Batch(first, last, 0, crc, 100)

    mine = [batch(0, 4), batch(5, 9), batch(20, 29), batch(30, 39), batch(40, 40)]
    theirs = [
        batch(0, 9),
        batch(10, 19),
        batch(20, 29),
        batch(30, 39, 2),
        batch(40, 40),
        batch(41, 41),
    ]
    assert list(paired(iter(mine), iter(theirs))) == [
        (mine[0], theirs[0]),
        (mine[1], theirs[0]),
        (None, theirs[1]),
        (mine[3], theirs[3]),
        (None, theirs[5]),
    ]
