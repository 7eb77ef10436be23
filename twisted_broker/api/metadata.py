"""Metadata (3) and DescribeTopicPartitions (75): where everything is, from this broker's image.

1. Permission before existence; topics that may not be described are left out when all are
   requested.
2. A topic that is not there is created in the background when that is allowed, with the numbers of
   partitions and replicas that this broker's file gives; the client gets
   UNKNOWN_TOPIC_OR_PARTITION and retries.
3. Addresses are those of the listener on which the client came; a leader that is not reachable
   there is LEADER_NOT_AVAILABLE (LISTENER_NOT_FOUND from version 6 on when the broker lives).
4. Version 0 has no "all": an empty list is all topics; later versions say all with null.
5. Partitions of a topic are encoded once for all clients of a listener (`topic_answers.py`).

Source: Kafka's `KafkaApis.handleTopicMetadataRequest`, `KRaftMetadataCache`,
`DescribeTopicPartitionsRequestHandler`; KIP-4, KIP-516, KIP-966.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Any

from twisted_broker.api.cluster import any_live_broker
from twisted_broker.api.context import Encoded, RequestContext
from twisted_broker.api.topic_answers import Form, Kept
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.image.entries import (
    BrokerRegistration,
    PartitionRegistration,
    TopicImage,
)
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC, name_problem
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import cluster as described
from twisted_broker.wire.messages import metadata as metadata_messages
from twisted_broker.wire.messages.topics import CreatableTopic
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.wire.schema import encode, join_bytes

# Partitions between two looks at the turn; topics that one Metadata request may create; most
# replicas that a request can carry.
_AT_A_TIME, _MOST_CREATED, _MOST_REPLICAS = 200, 1000, 2**15 - 1
_NO_OPERATIONS = -0x80000000
Answered = metadata_messages.MetadataResponseTopic | bytes
"""A topic of an answer; one without an error encoded, its operations included."""


@cache
def _form(version: int) -> Form:
    empty = metadata_messages.MetadataResponse()
    is_flexible = empty.flexible.holds(version)
    after = 4 * (8 <= version <= 10) + 2 * (version >= 13) + is_flexible
    return Form(encode(empty, version), after, is_flexible, has_operations=version >= 8)


@cache
def _described_form() -> Form:
    # Behind the topics: no cursor, no tagged fields.
    empty = described.DescribeTopicPartitionsResponse(next_cursor=None)
    return Form(encode(empty, 0), 2, is_flexible=True, has_operations=True)


class _Reach:
    """Which brokers can be reached through one listener.

    What follows from a leader or a list of replicas is found once for a request: the thousand
    partitions of a topic have few of them. The lists are shared between answers.
    """

    __slots__ = ("_leaders", "_lists", "_offline", "brokers", "image", "kept", "leader_error")

    def __init__(self, context: RequestContext, version: int) -> None:
        image: MetadataImage = context.metadata.image
        listener = context.listener.name
        self.image = image
        self.kept: Kept = context.broker.topic_answers.of(
            image.brokers, listener, context.api_key, context.version
        )
        self.brokers = {
            broker.id: broker for broker in image.live_brokers() if listener in broker.listeners
        }
        self.leader_error = (
            ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        )
        self._leaders: dict[int, tuple[ErrorCode, int]] = {}
        self._lists: dict[tuple[int, ...], list[int]] = {}
        self._offline: dict[tuple[tuple[int, ...], tuple[bytes, ...]], list[int]] = {}

    def leader(self, partition: PartitionRegistration) -> tuple[ErrorCode, int]:
        """The leader's id, -1 with an error when clients cannot reach it."""
        leader = partition.leader
        return self._leaders.get(leader) or self._leaders.setdefault(
            leader, self._find_leader(leader)
        )

    def _find_leader(self, leader: int) -> tuple[ErrorCode, int]:
        if leader in self.brokers:
            return ErrorCode.NONE, leader
        broker: BrokerRegistration | None = self.image.brokers.get(leader)
        lives = broker is not None and not broker.fenced
        return (self.leader_error if lives else ErrorCode.LEADER_NOT_AVAILABLE), -1

    def listed(self, brokers: tuple[int, ...]) -> list[int]:
        return self._lists.get(brokers) or self._lists.setdefault(brokers, list(brokers))

    def offline(self, partition: PartitionRegistration) -> list[int]:
        key = partition.replicas, partition.directories
        found = self._offline.get(key)
        if found is None:
            found = self._offline[key] = self._find_offline(partition)
        return found

    def _find_offline(self, partition: PartitionRegistration) -> list[int]:
        found = []
        for replica, directory in zip(partition.replicas, partition.directories, strict=True):
            broker = self.brokers.get(replica)
            if broker is None or not broker.has_online_directory(directory):
                found.append(replica)
        return found


