"""`python -m benchmarks.mirror`: how fast `replog mirror` moves bulk data, beside a raw bulk fetch
from the same source in the same run.

Two brokers of this checkout, each its own process, and the tool as a third; batches of `--records`
KiB, in `--topics` topics of one partition. The raw fetch is a loop of 1 MiB fetches on one blocking
connection that keeps nothing. The tool's time is from its first mirrored byte, as its metrics say,
to its last. Its resident memory is the largest seen. "At most" is what the machine's cores could
move if all three were at work all the time: their number by the processor time of a GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import fill, read_through
from benchmarks.meter import cpu_seconds, resident_mb
from benchmarks.requests import Connection
from benchmarks.servers import ROOT, Ours, end_when_slow, free_port

REPLOG = Path(sys.executable).parent / "replog"
FETCH_SECONDS = 3.0


def bytes_mirrored(port: int) -> int:
    """What the tool's metrics say; 0 while there are none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return 0
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in lines
        if line.startswith("replog_mirror_bytes_total{")
    )


def mirrored(source: Ours, target: Ours, total: int) -> tuple[float, ...]:
    """(MB/s, CPU seconds per GB of the tool, the source and the target, MB of memory)."""
    port = free_port()
    with tempfile.TemporaryDirectory() as state:
        tool = subprocess.Popen(
            [
                str(REPLOG),
                "mirror",
                *("--from", "{}:{}".format(*source.address)),
                *("--to", "{}:{}".format(*target.address)),
                *("--topics", "bulk-.*", "--state", state, "--metrics-port", str(port)),
            ],
            stderr=subprocess.DEVNULL,
        )

        def used_by() -> tuple[float, ...]:
            return tuple(cpu_seconds(pids) for pids in ([tool.pid], source.pids, target.pids))

        try:
            began, first, done, memory = 0.0, 0, 0, 0.0
            used: tuple[float, ...] = ()
            while done < total:
                assert tool.poll() is None, "the mirror ended"
                done = bytes_mirrored(port)
                memory = max(memory, resident_mb([tool.pid]))
                if done and not began:
                    began, first, used = time.perf_counter(), done, used_by()
                time.sleep(0.02)
            seconds = time.perf_counter() - began
            cpu = [after - before for before, after in zip(used, used_by(), strict=True)]
        finally:
            tool.terminate()
            tool.wait()
    moved = total - first
    return moved / seconds / 1e6, *(each / moved * 1e9 for each in cpu), memory


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row for each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=800)
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--records", type=int, default=900, help="of 1 KiB in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    print(
        "| raw fetch, MB/s | raw produce, MB/s | mirror, MB/s | to the raw fetch "
        "| CPU s per GB: tool | source | target | at most, MB/s | tool: MB |"
    )
    print("|--:" * 9 + "|")
    servers = []
    for _ in range(options.rounds):
        source, target = Ours("source", ROOT), Ours("target", ROOT)
        servers += [source, target]
        try:
            source.start()
            target.start()
            total = 0
            with Connection(source.address, 4 << 20) as connection:
                began = time.perf_counter()
                for number in range(options.topics):
                    connection.create(f"bulk-{number}")
                    share = options.megabytes * 1e6 / options.topics
                    total += fill(connection, f"bulk-{number}", share, options.records)
                produced = total / (time.perf_counter() - began) / 1e6
                began = time.perf_counter()
                size = read_through(connection, "bulk-0", FETCH_SECONDS)
                raw = size / (time.perf_counter() - began) / 1e6
            rate, *cpu, memory = mirrored(source, target, total)
        finally:
            source.stop()
            target.stop()
        print(
            f"| {raw:,.0f} | {produced:,.0f} | {rate:,.0f} | {rate / raw:.2f} | "
            + " | ".join(f"{each:.2f}" for each in cpu)
            + f" | {(os.cpu_count() or 1) / sum(cpu) * 1e3:,.0f} | {memory:.0f} |",
            flush=True,
        )
    end_when_slow(servers)


if __name__ == "__main__":
    main()
