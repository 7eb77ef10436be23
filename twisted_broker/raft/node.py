"""The parts of the core share this: the state, the log, the requests under way, the outbox.

1. Appending, truncating and moving the high watermark happen here and nowhere else, so that
   voters, log and disk change together.
2. Nothing below the high watermark is truncated: a leader that asks for it stops the node.

Source: Kafka's `KafkaRaftClient` (parts); QU 3.4, 3.5, 3.13. Not here: when
(`elections.py`, `follower.py`, `fetch_requests.py`, `voter_changes.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from twisted_broker.raft.consequences import HighWatermark, Outbox, Stop
from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.log_view import Batch, LogView, OffsetAndEpoch
from twisted_broker.raft.messages import Answer
from twisted_broker.raft.quorum_state import LocalNode, QuorumConfig, QuorumState
from twisted_broker.raft.replica_key import Address
from twisted_broker.raft.request_manager import RequestManager
from twisted_broker.raft.voter_history import ControlRecord, VoterHistory, Voters
from twisted_broker.wire.errors import ErrorCode


class RaftNode:
    """`durable_end`: below it the own log is synced. `has_news`: log or high watermark moved, so
    that fetches that wait are answered. `committed_end`: what an earlier run knew as committed.
    """

    def __init__(
        self,
        local: LocalNode,
        config: QuorumConfig,
        history: VoterHistory,
        log: LogView,
        bootstrap: Sequence[Address],
        random_ms: Callable[[int], int],
        committed_end: int,
    ) -> None:
        self.out = Outbox()
        self.local, self.config, self.history, self.log = local, config, history, log
        self.random_ms = random_ms
        self.bootstrap = tuple(bootstrap)
        self.requests = RequestManager(self.out, config.request_timeout_ms, config.retry_backoff_ms)
        self.quorum = QuorumState(local, config, history, self.out, random_ms)
        self.committed_end = max(committed_end, log.start_offset)
        self.durable_end = log.end_offset
        self.has_news = self.is_stopped = self.is_stopping = False
        self._appended: deque[tuple[int, int]] = deque()

    def answer(self, error: ErrorCode = ErrorCode.NONE, **fields: Any) -> Answer:
        """With the leader and epoch as known now."""
        state = self.quorum.state
        return Answer(error, state.leader_id, state.epoch, state.leader_address, **fields)

    def stop(self, reason: str) -> None:
        """A contradiction: to go on would be guessing."""
        if not self.is_stopped:
            self.is_stopped = True
            self.out.add(Stop(reason))

    # the log

    def append_own(self, control: tuple[ControlRecord, ...], data: object, count: int) -> int:
        """As the leader. Returns the offset of the first record."""
        base = self.log.end_offset
        self.append(Batch(base, base + count - 1, self.quorum.epoch, control, data))
        state = self.quorum.state
        if any(isinstance(each, Voters) for each in control) and isinstance(state, LeaderState):
            state.set_voters(self.history.voters)
            self.leader_moved(state.move_high_watermark())
        return base

    def append(self, batch: Batch) -> None:
        self.log.append(batch)
        self.history.append(batch.base_offset, batch.control)
        self._appended.append((self.out.append(batch), self.log.end_offset))
        self.has_news = True

    def truncate(self, offset: int) -> None:
        """Uncommitted batches go, and the voters that they brought."""
        if offset >= self.log.end_offset:
            return
        floor = max(self.committed_end, self.quorum.high_watermark or 0)
        if offset < floor:
            self.stop(f"the leader's log differs below the high watermark: {offset} < {floor}")
            return
        self.out.say(f"truncated the metadata log from {self.log.end_offset} to {offset}")
        self.log.truncate(offset)
        self.history.truncate(offset)
        self.out.truncate(offset)
        self._rewritten(offset)

    def truncate_to_snapshot(
        self, snapshot: OffsetAndEpoch, records: Sequence[ControlRecord]
    ) -> None:
        """The log's place is taken by a snapshot that is durable."""
        self.log.truncate_to_snapshot(snapshot)
        self.history.snapshot(snapshot.offset - 1, records)
        self.out.truncate_to_snapshot(snapshot)
        self._appended.clear()
        self.durable_end = snapshot.offset
        self.follower_high_watermark(snapshot.offset)

    def _rewritten(self, offset: int) -> None:
        self.durable_end = min(self.durable_end, offset)
        while self._appended and self._appended[-1][1] > offset:
            self._appended.pop()
        self._appended.append((self.out.log_seq, offset))

    def persisted(self, seq: int) -> None:
        """That write, and all before it, are durable."""
        while self._appended and self._appended[0][0] <= seq:
            self.durable_end = self._appended.popleft()[1]
        state = self.quorum.state
        if isinstance(state, LeaderState):
            self.leader_moved(state.set_own_end(self.durable_end))

    # the high watermark

    def leader_moved(self, has_moved: bool) -> None:
        state = self.quorum.state
        if has_moved and isinstance(state, LeaderState):
            assert state.high_watermark is not None
            self._set_high_watermark(state.high_watermark)

    def follower_high_watermark(self, offset: int) -> None:
        """The leader's high watermark, as far as this log goes."""
        self._set_high_watermark(min(offset, self.log.end_offset))

    def _set_high_watermark(self, offset: int) -> None:
        if offset > (-1 if self.quorum.high_watermark is None else self.quorum.high_watermark):
            self.quorum.high_watermark = offset
            self.has_news = True
            self.out.add(HighWatermark(offset))

    @property
    def known_high_watermark(self) -> int:
        """-1: not known; of a leader, not known in its epoch."""
        state = self.quorum.state
        known = (
            state.high_watermark if isinstance(state, LeaderState) else self.quorum.high_watermark
        )
        return -1 if known is None else known
