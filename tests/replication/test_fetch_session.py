"""Fetch sessions and their cache (RL 5.2, KIP-227)."""

from __future__ import annotations

from random import Random

import pytest

from tests.replication.fixtures import at, code_of
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetch_session import (
    FetchContext,
    FetchSessionCache,
    FullFetchContext,
    IncrementalFetchContext,
    new_context,
    next_epoch,
)
from twisted_broker.replication.partition.fetch_data import FetchPartitionResult
from twisted_broker.wire.errors import ErrorCode

A, B, C = (TopicPartition(name, 0) for name in "abc")


def cache(slots: int = 10) -> FetchSessionCache:
    return FetchSessionCache(slots, Random(3))


def read(context: FetchContext, **facts) -> list[FetchPartitionResult]:
    """Results for all of a context's partitions; `facts`: topic -> (high watermark, size, log
    start if not 0) or an error.
    """
    results = []
    for request in context.requests:
        fact = facts.get(request.topic_partition.topic, (0, 0))
        if isinstance(fact, ErrorCode):
            results.append(FetchPartitionResult(request, fact))
        else:
            start = fact[2] if len(fact) > 2 else 0
            result = FetchPartitionResult(request, ErrorCode.NONE, fact[0], fact[0], start)
            result.size = fact[1]
            results.append(result)
    return results


def opened(
    sessions: FetchSessionCache,
    *partitions,
    privileged: bool = False,
    now_ms: int = 0,
    by_id: bool = False,
) -> int:
    context = new_context(
        sessions, 0, 0, by_id, privileged, [at(0, tp) for tp in partitions], (), now_ms
    )
    error, session_id, shown = context.finish(read(context))
    assert (error, len(shown)) == (ErrorCode.NONE, len(partitions))
    return session_id


def proceed(
    sessions: FetchSessionCache,
    session_id: int,
    epoch: int,
    *requests,
    forgotten=(),
    now_ms: int = 0,
) -> FetchContext:
    return new_context(
        sessions, session_id, epoch, False, False, list(requests), list(forgotten), now_ms
    )


def shown(context: FetchContext, **facts) -> list[str]:
    return [
        result.request.topic_partition.topic for result in context.finish(read(context, **facts))[2]
    ]


def test_epochs_wrap_to_one():
    """An epoch is never 0 again, and a final one stays final."""
    assert [next_epoch(epoch) for epoch in (0, 1, 2**31 - 1, -1)] == [1, 2, 1, -1]


def test_sessionless_and_full():
    """RL 5.2: epoch -1 without an id opens nothing; epoch 0 opens a session with a positive id."""
    sessions = cache()
    assert type(new_context(sessions, 0, -1, False, False, [at(0, A)], (), 0)) is FetchContext
    assert isinstance(
        new_context(sessions, 0, 0, False, False, [at(0, A)], (), 0), FullFetchContext
    )
    assert opened(sessions, A, B) > 0
    assert (len(sessions), sessions.partitions) == (1, 2)


def test_an_empty_session_is_not_opened():
    """A full request without partitions has nothing to remember."""
    sessions = cache()
    assert opened(sessions) == 0
    assert len(sessions) == 0


def test_only_what_changed_is_shown():
    """RL 5.2: records, errors, a moved high watermark or log start, and once more when an error
    is gone.
    """
    sessions = cache()
    session = opened(sessions, A, B, C)
    assert shown(proceed(sessions, session, 1)) == []
    assert shown(proceed(sessions, session, 2), a=(5, 0)) == ["a"]
    assert shown(proceed(sessions, session, 3), a=(5, 0), b=(0, 10)) == ["b"]
    assert shown(proceed(sessions, session, 4), a=(5, 0), c=ErrorCode.OFFSET_OUT_OF_RANGE) == ["c"]
    assert shown(proceed(sessions, session, 5), a=(5, 0), c=ErrorCode.OFFSET_OUT_OF_RANGE) == ["c"]
    assert shown(proceed(sessions, session, 6), a=(5, 0)) == ["c"]
    assert shown(proceed(sessions, session, 7), a=(5, 0)) == []
    assert shown(proceed(sessions, session, 8), a=(5, 0, 3)) == ["a"]
    assert shown(proceed(sessions, session, 9), a=(5, 0, 3)) == []


def test_partitions_with_records_go_to_the_end():
    """KIP-227: every partition gets its turn under the byte limit."""
    sessions = cache()
    session = opened(sessions, A, B, C)
    context = proceed(sessions, session, 1)
    context.finish(read(context, a=(5, 100)))
    assert [request.topic_partition for request in proceed(sessions, session, 2).requests] == [
        B,
        C,
        A,
    ]


def test_added_changed_forgotten():
    """An incremental request adds and changes partitions, and drops the forgotten ones."""
    sessions = cache()
    session = opened(sessions, A, B)
    context = proceed(sessions, session, 1, at(7, A), at(0, C), forgotten=[("b", 0)])
    assert [(request.topic_partition, request.fetch_offset) for request in context.requests] == [
        (A, 7),
        (C, 0),
    ]
    assert sessions.partitions == 2


def test_forgetting_everything_closes():
    """A session without partitions is gone."""
    sessions = cache()
    session = opened(sessions, A)
    assert type(proceed(sessions, session, 1, forgotten=[("a", 0)])) is FetchContext
    assert (len(sessions), sessions.partitions) == (0, 0)


