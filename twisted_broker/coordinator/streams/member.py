"""A member of a streams group. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `StreamsGroupMember`, its states, and what records of types 19 and 22 say of it.

1. A member is a value: a change makes another one.
2. A task is assigned, or pending revocation: told to be given up, and not yet known to be without
   this owner.

Source: Apache Kafka 4.3.1 `StreamsGroupMember`, its `MemberState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.coordinator.streams.tasks import (
    NOTHING_ASSIGNED,
    AssignedTasks,
    Task,
    by_subtopology,
    listed,
)
from twisted_broker.wire.messages import group_records as messages

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
NO_TIMEOUT = NO_TOPOLOGY_EPOCH = -1


class MemberState(IntEnum):
    """How far a member is towards its target."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_TASKS,
    MemberState.UNRELEASED_TASKS,
)


@dataclass(frozen=True, slots=True)
class StreamsGroupMember:
    """`endpoint`: host and port, where others query its stores. `tags` are sorted."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = NO_TIMEOUT
    topology_epoch: int = NO_TOPOLOGY_EPOCH
    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    tags: tuple[tuple[str, str], ...] = ()
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = STABLE
    assigned: AssignedTasks = NOTHING_ASSIGNED
    pending: AssignedTasks = NOTHING_ASSIGNED

    @property
    def is_revoking(self) -> bool:
        """Whether it was told to give up some, and has not said that it did."""
        return self.state is UNREVOKED

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is STABLE and self.epoch == target_epoch

    def moved_to(
        self,
        epoch: int,
        state: MemberState,
        assigned: AssignedTasks,
        pending: AssignedTasks = NOTHING_ASSIGNED,
    ) -> StreamsGroupMember:
        """The member after a step of its reconciliation."""
        return replace(
            self,
            previous_epoch=self.epoch,
            epoch=epoch,
            state=state,
            assigned=assigned,
            pending=pending,
        )

    def metadata_record(self, group_id: str) -> StoredRecord:
        """Type 19: the member's own words: process, endpoint, tags."""
        key = messages.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id)
        return key, messages.StreamsGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topology_epoch=self.topology_epoch,
            process_id=self.process_id,
            user_endpoint=(
                None
                if self.endpoint is None
                else messages.UserEndpoint(host=self.endpoint[0], port=self.endpoint[1])
            ),
            client_tags=[messages.ClientTag(key=key, value=value) for key, value in self.tags],
        )

    def with_metadata(self, value: messages.StreamsGroupMemberMetadataValue) -> StreamsGroupMember:
        """The member as a record of type 19 says."""
        endpoint = value.user_endpoint
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
            tags=tuple(sorted((each.key, each.value) for each in value.client_tags)),
        )

    def assignment_record(self, group_id: str) -> StoredRecord:
        """Type 22: the assignment that the member was told."""
        key = messages.StreamsGroupCurrentMemberAssignmentKey(
            group_id=group_id, member_id=self.member_id
        )
        return key, messages.StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            active_tasks=_with_epochs(self.assigned.active),
            standby_tasks=_written(self.assigned.standby),
            warmup_tasks=_written(self.assigned.warmup),
            active_tasks_pending_revocation=_with_epochs(self.pending.active),
            standby_tasks_pending_revocation=_written(self.pending.standby),
            warmup_tasks_pending_revocation=_written(self.pending.warmup),
        )

    def with_assignment(
        self, value: messages.StreamsGroupCurrentMemberAssignmentValue
    ) -> StreamsGroupMember:
        """The member as a record of type 22 says."""
        epoch = value.member_epoch
        return replace(
            self,
            epoch=epoch,
            previous_epoch=value.previous_member_epoch,
            state=_state(value.state),
            assigned=AssignedTasks(
                _read(value.active_tasks, epoch),
                listed(value.standby_tasks),
                listed(value.warmup_tasks),
            ),
            pending=AssignedTasks(
                _read(value.active_tasks_pending_revocation, epoch),
                listed(value.standby_tasks_pending_revocation),
                listed(value.warmup_tasks_pending_revocation),
            ),
        )

    def without_assignment(self) -> StreamsGroupMember:
        """The member as the tombstone of its type 22 leaves it."""
        return replace(
            self,
            epoch=LEAVE_EPOCH,
            previous_epoch=LEAVE_EPOCH,
            state=STABLE,
            assigned=NOTHING_ASSIGNED,
            pending=NOTHING_ASSIGNED,
        )


def _with_epochs(tasks: Mapping[Task, int]) -> list[messages.TaskIdsWithEpochs]:
    return [
        messages.TaskIdsWithEpochs(
            subtopology_id=subtopology_id,
            partitions=numbers,
            assignment_epochs=[tasks[subtopology_id, number] for number in numbers],
        )
        for subtopology_id, numbers in by_subtopology(tasks)
    ]


def _written(tasks: Iterable[Task]) -> list[messages.TaskIdsWithEpochs]:
    return [
        messages.TaskIdsWithEpochs(subtopology_id=subtopology_id, partitions=numbers)
        for subtopology_id, numbers in by_subtopology(tasks)
    ]


def _read(lists: list[messages.TaskIdsWithEpochs], member_epoch: int) -> Mapping[Task, int]:
    """Kafka 4.2 and older wrote no epochs: then they count as given at the member's."""
    read: dict[Task, int] = {}
    for each in lists:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [member_epoch] * len(each.partitions)
        for number, epoch in zip(each.partitions, epochs, strict=True):
            read[each.subtopology_id, number] = epoch
    return read


def _state(byte: int) -> MemberState:
    try:
        return MemberState(byte)
    except ValueError:
        return MemberState.UNKNOWN  # of a newer version, or a record without a state
