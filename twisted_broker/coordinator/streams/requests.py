"""The heartbeat of a streams group, its answer, and what can be said against it without the group.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `HeartbeatRequest`, `HeartbeatAnswer`, `check_request`.

1. None, or -1, means: as in the last heartbeat. Empty lists of tasks say that nothing is owned.

Source: Apache Kafka 4.3.1
`GroupCoordinatorService.throwIfStreamsGroupHeartbeatRequestIsUsingUnsupportedFeatures`,
`throwIfStreamsGroupHeartbeatRequestIsInvalid`. Not here: permissions and the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twisted_broker.coordinator.consumer.requests import is_blank
from twisted_broker.coordinator.group_records import fits_record
from twisted_broker.coordinator.streams.configure import InternalTopic, Status
from twisted_broker.coordinator.streams.endpoints import EndpointPartitions
from twisted_broker.coordinator.streams.member import JOIN_EPOCH, NO_TIMEOUT
from twisted_broker.coordinator.streams.tasks import Tasks
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.group_records import StreamsGroupTopologyValue, Subtopology

LEAVE_STATIC_EPOCH = -2


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A StreamsGroupHeartbeat. `topology`: as its record is stored. `active`, `standby` and
    `warmup`: the tasks that the member says it owns. `endpoint_epoch`: of the endpoints that it
    knows.
    """

    group_id: str
    member_id: str
    member_epoch: int
    endpoint_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    topology: StreamsGroupTopologyValue | None = None
    active: frozenset[tuple[str, int]] | None = None
    standby: frozenset[tuple[str, int]] | None = None
    warmup: frozenset[tuple[str, int]] | None = None
    process_id: str | None = None
    endpoint: tuple[str, int] | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    has_task_offsets: bool = False
    has_task_end_offsets: bool = False
    shutdown_application: bool = False
    client_id: str = ""
    client_host: str = ""

    @property
    def owned(self) -> Tasks | None:
        if self.active is None or self.standby is None or self.warmup is None:
            return None
        return Tasks(self.active, self.standby, self.warmup)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """`tasks` None: as in the last answer. `endpoints` None: the member knows them. `to_create`:
    internal topics that are missing.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    status: tuple[Status, ...] = ()
    tasks: Tasks | None = None
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    to_create: tuple[InternalTopic, ...] = field(default=())


def check_request(request: HeartbeatRequest) -> None:
    """Raises BrokerError."""
    _check_unsupported(request)
    if is_blank(request.member_id):
        raise _invalid("MemberId can't be empty.")
    if is_blank(request.group_id):
        raise _invalid("GroupId can't be empty.")
    if request.rack_id is not None and is_blank(request.rack_id):
        raise _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch == LEAVE_STATIC_EPOCH:
        raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise _invalid(
            f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2."
        )
    lists = request.active, request.standby, request.warmup
    if any(each is not None for each in lists) and any(each is None for each in lists):
        raise _invalid("If one task-type is non-null, all must be non-null.")
    if request.member_epoch != JOIN_EPOCH and request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")
    if not fits_record(request.group_id, request.member_id):
        raise _invalid("The ids are longer than a record can hold.")


def _check_unsupported(request: HeartbeatRequest) -> None:
    if request.instance_id is not None:
        raise _invalid("Static membership is not yet supported.")
    if request.has_task_offsets:
        raise _invalid("TaskOffsets are not supported yet.")
    if request.has_task_end_offsets:
        raise _invalid("TaskEndOffsets are not supported yet.")
    if request.warmup:
        raise _invalid("WarmupTasks are not supported yet.")
    if request.topology is not None:
        for subtopology in request.topology.subtopologies:
            if subtopology.source_topic_regex:
                raise _invalid("Regular expressions for source topics are not supported yet.")


def _check_join(request: HeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == NO_TIMEOUT:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in (
        ("ActiveTasks", request.active),
        ("StandbyTasks", request.standby),
        ("WarmupTasks", request.warmup),
    ):
        if tasks is None or tasks:
            raise _invalid(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise _invalid("Topology must be non-null when (re-)joining.")
    _check_topology(request.topology)


def _check_topology(topology: StreamsGroupTopologyValue) -> None:
    """Kafka answers UNKNOWN_SERVER_ERROR to what no client of it sends: the numbers and names
    here that are not of a changelog.
    """
    for subtopology in topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                raise _unfit(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it "
                    f"is set to {topic.partitions}."
                )
    if topology.epoch < 0:
        raise _unfit("The topology epoch is negative.")
    ids = {each.subtopology_id for each in topology.subtopologies}
    if len(ids) < len(topology.subtopologies):
        raise _unfit("Two subtopologies have the same id.")
    for subtopology in topology.subtopologies:
        _check_numbers(subtopology)


def _check_numbers(subtopology: Subtopology) -> None:
    for topic in (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics):
        if topic.partitions < 0:
            raise _unfit(f"Topic {topic.name} has a negative number of partitions.")
    for group in subtopology.copartition_groups:
        for numbers, topics in (
            (group.source_topics, subtopology.source_topics),
            (group.repartition_source_topics, subtopology.repartition_source_topics),
        ):
            if not all(0 <= number < len(topics) for number in numbers):
                raise _unfit("A copartition group names a topic that its subtopology has not.")


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REQUEST, message)


def _unfit(message: str) -> BrokerError:
    return BrokerError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
