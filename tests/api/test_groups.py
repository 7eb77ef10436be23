"""Groups through the wire, at every version."""

import pytest

from tests.api.group_api import ApiRun, each_version
from tests.coordinator.broker_run import subscription
from twisted_broker.api import groups as api_groups
from twisted_broker.api.groups import MOST_PROTOCOLS
from twisted_broker.api.routes import ROUTES
from twisted_broker.coordinator.offset_metadata_manager import OffsetToCommit
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from twisted_broker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from twisted_broker.wire.schema import encode


def join(
    version: int, member: str = "", instance: str | None = None, group: str = "g"
) -> JoinGroupRequest:
    more = {"rebalance_timeout_ms": 60_000} if version >= 1 else {}
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
        **more,
    )


def sync(version: int, member: str, generation: int = 1, name: str = "range") -> SyncGroupRequest:
    more = {"protocol_type": "consumer", "protocol_name": name} if version >= 5 else {}
    assignments = [SyncGroupRequestAssignment(member_id=member, assignment=b"all")]
    return SyncGroupRequest(
        group_id="g", generation_id=generation, member_id=member, assignments=assignments, **more
    )


def member_of(run: ApiRun, version: int = 9) -> str:
    first = run.ask(join(version), version)
    if first.error_code == E.MEMBER_ID_REQUIRED:
        first = run.ask(join(version, first.member_id), version)
    assert first.error_code == E.NONE
    assert run.ask(sync(5, first.member_id), 5).assignment == b"all"
    return first.member_id


# membership
@each_version("JoinGroup")
def test_joining(version):
    """From v4 on in two steps; the answer names protocol and members, and below v7 has no null
    in it.
    """
    run = ApiRun()
    answer = run.ask(join(version), version)
    if version >= 4:
        assert (answer.error_code, answer.generation_id, answer.members) == (
            E.MEMBER_ID_REQUIRED,
            -1,
            [],
        )
        assert answer.protocol_name == (None if version >= 7 else "")
        answer = run.ask(join(version, answer.member_id), version)
    assert (answer.error_code, answer.generation_id, answer.protocol_name, answer.leader) == (
        E.NONE,
        1,
        "range",
        answer.member_id,
    )
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert [(m.member_id, m.metadata) for m in answer.members] == [
        (answer.member_id, subscription("t"))
    ]
    described = run.coordinator.describe("g")
    assert described is not None and described.members[0][2:4] == ("client", "/10.0.0.9")


def test_a_member_of_very_many_protocols_is_refused():
    """INVALID_REQUEST: real ones name a handful, and each costs every rebalance."""
    run = ApiRun()
    request = join(3)
    for count, error in ((MOST_PROTOCOLS, E.NONE), (MOST_PROTOCOLS + 1, E.INVALID_REQUEST)):
        request.protocols = [
            JoinGroupRequestProtocol(name=f"p{n}", metadata=b"") for n in range(count)
        ]
        assert run.ask(request, 3).error_code == error


def test_version_0_waits_as_long_as_the_session():
    """JoinGroup v0 has no rebalance timeout; the session's counts."""
    run = ApiRun()
    run.ask(join(0), 0)
    assert (
        run.coordinator.runtime.shards[run_index(run)].groups["g"].group.rebalance_timeout_ms()
        == 10_000
    )


def run_index(run: ApiRun) -> int:
    return next(index for index, shard in run.coordinator.runtime.shards.items() if shard.groups)


@pytest.mark.parametrize(("version", "skips"), [(8, False), (9, True)])
def test_a_static_leader_that_comes_back_skips_from_v9_on(version, skips):
    """KIP-814 by version: skip, or do not believe that you lead."""
    run = ApiRun()
    first = run.ask(join(version, instance="i"), version)
    run.ask(sync(5, first.member_id), 5)
    again = run.ask(join(version, instance="i"), version)
    assert (
        again.generation_id == 1
        and again.skip_assignment is skips
        and (again.leader == again.member_id) is skips
    )


