"""What contradicts itself, or the machine, is one line before anything opens."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.start_checks import check_machine, open_directories
from twisted_broker.tap import Options

TWISTD = str(Path(sys.executable).parent / "twistd")


def options(*arguments: str) -> Options:
    made = Options()
    made.parseOptions(list(arguments))
    return made


def refusal(*arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        options(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_port_against_listeners() -> None:
    """A `--port` or `--host` that would change what `--set listeners=` says; the same one, one
    over a file's, or one beside a controller's listener is no contradiction.
    """
    assert "--port 9" in refusal("--set", "listeners=PLAINTEXT://127.0.0.1:8", "--port", "9")
    said = refusal("--set", "listeners=PLAINTEXT://127.0.0.1:8", "--host", "localhost")
    assert "--host localhost" in said and "listeners=PLAINTEXT://127.0.0.1:8" in said
    options("--set", "listeners=PLAINTEXT://127.0.0.1:8", "--port", "8", "--host", "127.0.0.1")
    options("--set", "listeners=CONTROLLER://127.0.0.1:8", "--port", "9", *CONTROLLER)


CONTROLLER = ["--set", "process.roles=controller"]


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
@pytest.mark.parametrize("data", ["memory", "here"])
def test_data_against_log_dirs(name: str, data: str) -> None:
    """Both say where the logs are."""
    said = refusal("--set", f"{name}=/elsewhere", "--data", data)
    assert f"--data {data}" in said and f"{name}=/elsewhere" in said


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("node.id=1\n# c\nnum.partitions\n", "line 3: num.partitions has no ="),
        (
            "num.partitions=1\nnode.id=1\\\n1\n\nnum.partitions=2\n",
            "line 5: num.partitions is there twice, first on line 1",
        ),
        ("a\\=b=1\na\\=b: 1\n", "line 2: a=b is there twice, first on line 1"),
    ],
)
def test_a_file_with_a_mistake(lines: str, words: str, tmp_path: Path) -> None:
    """Kafka takes the last of two, and an empty value where there is no separator."""
    path = tmp_path / "server.properties"
    path.write_text(lines)
    assert f"{path}, {words}" in refusal("--config", str(path))


def test_a_file_for_zookeeper(tmp_path: Path) -> None:
    """A member of a ZooKeeper cluster is a broker with its id; one that is of a quorum, too, is
    neither.
    """
    path = tmp_path / "server.properties"
    text = f"zookeeper.connect=localhost:2181,[::1]:2182/kafka\nlog.dirs={tmp_path}\n"
    path.write_text(text)
    assert "broker.id" in refusal("--config", str(path))
    path.write_text(text + "broker.id=7\n")
    config = options("--config", str(path)).broker_config
    assert config.node_id == 7 and config.names("process.roles") == ("broker",)
    assert config["zookeeper.session.timeout.ms"] == 18_000 and not config.unknown()
    for line in ("process.roles=broker,controller", "controller.quorum.voters=1@h:1"):
        path.write_text(text + f"broker.id=7\n{line}\n")
        said = refusal("--config", str(path))
        assert "zookeeper.connect='localhost:2181" in said and f"{line} makes this a node" in said


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("zookeeper.connect=localhost", "HOST:PORT"),
        ("zookeeper.metadata.migration.enable=true", "takes no part in a migration to KRaft"),
        ("zookeeper.session.timeout.ms=0", "zookeeper.session.timeout.ms"),
        ("inter.broker.protocol.version=3.4", "2.6"),
    ],
)
def test_wrong_settings_of_a_zookeeper_member(setting: str, words: str, tmp_path: Path) -> None:
    named = {"zookeeper.connect": "h:1", "broker.id": "1", "log.dirs": str(tmp_path)}
    name, _, value = setting.partition("=")
    given = (named | {name: value}).items()
    assert words in refusal(*(part for each in given for part in ("--set", "=".join(each))))


def test_a_run_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Found before the start, not after it."""
    missing = tmp_path / "missing"
    said = refusal("--run-file", str(missing / "run.json"))
    assert "--run-file" in said and str(missing) in said
    assert "--run-file" in refusal("--run-file", str(tmp_path))
    options("--run-file", str(tmp_path / "run.json"))


