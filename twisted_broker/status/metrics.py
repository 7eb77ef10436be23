"""The metrics of a broker, for Prometheus. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the order of a scrape: it reads the broker's counters, in pieces of about a millisecond.

1. Names are Kafka's MBeans by the rules of the usual exporters (`metric_names.py`), so that
   dashboards made for Kafka work. A meter `NPerSec` is a counter; a timer is a summary, in ms. Per
   topic with the label `topic`, in total without it; a topic that nothing was done with has no
   counters of its own.
2. A counter counts from the start of the process, and never falls.
3. The parts of a request's time are of a sample (`api/request_times.py`); quantiles are of the last
   512 of it. Of `throttletimems` the sum is of all requests, and the quantiles are 0: the wait
   comes after the answer. One thread serves all: the idle share of request handlers and of network
   threads is the reactor's, since the scrape before.
4. The values of a label are bounded: APIs and errors by the program, topics, partitions and groups
   by what exists, the names of client software by `MOST_SOFTWARE`, what clients push by
   `telemetry/instances.py`.

Source: RL 1.13; Kafka's MBeans. Not here: partitions, groups, transactions, the cluster, the
process (`partition_metrics.py`, `group_metrics.py`, `share_metrics.py`,
`transaction_metrics.py`, `cluster_metrics.py`, `process_figures.py`), quotas
(`quota_metrics.py`), clients (`client_metrics.py`), HTTP (`metrics_resource.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from twisted_broker.api.request_times import PARTS
from twisted_broker.interfaces import TurnNumbers
from twisted_broker.replication.partition.topic_stats import TopicStats
from twisted_broker.status import transaction_metrics
from twisted_broker.status.client_metrics import client_metrics
from twisted_broker.status.cluster_metrics import (
    PartitionCounts,
    broker_state,
    controller,
    raft_channel,
    raft_leader,
    raft_observer,
)
from twisted_broker.status.group_metrics import groups
from twisted_broker.status.metric_names import Kind, MBean
from twisted_broker.status.metric_rates import Rates
from twisted_broker.status.metric_text import Exposition, Family, labels_text
from twisted_broker.status.partition_metrics import partitions
from twisted_broker.status.quota_metrics import client_quotas, replication_throttles
from twisted_broker.status.share_metrics import share_coordinator, share_partitions
from twisted_broker.status.view import BrokerView, fetcher_name, mover_name

_TOPIC_COUNTERS = (
    ("MessagesInPerSec", "messages_in", "Records appended by producers."),
    ("BytesInPerSec", "bytes_in", "Bytes appended by producers."),
    ("BytesOutPerSec", "bytes_out", "Bytes read by consumers."),
    ("BytesRejectedPerSec", "bytes_rejected", "Bytes refused as too large."),
    ("TotalProduceRequestsPerSec", "produces", "Partitions named in produce requests."),
    ("TotalFetchRequestsPerSec", "fetches", "Partitions named in fetch requests."),
    ("FailedProduceRequestsPerSec", "failed_produces", "Appends that failed unexpectedly."),
    ("FailedFetchRequestsPerSec", "failed_fetches", "Reads that failed unexpectedly."),
    ("ReplicationBytesInPerSec", "replication_bytes_in", "Bytes fetched from leaders."),
    ("ReplicationBytesOutPerSec", "replication_bytes_out", "Bytes read by followers."),
    ("ReassignmentBytesInPerSec", "reassignment_bytes_in", "Bytes fetched for a reassignment."),
    ("ReassignmentBytesOutPerSec", "reassignment_bytes_out", "Bytes read for a reassignment."),
)
_TIMES = {
    "RequestQueueTimeMs": ("request_queue", "Time a request waited behind others."),
    "LocalTimeMs": ("local", "Time until a request is answered or delayed."),
    "RemoteTimeMs": ("remote", "Time that a request waited in purgatory."),
    "ThrottleTimeMs": ("", "Time that clients wait for their quotas after the answer."),
    "ResponseQueueTimeMs": ("response_queue", "Time an answer waited for those before it."),
    "ResponseSendTimeMs": ("response_send", "Time until the socket took the answer."),
    "TotalTimeMs": ("total", "Time of the request, all parts together."),
}
# As jmx_exporter's sample writes Kafka's percentiles.
_QUANTILES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
_FOLLOWING = ("ReplicaFetcherManager", "Replica", fetcher_name, "follower")
_MOVING = ("ReplicaAlterLogDirsManager", "ReplicaAlterLogDirs", mover_name, "copy")
MOST_SOFTWARE = 20
_PER_PIECE = 100
_FETCH = "Fetch"


class BrokerCollector:
    """`process(out)` adds the operating system's figures of the process."""

    def __init__(
        self, view: BrokerView, process: Callable[[Exposition], None] = lambda out: None
    ) -> None:
        self._view, self._process = view, process
        self._rates = Rates()
        self._counts = PartitionCounts()

    def collect(self, out: Exposition) -> Iterator[None]:
        """One scrape: fills `out`, pausing after each piece."""
        parts = self._view.parts
        self._rates.begin(self._view.now().now_ms)
        yield from self._broker(out)
        if parts.controller is not None:
            yield from controller(out, parts.controller, self._counts, self._view.now().wall_ms)
            raft_leader(out, parts.controller, self._rates)
        elif parts.metadata is not None and parts.control_requests is None:
            raft_observer(out, parts.metadata, self._rates)
        if parts.metadata is not None and parts.control_requests is None:  # no quorum elsewhere
            raft_channel(out, parts.metadata)
        yield
        yield from _requests(out, list(self._view.bound_routes()), self._view.replicas)
        yield from _connections(out, parts.listening, self._rates)
        yield from client_quotas(out, parts, self._view.now().now_ms)
        numbers = parts.runtime.marks.numbers()
        if numbers is not None:
            self._turns(out, numbers)
        _directories(out, parts.log_manager, self._view.now().now_ms)
        self._process(out)

    def _broker(self, out: Exposition) -> Iterator[None]:
        parts, replicas = self._view.parts, self._view.replicas
        if parts.lifecycle is not None:
            broker_state(out, parts.lifecycle.state)
        if replicas is None:
            return
        yield from _topics(out, replicas.stats)
        yield from partitions(out, replicas, self._view.image)
        _replica_manager(out, replicas)
        if replicas.fetchers is not None:
            yield from _fetchers(out, replicas.fetchers, self._rates, *_FOLLOWING)
        yield from _fetchers(out, replicas.moves, self._rates, *_MOVING)
        replication_throttles(out, replicas, self._view.now().now_ms)
        if parts.groups is not None:
            yield from groups(out, parts.groups, replicas, self._rates)
        if parts.transactions is not None:
            transaction_metrics.coordinator(
                out, parts.transactions, 1000 * parts.runtime.clock.seconds()
            )
        if parts.share_partitions is not None:
            yield from share_partitions(out, parts.share_partitions, replicas)
        if parts.share_state is not None:
            share_coordinator(out, parts.share_state, self._rates)
        if parts.telemetry is not None:
            yield from client_metrics(out, parts.telemetry, self._view.now().now_ms)
        if parts.add_partitions_to_txn is not None:
            transaction_metrics.verification(out, parts.add_partitions_to_txn)
        image = self._view.image
        if image is not None:
            _brokers(out, parts.node_id, image)

    def _turns(self, out: Exposition, numbers: TurnNumbers) -> None:
        reactor_turns(out, numbers)
        busy = self._rates.of("busy", numbers.busy_seconds)
        if busy is None:
            return
        row = [((), max(0.0, 1.0 - busy))]
        for bean in (
            MBean(
                "server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent", Kind.IDLE_METER
            ),
            MBean("network", "SocketServer", "NetworkProcessorAvgIdlePercent", Kind.IDLE_GAUGE),
        ):
            out.bean(bean, _IDLE, row)
        parts = self._view.parts
        is_quorums = parts.metadata is not None and parts.control_requests is None
        if parts.controller is not None or is_quorums:
            poll_idle = MBean("server", "raft-metrics", "poll-idle-ratio-avg", Kind.ATTRIBUTE)
            out.bean(poll_idle, _IDLE, row)


