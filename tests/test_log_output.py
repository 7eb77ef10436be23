"""What `--log-level` and `--log-json` make of the lines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.python.failure import Failure

import twisted_broker.server.broker_server  # noqa: F401  the loggers of what it loads
from twisted_broker.api import broker_loggers
from twisted_broker.event_lines import EventLines
from twisted_broker.log_output import json_line, parse_levels
from twisted_broker.tap import Options
from twisted_broker.wire.messages.configs import IncrementalAlterConfigsRequestAlterableConfig

TWISTD = str(Path(sys.executable).parent / "twistd")
REPLICAS = "twisted_broker.replication.replica_manager"


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("info", {"": "INFO"}),
        ("replog.replication=debug", {"twisted_broker.replication": "DEBUG"}),
        (
            "warn, replog.cluster.controller=INFO,replog.reactor=error",
            {
                "": "WARN",
                "twisted_broker.cluster.controller": "INFO",
                "twisted_broker.reactor_watch": "ERROR",
            },
        ),
        ("replog=trace", {"twisted_broker": "TRACE"}),
    ],
)
def test_levels(text: str, levels: dict[str, str]) -> None:
    """One for all, and by the names that the lines have."""
    assert parse_levels(text) == levels


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loud", "trace, debug, info, warn, error, fatal, not 'loud'"),
        ("replog.nowhere=info", "there is no logger 'replog.nowhere'"),
        ("=info", "there is no logger ''"),
        ("kafka.server=info", "there is no logger 'kafka.server'"),
    ],
)
def test_a_wrong_level_is_one_line(text: str, words: str) -> None:
    """It names what would be taken."""
    with pytest.raises(SystemExit, match=words) as caught:
        Options().parseOptions(["--log-level", text])
    assert "\n" not in str(caught.value)


@pytest.fixture
def start() -> Iterator[Any]:
    broker_loggers._own.clear()
    yield broker_loggers.start_with
    broker_loggers._own.clear()
    broker_loggers.start_with({})


def test_levels_of_a_start_are_those_of_the_broker_loggers(start: Any) -> None:
    """Shown by DescribeConfigs, changed live, and back to the start's when a change is deleted."""
    start({"": "WARN", "twisted_broker.replication": "DEBUG"})
    known = broker_loggers.levels()
    assert (known["root"], known[REPLICAS]) == ("WARN", "DEBUG")
    assert known["twisted_broker.server.shared_server"] == "WARN"
    edit = IncrementalAlterConfigsRequestAlterableConfig
    broker_loggers.change([edit(name=REPLICAS, config_operation=0, value="ERROR")], True)
    assert broker_loggers.levels()[REPLICAS] == "ERROR"
    broker_loggers.change([edit(name=REPLICAS, config_operation=1, value=None)], True)
    assert broker_loggers.levels()[REPLICAS] == "DEBUG"


def test_an_event_as_json() -> None:
    """One line, with its parts; a failure with its traceback; nothing breaks it."""
    events: list[Any] = []
    logger = Logger(namespace="replog.test", observer=events.append)
    EventLines(logger, Clock(), broker=1).add("topic made", topic="ü\n", partitions=3)
    found = json.loads(json_line(events[0]))
    assert found["text"] == 'topic made broker=1 topic="\\u00fc\\n" partitions=3'
    assert (found["level"], found["logger"], found["partitions"]) == ("info", "replog.test", 3)
    assert found["time"].endswith("Z") and "log_time" not in found
    try:
        raise ValueError("a\nb")
    except ValueError:
        logger.failure("it {what}", Failure(), what="broke", time=object())
    line = json_line(events[1])
    assert "\n" not in line
    found = json.loads(line)
    assert found["level"] == "critical" and "ValueError" in found["traceback"]
    assert (found["text"], found["what"]) == ("it broke", "broke")


def test_a_process_that_logs_json(tmp_path: Path) -> None:
    """Every line of it, Twisted's own too; with one part silent."""
    process = subprocess.Popen(
        [
            *(TWISTD, "-n", "--pidfile=", "replog", "--port", "0", "--data", "memory"),
            *("--log-json", "--log-level", "replog.cluster=warn"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    lines = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(json.loads(line))
            if "ready on" in lines[-1]["text"]:
                process.terminate()
        assert process.wait(30) == -signal.SIGTERM  # as `twistd` ends
    finally:
        process.kill()
        process.wait()
    assert any(line["text"].startswith("replog node 1 stopped") for line in lines)
    assert not any(line["logger"].startswith("twisted_broker.cluster") for line in lines)
    assert {"time", "level", "logger", "text"} <= set.intersection(*map(set, lines))


def test_json_and_another_logger_contradict(tmp_path: Path) -> None:
    """One line before anything opens."""
    done = subprocess.run(
        [TWISTD, "-n", "--pidfile=", "--syslog", "replog", "--port", "0", "--log-json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "--syslog" in done.stderr and done.stderr.count("\n") == 1
