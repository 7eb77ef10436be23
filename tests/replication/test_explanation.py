"""What `explain` tells: each standing reason, by the rule of the contract that made it."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.replication.fixtures import (
    LOCAL,
    MAX_LAG_MS,
    TP,
    WALL_MS,
    Fixture,
    PartitionFixture,
    at,
    consumer,
    follower,
    registration,
)
from tests.replication.pair import nodes
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.explain.explanation import Explanation, explain, fetching_now
from twisted_broker.replication.explain.reasons import Moment, broker_names, duration, offset_count
from twisted_broker.replication.partition.isr_state import IsrAnswer
from twisted_broker.replication.partition.partition_history import TRUNCATIONS_KEPT
from twisted_broker.wire.errors import ErrorCode

SECOND = 1000


def told(fixture: PartitionFixture, **more) -> Explanation:
    return explain(fixture.partition, Moment(fixture.now_ms, WALL_MS), **more)


def confirm(fixture: PartitionFixture) -> None:
    """The controller agrees with what is pending."""
    pending = fixture.partition.isr_state
    answer = IsrAnswer(
        ErrorCode.NONE,
        LOCAL,
        fixture.partition.leader_epoch,
        frozenset(pending.proposed),
        0,
        fixture.partition.partition_epoch + 1,
    )
    fixture.partition.alter_partition_answered(pending, answer, fixture.now_ms)


def shrunk(fixture: PartitionFixture) -> None:
    """Broker 3 stops fetching at offset 1 of 3 and is left out."""
    fixture.append()
    fixture.follower_fetches(2, 1)
    fixture.follower_fetches(3, 1)
    fixture.append(2)
    fixture.now_ms += MAX_LAG_MS + 1
    fixture.follower_fetches(2, 3)
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    confirm(fixture)


def test_a_replica_left_out_for_its_lag_is_shown_with_its_numbers() -> None:
    """RL 2.4, shrink: the rule, when it left, when it was caught up last, and where it and the
    leader stood then and stand now.
    """
    fixture = PartitionFixture()
    shrunk(fixture)
    fixture.now_ms += 5 * SECOND
    fixture.append()
    (out,) = told(fixture).out_of_sync
    assert (out.broker, out.rule, out.for_ms) == (3, "lag", 5 * SECOND)
    assert out.since_ms == WALL_MS - 5 * SECOND
    assert out.last_caught_up_ms == WALL_MS - 5 * SECOND - MAX_LAG_MS - 1
    assert (out.then_log_end, out.then_leader_log_end, out.log_end, out.behind) == (1, 3, 1, 3)
    assert out.why == (
        "it was not caught up for replica.lag.time.max.ms (30.0 s; last caught up 30.0 s before), "
        "its log end was 1 of 3"
    )
    assert told(fixture).isr == [1, 2] and told(fixture).isr_since_ms == out.since_ms


def test_a_replica_that_has_nothing_is_behind_by_all_of_it() -> None:
    """RL 2.4: log end 0 is a log end; one that never fetched has none that is known."""
    fixture = PartitionFixture()
    fixture.follower_fetches(3, 0)
    fixture.append(4)
    fixture.now_ms += MAX_LAG_MS + 1
    fixture.follower_fetches(2, 4)
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    confirm(fixture)
    (out,) = told(fixture).out_of_sync
    assert (out.log_end, out.behind) == (0, 4)


def test_what_keeps_a_replica_out_is_named_one_by_one() -> None:
    """RL 2.4, expand, and KRAFT 3.6: alive, of the registered epoch, at the high watermark: each
    that it lacks is said, and no other.
    """
    fixture = PartitionFixture()
    shrunk(fixture)
    (out,) = told(fixture).out_of_sync
    assert out.holds_back == [
        "its last fetch was 30.0 s ago",
        "its log end 1 is 2 offsets below the high watermark",
    ]
    fixture.brokers.alive.discard(3)
    assert told(fixture).out_of_sync[0].holds_back[0] == "it is fenced"
    fixture.brokers.alive.add(3)
    fixture.brokers.ineligible.add(3)
    fixture.brokers.epochs[3] = 200
    assert told(fixture).out_of_sync[0].holds_back[:2] == [
        "it is shutting down",
        "it fetches under broker epoch 103, but is registered under 200",
    ]
    fixture.brokers.ineligible.discard(3)
    fixture.follower_fetches(3, 1, epoch=-1)  # as versions before KIP-903 do
    assert told(fixture).out_of_sync[0].holds_back == [
        "its log end 1 is 2 offsets below the high watermark"
    ]


def test_an_expansion_on_its_way_and_a_refused_one_are_shown() -> None:
    """RL 2.5: the change that the controller has yet to answer, since when; and the error with
    which it refused.
    """
    fixture = PartitionFixture()
    shrunk(fixture)
    fixture.follower_fetches(3, 3)
    fixture.now_ms += SECOND
    explanation = told(fixture)
    assert explanation.isr_change is not None
    assert (
        explanation.isr_change.kind,
        explanation.isr_change.brokers,
        explanation.isr_change.for_ms,
    ) == ("expand", [3], SECOND)
    assert explanation.out_of_sync[0].holds_back == [
        "the controller has not answered about adding it yet (requested 1.0 s ago)"
    ]
    fixture.partition.alter_partition_answered(
        fixture.partition.isr_state,
        IsrAnswer(ErrorCode.INELIGIBLE_REPLICA),
        fixture.now_ms,
    )
    assert told(fixture).isr_change is None
    assert told(fixture).out_of_sync[0].holds_back == [
        "the controller refused an ISR change 0 ms ago: INELIGIBLE_REPLICA"
    ]
    fixture.follower_fetches(3, 3)
    confirm(fixture)
    assert told(fixture).out_of_sync == [] and told(fixture).isr == [1, 2, 3]


@pytest.mark.parametrize(
    ("alive", "eligible", "leaving", "rule"),
    [
        (False, False, False, "fenced"),
        (True, False, True, "shutting down"),
        # a controlled shutdown that ended before the leader knew that it had begun
        (False, False, True, "shutting down"),
        (True, True, False, "controller"),
    ],
)
def test_a_replica_that_the_controller_took_out_is_shown_as_such(
    alive: bool, eligible: bool, leaving: bool, rule: str
) -> None:
    """RL 8.2, 8.3: fenced, shutting down, or taken out by the controller for anything else."""
    fixture = PartitionFixture()
    if leaving:
        fixture.brokers.leaving.add(3)
    if not alive:
        fixture.brokers.alive.discard(3)
    if not eligible:
        fixture.brokers.ineligible.add(3)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1, 2), 5, 11), fixture.log, fixture.now_ms
    )
    (out,) = told(fixture).out_of_sync
    assert (out.broker, out.rule) == (3, rule)


def test_the_controllers_word_may_come_before_its_answer() -> None:
    """RL 2.5: the delta of a shrink that this leader proposed keeps the leader's own reason."""
    fixture = PartitionFixture()
    fixture.append()
    fixture.now_ms += MAX_LAG_MS + 1
    fixture.follower_fetches(2, 1)
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1, 2), 5, 11), fixture.log, fixture.now_ms
    )
    assert [out.rule for out in told(fixture).out_of_sync] == ["lag"]


