"""GetTelemetrySubscriptions and PushTelemetry through a broker in memory, up to /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.memory_broker import MemoryBroker
from tests.telemetry.payloads import gauge, payload, point, total
from twisted_broker.net.client import BrokerConnection
from twisted_broker.status.metric_text import Exposition
from twisted_broker.status.metrics import BrokerCollector
from twisted_broker.status.view import BrokerView
from twisted_broker.telemetry.instances import MOST_BYTES
from twisted_broker.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from twisted_broker.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
)

CLIENT_METRICS = 16
INTERVAL_MS = 10_000
SMALL = 2_000
METRICS = payload(
    gauge("kafka.producer.lag", point(1.5, topic='t"\n'), point(2)),
    total("kafka.producer.sent.total", point(7)),
    gauge("other", point(1)),
)
LINE = 'client_id="test",client_software_name="app",client_software_version="1.0"'


class Run(MemoryBroker):
    """A broker with a subscription to `kafka.`, and clients of it."""

    def __init__(self, **settings: str) -> None:
        super().__init__(telemetry_max_bytes=str(SMALL), **settings)
        self.start()
        self.opened: list[BrokerConnection] = []
        self.subscribe("s", metrics="kafka.", interval_ms=str(INTERVAL_MS))

    def subscribe(self, subscription: str, **values: str) -> None:
        changes = [
            IncrementalAlterConfigsRequestAlterableConfig(
                name=name.replace("_", "."), config_operation=0, value=value
            )
            for name, value in values.items()
        ]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=CLIENT_METRICS, resource_name=subscription, configs=changes
        )
        (answer,) = self.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        assert not answer.error_code
        self.pass_time(1)

    def client(self, software: str = "app") -> BrokerConnection:
        self.opened.append(self.connection())
        self.run(self.opened[-1].negotiate(software, "1.0"))
        return self.opened[-1]

    def get(self, client: BrokerConnection, instance_id: bytes = bytes(16)) -> Any:
        return self.run(
            client.send(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)
        )

    def push(self, client: BrokerConnection, got: Any, metrics: bytes = b"", **fields: Any) -> str:
        request = PushTelemetryRequest(
            client_instance_id=got.client_instance_id,
            subscription_id=got.subscription_id,
            metrics=metrics,
        )
        for name, value in fields.items():
            setattr(request, name, value)
        return error_of(self.run(client.send(request, 0)).error_code).name

    def scraped(self, prefix: str = "client_") -> list[str]:
        out = Exposition()
        for _ in BrokerCollector(BrokerView(lambda: self.broker.parts)).collect(out):
            pass
        lines = b"".join(out.text()).decode().splitlines()
        return [each for each in lines if each.startswith(prefix)]


@pytest.fixture
def broker() -> Iterator[Run]:
    made = Run()
    yield made
    for client in made.opened:
        client.close()
    made.stop()


def test_a_client_gets_an_id_and_what_it_is_asked_for(broker: Run) -> None:
    """GN 5.3: an id of its own is echoed (GN 7.34)."""
    got = broker.get(broker.client())
    assert got == GetTelemetrySubscriptionsResponse(
        client_instance_id=got.client_instance_id,
        subscription_id=got.subscription_id,
        accepted_compression_types=[ZSTD, LZ4, GZIP, SNAPPY],
        push_interval_ms=INTERVAL_MS,
        telemetry_max_bytes=SMALL,
        delta_temporality=True,
        requested_metrics=["kafka."],
    )
    assert any(got.client_instance_id) and got.subscription_id
    own = broker.get(broker.client(), b"i" * 16)
    assert own.client_instance_id == b"i" * 16 and own.subscription_id != got.subscription_id


def test_a_client_that_asks_too_early_learns_nothing(broker: Run) -> None:
    """GN 5.5: every field has its default."""
    client = broker.client()
    got = broker.get(client)
    assert broker.get(client, got.client_instance_id) == GetTelemetrySubscriptionsResponse(
        error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED
    )
    broker.pass_time(INTERVAL_MS / 1000)
    assert broker.get(client, got.client_instance_id) == got


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_what_is_pushed_is_in_the_metrics(broker: Run, codec: int) -> None:
    """GN 5.10: what was asked for, under the client's labels; a label cannot break out."""
    client = broker.client()
    pushed = compress(codec, METRICS)
    assert broker.push(client, broker.get(client), pushed, compression_type=codec) == "NONE"
    assert broker.scraped() == [
        f'client_kafka_producer_lag{{{LINE},topic="t\\"\\n"}} 1.5',
        f"client_kafka_producer_lag{{{LINE}}} 2",
        f"client_kafka_producer_sent_total{{{LINE}}} 7",
    ]
    client.close()
    broker.pass_time(1)
    assert broker.scraped() == []


def test_clients_of_the_same_labels_are_one_series(broker: Run) -> None:
    """Sums are added up, of gauges the last one counts: no series comes twice in a scrape."""
    for value in (1, 2):
        client = broker.client()
        metrics = payload(gauge("kafka.g", point(value)), total("kafka.c", point(value)))
        assert broker.push(client, broker.get(client), metrics) == "NONE"
    assert broker.scraped() == [f"client_kafka_g{{{LINE}}} 2", f"client_kafka_c{{{LINE}}} 3"]
    other = broker.client("b")
    broker.push(other, broker.get(other), payload(total("kafka.g", point(1))))
    assert len(broker.scraped("client_kafka_g")) == 1, "one name has one type"


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_payload_that_inflates_too_far_is_too_large(broker: Run, codec: int) -> None:
    """GN 5.9: clients try again; nothing of it is shown."""
    client = broker.client()
    bomb = compress(codec, METRICS + bytes(5 * SMALL))
    assert len(bomb) <= SMALL
    pushed = broker.push(client, broker.get(client), bomb, compression_type=codec)
    assert pushed == "TELEMETRY_TOO_LARGE" and broker.scraped() == []


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_what_cannot_be_read_is_an_invalid_record(broker: Run, codec: int) -> None:
    """GN 5.6: neither as compressed bytes nor as protobuf; then nothing of it is shown."""
    client = broker.client()
    got = broker.get(client)
    assert broker.push(client, got, METRICS + b"\x80", compression_type=codec) == "INVALID_RECORD"
    broken = compress(codec, METRICS + b"\x80")
    terminating = broker.push(client, got, broken, compression_type=codec, terminating=True)
    assert terminating == "INVALID_RECORD" and broker.scraped() == []
    assert broker.scraped("kafka_server_client_metrics_plugin_error_count") == [
        "kafka_server_client_metrics_plugin_error_count 2"
    ]


