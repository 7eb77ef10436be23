"""Throttled replicas: what counts, who waits, and that who waited catches up (RL 1.8, 1.9, 5.3,
6.2, 6.4).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.api.data_plane import Api, DenyList
from tests.replication.fixtures import (
    LOCAL,
    TOPIC_ID,
    TP,
    Fixture,
    at,
    consumer,
    follower,
    registration,
)
from tests.replication.pair import BACKOFF_MS, Node, nodes
from tests.replication.test_fetcher_rounds import write
from tests.replication.test_idle_partitions import Follower
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.explain.explanation import fetching_now
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.replication.fetcher.fetch_session_handler import FetchSessionHandler
from twisted_broker.replication.fetcher.fetcher_state import InitialFetchState
from twisted_broker.replication.fetcher.replica_fetcher import FollowedReplicas, ReplicaFetcher
from twisted_broker.replication.idle_partitions import idle_reads
from twisted_broker.replication.purgatory.delayed_operations import DelayedFetch
from twisted_broker.replication.replication_quota import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    ReplicationQuota,
)
from twisted_broker.status.view import BrokerView

if TYPE_CHECKING:
    from twisted_broker.status.view import NodeParts

OTHER = TopicPartition("t", 1)
RATE = 100


# what counts


def test_the_mean_of_the_windows_is_bounded() -> None:
    """RL 5.3: at the bound is not above it; time alone brings it back. The figures are those of
    Kafka's ReplicationQuotaManagerTest.
    """
    quota = ReplicationQuota(lambda: RATE, 10, 1000)
    assert not quota.is_exceeded(0)
    quota.record(1, 1500)
    assert not quota.is_exceeded(1500)
    quota.record(149, 1500)
    assert not quota.is_exceeded(1500)
    quota.record(1, 1500)
    assert (quota.byte_rate(1500), quota.is_exceeded(1500)) == (151 / 1.5, True)
    assert (quota.byte_rate(2000), quota.is_exceeded(2000)) == (151 / 2, False)
    quota.record(99, 2500)
    assert (quota.byte_rate(2500), quota.is_exceeded(2500)) == (100, False)
    quota.record(1, 2500)
    assert (quota.byte_rate(2500), quota.is_exceeded(2500)) == (251 / 2.5, True)
    assert (quota.byte_rate(4500), quota.is_exceeded(4500)) == (251 / 4.5, False)


def test_a_first_burst_counts_as_one_windows() -> None:
    """RL 5.3: as long as less than a window has passed, the bytes are divided by a window; what
    is older than all windows is gone.
    """
    quota = ReplicationQuota(lambda: RATE, 11, 1000)
    quota.record(250, 0)
    assert quota.byte_rate(0) == quota.byte_rate(999) == 250
    assert quota.byte_rate(10_999) == 250 / 10.999
    assert quota.byte_rate(11_000) == 0


def test_the_bound_is_read_at_each_look() -> None:
    """RL 5.3: the rate is a dynamic setting."""
    bound = [RATE]
    quota = ReplicationQuota(lambda: bound[0])
    quota.record(RATE + 1, 0)
    assert quota.is_exceeded(0)
    bound[0] = RATE + 1
    assert not quota.is_exceeded(0)


@pytest.mark.parametrize(
    ("setting", "throttled"),
    [
        ("", ()),
        ("*", (0, 1, 2)),
        (" * ", (0, 1, 2)),
        ("0:1", (0,)),
        ("0:1,2:1", (0, 2)),
        ("0:2,1:3", ()),
        ("0:2, 1:1 ,2:10", (1,)),
        ("x,1:,:1,0:1", (0,)),
        ("9" * 5000 + ":1,1:1", (1,)),
    ],
)
def test_which_replicas_are_throttled(setting: str, throttled: tuple[int, ...]) -> None:
    """RL 5.3: those of this broker, of this topic, as they were set last."""
    quota = ReplicationQuota(lambda: RATE)
    quota.set_topic("t", "0:1,1:1,2:1", LOCAL)
    quota.set_topic("t", setting, LOCAL)
    found = tuple(n for n in range(3) if quota.is_throttled(TopicPartition("t", n)))
    assert found == throttled
    assert bool(quota.topics) == bool(throttled)
    assert not quota.is_throttled(TopicPartition("other", 0))


# the leader's side


def leading(isr: tuple[int, ...] = (1,), **settings: str) -> Fixture:
    """Broker 1 leads partitions 0 (throttled) and 1 (not), with so many in the ISR; what was sent
    to throttled replicas is above the bound.
    """
    fixture = Fixture(leader_replication_throttled_rate=str(RATE), **settings)
    fixture.topic(
        states={n: registration(LOCAL, (1, 2, 3), isr) for n in (0, 1)},
        overrides={LEADER_REPLICAS: "0:1"},
    )
    spend(fixture)
    return fixture


def spend(fixture: Fixture, seconds: int = 5) -> None:
    """Above the bound for so long from now on."""
    fixture.replicas.leader_quota.record(RATE * seconds + 1, fixture.runtime.now_ms())


def sizes(fixture: Fixture, params, *requests) -> list[int]:
    results = fixture.replicas.fetch(params, list(requests))
    for result in results:
        assert result.error == 0
    found = [result.size for result in results]
    for result in results:
        result.release()
    return found


def test_a_throttled_follower_reads_empty() -> None:
    """RL 1.8, 5.3: it gets nothing while the rate is above its bound, and all again when time has
    brought it back; other partitions are served, and so are consumers.
    """
    fixture = leading()
    fixture.produce(3)
    fixture.produce(3, tp=OTHER)
    nothing, served = sizes(fixture, follower(2), at(0), at(0, tp=OTHER))
    assert nothing == 0 and served > 0
    assert sizes(fixture, consumer(), at(0)) != [0]
    assert fixture.replicas.stats.of("t").replication_bytes_out == served
    fixture.advance(6)
    assert sizes(fixture, follower(2), at(0)) == [served]


def test_what_is_throttled_takes_nothing_of_the_limit() -> None:
    """RL 1.8: the partition after a throttled one may have the whole answer, and its first batch
    whatever its size.
    """
    fixture = leading()
    fixture.produce(1, value=b"x" * 2000)
    fixture.produce(1, value=b"x" * 2000, tp=OTHER)
    params = follower(2)
    params.max_bytes = 1500
    nothing, served = sizes(fixture, params, at(0), at(0, tp=OTHER))
    assert nothing == 0 and served > 2000


def test_a_replica_in_sync_is_not_throttled() -> None:
    """RL 1.8, 5.3: one in the ISR gets its records whatever the rate: without them it would leave
    the ISR, and acks=all would wait.
    """
    fixture = leading(isr=(1, 2))
    fixture.produce(1)
    assert sizes(fixture, follower(2), at(0)) != [0]
    assert sizes(fixture, follower(3), at(0)) == [0]


def test_a_throttle_that_is_taken_away_throttles_nobody() -> None:
    """RL 1.11, 5.3: topic settings and the topic's end act at once."""
    fixture = leading()
    fixture.produce(1)
    assert sizes(fixture, follower(2), at(0)) == [0]
    fixture.topic(states={n: registration(LOCAL, (1, 2, 3), (1,)) for n in (0, 1)}, overrides={})
    assert sizes(fixture, follower(2), at(0)) != [0]
    assert not fixture.replicas.leader_quota.topics


