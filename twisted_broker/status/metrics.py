"""The metrics of a broker, for Prometheus.

Owns the collector: it reads the broker's counters when it is scraped.

1. Names are Kafka's MBeans by the rules of jmx_exporter's sample for Kafka, so that dashboards made
   for Kafka work: `kafka.server:type=T,name=N,key=V` is `kafka_server_T_N{key="V"}` in lower case;
   a meter `NPerSec` is the counter `N_total`; a timer is a summary, in ms. Per topic with the label
   `topic`, in total without it.
2. A counter counts from the start of the process, and never falls.
3. The parts of a request's time. One request in 64 is measured for `requestqueuetimems` (queued
   behind others of its connection) and `localtimems` (processing). Each request that waits is
   measured for `remotetimems` (its wait). Both kinds are measured for `responsesendtimems` (from
   the answer until the socket has it, its turn among the others included). `throttletimems` is 0:
   there are no quotas yet.

Source: RL 1.13; Kafka's MBeans. Not here: the page (`http_resources`). Imports prometheus-client:
loaded with the first connection to the status port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from twisted_broker.interfaces import TurnNumbers
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.partition.topic_stats import TopicStats
from twisted_broker.status.view import BrokerView, fetcher_name

_TOPIC_COUNTERS = (
    ("messagesin", "messages_in", "Records appended by producers."),
    ("bytesin", "bytes_in", "Bytes appended by producers."),
    ("bytesout", "bytes_out", "Bytes read by consumers."),
    ("bytesrejected", "bytes_rejected", "Bytes refused as too large."),
    ("totalproducerequests", "produces", "Partitions named in produce requests."),
    ("totalfetchrequests", "fetches", "Partitions named in fetch requests."),
    ("failedproducerequests", "failed_produces", "Appends that failed unexpectedly."),
    ("failedfetchrequests", "failed_fetches", "Reads that failed unexpectedly."),
    ("replicationbytesin", "replication_bytes_in", "Bytes fetched from leaders."),
    ("replicationbytesout", "replication_bytes_out", "Bytes read by followers."),
    ("reassignmentbytesin", "reassignment_bytes_in", "Bytes fetched for a reassignment."),
    ("reassignmentbytesout", "reassignment_bytes_out", "Bytes read for a reassignment."),
)
_REQUEST_TIMES = {
    "requestqueuetimems": (
        "Time a request waited behind others of its connection; one in 64 is timed.",
        "timed",
        "queue_seconds",
    ),
    "localtimems": (
        "Time until a request is answered or delayed; one in 64 is timed.",
        "timed",
        "local_seconds",
    ),
    "remotetimems": ("Time that delayed requests waited in purgatory.", "waits", "remote_seconds"),
    "throttletimems": (
        "Time that quotas delayed answers; one request in 64 is timed.",
        "timed",
        "",
    ),
    "responsesendtimems": (
        "Time until the socket took the answer; of the requests that are timed.",
        "responses",
        "response_seconds",
    ),
}
_REPLICA = ["Replica"]


class BrokerCollector:
    """A custom collector of prometheus-client."""

    def __init__(self, view: BrokerView) -> None:
        self._view = view
        self._rates = FetchRates()

    def collect(self) -> Iterator[Metric]:
        replicas = self._view.replicas
        if replicas is not None:
            yield from _topics(replicas)
            yield from _partitions(replicas.partitions.values())
            yield from _isr_changes(replicas)
            yield from _purgatories(replicas)
            if replicas.fetchers is not None:
                yield from self._fetchers(replicas.fetchers)
        yield from _requests(self._view.served())
        numbers = self._view.parts.runtime.marks.numbers()
        if numbers is not None:
            yield from _turns(numbers)

    def _fetchers(self, manager: Any) -> Iterator[Metric]:
        now_ms = self._view.now().now_ms
        name, labels = "kafka_server_replicafetchermanager_", ["clientId"]
        yield _gauge(
            name + "maxlag",
            "Offsets that the slowest follower here is behind.",
            labels,
            [(_REPLICA, manager.max_lag)],
        )
        rate = self._rates.least(
            {key: fetcher.requests for key, fetcher in manager.fetchers.items()}, now_ms
        )
        yield _gauge(
            name + "minfetchrate",
            "Fetches per second of the slowest fetcher, since the scrape before.",
            labels,
            [(_REPLICA, rate)],
        )
        yield _gauge(
            name + "failedpartitionscount",
            "Partitions that are not fetched until their metadata changes.",
            labels,
            [(_REPLICA, len(manager.failed))],
        )
        yield from _fetcher_stats(manager)


class FetchRates:
    """Fetches per second between two looks that are a second or more apart."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], int] = {}
        self._at_ms = -1
        self._least = 0.0

    def least(self, requests: dict[tuple[int, int], int], now_ms: int) -> float:
        """The smallest, 0 without fetchers; a fetcher counts from its second look on."""
        elapsed_ms = now_ms - self._at_ms
        if self._at_ms >= 0 and elapsed_ms < 1000:
            return self._least
        rates = [
            (count - self._before[key]) * 1000 / elapsed_ms
            for key, count in requests.items()
            if key in self._before
        ]
        self._before, self._at_ms = dict(requests), now_ms
        self._least = min(rates, default=0.0)
        return self._least


