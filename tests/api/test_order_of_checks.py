"""In which order the data plane asks: permission, existence, the request itself, the log (RL
5.1), with an authoriser of the test.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.data_plane import Api, DenyList
from tests.api.test_fetch import asked as fetch_asked
from tests.api.test_fetch import parts
from tests.api.test_produce import asked as produce_asked
from tests.api.test_produce import codes
from tests.replication.fixtures import LOCAL, Fixture, batch, registration
from twisted_broker.api.fetch import fetch
from twisted_broker.api.produce import produce
from twisted_broker.api.producer_ids import init_producer_id
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.fetch import FetchResponse
from twisted_broker.wire.messages.produce import ProduceResponse
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse

REFUSED, UNKNOWN = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
BAD_RECORDS = b"short"


class Steps(DenyList):
    """Also notes when the replica manager is reached."""

    @property
    def manager(self) -> type[ReplicaManager]:
        asked = self.asked

        class Noting(ReplicaManager):
            def produce(self, *arguments: Any, **options: Any) -> Any:
                asked.append(("produce", ""))
                return super().produce(*arguments, **options)

            def fetch(self, *arguments: Any, **options: Any) -> Any:
                asked.append(("fetch", ""))
                return super().fetch(*arguments, **options)

        return Noting


def made(*denied: tuple[str, str], **states: Any) -> tuple[Api, Steps]:
    """The topic `t` with one partition, and the authoriser that notes what is asked of it."""
    steps = Steps(*denied)

    class Noted(Fixture):
        manager = steps.manager

    fixture = Noted()
    fixture.topic(states=states.get("states"))
    fixture.topic("other", None, bytes(reversed(range(16))))
    return Api(fixture, steps), steps


def fetched(api: Api, *partitions: Any, **options: Any) -> list[Any]:
    return [
        each.error_code
        for each in parts(
            api.now(
                fetch,
                FetchResponse,
                fetch_asked(*partitions, **options),
                options.get("version", 11),
            )
        )
    ]


def produced(api: Api, *partitions: Any, **options: Any) -> list[Any]:
    return list(codes(api.now(produce, ProduceResponse, produce_asked(*partitions, **options), 9)))


def test_a_produce_asks_for_the_transactional_id_then_for_each_topic_then_appends() -> None:
    """RL 5.1: Write on the transactional id, Write on each topic, and only then the replica
    manager.
    """
    api, steps = made()
    produced(api, ("t", 0, batch()), ("none", 0, batch()), transactional_id="x")
    assert steps.asked == [("WRITE", "x"), ("WRITE", "t"), ("WRITE", "none"), ("produce", "")]


def test_without_the_transactional_id_nothing_else_is_asked() -> None:
    """RL 5.1: the whole request is refused before any topic is looked at."""
    api, steps = made(("WRITE", "x"))
    with pytest.raises(BrokerError) as caught:
        produced(api, ("t", 0, batch()), transactional_id="x")
    assert caught.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert steps.asked == [("WRITE", "x")]


@pytest.mark.parametrize("records", [batch(), BAD_RECORDS, None])
@pytest.mark.parametrize("partition", [0, 9])
def test_a_produce_without_permission_learns_nothing(records: bytes | None, partition: int) -> None:
    """RL 5.1: TOPIC_AUTHORIZATION_FAILED whether topic, partition and records are there and good
    or not; nothing is appended.
    """
    api, steps = made(("WRITE", "t"), ("WRITE", "none"))
    assert produced(api, ("t", partition, records), ("none", partition, records)) == [
        REFUSED,
        REFUSED,
    ]
    assert ("produce", "") not in steps.asked


def test_a_produce_to_an_unknown_topic_says_so_whatever_it_carries() -> None:
    """RL 5.1, Kafka's handleProduceRequest: existence before the records; then acks; then the
    log.
    """
    api, _ = made()
    assert produced(api, ("none", 0, BAD_RECORDS), ("t", 9, None), ("t", 0, BAD_RECORDS)) == [
        UNKNOWN,
        UNKNOWN,
        ErrorCode.INVALID_RECORD,
    ]
    assert produced(api, ("none", 0, BAD_RECORDS), ("t", 0, batch()), acks=7) == [
        UNKNOWN,
        ErrorCode.INVALID_REQUIRED_ACKS,
    ]
    assert api.fixture.partition().log.log_end_offset == 0


def test_a_produce_that_waits_says_that_it_has_appended() -> None:
    """RL 1.7: while it waits for replicas the next Produce of its connection may start: its
    records are in the log.
    """
    api, _ = made(states={0: registration(LOCAL, (1, 2))})
    answers = api.ask(produce, ProduceResponse, produce_asked(("t", 0, batch()), acks=-1), 9)
    assert (
        answers == [] and api.context.appended and api.fixture.partition().log.log_end_offset == 1
    )
    api.ask(produce, ProduceResponse, produce_asked(("t", 0, batch()), acks=-1), 9)
    api.fixture.advance(2)
    assert codes(answers[0]) == [ErrorCode.REQUEST_TIMED_OUT]


def test_the_client_id_opens_no_door() -> None:
    """RL 1.6: internal topics refuse clients, also one that calls itself `__admin_client`; the
    others of the request go on.
    """
    api, _ = made()
    api.fixture.topic("__consumer_offsets", None, b"o" * 16)
    api.client_id = "__admin_client"
    assert produced(api, ("__consumer_offsets", 0, batch()), ("t", 0, batch())) == [
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE,
    ]


def test_a_consumers_fetch_asks_for_each_topic_then_reads() -> None:
    """RL 5.1: Read on every topic asked for, in their order, before anything is read."""
    api, steps = made()
    assert fetched(api, ("t", 0, 0), ("other", 0, 0)) == [0, 0]
    assert steps.asked == [("READ", "t"), ("READ", "other"), ("fetch", "")]


def test_a_followers_fetch_asks_for_the_cluster_alone() -> None:
    """RL 5.1: ClusterAction, once for the request, and no topic's Read."""
    api, steps = made(states={0: registration(LOCAL, (1, 2))})
    assert fetched(api, ("t", 0, 0), ("none", 0, 0), replica=2) == [0, UNKNOWN]
    assert steps.asked == [("CLUSTER_ACTION", "kafka-cluster"), ("fetch", "")]