def formatted(path: Path, node: int) -> None:
    path.mkdir(parents=True)
    (path / "meta.properties").write_text(
        f"cluster.id=WX0qnP_ETA-YJlOPkAsqrA\nnode.id={node}\nversion=1\n"
    )


def start(*arguments: str) -> None:
    made = options("--port", "0", *arguments)
    check_machine(made.broker_configs, made.directories)


def not_started(*arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        start(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_several_brokers_on_the_directory_of_one(tmp_path: Path) -> None:
    """`make run`, then `make run BROKERS=3`: its topics would be hidden behind empty brokers."""
    formatted(tmp_path / "data", 1)
    said = not_started("--data", str(tmp_path / "data"), "--brokers", "3")
    assert str(tmp_path / "data") in said and "without --brokers" in said and "--data" in said
    start("--data", str(tmp_path / "data"))


def test_one_broker_on_the_directory_of_several(tmp_path: Path) -> None:
    """The reverse; with more or as many it goes on."""
    for node in (1, 2, 3):
        formatted(tmp_path / "data" / f"broker-{node}", node)
    said = not_started("--data", str(tmp_path / "data"))
    assert str(tmp_path / "data") in said and "--brokers 3" in said and "--data" in said
    start("--data", str(tmp_path / "data"), "--brokers", "3")
    start("--data", str(tmp_path / "data"), "--brokers", "4")
    start("--data", str(tmp_path / "data" / "broker-2"), "--set", "node.id=2")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_is_found_before_the_start(taken: int) -> None:
    """The line of the start itself; any other broker's port, too. A free one is still free."""
    with pytest.raises(SystemExit, match=f"PLAINTEXT://127.0.0.1:{taken} cannot be listened on"):
        check_machine(options("--port", str(taken), "--data", "memory").broker_configs, ())
    several = options("--port", str(taken - 1), "--data", "memory", "--brokers", "2")
    with pytest.raises(SystemExit, match=f"PLAINTEXT://127.0.0.1:{taken} cannot be listened on"):
        check_machine(several.broker_configs[1:], ())
    start("--data", "memory")


@pytest.mark.parametrize(
    ("most", "more", "least"),
    [
        (64, (), 160),
        (159, (), 160),
        (160, (), None),
        (resource.RLIM_INFINITY, (), None),
        (400, ("--brokers", "3"), 480),
        (480, ("--brokers", "3"), None),
        (256, ("--set", "log.dirs=/none/a,/none/b,/none/c,/none/d"), 304),
    ],
)
def test_too_few_descriptors_are_found_before_the_start(
    monkeypatch: pytest.MonkeyPatch, most: int, more: tuple[str, ...], least: int | None
) -> None:
    """It would say ready and serve nobody."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    given = more if "--set" in more else ("--data", "memory", *more)
    if least is None:
        start(*given)
        return
    said = not_started(*given)
    assert f"open {most} files" in said and f"at least {least}" in said and "ulimit -n" in said


def test_a_directory_in_use_is_found_before_the_start(tmp_path: Path) -> None:
    """And nothing is made: a directory without a lock file was never started."""
    data = tmp_path / "data"
    made = options("--port", "0", "--data", str(data)).broker_configs
    check_machine(made, ())
    assert not data.exists()
    data.mkdir()
    check_machine(made, ())
    assert list(data.iterdir()) == []
    release = OsFileSystem().lock(str(data / ".lock"))
    with pytest.raises(SystemExit, match=f"{data} is in use by another process"):
        check_machine(made, ())
    release()
    check_machine(made, ())


def test_a_metadata_directory_in_use_is_found_before_the_start(tmp_path: Path) -> None:
    """That of `metadata.log.dir`, where it is none of `log.dirs`."""
    alone = tmp_path / "alone"
    alone.mkdir()
    more = ["--set", f"metadata.log.dir={alone}"]
    made = options("--port", "0", "--data", str(tmp_path / "data"), *more).broker_configs
    release = OsFileSystem().lock(str(alone / ".lock"))
    with pytest.raises(SystemExit, match=f"{alone} is in use by another process"):
        check_machine(made, ())
    release()
    check_machine(made, ())


def test_a_daemonised_start_on_a_taken_port(taken: int, tmp_path: Path) -> None:
    """Status 1 and the line for who started it; no pid file, no process, nothing formatted."""
    done = subprocess.run(
        [TWISTD, "--pidfile=pid", "--logfile=log", "replog", "--port", str(taken), "-d", "data"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "cannot be listened on" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "pid").exists() and not (tmp_path / "data").exists()


def test_a_daemon_that_fails_later_leaves_no_pid_file(tmp_path: Path) -> None:
    """A directory of another node is found when it is claimed: the daemon's log has the line."""
    formatted(tmp_path / "data", 7)
    subprocess.run(
        [TWISTD, "--pidfile=pid", "--logfile=log", "replog", "--port", "0", "-d", "data"],
        check=True,
        timeout=60,
        cwd=tmp_path,
    )
    pid_file, log = tmp_path / "pid", tmp_path / "log"
    deadline = time.monotonic() + 60
    while pid_file.exists() or not log.exists() or "Server Shut Down" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    assert "belongs to node 7" in log.read_text()


def test_a_failed_start_still_has_status_1(tmp_path: Path) -> None:
    """In the foreground: after `twistd` has tidied up."""
    formatted(tmp_path / "data", 7)
    done = subprocess.run(
        [TWISTD, "-n", "--pidfile=pid", "replog", "--port", "0", "-d", "data"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "belongs to node 7" in done.stdout
    assert not (tmp_path / "pid").exists()


@pytest.mark.parametrize(
    ("arguments", "factors"),
    [
        ([], [1]),
        (["--brokers", "2"], [2, 2]),
        (["--brokers", "5"], [3] * 5),
        (["--brokers", "3", "--set", "offsets.topic.replication.factor=1"], [1] * 3),
        (["--set", "process.roles=broker"], [3]),
    ],
)
def test_groups_are_served_however_many_brokers(arguments: list[str], factors: list[int]) -> None:
    """Without a file the coordinators' topics have as many replicas as this process can hold; a
    broker of a cluster, and one with a file of its own, have Kafka's default.
    """
    quorum = ["--set", "controller.quorum.bootstrap.servers=127.0.0.1:9"]
    more = quorum if "process.roles=broker" in arguments else []
    configs = options("--data", "memory", *arguments, *more).broker_configs
    assert [each.integer("offsets.topic.replication.factor") for each in configs] == factors
    if "offsets.topic.replication.factor=1" not in arguments:
        names = ("transaction.state.log.replication.factor", "transaction.state.log.min.isr")
        found = [tuple(each.integer(name) for name in names) for each in configs]
        assert found == [(factor, min(2, factor)) for factor in factors]


def test_a_file_says_how_many_replicas_offsets_have(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.dirs=/nowhere\n")
    (config,) = options("--config", str(path)).broker_configs
    assert config.integer("offsets.topic.replication.factor") == 3


def test_a_directory_that_others_may_enter_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours").chmod(0o750)
    named = ",".join(str(tmp_path / name) for name in ("mine", "ours", "none"))
    (line,) = open_directories(BrokerConfig({"log.dirs": named}))
    assert f"read {tmp_path / 'ours'} (its mode is 0750)" in line
    assert line.endswith(f"chmod -R go= {tmp_path / 'ours'}")