async def metadata(context: RequestContext, request: metadata_messages.MetadataRequest) -> Encoded:
    """Waits for nothing but its turns; the answer is from one image."""
    reach = _Reach(context, context.version)
    image = reach.image
    response = metadata_messages.MetadataResponse(
        brokers=[_broker(broker, context.listener.name) for broker in reach.brokers.values()],
        cluster_id=context.broker.cluster_id,
        controller_id=any_live_broker(context, image),
    )
    if request.topics is None or (context.version == 0 and not request.topics):
        topics = [image.topics_by_name[name] for name in sorted(image.topics_by_name)]
        answers: list[Answered] = [
            await _topic(context, request, reach, topic)
            for topic in topics
            if _may_describe(context, topic.name, noted=False)
        ]
    else:
        answers = await _requested_topics(context, request, reach, request.topics)
    if 8 <= context.version <= 10 and request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.cluster_operations()
    form = _form(context.version)
    rows = await _rows(context, form, metadata_messages.MetadataResponse, answers)
    without = encode(response, context.version)
    return Encoded(form.joined(without, form.after, len(answers), rows))


async def _rows(
    context: RequestContext, form: Form, response: type[Any], answers: Sequence[Any]
) -> list[bytes]:
    """The topics encoded; long ones and many short ones are pieces of their own."""
    rows: list[bytes] = []
    for start in range(0, len(answers), _AT_A_TIME):
        some = []
        for each in answers[start : start + _AT_A_TIME]:
            if not isinstance(each, bytes):
                if context.turn_is_over():
                    await context.next_turn()
                each = form.row(encode(response(topics=[each]), context.version))
            some.append(each)
        rows += join_bytes(some)
    return rows


def _broker(broker: BrokerRegistration, listener: str) -> metadata_messages.MetadataResponseBroker:
    endpoint = broker.listeners[listener]
    return metadata_messages.MetadataResponseBroker(
        node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
    )


def _may_describe(context: RequestContext, name: str, noted: bool = True) -> bool:
    return context.may(Operation.DESCRIBE, ResourceType.TOPIC, name, noted)


async def _requested_topics(
    context: RequestContext,
    request: metadata_messages.MetadataRequest,
    reach: _Reach,
    requested: Sequence[metadata_messages.MetadataRequestTopic],
) -> list[Answered]:
    answers: list[Answered] = []
    missing: dict[str, metadata_messages.MetadataResponseTopic] = {}
    seen: set[str | bytes] = set()
    by_id = any(each.topic_id != NULL_UUID for each in requested)
    for each in requested:
        if context.turn_is_over():
            await context.next_turn()
        # Of both, the id counts. As in Kafka, one id makes it a request by ids: names alone are
        # not looked at.
        if by_id and each.topic_id == NULL_UUID:
            continue
        key = bytes(each.topic_id) if each.name is None or each.topic_id != NULL_UUID else each.name
        if key in seen:
            continue
        seen.add(key)
        answer = (
            await _by_id(context, request, reach, key)
            if isinstance(key, bytes)
            else await _by_name(context, request, reach, key)
        )
        answers.append(answer)
        if (
            isinstance(key, str)
            and not isinstance(answer, bytes)
            and answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ):
            missing[key] = answer
    if (
        missing
        and request.allow_auto_topic_creation
        and context.broker.config.boolean("auto.create.topics.enable")
    ):
        await _create(context, missing)
    return answers


async def _by_id(
    context: RequestContext,
    request: metadata_messages.MetadataRequest,
    reach: _Reach,
    topic_id: bytes,
) -> Answered:
    if topic_id == NULL_UUID:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a topic needs a name or an id")
    topic = reach.image.topics_by_id.get(topic_id)
    if topic is None or not _may_describe(context, topic.name):
        nameless = None if context.version >= 12 else ""
        # as Kafka's: nobody guesses an id, and its name is not shown
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        code = unknown if topic is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return metadata_messages.MetadataResponseTopic(
            error_code=code, name=nameless, topic_id=topic_id
        )
    return await _topic(context, request, reach, topic)


