"""What the replica manager counts per topic, and in total (RL 1.13)."""

from __future__ import annotations

import pytest

from tests.replication.fixtures import (
    LOCAL,
    TP,
    Fixture,
    at,
    batch,
    broker_registration,
    consumer,
    follower,
    registration,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.log import Log
from twisted_broker.replication.partition.topic_stats import COUNTERS, BrokerStats
from twisted_broker.wire.errors import ErrorCode

ELSEWHERE = TopicPartition("elsewhere", 0)


def test_appends_count_messages_bytes_and_requests() -> None:
    """RL 1.13: messages and bytes that went in; requests before any check, per partition asked."""
    fixture = Fixture()
    fixture.topic()
    fixture.produce(3)
    stats = fixture.replicas.stats.topics["t"]
    assert (stats.produces, stats.messages_in, stats.bytes_in) == (
        1,
        3,
        fixture.partition().log.size_in_bytes,
    )
    fixture.topic(states={0: registration(2, (1, 2), leader_epoch=1, partition_epoch=1)})
    assert fixture.produce(1).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (stats.produces, stats.messages_in, stats.failed_produces) == (2, 3, 0), (
        "an expected refusal is a request, and no failure"
    )


def test_requests_for_what_is_not_here_count_in_total() -> None:
    """RL 1.13: counted before any check, but no counter is made for a name that anybody can make
    up.
    """
    fixture = Fixture()
    fixture.produce(1, tp=ELSEWHERE)
    fixture.produce(1, tp=TopicPartition("__consumer_offsets", 0))
    fixture.replicas.fetch(consumer(0), [at(0, ELSEWHERE)])
    total = fixture.replicas.stats.total()
    assert (total.produces, total.fetches, total.failed_produces, total.failed_fetches) == (
        2,
        1,
        0,
        0,
    )
    assert fixture.replicas.stats.topics == {}


def test_failures_and_rejected_bytes() -> None:
    """RL 1.13: unexpected errors only; what is too large is counted in bytes, and appended
    nowhere.
    """
    fixture = Fixture()
    fixture.topic(overrides={"max.message.bytes": "100"})
    large = batch(10, value=b"v" * 100)
    (outcome,) = fixture.replicas.produce([(TP, large)], 1)
    stats = fixture.replicas.stats.topics["t"]
    assert outcome.error == ErrorCode.MESSAGE_TOO_LARGE
    assert (stats.bytes_rejected, stats.failed_produces, stats.bytes_in) == (len(large), 0, 0)
    fixture.topic(
        states={0: registration(LOCAL, (1, 2), (1,), 0, 1)}, overrides={"min.insync.replicas": "2"}
    )
    assert fixture.produce(1, acks=-1).error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert stats.failed_produces == 1


def test_only_reads_that_fail_unexpectedly_count_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 1.13: FailedFetchRequests: not an offset out of range, an old leader epoch, another
    broker's partition or a failed disk; each is a request all the same.
    """
    fixture = Fixture()
    fixture.topic()
    stats = fixture.replicas.stats.topics["t"]
    fixture.replicas.fetch(consumer(), [at(9), at(0, current_leader_epoch=7)])
    assert (stats.fetches, stats.failed_fetches) == (2, 0)

    def broken(*_: object, **__: object) -> None:
        raise error

    error: Exception = LogDirFailure("/elsewhere", OSError("EIO"))
    monkeypatch.setattr(Log, "read", broken)
    (result,) = fixture.replicas.fetch(consumer(), [at(0)])
    assert (result.error, stats.failed_fetches) == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
    error = RuntimeError("a bug")
    results = fixture.replicas.fetch(consumer(), [at(0), at(0)])
    assert [each.error for each in results] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    assert (stats.failed_fetches, fixture.replicas.stats.total().failed_fetches) == (2, 2)


def test_reads_of_consumers_and_followers_count_apart() -> None:
    """RL 1.13: bytes out are the consumers'; the followers' are replication, and reassignment
    for one that is being added.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(LOCAL, (1, 2, 3), (1, 2))._replace(adding=(3,))})
    fixture.produce(1)
    size = fixture.partition().log.size_in_bytes
    stats = fixture.replicas.stats.topics["t"]
    for params, offset in (
        (follower(2), 0),
        (follower(3), 0),
        (follower(2), 1),
        (follower(3), 1),
        (consumer(), 0),
    ):
        for result in fixture.replicas.fetch(params, [at(offset)]):
            result.release()
    assert (stats.fetches, stats.bytes_out) == (5, size)
    assert (stats.replication_bytes_out, stats.reassignment_bytes_out) == (2 * size, size)


@pytest.mark.parametrize("node", [0, 2])
def test_what_is_read_and_given_back_is_not_counted(node: int) -> None:
    """RL 1.9, 1.13: a fetch that has to wait reads anew; the first read was never sent. A node may
    have the id 0.
    """
    fixture = Fixture()
    fixture.publish(brokers={number: broker_registration(number) for number in (node, 1)})
    fixture.topic(states={0: registration(LOCAL, (1, node))})
    fixture.produce(1)
    for params in (follower(node, min_bytes=10_000), consumer(min_bytes=10_000)):
        fixture.replicas.delayed_fetch(params, fixture.replicas.fetch(params, [at(0)]))
    stats = fixture.replicas.stats.topics["t"]
    assert (stats.bytes_out, stats.replication_bytes_out, stats.fetches) == (0, 0, 2)


def test_counts_outlive_their_topic() -> None:
    """RL 1.13: a total never falls; a topic that is gone takes its own row along."""
    fixture = Fixture()
    fixture.topic(states={number: registration() for number in range(2)})
    fixture.produce(2)
    fixture.remove_topic()
    assert fixture.replicas.stats.topics == {} and fixture.replicas.stats.total().messages_in == 2
    fixture.topic(topic_id=bytes(15) + b"\1")
    fixture.produce(1)
    assert (
        fixture.replicas.stats.topics["t"].messages_in,
        fixture.replicas.stats.total().messages_in,
    ) == (1, 3)


def test_every_counter_is_summed() -> None:
    """The total misses none."""
    stats = BrokerStats()
    for topic in ("a", "b"):
        held = stats.hold(topic)
        for place, name in enumerate(COUNTERS):
            setattr(held, name, place + 1)
    stats.release("a")
    total = stats.total()
    assert [getattr(total, name) for name in COUNTERS] == [
        2 * (place + 1) for place in range(len(COUNTERS))
    ]


def test_refused_isr_changes_are_counted() -> None:
    """RL 1.13: FailedIsrUpdates, beside the shrinks and expansions that were confirmed."""
    fixture = Fixture()
    fixture.topic(states={0: registration(LOCAL, (1, 2), (1,))})
    fixture.replicas.fetch(follower(2), [at(0)])
    fixture.controller.refuse(ErrorCode.INELIGIBLE_REPLICA)
    assert (fixture.replicas.effects.failed_isr_updates, fixture.replicas.effects.isr_expands) == (
        1,
        0,
    )
    fixture.replicas.fetch(follower(2), [at(0)])
    fixture.controller.confirm()
    assert (fixture.replicas.effects.failed_isr_updates, fixture.replicas.effects.isr_expands) == (
        1,
        1,
    )
