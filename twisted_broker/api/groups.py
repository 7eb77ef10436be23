"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup; ListGroups, DescribeGroups, DeleteGroups: the wire's
side of classic groups, and the requests about groups of any kind.

1. Permission first: READ on the group to be a member, DESCRIBE to see it, DELETE to delete it.
2. An answer that a version has no field for takes the form that version's clients understand: no
   null protocol below v7, one member's error as the whole answer's below LeaveGroup v3, a group
   that does not exist as Dead below DescribeGroups v6.
3. A join and a sync wait for the group, DeleteGroups for its tombstones, Heartbeat and LeaveGroup
   in a consumer group for its records; nothing else waits.
4. Every loop over what a client named, or over all groups, is in slices (`turns.py`).
5. An answer of DescribeGroups is bounded, however often a large group is named: groups that have no
   room get COORDINATOR_LOAD_IN_PROGRESS, for which clients request them again. The first has room.

Source: Apache Kafka 4.3.1 `KafkaApis`, `JoinGroupRequest`, `LeaveGroupResponse`. Not here: the
protocols of consumer groups (`consumer_groups.py`), streams groups (`streams_groups.py`), share
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.defer import Deferred

from twisted_broker.api import audit
from twisted_broker.api.context import Encoded, RequestContext
from twisted_broker.coordinator.group_coordinator import (
    LISTED_PER_STEP,
    GroupDescription,
    GroupListing,
)
from twisted_broker.coordinator.group_requests import (
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    SyncAnswer,
    SyncRequest,
)
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.turns import SLICE_ELEMENTS
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from twisted_broker.wire.primitives import uvarint
from twisted_broker.wire.schema import encode

DEAD = "Dead"
NO_REBALANCE_TIMEOUT_VERSION = 0
FIRST_WITH_KNOWN_MEMBER_ID = 4
FIRST_WITH_NULLABLE_PROTOCOL = 7
FIRST_WITH_SKIP_ASSIGNMENT = 9
FIRST_SYNC_WITH_PROTOCOL = 5
FIRST_LEAVE_OF_SEVERAL = 3
FIRST_WITH_AUTHORIZED_OPERATIONS = 3
FIRST_WITH_GROUP_ID_NOT_FOUND = 6
# Each member of a generation votes for the first of its protocols that all know.
MOST_PROTOCOLS = 100
# Metadata and assignments in one answer of DescribeGroups, and for each member what else it costs.
MOST_DESCRIBED_BYTES, BYTES_OF_A_MEMBER = 64 << 20, 300


def check_group(context: RequestContext, group_id: str, operation: Operation) -> None:
    """Raises GROUP_AUTHORIZATION_FAILED."""
    if not context.may(operation, ResourceType.GROUP, group_id):
        raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)


# membership
async def join_group(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    version = context.version
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        name = None if version >= FIRST_WITH_NULLABLE_PROTOCOL else ""
        return JoinGroupResponse(error_code=refused, protocol_name=name)
    if len(request.protocols) > MOST_PROTOCOLS:
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    answer: JoinAnswer = await context.groups.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            new_member_id="",
            instance_id=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.session_timeout_ms
            if version == NO_REBALANCE_TIMEOUT_VERSION
            else request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=protocols,
            requires_known_member_id=version >= FIRST_WITH_KNOWN_MEMBER_ID,
            can_skip_assignment=version >= FIRST_WITH_SKIP_ASSIGNMENT,
        ),
    )
    return join_response(answer, version)


def join_response(answer: JoinAnswer, version: int) -> JoinGroupResponse:
    name = answer.protocol_name
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name="" if name is None and version < FIRST_WITH_NULLABLE_PROTOCOL else name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(member_id=m, group_instance_id=i, metadata=b)
            for m, i, b in answer.members
        ],
    )


async def sync_group(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    if context.version >= FIRST_SYNC_WITH_PROTOCOL and (
        request.protocol_type is None or request.protocol_name is None
    ):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    check_group(context, request.group_id, Operation.READ)
    answer: SyncAnswer = await context.groups.sync(
        request.group_id,
        SyncRequest(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            {a.member_id: a.assignment async for a in context.each(request.assignments)},
        ),
    )
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


async def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    check_group(context, request.group_id, Operation.READ)
    error = context.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    if isinstance(error, Deferred):
        error = await error
    return HeartbeatResponse(error_code=error)


async def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    check_group(context, request.group_id, Operation.READ)
    if context.version < FIRST_LEAVE_OF_SEVERAL:
        left: list[LeaveAnswer] = await context.groups.leave(
            request.group_id, [(request.member_id, None)]
        )
        return LeaveGroupResponse(error_code=left[0].error)
    answers: list[Any] = []
    for start in range(0, len(request.members) or 1, SLICE_ELEMENTS):
        if start:
            await context.next_turn()
        some = request.members[start : start + SLICE_ELEMENTS]
        answers += await context.groups.leave(
            request.group_id, [(m.member_id, m.group_instance_id) for m in some]
        )
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=a.member_id, group_instance_id=a.instance_id, error_code=a.error
            )
            async for a in context.each(answers)
        ]
    )


