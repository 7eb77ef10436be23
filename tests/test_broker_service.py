"""What `broker_service.py` promises: the run file, and an end that is said in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.memory_broker import MemoryBroker
from twisted_broker.broker_service import BrokerService
from twisted_broker.status.run_file import remove_run_file, write_run_file


class Loop:
    """The part of a reactor that the service uses."""

    def __init__(self) -> None:
        self.stops = 0
        self.triggers: list[Any] = []

    def addSystemEventTrigger(self, phase: str, event: str, call: Any) -> None:
        self.triggers.append((phase, event))

    def callWhenRunning(self, call: Any) -> None:
        call()

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def service(broker: MemoryBroker, path: Path, loop: Loop) -> BrokerService:
    return BrokerService(broker.broker.config, broker.runtime, run_file=str(path), reactor=loop)


def test_the_run_file_says_where_everything_is(broker: MemoryBroker, tmp_path: Path) -> None:
    """Written when ready, whole; removed at the stop (issue section 1)."""
    path, loop = tmp_path / "run.json", Loop()
    made = service(broker, path, loop)
    made.startService()
    assert not path.exists()
    broker.pass_time(2)
    told = json.loads(path.read_text())
    assert told["bootstrap"] == "127.0.0.1:9092" and told["controller"] == "127.0.0.1:9093"
    entry = told["brokers"]["1"]
    assert (
        entry["listeners"] == {"PLAINTEXT": "127.0.0.1:9092", "CONTROLLER": "127.0.0.1:9093"}
        and entry["directory"] == "/data"
    )
    assert (
        entry["status"] == told["status"]
        and ("127.0.0.1", int(told["status"].removeprefix("127.0.0.1:"))) in broker.network.ports
    )
    assert (
        isinstance(told["pid"], int)
        and made.broker is not None
        and told["cluster_id"] == made.broker.cluster_id
    )
    broker.run(made.stopService())
    assert not path.exists() and [each.name for each in tmp_path.iterdir()] == []
    assert loop.stops == 0


def test_a_start_that_fails_stops_the_process(broker: MemoryBroker, tmp_path: Path) -> None:
    """A port in use: the reactor is stopped, and the status will not be 0."""
    loop = Loop()
    broker.network.listen("127.0.0.1", 9092, None)
    made = service(broker, tmp_path / "run.json", loop)
    made.startService()
    broker.pass_time(2)
    assert loop.stops == 1 and ("after", "shutdown") in loop.triggers
    assert not (tmp_path / "run.json").exists()
    broker.run(made.stopService())


def test_a_second_signal_to_stop(broker: MemoryBroker, tmp_path: Path) -> None:
    """The first request begins an orderly stop, and waits for a controller that says nothing;
    the next one ends the wait, not the order.
    """
    hurries: list[Callable[[], None]] = []
    made = BrokerService(
        broker.broker.config,
        broker.runtime,
        run_file=None,
        reactor=Loop(),
        on_stop_again=hurries.append,
    )
    made.startService()
    broker.pass_time(2)
    assert made.broker is not None and hurries == []
    channel: Any = made.broker.broker_server.lifecycle._channel
    channel.send_once = lambda request, version, timeout_ms: Deferred()
    stopped = made.stopService()
    broker.pass_time(3)
    assert not stopped.called
    at = broker.clock.seconds()
    hurries[0]()
    broker.run(stopped)
    assert broker.clock.seconds() - at < 2 and broker.files.exists("/data/.kafka_cleanshutdown")
    hurries[0]()


def test_a_refused_start_leaves_the_run_file_of_the_running_process(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """The same command given twice: the first one's file stays."""
    path, loop = tmp_path / "run.json", Loop()
    other = json.dumps({"pid": os.getppid()})
    path.write_text(other)
    broker.network.listen("127.0.0.1", 9092, None)
    made = service(broker, path, loop)
    made.startService()
    broker.pass_time(2)
    assert loop.stops == 1
    broker.run(made.stopService())
    assert path.read_text() == other


def test_the_run_file_of_a_killed_process_goes_before_the_start(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """Who waits for the file must not find a dead broker's."""
    path = tmp_path / "run.json"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    path.write_text(json.dumps({"pid": ended.pid}))
    made = service(broker, path, Loop())
    made.startService()
    assert not path.exists()
    broker.pass_time(2)
    assert json.loads(path.read_text())["pid"] == os.getpid()
    broker.run(made.stopService())


def test_a_run_file_with_this_process_id_is_stale_at_the_start(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """A container that is started again has the same ids."""
    path = tmp_path / "run.json"
    write_run_file(str(path), "cluster", "127.0.0.1:1", None, {})
    made = service(broker, path, Loop())
    made.startService()
    assert not path.exists()
    broker.pass_time(2)
    broker.run(made.stopService())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": "x"}', '{"pid": -1}'])
def test_a_file_that_is_no_run_file_is_not_removed_before_the_start(
    broker: MemoryBroker, tmp_path: Path, content: str
) -> None:
    """A path given by mistake costs nothing before the broker is ready."""
    path = tmp_path / "notes"
    path.write_text(content)
    made = service(broker, path, Loop())
    made.startService()
    assert path.read_text() == content
    broker.pass_time(2)
    broker.run(made.stopService())


def test_removing_a_run_file_twice_is_harmless(tmp_path: Path) -> None:
    """It may be gone already."""
    remove_run_file(str(tmp_path / "none.json"))
