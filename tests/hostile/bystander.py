"""The other client: `python -m tests.hostile.bystander ADDRESS PID`, a process of its own, so that
what the corpus costs on this side is not counted.

1. It produces a record, fetches it and reads metadata, over and over, on one connection that is
   logged in; each request must be answered before the next one.
2. For each line on its input it writes one: what was since the last (`Lap`), as JSON.
3. With a process id it also reads that process's memory, every fiftieth of a second or so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

import psutil

from tests.hostile.target import Address, Target, Wire
from twisted_broker.wire.records import BatchBuilder

TOPIC = "hostile-bystander"
PAUSE = 0.02
PATIENCE = 30.0


class Lap(NamedTuple):
    """`longest`: of a request's wait, in seconds, also one that still waits; `answered`: requests;
    `failed`: connections that broke; `memory`: the most bytes of the server, `now`: at its end.
    """

    longest: float
    answered: int
    failed: int
    memory: int
    now: int


class Bystander:
    """The running process; `lap()` asks for what was since the last."""

    def __init__(self, address: Address, pid: int | None) -> None:
        command = [sys.executable, "-m", __spec__.name, json.dumps(address), str(pid or 0)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lap()

    def lap(self) -> Lap:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the bystander's process ended"
        return Lap(*json.loads(line))

    def stop(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._process.stdout.close()


class _Client:
    """The process's side."""

    def __init__(self, address: Address, pid: int) -> None:
        self._target = Target(address)
        self._server = psutil.Process(pid) if pid else None
        self._wire: Wire | None = None
        self._began: float | None = None
        self._longest, self._answered, self._failed, self._memory = 0.0, 0, 0, 0
        self._lock = threading.Lock()

    def lap(self) -> Lap:
        now = self._look()
        with self._lock:
            waits = 0.0 if self._began is None else time.monotonic() - self._began
            longest = max(self._longest, waits)
            found = Lap(longest, self._answered, self._failed, max(self._memory, now), now)
            self._longest, self._answered, self._failed, self._memory = 0.0, 0, 0, 0
        return found

    def prepare(self) -> None:
        wanted = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        deadline = time.monotonic() + PATIENCE
        self._call("CreateTopics", topics=[wanted], timeout_ms=20_000)
        while not self._topic_id() or self._produce():
            assert time.monotonic() < deadline, "the bystander's topic is not served"
            time.sleep(0.05)
        self.lap()

    def _topic_id(self) -> bytes:
        (topic,) = self._call("Metadata", topics=[{"name": TOPIC}]).topics
        self._id = b"" if topic.error_code else bytes(topic.topic_id)
        return self._id

    def _produce(self) -> int:
        builder = BatchBuilder()
        builder.append(int(time.time() * 1000), b"k", b"value")
        part = {"index": 0, "records": builder.build()}
        wanted = {"topic_id": self._id, "name": TOPIC, "partition_data": [part]}
        answer = self._call("Produce", acks=-1, timeout_ms=10_000, topic_data=[wanted])
        (response,) = answer.responses[0].partition_responses
        self._offset = response.base_offset
        code: int = response.error_code
        return code

    def _fetch(self) -> None:
        part = {"partition": 0, "fetch_offset": self._offset, "partition_max_bytes": 1 << 16}
        wanted = {"topic": TOPIC, "topic_id": self._id, "partitions": [part]}
        self._call(
            "Fetch",
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 16,
            topics=[wanted],
            session_epoch=-1,
        )

    def go_on(self) -> None:
        """One round of requests."""
        try:
            self._produce()
            self._fetch()
            self._topic_id()
        except (OSError, PermissionError):
            self._failed += 1
            if self._wire is not None:
                self._wire.close()
                self._wire = None
        self._look()

    def _look(self) -> int:
        """The server's bytes of memory now; 0 where it is gone or not known."""
        if self._server is None:
            return 0
        try:
            now: int = self._server.memory_info().rss
        except psutil.Error:
            return 0
        with self._lock:
            self._memory = max(self._memory, now)
        return now

    def _call(self, api: str, **fields: Any) -> Any:
        with self._lock:
            self._began = time.monotonic()
        try:
            if self._wire is None:
                self._wire = self._target.logged_in()
            return self._wire.call(api, self._target.version(api), fields, PATIENCE)
        finally:
            with self._lock:
                self._longest = max(self._longest, time.monotonic() - self._began)
                self._began = None
                self._answered += 1


def main() -> None:
    client = _Client(Address(*json.loads(sys.argv[1])), int(sys.argv[2]))
    client.prepare()
    is_over = threading.Event()

    def answer() -> None:
        for _ in sys.stdin:
            print(json.dumps(client.lap()), flush=True)
        is_over.set()

    threading.Thread(target=answer, daemon=True).start()
    while not is_over.wait(PAUSE):
        client.go_on()


if __name__ == "__main__":
    main()
