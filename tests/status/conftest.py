"""Two brokers after some load, as they are scraped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.memory_broker import MemoryBroker
from tests.status.published_dashboards import Scrapes, samples_of
from tests.status.test_contract_names import Pair
from tests.test_broker import create, fetch, produce
from twisted_broker.interfaces import Marks, TurnNumbers
from twisted_broker.wire.messages import offsets
from twisted_broker.wire.messages.fetch import FetchRequest
from twisted_broker.wire.messages.metadata import MetadataRequest


class Watched(Marks):
    """A reactor that was busy for some of its time."""

    def numbers(self) -> TurnNumbers:
        return TurnNumbers(10, 0.5, 0.1, 0, 0.0, [])


def use(broker: MemoryBroker) -> None:
    """Some of all that clients do."""
    find = offsets.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    broker.ask(find, 4)
    broker.pass_time(2)
    (coordinator,) = broker.ask(find, 4).coordinators
    broker.ask(MetadataRequest(topics=[]), 9)
    produce(broker, "t", b"a", b"b", b"c")
    fetch(broker, "t")
    committed = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = offsets.OffsetCommitRequestTopic(name="t", partitions=[committed])
    commit = offsets.OffsetCommitRequest(group_id="g", topics=[topic])
    answer = broker.ask(commit, 7, coordinator.port)
    assert answer.topics[0].partitions[0].error_code == 0
    refused = FetchRequest(replica_id=-9, max_wait_ms=0, min_bytes=0, max_bytes=1)
    assert broker.ask(refused, 11).error_code != 0


@pytest.fixture(scope="session")
def scraped() -> Iterator[Scrapes]:
    """Two brokers after some load, the second scrape of both."""
    pair = Pair()
    pair.one.runtime.marks = Watched()
    pair.one.broker.log_manager.free_space.start()
    use(pair.one)
    for broker in (1, 2):
        pair.numbers(broker)
    create(pair.one, "u")
    pair.one.pass_time(2)
    yield [samples_of(pair.looking[broker].get("/metrics")[2]) for broker in (1, 2)]
    pair.stop()