# administration
async def list_groups(
    context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse | Encoded:
    if context.groups.runtime.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return await context.in_slices(_listing(context, request))


def _listing(
    context: RequestContext, request: ListGroupsRequest
) -> Generator[None, None, ListGroupsResponse | Encoded]:
    """Found, checked and encoded in slices: a million groups are two seconds of work, and as
    messages so many objects that the garbage collector would stop the broker to walk over them.

    Few are an ordinary answer, at once.
    """
    count = 0
    rows: list[bytes] = []
    wanted = _wanted(context, request)
    for some in context.groups.listings():
        groups = [
            ListedGroup(
                group_id=g.group_id,
                protocol_type=g.protocol_type,
                group_state=g.state,
                group_type=g.group_type,
            )
            for g in some
            if wanted(g)
        ]
        if len(some) < LISTED_PER_STEP and not rows:
            return ListGroupsResponse(groups=groups)
        count += len(groups)
        rows.append(_rows(groups, context.version))
        yield
    return _joined(count, rows, context.version)


def _wanted(context: RequestContext, request: ListGroupsRequest) -> Callable[[GroupListing], bool]:
    sees_all = context.may_on_cluster(Operation.DESCRIBE, noted=False)
    states = {state.lower() for state in request.states_filter}
    types = {name.lower() for name in request.types_filter}

    def is_wanted(group: GroupListing) -> bool:
        if states and states.isdisjoint(_names(group.state)):
            return False
        if types and group.group_type not in types:
            return False
        return sees_all or context.may(
            Operation.DESCRIBE, ResourceType.GROUP, group.group_id, noted=False
        )

    return is_wanted


def _names(state: str) -> tuple[str, ...]:
    """Under which a filter knows a state, in small letters; Kafka knows NotReady as the last."""
    small = state.lower()
    return (small, "not_ready") if small == "notready" else (small,)


def _rows(groups: list[ListedGroup], version: int) -> bytes:
    """The elements alone of an answer's array."""
    whole = encode(ListGroupsResponse(groups=groups), version)
    empty = _joined(len(groups), [], version).parts
    return whole[len(empty[0]) : len(whole) - len(empty[-1])]


def _joined(count: int, rows: list[bytes], version: int) -> Encoded:
    """An answer of `count` elements, encoded already: what stands before the array, its
    elements, what follows.
    """
    is_flexible = ListGroupsResponse.flexible.holds(version)
    fixed = encode(ListGroupsResponse(), version)[: -2 if is_flexible else -4]
    return Encoded(
        [
            fixed + (uvarint(count + 1) if is_flexible else count.to_bytes(4, "big")),
            *rows,
            b"\0" * is_flexible,
        ]
    )


async def describe_groups(
    context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    described = []
    described_bytes = 0
    for group_id in request.groups:
        if described_bytes < MOST_DESCRIBED_BYTES:
            group = _describe(context, group_id)
            described_bytes += sum(
                BYTES_OF_A_MEMBER + len(m.member_metadata) + len(m.member_assignment)
                for m in group.members
            )
        else:
            group = DescribeGroupsResponseDescribedGroup(
                group_id=group_id, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            )
        described.append(group)
        if context.turn_is_over(1 + len(group.members)):
            await context.next_turn()
    if (
        request.include_authorized_operations
        and context.version >= FIRST_WITH_AUTHORIZED_OPERATIONS
    ):
        for group in described:
            if context.turn_is_over():
                await context.next_turn()
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = context.authorized_operations(
                    ResourceType.GROUP, group.group_id
                )
    return DescribeGroupsResponse(groups=described)


def _describe(context: RequestContext, group_id: str) -> DescribeGroupsResponseDescribedGroup:
    try:
        check_group(context, group_id, Operation.DESCRIBE)
        found: GroupDescription | None = context.groups.describe(group_id)
    except BrokerError as refusal:
        return DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=refusal.code)
    if found is None:
        group = DescribeGroupsResponseDescribedGroup(group_id=group_id, group_state=DEAD)
        if context.version >= FIRST_WITH_GROUP_ID_NOT_FOUND:
            group.error_code, group.error_message = (
                ErrorCode.GROUP_ID_NOT_FOUND,
                context.groups.why_not_classic(group_id),
            )
        return group
    return DescribeGroupsResponseDescribedGroup(
        group_id=group_id,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol,
        members=[
            DescribedGroupMember(
                member_id=member_id,
                group_instance_id=instance_id,
                client_id=client_id,
                client_host=host,
                member_metadata=metadata,
                member_assignment=assignment,
            )
            for member_id, instance_id, client_id, host, metadata, assignment in found.members
        ],
    )


async def delete_groups(
    context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """All deletions are started before the first is waited for."""
    started: list[tuple[str, Deferred[ErrorCode] | ErrorCode]] = []
    for name in dict.fromkeys(request.groups_names):
        if context.turn_is_over():
            await context.next_turn()
        started.append((name, _delete(context, name)))
    results: list[Any] = []
    for group_id, deleted in started:
        if context.turn_is_over():
            await context.next_turn()
        error = deleted if isinstance(deleted, ErrorCode) else await deleted
        if not error:
            audit.changed(context, "group deleted", group=group_id)
        results.append(DeletableGroupResult(group_id=group_id, error_code=error))
    return DeleteGroupsResponse(results=results)


def _delete(context: RequestContext, group_id: str) -> Deferred[ErrorCode] | ErrorCode:
    try:
        check_group(context, group_id, Operation.DELETE)
        deleted: Deferred[ErrorCode] = context.groups.delete_group(group_id)
    except BrokerError as refusal:
        return refusal.code
    return deleted
