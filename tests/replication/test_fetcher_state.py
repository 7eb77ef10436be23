"""What a fetcher decides about its partitions (RL 6.2-6.5): tables, and a model."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replication.fixtures import TOPIC_ID
from tests.replication.test_fetch_session_handler import FATES, leader_reads
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetch_session import FetchSessionCache
from twisted_broker.replication.fetcher.fetch_session_handler import (
    FetchSessionHandler,
    RequestedPartition,
)
from twisted_broker.replication.fetcher.fetcher_state import (
    FetchedPartition,
    FetcherState,
    FetchOutcome,
    FetchPhase,
    InitialFetchState,
    PartitionFetchState,
)
from twisted_broker.replication.fetcher.truncation_decision import (
    EpochEnd,
    LeaderEpochRequest,
    OffsetReset,
    OffsetTruncationState,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode

A, B, C = (TopicPartition(name, 0) for name in "abc")
NONE = ErrorCode.NONE


def state_with(
    *names: TopicPartition, truncates_on_fetch: bool = True, latest_epoch: int = 4
) -> FetcherState:
    state = FetcherState()
    for name in names:
        state.add(name, InitialFetchState(TOPIC_ID, 5, 10), latest_epoch, truncates_on_fetch)
    return state


def ask(offset: int = 10, epoch: int = 5) -> RequestedPartition:
    return RequestedPartition(TOPIC_ID, offset, epoch, 4, 0, 1000)


def made(name: TopicPartition, state: PartitionFetchState) -> RequestedPartition:
    return RequestedPartition(
        state.topic_id, state.fetch_offset, state.leader_epoch, state.last_fetched_epoch, 0, 1000
    )


def asked_in_turn(state: FetcherState, now_ms: int) -> dict[TopicPartition, RequestedPartition]:
    """What is asked in a round that begins now."""
    assert state.update_requested(now_ms, made) == []
    return state.requested.in_order()


def order(state: FetcherState) -> str:
    return "".join(name.topic for name in state.partitions)


@pytest.mark.parametrize(
    ("truncates_on_fetch", "latest_epoch", "phase", "last"),
    [
        (True, 4, FetchPhase.FETCHING, 4),
        (True, -1, FetchPhase.TRUNCATING, -1),
        (False, 4, FetchPhase.TRUNCATING, -1),
    ],
)
def test_how_a_partition_begins(truncates_on_fetch, latest_epoch, phase, last) -> None:
    """RL 6.2, 6.3, 1.4: fetching at once when fetch answers tell where to cut and epochs are known;
    else truncating.
    """
    found = state_with(
        A, truncates_on_fetch=truncates_on_fetch, latest_epoch=latest_epoch
    ).partitions[A]
    assert (found.phase, found.last_fetched_epoch, found.lag, found.fetch_offset) == (
        phase,
        last,
        None,
        10,
    )


def test_added_again_under_the_same_epoch_it_keeps_its_state() -> None:
    """RL 6.1: the offset reached stays; a newer epoch starts over, and a failed partition is
    fetched again.
    """
    state = state_with(A)
    state.appended(A, 19, 5, 20)
    state.add(A, InitialFetchState(TOPIC_ID, 5, 3), 5, True)
    assert state.partitions[A].fetch_offset == 20
    state.add(A, InitialFetchState(TOPIC_ID, 6, 3), 5, True)
    assert state.partitions[A].fetch_offset == 3
    state.fail(A)
    assert (A in state.partitions, state.failed) == (False, {A})
    state.add(A, InitialFetchState(TOPIC_ID, 6, 3), 5, True)
    assert state.failed == set()


def test_partitions_take_turns() -> None:
    """RL 6.2: what got records, was truncated, delayed or had its offset reset goes to the end; an
    empty answer leaves the order.
    """
    state = state_with(A, B, C)
    state.appended(A, 12, 5, 13)
    assert order(state) == "bca"
    state.appended(B, -1, -1, 13)
    assert order(state) == "bca"
    state.truncated(B, OffsetTruncationState(8, True), 4, True)
    assert order(state) == "cab"
    state.delay([C], 200, 100)
    assert order(state) == "abc"
    state.offset_reset(A, OffsetReset(0, False, False, 5), 4)
    assert order(state) == "bca"


def test_truncating_ones_take_turns_too() -> None:
    """RL 6.2, 6.3: also those that were not asked for in between."""
    state = state_with(A, B, C, truncates_on_fetch=False)
    state.truncated(A, OffsetTruncationState(8, False), 4, False)
    assert [name for name, _ in state.truncating(0)] == [B, C, A]
    state.delay([B], 200, 100)
    assert [name for name, _ in state.truncating(100)] == [C, A]
    assert [name for name, _ in state.truncating(200)] == [C, A, B]


def test_a_delay_ends_by_itself() -> None:
    """RL 6.2, 6.5: a delayed partition is neither fetched nor truncated until its time; a second
    error does not prolong the delay.
    """
    state = state_with(A, B)
    state.delay([A], 1100, 100)
    state.delay([A], 1500, 600)
    assert list(asked_in_turn(state, 1099)) == [B]
    assert state.next_due_ms(1099) == 1100
    assert list(asked_in_turn(state, 1100)) == [B, A]
    assert state.next_due_ms(1100) is None


@pytest.mark.parametrize(
    ("error", "diverging", "verdict"),
    [
        (ErrorCode.NONE, None, FetchOutcome.APPEND),
        (ErrorCode.NONE, (3, 7), FetchOutcome.TRUNCATE),
        (ErrorCode.OFFSET_OUT_OF_RANGE, None, FetchOutcome.OUT_OF_RANGE),
        (ErrorCode.FENCED_LEADER_EPOCH, None, FetchOutcome.FENCED),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, None, FetchOutcome.RETRY),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, None, FetchOutcome.RETRY),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, FetchOutcome.RETRY),
        (ErrorCode.UNKNOWN_TOPIC_ID, None, FetchOutcome.RETRY),
        (ErrorCode.INCONSISTENT_TOPIC_ID, None, FetchOutcome.RETRY),
        (ErrorCode.KAFKA_STORAGE_ERROR, None, FetchOutcome.RETRY),
        (ErrorCode.UNKNOWN_SERVER_ERROR, None, FetchOutcome.RETRY),
    ],
)
def test_what_an_answer_means(error, diverging, verdict) -> None:
    """RL 6.4, 6.5."""
    assert (
        state_with(A).outcome_of_fetch(
            A, ask(), FetchedPartition(error, diverging_epoch=diverging), 0
        )
        is verdict
    )


@pytest.mark.parametrize("what", ["removed", "moved on", "another epoch", "delayed", "truncating"])
@pytest.mark.parametrize(
    "error", [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.FENCED_LEADER_EPOCH]
)
def test_an_answer_of_yesterday_counts_for_nothing(what, error) -> None:
    """RL 6.4: only if the partition is still here, ready, and at the offset (and under the
    epoch) asked.
    """
    state = state_with(A)
    if what == "removed":
        state.remove(A)
    elif what == "moved on":
        state.partitions[A].fetch_offset = 11
    elif what == "another epoch":
        state.add(A, InitialFetchState(TOPIC_ID, 6, 10), 4, True)
    elif what == "delayed":
        state.delay([A], 1000, 0)
    else:
        state.partitions[A].phase = FetchPhase.TRUNCATING
    assert state.outcome_of_fetch(A, ask(), FetchedPartition(error), 500) is FetchOutcome.STALE


def test_an_answer_of_a_former_topic_counts_for_no_other() -> None:
    """RL 6.4: the topic was deleted and made anew while the answer was on its way. Both may be
    followed from the same leader, epoch and offset: without a record both are at 0.
    """
    state = state_with(A)
    asked = made(A, state.partitions[A])
    state.remove(A)
    state.add(A, InitialFetchState(bytes(15) + b"2", 5, 10), 4, True)
    assert state.outcome_of_fetch(A, asked, FetchedPartition(NONE), 500) is FetchOutcome.STALE
    asked = made(A, state.partitions[A])
    assert state.outcome_of_fetch(A, asked, FetchedPartition(NONE), 500) is FetchOutcome.APPEND


@pytest.mark.parametrize(
    ("epoch", "error", "verdict"),
    [
        (5, ErrorCode.NONE, FetchOutcome.TRUNCATE),
        (5, ErrorCode.FENCED_LEADER_EPOCH, FetchOutcome.FENCED),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH, FetchOutcome.RETRY),
        (4, ErrorCode.NONE, FetchOutcome.STALE),
        (4, ErrorCode.FENCED_LEADER_EPOCH, FetchOutcome.STALE),
    ],
)
def test_an_answer_about_an_epoch_counts_under_the_epoch_asked(epoch, error, verdict) -> None:
    """RL 6.3: an answer counts only while the leader epoch is the one asked."""
    state = state_with(A, truncates_on_fetch=False)
    assert (
        state.outcome_of_epoch_end(A, LeaderEpochRequest(epoch, 4), EpochEnd(error, 4, 9))
        is verdict
    )


@pytest.mark.parametrize(
    ("name", "asked_epoch", "error", "verdict"),
    [
        (A, 5, ErrorCode.FENCED_LEADER_EPOCH, FetchOutcome.FENCED),
        (A, 4, ErrorCode.FENCED_LEADER_EPOCH, FetchOutcome.RETRY),
        (A, 5, ErrorCode.NOT_LEADER_OR_FOLLOWER, FetchOutcome.RETRY),
        (B, 5, ErrorCode.FENCED_LEADER_EPOCH, FetchOutcome.STALE),
    ],
)
def test_fenced_fails_a_partition_only_at_its_current_epoch(
    name, asked_epoch, error, verdict
) -> None:
    """RL 6.5: FENCED_LEADER_EPOCH at the epoch that is the newest here: failed until the
    controller's news; of an older one: tried again.
    """
    assert state_with(A).outcome_of_error(name, asked_epoch, error) is verdict


def test_after_an_append() -> None:
    """RL 6.4: next offset = last + 1, lag = max(0, leader's high watermark - next)."""
    state = state_with(A)
    state.appended(A, 14, 5, 20)
    found = state.partitions[A]
    assert (found.fetch_offset, found.last_fetched_epoch, found.lag, state.max_lag) == (15, 5, 5, 5)
    state.appended(A, -1, -1, 12)
    assert (found.fetch_offset, found.last_fetched_epoch, found.lag) == (15, 5, 0)


@pytest.mark.parametrize(
    ("complete", "truncates_on_fetch", "phase"),
    [
        (True, False, FetchPhase.FETCHING),
        (False, False, FetchPhase.TRUNCATING),
        (False, True, FetchPhase.FETCHING),
    ],
)
def test_after_a_truncation(complete, truncates_on_fetch, phase) -> None:
    """RL 6.3: a cut that is not complete is gone on with by the next question; that is the next
    fetch where fetches tell where to cut.
    """
    state = state_with(A, truncates_on_fetch=truncates_on_fetch)
    state.truncated(A, OffsetTruncationState(6, complete), 3, truncates_on_fetch)
    found = state.partitions[A]
    assert (found.fetch_offset, found.last_fetched_epoch, found.phase) == (6, 3, phase)


@pytest.mark.parametrize(
    "what",
    [
        "added",
        "appended",
        "answered",
        "cut",
        "offset reset",
        "marked",
        "another topic",
        "another epoch",
        "delayed",
        "failed",
    ],
)
def test_a_round_looks_at_what_happened_only(what: str) -> None:
    """RL 6.2: whoever is asked as before is not looked at; whoever may not be is, once, or for
    as long as it waits.
    """
    state = state_with(A, B)
    asked_in_turn(state, 0)
    happens = {
        "added": lambda: state.add(C, InitialFetchState(TOPIC_ID, 5, 0), 4, True),
        "appended": lambda: state.appended(A, 20, 5, 21),
        "answered": lambda: state.appended(A, -1, -1, 21),
        "cut": lambda: state.truncated(A, OffsetTruncationState(8, True), 4, True),
        "offset reset": lambda: state.offset_reset(A, OffsetReset(0, False, False, 5), 4),
        "marked": lambda: state.mark_changed(A),
        "another topic": lambda: state.add(A, InitialFetchState(bytes(16), 5, 10), 4, True),
        "another epoch": lambda: state.add(A, InitialFetchState(TOPIC_ID, 6, 10), 4, True),
        "delayed": lambda: state.delay([A], 100, 0),
        "failed": lambda: state.fail(A),
    }
    happens[what]()
    looked_at: list[TopicPartition] = []

    def ask_noting(name: TopicPartition, found: PartitionFetchState) -> RequestedPartition:
        looked_at.append(name)
        return made(name, found)

    for now_ms in (50, 60, 100, 150):
        state.update_requested(now_ms, ask_noting)
        assert state.requested.current == {
            name: made(name, found)
            for name, found in state.partitions.items()
            if found.is_ready(now_ms)
        }
    assert looked_at == ([] if what == "failed" else [C] if what == "added" else [A])


def test_what_cannot_be_asked_is_not_asked_and_looked_at_again() -> None:
    """RL 6.5: the ask that stood is taken back at once."""
    state = state_with(A, B)
    asked_in_turn(state, 0)
    state.mark_changed(A)

    def refuse(name: TopicPartition, found: PartitionFetchState) -> RequestedPartition:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)

    assert state.update_requested(0, refuse) == [A]
    assert list(state.requested.current) == [B]
    assert list(asked_in_turn(state, 0)) == [A, B]


