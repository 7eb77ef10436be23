"""Tables on a real S3 server that checks every signature: archived with kills, merged, queried,
replayed; and the secret is nowhere but in the environment of who has it.

The jars are 690 MB: without them these tests are skipped, and say how to fetch them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path

import psutil
import pyarrow.parquet
import pytest
from kafka import KafkaConsumer

from replog_pipeline.machine import jars
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import Written, numbered, produce
from tests.pipeline.stores.s3_server import BUCKET, S3Server, serving

pytest.importorskip("pyspark")
pytest.importorskip("moto")
LACKING = jars.missing(jars.of(["kafka", "delta", "s3"]))
pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        bool(LACKING),
        reason=f"not fetched{jars.size(LACKING)}: run `replog pipeline jars --store s3` once",
    ),
]
PATIENCE_SECONDS = 600
LOOK_SECONDS = 0.05
CONF = [
    f"--spark-conf={setting}"
    for setting in (
        "spark.hadoop.fs.s3a.path.style.access=true",
        "spark.master=local[2]",
        "spark.sql.shuffle.partitions=2",
        "spark.databricks.delta.snapshotPartitions=2",
    )
]
QUERY = "select count(*), count(distinct partition, offset) from flights"
FIELDS = ("partition", "offset", "key", "value")
Line = tuple[int, int, str, str, int]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serving() as found:
        yield found


class World:
    """The command line with the writer's credentials in its environment, and all that it said."""

    def __init__(self, server: S3Server) -> None:
        own = {"AWS_ENDPOINT_URL": server.url}
        self.environment = os.environ | own | server.writer.environment()
        self.said: list[str] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "twisted_broker.cli.main", "pipeline", *arguments, *CONF],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def run(self, *arguments: str, status: int = 0) -> str:
        """What it printed."""
        child = self.start(*arguments)
        output, error = child.communicate(timeout=PATIENCE_SECONDS)
        self.said += [output, error]
        assert child.returncode == status, error
        return output


@pytest.fixture(scope="module")
def world(server: S3Server) -> World:
    return World(server)


def killed(
    world: World, server: S3Server, table: str, batches: int, arguments: Sequence[str]
) -> None:
    """The archive, killed at a random moment after so many commits; its JVM goes with it."""
    child = world.start(*arguments)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(server.commits(table)) < batches:
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < deadline, f"no {batches} batches"
            time.sleep(LOOK_SECONDS)
        time.sleep(random.Random(batches).uniform(0, 2))  # the moment of the kill
        started = psutil.Process(child.pid).children(recursive=True)
    finally:
        child.kill()
        output, error = child.communicate(timeout=PATIENCE_SECONDS)
        world.said += [output, error]
    assert psutil.wait_procs(started, PATIENCE_SECONDS)[1] == []


def command_line(process: psutil.Process) -> str:
    """Empty for one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def lines(written: Sequence[Written]) -> list[Line]:
    return [
        (partition, offset, in_hex(key), in_hex(value), ms)
        for partition, offset, key, value, ms, _ in tables.expected(written)
    ]


def rows(server: S3Server, table: str) -> list[Line]:
    """What the Delta log says that the table holds, read without Spark."""
    found = []
    for name in server.live_files(table):
        content = pyarrow.parquet.read_table(BytesIO(server.content(name)))
        times = content["timestamp"].cast("timestamp[ms]").cast("int64")
        columns = [content[column].to_pylist() for column in FIELDS]
        for partition, offset, key, value, ms in zip(*columns, times.to_pylist(), strict=True):
            found.append((partition, offset, in_hex(key), in_hex(value), ms))
    return sorted(found)


def consumed(bootstrap: str, topic: str, count: int) -> list[Line]:
    """What a topic of so many records holds, as `lines` writes it."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_SECONDS * 1000,
    )
    try:
        found = sorted(islice(consumer, count), key=lambda each: (each.partition, each.offset))
    finally:
        consumer.close()
    return [
        (each.partition, each.offset, in_hex(each.key), in_hex(each.value), each.timestamp)
        for each in found
    ]


def in_hex(content: bytes | None) -> str:
    return (content or b"").hex().upper()


def test_each_record_once_whatever_is_killed(
    world: World, server: S3Server, broker: BrokerProcess, topic: str
) -> None:
    written, to = numbered(650, 2), f"s3a://{BUCKET}/{topic}"
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, written[:600])
    archive = ("archive", "--from", f"kafka://{broker.bootstrap}/{topic}", "--to", to)
    for batches in (1, 3):
        killed(world, server, topic, batches, (*archive, "--max-records", "100"))
    done = json.loads(world.run(*archive, "--json", "--quiet"))
    assert done["format"] == "delta" and 0 < done["rows"] < 600
    assert rows(server, topic) == lines(written[:600])
    merged = json.loads(world.run("maintain", to, "--json", "--quiet"))
    assert merged["merged"] > merged["into"] == 1
    produce(broker.bootstrap, topic, written[600:])
    assert json.loads(world.run(*archive, "--json", "--quiet"))["rows"] == 50
    assert rows(server, topic) == lines(written)
    told = world.run("sql", QUERY, "--from", f"flights={to}", "--format", "csv", "--quiet")
    assert told.splitlines()[1:] == ["650,650"]
    again = f"{topic}-again"
    world.run("replay", "--quiet", "--from", to, "--to", f"kafka://{broker.bootstrap}/{again}")
    assert consumed(broker.bootstrap, again, 650) == lines(written)

    secret = server.writer.secret
    assert not any(secret in said or "SLF4J" in said for said in world.said)
    stored = [name for name in server.objects() if name.endswith((".json", ".crc", "format"))]
    assert stored and not any(secret.encode() in server.content(name) for name in stored)


def test_a_secret_that_is_an_option_is_not_handed_on(
    world: World, server: S3Server, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """To no command line of the JVM. And there is one archive of a table at a time, here and
    elsewhere: another cache folder is another machine.
    """
    elsewhere = World(server)
    elsewhere.environment["REPLOG_JARS"] = str(jars.folder())
    elsewhere.environment["REPLOG_CACHE"] = str(tmp_path)
    tables.create(broker.bootstrap, topic, 1)
    produce(broker.bootstrap, topic, numbered(10))
    to = f"s3a://{BUCKET}/{topic}"
    own = World(server)
    for name in server.writer.environment():
        del own.environment[name]
    options = [
        f"--spark-conf=spark.hadoop.{name}={value}"
        for name, value in server.writer.settings().items()
    ]
    archive = ("archive", "--from", f"kafka://{broker.bootstrap}/{topic}", "--to", to)
    child = own.start(*archive, *options, "--continuous")
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not server.commits(topic):
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < deadline, "no batch"
            time.sleep(LOOK_SECONDS)
        started = psutil.Process(child.pid).children(recursive=True)
        command_lines = [command_line(each) for each in started]
        assert any("spark" in line for line in command_lines)
        assert not any(server.writer.secret in line for line in command_lines)
        world.run(*archive, status=2)
        assert f"another archive writes to {to}: a table has one writer" in world.said[-1]
        elsewhere.run(*archive, status=2)
        assert f"another machine's archive writes to {to}" in elsewhere.said[-1]
    finally:
        child.terminate()
        output, error = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0 and server.writer.secret not in output + error
    assert json.loads(elsewhere.run(*archive, "--json", "--quiet"))["rows"] == 0  # and at once
