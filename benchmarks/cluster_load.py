"""The load on a cluster of three brokers: one function per measure, each returns figures by name.
See `load.py` for what its figures mean.

Everything is written with acks=all to three replicas; a GB counts once, however many replicas hold
it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.cluster_topic import IsrWatch, Topic, is_whole, patiently, replicated_topic
from benchmarks.clusters import BROKERS, CONTROLLER, Cluster
from benchmarks.load import (
    BULK_BYTES,
    IN_FLIGHT,
    RATE_SECONDS,
    Figures,
    closed_loop,
    percentile_ms,
    rates,
)
from benchmarks.meter import Meter, resident_mb
from benchmarks.requests import Connection, batch, produce, produce_error_at

REPLICAS = len(BROKERS)
MANY_PARTITIONS, IDLE_SECONDS, SETTLE_SECONDS = 1000, 20.0, 10.0
WARM_REQUESTS, WARM_BYTES = 30_000, 200e6
_EVERYWHERE = -1


class ClusterTarget:
    """A cluster under load. `scale` shortens every measure."""

    def __init__(self, cluster: Cluster, scale: float = 1.0) -> None:
        self.cluster, self.scale = cluster, scale
        self.other_cores: list[float] = []

    @contextmanager
    def topic(self, partitions: int = 1) -> Iterator[Topic]:
        with replicated_topic(lambda: self.cluster.address, partitions, REPLICAS) as topic:
            yield topic

    @contextmanager
    def meter(self) -> Iterator[Meter]:
        with Meter(self.cluster.pids) as meter:
            yield meter
        self.other_cores.append(meter.other_cores)


def fill(topic: Topic, total_bytes: float) -> int:
    """Batches of about 0.94 MB to all partitions in turn, five in flight to each leader; the
    bytes sent.
    """
    records = batch(900, 1024)
    requests = [
        produce(topic.name, records, _EVERYWHERE, number) for number in range(len(topic.leaders))
    ]
    connections = [Connection(leader) for leader in topic.leaders]
    at = produce_error_at(topic.name) - 4
    count = max(1, int(total_bytes / len(records) / len(connections)))
    for number in range(count + IN_FLIGHT):
        for connection, request in zip(connections, requests, strict=True):
            if number >= IN_FLIGHT and bytes(connection.receive()[at : at + 2]) != b"\0\0":
                raise RuntimeError("Produce failed under load")
            if number < count:
                connection.socket.sendall(request)
    for connection in connections:
        connection.socket.close()
    return count * len(records) * len(connections)


def bulk(target: ClusterTarget) -> Figures:
    """Batches of 0.94 MB to three partitions, one led by each broker, as fast as it goes;
    whether a follower falls out of sync.
    """
    with target.topic(REPLICAS) as topic:
        with IsrWatch(target.cluster.address, topic.name) as watch, target.meter() as meter:
            size = fill(topic, BULK_BYTES * target.scale)
        return {
            "bulk: MB/s": size / meter.seconds / 1e6,
            "bulk: server CPU s per replicated GB": meter.server_cpu_s / size * 1e9,
            "bulk: fewest replicas in sync": watch.least,
        }


def produce_rates(target: ClusterTarget) -> Figures:
    """One record of 100 B in a request, to one partition."""
    with target.topic() as topic:
        request, error_at = (
            produce(topic.name, batch(1, 100), _EVERYWHERE),
            produce_error_at(topic.name),
        )
        return rates(topic.leaders[0], target.meter, target.scale, "produce", request, error_at)


def leaving(target: ClusterTarget) -> Figures:
    """SIGTERM to a leader: until another one is named and takes a record, and until the process
    is gone.
    """
    return _lose(target, signal.SIGTERM, "SIGTERM")


def dying(target: ClusterTarget) -> Figures:
    """kill -9 of a leader: its session must end first."""
    return _lose(target, signal.SIGKILL, "kill -9")


def _lose(target: ClusterTarget, number: signal.Signals, name: str) -> Figures:
    """The broker is started again, and everybody in sync, before this ends."""
    cluster = target.cluster
    if not cluster.can_lose_one:
        return {}
    with target.topic() as topic:
        victim = next(
            node for node, address in cluster.addresses.items() if address == topic.leaders[0]
        )
        with Connection(
            next(address for node, address in cluster.addresses.items() if node != victim)
        ) as other:
            began = time.perf_counter()
            wait = cluster.signal(victim, number)
            until_led = patiently(
                lambda: _takes_records(other, topic.name, victim), f"a leader after {name}"
            )
            wait()
            until_gone = time.perf_counter() - began
            cluster.start_node(victim)
            patiently(
                lambda: is_whole(other, topic.name, 1, REPLICAS), f"all in sync after {name}", 0.05
            )
    figures = {f"{name} to the new leader: s": until_led}
    return figures | (
        {"SIGTERM to the end of the process: s": until_gone} if number == signal.SIGTERM else {}
    )


def _takes_records(other: Connection, topic: str, victim: int) -> bool:
    brokers, partitions = other.describe(topic)
    leader = (
        partitions[0][0] if partitions else -1
    )  # this broker may not have heard of the topic yet
    if leader in (victim, -1) or leader not in brokers:
        return False
    with Connection(brokers[leader]) as connection:
        connection.socket.sendall(produce(topic, batch(1, 100), 1))
        at = produce_error_at(topic) - 4
        return bytes(connection.receive()[at : at + 2]) == b"\0\0"


def many_partitions(target: ClusterTarget) -> Figures:
    """A topic of 1,000 partitions with three replicas each: what it costs when nobody asks, and
    acks=all on one of them.
    """
    count = max(3, int(MANY_PARTITIONS * min(1.0, target.scale * 2)))
    label = f"{count:,} partitions x {REPLICAS}"
    began = time.perf_counter()
    with target.topic(count) as topic:
        figures: Figures = {f"{label}: s to create": time.perf_counter() - began}
        time.sleep(
            SETTLE_SECONDS * min(1.0, target.scale)
        )  # idle is what is measured: nothing to wait for
        with target.meter() as meter:
            time.sleep(IDLE_SECONDS * target.scale)
        figures[f"{label}, idle: % of a core"] = meter.server_cpu_s / meter.seconds * 100
        figures[f"{label}: memory MB"] = resident_mb(target.cluster.pids)
        request, error_at = (
            produce(topic.name, batch(1, 100), _EVERYWHERE),
            produce_error_at(topic.name),
        )
        latencies = closed_loop(topic.leaders[0], request, 1, RATE_SECONDS * target.scale, error_at)
        figures[f"{label}, acks=all: p50 ms"] = percentile_ms(latencies, 0.5)
        figures[f"{label}, acks=all: p99 ms"] = percentile_ms(latencies, 0.99)
    return figures


MEASURES: dict[str, Callable[[ClusterTarget], Figures]] = {
    "bulk": bulk,
    "rates": produce_rates,
    "partitions": many_partitions,
    "leaving": leaving,
    "dying": dying,
}


def warm_up(target: ClusterTarget) -> None:
    """So that a just-in-time compiler has seen the paths."""
    with target.topic(REPLICAS) as topic:
        request, error_at = (
            produce(topic.name, batch(1, 100), _EVERYWHERE),
            produce_error_at(topic.name),
        )
        closed_loop(topic.leaders[0], request, 10, 60, error_at, WARM_REQUESTS * target.scale)
        fill(topic, WARM_BYTES * target.scale)


def processes(cluster: Cluster) -> str:
    """Who runs where, for a report."""
    return ", ".join(
        f"{'controller' if node == CONTROLLER else f'broker {node}'}: {process.pid}"
        for node, process in cluster.processes.items()
    )