def test_a_protocol_named_twice_counts_once():
    """The first of two with one name counts, so that votes stay right."""
    run = ApiRun()
    request = join(9, instance="i")
    request.protocols += [JoinGroupRequestProtocol(name="range", metadata=b"second")]
    assert run.ask(request, 9).members[0].metadata == subscription("t")


def test_a_client_without_an_id_joins():
    """A null client id is an empty one."""
    run = ApiRun()
    waiting = run.start(join(3), 3, client_id=None)
    run.settle()
    assert waiting.result.member_id.startswith("-")


@each_version("SyncGroup")
def test_syncing(version):
    """The assignment at every version, the protocol from v5 on."""
    run = ApiRun()
    member = run.ask(join(9, instance="i"), 9).member_id
    answer = run.ask(sync(version, member), version)
    assert (answer.error_code, answer.assignment) == (E.NONE, b"all")
    assert (answer.protocol_type, answer.protocol_name) == (
        ("consumer", "range") if version >= 5 else (None, None)
    )


def test_sync_v5_must_name_the_groups_protocol():
    """KIP-559: another one, or none, is INCONSISTENT_GROUP_PROTOCOL."""
    run = ApiRun()
    member = run.ask(join(9, instance="i"), 9).member_id
    assert run.ask(sync(5, member, name="other"), 5).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    nameless = SyncGroupRequest(group_id="g", generation_id=1, member_id=member)
    assert run.ask(nameless, 5).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert run.ask(nameless, 4).error_code == E.NONE


def test_a_follower_waits_for_the_leader():
    """A parked sync is a Deferred that fires when the leader's assignment is stored."""
    run = ApiRun()
    waiting = [run.start(join(3), 3) for _ in range(2)]
    run.settle()
    leader, follower = (w.result.member_id for w in waiting)
    parked = run.start(sync(3, follower), 3)
    assert not parked.called
    request = sync(3, leader)
    request.assignments.append(SyncGroupRequestAssignment(member_id=follower, assignment=b"F"))
    run.ask(request, 3)
    assert parked.result.assignment == b"F"


@each_version("Heartbeat")
def test_heartbeats(version):
    """The error of a heartbeat at every version."""
    run = ApiRun()
    member = member_of(run)
    assert (
        run.ask(
            HeartbeatRequest(group_id="g", generation_id=1, member_id=member), version
        ).error_code
        == E.NONE
    )
    assert (
        run.ask(
            HeartbeatRequest(group_id="g", generation_id=2, member_id=member), version
        ).error_code
        == E.ILLEGAL_GENERATION
    )
    assert (
        run.ask(
            HeartbeatRequest(group_id="h", generation_id=1, member_id=member), version
        ).error_code
        == E.UNKNOWN_MEMBER_ID
    )


@each_version("LeaveGroup")
def test_leaving(version):
    """Below v3 one member, its error is the answer's; from v3 on several, each with its own."""
    run = ApiRun()
    member = member_of(run)
    if version < 3:
        assert (
            run.ask(LeaveGroupRequest(group_id="g", member_id="stranger"), version).error_code
            == E.UNKNOWN_MEMBER_ID
        )
        assert (
            run.ask(LeaveGroupRequest(group_id="g", member_id=member), version).error_code == E.NONE
        )
    else:
        leavers = [MemberIdentity(member_id="stranger"), MemberIdentity(member_id=member)]
        answer = run.ask(LeaveGroupRequest(group_id="g", members=leavers), version)
        assert answer.error_code == E.NONE
        assert [(m.member_id, m.error_code) for m in answer.members] == [
            ("stranger", E.UNKNOWN_MEMBER_ID),
            (member, E.NONE),
        ]
    run.settle()
    assert run.coordinator.describe("g").state == "Empty"


# administration
@each_version("ListGroups")
def test_listing(version):
    """State from v4, type from v5 on."""
    run = ApiRun()
    member_of(run)
    groups = run.ask(ListGroupsRequest(), version).groups
    expected = ("Stable" if version >= 4 else "", "classic" if version >= 5 else "")
    assert [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in groups] == [
        ("g", "consumer", *expected)
    ]


