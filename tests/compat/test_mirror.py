"""`replog mirror` between real processes: killed under load, compared by bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.broker_process import BrokerProcess
from tests.compat.conftest import BrokerFactory
from twisted_broker.testing import Cluster
from twisted_broker.wire.records import iterate_batches

REPLOG = Path(sys.executable).parent / "replog"


def batches(directory: Path) -> list[bytes]:
    """Of a partition's segments, leader epochs aside."""
    found = []
    for file in sorted(directory.glob("*.log")):
        for batch in iterate_batches(file.read_bytes(), check_crc=True):
            whole = batch.to_bytes()
            found.append(whole[:12] + whole[16:])
    return found


def test_killed_three_times_under_load(new_broker: BrokerFactory, tmp_path: Path) -> None:
    """No gap and no duplicate: the target's files have the source's batches, and are sound."""
    source, target = new_broker(log_segment_bytes="1048576"), new_broker()
    source.start()
    target.start()
    mirror_killed_three_times(source, target, tmp_path)


def try_transaction(bootstrap: str) -> None:
    """Of a program that takes the mirrored topic for an ordinary one: its abort must not write a
    marker among the source's records.
    """
    refused: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "stranger"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("events", b"x", on_delivery=lambda error, _: refused.append(error))
    producer.flush(30)
    with suppress(KafkaException):  # librdkafka may have given the transaction up
        producer.abort_transaction(30)
    assert refused[0] is not None


def mirror_killed_three_times(source: Any, target: BrokerProcess, tmp_path: Path) -> None:
    """`source`: `bootstrap`, `data` and `stop()`; both run, and are stopped afterwards."""
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    for made in admin.create_topics([NewTopic("events", 3, 1)]).values():
        made.result(30)
    over = threading.Event()

    def load() -> None:
        producer = Producer(
            {
                "bootstrap.servers": source.bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 5,
            }
        )
        number = 0
        while not over.wait(0.02):
            for _ in range(200):
                number += 1
                producer.produce("events", b"value %d" % number, b"%d" % number)
            producer.poll(0)
        assert producer.flush(30) == 0

    command = [
        str(REPLOG),
        "mirror",
        *("--from", source.bootstrap, "--to", target.bootstrap),
        *("--topics", "events", "--state", str(tmp_path / "state")),
    ]
    loading = threading.Thread(target=load)
    loading.start()
    try:
        seen = 0
        for _ in range(3):
            process = subprocess.Popen(command, stderr=subprocess.PIPE)
            end = time.monotonic() + 60
            while True:
                held = sum(len(batches_of(Path(target.data), part)) for part in range(3))
                if held > seen + 5:
                    break
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end, "nothing is mirrored"
                time.sleep(0.02)
            process.kill()
            process.communicate()
            seen = held
    finally:
        over.set()
        loading.join()
    try_transaction(target.bootstrap)
    done = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    refused = []
    producer = Producer({"bootstrap.servers": target.bootstrap})
    producer.produce("events", b"x", on_delivery=lambda error, _: refused.append(error))
    producer.flush(30)
    assert refused[0] is not None and KafkaException(refused[0]).args[0].name() == (
        "POLICY_VIOLATION"
    )
    source.stop()
    target.stop()
    for part in range(3):
        expected = batches(Path(source.data) / f"events-{part}")
        assert expected and batches(Path(target.data) / f"events-{part}") == expected
    checked = subprocess.run(
        [REPLOG, "verify", str(target.data), "--records"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    compared = subprocess.run(
        [REPLOG, "verify", "--replicas", "--by-name", str(source.data), str(target.data)],
        capture_output=True,
        text=True,
    )
    assert compared.returncode == 0, compared.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quietly(
    kafka: Cluster, request: pytest.FixtureRequest, tmp_path: Path, number: signal.Signals
) -> None:
    """Exit status 0, and nothing on standard error."""
    kafka.topic("t").produce([b"one"])
    target = Cluster()
    request.addfinalizer(target.close)
    command = [
        str(REPLOG),
        "mirror",
        *("--from", kafka.bootstrap, "--to", target.bootstrap, "--topics", "t"),
        *("--state", str(tmp_path / "state"), "--metrics-port", "0"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("metrics at ")
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, said) == (0, "")


def batches_of(data: Path, part: int) -> list[bytes]:
    """While the broker runs: what may be read of a file that is written."""
    files = sorted((data / f"events-{part}").glob("*.log"))
    return [
        batch.to_bytes()
        for file in files
        for batch in iterate_batches(file.read_bytes(), partial_tail=True)
    ]
