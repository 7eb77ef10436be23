"""Java's producer with transactions back to back, and a consumer that copies in transactions: no
transaction fails, and each is read whole.

KAFKA_JARS: a folder of Apache Kafka 4.3's jars (`make test-java`). Half a minute for each level of
transaction.version; `WITHOUT_PAUSE_SECONDS` makes it longer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.compat.cluster_processes import Cluster, View
from tests.compat.conftest import BrokerFactory
from tests.compat.kafka_processes import (
    JavaProcess,
    compiled,
    require,
    require_compiler,
    tool,
)
from tests.compat.test_kafka_programs import Reader

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
SECONDS = int(os.environ.get("WITHOUT_PAUSE_SECONDS", "20"))
LINES = 60 * SECONDS


@pytest.fixture(params=[1, 3])
def view(
    request: pytest.FixtureRequest, new_broker: BrokerFactory, tmp_path: Path
) -> Iterator[View]:
    """One broker, or three."""
    require("kafka-tools")
    require_compiler()
    if request.param == 1:
        yield View(new_broker().start().bootstrap)
        return
    cluster = Cluster(tmp_path / "cluster", request.param)
    try:
        yield View(cluster.start().bootstrap)
    finally:
        cluster.end()


@pytest.mark.parametrize("level", [1, 2])
def test_transactions_back_to_back(view: View, level: int, tmp_path: Path) -> None:
    """At both levels of transaction.version, with one broker and with three."""
    replicas = len(view.admin.list_topics(timeout=10).brokers)
    version = f"transaction.version={level}"
    if level == 1:
        features = "org.apache.kafka.tools.FeatureCommand"
        tool(features, "--bootstrap-server", view.bootstrap, "downgrade", "--feature", version)
    for topic in ("words", "lines", "copies"):
        view.create(topic, 3, replicas)
    producer = Producer({"bootstrap.servers": view.bootstrap, "log_level": 0})
    for number in range(2 * LINES):
        producer.produce("lines", b"%d" % number, partition=number % 2)
        producer.poll(0)
    assert producer.flush(60) == 0

    java = JavaProcess(tmp_path / "java", ["WithoutPause", view.bootstrap, str(SECONDS)])
    java.classes = compiled("WithoutPause", tmp_path / "classes")
    java.spawn()
    assert java.process is not None
    try:
        assert java.process.wait(SECONDS + 120) == 0, java.log_tail()
    finally:
        java.kill()
    said = java.log.read_text()
    counts = {name: int(count) for count, name in re.findall(r"^committed (\d+) (.+)$", said, re.M)}
    print(view.bootstrap.count(",") + 1, version, counts, re.findall("^failed .*", said, re.M))
    assert not re.findall("^failed .*", said, re.M)
    assert counts["transactions of words"] > 5 * SECONDS
    assert counts["copies"] > 5 * SECONDS
    for topic, name in (("words", "words"), ("copies", "copied")):
        reader = Reader(view.bootstrap, topic)
        try:
            values = [value for _, value in reader.read(counts[name])]
        finally:
            reader.close()
        assert len(values) == len(set(values)) == counts[name]
