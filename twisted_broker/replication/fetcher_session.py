"""The asking side of a fetch session: what of a fetch must be said again.

Owns the session's id and epoch, and what the leader was last told about each partition.

1. A full request (epoch 0) names all partitions; an incremental one only those that changed, and those to forget.
2. After an error of the session, or a lost answer, the next request is full: under the old id, so that the leader can drop that session;
   under none when the leader does not know it.
3. A leader that answers with session 0 keeps none: every request is full.
4. A partition whose topic id changed is forgotten and named anew.

Source: KIP-227, Kafka's `FetchSessionHandler`; RL 6.2. The serving side is `fetch_session`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetch_session import INITIAL_EPOCH, NO_SESSION, next_epoch
from twisted_broker.replication.fetcher_state import FetchAsk
from twisted_broker.wire.errors import ErrorCode

SESSION_ERRORS = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR}
)


class SessionRequest(NamedTuple):
    """What one request says. `forgotten` pairs each partition with the topic id under which it was asked."""

    session_id: int
    epoch: int
    asks: Mapping[TopicPartition, FetchAsk]
    forgotten: list[tuple[TopicPartition, bytes]]


class AskingSession:
    """One session with one leader. `asked` is all that the leader is being asked for now."""

    __slots__ = ("_epoch", "_session_id", "asked")

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self.asked: dict[TopicPartition, FetchAsk] = {}

    @property
    def is_full(self) -> bool:
        """Whether the next request names everything."""
        return self._epoch == INITIAL_EPOCH

    def has_news(self, asks: Mapping[TopicPartition, FetchAsk]) -> bool:
        """Whether there is anything to ask, or to make the leader forget."""
        return bool(asks) or (not self.is_full and bool(self.asked))

    def request(self, asks: Mapping[TopicPartition, FetchAsk]) -> SessionRequest:
        """The next request, for exactly `asks`."""
        before, self.asked = self.asked, dict(asks)
        if self.is_full:
            return SessionRequest(self._session_id, self._epoch, self.asked, [])
        changed = {name: ask for name, ask in asks.items() if before.get(name) != ask}
        gone = [(name, ask.topic_id) for name, ask in before.items() if name not in asks or asks[name].topic_id != ask.topic_id]
        return SessionRequest(self._session_id, self._epoch, changed, gone)

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
