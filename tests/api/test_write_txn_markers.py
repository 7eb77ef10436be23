"""WriteTxnMarkers: the ends of transactions on their leaders (Kafka's KafkaApisTest,
ReplicaManagerTest), and what readers of committed records see of it.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.api.data_plane import Api, DenyList
from tests.memory_broker import MemoryBroker
from tests.replication.fixtures import TP, Fixture, at, batch, consumer, follower, registration
from twisted_broker.api.write_txn_markers import write_txn_markers
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.replication.partition.fetch_data import TXN_COMMITTED
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.wire.control_batch import COMMIT, control_record_type
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from twisted_broker.wire.records import iterate_batches

NONE = ErrorCode.NONE
OTHER, GROUPS = TopicPartition("t", 1), TopicPartition("__consumer_offsets", 3)
P = 7


class Groups:
    """In place of the group coordinator."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.waiting: list[Deferred] = []

    def complete_transaction(self, *arguments: Any) -> Deferred:
        self.asked.append(arguments)
        self.waiting.append(Deferred())
        return self.waiting[-1]


class Made(Api):
    """The topic `t` of two partitions, led here; `states` may say otherwise."""

    def __init__(
        self,
        states: Any = None,
        authorizer: Any = None,
        manager: Any = ReplicaManager,
        **settings: Any,
    ) -> None:
        class Its(Fixture):
            pass

        Its.manager = manager
        fixture = Its(**settings)
        fixture.topic(states=states or {0: registration(), 1: registration()})
        self.groups = Groups()
        super().__init__(fixture, authorizer, groups=self.groups)

    def write(self, *markers: WritableTxnMarker, version: int = 2) -> list:
        """The codes by (producer id, partition), once they are there."""
        answers: list = []
        request = WriteTxnMarkersRequest(markers=list(markers))
        got = self.ask(write_txn_markers, WriteTxnMarkersResponse, request, version)
        self.last.addCallback(lambda _: answers.append(codes(got[0])))
        self.last.addErrback(lambda _: answers.append(got[0]))
        return answers

    def open(self, producer: int = P, epoch: int = 0, index: int = 0) -> None:
        """Begins a transaction, as verified."""
        records = batch(
            producer_id=producer, producer_epoch=epoch, base_sequence=0, is_transactional=True
        )
        entries = [(TopicPartition("t", index), records)]
        self.fixture.replicas.append(
            entries,
            1,
            origin=AppendOrigin.COORDINATOR,
            guards={entries[0][0]: NOT_REQUIRED},
        )
        self.fixture.replicas.drain()

    def log(self, index: int = 0) -> Any:
        return self.fixture.replicas.partitions[TopicPartition("t", index)].log


def codes(response: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], int]:
    return {
        (marker.producer_id, TopicPartition(topic.name, each.partition_index)): each.error_code
        for marker in response.markers
        for topic in marker.topics
        for each in topic.partitions
    }


def marker(
    *partitions: TopicPartition,
    producer: int = P,
    epoch: int = 0,
    commit: bool = True,
    coordinator: int = 0,
    version: int = 0,
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=[index])
            for name, index in partitions
        ],
        coordinator_epoch=coordinator,
        transaction_version=version,
    )


@pytest.mark.parametrize("version", [1, 2])
def test_it_ends_the_transaction_everywhere(version: int) -> None:
    """One control batch per partition; several markers in one request; one answer per producer."""
    made = Made()
    made.open()
    made.open(8, index=1)
    answers = made.write(
        marker(TP, OTHER, coordinator=5),
        marker(OTHER, producer=8, commit=False, coordinator=5),
        version=version,
    )
    assert answers == [{(P, TP): NONE, (P, OTHER): NONE, (8, OTHER): NONE}]
    data = made.log().read(1, 1 << 20).slice
    (ended,) = iterate_batches(data.read())
    (record,) = ended.records()
    assert control_record_type(record.key) == COMMIT and ended.producer_id == P
    assert made.log().last_stable_offset == 2 and made.log(1).last_stable_offset == 3
    assert [tuple(each)[:3] for each in made.log(1).segments.active.txn_index.entries()] == [
        (8, 0, 2)
    ]


def test_zombies_and_old_coordinators_are_refused_the_others_go_on() -> None:
    """INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED: the coordinator gives them up."""
    made = Made()
    made.open(epoch=4)
    made.open(8)
    made.write(marker(TP, producer=8, epoch=0, coordinator=6))
    answers = made.write(
        marker(TP, epoch=3, coordinator=6), marker(TP, producer=8, epoch=0, coordinator=5)
    )
    assert answers == [
        {
            (P, TP): ErrorCode.INVALID_PRODUCER_EPOCH,
            (8, TP): ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        }
    ]
    assert made.log().log_end_offset == 3 and list(made.log().producers.ongoing.values()) == [P]


@pytest.mark.parametrize(
    ("version", "transaction_version", "code"),
    [(2, 2, ErrorCode.INVALID_PRODUCER_EPOCH), (2, 1, NONE), (1, 0, NONE)],
)
def test_a_late_marker_of_version_2_does_not_end_the_next_transaction(
    version: int, transaction_version: int, code: ErrorCode
) -> None:
    """KIP-1228: the epoch of the records themselves is the marker's of the one before; version 1
    of the request does not say.
    """
    made = Made()
    made.open(epoch=4)
    asked = marker(TP, epoch=4, version=transaction_version)
    assert made.write(asked, version=version) == [{(P, TP): code}]


