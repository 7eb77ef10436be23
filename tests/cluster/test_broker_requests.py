"""What brokers ask of the controller: ISR changes, forwarded requests, producer ids,
directories.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from tests.cluster.controller_fixture import ControllerFixture, MemberSide, served
from tests.cluster.fixtures import DIRECTORY_ID, StalledWorker
from twisted_broker.api.context import BrokerParts, ListenerName, RequestContext
from twisted_broker.cluster import directory_assignments
from twisted_broker.cluster.directory_assignments import DirectoryAssignments
from twisted_broker.cluster.forwarding_manager import ProducerIdManager
from twisted_broker.image.entries import LOST
from twisted_broker.image.metadata_image import MetadataDelta, MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.isr_state import IsrAnswer, IsrProposal
from twisted_broker.security.acl import AllowAll
from twisted_broker.security.principal import Principal
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages import topics
from twisted_broker.wire.messages.producer_ids import AllocateProducerIdsResponse
from twisted_broker.wire.schema import encode


@pytest.fixture
def fixture() -> ControllerFixture:
    return served()


def members(fixture: ControllerFixture, *nodes: int) -> list[MemberSide]:
    return [MemberSide(fixture, node).follow().join() for node in nodes]


def proposal(
    fixture: ControllerFixture, name: str, number: int, *isr: int, **changes: Any
) -> IsrProposal:
    topic = fixture.controller.image.topics_by_name[name]
    state = topic.partitions[number]
    members = tuple((node, fixture.controller.image.brokers[node].epoch) for node in isr)
    made = IsrProposal(
        TopicPartition(name, number),
        topic.id,
        state.leader_epoch,
        state.partition_epoch,
        members,
        state.leader_recovery_state,
    )
    return made._replace(**changes)


def outcome(answer: Deferred[IsrAnswer]) -> IsrAnswer:
    found: list[IsrAnswer] = []
    answer.addCallback(found.append)
    assert found, "no answer yet"
    return found[0]


def test_an_isr_change_is_answered(fixture: ControllerFixture) -> None:
    """RL 2.5: granted with the new state, or refused with the partition's own error."""
    first, _ = members(fixture, 2, 3)
    fixture.place_topic("t", [2, 3], [2, 3])
    good = first.isr_changes.submit(proposal(fixture, "t", 0, 2))
    stale = first.isr_changes.submit(proposal(fixture, "t", 1, 2, partition_epoch=-1))
    fixture.settle()
    answer = outcome(good)
    assert (answer.error, answer.isr, answer.partition_epoch, answer.leader_id) == (
        ErrorCode.NONE,
        frozenset({2}),
        1,
        2,
    )
    assert outcome(stale).error is ErrorCode.INVALID_UPDATE_VERSION
    assert fixture.clock.seconds() == 0


def test_one_request_is_in_flight_and_the_rest_goes_together() -> None:
    """RL 1.2: what is proposed while a request is under way goes with the next one, at once
    after its answer.
    """
    worker = StalledWorker()
    fixture = ControllerFixture(worker)
    fixture.start()
    fixture.serve()
    worker.run()
    (first,) = [MemberSide(fixture, 2).follow()]
    pump(fixture, worker)
    first.join()
    pump(fixture, worker)
    made = fixture.send(
        "create_topics",
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name="t", num_partitions=3, replication_factor=1)]
        ),
        7,
    )
    pump(fixture, worker)
    assert made.called
    recovering = {"leader_recovery_state": 0}
    answers = [first.isr_changes.submit(proposal(fixture, "t", 0, 2, **recovering))]
    fixture.settle()
    answers += [
        first.isr_changes.submit(proposal(fixture, "t", number, 2, **recovering))
        for number in (1, 2)
    ]
    double = first.isr_changes.submit(proposal(fixture, "t", 2, 2))
    assert outcome(double).error is ErrorCode.OPERATION_NOT_ATTEMPTED
    pump(fixture, worker)
    assert [outcome(answer).error for answer in answers] == [ErrorCode.NONE] * 3


