"""What `--brokers N --processes` starts, watches and stops, on a reactor without processes; real
ones are in `tests/compat/test_process_cluster.py`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, eventAsText, formatEvent
from twisted.python.failure import Failure

from twisted_broker import local_quorum, process_cluster, systemd
from twisted_broker.local_quorum import with_ports
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.net.listeners import plan_listeners
from twisted_broker.process_cluster import KILL_SECONDS, MOST_PAUSE, ProcessCluster
from twisted_broker.start_checks import StartError
from twisted_broker.tap import Options, makeService

LEAVE = b"leave\n"


class Child:
    """A process as the transport of its protocol."""

    def __init__(self, protocol, pid: int) -> None:
        self.protocol, self.pid, self.lives = protocol, pid, True
        self.signals: list[object] = []
        self.order: dict = {}

    def write(self, data: bytes) -> None:
        if self.order:
            self.signals.append(data)
        else:
            self.order = json.loads(data)

    @property
    def node(self) -> int:
        return int(self.order["settings"]["node.id"])

    def signalProcess(self, number: int) -> None:
        if not self.lives:
            raise ProcessExitedAlready
        self.signals.append(number)

    def say(self, *lines: object) -> None:
        for line in lines:
            self.protocol.outReceived(json.dumps(line).encode() + b"\n")

    def ready(self) -> None:
        is_controller = "controller" in self.order["settings"]["process.roles"]
        controller = f"127.0.0.1:{self.node}" if is_controller else None
        entry: dict = {"listeners": {}, "directory": f"/d/{self.node}", "status": None}
        self.say(
            {
                "ready": {
                    "cluster_id": "C",
                    "client": f"h:{self.node}",
                    "controller": controller,
                    "entry": entry,
                }
            }
        )

    def end(self, code: int | None = None, number: int | None = None) -> None:
        self.lives = False
        error = ProcessDone(0) if code == 0 else ProcessTerminated(code, number)
        self.protocol.processEnded(Failure(error))


class Reactor(Clock):
    """Runs from the start; its `children` are those that live."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Child] = []
        self.stopped = False

    @property
    def children(self) -> dict[int, Child]:
        return {each.node: each for each in self.made if each.lives}

    def callWhenRunning(self, call, *arguments) -> None:
        call(*arguments)

    def addSystemEventTrigger(self, *arguments) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def spawnProcess(self, protocol, executable, arguments, environment):
        self.made.append(Child(protocol, 100 + len(self.made)))
        return self.made[-1]


class Running:
    """Some nodes, three by default."""

    def __init__(self, tmp_path: Path, brokers: int = 3) -> None:
        options = Options()
        options.parseOptions(
            [f"--brokers={brokers}", "--processes", "--port=0", f"--data={tmp_path / 'data'}"]
        )
        self.reactor = Reactor()
        self.again: list = []
        self.run_file = tmp_path / "run.json"
        self.ready = 0
        self.cluster = ProcessCluster(
            options.broker_configs,
            {"levels": {}},
            run_file=str(self.run_file),
            reactor=self.reactor,
            on_stop_again=self.again.append,
            when_ready=self._count,
        )
        self.cluster.startService()

    def _count(self) -> None:
        self.ready += 1

    def all_ready(self) -> Running:
        for node in (1, 2, 3):
            self.reactor.children[node].ready()
        return self

    def signals(self) -> dict[int, list[object]]:
        return {node: each.signals for node, each in self.reactor.children.items()}

    def in_run_file(self) -> list[str]:
        return list(json.loads(self.run_file.read_text())["brokers"])


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path)


def test_three_voters_start_together_in_directories_of_one_cluster(running: Running) -> None:
    """None is ready before two are there. The run file is there when all are ready, with the
    process of each.
    """
    reactor = running.reactor
    assert list(reactor.children) == [1, 2, 3]
    assert (
        len({read_meta_properties(OsFileSystem(), path).cluster_id for path in paths(running)}) == 1
    )
    assert len({each.order["settings"]["controller.quorum.voters"] for each in reactor.made}) == 1
    reactor.children[2].ready()
    reactor.children[3].ready()
    assert not running.run_file.exists()
    reactor.children[1].ready()
    assert running.ready == 1
    told = json.loads(running.run_file.read_text())
    assert told["bootstrap"] == "h:1,h:2,h:3"
    assert told["controller"] == "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    assert [told["brokers"][str(node)]["pid"] for node in (1, 2, 3)] == [100, 101, 102]


def paths(running: Running) -> list[str]:
    return [each.order["settings"]["log.dirs"] for each in running.reactor.made]


