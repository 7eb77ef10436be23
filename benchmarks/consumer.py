"""`python -m benchmarks.consumer`: one fetcher of `twisted_broker.consumer`, beside a raw bulk
fetch from the same broker in the same run.

A broker of this checkout (or `--server kafka`), its own process, and the consumer as another. The
raw fetch is a loop of 1 MiB fetches on one blocking connection that keeps nothing, of one
partition, again and again. The consumer's fetcher brings chunks of all `--partitions` into a queue,
from which they are taken and dropped: no record is decoded. Its time is from the first chunk to the
last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.load import fill, read_through
from benchmarks.meter import cpu_seconds
from benchmarks.requests import Connection
from benchmarks.servers import end_when_slow, program

TOPIC = "bulk"
FETCH_SECONDS = 3.0


def consume(address: str, partitions: int, total: int, check_crcs: bool) -> dict[str, float]:
    """Bytes a second and CPU seconds per GB of this process, until `total` bytes came."""
    from twisted.internet import reactor
    from twisted.internet.defer import ensureDeferred

    from twisted_broker.consumer.cluster_client import ClusterClient
    from twisted_broker.consumer.consumer_config import ConsumerConfig
    from twisted_broker.consumer.consumer_fetcher_manager import ConsumerFetcherManager
    from twisted_broker.consumer.partition_topic_info import ChunkQueue, PartitionTopicInfo
    from twisted_broker.consumer.reactor_runtime import reactor_runtime
    from twisted_broker.interfaces import TopicPartition

    loop: Any = reactor
    config = ConsumerConfig({"bootstrap.servers": address, "check.crcs": check_crcs})
    client = ClusterClient(reactor_runtime(), config)
    manager = ConsumerFetcherManager(client, config, "bench")
    queue = ChunkQueue(config.integer("queued.max.message.chunks"), manager.resume)
    found: dict[str, float] = {}

    async def read() -> None:
        size = first = 0
        began = used = 0.0
        while size < total:
            await queue.wait()
            while (chunk := queue.poll()) is not None:
                if chunk.error is not None:
                    raise chunk.error
                size += len(chunk.records)
                del chunk  # else its answer's buffer is not free for the next one
                if not began:
                    began, used, first = time.perf_counter(), time.process_time(), size
        moved = size - first
        found["rate"] = moved / (time.perf_counter() - began)
        found["cpu"] = (time.process_time() - used) / moved * 1e9

    names = [TopicPartition(TOPIC, number) for number in range(partitions)]
    manager.consume([PartitionTopicInfo(name, queue, 0) for name in names])
    failures: list[Any] = []
    done = ensureDeferred(read())
    done.addErrback(failures.append)
    done.addBoth(lambda _: loop.stop())
    loop.run()
    manager.shutdown()
    client.close()
    if failures:
        failures[0].raiseException()
    return found


def consumed(address: tuple[str, int], *arguments: object) -> dict[str, float]:
    """What `consume` gives, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.consumer", "--consume"]
    made = subprocess.run(
        [*command, json.dumps(["{}:{}".format(*address), *arguments])],
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(made.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints two rows for each round: with and without CRCs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="ours", help="ours, or kafka")
    parser.add_argument("--megabytes", type=float, default=800)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--records", type=int, default=900, help="of 1 KiB in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--consume", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.consume:
        print(json.dumps(consume(*json.loads(options.consume))))
        return
    print(
        "| raw fetch, MB/s | broker: CPU s per GB | check.crcs | consumer, MB/s | to the raw fetch "
        "| CPU s per GB | broker: CPU s per GB |"
    )
    print("|--:|--:|:--|--:|--:|--:|--:|")
    servers = []
    for _ in range(options.rounds):
        server = program(options.server)
        servers.append(server)
        try:
            server.start()
            total = 0
            with Connection(server.address, 4 << 20) as connection:
                connection.create(TOPIC, options.partitions)
                share = options.megabytes * 1e6 / options.partitions
                for partition in range(options.partitions):
                    total += fill(connection, TOPIC, share, options.records, partition)
                began, used = time.perf_counter(), cpu_seconds(server.pids)
                size = read_through(connection, TOPIC, FETCH_SECONDS)
                raw = size / (time.perf_counter() - began)
                raw_cpu = (cpu_seconds(server.pids) - used) / size * 1e9
            for check_crcs in (True, False):
                used = cpu_seconds(server.pids)
                found = consumed(server.address, options.partitions, total, check_crcs)
                cpu = (cpu_seconds(server.pids) - used) / total * 1e9
                print(
                    f"| {raw / 1e6:,.0f} | {raw_cpu:.2f} | {str(check_crcs).lower()} "
                    f"| {found['rate'] / 1e6:,.0f} | {found['rate'] / raw:.2f} "
                    f"| {found['cpu']:.2f} | {cpu:.2f} |",
                    flush=True,
                )
        finally:
            server.stop()
    end_when_slow(servers)


if __name__ == "__main__":
    main()
