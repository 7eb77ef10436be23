"""Cases of Kafka's own test classes that no other file here holds (RELIABILITY 3.1):
PartitionTest, ReplicaManagerTest, AbstractFetcherThreadTest.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.log.batches import marker
from tests.replication.fixtures import (
    LOCAL,
    TOPIC_ID,
    TP,
    WALL_MS,
    Fixture,
    PartitionFixture,
    at,
    batch,
    broker_registration,
    code_of,
    consumer,
    follower,
    proposed_again,
    registration,
)
from tests.replication.test_following import REPLICAS, FollowerRig, sent_by_leader
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin, TimestampAndOffset
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.replication.partition.fetch_data import HIGH_WATERMARK, LOG_END, TXN_COMMITTED
from twisted_broker.replication.partition.isr_state import IsrAnswer, PendingExpand
from twisted_broker.replication.partition.offset_lookup import (
    LATEST,
    MAX_TIMESTAMP,
    NOT_FOUND,
    end_offset_for_epoch,
    list_offset,
)
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import fetch as fetch_wire
from twisted_broker.wire.schema import run_whole

OTHER = TopicPartition("t", 1)


# PartitionTest


@pytest.mark.parametrize("only_leader", [True, False])
@pytest.mark.parametrize(
    ("epoch", "code"), [(5, "FENCED_LEADER_EPOCH"), (7, "UNKNOWN_LEADER_EPOCH")]
)
def test_epochs_are_checked_before_leadership(only_leader: bool, epoch: int, code: str) -> None:
    """RL 2.6, PartitionTest: on a follower as on a leader, for fetches, ListOffsets and
    OffsetForLeaderEpoch: the epoch's error, not NOT_LEADER.
    """
    fixture = PartitionFixture()
    fixture.partition.make_follower(registration(2, (1, 2, 3), (2,), 6, 11), fixture.log)
    assert code_of(fixture.partition.log_for, epoch, only_leader) == ErrorCode[code]
    listed = list_offset(fixture.partition, LATEST, 1, epoch, only_leader)
    assert code_of(run_whole, listed) == ErrorCode[code]
    assert code_of(end_offset_for_epoch, fixture.partition, epoch, 5) == ErrorCode[code]


def test_the_same_leader_epoch_resets_nothing() -> None:
    """RL 2.2, PartitionTest: another partition epoch under the same leader epoch keeps the
    epoch's start and what is known of followers.
    """
    fixture = PartitionFixture()
    fixture.append(4)
    fixture.follower_fetches(2, 3)
    known = fixture.partition.remote_replicas[2]
    before = (
        known.log_end_offset,
        known.last_caught_up_ms,
        known.last_fetch_ms,
        known.broker_epoch,
    )
    fixture.now_ms += 5_000
    assert not fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1, 2), 5, 11), fixture.log, fixture.now_ms
    )
    assert (
        fixture.partition.remote_replicas[2] is known
        and fixture.partition.leader_epoch_start_offset == 0
    )
    assert (
        known.log_end_offset,
        known.last_caught_up_ms,
        known.last_fetch_ms,
        known.broker_epoch,
    ) == before
    assert list(fixture.log.leader_epochs.entries()) == [(5, 0)]


def test_the_controllers_larger_view_wins() -> None:
    """RL 2.5, PartitionTest: the answer names the ISR: what the controller knows more than was
    proposed is taken over.
    """
    fixture = PartitionFixture(isr=(1,))
    fixture.append(4)
    fixture.follower_fetches(2, 4)
    pending = fixture.partition.isr_state
    fixture.partition.alter_partition_answered(
        pending,
        IsrAnswer(ErrorCode.NONE, LOCAL, 5, frozenset({1, 2, 3}), 0, 12),
        fixture.now_ms,
    )
    assert (fixture.isr, fixture.partition.partition_epoch) == ([1, 2, 3], 12)


def test_a_follower_that_was_caught_up_at_its_previous_fetch_stays() -> None:
    """RL 2.4, PartitionTest: behind the end, but it had all that was there when it fetched
    before: caught up then.
    """
    fixture = PartitionFixture(replicas=(1, 2))
    fixture.append(5)
    fixture.follower_fetches(2, 0)
    fixture.now_ms += 20_000
    fixture.append(5)
    fixture.follower_fetches(2, 5)
    fixture.partition.maybe_shrink_isr(fixture.now_ms + 10_000)
    assert not fixture.partition.isr_state.in_flight, "caught up 30,000 ms ago, at its first fetch"
    fixture.partition.maybe_shrink_isr(fixture.now_ms + 10_001)
    assert fixture.partition.isr_state.in_flight


@pytest.mark.parametrize("change", [{"fenced": True}, {"in_controlled_shutdown": True}])
def test_a_follower_that_is_fenced_or_leaves_does_not_join(change: dict[str, bool]) -> None:
    """RL 2.4, PartitionTest: as the metadata says it at that moment; when it is over the next
    fetch lets it join.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(LOCAL, (1, 2), (1,))})
    fixture.publish(brokers={**fixture.image.brokers, 2: broker_registration(2)._replace(**change)})
    fixture.replicas.fetch(follower(2), [at(0)])
    assert fixture.controller.asked == []
    fixture.publish(brokers={**fixture.image.brokers, 2: broker_registration(2)})
    fixture.replicas.fetch(follower(2), [at(0)])
    assert len(fixture.controller.asked) == 1