def waiting(fixture: Fixture, params, *requests) -> DelayedFetch:
    first = fixture.replicas.fetch(params, list(requests))
    for result in first:
        result.release()
    return DelayedFetch(
        params,
        first,
        fixture.replicas.partition,
        throttled_topics=fixture.replicas.leader_quota.topics,
        is_throttled=fixture.replicas.throttles_follower,
    )


def test_throttled_bytes_are_not_available() -> None:
    """RL 1.9 G: a follower's fetch that waits does not count bytes it would not get: it would be
    answered with nothing, at once and again and again.
    """
    fixture = leading()
    fetch = waiting(fixture, follower(2), at(0), at(0, tp=OTHER))
    fixture.produce(3)
    assert (fetch.is_complete(), fetch.readable_bytes()) == (False, 0)
    assert not fetch.is_complete(TP)
    fixture.produce(1, tp=OTHER)
    assert fetch.is_complete(OTHER)


def test_bytes_are_available_to_a_replica_in_sync() -> None:
    """RL 1.9 G, 1.8."""
    fixture = leading(isr=(1, 2))
    fetch = waiting(fixture, follower(2), at(0))
    assert not fetch.is_complete()
    fixture.produce(1)
    assert fetch.is_complete(TP)


def test_a_segment_that_rolls_answers_no_throttled_follower() -> None:
    """RL 1.9 F: the end is on a newer segment than the fetch offset; a throttled follower waits."""
    fixture = leading()
    fixture.produce(1)
    throttled, other = (waiting(fixture, follower(2), at(0, tp=tp)) for tp in (TP, OTHER))
    for tp in (TP, OTHER):
        fixture.partition(tp).log.roll(0)
        fixture.produce(1, tp=tp)
    assert not throttled.is_complete()
    assert other.is_complete()
    fixture.advance(6)
    assert throttled.is_complete()


