"""Cases of Kafka's own test classes that no other file here holds (RELIABILITY 3.1): PartitionTest, ReplicaManagerTest, AbstractFetcherThreadTest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.log.batches import marker
from tests.replication.rig import (
    LOCAL,
    TOPIC_ID,
    TP,
    WALL_MS,
    PartitionRig,
    Rig,
    at,
    batch,
    broker_registration,
    code_of,
    consumer,
    follower,
    registration,
)
from tests.replication.test_following import REPLICAS, FollowerRig, sent_by_leader
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.replication import leader_isr
from twisted_broker.replication.fetch_data import HIGH_WATERMARK, LOG_END, TXN_COMMITTED
from twisted_broker.replication.isr import IsrAnswer, PendingExpand
from twisted_broker.replication.partition_offsets import LATEST, MAX_TIMESTAMP, NOT_FOUND, end_offset_for_epoch, list_offset
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import fetch as fetch_wire

OTHER = TopicPartition("t", 1)


# PartitionTest


@pytest.mark.parametrize("only_leader", [True, False])
@pytest.mark.parametrize(("epoch", "code"), [(5, "FENCED_LEADER_EPOCH"), (7, "UNKNOWN_LEADER_EPOCH")])
def test_epochs_are_checked_before_leadership(only_leader: bool, epoch: int, code: str) -> None:
    """RL 2.6, PartitionTest: on a follower as on a leader, for fetches, ListOffsets and OffsetForLeaderEpoch: the epoch's error, not NOT_LEADER."""
    rig = PartitionRig()
    rig.partition.make_follower(registration(2, (1, 2, 3), (2,), 6, 11), rig.log)
    assert code_of(rig.partition.log_for, epoch, only_leader) == ErrorCode[code]
    assert code_of(list_offset, rig.partition, LATEST, 1, epoch, only_leader) == ErrorCode[code]
    assert code_of(end_offset_for_epoch, rig.partition, epoch, 5) == ErrorCode[code]


def test_the_same_leader_epoch_resets_nothing() -> None:
    """RL 2.2, PartitionTest: another partition epoch under the same leader epoch keeps the epoch's start and what is known of followers."""
    rig = PartitionRig()
    rig.append(4)
    rig.follower_fetches(2, 3)
    known = rig.partition.remote_replicas[2]
    before = (known.log_end_offset, known.last_caught_up_ms, known.last_fetch_ms, known.broker_epoch)
    rig.now_ms += 5_000
    assert not rig.partition.make_leader(registration(LOCAL, (1, 2, 3), (1, 2), 5, 11), rig.log, rig.now_ms)
    assert rig.partition.remote_replicas[2] is known and rig.partition.leader_epoch_start_offset == 0
    assert (known.log_end_offset, known.last_caught_up_ms, known.last_fetch_ms, known.broker_epoch) == before
    assert list(rig.log.leader_epochs.entries()) == [(5, 0)]


def test_the_controllers_larger_view_wins() -> None:
    """RL 2.5, PartitionTest: the answer names the ISR: what the controller knows more than was proposed is taken over."""
    rig = PartitionRig(isr=(1,))
    rig.append(4)
    rig.follower_fetches(2, 4)
    pending = rig.partition.isr_state
    leader_isr.answered(rig.partition, pending, IsrAnswer(ErrorCode.NONE, LOCAL, 5, frozenset({1, 2, 3}), 0, 12), rig.now_ms)
    assert (rig.isr, rig.partition.partition_epoch) == ([1, 2, 3], 12)


def test_a_follower_that_was_caught_up_at_its_previous_fetch_stays() -> None:
    """RL 2.4, PartitionTest: behind the end, but it had all that was there when it fetched before: caught up then."""
    rig = PartitionRig(replicas=(1, 2))
    rig.append(5)
    rig.follower_fetches(2, 0)
    rig.now_ms += 20_000
    rig.append(5)
    rig.follower_fetches(2, 5)
    leader_isr.maybe_shrink(rig.partition, rig.now_ms + 10_000)
    assert not rig.partition.isr_state.in_flight, "caught up 30,000 ms ago, at its first fetch"
    leader_isr.maybe_shrink(rig.partition, rig.now_ms + 10_001)
    assert rig.partition.isr_state.in_flight


