"""`python -m benchmarks.scale`: how cost grows with size, as tables and as a picture.

    python -m benchmarks.scale                                      # a small run, two minutes
    python -m benchmarks.scale --partitions 1000 10000 50000 --connections 1000 10000 \\
        --log-mb 1000 10000 100000 --groups 10x100 100x100 --brokers 1 3 9    # the whole one

Each size on an empty directory, on one machine with this program:

- partitions: creation, restart in order and after kill -9 until each has a leader,
  a hundred Metadata requests, idle CPU, memory;
- connections: until all have had an answer, memory;
- MB of log in one partition: restart after kill -9, then the first fetch of its start, cold where
  the system lets go of the pages;
- groups x members: from the first JoinGroup to the last SyncGroup, without the initial delays; CPU
  of that, and of three heartbeats of each;
- brokers of `--brokers N --processes`: start, stop, idle CPU, memory.

The last column is the growth of the cost over the growth of the size, largest to smallest: 1 is
linear, less is better. `--picture FILE` draws the same. Ends with status 1 where one is above
`WORSE` and the cost is above its floor, below which a figure is noise; on a busy machine only CPU
and memory count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.kills import Restarted
from benchmarks.load import Figures, fill
from benchmarks.meter import cpu_seconds, resident_mb
from benchmarks.requests import METADATA, Connection, fetch, frame, string
from benchmarks.servers import ROOT, Ours
from tests.faults.slow_turns import is_machine_idle
from twisted_broker.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from twisted_broker.wire.schema import decode, encode

WORSE = 1.25
FLOORS = {"s": 0.2, "ms": 2.0, "MB": 5.0, "%": 2.0}
"""By the unit at a figure's end: below, a figure is noise."""
TOPIC = "scale"
INITIAL_DELAY_MS = 3000
MOST_AT_ONCE = 10_000
Rows = dict[str, dict[float, float]]
"""By figure: cost by size."""


