"""A process for each broker, under this one: `twistd replog --brokers 3 --processes`.

Owns the processes: the order in which they start and stop, why one ended and when it starts again;
their lines in one log; the run file of all.

1. The nodes are those of `--brokers 3` in one process (`local_nodes.py`): ids, ports,
   directories. The same directory may be started either way. Some are controllers
   (`local_quorum.py`).
2. All start together; the only controller before the others. One that ends before all are ready
   ends the start: one line, status 1, and no process is left.
3. Later a node that ends is started again, on the same ports. One line says why it ended. The
   pause is `LEAST_PAUSE` at first, twice the last one where the node did not live for `LASTING`,
   and `MOST_PAUSE` at most. The run file leaves a node out while it is away.
4. SIGTERM: all but the first that runs, side by side, each by a controlled shutdown; then that
   one, which as one of several controllers has nobody left who could elect, and waits for nothing.
   A further signal goes to all at once; what is left `KILL_SECONDS` after that is killed.
5. No process outlives this one: the standard input of each is a pipe from here (`cluster_node.py`).
6. A line of a node is an event of this process's log, with the node in it. A line without an end
   is cut at `_MOST_LINE` bytes.

State: one `_Node` for each broker, and nothing of it survives a restart. Ring 2. Source: Twisted's
`spawnProcess`; its `ProcessMonitor` stops all at once, kills after seconds and does not say why a
process ended. Not here: the node's own process (`cluster_node.py`), one broker (`kafka_server.py`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import InvalidLogLevelError, Logger, LogLevel, globalLogPublisher
from twisted.python.failure import Failure

import twisted_broker
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.metadata_check import MetadataDamage
from twisted_broker.exit_status import leave_with_failure
from twisted_broker.local_nodes import VOTERS, replication_hint
from twisted_broker.local_quorum import (
    ONE_CONTROLLER,
    format_quorum,
    has_lone_controller,
    is_controller,
)
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.status.run_file import remove_run_file, remove_stale_run_file, write_run_file

_logger = Logger(namespace="replog")
LEAST_PAUSE, MOST_PAUSE, LASTING, KILL_SECONDS = 1.0, 60.0, 60.0, 30.0
_MOST_LINE = 1 << 18
# Of the service manager: they are this process's.
_OWN_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID")
_OF_A_LINE = frozenset(("time", "level", "logger"))


class ProcessCluster(Service):
    """`configs`: of each node, node 1 first, each with its ports. `order`: what `cluster_node.py`
    is told besides the settings.
    """

    def __init__(
        self,
        configs: Iterable[BrokerConfig],
        order: Mapping[str, Any],
        *,
        run_file: str | None,
        reactor: Any,
        on_stop_again: Callable[[Callable[[], None]], None] = lambda again: None,
        when_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._nodes = [_Node(config, self) for config in configs]
        self._has_one_controller = sum(each.is_controller for each in self._nodes) == 1
        self.order = dict(order)
        self._run_file = run_file
        self.reactor = reactor
        self._on_stop_again = on_stop_again
        self._when_ready = when_ready
        self._is_ready = False
        self._stopping = False
        self._ended: Deferred[None] = Deferred()

    @property
    def who(self) -> str:
        """What stops when it stops."""
        return f"nodes 1 to {len(self._nodes)}"

    def startService(self) -> None:
        Service.startService(self)
        if self._run_file is not None:
            remove_stale_run_file(self._run_file)
        # Not before the reactor runs: it would not hear of a process that ends at once.
        self.reactor.callWhenRunning(self._start_first)

    def _start_first(self) -> None:
        configs, of_system = [each.config for each in self._nodes], OsFileSystem()
        try:
            format_quorum(configs, lambda config: of_system, self.order.get("cluster_id"), Random())
        except (CheckpointError, MetadataDamage, OSError) as error:
            self._fail(str(error))
            return
        if has_lone_controller(configs):
            _logger.warn(ONE_CONTROLLER)
        self._start(self._nodes[: 1 if self._has_one_controller else None])

    def _start(self, nodes: list[_Node]) -> None:
        for each in nodes:
            if not self._stopping:
                each.start()

    def controllers(self) -> str:
        """HOST:PORT of each controller that serves, with commas."""
        found = [each.ready.get("controller") for each in self._nodes if each.ready]
        return ",".join(str(each) for each in found if each)

    # what a node tells

    def node_ready(self, node: _Node) -> None:
        """It serves."""
        if self._stopping:
            return
        if not self._is_ready and self._has_one_controller and node is self._nodes[0]:
            self._start(self._nodes[1:])
        if all(each.ready for each in self._nodes) and not self._is_ready:
            self._is_ready = True
            self._when_ready()
            hint = replication_hint(node.config, len(self._nodes))
            if hint:
                _logger.info("{hint}", hint=hint)
        if self._is_ready:
            self._write_run_file()

    def node_ended(self, node: _Node, why: str) -> None:
        """Its process is gone."""
        if self._stopping:
            if why != "exit code 0":
                _logger.warn("replog node {node} ended: {why}", node=node.node_id, why=why)
            self._stop_next()
        elif not self._is_ready:
            self._fail(f"node {node.node_id} ended before all were ready: {why}")
        else:
            _logger.critical(
                "replog node {node} ended: {why}; it starts again in {seconds:g} s",
                node=node.node_id,
                why=why,
                seconds=node.start_again(),
            )
            self._write_run_file()

    def _fail(self, reason: str) -> None:
        if not self._stopping:
            self._stopping = True
            _logger.critical("replog {who} stops: {reason}", who=self.who, reason=reason)
            leave_with_failure(self.reactor)

    def _write_run_file(self) -> None:
        """Of the nodes that serve."""
        serving = {each.node_id: each.ready for each in self._nodes if each.ready}
        if self._run_file is None or not serving:
            return
        entries = {node_id: ready["entry"] for node_id, ready in serving.items()}
        clients = ",".join(ready["client"] for ready in serving.values())
        cluster_id = next(iter(serving.values()))["cluster_id"]
        try:
            write_run_file(self._run_file, cluster_id, clients, self.controllers() or None, entries)
        except OSError as error:
            _logger.warn("the run file is an old one: {error}", error=error)

    # the stop

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        self._stopping = True
        self._on_stop_again(self._hasten)
        if self._run_file is not None:
            remove_run_file(self._run_file)
        for each in self._nodes:
            each.stay_away()
        running = [each for each in self._nodes if each.runs]
        for each in running[1:]:
            each.signal(signal.SIGTERM)
        self._stop_next()
        return self._ended

    def _stop_next(self) -> None:
        running = [each for each in self._nodes if each.runs]
        if len(running) > 1:
            return
        if running:
            last = running[0]
            if self._has_one_controller:
                last.signal(signal.SIGTERM, once=True)
            else:
                last.leave_alone()
        elif not self._ended.called and not self.running:
            self._ended.callback(None)

    def _hasten(self) -> None:
        for each in self._nodes:
            each.signal(signal.SIGTERM)
            self.reactor.callLater(KILL_SECONDS, each.signal, signal.SIGKILL)


class _Node:
    """One broker: its process, and the next one after it. `ready`: what it said when it served."""

    def __init__(self, config: BrokerConfig, cluster: ProcessCluster) -> None:
        self.config = config
        self.node_id = config.node_id
        self.is_controller = is_controller(config)
        self.ready: dict[str, Any] | None = None
        self._cluster = cluster
        self._transport: Any = None
        self._pause = 0.0
        self._started = 0.0
        self._again: Any = None
        self._is_told = False

    @property
    def runs(self) -> bool:
        """Whether it has a process."""
        return self._transport is not None

    def start(self) -> None:
        cluster, self._again, self._is_told = self._cluster, None, False
        self._started = cluster.reactor.seconds()
        settings = dict(self.config.static)
        if not self.is_controller and not self.config.names(VOTERS):
            settings["controller.quorum.bootstrap.servers"] = cluster.controllers()
        order = json.dumps({**cluster.order, "settings": settings})
        folder = str(Path(twisted_broker.__file__).parents[1])
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {k: v for k, v in os.environ.items() if k not in _OWN_VARIABLES}
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        # -P: what lies in the working directory is none of its modules.
        command = [sys.executable, "-P", "-m", "twisted_broker.cluster_node"]
        try:
            self._transport = cluster.reactor.spawnProcess(
                _NodeProtocol(self), command[0], command, environment
            )
            self._transport.write(order.encode() + b"\n")
        except OSError as error:
            self._transport = None
            cluster.node_ended(self, f"its process cannot be started: {error}")
            return
        _logger.info(
            "replog node {node} is process {process}",
            node=self.node_id,
            process=self._transport.pid,
        )

    def start_again(self) -> float:
        """Later; the seconds until then."""
        reactor = self._cluster.reactor
        lasted = reactor.seconds() - self._started >= LASTING
        self._pause = LEAST_PAUSE if lasted else min(max(LEAST_PAUSE, 2 * self._pause), MOST_PAUSE)
        self._again = reactor.callLater(self._pause, self.start)
        return self._pause

    def stay_away(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def signal(self, number: int, once: bool = False) -> None:
        """`once`: unless it had one."""
        if self._transport is not None and not (once and self._is_told):
            self._is_told = True
            with suppress(ProcessExitedAlready):
                self._transport.signalProcess(int(number))

    def leave_alone(self) -> None:
        """It is the last, and waits for nobody."""
        if self._transport is not None and not self._is_told:
            self._is_told = True
            self._transport.write(b"leave\n")

    def said(self, line: bytes) -> None:
        """A line of its output: an event, what `cluster_node.py` tells, or any text."""
        said: Any = None
        with suppress(ValueError):
            said = json.loads(line)
        if isinstance(said, dict) and "ready" in said and "time" not in said:
            self.ready = said["ready"]
            self.ready["entry"]["pid"] = self._transport.pid
            self._cluster.node_ready(self)
            return
        try:
            event = _event(said)
        except (InvalidLogLevelError, LookupError, TypeError, ValueError):
            event = _warning(line.decode("utf-8", "replace"))
        event["node"] = self.node_id
        level, namespace = event["log_level"].name, event["log_namespace"]
        event["log_system"] = f"node {self.node_id} {namespace}#{level}"
        globalLogPublisher(event)

    def ended(self, why: str) -> None:
        self._transport, self.ready = None, None
        self._cluster.node_ended(self, why)


def _event(said: Any) -> dict[str, Any]:
    """The event that a line of JSON was (`log_output.py`). Raises what it raises where the line is
    something else.
    """
    event = {
        "log_time": datetime.fromisoformat(said["time"]).timestamp(),
        "log_level": LogLevel.lookupByName(said["level"]),
        "log_namespace": said["logger"],
        "log_format": "{text}{traceback}" if "traceback" in said else "{text}",
        "text": said["text"],
    }
    parts = said.keys() - event.keys() - _OF_A_LINE
    return event | {name: said[name] for name in parts if not name.startswith("log_")}


def _warning(text: str) -> dict[str, Any]:
    """What it writes besides, as Python does when it dies."""
    return {
        "log_time": time.time(),
        "log_level": LogLevel.warn,
        "log_namespace": "replog",
        "log_format": "{text}",
        "text": text,
    }


class _NodeProtocol(ProcessProtocol):
    """Lines of the standard output and of the errors; the end."""

    def __init__(self, node: _Node) -> None:
        self._node = node
        self._rest = {1: b"", 2: b""}

    def outReceived(self, data: bytes) -> None:
        self._received(1, data)

    def errReceived(self, data: bytes) -> None:
        self._received(2, data)

    def _received(self, descriptor: int, data: bytes) -> None:
        *lines, rest = (self._rest[descriptor] + data).split(b"\n")
        self._rest[descriptor] = rest
        for line in lines:
            self._node.said(line)
        if len(rest) > _MOST_LINE:
            self._flush(descriptor)

    def _flush(self, descriptor: int) -> None:
        rest, self._rest[descriptor] = self._rest[descriptor], b""
        if rest:
            self._node.said(rest)

    def processEnded(self, reason: Failure) -> None:
        for descriptor in self._rest:
            self._flush(descriptor)
        value: Any = reason.value
        if value.signal is None:
            self._node.ended(f"exit code {value.exitCode}")
        else:
            self._node.ended(f"signal {value.signal} ({_signal_name(value.signal)})")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