@pytest.mark.parametrize(("alive", "rule"), [(False, "fenced"), (True, "controller")])
def test_the_leader_before_is_out_since_this_one_leads(alive: bool, rule: str) -> None:
    """RL 8.3: a dead leader leaves the ISR with the change that makes the next one: that is its
    reason, not an older one.
    """
    fixture = PartitionFixture(lead=False)
    fixture.partition.make_follower(
        registration(3, (1, 2, 3), None, 5, 10), fixture.log, fixture.now_ms
    )
    if not alive:
        fixture.brokers.alive.discard(3)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1,), 6, 11), fixture.log, fixture.now_ms
    )
    assert {out.broker: out.rule for out in told(fixture).out_of_sync} == {
        2: "before this leader",
        3: rule,
    }


def test_since_when_the_isr_is_as_it_is() -> None:
    """RL 2.2: since its last change, or since this leader; an assigned replica changes nothing."""
    fixture = PartitionFixture(replicas=(1, 2))
    began = told(fixture).isr_since_ms
    fixture.now_ms += 5 * SECOND
    grown = registration(LOCAL, (1, 2, 3), (1, 2), 5, 11)._replace(adding=(3,))
    fixture.partition.make_leader(grown, fixture.log, fixture.now_ms)
    assert told(fixture).isr_since_ms == began - 5 * SECOND
    fixture.partition.make_follower(
        registration(2, (1, 2, 3), (1, 2), 6, 12), fixture.log, fixture.now_ms
    )
    fixture.now_ms += 5 * SECOND
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1, 2), 7, 13), fixture.log, fixture.now_ms
    )
    assert told(fixture).isr_since_ms == WALL_MS


