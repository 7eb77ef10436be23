"""The decision on a heartbeat of a streams group: `heartbeat(group, request, environment)`.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the steps of a heartbeat that is no leave, in order: the member, the topology and its topics,
the group epoch, the target, the member's next step, the answer; and `delayed_target`, for the end
of the delay of a group's first target.

1. Nothing is changed: see `group_decision.py`. A heartbeat that changes nothing writes nothing.
2. The group epoch rises once at most, and the records stand in Kafka's order.
3. While the topology's topics are not there, every member's target is empty, and it is written.
4. The target is computed when the group is ahead of it, no delay runs, and the interval since the
   last time is over: until then the old one stays in force.
5. State that is not stored is changed by a group that has a record: a first heartbeat that is
   refused leaves nothing behind, and its answer has endpoint epoch 0.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.streamsGroupHeartbeat`,
the `TargetAssignmentBuilder` of streams. Not here: checks without the group (`requests.py`),
leaving (`leaving.py`), whether the group exists and of which kind it is.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from twisted_broker.coordinator.group_decision import GroupTimer, TimerChange, is_assignment_due
from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.coordinator.streams.configure import (
    ConfiguredTopology,
    Status,
    StatusCode,
    configure,
)
from twisted_broker.coordinator.streams.decision import (
    STANDBY_REPLICAS,
    Environment,
    StreamsGroupDecision,
)
from twisted_broker.coordinator.streams.endpoints import EndpointPartitions, endpoints_of
from twisted_broker.coordinator.streams.group import NOT_VALIDATED, StreamsGroup
from twisted_broker.coordinator.streams.member import (
    JOIN_EPOCH,
    NO_TIMEOUT,
    UNREVOKED,
    StreamsGroupMember,
)
from twisted_broker.coordinator.streams.membership import find_member
from twisted_broker.coordinator.streams.reconcile import reconcile
from twisted_broker.coordinator.streams.records import (
    epoch_record,
    target_epoch_record,
    target_record,
    topology_record,
)
from twisted_broker.coordinator.streams.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.coordinator.streams.sticky import AssignorMember, assign_tasks
from twisted_broker.coordinator.streams.tasks import NO_TASKS, Tasks
from twisted_broker.coordinator.streams.topology import Topology
from twisted_broker.wire.errors import BrokerError, ErrorCode

# A record is some 10 us (`turns.py`, invariant 4).
TARGETS_PER_STEP = 100


def heartbeat(
    group: StreamsGroup, request: HeartbeatRequest, environment: Environment
) -> Generator[None, None, StreamsGroupDecision]:
    """The decision, in steps. `group` is one that was just made if the request creates it. Raises
    BrokerError.
    """
    return (yield from _Heartbeat(group, request, environment).decide())


def delayed_target(
    group: StreamsGroup, environment: Environment
) -> Generator[None, None, StreamsGroupDecision]:
    """The delay of the first target is over: the decision that nobody asked for, in steps."""
    decision = StreamsGroupDecision()
    is_due = is_assignment_due(
        group, environment.wall_ms, environment.settings.assignment_interval_ms
    )
    if (
        group.members
        and group.configured is not None
        and group.epoch > group.assignment_epoch
        and is_due
    ):
        standby_replicas = int(group.assignment_configs.get(STANDBY_REPLICAS, 0))
        yield from _compute_target(
            group,
            list(group.members.values()),
            group.epoch,
            group.configured,
            standby_replicas,
            environment.wall_ms,
            decision.records,
        )
    return decision


def shutdown_status(member_id: str) -> Status:
    """A member asks the whole application to end."""
    return Status(
        StatusCode.SHUTDOWN_APPLICATION,
        f"Streams group member {member_id} encountered a fatal error and requested a shutdown for "
        "the entire application.",
    )


class _Heartbeat:
    """One heartbeat; `_member` becomes the member as it is afterwards."""

    def __init__(
        self, group: StreamsGroup, request: HeartbeatRequest, environment: Environment
    ) -> None:
        self._group, self._request, self._environment = group, request, environment
        self._stored = find_member(group, request, environment.settings.max_size)
        self._before = self._stored or StreamsGroupMember(request.member_id)
        self._member = self._updated()
        self._decision = StreamsGroupDecision()
        self._records = self._decision.records
        self._status: list[Status] = []
        self._epoch, self._target_epoch = group.epoch, group.assignment_epoch
        self._target = group.target(request.member_id)
        self._hash = group.metadata_hash

    def decide(self) -> Generator[None, None, StreamsGroupDecision]:
        group, settings = self._group, self._environment.settings
        must_bump = self._stored is None or self._member != self._before
        if must_bump:
            self._records.append(self._member.metadata_record(group.group_id))
        topology = self._topology()
        configured = yield from self._configured(topology)
        validated_epoch = topology.epoch if configured.is_ready else NOT_VALIDATED
        if configured.is_ready:
            self._check_owned(configured)
        if (
            must_bump
            or self._hash != group.metadata_hash
            or validated_epoch != group.validated_topology_epoch
            or settings.assignment_configs != group.assignment_configs
        ):
            self._epoch += 1
            self._records.append(
                epoch_record(
                    group.group_id,
                    self._epoch,
                    self._hash,
                    validated_epoch,
                    settings.assignment_configs,
                )
            )
        if group.is_empty:
            self._decision.delay_ms = settings.initial_rebalance_delay_ms
        yield from self._follow_target(configured)
        self._reconcile()
        self._decision.timers.append(
            TimerChange(GroupTimer.SESSION, self._member.member_id, settings.session_timeout_ms)
        )
        if self._request.shutdown_application and not group.is_unwritten:
            self._decision.shutdown_member_id = self._member.member_id
        self._decision.answer = yield from self._answer(configured)
        return self._decision

    def _updated(self) -> StreamsGroupMember:
        """The member with the request's fields; those that it leaves out stay."""
        request, member = self._request, self._before
        timeout_ms, topology = request.rebalance_timeout_ms, request.topology
        return replace(
            member,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            rebalance_timeout_ms=(
                member.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms
            ),
            topology_epoch=member.topology_epoch if topology is None else topology.epoch,
            process_id=member.process_id if request.process_id is None else request.process_id,
            endpoint=member.endpoint if request.endpoint is None else request.endpoint,
            tags=member.tags if request.tags is None else request.tags,
            client_id=request.client_id,
            client_host=request.client_host,
        )

    # the topology
    def _topology(self) -> Topology:
        """The group's after this heartbeat. Raises BrokerError."""
        group, sent = self._group, self._request.topology
        known = group.topology
        if known is None:
            # Every heartbeat that joins has one.
            assert sent is not None
            self._records.append(topology_record(group.group_id, sent))
            return Topology(sent)
        if self._member.topology_epoch < known.epoch:
            self._status.append(
                Status(
                    StatusCode.STALE_TOPOLOGY,
                    f"The member's topology epoch {self._member.topology_epoch} is behind the "
                    f"group's topology epoch {known.epoch}.",
                )
            )
        elif sent is not None and Topology(sent) != known:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        return known

    def _configured(self, topology: Topology) -> Generator[None, None, ConfiguredTopology]:
        """The topology with its topics as they are now."""
        group, image = self._group, self._environment.image
        configured = group.configured
        if configured is not None and not group.must_compare_metadata:
            return configured
        self._decision.metadata_mark = group.metadata_mark()
        self._hash = yield from self._environment.hashes.of_group(image, topology.topics)
        if configured is None or self._hash != group.metadata_hash:
            configured = yield from configure(topology, image)
            self._decision.configured = configured
        return configured

    def _check_owned(self, configured: ConfiguredTopology) -> None:
        """Raises INVALID_REQUEST for tasks that there are not."""
        for tasks in self._request.owned or ():
            for subtopology_id, number in sorted(tasks):
                subtopology = configured.subtopologies.get(subtopology_id)
                if subtopology is None:
                    raise BrokerError(
                        ErrorCode.INVALID_REQUEST,
                        f"Subtopology {subtopology_id} does not exist in the topology.",
                    )
                if not 0 <= number < subtopology.tasks:
                    raise BrokerError(
                        ErrorCode.INVALID_REQUEST,
                        f"Task {number} for subtopology {subtopology_id} is invalid. Number of "
                        f"tasks for this subtopology: {subtopology.tasks}",
                    )

    # the target
    def _follow_target(self, configured: ConfiguredTopology) -> Generator[None, None, None]:
        group, environment = self._group, self._environment
        settings = environment.settings
        if environment.is_delayed or self._decision.delay_ms > 0:
            self._delayed("initial rebalance delay")
            self._target = NO_TASKS
        elif self._epoch > self._target_epoch:
            if not is_assignment_due(group, environment.wall_ms, settings.assignment_interval_ms):
                self._delayed("assignment interval")
                return
            others = [each for each in group.members.values() if each is not self._stored]
            targets = yield from _compute_target(
                group,
                [*others, self._member],
                self._epoch,
                configured,
                settings.num_standby_replicas,
                environment.wall_ms,
                self._records,
            )
            self._target_epoch, self._target = self._epoch, targets[self._member.member_id]

    def _delayed(self, why: str) -> None:
        self._status.append(
            Status(
                StatusCode.ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {why}."
            )
        )

    def _reconcile(self) -> None:
        before = self._member
        self._member = reconcile(
            self._group, before, self._target_epoch, self._target, self._request.owned
        )
        if self._member == before:
            return
        self._records.append(self._member.assignment_record(self._group.group_id))
        is_timed = self._member.state is UNREVOKED
        self._decision.timers.append(
            TimerChange(
                GroupTimer.REBALANCE,
                self._member.member_id,
                self._member.rebalance_timeout_ms if is_timed else None,
                self._member.epoch if is_timed else None,
            )
        )

    # the answer
    def _answer(self, configured: ConfiguredTopology) -> Generator[None, None, HeartbeatAnswer]:
        group, request, member = self._group, self._request, self._member
        tasks = member.assigned.without_epochs()
        is_changed = tasks != self._before.assigned.without_epochs()
        has_tasks = request.member_epoch == JOIN_EPOCH or is_changed
        is_new = group.is_unwritten
        epoch = group.endpoint_epoch
        if has_tasks and member.endpoint is not None:
            epoch += 1
            self._decision.moves_endpoint = not is_new
        endpoints: tuple[EndpointPartitions, ...] | None = None
        if epoch != request.endpoint_epoch:
            endpoints = yield from self._endpoints(configured)
        if configured.problem is not None:
            self._status.append(configured.problem)
        shutdown_member_id = group.shutdown_member_id
        if shutdown_member_id is None and request.shutdown_application:
            shutdown_member_id = member.member_id
        if shutdown_member_id is not None:
            self._status.append(shutdown_status(shutdown_member_id))
        return HeartbeatAnswer(
            member.member_id,
            member.epoch,
            self._environment.settings.heartbeat_interval_ms,
            tuple(self._status),
            tasks if has_tasks else None,
            0 if is_new else epoch,
            endpoints,
            configured.to_create,
        )

    def _endpoints(
        self, configured: ConfiguredTopology
    ) -> Generator[None, None, tuple[EndpointPartitions, ...]]:
        members = (each for each in self._group.members.values() if each is not self._stored)
        found = []
        for each in endpoints_of((*members, self._member), configured, self._environment.image):
            if each is None:
                yield
            else:
                found.append(each)
        return tuple(found)


def _compute_target(
    group: StreamsGroup,
    members: list[StreamsGroupMember],
    epoch: int,
    configured: ConfiguredTopology,
    standby_replicas: int,
    wall_ms: int,
    records: list[StoredRecord],
) -> Generator[None, None, dict[str, Tasks]]:
    """The target of each; a new one also goes into `records`."""
    if configured.is_ready:
        targets = yield from assign_tasks(
            (
                AssignorMember(each.member_id, each.process_id, group.target(each.member_id))
                for each in members
            ),
            configured.subtopologies,
            standby_replicas,
        )
    else:
        targets = {each.member_id: NO_TASKS for each in members}
    for number, (member_id, target) in enumerate(targets.items(), 1):
        if group.targets.get(member_id) != target:
            records.append(target_record(group.group_id, member_id, target))
        if number % TARGETS_PER_STEP == 0:
            yield
    records.append(target_epoch_record(group.group_id, epoch, wall_ms))
    return targets
