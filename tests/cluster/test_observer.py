"""A broker follows the metadata log over the network."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import TimeoutError
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import capturedLogs, formatEvent

from tests.cluster.controller_fixture import PORT, ControllerFixture, MemberSide, served
from twisted_broker.cluster import metadata_log
from twisted_broker.cluster import observer as observer_module
from twisted_broker.cluster.metadata_loader import MetadataRegression
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.messages import metadata_records
from twisted_broker.wire.messages.cluster import ReplicaState
from twisted_broker.wire.records import BatchBuilder


@pytest.fixture
def fixture() -> ControllerFixture:
    return served()


def test_the_image_arrives_without_any_wait(fixture: ControllerFixture) -> None:
    """RL 8.2: leader discovery, the log and its high watermark take round trips, not time."""
    member = MemberSide(fixture, 2).follow()
    assert fixture.clock.seconds() == 0
    assert member.observer.image == fixture.controller.image
    assert (
        member.observer.leader_id,
        member.observer.leader_epoch,
        member.observer.leader_address,
    ) == (1, 1, ("127.0.0.1", PORT))


def test_a_change_is_published_at_once(fixture: ControllerFixture) -> None:
    """RL 8.2: each subscriber hears of each delta, in order; waiters of an offset after that."""
    member = MemberSide(fixture, 2).follow()
    order: list[str] = []
    member.observer.subscribe(lambda delta: order.append("delta"))
    reached = member.observer.reaches(fixture.controller.image.offset + 1)
    reached.addCallback(lambda _: order.append("reached"))
    fixture.join(7)
    fixture.settle()
    assert fixture.clock.seconds() == 0
    assert order[:2] == ["delta", "reached"]
    assert member.observer.image == fixture.controller.image
    for earlier, later in zip(member.deltas, member.deltas[1:], strict=False):
        assert earlier.after.offset <= later.before.offset


def test_empty_records_move_the_offset_and_disturb_nobody(fixture: ControllerFixture) -> None:
    """RL 8.1: NoOp every 500 ms: the image's offset goes on, subscribers sleep."""
    member = MemberSide(fixture, 2).follow()
    heard, offset = len(member.deltas), member.observer.image.offset
    fixture.pass_time(2.0)
    assert member.observer.image.offset >= offset + 3 and len(member.deltas) == heard


def test_a_subscriber_that_fails_does_not_stop_the_others(fixture: ControllerFixture) -> None:
    """Invariant 3."""
    member = MemberSide(fixture, 2)
    member.observer._subscribers.insert(0, lambda delta: 1 / 0)
    member.follow()
    assert len(member.deltas) == 1 and member.ended == []


def test_a_snapshot_is_loaded_over_the_network() -> None:
    """KRAFT 3.2: from offset 0 the newest snapshot comes first, then the log behind it."""
    fixture = served({"metadata.log.max.record.bytes.between.snapshots": "2000"})
    fixture.join(7)
    fixture.create_topic("t", 200)
    fixture.advance(0.5)
    fixture.create_topic("after")
    assert fixture.controller.log.snapshots
    member = MemberSide(fixture, 2).follow()
    assert member.observer.image == fixture.controller.image
    fixture.join(8)
    fixture.settle()
    assert member.observer.image == fixture.controller.image


@pytest.mark.parametrize("piece", [1, 61, 1000])
def test_a_snapshot_comes_in_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """KRAFT 3.2: pieces end anywhere, also in the middle of a batch."""
    fixture = served({"metadata.log.max.record.bytes.between.snapshots": "2000"})
    fixture.join(7)
    fixture.create_topic("t", 40)
    fixture.advance(0.5)
    (snapshot,) = fixture.controller.log.snapshots
    asked: list[int] = []
    read = metadata_log.MetadataLog._read_piece
    monkeypatch.setattr(metadata_log, "MAX_SNAPSHOT_BYTES", piece)
    monkeypatch.setattr(
        metadata_log.MetadataLog,
        "_read_piece",
        lambda self, *rest: (asked.append(rest[1].position), read(self, *rest))[1],
    )
    member = MemberSide(fixture, 2).follow()
    assert (
        member.observer.image == fixture.controller.image
        and member.observer.image.offset >= snapshot.end_offset - 1
    )
    size = fixture.files.size(fixture.controller.log.snapshot_path(snapshot))
    assert asked == list(range(0, size, piece))