class Scaled(Restarted):
    """`more`: options besides."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        Ours.__init__(self, "ours", ROOT)
        self.more = list(more)

    def command(self) -> list[str]:
        return [*super().command(), *self.more]

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def idle_percent(pids: list[int], seconds: float) -> float:
    before = cpu_seconds(pids)
    time.sleep(seconds)
    return (cpu_seconds(pids) - before) / seconds * 100


def topics_of(size: int) -> dict[str, int]:
    """With so many partitions together: one request may make 10,000."""
    starts = range(0, size, MOST_AT_ONCE)
    return {f"{TOPIC}-{start}": min(MOST_AT_ONCE, size - start) for start in starts}


def all_led(connection: Connection, topics: dict[str, int]) -> None:
    for name, count in topics.items():
        until_led(connection, count, name)


def until_led(connection: Connection, count: int, topic: str = TOPIC) -> None:
    while True:
        _, leaders = connection.metadata(topic)
        if len(leaders) == count and -1 not in leaders:
            return
        time.sleep(0.2)


def partitions(size: int, options: argparse.Namespace) -> Figures:
    server, figures, topics = Scaled(), Figures(), topics_of(size)
    try:
        server.start()
        with Connection(server.address) as connection:
            used, began = cpu_seconds(server.pids), time.perf_counter()
            for name, count in topics.items():
                assert not connection.ask_to_create(name, count)
            all_led(connection, topics)
            figures["create: s"] = time.perf_counter() - began
            figures["create, server CPU: s"] = cpu_seconds(server.pids) - used
            names = b"".join(map(string, topics))
            asked = frame(METADATA, 1, struct.pack(">i", len(topics)) + names)
            used = cpu_seconds(server.pids)
            for _ in range(100):
                connection.socket.sendall(asked)
                connection.receive()
            figures["100 Metadata, server CPU: s"] = cpu_seconds(server.pids) - used
        # What creation left to be synced is written meanwhile.
        time.sleep(options.settle)
        figures["idle: %"] = idle_percent(server.pids, options.idle)
        figures["memory: MB"] = resident_mb(server.pids)
        for name, end in (("restart", False), ("restart after kill -9", True)):
            began = time.perf_counter()
            if end:
                server.kill()
                server._spawn()
            else:
                server.restart()
            with Connection(server.address) as connection:
                all_led(connection, topics)
            figures[f"{name}: s"] = time.perf_counter() - began
            figures[f"{name}, server CPU: s"] = cpu_seconds(server.pids)
    finally:
        server.stop()
    return figures


def connections(size: int, options: argparse.Namespace) -> Figures:
    server, opened = Scaled(), list[Connection]()
    try:
        server.start()
        before, used, began = (
            resident_mb(server.pids),
            cpu_seconds(server.pids),
            time.perf_counter(),
        )
        for _ in range(size):
            opened.append(Connection(server.address, 4096))
            opened[-1].call(18, 0, b"")
        return {
            "open all: s": time.perf_counter() - began,
            "open all, server CPU: s": cpu_seconds(server.pids) - used,
            "memory of them: MB": resident_mb(server.pids) - before,
        }
    finally:
        for each in opened:
            each.socket.close()
        server.stop()


def log(size: int, options: argparse.Namespace) -> Figures:
    server, figures = Scaled(), Figures()
    try:
        server.start()
        with Connection(server.address, 4 << 20) as connection:
            connection.create(TOPIC)
            fill(connection, TOPIC, size * 1e6)
        server.kill()
        _forget(server.directory / "data" / f"{TOPIC}-0")
        began = time.perf_counter()
        server._spawn()
        with Connection(server.address, 4 << 20) as connection:
            until_led(connection, 1)
            figures["restart after kill -9: s"] = time.perf_counter() - began
            figures["restart after kill -9, server CPU: s"] = cpu_seconds(server.pids)
            began = time.perf_counter()
            connection.socket.sendall(fetch(TOPIC, 0, 1 << 20))
            connection.receive()
            figures["first fetch: ms"] = (time.perf_counter() - began) * 1000
    finally:
        server.stop()
    return figures


def _forget(folder: Path) -> None:
    """The pages of its files, once they are on the disk."""
    for path in folder.glob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class Member:
    """One member of a group, on a connection of its own."""

    def __init__(self, group: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]):
        self.group, self.streams = group, streams
        self.id, self.generation = "", -1

    async def call(self, request: Any, version: int) -> bytes:
        reader, writer = self.streams
        writer.write(frame(type(request).api_key, version, encode(request, version)))
        size = int.from_bytes(await reader.readexactly(4), "big")
        return (await reader.readexactly(size))[4:]

    async def join(self) -> None:
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"m" * 20)
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = decode(JoinGroupResponse, await self.call(request, 3), 3)
        assert not joined.error_code, joined
        self.id, self.generation = joined.member_id, joined.generation_id
        members = joined.members if joined.leader == joined.member_id else []
        shares = [
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"a" * 20)
            for each in members
        ]
        await self.call(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.id,
                assignments=shares,
            ),
            2,
        )

    async def beat(self) -> None:
        await self.call(
            HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.id),
            2,
        )


def groups(size: tuple[int, int], options: argparse.Namespace) -> Figures:
    delay = f"group.initial.rebalance.delay.ms={INITIAL_DELAY_MS}"
    server = Scaled(["--set", delay])
    try:
        server.start()
        return asyncio.run(_groups(server, *size))
    finally:
        server.stop()


async def _groups(server: Scaled, count: int, members: int) -> Figures:
    made = []
    for number in range(count * members):
        streams = await asyncio.open_connection(*server.address)
        made.append(Member(f"group-{number % count}", streams))
    with Connection(server.address) as connection:
        # The coordinator's topic is there then.
        connection.call(10, 0, string("group-0"))
        await asyncio.sleep(2)
    used, began = cpu_seconds(server.pids), time.perf_counter()
    await asyncio.gather(*(each.join() for each in made))
    # A group waits once more when somebody joined meanwhile.
    waited = 2 * INITIAL_DELAY_MS / 1000
    figures = {
        "all joined, without the delays: s": max(0.0, time.perf_counter() - began - waited),
        "all joined, server CPU: s": cpu_seconds(server.pids) - used,
    }
    used = cpu_seconds(server.pids)
    for _ in range(3):
        await asyncio.gather(*(each.beat() for each in made))
    figures["three heartbeats of each, server CPU: s"] = cpu_seconds(server.pids) - used
    for each in made:
        each.streams[1].close()
    return figures


def brokers(size: int, options: argparse.Namespace) -> Figures:
    more = ["--brokers", str(size), "--processes", "--run-file"]
    server = Scaled()
    server.prepare()
    run_file = server.directory / "run.json"
    # A row of ports: those of all brokers follow the first one's.
    server.address = ("127.0.0.1", 20_000 + os.getpid() % 10_000)
    server.more = [*more, str(run_file)] if size > 1 else [*more[3:], str(run_file)]
    try:
        began = time.perf_counter()
        server._spawn()
        while not run_file.exists():
            time.sleep(0.02)
        figures = {"start: s": time.perf_counter() - began}
        pid = server.pids[0]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pids = [pid, *map(int, children)]
        time.sleep(1)
        figures["idle: %"] = idle_percent(pids, options.idle)
        figures["memory: MB"] = resident_mb(pids)
        assert server.process is not None
        began = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(120)
        figures["stop: s"] = time.perf_counter() - began
    finally:
        server.stop()
    return figures


KINDS: dict[str, Callable[[Any, argparse.Namespace], Figures]] = {
    "partitions": partitions,
    "connections": connections,
    "log": log,
    "groups": groups,
    "brokers": brokers,
}


def number_of(size: int | tuple[int, int]) -> int:
    return size[0] * size[1] if isinstance(size, tuple) else size


def growth(row: dict[float, float]) -> float:
    """Of the cost over that of the size, from the smallest to the largest."""
    sizes = sorted(row)
    least, most = row[sizes[0]], row[sizes[-1]]
    return (most / least) / (sizes[-1] / sizes[0]) if least > 0 and len(sizes) > 1 else 0.0


def is_worse(figure: str, row: dict[float, float], is_idle: bool) -> bool:
    """Where other programs run, time by the clock says nothing."""
    if not is_idle and "CPU" not in figure and "memory" not in figure:
        return False
    floor = FLOORS[figure.rpartition(" ")[2]]
    return growth(row) > WORSE and row[min(row)] > floor


def table(kind: str, rows: Rows) -> str:
    sizes = sorted(next(iter(rows.values())))
    lines = [
        f"| {kind} | {' | '.join(f'{int(each):,}' for each in sizes)} | growth |",
        f"|---|{'--:|' * (len(sizes) + 1)}",
    ]
    for figure, row in rows.items():
        costs = " | ".join(f"{row[each]:.3g}" for each in sizes)
        lines.append(f"| {figure} | {costs} | {growth(row):.2f} |")
    return "\n".join(lines)


# -- the picture

_WIDTH, _HEIGHT, _MARGIN = 250, 190, 44
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")


def picture(kinds: dict[str, Rows]) -> str:
    """One panel for each kind, both axes logarithmic: cost over that of the smallest size."""
    panels = [_panel(at, kind, rows) for at, (kind, rows) in enumerate(kinds.items())]
    width = len(panels) * (_WIDTH + _MARGIN) + _MARGIN
    height = _HEIGHT + 2 * _MARGIN + 14 * max(map(len, kinds.values()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{height}" fill="white"/>{"".join(panels)}</svg>\n'
    )


def _panel(at: int, kind: str, rows: Rows) -> str:
    from math import log10

    left, top = _MARGIN + at * (_WIDTH + _MARGIN), _MARGIN
    sizes = sorted(next(iter(rows.values())))
    span = max(log10(sizes[-1] / sizes[0]), 0.01)

    def point(size: float, cost: float) -> str:
        x = left + log10(size / sizes[0]) / span * _WIDTH
        y = top + _HEIGHT - min(max(log10(cost) / span, -0.1), 1.1) * _HEIGHT
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<text x="{left}" y="{top - 14}" font-weight="bold">{kind}: cost to that of '
        f"{int(sizes[0]):,}</text>",
        f'<rect x="{left}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" '
        'stroke="#ccc"/>',
        f'<polyline points="{point(sizes[0], 1)} {point(sizes[-1], sizes[-1] / sizes[0])}" '
        'stroke="#999" stroke-dasharray="4 3" fill="none"/>',
    ]
    for each in sizes:
        x = point(each, 1).partition(",")[0]
        parts.append(
            f'<text x="{x}" y="{top + _HEIGHT + 14}" text-anchor="middle">{int(each):,}</text>'
        )
    for number, (figure, row) in enumerate(rows.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        if row[sizes[0]] > 0:
            line = " ".join(point(each, max(row[each] / row[sizes[0]], 0.01)) for each in sizes)
            parts.append(
                f'<polyline points="{line}" stroke="{colour}" stroke-width="1.6" fill="none"/>'
            )
        parts.append(
            f'<text x="{left}" y="{top + _HEIGHT + 32 + 14 * number}" fill="{colour}">{figure} '
            f"({row[sizes[0]]:.3g} to {row[sizes[-1]]:.3g})</text>"
        )
    return "".join(parts)


# -- the run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def product(text: str) -> tuple[int, int]:
        count, _, members = text.partition("x")
        return int(count), int(members)

    parser.add_argument("--partitions", nargs="*", type=int, default=[300, 1000, 3000])
    parser.add_argument("--connections", nargs="*", type=int, default=[300, 1000, 3000])
    parser.add_argument("--log-mb", nargs="*", type=int, default=[100, 300], dest="log")
    parser.add_argument("--groups", nargs="*", type=product, default=[(10, 10), (10, 50)])
    parser.add_argument("--brokers", nargs="*", type=int, default=[1, 3])
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--idle", type=float, default=3.0, help="seconds of an idle measure")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds before it")
    parser.add_argument("--picture", help="an SVG file")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    with suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: dict[str, Rows] = {}
    for kind in options.only:
        rows: Rows = {}
        for size in sorted(getattr(options, kind), key=number_of):
            for figure, cost in KINDS[kind](size, options).items():
                rows.setdefault(figure, {})[number_of(size)] = cost
            print(f"{kind} {number_of(size):,}: done", file=sys.stderr, flush=True)
        if rows:
            found[kind] = rows
            print(table(kind, rows), end="\n\n", flush=True)
    if options.picture:
        Path(options.picture).write_text(picture(found))
    worse = [
        f"{kind}, {figure}: {growth(row):.2f} times linear"
        for kind, rows in found.items()
        for figure, row in rows.items()
        if is_worse(figure, row, is_machine_idle())
    ]
    if worse:
        sys.exit("worse than linear:\n" + "\n".join(worse))


if __name__ == "__main__":
    main()
