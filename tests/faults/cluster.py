"""A controller and three brokers as processes, every connection of theirs through a relay; what
they say of themselves past the relays.

1. Nodes have names: broker N is `"N"`, the controller `CONTROLLER`; combined, broker 1 is the
   controller too, and there is no other. Of a quorum all three brokers are, and the controller is
   whoever is active.
2. A node keeps its ports over its restarts.
3. Waiting is for conditions, as long as `PATIENCE_SECONDS`, which a loaded machine must be able to
   meet.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.faults.asking import NO_ANSWER, Address, PartitionHistory, create_topic, standings
from tests.faults.node import PATIENCE_SECONDS, Node
from tests.faults.relay import BEHIND, FRONT, Relays
from tests.faults.security import PLAINTEXT, add_user, secured
from twisted_broker.cli.tls import make_certificates
from twisted_broker.interfaces import TopicPartition

CONTROLLER = "100"
CLUSTER_ID = "Q" * 22
BROKERS = ("1", "2", "3")
SESSION_MS = 2500
_LOOK_SECONDS = 0.05
_TOPIC_EXISTS = 36
_SETTINGS = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "400",
    "replica.fetch.backoff.ms": "200",
    "replica.lag.time.max.ms": "4000",
    "replica.socket.timeout.ms": "5000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "min.insync.replicas": "2",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}


def _newest_epoch(node: Node) -> int:
    """That it led, by its log."""
    try:
        text = node.log.read_text(errors="replace")
    except FileNotFoundError:
        return 0
    return max(map(int, re.findall(r"controller active .*?epoch=(\d+)", text)), default=0)


_OF_THREE = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
"""A node that is a controller has Kafka's sample otherwise: one replica."""


