"""Operators move partitions and leaders: what the controller decides.

Owns the decisions on ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments.

1. One partition's refusal does not touch the others of the request; a partition is changed once per
   request.
2. ElectLeaders for all partitions is silent about those that have the leader wanted already.
3. A reassignment of a partition without leader elects one, also an unclean one where that is
   allowed. A cancellation that leaves no replica in sync needs `unclean.leader.election.enable`,
   and is recorded as recovering.

Source: Kafka's `ReplicationControlManager`; KIP-455, KIP-460, KIP-860; `RL 8.3`, `RL 8.5`. Not
here: how a reassignment ends (`partition_change.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.election import Election
from twisted_broker.cluster.partition_change import change_partition
from twisted_broker.cluster.placement import check_manual_assignment
from twisted_broker.cluster.reassignment import Assignment, reassigned, replication_factor, reverted
from twisted_broker.image.entries import NO_LEADER, PartitionRegistration, TopicImage
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import reassignment as reassignment_messages
from twisted_broker.wire.messages.metadata_records import PartitionChangeRecord
from twisted_broker.wire.schema import Record

PREFERRED, UNCLEAN = 0, 1
_ELECTIONS = {PREFERRED: Election.PREFERRED, UNCLEAN: Election.UNCLEAN}
Seen = set[tuple[str, int]]


def _partition(
    view: ClusterView, name: str, number: int, seen: Seen
) -> tuple[TopicImage, PartitionRegistration]:
    """Raises BrokerError for one that is not there, or was named before."""
    topic = view.image.topics_by_name.get(name)
    if topic is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    partition = topic.partitions.get(number)
    if partition is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} has no partition {number}"
        )
    if (name, number) in seen:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"partition {number} of topic {name} is named twice"
        )
    seen.add((name, number))
    return topic, partition


# ElectLeaders


def elect_leaders(
    view: ClusterView,
    request: reassignment_messages.ElectLeadersRequest,
    seen: Seen | None = None,
    is_of_all: bool = False,
) -> tuple[list[Record], reassignment_messages.ElectLeadersResponse]:
    """The records of all elections, and the answer.

    For a part of a longer request: `seen`, what the parts before named; `is_of_all`: the whole
    names no partitions. Raises BrokerError(INVALID_REQUEST) for an unknown kind of election.
    """
    if request.election_type not in _ELECTIONS:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"unknown election type {request.election_type}"
        )
    found: list[Record] = []
    seen = set() if seen is None else seen
    is_of_all = is_of_all or request.topic_partitions is None
    results = []
    for name, numbers in to_elect(view.image, request):
        answers = [
            _elect(view, name, number, request.election_type, seen, found) for number in numbers
        ]
        if is_of_all:
            answers = [
                answer for answer in answers if answer.error_code != ErrorCode.ELECTION_NOT_NEEDED
            ]
        results.append(
            reassignment_messages.ReplicaElectionResult(topic=name, partition_result=answers)
        )
    return found, reassignment_messages.ElectLeadersResponse(replica_election_results=results)


def to_elect(
    image: MetadataImage, request: reassignment_messages.ElectLeadersRequest
) -> Sequence[tuple[str, Sequence[int]]]:
    """Topics with their partitions: those named, or all."""
    if request.topic_partitions is not None:
        return [(each.topic, each.partitions) for each in request.topic_partitions]
    topics = image.topics_by_name
    return [(name, sorted(topics[name].partitions)) for name in sorted(topics)]


def _elect(
    view: ClusterView, name: str, number: int, kind: int, seen: Seen, found: list[Record]
) -> reassignment_messages.PartitionResult:
    try:
        topic, partition = _partition(view, name, number, seen)
        found.append(_elected(view, topic, number, partition, kind))
    except BrokerError as error:
        return reassignment_messages.PartitionResult(
            partition_id=number, error_code=error.code, error_message=error.message
        )
    return reassignment_messages.PartitionResult(partition_id=number, error_message=None)


def _elected(
    view: ClusterView, topic: TopicImage, number: int, partition: PartitionRegistration, kind: int
) -> PartitionChangeRecord:
    is_well = (
        partition.leader == partition.replicas[0]
        if kind == PREFERRED
        else partition.leader != NO_LEADER
    )
    if is_well:
        raise BrokerError(ErrorCode.ELECTION_NOT_NEEDED)
    change = change_partition(
        partition, topic.id, number, view.rules(topic.name, partition), election=_ELECTIONS[kind]
    )
    if change is None:
        raise BrokerError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if kind == PREFERRED
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
    return change


# AlterPartitionReassignments


def alter_reassignments(
    view: ClusterView,
    request: reassignment_messages.AlterPartitionReassignmentsRequest,
    seen: Seen | None = None,
) -> tuple[list[Record], reassignment_messages.AlterPartitionReassignmentsResponse]:
    """The records of all reassignments that begin, change, end or are cancelled, and the answer,
    which has the refusals. For a part of a longer request: `seen`, what the parts before named.
    """
    found: list[Record] = []
    seen = set() if seen is None else seen
    responses = []
    for topic in request.topics:
        answers = []
        for requested in topic.partitions:
            answer = reassignment_messages.ReassignablePartitionResponse(
                partition_index=requested.partition_index, error_message=None
            )
            try:
                change = _reassign(
                    view, topic.name, requested, request.allow_replication_factor_change, seen
                )
                if change is not None:
                    found.append(change)
            except BrokerError as error:
                answer.error_code, answer.error_message = error.code, error.message
            answers.append(answer)
        responses.append(
            reassignment_messages.ReassignableTopicResponse(name=topic.name, partitions=answers)
        )
    response = reassignment_messages.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )
    return found, response


def _reassign(
    view: ClusterView,
    name: str,
    requested: reassignment_messages.ReassignablePartition,
    may_change_factor: bool,
    seen: Seen,
) -> PartitionChangeRecord | None:
    topic, partition = _partition(view, name, requested.partition_index, seen)
    if requested.replicas is None:
        return _cancelled(view, topic, requested.partition_index, partition)
    check_manual_assignment(requested.replicas, view.image.brokers, None)
    factor = replication_factor(partition)
    if not may_change_factor and len(requested.replicas) != factor:
        words = f"the replication factor would change from {factor} to {len(requested.replicas)}"
        raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, words)
    wanted, rules = reassigned(partition, requested.replicas), view.rules(name, partition)
    return change_partition(
        partition,
        topic.id,
        requested.partition_index,
        rules,
        assignment=wanted,
        # Without a leader, where unclean elections are allowed, an added replica may lead.
        election=Election.ONLINE if partition.leader != NO_LEADER else rules.election,
    )


def _cancelled(
    view: ClusterView, topic: TopicImage, number: int, partition: PartitionRegistration
) -> PartitionChangeRecord:
    if not Assignment.of(partition).in_progress:
        raise BrokerError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    assignment, isr = reverted(partition)
    rules = view.rules(topic.name, partition)
    change = change_partition(partition, topic.id, number, rules, isr=isr, assignment=assignment)
    assert change is not None
    if not isr and (not rules.unclean or partition.changed(change).leader == NO_LEADER):
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "the reassignment cannot be cancelled: none of the former replicas is in the ISR",
        )
    return change


# ListPartitionReassignments


def list_reassignments(
    image: MetadataImage, request: reassignment_messages.ListPartitionReassignmentsRequest
) -> reassignment_messages.ListPartitionReassignmentsResponse:
    """The reassignments under way, of all topics or of those named; what is not there is left
    out.
    """
    topics = image.topics_by_name
    if request.topics is None:
        requested: Sequence[tuple[str, Sequence[int]]] = [
            (name, sorted(topics[name].partitions)) for name in sorted(topics)
        ]
    else:
        requested = [
            (each.name, each.partition_indexes) for each in request.topics if each.name in topics
        ]
    found = []
    for name, numbers in requested:
        partitions = topics[name].partitions
        ongoing = [
            _ongoing(number, partitions[number])
            for number in numbers
            if number in partitions and _moves(partitions[number])
        ]
        if ongoing:
            found.append(
                reassignment_messages.OngoingTopicReassignment(name=name, partitions=ongoing)
            )
    return reassignment_messages.ListPartitionReassignmentsResponse(
        error_message=None, topics=found
    )


def _moves(partition: PartitionRegistration) -> bool:
    return Assignment.of(partition).in_progress


def _ongoing(
    number: int, partition: PartitionRegistration
) -> reassignment_messages.OngoingPartitionReassignment:
    return reassignment_messages.OngoingPartitionReassignment(
        partition_index=number,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
    )