def test_it_waits_for_the_replicas_and_readers_of_committed_records_wait_with_it() -> None:
    """As with acks=-1; then the delayed fetch is woken by the last stable offset."""
    made = Made({0: registration(replicas=(1, 2))})
    made.open()
    replicas = made.fixture.replicas
    replicas.fetch(follower(2), [at(1)])
    reader = consumer(isolation=TXN_COMMITTED)
    assert made.log().high_watermark == 1 and made.log().last_stable_offset == 0
    fetched: list = []
    replicas.delayed_fetch(reader, replicas.fetch(reader, [at(0)])).addCallback(fetched.extend)
    answers = made.write(marker(TP))
    assert made.log().log_end_offset == 2 and not answers and not fetched
    replicas.fetch(follower(2), [at(2)])
    assert answers == [{(P, TP): NONE}]
    (result,) = fetched
    assert result.last_stable_offset == 2 and result.size and result.slice is not None
    result.release()


def test_it_waits_no_longer_than_the_request_timeout() -> None:
    """REQUEST_TIMED_OUT: the coordinator sends it again."""
    made = Made({0: registration(replicas=(1, 2))}, **{"request.timeout.ms": "2000"})
    answers = made.write(marker(TP))
    made.fixture.clock.advance(1.9)
    assert not answers
    made.fixture.clock.advance(0.3)
    assert answers == [{(P, TP): ErrorCode.REQUEST_TIMED_OUT}]


def test_what_a_coordinator_cannot_take_is_told_in_codes_that_it_retries() -> None:
    """Led elsewhere, unknown, too few replicas, producers being rebuilt."""
    made = Made(
        {
            0: registration(),
            1: registration(leader=2, replicas=(1, 2)),
            2: registration(replicas=(1, 2), isr=(1,)),
        },
        **{"min.insync.replicas": "2"},
    )
    made.log().producers.begin_rebuild()
    few, unknown = TopicPartition("t", 2), TopicPartition("nowhere", 0)
    assert made.write(marker(TP, OTHER, few, unknown)) == [
        {
            (P, TP): ErrorCode.NOT_LEADER_OR_FOLLOWER,
            (P, OTHER): ErrorCode.NOT_LEADER_OR_FOLLOWER,
            (P, few): ErrorCode.NOT_ENOUGH_REPLICAS,
            (P, unknown): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
    ]


@pytest.mark.parametrize(("producer", "epoch"), [(-1, 0), (P, -1)])
def test_a_marker_without_a_producer_is_not_written(producer: int, epoch: int) -> None:
    """MemoryRecordsBuilder refuses such a batch; the markers beside it are written."""
    made = Made()
    (got,) = made.write(
        marker(TP, GROUPS, producer=producer, epoch=epoch), marker(OTHER, producer=P + 1)
    )
    wrong = ErrorCode.INVALID_PRODUCER_EPOCH
    assert got == {(producer, TP): wrong, (producer, GROUPS): wrong, (P + 1, OTHER): NONE}
    assert made.log().log_end_offset == 0 and not made.groups.asked


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        (NONE, NONE),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_markers_of_groups_are_the_group_coordinators(code: ErrorCode, seen: ErrorCode) -> None:
    """It is asked at once, beside the appends, and its answer waited for."""
    made = Made()
    answers = made.write(marker(TP, GROUPS, epoch=2, coordinator=9, commit=False, version=2))
    assert made.groups.asked == [(3, P, 2, 9, False, 2)]
    assert made.log().log_end_offset == 1 and not answers
    made.groups.waiting[0].callback(code)
    assert answers == [{(P, TP): NONE, (P, GROUPS): seen}]


def test_it_is_for_brokers_and_administrators() -> None:
    """Alter or ClusterAction on the cluster; nothing is written for others."""
    for denied in ("ALTER", "CLUSTER_ACTION"):
        made = Made(authorizer=DenyList((denied, "kafka-cluster")))
        assert made.write(marker(TP)) == [{(P, TP): NONE}]
    made = Made(
        authorizer=DenyList(("ALTER", "kafka-cluster"), ("CLUSTER_ACTION", "kafka-cluster"))
    )
    (refused,) = made.write(marker(TP))
    assert isinstance(refused.value, BrokerError)
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert made.log().log_end_offset == 0


def test_a_disk_that_fails_is_an_error_that_is_retried() -> None:
    """The partition goes offline; another leader will take the marker."""
    made = Made()
    made.log().fail(OSError(5, "input/output error"))
    assert made.write(marker(TP)) == [{(P, TP): ErrorCode.KAFKA_STORAGE_ERROR}]
    assert made.fixture.partition().offline


def test_many_markers_are_written_in_slices() -> None:
    """Others are served in between (the API waits for its turns)."""
    turns: list = []

    class Noting(ReplicaManager):
        def append_end_markers(self, entries: Any) -> Any:
            turns.append(len(entries))
            return super().append_end_markers(entries)

    made = Made(manager=Noting)
    made.write(*[marker(TP, producer=number) for number in range(250)])
    for _ in range(10):
        made.fixture.clock.advance(0)
    assert turns == [100, 100, 50] and made.log().log_end_offset == 250


@pytest.mark.parametrize("timeout_ms", ["30000", "120000"])
def test_a_coordinator_waits_longer_for_the_answer_than_its_leader_for_replicas(
    timeout_ms: str,
) -> None:
    """The leader says then which of up to a thousand markers are written. A connection that is
    closed before leaves all of them to be sent again.
    """
    broker = MemoryBroker(request_timeout_ms=timeout_ms).start()
    connection = broker.broker.broker_server._connect_for_markers("host", 1)
    assert connection.request_timeout_ms > int(timeout_ms)
    broker.stop()