@pytest.mark.parametrize("change", [{"fenced": True}, {"in_controlled_shutdown": True}])
def test_a_follower_that_is_fenced_or_leaves_does_not_join(change: dict[str, bool]) -> None:
    """RL 2.4, PartitionTest: as the metadata says it at that moment; when it is over the next fetch lets it join."""
    rig = Rig()
    rig.topic(states={0: registration(LOCAL, (1, 2), (1,))})
    rig.publish(brokers={**rig.image.brokers, 2: broker_registration(2)._replace(**change)})
    rig.replicas.fetch(follower(2), [at(0)])
    assert rig.controller.asked == []
    rig.publish(brokers={**rig.image.brokers, 2: broker_registration(2)})
    rig.replicas.fetch(follower(2), [at(0)])
    assert len(rig.controller.asked) == 1


# ReplicaManagerTest


def test_a_parked_read_committed_fetch_gets_the_list_of_aborted_transactions() -> None:
    """RL 1.9, ReplicaManagerTest (KAFKA-5376): the transaction ends while the fetch waits: the second read has the list."""
    rig = Rig()
    rig.topic()
    open_transaction = batch(2, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    rig.replicas.append([(TP, open_transaction)], 1, origin=AppendOrigin.COORDINATOR)
    rig.replicas.drain()
    params = consumer(isolation=TXN_COMMITTED)
    done: list[object] = []
    rig.replicas.delayed_fetch(params, rig.replicas.fetch(params, [at(0)])).addCallback(done.append)
    assert not done
    rig.replicas.append([(TP, marker(9, commit=False, epoch=0))], 1, origin=AppendOrigin.COORDINATOR)
    rig.replicas.drain()
    assert done
    (result,) = rig.replicas.fetch(params, [at(0)], record_progress=False)
    assert (result.aborted_transactions, result.last_stable_offset, result.size > 0) == ([(9, 0)], 3, True)
    result.release()


def test_roles_go_there_and_back() -> None:
    """RL 1.3, ReplicaManagerTest: leader, follower, leader again: the log stays, each time the right one may write."""
    rig = FollowerRig()
    rig.lead(1)
    assert rig.produce(2).error == ErrorCode.NONE
    rig.follow(2, 2)
    assert rig.produce().error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.wires[0].answer(records=sent_by_leader(1, epoch=2, base=2), high_watermark=3)
    rig.lead(3)
    assert rig.fetched() == {} and rig.produce().base_offset == 3
    assert rig.partition().log.leader_epochs.entries() == [(1, 0), (2, 2), (3, 3)]


# AbstractFetcherThreadTest


def answer(rig: FollowerRig, *partitions: dict[str, Any]) -> None:
    """The leader's answer about the partitions 0, 1, .. of `t`."""
    usual = {"records": None, "log_start_offset": 0, "high_watermark": 0}
    data = [fetch_wire.PartitionData(partition_index=index, **(usual | partition)) for index, partition in enumerate(partitions)]
    topic = fetch_wire.FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=data)
    rig.wires[0]._waiting.pop(0).callback(fetch_wire.FetchResponse(responses=[topic]))


def two_followed() -> FollowerRig:
    rig = FollowerRig()
    rig.topic(states={number: registration(2, REPLICAS, (2, 3), 1, 10) for number in range(2)})
    rig.clock.advance(0)
    return rig


