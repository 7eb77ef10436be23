"""Answers to those who fetch from the leader: the log, and snapshots.

1. All replicas are served up to the log's end; a node applies records below the high watermark
   only. The only voter serves committed records: nobody else need have them first.
2. A fetch acknowledges the offset that it names, and says that the replica lives.
3. A fetch without news is parked until there is some, its time is up, or this node leads no more.

Source: Kafka's `KafkaRaftClient` (fetch, purgatory), KIP-595, KIP-630; QU 2.12 to 2.19, 3.6 to
3.8, 9.23. Bounded by the connections: each has one request under way. Not here: reading.
"""

from __future__ import annotations

from typing import NamedTuple

from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.log_view import NOTHING, Diverging, SnapshotInstead
from twisted_broker.raft.messages import Answer, Fetch, Fetched, FetchSnapshot, Read, SnapshotPiece
from twisted_broker.raft.node import RaftNode
from twisted_broker.raft.states import NEVER
from twisted_broker.wire.errors import ErrorCode


class _Parked(NamedTuple):
    correlation: object
    request: Fetch
    until_ms: float


class FetchRequests:
    """The leader's side of fetching."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._parked: list[_Parked] = []

    def leader_error(self, epoch: int) -> ErrorCode:
        """Why a request to the leader of `epoch` is refused here."""
        quorum = self._node.quorum
        if epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > quorum.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(quorum.state, LeaderState):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def fetch(self, correlation: object, request: Fetch, now_ms: float) -> Answer | None:
        """None: it waits."""
        node = self._node
        offset, last_epoch = request.end
        if min(request.max_wait_ms, offset, last_epoch) < 0 or last_epoch > request.epoch:
            return node.answer(ErrorCode.INVALID_REQUEST)
        error = self.leader_error(request.epoch)
        state = node.quorum.state
        if error is not ErrorCode.NONE or not isinstance(state, LeaderState):
            return node.answer(error)
        if request.replica.id == node.local.id:
            return node.answer(ErrorCode.UNKNOWN_SERVER_ERROR)
        valid = node.log.validate(offset, last_epoch)
        if not isinstance(valid, Diverging | SnapshotInstead) and request.replica.id >= 0:
            moved = state.fetched(request.replica, offset, self._served_end(state), now_ms)
            node.leader_moved(moved)
        answer, has_news = self._answer(request)
        if has_news or request.max_wait_ms == 0:
            return answer
        self._parked.append(_Parked(correlation, request, now_ms + request.max_wait_ms))
        return None

    def _answer(self, request: Fetch) -> tuple[Answer, bool]:
        """The answer, and whether it has anything new."""
        node = self._node
        offset, last_epoch = request.end
        found = Fetched(node.known_high_watermark, node.log.start_offset)
        valid = node.log.validate(offset, last_epoch)
        if isinstance(valid, Diverging):
            return node.answer(fetched=found._replace(diverging=valid)), True
        if isinstance(valid, SnapshotInstead):
            return node.answer(fetched=found._replace(snapshot=valid.id)), True
        state = node.quorum.state
        assert isinstance(state, LeaderState)
        has_records = offset < self._served_end(state)
        if has_records:
            is_alone = state.voters.is_only_voter(node.local.key)
            found = found._replace(read=Read(offset, request.max_bytes, is_alone))
        return node.answer(fetched=found), has_records or (
            request.high_watermark < found.high_watermark
        )

    def _served_end(self, state: LeaderState) -> int:
        is_alone = state.voters.is_only_voter(self._node.local.key)
        return self._node.known_high_watermark if is_alone else self._node.log.end_offset

    def wake(self, now_ms: float) -> None:
        """Answers those that have news now, or waited long enough."""
        parked, self._parked = self._parked, []
        for each in parked:
            answer, has_news = self._answer(each.request)
            if has_news or now_ms >= each.until_ms:
                self._node.out.reply(each.correlation, answer)
            else:
                self._parked.append(each)

    def give_up(self, correlation: object) -> None:
        self._parked = [each for each in self._parked if each.correlation is not correlation]

    def fail(self) -> None:
        """This node leads no more."""
        parked, self._parked = self._parked, []
        for each in parked:
            answer = self._node.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._node.out.reply(each.correlation, answer)

    @property
    def wake_ms(self) -> float:
        return min((each.until_ms for each in self._parked), default=NEVER)

    def fetch_snapshot(self, request: FetchSnapshot, now_ms: float) -> Answer:
        """A piece; who carries it out reads it, and answers POSITION_OUT_OF_RANGE."""
        node = self._node
        nothing = SnapshotPiece(request.id, request.position)
        error = self.leader_error(request.epoch)
        if error is ErrorCode.NONE and (
            request.id == NOTHING or request.id not in node.log.snapshots
        ):
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        if error is not ErrorCode.NONE:
            return node.answer(error, piece=nothing)
        state = node.quorum.state
        assert isinstance(state, LeaderState)
        state.heard(request.replica, now_ms)
        return node.answer(piece=nothing._replace(max_bytes=request.max_bytes))
