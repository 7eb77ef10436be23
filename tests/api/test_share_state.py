"""The state of share partitions through the wire (83-87), and where its coordinator is."""

from typing import Any

import pytest

from tests.api.group_api import TOPIC_IDS, ApiRun, each_version, image, topic
from tests.coordinator.memory_store import MemoryStore
from twisted_broker.api.routes import ROUTES
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.share_state.share_coordinator import (
    ShareCoordinator,
    ShareCoordinatorContext,
    ShareCoordinatorSettings,
)
from twisted_broker.coordinator.share_state.share_publisher import ShareStateTopic
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import SHARE_STATE_TOPIC
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.offsets import FindCoordinatorRequest
from twisted_broker.wire.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteStatePartition,
    DeleteStateTopic,
    InitializeShareGroupStateRequest,
    InitializeStatePartition,
    InitializeStateTopic,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStatePartition,
    ReadStateTopic,
    ShareGroupStateBatch,
    WriteShareGroupStateRequest,
    WriteStatePartition,
    WriteStateTopic,
)

T = TOPIC_IDS["t"]
KEY = "a:group:VFRUVFRUVFRUVFRUVFRUVA:0"


class Run(ApiRun):
    def __init__(self) -> None:
        super().__init__()
        self.state_store = MemoryStore(1)
        self.share = ShareCoordinator(
            ShareCoordinatorContext(
                self.clock,
                lambda: 1_000,
                self.state_store,
                ShareCoordinatorSettings(),
                self.coordinator.context.turns,
                lambda: self.source.image,
            ),
            ShareStateTopic(self.source, BrokerConfig({"node.id": "99"}), self._create, self.clock),
        )
        self.parts.share_state = self.share
        self.share.load(0, 0)

    def initialize(self, epoch: int = 1, start: int = -1, partition: int = 0) -> Any:
        named = InitializeStatePartition(partition=partition, state_epoch=epoch, start_offset=start)
        return self.one(
            InitializeShareGroupStateRequest(
                group_id="g", topics=[InitializeStateTopic(topic_id=T, partitions=[named])]
            )
        )

    def read(self, epoch: int = -1, partition: int = 0) -> Any:
        return self.one(ReadShareGroupStateRequest(group_id="g", topics=read(epoch, partition)))

    def one(self, request: Any, version: int = 0) -> Any:
        """The answer about the one partition that is named."""
        (of_topic,) = self.ask(request, version).results
        (of_partition,) = of_topic.partitions
        assert bytes(of_topic.topic_id) == T
        return of_partition


def read(epoch: int, partition: int = 0) -> list[ReadStateTopic]:
    named = ReadStatePartition(partition=partition, leader_epoch=epoch)
    return [ReadStateTopic(topic_id=T, partitions=[named])]


def write(version: int, *, state: int = 1, leader: int = 0, start: int = 5) -> Any:
    return WriteShareGroupStateRequest(
        group_id="g",
        topics=[
            WriteStateTopic(
                topic_id=T,
                partitions=[
                    WriteStatePartition(
                        partition=0,
                        state_epoch=state,
                        leader_epoch=leader,
                        start_offset=start,
                        delivery_complete_count=2,
                        state_batches=[
                            ShareGroupStateBatch(
                                first_offset=6, last_offset=8, delivery_state=2, delivery_count=1
                            )
                        ],
                    )
                ],
            )
        ],
    )


def delete(group: str = "g") -> DeleteShareGroupStateRequest:
    named = DeleteStateTopic(topic_id=T, partitions=[DeleteStatePartition(partition=0)])
    return DeleteShareGroupStateRequest(group_id=group, topics=[named])


@pytest.fixture
def run() -> Run:
    return Run()


@each_version("WriteShareGroupState")
def test_a_life(run, version):
    """GN 1.11: the count of finished offsets is known from version 1 on."""
    assert run.initialize(start=3).error_code == E.NONE
    assert run.one(write(version), version).error_code == E.NONE
    found = run.read(0)
    assert (found.error_code, found.state_epoch, found.start_offset) == (E.NONE, 1, 5)
    (batch,) = found.state_batches
    assert (batch.first_offset, batch.last_offset) == (6, 8)
    assert (batch.delivery_state, batch.delivery_count) == (2, 1)
    summary = run.one(ReadShareGroupStateSummaryRequest(group_id="g", topics=read(-1)), version)
    assert (summary.state_epoch, summary.leader_epoch, summary.start_offset) == (1, 0, 5)
    assert summary.delivery_complete_count == (2 if version else -1)
    assert run.one(delete()).error_code == E.NONE
    assert run.read().error_code == E.INVALID_REQUEST