def test_the_only_controller_starts_first_and_the_others_know_it(tmp_path: Path) -> None:
    """Of two nodes one is: it stops last, by a controlled shutdown."""
    running = Running(tmp_path, brokers=2)
    reactor = running.reactor
    assert list(reactor.children) == [1]
    reactor.children[1].ready()
    assert list(reactor.children) == [1, 2] and not running.run_file.exists()
    assert [
        each.order["settings"].get("controller.quorum.bootstrap.servers") for each in reactor.made
    ] == [None, "127.0.0.1:1"]
    reactor.children[2].ready()
    assert json.loads(running.run_file.read_text())["controller"] == "127.0.0.1:1"
    running.cluster.stopService()
    reactor.children[2].end(code=0)
    assert running.signals() == {1: [signal.SIGTERM]}


def test_directories_that_cannot_be_formatted_end_the_start(tmp_path: Path) -> None:
    """One line, and no process."""
    (tmp_path / "data" / "broker-2").mkdir(parents=True)
    (tmp_path / "data" / "broker-2" / "meta.properties").write_text("version=7")
    with capturedLogs() as events:
        running = Running(tmp_path)
    (line,) = [formatEvent(each) for each in events if each["log_level"] is LogLevel.critical]
    assert line.startswith("replog nodes 1 to 3 stops: ") and "broker-2/meta.properties" in line
    assert not running.reactor.made


def test_a_node_keeps_the_free_ports_that_it_got(running: Running) -> None:
    """Each has its own, also for the controller and the status page, and again when it is started
    again.
    """
    running.all_ready()
    plans = [plan_listeners(node.config) for node in running.cluster._nodes]
    ports = [each.port for plan in plans for each in (*plan.broker, *plan.controller)]
    ports += [node.config.integer("replog.status.port") for node in running.cluster._nodes]
    assert len(set(ports)) == 9 and 0 not in ports
    before = running.reactor.children[2].order
    running.reactor.children[2].end(number=9)
    running.reactor.advance(MOST_PAUSE)
    assert running.reactor.children[2].order == before


def test_no_free_port_is_one_line(monkeypatch: pytest.MonkeyPatch, running: Running) -> None:
    """It does not look for one for ever."""

    def taken(endpoint) -> None:
        raise OSError

    monkeypatch.setattr(local_quorum, "try_port", taken)
    config = running.cluster._nodes[0].config
    with pytest.raises(StartError, match="no free port was found for PLAINTEXT"):
        with_ports([type(config)({**config.static, "listeners": "PLAINTEXT://127.0.0.1:0"})])


def test_a_node_that_dies_starts_again_after_a_growing_pause(running: Running) -> None:
    """1, 2, 4 .. seconds, a minute at most, and from the beginning for one that lasted; the line
    says why it ended, the run file leaves it out meanwhile.
    """
    running.all_ready()
    pauses = []
    with capturedLogs() as events:
        for _ in range(8):
            running.reactor.children[2].end(number=signal.SIGKILL)
            assert running.in_run_file() == ["1", "3"]
            pause = 0
            while 2 not in running.reactor.children:
                running.reactor.advance(1)
                pause += 1
            pauses.append(pause)
        assert running.in_run_file() == ["1", "3"]
        running.reactor.children[2].ready()
        assert running.in_run_file() == ["1", "2", "3"]
        running.reactor.advance(process_cluster.LASTING)
        running.reactor.children[2].end(code=1)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    critical = [formatEvent(each) for each in events if each["log_level"] is LogLevel.critical]
    assert critical[0] == ("replog node 2 ended: signal 9 (SIGKILL); it starts again in 1 s")
    assert critical[-1] == "replog node 2 ended: exit code 1; it starts again in 1 s"
    assert running.ready == 1


def test_one_that_ends_before_all_are_ready_ends_the_start(running: Running) -> None:
    """One line, and the others are stopped, node 1 last."""
    running.reactor.children[1].ready()
    with capturedLogs() as events:
        running.reactor.children[3].end(code=1)
    (line,) = [formatEvent(each) for each in events]
    assert line == ("replog nodes 1 to 3 stops: node 3 ended before all were ready: exit code 1")
    assert running.reactor.stopped
    done = running.cluster.stopService()
    assert running.signals() == {1: [], 2: [signal.SIGTERM]}
    running.reactor.children[2].end(code=0)
    assert running.signals() == {1: [LEAVE]}
    running.reactor.children[1].end(code=0)
    assert done.called and not running.reactor.getDelayedCalls()


