"""A controller on a disk in memory, under a clock that tests move."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from twisted_broker.api import audit
from twisted_broker.api import controller as controller_requests
from twisted_broker.api.context import BrokerParts, ListenerName, RequestContext
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.features import SUPPORTED_FEATURES
from twisted_broker.cluster.metadata_log import MetadataLog, open_metadata_log
from twisted_broker.cluster.records import decoded_in_steps
from twisted_broker.image.entries import Endpoint
from twisted_broker.interfaces import Runtime
from twisted_broker.log.errors import OutOfDescriptors
from twisted_broker.log.log import Log
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.security.acl import AllowAll
from twisted_broker.wire.messages import broker_lifecycle as lifecycle
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from twisted_broker.wire.records import BatchView
from twisted_broker.wire.schema import Record, run_whole

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAg"
DIRECTORY_ID = b"\x11" * 16


def decoded(batch: BatchView) -> list[Record]:
    """The records of a data batch."""
    return run_whole(decoded_in_steps(batch))


def short_at_the_second(
    monkeypatch: pytest.MonkeyPatch, owner: type[Log | MetadataLog], name: str, times: int = 1
) -> list[Any]:
    """From its second call on this method finds no descriptor so many times; who was called so
    far.
    """
    append, calls = getattr(owner, name), list[Any]()

    def short(log: Log | MetadataLog, *arguments: Any) -> Any:
        calls.append(log)
        if 2 <= len(calls) < 2 + times:
            raise OutOfDescriptors("/data", OSError(errno.EMFILE, "too many open files"))
        return append(log, *arguments)

    monkeypatch.setattr(owner, name, short)
    return calls


class StalledWorker:
    """A disk whose jobs are done when the test says."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        self.jobs.append((job, done))

    def run(self, error: BaseException | None = None) -> None:
        """Does everything submitted, or fails it."""
        jobs, self.jobs = self.jobs, []
        for job, done in jobs:
            if error is None:
                done(job(), None)
            else:
                done(None, error)

    def stop(self) -> None: ...


def one_replica(name: str, partitions: int) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)


class Fixture:
    """One controller and what it stands on.

    `ask` calls a request function and gives its answer, which must be there at once.
    """

    def __init__(self, worker: Any = None, settings: dict[str, str] | None = None) -> None:
        self.clock = Clock()
        self.files = MemoryFileSystem()
        self.files.make_directories("/data")
        self.worker = worker or InlineWorker()
        self.wall_ms = 1_700_000_000_000
        self.runtime = Runtime(
            self.clock, self.now, None, self.files, lambda directory: self.worker, Random(7)
        )
        self.config = BrokerConfig({"node.id": "1", **(settings or {})})
        self.authorizer: Any = AllowAll()
        self.directory = "/data"
        self.fatal: list[BaseException] = []
        self.controller = self.open()

    def now(self) -> int:
        return self.wall_ms + int(self.clock.seconds() * 1000)

    def open(self) -> Controller:
        open_log = partial(open_metadata_log, self.files, self.worker, self.directory, 1, self.now)
        return Controller(
            CLUSTER_ID, self.runtime, self.config, open_log, on_fatal=self.fatal.append
        )

    def start(self) -> Fixture:
        self.controller.start([Endpoint("CONTROLLER", "127.0.0.1", 9093)])
        return self

    def restart(self) -> Fixture:
        """As after a crash: nothing is closed."""
        if self.controller._ticks.running:
            self.controller._ticks.stop()
        self.controller = self.open()
        return self.start()

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            self.clock.advance(0.5)

    def context(self, version: int) -> RequestContext:
        parts = BrokerParts(
            node_id=1,
            cluster_id=CLUSTER_ID,
            config=self.config,
            runtime=self.runtime,
            authorizer=self.authorizer,
            controller=self.controller,
        )
        return RequestContext(parts, ListenerName("CONTROLLER", True), 0, version, 1, "test")

    def send(self, name: str, request: Any, version: int) -> Any:
        """A Deferred; what is in its `result` the test knows."""
        context = self.context(version)
        sent = ensureDeferred(getattr(controller_requests, name)(context, request))
        audit.denied(context)  # as the dispatcher does with each answer
        return sent

    def ask(self, name: str, request: Any, version: int) -> Any:
        results: list[Any] = []
        deferred = self.send(name, request, version)
        deferred.addBoth(results.append)
        assert results, f"{name} still waits"
        if hasattr(results[0], "raiseException"):
            results[0].raiseException()
        return results[0]

    def create_topics(
        self, *topics: CreatableTopic, validate_only: bool = False
    ) -> list[CreatableTopicResult]:
        request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
        results: list[CreatableTopicResult] = self.ask("create_topics", request, 7).topics
        return results

    def create_topic(self, name: str, partitions: int = 1) -> None:
        (result,) = self.create_topics(one_replica(name, partitions))
        assert result.error_code == 0

    def send_creation(self, name: str, partitions: int = 1) -> Any:
        """As `create_topic`, with a Deferred for an answer that may have to wait."""
        request = CreateTopicsRequest(topics=[one_replica(name, partitions)])
        return self.send("create_topics", request, 7)

    def registration(
        self, broker: int = 1, incarnation: bytes = b"i" * 16, **changes: Any
    ) -> lifecycle.BrokerRegistrationRequest:
        values: dict[str, Any] = {
            "broker_id": broker,
            "cluster_id": CLUSTER_ID,
            "incarnation_id": incarnation,
            "listeners": [
                lifecycle.BrokerRegistrationRequestListener(
                    name="PLAINTEXT", host="127.0.0.1", port=9092, security_protocol=0
                )
            ],
            "features": [
                lifecycle.BrokerRegistrationRequestFeature(
                    name=name,
                    min_supported_version=r.min_version,
                    max_supported_version=r.max_version,
                )
                for name, r in SUPPORTED_FEATURES.items()
            ],
            "log_dirs": [DIRECTORY_ID[:15] + bytes([broker])],
            "previous_broker_epoch": -1,
            "rack": None,
        }
        return lifecycle.BrokerRegistrationRequest(**(values | changes))

    def register(self, broker: int = 1, incarnation: bytes = b"i" * 16, **changes: Any) -> int:
        return self.ask(
            "broker_registration", self.registration(broker, incarnation, **changes), 4
        ).broker_epoch

    def beat(self, broker: int, epoch: int, **changes: Any) -> lifecycle.BrokerHeartbeatResponse:
        values: dict[str, Any] = {
            "broker_id": broker,
            "broker_epoch": epoch,
            "current_metadata_offset": self.controller.log.high_watermark - 1,
            "want_fence": False,
            "want_shut_down": False,
        }
        return self.ask(
            "broker_heartbeat", lifecycle.BrokerHeartbeatRequest(**(values | changes)), 2
        )

    def lifecycle_beat(self, broker: int, epoch: int) -> Deferred[Any]:
        """A heartbeat whose answer may have to wait."""
        offset = self.controller.log.high_watermark - 1
        request = lifecycle.BrokerHeartbeatRequest(
            broker_id=broker, broker_epoch=epoch, current_metadata_offset=offset
        )
        return self.send("broker_heartbeat", request, 2)

    def join(self, broker: int = 1, **changes: Any) -> int:
        """Registers and unfences a broker; its epoch."""
        epoch = self.register(broker, bytes([broker]) * 16, **changes)
        self.beat(broker, epoch)
        return epoch
