"""The steps of transactional producers in a scenario, and of those who read committed records.

A producer has a name in the scenario, and its transactional id: two names of one id are two
instances, of which the older is a zombie. Steps try again what a client would, with the sequences
of before; each gives its answer as text: facts, or the name of an error.

Source: Produce 12, TxnOffsetCommit 5 and EndTxn 5 are transaction version 2's (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.task import deferLater

from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.clock import START_WALL_MS
from twisted_broker.simulation.scenario.facts import THE_TOPIC
from twisted_broker.simulation.scenario.language import ScenarioError, Vocabulary
from twisted_broker.simulation.scenario.replicas import content_of, text_of
from twisted_broker.simulation.scenario.world import ScenarioWorld
from twisted_broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from twisted_broker.wire.control_batch import ABORT, control_record_type
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import fetch, offsets, produce, producer_ids, transactions
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchBuilder,
    iterate_batches,
)

_FIND, _INIT, _PRODUCE, _ADD, _END, _MARKERS, _FETCH = 4, 5, 12, 3, 5, 2, 12
_COMMIT_OFFSET, _FETCH_OFFSET = 5, 7
_KINDS = {OFFSETS_TOPIC: 0, TRANSACTIONS_TOPIC: 1}
_READ_BYTES = 1 << 20
_TRIES, _PAUSE_SECONDS = 300, 0.1
_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


class TransactionalProducer:
    """What an instance of a producer knows."""

    def __init__(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        self.transactional_id, self.producer_id, self.epoch = transactional_id, producer_id, epoch
        self.sequence = 0


def register(words: Vocabulary) -> None:
    """All lines of this module."""
    words.register("producer <name> [of id <identity>]")(start)
    words.register("<name> writes <values..> [to <topic>]")(write)
    words.register("<name> adds <topic> under epoch <epoch>")(add)
    words.register("<name> commits offset <offset> of group <group>")(commit_offset)
    words.register("group <group> fetches its offset")(fetch_offset)
    words.register("<name> commits")(commit)
    words.register("<name> aborts")(abort)
    words.register(
        "marker of <name> to <result> under epoch <epoch> [of coordinator <coordinator>] "
        "[to <topic>]"
    )(marker)
    words.register("committed from <offset> [of <topic>] [within <seconds> s]")(committed)


def start(world: ScenarioWorld, name: str, identity: str = "") -> Deferred[str]:
    """InitProducerId: an older instance of the id is fenced. Answer: epoch <epoch>."""

    async def run() -> str:
        request = producer_ids.InitProducerIdRequest(
            transactional_id=identity or name, transaction_timeout_ms=60_000
        )
        answer = await _at_coordinator(world, identity or name, request, _INIT)
        if answer.error_code:
            return error_of(answer.error_code).name
        world.producers[name] = TransactionalProducer(
            identity or name, answer.producer_id, answer.producer_epoch
        )
        return f"epoch {answer.producer_epoch}"

    return ensureDeferred(run())


def write(world: ScenarioWorld, name: str, values: str, topic: str = THE_TOPIC) -> Deferred[str]:
    """One batch to the leader, within the producer's transaction. Answer: at <offset>."""
    producer = _producer(world, name)
    builder = BatchBuilder(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
        is_transactional=True,
    )
    for value in values.split():
        builder.append(START_WALL_MS + int(world.now * 1000), *content_of(value))
    data = produce.PartitionProduceData(index=0, records=bytes(builder.build()))
    request = produce.ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )

    async def run() -> str:
        answer = await _at_leader(
            world,
            topic,
            request,
            _PRODUCE,
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )
        found = answer.responses[0].partition_responses[0]
        if found.error_code:
            return error_of(found.error_code).name
        producer.sequence += len(values.split())
        return f"at {found.base_offset}"

    return ensureDeferred(run())