_IDLE = "Share of its time that the reactor waited for something to do."


def _gauge(out: Exposition, kind: str, name: str, doc: str, number: float) -> None:
    out.bean(MBean("server", kind, name, Kind.GAUGE), doc, [((), number)])


def _meter(out: Exposition, kind: str, name: str, doc: str, number: float) -> None:
    out.bean(MBean("server", kind, name, Kind.METER), doc, [((), number)])


def _topics(out: Exposition, stats: Any) -> Iterator[None]:
    beans = []
    total: TopicStats = stats.total()
    for name, counter, doc in _TOPIC_COUNTERS:
        bean = MBean("server", "BrokerTopicMetrics", name, Kind.METER, ("topic",))
        out.bean(bean, doc, [((), getattr(total, counter))], keys=())
        beans.append((counter, [family for family, _, _ in out.of(bean, doc)]))
    for number, topic in enumerate(sorted(stats.topics)):
        found = stats.topics.get(topic)
        if found is None:
            continue  # deleted while others were served
        numbers = [getattr(found, counter) for counter, _ in beans]
        if any(numbers):
            # A topic's name needs no escapes.
            for value, (_, families) in zip(numbers, beans, strict=True):
                for family in families:
                    family.lines.append(f'{family.name}{{topic="{topic}"}} {value}\n')
        if number % _PER_PIECE == _PER_PIECE - 1:
            yield


