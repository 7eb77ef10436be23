"""`python -m benchmarks.compaction`: what the log cleaner keeps small, and what it costs others.

1. `offsets`: groups commit the same partitions again and again (`--commits`, by `--groups`), in
   small segments; the size of `__consumer_offsets` meanwhile and when it no longer changes, and a
   restart: from exec until every group's offsets are served. Then so many offsets, each once, that
   the load has `--distinct` to read.
2. `produce`: one record of 100 B, acks=all, 200 times a second, with and without a compacted log of
   `--megabytes` being cleaned, in turn, `--rounds` times; and turns of the reactor of more than
   10 ms, as the broker's own watch names them.
3. `cleaner`, beside Apache Kafka (KAFKA_HOME or KAFKA_JARS) where there is one: the same records in
   a compacted log of `--megabytes`, from the moment when it may be cleaned until it is; processor
   time of all of the server's processes. Both look for work every half second.
"""

from __future__ import annotations

import argparse
import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from benchmarks.load import IN_FLIGHT, percentile_ms
from benchmarks.meter import TICKS, cpu_seconds
from benchmarks.requests import Connection, batch, frame, produce, produce_error_at, string
from benchmarks.servers import ROOT, Kafka, Ours, Program, end_when_slow
from tests.faults.slow_turns import SlowTurn, slow_turns
from twisted_broker.wire.records import BatchBuilder

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
PARTITIONS = 100
PER_SECOND = 200
SECONDS = 5.0
LONGEST_SECONDS = 600.0
DAY_MS = 86_400_000
SEGMENT_BYTES = 16 << 20
KEYED = 900
"""records of a batch"""