async def _by_name(
    context: RequestContext, request: metadata_messages.MetadataRequest, reach: _Reach, name: str
) -> Answered:
    answer = metadata_messages.MetadataResponseTopic(name=name, is_internal=name in INTERNAL_TOPICS)
    if not _may_describe(context, name):
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer
    topic = reach.image.topics_by_name.get(name)
    if topic is not None:
        return await _topic(context, request, reach, topic)
    answer.error_code = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_problem(name) is None
        else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    return answer


async def _topic(
    context: RequestContext,
    request: metadata_messages.MetadataRequest,
    reach: _Reach,
    topic: TopicImage,
) -> bytes:
    key = topic.id, 0, len(topic.partitions)
    found = reach.kept.get(key)
    context.elements_left -= 1
    if found is not None and found[0] is topic:
        partitions = found[1]
    else:
        partitions = await _encoded(context, reach, topic)
        context.broker.topic_answers.keep(reach.kept, key, topic, partitions)
    if context.elements_left < 0:
        await context.next_turn()
    operations = _NO_OPERATIONS
    if request.include_topic_authorized_operations:
        operations = context.authorized_operations(ResourceType.TOPIC, topic.name)
    return partitions + _form(context.version).behind(operations)


async def _encoded(context: RequestContext, reach: _Reach, topic: TopicImage) -> bytes:
    """All of a topic but its operations."""
    numbers = sorted(topic.partitions)
    partitions: list[metadata_messages.MetadataResponsePartition] = []
    for start in range(0, len(numbers), _AT_A_TIME):
        some = numbers[start : start + _AT_A_TIME]
        if context.turn_is_over(len(some)):
            await context.next_turn()
        partitions += [
            _partition(context.version, reach, number, topic.partitions[number]) for number in some
        ]
    answer = metadata_messages.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
    )
    parts: list[bytes] = []
    await context.encode(metadata_messages.MetadataResponse(topics=[answer]), parts)
    return _form(context.version).partitions(b"".join(parts))


def _partition(
    version: int, reach: _Reach, number: int, partition: PartitionRegistration
) -> metadata_messages.MetadataResponsePartition:
    error, leader = reach.leader(partition)
    replicas, isr = reach.listed(partition.replicas), reach.listed(partition.isr)
    if version == 0:
        replicas, isr = [
            [broker for broker in brokers if broker in reach.brokers] for brokers in (replicas, isr)
        ]
        if error is ErrorCode.NONE and len(replicas) + len(isr) < len(partition.replicas) + len(
            partition.isr
        ):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
    return metadata_messages.MetadataResponsePartition(
        error_code=error,
        partition_index=number,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=reach.offline(partition),
    )


async def _create(
    context: RequestContext, missing: dict[str, metadata_messages.MetadataResponseTopic]
) -> None:
    """Has the topics created, as far as the client may create them; of very many the first ones:
    it retries.
    """
    wanted: list[CreatableTopic] = []
    for name, answer in missing.items():
        if context.turn_is_over():
            await context.next_turn()
        if not (
            context.may_on_cluster(Operation.CREATE, noted=False)
            or context.may(Operation.CREATE, ResourceType.TOPIC, name)
        ):
            answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif name == OFFSETS_TOPIC:
            context.offsets_topic.create()
        elif name not in INTERNAL_TOPICS and len(wanted) < _MOST_CREATED:
            wanted.append(_new_topic(context.broker.config, name))
    context.forwarding.create_in_background(context, wanted)


def _new_topic(config: BrokerConfig, name: str) -> CreatableTopic:
    """As this broker's own file says, where it does; else as the controller's."""
    count, replicas = (
        config.integer(setting) if config.is_set(setting) else -1
        for setting in ("num.partitions", "default.replication.factor")
    )
    return CreatableTopic(
        name=name, num_partitions=count, replication_factor=min(replicas, _MOST_REPLICAS)
    )


# DescribeTopicPartitions


