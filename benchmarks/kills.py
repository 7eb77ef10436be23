"""A broker of many partitions, killed and started again: `python -m benchmarks.kills [PARTITIONS
[KILLS]]`. Ends with status 1 when an acknowledged record is missing, an offset contradicts, or a
turn of the reactor was too long (`tests/faults/slow_turns.py`).

Between two kills one record goes to each of `WRITTEN` partitions, other ones each time, acks=1; the
last of these requests are in flight when SIGKILL comes. After each start the end offsets of all
partitions are compared with what was acknowledged, and the records of those that were written.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from struct import pack
from typing import Any

from benchmarks.meter import cpu_seconds, resident_mb
from benchmarks.servers import ROOT, Ours, too_long
from tests.faults.slow_turns import slow_turns
from twisted_broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from twisted_broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from twisted_broker.wire.records import BatchBuilder, iterate_batches
from twisted_broker.wire.schema import decode, encode

TOPIC, WRITTEN, PER_REQUEST, STARTS_WITHIN_SECONDS = "wide", 1_000, 50, 600


class Client:
    """A blocking connection for requests that are not flexible."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, 60)

    def send(self, request: Any, version: int) -> None:
        body = encode(request, version)
        head = pack(">hhih", type(request).api_key, version, 1, 1) + b"k"
        self.socket.sendall(pack(">i", len(head) + len(body)) + head + body)

    def receive(self, kind: Any, version: int) -> Any:
        return decode(kind, self._exactly(int.from_bytes(self._exactly(4), "big"))[4:], version)

    def call(self, request: Any, kind: Any, version: int) -> Any:
        self.send(request, version)
        return self.receive(kind, version)

    def _exactly(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            some = self.socket.recv(size - len(got))
            if not some:
                raise ConnectionError("closed")
            got += some
        return bytes(got)


def record(value: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(int(time.time() * 1000), None, value)
    return builder.build()


def produce(values: dict[int, bytes]) -> ProduceRequest:
    data = [PartitionProduceData(index=p, records=record(v)) for p, v in values.items()]
    return ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)]
    )


class Run:
    """What was acknowledged: values by partition, at their offsets; what may be there besides."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.known: list[list[bytes]] = [[] for _ in range(partitions)]
        self.unanswered: dict[int, bytes] = {}
        self.wrong: list[str] = []
        self.random = random.Random(1)

    def write(self, client: Client) -> None:
        chosen = self.random.sample(range(self.partitions), min(WRITTEN, self.partitions))
        for start in range(0, len(chosen), PER_REQUEST):
            values = {p: os.urandom(20) for p in chosen[start : start + PER_REQUEST]}
            answer = client.call(produce(values), ProduceResponse, 7)
            for each in answer.responses[0].partition_responses:
                if each.error_code or each.base_offset != len(self.known[each.index]):
                    self.wrong.append(f"{each.index}: {each.error_code} at {each.base_offset}")
                self.known[each.index].append(values[each.index])

    def write_without_answer(self, client: Client) -> None:
        chosen = self.random.sample(range(self.partitions), PER_REQUEST)
        self.unanswered = {p: os.urandom(20) for p in chosen}
        client.send(produce(self.unanswered), 7)

    def check(self, client: Client) -> int:
        """Records that were read."""
        wanted = [ListOffsetsPartition(partition_index=p) for p in range(self.partitions)]
        for each in wanted:
            each.timestamp = -1
        answer = client.call(
            ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=wanted)]),
            ListOffsetsResponse,
            2,
        )
        for found in answer.topics[0].partitions:
            known = self.known[found.partition_index]
            more = found.offset - len(known)
            if found.error_code or not 0 <= more <= (found.partition_index in self.unanswered):
                self.wrong.append(
                    f"{found.partition_index}: ends at {found.offset}, {len(known)} acknowledged, "
                    f"error {found.error_code}"
                )
            if more == 1:
                known.append(self.unanswered[found.partition_index])
        read = 0
        written = [p for p in range(self.partitions) if self.known[p]]
        for start in range(0, len(written), 300):
            read += self._read(client, written[start : start + 300])
        self.unanswered = {}
        return read

    def _read(self, client: Client, some: list[int]) -> int:
        asked = [FetchPartition(partition=p, partition_max_bytes=1 << 16) for p in some]
        request = FetchRequest(
            max_wait_ms=0, max_bytes=1 << 26, topics=[FetchTopic(topic=TOPIC, partitions=asked)]
        )
        answer = client.call(request, FetchResponse, 11)
        read = 0
        for each in answer.responses[0].partitions:
            found = {
                r.offset: r.value for b in iterate_batches(each.records or b"") for r in b.records()
            }
            expected = dict(enumerate(self.known[each.partition_index]))
            if found != expected:
                self.wrong.append(f"{each.partition_index}: read {found}, wrote {expected}")
            read += len(found)
        return read


class Restarted(Ours):
    """Keeps its data and its address."""

    start_seconds = 600.0

    def prepare(self) -> None:
        if self.address[1] == 0:
            super().prepare()


def ready(program: Restarted, partitions: int) -> float:
    """Seconds until all partitions have a leader that answers."""
    began = time.perf_counter()
    wanted = [ListOffsetsPartition(partition_index=p) for p in range(partitions)]
    for each in wanted:
        each.timestamp = -1
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=wanted)])
    while time.perf_counter() - began < STARTS_WITHIN_SECONDS:
        try:
            answer = Client(program.address).call(request, ListOffsetsResponse, 2)
            if not any(each.error_code for each in answer.topics[0].partitions):
                return time.perf_counter() - began
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"not ready within {STARTS_WITHIN_SECONDS} s: {program.directory}/log")


def main(partitions: int, kills: int) -> list[str]:
    """What was wrong, and turns of the reactor that were too long."""
    program, run = Restarted("ours", ROOT), Run(partitions)
    print(
        "| start | first Metadata, s | all partitions, s | processor, s | memory, MB | records "
        "read | longest turn, ms |\n|--:|--:|--:|--:|--:|--:|--:|"
    )
    try:
        for number in range(kills + 1):
            began = time.perf_counter()
            answered = program.start()
            if not number:
                topic = CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=1)
                made = Client(program.address).call(
                    CreateTopicsRequest(topics=[topic], timeout_ms=60_000), CreateTopicsResponse, 2
                )
                assert not made.topics[0].error_code, made
            ready(program, partitions)
            took, used = time.perf_counter() - began, cpu_seconds(program.pids)
            client = Client(program.address)
            read = run.check(client)
            run.write(client)
            memory = resident_mb(program.pids)
            run.write_without_answer(client)
            assert program.process is not None
            program.process.kill()
            program.process.wait()
            slow = slow_turns(program.directory / "log")
            longest = max((each.worked for each in slow), default=0)
            print(
                f"| {number} | {answered:.2f} | {took:.2f} | {used:.1f} | {memory:.0f} | {read} "
                f"| {longest} |",
                flush=True,
            )
            for each in slow:
                print(f"    {each}", file=sys.stderr)
    finally:
        program.stop()
    return run.wrong + too_long([program])


if __name__ == "__main__":
    found = main(*(int(each) for each in [*sys.argv[1:], *("10000", "10")[len(sys.argv) - 1 :]]))
    sys.exit("\n".join(found) or None)