def pump(fixture: ControllerFixture, worker: StalledWorker) -> None:
    """Network and disk until both rest."""
    fixture.settle()
    while worker.jobs:
        worker.run()
        fixture.settle()


def test_what_an_error_left_is_tried_50_ms_later(fixture: ControllerFixture) -> None:
    """RL 1.2: no controller, or an error of the whole request: the proposal stays until it is
    answered.
    """
    first, _ = members(fixture, 2, 3)
    fixture.place_topic("t", [2, 3])
    wanted = proposal(fixture, "t", 0, 2)
    epoch, first.lifecycle.broker_epoch = first.lifecycle.broker_epoch, 1
    answer = first.isr_changes.submit(wanted)
    fixture.settle()
    assert not answer.called
    first.lifecycle.broker_epoch = epoch
    fixture.pass_time(0.04)
    assert not answer.called
    fixture.pass_time(0.02)
    assert outcome(answer).error is ErrorCode.NONE


def test_a_withdrawn_proposal_is_not_sent_again(fixture: ControllerFixture) -> None:
    """RL 2.5: led elsewhere meanwhile."""
    first, _ = members(fixture, 2, 3)
    topic_id = fixture.place_topic("t", [2, 3])
    fixture.crash()
    answer = first.isr_changes.submit(proposal(fixture, "t", 0, 2))
    first.isr_changes.withdraw(topic_id, 0)
    assert outcome(answer).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


class OnlyAlice(AllowAll):
    """Alice may create topics, if she comes from her desk; nobody else may."""

    def authorize(self, principal: Principal, host: str, *what: Any) -> bool:
        return principal.name in ("alice", "ANONYMOUS") and (
            principal.name == "ANONYMOUS" or host == "10.1.2.3"
        )


class NoEnvelopes(AllowAll):
    """Brokers follow the metadata, but what they pass on is not believed."""

    is_denying = False

    def authorize(self, principal: Principal, host: str, *what: Any) -> bool:
        return not self.is_denying


def test_a_clients_request_that_the_controller_does_not_believe(fixture: ControllerFixture) -> None:
    """The broker may not pass it on: its client hears of a failure, not that it lacks a permission
    itself (Kafka's `ForwardingManager`).
    """
    (member,) = members(fixture, 2)
    fixture.authorizer = denying = NoEnvelopes()
    fixture.port.stopListening()
    fixture.factory.close_all()
    fixture.serve()
    fixture.pass_time(1.0)
    denying.is_denying = True
    request = topics.CreateTopicsRequest(topics=[topics.CreatableTopic(name="t")])
    answer = forwarded(member, request, "alice", "10.1.2.3")
    failure: list[Any] = []
    answer.addErrback(failure.append)
    fixture.settle()
    assert failure[0].value.code == ErrorCode.UNKNOWN_SERVER_ERROR


def forwarded(
    member: MemberSide,
    request: topics.CreateTopicsRequest,
    principal: str,
    host: str,
    version: int = 7,
) -> Any:
    context = client_context(member, request, principal, host, version)
    return ensureDeferred(member.forwarding.forward(context, topics.CreateTopicsResponse))


def client_context(
    member: MemberSide,
    request: topics.CreateTopicsRequest,
    principal: str = "alice",
    host: str = "10.0.0.1",
    version: int = 7,
) -> RequestContext:
    parts = BrokerParts(
        node_id=2,
        cluster_id="",
        config=member.config,
        runtime=member.runtime,
        authorizer=AllowAll(),
    )
    raw = encode_request_header(RequestHeader(19, version, 4711, "admin")) + encode(
        request, version
    )
    listener = ListenerName("PLAINTEXT")
    return RequestContext(
        parts,
        listener,
        19,
        version,
        4711,
        "admin",
        host,
        Principal("User", principal),
        raw_request=raw,
    )


