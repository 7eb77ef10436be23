"""Roles from the metadata log and what fetchers make of them: whom this broker fetches, from
where on, and when it stops (RL 1.3-1.5, 6.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.replication.fixtures import (
    TOPIC_ID,
    TP,
    WALL_MS,
    Fixture,
    at,
    batch,
    broker_registration,
    consumer,
    registration,
    tried_again_under,
)
from twisted_broker.broker_config import LiveConfig
from twisted_broker.image.entries import Endpoint
from twisted_broker.image.metadata_image import MetadataDelta
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.checkpoints import HIGH_WATERMARK, read_offsets
from twisted_broker.replication.explain.explanation import fetching_now
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_manager import (
    ReplicaFetcherManager,
    fetch_limits,
)
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import fetch as fetch_wire
from twisted_broker.wire.messages import list_offsets as offsets_wire
from twisted_broker.wire.records import set_offsets_and_epoch

REPLICAS = (1, 2, 3)
OTHER_ID = bytes(range(1, 17))


class Wire:
    """A connection to a leader that answers when the test says so."""

    def __init__(self, endpoint: BrokerEndPoint, client_id: str) -> None:
        self.endpoint, self.client_id = endpoint, client_id
        self.asked: list[fetch_wire.FetchRequest] = []
        self.closed = False
        self._waiting: list[Deferred] = []

    def send(self, request, version: int) -> Deferred:
        self.asked.append(request)
        self._waiting.append(Deferred())
        return self._waiting[-1]

    def answer_nothing(self) -> None:
        """The answer to what was asked last, within a session: all is as it was."""
        self._waiting.pop(0).callback(fetch_wire.FetchResponse(session_id=7))

    def said(self) -> dict[int, fetch_wire.FetchPartition]:
        """What the last request says, of the topic `t`."""
        return {
            each.partition: each
            for topic in self.asked[-1].topics
            if topic.topic_id == TOPIC_ID
            for each in topic.partitions
        }

    def answer(self, session_id: int = 0, **data) -> None:
        """The answer about `TP` to what was asked last; 0: without a session."""
        partition = fetch_wire.PartitionData(
            partition_index=0,
            **{"records": None, "log_start_offset": 0, "high_watermark": 0} | data,
        )
        topic = fetch_wire.FetchableTopicResponse(
            topic="t", topic_id=TOPIC_ID, partitions=[partition]
        )
        self._waiting.pop(0).callback(
            fetch_wire.FetchResponse(session_id=session_id, responses=[topic])
        )

    def answer_offset(self, end: int) -> None:
        """The leader's log ends there."""
        partition = offsets_wire.ListOffsetsPartitionResponse(partition_index=0, offset=end)
        topic = offsets_wire.ListOffsetsTopicResponse(name="t", partitions=[partition])
        self._waiting.pop(0).callback(offsets_wire.ListOffsetsResponse(topics=[topic]))

    def lose(self) -> None:
        """The connection breaks before the answer."""
        self._waiting.pop(0).errback(ConnectionLost())

    def close(self) -> None:
        self.closed = True


class FollowerRig(Fixture):
    """A replica manager with its fetchers; brokers 2 and 3 are reached at ports 9002 and 9003 of
    the listener INTERNAL.
    """

    def __init__(self, **settings: str) -> None:
        self.wires: list[Wire] = []
        super().__init__(**settings)
        self.broker_epoch = 101
        self.image = self.image.__class__(brokers=brokers(), features={"metadata.version": 30})
        self.fetchers = self.replicas.fetchers

    def create_fetchers(self, replicas) -> ReplicaFetcherManager:
        return ReplicaFetcherManager(
            replicas, self, "INTERNAL", lambda: self.broker_epoch, self.connect
        )

    def connect(self, endpoint: BrokerEndPoint, client_id: str) -> Wire:
        self.wires.append(Wire(endpoint, client_id))
        return self.wires[-1]

    def follow(self, leader: int = 2, epoch: int = 1, **more) -> None:
        self.topic(
            states={
                0: registration(
                    leader, REPLICAS, more.pop("isr", (2, 3)), epoch, epoch * 10, **more
                )
            }
        )
        self.clock.advance(0)

    def lead(self, epoch: int, isr=(1,)) -> None:
        self.topic(states={0: registration(1, REPLICAS, isr, epoch, epoch * 10)})

    def fetched(self) -> Mapping[TopicPartition, Any]:
        return {
            name: state
            for fetcher in self.fetchers.fetchers.values()
            for name, state in fetcher.state.partitions.items()
        }