def test_a_log_longer_than_one_answer(
    fixture: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.2: an answer may end in the middle of a batch, and holds one whole batch at least."""
    fixture.join(7)
    fixture.create_topic("t", 60)
    monkeypatch.setattr(observer_module, "_FETCH_BYTES", 150)
    member = MemberSide(fixture, 2).follow()
    assert member.observer.image == fixture.controller.image and member.ended == []


def test_the_controller_comes_back_and_following_goes_on(fixture: ControllerFixture) -> None:
    """RL 8.2: a new epoch, the same log; the member notices and reads on."""
    member = MemberSide(fixture, 2).follow()
    before = member.observer.traffic
    assert all(before) and before[0] > before[1], "one fetch waits"
    fixture.crash()
    fixture.pass_time(3.0)
    fixture.restart()
    fixture.serve()
    fixture.pass_time(1.0)
    create_after = fixture.controller.image
    assert member.observer.image == create_after
    assert member.observer.leader_epoch == 2 and member.ended == []
    after = member.observer.traffic
    assert all(now > then for now, then in zip(after, before, strict=True)), "over connections"


def test_a_dead_address_is_passed_over(fixture: ControllerFixture) -> None:
    """KRAFT 3.2: bootstrap addresses are asked in turn."""
    member = MemberSide(fixture, 2, bootstrap=[("127.0.0.1", 1), ("127.0.0.1", PORT)]).follow()
    fixture.pass_time(0.5)
    assert member.observer.image.offset >= 0


SILENT = ("127.0.0.1", 9999)


def stay_silent(fixture: ControllerFixture, is_host_away: bool) -> None:
    """At `SILENT`: no answer to requests, or not even to connecting."""
    if not is_host_away:
        factory = Factory.forProtocol(Protocol)
        factory.noisy = False
        fixture.network.listen(*SILENT, factory)
        return
    connect = fixture.network.connect

    def connect_elsewhere(host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        if (host, port) != SILENT:
            return connect(host, port, factory, timeout)
        attempt: Deferred[Any] = Deferred()
        fixture.clock.callLater(timeout, attempt.errback, TimeoutError())
        return attempt

    fixture.network.connect = connect_elsewhere


@pytest.mark.parametrize("is_host_away", [False, True])
def test_a_silent_address_does_not_use_a_session_up(
    fixture: ControllerFixture, is_host_away: bool
) -> None:
    """A third of it at most: meanwhile no heartbeat is sent, for nobody is known to lead."""
    stay_silent(fixture, is_host_away)
    session = {"broker.session.timeout.ms": "3000"}
    member = MemberSide(fixture, 2, [SILENT, ("127.0.0.1", PORT)], **session).follow()
    fixture.pass_time(0.95)
    assert member.observer.leader_address is None
    fixture.pass_time(0.1)
    assert member.observer.leader_address == ("127.0.0.1", PORT)


@pytest.mark.parametrize("is_host_away", [False, True])
@pytest.mark.parametrize("addresses", [1, 2])
def test_where_no_address_answers_each_is_given_more_time(
    fixture: ControllerFixture, addresses: int, is_host_away: bool
) -> None:
    """The way to a controller may be slow. One that is the only one has all the time at once."""
    stay_silent(fixture, is_host_away)
    whole = 2.0 if is_host_away else 2.5
    waits = [1.0, 1.0, 2.0, 2.0, whole, whole] if addresses == 2 else [whole, whole]
    session = {"broker.session.timeout.ms": "3000"}
    tried: list[float] = []
    member = MemberSide(fixture, 2, [SILENT] * addresses, **session)
    connect = fixture.network.connect

    def noted(host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        tried.append(fixture.clock.seconds())
        return connect(host, port, factory, timeout)

    fixture.network.connect = noted
    member.follow()
    fixture.pass_time(sum(waits) + 0.5)
    pause = 0.02
    assert [later - earlier for earlier, later in pairwise(tried)] == pytest.approx(
        [wait + pause for wait in waits]
    )


def test_another_cluster_ends_it(fixture: ControllerFixture) -> None:
    """KRAFT 3.2: INCONSISTENT_CLUSTER_ID: give up, and say so once."""
    member = MemberSide(fixture, 2)
    ended: list[BaseException] = []
    observer = MetadataObserver(
        member.runtime,
        member.config,
        "x" * 22,
        [("127.0.0.1", PORT)],
        on_fatal=ended.append,
    )
    observer.start()
    fixture.pass_time(1.0)
    (error,) = ended
    assert isinstance(error, BrokerError) and error.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert observer.image.offset == -1


class OtherProgram(Protocol):
    """Has the controller's port now, and speaks something else."""

    def dataReceived(self, data: bytes) -> None:
        self.transport.write(self.factory.says)


@pytest.mark.parametrize(
    "says",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\4\x7f\xff\xff\xff",
        b"\0\0\0\2ab",
        b"\0\0\0\5\0\0\0\1\0" * 9,
    ],
)
def test_another_program_on_the_controllers_port_does_not_end_it(
    fixture: ControllerFixture, says: bytes
) -> None:
    """Invariant 4: what is not Kafka's protocol tells nothing about the log; the broker serves
    on, and follows when its controller is back.
    """
    member = MemberSide(fixture, 2).follow()
    fixture.crash()
    factory: Any = Factory.forProtocol(OtherProgram)
    factory.says = says
    ports: list[Any] = []
    fixture.network.listen("127.0.0.1", PORT, factory).addCallback(ports.append)
    fixture.pass_time(5.0)
    assert member.ended == []
    ports[0].stopListening()
    fixture.restart()
    fixture.serve()
    fixture.join(7)
    fixture.pass_time(10.0)
    assert member.ended == [] and member.observer.image == fixture.controller.image


