"""What survives: a clean stop, kill -9, and kill -9 again and again under idempotent acks=all
load.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.compat import clients, raw
from tests.compat.broker_process import BrokerProcess
from tests.compat.conftest import BrokerFactory
from tests.compat.test_admin import create, settings_of
from twisted_broker.cli.verify import verify_directory

LIMIT_SECONDS = 90
ROUNDS = int(os.environ.get("REPLOG_KILL_ROUNDS", "15"))
LONG_ROUNDS = int(os.environ.get("REPLOG_LONG_KILL_ROUNDS", "1000"))
VALUE_BYTES = 400


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restart_keeps_everything(new_broker: BrokerFactory, topic: str, end: str) -> None:
    """Records, topics with their ids and settings, committed offsets and the groups are there
    after a clean stop and after kill -9.
    """
    broker = new_broker().start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create(admin, topic, 3, retention_ms="1234567")
    rows = [(b"%d" % n, b"value %d" % n, (("h", b"x"),)) for n in range(90)]
    clients.Confluent().produce(broker.bootstrap, topic, "lz4", rows)
    assert len(clients.Confluent().consume(broker.bootstrap, topic, "readers", 90)) == 90
    clients.Confluent().produce(broker.bootstrap, topic, "zstd", [(None, b"after the commit", ())])
    run = broker.run()
    getattr(broker, end)()
    broker.start()
    assert broker.run()["cluster_id"] == run["cluster_id"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert len(admin.list_topics(topic, timeout=LIMIT_SECONDS).topics[topic].partitions) == 3
    assert settings_of(admin, topic)["retention.ms"].value == "1234567"
    assert "readers" in {
        group.group_id for group in admin.list_consumer_groups().result(LIMIT_SECONDS).valid
    }
    assert clients.KafkaPython().consume(broker.bootstrap, topic, "readers", 1) == [
        (None, b"after the commit", ())
    ]
    everything = clients.AioKafka().consume(broker.bootstrap, topic, "others", 91)
    assert sorted(everything, key=str) == sorted([*rows, (None, b"after the commit", ())], key=str)


def test_a_clean_stop_is_quick_and_said(new_broker: BrokerFactory, topic: str) -> None:
    """SIGTERM ends a lone broker with a clean-shutdown file, the run file is gone, and `replog
    verify` finds nothing. How quick it is says test_broker in the time of its clock (under 2 s);
    here the machine may be busy, but nothing waits for a time-out.
    """
    broker = new_broker().start()
    clients.Confluent().produce(broker.bootstrap, topic, "gzip", [(None, b"x" * 1000, ())] * 100)
    assert broker.stop() < 20
    assert not broker.run_file.exists()
    assert (Path(broker.data) / ".kafka_cleanshutdown").exists()
    report = verify_directory(Path(broker.data), with_records=True)
    assert [str(finding) for finding in report.findings] == [] and report.records >= 100


def test_in_memory_nothing_is_left(new_broker: BrokerFactory, topic: str) -> None:
    """`--data memory` serves the same and writes no file."""
    broker = new_broker()
    broker.data = "memory"
    broker.start()
    rows: list[clients.Row] = [(b"k", b"v", ())]
    clients.KafkaPython().produce(broker.bootstrap, topic, "gzip", rows)
    assert clients.Confluent().consume(broker.bootstrap, topic, "readers", 1) == rows
    left = {path.name for path in broker.directory.iterdir()}
    assert left <= {"log", "run.json"}, left


def test_a_directory_that_is_in_use_is_left_alone(new_broker: BrokerFactory) -> None:
    """Neither a second broker of ours starts on a directory, nor one where another program holds
    Java's kind of lock.
    """
    first, second = new_broker().start(), new_broker()
    second.data = first.data
    with pytest.raises(RuntimeError, match="ended with status"):
        second.start()
    first.stop()
    hold = (
        "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, f"{first.data}/.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(RuntimeError, match="ended with status"):
            second.start()
        assert holder.stdin is not None
        holder.stdin.close()
    second.start()


def test_verify_beside_a_broker_under_load(new_broker: BrokerFactory, topic: str) -> None:
    """`replog verify` while records come in, segments roll and old ones go: nothing to find,
    again and again.
    """
    broker = new_broker(
        log_retention_check_interval_ms="100", log_segment_delete_delay_ms="100"
    ).start()
    limits = {"segment.bytes": str(1 << 20), "retention.bytes": str(3 << 20)}
    with raw.Connection(broker.address) as connection:
        assert raw.create_topic(connection, topic, configs=limits) == 0
    load = Load(broker.bootstrap, topic)
    seen = 0
    while seen < 20 or load.sent < 15_000:
        load.until(load.acknowledged + 300)
        report = verify_directory(Path(broker.data), with_records=True)
        assert [str(finding) for finding in report.findings] == []
        assert report.in_use and report.records > 0
        seen += 1
    load.finish()
    broker.stop()
    assert [str(finding) for finding in verify_directory(Path(broker.data)).findings] == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Load:
    """One idempotent producer with acks=all that numbers its records, through all the kills."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic, self.sent, self.acknowledged, self.errors = topic, 0, 0, list[str]()
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 50,
                "message.timeout.ms": 120_000,
                "queue.buffering.max.messages": 2000,
                "log_level": 2,
                "topic.metadata.refresh.interval.ms": 1000,
                "socket.timeout.ms": 10_000,
            }
        )

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged += 1

    def until(self, acknowledged: int) -> None:
        """Sends on and on until so many records are acknowledged; there is load in flight when
        it returns.
        """
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.acknowledged < acknowledged:
            assert not self.errors, self.errors[:3]
            assert time.monotonic() < deadline, (
                f"{self.acknowledged} of {acknowledged} acknowledged after {LIMIT_SECONDS} s"
            )
            if self.sent - self.acknowledged < 1000:
                self.producer.produce(
                    self.topic,
                    b"%012d" % self.sent + b"." * VALUE_BYTES,
                    partition=0,
                    on_delivery=self.delivered,
                )
                self.sent += 1
            self.producer.poll(0 if self.sent % 16 else 0.001)

    def finish(self) -> None:
        assert self.producer.flush(LIMIT_SECONDS) == 0
        assert not self.errors and self.acknowledged == self.sent