def test_a_truncation_answers_a_throttled_follower() -> None:
    """RL 1.9 F: what it fetches from is gone: it must hear of it."""
    fixture = leading()
    fixture.produce(3)
    throttled = waiting(fixture, follower(2), at(3))
    fixture.partition().log.truncate_to(1, fixture.wall_ms)
    assert throttled.is_complete()


def test_a_throttled_follower_catches_up_without_news() -> None:
    """RL 1.8, 1.9, 5.2: nothing is appended any more, and its session names no partition again;
    still it gets everything when the rate is back below its bound: what it is held back from never
    becomes idle. Its waits last, nothing spins.
    """
    fixture = leading()
    fixture.produce(20)
    api = Api(fixture, DenyList())
    other = Follower(api, 2)
    other.leader_epoch = fixture.partition().leader_epoch
    other.positions = {0: 0, 1: 0}
    for _ in range(8):
        other.ask()
        if other.waiting is not None:
            assert not idle_reads(fixture.partition())
            fixture.advance(0.5)
            assert other.take()
        assert other.positions[0] == 0
        assert len(idle_reads(fixture.partition(OTHER))) <= 1
    fixture.advance(2)
    for _ in range(3):
        other.ask()
        fixture.advance(0.5)
        other.take()
    assert other.positions[0] == 20


def test_what_is_sent_counts_once_and_as_it_is_sent() -> None:
    """RL 5.3: the records of throttled partitions in the answer, to whomever they go; not those of
    the first read of a fetch that waited.
    """
    fixture = leading(isr=(1, 2))
    quota, before = fixture.replicas.leader_quota, RATE * 5 + 1
    api = Api(fixture, DenyList())
    other = Follower(api, 2)
    other.leader_epoch = fixture.partition().leader_epoch
    other.positions = {0: 0, 1: 0}
    other.ask(min_bytes=100_000)
    fixture.produce(1)
    fixture.produce(1, tp=OTHER)
    fixture.advance(0.5)
    assert other.take()
    assert other.positions == {0: 1, 1: 1}
    now_ms = fixture.runtime.now_ms()
    assert quota.byte_rate(now_ms) == before + fixture.partition().log.size_in_bytes


# the follower's side