def test_a_stop_is_of_the_others_first_and_of_node_1_when_they_are_gone(running: Running) -> None:
    """The run file is gone at once; one that was to be started again stays away. The last waits for
    nobody: no majority is left to give its leaderships away.
    """
    running.all_ready()
    running.reactor.children[3].end(number=9)
    done = running.cluster.stopService()
    assert not running.run_file.exists()
    assert running.signals() == {1: [], 2: [signal.SIGTERM]}
    running.reactor.advance(MOST_PAUSE)
    assert list(running.reactor.children) == [1, 2]
    running.reactor.children[2].end(code=0)
    assert running.signals() == {1: [LEAVE]} and not done.called
    running.reactor.children[1].end(code=0)
    assert done.called


def test_a_further_signal_goes_to_all_and_what_is_left_is_killed(running: Running) -> None:
    """A node that hangs does not keep the others for ever."""
    running.all_ready()
    running.cluster.stopService()
    (hasten,) = running.again
    hasten()
    term, kill = signal.SIGTERM, signal.SIGKILL
    assert running.signals() == {1: [term], 2: [term, term], 3: [term, term]}
    for node in (1, 3):
        running.reactor.children[node].end(code=0)
    running.reactor.advance(KILL_SECONDS)
    assert running.signals() == {2: [term, term, kill]}


def test_the_last_that_runs_is_the_last_to_stop(running: Running) -> None:
    """Node 1 is away: node 2 is one of the majority until node 3 has left."""
    running.all_ready()
    running.reactor.children[1].end(number=9)
    done = running.cluster.stopService()
    assert running.signals() == {2: [], 3: [signal.SIGTERM]}
    running.reactor.children[3].end(code=0)
    assert running.signals() == {2: [LEAVE]}
    running.reactor.children[2].end(code=0)
    assert done.called


def test_a_stop_amid_the_start_starts_no_more(tmp_path: Path) -> None:
    """Node 1 is ready only after the stop began."""
    running = Running(tmp_path, brokers=2)
    done = running.cluster.stopService()
    running.reactor.children[1].ready()
    assert list(running.reactor.children) == [1]
    assert running.signals() == {1: [signal.SIGTERM]}
    running.reactor.children[1].end(number=signal.SIGTERM)
    assert done.called


def test_a_line_of_a_node_is_an_event_with_the_node(running: Running) -> None:
    """With its level, time, logger and parts; what is no event is a warning."""
    child = running.reactor.children[1]
    with capturedLogs() as events:
        child.say(
            {
                "time": "2026-11-28T12:00:00.500Z",
                "level": "error",
                "logger": "replog.log",
                "text": "it failed {x}",
                "traceback": "\nValueError",
                "topic": "t",
                "log_level": "never",
            },
            ["no", "event"],
            {"time": "later"},
        )
        child.protocol.errReceived(b"Fatal Python error\nunfini")
        child.end(code=1)
    first, second, again, third, fourth = events[:5]
    assert first["log_level"] is LogLevel.error and first["topic"] == "t" and first["node"] == 1
    assert first["log_time"] == 1795867200.5
    assert eventAsText(first, includeTimestamp=False) == (
        "[node 1 replog.log#error] it failed {x}\nValueError"
    )
    assert [each["log_level"] for each in (second, again, third, fourth)] == [LogLevel.warn] * 4
    assert [formatEvent(each) for each in (third, fourth)] == ["Fatal Python error", "unfini"]


def test_a_line_without_an_end_is_bounded(running: Running) -> None:
    """What comes without a newline is not kept for ever."""
    with capturedLogs() as events:
        for _ in range(9):
            running.reactor.children[1].protocol.outReceived(b"x" * (1 << 16))
    assert [len(each["text"]) for each in events] == [5 << 16]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--processes"], "--processes is for several brokers"),
        (["--processes", "--brokers", "2", "--data", "memory"], "--data memory contradict"),
    ],
)
def test_options_that_contradict(arguments: list[str], words: str) -> None:
    """One line each."""
    with pytest.raises(SystemExit, match=words):
        Options().parseOptions(arguments)


def test_sockets_of_systemd_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are one process's: the others could not listen there."""
    with socket.create_server(("127.0.0.1", 0)) as passed:
        monkeypatch.setattr(systemd, "_FIRST", passed.fileno())
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        options = Options()
        options.parseOptions(["--brokers", "2", "--processes", "--data", str(tmp_path / "d")])
        with pytest.raises(SystemExit, match="--processes and a socket unit of systemd contradict"):
            makeService(options)
        passed.detach()  # it is the refused service's
