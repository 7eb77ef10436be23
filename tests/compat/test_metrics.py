"""A real broker under load, scraped as Prometheus does: published dashboards find their series, the
numbers agree with what clients did.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer
from prometheus_client.samples import Sample

from tests.compat.broker_process import BrokerProcess
from tests.status.published_dashboards import DASHBOARDS, expressions, has_value, samples_of

RECORDS = 500
# What one broker does not show: nobody follows it, and nothing was refused.
_ALONE = ("FetchFollower", "errorspersec")


def scrape(broker: BrokerProcess) -> dict[str, list[Sample]]:
    with urlopen(f"http://{broker.run()['status']}/metrics", timeout=30) as response:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        return samples_of(response.read().decode())


def value(scraped: dict[str, list[Sample]], name: str, **labels: str) -> float | None:
    """Of the one sample with just these labels."""
    found = [each.value for each in scraped.get(name, ()) if each.labels == labels]
    return found[0] if found else None


@pytest.fixture
def loaded(new_broker: Callable[..., BrokerProcess], topic: str) -> BrokerProcess:
    """After a producer, and a group that has committed."""
    broker = new_broker().start()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    read = 0
    deadline = time.monotonic() + 60
    while read < RECORDS:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        read += message is not None and message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()
    for number in range(7):  # which the group has not read
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(30) == 0
    return broker


def test_dashboards_and_numbers_after_load(loaded: BrokerProcess, topic: str) -> None:
    """Issue 12: nine of ten expressions of each dashboard; counts, lag and quantiles are true."""
    first = scrape(loaded)
    prefix = "kafka_server_brokertopicmetrics_"
    for name in ("messagesin_total", "messagesinpersec"):
        assert value(first, prefix + name, topic=topic) == RECORDS + 7
    place = {"topic": topic, "partition": "0"}
    assert value(first, "kafka_log_log_logendoffset", **place) == RECORDS + 7
    assert value(first, "kafka_consumergroup_lag", consumergroup="readers", **place) == 7
    assert value(first, "kafka_topic_partitions", topic=topic) == 1
    median, rare = (
        value(first, "kafka_network_requestmetrics_totaltimems", request="Produce", quantile=each)
        for each in ("0.50", "0.99")
    )
    assert median is not None and rare is not None and 0 < median <= rare < 60_000
    free = first["replog_log_directory_free_bytes"][0]
    total = first["replog_log_directory_total_bytes"][0]
    assert free.labels["directory"] == loaded.data and 0 <= free.value < total.value
    second = first
    deadline = time.monotonic() + 30
    while not (idle := second.get("kafka_network_socketserver_networkprocessoravgidlepercent")):
        # Rates need two scrapes that are a second apart.
        assert time.monotonic() < deadline
        time.sleep(0.2)
        second = scrape(loaded)
    assert 0 <= idle[0].value <= 1
    for dashboard in DASHBOARDS:
        wanted = [each for each in expressions(dashboard) if not any(a in each for a in _ALONE)]
        missing = [each for each in wanted if not has_value(each, [first, second])]
        assert len(missing) <= len(wanted) / 10, (dashboard, missing)