@pytest.mark.parametrize("what", ["refused", "corrupt", "fails", "out of step", "gone"])
def test_one_bad_partition_of_an_answer_does_not_stop_the_others(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 6.5, AbstractFetcherThreadTest: an error, corrupt bytes, a partition that fails or is gone: the other one's records are appended."""
    rig = two_followed()
    bad: dict[str, Any] = {"records": sent_by_leader(2)}
    if what == "refused":
        bad = {"error_code": int(ErrorCode.NOT_LEADER_OR_FOLLOWER)}
    elif what == "corrupt":
        bad["records"] = bad["records"][:-1] + bytes([bad["records"][-1] ^ 1])
    elif what == "fails":
        real = type(rig.partition().log).append_as_follower
        monkeypatch.setattr(
            type(rig.partition().log), "append_as_follower",
            lambda log, *rest: 1 // 0 if log.topic_partition == TP else real(log, *rest),
        )  # fmt: skip
    elif what == "out of step":
        rig.partition().append_as_follower(sent_by_leader(1), 1, WALL_MS)
    else:
        rig.fetchers.remove([TP])
    answer(rig, bad, {"records": sent_by_leader(3), "high_watermark": 3})
    assert (rig.partition(OTHER).log.log_end_offset, rig.partition(OTHER).log.high_watermark) == (3, 3)
    assert rig.partition().log.log_end_offset == (1 if what == "out of step" else 0)
    assert (TP in rig.fetchers.failed) == (what in ("fails", "out of step"))
    assert (TP in rig.fetched()) == (what in ("refused", "corrupt"))
    assert OTHER in rig.fetched()


def test_records_beside_a_diverging_epoch_are_not_appended() -> None:
    """RL 6.3, AbstractFetcherThreadTest: the log is cut where the answer says, and nothing of that answer is appended."""
    rig = two_followed()
    answer(rig, {"records": sent_by_leader(2, 2)}, {})
    assert rig.partition().log.log_end_offset == 4
    diverging = fetch_wire.EpochEndOffset(epoch=1, end_offset=2)
    answer(rig, {"records": sent_by_leader(3, base=4), "diverging_epoch": diverging, "high_watermark": 7}, {})
    assert rig.partition().log.log_end_offset == 2
    assert rig.fetched()[TP].fetch_offset == 2


def test_the_lag_falls_with_answers_that_bring_nothing() -> None:
    """RL 6.4, ReplicaFetcherThreadTest: a lag that was seen once does not stay when the leader has no more."""
    rig = two_followed()
    answer(rig, {"records": sent_by_leader(2), "high_watermark": 9}, {})
    assert rig.fetched()[TP].lag == 7
    answer(rig, {"high_watermark": 2}, {})
    assert rig.fetched()[TP].lag == 0 == rig.fetchers.max_lag


def test_the_marks_of_one_answer_are_taken_in_their_order() -> None:
    """RL 6.4: append, then the high watermark, then the log start, which may rise only as far as the mark: one answer is enough for all three."""
    rig = two_followed()
    answer(rig, {"records": sent_by_leader(2, 2), "high_watermark": 4, "log_start_offset": 2}, {})
    log = rig.partition().log
    assert (log.log_end_offset, log.high_watermark, log.log_start_offset) == (4, 4, 2)


# the controller's answers, and what a client may know


@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(6, 12), (5, 9)], ids=["of a later leader epoch", "older than what is known"])
def test_an_answer_that_does_not_fit_is_passed_over(leader_epoch: int, partition_epoch: int) -> None:
    """RL 2.5, PartitionTest: the ISR stays what it was, the larger set in force, until the controller's own word comes."""
    rig = PartitionRig(isr=(1,))
    rig.follower_fetches(2, 0)
    pending = rig.partition.isr_state
    odd = IsrAnswer(ErrorCode.NONE, LOCAL, leader_epoch, frozenset({1, 2}), 0, partition_epoch)
    assert not leader_isr.answered(rig.partition, pending, odd, rig.now_ms)
    assert rig.partition.isr_state is pending and rig.partition.partition_epoch == 10