def _replica_manager(out: Exposition, replicas: Any) -> None:
    kind = "ReplicaManager"
    effects = replicas.effects
    _meter(out, kind, "IsrShrinksPerSec", "ISRs that shrank.", effects.isr_shrinks)
    _meter(out, kind, "IsrExpandsPerSec", "ISRs that grew.", effects.isr_expands)
    _meter(
        out,
        kind,
        "FailedIsrUpdatesPerSec",
        "ISR changes refused.",
        effects.failed_isr_updates,
    )
    found = (
        replicas.produce_purgatory,
        replicas.fetch_purgatory,
        replicas.delete_records_purgatory,
        replicas.share_fetch_purgatory,
    )
    for name, doc, counts in (
        ("PurgatorySize", "Entries in the waiting lists.", [each.size for each in found]),
        ("NumDelayedOperations", "Requests that wait.", [each.waiting for each in found]),
    ):
        bean = MBean("server", "DelayedOperationPurgatory", name, Kind.GAUGE, ("delayedOperation",))
        out.bean(bean, doc, [((each.name,), n) for each, n in zip(found, counts, strict=True)])
    kind, sessions = "FetchSessionCache", replicas.sessions
    _gauge(out, kind, "NumIncrementalFetchSessions", "Fetch sessions.", len(sessions))
    _gauge(
        out,
        kind,
        "NumIncrementalFetchPartitionsCached",
        "Partitions in fetch sessions.",
        sessions.partitions,
    )
    _meter(
        out,
        kind,
        "IncrementalFetchSessionEvictionsPerSec",
        "Fetch sessions that made room for others.",
        sessions.evictions,
    )