def brokers(**fenced: bool):
    return {
        node: broker_registration(node)._replace(
            listeners={"INTERNAL": Endpoint("INTERNAL", "h", 9000 + node)},
            fenced=fenced.get(f"b{node}", False),
        )
        for node in REPLICAS
    }


def sent_by_leader(*counts: int, epoch: int = 1, base: int = 0) -> bytes:
    """Batches as the leader's log holds them."""
    found = b""
    for count in counts:
        records = bytearray(batch(count))
        set_offsets_and_epoch(records, base, epoch)
        found += bytes(records)
        base += count
    return found


def test_a_new_follower_fetches_from_its_leader() -> None:
    """RL 1.4, 6.1, 6.2: at the leader's inter-broker address, under the fetcher's client id,
    from the high watermark on.
    """
    fixture = FollowerRig()
    fixture.follow()
    (wire,) = fixture.wires
    assert (wire.endpoint, wire.client_id) == (BrokerEndPoint(2, "h", 9002), "broker-1-fetcher-0")
    (request,) = wire.asked
    assert request.replica_state == fetch_wire.ReplicaState(replica_id=1, replica_epoch=101)
    assert (request.topics[0].topic_id, request.topics[0].partitions[0].current_leader_epoch) == (
        TOPIC_ID,
        1,
    )


def test_records_and_watermarks_arrive_and_complete_waiting_requests() -> None:
    """RL 6.4, 1.9: a consumer that waits at a follower is answered when the follower's high
    watermark moves.
    """
    fixture = FollowerRig()
    fixture.follow()
    fixture.wires[0].answer(records=sent_by_leader(2, 1), high_watermark=0)
    assert (fixture.partition().log.log_end_offset, fixture.partition().log.high_watermark) == (
        3,
        0,
    )
    params = consumer(max_wait_ms=10_000, only_leader=False)
    first = fixture.replicas.fetch(params, [at(0)])
    assert not ReplicaManager.answers_at_once(params, first)
    done: list = []
    fixture.replicas.delayed_fetch(params, first).addBoth(done.append)
    assert not done
    fixture.wires[0].answer(high_watermark=3)
    assert done and fixture.partition().log.high_watermark == 3
    assert fixture.fetched()[TP].lag == 0


def test_a_round_costs_what_changed(monkeypatch) -> None:
    """RL 6.2: no partition is looked at while nothing happens to it, and nothing is said of it;
    one that is marked is, and no other.
    """
    fixture = FollowerRig()
    looked_at: list[int] = []
    real = Fetcher._request_for
    monkeypatch.setattr(
        Fetcher,
        "_request_for",
        lambda self, name, state: (looked_at.append(name.partition), real(self, name, state))[1],
    )
    fixture.topic(states={number: registration(2, REPLICAS, (2, 3), 1, 10) for number in range(9)})
    fixture.clock.advance(0)
    (wire,) = fixture.wires
    assert sorted(looked_at) == sorted(wire.said()) == list(range(9))
    for _ in range(3):
        wire.answer_nothing()
        assert wire.said() == {}
    assert len(looked_at) == 9
    fixture.fetchers.log_start_moved(TopicPartition("t", 4))
    fixture.fetchers.log_start_moved(TopicPartition("another", 4))
    wire.answer_nothing()
    assert looked_at[9:] == [4] and wire.said() == {}, "it begins where it began"


def test_a_truncation_that_is_refused_no_more_is_done() -> None:
    """`replog.refuse.unclean.truncation` is live: a partition that it stopped goes on when it is
    set to false, without a new leader epoch or a restart.
    """
    fixture = FollowerRig(replog_refuse_unclean_truncation="true")
    fixture.follow()
    (wire,) = fixture.wires
    wire.answer(records=sent_by_leader(3), high_watermark=3)
    wire.answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    wire.answer_offset(1)
    fixture.advance(0)
    assert not fixture.fetched() and fixture.fetchers.failed == {TP}
    live = fixture.replicas.config = LiveConfig(fixture.replicas.config)
    live.subscribe(fixture.fetchers.settings_changed)
    live.replace(live.with_dynamic({"num.replica.fetchers": "2"}, {}))
    assert fixture.fetchers.failed == {TP}
    live.replace(live.with_dynamic({"replog.refuse.unclean.truncation": "false"}, {}))
    fixture.clock.advance(0)
    assert TP in fixture.fetched() and not fixture.fetchers.failed