def test_a_record_that_is_not_known_ends_it(fixture: ControllerFixture) -> None:
    """KRAFT 3.3: never guess."""
    member = MemberSide(fixture, 2).follow()
    builder = BatchBuilder(base_offset=fixture.controller.log.end_offset, leader_epoch=1)
    builder.append(0, None, b"\x01\x63\x00")
    fixture.controller.log._write(builder.build())
    fixture.controller.log.sync()
    fixture.pass_time(1.0)
    (error,) = member.ended
    assert isinstance(error, WireError)


def test_a_record_of_what_is_not_there_ends_it(fixture: ControllerFixture) -> None:
    """Invariant 4: it is a fault of the controller, and no lost connection. It would be asked for
    again, and never come to an end. The own copy does not hold it: no later start fails of it.
    """
    copied: list[bytes] = []
    member = MemberSide(fixture, 2)
    member.observer._loader._on_committed = copied.append
    member.follow()
    known = len(copied)
    log = fixture.controller.log
    change = metadata_records.PartitionChangeRecord(partition_id=0, topic_id=b"t" * 16, leader=1)
    log.append([change], fixture.controller.decided.metadata_version)
    log.sync()
    fixture.settle()
    (error,) = member.ended
    assert isinstance(error, WireError) and "not understood" in str(error)
    assert len(copied) == known


def test_stopping_leaves_nothing_behind(fixture: ControllerFixture) -> None:
    """No timer, no connection, no publication."""
    quiet = served({"metadata.max.idle.interval.ms": "0"})
    timers = len(quiet.clock.getDelayedCalls())
    member = MemberSide(quiet, 2).follow()
    member.observer.stop()
    quiet.settle()
    heard = len(member.deltas)
    quiet.join(7)
    quiet.settle()
    assert len(member.deltas) == heard
    assert len(quiet.clock.getDelayedCalls()) == timers and not quiet.factory.connections