@pytest.mark.parametrize("replica", [-1, 2])
@pytest.mark.parametrize("version", [3, 11])
def test_a_fetch_without_permission_learns_nothing(replica: int, version: int) -> None:
    """RL 5.1: whether topic and partition are there or not, and wherever it reads; the replica
    manager is not touched.
    """
    denied = [("READ", "t"), ("READ", "none"), ("CLUSTER_ACTION", "kafka-cluster")]
    api, steps = made(*denied)
    answers = fetched(
        api,
        ("t", 0, 99),
        ("t", 9, 0),
        ("none", 0, 0),
        replica=replica,
        version=version,
        max_wait_ms=500,
    )
    assert answers == [REFUSED] * 3
    assert ("fetch", "") not in steps.asked


def test_what_does_not_exist_is_refused_without_a_read() -> None:
    """RL 5.1: UNKNOWN_TOPIC_OR_PARTITION with -1 for the watermarks; with nothing left to read
    the answer is immediate, with -1 and no records.
    """
    api, steps = made()
    answer = api.now(
        fetch, FetchResponse, fetch_asked(("none", 0, 0), ("t", 9, 0), max_wait_ms=500), 11
    )
    for each in parts(answer):
        assert (
            each.error_code,
            each.high_watermark,
            each.last_stable_offset,
            each.log_start_offset,
        ) == (UNKNOWN, -1, -1, -1)
        assert not each.records
    assert ("fetch", "") not in steps.asked


def test_what_does_not_exist_does_not_hurry_the_others() -> None:
    """As Kafka: the deleted topic of a consumer that reads many does not make it spin; its error
    comes with the next answer.
    """
    api, _ = made()
    answers = api.ask(
        fetch, FetchResponse, fetch_asked(("none", 0, 0), ("t", 0, 0), max_wait_ms=500), 11
    )
    assert answers == []
    api.fixture.produce()
    assert [each.error_code for each in parts(answers[0])] == [UNKNOWN, ErrorCode.NONE]


def test_a_producer_id_needs_idempotent_write() -> None:
    """RL 5.1: IdempotentWrite on the cluster, where it applies, or Write on any topic: whoever may
    not is given no id.
    """
    api = Api(Fixture(), DenyList(("IDEMPOTENT_WRITE", "kafka-cluster"), ("WRITE", "*")))
    with pytest.raises(BrokerError) as caught:
        api.now(
            init_producer_id,
            InitProducerIdResponse,
            InitProducerIdRequest(transactional_id=None),
            4,
        )
    assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
