"""The wire's side of transactions: permission, versions, filters; and a whole broker in memory."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from tests.api.group_api import LISTENER, ROWS, Denying
from tests.coordinator.broker_run import BrokerRun
from tests.coordinator.transaction.transaction_run import T0, T1, TransactionRun, image_of
from tests.memory_broker import MemoryBroker
from twisted_broker.api.context import BrokerParts, RequestContext
from twisted_broker.api.refusals import refusal
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.offsets_topic import WAIT_MS, OffsetsTopic
from twisted_broker.coordinator.transaction.transaction_decisions import ProducerIdAndEpoch
from twisted_broker.coordinator.transaction.transaction_publisher import TransactionsTopic
from twisted_broker.image.metadata_image import TOPIC_RESOURCE
from twisted_broker.interfaces import Marks, TopicPartition
from twisted_broker.log.checkpoints import CLEAN_SHUTDOWN
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from twisted_broker.wire.control_batch import ABORT, control_record_type
from twisted_broker.wire.errors import BrokerError, ErrorCode, error_of
from twisted_broker.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twisted_broker.wire.messages.offsets import FindCoordinatorRequest
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from twisted_broker.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
)
from twisted_broker.wire.records import BatchBuilder, iterate_batches
from twisted_broker.wire.schema import decode, encode

NONE = ErrorCode.NONE
FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
NOT_ATTEMPTED = ErrorCode.OPERATION_NOT_ATTEMPTED
IDS, TOPICS, GROUPS = ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC, ResourceType.GROUP
CLUSTER = (Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")


class ApiRun(TransactionRun):
    """`call` gives the decoded answer of a request that went through its codec."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.acl = Denying()
        self.created: list[Any] = []
        self.coordinator.topic = TransactionsTopic(
            self.cluster, BrokerConfig({"node.id": "99"}), self._create, self.clock
        )
        self.parts = BrokerParts(
            node_id=1,
            cluster_id="c",
            config=BrokerConfig({}),
            runtime=SimpleNamespace(clock=self.clock, marks=Marks(), wall_ms=self.wall_ms),
            authorizer=self.acl,
            groups=BrokerRun().coordinator,
            transactions=self.coordinator,
            metadata=self.cluster,
            forwarding=SimpleNamespace(producer_ids=SimpleNamespace(next=self.next_producer_id)),
            turns=self.coordinator.context.turns,
        )

    def _create(self, request: Any) -> Deferred[Any]:
        self.created.append(request)
        return Deferred()

    def call(self, request: Any, version: int) -> Any:
        found = self.start(request, version)
        if isinstance(found[0], Failure):
            found[0].raiseException()
        return found[0]

    def start(self, request: Any, version: int) -> list[Any]:
        """As `call`; the answer once it is there."""
        row = ROWS[type(request).__name__.removesuffix("Request")]
        asked = decode(type(request), encode(request, version), version)
        context = RequestContext(self.parts, LISTENER, row.api_key, version, 1, "client", "host")
        answered: Deferred[Any] = ensureDeferred(row.function(False)(context, asked))

        def refuse(failure: Failure) -> Any:
            failure.trap(BrokerError)
            code, message = failure.value.code, failure.value.message
            return refusal(asked, row.response_class(), version, code, message)

        answered.addErrback(refuse)
        answered.addCallback(
            lambda answer: decode(row.response_class(), encode(answer, version), version)
        )
        found: list[Any] = []
        answered.addBoth(found.append)
        self.settle()
        return found

    # by the wire
    def init_id(self, version: int = 4, name: str | None = "id", **more: Any) -> Any:
        more.setdefault("transaction_timeout_ms", 60_000)
        return self.call(InitProducerIdRequest(transactional_id=name, **more), version)

    def add_to(self, producer: ProducerIdAndEpoch, version: int, *topics: tuple[str, int]) -> Any:
        """Error codes of a client's AddPartitionsToTxn, by partition."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="id",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=named(topics),
        )
        return codes(self.call(request, version).results_by_topic_v3_and_below)

    def end_of(self, producer: ProducerIdAndEpoch, version: int, commit: bool = True) -> Any:
        return self.call(
            EndTxnRequest(
                transactional_id="id",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=commit,
            ),
            version,
        )

    def listed(self, version: int = 1, **filters: Any) -> dict[str, str]:
        answer = self.call(ListTransactionsRequest(**filters), version)
        assert not answer.error_code
        return {row.transactional_id: row.transaction_state for row in answer.transaction_states}


def named(partitions: tuple[tuple[str, int], ...]) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [AddPartitionsToTxnTopic(name=name, partitions=some) for name, some in topics.items()]


def codes(topics: Any) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, each.partition_index): error_of(each.partition_error_code)
        for topic in topics
        for each in topic.results_by_partition
    }


# InitProducerId
@pytest.mark.parametrize("version", range(6))
def test_init_with_a_transactional_id(version: int) -> None:
    run = ApiRun()
    first, second = run.init_id(version), run.init_id(version)
    assert (first.error_code, first.producer_id, first.producer_epoch) == (0, 1001, 0)
    assert (second.error_code, second.producer_id, second.producer_epoch) == (0, 1001, 1)
    run.acl.denied = {(Operation.WRITE, IDS, "id")}
    refused = run.init_id(version)
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (refused.producer_id, refused.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(("version", "expected"), [(3, OLD_FENCED), (4, FENCED), (5, FENCED)])
def test_init_of_a_fenced_producer(version: int, expected: ErrorCode) -> None:
    run = ApiRun()
    run.init_id()
    run.init_id()
    assert run.init_id(version, producer_id=1001, producer_epoch=0).error_code == expected


def test_init_without_a_transactional_id_needs_no_coordinator() -> None:
    run = ApiRun()
    assert run.init_id(name=None).producer_id == 1001
    assert run.init_id(name=None).producer_id == 1002
    run.acl.denied = {(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "kafka-cluster")}
    assert not run.init_id(name=None).error_code, "who may write to a topic may do so idempotently"
    run.acl.denied.add((Operation.WRITE, ResourceType.TOPIC, "*"))
    assert run.init_id(name=None).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not run.init_id().error_code


@pytest.mark.parametrize("more", [{"producer_id": 1}, {"producer_epoch": 0}])
def test_init_with_half_a_producer(more: dict[str, int]) -> None:
    assert ApiRun().init_id(**more).error_code == ErrorCode.INVALID_REQUEST


def test_init_with_a_timeout_out_of_bounds() -> None:
    run = ApiRun()
    too_long = run.init_id(transaction_timeout_ms=900_001)
    assert too_long.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


# AddPartitionsToTxn
@pytest.mark.parametrize("version", range(4))
def test_partitions_of_a_client(version: int) -> None:
    run = ApiRun()
    producer = run.init()
    assert run.add_to(producer, version, T0, T1) == {T0: NONE, T1: NONE}
    assert run.metadata().partitions == {T0, T1}
    assert run.metadata().client_transaction_version == 0
    fenced = FENCED if version >= 2 else OLD_FENCED
    assert run.add_to(producer._replace(epoch=9), version, T0) == {T0: fenced}


def test_a_partition_that_is_refused_refuses_the_others() -> None:
    run = ApiRun()
    run.cluster.image = image_of({T0: 1, TopicPartition(OFFSETS_TOPIC, 0): 1})
    producer = run.init()
    unknown, internal = TopicPartition("none", 0), TopicPartition(OFFSETS_TOPIC, 0)
    assert run.add_to(producer, 3, T0, unknown) == {
        T0: NOT_ATTEMPTED,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert run.add_to(producer, 3, T0, T1)[T1] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert run.add_to(producer, 3, T0, internal) == {T0: NOT_ATTEMPTED, internal: denied}
    run.acl.denied = {(Operation.WRITE, TOPICS, "t")}
    assert run.add_to(producer, 3, T0) == {T0: denied}
    run.acl.denied = {(Operation.WRITE, IDS, "id")}
    assert run.add_to(producer, 3, T0, unknown) == {
        T0: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        unknown: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
    assert not run.metadata().partitions


def test_a_mirrored_topic_belongs_to_no_transaction() -> None:
    """An abort would write a marker among the source's records."""
    run = ApiRun()
    image = image_of({T0: 1, TopicPartition("copy", 0): 1})
    mirrored = {(TOPIC_RESOURCE, "copy"): {"replog.mirror.source": "cluster topic"}}
    run.cluster.image = dataclasses.replace(image, configs=mirrored)
    producer, copy = run.init(), TopicPartition("copy", 0)
    for version in range(4):
        assert run.add_to(producer, version, T0, copy) == {
            T0: NOT_ATTEMPTED,
            copy: ErrorCode.POLICY_VIOLATION,
        }
    assert not run.metadata().partitions


