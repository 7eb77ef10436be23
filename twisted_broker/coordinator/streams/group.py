"""A streams group: the state that its records give, and facts derived from that.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `StreamsGroup`, a `ModernGroup` (`modern_group.py`).

1. A task is active at one member at most, and at no process twice in any role. Holders are
   counted, because a replay of a compacted log may pass through states that never were: the end is
   the same in any order of the records of different members.
2. The state is computed, never stored.
3. Not stored, and begun anew by a load: the configured topology, the endpoint information epoch,
   who asked the application to shut down. The last ends with the last member.

Source: Apache Kafka 4.3.1 `StreamsGroup`, `GroupMetadataManager.replay`. Not here: what a request
changes (`heartbeat.py`, `leaving.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from enum import Enum
from typing import Any, ClassVar, TypeVar

from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.coordinator.streams.configure import ConfiguredTopology
from twisted_broker.coordinator.streams.member import StreamsGroupMember
from twisted_broker.coordinator.streams.records import (
    current_tombstone,
    group_tombstone,
    member_tombstone,
    target_epoch_tombstone,
    target_tombstone,
    topology_tombstone,
)
from twisted_broker.coordinator.streams.tasks import NO_TASKS, AssignedTasks, Task, Tasks, listed
from twisted_broker.coordinator.streams.topology import Topology
from twisted_broker.wire.messages import group_records as messages

NOT_VALIDATED = -1
K = TypeVar("K")


class StreamsGroupState(Enum):
    """By the names that clients see."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class StreamsGroup(ModernGroup):
    """One group. `assignment_configs`: those of the last computed target."""

    group_type: ClassVar[str] = "streams"
    protocol_type: ClassVar[str] = "streams"
    key_type = messages.StreamsGroupMetadataKey
    __slots__ = (
        "_active",
        "_held",
        "assignment_configs",
        "configured",
        "endpoint_epoch",
        "members",
        "shutdown_member_id",
        "targets",
        "topology",
        "validated_topology_epoch",
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.validated_topology_epoch = NOT_VALIDATED
        self.assignment_configs: Mapping[str, str] = {}
        self.topology: Topology | None = None
        self.configured: ConfiguredTopology | None = None
        self.endpoint_epoch = 0
        self.shutdown_member_id: str | None = None
        self.members: dict[str, StreamsGroupMember] = {}
        self.targets: dict[str, Tasks] = {}
        self._active: Counter[Task] = Counter()
        self._held: Counter[tuple[Task, str]] = Counter()

    @property
    def state(self) -> StreamsGroupState:
        if self.is_dead:
            return StreamsGroupState.DEAD
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if all(each.is_reconciled_to(self.assignment_epoch) for each in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def is_active_somewhere(self, task: Task) -> bool:
        """Whether some member has it as active, or was told to give it up."""
        return task in self._active

    def is_held(self, task: Task, process_id: str) -> bool:
        """Whether a member of this process has it in any role, or was told to give it up."""
        return (task, process_id) in self._held

    def target(self, member_id: str) -> Tasks:
        return self.targets.get(member_id, NO_TASKS)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether its application reads it."""
        return bool(self.members) and self.topology is not None and topic in self.topology.sources

    def topics_changed(self, names: Set[str]) -> None:
        if self.topology is not None and not self.topology.topics.isdisjoint(names):
            self.metadata_changed()

    def remember(
        self,
        configured: ConfiguredTopology | None,
        moves_endpoint: bool,
        shutdown_member_id: str | None,
    ) -> None:
        """A decision's changes besides its records."""
        if configured is not None:
            self.configured = configured
        self.endpoint_epoch += moves_endpoint
        if self.shutdown_member_id is None:
            self.shutdown_member_id = shutdown_member_id

    def tombstones(self) -> Iterator[StoredRecord]:
        for member_id in self.members:
            yield current_tombstone(self.group_id, member_id)
        for member_id in self.targets:
            yield target_tombstone(self.group_id, member_id)
        yield target_epoch_tombstone(self.group_id)
        for member_id in self.members:
            yield member_tombstone(self.group_id, member_id)
        yield group_tombstone(self.group_id)
        yield topology_tombstone(self.group_id)

    def _apply_epoch(self, key: Any, value: messages.StreamsGroupMetadataValue | None) -> None:
        ModernGroup._apply_epoch(self, key, value)
        if value is not None:
            self.validated_topology_epoch = value.validated_topology_epoch
            self.assignment_configs = {
                each.key: each.value for each in value.last_assignment_configs or ()
            }

    def _apply_topology(self, key: Any, value: messages.StreamsGroupTopologyValue | None) -> None:
        self.topology = None if value is None else Topology(value)

    def _apply_member(
        self,
        key: messages.StreamsGroupMemberMetadataKey,
        value: messages.StreamsGroupMemberMetadataValue | None,
    ) -> None:
        before = self.members.get(key.member_id)
        if value is None:
            self._put(before, None)
        else:
            known = before or StreamsGroupMember(key.member_id)
            self._put(before, known.with_metadata(value))

    def _apply_current(
        self,
        key: messages.StreamsGroupCurrentMemberAssignmentKey,
        value: messages.StreamsGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        before = self.members.get(key.member_id)
        if value is not None:
            known = before or StreamsGroupMember(key.member_id)
            self._put(before, known.with_assignment(value))
        elif before is not None:
            self._put(before, before.without_assignment())

    def _apply_target(
        self,
        key: messages.StreamsGroupTargetAssignmentMemberKey,
        value: messages.StreamsGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            self.targets.pop(key.member_id, None)
        else:
            self.targets[key.member_id] = Tasks(
                listed(value.active_tasks),
                listed(value.standby_tasks),
                listed(value.warmup_tasks),
            )

    def _put(self, before: StreamsGroupMember | None, after: StreamsGroupMember | None) -> None:
        for member, count in ((before, -1), (after, 1)):
            if member is not None:
                for tasks in (member.assigned, member.pending):
                    self._count(tasks, member.process_id, count)
        if after is not None:
            self.members[after.member_id] = after
        elif before is not None:
            del self.members[before.member_id]
        if not self.members:
            self.shutdown_member_id = None

    def _count(self, tasks: AssignedTasks, process_id: str, count: int) -> None:
        _add(self._active, tasks.active, count)
        for of_role in tasks:
            _add(self._held, ((task, process_id) for task in of_role), count)

    apply_by_type: ClassVar[Mapping[int, Any]] = {
        messages.StreamsGroupMetadataKey.record_type: _apply_epoch,
        messages.StreamsGroupTopologyKey.record_type: _apply_topology,
        messages.StreamsGroupMemberMetadataKey.record_type: _apply_member,
        messages.StreamsGroupTargetAssignmentMetadataKey.record_type: (
            ModernGroup._apply_target_epoch
        ),
        messages.StreamsGroupTargetAssignmentMemberKey.record_type: _apply_target,
        messages.StreamsGroupCurrentMemberAssignmentKey.record_type: _apply_current,
    }


def _add(counts: Counter[K], keys: Iterable[K], count: int) -> None:
    for key in keys:
        counts[key] += count
        if not counts[key]:
            del counts[key]