class StaleVoter:
    """Answers for a controller as a voter that is cut off: it names a leader of an older epoch."""

    def __init__(self, fixture: ControllerFixture, voters: list[int], leads: bool) -> None:
        self.fixture, self.voters, self.leads, self.asked = fixture, voters, leads, 0
        readers: Any = fixture.controller.raft_requests
        self.real = readers.fetch, readers.describe
        readers.fetch, readers.describe = self.fetch, self.describe

    def stop(self) -> None:
        readers: Any = self.fixture.controller.raft_requests
        readers.fetch, readers.describe = self.real

    async def fetch(self, request: Any, version: int) -> Any:
        self.asked += 1
        response = await self.real[0](request, version)
        answer = response.responses[0].partitions[0]
        answer.error_code, answer.records = ErrorCode.UNKNOWN_LEADER_EPOCH, None
        answer.current_leader.leader_epoch = 1
        answer.current_leader.leader_id = 1 if self.leads else 3
        return response

    def describe(self, request: Any, version: int) -> Any:
        response = self.real[1](request, version)
        found = response.topics[0].partitions[0]
        found.leader_epoch = 1
        found.current_voters = [ReplicaState(replica_id=voter) for voter in self.voters]
        if not self.leads:
            found.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return response


def in_a_later_epoch(fixture: ControllerFixture) -> MemberSide:
    member = MemberSide(fixture, 2).follow()
    fixture.crash()
    fixture.restart()
    fixture.serve()
    fixture.pass_time(5.0)
    assert member.observer.leader_epoch == 2
    return member


@pytest.mark.parametrize(("voters", "leads"), [([1, 2, 3], True), ([1], False), ([3], False)])
def test_a_voter_that_is_cut_off_contradicts_nothing(
    fixture: ControllerFixture, voters: list[int], leads: bool
) -> None:
    """Invariant 5: with one bootstrap address as well. It names an old leader, or leads itself
    without the others; the broker goes on with what it has, and follows when it is back.
    """
    member = in_a_later_epoch(fixture)
    voter = StaleVoter(fixture, voters, leads)
    fixture.pass_time(20.0)
    assert member.ended == [] and voter.asked > 10
    voter.stop()
    fixture.join(7)
    fixture.pass_time(5.0)
    assert member.observer.image == fixture.controller.image and member.ended == []


class Leaderless:
    """Answers for a controller as a voter that knows of no leader in this epoch."""

    def __init__(self, fixture: ControllerFixture) -> None:
        self.readers: Any = fixture.controller.raft_requests
        self.real, self.asked = self.readers.fetch, 0
        self.readers.fetch = self.fetch

    def stop(self) -> None:
        self.readers.fetch = self.real

    async def fetch(self, request: Any, version: int) -> Any:
        self.asked += 1
        response = await self.real(request, version)
        answer = response.responses[0].partitions[0]
        answer.error_code, answer.records = ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        answer.current_leader.leader_id, response.node_endpoints = -1, []
        return response


def test_between_two_leaders_all_voters_are_asked_and_one_line_said(
    fixture: ControllerFixture,
) -> None:
    """One voter is gone, the other knows of no leader yet: it may never learn of one (its disk
    failed), so it is left again; its refusals are not "a controller answers again".
    """
    member = MemberSide(fixture, 2, bootstrap=[("127.0.0.1", 1), ("127.0.0.1", PORT)]).follow()
    fixture.pass_time(1.0)
    with capturedLogs() as told:
        voter = Leaderless(fixture)
        fixture.pass_time(3.0)
        assert voter.asked > 2 and member.observer.leader_address is None
        voter.stop()
        fixture.join(7)
        fixture.pass_time(1.0)
    assert member.observer.image == fixture.controller.image
    lines = [formatEvent(event) for event in told]
    lines = [line for line in lines if "controller answers" in line or "answers again" in line]
    assert [line.split(",")[0].split(" at ")[0] for line in lines] == [
        "no controller answers",
        "the controller",
    ]


def test_a_quorum_of_one_that_leads_an_older_epoch_is_heard_first(
    fixture: ControllerFixture,
) -> None:
    """Invariant 5: a minute of silence between two answers is no evidence."""
    member = in_a_later_epoch(fixture)
    StaleVoter(fixture, [1], True)
    fixture.pass_time(3.0)
    fixture.factory.close_all()
    fixture.port.stopListening()
    fixture.pass_time(60.0)
    fixture.serve()
    fixture.pass_time(3.0)
    assert member.ended == []
    fixture.pass_time(10.0)
    (error,) = member.ended
    assert isinstance(error, MetadataRegression) and "older epoch" in str(error)
