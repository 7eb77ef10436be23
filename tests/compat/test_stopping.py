"""How real processes end when there is no controller to let them go, and how they are asked
twice.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import PATIENCE_SECONDS, Cluster


class Patient(Cluster):
    """Its brokers would wait ten minutes for their controller."""

    def new_broker(self, node_id: int, name: str = "") -> BrokerProcess:
        broker = super().new_broker(node_id, name)
        broker.settings["replog.controlled.shutdown.timeout.ms"] = "600000"
        return broker


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Patient(tmp_path, count=2).start()
    yield found
    for each in (*found.brokers.values(), found.controller):
        each.kill()


def until_said(broker: BrokerProcess, words: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while words not in broker.log.read_text():
        assert time.monotonic() < deadline, f"not said: {words}\n{broker.log_tail()}"
        broker.ended(0.05)


def stopped_cleanly(broker: BrokerProcess) -> bool:
    return (
        Path(broker.data) / ".kafka_cleanshutdown"
    ).exists() and "Traceback" not in broker.log.read_text()


def test_without_a_controller(cluster: Cluster) -> None:
    """RL 8.2: one that stands still is waited for, until the broker gets a second signal;
    one that is gone is not.
    """
    first, second = cluster.brokers[1], cluster.brokers[2]
    assert cluster.controller.process is not None and first.process is not None
    cluster.controller.process.send_signal(signal.SIGSTOP)
    first.process.send_signal(signal.SIGTERM)
    until_said(first, "no controller answers, waiting")
    first.end(signal.SIGINT)
    assert "second signal" in first.log.read_text() and stopped_cleanly(first)
    cluster.controller.kill()
    second.stop()
    assert "no controller is alive" in second.log.read_text() and stopped_cleanly(second)
