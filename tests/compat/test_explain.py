"""`replog explain` and `/metrics` of real processes: they tell the truth while a follower stands
still, and after it went on.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import Cluster, View

REPLOG = Path(sys.executable).parent / "replog"
ALL = {1, 2, 3}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster")
    made.controller.settings["broker.session.timeout.ms"] = (
        "30000"  # who stands still leaves by its lag
    )
    try:
        yield made.start()
    finally:
        for broker in made.brokers.values():
            if broker.process is not None:
                broker.process.send_signal(signal.SIGCONT)
        made.end()


def explained(cluster: Cluster, topic: str) -> dict[int, dict[str, Any]]:
    """What each broker that answers told of partition 0."""
    files = [f"--run-file={broker.run_file}" for broker in cluster.brokers.values()]
    found = subprocess.run(
        [REPLOG, "explain", topic, "0", "--json", *files],
        capture_output=True,
        text=True,
        check=True,
    )
    told = [json.loads(line)["state"] for line in found.stdout.splitlines()]
    return {each["broker"]: each for each in told if each is not None}


def told_by(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    """What one broker tells of partition 0."""
    with urlopen(f"http://{broker.run()['status']}/explain/{topic}/0", timeout=10) as response:
        found: dict[str, Any] = json.loads(response.read())
        return found


def numbers(broker: BrokerProcess) -> dict[str, float]:
    with urlopen(f"http://{broker.run()['status']}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_a_follower_that_stands_still_is_named(cluster: Cluster, topic: str) -> None:
    """RL 1.7, 2.3, 2.4: while it is in the ISR the produce waits for it, by name; then it is
    out, with a reason; then back, and nothing waits.
    """
    view = View(cluster.bootstrap)
    view.create(topic, partitions=1)
    view.until(lambda: view.in_sync(topic) == ALL, "all in sync")
    leader = view.leaders(topic)[0]
    still = next(iter(ALL - {leader}))
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    producer.produce(topic, b"before")
    assert producer.flush(10) == 0, (
        "from here on it knows the leader, and asks no broker that stands still"
    )
    process = cluster.brokers[still].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    producer.produce(topic, b"value")
    producer.flush(0.2)

    def waits() -> bool:
        told = told_by(cluster.brokers[leader], topic)
        produces = [each for each in told["waiting"] if each["request"] == "Produce"]
        waited_for = told["high_watermark_waits"] and [
            each["broker"] for each in told["high_watermark_waits"]["brokers"]
        ]
        return (
            bool(produces)
            and produces[0]["brokers"] == [still]
            and waited_for == [still]
            and told["high_watermark_waits"]["behind"] == 1
        )

    view.until(waits, "the produce waits for it")
    view.until(
        lambda: still not in told_by(cluster.brokers[leader], topic)["isr"], "it left the ISR"
    )
    assert producer.flush(10) == 0
    told = told_by(cluster.brokers[leader], topic)
    (out,) = told["out_of_sync"]
    assert (
        out["broker"] == still and out["rule"] == "lag" and out["holds_back"] and out["behind"] == 1
    )
    assert told["high_watermark_waits"] is None and told["high_watermark"] == 2
    assert (
        numbers(cluster.brokers[leader])["kafka_server_replicamanager_underreplicatedpartitions"]
        >= 1
    )

    process.send_signal(signal.SIGCONT)
    view.until(lambda: view.in_sync(topic) == ALL, "it is back")
    view.until(lambda: told_by(cluster.brokers[still], topic)["log_end"] == 2, "it has the record")
    told_all = explained(cluster, topic)
    assert told_all[leader]["out_of_sync"] == [] and told_all[leader]["isr"] == sorted(ALL)
    assert (
        told_all[still]["role"] == "follower" and told_all[still]["fetching"]["phase"] == "fetching"
    )
    found = numbers(cluster.brokers[leader])
    assert found["kafka_server_replicamanager_underreplicatedpartitions"] == 0
    assert found[f'kafka_server_brokertopicmetrics_messagesin_total{{topic="{topic}"}}'] == 2


def test_a_lone_broker_explains_itself(tmp_path: Path) -> None:
    """The run file says where; the page, the numbers and the explanation are there; -1 switches it
    off.
    """
    broker = BrokerProcess(tmp_path / "on").start()
    try:
        View(broker.bootstrap).create("t", partitions=1, replicas=1)
        with urlopen(f"http://{broker.run()['status']}/", timeout=10) as page:
            assert 'href="/topics/t"' in page.read().decode()
        with urlopen(f"http://{broker.run()['status']}/topics/t", timeout=10) as page:
            assert 'href="/explain/t/0"' in page.read().decode()
        assert numbers(broker)["kafka_server_replicamanager_leadercount"] == 1
        explained = subprocess.run(
            [REPLOG, "explain", "t", "0", "--status", str(broker.run()["status"])],
            capture_output=True,
            text=True,
            check=True,
        )
        assert explained.stdout.startswith(
            "t-0: broker 1 leads at epoch 0; in sync 1 of 1, min.insync.replicas 1\n"
        )
    finally:
        broker.stop()
    silent = BrokerProcess(tmp_path / "off", {"replog.status.port": "-1"}).start()
    try:
        assert silent.run()["status"] == ""
    finally:
        silent.stop()
