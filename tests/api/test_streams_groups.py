"""StreamsGroupHeartbeat and StreamsGroupDescribe through the wire, and the older APIs on streams
groups.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.api.group_api import ApiRun, image, topic
from twisted_broker.api import streams_groups
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config_validation import check_together
from twisted_broker.coordinator.streams_group_config import streams_group_config
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.group_records import Subtopology, TaskIds, TopicInfo
from twisted_broker.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
)
from twisted_broker.wire.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatTopology,
    TaskOffset,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopicResult,
    CreateTopicsResponse,
)
from twisted_broker.wire.schema import encode

READ, DESCRIBE, CREATE = Operation.READ, Operation.DESCRIBE, Operation.CREATE
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
MISSING_INTERNAL = 3


class Run(ApiRun):
    def __init__(self) -> None:
        super().__init__(lead=False)
        self.coordinator.context.image = lambda: self.source.image
        self.finalise(1)
        self.set_streams(assignment_interval_ms=0, initial_rebalance_delay_ms=0)
        self.lead_all()
        self.asked: list[tuple[Any, Deferred[Any]]] = []
        forwarding: Any = SimpleNamespace(create_for=self._create_for)
        self.parts.forwarding = forwarding

    def _create_for(self, context: Any, request: Any) -> Deferred[Any]:
        self.asked.append((request, Deferred()))
        return self.asked[-1][1]

    def finalise(self, level: int) -> None:
        features = {"streams.version": level}
        self.source.image = replace(self.source.image, features=features)

    def add_topics(self, **counts: int) -> None:
        topics = [
            topic(name, name.encode().ljust(16, b"."), count) for name, count in counts.items()
        ]
        made = image(*self.source.image.topics_by_name.values(), *topics)
        self.source.image = replace(made, features=self.source.image.features)
        self.coordinator.topics_changed(set(counts), True)

    def set_streams(self, is_served: bool = True, **changes: Any) -> None:
        settings = self.coordinator.context.settings
        defaults = replace(settings.streams.defaults, **changes)
        streams = replace(settings.streams, defaults=defaults, is_served=is_served)
        self.coordinator.update_settings(replace(settings, streams=streams))

    def beat(self, **fields: Any) -> Any:
        return self.ask(heartbeat(**fields), 0)

    def describe(self, *groups: str, operations: bool = False) -> Any:
        request = StreamsGroupDescribeRequest(
            group_ids=list(groups), include_authorized_operations=operations
        )
        return self.ask(request, 0).groups


@pytest.fixture
def run() -> Run:
    return Run()


def app(*changelogs: str, sources: tuple[str, ...] = ("t",), **more: Any) -> Any:
    return StreamsGroupHeartbeatTopology(
        epoch=0,
        subtopologies=[
            Subtopology(
                subtopology_id="0",
                source_topics=list(sources),
                state_changelog_topics=[
                    TopicInfo(name=name, replication_factor=0) for name in changelogs
                ],
                **more,
            )
        ],
    )


def heartbeat(**fields: Any) -> StreamsGroupHeartbeatRequest:
    """A join, but for `fields`."""
    return StreamsGroupHeartbeatRequest(
        **{
            "group_id": "g",
            "member_id": "a",
            "member_epoch": 0,
            "rebalance_timeout_ms": 10_000,
            "topology": app(),
            "process_id": "p",
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
        }
        | fields
    )


QUIET = {
    "topology": None,
    "rebalance_timeout_ms": -1,
    "process_id": None,
    "active_tasks": None,
    "standby_tasks": None,
    "warmup_tasks": None,
}


# heartbeat
def test_a_life(run):
    """GN 1.12."""
    joined = run.beat()
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (E.NONE, "a", 2)
    assert joined.heartbeat_interval_ms == 5_000 and joined.status == []
    assert joined.active_tasks == [TaskIds(subtopology_id="0", partitions=[0, 1, 2])]
    assert (joined.standby_tasks, joined.warmup_tasks) == ([], [])
    assert (joined.acceptable_recovery_lag, joined.task_offset_interval_ms) == (0, 0)
    kept = run.beat(**QUIET, member_epoch=2)
    assert (kept.active_tasks, kept.standby_tasks, kept.warmup_tasks) == (None, None, None)
    left = run.beat(**QUIET, member_epoch=-1)
    assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (E.NONE, -1, 0)


def test_an_error_has_no_member_and_an_empty_status(run):
    """GN 1.12."""
    refused = run.beat(member_id="")
    assert (refused.error_code, refused.error_message) == (
        E.INVALID_REQUEST,
        "MemberId can't be empty.",
    )
    assert (refused.member_id, refused.member_epoch, refused.status) == ("", 0, [])
    assert refused.active_tasks is None
    assert encode(StreamsGroupHeartbeatResponse(), 0)[-2:] == b"\0\0"


def test_the_order_of_a_heartbeats_errors(run):
    """GN 1.20, 4.3: each is shown over all that come after it."""
    bad: dict[str, Any] = {
        "topology": app(sources=("t", "u", "__consumer_offsets", "no name")),
        "task_offsets": [TaskOffset()],
    }
    run.coordinator.runtime.unload_all()
    run.acl.denied |= {(READ, GROUP, "g"), (DESCRIBE, TOPIC, "u")}
    run.finalise(0)
    assert run.beat(**bad).error_code == E.UNSUPPORTED_VERSION
    run.finalise(1)
    run.set_streams(is_served=False)
    assert run.beat(**bad).error_code == E.UNSUPPORTED_VERSION
    run.set_streams()
    assert run.beat(**bad).error_code == E.GROUP_AUTHORIZATION_FAILED
    run.acl.denied.discard((READ, GROUP, "g"))
    internal = run.beat(**bad)
    assert internal.error_code == E.STREAMS_INVALID_TOPOLOGY
    assert "internal topics __consumer_offsets" in internal.error_message
    bad["topology"] = app(sources=("t", "u", "no name"))
    invalid = run.beat(**bad)
    assert invalid.error_code == E.STREAMS_INVALID_TOPOLOGY and "no name" in invalid.error_message
    bad["topology"] = app(sources=("t", "u"))
    assert run.beat(**bad).error_code == E.TOPIC_AUTHORIZATION_FAILED
    run.acl.denied.clear()
    assert run.beat(**bad).error_code == E.INVALID_REQUEST
    assert run.beat().error_code == E.NOT_COORDINATOR
    run.lead_all()
    lost = run.beat(**QUIET, member_epoch=1)
    assert (lost.error_code, lost.error_message) == (E.GROUP_ID_NOT_FOUND, "Group g not found.")


@pytest.mark.parametrize("which", ["sinks", "repartition sources", "changelogs"])
def test_every_topic_that_is_named_must_be_seen(run, which):
    """GN 1.20."""
    run.acl.denied.add((DESCRIBE, TOPIC, "hidden"))
    named = {
        "sinks": app(repartition_sink_topics=["hidden"]),
        "repartition sources": app(repartition_source_topics=[TopicInfo(name="hidden")]),
        "changelogs": app("hidden"),
    }[which]
    assert run.beat(topology=named).error_code == E.TOPIC_AUTHORIZATION_FAILED


def test_a_topology_is_bounded(run, monkeypatch):
    monkeypatch.setattr(streams_groups, "MOST_TOPICS", 2)
    assert run.beat(topology=app("x", "y")).error_code == E.STREAMS_INVALID_TOPOLOGY
    monkeypatch.setattr(streams_groups, "MOST_SUBTOPOLOGIES", 0)
    assert run.beat().error_code == E.STREAMS_INVALID_TOPOLOGY


# internal topics
def test_internal_topics_are_created_once(run):
    """GN 4.20: in the name of the client; not again while it is under way."""
    joined = run.beat(topology=app("store"))
    assert [(each.status_code, each.status_detail) for each in joined.status] == [
        (MISSING_INTERNAL, "Internal topics are missing: store")
    ]
    ((request, answer),) = run.asked
    (wanted,) = request.topics
    assert (wanted.name, wanted.num_partitions, wanted.replication_factor) == ("store", 3, -1)
    run.beat(**QUIET, member_epoch=2)
    assert len(run.asked) == 1
    answer.callback(CreateTopicsResponse(topics=[CreatableTopicResult(name="store")]))
    run.add_topics(store=3)
    run.settle()
    ready = run.beat(**QUIET, member_epoch=2)
    assert ready.status == [] and ready.active_tasks[0].partitions == [0, 1, 2]


def test_a_creation_that_failed_is_told_and_not_tried_for_two_heartbeats(run):
    """GN 4.20: three are named."""
    names = ["s1", "s2", "s3", "s4"]
    run.beat(topology=app(*names))
    failed = [
        CreatableTopicResult(name=name, error_code=E.POLICY_VIOLATION, error_message="no")
        for name in names
    ]
    run.asked[0][1].callback(CreateTopicsResponse(topics=failed))
    (status,) = run.beat(**QUIET, member_epoch=2).status
    assert status.status_detail.endswith("; Creation failed: s1 (no), s2 (no), s3 (no) and 1 more.")
    assert len(run.asked) == 1
    run.clock.advance(10.0)
    (status,) = run.beat(**QUIET, member_epoch=2).status
    assert "Creation failed" not in status.status_detail and len(run.asked) == 2
    run.asked[1][1].errback(BrokerError(E.REQUEST_TIMED_OUT, "nobody answered"))
    (status,) = run.beat(**QUIET, member_epoch=2).status
    assert "s1 (nobody answered)" in status.status_detail


def test_internal_topics_that_the_client_may_not_create(run):
    """GN 4.20: the cluster's right, or each topic's."""
    run.acl.denied |= {
        (CREATE, ResourceType.CLUSTER, "kafka-cluster"),
        (CREATE, TOPIC, "s2"),
    }
    (status,) = run.beat(topology=app("s1", "s2")).status
    assert status.status_detail == (
        "Internal topics are missing: s1, s2; Unauthorized to CREATE on topics s2."
    )
    assert not run.asked
    run.acl.denied.discard((CREATE, TOPIC, "s2"))
    run.beat(**QUIET, member_epoch=2)
    assert len(run.asked) == 1


# description
def test_a_description(run):
    """GN 1.15, 4.52."""
    run.beat(rack_id="r")
    run.beat(group_id="other", topology=app(sources=("u",)))
    run.acl.denied |= {(DESCRIBE, GROUP, "secret"), (DESCRIBE, TOPIC, "u")}
    mine, none, secret, hidden, unnamed = run.describe(
        "g", "none", "secret", "other", "", operations=True
    )
    assert (mine.error_code, mine.group_state, mine.group_epoch, mine.assignment_epoch) == (
        E.NONE,
        "Stable",
        2,
        2,
    )
    (member,) = mine.members
    assert (member.member_id, member.rack_id, member.process_id) == ("a", "r", "p")
    assert (member.client_id, member.client_host) == ("client", "/10.0.0.9")
    assert member.assignment == member.target_assignment and not member.is_classic
    (subtopology,) = mine.topology.subtopologies
    assert (mine.topology.epoch, subtopology.source_topics) == (0, ["t"])
    assert mine.authorized_operations != none.authorized_operations
    assert (none.error_code, none.error_message) == (
        E.GROUP_ID_NOT_FOUND,
        "Group none not found.",
    )
    assert secret.error_code == E.GROUP_AUTHORIZATION_FAILED
    assert (hidden.error_code, hidden.members, hidden.topology) == (
        E.TOPIC_AUTHORIZATION_FAILED,
        [],
        None,
    )
    assert unnamed.error_code == E.INVALID_GROUP_ID
    run.finalise(0)
    assert run.describe("g")[0].error_code == E.UNSUPPORTED_VERSION


# the older APIs
def test_older_apis(run):
    """GN 4.1, 4.34, 2.132."""
    run.beat(topology=app("store"))
    listed = run.ask(ListGroupsRequest(types_filter=["Streams"]), 5).groups
    assert [(e.group_id, e.protocol_type, e.group_state, e.group_type) for e in listed] == [
        ("g", "streams", "NotReady", "streams")
    ]
    for state in ("not_ready", "NotReady"):
        assert run.ask(ListGroupsRequest(states_filter=[state]), 5).groups == listed
    assert run.ask(ListGroupsRequest(states_filter=["Stable"]), 5).groups == []
    (described,) = run.ask(DescribeGroupsRequest(groups=["g"]), 6).groups
    assert described.error_code == E.GROUP_ID_NOT_FOUND
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="a")])
    assert [each.error_code for each in run.ask(leave, 5).members] == [E.UNKNOWN_MEMBER_ID]
    delete = DeleteGroupsRequest(groups_names=["g"])
    assert run.ask(delete, 2).results[0].error_code == E.NON_EMPTY_GROUP
    run.beat(**QUIET, member_epoch=-1)
    assert run.ask(delete, 2).results[0].error_code == E.NONE
    assert run.describe("g")[0].error_code == E.GROUP_ID_NOT_FOUND


# settings
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"group.streams.session.timeout.ms": "1"}, "group.streams.session.timeout.ms"),
        ({"group.streams.max.session.timeout.ms": "1"}, "group.streams.max.session.timeout.ms"),
        ({"group.streams.num.standby.replicas": "3"}, "group.streams.num.standby.replicas"),
        (
            {
                "group.streams.min.session.timeout.ms": "5000",
                "group.streams.session.timeout.ms": "5000",
            },
            "group.streams.heartbeat.interval.ms",
        ),
    ],
)
def test_start_refuses_settings_that_contradict_each_other(settings, named):
    """GN 1.26."""
    with pytest.raises(Exception, match=named):
        check_together(BrokerConfig({"node.id": "1"} | settings))


def test_a_groups_own_settings_between_the_brokers_bounds():
    """GN 1.25, 1.28."""
    config = streams_group_config(BrokerConfig({}))
    own = {
        "streams.session.timeout.ms": "999999",
        "streams.num.standby.replicas": "9",
        "streams.initial.rebalance.delay.ms": "0",
    }
    settings = config.of_group(own)
    assert (settings.session_timeout_ms, settings.num_standby_replicas) == (60_000, 2)
    assert (settings.initial_rebalance_delay_ms, settings.heartbeat_interval_ms) == (0, 5_000)
    assert config.of_group({}) is config.defaults
