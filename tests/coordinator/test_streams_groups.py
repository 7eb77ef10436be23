"""Streams groups beside others: which kind a name is, timers, restarts, deletion, offsets."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.coordinator.broker_run import BrokerRun
from tests.coordinator.streams.streams_run import ONE, stored, tasks, topics
from tests.coordinator.test_consumer_groups import refused
from tests.coordinator.test_group_coordinator import now
from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.consumer.requests import HeartbeatRequest as ConsumerHeartbeat
from twisted_broker.coordinator.coordinator_publisher import CoordinatorPublisher
from twisted_broker.coordinator.group_explanation import explain_group
from twisted_broker.coordinator.offset_metadata_manager import OffsetToCommit
from twisted_broker.coordinator.streams.configure import StatusCode
from twisted_broker.coordinator.streams.group import StreamsGroup, StreamsGroupState
from twisted_broker.coordinator.streams.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.image.metadata_delta import MetadataDelta
from twisted_broker.status import group_metrics
from twisted_broker.status.metric_rates import Rates
from twisted_broker.status.metric_text import Exposition
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.schema import run_whole

SESSION_MS = 45_000
NOTHING: dict[str, Any] = {"active": frozenset(), "standby": frozenset(), "warmup": frozenset()}


class Run(BrokerRun):
    def __init__(self, *args: Any, **settings: Any) -> None:
        self.image = topics(**{"in": 4})
        super().__init__(*args, **{"lead": False} | settings)
        self.coordinator.context.image = lambda: self.image
        self.set(assignment_interval_ms=0, initial_rebalance_delay_ms=0)
        self.lead_all()

    def set(self, **changes: Any) -> None:
        settings = self.coordinator.context.settings
        streams = settings.streams
        defaults = replace(streams.defaults, **changes)
        streams = replace(streams, defaults=defaults)
        self.coordinator.update_settings(replace(settings, streams=streams))

    def again(self) -> "Run":
        self.coordinator.stop()
        return Run(self.store, self.clock)

    def beat(self, member: str, epoch: int, group: str = "g", **fields: Any) -> Any:
        return self.coordinator.streams_heartbeat(HeartbeatRequest(group, member, epoch, **fields))

    def start(self, member: str = "a", group: str = "g", **fields: Any) -> Any:
        fields = {
            "topology": ONE,
            "rebalance_timeout_ms": 10_000,
            "process_id": member,
            **NOTHING,
        } | fields
        return self.beat(member, 0, group, **fields)

    def member(self, member: str = "a", group: str = "g", **fields: Any) -> HeartbeatAnswer:
        waiting = self.start(member, group, **fields)
        self.settle()
        return now(waiting)

    def group(self, name: str = "g") -> Any:
        for shard in self.coordinator.runtime.shards.values():
            if name in shard.groups:
                return shard.groups[name].group
        return None

    def kinds(self, name: str = "g") -> list[tuple[int, bool]]:
        """Type and whether it has a value, of each record."""
        return [
            (int.from_bytes(key[:2], "big"), value is not None)
            for key, value in self.records(name)
            if key is not None
        ]


@pytest.fixture
def run() -> Run:
    return Run()


# which kind a group is
def test_a_refused_join_leaves_no_group(run):
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    assert refused(run.start) is E.COORDINATOR_NOT_AVAILABLE
    assert run.group() is None and run.records("g") == [] and run.listed() == []
    run.store.refuse = None
    assert run.member().member_epoch == 2
    assert [(e.group_id, e.group_type, e.protocol_type) for e in run.listed()] == [
        ("g", "streams", "streams")
    ]


def test_other_kinds_and_streams_groups_are_not_each_other(run):
    """GN 4.4, 4.34."""
    run.stable("classic")
    for epoch in (0, 3, -1):
        assert refused(lambda epoch=epoch: run.beat("a", epoch, "classic", topology=ONE)) is (
            E.GROUP_ID_NOT_FOUND
        )
    assert refused(lambda: run.beat("a", 3, "nobody")) is E.GROUP_ID_NOT_FOUND
    run.member()
    consumer = ConsumerHeartbeat(
        "g", "c", 0, rebalance_timeout_ms=1, names=("in",), owned=frozenset()
    )

    def join_as_consumer() -> Any:
        return run.coordinator.consumer_heartbeat(consumer, lambda topic: True)

    assert refused(join_as_consumer) is E.GROUP_ID_NOT_FOUND
    assert now(run.join()).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert now(run.sync("a", 2)).error is E.UNKNOWN_MEMBER_ID
    assert run.coordinator.heartbeat("g", "a", None, 2) is E.UNKNOWN_MEMBER_ID
    leaving = now(run.coordinator.leave("g", [("a", None)]))
    assert [each.error for each in leaving] == [E.UNKNOWN_MEMBER_ID]
    assert refused(lambda: run.coordinator.describe_consumer_group("g")) is E.GROUP_ID_NOT_FOUND
    now(run.beat("a", -1))
    assert refused(join_as_consumer) is E.GROUP_ID_NOT_FOUND, "not even an empty one"
    assert isinstance(run.group(), StreamsGroup)


def test_an_empty_classic_group_becomes_a_streams_group_and_keeps_its_offsets(run):
    """GN 4.4: its tombstone leads the records."""
    member = run.stable()
    now(run.coordinator.leave("g", [(member, None)]))
    run.settle()
    now(run.commit(OffsetToCommit("in", 0, 7)))
    before = len(run.records("g"))
    run.member()
    assert run.kinds()[before:][:2] == [(2, False), (19, True)]
    for _ in range(2):
        assert isinstance(run.group(), StreamsGroup) and run.fetched() == {("in", 0): 7}
        run = run.again()


def test_an_empty_streams_group_gives_way_to_a_classic_one(run):
    """GN 4.34, 4.51."""
    run.member()
    now(run.beat("a", -1))
    before = len(run.records("g"))
    run.stable()
    assert run.kinds()[before:][:4] == [(20, False), (17, False), (23, False), (2, True)]
    for _ in range(2):
        assert isinstance(run.group(), ClassicGroup) and run.group().members
        run = run.again()


# timers
def test_the_first_target_comes_when_the_delay_is_over(run):
    """GN 4.11."""
    run.set(initial_rebalance_delay_ms=3_000)
    for member in ("a", "b"):
        assert [each.code for each in run.member(member).status] == [StatusCode.ASSIGNMENT_DELAYED]
        run.pass_ms(1_000)
    assert run.group().assignment_epoch == 1
    run.pass_ms(1_001)
    run.settle()
    assert run.group().assignment_epoch == 3
    got = now(run.beat("a", 1, **NOTHING))
    assert (got.member_epoch, len(got.tasks.active), got.status) == (3, 2, ())


def test_a_delay_ends_with_its_group(run):
    run.set(initial_rebalance_delay_ms=3_000)
    run.member()
    now(run.beat("a", -1))
    now(run.coordinator.delete_group("g"))
    written = len(run.records("g"))
    run.pass_ms(3_001)
    run.settle()
    assert run.group() is None and len(run.records("g")) == written
    run.member()
    run.coordinator.stop()
    assert not [call for call in run.clock.getDelayedCalls() if call.active()]


def test_a_member_that_is_silent_is_removed_after_its_session(run):
    """GN 4.13, 2.80."""
    run.member("a")
    run.member("b")
    run.pass_ms(SESSION_MS - 1_000)
    now(run.beat("b", 3))
    run.pass_ms(5_000)
    run.settle()
    assert set(run.group().members) == {"b"}
    assert now(run.beat("b", 3)).tasks.active == tasks(s0=range(4))


def test_a_member_that_does_not_give_up_its_tasks_is_removed(run):
    """GN 4.13, 2.82."""
    run.member("a")
    run.member("b")
    now(run.beat("a", 2, active=tasks(s0=range(4)), standby=frozenset(), warmup=frozenset()))
    run.pass_ms(10_001)
    run.settle()
    assert set(run.group().members) == {"b"}


# the broker
def test_a_restart_goes_on_where_it_was(run):
    """GN 0.5, 2.80: the same state and epochs, and a session for each member."""
    run.member("a")
    run.member("b")
    now(run.beat("a", 2, active=tasks(s0=range(4)), standby=frozenset(), warmup=frozenset()))
    before = stored(run.group())
    run = run.again()
    assert stored(run.group()) == before and run.group().members["a"].is_revoking
    told = now(run.beat("b", 3))
    assert told.member_epoch == 3 and run.group().epoch == 3, "no bump"
    run.pass_ms(10_001)
    run.settle()
    assert set(run.group().members) == {"b"}, "its time to give up runs again"


def test_an_unload_answers_who_waits(run):
    run.store.held = []
    waiting = run.start()
    run.coordinator.runtime.unload_all()
    assert refused(lambda: waiting) is E.NOT_COORDINATOR
    assert refused(run.start) is E.NOT_COORDINATOR
    run.store.release()


def test_topics_that_change_reach_the_groups_that_read_them(run):
    """GN 2.70, 4.8."""
    run.member()
    publisher = CoordinatorPublisher(run.coordinator)
    for image in (topics(**{"in": 4, "other": 1}), topics(**{"in": 6, "other": 1})):
        delta = MetadataDelta.between(run.image, image)
        run.image = image
        publisher.image_changed(delta)
        run.settle()
        assert run.group().must_compare_metadata is (len(image.topics_by_name["in"].partitions) > 4)
    answer = now(run.beat("a", 2))
    assert answer.member_epoch == 3 and len(answer.tasks.active) == 6


def test_a_group_is_described_when_what_it_shows_is_committed(run):
    run.member()
    run.store.held = []
    joining = run.start("b")
    describing = run.coordinator.describe_streams_group("g")
    run.settle()
    assert not joining.called and not describing.called
    run.store.release()
    assert len(now(describing).members) == 2 and now(joining).member_epoch == 3


def test_a_group_is_deleted_with_its_offsets_and_its_tombstones(run):
    """GN 4.51."""
    run.member()
    offset = OffsetToCommit("in", 0, 7)
    now(run.commit(offset, member="a", generation=2, knows_member_epochs=True))
    assert refused(lambda: run.coordinator.delete_group("g")) is E.NON_EMPTY_GROUP
    now(run.beat("a", -1))
    before = len(run.records("g"))
    assert now(run.coordinator.delete_group("g")) is E.NONE
    assert run.kinds()[before:] == [(1, False), (20, False), (17, False), (23, False)]
    assert run.group() is None and run.again().group() is None


def test_an_empty_group_goes_with_its_last_offset():
    """GN 4.33, 2.96."""
    run = Run(offsets_retention_ms=60_000, retention_check_interval_ms=10_000)
    run.member()
    for name in ("in", "other"):
        offset = OffsetToCommit(name, 0, 7)
        now(run.commit(offset, member="a", generation=2, knows_member_epochs=True))
    for _ in range(3):
        run.pass_ms(30_000)
        now(run.beat("a", 2))
    assert run.fetched() == {("in", 0): 7}
    now(run.beat("a", -1))
    run.pass_ms(10_000)
    assert run.group() is None and run.again().group() is None


# offsets
@pytest.mark.parametrize(
    ("member", "epoch", "knows", "error"),
    [
        ("a", 2, True, E.NONE),
        ("a", 2, False, E.UNSUPPORTED_VERSION),
        ("a", 3, True, E.STALE_MEMBER_EPOCH),
        ("a", 1, True, E.STALE_MEMBER_EPOCH),
        ("b", 2, True, E.UNKNOWN_MEMBER_ID),
        ("", -1, True, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_commit_and_fetch(run, member, epoch, knows, error):
    """GN 4.33, 2.94."""
    run.member()

    def commit() -> Any:
        offset = OffsetToCommit("in", 0, 7)
        return run.commit(offset, member=member, generation=epoch, knows_member_epochs=knows)

    if error is E.NONE:
        assert now(commit()) == {("in", 0): E.NONE}
        run.coordinator.check_fetch("g", member, epoch)
    else:
        assert refused(commit) is error
    assert refused(lambda: run.coordinator.check_fetch("g", "a", 1)) is E.STALE_MEMBER_EPOCH


def test_the_state_of_a_group_whose_topics_are_missing(run):
    run.image = topics()
    run.member()
    assert run.group().state is StreamsGroupState.NOT_READY
    assert [each.state for each in run.listed()] == ["NotReady"]
    assert run_whole(explain_group(run.group(), run.image))["why"] == [
        "its application has no tasks: Source topics in are missing."
    ]
    out = Exposition()
    run_whole(group_metrics.groups(out, run.coordinator, SimpleNamespace(partitions={}), Rates()))
    text = b"".join(out.text()).decode()
    for line in (
        'kafka_server_group_coordinator_metrics_group_count{protocol="streams"} 1',
        'kafka_server_group_coordinator_metrics_streams_group_count{state="notready"} 1',
        'kafka_server_group_coordinator_metrics_streams_group_count{state="stable"} 0',
    ):
        assert f"{line}\n" in text, line
