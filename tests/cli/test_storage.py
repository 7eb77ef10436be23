"""`replog format`: what it writes, what it refuses, and that a broker starts on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.memory_broker import MemoryBroker
from twisted_broker.cli.main import main
from twisted_broker.cluster.snapshots import SnapshotId, list_snapshots, quorum_of_snapshot
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.log_directory import LogDirMismatch
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.raft.voter_history import KRaftVersion
from twisted_broker.tap import Options

CLUSTER = "b3RoZXItY2x1c3Rlci1oZQ"


def formatted(*options: object) -> Result:
    return CliRunner().invoke(main, ["format", *map(str, options)])


def refusal(*options: object) -> str:
    """The one line of an error; the status is 2."""
    done = formatted(*options)
    assert done.exit_code == 2, done.output
    return done.output.strip().splitlines()[-1]


def test_a_directory_a_node_and_a_cluster(tmp_path: Path) -> None:
    done = formatted("--data", tmp_path / "a/b", "--cluster-id", CLUSTER, "--set", "node.id=7")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        f"formatted {tmp_path}/a/b for node 7 of cluster {CLUSTER}",
        "a new cluster begins with eligible.leader.replicas.version 1, group.version 1, "
        "metadata.version 30, share.version 1, streams.version 1, transaction.version 2",
    ]
    found = read_meta_properties(OsFileSystem(), str(tmp_path / "a/b"))
    assert found is not None and (found.node_id, found.cluster_id) == (7, CLUSTER)
    assert sorted(each.name for each in (tmp_path / "a/b").iterdir()) == [
        "bootstrap.checkpoint",
        "meta.properties",
    ]


def test_all_directories_of_a_file(tmp_path: Path) -> None:
    """KIP-858: each has its own id; the levels lie where the metadata will."""
    file = tmp_path / "server.properties"
    file.write_text(
        f"node.id=3\nlog.dirs={tmp_path}/1,{tmp_path}/2\nmetadata.log.dir={tmp_path}/meta\n"
        "process.roles=broker,controller\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\n"
    )
    done = formatted("--config", file, "--release-version", "4.0")
    assert (
        done.exit_code == 0
        and "begins with group.version 1, metadata.version 25, transaction.version 2\n"
        in done.output
    ), done.output
    found = [read_meta_properties(OsFileSystem(), str(tmp_path / n)) for n in ("1", "2", "meta")]
    assert len({each.directory_id for each in found if each}) == 3
    assert len({each.cluster_id for each in found if each}) == 1
    holders = [each.parent.name for each in tmp_path.glob("*/bootstrap.checkpoint")]
    assert holders == ["meta"]


def test_what_is_formatted_stays_as_it_is(tmp_path: Path) -> None:
    """A second directory joins the first one's cluster."""
    formatted("--data", tmp_path / "1")
    before = (tmp_path / "1/meta.properties").read_bytes()
    both = ["--set", f"log.dirs={tmp_path}/1,{tmp_path}/2"]
    assert "is formatted already: give --ignore-formatted" in refusal(*both)
    assert not (tmp_path / "2").exists()
    done = formatted(*both, "--ignore-formatted")
    assert done.exit_code == 0 and f"{tmp_path}/1 is formatted already" in done.output
    assert (tmp_path / "1/meta.properties").read_bytes() == before
    one, two = (read_meta_properties(OsFileSystem(), str(tmp_path / n)) for n in "12")
    assert one and two and one.cluster_id == two.cluster_id
    wrong = refusal(*both, "-g", "--cluster-id", CLUSTER)
    assert f"not to node 1 of {CLUSTER}: choose another directory" in wrong


def test_metadata_without_an_owner_is_not_formatted_over(tmp_path: Path) -> None:
    log = tmp_path / "__cluster_metadata-0"
    log.mkdir()
    (log / f"{0:020d}.log").write_bytes(b"records")
    assert "no meta.properties, which says which: put that back" in refusal("--data", tmp_path)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--release-version", "2.8"], "--release-version takes 3.7, 3.8, 3.9, 4.0"),
        (["--feature", "metadata.version"], "--feature takes NAME=LEVEL"),
        (["--feature", "metadata.version=3"], "metadata.version can be 17 to 30, not 3"),
        (["--feature", "other.version=1"], "other.version is not served"),
        (["-r", "4.0", "-f", "metadata.version=25"], "contradict: give one"),
        (["-r", "3.9", "-f", "eligible.leader.replicas.version=1"], "needs metadata.version 23"),
        (["--set", "node.id"], "--set takes NAME=VALUE"),
        (["--set", "node.id=x"], "node.id"),
    ],
)
def test_wrong_arguments_are_one_line(tmp_path: Path, options: list[str], line: str) -> None:
    assert line in refusal("--data", tmp_path / "new", *options)
    assert not (tmp_path / "new").exists()


