"""The numbers that need more than one broker: replicas out of sync, followers behind, fetchers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.replication.fixtures import LOCAL, TP, Fixture, at, batch, consumer, registration
from twisted_broker.image.entries import Endpoint
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.replication.collaborators import IReplicas
from twisted_broker.replication.fetcher.fetcher_manager import ReplicaFetcherManager
from twisted_broker.replication.fetcher.fetcher_state import InitialFetchState
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.security.quota.quotas import Quotas
from twisted_broker.status import transaction_metrics
from twisted_broker.status.metric_rates import Rates
from twisted_broker.status.metric_text import Exposition
from twisted_broker.status.metrics import BrokerCollector
from twisted_broker.status.view import BrokerView


def parts_of(fixture: Fixture) -> Any:
    return SimpleNamespace(
        replica_manager=fixture.replicas,
        runtime=fixture.runtime,
        metadata=Observer(fixture),
        node_id=1,
        cluster_id="c",
        controller=None,
        lifecycle=None,
        control_requests=None,
        groups=None,
        transactions=None,
        telemetry=None,
        share_partitions=None,
        share_state=None,
        add_partitions_to_txn=None,
        log_manager=None,
        listening=(),
        quotas=Quotas(),
        controller_quotas=Quotas(),
    )


class Observer:
    """Of a metadata log that has stood still."""

    leader_id, leader_epoch, traffic = 9, 4, (1, 1, 1, 1)

    def __init__(self, fixture: Fixture) -> None:
        self.image = fixture.image


def numbers(fixture: Fixture) -> dict[str, float]:
    parts = parts_of(fixture)
    out = Exposition()
    for _ in BrokerCollector(BrokerView(lambda: parts)).collect(out):
        pass
    lines = b"".join(out.text()).decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_partitions_are_counted_by_their_state() -> None:
    """RL 1.13: Kafka's gauges: a replica being added is not missed, one that is assigned is; the
    minimum; reassignments; offline ones.
    """
    fixture = Fixture()
    states = {
        0: registration(LOCAL, (1, 2, 3), (1, 2, 3)),
        1: registration(LOCAL, (1, 2, 3), (1, 2)),
        2: registration(LOCAL, (1, 2, 3), (1,)),
        3: registration(LOCAL, (1, 2, 3), (1, 2))._replace(adding=(3,)),
        4: registration(2, (1, 2)),
        5: registration(LOCAL, (1,)),
    }
    fixture.topic(states=states, overrides={"min.insync.replicas": "2"})
    fixture.partition(TopicPartition("t", 5)).fail("the disk is gone")
    found = numbers(fixture)
    gauges = (
        "partitioncount",
        "leadercount",
        "underreplicatedpartitions",
        "underminisrpartitioncount",
        "atminisrpartitioncount",
    )
    assert [found[f"kafka_server_replicamanager_{name}"] for name in gauges] == [6, 4, 2, 1, 2]
    assert [
        found[f"kafka_server_replicamanager_{name}"]
        for name in ("reassigningpartitions", "offlinereplicacount")
    ] == [1, 1]


def test_late_transactions_are_counted_where_they_are_led() -> None:
    """Kafka's PartitionsWithLateTransactionsCount: transaction.max.timeout.ms and five minutes
    after the newest record.
    """
    fixture = Fixture(**{"transaction.max.timeout.ms": "60000"})
    fixture.topic(states={0: registration(), 1: registration()})
    records = batch(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    fixture.replicas.append(
        [(TP, records)],
        1,
        origin=AppendOrigin.COORDINATOR,
        guards={TP: NOT_REQUIRED},
    )
    name = "kafka_server_replicamanager_partitionswithlatetransactionscount"
    fixture.wall_ms += 360_000
    assert numbers(fixture)[name] == 0
    fixture.wall_ms += 1
    assert numbers(fixture)[name] == 1
    fixture.partition().make_follower(registration(leader=2, leader_epoch=1), None)
    assert numbers(fixture)[name] == 0


def test_transactions_have_kafkas_names() -> None:
    """Markers without a leader, ends that are appended again, loads of the last 30 s; and what
    partitions ask of coordinators.
    """
    out = Exposition()
    states = SimpleNamespace(load_times=[(60_000.0, 900.0), (90_001.0, 4.0), (95_000.0, 8.0)])
    transaction_metrics.coordinator(
        out, SimpleNamespace(markers=SimpleNamespace(leaderless=3), retrying=2, states=states), 1e5
    )
    manager = SimpleNamespace(failures=5, times_ms=[4.0, 1.0, 2.0], answers=9, total_ms=40.5)
    transaction_metrics.verification(out, manager)
    lines = b"".join(out.text()).decode().splitlines()
    marker = "kafka_coordinator_transaction_transactionmarkerchannelmanager"
    asked = "kafka_server_addpartitionstotxnmanager"
    for line in (
        f"{marker}_unknowndestinationqueuesize 3",
        f"{marker}_logappendretryqueuesize 2",
        "kafka_server_transaction_coordinator_metrics_partition_load_time_max 8.0",
        "kafka_server_transaction_coordinator_metrics_partition_load_time_avg 6.0",
        f"{asked}_verificationfailurerate_count 5",
        f'{asked}_verificationtimems{{quantile="0.50"}} 2.0',
        f"{asked}_verificationtimems_count 9",
        f"{asked}_verificationtimems_sum 40.5",
    ):
        assert line in lines, lines


def test_what_waits_is_counted_by_purgatory() -> None:
    """RL 1.13: NumDelayedOperations are requests, PurgatorySize is their entries, one for each
    partition; what is answered goes out of both.
    """
    fixture = Fixture()
    fixture.topic(states={number: registration(LOCAL, (1, 2)) for number in range(2)})

    def counted() -> dict[str, tuple[float, ...]]:
        found, bare = numbers(fixture), "kafka_server_delayedoperationpurgatory_"
        labels = {
            kind: f'{{delayedOperation="{kind}",delayedoperation="{kind}"}}'
            for kind in ("Produce", "Fetch", "DeleteRecords")
        }
        return {
            kind: (
                found[f"{bare}numdelayedoperations{label}"],
                found[f"{bare}purgatorysize{label}"],
            )
            for kind, label in labels.items()
        }

    names = [TopicPartition("t", number) for number in range(2)]
    params = consumer(max_wait_ms=60_000)
    first = fixture.replicas.fetch(params, [at(0, name) for name in names])
    fixture.replicas.delayed_fetch(params, first)
    for name in names:
        outcomes = fixture.replicas.produce([(name, batch())], -1)
        fixture.replicas.wait_for_replicas(outcomes, 60_000)
    assert counted() == {"Produce": (2, 2), "Fetch": (1, 2), "DeleteRecords": (0, 0)}
    fixture.advance(61)
    assert {found[0] for found in counted().values()} == {0}


class NoConnection:
    """Is never asked: fetchers are not started here."""

    def close(self) -> None:
        """Nothing to close."""


class FetchingFixture(Fixture):
    """Its fetchers reach nobody."""

    def create_fetchers(self, replicas: IReplicas) -> ReplicaFetcherManager:
        return ReplicaFetcherManager(
            replicas,
            self,
            "PLAINTEXT",
            lambda: 1,
            lambda endpoint, client_id: NoConnection(),  # type: ignore[return-value]
        )


def test_fetchers_show_lag_requests_and_failures() -> None:
    """RL 1.13: per fetcher requests, bytes, and the lag of each partition; the largest lag; what
    was given up.
    """
    fixture = FetchingFixture()
    fixture.image.brokers[2].listeners["PLAINTEXT"] = Endpoint("PLAINTEXT", "h", 9)  # type: ignore[index]
    fetchers = fixture.replicas.fetchers
    assert fetchers is not None
    fixture.topic(states={number: registration(2, (1, 2)) for number in range(2)})
    fetcher = fetchers._create_fetcher(0, BrokerEndPoint(2, "h", 9), fetchers.failed)
    fetchers.fetchers[2, 0] = fetcher
    other = TopicPartition("t", 1)
    fetcher.add({name: InitialFetchState(bytes(16), 0, 0) for name in (TP, other)})
    fetcher.requests, fetcher.bytes_fetched = 3, 500
    fetcher.state.partitions[TP].lag = 7
    fetcher.partition_failed(other, "its records are of no use")
    found = numbers(fixture)
    fetching = 'clientId="ReplicaFetcherThread-0-2",broker="h:9"'
    assert found[f"kafka_server_fetcherstats_requests_total{{{fetching}}}"] == 3
    assert found[f"kafka_server_fetcherstats_bytes_total{{{fetching}}}"] == 500
    lags = {
        name: value
        for name, value in found.items()
        if name.startswith("kafka_server_fetcherlagmetrics_consumerlag{")
    }
    fetcher_name = "ReplicaFetcherThread-0-2"
    fetched = f'{{clientId="{fetcher_name}",topic="t",partition="0",clientid="{fetcher_name}"}}'
    assert lags == {f"kafka_server_fetcherlagmetrics_consumerlag{fetched}": 7}
    assert (
        found['kafka_server_replicafetchermanager_maxlag{clientId="Replica",clientid="Replica"}']
        == 7
    )
    assert (
        found[
            'kafka_server_replicafetchermanager_failedpartitionscount{clientId="Replica",clientid="Replica"}'
        ]
        == 1
    )
    parts = parts_of(fixture)
    told = BrokerView(lambda: parts).describe(other)
    assert (
        told is not None
        and told["fetching"]["phase"] == "failed"
        and told["fetching"]["why"].endswith("its records are of no use")
    )


def test_rates_are_between_two_scrapes() -> None:
    """RL 1.13: MinFetchRate: fetchers that are new count from the next look; looks in the same
    second see the same; what is not looked at any more is forgotten.
    """
    rates = Rates()

    def least(now_ms: int, **counts: float) -> float:
        rates.begin(now_ms)
        return rates.least(counts)

    assert least(10_000, one=100) == 0
    assert least(15_000, one=150, two=5) == 10
    assert least(15_500, one=170, two=5) == 10
    assert least(20_000, one=170, two=15) == 2
    assert least(21_000, one=180) == 10
    assert least(22_000, one=190, two=1000) == 10
    assert rates.of("two", 1000) is None and rates.ratio("x", 1, 1) != rates.ratio("x", 1, 1)


def test_the_rates_of_throttled_replicas() -> None:
    """Kafka's `type=LeaderReplication`, `FollowerReplication`, `AlterLogDirsReplication`."""
    fixture = Fixture()
    now_ms = fixture.runtime.now_ms()
    fixture.replicas.leader_quota.record(300, now_ms)
    fixture.replicas.follower_quota.record(20, now_ms)
    fixture.replicas.moves.throttle.record(1, now_ms)
    found = numbers(fixture)
    for kind, rate in (("Leader", 300), ("Follower", 20), ("AlterLogDirs", 1)):
        names = [n for n in found if f"{kind}replication_byte_rate".lower() in n.lower()]
        assert names and {found[name] for name in names} == {rate}, (kind, names)