@pytest.mark.parametrize("version", [2, 5, 7])
def test_a_request_goes_on_with_its_clients_principal_and_address(
    fixture: ControllerFixture, version: int
) -> None:
    """KIP-590: the controller decides as if the client had come itself."""
    (member,) = members(fixture, 2)
    fixture.authorizer = OnlyAlice()
    fixture.port.stopListening()
    fixture.factory.close_all()
    fixture.serve()
    fixture.pass_time(1.0)
    codes = []
    for name, principal, host in (
        ("one", "alice", "10.1.2.3"),
        ("two", "bob", "10.1.2.3"),
        ("three", "alice", "10.9.9.9"),
    ):
        request = topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
        )
        answer = forwarded(member, request, principal, host, version)
        fixture.settle()
        codes.append(answer.result.topics[0].error_code)
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert codes == [0, refused, refused]


def test_a_request_that_finds_no_controller_times_out(fixture: ControllerFixture) -> None:
    """Invariant 2 of forwarding: tried again until 20 s are over, before the client gives up."""
    (member,) = members(fixture, 2)
    fixture.crash()
    answer = forwarded(member, topics.CreateTopicsRequest(), "alice", "10.1.2.3")
    fixture.pass_time(19.0)
    assert not answer.called
    fixture.pass_time(2.0)
    with pytest.raises(BrokerError) as caught:
        answer.result.raiseException()
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    answer.addErrback(lambda failure: None)


def test_a_request_survives_the_restart_of_the_controller(fixture: ControllerFixture) -> None:
    """Invariant 2 of forwarding: a client hears nothing of a short absence."""
    (member,) = members(fixture, 2)
    fixture.crash()
    request = topics.CreateTopicsRequest(
        topics=[topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    )
    answer = forwarded(member, request, "alice", "10.1.2.3")
    fixture.pass_time(3.0)
    fixture.restart()
    fixture.serve()
    fixture.pass_time(3.0)
    assert answer.result.topics[0].error_code == 0


def test_what_is_in_flight_survives_the_loss_of_another_connection() -> None:
    """Kafka's channels keep their connections while nobody else leads. Sent twice, a client's
    CreateTopics would be refused: the first one made the topic.
    """
    worker = StalledWorker()
    fixture = ControllerFixture(worker)
    fixture.start()
    fixture.serve()
    worker.run()
    member = MemberSide(fixture, 2).follow()
    pump(fixture, worker)
    member.join()
    pump(fixture, worker)
    requests = [
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
        )
        for name in ("t", "u")
    ]
    first = forwarded(member, requests[0], "alice", "10.1.2.3")
    fixture.settle()
    assert worker.jobs and not first.called
    fetching = member.observer._connection
    assert fetching is not None
    fetching._protocol.transport.peer.loseConnection()
    fixture.settle()
    second = forwarded(member, requests[1], "alice", "10.1.2.3")
    pump(fixture, worker)
    fixture.pass_time(0.2)
    pump(fixture, worker)
    codes = [answer.result.topics[0].error_code for answer in (first, second)]
    assert codes == [0, 0]


def test_what_is_in_flight_is_sent_again_where_its_connection_is_silent(
    fixture: ControllerFixture,
) -> None:
    """Nobody knows a leader for a moment, and the old connection brings no answer."""
    (member,) = members(fixture, 2)
    requests = [
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
        )
        for name in ("t", "u", "v")
    ]
    answers = [forwarded(member, requests[0], "alice", "10.1.2.3")]
    fixture.settle()
    silent = member.forwarding.channel._connection
    assert silent is not None
    silent._protocol.transport.peer.pauseProducing()
    leader = member.observer.leader_address
    answers.append(forwarded(member, requests[1], "alice", "10.1.2.3"))
    member.observer.leader_address = None
    answers.append(forwarded(member, requests[2], "alice", "10.1.2.3"))
    member.observer.leader_address = leader
    fixture.pass_time(1.9)
    assert [answer.called for answer in answers] == [True, False, True]
    fixture.pass_time(0.2)
    assert [answer.result.topics[0].error_code for answer in answers] == [0, 0, 0]
    fixture.pass_time(3.0)
    member.stop()