def test_a_file_is_read_as_the_start_reads_it(tmp_path: Path) -> None:
    """A contradiction is refused by both, in the same words."""
    file, data = tmp_path / "server.properties", tmp_path / "new"
    for text, line in (
        ("node.id=1\nnode.id=2\n", "line 2: node.id is there twice"),
        ("node.id\n", "line 1: node.id has no ="),
    ):
        file.write_text(text)
        assert line in refusal("--config", file, "--data", data)
        with pytest.raises(SystemExit, match=line):
            Options().parseOptions(["--config", str(file), "--data", str(data)])
    file.write_text("zookeeper.connect=localhost:2181\nbroker.id=0\n")
    assert "needs no formatted" in refusal("--config", file, "--data", data)
    assert "contradicts --set log.dirs" in refusal("--data", data, "--set", f"log.dirs={data}")
    assert not data.exists()


def test_a_broker_starts_on_it(tmp_path: Path) -> None:
    """With the id and the levels that were chosen; another cluster id is refused."""
    formatted("--data", tmp_path / "data", "-t", CLUSTER, "--release-version", "4.2")
    files = MemoryFileSystem()
    files.make_directories("/data")
    for each in (tmp_path / "data").iterdir():
        files.open(f"/data/{each.name}", create=True).write_at(0, (each.read_bytes(),))
    with pytest.raises(LogDirMismatch, match=f"belongs to cluster {CLUSTER}"):
        MemoryBroker(files=files, cluster_id="b" * 22).start()
    node = MemoryBroker(files=files).start()
    assert node.broker.cluster_id == CLUSTER
    assert node.broker.parts.controller.image.features == {
        "metadata.version": 29,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    node.stop()


def test_a_start_that_requires_it(tmp_path: Path) -> None:
    """A disk that is not mounted does not become a new broker."""
    data = ["--data", str(tmp_path / "data")]
    with pytest.raises(SystemExit, match="data is not formatted: mount it, format it"):
        Options().parseOptions([*data, "--require-formatted"])
    assert not (tmp_path / "data").exists()
    formatted(*data)
    Options().parseOptions([*data, "--require-formatted"])
    with pytest.raises(SystemExit, match="--data memory contradict"):
        Options().parseOptions(["--data", "memory", "--require-formatted"])


def test_the_first_user(tmp_path: Path) -> None:
    """KIP-900: stored without the password; a wrong one is refused without showing it."""
    user = "SCRAM-SHA-256=[name=admin,password=top-secret]"
    done = formatted("--data", tmp_path / "a", "--add-scram", user)
    assert done.exit_code == 0 and "and with user admin of SCRAM-SHA-256" in done.output
    assert b"top-secret" not in (tmp_path / "a/bootstrap.checkpoint").read_bytes()
    wrong = user.replace("SHA-256", "SHA-1")
    assert "--add-scram" in refusal("--data", tmp_path / "b", "--add-scram", wrong)
    twice = refusal("--data", tmp_path / "b", "--add-scram", user, "--add-scram", user)
    assert "twice" in twice and not (tmp_path / "b").exists()
    assert "top-secret" not in twice


def test_a_first_user_is_for_a_new_cluster(tmp_path: Path) -> None:
    """Its controller has read the first users; a new directory beside it is no new cluster."""
    user = ("--add-scram", "SCRAM-SHA-256=[name=admin,password=top-secret]")
    formatted("--data", tmp_path / "1")
    both = ["--set", f"log.dirs={tmp_path}/1,{tmp_path}/2", "--ignore-formatted"]
    wrong = refusal(*both, *user)
    assert f"{tmp_path}/1 is formatted already" in wrong and "kafka-configs" in wrong
    assert "top-secret" not in wrong and not (tmp_path / "2").exists()
    done = formatted(*both, "--set", f"metadata.log.dir={tmp_path}/meta", *user)
    assert done.exit_code == 0 and "and with user admin" in done.output, done.output


def test_nodes_that_log_in_by_scram_begin_with_a_user(tmp_path: Path) -> None:
    """Else the start would make a cluster that no node can ever join."""
    line = "org.apache.kafka.common.security.scram.ScramLoginModule required username=a password=b;"
    settings = {
        "listeners": "IN://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "IN",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
        "listener.name.in.scram-sha-256.sasl.jaas.config": line,
        "listener.name.controller.scram-sha-256.sasl.jaas.config": line,
    }
    data = tmp_path / "data"
    start = ["--data", str(data)]
    for name, value in settings.items():
        start += ["--set", f"{name}={value}"]
    for _ in ("empty", "formatted without a user"):
        with pytest.raises(SystemExit) as refused:
            Options().parseOptions(start)
        text = str(refused.value)
        assert "sasl.mechanism.controller.protocol" in text and "\n" not in text.strip()
        assert "replog format --add-scram 'SCRAM-SHA-256=[name=USER,password=" in text
        assert str(data) in text
        if not data.exists():
            formatted("--data", data)
    shutil.rmtree(data)
    formatted("--data", data, "--add-scram", "SCRAM-SHA-256=[name=a,password=b]")
    Options().parseOptions(start)
    # A cluster that is there has its users in its metadata.
    (data / "bootstrap.checkpoint").unlink()
    log = data / "__cluster_metadata-0"
    log.mkdir(exist_ok=True)
    (log / f"{0:020d}.log").write_bytes(b"records")
    Options().parseOptions(start)


def test_levels_of_a_cluster_that_is_there_are_not_changed(tmp_path: Path) -> None:
    """As in kafka-storage nothing changes; here one line says so."""
    formatted("--data", tmp_path / "1")
    again = ("--data", tmp_path / "1", "--ignore-formatted")
    said = "keeps its levels; change them with kafka-features"
    for options in (("--feature", "metadata.version=25"), ("--release-version", "4.0")):
        done = formatted(*again, *options)
        assert done.exit_code == 0 and done.output.count(said) == 1
    assert said not in formatted(*again).output


VOTER = (
    "process.roles=controller",
    "node.id=1",
    "listeners=CONTROLLER://127.0.0.1:9191",
    "controller.quorum.bootstrap.servers=127.0.0.1:9191,127.0.0.1:9192",
)
FOUNDERS = (
    "1@127.0.0.1:9191:AAAAAAAAAAAAAAAAAAAAAg,2@localhost:9192:AAAAAAAAAAAAAAAAAAAAAw,"
    "3@[::1]:9193:AAAAAAAAAAAAAAAAAAAABA"
)
FIRST_VOTERS = f"__cluster_metadata-0/{0:020}-{0:010}.checkpoint"


def settings(*values: str) -> list[str]:
    return [word for each in values for word in ("--set", each)]


def test_the_first_voters_are_a_checkpoint_in_the_metadata(tmp_path: Path) -> None:
    """QU 4.8, 4.9: this node's directory is the one of its entry."""
    done = formatted(
        "--data", tmp_path, *settings(*VOTER), "--initial-controllers", FOUNDERS,
        "--feature", "kraft.version=1",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "and with voter 3@::1:9193:AAAAAAAAAAAAAAAAAAAABA" in done.output
    found = read_meta_properties(OsFileSystem(), str(tmp_path))
    assert found is not None and found.directory_id == bytes(15) + b"\x02"
    voters = quorum_of_snapshot(
        OsFileSystem(), str(tmp_path / "__cluster_metadata-0"), SnapshotId(0, 0), "CONTROLLER"
    )
    assert voters is not None and voters[0] == KRaftVersion(1)
    assert list_snapshots(OsFileSystem(), str(tmp_path / "__cluster_metadata-0")) == []


def test_a_voter_of_its_own_and_one_that_joins(tmp_path: Path) -> None:
    """QU 4.8, 4.10: `--standalone` has a random directory, `--no-initial-controllers` no voters."""
    for name, option in (("a", "--standalone"), ("b", "--no-initial-controllers")):
        done = formatted("--data", tmp_path / name, *settings(*VOTER), option)
        assert done.exit_code == 0, done.output
        assert ("a new cluster begins" in done.output) == (name == "a")
    assert (tmp_path / "a" / FIRST_VOTERS).exists()
    assert sorted(each.name for each in (tmp_path / "b").iterdir()) == [
        "bootstrap.checkpoint",
        "meta.properties",
    ]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--standalone", "--no-initial-controllers"], "contradict: give one"),
        (
            ["--standalone", "--set", "controller.quorum.voters=1@127.0.0.1:9191"],
            "remove controller.quorum.voters",
        ),
        (["--standalone", "--set", "process.roles=broker"], "process.roles has none"),
        (["--initial-controllers", "1@here:9191"], "takes ID@HOST:PORT:DIRECTORY"),
        (["--initial-controllers", f"{FOUNDERS},{FOUNDERS}"], "names node 1 twice"),
        (["--feature", "kraft.version=1"], "it is 1 with one of"),
        (["--standalone", "--feature", "kraft.version=0"], "else 0"),
    ],
)
def test_first_voters_that_contradict(tmp_path: Path, options: list[str], line: str) -> None:
    assert line in refusal("--data", tmp_path, *settings(*VOTER), *options)
    assert not list(tmp_path.iterdir())