class Cluster:
    """Three brokers and their controller. Use as a context."""

    def __init__(
        self,
        directory: Path,
        relays: Relays,
        combined: bool = False,
        more: Mapping[str, str] | None = None,
        security: str = PLAINTEXT,
        is_quorum: bool = False,
    ) -> None:
        """`more`: settings of the brokers. `security`: of all connections but those of `asking`,
        which go past the relays to a listener of their own.
        """
        self.relays, self.combined, self._more = relays, combined or is_quorum, dict(more or {})
        self._voters = {name: relays.front(name) for name in BROKERS} if is_quorum else {}
        self.nodes: dict[str, Node] = {}
        self._client_ports: dict[str, int] = {}
        self._directory, self._is_secured = directory, security != PLAINTEXT
        if self._is_secured:
            make_certificates(directory / "tls", (FRONT,))
            relays.pids = lambda: {
                node.name: node.process.pid
                for node in self.nodes.values()
                if node.process is not None
            }
        controller = "1" if self.combined else CONTROLLER
        self.controller_port = self._voters.get(controller) or relays.front(controller)
        if not self.combined:
            settings = {
                "process.roles": "controller",
                "node.id": CONTROLLER,
                "listeners": self._controller(BEHIND),
            }
            settings |= {
                "advertised.listeners": self._controller(FRONT),
                "broker.session.timeout.ms": str(SESSION_MS),
            }
            settings |= self._security()
            self.nodes[CONTROLLER] = Node(CONTROLLER, directory / "controller", settings)
        for name in BROKERS:
            self.nodes[name] = self._broker(name, directory / f"broker-{name}")
        if self._is_secured:
            add_user(self.controller)

    @property
    def authority(self) -> str:
        """The file of the certificate that clients trust; "" without security."""
        return str(self._directory / "tls/ca.pem") if self._is_secured else ""

    def _security(self) -> dict[str, str]:
        return secured(self._directory / "tls") if self._is_secured else {}

    def _controller(self, host: str) -> str:
        return f"CONTROLLER://{host}:{self.controller_port}"

    def _broker(self, name: str, directory: Path) -> Node:
        ports = {"PLAINTEXT": self.relays.front(name), "BROKERS": self.relays.front(name)}
        self._client_ports[name] = ports["PLAINTEXT"]
        if self._is_secured:
            self._client_ports[name] = ports["CLIENTS"] = self.relays.front(name)
        is_controller = name in self._voters or (self.combined and name == "1")

        def listeners(host: str) -> str:
            port = self._voters.get(name, self.controller_port)
            own = [f"CONTROLLER://{host}:{port}"] if is_controller else []
            return ",".join(
                [*(f"{listener}://{host}:{port}" for listener, port in ports.items()), *own]
            )

        settings = (
            _SETTINGS
            | self._security()
            | self._more
            | {
                "node.id": name,
                "listeners": listeners(BEHIND),
                "advertised.listeners": listeners(FRONT),
            }
        )
        settings["process.roles"] = "broker,controller" if is_controller else "broker"
        if not is_controller:
            settings["controller.quorum.bootstrap.servers"] = f"{FRONT}:{self.controller_port}"
        if self._voters:
            settings |= _OF_THREE
            settings["controller.quorum.voters"] = ",".join(
                f"{voter}@{FRONT}:{port}" for voter, port in self._voters.items()
            )
        node = Node(name, directory, settings, ports["PLAINTEXT"])
        node.more = ["--cluster-id", CLUSTER_ID] if self._voters else []
        return node

    @property
    def brokers(self) -> list[Node]:
        return [self.nodes[name] for name in BROKERS]

    @property
    def controller(self) -> Node:
        """Of a quorum the one that became active last."""
        if self._voters:
            return max(self.brokers, key=_newest_epoch)
        return self.nodes["1" if self.combined else CONTROLLER]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{FRONT}:{self._client_ports[name]}" for name in BROKERS)

    @property
    def addresses(self) -> dict[int, Address]:
        return {int(broker.name): broker.address for broker in self.brokers}

    def __enter__(self) -> Cluster:
        try:
            self.start_all()
        except BaseException:
            self.kill_all()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill_all()

    def start_all(self) -> None:
        """What does not run starts, all at once."""
        down = [node for node in self.nodes.values() if node.process is None]
        for node in down:
            node.spawn(wait=False)
        for node in down:
            node.await_run_file()

    def kill_all(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def stop_all(self) -> None:
        """In order, the controller last."""
        for node in sorted(self.nodes.values(), key=lambda node: node is self.controller):
            node.stop()

    def heal(self) -> None:
        """All ways are open, all processes run."""
        self.relays.heal()
        for node in self.nodes.values():
            node.go_on()
        self.start_all()

    def log_tail(self) -> str:
        return "\n".join(
            f"--- {node.directory.name}\n{node.log_tail()}" for node in self.nodes.values()
        )

    # what it says of itself

    def create_topic(
        self, topic: str, partitions: int, settings: Mapping[str, str] | None = None
    ) -> None:
        def is_made() -> bool:
            return create_topic(self.brokers[0].address, topic, partitions, 3, settings or {}) in (
                0,
                _TOPIC_EXISTS,
            )

        self.until(is_made, f"{topic} is made")
        self.until(
            lambda: len(self.standings(topic)) == partitions and not self.sick(),
            f"{topic} is in sync",
        )

    def views(self) -> Iterator[dict[TopicPartition, PartitionHistory]]:
        """What each broker that answers says of all partitions."""
        for broker in self.brokers:
            if broker.process is not None and not broker.is_stopped:
                try:
                    yield standings(broker.address)
                except NO_ANSWER:
                    continue

    def standings(self, topic: str) -> dict[TopicPartition, PartitionHistory]:
        """What the broker that heard the latest says: of each partition, the highest epoch."""
        found: dict[TopicPartition, PartitionHistory] = {}
        for view in self.views():
            for partition, standing in view.items():
                if (
                    partition.topic == topic
                    and standing.epoch >= found.get(partition, standing).epoch
                ):
                    found[partition] = standing
        return found

    def sick(self) -> str:
        """What is not as it should be, "" when all brokers answer and say the same: everything
        is led, and in sync everywhere.
        """
        views = list(self.views())
        if len(views) < len(BROKERS):
            return f"{len(views)} brokers answer"
        whole = tuple(map(int, BROKERS))
        wrong = [
            f"{name} {each}"
            for view in views
            for name, each in view.items()
            if each.leader < 0 or each.isr != whole
        ]
        if wrong or any(view != views[0] for view in views):
            return wrong[0] if wrong else "brokers see different things"
        return ""

    def led_by(self, name: str) -> int:
        """How many partitions this broker leads, as far as the others know."""
        best: dict[TopicPartition, PartitionHistory] = {}
        for view in self.views():
            for partition, standing in view.items():
                if standing.epoch >= best.get(partition, standing).epoch:
                    best[partition] = standing
        return sum(standing.leader == int(name) for standing in best.values())

    def until(
        self,
        condition: Callable[[], Any],
        what: str | Callable[[], str],
        patience: float = PATIENCE_SECONDS,
        look: float = _LOOK_SECONDS,
    ) -> float:
        """Seconds until the condition held, looked at every `look` seconds. Raises TimeoutError."""
        began = time.monotonic()
        while True:
            with_error = ""
            try:
                if condition():
                    return time.monotonic() - began
            except (*NO_ANSWER, LookupError) as error:
                with_error = f" ({error!r})"
            if time.monotonic() - began > patience:
                raise TimeoutError(
                    f"not within {patience} s: {what() if callable(what) else what}{with_error}"
                )
            time.sleep(look)


def ways(first: str, *others: str) -> list[tuple[str, str]]:
    """Both ways between the first and each of the others."""
    return [way for other in others for way in ((first, other), (other, first))]
