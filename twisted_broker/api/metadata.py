"""Metadata (3) and DescribeTopicPartitions (75): where everything is, from this broker's image.

1. Permission before existence; topics that may not be described are left out when all are
   requested.
2. A topic that is not there is created in the background when that is allowed, with the numbers of
   partitions and replicas that this broker's file gives; the client gets
   UNKNOWN_TOPIC_OR_PARTITION and retries.
3. Addresses are those of the listener on which the client came; a leader that is not reachable
   there is LEADER_NOT_AVAILABLE (LISTENER_NOT_FOUND from version 6 on when the broker lives).
4. Version 0 has no "all": an empty list is all topics; later versions say all with null.

Source: Kafka's `KafkaApis.handleTopicMetadataRequest`, `KRaftMetadataCache`,
`DescribeTopicPartitionsRequestHandler`; KIP-4, KIP-516, KIP-966.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from twisted_broker.api.cluster import any_live_broker
from twisted_broker.api.context import RequestContext
from twisted_broker.config import BrokerConfig
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

# Partitions between two looks at the turn; topics that one Metadata request may create; most
# replicas that a request can carry.
_AT_A_TIME, _MOST_CREATED, _MOST_REPLICAS = 200, 1000, 2**15 - 1


class _Reach:
    """Which brokers can be reached through one listener.

    What follows from a leader or a list of replicas is found once for a request: the thousand
    partitions of a topic have few of them. The lists are shared between answers.
    """

    __slots__ = ("_leaders", "_lists", "_offline", "brokers", "image", "leader_error", "listener")

    def __init__(self, image: MetadataImage, listener: str, version: int) -> None:
        self.image, self.listener = image, listener
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


async def metadata(
    context: RequestContext, request: metadata_messages.MetadataRequest
) -> metadata_messages.MetadataResponse:
    """Waits for nothing but its turns; the answer is from one image."""
    image: MetadataImage = context.metadata.image
    reach = _Reach(image, context.listener.name, context.version)
    response = metadata_messages.MetadataResponse(
        brokers=[_broker(broker, context.listener.name) for broker in reach.brokers.values()],
        cluster_id=context.cluster_id,
        controller_id=any_live_broker(context, image),
    )
    if request.topics is None or (context.version == 0 and not request.topics):
        topics = [image.topics_by_name[name] for name in sorted(image.topics_by_name)]
        response.topics = [
            await _topic(context, request, reach, topic)
            for topic in topics
            if _may_describe(context, topic.name, noted=False)
        ]
    else:
        response.topics = await _requested_topics(context, request, reach, request.topics)
    if 8 <= context.version <= 10 and request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.cluster_operations()
    return response


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
) -> list[metadata_messages.MetadataResponseTopic]:
    answers: list[metadata_messages.MetadataResponseTopic] = []
    missing: dict[str, metadata_messages.MetadataResponseTopic] = {}
    seen: set[str | bytes] = set()
    by_id = any(each.topic_id != NULL_UUID for each in requested)
    for each in requested:
        context.elements_left -= 1
        if context.elements_left < 0:
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
        if isinstance(key, str) and answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            missing[key] = answer
    if (
        missing
        and request.allow_auto_topic_creation
        and context.config.boolean("auto.create.topics.enable")
    ):
        await _create(context, missing)
    return answers


async def _by_id(
    context: RequestContext,
    request: metadata_messages.MetadataRequest,
    reach: _Reach,
    topic_id: bytes,
) -> metadata_messages.MetadataResponseTopic:
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
) -> metadata_messages.MetadataResponseTopic:
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
) -> metadata_messages.MetadataResponseTopic:
    numbers = sorted(topic.partitions)
    partitions: list[metadata_messages.MetadataResponsePartition] = []
    context.elements_left -= 1
    for start in range(0, len(numbers), _AT_A_TIME):
        some = numbers[start : start + _AT_A_TIME]
        context.elements_left -= len(some)
        if context.elements_left < 0:
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
    if request.include_topic_authorized_operations:
        answer.topic_authorized_operations = context.authorized_operations(
            ResourceType.TOPIC, topic.name
        )
    return answer


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
        context.elements_left -= 1
        if context.elements_left < 0:
            await context.next_turn()
        if not (
            context.may_on_cluster(Operation.CREATE, noted=False)
            or context.may(Operation.CREATE, ResourceType.TOPIC, name)
        ):
            answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif name == OFFSETS_TOPIC:
            context.offsets_topic.create()
        elif name not in INTERNAL_TOPICS and len(wanted) < _MOST_CREATED:
            wanted.append(_new_topic(context.config, name))
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
) -> described.DescribeTopicPartitionsResponse:
    """Topics in the order of names, up to the limit of partitions (at least one); the cursor says
    where the next request begins.
    """
    limit = max(
        1,
        min(
            request.response_partition_limit,
            context.config.integer("max.request.partition.size.limit"),
        ),
    )
    cursor = request.cursor
    if cursor is not None:
        _check_cursor(request, cursor)
    reach = _Reach(context.metadata.image, context.listener.name, 6)
    response = described.DescribeTopicPartitionsResponse(next_cursor=None)
    first = cursor.topic_name if cursor is not None else ""
    async for name in _names_from(context, request, first):
        if limit == 0:
            response.next_cursor = described.DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=0
            )
            break
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        answer = _described(context, reach, name, start, limit)
        context.elements_left -= 1 + len(answer.partitions)
        if context.elements_left < 0:
            await context.next_turn()
        response.topics.append(answer)
        limit -= len(answer.partitions)
        topic = reach.image.topics_by_name.get(name)
        reached = start + len(answer.partitions)
        if topic is not None and answer.partitions and reached < len(topic.partitions):
            response.next_cursor = described.DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=reached
            )
            break
    return response


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


def _described(
    context: RequestContext, reach: _Reach, name: str, start: int, limit: int
) -> described.DescribeTopicPartitionsResponseTopic:
    answer = described.DescribeTopicPartitionsResponseTopic(
        name=name, is_internal=name in INTERNAL_TOPICS
    )
    if not _may_describe(context, name):
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer
    topic = reach.image.topics_by_name.get(name)
    if topic is None:
        answer.error_code = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if name_problem(name) is None
            else ErrorCode.INVALID_TOPIC_EXCEPTION
        )
        answer.topic_authorized_operations = context.authorized_operations(ResourceType.TOPIC, name)
        return answer
    answer.topic_id = topic.id
    answer.topic_authorized_operations = context.authorized_operations(ResourceType.TOPIC, name)
    for number in sorted(topic.partitions)[start : start + limit]:
        partition = topic.partitions[number]
        error, leader = reach.leader(partition)
        answer.partitions.append(
            described.DescribeTopicPartitionsResponsePartition(
                error_code=error,
                partition_index=number,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=reach.offline(partition),
            )
        )
    return answer