def test_replicas_out_before_this_leader_and_new_ones_have_different_reasons() -> None:
    """RL 2.2, 8.5: who was out when this broker began to lead; who was assigned since."""
    fixture = PartitionFixture(replicas=(1, 2, 3), isr=(1, 2))
    assert [out.rule for out in told(fixture).out_of_sync] == ["before this leader"]
    (out,) = told(fixture).out_of_sync
    assert out.holds_back == ["it has not fetched from this leader yet"]
    assert (out.then_log_end, out.then_leader_log_end, out.log_end) == (-1, 0, -1)
    fixture = PartitionFixture(replicas=(1, 2))
    grown = registration(LOCAL, (1, 2, 3), (1, 2), 5, 11)._replace(adding=(3,))
    fixture.partition.make_leader(grown, fixture.log, fixture.now_ms)
    assert [out.rule for out in told(fixture).out_of_sync] == ["new replica"]


def test_the_high_watermark_waits_for_the_slowest_of_the_isr() -> None:
    """RL 2.3: for whom, how far behind, and since when: when that replica last had everything."""
    fixture = PartitionFixture()
    fixture.append()
    fixture.follower_fetches(2, 1)
    fixture.follower_fetches(3, 1)
    assert told(fixture).high_watermark_waits is None
    fixture.append(4)
    fixture.now_ms += 3 * SECOND
    fixture.follower_fetches(2, 5)
    wait = told(fixture).high_watermark_waits
    assert wait is not None
    assert (wait.rule, wait.behind, wait.for_ms, wait.since_ms) == (
        "slowest replica",
        4,
        3 * SECOND,
        WALL_MS - 3 * SECOND,
    )
    assert [(each.broker, each.log_end, each.behind, each.counts_as) for each in wait.brokers] == [
        (3, 1, 4, "in the ISR")
    ]
    assert wait.why == "it waits for broker 3, 4 offsets behind, for 3.0 s"


def test_once_nobody_holds_it_back_the_high_watermark_moves_with_the_next_fetch() -> None:
    """RL 2.3: a replica outside the ISR counts as long as it is caught up; when it is no longer,
    nothing happens before somebody fetches.
    """
    fixture = PartitionFixture(isr=(1, 2))
    fixture.append(10)
    fixture.partition.remote_replicas[3].fetched(LogOffsetMetadata(4), 0, fixture.now_ms, 4, 103)
    fixture.follower_fetches(2, 10)
    wait = told(fixture).high_watermark_waits
    assert wait is not None and [each.broker for each in wait.brokers] == [3]
    fixture.now_ms += MAX_LAG_MS + 1
    wait = told(fixture).high_watermark_waits
    assert wait is not None
    assert (wait.rule, wait.behind, wait.brokers, wait.since_ms, wait.for_ms) == (
        "next fetch",
        6,
        [],
        0,
        0,
    )


def test_one_that_is_about_to_leave_still_holds_the_high_watermark() -> None:
    """RL 2.5: until the controller confirmed the shrink, the replica counts; and it is said that
    it only waits for that.
    """
    fixture = PartitionFixture()
    fixture.append()
    fixture.now_ms += MAX_LAG_MS + 1
    fixture.follower_fetches(2, 1)
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    wait = told(fixture).high_watermark_waits
    assert wait is not None and [each.counts_as for each in wait.brokers] == [
        "about to leave the ISR, not confirmed yet"
    ]
    confirm(fixture)
    assert told(fixture).high_watermark_waits is None


def test_below_the_minimum_isr_the_high_watermark_waits_for_that() -> None:
    """RL 2.3: since when the ISR is below the minimum, not since the last of its changes; live
    settings end it.
    """
    fixture = PartitionFixture(config=LogConfig(min_insync_replicas=2), isr=(1, 2))
    fixture.now_ms += SECOND
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1,), 5, 11), fixture.log, fixture.now_ms
    )
    fixture.now_ms += SECOND
    fixture.append()
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1,), 5, 12), fixture.log, fixture.now_ms
    )
    wait = told(fixture).high_watermark_waits
    assert wait is not None and (wait.rule, wait.behind, wait.for_ms, wait.brokers) == (
        "minimum isr",
        1,
        SECOND,
        [],
    )
    assert wait.why.startswith("the ISR has 1, but min.insync.replicas is 2")
    fixture.partition.update_config(LogConfig(min_insync_replicas=1), fixture.now_ms)
    assert told(fixture).high_watermark_waits is None