# ReplicaManagerTest


def test_a_parked_read_committed_fetch_gets_the_list_of_aborted_transactions() -> None:
    """RL 1.9, ReplicaManagerTest (KAFKA-5376): the transaction ends while the fetch waits: the
    second read has the list.
    """
    fixture = Fixture()
    fixture.topic()
    open_transaction = batch(
        2, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    fixture.replicas.append(
        [(TP, open_transaction)],
        1,
        origin=AppendOrigin.COORDINATOR,
        guards={TP: NOT_REQUIRED},
    )
    fixture.replicas.drain()
    params = consumer(isolation=TXN_COMMITTED)
    done: list[object] = []
    fixture.replicas.delayed_fetch(params, fixture.replicas.fetch(params, [at(0)])).addCallback(
        done.append
    )
    assert not done
    fixture.replicas.append(
        [(TP, marker(9, commit=False, epoch=0))], 1, origin=AppendOrigin.COORDINATOR
    )
    fixture.replicas.drain()
    assert done
    (result,) = fixture.replicas.fetch(params, [at(0)], record_progress=False)
    assert (result.aborted_transactions, result.last_stable_offset, result.size > 0) == (
        [(9, 0)],
        3,
        True,
    )
    result.release()


def test_roles_go_there_and_back() -> None:
    """RL 1.3, ReplicaManagerTest: leader, follower, leader again: the log stays, each time the
    right one may write.
    """
    fixture = FollowerRig()
    fixture.lead(1)
    assert fixture.produce(2).error == ErrorCode.NONE
    fixture.follow(2, 2)
    assert fixture.produce().error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    fixture.wires[0].answer(records=sent_by_leader(1, epoch=2, base=2), high_watermark=3)
    fixture.lead(3)
    assert fixture.fetched() == {} and fixture.produce().base_offset == 3
    assert fixture.partition().log.leader_epochs.entries() == [(1, 0), (2, 2), (3, 3)]


# AbstractFetcherThreadTest


def answer(fixture: FollowerRig, *partitions: dict[str, Any]) -> None:
    """The leader's answer about the partitions 0, 1, .. of `t`."""
    usual = {"records": None, "log_start_offset": 0, "high_watermark": 0}
    data = [
        fetch_wire.PartitionData(partition_index=index, **(usual | partition))
        for index, partition in enumerate(partitions)
    ]
    topic = fetch_wire.FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=data)
    fixture.wires[0]._waiting.pop(0).callback(fetch_wire.FetchResponse(responses=[topic]))


def two_followed() -> FollowerRig:
    fixture = FollowerRig()
    fixture.topic(states={number: registration(2, REPLICAS, (2, 3), 1, 10) for number in range(2)})
    fixture.clock.advance(0)
    return fixture


