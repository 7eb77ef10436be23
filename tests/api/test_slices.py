"""Long requests in slices (`turns.py`): nobody waits for another's, and the answer is the
one that a short request would get.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from tests.api.group_api import LISTENER, ROWS, ApiRun, image, topic
from tests.memory_broker import MemoryBroker
from tests.replication.fixtures import Fixture
from twisted_broker.api.context import BrokerParts, RequestContext
from twisted_broker.api.dispatch import Dispatcher
from twisted_broker.api.refusals import refusal, refusal_in_steps
from twisted_broker.coordinator.offset_metadata_manager import OffsetToCommit
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.security.acl import AllowAll, Operation, ResourceType
from twisted_broker.server import broker_server, kafka_server
from twisted_broker.simulation.memory_network import MemoryNetwork
from twisted_broker.turns import LOOK_ELEMENTS, SECONDS_PER_TURN, SLICE_ELEMENTS, Turns
from twisted_broker.wire.messages import (
    cluster,
    configs,
    groups,
    list_offsets,
    offsets,
    producers,
    reassignment,
    topics,
)
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
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
from twisted_broker.wire.primitives import FEW_ELEMENTS, MAX_ELEMENTS
from twisted_broker.wire.record_builder import BatchBuilder
from twisted_broker.wire.schema import (
    decode,
    decode_few,
    decode_in_slices,
    encode,
    encode_in_slices,
    run_whole,
)

MANY = 6 * FEW_ELEMENTS


def worst() -> dict[str, tuple[Any, int]]:
    names = [f"n{number}" for number in range(MANY)]
    spread = list(range(MANY))
    gone = [list_offsets.ListOffsetsPartition(partition_index=9, timestamp=-1)] * MANY
    fetched = [
        FetchPartition(partition=number % 5000, partition_max_bytes=9) for number in range(MANY)
    ]
    return {
        "ListOffsets": (
            list_offsets.ListOffsetsRequest(
                topics=[list_offsets.ListOffsetsTopic(name="gone", partitions=gone)]
            ),
            1,
        ),
        "Fetch": (
            FetchRequest(
                max_wait_ms=0, max_bytes=1000, topics=[FetchTopic(topic="gone", partitions=fetched)]
            ),
            11,
        ),
        "Metadata": (
            MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names]),
            12,
        ),
        "Produce": (
            ProduceRequest(
                acks=1,
                timeout_ms=1,
                topic_data=[
                    TopicProduceData(
                        name="gone",
                        partition_data=[PartitionProduceData(index=0, records=b"")] * MANY,
                    )
                ],
            ),
            7,
        ),
        "DeleteRecords": (
            topics.DeleteRecordsRequest(
                timeout_ms=1,
                topics=[
                    topics.DeleteRecordsTopic(
                        name="t",
                        partitions=[
                            topics.DeleteRecordsPartition(partition_index=n) for n in spread
                        ],
                    )
                ],
            ),
            2,
        ),
        "OffsetForLeaderEpoch": (
            OffsetForLeaderEpochRequest(
                topics=[
                    OffsetForLeaderTopic(
                        topic="t", partitions=[OffsetForLeaderPartition(partition=9)] * MANY
                    )
                ]
            ),
            4,
        ),
        "DescribeProducers": (
            producers.DescribeProducersRequest(
                topics=[producers.TopicRequest(name="t", partition_indexes=spread)]
            ),
            0,
        ),
        "DescribeConfigs": (
            configs.DescribeConfigsRequest(
                resources=[
                    configs.DescribeConfigsResource(
                        resource_type=2, resource_name=name, configuration_keys=None
                    )
                    for name in names
                ]
            ),
            4,
        ),
        "OffsetFetch": (
            offsets.OffsetFetchRequest(
                group_id="g",
                topics=[offsets.OffsetFetchRequestTopic(name="t", partition_indexes=spread)],
            ),
            7,
        ),
        "OffsetFetch of many topics": (
            offsets.OffsetFetchRequest(
                groups=[
                    offsets.OffsetFetchRequestGroup(
                        group_id="g",
                        topics=[
                            offsets.OffsetFetchRequestTopics(
                                topic_id=number.to_bytes(16, "big"), partition_indexes=[0]
                            )
                            for number in range(1, MANY)
                        ],
                    )
                ]
            ),
            10,
        ),
        "OffsetFetch of many groups": (
            offsets.OffsetFetchRequest(
                groups=[
                    offsets.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names
                ]
            ),
            8,
        ),
        "OffsetCommit": (
            offsets.OffsetCommitRequest(
                group_id="g",
                topics=[
                    offsets.OffsetCommitRequestTopic(
                        name="t",
                        partitions=[
                            offsets.OffsetCommitRequestPartition(
                                partition_index=number, committed_offset=1
                            )
                            for number in spread
                        ],
                    )
                ],
            ),
            8,
        ),
        "OffsetDelete": (
            offsets.OffsetDeleteRequest(
                group_id="g",
                topics=[
                    offsets.OffsetDeleteRequestTopic(
                        name="t",
                        partitions=[
                            offsets.OffsetDeleteRequestPartition(partition_index=number)
                            for number in spread
                        ],
                    )
                ],
            ),
            0,
        ),
        "DescribeGroups": (groups.DescribeGroupsRequest(groups=names), 5),
        "DeleteGroups": (groups.DeleteGroupsRequest(groups_names=names), 2),
        "DescribeTopicPartitions": (
            cluster.DescribeTopicPartitionsRequest(
                topics=[cluster.TopicRequest(name=name) for name in names],
                response_partition_limit=2000,
                cursor=None,
            ),
            0,
        ),
        "CreateTopics": (
            topics.CreateTopicsRequest(
                topics=[
                    topics.CreatableTopic(name=f"a {name}", num_partitions=1, replication_factor=1)
                    for name in names
                ],
                timeout_ms=60_000,
            ),
            7,
        ),
        "DeleteTopics": (
            topics.DeleteTopicsRequest(
                topics=[topics.DeleteTopicState(name=name) for name in names], timeout_ms=60_000
            ),
            6,
        ),
        "IncrementalAlterConfigs": (
            configs.IncrementalAlterConfigsRequest(
                resources=[
                    configs.IncrementalAlterConfigsRequestAlterConfigsResource(
                        resource_type=2, resource_name=name
                    )
                    for name in names
                ]
            ),
            1,
        ),
        "ElectLeaders": (
            reassignment.ElectLeadersRequest(
                topic_partitions=[reassignment.TopicPartitions(topic="t", partitions=list(spread))],
                timeout_ms=60_000,
            ),
            2,
        ),
        "AlterPartitionReassignments": (
            reassignment.AlterPartitionReassignmentsRequest(
                topics=[
                    reassignment.ReassignableTopic(
                        name="t",
                        partitions=[
                            reassignment.ReassignablePartition(partition_index=n, replicas=None)
                            for n in spread
                        ],
                    )
                ],
                timeout_ms=60_000,
            ),
            0,
        ),
    }


def one_turn(broker: MemoryBroker) -> None:
    """As the reactor: what is due now, and not what that brings about."""
    clock = broker.clock
    due: list[Any] = [call for call in clock.getDelayedCalls() if call.getTime() <= clock.seconds()]
    if not due:
        broker.step()
    for call in due:
        if call.active():
            clock.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class CountedTurns(Turns):
    """Notes in `waits` each time that a request waits for a turn."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker.clock)
        self.waits: list[None] = []

    def next_turn(self) -> Deferred[None]:
        self.waits.append(None)
        return super().next_turn()