async def describe_topic_partitions(
    context: RequestContext, request: described.DescribeTopicPartitionsRequest
) -> Encoded:
    """Topics in the order of names, up to the limit of partitions (at least one); the cursor says
    where the next request begins.
    """
    limit = max(
        1,
        min(
            request.response_partition_limit,
            context.broker.config.integer("max.request.partition.size.limit"),
        ),
    )
    cursor = request.cursor
    if cursor is not None:
        _check_cursor(request, cursor)
    reach = _Reach(context, 6)
    response = described.DescribeTopicPartitionsResponse(next_cursor=None)
    answers: list[described.DescribeTopicPartitionsResponseTopic | bytes] = []
    first = cursor.topic_name if cursor is not None else ""
    async for name in _names_from(context, request, first):
        if limit == 0:
            response.next_cursor = described.DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=0
            )
            break
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        context.elements_left -= 1
        topic = reach.image.topics_by_name.get(name)
        if topic is None or not _may_describe(context, name):
            answers.append(_not_described(context, name, topic))
        else:
            stop = max(start, min(start + limit, len(topic.partitions)))
            answers.append(_described(context, reach, topic, start, stop))
            limit -= stop - start
            if start < stop < len(topic.partitions):
                response.next_cursor = described.DescribeTopicPartitionsResponseCursor(
                    topic_name=name, partition_index=stop
                )
                break
        if context.elements_left < 0:
            await context.next_turn()
    form = _described_form()
    rows = await _rows(context, form, described.DescribeTopicPartitionsResponse, answers)
    without = encode(response, context.version)
    # Before the topics: the wait, and their number.
    return Encoded(form.joined(without, len(without) - 5, len(answers), rows))


def _check_cursor(
    request: described.DescribeTopicPartitionsRequest,
    cursor: described.DescribeTopicPartitionsRequestCursor,
) -> None:
    """Raises INVALID_REQUEST for one that no answer to this request gave."""
    if cursor.partition_index < 0:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "the cursor's partition must not be below 0")
    if request.topics and all(topic.name != cursor.topic_name for topic in request.topics):
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, "the cursor's topic is not one of the requested topics"
        )


async def _names_from(
    context: RequestContext, request: described.DescribeTopicPartitionsRequest, first: str
) -> AsyncIterator[str]:
    """The names to describe, in order, from `first` on."""
    names = (
        {topic.name async for topic in context.each(request.topics)}
        if request.topics
        else context.metadata.image.topics_by_name
    )
    for name in sorted(names):
        if name >= first and (request.topics or _may_describe(context, name, noted=False)):
            yield name


def _not_described(
    context: RequestContext, name: str, topic: TopicImage | None
) -> described.DescribeTopicPartitionsResponseTopic:
    """Permission before existence."""
    answer = described.DescribeTopicPartitionsResponseTopic(
        name=name, is_internal=name in INTERNAL_TOPICS
    )
    if topic is not None or not _may_describe(context, name):
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer
    answer.error_code = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_problem(name) is None
        else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    answer.topic_authorized_operations = context.authorized_operations(ResourceType.TOPIC, name)
    return answer


def _described(
    context: RequestContext, reach: _Reach, topic: TopicImage, start: int, stop: int
) -> bytes:
    """At most as many partitions as `max.request.partition.size.limit`."""
    key = topic.id, start, stop
    found = reach.kept.get(key)
    if found is not None and found[0] is topic:
        partitions = found[1]
    else:
        context.elements_left -= stop - start
        answer = described.DescribeTopicPartitionsResponseTopic(
            name=topic.name, topic_id=topic.id, is_internal=topic.name in INTERNAL_TOPICS
        )
        answer.partitions = [
            _described_partition(reach, number, topic.partitions[number])
            for number in sorted(topic.partitions)[start:stop]
        ]
        whole = described.DescribeTopicPartitionsResponse(topics=[answer], next_cursor=None)
        partitions = _described_form().partitions(encode(whole, context.version))
        context.broker.topic_answers.keep(reach.kept, key, topic, partitions)
    operations = context.authorized_operations(ResourceType.TOPIC, topic.name)
    return partitions + _described_form().behind(operations)


def _described_partition(
    reach: _Reach, number: int, partition: PartitionRegistration
) -> described.DescribeTopicPartitionsResponsePartition:
    error, leader = reach.leader(partition)
    return described.DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=number,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=reach.listed(partition.replicas),
        isr_nodes=reach.listed(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=reach.offline(partition),
    )