def _fetchers(
    out: Exposition,
    manager: Any,
    rates: Rates,
    kind: str,
    client_id: str,
    name_of: Callable[[int, int], str],
    slowest: str,
) -> Iterator[None]:
    least = rates.least(
        {(kind, *key): fetcher.requests for key, fetcher in manager.fetchers.items()}
    )
    for name, doc, number in (
        ("MaxLag", f"Offsets that the slowest {slowest} here is behind.", manager.max_lag),
        (
            "MinFetchRate",
            "Fetches per second of the slowest fetcher, since the scrape before.",
            least,
        ),
        (
            "FailedPartitionsCount",
            "Partitions that are not fetched until their metadata changes.",
            len(manager.failed),
        ),
    ):
        bean = MBean("server", kind, name, Kind.GAUGE, ("clientId",))
        out.bean(bean, doc, [((client_id,), number)])
    rows = [
        (name_of(*key), _address(fetcher.leader.endpoint), fetcher)
        for key, fetcher in manager.fetchers.items()
    ]
    for name, doc, counter in (
        ("RequestsPerSec", "Fetches sent.", "requests"),
        ("BytesPerSec", "Bytes fetched.", "bytes_fetched"),
    ):
        bean = MBean("server", "FetcherStats", name, Kind.METER, ("clientId", "broker"))
        out.bean(bean, doc, [((name, at), getattr(fetcher, counter)) for name, at, fetcher in rows])
    bean = MBean(
        "server", "FetcherLagMetrics", "ConsumerLag", Kind.GAUGE, ("clientId", "topic", "partition")
    )
    for name, _, fetcher in rows:
        lags = [
            ((name, *topic_partition), state.lag)
            for topic_partition, state in fetcher.state.partitions.items()
            if state.lag is not None
        ]
        for start in range(0, len(lags), _PER_PIECE):
            out.bean(bean, "Offsets behind the leader.", lags[start : start + _PER_PIECE])
            yield


def _address(endpoint: Any) -> str:
    return f"{endpoint.host}:{endpoint.port}"


