"""A controller and three brokers of ours as processes on loopback: free ports, ready by their
run files, ended by process id.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from replog_pipeline.errors import PipelineError

PATIENCE_SECONDS = 120
LOOK_SECONDS = 0.05
CONTROLLER = 100


class Node:
    """One `twistd replog`. Its files are below `directory`: `data`, `log`, `run.json`."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.run_file = directory / "run.json"
        directory.mkdir(parents=True)
        command = [
            str(Path(sys.executable).with_name("twistd")),
            "-n",
            "--pidfile=",
            "replog",
            "--port",
            "0",
            "--data",
            str(self.data),
        ]
        command += ["--run-file", str(self.run_file)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=directory
            )

    def ready(self) -> dict[str, Any]:
        """What its run file says, once it is there."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.run_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise PipelineError(
                    f"a broker did not start; the reason is in {self.directory / 'log'}"
                )
            time.sleep(LOOK_SECONDS)
        told: dict[str, Any] = json.loads(self.run_file.read_text())
        return told

    def terminate(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()

    def ended(self) -> None:
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Cluster:
    """Runs while the block does; `stop()` may come earlier. `bootstrap`: all brokers."""

    def __init__(self, directory: Path, brokers: int = 3) -> None:
        self.directory = directory
        self.count = brokers
        self.nodes: list[Node] = []
        self.bootstrap = ""

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        alone = {
            "process.roles": "controller",
            "node.id": str(CONTROLLER),
            "listeners": "CONTROLLER://127.0.0.1:0",
        }
        self.nodes.append(Node(self.directory / "controller", alone))
        controller = self.nodes[0].ready()["controller"]
        for number in range(1, self.count + 1):
            member = {
                "process.roles": "broker",
                "node.id": str(number),
                "controller.quorum.bootstrap.servers": controller,
            }
            self.nodes.append(Node(self.directory / f"broker-{number}", member))
        self.bootstrap = ",".join(node.ready()["bootstrap"] for node in self.nodes[1:])

    @property
    def log_directories(self) -> list[Path]:
        """Of the brokers."""
        return [node.data for node in self.nodes[1:]]

    def stop(self) -> None:
        """Brokers first, side by side; then their controller."""
        for group in (self.nodes[1:], self.nodes[:1]):
            for node in group:
                node.terminate()
            for node in group:
                node.ended()