def add(world: ScenarioWorld, name: str, topic: str, epoch: str) -> Deferred[str]:
    """AddPartitionsToTxn 3, of a client before version 2. Answer: added."""
    producer = _producer(world, name)
    request = transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=int(epoch),
        v3_and_below_topics=[transactions.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )

    def code(answer: Any) -> int:
        (found,) = answer.results_by_topic_v3_and_below
        return int(found.results_by_partition[0].partition_error_code)

    async def run() -> str:
        found = code(await _at_coordinator(world, producer.transactional_id, request, _ADD, code))
        return error_of(found).name if found else "added"

    return ensureDeferred(run())


def commit_offset(world: ScenarioWorld, name: str, offset: str, group: str) -> Deferred[str]:
    """TxnOffsetCommit, for the partition of the topic t. Answer: pending."""
    producer = _producer(world, name)
    place = transactions.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=int(offset), committed_metadata=""
    )
    request = transactions.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[transactions.TxnOffsetCommitRequestTopic(name=THE_TOPIC, partitions=[place])],
    )

    def code(answer: Any) -> int:
        return int(answer.topics[0].partitions[0].error_code)

    async def run() -> str:
        found = code(
            await _at_coordinator(world, group, request, _COMMIT_OFFSET, code, OFFSETS_TOPIC)
        )
        return error_of(found).name if found else "pending"

    return ensureDeferred(run())


def fetch_offset(world: ScenarioWorld, group: str) -> Deferred[str]:
    """OffsetFetch of a consumer that reads committed records. Answer: offset <offset>."""
    request = offsets.OffsetFetchRequest(
        group_id=group,
        topics=[offsets.OffsetFetchRequestTopic(name=THE_TOPIC, partition_indexes=[0])],
        require_stable=True,
    )

    async def run() -> str:
        answer = await _at_coordinator(
            world,
            group,
            request,
            _FETCH_OFFSET,
            lambda answer: int(answer.error_code),
            OFFSETS_TOPIC,
        )
        if answer.error_code:
            return error_of(answer.error_code).name
        found = answer.topics[0].partitions[0]
        if found.error_code:
            return error_of(found.error_code).name
        return f"offset {found.committed_offset if found.committed_offset >= 0 else 'none'}"

    return ensureDeferred(run())


def commit(world: ScenarioWorld, name: str) -> Deferred[str]:
    """EndTxn. Answer: epoch <epoch>, of the next transaction."""
    return _end(world, name, True)


def abort(world: ScenarioWorld, name: str) -> Deferred[str]:
    """As commit."""
    return _end(world, name, False)


def _end(world: ScenarioWorld, name: str, committed: bool) -> Deferred[str]:
    producer = _producer(world, name)
    request = transactions.EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=committed,
    )

    async def run() -> str:
        answer = await _at_coordinator(world, producer.transactional_id, request, _END)
        if answer.error_code:
            return error_of(answer.error_code).name
        producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
        producer.sequence = 0
        return f"epoch {producer.epoch}"

    return ensureDeferred(run())