class Model:
    """A fetcher's state, what its partitions' own logs begin at and who cannot be asked; and a
    leader's side of the fetch session.
    """

    def __init__(self) -> None:
        self.state, self.now_ms = FetcherState(), 0
        self.known: dict[TopicPartition, tuple[int, bytes]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.refusing: set[TopicPartition] = set()
        self.session, self.cache = FetchSessionHandler(), FetchSessionCache(10, Random(1))

    def ask(self, name: TopicPartition, found: PartitionFetchState) -> RequestedPartition:
        if name in self.refusing:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return made(name, found)._replace(log_start_offset=self.starts.get(name, 0))

    def add(self, name: TopicPartition, epoch: int, anew: bool, latest_epoch: int) -> None:
        """`anew`: under the id of a topic that was deleted and created again. No two topics share
        an id.
        """
        topic_id = name.topic.encode() * 15 + bytes([anew])
        self.known[name] = epoch, topic_id
        self.state.add(name, InitialFetchState(topic_id, epoch, 0), latest_epoch, True)

    def remove(self, name: TopicPartition) -> None:
        self.known.pop(name, None)
        self.state.remove(name)

    def fail(self, name: TopicPartition) -> None:
        self.state.fail(name)

    def delay(self, name: TopicPartition, for_ms: int) -> None:
        self.state.delay([name], self.now_ms + for_ms, self.now_ms)

    def append(self, name: TopicPartition, records: bool) -> None:
        found = self.state.partitions.get(name)
        last = found.fetch_offset if found is not None and records else -1
        self.state.appended(name, last, 0, last + 1)
        assert found is None or not records or list(self.state.partitions)[-1] == name

    def cut(self, name: TopicPartition, complete: bool) -> None:
        if name in self.state.partitions:
            self.state.truncated(name, OffsetTruncationState(0, complete), 0, False)

    def reset(self, name: TopicPartition, offset: int) -> None:
        if name in self.state.partitions:
            self.state.offset_reset(name, OffsetReset(offset, False, True, 0), 0)

    def start_moves(self, name: TopicPartition) -> None:
        self.starts[name] = self.starts.get(name, 0) + 1
        self.state.mark_changed(name)

    def refuse(self, name: TopicPartition) -> None:
        self.refusing ^= {name}
        self.state.mark_changed(name)

    def time(self, passes_ms: int) -> None:
        self.now_ms += passes_ms

    def round(self, fate: str) -> None:
        """After its start all that are ready are asked, in the order of turns, each as it is
        now; the leader reads just these.
        """
        state = self.state
        ready = {
            name: found for name, found in state.partitions.items() if found.is_ready(self.now_ms)
        }
        expected = {
            name: self.ask(name, found)
            for name, found in ready.items()
            if name not in self.refusing
        }
        refused = state.update_requested(self.now_ms, self.ask)
        assert set(refused) == set(ready) & self.refusing
        assert (
            list(state.requested.in_order().items()) == list(expected.items())
            and state.requested.current == expected
        )
        state.delay(refused, self.now_ms + 20, self.now_ms)
        assert set(state._may_have_changed) == set(state.partitions) - set(expected), (
            "nothing is kept of what is gone or as it should be"
        )
        if self.session.has_request(state.requested):
            read = leader_reads(
                self.cache,
                self.session,
                self.session.build_request(state.requested),
                fate,
                self.now_ms,
            )
            assert read is None or read == expected
        else:
            assert not expected

    def check(self) -> None:
        """Everybody is in one place."""
        state, now_ms = self.state, self.now_ms
        ready = {name for name, found in state.partitions.items() if found.is_ready(now_ms)}
        delayed = {name for name, found in state.partitions.items() if found.is_delayed(now_ms)}
        truncating = {
            name: found
            for name, found in state.partitions.items()
            if found.phase is FetchPhase.TRUNCATING
        }
        assert ready | delayed | set(truncating) == set(state.partitions)
        assert not ready & delayed and not state.failed & set(state.partitions)
        assert state.failed | set(state.partitions) == set(self.known)
        assert all(
            found.topic_id == self.known[name][1] for name, found in state.partitions.items()
        )
        assert [name for name, _ in state.truncating(now_ms)] == [
            name for name in truncating if name not in delayed
        ]
        assert state.next_due_ms(now_ms) == min(
            (state.partitions[name].delayed_until_ms for name in delayed), default=None
        )


NAMES = st.sampled_from([A, B, C])
STEPS = st.one_of(
    st.tuples(st.just("round"), st.sampled_from(FATES)),
    st.tuples(
        st.just("add"),
        NAMES,
        st.integers(1, 3),
        st.booleans(),
        st.integers(-1, 0),
    ),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("fail"), NAMES),
    st.tuples(st.just("delay"), NAMES, st.integers(1, 50)),
    st.tuples(st.just("append"), NAMES, st.booleans()),
    st.tuples(st.just("cut"), NAMES, st.booleans()),
    st.tuples(st.just("reset"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("start_moves"), NAMES),
    st.tuples(st.just("refuse"), NAMES),
    st.tuples(st.just("time"), st.integers(1, 60)),
)


@given(steps=st.lists(STEPS, max_size=60))
def test_whatever_happens_all_that_are_ready_are_asked(steps) -> None:
    """RL 6.2, 6.5: every partition is ready or delayed or truncating or failed; turns are fair; and
    what a round asks, and a leader reads for it, is what one would ask who looked at all
    partitions.
    """
    model = Model()
    for kind, *arguments in [*steps, ("round", "answered")]:
        getattr(model, kind)(*arguments)
        model.check()
