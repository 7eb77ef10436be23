"""`python -m benchmarks.compaction`: what the log cleaner keeps small, and what it costs others.

1. `offsets`: groups commit the same partitions again and again (`--commits`, by `--groups`), in
   small segments; the size of `__consumer_offsets` meanwhile and when it no longer changes, and a
   restart: from exec until every group's offsets are served. Then so many offsets, each once, that
   the load has `--distinct` to read.
2. `produce`: one record of 100 B, acks=all, 200 times a second, with and without a compacted log of
   `--megabytes` being cleaned, in turn, `--rounds` times; and turns of the reactor of more than
   10 ms, as the broker's own watch names them.
"""

from __future__ import annotations

import argparse
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from benchmarks.load import IN_FLIGHT, first_metadata, percentile_ms
from benchmarks.meter import cpu_seconds
from benchmarks.requests import Connection, batch, frame, produce, produce_error_at, string
from benchmarks.servers import ROOT, Ours
from tests.faults.slow_turns import SlowTurn, slow_turns
from twisted_broker.wire.records import BatchBuilder

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
PARTITIONS = 100
PER_SECOND = 200
SECONDS = 5.0
LONGEST_SECONDS = 600.0
DAY_MS = 86_400_000
SEGMENT_BYTES = 16 << 20


class Compacting(Ours):
    """With small segments of `__consumer_offsets`, a cleaner that looks often, and a watch that
    names every turn of more than 10 ms.
    """

    offsets_partitions = 50

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

    def restart(self) -> float:
        """On what it has; when it was started."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        began = time.perf_counter()
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self.environment(),
            )
        self.pids = [self.process.pid]
        first_metadata(self.address, self.start_seconds)
        return began

    def size_mb(self, topic: str) -> float:
        """Of the topic's directories."""
        total = 0
        for path in (self.directory / "data").glob(f"{topic}-*/*"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue  # the cleaner was faster
        return total / 1e6

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
    size, since = server.size_mb(topic), time.perf_counter()
    while time.perf_counter() - since < 5:
        time.sleep(0.2)
        now = server.size_mb(topic)
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
                largest = max(largest, server.size_mb(offsets))
            for _ in range(waiting):
                check_commit(connection.receive(), topic)
            rate = sent / (time.perf_counter() - began)
        end = steady_mb(server, offsets)
        began = server.restart()
        with Connection(server.address, 1 << 20) as connection:
            for name in names:
                until(lambda name=name: served(connection, name, topic))  # type: ignore[misc]
        seconds, cpu = time.perf_counter() - began, cpu_seconds(server.pids)
        turn = max(server.turns(), key=lambda turn: turn.worked, default=None)
        longest = f"{turn.worked}, {turn.what}" if turn is not None else "none"
    finally:
        server.stop()
    return (
        f"| {sent:,} | {groups:,} x {partitions:,} | {rate:,.0f} | {largest:,.1f} | {end:,.1f} "
        f"| {seconds:.2f} | {cpu:.2f} | {longest} |"
    )


# produce
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


def fill(server: Compacting, admin: AdminClient, topic: str, megabytes: float) -> None:
    """A compacted log that may not be cleaned yet: its records are new."""
    config = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(DAY_MS),
        "segment.bytes": str(SEGMENT_BYTES),
    }
    for done in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        done.result(60)
    records = keyed(900, 700)
    request, at = produce(topic, records, -1), produce_error_at(topic) - 4
    with Connection(server.address) as connection:
        until(lambda: connection.metadata(topic)[1] == [1])
        for _ in range(int(megabytes * 1e6 / len(records)) + 1):
            connection.socket.sendall(request)
            if bytes(connection.receive()[at : at + 2]) != b"\0\0":
                raise RuntimeError("Produce failed under load")


def is_clean(server: Compacting, topic: str) -> bool:
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table for each measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=["offsets", "produce"])
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
    only = options.only or ["offsets", "produce"]
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


if __name__ == "__main__":
    main()