def test_a_leader_elected_uncleanly_says_with_its_next_change_that_it_has_recovered() -> None:
    """RL 2.5, KIP-704: there is nothing to recover from here; AlterPartition carries RECOVERED."""
    rig = PartitionRig(lead=False)
    rig.partition.make_leader(registration(LOCAL, (1, 2), (1,), 5, 10, recovery=1), rig.log, rig.now_ms)
    rig.follower_fetches(2, 0)
    pending = rig.partition.isr_state
    assert isinstance(pending, PendingExpand)
    assert leader_isr.proposal(rig.partition, pending).leader_recovery_state == 0


def test_the_largest_timestamp_is_told_only_when_it_may_be_read() -> None:
    """RL 2.7, 3.4: a client sees nothing above its end, not even where the newest record is; a follower does."""
    rig = PartitionRig(replicas=(1, 2))
    rig.append(1)
    rig.log.append_as_leader(batch(timestamp=WALL_MS + 5), 5, WALL_MS + 5)
    rig.log.set_high_watermark(1)
    assert list_offset(rig.partition, MAX_TIMESTAMP, HIGH_WATERMARK, -1, True) == NOT_FOUND
    assert list_offset(rig.partition, MAX_TIMESTAMP, LOG_END, -1, True).offset == 1
    rig.log.set_high_watermark(2)
    assert list_offset(rig.partition, MAX_TIMESTAMP, HIGH_WATERMARK, -1, True).offset == 1


@pytest.mark.parametrize("leader", [-1, 7])
def test_without_a_leader_that_is_known_the_old_one_is_left(leader: int) -> None:
    """RL 1.4: under the new epoch the partition leaves its fetcher, also when there is nobody to fetch from; what is on its way is too late."""
    rig = FollowerRig()
    rig.follow(2, 1)
    rig.follow(leader, 2)
    assert rig.fetched() == {} and rig.wires[0].closed
    rig.wires[0].answer(records=sent_by_leader(3), high_watermark=3)
    assert rig.partition().log.log_end_offset == 0


def test_an_answer_with_the_epoch_that_is_known_counts() -> None:
    """RL 2.5, 8.4: a change that was granted before its answer was lost is granted again as the state that is there: the ISR is taken over."""
    rig = PartitionRig(isr=(1,))
    rig.follower_fetches(2, 0)
    again = IsrAnswer(ErrorCode.NONE, LOCAL, 5, frozenset({1, 2}), 0, rig.partition.partition_epoch)
    leader_isr.answered(rig.partition, rig.partition.isr_state, again, rig.now_ms)
    assert rig.isr == [1, 2] and not rig.partition.isr_state.in_flight


def test_nothing_shrinks_while_an_expansion_is_on_its_way() -> None:
    """RL 2.5: one change in flight: a member that falls behind meanwhile leaves with the next look after the answer."""
    rig = PartitionRig(isr=(1, 2))
    rig.append(4)
    rig.log.set_high_watermark(4)
    rig.follower_fetches(3, 4)
    pending = rig.partition.isr_state
    assert isinstance(pending, PendingExpand)
    late_ms = rig.now_ms + 60_000
    leader_isr.maybe_shrink(rig.partition, late_ms)
    assert rig.partition.isr_state is pending
    answer = IsrAnswer(ErrorCode.NONE, LOCAL, 5, frozenset({1, 2, 3}), 0, 11)
    leader_isr.answered(rig.partition, pending, answer, late_ms)
    leader_isr.maybe_shrink(rig.partition, late_ms)
    assert rig.partition.isr_state.in_flight and 2 not in rig.partition.isr_state.proposed


def test_the_look_for_laggards_passes_over_what_is_not_led() -> None:
    """RL 1.1, PartitionTest: followers, offline partitions and those without a role are no business of `isr-expiration`."""
    rig = Rig()
    rig.topic(states={0: registration(2, (1, 2)), 1: registration(LOCAL, (1, 2)), 2: registration(LOCAL, (1,))})
    rig.partition(TopicPartition("t", 2)).fail("gone")
    rig.produce(tp=OTHER)
    rig.clock.advance(60)
    rig.replicas.shrink_isrs()
    assert [proposal.topic_partition for proposal, _ in rig.controller.asked] == [OTHER]
