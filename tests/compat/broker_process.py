"""A broker as its own process: `twistd -n replog`, awaited by its run file, ended by its process
id.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

START_SECONDS = 90
STOP_SECONDS = 60
TAIL_BYTES = 6000
TWISTD = Path(sys.executable).parent / "twistd"


class BrokerProcess:
    """`start()` returns when the broker serves; the same object may be started again on the same
    data, and on the same port.
    """

    start_seconds, stop_seconds = START_SECONDS, STOP_SECONDS

    def __init__(
        self,
        directory: Path,
        settings: dict[str, str] | None = None,
        data: str | None = None,
        port: int = 0,
        more: list[str] | None = None,
    ) -> None:
        self.directory = directory
        self.data = data or str(directory / "data")
        self.settings = dict(settings or {})
        self.port = port
        self.more = more or []
        self.run_file = directory / "run.json"
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""
        directory.mkdir(parents=True, exist_ok=True)

    def options(self) -> list[str]:
        options = ["--port", str(self.port), "--data", self.data, "--run-file", str(self.run_file)]
        for name, value in self.settings.items():
            options += ["--set", f"{name}={value}"]
        return [*options, *self.more]

    def command(self) -> list[str]:
        return [str(TWISTD), "-n", "--pidfile=", "replog", *self.options()]

    def start(self) -> BrokerProcess:
        self.spawn()
        return self.await_ready()

    def spawn(self, wait: bool = True) -> None:
        """Starts the process; `wait`: until its run file is there."""
        self.run_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
            )
        if wait:
            self.await_run_file()

    def await_run_file(self) -> None:
        deadline = time.monotonic() + self.start_seconds
        while not self.run_file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no run file after {self.start_seconds} s\n{self.log_tail()}")
            self.ended(0.01)

    def await_ready(self) -> BrokerProcess:
        """When it serves clients: then its address is known, and stays."""
        self.await_run_file()
        self.bootstrap = str(self.run()["bootstrap"])
        self.port = int(self.bootstrap.partition(",")[0].rpartition(":")[2])
        return self

    def ended(self, wait_seconds: float) -> None:
        """Waits that long; raises if the process ended meanwhile."""
        assert self.process is not None
        try:
            status = self.process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            return
        raise RuntimeError(f"the broker ended with status {status}\n{self.log_tail()}")

    def run(self) -> dict[str, object]:
        """What the run file says."""
        found: dict[str, object] = json.loads(self.run_file.read_text())
        return found

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    def stop(self) -> float:
        """SIGTERM; returns the seconds until the process was gone."""
        return self.end(signal.SIGTERM)

    def kill(self) -> float:
        """SIGKILL: no chance to write anything more."""
        return self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> float:
        process, self.process = self.process, None
        if process is None:
            return 0.0
        began = time.monotonic()
        process.send_signal(number)
        try:
            process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise TimeoutError(
                f"no end {self.stop_seconds} s after {number.name}\n{self.log_tail()}"
            ) from None
        return time.monotonic() - began

    def log_tail(self) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
