"""One step of a member from the tasks that it was told towards its target.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `reconcile`.

1. A member gets no task before nobody else can be working on it: an active one must be active
   nowhere, and no task may be in the same process in another role.
2. A heartbeat that names no owned tasks (None) gives none of them up.
3. A task that the member was told to give up counts as held until it says that it has: a task that
   comes back waits for one heartbeat more.

Source: Apache Kafka 4.3.1, the `CurrentAssignmentBuilder` of streams. Brother:
`consumer/reconcile.py`, where a partition has one role.
"""

from __future__ import annotations

from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.member import (
    STABLE,
    UNRELEASED,
    UNREVOKED,
    MemberState,
    StreamsGroupMember,
)
from twisted_broker.coordinator.streams.tasks import AssignedTasks, Task, Tasks
from twisted_broker.wire.errors import BrokerError, ErrorCode


def reconcile(
    group: StreamsGroup,
    member: StreamsGroupMember,
    target_epoch: int,
    target: Tasks,
    owned: Tasks | None,
) -> StreamsGroupMember:
    """The member after this heartbeat; the same one if nothing moved. Raises
    FENCED_MEMBER_EPOCH.
    """
    if member.is_reconciled_to(target_epoch):
        return member
    epoch = member.epoch
    if member.state is UNREVOKED:
        if owned is None or member.pending.is_any_in(owned):
            return member
        epoch += 1
    if member.state is MemberState.UNKNOWN and (owned is None or any(owned)):
        raise BrokerError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The streams group member is in a unknown state. The member must abandon all its "
            "tasks and rejoin.",
        )
    return _next(group, member, epoch, target_epoch, target, owned)


def _next(
    group: StreamsGroup,
    member: StreamsGroupMember,
    epoch: int,
    target_epoch: int,
    target: Tasks,
    owned: Tasks | None,
) -> StreamsGroupMember:
    def is_held(task: Task) -> bool:
        return group.is_held(task, member.process_id)

    assigned = member.assigned
    kept = AssignedTasks(
        {task: since for task, since in assigned.active.items() if task in target.active},
        assigned.standby & target.standby,
        assigned.warmup & target.warmup,
    )
    to_revoke = AssignedTasks(
        {task: since for task, since in assigned.active.items() if task not in target.active},
        assigned.standby - target.standby,
        assigned.warmup - target.warmup,
    )
    if any(to_revoke) and (owned is None or to_revoke.is_any_in(owned)):
        return member.moved_to(epoch, UNREVOKED, kept, to_revoke)
    active = target.active - kept.active.keys()
    standby, warmup = target.standby - kept.standby, target.warmup - kept.warmup
    given = Tasks(
        frozenset(
            each for each in active if not group.is_active_somewhere(each) and not is_held(each)
        ),
        frozenset(each for each in standby if not is_held(each)),
        frozenset(each for each in warmup if not is_held(each)),
    )
    state = STABLE if given == (active, standby, warmup) else UNRELEASED
    return member.moved_to(
        target_epoch,
        state,
        AssignedTasks(
            {**kept.active, **dict.fromkeys(given.active, target_epoch)},
            kept.standby | given.standby,
            kept.warmup | given.warmup,
        ),
    )
