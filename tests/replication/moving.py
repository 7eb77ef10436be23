"""A broker with two log directories on a simulated disk: a replica manager over the production log
manager, one partition that moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.log.batches import all_batches
from tests.replication.fixtures import (
    TOPIC_ID,
    TP,
    WALL_MS,
    batch,
    broker_registration,
    registration,
)
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.image.entries import TopicImage
from twisted_broker.image.metadata_image import TOPIC_RESOURCE, MetadataDelta, MetadataImage
from twisted_broker.interfaces import IDiskWorker, Runtime, TopicPartition
from twisted_broker.log.log import Log
from twisted_broker.log.log_manager import LogManager
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.replication.directory_moves import alter_replica_log_dirs
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.replica_manager import ReplicaManager

DIRECTORIES = "/a,/b,/c"


class Assignments:
    """The controller, as moves see it: `answers` False keeps it from accepting."""

    def __init__(self, answers: bool = True) -> None:
        self.answers = answers
        self.assigned: list[bytes] = []
        self.reverted: list[bytes] = []
        self.lost: list[TopicPartition] = []
        self.done = 0
        self.waiting: list[Callable[[], None]] = []

    def assign(
        self, topic_id: bytes, name: TopicPartition, directory: bytes, accepted: Any
    ) -> None:
        self.assigned.append(directory)
        self.waiting.append(accepted)
        if self.answers:
            self.answer()

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for accepted in waiting:
            accepted()

    def moved(self, topic_id: bytes, name: TopicPartition) -> None:
        self.done += 1

    def revert(self, topic_id: bytes, name: TopicPartition, directory: bytes) -> None:
        self.reverted.append(directory)

    def failed(self, topic_id: bytes, name: TopicPartition) -> None:
        self.lost.append(name)


class Moving:
    """`start` loads what is on the disk and takes the role."""

    def __init__(
        self,
        files: MemoryFileSystem | None = None,
        answers: bool = True,
        worker: Callable[[Clock], IDiskWorker] = lambda clock: InlineWorker(),
        state: Any = None,
        overrides: dict[str, str] | None = None,
        **settings: str,
    ) -> None:
        self.clock = Clock()
        self.clock.advance(100)
        self.files = MemoryFileSystem() if files is None else files
        self.runtime = Runtime(
            self.clock,
            lambda: WALL_MS,
            None,
            self.files,
            lambda directory: worker(self.clock),
            Random(3),
        )
        self.config = BrokerConfig(
            {
                "node.id": "1",
                "log.dirs": DIRECTORIES,
                "log.cleaner.enable": "false",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.failed: list[str] = []
        self.log_manager = LogManager(self.runtime, self.config, self._directory_failed)
        self.assignments = Assignments(answers)
        self.image = MetadataImage(brokers={node: broker_registration(node) for node in (1, 2)})
        self.state = state or registration()
        self.overrides = overrides or {}
        self.replicas: ReplicaManager

    def _directory_failed(self, path: str, error: OSError) -> None:
        self.failed.append(path)
        self.replicas.directory_failed(path, error)

    def start(self) -> Moving:
        started: list[Any] = []
        self.log_manager.start("cluster").addBoth(started.append)
        self.turns(5)
        assert started == [None], started
        self.replicas = ReplicaManager(
            1,
            self.runtime,
            self.config,
            self.log_manager,
            self,
            assignments=self.assignments,
        )
        self.take_role(self.state)
        return self

    def take_role(self, state: Any) -> None:
        topic = TopicImage("t", TOPIC_ID, {0: state})
        self.publish(
            topics_by_name={"t": topic},
            topics_by_id={TOPIC_ID: topic},
            configs={(TOPIC_RESOURCE, "t"): self.overrides},
        )

    def publish(self, **changes: Any) -> None:
        before = self.image
        self.image = replace(before, offset=before.offset + 1, **changes)
        delta = MetadataDelta.between(before, self.image)
        delta.by_comparison = False
        self.replicas.apply_delta(delta, self.image)

    def stop(self) -> MemoryFileSystem:
        self.replicas.shutdown()
        stopped: Deferred[None] = self.log_manager.shutdown()
        assert stopped.called
        return self.files

    @property
    def partition(self) -> Partition:
        return self.replicas.partitions[TP]

    @property
    def log(self) -> Log:
        log = self.partition.log
        assert log is not None
        return log

    @property
    def place(self) -> str:
        return self.log.directory.rpartition("/")[0]

    @property
    def other(self) -> str:
        return next(each for each in ("/a", "/b") if each != self.place)

    def produce(self, count: int = 1, **options: Any) -> None:
        for _ in range(count):
            (outcome,) = self.replicas.produce([(TP, batch(**options))], 1)
            assert not outcome.error, outcome

    def move(self, path: str) -> None:
        alter_replica_log_dirs(self.replicas, TP, path)
        self.replicas.drain()

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance(0)

    def settle(self, seconds: float = 10.0) -> None:
        """Until nothing moves any more, at most so long."""
        until = self.clock.seconds() + seconds
        while self.replicas.moves.moves and self.clock.seconds() < until:
            self.clock.advance(0.01)
        self.turns(5)

    def records(self) -> list[bytes]:
        """All batches of the partition."""
        return [each.to_bytes() for each in all_batches(self.log)]

    def names(self, path: str) -> list[str]:
        """What lies there of the partition, unique parts left out."""
        return sorted(
            name.partition(".")[0] + ("-" + name.rpartition("-")[2] if "." in name else "")
            for name in self.files.listdir(path)
            if name.startswith("t-0")
        )
