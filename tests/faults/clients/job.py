"""What a client is to do, what it notes, and when it stops.

1. Every client notes what it does before it does it, and what it is told when it is told
   (`simulation.checks.history.Recorder`).
2. It stops when its standard input ends: when it is told to, and when who started it is no more.
3. A producer sends small bursts at a pace, waits with the next while many records are on the way,
   and waits for all answers when it stops.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import Random
from threading import Event, Thread
from typing import TextIO

from twisted_broker.simulation.checks.history import Fate, Recorder

BURST, PACE_SECONDS, MOST_ON_THE_WAY = 4, 0.03, 400
PATIENCE_MS = 600_000
REQUEST_MS, SESSION_MS, HEARTBEAT_MS = 7_000, 6_000, 1_000
MECHANISM, USER, PASSWORD = "SCRAM-SHA-256", "node", "node-secret"
"""With security nodes and clients are the same user."""


@dataclass(frozen=True)
class Job:
    """`role`: produce, consume, transact or copy; `group` "": all partitions, assigned. `file` is
    where the history goes. `acks` other than all: no idempotence. `authority`: the file of the
    certificate that signs those of the brokers, with SASL_SSL; "" without security. `target`: the
    topic that copies go to, "" in a run without transactions; with it consumers read both topics,
    read_committed. `transactional_id` outlives the process.
    """

    name: str
    library: str
    role: str
    bootstrap: str
    topic: str
    partitions: int
    group: str
    file: str
    acks: str = "all"
    authority: str = ""
    target: str = ""
    transactional_id: str = ""

    @property
    def topics(self) -> list[str]:
        """What a consumer reads."""
        return [self.topic, self.target] if self.target else [self.topic]

    @property
    def pace_seconds(self) -> float:
        """With transactions each record is copied three times, and each copy is read."""
        return PACE_SECONDS * (5 if self.target else 1)

    @property
    def isolation(self) -> str:
        return "read_committed" if self.target else "read_uncommitted"

    @property
    def idempotent(self) -> bool:
        return self.acks == "all"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))


class Work:
    """A job under way."""

    def __init__(self, job: Job, file: TextIO) -> None:
        self.job = job
        self.recorder = Recorder(file, time.monotonic_ns)
        self.enough = Event()
        self.on_the_way: set[str] = set()
        self._random = Random(job.name)
        self._count = 0
        Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        sys.stdin.read()
        self.enough.set()

    def burst(self) -> Iterator[tuple[int, str]]:
        """The next (partition, value)s, noted; none while too many are on the way."""
        if len(self.on_the_way) > MOST_ON_THE_WAY:
            return
        records = self.records()
        self.on_the_way.update(value for _, value in records)
        self.recorder.send(self.job.topic, records)
        yield from records

    def records(self) -> list[tuple[int, str]]:
        """The next (partition, value)s, not noted."""
        partitions = range(self.job.partitions)
        return [(self._random.choice(partitions), self.name()) for _ in range(BURST)]

    def name(self) -> str:
        """A value that nobody else sends."""
        self._count += 1
        return f"{self.job.name}:{self._count}"

    def chance(self) -> float:
        return self._random.random()

    def acknowledged(self, value: str, offset: int) -> None:
        self.on_the_way.discard(value)
        self.recorder.answered(value, Fate.ACKED, offset)

    def given_up(self, value: str) -> None:
        """Its client says that it failed: it may be there all the same."""
        self.on_the_way.discard(value)
        self.recorder.answered(value, Fate.UNKNOWN)