def test_the_leader_hears_where_the_own_log_starts() -> None:
    """RL 2.8, 6.2: retention of its own moved it: said with the next fetch."""
    fixture = FollowerRig()
    fixture.follow()
    (wire,) = fixture.wires
    wire.answer(records=sent_by_leader(3), high_watermark=3)
    wire.answer(high_watermark=3)
    wire.answer_nothing()
    fixture.partition().log.increment_log_start_offset(2)
    fixture.log_manager.log_start_moved(fixture.partition().log)
    fixture.advance(0)
    wire.answer_nothing()
    assert wire.said()[0].log_start_offset == 2
    wire.answer_nothing()
    assert wire.said() == {}


def test_a_log_start_that_follows_the_leaders_is_said_with_the_next_fetch() -> None:
    """RL 2.8: DeleteRecords waits for it: the answer that brings it is enough, though it brings
    no records.
    """
    fixture = FollowerRig()
    fixture.follow()
    (wire,) = fixture.wires
    wire.answer(records=sent_by_leader(3), high_watermark=0)
    wire.answer_nothing()
    wire.answer(high_watermark=3, log_start_offset=2, session_id=7)
    assert fixture.partition().log.log_start_offset == 2
    assert wire.said()[0].log_start_offset == 2


def test_a_fetcher_that_has_nobody_to_fetch_makes_its_leader_forget() -> None:
    """RL 6.2: for as long as it lives (another partition may come), the session holds what is
    fetched only.
    """
    fixture = FollowerRig()
    fixture.follow()
    (wire,) = fixture.wires
    wire.answer_nothing()
    fixture.fetchers.remove([TP])
    wire.answer_nothing()
    assert [
        (topic.topic_id, topic.partitions) for topic in wire.asked[-1].forgotten_topics_data
    ] == [(TOPIC_ID, [0])]
    count = len(wire.asked)
    wire.answer_nothing()
    fixture.clock.pump([0.5] * 10)
    assert len(wire.asked) == count


def test_only_a_new_leader_epoch_restarts_fetching() -> None:
    """RL 1.3: an ISR change leaves fetchers alone."""
    fixture = FollowerRig()
    fixture.follow()
    before = fixture.fetched()[TP]
    fixture.topic(states={0: registration(2, REPLICAS, (2,), 1, 11)})
    assert fixture.fetched()[TP] is before
    fixture.topic(states={0: registration(2, REPLICAS, (2,), 2, 12)})
    assert fixture.fetched()[TP] is not before and fixture.fetched()[TP].leader_epoch == 2


@pytest.mark.parametrize(("with_epochs", "offset"), [(True, 5), (False, 2)])
def test_where_fetching_begins(with_epochs: bool, offset: int) -> None:
    """RL 1.4: at the log end when fetch answers tell where to cut and the epoch cache is not
    empty; else at the high watermark.
    """
    fixture = FollowerRig()
    fixture.lead(1)
    fixture.partition().append_as_leader(batch(5), 1, WALL_MS, 0, AppendOrigin.CLIENT)
    fixture.partition().log.set_high_watermark(2)
    if not with_epochs:
        fixture.partition().log.leader_epochs.clear()
    fixture.topic(states={0: registration(2, REPLICAS, (2,), 2, 20)})
    assert fixture.fetched()[TP].fetch_offset == offset


def test_a_log_of_a_newer_epoch_is_not_led() -> None:
    """Metadata that went back: under the older epoch its appends would be cut by the next
    recovery. It is offline and says why.
    """
    fixture = FollowerRig()
    fixture.follow(2, 8)
    fixture.wires[0].answer(records=sent_by_leader(3, epoch=8), high_watermark=3)
    held = fixture.partition()
    held.leader_epoch = held.partition_epoch = -1  # another process, which knows the log only
    fixture.lead(7)
    assert held.offline and not held.is_leader and held.log.leader_epochs.entries() == [(8, 0)]
    told = fetching_now(held, "", "", None, Moment(1, 1))
    assert (
        "until this broker restarts" in told.why
        and "made anew from its leader" in told.why
        and "epoch 8, but the metadata makes it leader at epoch 7" in told.why
    )


def test_a_partition_that_will_be_led_leaves_its_fetcher_first(monkeypatch) -> None:
    """RL 1.4: `make_leaders`: removed from fetchers, then `Partition.make_leader`: an answer in
    flight is too late.
    """
    fixture = FollowerRig()
    fixture.follow()
    seen: list[bool] = []
    real = Partition.make_leader
    monkeypatch.setattr(
        Partition,
        "make_leader",
        lambda self, *rest: (seen.append(fixture.fetchers.is_fetching(TP)), real(self, *rest))[1],
    )
    fixture.lead(2)
    assert seen == [False]
    fixture.wires[0].answer(records=sent_by_leader(3), high_watermark=3)
    assert fixture.partition().log.log_end_offset == 0