def _gauge(
    name: str, doc: str, labels: list[str], rows: Iterable[tuple[list[str], float]]
) -> Metric:
    family = GaugeMetricFamily(name, doc, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _counter(
    name: str, doc: str, labels: list[str], rows: Iterable[tuple[list[str], float]]
) -> Metric:
    family = CounterMetricFamily(name, doc, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _topics(replicas: Any) -> Iterator[Metric]:
    total: TopicStats = replicas.stats.total()
    for name, counter, doc in _TOPIC_COUNTERS:
        rows: list[tuple[list[str], float]] = [([], getattr(total, counter))]
        rows += [
            ([topic], getattr(stats, counter))
            for topic, stats in sorted(replicas.stats.topics.items())
        ]
        yield _counter(f"kafka_server_brokertopicmetrics_{name}", doc, ["topic"], rows)


def _partitions(partitions: Iterable[Partition]) -> Iterator[Metric]:
    """Kafka's `ReplicaManager` gauges, in one walk."""
    count = leaders = offline = under_replicated = under_minimum = at_minimum = reassigning = 0
    for each in partitions:
        count += 1
        offline += each.offline
        if each.is_leader:
            leaders += 1
            in_sync, minimum = len(each.isr_state.isr), each.min_isr
            under_replicated += in_sync < len(each.replicas) - len(each.adding)
            under_minimum += in_sync < minimum
            at_minimum += in_sync == minimum
            reassigning += bool(each.adding or each.removing)
    for name, number, doc in (
        ("partitioncount", count, "Replicas held here."),
        ("leadercount", leaders, "Partitions led here."),
        (
            "underreplicatedpartitions",
            under_replicated,
            "Partitions led here with replicas out of sync.",
        ),
        (
            "underminisrpartitioncount",
            under_minimum,
            "Partitions led here with fewer in sync than the minimum.",
        ),
        (
            "atminisrpartitioncount",
            at_minimum,
            "Partitions led here with just the minimum in sync.",
        ),
        ("offlinereplicacount", offline, "Replicas whose log is offline."),
        ("reassigningpartitions", reassigning, "Partitions led here that are being reassigned."),
    ):
        yield GaugeMetricFamily(f"kafka_server_replicamanager_{name}", doc, number)


def _isr_changes(replicas: Any) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "kafka_server_replicamanager_isrshrinks", "ISRs that shrank.", replicas.isr_shrinks
    )
    yield CounterMetricFamily(
        "kafka_server_replicamanager_isrexpands", "ISRs that grew.", replicas.isr_expands
    )
    yield CounterMetricFamily(
        "kafka_server_replicamanager_failedisrupdates",
        "ISR changes that were refused.",
        replicas.failed_isr_updates,
    )


def _purgatories(replicas: Any) -> Iterator[Metric]:
    found = (
        replicas.produce_purgatory,
        replicas.fetch_purgatory,
        replicas.delete_records_purgatory,
    )
    name, labels = "kafka_server_delayedoperationpurgatory_", ["delayedOperation"]
    yield _gauge(
        name + "purgatorysize",
        "Entries in the waiting lists.",
        labels,
        [([each.name], each.size) for each in found],
    )
    yield _gauge(
        name + "numdelayedoperations",
        "Requests that wait.",
        labels,
        [([each.name], each.waiting) for each in found],
    )


def _fetcher_stats(manager: Any) -> Iterator[Metric]:
    rows = [
        (fetcher_name(*key), _address(fetcher.leader.endpoint), fetcher)
        for key, fetcher in manager.fetchers.items()
    ]
    labels = ["clientId", "broker"]
    yield _counter(
        "kafka_server_fetcherstats_requests",
        "Fetches sent.",
        labels,
        [([name, at], fetcher.requests) for name, at, fetcher in rows],
    )
    yield _counter(
        "kafka_server_fetcherstats_bytes",
        "Bytes fetched.",
        labels,
        [([name, at], fetcher.bytes_fetched) for name, at, fetcher in rows],
    )
    lags = [
        ([name, topic_partition.topic, str(topic_partition.partition)], state.lag)
        for name, _, fetcher in rows
        for topic_partition, state in fetcher.state.partitions.items()
        if state.lag is not None
    ]
    yield _gauge(
        "kafka_server_fetcherlagmetrics_consumerlag",
        "Offsets behind the leader.",
        ["clientId", "topic", "partition"],
        lags,
    )


def _address(endpoint: Any) -> str:
    return f"{endpoint.host}:{endpoint.port}"


def _requests(served: Iterable[Any]) -> Iterator[Metric]:
    """Of each API and version that was requested."""
    requests: dict[tuple[str, str], int] = {}
    errors: dict[tuple[str, str], int] = {}
    times: dict[str, dict[str, list[float]]] = {name: {} for name in _REQUEST_TIMES}
    for each in served:
        name = each.route.name
        requests[name, str(each.version)] = (
            requests.get((name, str(each.version)), 0) + each.requests
        )
        for code, count in each.errors.items():
            errors[name, code.name] = errors.get((name, code.name), 0) + count
        for kind, (_, count, seconds) in _REQUEST_TIMES.items():
            row = times[kind].setdefault(name, [0, 0.0])
            row[0] += getattr(each, count)
            row[1] += getattr(each, seconds) * 1000 if seconds else 0.0
    prefix = "kafka_network_requestmetrics_"
    yield _counter(
        prefix + "requests", "Requests by API and version.", ["request", "version"], _rows(requests)
    )
    yield _counter(
        prefix + "errors", "Requests refused as a whole.", ["request", "error"], _rows(errors)
    )
    for kind, table in times.items():
        yield _summary(prefix + kind, _REQUEST_TIMES[kind][0], table)


def _turns(numbers: TurnNumbers) -> Iterator[Metric]:
    """Of the reactor, so of all nodes of this process."""
    prefix = "replog_reactor_"
    yield CounterMetricFamily(prefix + "turns", "Turns of the reactor.", numbers.turns)
    yield CounterMetricFamily(
        prefix + "busy_seconds", "Time that all turns of the reactor took.", numbers.busy_seconds
    )
    yield GaugeMetricFamily(
        prefix + "longest_turn_seconds", "The longest turn of the reactor.", numbers.longest_seconds
    )
    buckets = [(str(bound), count) for bound, count in numbers.buckets]
    yield HistogramMetricFamily(
        prefix + "slow_turn_seconds",
        "Turns of the reactor longer than replog.reactor.slow.ms.",
        [*buckets, ("+Inf", numbers.slow)],
        numbers.slow_seconds,
    )


def _rows(table: dict[tuple[str, str], int]) -> list[tuple[list[str], float]]:
    return [(list(key), count) for key, count in sorted(table.items())]


def _summary(name: str, doc: str, table: dict[str, list[float]]) -> Metric:
    family = SummaryMetricFamily(name, doc, labels=["request"])
    for request, (count, milliseconds) in sorted(table.items()):
        family.add_metric([request], int(count), milliseconds)
    return family


def exposition(view: BrokerView) -> CollectorRegistry:
    """A registry of this broker's numbers alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(view))
    return registry


def text_of(registry: CollectorRegistry) -> bytes:
    """Prometheus' text format."""
    return bytes(generate_latest(registry))
