"""A controller and brokers as processes of their own, by Kafka's own settings; and what clients
see of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.broker_process import BrokerProcess

PATIENCE_SECONDS = 100
SESSION_MS = 2500


class ControllerProcess(BrokerProcess):
    """A node that is the controller and nothing else. `address` is the controller's."""

    def __init__(self, directory: Path) -> None:
        settings = {
            "process.roles": "controller",
            "node.id": "100",
            "broker.session.timeout.ms": str(SESSION_MS),
        }
        super().__init__(directory, settings | {"listeners": "CONTROLLER://127.0.0.1:0"})

    def start(self) -> ControllerProcess:
        self.spawn()
        self.bootstrap = str(self.run()["controller"])
        self.settings["listeners"] = f"CONTROLLER://{self.bootstrap}"
        return self


class Cluster:
    """One controller, brokers 1 to `count`; `more`: their other settings, with `_` for `.`."""

    def __init__(self, directory: Path, count: int = 3, **more: str) -> None:
        self.controller = ControllerProcess(directory / "controller")
        self.more = {name.replace("_", "."): value for name, value in more.items()}
        self.directory = directory
        self.brokers: dict[int, BrokerProcess] = {}
        self.count = count

    def start(self) -> Cluster:
        self.controller.start()
        for node_id in range(1, self.count + 1):
            self.brokers[node_id] = self.new_broker(node_id)
            self.brokers[node_id].spawn(wait=False)
        for broker in self.brokers.values():
            broker.await_ready()
        return self

    def new_broker(self, node_id: int, name: str = "") -> BrokerProcess:
        settings = {
            "process.roles": "broker",
            "node.id": str(node_id),
            "controller.quorum.bootstrap.servers": self.controller.bootstrap,
            "broker.heartbeat.interval.ms": "400",
            "replica.fetch.backoff.ms": "200",
            "replica.lag.time.max.ms": "4000",
            "offsets.topic.replication.factor": str(min(3, self.count)),
            "transaction.state.log.replication.factor": str(min(3, self.count)),
            "transaction.state.log.min.isr": str(min(2, self.count)),
            **self.more,
        }
        return BrokerProcess(self.directory / (name or f"broker-{node_id}"), settings)

    def end(self) -> None:
        for process in (*self.brokers.values(), self.controller):
            process.kill()

    def make_whole(self) -> None:
        """Starts what a failed test left dead."""
        for process in (self.controller, *self.brokers.values()):
            if process.process is None:
                process.start()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def log_tail(self) -> str:
        return "\n".join(
            f"--- {process.directory.name}\n{process.log_tail()}"
            for process in (self.controller, *self.brokers.values())
        )