def test_a_waiting_produce_says_for_whom() -> None:
    """RL 1.7: acks=all waits for the high watermark, which waits for those of the ISR that do
    not have it.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(LOCAL, (1, 2, 3))})
    outcome = fixture.produce(3, acks=-1)
    fixture.replicas.wait_for_replicas([outcome], 5000)
    fixture.replicas.fetch(follower(2), [at(3)])
    fixture.advance(1)
    (waiting,) = explain(
        fixture.partition(),
        Moment(101_000, WALL_MS),
        fixture.replicas.produce_purgatory.watching(TP),
    ).waiting
    assert (waiting.request, waiting.needs, waiting.has, waiting.brokers, waiting.left_ms) == (
        "Produce",
        3,
        0,
        [3],
        4000,
    )
    assert waiting.why == (
        "acks=all: the high watermark must reach 3, it is at 0, which waits for broker 3; "
        "4.0 s left"
    )


def test_a_waiting_fetch_says_what_it_lacks() -> None:
    """RL 1.9 G: the bytes it wants over all its partitions, and those that are there; who reads,
    from where, and up to what.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(LOCAL, (1, 2))})
    fixture.produce(1)
    for params, offset in ((consumer(500, 10_000), 0), (follower(2, 400), 1)):
        fixture.replicas.delayed_fetch(params, fixture.replicas.fetch(params, [at(offset)]))
    first, second = explain(
        fixture.partition(), Moment(100_000, WALL_MS), fixture.replicas.fetch_purgatory.watching(TP)
    ).waiting
    assert (first.request, first.needs, first.broker, first.left_ms) == ("Fetch", 10_000, -1, 500)
    assert first.has == fixture.partition().log.size_in_bytes > 0, (
        "the follower's fetch moved the high watermark over it"
    )
    assert first.why.startswith(
        f"a consumer reads from 0 up to the high watermark: {first.has} of 10000 bytes are there"
    )
    assert (second.broker, second.has) == (2, 0) and second.why.startswith(
        "follower 2 reads from 1 up to the log end"
    )


def test_waiting_delete_records_names_the_replicas_that_lack() -> None:
    """RL 2.8: live replicas whose log start has not moved yet."""
    fixture = Fixture()
    fixture.topic(states={0: registration(LOCAL, (1, 2, 3))})
    fixture.produce(2)
    for broker in (2, 3):
        fixture.replicas.fetch(follower(broker), [at(2, log_start_offset=0)])
    outcomes = fixture.replicas.delete_records([(TP, 2)])
    fixture.replicas.wait_for_deletion(outcomes, 1000)
    fixture.replicas.fetch(follower(2), [at(2, log_start_offset=2)])
    (waiting,) = explain(
        fixture.partition(),
        Moment(100_000, WALL_MS),
        fixture.replicas.delete_records_purgatory.watching(TP),
    ).waiting
    assert (waiting.request, waiting.needs, waiting.has, waiting.brokers) == (
        "DeleteRecords",
        2,
        0,
        [3],
    )


def test_a_truncation_shows_epochs_offsets_bytes_and_what_was_acknowledged() -> None:
    """RL 6.3: what truncation by epoch took, and how much of it lay below the high watermark."""
    one, two = nodes()
    two.lead(1, isr=(1, 2, 3))
    two.append(3)
    size = two.log.size_in_bytes
    two.log.set_high_watermark(2)
    two.lead(2, isr=(1, 2, 3))
    two.append(2)
    one.lead(3)
    one.append(1)
    two.follow(one, 3)
    two.catch_up()
    assert two.content() == one.content()
    explanation = explain(two.held, Moment(two.now_ms(), WALL_MS))
    cut = explanation.truncations[-1]
    assert (cut.from_offset, cut.to_offset, cut.epochs, cut.last_epoch, cut.leader_epoch) == (
        5,
        0,
        [1, 2],
        2,
        3,
    )
    assert (cut.high_watermark, cut.below_high_watermark, cut.at_ms) == (2, 2, WALL_MS)
    assert cut.bytes == size * 5 // 3
    assert cut.why == (
        f"under leader epoch 3, dropped 5 offsets, {cut.bytes:,} bytes, 2 of them below its high "
        "watermark 2: acknowledged, and perhaps consumed"
    )
    assert (
        explanation.role == "follower"
        and explanation.isr == []
        and explanation.high_watermark_waits is None
    )


