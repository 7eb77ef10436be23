"""The asking side of a fetch session, alone and against the serving side (RL 5.2, 6.2; KIP-227)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replication.test_requested_partitions import ONE, TWO, A, B, C, ask, put_exactly
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetch_session import FetchSessionCache, new_context
from twisted_broker.replication.fetcher.fetch_session_handler import (
    FetchSessionHandler,
    RequestedPartition,
    RequestedPartitions,
    SessionRequest,
)
from twisted_broker.replication.partition.fetch_data import (
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode

NONE = ErrorCode.NONE


class Asking:
    """A session, and what is asked in it."""

    def __init__(self) -> None:
        self.requested, self.session = RequestedPartitions([A, B, C]), FetchSessionHandler()
        self.handle_response, self.handle_error = (
            self.session.handle_response,
            self.session.handle_error,
        )

    def has_request(self, wanted: dict[TopicPartition, RequestedPartition]) -> bool:
        return self.session.has_request(put_exactly(self.requested, wanted))

    def build_request(self, wanted: dict[TopicPartition, RequestedPartition]) -> SessionRequest:
        return self.session.build_request(put_exactly(self.requested, wanted))


def test_the_first_request_is_full_then_only_what_changed_is_said() -> None:
    """RL 6.2: one fetch session: what moved is named, what is no longer asked is forgotten, what
    stays is left out.
    """
    session = Asking()
    first = session.build_request({A: ask(0), B: ask(5)})
    assert (first.session_id, first.epoch, set(first.partitions), first.forgotten) == (
        0,
        0,
        {A, B},
        [],
    )
    session.handle_response(NONE, 77)
    again = session.build_request({A: ask(0), B: ask(5)})
    assert (again.session_id, again.epoch, dict(again.partitions), again.forgotten) == (
        77,
        1,
        {},
        [],
    )
    session.handle_response(NONE, 77)
    moved = session.build_request({A: ask(3), C: ask(9)})
    assert (moved.session_id, moved.epoch, set(moved.partitions), moved.forgotten) == (
        77,
        2,
        {A, C},
        [(B, ONE)],
    )
    session.handle_response(NONE, 77)
    last = session.build_request({A: ask(3), C: ask(9)})
    assert (last.epoch, dict(last.partitions), last.forgotten) == (3, {}, [])


def test_a_topic_made_anew_is_forgotten_and_named() -> None:
    """KIP-516: the same partition under another topic id is another partition."""
    session = Asking()
    session.build_request({A: ask(3, ONE)})
    session.handle_response(NONE, 7)
    request = session.build_request({A: ask(3, TWO)})
    assert request.partitions == {A: ask(3, TWO)} and request.forgotten == [(A, ONE)]


@pytest.mark.parametrize(
    ("error", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 7),
    ],
)
def test_after_an_error_of_the_session_everything_is_said_again(error, session_id) -> None:
    """RL 6.2: back to a full fetch; the old session is named where the leader may still hold it,
    so that it can drop it.
    """
    session = Asking()
    session.build_request({A: ask(0)})
    session.handle_response(NONE, 7)
    session.build_request({A: ask(1)})
    session.handle_response(error, 0)
    request = session.build_request({A: ask(1)})
    assert (request.session_id, request.epoch, set(request.partitions)) == (session_id, 0, {A})


def test_a_lost_answer_makes_the_next_request_full() -> None:
    """RL 6.2: nobody knows what the leader took in."""
    session = Asking()
    session.build_request({A: ask(0)})
    session.handle_response(NONE, 7)
    session.build_request({A: ask(1)})
    session.handle_error()
    request = session.build_request({A: ask(1)})
    assert (request.session_id, request.epoch, set(request.partitions)) == (7, 0, {A})


def test_a_leader_without_sessions_is_asked_in_full_each_time() -> None:
    """KIP-227: session id 0 means that there is none."""
    session = Asking()
    session.build_request({A: ask(0)})
    session.handle_response(NONE, 0)
    assert session.build_request({A: ask(0)}).epoch == 0


def test_there_is_news_while_the_leader_still_watches_what_is_not_asked() -> None:
    """An empty set of asks is worth a request only to make a session forget."""
    session = Asking()
    assert not session.has_request({})
    session.build_request({A: ask(0)})
    session.handle_response(NONE, 7)
    assert session.has_request({})
    session.build_request({})
    session.handle_response(NONE, 0)
    assert not session.has_request({})
    session.build_request({A: ask(0)})
    session.handle_error()
    assert not session.has_request({}), "the next request that names anything starts over"


Asks = st.dictionaries(
    st.sampled_from([A, B, C]),
    st.tuples(st.integers(0, 3), st.sampled_from([ONE, TWO])),
    max_size=3,
)


FATES = ["answered", "lost on the way", "lost answer", "evicted"]


def leader_reads(
    cache: FetchSessionCache,
    session: FetchSessionHandler,
    request: SessionRequest,
    fate: str,
    now_ms: int,
) -> dict[TopicPartition, RequestedPartition] | None:
    """What the serving side reads for a request; None when it never hears of it, or refuses it.
    Then `session` takes its answer in, or misses it.
    """
    if fate == "lost on the way":
        session.handle_error()
        return None
    if fate == "evicted":
        cache.remove(request.session_id)
    said = [
        FetchPartitionRequest(name, topic_id, offset, max_bytes, epoch, last_epoch, log_start)
        for name, (
            topic_id,
            offset,
            epoch,
            last_epoch,
            log_start,
            max_bytes,
        ) in request.partitions.items()
    ]
    forgotten = [(topic_id, name.partition) for name, topic_id in request.forgotten]
    try:
        context = new_context(
            cache, request.session_id, request.epoch, True, True, said, forgotten, now_ms
        )
    except BrokerError as refusal:
        session.handle_response(refusal.code, 0)
        return None
    read = {(each.topic_id, each.topic_partition): asked(each) for each in context.requests}
    error, session_id, _ = context.finish(
        [FetchPartitionResult(each, NONE) for each in context.requests]
    )
    if fate == "lost answer":
        session.handle_error()
    else:
        session.handle_response(error, session_id)
    assert len({name for _, name in read}) == len(read), "one topic id at a time"
    return {name: each for (_, name), each in read.items()}


def asked(request: FetchPartitionRequest) -> RequestedPartition:
    assert request.topic_id is not None
    epochs = request.current_leader_epoch, request.last_fetched_epoch
    return RequestedPartition(
        request.topic_id, request.fetch_offset, *epochs, request.log_start_offset, request.max_bytes
    )


@given(rounds=st.lists(st.tuples(Asks, st.sampled_from(FATES)), max_size=15))
def test_the_leader_always_reads_exactly_what_is_asked(rounds) -> None:
    """RL 5.2, 6.2: against the serving side, through losses and evictions: whenever an answer is
    good, it is about exactly what was asked.
    """
    cache, session = FetchSessionCache(10, Random(1)), Asking()
    for now_ms, (wanted, fate) in enumerate(rounds):
        asks = {name: ask(offset, topic_id) for name, (offset, topic_id) in wanted.items()}
        request = session.build_request(asks)
        read = leader_reads(cache, session.session, request, fate, now_ms)
        assert read is None or read == asks
