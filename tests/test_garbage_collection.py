"""The policy of garbage collection, and what makes it safe: what lives long leaves no cycles."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from mmap import mmap
from typing import Any
from weakref import ref

import pytest

from tests.log.batches import batch
from tests.memory_broker import MemoryBroker
from twisted_broker import garbage_collection
from twisted_broker.garbage_collection import freeze_loaded
from twisted_broker.wire.messages import offsets, topics
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """As it was before, afterwards."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    freezes = garbage_collection._survivors.freezes
    yield
    garbage_collection._survivors.freezes = freezes
    gc.enable()
    gc.set_debug(0)
    gc.garbage.clear()
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks


PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Cyclic:
    def __init__(self) -> None:
        self.itself = self


def settled() -> None:
    """Collections come from now on when the test wants one."""
    gc.disable()
    garbage_collection.settle()
    garbage_collection.settle()  # of a second broker in the process


@pytest.fixture(params=["walk all", "walk what is new"])
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether each full collection walks over everything."""
    if request.param == "walk all":
        monkeypatch.setattr(garbage_collection, "_WALKS_ALL", 1)
        monkeypatch.setattr(garbage_collection, "_GROWTH", 0)


@pytest.mark.usefixtures("walk")
def test_what_survives_a_full_collection_is_walked_once() -> None:
    """What came since the last one is looked at, what is garbage of it goes, and the rest is
    frozen; also after the collection that walks over everything.
    """
    settled()
    kept = [Cyclic() for _ in range(1000)]
    lost = ref(Cyclic())
    assert lost() is not None
    gc.collect()
    assert lost() is None
    # Those that the next one walks over.
    left = {id(each) for each in gc.get_objects()}
    assert left.isdisjoint(id(each) for each in kept)
    assert left.isdisjoint(id(each.__dict__) for each in kept)
    assert len(left) < 1000 <= gc.get_freeze_count()


def collections_until(lost: ref[Cyclic], most: int) -> int:
    """How many full ones it takes; `most + 1` where it was there still."""
    for count in range(1, most + 1):
        gc.collect()
        if lost() is None:
            return count
    return most + 1


@pytest.mark.parametrize("what", ["objects", "bytes"])
def test_a_cycle_that_was_frozen_is_found_once_the_process_has_grown(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every hundredth full collection then; until then none walks over everything, which would
    hold the reactor.
    """
    monkeypatch.setattr(garbage_collection, "_GROWTH", 1.1)
    settled()
    gc.collect()
    grown: list[Any] = []
    for _ in range(2):  # the second time measured from what the first walk left
        kept = Cyclic()
        lost = ref(kept)
        gc.collect()
        del kept
        assert collections_until(lost, 200) == 201
        blocks, pages = garbage_collection._in_use()
        if what == "objects":
            grown += ([number] for number in range(blocks // 15))  # 3 blocks each
        else:
            # Of pages of its own: what earlier tests left in the heap would take a short one in.
            block = mmap(-1, pages * PAGE_BYTES // 8)
            block.write(bytes(len(block)))
            grown.append(block)
        assert collections_until(lost, 100) <= 100


def test_growth_is_measured_from_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a peak it does not take another peak."""
    monkeypatch.setattr(garbage_collection, "_GROWTH", 1.1)
    settled()
    peak = [[number] for number in range(sys.getallocatedblocks() // 15)]
    for _ in range(100):
        gc.collect()
    kept = Cyclic()
    lost = ref(kept)
    gc.collect()
    del kept, peak
    gc.collect()
    again = [[number] for number in range(sys.getallocatedblocks() // 15)]
    assert collections_until(lost, 100) <= 100 and again


def test_a_load_freezes_only_where_the_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that embeds a broker may leave cycles, which it would keep for ever. A load never
    asks how many objects are frozen: that walks over all of them.
    """
    monkeypatch.setattr(garbage_collection._survivors, "freezes", False)
    freeze_loaded()
    assert not gc.get_freeze_count()
    garbage_collection.spare_start()
    before = gc.get_freeze_count()
    kept: list[list[int]] = [[] for _ in range(1000)]
    with monkeypatch.context() as counted:
        counted.setattr(gc, "get_freeze_count", None)
        freeze_loaded()
    assert gc.get_freeze_count() > before and len(kept) == 1000


def test_a_start_that_waits_for_long_collects_its_garbage() -> None:
    garbage_collection.spare_start()
    lost = ref(Cyclic())
    kept: list[Any] = []
    while lost() is not None and len(kept) < 5_000_000:
        kept.append([])
    assert lost() is None


def left_by(broker: MemoryBroker, work: Any) -> Counter[str]:
    """Objects of the broker's own classes that only a collection frees after `work`."""
    gc.collect()
    gc.disable()
    work()
    broker.pass_time(120)
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = Counter(
        type(each).__qualname__
        for each in gc.garbage
        if type(each).__module__.startswith("twisted_broker")
        and type(each).__module__.split(".")[1] not in ("simulation", "testing")
    )
    gc.set_debug(0)
    gc.garbage.clear()
    return found


def use(broker: MemoryBroker) -> None:
    """A topic comes, is written and read, its offsets are committed, and it goes; each request
    on a connection of its own.
    """
    made = topics.CreatableTopic(name="t", num_partitions=3, replication_factor=1)
    broker.ask(topics.CreateTopicsRequest(topics=[made], timeout_ms=10_000), 5)
    broker.pass_time(3)
    data = PartitionProduceData(
        index=0, records=batch(b"value", timestamp=broker.runtime.wall_ms())
    )
    produced = broker.ask(
        ProduceRequest(
            acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        ),
        7,
    )
    assert produced.responses[0].partition_responses[0].error_code == 0
    for offset in (0, 1):  # there, and waited for
        broker.ask(
            FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=1 << 20,
                topics=[
                    FetchTopic(
                        topic="t",
                        partitions=[
                            FetchPartition(
                                partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
                            )
                        ],
                    )
                ],
            ),
            11,
        )
    committed = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    broker.ask(
        offsets.OffsetCommitRequest(
            group_id="g",
            topics=[offsets.OffsetCommitRequestTopic(name="t", partitions=[committed])],
        ),
        7,
    )
    broker.ask(topics.DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), 5)


def test_what_ends_leaves_no_cycles() -> None:
    """Connections, requests that waited, logs and partitions of a deleted topic, groups: once
    frozen, a cycle of theirs would stay for ever.
    """
    others = gc.get_objects()  # held to the end: brokers of other tests are none of this one's
    broker = MemoryBroker(offsets_topic_num_partitions="1").start()
    broker.ask(offsets.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    broker.pass_time(2)
    use(broker)  # what is made once and stays
    broker.pass_time(120)
    assert not left_by(broker, lambda: use(broker))
    broker.stop()
    del others
