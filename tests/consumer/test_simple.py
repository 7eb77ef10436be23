"""A consumer of one broker in memory (RL 7.6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.consumer.memory_cluster import FIRST_PORT, MemoryCluster, batch
from tests.consumer.test_consumer_fetchers import T0, T1, delete_records, numbered
from twisted_broker.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.compression import GZIP
from twisted_broker.wire.errors import BrokerError, ErrorCode

TIME = 1_700_000_000_000


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    made = MemoryCluster()
    made.create("t", [1], [1])
    yield made
    made.close()


@pytest.fixture
def simple(cluster: MemoryCluster) -> Iterator[SimpleConsumer]:
    made = SimpleConsumer("127.0.0.1", FIRST_PORT + 1, runtime=cluster.runtime)
    yield made
    made.close()


def test_fetch(cluster: MemoryCluster, simple: SimpleConsumer) -> None:
    """RL 7.6: records from an offset on, also within a compressed batch, with watermarks; what is
    refused is an error of its partition.
    """
    cluster.produce_bytes("t", batch(*numbered(0, 1, 2), codec=GZIP))
    found = cluster.run(simple.fetch({T0: 1, T1: 9, TopicPartition("t", 7): 0}))
    first = found[T0]
    assert [(each.offset, each.value) for each in first.records] == [(1, b"1"), (2, b"2")]
    assert (first.error, first.next_offset, first.high_watermark, first.log_start_offset) == (
        ErrorCode.NONE,
        3,
        3,
        0,
    )
    assert found[T1].error is ErrorCode.OFFSET_OUT_OF_RANGE and found[T1].records == []
    assert found[TopicPartition("t", 7)].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_before_a_time(cluster: MemoryCluster, simple: SimpleConsumer) -> None:
    """RL 7.6: where records of a time or later begin; the start, the end; beyond the last: the
    end.
    """
    cluster.produce("t", *numbered(0, 1))
    for timestamp, offset in ((EARLIEST, 0), (TIME, 0), (TIME + 1, 2), (LATEST, 2)):
        assert cluster.run(simple.offset_before(T0, timestamp)) == offset
    delete_records(cluster, 1)
    assert cluster.run(simple.offset_before(T0, EARLIEST)) == 1
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.run(simple.offset_before(TopicPartition("none", 0), LATEST))


def test_topic_metadata(cluster: MemoryCluster, simple: SimpleConsumer) -> None:
    """RL 7.6: brokers, topics, partitions and leaders; none is created by it."""
    found = cluster.run(simple.topic_metadata())
    assert found.cluster_id == cluster.controller.broker.cluster_id
    assert found.brokers[1].port == FIRST_PORT + 1
    leaders = {number: each.leader for number, each in found.topics["t"].partitions.items()}
    assert leaders == {0: found.brokers[1], 1: found.brokers[1]}
    missing = cluster.run(simple.topic_metadata(["none"]))
    assert missing.topics["none"].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_commit_and_fetch_of_offsets(cluster: MemoryCluster, simple: SimpleConsumer) -> None:
    """RL 7.6: of a group without members, at its coordinator."""
    with pytest.raises(BrokerError, match="COORDINATOR"):  # nobody looked for one yet
        cluster.run(simple.commit_offsets("g", {T0: 5}))
    cluster.create("__consumer_offsets", [1])
    cluster.pass_time(1)
    cluster.run(simple.commit_offsets("g", {T0: 5}))
    assert cluster.run(simple.fetch_offsets("g", [T0, T1])) == {T0: 5, T1: -1}
