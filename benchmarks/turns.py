"""The longest turn of the reactor that one request can cost: `python -m benchmarks.turns
[ELEMENTS]`. Ends with status 1 when one works for more than 200 ms.

A broker on memory twins with one topic of many partitions is sent the worst request of each API;
each call of its clock is timed by the processor's time, without the collections of garbage that
fell into it, which are printed beside it, and without the clock's own sorting: a reactor has a
heap. What is sent and what is decoded of the answer is the client's, and not counted.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from struct import pack
from time import process_time
from typing import Any

from twisted.internet.task import Clock

from tests.faults.slow_turns import MOST_MS
from tests.memory_broker import MemoryBroker
from twisted_broker import garbage_collection
from twisted_broker.wire.messages import (
    cluster,
    configs,
    groups,
    list_offsets,
    log_dirs,
    offsets,
    producers,
    reassignment,
    topics,
)
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twisted_broker.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.schema import encode

PARTITIONS = 10_000


class TimedClock(Clock):
    """Times every call that it makes."""

    longest = collecting = 0.0
    made = 0
    began: float | None = None

    def seconds(self) -> float:
        """Goes on within a call, as a real clock does: slices end by it."""
        return self.rightNow if self.began is None else self.rightNow + process_time() - self.began

    def _sortCalls(self) -> None:
        began = process_time()
        super()._sortCalls()
        self.collecting += process_time() - began

    def callLater(  # type: ignore[override]  # Twisted names its parameters otherwise
        self, when: float, what: Callable[..., Any], *arguments: Any, **more: Any
    ) -> Any:
        def timed(*arguments: Any, **more: Any) -> None:
            self.collecting = 0.0
            began = self.began = process_time()
            what(*arguments, **more)
            self.began = None
            self.longest = max(self.longest, process_time() - began - self.collecting)
            self.made += 1

        return super().callLater(when, timed, *arguments, **more)


class Raw:
    """A client that sends bytes and counts what comes back."""

    def __init__(self, broker: MemoryBroker, port: int = 9092) -> None:
        from twisted.internet.protocol import ClientFactory, Protocol

        self.received = bytearray()
        self.lost = False
        clock: Any = broker.clock
        outer = self

        class Far(Protocol):
            def dataReceived(self, data: bytes) -> None:
                began = process_time()
                outer.received += data
                clock.collecting += process_time() - began

            def connectionLost(self, reason: Any = None) -> None:
                outer.lost = True

        self.protocol: Any = broker.run(
            broker.network.connect("127.0.0.1", port, ClientFactory.forProtocol(Far), 1)
        )

    def send(self, request: Any, version: int, flexible: bool) -> None:
        body = encode(request, version)
        head = (
            pack(">hhih", type(request).api_key, version, 1, 1)
            + b"x"
            + (b"\0" if flexible else b"")
        )
        self.protocol.transport.write(pack(">i", len(head) + len(body)) + head + body)

    @property
    def answered(self) -> bool:
        return self.lost or (
            len(self.received) >= 4
            and len(self.received) >= 4 + int.from_bytes(self.received[:4], "big")
        )


def requests(count: int) -> Iterator[tuple[str, Any, int]]:
    """Name, request, version."""
    part = [list_offsets.ListOffsetsPartition(partition_index=9, timestamp=-1)] * count
    yield (
        "ListOffsets",
        list_offsets.ListOffsetsRequest(
            topics=[list_offsets.ListOffsetsTopic(name="gone", partitions=part)]
        ),
        1,
    )
    there = [
        list_offsets.ListOffsetsPartition(partition_index=n, timestamp=5) for n in range(PARTITIONS)
    ]
    yield (
        "ListOffsets by time",
        list_offsets.ListOffsetsRequest(
            topics=[list_offsets.ListOffsetsTopic(name="wide", partitions=there)]
        ),
        7,
    )
    many = [FetchPartition(partition=n, partition_max_bytes=100) for n in range(min(count, 10_000))]
    yield (
        "Fetch of unknown ones",
        FetchRequest(
            max_wait_ms=0, max_bytes=1000, topics=[FetchTopic(topic="gone", partitions=many)]
        ),
        11,
    )
    wide = [FetchPartition(partition=n, partition_max_bytes=100) for n in range(PARTITIONS)]
    yield (
        "Fetch of all",
        FetchRequest(
            max_wait_ms=0, max_bytes=1 << 20, topics=[FetchTopic(topic="wide", partitions=wide)]
        ),
        11,
    )
    yield "Metadata of all", MetadataRequest(topics=None), 12
    yield (
        "Metadata of names",
        MetadataRequest(topics=[MetadataRequestTopic(name=f"n{n}") for n in range(count)]),
        12,
    )
    data = [PartitionProduceData(index=0, records=b"")] * count
    yield (
        "Produce",
        ProduceRequest(
            acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="gone", partition_data=data)]
        ),
        7,
    )
    resources = [
        configs.DescribeConfigsResource(
            resource_type=2, resource_name="wide", configuration_keys=None
        )
    ] * min(count, 5000)
    yield (
        "DescribeConfigs",
        configs.DescribeConfigsRequest(resources=resources, include_synonyms=True),
        4,
    )
    deletions = [topics.DeleteRecordsPartition(partition_index=n, offset=-1) for n in range(count)]
    yield (
        "DeleteRecords",
        topics.DeleteRecordsRequest(
            timeout_ms=1, topics=[topics.DeleteRecordsTopic(name="wide", partitions=deletions)]
        ),
        2,
    )
    epochs = [OffsetForLeaderPartition(partition=1, leader_epoch=0)] * count
    yield (
        "OffsetForLeaderEpoch",
        OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="gone", partitions=epochs)]),
        4,
    )
    yield (
        "DescribeProducers",
        producers.DescribeProducersRequest(
            topics=[producers.TopicRequest(name="wide", partition_indexes=list(range(count)))]
        ),
        0,
    )
    commits = [offsets.OffsetCommitRequestPartition(partition_index=n) for n in range(count)]
    yield (
        "OffsetCommit",
        offsets.OffsetCommitRequest(
            group_id="g", topics=[offsets.OffsetCommitRequestTopic(name="wide", partitions=commits)]
        ),
        8,
    )
    fetched = offsets.OffsetFetchRequestTopic(name="wide", partition_indexes=list(range(count)))
    yield "OffsetFetch", offsets.OffsetFetchRequest(group_id="g", topics=[fetched]), 7
    yield "OffsetFetch of all", offsets.OffsetFetchRequest(group_id="g", topics=None), 7
    deleted = [offsets.OffsetDeleteRequestPartition(partition_index=n) for n in range(count)]
    yield (
        "OffsetDelete",
        offsets.OffsetDeleteRequest(
            group_id="g",
            topics=[offsets.OffsetDeleteRequestTopic(name="wide", partitions=deleted)],
        ),
        0,
    )
    protocols = [groups.JoinGroupRequestProtocol(name=f"p{n}", metadata=b"") for n in range(count)]
    yield (
        "JoinGroup of many protocols",
        groups.JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, protocol_type="any", protocols=protocols
        ),
        0,
    )
    assignments = [
        groups.SyncGroupRequestAssignment(member_id=f"m{n}", assignment=b"") for n in range(count)
    ]
    yield (
        "SyncGroup",
        groups.SyncGroupRequest(
            group_id="g", generation_id=1, member_id="m", assignments=assignments
        ),
        3,
    )
    yield (
        "FindCoordinator",
        offsets.FindCoordinatorRequest(
            key_type=0, coordinator_keys=[f"g{n}" for n in range(count)]
        ),
        4,
    )
    yield "DescribeGroups", groups.DescribeGroupsRequest(groups=[f"g{n}" for n in range(count)]), 5
    yield (
        "LeaveGroup",
        groups.LeaveGroupRequest(
            group_id="g", members=[groups.MemberIdentity(member_id=f"{n}") for n in range(count)]
        ),
        4,
    )
    yield "DescribeLogDirs", log_dirs.DescribeLogDirsRequest(topics=None), 4
    yield "ListConfigResources", configs.ListConfigResourcesRequest(resource_types=[2] * count), 1
    names = [cluster.TopicRequest(name=f"n{n}") for n in range(count)]
    yield (
        "DescribeTopicPartitions",
        cluster.DescribeTopicPartitionsRequest(
            topics=names, response_partition_limit=2000, cursor=None
        ),
        0,
    )
    fresh = [
        topics.CreatableTopic(name=f"new{n}", num_partitions=1, replication_factor=1)
        for n in range(2000)
    ]
    yield "CreateTopics of 2,000", topics.CreateTopicsRequest(topics=fresh, timeout_ms=60_000), 7
    one = [topics.CreatableTopic(name="huge", num_partitions=PARTITIONS, replication_factor=1)]
    yield (
        "CreateTopics of 10,000 partitions",
        topics.CreateTopicsRequest(topics=one, timeout_ms=60_000),
        7,
    )
    bad = [topics.CreatableTopic(name="a b", num_partitions=1, replication_factor=1)] * count
    yield "CreateTopics of nothing", topics.CreateTopicsRequest(topics=bad, timeout_ms=60_000), 7
    edits = [
        configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name=f"n{n}"
        )
        for n in range(count)
    ]
    yield "IncrementalAlterConfigs", configs.IncrementalAlterConfigsRequest(resources=edits), 1
    yield (
        "ElectLeaders",
        reassignment.ElectLeadersRequest(topic_partitions=None, timeout_ms=60_000),
        2,
    )
    moves = [
        reassignment.ReassignablePartition(partition_index=n, replicas=[1]) for n in range(count)
    ]
    yield (
        "AlterPartitionReassignments",
        reassignment.AlterPartitionReassignmentsRequest(
            timeout_ms=60_000,
            topics=[reassignment.ReassignableTopic(name="gone", partitions=moves)],
        ),
        0,
    )
    removed = [topics.DeleteTopicState(name=f"n{n}") for n in range(count)]
    yield "DeleteTopics", topics.DeleteTopicsRequest(topics=removed, timeout_ms=60_000), 6


def main(count: int) -> list[str]:
    """Those that were too long."""
    too_long: list[str] = []
    broker = MemoryBroker(auto_create_topics_enable="false")
    clock = TimedClock()
    world = MemoryBroker.__new__(MemoryBroker)
    world.clock = clock
    from twisted_broker.simulation.memory_network import MemoryNetwork

    world.network = MemoryNetwork(clock, window_bytes=1 << 30)
    broker = MemoryBroker(
        world=world, auto_create_topics_enable="false", offsets_topic_num_partitions="1"
    ).start()
    wide = topics.CreatableTopic(name="wide", num_partitions=PARTITIONS, replication_factor=1)
    broker.ask(topics.CreateTopicsRequest(topics=[wide], timeout_ms=60_000), 7)
    broker.pass_time(5)
    broker.ask(offsets.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    broker.pass_time(2)
    garbage_collection.settle()  # as a broker does when it is ready
    collection = [0.0, 0.0]

    def watch(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            collection[0] = process_time()
        else:
            spent = process_time() - collection[0]
            clock.collecting += spent
            collection[1] = max(collection[1], spent)

    gc.callbacks.append(watch)
    print(
        f"{'request':<36} {'answer':>10} {'turns':>7} {'all, s':>7} {'longest turn, ms':>17} "
        f"{'longest collection, ms':>23}"
    )
    for name, request, version in requests(count):
        client = Raw(broker)
        flexible = type(request).flexible.holds(version)
        client.send(request, version, flexible)
        del request
        gc.collect()
        gc.freeze()  # as a broker does after its start, and for what is the client's
        clock.longest, clock.made, collection[1] = 0.0, 0, 0.0
        began, until = process_time(), clock.seconds() + 120
        while not client.answered and clock.seconds() < until:
            broker.step()
        size = "closed" if client.lost else "none" if not client.answered else len(client.received)
        spent = process_time() - began
        print(
            f"{name:<36} {size:>10} {clock.made:>7} {spent:>7.2f} "
            f"{clock.longest * 1000:>17.0f} {collection[1] * 1000:>23.0f}",
            flush=True,
        )
        if clock.longest * 1000 > MOST_MS:
            too_long.append(f"{name}: a turn of {clock.longest * 1000:.0f} ms")
        client.protocol.transport.abortConnection()
        broker.pass_time(0.1)
    broker.stop()
    return too_long


if __name__ == "__main__":
    found = main(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)
    sys.exit("\n".join(found) or None)