def size_mb(server: Program, topic: str, pattern: str = "*") -> float:
    """Of the topic's files."""
    total = 0
    for path in (server.directory / "data").glob(f"{topic}-*/{pattern}"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # the cleaner was faster
    return total / 1e6


class Compacting(Ours):
    """With small segments of `__consumer_offsets`, a cleaner that looks often, and a watch that
    names every turn of more than 10 ms.
    """

    offsets_partitions = 50
    made: ClassVar[list[Compacting]] = []

    def __init__(self, name: str, checkout: Path) -> None:
        super().__init__(name, checkout)
        self.made.append(self)

    def command(self) -> list[str]:
        settings = {
            "offsets.topic.segment.bytes": 1 << 20,
            "offsets.topic.num.partitions": self.offsets_partitions,
            "log.cleaner.backoff.ms": 500,
            "replog.reactor.slow.ms": 10,
        }
        return super().command() + [
            word for name, value in settings.items() for word in ("--set", f"{name}={value}")
        ]

    def turns(self) -> list[SlowTurn]:
        return [turn for turn in slow_turns(self.directory / "log") if turn.most <= 200]


# offsets
def commit(group: str, topic: str, first: int, count: int, offset: int) -> bytes:
    """OffsetCommit of partitions from `first` on, by nobody in particular."""
    partitions = b"".join(
        struct.pack(">iqh", number, offset, 0) for number in range(first, first + count)
    )
    head = string(group) + struct.pack(">i", -1) + string("") + struct.pack(">qi", -1, 1)
    return frame(OFFSET_COMMIT, 2, head + string(topic) + struct.pack(">i", count) + partitions)


def check_commit(answer: memoryview, topic: str) -> None:
    """Of its first partition and of its last."""
    first = 4 + 4 + 2 + len(topic) + 4 + 4
    if bytes(answer[first : first + 2]) != b"\0\0" or bytes(answer[-2:]) != b"\0\0":
        raise RuntimeError("OffsetCommit failed under load")


def served(connection: Connection, group: str, topic: str) -> bool:
    """Whether the group's offsets can be read."""
    body = string(group) + struct.pack(">i", 1) + string(topic) + struct.pack(">ii", 1, 0)
    connection.socket.sendall(frame(OFFSET_FETCH, 2, body))
    return bytes(connection.receive()[-2:]) == b"\0\0"


def until(condition: Callable[[], bool], seconds: float = LONGEST_SECONDS) -> None:
    end = time.perf_counter() + seconds
    while not condition():
        if time.perf_counter() > end:
            raise SystemExit(f"nothing happened for {seconds:.0f} s")
        time.sleep(0.01)


def steady_mb(server: Compacting, topic: str) -> float:
    """Its size once it has not changed for 5 s, ten times as long as the cleaner pauses."""
    size, since = size_mb(server, topic), time.perf_counter()
    while time.perf_counter() - since < 5:
        time.sleep(0.2)
        now = size_mb(server, topic)
        if now != size:
            size, since = now, time.perf_counter()
    return size


def commits(groups: int, partitions: int, total: int) -> str:
    """A row: `total` commits of these offsets, then a restart."""
    server = Compacting("ours", ROOT)
    server.start()
    topic, offsets = "committed", "__consumer_offsets"
    names = [f"group-{number}" for number in range(groups)]
    try:
        with Connection(server.address, 1 << 20) as connection:
            connection.create(topic, partitions)
            connection.call(FIND_COORDINATOR, 0, string(names[0]))
            for name in names:
                until(lambda name=name: served(connection, name, topic))  # type: ignore[misc]
            largest, sent, waiting = 0.0, 0, 0
            step = min(partitions, PARTITIONS)
            began = time.perf_counter()
            while sent < total:
                for name in names:
                    first = sent // groups // step * step % partitions
                    connection.socket.sendall(commit(name, topic, first, step, sent))
                    waiting += 1
                    if waiting > IN_FLIGHT:
                        check_commit(connection.receive(), topic)
                        waiting -= 1
                sent += groups * step
                largest = max(largest, size_mb(server, offsets))
            for _ in range(waiting):
                check_commit(connection.receive(), topic)
            rate = sent / (time.perf_counter() - began)
        end = steady_mb(server, offsets)
        to_metadata = server.restart()
        began = time.perf_counter()
        with Connection(server.address, 1 << 20) as connection:
            for name in names:
                until(lambda name=name: served(connection, name, topic))  # type: ignore[misc]
        seconds = to_metadata + time.perf_counter() - began
        cpu = cpu_seconds(server.pids)
        turn = max(server.turns(), key=lambda turn: turn.worked, default=None)
        longest = f"{turn.worked}, {turn.what}" if turn is not None else "none"
    finally:
        server.stop()
    return (
        f"| {sent:,} | {groups:,} x {partitions:,} | {rate:,.0f} | {largest:,.1f} | {end:,.1f} "
        f"| {seconds:.2f} | {cpu:.2f} | {longest} |"
    )


# produce, and the cleaner alone
class CompactingKafka(Kafka):
    """With the same."""

    def settings(self) -> str:
        return f"{super().settings()}\nlog.cleaner.backoff.ms=500"


def keyed(records: int, keys: int) -> bytes:
    builder, now_ms = BatchBuilder(), int(time.time() * 1000)
    for number in range(records):
        builder.append(now_ms, b"key-%d" % (number * 7919 % keys), b"x" * 1000)
    return builder.build()


def set_lag(admin: AdminClient, topic: str, lag_ms: int) -> None:
    entry = ConfigEntry(
        "min.compaction.lag.ms", str(lag_ms), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


def fill(server: Program, admin: AdminClient, topic: str, megabytes: float) -> int:
    """A compacted log that may not be cleaned yet: its records are new. Gives how many."""
    config = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(DAY_MS),
        "segment.bytes": str(SEGMENT_BYTES),
    }
    for done in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        done.result(60)
    records = keyed(KEYED, 700)
    request, at = produce(topic, records, -1), produce_error_at(topic) - 4
    with Connection(server.address) as connection:
        until(lambda: connection.metadata(topic)[1] == [1])
        batches = int(megabytes * 1e6 / len(records)) + 1
        for _ in range(batches):
            connection.socket.sendall(request)
            if bytes(connection.receive()[at : at + 2]) != b"\0\0":
                raise RuntimeError("Produce failed under load")
    return batches * KEYED


def is_clean(server: Program, topic: str) -> bool:
    """Whether the cleaner's checkpoint is above the log's start."""
    checkpoint = Path(server.directory / "data" / "cleaner-offset-checkpoint")
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    return any(line.startswith(f"{topic} 0 ") and not line.endswith(" 0") for line in lines)


def latencies(server: Compacting, topic: str, is_over: Callable[[float], bool]) -> list[float]:
    """Of one record after the other, `PER_SECOND` of them."""
    request, at = produce(topic, batch(1, 100), -1), produce_error_at(topic) - 4
    took: list[float] = []
    with Connection(server.address) as connection:
        began = due = time.perf_counter()
        while not is_over(time.perf_counter() - began):
            time.sleep(max(0.0, due - time.perf_counter()))
            due = max(due + 1 / PER_SECOND, time.perf_counter() - 1)
            sent = time.perf_counter()
            connection.socket.sendall(request)
            if bytes(connection.receive()[at : at + 2]) != b"\0\0":
                raise RuntimeError("Produce failed under load")
            took.append(time.perf_counter() - sent)
    return took


def produce_under_cleaning(megabytes: float, rounds: int) -> list[str]:
    """A row for each kind: all rounds together."""
    server = Compacting("ours", ROOT)
    server.start()
    took: dict[str, list[float]] = {"without": [], "while a log is cleaned": []}
    turns: dict[str, list[int]] = {kind: [] for kind in took}
    cleaned = 0.0
    try:
        host, port = server.address
        admin = AdminClient({"bootstrap.servers": f"{host}:{port}", "log_level": 0})
        with Connection(server.address) as connection:
            connection.create("probe")
        for number in range(rounds):
            topic = f"compacted-{number}"
            fill(server, admin, topic, megabytes)
            for kind in took:
                before = len(server.turns())
                if kind == "without":
                    took[kind] += latencies(server, "probe", lambda seconds: seconds > SECONDS)
                else:
                    set_lag(admin, topic, 0)
                    began = time.perf_counter()
                    took[kind] += latencies(
                        server,
                        "probe",
                        lambda seconds, topic=topic: (  # type: ignore[misc]
                            is_clean(server, topic) or seconds > LONGEST_SECONDS
                        ),
                    )
                    cleaned += time.perf_counter() - began
                turns[kind] += [turn.worked for turn in server.turns()[before:]]
    finally:
        server.stop()
    return [
        f"| {kind} | {len(each):,} | {percentile_ms(each, 0.5):.2f} | "
        f"{percentile_ms(each, 0.99):.2f} | {max(each) * 1000:.1f} | {len(turns[kind])} "
        f"| {max(turns[kind], default=0) or 'none'} |"
        for kind, each in took.items()
    ] + [f"\n{megabytes * rounds / cleaned:,.1f} MB/s were cleaned, pauses included."]


def tree_seconds(pid: int) -> float:
    """Processor time so far of a process and its children, living and gone."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == pid or path.parent.name == str(pid):
            total += sum(map(int, fields[11:15]))
    return total / TICKS


def cleaning(server: Program, megabytes: float) -> str:
    """A row: how long its cleaner takes for such a log."""
    server.start()
    topic = "compacted"
    try:
        host, port = server.address
        admin = AdminClient({"bootstrap.servers": f"{host}:{port}", "log_level": 0})
        records = fill(server, admin, topic, megabytes)
        before, pid = size_mb(server, topic, "*.log"), server.pids[0]
        cpu = tree_seconds(pid)
        set_lag(admin, topic, 0)
        began = time.perf_counter()
        until(lambda: is_clean(server, topic))
        seconds, cpu = time.perf_counter() - began, tree_seconds(pid) - cpu
        after = size_mb(server, topic, "*.log")
    finally:
        server.stop()
    return (
        f"| {server.name} | {before:,.1f} | {after:,.1f} | {seconds:.2f} | {cpu:.2f} "
        f"| {before / seconds:,.1f} | {records / seconds:,.0f} |"
    )


def cleaners(megabytes: float, rounds: int) -> None:
    """Prints rows, in turn."""
    servers: list[Program] = [Compacting("ours", ROOT)]
    if os.environ.get("KAFKA_HOME") or os.environ.get("KAFKA_JARS"):
        servers.append(CompactingKafka())
    print(
        "\n| cleaner | before, MB | after, MB | s | CPU, s | MB/s | records/s |"
        "\n|---|--:|--:|--:|--:|--:|--:|"
    )
    for _ in range(rounds):
        for server in servers:
            print(cleaning(server, megabytes), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table for each measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=["offsets", "produce", "cleaner"])
    parser.add_argument("--commits", type=int, default=10_000_000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--distinct", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=50, help="of __consumer_offsets")
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.megabytes * 1e6 < 3 * SEGMENT_BYTES:
        parser.error("--megabytes: below 51 no segment is full, and nothing is cleaned")
    Compacting.offsets_partitions = options.partitions
    only = options.only or ["offsets", "produce", "cleaner"]
    if "offsets" in only:
        print(
            "| commits | groups x partitions | commits/s | largest, MB | at the end, MB "
            "| restart to served, s | CPU, s | longest turn, ms |"
            "\n|--:|--:|--:|--:|--:|--:|--:|--:|"
        )
        print(commits(options.groups, PARTITIONS, options.commits), flush=True)
        wide = max(PARTITIONS, options.distinct // options.groups // PARTITIONS * PARTITIONS)
        print(commits(options.groups, wide, options.groups * wide), flush=True)
    if "produce" in only:
        print(
            "\n| produce | records | p50, ms | p99, ms | most, ms | turns over 10 ms "
            "| longest turn, ms |\n|---|--:|--:|--:|--:|--:|--:|"
        )
        print("\n".join(produce_under_cleaning(options.megabytes, options.rounds)))
    if "cleaner" in only:
        cleaners(options.megabytes, options.rounds)
    end_when_slow(Compacting.made)


if __name__ == "__main__":
    main()
