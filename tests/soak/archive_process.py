"""`replog pipeline archive --continuous` as a process that is killed and started again: what it
says of its batches, and what its JVM takes at the end of each.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

KILLS = ("command", "JVM", "both")
PATIENCE_SECONDS = 180
_BATCH = re.compile(r"archive: (\S+), batch (\d+), ([\d,]+) offsets: ([\d.]+) s")
_BEHIND = re.compile(r"; ([\d,]+) offsets behind")
_COLLECTED = re.compile(r"\d+M->(\d+)M\(")
_TAIL_BYTES = 3000


class Batch(NamedTuple):
    """`life`: in which process. `megabytes`: of the JVM, resident, when the batch was seen."""

    life: int
    at: float
    topic: str
    offsets: int
    seconds: float
    megabytes: int


class ArchiveProcess:
    """`arguments`: of the command line from `archive` on."""

    def __init__(
        self, directory: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        directory.mkdir()
        self.directory, self.arguments = directory, [*arguments]
        self.environment = dict(environment)
        self.lives = 0
        self.batches: list[Batch] = []
        self.behind: list[int] = []
        self.to_first: list[float] = []
        """Seconds from a start to the first batch."""
        self.process: subprocess.Popen[bytes] | None = None
        self.jvm: psutil.Process | None = None
        self._read = 0
        self._line = ""
        self._is_first = True

    @property
    def log(self) -> Path:
        return self.directory / f"log-{self.lives}"

    @property
    def collections(self) -> Path:
        return self.directory / f"collections-{self.lives}"

    def start(self) -> None:
        self.lives += 1
        self._read, self._line, self._is_first = 0, "", True
        self.collections.mkdir()
        self._popen(command(*self.arguments, "--continuous"))

    def _popen(self, line: list[str]) -> None:
        # %p: the JVM that only prints the command line of the other one has a log, too
        options = f"-Xlog:gc:file={self.collections}/%p.log"
        self._began, self.jvm = time.monotonic(), None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment | {"JDK_JAVA_OPTIONS": options},
            )

    def look(self) -> str:
        """Reads what it says; why it ended by itself, "" while it runs."""
        assert self.process is not None
        with self.log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        *lines, self._line = (self._line + new.decode(errors="replace")).split("\n")
        for line in lines:
            self._heard(line)
        status = self.process.poll()
        return "" if status is None else f"it ended with status {status}: {self.log_tail()}"

    def _heard(self, line: str) -> None:
        if found := _BEHIND.search(line):
            self.behind.append(number(found[1]))
        if found := _BATCH.search(line):
            if self._is_first:
                self.to_first.append(time.monotonic() - self._began)
                self._is_first = False
            self.batches.append(
                Batch(
                    self.lives,
                    time.monotonic(),
                    found[1],
                    number(found[3]),
                    float(found[4]),
                    self.megabytes(),
                )
            )

    def megabytes(self) -> int:
        """Of the JVM, resident; 0 when it is gone."""
        if self.jvm is None:
            self.jvm = next((each for each in self.children() if each.name() == "java"), None)
        try:
            return self.jvm.memory_info().rss >> 20 if self.jvm else 0
        except psutil.Error:
            return 0

    def children(self) -> list[psutil.Process]:
        assert self.process is not None
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            return []

    def kill(self, kind: str) -> list[str]:
        """The command, its JVM, or both; what is left then ends by itself. The problems."""
        assert self.process is not None
        children = self.children()
        if kind != "command":
            for each in children:
                if each.name() == "java":
                    each.kill()
        if kind != "JVM":
            self.process.kill()
        problems = [
            f"{each.name()} lives {PATIENCE_SECONDS} s after the {kind} was killed"
            for each in self._await(children)
        ]
        status = self.process.poll()
        if kind == "JVM" and status != 2:
            problems.append(f"status {status} after the JVM was killed: {self.log_tail()}")
        self.look()
        if "Traceback" in self.log.read_text(errors="replace"):
            problems.append(f"a traceback after the {kind} was killed: {self.log_tail()}")
        return problems

    def _await(self, children: list[psutil.Process]) -> list[psutil.Process]:
        assert self.process is not None
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return [psutil.Process(self.process.pid)]
        left: list[psutil.Process] = psutil.wait_procs(children, PATIENCE_SECONDS)[1]
        return left

    def stop(self) -> list[str]:
        """SIGTERM: it finishes its batch. The problems."""
        assert self.process is not None
        children = self.children()
        self.process.terminate()
        left = [f"{each.name()} lives after SIGTERM" for each in self._await(children)]
        status = self.process.poll()
        self.look()
        return left + ([f"status {status} after SIGTERM: {self.log_tail()}"] if status else [])

    def end(self) -> None:
        """Whatever happened."""
        if self.process is not None and self.process.poll() is None:
            children = self.children()
            self.process.kill()
            for each in children:
                try:
                    each.kill()
                except psutil.Error:
                    continue
            self.process.wait()

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-_TAIL_BYTES:]

    def heap_after_collections(self) -> list[int]:
        """Megabytes that each collection left, of all JVMs."""
        texts = (each.read_text() for each in sorted(self.directory.glob("collections-*/*.log")))
        return [int(found) for text in texts for found in _COLLECTED.findall(text)]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "twisted_broker.cli.main", "pipeline", *arguments]


def number(text: str) -> int:
    return int(text.replace(",", ""))
