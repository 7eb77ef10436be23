"""The asking side of a fetch session: what of a fetch must be said again.

Owns the session's id and epoch. What the leader was told is in `RequestedPartitions`: what stands,
without the news.

1. A full request (epoch 0) names all partitions; an incremental one only those that changed, and
   those to forget. Either says all the news.
2. After an error of the session, or a lost answer, the next request is full: under the old id, so
   that the leader can drop that session; under none when the leader does not know it.
3. A leader that answers with session 0 keeps none: every request is full.

Source: KIP-227, Kafka's `FetchSessionHandler`; RL 6.2. The serving side is `fetch_session`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetch_session import INITIAL_EPOCH, NO_SESSION, next_epoch
from twisted_broker.replication.fetcher.requested_partitions import (
    RequestedPartition,
    RequestedPartitions,
)
from twisted_broker.wire.errors import ErrorCode

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class SessionRequest(NamedTuple):
    """What one request says.

    `forgotten` pairs each partition with the topic id under which it was asked.
    """

    session_id: int
    epoch: int
    asks: Mapping[TopicPartition, RequestedPartition]
    forgotten: list[tuple[TopicPartition, bytes]]


class FetchSessionHandler:
    """One session with one leader, and with one `RequestedPartitions` only."""

    __slots__ = ("_epoch", "_session_id")

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH

    @property
    def is_full(self) -> bool:
        """Whether the next request names everything."""
        return self._epoch == INITIAL_EPOCH

    def has_news(self, asks: RequestedPartitions) -> bool:
        """Whether there is anything to ask, or to make the leader forget."""
        return bool(asks.current) or (not self.is_full and asks.is_any_gone)

    def request(self, asks: RequestedPartitions) -> SessionRequest:
        """The next request, for exactly what stands."""
        news = asks.say()
        if self.is_full:
            return SessionRequest(self._session_id, self._epoch, asks.in_turn(), [])
        return SessionRequest(self._session_id, self._epoch, news.changed, news.gone)

    def answered(self, error: ErrorCode, session_id: int) -> None:
        """Takes an answer's head in."""
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        elif error != ErrorCode.NONE:
            self.lost()
        elif session_id == NO_SESSION:
            self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        else:
            self._session_id, self._epoch = session_id, next_epoch(self._epoch)

    def lost(self) -> None:
        """No answer came, or one that cannot be used: start over."""
        self._epoch = INITIAL_EPOCH
