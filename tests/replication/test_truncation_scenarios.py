"""Replicas of one partition through the production partition, log and fetcher: the cases that
leader epochs were made for (RL 6.3).

tests/scenarios runs some of them on whole brokers; here they are the replica layer's own, and by
both ways of finding where to truncate. What else a round does, and how a truncation is logged:
test_fetcher_rounds.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replication.fixtures import TP
from tests.replication.pair import copied, nodes
from twisted_broker.replication.fetcher.fetcher_state import FetchPhase

both_ways = pytest.mark.parametrize(
    "truncates_on_fetch", [True, False], ids=["by fetch", "by OffsetForLeaderEpoch"]
)


@both_ways
def test_kip_101_a_restarted_follower_keeps_what_is_above_its_high_watermark(
    truncates_on_fetch: bool,
) -> None:
    """RL 6.3, KIP-101 scenario 1: the follower holds both records under an old high watermark,
    restarts, and its leader dies: nothing is lost.
    """
    a, b = nodes()
    b.lead(1, isr=(1, 2))
    b.append(2)
    a.follow(b, 1, truncates_on_fetch=truncates_on_fetch)
    a.catch_up(3)
    a.log.set_high_watermark(1)  # what its checkpoint said when it went down
    a.follow(b, 1, truncates_on_fetch=truncates_on_fetch)
    a.round()
    a.lead(2)
    assert a.content() == b.content()
    assert [offset for offset, _, _ in a.content()] == [0, 1]


@both_ways
def test_kip_101_logs_do_not_part_when_the_shorter_one_leads(truncates_on_fetch: bool) -> None:
    """RL 6.3, KIP-101 scenario 2: all lose power, the replica without the last record leads and
    writes on: the other cuts its own and is equal.
    """
    a, b = copied(1, truncates_on_fetch=truncates_on_fetch)
    a.append(1)
    a.log.set_high_watermark(2)
    b.lead(2)
    b.append(1)
    a.follow(b, 2, truncates_on_fetch=truncates_on_fetch)
    a.catch_up(4)
    assert a.content() == b.content()
    assert [epoch for _, epoch, _ in a.content()] == [1, 2]
    assert a.epochs() == b.epochs() == [(1, 0), (2, 1)]


@both_ways
def test_kip_279_epochs_that_the_other_does_not_know_are_stepped_through(
    truncates_on_fetch: bool,
) -> None:
    """RL 6.3, KIP-279: fast leader changes left epochs 1 and 3 here, 2 and 4 there: the cut goes
    down until both agree, and no further.
    """
    a, b = copied(2, epoch=0, truncates_on_fetch=truncates_on_fetch)
    a.lead(1)
    a.append(2)
    b.lead(2)
    b.append(3)
    a.lead(3)
    a.append(6)
    b.lead(4)
    b.append(1)
    assert a.epochs() == [(0, 0), (1, 2), (3, 4)] and b.epochs() == [(0, 0), (2, 2), (4, 5)]
    a.follow(b, 4, truncates_on_fetch=truncates_on_fetch)
    cuts: list[int] = []
    a.log.on_truncated = lambda log: cuts.append(log.log_end_offset)
    a.catch_up(8)
    assert cuts == [4, 2], (
        "first the epoch that only the leader knows is stepped under, then both agree on epoch 0"
    )
    assert a.content() == b.content()
    assert a.epochs() == b.epochs()


def test_kip_279_without_cutting_on_fetch_a_partition_stays_truncating_until_both_agree() -> None:
    """RL 6.3: a cut that is not complete asks again, for the epoch below."""
    a, b = nodes()
    a.lead(1)
    a.append(2)
    a.lead(3)
    a.append(2)
    b.lead(2)
    b.append(4)
    b.lead(4)
    a.follow(b, 4, truncates_on_fetch=False)
    assert a.state.phase is FetchPhase.TRUNCATING
    a.round()
    assert a.state.phase is FetchPhase.TRUNCATING
    assert [ask[TP].epoch for what, ask in a.leader.asked if what == "epochs"] == [3]
    a.catch_up(4)
    assert [ask[TP].epoch for what, ask in a.leader.asked if what == "epochs"] == [3, 1]
    assert a.content() == b.content()


def test_kip_320_a_zombie_leader_gives_nothing_to_a_follower_that_knows_better() -> None:
    """RL 2.6, 6.5, KIP-320: the old leader does not know the new epoch: UNKNOWN_LEADER_EPOCH,
    nothing is appended, the partition is tried again.
    """
    a, b = nodes()
    b.lead(1)
    b.append(1)
    a.follow(b, 1)
    a.catch_up(2)
    b.append(1)
    a.follow(b, 2)
    a.round()
    assert a.log.log_end_offset == 1
    assert a.state.delayed_until_ms == a.now_ms() + 1000
    b.lead(2)
    a.clock.advance(1)
    a.catch_up(2)
    assert a.content() == b.content()


def test_kip_320_a_follower_of_yesterday_is_fenced() -> None:
    """RL 2.6, 6.5, KIP-320: a follower that missed the news fetches under an old epoch:
    FENCED_LEADER_EPOCH, nothing appended, failed until news.
    """
    a, b = nodes()
    b.lead(1)
    a.follow(b, 1)
    b.lead(2)
    b.append(1)
    a.round()
    assert a.log.log_end_offset == 0
    assert a.state is None and a.fetcher.state.failed == {TP}
    a.follow(b, 2)
    a.catch_up(2)
    assert a.content() == b.content() and a.fetcher.state.failed == set()


def test_kip_320_the_old_leader_appends_alone_and_is_truncated_when_it_follows() -> None:
    """RL 6.3, KIP-320: what a fenced leader took in under its own epoch is cut when it follows
    the new leader.
    """
    a, b, c = nodes(3)
    a.lead(1, isr=(1, 2, 3))
    a.append(2)
    for each in (b, c):
        each.follow(a, 1)
        each.catch_up(2)
    b.lead(2)
    a.append(3)  # a zombie: nobody fetches this
    c.follow(b, 2)
    b.append(1)
    c.catch_up(2)
    a.follow(b, 2)
    a.catch_up(3)
    assert a.content() == b.content() == c.content()
    assert [epoch for _, epoch, _ in a.content()] == [1, 1, 2]


@both_ways
def test_the_high_watermark_stays_when_only_what_is_above_is_truncated(
    truncates_on_fetch: bool,
) -> None:
    """RL 6.3: truncation by epoch leaves the high watermark alone unless it must pass it."""
    a, b = nodes()
    b.lead(1, isr=(1, 2))
    b.append(3)
    a.follow(b, 1, truncates_on_fetch=truncates_on_fetch)
    a.catch_up(3)
    assert a.log.high_watermark == 3
    a.lead(2)
    a.append(2)
    a.log.set_high_watermark(3)
    b.lead(3)
    a.follow(b, 3, truncates_on_fetch=truncates_on_fetch)
    a.round()
    assert a.log.log_end_offset == 3 and a.log.high_watermark == 3


def test_without_epochs_truncation_goes_to_the_high_watermark() -> None:
    """RL 6.3: a log that knows no epochs (old message formats) is cut to the high watermark
    before it is fetched.
    """
    a, b = nodes()
    a.lead(1)
    a.append(3)
    a.log.leader_epochs.clear()
    a.log.set_high_watermark(2)
    b.lead(2)
    b.append(3)
    a.follow(b, 2)
    assert a.state.phase is FetchPhase.TRUNCATING and a.state.fetch_offset == 2
    ends: list[int] = []
    a.log.on_truncated = lambda log: ends.append(log.log_end_offset)
    a.round()
    assert ends == [2]


def test_recovery_point_after_a_truncation() -> None:
    """RL 6.6: the recovery point is min(own, cut), and whoever writes its checkpoint is told
    within the cut.
    """
    a, b = nodes()
    a.lead(1)
    a.append(5)
    a.log.durability.flush()
    assert a.log.durability.recovery_point == 5
    told: list[int] = []
    a.log.on_truncated = lambda log: told.append(log.durability.recovery_point)
    b.lead(2)
    b.append(1)
    a.follow(b, 2)
    a.round()
    assert a.log.durability.recovery_point == 0 and told == [0]


Term = st.tuples(
    st.integers(0, 2),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(terms=st.lists(Term, min_size=1, max_size=7), truncates_on_fetch=st.booleans())
def test_whatever_leaders_did_their_followers_become_equal(terms, truncates_on_fetch) -> None:
    """RL 6.3, 6.4: any history of elections, clean or not, with followers that got as far as they
    got: at the end all logs are equal, and what a follower had in common with its last leader was
    never cut.
    """
    group = nodes(3)
    epoch = 0
    for leader, appends, followers in terms:
        epoch += 1
        group[leader].lead(epoch)
        group[leader].append(appends)
        for follower, rounds in followers:
            if follower != leader:
                group[follower].follow(group[leader], epoch, truncates_on_fetch=truncates_on_fetch)
                group[follower].catch_up(rounds)
    last = group[terms[-1][0]]
    for each in group:
        if each is last:
            continue
        common = _common(each.content(), last.content())
        each.follow(last, epoch, truncates_on_fetch=truncates_on_fetch)
        for _ in range(30):
            each.round()
            assert each.log.log_end_offset >= common
        assert each.content() == last.content()
        end = last.log.log_end_offset
        assert [entry for entry in each.epochs() if entry[1] < end] == [
            entry for entry in last.epochs() if entry[1] < end
        ]


def _common(one, other) -> int:
    return next(
        (row for row, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