def test_a_topic_is_asked_for_once_however_many_name_it(fixture: ControllerFixture) -> None:
    """Kafka's AutoTopicCreationManager: while a creation is on its way the topic is not asked
    for again.
    """
    (member,) = members(fixture, 2)
    wanted = topics.CreatableTopic(name="auto", num_partitions=-1, replication_factor=-1)
    before = fixture.controller.log.end_offset
    client = client_context(member, topics.CreateTopicsRequest())
    for _ in range(5):
        member.forwarding.create_in_background(client, [wanted])
    fixture.settle()
    assert fixture.controller.log.end_offset == before + 2
    assert member.observer.image.topics_by_name["auto"].partitions[0].leader == 2
    assert member.forwarding._creating == set()


def test_producer_ids_are_never_given_twice(fixture: ControllerFixture) -> None:
    """KIP-730: blocks of 1,000; two brokers, a block that ends, a controller that restarts: all
    different.
    """
    sides = members(fixture, 2, 3)
    given = [take(fixture, side) for side in sides for _ in range(1001)]
    fixture.crash()
    fixture.restart()
    fixture.serve()
    fixture.pass_time(2.0)
    given += [take(fixture, side) for side in sides for _ in range(1001)]
    assert len(set(given)) == len(given) == 4004
    assert fixture.controller.image.next_producer_id == 6000


def take(fixture: ControllerFixture, member: MemberSide) -> int:
    answer = ensureDeferred(member.forwarding.producer_ids.next())
    if not answer.called:
        fixture.pass_time(1.0)
    found: int = answer.result  # type: ignore[assignment]
    return found


def test_many_who_wait_for_ids_share_one_block(fixture: ControllerFixture) -> None:
    """KIP-730: one request for a block, whoever waits."""
    (member,) = members(fixture, 2)
    waiting = [ensureDeferred(member.forwarding.producer_ids.next()) for _ in range(50)]
    fixture.settle()
    assert sorted(cast(int, answer.result) for answer in waiting) == list(range(50))
    assert fixture.controller.image.next_producer_id == 1000


class Blocks:
    """A channel whose answers hold these blocks, or error codes."""

    def __init__(self, *answers: tuple[int, int] | ErrorCode) -> None:
        self.answers, self.asked = list(answers), 0

    async def send_until_answered(self, request: Any, version: int) -> Any:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, ErrorCode):
            return AllocateProducerIdsResponse(error_code=answer)
        return AllocateProducerIdsResponse(producer_id_start=answer[0], producer_id_len=answer[1])


def manager(clock: Clock, channel: Blocks) -> ProducerIdManager:
    runtime: Any = SimpleNamespace(clock=clock, now_ms=lambda: round(clock.seconds() * 1000))
    member, sends = SimpleNamespace(broker_epoch=1), cast(Any, channel)
    return ProducerIdManager(runtime, 2, sends, member)


def given(ids: ProducerIdManager) -> int | ErrorCode:
    """The id, or why there is none."""
    found: list[Any] = []
    ensureDeferred(ids.next()).addBoth(found.append)
    if isinstance(found[0], Failure):
        assert isinstance(found[0].value, BrokerError)
        return found[0].value.code
    answer: int = found[0]
    return answer


@pytest.mark.parametrize(
    "bad", [(-1, 10), (12, 0), (12, -1), (11, 10), (0, 10), (2**63 - 10, 10), (2**63 - 1, 1)]
)
def test_a_block_that_gives_no_new_ids_is_refused(bad: tuple[int, int]) -> None:
    """`testInvalidRanges` of Kafka's `ProducerIdManagerTest`. After a start no block is known, and
    any is taken that is one.
    """
    clock, channel = Clock(), Blocks((10, 2), bad, bad, (12, 1))
    ids = manager(clock, channel)
    with capturedLogs() as told:
        assert [given(ids), given(ids)] == [10, 11]
        for _ in range(2):
            assert given(ids) is ErrorCode.UNKNOWN_SERVER_ERROR
            clock.advance(0.05)
        assert given(ids) == 12
    assert [str(bad[0]) in formatEvent(event) for event in told] == [True]
    assert given(manager(clock, Blocks((0, 10)))) == 0