@each_version("ListGroups")
def test_a_long_list_is_made_in_slices(version, monkeypatch):
    """PendingResponse by turn, others are served meanwhile; permission and filters count as in a
    short one, and the bytes are the same.
    """
    monkeypatch.setattr("twisted_broker.coordinator.group_coordinator.LISTED_PER_STEP", 7)
    monkeypatch.setattr("twisted_broker.api.groups.LISTED_PER_STEP", 7)
    run = ApiRun()
    names = [f"g{number}" for number in range(200)]
    for name in names:
        run.commit(OffsetToCommit("t", 0, 1), group=name)
    run.acl.denied |= {
        (Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"),
        (Operation.DESCRIBE, ResourceType.GROUP, "g7"),
    }
    waiting = run.start(ListGroupsRequest(states_filter=["empty"] if version >= 4 else []), version)
    assert not waiting.called
    run.clock.turn()
    assert not waiting.called and run.fetched("g199") == {("t", 0): 1}
    run.settle()
    assert sorted(g.group_id for g in waiting.result.groups) == sorted(set(names) - {"g7"})
    monkeypatch.setattr("twisted_broker.coordinator.group_coordinator.LISTED_PER_STEP", 1000)
    monkeypatch.setattr("twisted_broker.api.groups.LISTED_PER_STEP", 1000)
    assert encode(run.ask(ListGroupsRequest(), version), version) == encode(waiting.result, version)


def test_a_list_that_nobody_waits_for_is_given_up():
    """Its client went away."""
    run = ApiRun()
    for number in range(1200):
        run.commit(OffsetToCommit("t", 0, 1), group=f"g{number}")
    waiting = run.start(ListGroupsRequest(), 4)
    waiting.addErrback(lambda _: None)
    waiting.cancel()
    run.clock.turn()
    assert not [
        call for call in run.clock.getDelayedCalls() if call.getTime() <= run.clock.seconds()
    ]


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        (["stable"], [], 1),
        (["EMPTY"], [], 0),
        (["nonsense"], [], 0),
        ([], ["CLASSIC"], 1),
        ([], ["consumer"], 0),
        (["Stable", "Empty"], ["classic", "share"], 1),
    ],
)
def test_filters_of_a_listing(states, types, found):
    """Names in any case; an unknown one matches nothing."""
    run = ApiRun()
    member_of(run)
    assert (
        len(run.ask(ListGroupsRequest(states_filter=states, types_filter=types), 5).groups) == found
    )


@each_version("DescribeGroups")
def test_describing(version):
    """A stable group in full; a missing one is Dead, from v6 on by an error."""
    run = ApiRun()
    member = member_of(run)
    stable, missing = run.ask(DescribeGroupsRequest(groups=["g", "nobody"]), version).groups
    assert (stable.error_code, stable.group_state, stable.protocol_type, stable.protocol_data) == (
        E.NONE,
        "Stable",
        "consumer",
        "range",
    )
    assert [
        (m.member_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment)
        for m in stable.members
    ] == [(member, "client", "/10.0.0.9", subscription("t"), b"all")]
    assert missing.group_state == "Dead" and missing.error_code == (
        E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE
    )


def test_authorized_operations_of_a_group():
    """A bit for each operation that the asker may do, when asked for; the smallest integer
    otherwise.
    """
    run = ApiRun()
    member_of(run)
    run.acl.denied.add((Operation.DELETE, ResourceType.GROUP, "g"))
    asked = (
        run.ask(DescribeGroupsRequest(groups=["g"], include_authorized_operations=True), 5)
        .groups[0]
        .authorized_operations
    )
    assert asked & 1 << Operation.READ and not asked & 1 << Operation.DELETE
    assert run.ask(DescribeGroupsRequest(groups=["g"]), 5).groups[0].authorized_operations == -(
        2**31
    )


@each_version("DeleteGroups")
def test_deleting(version):
    """A result for each group named, once."""
    run = ApiRun()
    member_of(run)
    run.commit(OffsetToCommit("t", 0, 1), group="empty")
    results = run.ask(
        DeleteGroupsRequest(groups_names=["g", "empty", "nobody", "empty"]), version
    ).results
    assert [(r.group_id, r.error_code) for r in results] == [
        ("g", E.NON_EMPTY_GROUP),
        ("empty", E.NONE),
        ("nobody", E.GROUP_ID_NOT_FOUND),
    ]