def throttled_follower(
    records: int = 3, replicas: str = "*", bound: Callable[[], int] = lambda: RATE
) -> tuple[Node, Node, ReplicationQuota]:
    """Broker 1 follows broker 2; its throttle's rate is above the bound."""
    a, b = nodes()
    b.lead(1, isr=(2,))
    b.append(records)
    quota = ReplicationQuota(bound)
    quota.set_topic(TP.topic, replicas, a.id)
    a.follow(b, 1)
    assert a.leader is not None
    a.fetcher = ReplicaFetcher(
        "f",
        a.runtime,
        a.leader,
        FollowedReplicas(a, quota=quota),
        BACKOFF_MS,
        1 << 20,
        None,
        quota,
    )
    a.fetcher.add({TP: InitialFetchState(TOPIC_ID, 1, 0)})
    return a, b, quota


def fetches(node: Node) -> int:
    return sum(TP in asked for what, asked in node.leader.asked if what == "fetch")


def test_a_throttled_follower_leaves_lagging_replicas_out() -> None:
    """RL 5.3, 6.2: while the rate is above the bound, what lags is not requested; afterwards it is,
    though nothing happened but time.
    """
    a, b, quota = throttled_follower()
    quota.record(RATE * 3 + 1, a.now_ms())
    a.round()
    assert (fetches(a), a.log.log_end_offset) == (0, 0)
    a.clock.advance(3)
    a.round()
    assert fetches(a) == 0
    a.clock.advance(1)
    a.round()
    assert (fetches(a), a.content()) == (1, b.content())


def test_a_rate_that_is_raised_lets_a_follower_go_on_that_waits() -> None:
    """At 1 byte a second it would wait for days."""
    bound = [1]
    a, b, quota = throttled_follower(bound=lambda: bound[0])
    quota.record(RATE * 1000, a.now_ms())
    a.round()
    assert fetches(a) == 0
    bound[0] = RATE * 2000
    a.round()
    assert (fetches(a), a.content()) == (1, b.content())


def test_what_was_requested_is_left_out_when_another_used_the_rate_up() -> None:
    """RL 6.2: it is looked at in each round though nothing was answered for it, and the leader's
    session forgets it.
    """
    a, _, quota = throttled_follower()
    a.round()
    a.clock.advance(20)
    a.state.lag = 5
    session = FetchSessionHandler()
    requested = a.fetcher.state.requested
    a.fetcher.state.update_requested(a.now_ms(), a.fetcher._requests(a.now_ms()))
    assert TP in session.build_request(requested).partitions
    assert not quota.is_exceeded(a.now_ms())
    session.handle_response(0, 7)
    quota.record(RATE * 3 + 1, a.now_ms())
    a.fetcher.state.update_requested(a.now_ms(), a.fetcher._requests(a.now_ms()))
    assert session.build_request(requested).forgotten == [(TP, TOPIC_ID)]
    assert not requested.current
    a.clock.advance(5)
    a.fetcher.state.update_requested(a.now_ms(), a.fetcher._requests(a.now_ms()))
    assert TP in requested.current


def test_a_follower_in_sync_is_fetched_whatever_the_rate() -> None:
    """RL 6.2: only while lagging: else it would leave the ISR."""
    a, b, quota = throttled_follower()
    a.catch_up(3)
    assert a.state.lag == 0
    quota.record(RATE * 100, a.now_ms())
    before = fetches(a)
    b.append(1)
    a.round()
    a.round()
    assert fetches(a) == before + 2
    assert a.content() == b.content()


def test_a_replica_that_is_not_throttled_is_fetched() -> None:
    """RL 5.3: throttled replicas only."""
    a, b, quota = throttled_follower(replicas="0:9,1:1")
    quota.record(RATE * 100, a.now_ms())
    a.round()
    assert a.content() == b.content()


def test_what_a_throttled_follower_fetches_counts() -> None:
    """RL 6.4: the bytes of throttled replicas."""
    a, b, quota = throttled_follower()
    a.round()
    assert quota.byte_rate(a.now_ms()) == b.log.size_in_bytes > 0
    a, b, quota = throttled_follower(replicas="0:9,1:1")
    a.round()
    assert quota.byte_rate(a.now_ms()) == 0