def test_an_older_piece_leaves_a_follower_with_its_fetcher() -> None:
    """A role that was tried again is the newest one; a piece of the metadata that waited has this
    broker lead before it, which ends no fetching: nothing would begin it again.
    """
    rig = FollowerRig()
    rig.topic(states={0: registration(2, (2, 1, 3))})
    images = tried_again_under(rig, (1, 2, 3), (2, 1, 3))
    assert rig.fetched()[TP].leader_epoch == 2
    for before, after in pairwise(images):
        rig.replicas.apply_delta(MetadataDelta.between(before, after), after)
        assert (rig.partition().is_leader, rig.partition().leader_epoch) == (False, 2)
        assert rig.fetched()[TP].leader_epoch == 2


def test_another_leader_another_fetcher_and_idle_ones_end() -> None:
    """RL 1.3, 6.1."""
    fixture = FollowerRig()
    fixture.follow(2, 1)
    fixture.follow(3, 2)
    two, three = fixture.wires
    assert two.closed and not three.closed and three.endpoint == BrokerEndPoint(3, "h", 9003)
    two_asked = len(two.asked)
    fixture.clock.advance(5)
    assert len(two.asked) == two_asked


@pytest.mark.parametrize("why", ["no leader", "fenced", "no such listener", "unknown broker"])
def test_a_leader_that_cannot_be_reached_is_not_fetched_but_the_replica_is_there(why: str) -> None:
    """RL 1.4: its replica is created, so that its high watermark is checkpointed."""
    fixture = FollowerRig()
    if why == "fenced":
        fixture.publish(brokers=brokers(b2=True))
    elif why == "no such listener":
        fixture.publish(brokers={**brokers(), 2: broker_registration(2)})
    elif why == "unknown broker":
        fixture.publish(brokers={1: brokers()[1]})
    fixture.follow(-1 if why == "no leader" else 2)
    assert fixture.wires == [] and fixture.partition().log is not None
    fixture.publish(brokers=brokers())
    fixture.follow(2, 2)
    assert TP in fixture.fetched()


def test_a_leader_that_is_not_alive_is_reported_and_the_high_watermark_checkpointed() -> None:
    """RL 1.4: one line says which partitions are not fetched and why; what this broker knows to
    be committed survives its next restart all the same.
    """
    fixture = FollowerRig()
    fixture.lead(1)
    fixture.produce(5)
    fixture.publish(brokers=brokers(b2=True))
    with capturedLogs() as events:
        fixture.follow(2, 2)
    lines = [(event["log_level"], formatEvent(event) or "") for event in events]
    assert [each for each in lines if "fetched" in each[1]] == [
        (
            LogLevel.info,
            "1 partition(s) are not fetched, their leader is fenced or unknown: t-0 ...",
        )
    ]
    assert fixture.fetched() == {} and fixture.partition().log.high_watermark == 5
    fixture.advance(5.1)
    assert read_offsets(fixture.files, "/data", HIGH_WATERMARK)[TP] == 5


def test_what_is_deleted_or_moved_away_is_fetched_no_more() -> None:
    """RL 1.5: removed from fetchers, then dropped; the answer in flight finds nobody."""
    fixture = FollowerRig()
    fixture.follow()
    fixture.remove_topic()
    assert fixture.fetched() == {} and fixture.wires[0].closed
    fixture.follow(2, 1)
    fixture.topic(states={0: registration(2, (2, 3), (2, 3), 2, 20)})
    assert fixture.fetched() == {}


def test_a_failed_directory_ends_the_fetching_of_its_partitions() -> None:
    """RL 1.12, docs/ARCHITECTURE.md 4: PartitionFailed stops its fetcher."""
    fixture = FollowerRig()
    fixture.follow()
    fixture.replicas.directory_failed("/data", OSError("gone"))
    fixture.clock.advance(0)
    assert fixture.fetched() == {}


def test_a_failure_of_a_former_topic_ends_no_fetching_of_its_successor() -> None:
    """A topic is made anew, in another directory, in the turn in which the directory of the one
    before failed: what follows from that failure comes afterwards.
    """
    rig = FollowerRig()
    rig.follow()
    log = rig.log_manager.logs.pop(TP)
    log.segments.directory = "/failed/t-0"
    rig.replicas.directory_failed("/failed", OSError("EIO"))
    rig.topic(topic_id=OTHER_ID, states={0: registration(2, REPLICAS, (2, 3))})
    rig.clock.advance(1)
    assert (rig.partition().topic_id, rig.partition().offline) == (OTHER_ID, False)
    assert rig.fetched()[TP].topic_id == OTHER_ID


