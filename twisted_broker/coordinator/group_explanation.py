"""Why a group's members wait, in words and numbers. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `explain_group`. Members of a share group wait for nobody: they share partitions.

1. It only reads. A walk over a group's partitions pauses.
2. At most `MOST_NAMED` partitions or members are named in one reason; what a member waits for is
   given whole.

Source: our own. Not here: how it is asked for (`status/http_resources.py`) and printed
(`cli/explain_text.py`); the records of a share group (`share/share_explanation.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from twisted_broker.coordinator.classic_group import COMPLETING, PREPARING, ClassicGroup
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.member import (
    LEAVE_STATIC_EPOCH,
    UNREVOKED,
    ConsumerGroupMember,
)
from twisted_broker.coordinator.consumer.partitions import TopicIdPartition, by_topic
from twisted_broker.coordinator.group_entry import Group
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.member import StreamsGroupMember
from twisted_broker.coordinator.streams.tasks import AssignedTasks, Task, Tasks
from twisted_broker.image.metadata_image import MetadataImage

MOST_NAMED = 10
# About a millisecond of one turn.
PARTITIONS_PER_STEP = 500
MEMBERS_PER_STEP = 20
_Steps = Generator[None, None, list[dict[str, Any]]]


def explain_group(group: Group, image: MetadataImage) -> Generator[None, None, dict[str, Any]]:
    """As JSON has it, in steps."""
    told: dict[str, Any] = {
        "group": group.group_id,
        "kind": group.group_type,
        "state": group.state.value,
    }
    if isinstance(group, ClassicGroup):
        told |= {"generation": group.generation, "leader": group.leader}
        return told | {"why": list(_of_classic(group)), "members": _classic_members(group)}
    told |= {"epoch": group.epoch, "assignment_epoch": group.assignment_epoch}
    if isinstance(group, ConsumerGroup):
        told["why"] = list(_of_consumers(group))
        told["members"] = yield from _consumer_members(group, image)
    elif isinstance(group, StreamsGroup):
        told["why"] = list(_of_streams(group))
        told["members"] = yield from _streams_members(group)
    else:
        members = [_row(each, "share") | {"epoch": each.epoch} for each in group.members.values()]
        told |= {"why": [], "members": members}
    return told


# classic groups
def _of_classic(group: ClassicGroup) -> Iterator[str]:
    if group.state is PREPARING:
        late = [each.member_id for each in group.members.values() if each.awaiting_join is None]
        if group.initial_delay_left_ms is not None:
            yield "its first rebalance waits for more members (group.initial.rebalance.delay.ms)"
        elif late or group.pending_joins:
            yield f"its rebalance waits for {_named([*late, *group.pending_joins])} to join"
    elif group.state is COMPLETING:
        yield f"it waits for the assignment of its leader, {group.leader}"


def _classic_members(group: ClassicGroup) -> list[dict[str, Any]]:
    rows = []
    for each in group.members.values():
        why = []
        if group.state is PREPARING:
            why.append("it has joined" if each.awaiting_join is not None else "it has not joined")
        elif group.state is COMPLETING and each.awaiting_sync is None:
            why.append("it has not sent its SyncGroup")
        rows.append(_row(each, "classic") | {"why": why})
    return rows


# streams groups
def _of_streams(group: StreamsGroup) -> Iterator[str]:
    if not group.members:
        return
    problem = None if group.configured is None else group.configured.problem
    if problem is not None:
        yield f"its application has no tasks: {problem.detail}"
    if group.epoch > group.assignment_epoch:
        yield (
            f"its target is of epoch {group.assignment_epoch}; a heartbeat after "
            "group.streams.initial.rebalance.delay.ms and group.streams.assignment.interval.ms "
            "computes one"
        )
    if group.shutdown_member_id is not None:
        yield f"member {group.shutdown_member_id} asked the whole application to shut down"


def _streams_members(group: StreamsGroup) -> _Steps:
    holders: dict[Task, list[StreamsGroupMember]] = {}
    members = list(group.members.values())  # others join and leave between the steps
    for number, each in enumerate(members, 1):
        for task in {*_all(each.assigned), *_all(each.pending)}:
            holders.setdefault(task, []).append(each)
        if number % MEMBERS_PER_STEP == 0:
            yield
    rows = []
    for number, member in enumerate(members, 1):
        waits = list(_awaited(group, member, holders))
        rows.append(
            _row(member, "streams")
            | {
                "process": member.process_id,
                "epoch": member.epoch,
                "state": member.state.name,
                "tasks": _roles(member.assigned),
                "tasks_to_give_up": _roles(member.pending),
                "waits_for": [
                    {"task": _task(task), "role": role, "owner": owner.member_id}
                    for role, task, owner in waits
                ],
                "why": list(_why_streams(group, member, waits)),
            }
        )
        if number % MEMBERS_PER_STEP == 0:
            yield
    return rows


def _awaited(
    group: StreamsGroup,
    member: StreamsGroupMember,
    holders: Mapping[Task, Sequence[StreamsGroupMember]],
) -> Iterator[tuple[str, Task, StreamsGroupMember]]:
    """Role, task, and who is in the way: an active task may be active nowhere else, and none may
    be in the same process twice.
    """
    target = group.target(member.member_id)
    for role, wanted, has in zip(
        Tasks._fields, target, member.assigned.without_epochs(), strict=True
    ):
        for task in sorted(wanted - has):
            for owner in holders.get(task, ()):
                is_active = task in owner.assigned.active or task in owner.pending.active
                if owner.process_id == member.process_id or (role == "active" and is_active):
                    yield role, task, owner
                    break


def _why_streams(
    group: StreamsGroup,
    member: StreamsGroupMember,
    waits: Sequence[tuple[str, Task, StreamsGroupMember]],
) -> Iterator[str]:
    if member.epoch == LEAVE_STATIC_EPOCH:
        yield "it is away: its tasks are kept for its instance id until its session ends"
        return
    if group.topology is not None and member.topology_epoch != group.topology.epoch:
        yield (
            f"its topology is of epoch {member.topology_epoch}, the group's of "
            f"{group.topology.epoch}: it gets no tasks"
        )
    if member.is_revoking:
        pending = _named([_task(each) for each in sorted(_all(member.pending))])
        yield f"it was told to give up {pending}, and has not said that it did"
    elif member.epoch < group.assignment_epoch:
        yield f"it learns its target of epoch {group.assignment_epoch} by its next heartbeat"
    for owner_id, of_one in groupby(
        sorted(waits, key=lambda each: each[2].member_id), lambda each: each[2].member_id
    ):
        wanted = list(of_one)
        tasks = [f"{role} {_task(task)}" for role, task, _ in wanted]
        owner = wanted[0][2]
        is_told = all(task in _all(owner.pending) for _, task, _ in wanted)
        if owner is member:
            yield f"it waits for {_named(tasks)} until it has said that it gave them up before"
            continue
        who = f"member {owner_id}"
        if owner.process_id == member.process_id:
            who += " of the same process"
        yield f"it waits for {_named(tasks)}, which {who} " + (
            "was told to give up" if is_told else "still has"
        )


def _all(tasks: AssignedTasks) -> set[Task]:
    return {*tasks.active, *tasks.standby, *tasks.warmup}


def _roles(tasks: AssignedTasks) -> dict[str, list[str]]:
    """By role, where there are any."""
    named = zip(Tasks._fields, tasks.without_epochs(), strict=True)
    return {role: [_task(each) for each in sorted(some)] for role, some in named if some}


def _task(task: Task) -> str:
    """As Kafka Streams writes it."""
    return f"{task[0]}_{task[1]}"


# consumer groups
def _of_consumers(group: ConsumerGroup) -> Iterator[str]:
    if group.members and group.epoch > group.assignment_epoch:
        yield (
            f"its target is of epoch {group.assignment_epoch}; the next heartbeat after "
            "group.consumer.assignment.interval.ms computes one"
        )
    unresolved = sorted(group.subscriptions.patterns.keys() - group.patterns.keys())
    if unresolved:
        yield f"not resolved yet: the patterns {_named(unresolved)}"


def _consumer_members(group: ConsumerGroup, image: MetadataImage) -> _Steps:
    holders: dict[TopicIdPartition, str] = {}
    work = 0
    members = list(group.members.values())  # others join and leave between the steps
    for each in members:
        holders |= dict.fromkeys((*each.assigned, *each.pending), each.member_id)
        work += len(each.assigned) + len(each.pending)
        if work >= PARTITIONS_PER_STEP:
            work = 0
            yield
    rows = []
    for member in members:
        waits = [
            each
            for each in sorted(group.target(member.member_id))
            if each not in member.assigned
            and holders.get(each, member.member_id) != member.member_id
        ]
        rows.append(
            _row(member, "consumer" if member.classic is None else "classic")
            | {
                "epoch": member.epoch,
                "state": member.state.name,
                "assigned": _by_name(member.assigned, image),
                "to_give_up": _by_name(member.pending, image),
                "waits_for": [
                    {"topic": name, "partition": number, "owner": holders[topic_id, number]}
                    for topic_id, number in waits
                    for name in [_name(topic_id, image)]
                ],
                "why": list(_why(group, member, waits, holders, image)),
            }
        )
        work += 1 + len(member.assigned) + len(waits)
        if work >= PARTITIONS_PER_STEP:
            work = 0
            yield
    return rows


def _why(
    group: ConsumerGroup,
    member: ConsumerGroupMember,
    waits: Sequence[TopicIdPartition],
    holders: dict[TopicIdPartition, str],
    image: MetadataImage,
) -> Iterator[str]:
    if member.epoch == LEAVE_STATIC_EPOCH:
        yield "it is away: its partitions are kept for its instance id until its session ends"
        return
    if member.state is UNREVOKED:
        names = _named(_texts(member.pending, image))
        yield f"it was told to give up {names}, and has not said that it did"
    elif member.epoch < group.assignment_epoch:
        yield f"it learns its target of epoch {group.assignment_epoch} by its next heartbeat"
    for owner in dict.fromkeys(holders[each] for each in waits):
        wanted = [each for each in waits if holders[each] == owner]
        held = group.members.get(owner)  # it may have left since
        if held is not None and all(each in held.pending for each in wanted):
            does = "was told to give up"
        else:
            does = "still has"
        yield f"it waits for {_named(_texts(wanted, image))}, which member {owner} {does}"


# words
def _row(member: Any, protocol: str) -> dict[str, Any]:
    return {
        "member": member.member_id,
        # Share groups have no static members.
        "instance": getattr(member, "instance_id", None),
        "client": member.client_id,
        "host": member.client_host,
        "protocol": protocol,
    }


def _name(topic_id: bytes, image: MetadataImage) -> str:
    topic = image.topics_by_id.get(topic_id)
    return "(deleted topic)" if topic is None else topic.name


def _by_name(partitions: Iterable[TopicIdPartition], image: MetadataImage) -> dict[str, list[int]]:
    return {_name(topic_id, image): numbers for topic_id, numbers in by_topic(partitions)}


def _texts(partitions: Iterable[TopicIdPartition], image: MetadataImage) -> list[str]:
    return [f"{_name(topic_id, image)}-{number}" for topic_id, number in sorted(partitions)]


def _named(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_NAMED
    shown = ", ".join(texts[:MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
