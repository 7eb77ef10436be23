"""Apache Kafka's cleaner and ours on the same directory: the same records are left; and a directory
that Kafka left half-way cleaned is finished.

KAFKA_JARS: a folder of Apache Kafka 4.3's jars (`make test-java`). About a minute.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.log.batches import all_batches, open_log
from tests.log.cleaner.rounds import clean_log
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.log import Log
from twisted_broker.log_config import LogConfig

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.timeout(300)]
JARS = os.environ.get("KAFKA_JARS", "")
PATIENCE_SECONDS = 100
TOPIC, SEGMENT_BYTES = "compacted", 1 << 20
SETTINGS = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=SEGMENT_BYTES,
    min_cleanable_dirty_ratio=0.01,
)
# The topic's id is another one in these tests.
_LEFT_OUT = shutil.ignore_patterns("*.deleted", "partition.metadata")
END = 3 * 900 + 1 + 900 + 1  # with two markers
Row = tuple[int, bytes | None, bytes | None]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


class Kafka:
    """One node; `cleans`: whether its cleaner is on."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.data = directory, directory / "data"
        ports = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{ports[0]}"
        self._values = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{ports[1]}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{ports[1]}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            "log.cleaner.backoff.ms": "200",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._java(
            "format", "kafka.tools.StorageTool", "format", "-t", "YS1jbGVhbmVyLXRlc3Qtcw", "-c"
        )

    def _java(self, name: str, *arguments: str, **values: str) -> None:
        path = self.directory / f"{name}.properties"
        lines = [f"{key}={value}" for key, value in (self._values | values).items()]
        path.write_text("\n".join(lines) + "\n")
        command = [
            "java",
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-cp",
            f"{JARS}/*",
            *arguments,
            str(path),
        ]
        with (self.directory / f"{name}.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        if name == "format":
            assert self._process.wait(PATIENCE_SECONDS) == 0, (
                self.directory / "format.log"
            ).read_text()

    def start(self, cleans: bool) -> None:
        self._java("broker", "kafka.Kafka", **{"log.cleaner.enable": str(cleans).lower()})
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def answers() -> bool:
            assert self._process is not None and self._process.poll() is None, (
                self.directory / "broker.log"
            ).read_text()[-3000:]
            try:
                return bool(client.list_topics(timeout=2).brokers)
            except Exception:
                return False

        until("Kafka answers", answers)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_SECONDS) in (0, 143)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def fill(self) -> None:
        client = AdminClient({"bootstrap.servers": self.bootstrap})
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.01",
        }
        client.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)
        for codec, ends in (("none", None), ("zstd", None), ("none", True), ("none", False)):
            transactional = {} if ends is None else {"transactional.id": "x"}
            producer = Producer(
                {"bootstrap.servers": self.bootstrap, "compression.type": codec, **transactional}
            )
            if ends is not None:
                producer.init_transactions(30)
                producer.begin_transaction()
            for number in range(900):
                key = b"%d" % (number % 70 if codec == "none" else number % 40)
                value = None if number % 97 == 0 else os.urandom(900)
                producer.produce(TOPIC, value, key)
                producer.poll(0)
            assert not producer.flush(30)
            if ends is not None:
                (producer.commit_transaction if ends else producer.abort_transaction)(30)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The partition's directory before Kafka cleaned it, and after."""
    if not JARS or shutil.which("java") is None:
        pytest.skip("Apache Kafka 4.3: set KAFKA_JARS to a folder of its jars, and have java")
    place = tmp_path_factory.mktemp("kafka")
    before, after = place / f"before-{TOPIC}-0", place / f"after-{TOPIC}-0"
    kafka = Kafka(place)
    try:
        kafka.start(cleans=False)
        kafka.fill()
        kafka.stop()
        held = kafka.data / f"{TOPIC}-0"
        shutil.copytree(held, before, ignore=_LEFT_OUT)
        kafka.start(cleans=True)
        checkpoint = kafka.data / "cleaner-offset-checkpoint"
        until("it is cleaned", lambda: checkpoint.exists() and TOPIC in checkpoint.read_text())
        kafka.stop()
        shutil.copytree(held, after, ignore=_LEFT_OUT)
    finally:
        kafka.end()
    return before, after


def opened(directory: Path, recovery_point: int = END) -> Log:
    """`recovery_point`: as Kafka's checkpoint has it."""
    return open_log(
        OsFileSystem(),
        str(directory),
        SETTINGS,
        wall_ms=time.time_ns() // 1_000_000,
        recovery_point=recovery_point,
    )


def rows(log: Log) -> list[Row]:
    """All records, markers left out."""
    return [
        (each.offset, each.key, each.value)
        for one in all_batches(log)
        if not one.is_control
        for each in one.records()
    ]


def test_both_leave_the_same_records(directories: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = directories
    own = tmp_path / before.name
    shutil.copytree(before, own)
    log = opened(own)
    log.set_high_watermark(log.log_end_offset)
    written = rows(log)
    clean_log(log, wall_ms=time.time_ns() // 1_000_000)
    ours, theirs = rows(log), rows(opened(after))
    assert len(ours) < len(written) / 2
    assert ours == theirs


@pytest.mark.parametrize("suffix", [".swap", ".cleaned"])
def test_a_directory_that_kafka_left_half_way(
    directories: tuple[Path, Path], tmp_path: Path, suffix: str
) -> None:
    """Killed in its first round, its checkpoints older than that. Segments that were replaced stay
    so; the next one, as `.swap`, is whole and counts, as `.cleaned` it never happened.
    """
    before, after = directories
    own = tmp_path / before.name
    shutil.copytree(before, own)
    # The last segment that was cleaned; those before it were replaced already.
    *replaced, last = sorted(path.stem for path in before.glob("*.log"))[:-1]
    for stem in replaced:
        for path in own.glob(f"{stem}.*"):
            path.unlink()
    for path in after.iterdir():
        if path.stem in replaced:
            shutil.copy(path, own / path.name)
        elif path.stem == last and path.suffix != ".snapshot":
            shutil.copy(path, own / f"{path.name}{suffix}")
    log = opened(own, recovery_point=0)
    assert not [path for path in own.iterdir() if path.suffix in (".swap", ".cleaned", ".aside")]
    assert log.log_end_offset == END
    left = rows(log)
    if suffix == ".swap":
        assert left == rows(opened(after))
    else:
        assert left == [row for row in rows(opened(before)) if row[0] >= int(last)]
