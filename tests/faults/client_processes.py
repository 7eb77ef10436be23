"""The clients of a run: child processes, and what they have noted so far as one `History`.

1. A client that ends by itself, or does not come back after a fault, is replaced by a fresh one of
   another name, and that is counted.
2. What a client noted is read from its file as it grows: the history is never behind what a
   condition needs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import IO

from tests.faults.clients.job import Job
from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.anomalies import find_anomalies
from twisted_broker.simulation.checks.history import History

WRITERS = ("produce", "transact", "copy")
LIBRARIES = ("kafka-python", "confluent-kafka", "aiokafka")
_ROOT = Path(__file__).parents[2]


class Client:
    """One process. `role`: what it is for, kept by those that replace it."""

    def __init__(self, job: Job, directory: Path, generation: int = 0) -> None:
        self.role, self.generation, self.directory = job.name, generation, directory
        name = f"{job.name}.{generation}" if generation else job.name
        self.job = replace(job, name=name, file=str(directory / f"{name}.history"))
        Path(self.job.file).touch()
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "tests.faults.clients", self.job.to_json()]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, cwd=_ROOT
            )
        self._file: IO[bytes] = open(self.job.file, "rb")  # noqa: SIM115  kept open, read as it grows
        self._rest = b""

    def lines(self) -> list[str]:
        """What it noted since the last time."""
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line.decode() for line in whole]

    def stop(self) -> None:
        """Tells it to stop; `process.wait` says when it has."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()

    def kill(self) -> None:
        self.stop()
        self.process.kill()
        self.process.wait()

    def log_tail(self) -> str:
        return self.log.read_bytes()[-3000:].decode(errors="replace")


class ClientProcesses:
    """Three producers, three consumers on their own, three groups of one or two members; with a
    `target`, for transactions: one idempotent producer, three transactional ones, three groups of
    programs that pass on to `target` what is committed, three read_committed consumers of both
    topics.

    Use as a context.
    """

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        topic: str,
        partitions: int,
        acks: str = "all",
        authority: str = "",
        target: str = "",
    ) -> None:
        self.directory, self.topic, self.partitions = directory, topic, partitions
        self.history = History()
        self.replaced: list[str] = []
        self.clients: list[Client] = []
        self._blank = Job("", "", "", bootstrap, topic, partitions, "", "", acks, authority, target)
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> ClientProcesses:
        if self._blank.target:
            return self._start_transactions()
        for library in LIBRARIES:
            self.start("produce", library, f"{library}-producer")
            self.start("consume", library, f"{library}-reader")
            self.start("consume", library, f"{library}-member", f"{library}-group")
        self.start(
            "consume", "confluent-kafka", "confluent-kafka-member-b", "confluent-kafka-group"
        )
        return self

    def _start_transactions(self) -> ClientProcesses:
        self.start("produce", "confluent-kafka", "confluent-kafka-producer")
        for library in LIBRARIES:
            self.start("transact", library, f"{library}-transactions")
            self.start("copy", library, f"{library}-copier", f"{library}-copies")
            self.start("consume", library, f"{library}-reader")
        self.start("copy", "confluent-kafka", "confluent-kafka-copier-b", "confluent-kafka-copies")
        return self

    def __exit__(self, *exc: object) -> None:
        for client in self.clients:
            client.kill()

    def start(self, role: str, library: str, name: str, group: str = "") -> Client:
        own = {"transactional_id": name} if role in ("transact", "copy") else {}
        job = replace(self._blank, name=name, role=role, library=library, group=group, **own)
        return self._enlist(Client(job, self.directory))

    def _enlist(self, client: Client) -> Client:
        if client.job.group:
            self.history.groups[client.job.name] = client.job.group
        self.clients.append(client)
        return client

    def crash(self, random: Random) -> str:
        """A transactional program dies where it is; its successor has its transactional id."""
        client = random.choice([each for each in self.clients if each.job.transactional_id])
        self.replace(client, "")
        return client.role

    def replace(self, client: Client, why: str) -> None:
        """A fresh one in its place; counted, where there is something to say of the old one."""
        client.kill()
        self.history.take(client.job.name, client.lines())
        self.clients.remove(client)
        if why:
            self.replaced.append(f"{client.job.name} {why}")
        self._enlist(
            Client(replace(client.job, name=client.role), self.directory, client.generation + 1)
        )

    def read(self) -> None:
        """Brings the history up to now, and replaces who ended by itself."""
        # What is polled while this goes on was noted by its sender before: senders come last.
        for client in sorted(self.clients, key=lambda each: each.job.role in WRITERS):
            self.history.take(client.job.name, client.lines())
            status = client.process.poll()
            if (
                status is not None
                and client.process.stdin is not None
                and not client.process.stdin.closed
            ):
                self.replace(client, f"ended with status {status}")

    def silent(self, since_ns: int) -> list[Client]:
        """Producers of which nothing is acknowledged that they sent after then."""
        self.read()
        return [
            each
            for each in self.clients
            if each.job.role in WRITERS and self.history.newest.get(each.job.name, 0) <= since_ns
        ]

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[Client]:
        """Consumers that have not come (members: whose groups have not come) so far."""
        self.read()
        found = []
        for client in self.clients:
            reader = client.job.group or client.job.name
            if client.job.role == "consume" and any(
                self.history.positions.get((reader, name), 0) < end for name, end in ends.items()
            ):
                found.append(client)
        return found

    def uncopied(self) -> int:
        """How many values that somebody polled were not passed on, of all groups, as far as
        anybody polled.
        """
        self.read()
        missing = [
            each
            for each in find_anomalies(self.history, ended=True)
            if each.name == "lost-write" and each.partition.topic == self.topic
        ]
        return len(missing)

    def stop(self, role: str, patience: float) -> None:
        """All of a role stop in order; one that does not within `patience` seconds is killed,
        and counted.
        """
        leaving = [client for client in self.clients if client.job.role == role]
        for client in leaving:
            client.stop()
        deadline = time.monotonic() + patience
        for client in leaving:
            try:
                status: object = client.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                client.kill()
                status = "not in time"
            if status != 0:
                self.replaced.append(f"{client.job.name} stopped: {status}")
            self.history.take(client.job.name, client.lines())
            self.clients.remove(client)

    def log_tail(self, clients: Iterable[Client] | None = None) -> str:
        return "\n".join(
            f"--- {client.job.name}\n{client.log_tail()}"
            for client in (self.clients if clients is None else clients)
        )