# permission
@pytest.mark.parametrize(
    ("request_", "version", "operation"),
    [
        (join(9), 9, Operation.READ),
        (sync(5, "m"), 5, Operation.READ),
        (HeartbeatRequest(group_id="g"), 4, Operation.READ),
        (LeaveGroupRequest(group_id="g"), 5, Operation.READ),
        (OffsetFetchRequest(group_id="g"), 7, Operation.DESCRIBE),
        (OffsetDeleteRequest(group_id="g"), 0, Operation.DELETE),
    ],
)
def test_without_permission_nothing_is_shown(request_, version, operation):
    """GROUP_AUTHORIZATION_FAILED before anything else, whether the group exists or not."""
    run = ApiRun()
    run.acl.denied.add((operation, ResourceType.GROUP, "g"))
    assert run.ask(request_, version).error_code == E.GROUP_AUTHORIZATION_FAILED


def test_permission_for_each_group():
    """Describe, delete, list and fetch leave the forbidden ones out, or say so for each."""
    run = ApiRun()
    member_of(run)
    run.acl.denied |= {(o, ResourceType.GROUP, "g") for o in (Operation.DESCRIBE, Operation.DELETE)}
    run.acl.denied.add((Operation.DESCRIBE, ResourceType.CLUSTER, "*"))
    failed = E.GROUP_AUTHORIZATION_FAILED
    assert [g.error_code for g in run.ask(DescribeGroupsRequest(groups=["g", "h"]), 5).groups] == [
        failed,
        E.NONE,
    ]
    assert [
        r.error_code for r in run.ask(DeleteGroupsRequest(groups_names=["g", "h"]), 2).results
    ] == [failed, E.GROUP_ID_NOT_FOUND]
    assert run.ask(ListGroupsRequest(), 5).groups == []
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in "gh"]
    assert [g.error_code for g in run.ask(OffsetFetchRequest(groups=groups), 8).groups] == [
        failed,
        E.NONE,
    ]


def test_a_broker_that_is_no_coordinator_says_so():
    """Every API has NOT_COORDINATOR in its place."""
    run = ApiRun()
    run.coordinator.stop()
    told = E.NOT_COORDINATOR
    assert run.ask(join(9), 9).error_code == run.ask(sync(5, "m"), 5).error_code == told
    assert (
        run.ask(HeartbeatRequest(group_id="g"), 4).error_code
        == run.ask(LeaveGroupRequest(group_id="g"), 5).error_code
        == told
    )
    assert run.ask(DescribeGroupsRequest(groups=["g"]), 6).groups[0].error_code == told
    assert run.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code == told
    assert (
        run.ask(OffsetFetchRequest(group_id="g"), 7).error_code
        == run.ask(OffsetDeleteRequest(group_id="g"), 0).error_code
        == told
    )
    assert (
        run.ask(ListGroupsRequest(), 5).groups == []
        and run.ask(OffsetCommitRequest(group_id="g"), 9).topics == []
    )


def test_every_row_of_groups_and_offsets_has_its_function():
    """The API table and these modules agree."""
    rows = [row for row in ROUTES if row.messages in ("groups", "offsets")]
    assert len(rows) == 13 and all(callable(row.function(False)) for row in rows)


def test_an_answer_about_large_groups_is_bounded(monkeypatch):
    """However often it is named: what has no room is requested again. The first has room."""
    monkeypatch.setattr(api_groups, "MOST_DESCRIBED_BYTES", 2 * api_groups.BYTES_OF_A_MEMBER)
    run = ApiRun()
    member_of(run)
    answer = run.ask(DescribeGroupsRequest(groups=["nobody", *["g"] * 5]), 5).groups
    assert [g.error_code for g in answer] == [
        E.NONE,
        *[E.NONE] * 2,
        *[E.COORDINATOR_LOAD_IN_PROGRESS] * 3,
    ]
    assert [len(g.members) for g in answer] == [0, 1, 1, 0, 0, 0]