def _requests(out: Exposition, bound_routes: list[Any], replicas: Any) -> Iterator[None]:
    """Of each API and version that was requested; of Fetch also by who fetches."""
    requests: Counter[tuple[str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    # An API's versions share their times, its listeners do not.
    times: dict[str, dict[int, Any]] = {}
    of_nodes = 0 if replicas is None else replicas.stats.follower_fetches
    for each in bound_routes:
        name, found = each.route.name, each.times
        requests[name, str(each.version)] += each.requests
        of_nodes += each.requests if name == _FETCH and each.on_controller else 0
        for code, count in each.errors.items():
            errors[name, code.name] += count
        for who, of_who in (
            ("", found.all),
            ("Follower", found.followers),
            ("Consumer", found.consumers),
        ):
            if of_who is not None:
                times.setdefault(name + who, {})[id(of_who)] = of_who
    _count(out, "RequestsPerSec", "Requests by API and version.", "version", requests)
    _count(out, "ErrorsPerSec", "Requests refused as a whole.", "error", errors)
    fetches = sum(each.requests for each in bound_routes if each.route.name == _FETCH)
    bean = MBean("network", "RequestMetrics", "RequestsPerSec", Kind.METER, ("request", "version"))
    by = [(("FetchFollower",), of_nodes), (("FetchConsumer",), max(0, fetches - of_nodes))]
    out.bean(bean, "", by if fetches else [], keys=("request",))
    yield
    for bean_name, (part, doc) in _TIMES.items():
        bean = MBean("network", "RequestMetrics", bean_name, Kind.HISTOGRAM, ("request",))
        (family,) = [family for family, _, _ in out.of(bean, f"{doc} In ms; of a sample.")]
        for name, found in sorted(times.items()):
            _summary(family, "request", name, part, list(found.values()))
        yield
    decided = {id(each.times.all): each.times.all for each in bound_routes if each.on_controller}
    for bean_name, part, doc in (
        ("EventQueueTimeMs", "request_queue", "Time that requests to the controller waited."),
        ("EventQueueProcessingTimeMs", "local", "Time the controller took for a request."),
    ):
        bean = MBean("controller", "ControllerEventManager", bean_name, Kind.HISTOGRAM)
        (family,) = [family for family, _, _ in out.of(bean, f"{doc} In ms; of a sample.")]
        if decided:
            _summary(family, "", "", part, list(decided.values()))
    yield


def _count(out: Exposition, name: str, doc: str, key: str, table: Counter[tuple[str, str]]) -> None:
    bean = MBean("network", "RequestMetrics", name, Kind.METER, ("request", key))
    out.bean(bean, doc, sorted(table.items()))


def _summary(family: Family, label: str, value: str, part: str, found: list[Any]) -> None:
    """`part` "": the waits for quotas."""
    own = [(label, value)] if label else []
    at = PARTS.index(part) if part else -1
    kept = sorted(ms for each in found for ms in each.kept[at]) if part else [0.0]
    for quantile in _QUANTILES if kept else ():
        pairs = [*own, ("quantile", quantile)]
        place = min(int(float(quantile) * len(kept)), len(kept) - 1)
        family.add(_pairs(pairs), round(kept[place], 4))
    family.add(_pairs(own), sum(each.count for each in found), "_count")
    total = sum(each.sums[at] if part else each.throttled_ms for each in found)
    family.add(_pairs(own), total, "_sum")


def _pairs(pairs: list[tuple[str, str]]) -> str:
    return labels_text([name for name, _ in pairs], [value for _, value in pairs])


def _connections(out: Exposition, listening: Iterable[Any], rates: Rates) -> Iterator[None]:
    """By listener. The processor is "0": there is one thread."""
    software: Counter[tuple[str, str, str]] = Counter()
    queued = unsent = 0
    rows = []
    for factory in listening:
        name = factory.dispatch.listener.name
        rows.append((name, factory))
        for number, each in enumerate(list(factory.connections)):
            queued += each.is_request_queued
            unsent += each.answers_queued
            software[(*each.client_software, name)] += 1
            if number % _PER_PIECE == _PER_PIECE - 1:
                yield
    kind, keys = "socket-server-metrics", ("listener", "networkProcessor")
    for attribute, doc, numbers in (
        ("connection-count", "Connections.", [len(each.connections) for _, each in rows]),
        (
            "connection-creation-rate",
            "Connections accepted a second, since the scrape before.",
            [rates.of(("created", name), each.created) or 0.0 for name, each in rows],
        ),
        (
            "connection-close-rate",
            "Connections that ended a second, since the scrape before.",
            [
                rates.of(("closed", name), each.created - len(each.connections)) or 0.0
                for name, each in rows
            ],
        ),
    ):
        bean = MBean("server", kind, attribute, Kind.ATTRIBUTE, keys)
        found = zip(rows, numbers, strict=True)
        out.bean(bean, doc, [((name, 0), number) for (name, _), number in found])
    for attribute, doc, numbers in (
        ("connection-creation-total", "Accepted.", [each.created for _, each in rows]),
        (
            "connection-close-total",
            "Ended.",
            [each.created - len(each.connections) for _, each in rows],
        ),
        (
            "failed-authentication-total",
            "Refused by TLS or SASL.",
            [
                each.failed_handshakes + (0 if each.sasl is None else each.sasl.failures)
                for _, each in rows
            ],
        ),
    ):
        bean = MBean("server", kind, attribute, Kind.TOTAL, keys)
        found = zip(rows, numbers, strict=True)
        out.bean(bean, f"Connections: {doc}", [((name, 0), number) for (name, _), number in found])
    bean = MBean(
        "server",
        kind,
        "connections",
        Kind.ATTRIBUTE,
        ("clientSoftwareName", "clientSoftwareVersion", "listener", "networkProcessor"),
    )
    out.bean(
        bean, "Connections by client software.", [((*key, 0), n) for key, n in _most(software)]
    )
    kind = "RequestChannel"
    for name, doc, number in (
        ("RequestQueueSize", "Requests that wait for those before them.", queued),
        ("ResponseQueueSize", "Answers that wait for those before them, or for a client.", unsent),
    ):
        out.bean(MBean("network", kind, name, Kind.GAUGE), doc, [((), number)])


def _most(software: Counter[tuple[str, str, str]]) -> list[tuple[tuple[str, str, str], int]]:
    """The names are the clients' own: the commonest, and all others as one."""
    found = software.most_common(MOST_SOFTWARE)
    others: Counter[str] = Counter()
    for (_, _, listener), count in software.most_common()[MOST_SOFTWARE:]:
        others[listener] += count
    return found + [(("other", "", name), count) for name, count in others.items()]


def _cleaner(out: Exposition, manager: Any, now_ms: int) -> None:
    """The log cleaner."""
    cleaner = manager.cleaner
    counts = dict.fromkeys(manager.directories.by_path, 0)
    for partition in cleaner.uncleanable:
        log = manager.get(partition)
        if log is not None:
            counts[manager.directories.of(log).path] += 1
    kind = "LogCleanerManager"
    bean = MBean("log", kind, "uncleanable-partitions-count", Kind.GAUGE, ("logDirectory",))
    rows = [((path,), count) for path, count in counts.items()]
    out.bean(bean, "Compacted logs that cannot be cleaned: the log says why.", rows)
    for name, doc, number in (
        ("max-dirty-percent", "Dirty share of the dirtiest log.", int(100 * cleaner.most_dirty)),
        (
            "time-since-last-run-ms",
            "Time since it was looked for a log to clean.",
            now_ms - cleaner.looked_ms,
        ),
    ):
        out.bean(MBean("log", kind, name, Kind.GAUGE), doc, [((), number)])


def _directories(out: Exposition, manager: Any, now_ms: int) -> None:
    """The log directories, and their disks as they were looked at last."""
    if manager is None:
        return
    offline = manager.directories.offline()
    bean = MBean("log", "LogManager", "OfflineLogDirectoryCount", Kind.GAUGE)
    out.bean(bean, "Log directories that failed.", [((), len(offline))])
    cordoned = manager.config.cordoned_directories
    bean = MBean("log", "LogManager", "CordonedLogDirectoryCount", Kind.GAUGE)
    out.bean(bean, "Log directories that take no new replica.", [((), len(cordoned))])
    bean = MBean("log", "LogManager", "LogDirectoryCordoned", Kind.GAUGE, ("logDirectory",))
    rows = [((path,), path in cordoned) for path in manager.directories.by_path]
    out.bean(bean, "1 where a log directory takes no new replica.", rows)
    bean = MBean("log", "LogManager", "LogDirectoryOffline", Kind.GAUGE, ("logDirectory",))
    rows = [((path,), path in offline) for path in manager.directories.by_path]
    out.bean(bean, "1: the log directory failed.", rows)
    _cleaner(out, manager, now_ms)
    space = sorted(manager.free_space.found.items())
    for name, doc, at in (
        ("total", "Size of the disk that a log directory is on.", 0),
        ("free", "Bytes that are free on the disk that a log directory is on.", 1),
    ):
        out.add(
            f"replog_log_directory_{name}_bytes",
            "gauge",
            doc,
            ("directory",),
            [((path,), found[at]) for path, found in space],
        )


def _brokers(out: Exposition, node_id: int, image: Any) -> None:
    """As kafka_exporter, but each broker of itself."""
    own = image.brokers.get(node_id)
    address = next((_address(each) for each in own.listeners.values()), "") if own else ""
    out.add(
        "kafka_broker_info",
        "gauge",
        "1, with the address of this broker.",
        ("id", "address"),
        [((node_id, address), 1)],
    )
    out.add(
        "kafka_brokers",
        "gauge",
        "Brokers that are not fenced.",
        (),
        [((), len(image.live_brokers()))],
    )


def reactor_turns(out: Exposition, numbers: TurnNumbers) -> None:
    """Of the reactor, so of all nodes of this process."""
    prefix = "replog_reactor_"
    for name, kind, doc, number in (
        ("turns_total", "counter", "Turns of the reactor.", numbers.turns),
        (
            "busy_seconds_total",
            "counter",
            "Time that all turns of the reactor took.",
            numbers.busy_seconds,
        ),
        (
            "longest_turn_seconds",
            "gauge",
            "The longest turn of the reactor.",
            numbers.longest_seconds,
        ),
    ):
        out.add(prefix + name, kind, doc, (), [((), number)])
    family = out.family(
        prefix + "slow_turn_seconds",
        "histogram",
        "Turns of the reactor longer than replog.reactor.slow.ms.",
    )
    for bound, count in (*numbers.buckets, ("+Inf", numbers.slow)):
        family.add(f'{{le="{bound}"}}', count, "_bucket")
    family.add("", numbers.slow, "_count")
    family.add("", numbers.slow_seconds, "_sum")
