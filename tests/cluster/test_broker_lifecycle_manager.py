"""A broker registers, beats and leaves over the network."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import TimeoutError
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import capturedLogs, formatEvent

from tests.cluster.controller_fixture import PORT, ControllerFixture, MemberSide, served
from tests.cluster.fixtures import DIRECTORY_ID
from twisted_broker.cluster import broker_registry, heartbeat_decision
from twisted_broker.cluster.broker_lifecycle_manager import BrokerState
from twisted_broker.cluster.features import SUPPORTED_FEATURES
from twisted_broker.cluster.registration import Registration
from twisted_broker.image.entries import Endpoint, FeatureRange
from twisted_broker.image.metadata_image import METADATA_VERSION
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.broker_lifecycle import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)
from twisted_broker.wire.messages.cluster import UnregisterBrokerRequest
from twisted_broker.wire.messages.metadata_records import FeatureLevelRecord, RegisterBrokerRecord


@pytest.fixture
def fixture() -> ControllerFixture:
    return served()


def test_a_lone_broker_serves_without_any_wait(fixture: ControllerFixture) -> None:
    """RL 8.2: registration, catching up and the lifting of the fence take round trips, not ticks
    or heartbeats.
    """
    member = MemberSide(fixture, 2).follow().join()
    assert fixture.clock.seconds() == 0
    assert member.lifecycle.state is BrokerState.RUNNING and member.lifecycle.unfenced.called
    broker = fixture.controller.image.brokers[2]
    assert broker.epoch == member.lifecycle.broker_epoch and not broker.fenced
    assert broker.listeners["PLAINTEXT"].port == 9002


def test_what_a_broker_says_when_it_registers(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.2: its incarnation, listeners, the ranges of its features, its log directories, and
    the previous broker epoch; the controller's record has them.
    """
    heard: list[BrokerRegistrationRequest] = []
    register = broker_registry.register

    def noted(view: Any, request: BrokerRegistrationRequest, *rest: Any) -> Any:
        heard.append(request)
        return register(view, request, *rest)

    monkeypatch.setattr(broker_registry, "register", noted)
    MemberSide(fixture, 2).follow().join(previous=41, incarnation=b"of this process!")
    (request,) = heard
    assert (request.broker_id, request.previous_broker_epoch) == (2, 41)
    broker = fixture.controller.image.brokers[2]
    assert broker.incarnation_id == request.incarnation_id == b"of this process!"
    assert broker.listeners == {"PLAINTEXT": Endpoint("PLAINTEXT", "127.0.0.1", 9002)}
    assert broker.features == SUPPORTED_FEATURES
    assert broker.directories == (DIRECTORY_ID[:15] + bytes([2]),)


def test_joining_before_the_leader_is_known(fixture: ControllerFixture) -> None:
    """The registration goes out when the observer has found the controller."""
    member = MemberSide(fixture, 2).join()
    assert member.lifecycle.state is BrokerState.STARTING
    member.follow()
    assert fixture.clock.seconds() == 0 and member.lifecycle.state is BrokerState.RUNNING


def test_ready_before_caught_up(fixture: ControllerFixture) -> None:
    """KRAFT 3.5: whichever comes last lifts the fence at once."""
    member = MemberSide(fixture, 2).join(ready=False)
    member.lifecycle.ready_to_unfence()
    member.follow()
    assert fixture.clock.seconds() == 0 and member.lifecycle.state is BrokerState.RUNNING


def test_the_fence_stays_until_the_broker_is_ready(fixture: ControllerFixture) -> None:
    """KRAFT 3.5: caught up is not yet serving: logs come first; then at once."""
    member = MemberSide(fixture, 2).follow().join(ready=False)
    assert member.lifecycle.caught_up.called and member.lifecycle.state is BrokerState.RECOVERY
    fixture.pass_time(20.0)
    assert fixture.controller.image.brokers[2].fenced and not member.lifecycle.unfenced.called
    at = fixture.clock.seconds()
    member.lifecycle.ready_to_unfence()
    fixture.settle()
    assert member.lifecycle.unfenced.called and fixture.clock.seconds() == at