def of_broker(
    name: str, producer: ProducerIdAndEpoch, verify: bool, *partitions: TopicPartition
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify,
        topics=named(partitions),
    )


@pytest.mark.parametrize("version", [4, 5])
def test_many_transactions_of_a_broker(version: int) -> None:
    """Each has an answer of its own; only permission of the cluster counts."""
    run = ApiRun(version=2)
    a, b = run.init("a"), run.init("b")
    run.acl.denied = {(Operation.WRITE, IDS, "*"), (Operation.WRITE, TOPICS, "*")}
    request = AddPartitionsToTxnRequest(
        transactions=[
            of_broker("a", a, False, T0),
            of_broker("b", b, True, T0),
            of_broker("c", b, False, T0),
            of_broker("a", a, False, TopicPartition("none", 0)),
        ]
    )
    found = [
        codes(each.topic_results) for each in run.call(request, version).results_by_transaction
    ]
    assert found[:3] == [
        {T0: NONE},
        {T0: ErrorCode.TRANSACTION_ABORTABLE},
        {T0: ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    ]
    assert found[3] == {TopicPartition("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert run.metadata("a").client_transaction_version == 2
    verify = AddPartitionsToTxnRequest(transactions=[of_broker("a", a, True, T0, T1)])
    (answer,) = run.call(verify, version).results_by_transaction
    assert codes(answer.topic_results) == {T0: NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}
    run.acl.denied = {CLUSTER}
    assert run.call(request, version).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


# AddOffsetsToTxn
@pytest.mark.parametrize("version", range(5))
def test_offsets_of_a_group(version: int) -> None:
    run = ApiRun()
    run.cluster.image = image_of({T0: 1, TopicPartition(OFFSETS_TOPIC, 0): 1})
    producer = run.init()

    def add(epoch: int = producer.epoch) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id="id",
            producer_id=producer.producer_id,
            producer_epoch=epoch,
            group_id="group",
        )
        return error_of(run.call(request, version).error_code)

    assert add() is NONE
    assert run.metadata().partitions == {
        TopicPartition(OFFSETS_TOPIC, partition_for("group", 50)),
    }
    assert add(7) is (FENCED if version >= 2 else OLD_FENCED)
    run.acl.denied = {(Operation.READ, GROUPS, "group")}
    assert add() is ErrorCode.GROUP_AUTHORIZATION_FAILED
    run.acl.denied.add((Operation.WRITE, IDS, "id"))
    assert add() is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_offsets_of_a_group_before_the_topic_of_groups_is_known() -> None:
    """What this broker does not know when the transaction ends counts as deleted: its marker would
    not be sent, and readers of stable offsets would wait for ever. A first group's topic may be
    known to others before.
    """
    run, created = ApiRun(), list[Any]()

    def create(request: Any) -> Deferred[Any]:
        created.append(request)
        return Deferred()

    run.parts.groups.offsets_topic = topic = OffsetsTopic(
        run.cluster, BrokerConfig({"node.id": "99"}), create, run.clock
    )
    producer = run.init()
    request = AddOffsetsToTxnRequest(
        transactional_id="id",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id="group",
    )
    answers = [run.start(request, 4)]
    assert len(created) == 1 and not answers[0]
    run.pass_ms(WAIT_MS)
    assert answers[0][0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not run.metadata().partitions
    answers.append(run.start(request, 4))
    run.cluster.image = image_of({TopicPartition(OFFSETS_TOPIC, 0): 1})
    topic.image_changed()
    assert answers[1][0].error_code == NONE and len(created) == 1
    assert [each.topic for each in run.metadata().partitions] == [OFFSETS_TOPIC]


# EndTxn
@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_end(version: int, commit: bool) -> None:
    run = ApiRun(version=2)
    producer = run.begun(T0)
    ended = run.end_of(producer, version, commit)
    assert ended.error_code == 0
    after = (ended.producer_id, ended.producer_epoch)
    assert after == ((1001, 1) if version >= 5 else (-1, -1))
    assert run.metadata().state.text == ("CompleteCommit" if commit else "CompleteAbort")
    fenced = run.end_of(producer._replace(epoch=9), version, commit)
    assert fenced.error_code == (FENCED if version >= 2 else OLD_FENCED)
    run.acl.denied = {(Operation.WRITE, IDS, "id")}
    refused = run.end_of(producer, version, commit)
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# FindCoordinator
@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_of_a_transactional_id(version: int) -> None:
    """Whoever leads its partition, of our kind or not."""
    run = ApiRun()
    index = partition_for("id", 3)
    leaders = {TopicPartition(TRANSACTIONS_TOPIC, each): 1 + each for each in range(3)}
    run.cluster.image = image_of(leaders)
    request = FindCoordinatorRequest(key="id", key_type=1)
    if version >= 4:
        request = FindCoordinatorRequest(coordinator_keys=["id"], key_type=1)

    def find() -> Any:
        answer = run.call(request, version)
        return answer.coordinators[0] if version >= 4 else answer

    found = find()
    assert (found.error_code, found.node_id, found.port) == (0, 1 + index, 9091 + index)
    run.acl.denied = {(Operation.DESCRIBE, IDS, "id")}
    assert find().error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    run.acl.denied = set()
    run.cluster.image = image_of(leaders | {TopicPartition(TRANSACTIONS_TOPIC, index): -1})
    assert find().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not run.created


# DescribeTransactions, ListTransactions
def test_describe() -> None:
    run = ApiRun()
    other = TopicPartition("u", 0)
    run.begun(T1, T0, other)
    request = DescribeTransactionsRequest(transactional_ids=["id", "none", "hidden", ""])
    run.acl.denied = {(Operation.DESCRIBE, IDS, "hidden"), (Operation.DESCRIBE, TOPICS, "u")}
    found, *refused = run.call(request, 0).transaction_states
    assert (found.transaction_state, found.producer_id, found.producer_epoch) == (
        "Ongoing",
        1001,
        0,
    )
    assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (
        60_000,
        run.wall_ms(),
    )
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("t", [0, 1])]
    assert [each.error_code for each in refused] == [
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_list_with_filters(version: int) -> None:
    run = ApiRun()
    ids = {name: run.init(name).producer_id for name in ("idle", "open", "done")}
    run.add(ProducerIdAndEpoch(ids["open"], 0), name="open")
    run.pass_ms(5_000)
    run.add(ProducerIdAndEpoch(ids["done"], 0), name="done")
    run.end(ProducerIdAndEpoch(ids["done"], 0), name="done")
    everything = {"idle": "Empty", "open": "Ongoing", "done": "CompleteCommit"}
    assert run.listed(version) == everything
    assert run.listed(version, state_filters=["Ongoing", "Empty"]).keys() == {"open", "idle"}
    assert run.listed(version, producer_id_filters=[ids["done"], 7]).keys() == {"done"}
    assert not run.listed(version, producer_id_filters=[ids["done"]], state_filters=["Empty"])
    run.acl.denied = {(Operation.DESCRIBE, IDS, "open")}
    assert run.listed(version).keys() == {"idle", "done"}
    run.acl.denied = set()
    answer = run.call(ListTransactionsRequest(state_filters=["Nothing"]), version)
    assert answer.unknown_state_filters == ["Nothing"] and not answer.transaction_states
    answer = run.call(ListTransactionsRequest(state_filters=["Nothing", "Ongoing"]), version)
    assert answer.unknown_state_filters == ["Nothing"]
    assert [row.transactional_id for row in answer.transaction_states] == ["open"]
    for never_written in ("Dead", "PrepareEpochFence"):
        answer = run.call(ListTransactionsRequest(state_filters=[never_written]), version)
        assert not answer.unknown_state_filters and not answer.transaction_states
    if version >= 1:
        assert run.listed(version, duration_filter=4_999, state_filters=["Ongoing"])
        assert not run.listed(version, duration_filter=5_000, state_filters=["Ongoing"])


def test_list_by_pattern() -> None:
    """The whole id must match; an empty pattern lets all through."""
    run = ApiRun()
    for name in ("app-1", "app-2", "other"):
        run.init(name)
    assert run.listed(2, transactional_id_pattern="app-.*").keys() == {"app-1", "app-2"}
    assert not run.listed(2, transactional_id_pattern="app")
    assert len(run.listed(2, transactional_id_pattern="")) == 3
    answer = run.call(ListTransactionsRequest(transactional_id_pattern="app("), 2)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_list_while_loading_and_before_the_start() -> None:
    run = ApiRun()
    run.begun(T0)
    run.store.commits = {index: Deferred() for index in range(run.store.partitions)}
    run.lead_all(3)
    answer = run.call(ListTransactionsRequest(), 0)
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    run.coordinator.stop()
    answer = run.call(ListTransactionsRequest(), 0)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# a whole broker
def test_a_broker_in_memory_and_its_restart() -> None:
    """The topic is made as the settings say; what was begun survives the restart."""
    broker = MemoryBroker(transaction_state_log_num_partitions="4").start()
    found = broker.ask(FindCoordinatorRequest(coordinator_keys=["id"], key_type=1), 4)
    assert found.coordinators[0].error_code == 0 and found.coordinators[0].node_id == 1
    topic = MetadataRequestTopic(name=TRANSACTIONS_TOPIC)
    (described,) = broker.ask(MetadataRequest(topics=[topic]), 9).topics
    assert described.is_internal and len(described.partitions) == 4
    resource = DescribeConfigsResource(resource_type=2, resource_name=TRANSACTIONS_TOPIC)
    (result,) = broker.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    settings = {each.name: each.value for each in result.configs if each.config_source == 1}
    assert settings == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    broker.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000), 5)
    request = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
    begun = broker.ask(request, 4)
    assert (begun.error_code, begun.producer_epoch) == (0, 0)
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="id",
        v3_and_below_producer_id=begun.producer_id,
        v3_and_below_topics=named((T0,)),
    )
    assert codes(broker.ask(add, 3).results_by_topic_v3_and_below) == {T0: NONE}
    broker.stop()
    again = MemoryBroker(broker.files, transaction_state_log_num_partitions="4").start()
    described = again.ask(DescribeTransactionsRequest(transactional_ids=["id"]), 0)
    (state,) = described.transaction_states
    assert (state.error_code, state.transaction_state) == (0, "Ongoing")
    assert (state.producer_id, state.producer_epoch) == (begun.producer_id, 0)
    assert [(each.topic, each.partitions) for each in state.topics] == [("t", [0])]
    again.stop()
    assert not again.fatal


