"""Which partitions of a share group have a state with the share coordinator, and how that changes.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the decisions around record 15, and `to_initialize`.

1. A partition is written down as initializing before the share coordinator is asked, and as
   initialized when it has answered: a request or answer that is lost in between is sent again,
   which does no harm.
2. An initializing that began long ago is begun again by a heartbeat; one whose beginning is not
   known, after a load, at once.
3. A topic whose states are being deleted is no member's to read, until a heartbeat wants it again.
   What could not be deleted is deleted by the next one who asks.
4. A topic that is gone from the metadata is forgotten: its states go with it.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.subscribedTopicsChangeMap`,
`initializeShareGroupState`, `uninitializeShareGroupState`, `maybeCleanupShareGroupState`,
`shareGroupBuildPartitionDeleteRequest`, `alterShareGroupOffsets`,
`sharePartitionsEligibleForOffsetDeletion`. Not here: asking the share coordinator
(`share_group_runner.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from twisted_broker.coordinator.consumer.partitions import TopicIdPartition, by_topic
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.share.decision import ShareEnvironment, ShareGroupDecision
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.records import (
    ShareStates,
    StateTopic,
    StateTopics,
    states_record,
)
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.wire.errors import BrokerError, ErrorCode

NOT_KNOWN_MS = -(2**62)
UNKNOWN_NAME = "<UNKNOWN>"
NO_PARTITIONS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """About one topic that an administrator names; `partitions` with an error each."""

    name: str
    topic_id: bytes | None
    error: ErrorCode = ErrorCode.NONE
    partitions: Mapping[int, ErrorCode] | None = None


def to_initialize(
    group: ShareGroup, names: Iterable[str], environment: ShareEnvironment
) -> StateTopics:
    """The partitions of these topics that neither have a state nor are about to."""
    states, image = group.known_states, environment.image
    wanted: dict[bytes, StateTopic] = {}
    for name in names:
        topic = image.topics_by_name.get(name)
        if topic is None:
            continue
        known = _partitions(states.initialized, topic.id)
        began_at = group.initializing_at.get(topic.id, NOT_KNOWN_MS)
        if environment.wall_ms - began_at < environment.settings.initialize_retry_ms:
            known |= _partitions(states.initializing, topic.id)
        if len(known) < len(topic.partitions):
            wanted[topic.id] = StateTopic(name, frozenset(topic.partitions) - known)
    return wanted


def begin_initializing(
    group: ShareGroup, topics: StateTopics, decision: ShareGroupDecision, wall_ms: int
) -> None:
    """Writes down that these are about to have a state."""
    states = group.known_states
    decision.records.append(
        states_record(
            group.group_id,
            states._replace(
                initializing=_with(states.initializing, topics),
                deleting={
                    topic_id: name
                    for topic_id, name in states.deleting.items()
                    if topic_id not in topics
                },
            ),
        )
    )
    decision.began_at_ms = wall_ms


def initialized(
    group: ShareGroup,
    done: Collection[TopicIdPartition],
    failed: Collection[TopicIdPartition],
    image: MetadataImage,
) -> Decision:
    """The share coordinator has made the states of some, and refused others."""
    states = group.known_states
    now = {
        topic_id: StateTopic(_name(image, topic_id), frozenset(numbers))
        for topic_id, numbers in by_topic(done)
        if topic_id in image.topics_by_id
    }
    changed = ShareStates(
        _without(states.initializing, [*done, *failed]),
        _with(states.initialized, now),
        states.deleting,
    )
    if changed == states:
        return Decision()
    return Decision([states_record(group.group_id, changed)])


def topics_gone(group: ShareGroup, image: MetadataImage) -> Decision:
    """Forgets the topics that there are no more."""
    states, there = group.known_states, image.topics_by_id
    changed = ShareStates(
        {each: topic for each, topic in states.initializing.items() if each in there},
        {each: topic for each, topic in states.initialized.items() if each in there},
        {each: name for each, name in states.deleting.items() if each in there},
    )
    if changed == states:
        return Decision()
    return Decision([states_record(group.group_id, changed)])


def begin_deleting(group: ShareGroup, image: MetadataImage) -> ShareGroupDecision:
    """All states of an empty group are to go. Raises NON_EMPTY_GROUP."""
    if not group.is_empty:
        raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
    if group.states is None:
        return ShareGroupDecision(answer=group)
    states = group.states
    topics = _with(states.initialized, states.initializing)
    topics = _with(topics, _still_there(states.deleting, image))
    going = ShareStates(deleting={topic_id: topic.name for topic_id, topic in topics.items()})
    records = [] if going == states else [states_record(group.group_id, going)]
    return ShareGroupDecision(records, answer=group, delete=_all(topics))


def begin_deleting_topics(
    group: ShareGroup, names: Sequence[str], image: MetadataImage
) -> ShareGroupDecision:
    """The states of these topics of an empty group are to go; the answer is a list of
    `TopicAnswer`. Raises NON_EMPTY_GROUP.
    """
    if not group.is_empty:
        raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
    states = group.known_states
    answers, going = [], {}
    for name in names:
        topic = image.topics_by_name.get(name)
        if topic is None:
            answers.append(TopicAnswer(name, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif topic.id in states.initialized:
            going[topic.id] = states.initialized[topic.id]
        elif topic.id in states.deleting:
            going[topic.id] = StateTopic(name, frozenset(topic.partitions))
        else:
            answers.append(TopicAnswer(name, topic.id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        if topic is not None:
            answers.append(TopicAnswer(name, topic.id))
    if not going:
        return ShareGroupDecision(answer=answers)
    changed = states._replace(
        initialized={
            topic_id: topic
            for topic_id, topic in states.initialized.items()
            if topic_id not in going
        },
        deleting={
            **states.deleting,
            **{topic_id: topic.name for topic_id, topic in going.items()},
        },
    )
    return ShareGroupDecision(
        [states_record(group.group_id, changed)], answer=answers, delete=_all(going)
    )


def deleted(group: ShareGroup, topic_ids: Collection[bytes]) -> Decision:
    """The share coordinator has no state of these topics any more."""
    states = group.known_states
    left = {each: name for each, name in states.deleting.items() if each not in topic_ids}
    if left == states.deleting:
        return Decision()
    return Decision([states_record(group.group_id, states._replace(deleting=left))])


def alter(
    group: ShareGroup,
    starts: Mapping[str, Mapping[int, int]],
    environment: ShareEnvironment,
) -> ShareGroupDecision:
    """The states of an empty group begin anew at these offsets, by topic name and partition; the
    answer is a list of `TopicAnswer`. Raises NON_EMPTY_GROUP.
    """
    if not group.is_empty:
        raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
    decision = ShareGroupDecision(state_epoch=group.epoch)
    answers: list[TopicAnswer] = []
    topics: dict[bytes, StateTopic] = {}
    initialize: dict[TopicIdPartition, int] = {}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for name, of_topic in starts.items():
        topic = environment.image.topics_by_name.get(name)
        there = {} if topic is None else topic.partitions
        errors = {each: ErrorCode.NONE if each in there else unknown for each in of_topic}
        answers.append(TopicAnswer(name, None if topic is None else topic.id, partitions=errors))
        found = frozenset(each for each, error in errors.items() if error is ErrorCode.NONE)
        if topic is not None and found:
            topics[topic.id] = StateTopic(name, found)
            initialize.update({(topic.id, each): of_topic[each] for each in found})
    if topics:
        begin_initializing(group, topics, decision, environment.wall_ms)
    decision.initialize, decision.answer = initialize, answers
    return decision


def _partitions(topics: StateTopics, topic_id: bytes) -> frozenset[int]:
    topic = topics.get(topic_id)
    return NO_PARTITIONS if topic is None else topic.partitions


def _with(topics: StateTopics, more: StateTopics) -> dict[bytes, StateTopic]:
    result = dict(topics)
    for topic_id, topic in more.items():
        result[topic_id] = StateTopic(topic.name, topic.partitions | _partitions(topics, topic_id))
    return result


def _without(topics: StateTopics, partitions: Iterable[TopicIdPartition]) -> StateTopics:
    result = dict(topics)
    for topic_id, numbers in by_topic(partitions):
        topic = result.get(topic_id)
        if topic is not None:
            left = topic.partitions.difference(numbers)
            if left:
                result[topic_id] = StateTopic(topic.name, left)
            else:
                del result[topic_id]
    return result


def _name(image: MetadataImage, topic_id: bytes) -> str:
    topic = image.topics_by_id.get(topic_id)
    return UNKNOWN_NAME if topic is None else topic.name


def _still_there(names: Mapping[bytes, str], image: MetadataImage) -> StateTopics:
    return {
        topic_id: StateTopic(name, frozenset(image.topics_by_id[topic_id].partitions))
        for topic_id, name in names.items()
        if topic_id in image.topics_by_id
    }


def _all(topics: StateTopics) -> frozenset[TopicIdPartition]:
    return frozenset(
        (topic_id, number) for topic_id, topic in topics.items() for number in topic.partitions
    )
