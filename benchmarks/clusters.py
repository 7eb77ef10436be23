"""The clusters that are compared: three brokers each, on empty directories, at ports of 127.0.0.1.

`apart` is ours as a controller and three brokers, four processes; `together` ours as `--brokers 3`,
one process; `processes` ours as `--brokers 3 --processes`, three and their parent; `kafka` Apache
Kafka as a controller and three brokers, four processes. A cluster is
killed by the process ids it started, and by no name.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.cluster_topic import patiently, topic_is_creatable
from benchmarks.requests import Address
from benchmarks.servers import HEAP, JVM, ROOT, kafka_jars
from tests.faults.slow_turns import SlowTurn, slow_turns

CONTROLLER, BROKERS = 100, (1, 2, 3)
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
# else the files of one measure's topic are deleted amid a later one
DELETE_SOON = "log.segment.delete.delay.ms=1000"


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row, below those that the system gives to
    connections: a port must stay free while its broker is away.
    """
    while True:
        # Below the ports that Linux gives to outgoing connections.
        first = random.randrange(20_000, 32_000)
        if all(map(_is_free, range(first, first + count))):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Cluster:
    """`start()` gives the seconds from exec until a topic on all brokers was made.

    `processes` by node; `together` runs all nodes as node 1. `slow_turns`: all that the logs of its
    reactors name.
    """

    can_lose_one = True
    nodes: tuple[int, ...] = (CONTROLLER, *BROKERS)

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = Path(tempfile.mkdtemp(prefix="cluster-"))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.addresses: dict[int, Address] = {}
        self.controller_port = 0
        self._slow: list[SlowTurn] = []

    def slow_turns(self) -> list[SlowTurn]:
        return self._slow + self._logged()

    def _logged(self) -> list[SlowTurn]:
        return [turn for log in self.directory.glob("log-*") for turn in slow_turns(log)]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes.values()]

    @property
    def address(self) -> Address:
        """Of a broker that runs."""
        return next(
            self.addresses[node]
            for node in BROKERS
            if node in self.processes or not self.can_lose_one
        )

    def prepare(self) -> None:
        """Lays out empty stores at free ports; not part of the start."""
        self._slow += self._logged()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        first = free_ports(4)
        self.addresses = {node: ("127.0.0.1", first + row) for row, node in enumerate(BROKERS)}
        self.controller_port = first + 3

    def command(self, node: int) -> list[str]:
        raise NotImplementedError

    def start_node(self, node: int) -> None:
        with (self.directory / f"log-{node}").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                self.command(node),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def start(self) -> float:
        self.prepare()
        began = time.perf_counter()
        for node in self.nodes:
            self.start_node(node)
        patiently(
            lambda: topic_is_creatable(self.addresses[1], len(BROKERS)), f"{self.name} is ready"
        )
        return time.perf_counter() - began

    def signal(self, node: int, number: signal.Signals) -> Callable[[], object]:
        """Sends it; what is returned waits for the end."""
        process = self.processes.pop(node)
        process.send_signal(number)
        return lambda: _await_end(process)

    def stop(self) -> float:
        """SIGTERM to the brokers, then to the controller; the seconds until all are gone."""
        began = time.perf_counter()
        for nodes in (BROKERS, (CONTROLLER,)):
            for wait in [
                self.signal(node, signal.SIGTERM) for node in nodes if node in self.processes
            ]:
                wait()
        return time.perf_counter() - began

    def remove(self) -> None:
        for node in list(self.processes):
            self.signal(node, signal.SIGKILL)()
        shutil.rmtree(self.directory, ignore_errors=True)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Apart(Cluster):
    """Ours, each node a process."""

    def __init__(self) -> None:
        super().__init__("ours apart")

    def command(self, node: int) -> list[str]:
        settings = [
            f"node.id={node}",
            f"controller.quorum.bootstrap.servers=127.0.0.1:{self.controller_port}",
        ]
        if node == CONTROLLER:
            settings += [
                "process.roles=controller",
                f"listeners=CONTROLLER://127.0.0.1:{self.controller_port}",
            ]
        else:
            settings += ["process.roles=broker"]
        port = self.addresses.get(node, ("", self.controller_port))[1]
        return _twistd(
            port,
            self.directory / f"data-{node}",
            *(part for each in settings for part in ("--set", each)),
        )


class Together(Cluster):
    """Ours, all nodes in one process."""

    can_lose_one = False
    nodes = (1,)

    def __init__(self) -> None:
        super().__init__("ours together")

    def command(self, node: int) -> list[str]:
        return _twistd(
            self.addresses[1][1], self.directory / "data", "--brokers", str(len(BROKERS))
        )


class Processes(Cluster):
    """Ours, a process for each broker under one parent, which ends them."""

    can_lose_one = False
    nodes = (1,)

    def __init__(self) -> None:
        super().__init__("ours, --processes")

    def command(self, node: int) -> list[str]:
        return _twistd(
            self.addresses[1][1],
            self.directory / "data",
            "--brokers",
            str(len(BROKERS)),
            "--processes",
        )

    @property
    def pids(self) -> list[int]:
        return [pid for parent in super().pids for pid in (parent, *_children(parent))]


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _twistd(port: int, data: Path, *more: str) -> list[str]:
    twistd = str(Path(sys.executable).parent / "twistd")
    return [
        sys.executable,
        twistd,
        "-n",
        "--pidfile=",
        "replog",
        "--port",
        str(port),
        "--data",
        str(data),
        "--set",
        DELETE_SOON,
        *more,
    ]


class KafkaCluster(Cluster):
    """Apache Kafka, each node a process, with the flags of its own start script."""

    def __init__(self) -> None:
        super().__init__("Apache Kafka")
        self.jars = kafka_jars()

    def prepare(self) -> None:
        super().prepare()
        for node in self.nodes:
            path = self._settings_file(node)
            format_it = self._java(
                "256M", "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(path)
            )
            subprocess.run(format_it, check=True, capture_output=True)

    def _settings_file(self, node: int) -> Path:
        role = "controller" if node == CONTROLLER else "broker"
        name, port = (
            ("CONTROLLER", self.controller_port)
            if node == CONTROLLER
            else ("PLAINTEXT", self.addresses[node][1])
        )
        path = self.directory / f"server-{node}.properties"
        path.write_text(
            f"process.roles={role}\nnode.id={node}\ncontroller.quorum.voters={CONTROLLER}@127.0.0.1:{self.controller_port}\n"
            f"listeners={name}://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={self.directory / f'data-{node}'}\n"
            f"group.initial.rebalance.delay.ms=0\n{DELETE_SOON}\n"
        )
        return path

    def _java(self, heap: str, *arguments: str) -> list[str]:
        return ["java", f"-Xmx{heap}", f"-Xms{heap}", *JVM, "-cp", f"{self.jars}/*", *arguments]

    def command(self, node: int) -> list[str]:
        return self._java(HEAP, "kafka.Kafka", str(self.directory / f"server-{node}.properties"))


CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "apart": Apart,
    "together": Together,
    "processes": Processes,
    "kafka": KafkaCluster,
}
