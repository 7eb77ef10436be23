"""Every recipe of docs/OPERATIONS.md, typed as it stands on a cluster of real processes: it ends,
the lines that it shows are there, and no record is lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from tests.compat import operations_page
from tests.compat.operations_page import (
    PAGE,
    PREPARATION,
    Recipe,
    Terminal,
    can_mount,
    declared,
    read_page,
    with_values,
)
from tests.compat.test_restart import free_port

RECIPES = read_page(PAGE.read_text())
VARIABLES = declared(RECIPES[PREPARATION].commands[0][1])
NEEDS_A_MOUNT = {"A full disk"}
LONG = {
    "Another address of the controller",
    "A controller that started empty",
    "Three controllers",
}
TOPIC, PARTITIONS = "orders", 3
RECORDS = 300
PATIENCE_SECONDS = 60
QUICK = {
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 4000,
    "replica.fetch.backoff.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "offsets.topic.num.partitions": 3,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 500,
}


class Example:
    """The page's cluster, and the records that must be in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        values = {name: f"127.0.0.1:{free_port()}" for name in VARIABLES}
        values["CLUSTER"] = str(directory / "example")
        values["SETTINGS"] = "\n".join(f"{name}={value}" for name, value in QUICK.items())
        self.terminal = Terminal(directory / "terminal", values, mounts=can_mount())
        self.written = [str(number) for number in range(1, 1001)]
        self.failed = False
        first, *others = RECIPES[PREPARATION].commands
        try:
            for block in (with_values(first[1], values), *(block for _, block in others)):
                self.terminal.type(block)
        except BaseException:
            self.terminal.close()
            raise

    def bootstrap(self) -> list[str]:
        """The brokers that run."""
        run_files = sorted(self.terminal.cluster.glob("b?.json"))
        return [str(json.loads(path.read_text())["bootstrap"]) for path in run_files]

    def write(self, name: str) -> None:
        """Numbered records, acknowledged by all replicas in sync."""
        values = [f"{name} {number}" for number in range(RECORDS)]
        producer = KafkaProducer(bootstrap_servers=self.bootstrap(), acks="all")
        try:
            sent = [producer.send(TOPIC, value.encode()) for value in values]
            for each in sent:
                each.get(PATIENCE_SECONDS)
        finally:
            producer.close()
        self.written += values

    def read(self) -> list[str]:
        """All records, as often as they are there."""
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap(), auto_offset_reset="earliest")
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        found: list[str] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(each) < ends[each] for each in partitions):
                assert time.monotonic() < deadline
                for records in consumer.poll(500).values():
                    found += [record.value.decode() for record in records]
        finally:
            consumer.close()
        return found


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Example]]:
    """The cluster that the recipes share, last; those before it were spoiled."""
    made: list[Example] = []
    yield made
    for example in made:
        example.terminal.close()


@pytest.fixture
def example(examples: list[Example], tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A whole cluster: that of the recipe before, if that one left it whole."""
    if not examples or examples[-1].failed:
        if examples:
            examples[-1].terminal.close()
        examples.append(Example(tmp_path_factory.mktemp("operations")))
    examples[-1].failed = True
    return examples[-1]


def _parameter(name: str) -> object:
    marks = [pytest.mark.long] if name in LONG else []
    if name in NEEDS_A_MOUNT and not can_mount():
        marks.append(pytest.mark.skip("needs `unshare -rm`, and a tmpfs in it"))
    return pytest.param(name, marks=marks, id=name.lower().replace(" ", "-"))


@pytest.mark.parametrize("name", [_parameter(name) for name in RECIPES if name != PREPARATION])
def test_recipe(example: Example, name: str) -> None:
    example.write(name)
    example.terminal.run(RECIPES[name])
    assert sorted(example.read()) == sorted(example.written), example.terminal.story()
    example.failed = False


def test_a_start_says_what_it_formatted(example: Example) -> None:
    """The lines of the page's preparation."""
    terminal = example.terminal
    terminal._seen.clear()
    for node, line in RECIPES[PREPARATION].lines:
        terminal._await_line(node, line)
    example.failed = False


def test_the_terminal_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that fails, also within a function; a line that is not there."""
    monkeypatch.setattr(operations_page, "LINE_SECONDS", 0.1)
    terminal = Terminal(tmp_path / "terminal", {"CLUSTER": str(tmp_path)}, mounts=False)
    recipe = Recipe("r", [("", "echo one; echo $CLUSTER\n")], [("out", "$CLUSTER")])
    try:
        terminal.type(f"CLUSTER={tmp_path}\n")
        terminal.run(recipe)
        recipe.lines = [("out", "o..e"), ("out", "two")]
        with pytest.raises(AssertionError, match="out does not say: two"):
            terminal.run(recipe)
        with pytest.raises(AssertionError, match="failed: false"):
            terminal.type("broken() { false; }\nbroken\n")
    finally:
        terminal.close()


def test_processes_of_their_own(tmp_path: Path) -> None:
    """The lines of RUNNING's "Several brokers", typed in one go: they end, and no node warns of
    anything (but of long turns, which are the machine's).
    """
    text = (PAGE.parent / "RUNNING.md").read_text()
    section = text.partition("\n## Several brokers\n")[2].partition("\n## ")[0]
    blocks = [
        block for block in re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.M) if "c.pid" in block
    ]
    (lines,) = blocks
    for port in ("9090", "9092", "9093"):
        lines = re.sub(rf"\b{port}\b", str(free_port()), lines)
    terminal = Terminal(tmp_path / "terminal", {"CLUSTER": str(tmp_path / "terminal")}, False)
    try:
        terminal.type(lines)
        logs = [(tmp_path / "terminal" / f"{node}.log").read_text() for node in ("c", "b1", "b2")]
    finally:
        terminal.close()
    assert all(" ready on 127.0.0.1:" in log for log in logs)
    said = [line for log in logs for line in log.splitlines() if re.search("#(warn|error)", line)]
    assert [line for line in said if "replog.reactor#warn" not in line] == []


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with `kafka-reassign-partitions.sh`."""
    home, jars = os.environ.get("KAFKA_HOME"), os.environ.get("KAFKA_JARS")
    if not (home or jars) or shutil.which("java") is None:
        pytest.skip("Apache Kafka's tools: set KAFKA_HOME or KAFKA_JARS, and have java")
    command = tmp_path / "kafka-reassign-partitions.sh"
    command.write_text(
        f'exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "{jars or home}'
        f'{"" if jars else "/libs"}/*" '
        'org.apache.kafka.tools.reassign.ReassignPartitionsCommand "$@"\n'
    )
    command.chmod(0o755)
    return tmp_path


def test_kafkas_tools(example: Example, tools: Path) -> None:
    """The same reassignment with Kafka's own commands."""
    example.terminal.type(f"PATH={tools}:$PATH\n")
    for recipe in RECIPES.values():
        example.terminal.run(recipe, "kafka")
    assert sorted(example.read()) == sorted(example.written)
    example.failed = False