def test_what_a_follower_refuses_counts() -> None:
    """RL 6.4: it was sent, and is sent again; here what may lack the end of a transaction. Kafka
    counts after the append, and refuses only what is corrupt.
    """
    a, b, quota = throttled_follower(records=0)
    write(a, 0, 1)
    write(b, 0, 3, 4)
    a.held.may_be_elected = False
    a.fetcher.remove([TP])
    a.fetcher.add({TP: InitialFetchState(TOPIC_ID, 1, 2)})
    sent = b.log.size_in_bytes - a.log.size_in_bytes // 2  # 3 and 4; all are of one size
    a.round()
    assert a.log.log_end_offset == 1 and quota.byte_rate(a.now_ms()) == sent
    a.round()
    assert a.content() == b.content() and quota.byte_rate(a.now_ms()) == 2 * sent


def test_the_settings_reach_both_quotas() -> None:
    """RL 5.3, 1.11: topic settings by broker, and the rates, live."""
    fixture = Fixture(follower_replication_throttled_rate="70", replication_quota_window_num="2")
    fixture.topic(overrides={LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:2,1:1"})
    leader, followed = fixture.replicas.leader_quota, fixture.replicas.follower_quota
    assert (leader.is_throttled(TP), leader.is_throttled(OTHER)) == (True, True)
    assert (followed.is_throttled(TP), followed.is_throttled(OTHER)) == (False, True)
    now_ms = fixture.runtime.now_ms()
    followed.record(71, now_ms)
    assert followed.is_exceeded(now_ms) and not leader.is_exceeded(now_ms)
    assert followed.byte_rate(now_ms + 2000) == 0
    fixture.topic(overrides={LEADER_REPLICAS: "1:1"})
    assert leader.topics == {"t": {1}} and not followed.topics
    fixture.publish(configs={})
    assert not leader.topics


def view_of(fixture: Fixture) -> BrokerView:
    parts = SimpleNamespace(
        runtime=fixture.runtime, replica_manager=fixture.replicas, log_manager=None
    )
    return BrokerView(lambda: cast("NodeParts", parts))


def test_an_explanation_names_the_throttle() -> None:
    """On the leader, of those that are not in sync; with its setting, only while it throttles."""
    fixture = leading(isr=(1, 3))
    fixture.produce(3)
    view = view_of(fixture)
    throttled, other = (
        view.explanation(fixture.replicas.partitions[name], view.now()) for name in (TP, OTHER)
    )
    (out,) = throttled.out_of_sync
    assert out.broker == 2
    assert out.holds_back[0] == (
        "throttled: 501 bytes a second, above leader.replication.throttled.rate=100"
    )
    assert not any("throttled" in each for out in other.out_of_sync for each in out.holds_back)
    fixture.advance(6)
    (out,) = view.explanation(fixture.replicas.partitions[TP], view.now()).out_of_sync
    assert not any("throttled" in each for each in out.holds_back)


def test_a_follower_names_its_throttle() -> None:
    a, _, _ = throttled_follower()
    quota = ReplicationQuota(lambda: RATE, setting=FOLLOWER_RATE)
    quota.set_topic(TP.topic, "*", a.id)
    quota.record(RATE * 3, a.now_ms())
    state, now = a.fetcher.state.partitions[TP], Moment(a.now_ms(), 0)
    why = fetching_now(a.held, "f", "b", state, now, quota.reason_for(TP, a.now_ms())).why
    assert why.endswith(
        ", throttled: 300 bytes a second, above follower.replication.throttled.rate=100"
    )
    quota.set_topic(TP.topic, "", a.id)
    assert not quota.reason_for(TP, a.now_ms())
    state.lag = 0
    assert state.is_in_sync
    assert "throttled" not in fetching_now(a.held, "f", "b", state, now, "throttled: x").why