class PoweredBroker:
    """A broker in memory whose client writes transactions of the id into `t-0`."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(transaction_state_log_num_partitions="1").start()
        self.broker.ask(FindCoordinatorRequest(coordinator_keys=["id"], key_type=1), 4)
        topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        self.broker.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000), 5)

    def lose_state_after(self, records: int) -> None:
        """The power goes; of the newest segment of `__transaction_state` that much was written."""
        self.broker.stop()
        files = self.broker.files
        log = files.open(f"/data/{TRANSACTIONS_TOPIC}-0/{0:020}.log")
        batches = list(iterate_batches(log.read_at(0, log.size())))
        log.truncate(sum(batch.size_in_bytes for batch in batches[:records]))
        log.close()
        files.remove(f"/data/{CLEAN_SHUTDOWN}")
        self.broker = MemoryBroker(files, seed=8, transaction_state_log_num_partitions="1").start()

    def init(self) -> ProducerIdAndEpoch:
        request = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
        for _ in range(40):
            begun = self.broker.ask(request, 4)
            if not begun.error_code:
                return ProducerIdAndEpoch(begun.producer_id, begun.producer_epoch)
            self.broker.pass_time(0.1)
        raise AssertionError(error_of(begun.error_code))

    def write(self, producer: ProducerIdAndEpoch, value: bytes) -> None:
        """The first record of a transaction."""
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="id",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=named((T0,)),
        )
        added = self.broker.ask(add, 3).results_by_topic_v3_and_below
        assert codes(added) == {T0: NONE}
        builder = BatchBuilder(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        builder.append(1_700_000_000_000, None, value)
        data = PartitionProduceData(index=0, records=builder.build())
        request = ProduceRequest(
            transactional_id="id",
            acks=-1,
            timeout_ms=5_000,
            topic_data=[TopicProduceData(name="t", partition_data=[data])],
        )
        (topic,) = self.broker.ask(request, 8).responses
        assert topic.partition_responses[0].error_code == 0

    def commit(self, producer: ProducerIdAndEpoch) -> None:
        request = EndTxnRequest(
            transactional_id="id",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=True,
        )
        assert self.broker.ask(request, 3).error_code == 0
        self.broker.pass_time(1)

    def state(self) -> str:
        request = DescribeTransactionsRequest(transactional_ids=["id"])
        (state,) = self.broker.ask(request, 0).transaction_states
        return str(state.transaction_state)

    def committed(self) -> list[bytes | None]:
        """What read_committed gives of `t-0`, all of which is stable."""
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="t", partitions=[partition])]
        request = FetchRequest(max_wait_ms=0, isolation_level=1, topics=topics)
        (topic,) = self.broker.ask(request, 11).responses
        (found,) = topic.partitions
        assert found.last_stable_offset == found.high_watermark
        begins = {each.first_offset for each in found.aborted_transactions or ()}
        values, is_aborted = list[bytes | None](), False
        for batch in iterate_batches(bytes(found.records or b"")):
            is_aborted = is_aborted or batch.base_offset in begins
            for record in batch.records():
                if not batch.is_control and not is_aborted:
                    values.append(record.value)
                elif batch.is_control and control_record_type(record.key) == ABORT:
                    is_aborted = False
        return values


def test_an_id_whose_newest_records_a_loss_of_power_took_goes_on() -> None:
    """Of the transaction whose state was lost nothing is read; what was committed before stays."""
    run = PoweredBroker()
    first = run.init()
    run.write(first, b"committed")
    run.commit(first)
    second = run.init()
    run.write(second, b"orphan")
    assert (second.producer_id, second.epoch) == (first.producer_id, 1)
    run.lose_state_after(3)  # EMPTY, ONGOING, PREPARE_COMMIT
    run.broker.pass_time(5)
    assert run.state() == "CompleteCommit"
    assert run.committed() == [b"committed"]
    third = run.init()
    assert third.producer_id == first.producer_id and third.epoch > 2
    run.write(third, b"new")
    run.commit(third)
    assert run.state() == "CompleteCommit"
    assert run.committed() == [b"committed", b"new"]
    run.broker.stop()
    assert not run.broker.fatal