@pytest.mark.parametrize(
    "failure",
    [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.INVALID_REQUEST,
        (-1, 10),
    ],
)
def test_after_a_failure_no_block_is_requested_for_50_ms(
    failure: ErrorCode | tuple[int, int],
) -> None:
    """`testUnrecoverableErrors` and `testRetryBackoff` of Kafka's `ProducerIdManagerTest`: however
    many come meanwhile.
    """
    clock, channel = Clock(), Blocks(failure, (7, 2))
    ids, expected = manager(clock, channel), ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(failure, ErrorCode):
        expected = failure
    for _ in range(49):
        assert given(ids) is expected and channel.asked == 1
        clock.advance(0.001)
    clock.advance(0.001)
    assert given(ids) == 7 and channel.asked == 2


def test_the_last_producer_ids_there_are() -> None:
    """Kafka never gives 2**63 - 1 either."""
    ids = manager(Clock(), Blocks((2**63 - 3, 2)))
    assert [given(ids), given(ids)] == [2**63 - 3, 2**63 - 2]


def test_a_replica_that_lies_elsewhere_is_reported(fixture: ControllerFixture) -> None:
    """KIP-858: with two directories the record says UNASSIGNED until the broker told where the
    replica is.
    """
    two = [DIRECTORY_ID[:15] + b"\x02", DIRECTORY_ID[:15] + b"\x62"]
    (member,) = members(fixture, 2)
    fixture.register(2, bytes([2]) * 16, log_dirs=two)
    assignments = DirectoryAssignments(
        member.runtime, 2, member.channel("directories"), member.lifecycle, lambda partition: two[1]
    )
    member.observer.subscribe(assignments.apply_delta)
    fixture.place_topic("t", [2], [2])
    fixture.settle()
    partitions = fixture.controller.image.topics_by_name["t"].partitions
    assert [partitions[number].directories for number in (0, 1)] == [(two[1],), (two[1],)]
    end = fixture.controller.log.end_offset
    fixture.settle()
    assert fixture.controller.log.end_offset == end and assignments._wanted == {}
    assignments.stop()


def test_many_replicas_are_reported_some_at_a_time_and_the_refused_ones_last(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_assignments, "MOST_PARTITIONS", 2)
    two = [DIRECTORY_ID[:15] + b"\x02", DIRECTORY_ID[:15] + b"\x62"]
    (member,) = members(fixture, 2)
    fixture.register(2, bytes([2]) * 16, log_dirs=two)
    channel, sent = member.channel("directories"), list[int]()
    send_once = channel.send_once

    async def counted(request: Any, version: int, timeout_ms: int | None = None) -> Any:
        sent.append(sum(len(t.partitions) for d in request.directories for t in d.topics))
        return await send_once(request, version, timeout_ms)

    monkeypatch.setattr(channel, "send_once", counted)
    assignments = DirectoryAssignments(
        member.runtime, 2, channel, member.lifecycle, lambda partition: two[1]
    )
    for number in range(2):  # of a topic that the controller does not have
        assignments.assign(bytes(16), TopicPartition("gone", number), two[0], lambda: None)
    member.observer.subscribe(assignments.apply_delta)
    fixture.place_topic("t", *[[2]] * 5)
    fixture.settle()
    fixture.clock.advance(0.5)  # the pause after the first two
    fixture.settle()
    partitions = fixture.controller.image.topics_by_name["t"].partitions
    assert {each.directories for each in partitions.values()} == {(two[1],)}
    assert max(sent) == 2
    assignments.stop()