def test_errors():
    """RL 5.2: an unknown id, a wrong epoch, names after ids; none of them changes the session."""
    sessions = cache()
    session = opened(sessions, A, by_id=False)
    assert code_of(proceed, sessions, session + 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert code_of(proceed, sessions, session, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert (
        code_of(new_context, sessions, session, 1, True, False, [], (), 0)
        == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    )
    assert isinstance(proceed(sessions, session, 1), IncrementalFetchContext)


def test_watermarks_that_came_beside_a_divergence_are_sent_again():
    """RL 5.2, 6.3: a follower takes no marks from an answer that told it where to cut; the next
    one says them, though they did not move.
    """
    sessions = cache()
    session = opened(sessions, A)
    context = proceed(sessions, session, 1)
    (result,) = read(context, a=(7, 0))
    result.diverging_epoch = (3, 5)
    assert len(context.finish([result])[2]) == 1
    assert shown(proceed(sessions, session, 2), a=(7, 0)) == ["a"]
    assert shown(proceed(sessions, session, 3), a=(7, 0)) == []


def test_watermarks_are_sent_again_under_another_leader_epoch():
    """RL 5.2, 6.4: a follower that changed roles meanwhile drops the answer that told them;
    nothing moves, and it must know all the same.
    """
    sessions = cache()
    session = opened(sessions, A, B)
    assert shown(proceed(sessions, session, 1), a=(7, 0), b=(7, 0)) == ["a", "b"]
    assert shown(
        proceed(sessions, session, 2, at(0, A, current_leader_epoch=4)), a=(7, 0), b=(7, 0)
    ) == ["a"]
    assert shown(proceed(sessions, session, 3), a=(7, 0), b=(7, 0)) == []


def test_an_answer_that_was_overtaken():
    """A request answered after the session went on gets INVALID_FETCH_SESSION_EPOCH and shows
    nothing.
    """
    sessions = cache()
    session = opened(sessions, A)
    slow = proceed(sessions, session, 1)
    proceed(sessions, session, 2)
    assert slow.finish(read(slow, a=(5, 10)))[::2] == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_request_closes_the_session_it_names(epoch):
    """Epoch 0 replaces it, -1 closes it."""
    sessions = cache()
    session = opened(sessions, A)
    context = new_context(sessions, session, epoch, False, False, [at(0, A)], (), 0)
    assert sessions.get(session) is None
    assert (context.finish(read(context))[1] > 0) == (epoch == 0)


def test_a_stale_session_makes_room():
    """RL 5.2: unused for more than 120 s, whatever its worth; a used one stays."""
    sessions = cache(2)
    first = opened(sessions, A, B, privileged=True, now_ms=0)
    second = opened(sessions, A, now_ms=0)
    proceed(sessions, first, 1, now_ms=120_000)
    assert opened(sessions, C, now_ms=120_000) == 0
    assert opened(sessions, C, now_ms=120_001) > 0
    assert sessions.get(second) is None
    assert sessions.get(first) is not None
    assert sessions.evictions == 1


def test_size_and_followers():
    """RL 5.2: a larger one displaces a smaller old one; a follower displaces a consumer's at
    once; a consumer never a follower's.
    """
    sessions = cache(2)
    small = opened(sessions, A, now_ms=0)
    replica = opened(sessions, A, privileged=True, now_ms=0)
    for session, epoch in ((small, 1), (replica, 1)):
        proceed(sessions, session, epoch, now_ms=120_001)
    later = 120_002
    large = opened(sessions, A, B, now_ms=later)
    assert large > 0
    assert sessions.get(small) is None
    assert opened(sessions, A, B, C, now_ms=later) == 0
    assert opened(sessions, A, privileged=True, now_ms=later) > 0
    assert sessions.get(large) is None
    assert sessions.get(replica) is not None


def test_no_slots():
    """max.incremental.fetch.session.cache.slots = 0: nobody gets a session."""
    assert opened(cache(0), A, privileged=True) == 0


def test_a_topic_keeps_its_name_when_its_id_is_sent_again_after_its_deletion():
    """Kafka's `updateRequestParams` leaves the name alone: the answer is about the topic that was
    (UNKNOWN_TOPIC_OR_PARTITION; made anew, INCONSISTENT_TOPIC_ID), not about an unknown id.
    """
    sessions = cache()
    request = at(0, A)
    request.topic_id = b"a" * 16
    first = new_context(sessions, 0, 0, True, False, [request], (), 0)
    session_id = first.finish(read(first))[1]
    again = at(7, TopicPartition("", 0))
    again.topic_id = b"a" * 16
    context = new_context(sessions, session_id, 1, True, False, [again], (), 0)
    (asked,) = context.requests
    assert (asked.topic_partition, asked.fetch_offset) == (A, 7)


def test_a_name_that_becomes_known_is_taken():
    sessions = cache()
    unknown, known = at(0, TopicPartition("", 0)), at(3, A)
    unknown.topic_id = known.topic_id = b"a" * 16
    first = new_context(sessions, 0, 0, True, False, [unknown], (), 0)
    session_id = first.finish(read(first))[1]
    (asked,) = new_context(sessions, session_id, 1, True, False, [known], (), 0).requests
    assert (asked.topic_partition, asked.fetch_offset) == (A, 3)
