"""The programs that are compared: each on an empty directory, on a port of 127.0.0.1, as its own
process.

`ours` is this checkout, `commit:REV` an earlier one (a git worktree), `kafka` Apache Kafka from its
distribution (KAFKA_HOME) or a folder of jars (KAFKA_JARS), `HOST:PORT:PID[,PID]` something that
already runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.load import first_metadata
from benchmarks.requests import Address, Opener, open_plain
from tests.faults.slow_turns import SlowTurn, is_machine_idle, slow_turns, too_slow

ROOT = Path(__file__).resolve().parents[1]
HEAP = "1G"
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Program:
    """`start()` gives the seconds to the first Metadata answer.

    `fresh=True` wipes the data first.
    """

    start_seconds = 120.0
    """until that answer, at most"""

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = Path(tempfile.mkdtemp(prefix="load-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.address: Address = ("127.0.0.1", 0)
        self.opener: Opener = open_plain
        self.pids: list[int] = []
        self.slow: list[SlowTurn] = []
        """turns of its reactor that its log names, of all that was stopped"""

    def prepare(self) -> None:
        """Lays out an empty store at a free port; not part of the start."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        self.address = ("127.0.0.1", free_port())

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> float:
        self.prepare()
        return self._spawn()

    def restart(self) -> float:
        """In order, on what it has; the seconds from its new start to the first Metadata answer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return self._spawn()

    def _spawn(self) -> float:
        began = time.perf_counter()
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self.environment(),
            )
        self.pids = [self.process.pid]
        first_metadata(self.address, self.start_seconds, self.opener)
        return time.perf_counter() - began

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.slow += slow_turns(self.directory / "log")
        shutil.rmtree(self.directory, ignore_errors=True)


def too_long(programs: Iterable[Program]) -> list[str]:
    """A line for each turn of a reactor of those that were stopped that is a fault."""
    is_idle = is_machine_idle()
    return [
        f"{one.name}: a turn of the reactor of {each}"
        for one in programs
        for each in too_slow(one.slow, is_idle)
    ]


def end_when_slow(programs: Iterable[Program]) -> None:
    """SystemExit with these lines, if there are any."""
    if found := too_long(programs):
        sys.exit("\n".join(found))


class Ours(Program):
    """The broker of a checkout, by the interpreter that runs this."""

    def __init__(self, name: str, checkout: Path) -> None:
        """Compiled, as an installed package is: else each start would compile 200 modules where
        the environment says PYTHONDONTWRITEBYTECODE, a third of a second.
        """
        super().__init__(name)
        self.checkout = checkout
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", str(checkout / "twisted_broker")], check=True
        )

    def command(self) -> list[str]:
        twistd = str(Path(sys.executable).parent / "twistd")
        return [
            sys.executable,
            twistd,
            "-n",
            "--pidfile=",
            "replog",
            "--port",
            str(self.address[1]),
            "--data",
            str(self.directory / "data"),
        ]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.checkout)}


class Commit(Ours):
    """An earlier commit, in a worktree of its own that is removed at the end."""

    def __init__(self, revision: str) -> None:
        tree = Path(tempfile.mkdtemp(prefix="load-worktree-"))
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--detach", "--force", str(tree), revision],
            check=True,
            capture_output=True,
        )
        super().__init__(revision, tree)

    def remove(self) -> None:
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(self.checkout)],
            check=True,
        )


def kafka_jars() -> str:
    """The folder of Apache Kafka's jars that the environment names. SystemExit without one."""
    home, jars = os.environ.get("KAFKA_HOME"), os.environ.get("KAFKA_JARS")
    if not home and not jars:
        raise SystemExit(
            "kafka: set KAFKA_HOME to its distribution, or KAFKA_JARS to a folder of its jars"
        )
    return jars or str(Path(str(home)) / "libs")


class Kafka(Program):
    """Apache Kafka as one node, broker and controller, with the flags of its own start script."""

    def __init__(self) -> None:
        super().__init__("Apache Kafka")
        self.jars = kafka_jars()

    def java(self, *arguments: str) -> list[str]:
        return ["java", f"-Xmx{HEAP}", f"-Xms{HEAP}", *JVM, "-cp", f"{self.jars}/*", *arguments]

    def prepare(self) -> None:
        super().prepare()
        controller = free_port()
        (self.directory / "server.properties").write_text(
            f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners={self.listeners()},CONTROLLER://127.0.0.1:{controller}\ncontroller.listener.names=CONTROLLER\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
            f"offsets.topic.replication.factor=1\nlog.dirs={self.directory / 'data'}\n"
            f"group.initial.rebalance.delay.ms=0\n{self.settings()}\n"
        )
        format_it = self.java(
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "MkU3OEVBNTcwNTJENDM2Qk",
            "-c",
            str(self.directory / "server.properties"),
        )
        subprocess.run(format_it, check=True, capture_output=True)

    def listeners(self) -> str:
        return f"PLAINTEXT://127.0.0.1:{self.address[1]}"

    def settings(self) -> str:
        """More lines of its properties."""
        return "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"

    def command(self) -> list[str]:
        return self.java("kafka.Kafka", str(self.directory / "server.properties"))


class Running(Program):
    """Something that somebody else started."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        host, port, pids = text.split(":")
        self.address = (host, int(port))
        self.pids = [int(pid) for pid in pids.split(",")]

    def start(self) -> float:
        first_metadata(self.address, self.start_seconds)
        return float("nan")

    def stop(self) -> None:
        """Leaves it running."""


def program(text: str) -> Program:
    """By its name on the command line."""
    if text == "ours":
        return Ours("ours", ROOT)
    if text == "kafka":
        return Kafka()
    kind, _, rest = text.partition(":")
    return Commit(rest) if kind == "commit" else Running(text)