def test_a_move_is_announced_and_may_be_taken_back(fixture: ControllerFixture) -> None:
    """KIP-858: who moves a replica hears that the controller took it; metadata that comes
    meanwhile does not report the old place; a move that ends is reverted.
    """
    two = [DIRECTORY_ID[:15] + b"\x02", DIRECTORY_ID[:15] + b"\x62"]
    (member,) = members(fixture, 2)
    fixture.register(2, bytes([2]) * 16, log_dirs=two)
    assignments = DirectoryAssignments(
        member.runtime, 2, member.channel("directories"), member.lifecycle, lambda partition: two[0]
    )
    member.observer.subscribe(assignments.apply_delta)
    fixture.place_topic("t", [2], [2])
    fixture.settle()

    def known(number: int) -> bytes:
        return fixture.controller.image.topics_by_name["t"].partitions[number].directories[0]

    topic_id = fixture.controller.image.topics_by_name["t"].id
    accepted: list[int] = []
    for number in (0, 1):
        name = TopicPartition("t", number)
        assignments.assign(topic_id, name, two[1], partial(accepted.append, number))
    fixture.settle()
    assert set(accepted) == {0, 1} and known(0) == known(1) == two[1]
    assignments.moved(topic_id, TopicPartition("t", 1))
    assignments.revert(topic_id, TopicPartition("t", 0), two[0])
    accepted.clear()
    fixture.settle()
    assert (known(0), known(1)) == (two[0], two[1])
    assert not accepted and not assignments._moving
    assignments.stop()