def test_a_truncation_above_the_high_watermark_lost_nothing_acknowledged() -> None:
    """RL 6.3: the usual cut, of what only this replica had, says so."""
    one, two = nodes()
    two.lead(1, isr=(1, 2, 3))
    two.append(1)
    one.lead(2)
    two.follow(one, 2)
    two.catch_up()
    (cut,) = explain(two.held, Moment(two.now_ms(), WALL_MS)).truncations
    assert cut.below_high_watermark == 0
    assert cut.why == (
        f"under leader epoch 2, dropped 1 offset, {cut.bytes} bytes, none of them below its "
        "high watermark"
    )


def test_the_last_truncations_are_kept_newest_first() -> None:
    """RL 6.5: beginning anew beyond the own end is a cut of its own kind; a bounded number is
    remembered.
    """
    (one,) = nodes(1)
    one.held.make_follower(registration(2, (1, 2, 3), (2,), 1, 10), one.log)
    for number in range(TRUNCATIONS_KEPT + 2):
        one.held.truncate_fully_and_start_at(100 + number, WALL_MS + number)
    truncations = explain(one.held, Moment(one.now_ms(), WALL_MS)).truncations
    assert [cut.to_offset for cut in truncations] == [109, 108, 107, 106, 105, 104, 103, 102]
    assert (
        truncations[0].why
        == "the whole log was dropped and starts again at 109, the leader's log start"
    )
    assert explain(PartitionFixture().partition, Moment(1, 1)).truncations == []


def test_a_follower_says_how_it_is_fetched_and_why_not() -> None:
    """RL 6.2, 6.4, 6.5: phase, offset and lag; after a failure the reason, until a new role
    clears it.
    """
    one, two = nodes()
    one.lead(1)
    one.append(3)
    two.follow(one, 1)
    now = Moment(two.now_ms(), WALL_MS)
    assert (
        fetching_now(two.held, "f", "broker 1", two.state, now).why
        == "truncating from broker 1 at 0, no answer yet"
    )
    two.catch_up()
    found = fetching_now(two.held, "f", "broker 1", two.state, now)
    assert (found.fetcher, found.phase, found.offset, found.lag) == ("f", "fetching", 3, 0)
    two.fetcher.partition_failed(TP, "the disk is full")
    failed = fetching_now(
        two.held, "f", "broker 1", two.state, Moment(two.now_ms() + SECOND, WALL_MS)
    )
    assert (
        failed.phase == "failed"
        and failed.why == "fetching stopped 1.0 s ago, until its metadata changes: the disk is full"
    )
    two.held.make_follower(registration(1, (1, 2, 3), (1,), 2, 20), two.log, two.now_ms())
    assert fetching_now(two.held, "f", "broker 1", None, now).phase == "none"


def test_an_explanation_is_json_and_an_offline_replica_has_one() -> None:
    """RL 1.12: whatever the state, there is an answer; sets and tuples are gone from it."""
    import json

    fixture = PartitionFixture()
    shrunk(fixture)
    fixture.append()
    assert json.loads(json.dumps(asdict(told(fixture))))["out_of_sync"][0]["broker"] == 3
    fixture.partition.fail("the disk is gone")
    assert told(fixture).role == "offline" and told(fixture).log_end == 4


def test_explaining_needs_no_reactor() -> None:
    """Ring 0: all of it is plain Python; a simulation and a test see the same reasons as a
    broker.
    """
    import subprocess
    import sys

    program = (
        "import sys, twisted_broker.replication.explain.explanation; print('twisted' in "
        "sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "False"
    )


def test_lengths_are_written_for_people() -> None:
    """Milliseconds, seconds, minutes, hours: each where it says most."""
    assert [duration(ms) for ms in (0, 999, 1000, 119_900, 120_000, 7_200_000)] == [
        "0 ms",
        "999 ms",
        "1.0 s",
        "119.9 s",
        "2 min",
        "2.0 h",
    ]


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (119_900, "119.9 s"),
        (120_000, "2 min"),
        (3_600_000, "60 min"),
        (7_199_000, "120 min"),
        (7_200_000, "2.0 h"),
        (90_000_000, "25.0 h"),
    ],
)
def test_lengths_of_time(length_ms: int, text: str) -> None:
    assert duration(length_ms) == text


def test_brokers_are_named_in_their_order() -> None:
    assert [broker_names(brokers) for brokers in ((), (3,), (3, 1), (2, 3, 1))] == [
        "nobody",
        "broker 3",
        "brokers 1 and 3",
        "brokers 1, 2 and 3",
    ]


def test_counts_of_offsets() -> None:
    assert [offset_count(count) for count in (0, 1, 1234)] == [
        "0 offsets",
        "1 offset",
        "1,234 offsets",
    ]
