"""Groups of the newer protocols beside Apache Kafka: `python -m benchmarks.groups [ours] [kafka]`.

    heartbeats  1,000 members of one consumer group, each on a connection of its own, beat every
                5 s: the server's share of a core, and how long an answer takes
    rebalance   one more joins, members beat one after the other without a pause: until each has
                what its target says (default settings: group.consumer.assignment.interval.ms=1000)
    share       100 share consumers (librdkafka's) on 10 partitions: acknowledged records a second

Processor seconds say most: client and server share the cores. What else ran is printed beside.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import struct
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from typing import Any, TypeVar

from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from benchmarks.meter import Meter
from benchmarks.servers import Program, program, too_long
from twisted_broker.wire.header import RequestHeader, decode_response_header, encode_request_header
from twisted_broker.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
)
from twisted_broker.wire.messages.offsets import FindCoordinatorRequest, FindCoordinatorResponse
from twisted_broker.wire.schema import decode, encode
from twisted_broker.wire.structs import Request, Response

MEMBERS, PARTITIONS, INTERVAL_SECONDS = 1000, 2000, 5.0
CONSUMERS, SHARE_PARTITIONS, PROCESSES = 100, 10, 4
WAIT_SECONDS = 60
# A share consumer gets its partitions with its second heartbeat, after five seconds.
WARM_UP_SECONDS = 12
QUIET = {"log_level": 3}
R = TypeVar("R", bound=Response)
_NOT_YET = frozenset({14, 15, 16})  # the coordinator loads, or is not there yet


class Member:
    """Of a consumer group; its connection is blocking."""

    def __init__(self, address: tuple[str, int], name: str) -> None:
        self._socket = socket.create_connection(address, WAIT_SECONDS)
        self.name, self.epoch = name, 0
        self.owned: list[ConsumerGroupHeartbeatTopicPartitions] = []
        self._must_say = True

    def close(self) -> None:
        self._socket.close()

    def _find_coordinator(self) -> int:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["bench"])
        return self._ask(request, FindCoordinatorResponse, 4).coordinators[0].error_code

    def beat(self) -> ConsumerGroupHeartbeatResponse:
        """Obeys what it is told; says what it owns when that has changed, and when it joins."""
        joins = self.epoch == 0
        answer = self._ask(
            ConsumerGroupHeartbeatRequest(
                group_id="bench",
                member_id=self.name,
                member_epoch=self.epoch,
                rebalance_timeout_ms=60_000 if joins else -1,
                subscribed_topic_names=["bench"] if joins else None,
                topic_partitions=self.owned if self._must_say else None,
            ),
            ConsumerGroupHeartbeatResponse,
            1,
        )
        if answer.error_code:
            return answer
        self._must_say = answer.assignment is not None
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = [
                ConsumerGroupHeartbeatTopicPartitions(
                    topic_id=each.topic_id, partitions=each.partitions
                )
                for each in answer.assignment.topic_partitions
            ]
        return answer

    def join(self) -> None:
        end = time.monotonic() + WAIT_SECONDS
        # Who looks for the coordinator makes its topic.
        while self._find_coordinator() in _NOT_YET and time.monotonic() < end:
            time.sleep(0.1)
        while code := self.beat().error_code:
            if code not in _NOT_YET or time.monotonic() > end:
                raise RuntimeError(f"{self.name} cannot join: error {code}")
            time.sleep(0.1)

    def _ask(self, request: Request, answer: type[R], version: int) -> R:
        header = RequestHeader(request.api_key, version, 1, "bench")
        body = encode_request_header(header) + encode(request, version)
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        data = self._read(*struct.unpack(">i", self._read(4)))
        _, offset = decode_response_header(data, request.api_key, version)
        return decode(answer, data, version, offset)

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            got = self._socket.recv(size - len(parts))
            if not got:
                raise ConnectionError("closed by the server")
            parts += got
        return bytes(parts)


def create(server: Program, topic: str, partitions: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": "{}:{}".format(*server.address), **QUIET})
    made = admin.create_topics([NewTopic(topic, partitions, 1)])
    made[topic].result(WAIT_SECONDS)
    return admin


def settled(members: list[Member]) -> tuple[float, float]:
    """They beat in turn until two rounds bring nothing new: seconds until the last that did, and
    the longest answer.
    """
    began = last = time.perf_counter()
    longest, quiet = 0.0, 0
    while quiet < 2 * len(members):
        for member in members:
            epoch, sent = member.epoch, time.perf_counter()
            answer = member.beat()
            now = time.perf_counter()
            longest = max(longest, now - sent)
            if answer.error_code:
                raise RuntimeError(f"{member.name}: error {answer.error_code}")
            if answer.assignment is not None or member.epoch != epoch:
                last, quiet = now, 0
            else:
                quiet += 1
        # The target may be due only later: the interval is a second.
        if quiet >= 2 * len(members) and time.perf_counter() - began < 2:
            quiet = len(members)
    return last - began, longest


def of_members(server: Program, seconds: float) -> Iterator[str]:
    """Heartbeats, and one more member."""
    create(server, "bench", PARTITIONS)
    members = [Member(server.address, f"m{number:04}") for number in range(MEMBERS + 1)]
    try:
        for member in members[:MEMBERS]:
            member.join()
        took, _ = settled(members[:MEMBERS])
        yield f"{MEMBERS:,} members are in the group and have what they should after {took:.1f} s"
        took_ms: list[float] = []
        with Meter(server.pids) as meter:
            began, beats = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                due = began + beats * INTERVAL_SECONDS / MEMBERS
                time.sleep(max(0.0, due - time.perf_counter()))
                sent = time.perf_counter()
                members[beats % MEMBERS].beat()
                took_ms.append(1000 * (time.perf_counter() - sent))
                beats += 1
        took_ms.sort()
        yield (
            f"heartbeats: {beats / meter.seconds:.0f}/s, "
            f"{meter.server_cpu_s / meter.seconds:.3f} of a core, answer p50 "
            f"{took_ms[len(took_ms) // 2]:.2f} ms, p99 {took_ms[len(took_ms) * 99 // 100]:.2f} ms, "
            f"longest {took_ms[-1]:.1f} ms; others used {meter.other_cores:.2f} cores"
        )
        with Meter(server.pids) as meter:
            began = time.perf_counter()
            members[-1].join()
            joined = time.perf_counter() - began
            took, longest = settled(members)
        counts = [sum(len(each.partitions) for each in member.owned) for member in members]
        if sum(counts) != PARTITIONS or max(counts) - min(counts) > 1:
            raise RuntimeError(
                f"{sum(counts)} partitions are owned, {min(counts)} to {max(counts)}"
            )
        yield (
            f"rebalance: {joined + took:.2f} s until all {len(members):,} members have what they "
            f"should, longest answer {1000 * longest:.0f} ms, server CPU "
            f"{meter.server_cpu_s:.2f} s for {meter.seconds:.1f} s; others used "
            f"{meter.other_cores:.2f} cores"
        )
    finally:
        for member in members:
            member.close()


def _consume(bootstrap: str, count: int, go: Event, stop: Event, done: Any) -> None:
    """A process of share consumers, polled in turn: each poll accepts what the one before gave."""
    consumers = [
        ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "share-bench", **QUIET})
        for _ in range(count)
    ]
    for each in consumers:
        each.subscribe(["share-bench"])
    go.wait()
    records = 0
    while not stop.is_set():
        for each in consumers:
            records += sum(message.error() is None for message in each.poll(timeout=0.01) or ())
            if stop.is_set():
                break
    for each in consumers:
        each.close()
    done.put(records)


def of_share_consumers(server: Program, records: int, seconds: float) -> Iterator[str]:
    admin = create(server, "share-bench", SHARE_PARTITIONS)
    bootstrap = "{}:{}".format(*server.address)
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    group = ConfigResource(ResourceType.GROUP, "share-bench", incremental_configs=[entry])
    for changed in admin.incremental_alter_configs([group]).values():
        changed.result(WAIT_SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **QUIET})
    for number in range(records):
        producer.produce("share-bench", bytes(100), partition=number % SHARE_PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(WAIT_SECONDS):
        raise RuntimeError("not everything was produced")
    spawn = multiprocessing.get_context("spawn")
    go, stop, done = spawn.Event(), spawn.Event(), spawn.Queue()
    parts = (bootstrap, CONSUMERS // PROCESSES, go, stop, done)
    readers = [spawn.Process(target=_consume, args=parts) for _ in range(PROCESSES)]
    for each in readers:
        each.start()
    time.sleep(WARM_UP_SECONDS)
    with Meter(server.pids) as meter:
        go.set()
        time.sleep(seconds)
        stop.set()
        total = sum(done.get(timeout=WAIT_SECONDS) for _ in readers)
    for each in readers:
        each.join()
    yield (
        f"share: {total:,} records acknowledged by {CONSUMERS} consumers, "
        f"{total / meter.seconds:,.0f}/s, server CPU "
        f"{1e5 * meter.server_cpu_s / max(1, total):.2f} s per 100,000; others used "
        f"{meter.other_cores:.2f} cores, the clients' among them"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=["ours"])
    parser.add_argument("--only", choices=("members", "share"))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    servers = [program(name) for name in given.programs]
    for server in servers:
        server.start()
        try:
            if given.only != "share":
                for line in of_members(server, given.seconds):
                    print(f"{server.name}: {line}", flush=True)
            if given.only != "members":
                for line in of_share_consumers(server, given.records, given.seconds):
                    print(f"{server.name}: {line}", flush=True)
        finally:
            server.stop()
    for line in too_long(servers):
        print(line)


if __name__ == "__main__":
    main()