class View:
    """What a client sees of a cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create(self, topic: str, partitions: int = 3, replicas: int = 3, **settings: str) -> None:
        config = {name.replace("_", "."): value for name, value in settings.items()}
        self.admin.create_topics([NewTopic(topic, partitions, replicas, config=config)])[
            topic
        ].result(PATIENCE_SECONDS)
        self.until(
            lambda: (
                set(self.leaders(topic).values()) - {-1} and len(self.leaders(topic)) == partitions
            ),
            f"{topic} is there",
        )

    def partitions(self, topic: str) -> dict[int, tuple[int, list[int]]]:
        """partition -> (leader, ISR in order of id).

        Any broker is asked: one that has not heard of the topic yet is asked again.
        """
        found: dict[int, tuple[int, list[int]]] = {}

        def is_known() -> bool:
            told = self.admin.list_topics(topic, timeout=60).topics[topic]
            found.update(
                {
                    number: (each.leader, sorted(each.isrs))
                    for number, each in told.partitions.items()
                }
            )
            return bool(found)

        self.until(is_known, f"{topic} is known")
        return found

    def leaders(self, topic: str) -> dict[int, int]:
        return {number: leader for number, (leader, _) in self.partitions(topic).items()}

    def in_sync(self, topic: str) -> set[int]:
        """Who is in the ISR of every partition."""
        return set.intersection(*(set(isr) for _, isr in self.partitions(topic).values()))

    def coordinator(self, group: str) -> int:
        """Who coordinates a group; -1: nobody now."""
        fresh = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0}
        )  # one that asked before keeps to a coordinator that died
        described = fresh.describe_consumer_groups([group], request_timeout=3)[group].result(5)
        return -1 if described.coordinator is None else int(described.coordinator.id)

    def committed(self, group: str) -> dict[int, int]:
        """partition -> committed offset, of the one topic that the group reads."""
        asked = self.admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], require_stable=True, request_timeout=60
        )
        return {each.partition: each.offset for each in asked[group].result(10).topic_partitions}

    def until(self, condition: Callable[[], Any], what: str) -> float:
        """Seconds until the condition held; a client's errors meanwhile are part of the wait."""
        began = time.monotonic()
        last: object = None
        while time.monotonic() - began < PATIENCE_SECONDS:
            try:
                last = condition()
                if last:
                    return time.monotonic() - began
            except (KafkaException, TimeoutError) as error:
                last = error
            time.sleep(0.02)
        raise AssertionError(f"not within {PATIENCE_SECONDS} s: {what} (last: {last})")

    @contextmanager
    def producing(self, topic: str) -> Iterator[Writer]:
        writer = Writer(self.bootstrap, topic)
        try:
            yield writer
        finally:
            writer.stop()

    def check_once(self, writer: Writer) -> None:
        """Every record of a writer that has stopped was acknowledged, and is in its topic once."""
        assert not writer.failed
        found = self.values(writer.topic, set(writer.acknowledged))
        assert len(found) == len(set(found)), "a record is there twice"
        assert set(found) == set(writer.acknowledged)

    def values(self, topic: str, wanted: set[str]) -> list[str]:
        """All values of a topic, read until `wanted` are there, in the order of their
        partitions.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "check",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in self.leaders(topic)])
        found: dict[int, list[str]] = {}
        missing = set(wanted)
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while missing and time.monotonic() < deadline:
                for message in consumer.consume(1000, 0.2):
                    assert message.error() is None, message.error()
                    value = message.value().decode()
                    found.setdefault(message.partition(), []).append(value)
                    missing.discard(value)
        finally:
            consumer.close()
        assert not missing, (
            f"{len(missing)} acknowledged records are lost, among them {sorted(missing)[:5]}"
        )
        return [value for number in sorted(found) for value in found[number]]


class Writer:
    """An idempotent producer with acks=all that writes numbers until it is told to stop.

    `acknowledged` and `failed` are values.
    """

    def __init__(self, bootstrap: str, topic: str, pace_seconds: float = 0.001) -> None:
        self.topic, self._pace_seconds = topic, pace_seconds
        self.acknowledged: list[str] = []
        self.failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        self._enough = Event()
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._enough.wait(self._pace_seconds):
            value = str(number)
            self._producer.produce(
                self.topic,
                value.encode(),
                on_delivery=partial(self._on_delivery, value),
            )
            self._producer.poll(0)
            number += 1

    def _on_delivery(self, value: str, error: object, _: object) -> None:
        self._delivered(error, value)

    def _delivered(self, error: object, value: str) -> None:
        (self.acknowledged if error is None else self.failed).append(value)

    def progress(self) -> Callable[[], bool]:
        """A condition: records have been acknowledged that were not when this was called."""
        before = len(self.acknowledged)
        return lambda: len(self.acknowledged) > before + 20

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()
        assert not self._producer.flush(PATIENCE_SECONDS), "records are still on the way"


class Reader:
    """A consumer of a group that commits as it goes, until it is told to stop.

    `seen` is (partition, offset, value) in the order of reading.
    """

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.seen: list[tuple[int, int, str]] = []
        self.errors: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self._enough = Event()
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._enough.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.seen.append(
                        (message.partition(), message.offset(), message.value().decode())
                    )
                elif message.error().fatal():
                    self.errors.append(str(message.error()))

    def values(self) -> set[str]:
        return {value for _, _, value in list(self.seen)}

    def progress(self) -> Callable[[], bool]:
        """A condition: records have been read that were not when this was called."""
        before = len(self.seen)
        return lambda: len(self.seen) > before + 20

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()
        self._consumer.close()