def test_the_number_of_fetchers_per_leader() -> None:
    """RL 6.1, 6.2: `num.replica.fetchers` connections to each leader, numbered in their client
    ids.
    """
    fixture = FollowerRig(num_replica_fetchers="2")
    fixture.topic(states={number: registration(2, REPLICAS, (2, 3), 1, 10) for number in range(4)})
    assert sorted(wire.client_id for wire in fixture.wires) == [
        "broker-1-fetcher-0",
        "broker-1-fetcher-1",
    ]


def test_a_broken_connection_stops_its_own_fetcher_and_no_other() -> None:
    """RL 6.5, 6.2: two leaders, one is lost: what is led by the other goes on at once; the lost
    one is tried again after `replica.fetch.backoff.ms`, each time, and logged once.
    """
    fixture = FollowerRig(replica_fetch_backoff_ms="300")
    fixture.topic(
        states={
            0: registration(2, REPLICAS, (2, 3), 1, 10),
            1: registration(3, REPLICAS, (2, 3), 1, 10),
        }
    )
    fixture.clock.advance(0)
    lost, kept = sorted(fixture.wires, key=lambda wire: wire.endpoint)
    with capturedLogs() as events:
        for asked in (1, 2, 3):
            assert (len(lost.asked), len(kept.asked)) == (asked, asked)
            lost.lose()
            kept.answer_nothing()
            fixture.advance(0.299)
            assert (len(lost.asked), len(kept.asked)) == (asked, asked + 1)
            fixture.advance(0.002)
        lost.answer_nothing()
    assert fixture.fetchers.failed == set() and set(fixture.fetched()) == {
        TP,
        TopicPartition("t", 1),
    }
    lines = [formatEvent(event) or "" for event in events]
    assert ["cannot reach" in line for line in lines] == [True, False]
    assert "from broker 2 cannot reach" in lines[0] and "reaches" in lines[1]


def test_a_broker_that_leaves_stops_following_what_it_is_not_in_sync_with() -> None:
    """RL 1.4, 8.2: during its controlled shutdown a broker does not catch up with partitions
    whose ISR it has left, but follows the others.
    """
    fixture = FollowerRig()
    fixture.publish(brokers={**brokers(), 1: brokers()[1]._replace(in_controlled_shutdown=True)})
    fixture.topic("t", {0: registration(2, REPLICAS, (2, 3), 1, 10)})
    fixture.topic(
        "in-sync",
        {0: registration(2, REPLICAS, REPLICAS, 1, 10)},
        topic_id=bytes(reversed(range(16))),
    )
    assert set(fixture.fetched()) == {TopicPartition("in-sync", 0)}


def test_a_broker_that_leaves_follows_a_leader_whose_id_is_0() -> None:
    """RL 1.4: 0 is somebody, -1 nobody."""
    fixture = FollowerRig()
    leader = broker_registration(0)._replace(
        listeners={"INTERNAL": Endpoint("INTERNAL", "h", 9000)}
    )
    leaving = brokers()[1]._replace(in_controlled_shutdown=True)
    fixture.publish(brokers={**brokers(), 0: leader, 1: leaving})
    fixture.topic("t", {0: registration(0, (0, 1), (0, 1), 1, 10)})
    assert set(fixture.fetched()) == {TP}


def test_shutdown_ends_all_fetching() -> None:
    """RL 1.1, 1.4: fetchers go first; nothing is asked or taken in afterwards."""
    fixture = FollowerRig()
    fixture.follow()
    fixture.replicas.shutdown()
    assert fixture.wires[0].closed and fixture.fetched() == {}
    fixture.follow(2, 2)
    assert fixture.fetched() == {}


def test_a_follower_refuses_to_be_written_to() -> None:
    """RL 1.6: NOT_LEADER_OR_FOLLOWER, while its fetcher goes on writing."""
    fixture = FollowerRig()
    fixture.follow()
    assert fixture.produce().error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    fixture.wires[0].answer(records=sent_by_leader(2), high_watermark=2)
    assert fixture.partition().log.log_end_offset == fixture.partition().log.high_watermark == 2


def test_the_limits_are_settings() -> None:
    """RL 6.2: defaults of Apache Kafka: 500 ms, 1 byte, 10 MiB for all, 1 MiB for each."""
    assert fetch_limits(FollowerRig().config) == (500, 1, 10 << 20, 1 << 20)
    changed = {"wait_max_ms": "7", "min_bytes": "8", "response_max_bytes": "9", "max_bytes": "10"}
    assert fetch_limits(
        FollowerRig(**{f"replica_fetch_{name}": value for name, value in changed.items()}).config
    ) == (7, 8, 9, 10)
