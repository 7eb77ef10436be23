"""The following side of a fetch session: what a leader is requested to send, and what of it the
next request must name.

Owns `RequestedPartition` (one partition of a fetch), `RequestedPartitions` (all partitions of one
fetcher, and their changes since the last request) and `FetchSessionHandler` (the session's id and
epoch).

1. `current` changes only at the start of a round, and a `RequestedPartition` is immutable: while an
   answer is on its way it holds what was requested.
2. What was requested last, with `changed` put in and `forgotten` taken out, is `current`. Building
   a request empties both.
3. Nothing is done for a partition that is requested as before: a full request (epoch 0) names all
   partitions, in the order of their turns, an incremental one only those that changed, and those to
   forget.
4. After an error of the session, or a lost answer, the next request is full: under the old id, so
   that the leader can drop that session; under none when the leader does not know it.
5. A leader that answers with session 0 keeps none: every request is full.

Source: KIP-227, Kafka's `FetchSessionHandler`; RL 6.2, 6.4. Not here: which requests may have
changed (`fetcher_state`). The serving side is `fetch_session`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetch_session import INITIAL_EPOCH, NO_SESSION, next_epoch
from twisted_broker.wire.errors import ErrorCode

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class RequestedPartition(NamedTuple):
    """One partition of a fetch. Epochs are -1 when they are not known."""

    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class RequestChanges(NamedTuple):
    """What differs from the last request.

    `forgotten` pairs each partition with the topic id under which it was requested.
    """

    changed: dict[TopicPartition, RequestedPartition]
    forgotten: list[tuple[TopicPartition, bytes]]


class RequestedPartitions:
    """`turns`: the partitions in the order of their turns, read again for each full request."""

    __slots__ = ("_changed", "_forgotten", "_turns", "current")

    def __init__(self, turns: Iterable[TopicPartition]) -> None:
        self.current: dict[TopicPartition, RequestedPartition] = {}
        self._turns = turns
        self._changed: dict[TopicPartition, RequestedPartition] = {}
        self._forgotten: dict[tuple[TopicPartition, bytes], None] = {}

    def put(self, topic_partition: TopicPartition, requested: RequestedPartition) -> None:
        """It is requested so from now on.

        Under another topic id it is another partition (KIP-516): the one before is forgotten.
        """
        before = self.current.get(topic_partition)
        if before == requested:
            return
        if before is not None and before.topic_id != requested.topic_id:
            self._forgotten[topic_partition, before.topic_id] = None
        # It is requested again before the leader was told to forget it.
        self._forgotten.pop((topic_partition, requested.topic_id), None)
        self.current[topic_partition] = self._changed[topic_partition] = requested

    def remove(self, topic_partition: TopicPartition) -> None:
        """It is requested no more."""
        before = self.current.pop(topic_partition, None)
        if before is not None:
            self._changed.pop(topic_partition, None)
            self._forgotten[topic_partition, before.topic_id] = None

    @property
    def has_forgotten(self) -> bool:
        """Whether a leader that keeps a session must be informed."""
        return bool(self._forgotten)

    def take_changes(self) -> RequestChanges:
        """For a request that names them, or everything."""
        changed, self._changed = self._changed, {}
        forgotten, self._forgotten = self._forgotten, {}
        return RequestChanges(changed, list(forgotten))

    def in_order(self) -> dict[TopicPartition, RequestedPartition]:
        """All of `current`, in the order of turns."""
        current = self.current
        return {name: current[name] for name in self._turns if name in current}


class SessionRequest(NamedTuple):
    """What one request names.

    `forgotten` pairs each partition with the topic id under which it was requested.
    """

    session_id: int
    epoch: int
    partitions: Mapping[TopicPartition, RequestedPartition]
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

    def has_request(self, requested: RequestedPartitions) -> bool:
        """Whether there is anything to fetch, or to make the leader forget."""
        return bool(requested.current) or (not self.is_full and requested.has_forgotten)

    def build_request(self, requested: RequestedPartitions) -> SessionRequest:
        """The next request, for exactly what is requested now."""
        # Taken for a full request, too: it names all of them, so the next one must not.
        changes = requested.take_changes()
        if self.is_full:
            return SessionRequest(self._session_id, self._epoch, requested.in_order(), [])
        return SessionRequest(self._session_id, self._epoch, changes.changed, changes.forgotten)

    def handle_response(self, error: ErrorCode, session_id: int) -> None:
        """The head of an answer decides about the next request."""
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        elif error != ErrorCode.NONE:
            self.handle_error()
        elif session_id == NO_SESSION:
            # The leader has no room for a session: each request is a full one.
            self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        else:
            self._session_id, self._epoch = session_id, next_epoch(self._epoch)

    def handle_error(self) -> None:
        """No answer came, or one that cannot be used: start over."""
        self._epoch = INITIAL_EPOCH
