"""A Spark master and its workers as processes on loopback, from PySpark's own classes; free
ports, ended by process id.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pyspark

from replog_pipeline.machine import java

PATIENCE_SECONDS = 120
PLAIN_PATH = "/usr/bin:/bin"
SPARK = Path(pyspark.__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": QUICK,
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it would take a fixed port
}


class Daemon:
    """One of Spark's daemons; its log is a file. `user`: whom it runs as, with nothing of this
    process's environment.
    """

    def __init__(self, directory: Path, *arguments: str, user: str | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "log"
        known = os.environ if user is None else {"PATH": PLAIN_PATH, "HOME": str(directory)}
        own = {"JAVA_HOME": str(java.find().home), "SPARK_HOME": str(SPARK)}
        if user is not None:
            shutil.chown(directory, user)
        command = [SPARK / "bin" / "spark-class", *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=directory,
                env=known | SMALL | own,
                user=user,
                extra_groups=None if user is None else [],
            )

    def said(self, pattern: str) -> str:
        """Waits for a line of the log; its first group."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.search(pattern, self.log.read_text(errors="replace"))):
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-4000:]
                raise RuntimeError(f"a daemon never said {pattern!r}:\n{tail}")
            time.sleep(0.05)
        return found.group(1)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Standalone:
    """A master and `count` workers of one core each. `url` is what `--master` takes.

    `user`: whom the workers run as; only root may say so.
    """

    def __init__(self, directory: Path, count: int = 2, user: str | None = None) -> None:
        self.directory = directory
        package = "org.apache.spark.deploy."
        self.daemons = [
            Daemon(
                directory / "master",
                f"{package}master.Master",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--webui-port",
                "0",
            )
        ]
        try:
            self.url = self.daemons[0].said(r"Starting Spark master at (spark://\S+)")
            options = (
                "--cores",
                "1",
                "--memory",
                "1g",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--webui-port",
                "0",
                "--work-dir",
                "work",
                self.url,
            )
            self.daemons += [
                Daemon(
                    directory / f"worker-{number}", f"{package}worker.Worker", *options, user=user
                )
                for number in range(count)
            ]
            for worker in self.daemons[1:]:
                worker.said(r"(Successfully registered with master)")
        except BaseException:
            self.end()
            raise

    def applications(self) -> list[set[str]]:
        """For each worker the applications that had an executor on it."""
        return [
            {path.name for path in (daemon.log.parent / "work").glob("app-*")}
            for daemon in self.daemons[1:]
        ]

    def end(self) -> None:
        """Workers first: their executors end with them."""
        for daemon in reversed(self.daemons):
            daemon.end()

    def log_tail(self) -> str:
        return "\n".join(
            f"--- {daemon.log.parent.name}\n{daemon.log.read_text(errors='replace')[-3000:]}"
            for daemon in self.daemons
        )
