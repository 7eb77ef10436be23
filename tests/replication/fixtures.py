"""A partition, or a whole replica manager, on the in-memory disk and Twisted's Clock."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.image.entries import (
    BrokerRegistration,
    PartitionRegistration,
    TopicImage,
)
from twisted_broker.image.metadata_image import (
    TOPIC_RESOURCE,
    MetadataDelta,
    MetadataImage,
    PartitionDelta,
)
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.log import Log
from twisted_broker.log.log_directory import DELETE_SUFFIX, LogDirectory
from twisted_broker.log.log_manager import LogListener
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.log.segment_file import OpenFiles
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.partition.events import IsrChangeWanted
from twisted_broker.replication.partition.fetch_data import (
    HIGH_WATERMARK,
    LOG_END,
    FetchParams,
    FetchPartitionRequest,
)
from twisted_broker.replication.partition.isr_state import IsrAnswer, IsrProposal
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import BatchBuilder

TOPIC_ID = bytes(range(16))
TP = TopicPartition("t", 0)
LOCAL = 1
MAX_LAG_MS = 30_000
WALL_MS = 1_700_000_000_000


def batch(count: int = 1, *, timestamp: int = WALL_MS, value: bytes = b"v", **options) -> bytes:
    """A batch as a producer sends it."""
    builder = BatchBuilder(**options)
    for number in range(count):
        builder.append(timestamp + number, b"k", value)
    return builder.build()


def registration(
    leader: int = LOCAL,
    replicas=(1,),
    isr=None,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    recovery: int = 0,
):
    replicas = tuple(replicas)
    members = replicas if isr is None else tuple(isr)
    directories = (bytes(16),) * len(replicas)
    return PartitionRegistration(
        replicas,
        directories,
        members,
        (),
        (),
        (),
        (),
        leader,
        recovery,
        leader_epoch,
        partition_epoch,
    )


def make_log(
    config: LogConfig | None = None,
    files: MemoryFileSystem | None = None,
    tp: TopicPartition = TP,
    directory: str = "/data",
) -> Log:
    files = files or MemoryFileSystem()
    files.make_directories(f"{directory}/{tp}")
    log = Log(OpenFiles(files), f"{directory}/{tp}", tp, TOPIC_ID, config or LogConfig())
    log.segments.create(0, 0)
    return log


class FakeBrokers:
    """Who is alive, who may be in an ISR, under which epochs."""

    def __init__(self, ids=(1, 2, 3)) -> None:
        self.alive = set(ids)
        self.ineligible: set[int] = set()
        self.leaving: set[int] = set()
        self.epochs = {broker: 100 + broker for broker in ids}

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self.alive

    def may_be_in_isr(self, broker_id: int) -> bool:
        return broker_id in self.alive and broker_id not in self.ineligible

    def is_leaving(self, broker_id: int) -> bool:
        return broker_id in self.leaving

    def epoch_of(self, broker_id: int) -> int:
        return self.epochs.get(broker_id, -1)


class PartitionFixture:
    """One partition led by broker 1, with followers that fetch when told."""

    def __init__(
        self,
        replicas=(1, 2, 3),
        isr=None,
        config: LogConfig | None = None,
        leader_epoch: int = 5,
        lead: bool = True,
    ) -> None:
        self.now_ms = 1_000_000
        self.events: deque = deque()
        self.brokers = FakeBrokers()
        self.log = make_log(config)
        self.partition = Partition(TP, TOPIC_ID, LOCAL, self.events, self.brokers, MAX_LAG_MS)
        if lead:
            self.partition.make_leader(
                registration(LOCAL, replicas, isr, leader_epoch, 10), self.log, self.now_ms
            )
        self.events.clear()

    def append(self, count: int = 1, acks: int = 1):
        return self.partition.append_as_leader(
            batch(count), acks, WALL_MS, self.now_ms, AppendOrigin.CLIENT
        )

    def follower_fetches(
        self,
        broker: int,
        offset: int,
        epoch: int | None = None,
        log_start: int = 0,
        leader_epoch: int = -1,
        last_epoch: int = -1,
    ):
        broker_epoch = self.brokers.epoch_of(broker) if epoch is None else epoch
        params = FetchParams(broker, broker_epoch, 0, 1, 1_000_000, LOG_END)
        request = FetchPartitionRequest(
            TP, None, offset, 1_000_000, leader_epoch, last_epoch, log_start
        )
        result = self.partition.read(request, params, 1_000_000, True, self.now_ms, True)
        result.release()
        return result

    def happened(self) -> list[str]:
        names = [type(event).__name__ for event in self.events]
        self.events.clear()
        return names

    @property
    def isr(self) -> list[int]:
        return sorted(self.partition.isr_state.isr)


def proposed_again(fixture: PartitionFixture, pending, answer: IsrAnswer) -> bool:
    """Whether the leader proposes a pending change once more after an answer."""
    before = fixture.events.count(IsrChangeWanted(fixture.partition, pending))
    fixture.partition.alter_partition_answered(pending, answer, fixture.now_ms)
    return fixture.events.count(IsrChangeWanted(fixture.partition, pending)) > before


class FakeLogManager:
    """Logs in memory, by partition; `broken` partitions cannot be opened."""

    def __init__(self, files: MemoryFileSystem) -> None:
        self.files = files
        self.logs: dict[TopicPartition, Log] = {}
        self.broken: dict[TopicPartition, Exception] = {}
        self.deleted: list[TopicPartition] = []
        self.strays: list[TopicPartition] = []
        self.futures: dict[TopicPartition, Log] = {}
        self.failed_directories: list[str] = []
        self._worker = InlineWorker()
        self._listeners: list[LogListener] = []

    def subscribe(self, listener: LogListener) -> None:
        self._listeners.append(listener)

    def log_start_moved(self, log: Log) -> None:
        for listener in self._listeners:
            listener.log_start_moved(log)

    def log_synced(self, log: Log) -> None:
        for listener in self._listeners:
            listener.log_synced(log)

    def producers_found(self, log: Log) -> None:
        for listener in self._listeners:
            listener.producers_found(log)

    def worker(self, directory: str) -> InlineWorker:
        return self._worker

    @property
    def directories(self) -> FakeLogManager:
        return self

    def fail(self, directory: str, error: OSError) -> None:
        self.failed_directories.append(directory)

    def online(self) -> list[LogDirectory]:
        """None has an id."""
        return []

    def get_or_create(self, tp, topic_id, config, is_new, directory_id=None) -> Log:
        if tp in self.broken:
            raise self.broken[tp]
        if tp not in self.logs:
            self.logs[tp] = make_log(config, self.files, tp)
            self.logs[tp].topic_id = topic_id
        elif self.logs[tp].topic_id is None:
            self.logs[tp].topic_id = topic_id
        return self.logs[tp]

    def get(self, tp: TopicPartition):
        return self.logs.get(tp)

    def __iter__(self):
        return iter(list(self.logs.values()))

    def settle_rivals(self, topic_id_of: Any, is_removed: Any) -> None:
        """No name is here twice."""

    @property
    def moves(self) -> FakeLogManager:
        return self

    def settle(self, is_replica: Any, is_removed: Any) -> None:
        """Nothing moves."""

    def future(self, tp: TopicPartition) -> Log | None:
        return self.futures.get(tp)

    def set_stray_aside(self, tp: TopicPartition) -> None:
        self.strays.append(tp)
        del self.logs[tp]

    def delete(self, tp: TopicPartition) -> None:
        self.deleted.append(tp)
        log = self.logs.pop(tp)
        if tp not in self.broken:
            log.rename_directory(f"{log.directory}{DELETE_SUFFIX}")
        log.delete()

    def is_set_aside(self, log: Log) -> bool:
        return log.directory.endswith(DELETE_SUFFIX) and not self.failed_directories

    @property
    def names(self) -> FakeLogManager:
        return self

    def sync_renames(self, logs: Any) -> Deferred[None]:
        return succeed(None)


class FakeController:
    """Takes ISR changes and answers when told."""

    def __init__(self) -> None:
        self.asked: list[tuple[IsrProposal, Deferred]] = []
        self.withdrawn: list[tuple[bytes, int]] = []

    def submit(self, proposal: IsrProposal) -> Deferred:
        answer: Deferred = Deferred()
        self.asked.append((proposal, answer))
        return answer

    def withdraw(self, topic_id: bytes, partition: int) -> None:
        self.withdrawn.append((topic_id, partition))

    def confirm(self) -> None:
        proposal, deferred = self.asked.pop(0)
        isr = frozenset(broker for broker, _ in proposal.members)
        deferred.callback(
            IsrAnswer(
                ErrorCode.NONE, LOCAL, proposal.leader_epoch, isr, 0, proposal.partition_epoch + 1
            )
        )

    def refuse(self, error: ErrorCode) -> None:
        self.asked.pop(0)[1].callback(IsrAnswer(error))


class Fixture:
    """A replica manager of broker 1 and the picture it follows. `create_fetchers` may be
    overridden by a method: what the replica manager fetches with; `manager` by a class of it.
    """

    create_fetchers: Any = None
    manager: Any = ReplicaManager

    def __init__(self, **settings: str) -> None:
        self.clock = Clock()
        self.clock.advance(100)
        self.files = MemoryFileSystem()
        self.files.make_directories("/data")
        self.wall_ms = WALL_MS
        self.runtime = Runtime(
            self.clock,
            lambda: self.wall_ms,
            None,
            self.files,
            lambda directory: InlineWorker(),
            Random(1),
        )
        self.config = BrokerConfig(
            {
                "node.id": "1",
                "log.dirs": "/data",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.image = MetadataImage(brokers={node: broker_registration(node) for node in (1, 2, 3)})
        self.log_manager = FakeLogManager(self.files)
        self.controller = FakeController()
        self.replicas: ReplicaManager = self.manager(
            1,
            self.runtime,
            self.config,
            self.log_manager,
            self,
            self.controller,
            self.create_fetchers,
        )

    def publish(self, **changes) -> None:
        """Moves the picture on and applies the difference."""
        before = self.image
        self.image = replace(before, offset=before.offset + 1, **changes)
        delta = MetadataDelta.between(before, self.image)
        delta.by_comparison = False  # as records would make it
        self.replicas.apply_delta(delta, self.image)

    def topic(
        self, name: str = "t", states=None, topic_id: bytes = TOPIC_ID, overrides=None
    ) -> None:
        """Makes or changes a topic; `states`: partition -> PartitionRegistration."""
        image = TopicImage(name, topic_id, {0: registration()} if states is None else dict(states))
        configs = dict(self.image.configs)
        if overrides is not None:
            configs[TOPIC_RESOURCE, name] = dict(overrides)
        kept = {
            identity: topic
            for identity, topic in self.image.topics_by_id.items()
            if topic.name != name
        }
        self.publish(
            topics_by_name={**self.image.topics_by_name, name: image},
            topics_by_id={**kept, topic_id: image},
            configs=configs,
        )

    def name_goes_to(self, topic_id: bytes, name: str = "t") -> None:
        """The metadata has another topic of that name; its partitions follow in a later turn."""
        topic = TopicImage(name, topic_id, self.image.topics_by_name[name].partitions)
        self.image = replace(
            self.image, topics_by_name={name: topic}, topics_by_id={topic_id: topic}
        )

    def remove_topic(self, name: str = "t") -> None:
        by_name = {key: topic for key, topic in self.image.topics_by_name.items() if key != name}
        self.publish(
            topics_by_name=by_name, topics_by_id={topic.id: topic for topic in by_name.values()}
        )

    def produce(self, count: int = 1, acks: int = 1, tp: TopicPartition = TP, **options):
        (outcome,) = self.replicas.produce([(tp, batch(count, **options))], acks)
        return outcome

    def partition(self, tp: TopicPartition = TP) -> Partition:
        return self.replicas.partitions[tp]

    def advance(self, seconds: float) -> None:
        """From call to call."""
        end = self.clock.seconds() + seconds
        while (calls := self.clock.getDelayedCalls()) and min(
            call.getTime() for call in calls
        ) <= end:
            self.clock.advance(
                max(0.0, min(call.getTime() for call in calls) - self.clock.seconds())
            )
        self.clock.advance(max(0.0, end - self.clock.seconds()))


def tried_again_under(fixture: Fixture, *assignments: tuple[int, ...]) -> list:
    """The image as it is, and one for each assignment, under the next epochs. A role is tried
    again under the newest of them; nothing between them is applied yet.
    """
    images = [fixture.image]
    for epoch, replicas in enumerate(assignments, 1):
        state = registration(replicas[0], replicas, leader_epoch=epoch, partition_epoch=epoch)
        topic = TopicImage("t", TOPIC_ID, {0: state})
        images.append(
            replace(
                images[-1],
                offset=images[-1].offset + 1,
                topics_by_name={"t": topic},
                topics_by_id={TOPIC_ID: topic},
            )
        )
    fixture.image = images[-1]
    change = PartitionDelta("t", TOPIC_ID, 0, None, images[0].partition(*TP))
    fixture.replicas.role_retries.later(change, is_new=False)
    fixture.advance(1)
    return images


def broker_registration(node: int) -> BrokerRegistration:
    return BrokerRegistration(node, 100 + node, bytes(16), {}, {}, None, False, False, ())


def consumer(
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    isolation: int = HIGH_WATERMARK,
    **options,
) -> FetchParams:
    return FetchParams(-1, -1, max_wait_ms, min_bytes, max_bytes, isolation, **options)


def follower(
    broker: int, max_wait_ms: int = 500, min_bytes: int = 1, epoch: int | None = None
) -> FetchParams:
    return FetchParams(
        broker, 100 + broker if epoch is None else epoch, max_wait_ms, min_bytes, 10 << 20, LOG_END
    )


def at(
    offset: int,
    tp: TopicPartition = TP,
    max_bytes: int = 1 << 20,
    topic_id: bytes | None = None,
    **options,
) -> FetchPartitionRequest:
    return FetchPartitionRequest(tp, topic_id, offset, max_bytes, **options)


def code_of(call, *arguments, **options) -> ErrorCode:
    """The code of the refusal that a call raises; NONE when it does not."""
    try:
        call(*arguments, **options)
    except BrokerError as refusal:
        return refusal.code
    return ErrorCode.NONE
