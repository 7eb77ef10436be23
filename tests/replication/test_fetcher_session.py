"""The asking side of a fetch session, alone and against the serving side (RL 5.2, 6.2; KIP-227)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetch_data import FetchPartitionRequest, FetchPartitionResult
from twisted_broker.replication.fetch_session import FetchSessionCache, open_context
from twisted_broker.replication.fetcher_session import AskingSession
from twisted_broker.replication.fetcher_state import FetchAsk
from twisted_broker.wire.errors import BrokerError, ErrorCode

ONE, TWO = bytes(15) + b"\x11", bytes(15) + b"\x12"
A, B, C = (TopicPartition("t", number) for number in range(3))
NONE = ErrorCode.NONE


def ask(offset: int, topic_id: bytes = ONE) -> FetchAsk:
    return FetchAsk(topic_id, offset, 1, 1, 0, 1000)


def test_the_first_request_is_full_then_only_what_changed_is_said() -> None:
    """RL 6.2: one fetch session: what moved is named, what is no longer asked is forgotten, what stays is left out."""
    session = AskingSession()
    first = session.request({A: ask(0), B: ask(5)})
    assert (first.session_id, first.epoch, set(first.asks), first.forgotten) == (0, 0, {A, B}, [])
    session.answered(NONE, 77)
    second = session.request({A: ask(3), C: ask(9)})
    assert (second.session_id, second.epoch, set(second.asks), second.forgotten) == (77, 1, {A, C}, [(B, ONE)])
    session.answered(NONE, 77)
    third = session.request({A: ask(3), C: ask(9)})
    assert (third.epoch, dict(third.asks), third.forgotten) == (2, {}, [])


def test_a_topic_made_anew_is_forgotten_and_named() -> None:
    """KIP-516: the same partition under another topic id is another partition."""
    session = AskingSession()
    session.request({A: ask(3, ONE)})
    session.answered(NONE, 7)
    request = session.request({A: ask(3, TWO)})
    assert request.asks == {A: ask(3, TWO)} and request.forgotten == [(A, ONE)]


@pytest.mark.parametrize(
    ("error", "session_id"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7), (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 7)],
)
def test_after_an_error_of_the_session_everything_is_said_again(error, session_id) -> None:
    """RL 6.2: back to a full fetch; the old session is named where the leader may still hold it, so that it can drop it."""
    session = AskingSession()
    session.request({A: ask(0)})
    session.answered(NONE, 7)
    session.request({A: ask(1)})
    session.answered(error, 0)
    request = session.request({A: ask(1)})
    assert (request.session_id, request.epoch, set(request.asks)) == (session_id, 0, {A})


def test_a_lost_answer_makes_the_next_request_full() -> None:
    """RL 6.2: nobody knows what the leader took in."""
    session = AskingSession()
    session.request({A: ask(0)})
    session.answered(NONE, 7)
    session.request({A: ask(1)})
    session.lost()
    request = session.request({A: ask(1)})
    assert (request.session_id, request.epoch, set(request.asks)) == (7, 0, {A})


def test_a_leader_without_sessions_is_asked_in_full_each_time() -> None:
    """KIP-227: session id 0 means that there is none."""
    session = AskingSession()
    session.request({A: ask(0)})
    session.answered(NONE, 0)
    assert session.request({A: ask(0)}).epoch == 0


def test_there_is_news_while_the_leader_still_watches_what_is_not_asked() -> None:
    """An empty set of asks is worth a request only to make a session forget."""
    session = AskingSession()
    assert not session.has_news({})
    session.request({A: ask(0)})
    session.answered(NONE, 7)
    assert session.has_news({})
    session.request({})
    session.answered(NONE, 0)
    assert not session.has_news({})


Asks = st.dictionaries(st.sampled_from([A, B, C]), st.tuples(st.integers(0, 3), st.sampled_from([ONE, TWO])), max_size=3)


@given(rounds=st.lists(st.tuples(Asks, st.sampled_from(["answered", "lost on the way", "lost answer", "evicted"])), max_size=15))
def test_the_leader_always_reads_exactly_what_is_asked(rounds) -> None:
    """RL 5.2, 6.2: against the serving side, through losses and evictions: whenever an answer is good, it is about exactly what was asked."""
    cache, session = FetchSessionCache(10, Random(1)), AskingSession()
    for now_ms, (wanted, fate) in enumerate(rounds):
        asks = {name: ask(offset, topic_id) for name, (offset, topic_id) in wanted.items()}
        request = session.request(asks)
        if fate == "lost on the way":
            session.lost()
            continue
        if fate == "evicted":
            cache.remove(request.session_id)
        said = [FetchPartitionRequest(name, each.topic_id, each.fetch_offset, each.max_bytes, 1, 1, 0) for name, each in request.asks.items()]
        forgotten = [(topic_id, name.partition) for name, topic_id in request.forgotten]
        try:
            context = open_context(cache, request.session_id, request.epoch, True, True, said, forgotten, now_ms)
        except BrokerError as refusal:
            session.answered(refusal.code, 0)
            continue
        read = {(each.topic_id, each.topic_partition): each.fetch_offset for each in context.requests}
        assert read == {(each.topic_id, name): each.fetch_offset for name, each in asks.items()}
        error, session_id, _ = context.finish([FetchPartitionResult(each, NONE) for each in context.requests])
        if fate == "lost answer":
            session.lost()
        else:
            session.answered(error, session_id)