def test_below_3_7_iv2_no_move_waits_for_the_controller(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-858: a controller of Apache Kafka refuses AssignReplicasToDirs for ever there: nothing is
    sent, moves go on at once, also one that was announced before the level was known.
    """
    member, _ = members(fixture, 2, 3)
    fixture.place_topic("t", [2])
    topic_id = fixture.controller.image.topics_by_name["t"].id
    before = fixture.controller.image
    old = replace(before, features={**before.features, "metadata.version": 16})
    sent: list[object] = []
    channel = member.channel("directories")
    monkeypatch.setattr(channel, "send_once", lambda request, version: sent.append(request))
    assignments = DirectoryAssignments(
        member.runtime, 2, channel, member.lifecycle, lambda partition: DIRECTORY_ID
    )
    accepted: list[str] = []
    name, target = TopicPartition("t", 0), DIRECTORY_ID[:15] + b"\x09"
    assignments.assign(topic_id, name, target, lambda: accepted.append("before"))
    changed = MetadataDelta.between(MetadataImage(), old)
    assert changed.partitions
    assignments.apply_delta(changed)
    assert accepted == ["before"]
    assignments.assign(topic_id, name, target, lambda: accepted.append("then"))
    assert accepted == ["before", "then"]
    assignments.moved(topic_id, name)
    fixture.clock.advance(1)
    assert sent == []
    assignments.stop()


def test_a_replica_that_failed_alone_is_reported_as_lost(fixture: ControllerFixture) -> None:
    """KIP-858: heartbeats report directories only. Another leads; metadata that comes meanwhile,
    and a move that ends, do not report the directory; a next process does.
    """
    two = [DIRECTORY_ID[:15] + b"\x02", DIRECTORY_ID[:15] + b"\x62"]
    member, _ = members(fixture, 2, 3)
    fixture.register(2, bytes([2]) * 16, log_dirs=two)

    def started() -> DirectoryAssignments:
        made = DirectoryAssignments(
            member.runtime,
            2,
            member.channel("directories"),
            member.lifecycle,
            lambda partition: two[0],
        )
        member.observer.subscribe(made.apply_delta)
        return made

    def placed() -> list[tuple[int, bytes]]:
        topic = fixture.controller.image.topics_by_name["t"]
        return [(each.leader, each.directory_of(2)) for each in topic.partitions.values()]

    assignments = started()
    fixture.place_topic("t", [2, 3], [2, 3])
    fixture.settle()
    assert placed() == [(2, two[0]), (2, two[0])]
    name, topic_id = TopicPartition("t", 0), fixture.controller.image.topics_by_name["t"].id
    assignments.assign(topic_id, name, two[1], lambda: None)
    assignments.failed(topic_id, name)
    assignments.revert(topic_id, name, two[0])
    fixture.settle()
    assert placed() == [(3, LOST), (2, two[0])] and not assignments._wanted
    fixture.beat(3, fixture.controller.image.brokers[3].epoch, want_fence=True)
    fixture.settle()
    assert placed()[0][1] == LOST and not assignments._wanted
    assignments.stop()
    again = started()
    again.apply_delta(MetadataDelta.between(MetadataImage(), fixture.controller.image))
    fixture.settle()
    assert placed()[0][1] == two[0]
    again.stop()


def test_above_3_7_iv2_what_happened_below_is_reported(fixture: ControllerFixture) -> None:
    """KIP-858: a replica that failed alone, and those whose directories no record names; not one
    that came again after it had failed.
    """
    two = [DIRECTORY_ID[:15] + b"\x02", DIRECTORY_ID[:15] + b"\x62"]
    member, _ = members(fixture, 2, 3)
    fixture.register(2, bytes([2]) * 16, log_dirs=two)
    fixture.place_topic("t", [2, 3], [2, 3], [2, 3])
    fixture.settle()
    topic_id = fixture.controller.image.topics_by_name["t"].id
    assignments = DirectoryAssignments(
        member.runtime, 2, member.channel("directories"), member.lifecycle, lambda partition: two[0]
    )
    image = fixture.controller.image

    def below(without: int | None = None) -> MetadataImage:
        kept = {n: p for n, p in image.topics_by_id[topic_id].partitions.items() if n != without}
        topic = image.topics_by_id[topic_id]._replace(partitions=kept)
        return replace(
            image,
            features={**image.features, "metadata.version": 16},
            topics_by_id={**image.topics_by_id, topic_id: topic},
            topics_by_name={**image.topics_by_name, "t": topic},
        )

    assignments.apply_delta(MetadataDelta.between(MetadataImage(), below()))
    for number in (0, 2):
        assignments.failed(topic_id, TopicPartition("t", number))
    assignments.apply_delta(MetadataDelta.between(below(), below(without=2)))
    assignments.apply_delta(MetadataDelta.between(below(without=2), below()))
    fixture.settle()
    assert fixture.controller.image is image
    raised = MetadataDelta.between(below(), image)
    assert not raised.partitions
    assignments.apply_delta(raised)
    fixture.settle()
    partitions = fixture.controller.image.topics_by_name["t"].partitions
    placed = [(each.leader, each.directory_of(2)) for each in partitions.values()]
    assert placed == [(3, LOST), (2, two[0]), (2, two[0])]
    assert not assignments._wanted
    assignments.stop()


def test_a_replica_that_no_directory_holds_is_reported_as_lost(fixture: ControllerFixture) -> None:
    """KRAFT 3.6: only while the controller knows of no directory for it: of a known one the
    heartbeats tell, and which one it was is kept.
    """
    two = [DIRECTORY_ID[:15] + b"\x02", DIRECTORY_ID[:15] + b"\x62"]
    member, _ = members(fixture, 2, 3)
    fixture.register(2, bytes([2]) * 16, log_dirs=two)
    held: dict[TopicPartition, bytes] = {}
    assignments = DirectoryAssignments(
        member.runtime,
        2,
        member.channel("directories"),
        member.lifecycle,
        lambda partition: held.get(partition, LOST),
    )
    member.observer.subscribe(assignments.apply_delta)
    held[TopicPartition("t", 1)] = two[0]
    fixture.place_topic("t", [2, 3], [2, 3])
    partitions = fixture.controller.image.topics_by_name["t"].partitions
    assert [(each.leader, each.directory_of(2)) for each in partitions.values()] == [
        (3, LOST),
        (2, two[0]),
    ]
    held.clear()
    end = fixture.controller.log.end_offset
    fixture.beat(
        3, fixture.controller.image.brokers[3].epoch, want_fence=True
    )  # a delta for both partitions
    fixture.settle()
    partitions = fixture.controller.image.topics_by_name["t"].partitions
    assert (
        fixture.controller.log.end_offset > end
        and partitions[1].directory_of(2) == two[0]
        and assignments._wanted == {}
    )
    assignments.stop()
