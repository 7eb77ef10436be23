"""A replica moves between two directories of a real process under load, by a stock admin client
(RL 3.8).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

from tests.compat.broker_process import BrokerProcess
from twisted_broker.cli.verify import verify_directory

LIMIT_SECONDS = 60
VALUE = b"x" * 2000


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_SECONDS} s: {what}"
        time.sleep(0.02)


class Load:
    """A producer that waits for acks=all; `sent` are the values that were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 1, "enable.idempotence": True}
        )
        self.number = 0
        self.acknowledged: list[int] = []
        self.errors: list[str] = []

    def send(self, count: int) -> None:
        for number in range(self.number, self.number + count):
            self.producer.produce("t", b"%d " % number + VALUE, on_delivery=self.delivered)
        self.number += count
        self.producer.flush(LIMIT_SECONDS)

    def delivered(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged.append(int(message.value().split()[0]))  # type: ignore[attr-defined]
        else:
            self.errors.append(str(error))


def consumed(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found: list[int] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None
            found.append(int((message.value() or b"").split()[0]))
    consumer.close()
    return found


def test_moved_there_and_back_under_load_with_a_kill(tmp_path: Path) -> None:
    """Nothing is lost, nothing is there twice, whatever the moment; a copy that a killed process
    left is filled by the next one.
    """
    paths = [tmp_path / "a", tmp_path / "b"]
    settings = {"log.segment.delete.delay.ms": "100"}
    data = ",".join(map(str, paths))
    broker = BrokerProcess(tmp_path / "broker", settings, data).start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(LIMIT_SECONDS)
        load = Load(broker.bootstrap)
        load.send(2000)

        def place() -> Path:
            return next(each for each in paths if (each / "t-0").is_dir())

        def move(target: Path) -> None:
            mover = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
            (answer,) = mover.alter_replica_log_dirs({("t", 0, 1): str(target)}).values()
            assert answer.errno == 0
            mover.close()

        def settled() -> bool:
            return [len(list(each.glob("t-0*"))) for each in paths] in ([0, 1], [1, 0])

        for _ in range(2):
            target = next(each for each in paths if each != place())
            move(target)
            deadline = time.monotonic() + LIMIT_SECONDS
            while not settled() or place() != target:
                load.send(50)
                assert time.monotonic() < deadline, "the move does not end"
        target = next(each for each in paths if each != place())
        move(target)
        load.send(5)
        broker.kill()
        broker.start()
        until(lambda: settled() and place() == target, "it goes on after a restart")
        load.send(10)
        assert not load.errors
        assert consumed(broker.bootstrap, load.number) == list(range(load.number))
        assert load.acknowledged == list(range(load.number))
    finally:
        broker.stop()
    for each in paths:
        assert verify_directory(each, with_records=True).findings == []
