"""Rows of docs/FAULTS.md that Apache Kafka can show too: on 4.3.1, behind a proxy that loses and
holds what passes, each cell is what the page says.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.compat.kafka_processes import JavaNode, require
from tests.compat.test_kafka_cleaner import free_port

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.timeout(300)]
HERE = Path(__file__).parents[2]
SECONDS = 60.0
RESET = struct.pack("ii", 1, 0)


def _faults() -> Any:
    spec = importlib.util.spec_from_file_location("faults", HERE / "docs" / "faults.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


faults = _faults()
CLIENTS = {**faults.CLIENTS, "Java": faults.java}
BY_PROXY = ("answer lost", "request lost", "no answer", "answer after the time-out")


def page_cells() -> dict[tuple[bool, str, str], str]:
    """Of FAULTS.md, by idempotence, row and client."""
    found = {}
    for idempotent, part in enumerate((HERE / "docs/FAULTS.md").read_text().split("\n## ")[1:]):
        head, _, *rows = [line.strip("|").split("|") for line in re.findall(r"^\|.*$", part, re.M)]
        for row in rows:
            for client, cell in zip(head[1:], row[1:], strict=True):
                found[bool(idempotent), row[0].strip(), client.strip()] = cell.strip()
    return found


class Proxy:
    """Between all clients and the node. `arm(kind)`: what the next Produce meets."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.goal = 0
        self._armed, self._lock = "", threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, kind: str) -> None:
        self._armed = kind

    def disarm(self, _: Any = None) -> bool:
        """Whether it struck."""
        was, self._armed = self._armed, ""
        return not was

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            node = socket.create_connection(("127.0.0.1", self.goal))
            lost: set[int] = set()
            back = threading.Thread(
                target=self._pass, args=(node, client, lambda frame: self._answer(frame, lost))
            )
            back.daemon = True
            back.start()
            self._pass(client, node, lambda frame: self._request(frame, lost))

    def _pass(
        self, one: socket.socket, other: socket.socket, look: Callable[[bytes], bool]
    ) -> None:
        """Frames, as long as `look` lets them."""
        with suppress(OSError), one.makefile("rb") as stream:
            while head := stream.read(4):
                frame = stream.read(int.from_bytes(head))
                if not look(frame):
                    break
                other.sendall(head + frame)
        for each in (one, other):
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _request(self, frame: bytes, lost: set[int]) -> bool:
        with self._lock:
            if frame[:2] != b"\0\0" or not self._armed:
                return True
            kind, self._armed = self._armed, ""
        if kind == "answer lost":
            lost.add(int.from_bytes(frame[4:8]))
        elif kind == "no answer":
            time.sleep(2 * SECONDS)  # its client gives it up before
        elif kind == "answer after the time-out":
            time.sleep(2)
        return kind not in ("request lost", "no answer")

    def _answer(self, frame: bytes, lost: set[int]) -> bool:
        return int.from_bytes(frame[:4]) not in lost

    def close(self) -> None:
        self._listening.close()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Before a node of Apache Kafka."""
    require("kafka-tools")
    made = Proxy()
    client, controller = free_port(), free_port()
    made.goal = int(client)
    node = JavaNode(
        tmp_path_factory.mktemp("kafka") / "node",
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{made.port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "offsets.topic.replication.factor": "1",
        },
    )
    node.format()
    node.spawn()
    try:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{made.port}", "log_level": 0})
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                admin.list_topics(timeout=5)
                break
            except KafkaException:
                assert time.monotonic() < deadline, node.log_tail()
        yield made
    finally:
        made.close()
        node.kill()


def values(bootstrap: str, topic: str) -> list[str]:
    """Of partition 0, without those that only tried."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        deadline = time.monotonic() + 1.5  # what a client has given up may come yet
        found: list[Any] = []
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (
            time.monotonic() < deadline
            or len(found) < consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1]
        ):
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
        return [each for each in found if each != "try"]
    finally:
        consumer.close()


def _note(told: list[bool], error: Any, message: Any) -> None:
    told.append(bool(error))


class TooLarge:
    """No record fits into the topic, for a while."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.producer = Producer({"bootstrap.servers": bootstrap})
        self.topic = topic

    def limit(self, size: int) -> None:
        """Ends when the node obeys."""
        entry = ConfigEntry(
            "max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        (done,) = self.admin.incremental_alter_configs([resource]).values()
        done.result(SECONDS)
        wanted, said = size < 100, None
        while said != wanted:
            told: list[bool] = []
            self.producer.produce(self.topic, "try", on_delivery=partial(_note, told))
            self.producer.flush(SECONDS)
            (said,) = told

    def lift(self, _: Any) -> bool:
        self.limit(100_000)
        return True


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("row", [*BY_PROXY, "MESSAGE_TOO_LARGE"])
def test_a_cell(proxy: Proxy, row: str, client: str, idempotent: bool) -> None:
    if client == "Java" and not (os.environ.get("KAFKA_JARS") and shutil.which("javac")):
        pytest.skip("no JDK")
    bootstrap = f"127.0.0.1:{proxy.port}"
    topic = re.sub("[^a-z]", "-", f"{row}-{client}-{idempotent}".lower())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    with CLIENTS[client](bootstrap, idempotent, topic) as send:
        if row in BY_PROXY:
            strike: Callable[[], Any] = lambda: proxy.arm(row)  # noqa: E731
            has_struck: Callable[[Any], bool] = proxy.disarm
        else:
            small = TooLarge(bootstrap, topic)
            strike, has_struck = (lambda: small.limit(60)), small.lift
        found = faults.outcome(send, strike, has_struck, lambda: values(bootstrap, topic))
    assert found == page_cells()[idempotent, row, client]