def numbers(bootstrap: str, topic: str, count: int) -> list[int]:
    """The numbers in the partition, in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[int] = []
    deadline = time.monotonic() + LIMIT_SECONDS + count / 10_000
    while time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.5):
            if message.error() is None:
                found.append(int((message.value() or b"")[:12]))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                consumer.close()
                return found
    raise TimeoutError(f"{len(found)} of {count} records")


def kill_again_and_again(
    broker: BrokerProcess, topic: str, rounds: int, chance: random.Random
) -> None:
    broker.port = free_port()
    broker.start()
    with raw.Connection(broker.address) as connection:
        assert raw.create_topic(connection, topic, configs={"segment.bytes": str(1 << 20)}) == 0
    load = Load(broker.bootstrap, topic)
    for _ in range(rounds):
        load.until(load.acknowledged + chance.randint(1, 400))
        broker.kill()
        broker.start()
    load.until(load.acknowledged + 1)
    load.finish()
    assert numbers(broker.bootstrap, topic, load.sent) == list(range(load.sent))
    broker.stop()
    assert [str(finding) for finding in verify_directory(Path(broker.data)).findings] == []


@pytest.mark.timeout(60 + 8 * ROUNDS)
def test_kill_loop(new_broker: BrokerFactory, topic: str) -> None:
    """Every acknowledged record is there, in order, once, after 15 kills under load
    (REPLOG_KILL_ROUNDS); the files are whole.
    """
    kill_again_and_again(new_broker(), topic, ROUNDS, random.Random(20261121))


@pytest.mark.long
@pytest.mark.timeout(600 + 8 * LONG_ROUNDS)
def test_long_kill_loop(new_broker: BrokerFactory, topic: str) -> None:
    """The same 1,000 times (REPLOG_LONG_KILL_ROUNDS)."""
    kill_again_and_again(new_broker(), topic, LONG_ROUNDS, random.Random(1))