def test_refusals_and_their_sentences(run):
    """GN 3.84-3.87; Kafka's sentences."""
    assert run.read().error_message == (
        "Read operation on uninitialized share partition not allowed."
    )
    assert run.one(write(1), 1).error_message == (
        "Write operation on uninitialized share partition not allowed."
    )
    run.initialize(epoch=4)
    run.read(3)
    assert run.initialize(epoch=3).error_code == E.FENCED_STATE_EPOCH
    assert run.read(2).error_code == E.FENCED_LEADER_EPOCH
    assert run.one(write(1, state=4, leader=2), 1).error_code == E.FENCED_LEADER_EPOCH
    assert run.one(write(1, state=3, leader=3), 1).error_code == E.FENCED_STATE_EPOCH
    assert run.initialize(partition=9).error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert run.initialize(partition=-1).error_code == E.INVALID_REQUEST
    summary = ReadShareGroupStateSummaryRequest(group_id="g", topics=read(-1, 1))
    assert run.one(summary, 1).start_offset == -1
    run.share.unload(0, 0)
    refused = run.read()
    assert refused.error_code == E.NOT_COORDINATOR
    assert refused.error_message.startswith("Unable to read share group state: ")


@pytest.mark.parametrize("topics", [[], [DeleteStateTopic(topic_id=T, partitions=[])]])
def test_nothing_is_asked(run, topics):
    """GN 1.19: an answer without results."""
    run.initialize()
    assert not run.ask(DeleteShareGroupStateRequest(group_id="g", topics=topics), 0).results
    some = [*topics, *delete().topics] if topics else topics
    assert not run.ask(DeleteShareGroupStateRequest(group_id="g", topics=some), 0).results
    assert not run.ask(delete(group=""), 0).results
    assert run.read().error_code == E.NONE


def test_each_partition_has_its_own_answer(run):
    run.initialize()
    numbers = (0, 1, 9)
    named = [ReadStatePartition(partition=each, leader_epoch=-1) for each in numbers]
    topics = [ReadStateTopic(topic_id=T, partitions=named)]
    (answer,) = run.ask(ReadShareGroupStateRequest(group_id="g", topics=topics), 0).results
    assert [(each.partition, each.error_code) for each in answer.partitions] == [
        (0, E.NONE),
        (1, E.INVALID_REQUEST),
        (9, E.INVALID_REQUEST),
    ]


def test_only_brokers_may_ask():
    rows = [row for row in ROUTES if 83 <= row.api_key <= 87]
    assert len(rows) == 5 and all(row.cluster_action for row in rows)


def find(*keys: str) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=2, coordinator_keys=list(keys))


def test_the_first_key_makes_the_topic(run):
    """GN 1.24, 3.80."""
    waiting = run.start(find(KEY), 6)
    ((request, creation),) = run.created
    (created,) = request.topics
    assert (created.name, created.num_partitions) == (SHARE_STATE_TOPIC, 50)
    assert {each.name: each.value for each in created.configs} == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "segment.bytes": "104857600",
        "min.insync.replicas": "2",
        "retention.ms": "-1",
    }
    run.source.image = image(topic(SHARE_STATE_TOPIC, b"S" * 16, 50))
    creation.callback(type("Response", (), {"topics": []})())
    run.settle()
    (found,) = waiting.result.coordinators
    assert (found.key, found.error_code, found.node_id) == (KEY, E.NONE, 1)


def test_the_coordinator_of_each_key(run):
    run.source.image = image(topic(SHARE_STATE_TOPIC, b"S" * 16, 50, leader=-1))
    found = run.ask(find(KEY, "g:0"), 6).coordinators
    assert [each.error_code for each in found] == [
        E.COORDINATOR_NOT_AVAILABLE,
        E.INVALID_REQUEST,
    ]
    run.acl.denied.add((Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "*"))
    (refused,) = run.ask(find(KEY), 6).coordinators
    assert refused.error_code == E.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    "key",
    [
        "",
        "g:0",
        " :AAAAAAAAAAAAAAAAAAAAAQ:0",
        "g:short:0",
        "g:AAAAAAAAAAAAAAAAAAAAAQ:x",
        "g:AAAAAAAAAAAAAAAAAAAAAQ:1_0",
        "g:AAAAAAAAAAAAAAAAAAAAAQ: 1",
        "g:AAAAAAAAAAAAAAAAAAAAAQ:2147483648",
    ],
)
def test_keys_of_no_share_partition(run, key):
    (found,) = run.ask(find(key), 6).coordinators
    assert (found.error_code, found.node_id) == (E.INVALID_REQUEST, -1) and not run.created
