"""Topics are created, grown and deleted: what the controller decides.

Owns the decisions on CreateTopics, CreatePartitions and DeleteTopics. Each gives the records to
write and the answer for when they are.

1. A topic's records come together: the topic, its settings, its partitions.
2. One topic's refusal does not touch the others of the request. But a CreateTopics of more than
   `MAX_PARTITIONS_PER_REQUEST` partitions is refused as a whole (`wanted_partitions`).
3. `validate_only` decides everything and writes nothing.

Source: Kafka's `ReplicationControlManager`, `ControllerApis`; `RL 8.5`. Not here: create policies
(no class is ever loaded); permission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.config_entries import topic_entries
from twisted_broker.cluster.placement import (
    StripedReplicaPlacer,
    check_manual_assignment,
    default_directory,
)
from twisted_broker.cluster.reassignment import replication_factor
from twisted_broker.cluster.records import DIRECTORIES_LEVEL
from twisted_broker.image.entries import MIGRATING, RECOVERED, PartitionRegistration, TopicImage
from twisted_broker.image.metadata_image import TOPIC_RESOURCE
from twisted_broker.interfaces import IRandom
from twisted_broker.log_config import check_topic_overrides
from twisted_broker.settings import ConfigError
from twisted_broker.topic_names import METADATA_TOPIC, collision_key, name_problem
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.messages import topics as topics_messages
from twisted_broker.wire.primitives import NULL_UUID, new_uuid
from twisted_broker.wire.schema import Record

# Kafka's bound for one request.
MAX_PARTITIONS_PER_REQUEST = 10_000
Found = list[Record]
Permit = Callable[[str, int], None]
"""`permit(topic, partitions)` raises BrokerError where a quota of mutations is used up."""


def _permitted(topic: str, partitions: int) -> None:
    """There is no quota."""


# CreateTopics


def create_topics(
    view: ClusterView,
    request: topics_messages.CreateTopicsRequest,
    random: IRandom,
    counts: Counter[str] | None = None,
    permit: Permit = _permitted,
) -> tuple[Found, topics_messages.CreateTopicsResponse]:
    """The records of all topics that can be created, and the answer, which has the refusals.
    `random` places replicas where the request does not.

    For a part of a longer request: `counts`, how often the whole names each topic.
    """
    found: Found = []
    results: list[topics_messages.CreatableTopicResult] = []
    counts = Counter(topic.name for topic in request.topics) if counts is None else counts
    taken = _collision_keys(view, (topic.name for topic in request.topics))
    placer = StripedReplicaPlacer(view.image.brokers.values(), random)
    for topic in request.topics:
        try:
            if counts[topic.name] > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"topic {topic.name} is named twice")
            _check_new_name(view, topic.name, taken)
            configs = _new_configs(view, topic)
            partitions = _new_partitions(view, topic, placer)
            permit(topic.name, len(partitions))
        except BrokerError as error:
            results.append(
                topics_messages.CreatableTopicResult(
                    name=topic.name,
                    error_code=error.code,
                    error_message=error.message,
                    configs=[],
                )
            )
            continue
        topic_id = new_uuid(random.randbytes)
        taken[collision_key(topic.name)] = topic.name
        found.append(records.TopicRecord(name=topic.name, topic_id=topic_id))
        found += [
            records.ConfigRecord(
                resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=k, value=v
            )
            for k, v in sorted(configs.items())
        ]
        found += [partition.record(topic_id, number) for number, partition in enumerate(partitions)]
        results.append(_created(view, topic.name, topic_id, partitions, configs))
    return ([] if request.validate_only else found), topics_messages.CreateTopicsResponse(
        topics=results
    )


def _collision_keys(view: ClusterView, names: Iterable[str]) -> dict[str, str]:
    """Existing topics by what they collide with; empty when none of the new names can collide."""
    if not any("." in name or "_" in name for name in names):
        return {}
    return {collision_key(name): name for name in view.image.topics_by_name}


def _check_new_name(view: ClusterView, name: str, taken: dict[str, str]) -> None:
    if name == METADATA_TOPIC:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"{METADATA_TOPIC} cannot be created by a request"
        )
    problem = name_problem(name)
    if problem is not None:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name in view.image.topics_by_name:
        raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
    other = taken.get(collision_key(name))
    if other is not None and other != name:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name} collides with topic {other}"
        )


def _new_configs(view: ClusterView, topic: topics_messages.CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for entry in topic.configs:
        if entry.value is None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"setting {entry.name} has no value")
        configs[entry.name] = entry.value
    try:
        check_topic_overrides(configs, view.config)
    except ConfigError as error:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return configs


def _new_partitions(
    view: ClusterView,
    topic: topics_messages.CreatableTopic,
    placer: StripedReplicaPlacer,
) -> list[PartitionRegistration]:
    if topic.assignments:
        return _assigned_by_hand(view, topic)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "the replication factor must be above 0, or -1 for the default",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS,
            "the number of partitions must be above 0, or -1 for the default",
        )
    count = (
        view.config.integer("num.partitions")
        if topic.num_partitions == -1
        else topic.num_partitions
    )
    factor = (
        view.config.integer("default.replication.factor")
        if topic.replication_factor == -1
        else topic.replication_factor
    )
    return _placed(view, placer, factor, count)


def wanted_partitions(view: ClusterView, topic: topics_messages.CreatableTopic) -> int:
    """How many partitions a topic counts towards a request's `MAX_PARTITIONS_PER_REQUEST`, even if
    it is refused for another reason.
    """
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == -1:
        return view.config.integer("num.partitions")
    return max(topic.num_partitions, 0)


def too_many() -> BrokerError:
    """The refusal of a request beyond `MAX_PARTITIONS_PER_REQUEST`."""
    return BrokerError(
        ErrorCode.POLICY_VIOLATION,
        f"more than {MAX_PARTITIONS_PER_REQUEST} partitions in one request",
    )


def _assigned_by_hand(
    view: ClusterView, topic: topics_messages.CreatableTopic
) -> list[PartitionRegistration]:
    if topic.replication_factor != -1 or topic.num_partitions != -1:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            "with a manual assignment, partitions and replication factor must both be -1",
        )
    chosen: dict[int, Sequence[int]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in chosen:
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partition {assignment.partition_index} is assigned twice",
            )
        chosen[assignment.partition_index] = assignment.broker_ids
        check_manual_assignment(
            assignment.broker_ids, view.image.brokers, len(topic.assignments[0].broker_ids)
        )
    if sorted(chosen) != list(range(len(chosen))):
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without a gap"
        )
    return [
        _fresh(view, chosen[number], ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        for number in range(len(chosen))
    ]


def _fresh(view: ClusterView, replicas: Sequence[int], refusal: ErrorCode) -> PartitionRegistration:
    """A partition at its beginning: live replicas are its ISR, the first of them leads."""
    isr = tuple(broker for broker in replicas if view.may_lead(broker))
    if not isr:
        raise BrokerError(refusal, f"all brokers of {list(replicas)} are fenced or shutting down")
    brokers = view.image.brokers
    if view.image.metadata_version < DIRECTORIES_LEVEL:
        # No record says where they lie: read again, these are MIGRATING.
        directories = (MIGRATING,) * len(replicas)
    else:
        directories = tuple(default_directory(brokers.get(broker)) for broker in replicas)
    return PartitionRegistration(
        tuple(replicas), directories, isr, (), (), (), (), isr[0], RECOVERED, 0, 0
    )


def _created(
    view: ClusterView,
    name: str,
    topic_id: bytes,
    partitions: Sequence[PartitionRegistration],
    configs: dict[str, str],
) -> topics_messages.CreatableTopicResult:
    entries = [
        topics_messages.CreatableTopicConfigs(
            name=e.name,
            value=e.value,
            read_only=e.read_only,
            config_source=e.source,
            is_sensitive=False,
        )
        for e in topic_entries(view.config, configs, as_given=True)
    ]
    factor = len(partitions[0].replicas)
    return topics_messages.CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=len(partitions),
        replication_factor=factor,
        configs=entries,
    )


# CreatePartitions


def create_partitions(
    view: ClusterView,
    request: topics_messages.CreatePartitionsRequest,
    random: IRandom,
    counts: Counter[str] | None = None,
    budget: int = MAX_PARTITIONS_PER_REQUEST,
    permit: Permit = _permitted,
) -> tuple[Found, topics_messages.CreatePartitionsResponse]:
    """Grows topics to the requested counts, by no more partitions in all than one request may
    add. For a part of a longer request: `counts`, how often the whole names each topic; `budget`,
    the partitions that are left to it.
    """
    found: Found = []
    results: list[topics_messages.CreatePartitionsTopicResult] = []
    counts = Counter(topic.name for topic in request.topics) if counts is None else counts
    placer = StripedReplicaPlacer(view.image.brokers.values(), random)
    for topic in request.topics:
        try:
            if counts[topic.name] > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"topic {topic.name} is named twice")
            grown = _grown(view, topic, placer, budget - len(found))
            permit(topic.name, len(grown))
            found += grown
            results.append(topics_messages.CreatePartitionsTopicResult(name=topic.name))
        except BrokerError as error:
            results.append(
                topics_messages.CreatePartitionsTopicResult(
                    name=topic.name, error_code=error.code, error_message=error.message
                )
            )
    return ([] if request.validate_only else found), topics_messages.CreatePartitionsResponse(
        results=results
    )


def _grown(
    view: ClusterView,
    request: topics_messages.CreatePartitionsTopic,
    placer: StripedReplicaPlacer,
    budget: int,
) -> Found:
    topic = view.image.topics_by_name.get(request.name)
    if topic is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    has = len(topic.partitions)
    if request.count <= has:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS,
            (
                f"topic {request.name} has {has} partition(s) already; {request.count} would be "
                "no increase"
            ),
        )
    missing = request.count - has
    if missing > budget:
        raise too_many()
    fresh = (
        _grown_by_hand(view, request, topic, missing)
        if request.assignments is not None
        else _placed(view, placer, replication_factor(topic.partitions[0]), missing)
    )
    return [partition.record(topic.id, has + number) for number, partition in enumerate(fresh)]


def _placed(
    view: ClusterView, placer: StripedReplicaPlacer, factor: int, count: int
) -> list[PartitionRegistration]:
    """New partitions; those with the same replicas in the same order are one object."""
    placer.check(factor)
    known: dict[tuple[int, ...], PartitionRegistration] = {}
    found: list[PartitionRegistration] = []
    for _ in range(count):
        replicas = tuple(placer.place(factor))
        fresh = known.get(replicas)
        if fresh is None:
            fresh = _fresh(view, replicas, ErrorCode.INVALID_REPLICATION_FACTOR)
            known[replicas] = fresh
        found.append(fresh)
    return found


def _grown_by_hand(
    view: ClusterView,
    request: topics_messages.CreatePartitionsTopic,
    topic: TopicImage,
    missing: int,
) -> list[PartitionRegistration]:
    assignments = request.assignments or []
    if len(assignments) != missing:
        words = (
            f"{missing} partition(s) are to be added, {len(assignments)} assignment(s) were given"
        )
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)
    for assignment in assignments:
        check_manual_assignment(
            assignment.broker_ids, view.image.brokers, replication_factor(topic.partitions[0])
        )
    return [
        _fresh(view, assignment.broker_ids, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        for assignment in assignments
    ]


# DeleteTopics


def delete_topics(
    view: ClusterView,
    request: topics_messages.DeleteTopicsRequest,
    version: int,
    named: Counter[str | bytes] | None = None,
    permit: Permit = _permitted,
) -> tuple[Found, topics_messages.DeleteTopicsResponse]:
    """Removes topics, named (or from version 6 on by id).

    `named`: how often the whole request has each name and id, for a part of it.
    """
    if not view.config.boolean("delete.topic.enable"):
        raise BrokerError(
            ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        )
    requested = (
        request.topics
        if version >= 6
        else [topics_messages.DeleteTopicState(name=name) for name in request.topic_names]
    )
    found: Found = []
    results: list[topics_messages.DeletableTopicResult] = []
    chosen = [_to_delete(view, state) for state in requested]
    times = Counter(topic.id for topic in chosen if isinstance(topic, TopicImage))
    for state, topic in zip(requested, chosen, strict=True):
        if isinstance(topic, TopicImage) and (
            times[topic.id] > 1 or (named is not None and named[topic.name] + named[topic.id] > 1)
        ):
            topic = BrokerError(ErrorCode.INVALID_REQUEST, f"topic {topic.name} is named twice")
        if isinstance(topic, TopicImage):
            try:
                permit(topic.name, len(topic.partitions))
            except BrokerError as error:
                topic = error
        if isinstance(topic, BrokerError):
            results.append(
                topics_messages.DeletableTopicResult(
                    name=state.name,
                    topic_id=state.topic_id,
                    error_code=topic.code,
                    error_message=topic.message,
                )
            )
        else:
            found.append(records.RemoveTopicRecord(topic_id=topic.id))
            results.append(topics_messages.DeletableTopicResult(name=topic.name, topic_id=topic.id))
    return found, topics_messages.DeleteTopicsResponse(responses=results)


def _to_delete(
    view: ClusterView, state: topics_messages.DeleteTopicState
) -> TopicImage | BrokerError:
    topic_id = bytes(state.topic_id)
    if state.name is None:
        if topic_id == NULL_UUID:
            return BrokerError(ErrorCode.INVALID_REQUEST, "a topic needs a name or an id")
        return view.image.topics_by_id.get(topic_id) or BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
    if topic_id != NULL_UUID:
        return BrokerError(
            ErrorCode.INVALID_REQUEST, "name a topic by its name or by its id, not by both"
        )
    return view.image.topics_by_name.get(state.name) or BrokerError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