def marker(
    world: ScenarioWorld,
    name: str,
    result: str,
    epoch: str,
    coordinator: str = "1000",
    topic: str = THE_TOPIC,
) -> Deferred[str]:
    """WriteTxnMarkers of transaction version 2, as if a coordinator of that epoch sent it.
    `result` is commit or abort. Answer: written.
    """
    request = transactions.WriteTxnMarkersRequest(
        markers=[
            transactions.WritableTxnMarker(
                producer_id=_producer(world, name).producer_id,
                producer_epoch=int(epoch),
                transaction_result=result == "commit",
                topics=[transactions.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
                coordinator_epoch=int(coordinator),
                transaction_version=2,
            )
        ]
    )

    def code(answer: Any) -> int:
        return int(answer.markers[0].topics[0].partitions[0].error_code)

    async def run() -> str:
        found = code(await _at_leader(world, topic, request, _MARKERS, code))
        return error_of(found).name if found else "written"

    return ensureDeferred(run())


def committed(
    world: ScenarioWorld, offset: str, topic: str = THE_TOPIC, seconds: str = "0"
) -> Deferred[str]:
    """A consumer's fetch of committed records, which leaves out what the list of aborted
    transactions says. Answer: records .., stable <last stable offset>.
    """
    request = fetch.FetchRequest(
        max_wait_ms=int(float(seconds) * 1000),
        min_bytes=1,
        max_bytes=_READ_BYTES,
        isolation_level=1,
        topics=[
            fetch.FetchTopic(
                topic=topic,
                partitions=[
                    fetch.FetchPartition(
                        partition=0, fetch_offset=int(offset), partition_max_bytes=_READ_BYTES
                    )
                ],
            )
        ],
    )

    async def run() -> str:
        answer = await _at_leader(
            world,
            topic,
            request,
            _FETCH,
            lambda answer: answer.responses[0].partitions[0].error_code,
        )
        found = answer.responses[0].partitions[0]
        if found.error_code:
            return error_of(found.error_code).name
        values = " ".join(_committed_values(found, int(offset))) or "none"
        return f"records {values}, stable {found.last_stable_offset}"

    return ensureDeferred(run())


def _committed_values(found: Any, offset: int) -> list[str]:
    """As a consumer finds them: an abort is over at its marker."""
    begins = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions)
    aborted: set[int] = set()
    values: list[str] = []
    for batch in iterate_batches(found.records or b"", partial_tail=True):
        while begins and begins[0][0] <= batch.last_offset:
            aborted.add(begins.pop(0)[1])
        records = list(batch.records(_READ_BYTES))
        if batch.attributes & CONTROL_FLAG:
            if control_record_type(records[0].key) == ABORT:
                aborted.discard(batch.producer_id)
        elif not (batch.attributes & TRANSACTIONAL_FLAG and batch.producer_id in aborted):
            values += [text_of(each) for each in records if each.offset >= offset]
    return values


# who is asked


def _producer(world: ScenarioWorld, name: str) -> TransactionalProducer:
    found: TransactionalProducer | None = world.producers.get(name)
    if found is None:
        raise ScenarioError(f"there is no producer {name} yet: begin with `producer {name}`")
    return found


async def _at_leader(
    world: ScenarioWorld,
    topic: str,
    request: Any,
    version: int,
    code_of: Callable[[Any], int],
) -> Any:
    def leader() -> int:
        found = world.registration(TopicPartition(topic, 0))
        return -1 if found is None else int(found.leader)

    return await _until_answered(world, leader, request, version, code_of)


async def _at_coordinator(
    world: ScenarioWorld,
    identity: str,
    request: Any,
    version: int,
    code_of: Callable[[Any], int] = lambda answer: int(answer.error_code),
    name: str = TRANSACTIONS_TOPIC,
) -> Any:
    """Of the id, or with `__consumer_offsets` of the group."""

    def leader() -> int:
        image = world.image
        topic = None if image is None else image.topics_by_name.get(name)
        if topic is None:
            find = offsets.FindCoordinatorRequest(
                key_type=_KINDS[name], coordinator_keys=[identity]
            )
            world.send(1, find, _FIND).addErrback(lambda failure: None)
            return -1
        found = topic.partitions.get(partition_for(identity, len(topic.partitions)))
        return -1 if found is None else int(found.leader)

    return await _until_answered(world, leader, request, version, code_of)


async def _until_answered(
    world: ScenarioWorld,
    leader: Callable[[], int],
    request: Any,
    version: int,
    code_of: Callable[[Any], int],
) -> Any:
    """The answer, once it is none of those that a client tries again after."""
    answer = None
    for _ in range(_TRIES):
        broker = leader()
        if broker >= 0:
            sent: Awaitable[Any] = world.send(broker, request, version)
            try:
                answer = await sent
            except (ConnectError, ConnectionClosed):
                answer = None
            if answer is not None and error_of(code_of(answer)) not in _AGAIN:
                return answer
        await deferLater(world.client_clock, _PAUSE_SECONDS)
    if answer is None:
        raise ScenarioError("nobody answered")
    return answer
