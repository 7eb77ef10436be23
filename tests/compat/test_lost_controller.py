"""A controller's directory is lost while its brokers run: it refuses to start, is rebuilt from a
broker's copy, and everything goes on.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.compat.cluster_processes import Cluster, View
from twisted_broker.cli.verify import verify_directory

METADATA = "__cluster_metadata-0"
RECORDS = 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A controller and two brokers."""
    made = Cluster(tmp_path, count=2)
    try:
        yield made.start()
    finally:
        made.end()


def produce(cluster: Cluster, topic: str, first: int) -> set[str]:
    """Acknowledged by all in-sync replicas."""
    values = {str(number) for number in range(first, first + RECORDS)}
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for value in sorted(values):
        producer.produce(
            topic,
            value.encode(),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0 and not failed
    return values


def recover(*options: object) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "twisted_broker.cli.main",
        "metadata",
        "recover",
        *map(str, options),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_lost_controller_is_rebuilt_from_its_brokers(cluster: Cluster, topic: str) -> None:
    """No broker deletes anything or even stops; what they held is served under the new
    controller, and new topics are made.
    """
    view = View(cluster.bootstrap)
    view.create(topic, partitions=4, replicas=2, min_insync_replicas="2")
    written = produce(cluster, topic, 0)
    controller = cluster.controller
    controller.kill()
    shutil.rmtree(Path(controller.data) / METADATA)

    with pytest.raises(RuntimeError, match="ended with status 1"):
        controller.start()
    assert (
        f"{METADATA}: the metadata of cluster" in controller.log_tail()
        and "replog metadata recover" in controller.log_tail()
    )
    controller.process = None
    assert not (Path(controller.data) / METADATA).exists()
    assert set(view.values(topic, written)) == written

    sources = [option for broker in cluster.brokers.values() for option in ("--from", broker.data)]
    done = recover(*sources, "--to", controller.data)
    assert done.returncode == 0, done.stderr
    assert "it holds 1 topics with 4 partitions, and 2 brokers" in done.stdout
    controller.start()
    view.create(f"{topic}-after", partitions=2, replicas=2)
    written |= produce(cluster, topic, RECORDS)
    view.until(lambda: view.in_sync(topic) == {1, 2}, "both replicas are in sync")
    assert set(view.values(topic, written)) == written

    for broker in cluster.brokers.values():
        assert broker.process is not None and broker.process.poll() is None
        broker.stop()
        broker.start()
    view = View(cluster.bootstrap)
    assert set(view.values(topic, written)) == written
    for process in (*cluster.brokers.values(), controller):
        process.stop()
        report = verify_directory(Path(process.data))
        assert not report.findings, [str(each) for each in report.findings]