def test_heartbeats_keep_the_session(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.2: every 2 s (`broker.heartbeat.interval.ms`), from the one on that lifted the fence;
    a minute later nothing has changed.
    """
    heard: list[float] = []
    decide = heartbeat_decision.heartbeat

    def noted(*arguments: Any) -> Any:
        heard.append(fixture.clock.seconds())
        return decide(*arguments)

    member = MemberSide(fixture, 2).follow().join()
    brokers = fixture.controller.image.brokers
    monkeypatch.setattr(heartbeat_decision, "heartbeat", noted)
    fixture.pass_time(60.5)
    assert heard == [2.0 * number for number in range(1, 31)]
    assert (
        fixture.controller.image.brokers == brokers
        and member.lifecycle.state is BrokerState.RUNNING
    )


def test_a_broker_that_was_fenced_comes_back_by_itself(fixture: ControllerFixture) -> None:
    """RL 8.2: a lost session (the controller fenced it) ends with the next beat that is heard."""
    member = MemberSide(fixture, 2).follow().join()
    fixture.beat(2, member.lifecycle.broker_epoch, want_fence=True)
    fixture.settle()
    assert fixture.controller.image.brokers[2].fenced
    fixture.pass_time(2.5)
    assert not fixture.controller.image.brokers[2].fenced


def test_another_incarnation_waits_for_the_first_ones_session(fixture: ControllerFixture) -> None:
    """KRAFT 3.4: DUPLICATE_BROKER_REGISTRATION is retried until the session is over."""
    fixture.join(2)
    member = MemberSide(fixture, 2).follow().join(incarnation=b"new" + bytes(13))
    assert member.lifecycle.broker_epoch == -1
    fixture.pass_time(8.5)
    assert member.lifecycle.broker_epoch == -1
    fixture.pass_time(1.5)
    assert member.lifecycle.state is BrokerState.RUNNING


def test_a_hopeless_registration_is_reported(fixture: ControllerFixture) -> None:
    """KRAFT 3.4: another cluster's id: caught_up and unfenced fail, nothing is retried."""
    member = MemberSide(fixture, 2).follow()
    problems: list[Any] = []
    member.lifecycle.caught_up.addErrback(problems.append)
    member.join(cluster_id="x" * 22, ready=False)
    fixture.pass_time(5.0)
    assert (
        isinstance(problems[0].value, BrokerError)
        and problems[0].value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    )
    assert member.lifecycle.state is BrokerState.NOT_RUNNING


def test_features_that_are_beyond_a_broker_are_named(fixture: ControllerFixture) -> None:
    """KRAFT 3.4: the code alone (UNSUPPORTED_VERSION) would say neither which feature, nor what
    to do.
    """
    member = MemberSide(fixture, 2).follow()
    problems: list[Any] = []
    member.lifecycle.caught_up.addErrback(problems.append)
    member.join(
        ready=False,
        features={
            "metadata.version": FeatureRange(7, 21),
            "eligible.leader.replicas.version": FeatureRange(0, 1),
            "group.version": FeatureRange(0, 1),
            "share.version": FeatureRange(0, 1),
            "streams.version": FeatureRange(0, 1),
            "transaction.version": FeatureRange(0, 2),
        },
    )
    fixture.pass_time(5.0)
    assert problems[0].value.code is ErrorCode.UNSUPPORTED_VERSION
    words = problems[0].value.message
    assert words == (
        "the cluster's finalised features include metadata.version=30 (here 7 to 21): downgrade "
        "them with kafka-features, or start a newer broker"
    )


def test_no_controller_within_the_registration_timeout(fixture: ControllerFixture) -> None:
    """initial.broker.registration.timeout.ms: then it gives up."""
    fixture.crash()
    member = MemberSide(fixture, 2, **{"initial.broker.registration.timeout.ms": "3000"}).follow()
    problems: list[Any] = []
    member.lifecycle.caught_up.addErrback(problems.append)
    member.join(ready=False)
    fixture.pass_time(2.5)
    assert problems == []
    fixture.pass_time(1.0)
    assert problems[0].value.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_controlled_shutdown_over_the_network(fixture: ControllerFixture) -> None:
    """RL 8.2: leadership goes to the other one, both have seen it, then the broker may go."""
    first, second = MemberSide(fixture, 2).follow().join(), MemberSide(fixture, 3).follow().join()
    fixture.place_topic("t", [2, 3])
    gone: list[None] = []
    with capturedLogs() as told:
        first.lifecycle.controlled_shutdown().addCallback(gone.append)
        fixture.pass_time(3.0)
    lines = [line for line in map(formatEvent, told) if "shutdown" in line]
    assert lines[0] == "controlled shutdown: 1 partition(s) still to hand over"
    assert lines[-1].startswith("controlled shutdown: confirmed by the controller after ")
    assert gone and first.lifecycle.state is BrokerState.SHUTTING_DOWN
    partition = second.observer.image.topics_by_name["t"].partitions[0]
    assert (partition.leader, partition.isr) == (3, (3,))
    assert fixture.controller.image.brokers[2].fenced


def test_a_broker_that_leaves_asks_every_50_ms(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.2: each answer may be the one that lets it go."""
    leaving, other = MemberSide(fixture, 2).follow().join(), MemberSide(fixture, 3).follow().join()
    fixture.place_topic("t", [2, 3])
    asked: list[float] = []
    send_once = leaving.lifecycle._channel.send_once

    def listening(request: Any, *more: Any) -> Any:
        asked.append(fixture.clock.seconds())
        return send_once(request, *more)

    monkeypatch.setattr(leaving.lifecycle._channel, "send_once", listening)
    other.observer.stop()  # it never has the metadata that says who leads
    leaving.lifecycle.controlled_shutdown()
    fixture.pass_time(1.0)
    assert len(asked) >= 20
    assert max(later - earlier for earlier, later in pairwise(asked)) < 0.06


def test_a_lone_broker_leaves_at_once(fixture: ControllerFixture) -> None:
    """RL 8.2: nobody to wait for."""
    member = MemberSide(fixture, 2).follow().join()
    fixture.place_topic("t", [2])
    at = fixture.clock.seconds()
    left = member.lifecycle.controlled_shutdown()
    fixture.pass_time(0.2)
    assert left.called and fixture.clock.seconds() - at < 0.25


def test_a_failed_directory_is_reported_at_once(fixture: ControllerFixture) -> None:
    """RL 1.12: not with the next heartbeat."""
    member = MemberSide(fixture, 2).follow().join()
    fixture.place_topic("t", [2])
    (directory,) = fixture.controller.image.brokers[2].directories
    member.lifecycle.directory_failed(directory)
    fixture.settle()
    assert fixture.controller.image.topics_by_name["t"].partitions[0].leader == -1


def test_every_heartbeat_names_all_that_failed(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 1.12: a directory that fails later is told with those before it, each once; and again
    to a controller that has forgotten this broker.
    """
    member = MemberSide(fixture, 2).follow().join()
    told: list[list[bytes]] = []
    send_once = member.lifecycle._channel.send_once

    def listening(request: Any, *more: Any) -> Any:
        if isinstance(request, BrokerHeartbeatRequest):
            told.append(list(request.offline_log_dirs))
        return send_once(request, *more)

    monkeypatch.setattr(member.lifecycle._channel, "send_once", listening)
    for directory in (b"a" * 16, b"b" * 16, b"a" * 16):
        member.lifecycle.directory_failed(directory)
        fixture.settle()
    assert told == [[b"a" * 16], [b"a" * 16, b"b" * 16]]
    unregister(fixture, 2)
    fixture.pass_time(5.0)
    assert (
        member.lifecycle.state is BrokerState.RUNNING
        and all(each == told[1] for each in told[1:])
        and len(told) > 3
    )


def test_the_controller_restarts_and_the_member_stays(fixture: ControllerFixture) -> None:
    """RL 8.1: the session goes on under the new epoch; no record fences the broker."""
    member = MemberSide(fixture, 2).follow().join()
    fixture.crash()
    fixture.pass_time(4.0)
    fixture.restart()
    fixture.serve()
    fixture.pass_time(20.0)
    broker = fixture.controller.image.brokers[2]
    assert not broker.fenced and broker.epoch == member.lifecycle.broker_epoch


def test_stopping_ends_the_heartbeats(fixture: ControllerFixture) -> None:
    """Nothing beats after stop; the controller fences after the session."""
    member = MemberSide(fixture, 2).follow().join()
    member.stop()
    fixture.pass_time(10.0)
    assert fixture.controller.image.brokers[2].fenced


def _before_a_leader_is_known(fixture: ControllerFixture) -> MemberSide:
    return MemberSide(fixture, 2).join()


def _between_two_tries(fixture: ControllerFixture) -> MemberSide:
    fixture.join(2)
    return MemberSide(fixture, 2).follow().join(incarnation=b"new" + bytes(13))


def _while_it_catches_up(fixture: ControllerFixture) -> MemberSide:
    member = MemberSide(fixture, 2).follow()
    member.observer.reaches = lambda offset: Deferred()
    return member.join()


@pytest.mark.parametrize(
    "stage", [_before_a_leader_is_known, _between_two_tries, _while_it_catches_up]
)
def test_stopping_while_it_registers(fixture: ControllerFixture, stage: Any) -> None:
    """RL 8.2: wherever the registration stands, it ends: no failure that nobody handles, nothing
    that goes on.
    """
    with capturedLogs() as told:
        member = stage(fixture)
        member.stop()
        fixture.pass_time(20.0)
        del member.lifecycle._registering
        gc.collect()
    assert (
        not member.lifecycle.caught_up.called
        and member.lifecycle.state is BrokerState.SHUTTING_DOWN
    )
    assert [formatEvent(event) for event in told if "log_failure" in event] == []


def unregister(fixture: ControllerFixture, node: int) -> None:
    assert (
        fixture.ask("unregister_broker", UnregisterBrokerRequest(broker_id=node), 0).error_code == 0
    )
    fixture.settle()
    assert node not in fixture.controller.image.brokers


def test_a_living_broker_that_was_unregistered_registers_anew(fixture: ControllerFixture) -> None:
    """RL 8.2: at its next heartbeat; it gets a new epoch, and leads again what nobody else can.

    It is logged in two lines, not at each heartbeat.
    """
    member = MemberSide(fixture, 2).follow().join()
    fixture.place_topic("t", [2])
    before = member.lifecycle.broker_epoch
    with capturedLogs() as told:
        unregister(fixture, 2)
        fixture.pass_time(5.0)
    broker = fixture.controller.image.brokers[2]
    assert broker.epoch == member.lifecycle.broker_epoch > before and not broker.fenced
    assert member.lifecycle.state is BrokerState.RUNNING
    assert fixture.controller.image.topics_by_name["t"].partitions[0].leader == 2
    lines = [line for line in map(formatEvent, told) if "again" in line or "heartbeat" in line]
    assert len(lines) == 2 and lines[-1] == f"registered again, under broker epoch {broker.epoch}"


def test_a_registration_that_the_metadata_passed_is_not_served_by(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.2: a controller that was set back grants an epoch that this broker's metadata is beyond:
    by that metadata it would lead under an epoch that has passed (seed 400976). It asks again.
    """
    MemberSide(fixture, 3).follow().join()
    fixture.place_topic("t", [3])
    member = MemberSide(fixture, 2).follow()
    old = member.observer.image.offset - 1
    asked: list[str] = []

    def grants(name: str) -> Any:
        async def granted(self: Registration) -> int:
            asked.append(name)
            return old

        return granted

    with monkeypatch.context() as patch:
        for name in ("first", "again"):
            patch.setattr(Registration, name, grants(name))
        member.join()
        fixture.pass_time(1.0)
        assert member.lifecycle.state is BrokerState.STARTING
        assert not member.lifecycle.caught_up.called
        assert asked[0] == "first" and asked.count("again") == 2
    fixture.pass_time(1.0)
    assert member.lifecycle.state is BrokerState.RUNNING
    assert member.lifecycle.broker_epoch == fixture.controller.image.brokers[2].epoch > old


def at_level(fixture: ControllerFixture, level: int) -> None:
    record = FeatureLevelRecord(name=METADATA_VERSION, feature_level=level)
    fixture.controller.write([record])
    fixture.settle()


def test_directories_are_registered_when_the_metadata_can_name_them(
    fixture: ControllerFixture,
) -> None:
    """Kafka's BrokerRegistrationTracker: once, at the level where they belong to a registration;
    the broker epoch stays, and it is not fenced meanwhile.
    """
    at_level(fixture, 15)
    member = MemberSide(fixture, 2).follow().join()
    epoch, image = member.lifecycle.broker_epoch, fixture.controller.image
    assert image.brokers[2].directories == () and not image.brokers[2].fenced
    at_level(fixture, 16)
    assert fixture.controller.image.brokers[2].directories == ()
    with capturedLogs() as told:
        at_level(fixture, 17)
    broker = fixture.controller.image.brokers[2]
    assert broker.directories == (DIRECTORY_ID[:15] + bytes([2]),)
    assert (broker.epoch, broker.fenced) == (epoch, False)
    assert (member.lifecycle.broker_epoch, member.lifecycle.state) == (epoch, BrokerState.RUNNING)
    assert sum("registering them" in line for line in map(formatEvent, told)) == 1


def test_a_controller_that_takes_no_directories_is_not_asked_again_and_again(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each level, though every registration is a change of this broker."""
    at_level(fixture, 15)
    member = MemberSide(fixture, 2).follow().join()
    heard: list[BrokerRegistrationRequest] = []
    register = broker_registry.register

    def without_directories(view: Any, request: Any, *rest: Any) -> Any:
        heard.append(request)
        decision = yield from register(view, request, *rest)
        (record,) = decision.records
        assert isinstance(record, RegisterBrokerRecord)
        record.log_dirs = []
        return decision

    monkeypatch.setattr(broker_registry, "register", without_directories)
    at_level(fixture, 17)
    at_level(fixture, 18)
    fixture.pass_time(5.0)
    assert len(heard) == 2 and member.lifecycle.state is BrokerState.RUNNING


def test_a_broker_that_was_unregistered_may_leave_at_once(fixture: ControllerFixture) -> None:
    """RL 8.2: the controller does not know it: there is nothing to hand over."""
    member = MemberSide(fixture, 2).follow().join()
    unregister(fixture, 2)
    at = fixture.clock.seconds()
    left = member.lifecycle.controlled_shutdown()
    fixture.pass_time(0.2)
    assert (
        left.called
        and fixture.clock.seconds() - at < 0.25
        and 2 not in fixture.controller.image.brokers
    )


def test_another_process_has_the_node_id(fixture: ControllerFixture) -> None:
    """RL 8.2: a broker that comes back to find its id taken by one that lives must not go on,
    and says where that one is.
    """
    member = MemberSide(fixture, 2).follow().join()
    unregister(fixture, 2)
    fixture.beat(2, fixture.register(2, b"another process."))
    for _ in range(5):
        fixture.pass_time(1.0)
        fixture.beat(2, fixture.controller.image.brokers[2].epoch)
    (reason,) = member.refused
    assert reason == (
        "node id 2 belongs to a running broker at 127.0.0.1:9092: stop that broker, or "
        "give this one another node.id"
    )
    assert member.lifecycle.state is BrokerState.NOT_RUNNING
    assert fixture.controller.image.brokers[2].incarnation_id == b"another process."


def test_a_node_id_that_stays_taken_ends_the_start(fixture: ControllerFixture) -> None:
    """KRAFT 3.4: the other one's session holds to the end of
    `initial.broker.registration.timeout.ms`; the waiting is told once.
    """
    epoch = fixture.join(2)
    problems: list[Any] = []
    with capturedLogs() as told:
        member = MemberSide(
            fixture, 2, **{"initial.broker.registration.timeout.ms": "5000"}
        ).follow()
        member.lifecycle.caught_up.addErrback(problems.append)
        member.join(incarnation=b"new" + bytes(13), ready=False)
        for _ in range(6):
            fixture.pass_time(1.0)
            fixture.beat(2, epoch)
    assert problems[
        0
    ].value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION and "another node.id" in str(
        problems[0].value
    )
    assert len([line for line in map(formatEvent, told) if "refuses the registration" in line]) == 1


class Mute(Protocol):
    """Takes what is sent, and says nothing."""


class MuteController(Factory):
    """Like a process that was stopped by a signal: its port is open, nobody answers."""

    noisy = False
    protocol = Mute


def test_a_controller_that_does_not_answer_is_logged_once(fixture: ControllerFixture) -> None:
    """RL 8.1: its silence in one line, its return in another; the broker never loses its session
    by it.
    """
    member = MemberSide(fixture, 2).follow().join()
    with capturedLogs() as told:
        fixture.crash()
        ports: list[Any] = []
        fixture.network.listen("127.0.0.1", PORT, MuteController()).addCallback(ports.append)
        fixture.pass_time(6.0)
        ports[0].stopListening()  # the connections stay, as after a loss of power
        fixture.restart()
        fixture.serve()
        for _ in range(40):
            fixture.pass_time(0.5)
            assert not fixture.controller.image.brokers[2].fenced
    lines = [line for line in map(formatEvent, told) if "controller" in line]
    assert len([line for line in lines if "no controller answers" in line]) == 1
    assert len([line for line in lines if "answers again" in line]) == 1
    assert member.lifecycle.state is BrokerState.RUNNING


def test_a_silent_address_costs_no_session_of_three_seconds() -> None:
    """RL 8.2: the connection for metadata is lost, and the next address says nothing."""
    session = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "1000"}
    fixture = served(session)
    fixture.network.listen("127.0.0.1", 9999, MuteController())
    bootstrap = [("127.0.0.1", PORT), ("127.0.0.1", 9999)]
    member = MemberSide(fixture, 2, bootstrap, **session).follow().join()
    for _ in range(20):
        fixture.pass_time(3.19)
        connection = member.observer._connection
        assert connection is not None
        connection.disconnect()
        for _ in range(30):
            fixture.pass_time(0.1)
            assert not fixture.controller.image.brokers[2].fenced
    assert member.lifecycle.state is BrokerState.RUNNING


def test_heartbeats_leave_a_connection_that_died_for_one_side(fixture: ControllerFixture) -> None:
    """RL 8.2: an answer is awaited for half a session at most: the next beat goes over a new
    connection, before the session is over.
    """
    member = MemberSide(fixture, 2).follow().join()
    connection = member.lifecycle._channel._connection
    assert connection is not None and connection.connected
    connection._protocol.transport.write = lambda data: None
    for _ in range(40):
        fixture.pass_time(0.5)
        assert not fixture.controller.image.brokers[2].fenced


def test_a_way_that_is_blocked_for_less_than_a_session_does_not_cost_it(
    fixture: ControllerFixture,
) -> None:
    """RL 8.2: the old connection says nothing, a new one cannot be made for a second: the next
    try is soon enough.
    """
    member = MemberSide(fixture, 2).follow().join()
    connection, connect = member.lifecycle._channel._connection, fixture.network.connect
    assert connection is not None
    connection._protocol.transport.write = lambda data: None

    def blocked(host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        attempt: Deferred[Any] = Deferred()
        fixture.clock.callLater(timeout, attempt.errback, TimeoutError())
        return attempt

    fixture.network.connect = blocked
    fixture.pass_time(7.5)
    fixture.network.connect = connect
    for _ in range(20):
        fixture.pass_time(0.5)
        assert not fixture.controller.image.brokers[2].fenced