def started() -> MemoryBroker:
    """With the topic `t` and the coordinator of the group `g`."""
    made = MemoryBroker(auto_create_topics_enable="false", offsets_topic_num_partitions="1").start()
    made.ask(
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name="t", num_partitions=2, replication_factor=1)],
            timeout_ms=1000,
        ),
        7,
    )
    made.ask(offsets.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    made.pass_time(2)
    return made


@pytest.fixture(scope="module")
def broker() -> Any:
    made = started()
    yield made
    made.stop()


@pytest.mark.parametrize("name", worst())
def test_others_are_served_while_a_long_request_is_worked_on(
    name: str, broker: MemoryBroker
) -> None:
    """12,000 elements: a neighbour asks again and again and is answered meanwhile."""
    request, version = worst()[name]
    long, other = broker.connection(), broker.connection()
    broker.run(
        other.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    )
    answers: list[Any] = []
    others: list[Any] = []
    asked = 0
    long.send(request, version).addBoth(answers.append)
    while not answers:
        if len(others) == asked:
            asked += 1
            other.send(
                ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3
            ).addCallback(others.append)
        one_turn(broker)
    served = len(others)
    assert served >= 6
    assert not isinstance(answers[0], Exception) and hasattr(answers[0], "FIELDS"), answers
    for each in (long, other):
        each.close()
    broker.pass_time(0.1)


def test_a_request_beyond_all_reason_ends_its_connection(broker: MemoryBroker) -> None:
    """More elements than MAX_ELEMENTS are not read: Kafka has no such limit but its memory; ours
    is far above what anybody asks.
    """
    request = groups.DescribeGroupsRequest(groups=["g"] * (MAX_ELEMENTS + 1))
    connection = broker.connection()
    ended: list[Any] = []
    connection.send(request, 5).addBoth(ended.append)
    broker.pass_time(1)
    assert ended and not hasattr(ended[0], "FIELDS")


@pytest.mark.parametrize("name", worst())
def test_in_slices_is_the_same_message(name: str) -> None:
    """Read and written in slices or at a stroke: the same objects, the same bytes; each slice
    holds a bounded number of elements.
    """
    request, version = worst()[name]
    body = encode(request, version)
    assert (
        decode(type(request), body, version)
        == run_whole(decode_in_slices(type(request), body, version))
        == request
    )
    parts: list[Any] = []
    slices = sum(1 for _ in encode_in_slices(request, version, parts))
    assert b"".join(parts) == body
    assert (
        name in ("DescribeProducers", "OffsetFetch", "ElectLeaders")
        or slices == MANY // FEW_ELEMENTS
    )
    with pytest.raises(Exception, match="more than 2000 elements"):
        decode_few(type(request), body, version)


def test_an_ordinary_request_never_waits_for_a_turn(broker: MemoryBroker, monkeypatch: Any) -> None:
    """A few hundred elements are answered in the turn in which they came."""
    part = [
        list_offsets.ListOffsetsPartition(partition_index=number % 2, timestamp=-1)
        for number in range(SLICE_ELEMENTS // 4)
    ]
    request = list_offsets.ListOffsetsRequest(
        topics=[list_offsets.ListOffsetsTopic(name="t", partitions=part)]
    )
    turns = CountedTurns(broker)
    monkeypatch.setattr(broker.broker.parts, "turns", turns)
    broker.ask(request, 1)
    assert not turns.waits
    part *= 100
    broker.ask(request, 1)
    assert turns.waits


CALLS_PER_SLICE = 60 * SLICE_ELEMENTS
CALLS_FOR_A_PARTITION = 40


def group_requests() -> dict[str, tuple[Any, int]]:
    found = {
        name: each
        for name, each in worst().items()
        if name.startswith(("Offset", "DescribeGroups", "DeleteGroups")) and "Leader" not in name
    }
    unknown = offsets.OffsetFetchRequestTopic(name="t", partition_indexes=list(range(MANY)))
    return found | {
        "OffsetFetch of old": (offsets.OffsetFetchRequest(group_id="g", topics=[unknown]), 1),
        "OffsetFetch of all": (offsets.OffsetFetchRequest(group_id="held", topics=None), 7),
        "OffsetFetch without permission": (
            offsets.OffsetFetchRequest(
                group_id="g",
                topics=[
                    offsets.OffsetFetchRequestTopic(
                        name="secret", partition_indexes=list(range(MANY))
                    )
                ],
            ),
            7,
        ),
    }


@pytest.mark.parametrize("name", group_requests())
def test_no_turn_of_a_request_on_groups_is_long(name: str, monkeypatch: Any) -> None:
    """The function alone, read and written by others: what it does in one turn is bounded,
    whatever is named and however much the group holds.
    """
    monkeypatch.setattr("twisted_broker.turns.PIECES_PER_TURN", 1)  # no time passes in a turn
    run = ApiRun()
    run.source.image = image(topic("t", b"T" * 16, MANY))
    run.acl.denied.add((Operation.DESCRIBE, ResourceType.TOPIC, "secret"))
    held = [OffsetToCommit("t", number, 1) for number in range(MANY)]
    for group in ("g", "held"):
        run.commit(*held, group=group)
        run.settle()
    request, version = group_requests()[name]
    row = ROWS[type(request).__name__.removesuffix("Request")]
    context = RequestContext(run.parts, LISTENER, row.api_key, version, 1, "client")
    answers: list[Any] = []
    calls = [0]

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[-1] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        ensureDeferred(row.function(False)(context, request)).addBoth(answers.append)
        while not answers:
            calls.append(0)
            run.clock.turn()
    finally:
        sys.setprofile(None)
    assert not isinstance(answers[0], Failure), answers
    # What one batch holds is in flight from one step on.
    longest = 3 * MANY if name == "OffsetCommit" else CALLS_PER_SLICE
    assert max(calls) < longest, (max(calls), calls.index(max(calls)), len(calls))
    assert name != "OffsetCommit" or sorted(calls)[-2] < CALLS_PER_SLICE


@pytest.mark.parametrize("version", [1, 7, 8])
def test_no_turn_frees_all_offsets_of_a_group(version: int, monkeypatch: Any) -> None:
    """What was found, sorted and answered is given back piece by piece: a million at once were
    87 to 867 ms.
    """
    monkeypatch.setattr("twisted_broker.turns.PIECES_PER_TURN", 1)
    run, count = ApiRun(), 5 * MANY
    run.commit(OffsetToCommit("t", 0, 1), group="g")
    run.settle()
    committed = run.coordinator.runtime.shard_of("g").groups["g"].offsets.committed
    committed.update(dict.fromkeys(((f"n{n}", n) for n in range(count)), committed["t", 0]))
    if version < 8:
        request = offsets.OffsetFetchRequest(group_id="g", topics=None)
    else:
        group = offsets.OffsetFetchRequestGroup(group_id="g", topics=None)
        request = offsets.OffsetFetchRequest(groups=[group])
    row = ROWS["OffsetFetch"]
    context = RequestContext(run.parts, LISTENER, row.api_key, version, 1, "client")
    answers: list[Any] = []
    ensureDeferred(row.function(False)(context, request)).addBoth(answers.append)
    freed = 0
    gc.collect()
    gc.disable()  # what it collects is not this request's
    try:
        while not answers:
            before = sys.getallocatedblocks()
            run.clock.turn()
            freed = max(freed, before - sys.getallocatedblocks())
    finally:
        gc.enable()
    found = answers[0].topics if version < 8 else answers[0].groups[0].topics
    assert [topic.name for topic in found] == sorted({name for name, _ in committed})
    assert freed < count / 2


def test_a_long_answer_is_freed_in_steps_and_sent_in_pieces(monkeypatch: Any) -> None:
    answers: list[Any] = []

    class Keeping(Dispatcher):
        async def _written_in_slices(self, served: Any, context: Any, response: Any) -> Any:
            answers.append(response)
            encoded = await super()._written_in_slices(served, context, response)
            answers.append(encoded.answer)
            return encoded

    monkeypatch.setattr(kafka_server, "Dispatcher", Keeping)
    broker = started()
    topic = offsets.OffsetFetchRequestTopics(name="t", partition_indexes=list(range(MANY)))
    group = offsets.OffsetFetchRequestGroup(group_id="g", topics=[topic, topic])
    found = broker.ask(offsets.OffsetFetchRequest(groups=[group]), 8)
    assert [len(each.partitions) for each in found.groups[0].topics] == [MANY, MANY]
    broker.pass_time(0.1)
    assert answers[0].groups == []
    assert max(map(len, answers[1])) < sum(map(len, answers[1])) / 8
    broker.stop()


def test_a_slice_ends_by_time_and_a_cheap_one_goes_on() -> None:
    """Elements are counted only so that the clock need not be read for each."""
    fixture = Fixture()
    parts = BrokerParts(
        node_id=1,
        cluster_id="c",
        config=fixture.config,
        runtime=fixture.runtime,
        authorizer=AllowAll(),
    )

    def elements_until_a_wait(seconds_each: float) -> int:
        context = RequestContext(parts, LISTENER, 3, 12, 1, "c")
        count = 0

        async def work() -> None:
            nonlocal count
            async for _ in context.each(range(10 * SLICE_ELEMENTS)):
                count += 1
                fixture.clock.rightNow += seconds_each

        steps = work()
        steps.send(None)
        steps.close()
        assert context.sliced
        return count

    assert elements_until_a_wait(0.0) == pytest.approx(SLICE_ELEMENTS, abs=LOOK_ELEMENTS)
    slow = elements_until_a_wait(SECONDS_PER_TURN / LOOK_ELEMENTS)
    assert LOOK_ELEMENTS < slow <= 2 * LOOK_ELEMENTS + 2


def test_a_refusal_that_mirrors_a_long_request_is_made_in_slices() -> None:
    """Without permission for the cluster, ElectLeaders has an answer of its own; a request whose
    answer is a list names each element: that is work, too.
    """
    request, version = worst()["DescribeProducers"]
    response_class = producers.DescribeProducersResponse
    pauses = 0
    steps = refusal_in_steps(request, response_class, version, 42, "no")
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer = end.value
            break
        pauses += 1
    assert pauses >= MANY
    assert answer == refusal(request, response_class, version, 42, "no")
    assert len(answer.topics[0].partitions) == MANY


def test_parts_of_a_request_give_the_answer_of_the_whole(broker: MemoryBroker) -> None:
    """ElectLeaders and AlterPartitionReassignments, a partition named in two parts included."""
    count = 450
    numbers = [*range(count), 7]
    elected = broker.ask(
        reassignment.ElectLeadersRequest(
            topic_partitions=[
                reassignment.TopicPartitions(topic="t", partitions=numbers),
                reassignment.TopicPartitions(topic="gone", partitions=[3]),
            ],
            timeout_ms=1000,
        ),
        2,
    ).replica_election_results
    assert [(each.topic, len(each.partition_result)) for each in elected] == [
        ("t", count + 1),
        ("gone", 1),
    ]
    codes = [each.error_code for each in elected[0].partition_result]
    assert codes[:2] == [84, 84] and set(codes[2:]) == {3}  # election not needed; unknown
    changed = broker.ask(
        reassignment.AlterPartitionReassignmentsRequest(
            topics=[
                reassignment.ReassignableTopic(
                    name="t",
                    partitions=[
                        reassignment.ReassignablePartition(partition_index=n % 450, replicas=None)
                        for n in [*range(count), 1]
                    ],
                )
            ],
            timeout_ms=1000,
        ),
        0,
    ).responses
    assert [(each.name, len(each.partitions)) for each in changed] == [("t", count + 1)]
    codes = [each.error_code for each in changed[0].partitions]
    assert codes[:2] == [85, 85] and codes[-1] == 42  # nothing to cancel; named twice
    everything = broker.ask(
        reassignment.ElectLeadersRequest(topic_partitions=None, timeout_ms=1000), 2
    )
    assert all(not each.partition_result for each in everything.replica_election_results)


class CountingClock(Clock):
    """Counts the calls of functions in each of the calls that it makes, from `begin` to `end`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = [0]

    def callLater(  # type: ignore[override]  # Twisted names its parameters otherwise
        self, when: float, what: Any, *arguments: Any, **more: Any
    ) -> Any:
        def counted() -> None:
            self.counts.append(0)
            what(*arguments, **more)

        return super().callLater(when, counted)

    def count(self, frame: Any, event: str, argument: Any) -> None:
        self.counts[-1] += event in ("call", "c_call")


def counting_broker() -> tuple[MemoryBroker, CountingClock]:
    world, clock = MemoryBroker.__new__(MemoryBroker), CountingClock()
    world.clock, world.network = clock, MemoryNetwork(clock)
    return MemoryBroker(world=world).start(), clock


def counted(broker: MemoryBroker, clock: CountingClock, request: Any, version: int) -> Any:
    """The answer; what each turn until then did is in `clock.counts`."""
    answers: list[Any] = []
    connection = broker.connection()
    broker.run(connection.connect())
    connection.send(request, version).addCallback(answers.append)
    clock.counts = [0]
    sys.setprofile(clock.count)
    try:
        while not answers:
            broker.step()
    finally:
        sys.setprofile(None)
    connection.close()
    return answers[0]


def test_no_turn_of_a_topic_of_very_many_partitions_is_long() -> None:
    """Its decision, its encoding, its write and its arrival at the broker are turns of their own;
    one of them does no more for a partition than that.
    """
    (broker, clock), count = counting_broker(), 4000
    wide = topics.CreatableTopic(name="wide", num_partitions=count, replication_factor=1)
    answer = counted(broker, clock, topics.CreateTopicsRequest(topics=[wide], timeout_ms=60_000), 7)
    assert answer.topics[0].error_code == 0
    assert max(clock.counts) < CALLS_FOR_A_PARTITION * count, sorted(clock.counts)[-6:]
    broker.stop()


def test_no_turn_of_very_many_deletions_of_records_is_long() -> None:
    """What is done at once waits for nothing."""
    (broker, clock), count = counting_broker(), 4000
    wide = topics.CreatableTopic(name="wide", num_partitions=count, replication_factor=1)
    broker.ask(topics.CreateTopicsRequest(topics=[wide], timeout_ms=60_000), 7)
    broker.pass_time(1)
    asked = [topics.DeleteRecordsPartition(partition_index=n, offset=-1) for n in range(count)]
    wanted = [topics.DeleteRecordsTopic(name="wide", partitions=asked)]
    answer = counted(broker, clock, topics.DeleteRecordsRequest(timeout_ms=1, topics=wanted), 2)
    assert {each.error_code for each in answer.topics[0].partitions} == {0}
    assert max(clock.counts) < CALLS_PER_SLICE, sorted(clock.counts)[-6:]
    broker.stop()


def test_a_topic_of_very_many_partitions_is_decided_again_when_something_came_between() -> None:
    """Decided, encoded and written in turns of their own."""
    broker = MemoryBroker().start()
    wide = topics.CreatableTopic(name="wide", num_partitions=4500, replication_factor=1)
    other = topics.CreatableTopic(name="wide", num_partitions=1, replication_factor=1)
    answers: list[Any] = []
    connections = [broker.connection(), broker.connection()]
    for connection, wanted in zip(connections, (wide, other), strict=True):
        broker.run(connection.connect())
        connection.send(
            topics.CreateTopicsRequest(topics=[wanted], timeout_ms=60_000), 7
        ).addCallback(answers.append)
    until = broker.clock.seconds() + 60
    while len(answers) < 2:
        broker.step()
        assert broker.clock.seconds() < until
    codes = sorted(each.topics[0].error_code for each in answers)
    assert codes == [0, 36]  # one made it, the other finds it there
    for connection in connections:
        connection.close()
    broker.stop()


def test_a_fetch_of_many_partitions_is_read_in_slices_under_one_limit() -> None:
    """450 partitions with a batch each: whole batches as far as the limit of the answer goes, all
    with a larger one; others are served meanwhile.
    """
    count = SLICE_ELEMENTS + 50
    broker = MemoryBroker().start()
    many = topics.CreatableTopic(name="many", num_partitions=count, replication_factor=1)
    broker.ask(topics.CreateTopicsRequest(topics=[many], timeout_ms=60_000), 7)
    broker.pass_time(2)
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"x" * 50)
    batch = builder.build()
    broker.ask(
        ProduceRequest(
            acks=1,
            timeout_ms=1,
            topic_data=[
                TopicProduceData(
                    name="many",
                    partition_data=[
                        PartitionProduceData(index=n, records=batch) for n in range(count)
                    ],
                )
            ],
        ),
        7,
    )
    wanted = [FetchPartition(partition=n, partition_max_bytes=1000) for n in range(count)]
    for most, expected in ((1 << 20, count), (len(batch) * 150 + 7, 150), (10, 1)):
        request = FetchRequest(
            max_wait_ms=0, max_bytes=most, topics=[FetchTopic(topic="many", partitions=wanted)]
        )
        turns = broker.broker.parts.turns = CountedTurns(broker)
        found = broker.ask(request, 11).responses[0].partitions
        lengths = [len(each.records) for each in found]
        assert lengths == [len(batch)] * expected + [0] * (count - expected)
        assert len(turns.waits) >= 3  # decoded at once, then read in slices
    broker.pass_time(1)
    broker.stop()


@pytest.mark.parametrize("ends_by", ["data", "time", "a connection that is gone"])
def test_a_fetch_of_many_partitions_that_waited_is_read_again_in_slices(
    ends_by: str, monkeypatch: Any
) -> None:
    """RL 1.9: others are served between two of them; who leaves meanwhile is read for no more."""
    read: list[tuple[int, int]] = []

    class Noting(ReplicaManager):
        def fetch(self, params: Any, requests: Any, *more: Any, **options: Any) -> Any:
            read.append((turns, len(requests)))
            return super().fetch(params, requests, *more, **options)

    monkeypatch.setattr(broker_server, "ReplicaManager", Noting)
    count = SLICE_ELEMENTS + 50
    broker = MemoryBroker().start()
    many = topics.CreatableTopic(name="many", num_partitions=count, replication_factor=1)
    broker.ask(topics.CreateTopicsRequest(topics=[many], timeout_ms=60_000), 7)
    broker.pass_time(2)
    turns = 0
    wanted = [FetchPartition(partition=n, partition_max_bytes=1000) for n in range(count)]
    request = FetchRequest(
        max_wait_ms=400,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="many", partitions=wanted)],
    )
    connection = broker.connection()
    answers: list[Any] = []
    connection.send(request, 11).addBoth(answers.append)
    broker.pass_time(0.2)
    assert sum(number for _, number in read) == count and not answers
    read.clear()
    if ends_by == "time":
        broker.clock.rightNow += 0.3
    else:
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, None, b"x")
        broker.broker.parts.replica_manager.produce(
            [(TopicPartition("many", 420), builder.build())], 1
        )
    while not answers and turns < 1000:
        turns += 1
        if ends_by == "a connection that is gone" and read:
            connection.close()
        one_turn(broker)
    if ends_by == "a connection that is gone":
        assert sum(number for _, number in read) < count
    else:
        assert sum(number for _, number in read) == count
        found = {
            each.partition_index
            for each in answers[0].responses[0].partitions
            if each.records is not None and len(each.records)
        }
        assert found == ({420} if ends_by == "data" else set())
    by_turn: Counter[int] = Counter()
    for turn, number in read:
        by_turn[turn] += number
    assert max(by_turn.values()) <= SLICE_ELEMENTS
    connection.close()
    broker.pass_time(1)
    broker.stop()