def test_no_setting_lets_a_payload_hold_the_reactor() -> None:
    broker = MemoryBroker(telemetry_max_bytes=str(2**31 - 1)).start()
    got = broker.ask(GetTelemetrySubscriptionsRequest(), 0)
    assert got.telemetry_max_bytes == MOST_BYTES
    broker.stop()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"client_instance_id": bytes(16)}, "INVALID_REQUEST"),
        ({"client_instance_id": bytes(15) + b"\1"}, "INVALID_REQUEST"),
        ({"client_instance_id": b"n" * 16}, "UNKNOWN_SUBSCRIPTION_ID"),
        ({"subscription_id": 7}, "UNKNOWN_SUBSCRIPTION_ID"),
        ({"compression_type": 5}, "UNSUPPORTED_COMPRESSION_TYPE"),
        ({"metrics": bytes(SMALL + 1)}, "TELEMETRY_TOO_LARGE"),
        ({"metrics": b""}, "NONE"),
    ],
)
def test_refused_pushes(broker: Run, change: dict[str, Any], code: str) -> None:
    """GN 5.6: nothing is shown of them; no metrics are fine."""
    client = broker.client()
    got = broker.get(client)
    change.setdefault("metrics", METRICS)
    assert broker.push(client, got, change.pop("metrics"), **change) == code
    assert broker.scraped() == []


def test_a_broker_that_was_not_asked_takes_what_another_asked_for(broker: Run) -> None:
    """GN 5.4: the subscription id is the same there, so a client may push to any broker."""
    got = broker.get(broker.client(), b"i" * 16)
    broker.opened.pop().close()
    broker.pass_time(1)
    assert broker.push(broker.client(), got, METRICS) == "NONE"


def test_a_changed_subscription_is_told_at_once(broker: Run) -> None:
    """GN 5.8."""
    client = broker.client()
    got = broker.get(client)
    broker.push(client, got, METRICS)
    broker.subscribe("more", metrics="other", interval_ms="5000", match="client_software_name=ap+")
    assert broker.push(client, got, METRICS) == "UNKNOWN_SUBSCRIPTION_ID"
    again = broker.get(client, got.client_instance_id)
    assert again.requested_metrics == ["kafka.", "other"] and again.push_interval_ms == 5000
    assert again.client_instance_id == got.client_instance_id
    broker.pass_time(5)
    assert broker.push(client, again, METRICS) == "NONE"
    assert len(broker.scraped()) == 4


def test_a_subscription_that_does_not_match_asks_for_nothing(broker: Run) -> None:
    broker.subscribe("s", match="client_id=other")
    got = broker.get(broker.client())
    assert (got.requested_metrics, got.push_interval_ms) == ([], 300_000)


def test_two_payloads_at_once_are_read_one_after_the_other(broker: Run) -> None:
    """Only one is inflated at a time; both are taken."""
    clients = [broker.client(f"s{number}") for number in range(3)]
    requests = []
    for client in clients:
        got = broker.get(client)
        requests.append(
            PushTelemetryRequest(
                client_instance_id=got.client_instance_id,
                subscription_id=got.subscription_id,
                metrics=METRICS,
            )
        )
    exports = broker.broker.parts.exports
    exports.acquire()
    answers = [client.send(each, 0) for client, each in zip(clients, requests, strict=True)]
    found: list[int] = []
    for answer in answers:
        answer.addCallback(lambda response: found.append(response.error_code))
    broker.pass_time(0.1)
    assert found == []
    exports.release()
    broker.pass_time(0.1)
    assert found == [0, 0, 0] and not exports.locked


@pytest.mark.parametrize(("setting", "listed"), [("true", {71, 72}), ("false", set())])
def test_the_apis_are_listed_where_the_setting_says_so(setting: str, listed: set[int]) -> None:
    """GN 5.2: and answered in either case."""
    broker = Run(replog_client_telemetry=setting)
    client = broker.client()
    assert {71, 72} & set(client.api_versions) == listed
    assert broker.push(client, broker.get(client), METRICS) == "NONE"
    client.close()
    broker.stop()


def test_kafkas_names_count_what_was_done(broker: Run) -> None:
    """GN 5.11."""
    client = broker.client()
    got = broker.get(client)
    broker.push(client, got, METRICS)
    broker.push(client, got, METRICS)
    broker.push(client, got, METRICS, subscription_id=7, terminating=True)
    counts = dict(line.split() for line in broker.scraped("kafka_server_client_metrics_"))
    found = {name.removeprefix("kafka_server_client_metrics_"): n for name, n in counts.items()}
    assert found == {
        "instance_count": "1",
        "throttle_count": "1",
        "unknown_subscription_request_count": "1",
        "plugin_export_count": "1",
        "plugin_error_count": "0",
    }
    assert broker.scraped("replog_client_metrics_series") == ["replog_client_metrics_series 3"]