@pytest.mark.parametrize("what", ["refused", "corrupt", "fails", "out of step", "gone"])
def test_one_bad_partition_of_an_answer_does_not_stop_the_others(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 6.5, AbstractFetcherThreadTest: an error, corrupt bytes, a partition that fails or is
    gone: the other one's records are appended.
    """
    fixture = two_followed()
    bad: dict[str, Any] = {"records": sent_by_leader(2)}
    if what == "refused":
        bad = {"error_code": int(ErrorCode.NOT_LEADER_OR_FOLLOWER)}
    elif what == "corrupt":
        bad["records"] = bad["records"][:-1] + bytes([bad["records"][-1] ^ 1])
    elif what == "fails":
        real = type(fixture.partition().log).append_as_follower
        monkeypatch.setattr(
            type(fixture.partition().log),
            "append_as_follower",
            lambda log, *rest: 1 // 0 if log.topic_partition == TP else real(log, *rest),
        )
    elif what == "out of step":
        fixture.partition().append_as_follower(sent_by_leader(1), 1, WALL_MS)
    else:
        fixture.fetchers.remove([TP])
    answer(fixture, bad, {"records": sent_by_leader(3), "high_watermark": 3})
    assert (
        fixture.partition(OTHER).log.log_end_offset,
        fixture.partition(OTHER).log.high_watermark,
    ) == (3, 3)
    assert fixture.partition().log.log_end_offset == (1 if what == "out of step" else 0)
    assert (TP in fixture.fetchers.failed) == (what in ("fails", "out of step"))
    assert (TP in fixture.fetched()) == (what in ("refused", "corrupt"))
    assert OTHER in fixture.fetched()


def test_records_beside_a_diverging_epoch_are_not_appended() -> None:
    """RL 6.3, AbstractFetcherThreadTest: the log is cut where the answer says, and nothing of
    that answer is appended.
    """
    fixture = two_followed()
    answer(fixture, {"records": sent_by_leader(2, 2)}, {})
    assert fixture.partition().log.log_end_offset == 4
    diverging = fetch_wire.EpochEndOffset(epoch=1, end_offset=2)
    answer(
        fixture,
        {"records": sent_by_leader(3, base=4), "diverging_epoch": diverging, "high_watermark": 7},
        {},
    )
    assert fixture.partition().log.log_end_offset == 2
    assert fixture.fetched()[TP].fetch_offset == 2


def test_the_lag_falls_with_answers_that_bring_nothing() -> None:
    """RL 6.4, ReplicaFetcherThreadTest: a lag that was seen once does not stay when the leader
    has no more.
    """
    fixture = two_followed()
    answer(fixture, {"records": sent_by_leader(2), "high_watermark": 9}, {})
    assert fixture.fetched()[TP].lag == 7
    answer(fixture, {"high_watermark": 2}, {})
    assert fixture.fetched()[TP].lag == 0 == fixture.fetchers.max_lag


def test_the_watermarks_of_one_answer_are_taken_in_their_order() -> None:
    """RL 6.4: append, then the high watermark, then the log start, which may rise only as far as
    the mark: one answer is enough for all three.
    """
    fixture = two_followed()
    answer(
        fixture, {"records": sent_by_leader(2, 2), "high_watermark": 4, "log_start_offset": 2}, {}
    )
    log = fixture.partition().log
    assert (log.log_end_offset, log.high_watermark, log.log_start_offset) == (4, 4, 2)


# the controller's answers, and what a client may know


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch"),
    [(6, 12), (5, 9)],
    ids=["of a later leader epoch", "older than what is known"],
)
def test_an_answer_that_does_not_fit_is_passed_over(
    leader_epoch: int, partition_epoch: int
) -> None:
    """RL 2.5, PartitionTest: the ISR stays what it was, the larger set in force, until the
    controller's own word comes.
    """
    fixture = PartitionFixture(isr=(1,))
    fixture.follower_fetches(2, 0)
    pending = fixture.partition.isr_state
    odd = IsrAnswer(ErrorCode.NONE, LOCAL, leader_epoch, frozenset({1, 2}), 0, partition_epoch)
    assert not proposed_again(fixture, pending, odd)
    assert fixture.partition.isr_state is pending and fixture.partition.partition_epoch == 10


def test_a_leader_elected_uncleanly_says_with_its_next_change_that_it_has_recovered() -> None:
    """RL 2.5, KIP-704: there is nothing to recover from here; AlterPartition carries RECOVERED."""
    fixture = PartitionFixture(lead=False)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2), (1,), 5, 10, recovery=1), fixture.log, fixture.now_ms
    )
    fixture.follower_fetches(2, 0)
    pending = fixture.partition.isr_state
    assert isinstance(pending, PendingExpand)
    assert fixture.partition.isr_proposal(pending).leader_recovery_state == 0


def test_the_largest_timestamp_is_shown_only_when_it_may_be_read() -> None:
    """RL 2.7, 3.4: a client sees nothing above its end, not even where the newest record is; a
    follower does.
    """
    fixture = PartitionFixture(replicas=(1, 2))
    fixture.append(1)
    fixture.log.append_as_leader(batch(timestamp=WALL_MS + 5), 5, WALL_MS + 5)
    fixture.log.set_high_watermark(1)

    def largest(isolation: int) -> TimestampAndOffset:
        return run_whole(list_offset(fixture.partition, MAX_TIMESTAMP, isolation, -1, True))

    assert largest(HIGH_WATERMARK) == NOT_FOUND
    assert largest(LOG_END).offset == 1
    fixture.log.set_high_watermark(2)
    assert largest(HIGH_WATERMARK).offset == 1


@pytest.mark.parametrize("leader", [-1, 7])
def test_without_a_leader_that_is_known_the_old_one_is_left(leader: int) -> None:
    """RL 1.4: under the new epoch the partition leaves its fetcher, also when there is nobody to
    fetch from; what is on its way is too late.
    """
    fixture = FollowerRig()
    fixture.follow(2, 1)
    fixture.follow(leader, 2)
    assert fixture.fetched() == {} and fixture.wires[0].closed
    fixture.wires[0].answer(records=sent_by_leader(3), high_watermark=3)
    assert fixture.partition().log.log_end_offset == 0


def test_an_answer_with_the_epoch_that_is_known_counts() -> None:
    """RL 2.5, 8.4: a change that was granted before its answer was lost is granted again as the
    state that is there: the ISR is taken over.
    """
    fixture = PartitionFixture(isr=(1,))
    fixture.follower_fetches(2, 0)
    again = IsrAnswer(
        ErrorCode.NONE, LOCAL, 5, frozenset({1, 2}), 0, fixture.partition.partition_epoch
    )
    fixture.partition.alter_partition_answered(fixture.partition.isr_state, again, fixture.now_ms)
    assert fixture.isr == [1, 2] and not fixture.partition.isr_state.in_flight


def test_nothing_shrinks_while_an_expansion_is_on_its_way() -> None:
    """RL 2.5: one change in flight: a member that falls behind meanwhile leaves with the next
    look after the answer.
    """
    fixture = PartitionFixture(isr=(1, 2))
    fixture.append(4)
    fixture.log.set_high_watermark(4)
    fixture.follower_fetches(3, 4)
    pending = fixture.partition.isr_state
    assert isinstance(pending, PendingExpand)
    late_ms = fixture.now_ms + 60_000
    fixture.partition.maybe_shrink_isr(late_ms)
    assert fixture.partition.isr_state is pending
    answer = IsrAnswer(ErrorCode.NONE, LOCAL, 5, frozenset({1, 2, 3}), 0, 11)
    fixture.partition.alter_partition_answered(pending, answer, late_ms)
    fixture.partition.maybe_shrink_isr(late_ms)
    assert fixture.partition.isr_state.in_flight and 2 not in fixture.partition.isr_state.proposed


def test_the_look_for_laggards_passes_over_what_is_not_led() -> None:
    """RL 1.1, PartitionTest: followers, offline partitions and those without a role are no
    business of `isr-expiration`.
    """
    fixture = Fixture()
    fixture.topic(
        states={
            0: registration(2, (1, 2)),
            1: registration(LOCAL, (1, 2)),
            2: registration(LOCAL, (1,)),
        }
    )
    fixture.partition(TopicPartition("t", 2)).fail("gone")
    fixture.produce(tp=OTHER)
    fixture.clock.advance(60)
    fixture.replicas.shrink_isrs()
    assert [proposal.topic_partition for proposal, _ in fixture.controller.asked] == [OTHER]
