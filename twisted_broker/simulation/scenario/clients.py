"""The client steps of a scenario: Produce, Fetch (as a consumer or as a replica), ListOffsets,
OffsetForLeaderEpoch, DeleteRecords.

Each step gives a Deferred of its answer as text: facts, or the name of an error.

Source: the versions named here: Fetch 12 has topic names, Fetch 17 a replica's broker epoch
(KIP-903). Not here: fetch sessions.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.clock import START_WALL_MS
from twisted_broker.simulation.scenario.facts import THE_TOPIC
from twisted_broker.simulation.scenario.language import ScenarioError, Vocabulary
from twisted_broker.simulation.scenario.replicas import content_of, values_of
from twisted_broker.simulation.scenario.world import ScenarioWorld
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import (
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
    topics,
)
from twisted_broker.wire.records import BatchBuilder

_PRODUCE, _FETCH, _FETCH_WITH_IDS, _LIST_OFFSETS, _EPOCHS, _DELETE_RECORDS = 9, 12, 17, 5, 4, 2
_FETCH_BYTES = 1 << 20
_MOMENTS = {"latest": -1, "earliest": -2}
_ACKS = {"all": -1, "1": 1}


def register(words: Vocabulary) -> None:
    """All lines of this module."""
    words.register(
        "produce <values..> [to <topic>] [at <broker>] [acks <acks>] [as <producer>] "
        "[after <sequence>] [within <seconds> s]"
    )(produce_batch)
    words.register(
        "fetch <offset> [of <topic>] [at <broker>] [as <replica>] [of incarnation "
        "<incarnation>] [under epoch <epoch>] [after epoch <last>]"
        " [starting at <start>] [min <minimum>] [max <maximum>] [from rack <rack>] [within "
        "<seconds> s]"
    )(fetch_records)
    words.register("offset <moment> [of <topic>] [at <broker>] [under epoch <epoch>]")(offset_of)
    words.register("end of epoch <asked> [of <topic>] [at <broker>] [under epoch <epoch>]")(
        end_of_epoch
    )
    words.register(
        "delete records before <offset> [of <topic>] [at <broker>] [within <seconds> s]"
    )(delete_records)


def _leader(world: ScenarioWorld, topic: str, broker: str) -> int:
    """Who gets the request: the one named, or the leader as the controller has it."""
    if broker:
        return int(broker)
    registration = world.registration(TopicPartition(topic, 0))
    if registration is None or registration.leader < 0:
        raise ScenarioError(f"{topic} has no leader")
    return int(registration.leader)


def _error(code: int) -> str:
    return "" if not code else error_of(code).name


# records in


def produce_batch(
    world: ScenarioWorld,
    values: str,
    topic: str = THE_TOPIC,
    broker: str = "",
    acks: str = "all",
    producer: str = "-1",
    sequence: str = "-1",
    seconds: str = "30",
) -> Deferred[str]:
    """One batch with these values to the leader (or to the broker named); `a:500` is a record of
    500 bytes, `k=a` one with a key, `k=` its tombstone. `producer`: a producer id, of an idempotent
    producer that wrote up to `sequence`. Answer: at <offset>.
    """
    builder = BatchBuilder()
    if producer != "-1":
        builder = BatchBuilder(
            producer_id=int(producer), producer_epoch=0, base_sequence=int(sequence) + 1
        )
    for value in values.split():
        builder.append(START_WALL_MS + int(world.now * 1000), *content_of(value))
    data = produce.PartitionProduceData(index=0, records=bytes(builder.build()))
    request = produce.ProduceRequest(
        acks=_ACKS[acks],
        timeout_ms=int(float(seconds) * 1000),
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )
    return world.send(_leader(world, topic, broker), request, _PRODUCE).addCallback(_produced)


def _produced(answer: Any) -> str:
    found = answer.responses[0].partition_responses[0]
    return _error(found.error_code) or f"at {found.base_offset}"


# records out


def fetch_records(
    world: ScenarioWorld,
    topic: str = THE_TOPIC,
    broker: str = "",
    incarnation: str = "",
    **asked: str,
) -> Deferred[str]:
    """A consumer's fetch, or a replica's.

    Answer: records .., hw, start; diverges <epoch>@<end>; or read at <broker>.
    """
    replica = int(asked.get("replica", -1))
    named = fetch.FetchTopic(
        topic=topic, topic_id=world.topic_ids[topic], partitions=[_fetched_partition(asked)]
    )
    request = fetch.FetchRequest(
        max_wait_ms=int(float(asked.get("seconds", 0)) * 1000),
        min_bytes=int(asked.get("minimum", 1)),
        max_bytes=int(asked.get("maximum", _FETCH_BYTES)),
        rack_id=asked.get("rack", ""),
        topics=[named],
    )
    if incarnation:
        request.replica_state = fetch.ReplicaState(
            replica_id=replica, replica_epoch=_broker_epoch(world, incarnation, replica)
        )
    else:
        request.replica_id = replica
    version = _FETCH_WITH_IDS if incarnation else _FETCH
    offset = int(asked["offset"])
    return world.send(_leader(world, topic, broker), request, version).addCallback(_fetched, offset)


def _fetched_partition(asked: dict[str, str]) -> fetch.FetchPartition:
    return fetch.FetchPartition(
        partition=0,
        current_leader_epoch=int(asked.get("epoch", -1)),
        fetch_offset=int(asked["offset"]),
        last_fetched_epoch=int(asked.get("last", -1)),
        log_start_offset=int(asked.get("start", -1)),
        partition_max_bytes=int(asked.get("maximum", _FETCH_BYTES)),
    )


def _broker_epoch(world: ScenarioWorld, incarnation: str, replica: int) -> int:
    """`now`: the epoch that is registered; `before`: an older one."""
    registered = int(world.image.brokers[replica].epoch)
    return registered if incarnation == "now" else registered - 1


def _fetched(answer: Any, offset: int) -> str:
    if answer.error_code:
        return _error(answer.error_code)
    found = answer.responses[0].partitions[0]
    if found.error_code:
        return _error(found.error_code)
    if found.diverging_epoch.epoch >= 0:
        return f"diverges {found.diverging_epoch.epoch}@{found.diverging_epoch.end_offset}"
    if found.preferred_read_replica >= 0:
        return f"read at {found.preferred_read_replica}"
    return (
        f"records {' '.join(values_of(found.records, offset)) or 'none'}, hw "
        f"{found.high_watermark}, start {found.log_start_offset}"
    )


# offsets


def offset_of(
    world: ScenarioWorld, moment: str, topic: str = THE_TOPIC, broker: str = "", epoch: str = "-1"
) -> Deferred[str]:
    """ListOffsets of a client: `latest`, `earliest`. Answer: offset <offset>."""
    asked = list_offsets.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=int(epoch), timestamp=_MOMENTS[moment]
    )
    request = list_offsets.ListOffsetsRequest(
        replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=[asked])]
    )

    def as_text(answer: Any) -> str:
        found = answer.topics[0].partitions[0]
        return _error(found.error_code) or f"offset {found.offset}"

    return world.send(_leader(world, topic, broker), request, _LIST_OFFSETS).addCallback(as_text)


def end_of_epoch(
    world: ScenarioWorld, asked: str, topic: str = THE_TOPIC, broker: str = "", epoch: str = "-1"
) -> Deferred[str]:
    """OffsetForLeaderEpoch. Answer: <epoch>@<end>, -1@-1 when it is unknown."""
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=int(epoch), leader_epoch=int(asked)
    )
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[offset_for_leader_epoch.OffsetForLeaderTopic(topic=topic, partitions=[partition])],
    )

    def as_text(answer: Any) -> str:
        found = answer.topics[0].partitions[0]
        return _error(found.error_code) or f"{found.leader_epoch}@{found.end_offset}"

    return world.send(_leader(world, topic, broker), request, _EPOCHS).addCallback(as_text)


def delete_records(
    world: ScenarioWorld, offset: str, topic: str = THE_TOPIC, broker: str = "", seconds: str = "30"
) -> Deferred[str]:
    """DeleteRecords. Answer: low <low watermark>."""
    partition = topics.DeleteRecordsPartition(partition_index=0, offset=int(offset))
    request = topics.DeleteRecordsRequest(
        topics=[topics.DeleteRecordsTopic(name=topic, partitions=[partition])],
        timeout_ms=int(float(seconds) * 1000),
    )

    def as_text(answer: Any) -> str:
        found = answer.topics[0].partitions[0]
        return _error(found.error_code) or f"low {found.low_watermark}"

    return world.send(_leader(world, topic, broker), request, _DELETE_RECORDS).addCallback(as_text)


def is_error(answer: str) -> bool:
    """Whether a client was refused or not answered."""
    return answer in ErrorCode.__members__ or answer.startswith("no answer")
