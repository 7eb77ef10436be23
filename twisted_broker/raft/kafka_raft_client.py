"""The core of the metadata quorum: inputs in, consequences out.

1. After each input the steps that are due are done (`_poll`): transitions, requests, timers;
   `wake_at_ms` says when to call `tick` next.
2. An answer is understood in one order: the whole answer's error, the epoch and the leader that it
   names, then the request (QU 2.31).
3. When this node ceases to lead, or its state changes, all that waited is refused and requests
   under way are forgotten.
4. A contradiction (two leaders of an epoch, a log that differs below the high watermark) stops the
   node.

Source: Kafka's `KafkaRaftClient`; QU 0.3, 0.4, 2.31 to 2.36. Driven by
`cluster/metadata_log.py`, and by its simulation (`tests/raft`). Not here: what each state does
(`elections.py`, `follower.py`, `fetch_requests.py`, `voter_changes.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.raft.consequences import Append, Consequence, Stop
from twisted_broker.raft.election_state import ElectionState
from twisted_broker.raft.elections import Elections
from twisted_broker.raft.fetch_requests import FetchRequests
from twisted_broker.raft.follower import Follower
from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.log_view import OffsetAndEpoch
from twisted_broker.raft.messages import (
    AddRaftVoter,
    Answer,
    ApiVersions,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchSnapshot,
    RemoveRaftVoter,
    Request,
    UpdateRaftVoter,
    Vote,
)
from twisted_broker.raft.node import RaftNode
from twisted_broker.raft.states import (
    NEVER,
    CandidateState,
    FollowerState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
)
from twisted_broker.raft.voter_changes import VoterChanges
from twisted_broker.raft.voter_history import ControlRecord
from twisted_broker.wire.errors import ErrorCode

_OTHER_LEADER = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
_STEPS = 20


class KafkaRaftClient:
    """`node` has the state, to read; `stored`: of quorum-state."""

    def __init__(self, node: RaftNode, stored: ElectionState | None, now_ms: float) -> None:
        self.node = node
        self.quorum = node.quorum
        self._elections = Elections(self.node)
        self._follower = Follower(self.node)
        self._fetches = FetchRequests(self.node)
        self._changes = VoterChanges(self.node)
        self.wake_at_ms = NEVER
        self._stop_by_ms = NEVER
        self._hands_over = False
        self.quorum.start(stored, node.log, now_ms)
        self._state = self.quorum.state

    def start(self, now_ms: float) -> list[Consequence]:
        """The only voter leads at once."""
        if self.quorum.voters.is_only_voter(self.node.local.key):
            self.quorum.to_prospective(now_ms)
        return self._done(now_ms)

    # inputs

    def request(self, correlation: object, request: Request, now_ms: float) -> list[Consequence]:
        """Is answered by a `Reply` with the same `correlation`, now or later."""
        answer = self._answered(correlation, request, now_ms)
        self._changed()
        if answer is not None and not self.node.is_stopped:
            self.node.out.reply(correlation, answer)
        return self._done(now_ms)

    def _answered(self, correlation: object, request: Request, now_ms: float) -> Answer | None:
        match request:
            case Vote():
                return self._elections.vote(request, now_ms)
            case BeginQuorumEpoch():
                return self._elections.begin(request, now_ms)
            case EndQuorumEpoch():
                return self._elections.end(request, now_ms)
            case Fetch():
                return self._fetches.fetch(correlation, request, now_ms)
            case FetchSnapshot():
                return self._fetches.fetch_snapshot(request, now_ms)
            case AddRaftVoter():
                return self._changes.add(correlation, request, now_ms)
            case RemoveRaftVoter():
                return self._changes.remove(correlation, request, now_ms)
            case UpdateRaftVoter():
                error = self._fetches.leader_error(request.epoch)
                return self._changes.update(request, error, now_ms)
            case ApiVersions():
                local = self.node.local
                return self.node.answer(versions=(local.min_version, local.max_version))

    def give_up(self, correlation: object) -> None:
        """Nobody waits for that answer any more."""
        self._fetches.give_up(correlation)

    def answer(self, correlation: int, answer: Answer | None, now_ms: float) -> list[Consequence]:
        """The answer to a `Send`; None: the connection failed."""
        expected = self.node.requests.take(correlation)
        if expected is not None:
            self._answer(*expected, answer, now_ms)
        return self._done(now_ms)

    def tick(self, now_ms: float) -> list[Consequence]:
        return self._done(now_ms)

    def leads(self, epoch: int) -> bool:
        """Whether records may be proposed in that epoch."""
        state = self.quorum.state
        is_leader = isinstance(state, LeaderState) and not state.is_resigning
        return is_leader and state.epoch == epoch and not self.node.is_stopped

    def propose(self, epoch: int, data: object, count: int) -> int:
        """`count` records for the log of `epoch`. Returns the offset of the first; -1: this node
        leads that epoch no more. The consequences come with the next input.
        """
        return self.node.append_own((), data, count) if self.leads(epoch) else -1

    def proposed(self) -> list[Append]:
        """What `propose` wrote, for the only voter: nobody waits for it before it is durable."""
        return self.node.out.take_appends()

    def persisted(self, seq: int, now_ms: float) -> list[Consequence]:
        """That write, and all before it, are durable."""
        self.node.persisted(seq)
        return self._done(now_ms)

    def snapshot_written(self, snapshot: OffsetAndEpoch) -> None:
        """This node's own, of what is committed."""
        self.node.log.add_snapshot(snapshot)

    def start_moved(self, snapshot: OffsetAndEpoch) -> None:
        """Log and snapshots before this snapshot are gone."""
        self.node.log.move_start(snapshot)
        self.node.history.forget_before(snapshot.offset - 1)

    def snapshot_received(
        self, snapshot: OffsetAndEpoch, records: Sequence[ControlRecord], now_ms: float
    ) -> list[Consequence]:
        """What `FinishSnapshot` asked for: its control records."""
        self._follower.snapshot_received(snapshot, records, now_ms)
        return self._done(now_ms)

    def resign(self, epoch: int, now_ms: float) -> list[Consequence]:
        """Gives up leading, where this node still leads that epoch."""
        state = self.quorum.state
        if isinstance(state, LeaderState) and state.epoch == epoch:
            state.is_resigning = True
        return self._done(now_ms)

    def stop(self, now_ms: float, timeout_ms: float) -> list[Consequence]:
        """Hands the lead over; `Stop("")` says that this node may end."""
        self.node.is_stopping = True
        self._stop_by_ms = now_ms + timeout_ms
        state = self.quorum.state
        self._hands_over = isinstance(state, LeaderState | ResignedState)
        if isinstance(state, LeaderState):
            state.is_resigning = True
        return self._done(now_ms)

    def close(self, has_failed: bool) -> list[Consequence]:
        """Ends at once. Who waits at a leader that is well is told that there is nothing new; after
        a failure of the disk, and elsewhere, it is refused.
        """
        self.node.is_stopped = True
        if isinstance(self.quorum.state, LeaderState) and not has_failed:
            self._fetches.wake(NEVER)
        self._fetches.fail()
        self._changes.fail()
        return self.node.out.take()

    def upgrade_kraft_version(
        self, level: int, validate_only: bool, now_ms: float
    ) -> tuple[Answer, list[Consequence]]:
        answer = self._changes.upgrade(level, validate_only)
        return answer, self._done(now_ms)

    # answers

    def _answer(self, node_id: int, request: Request, answer: Answer | None, now_ms: float) -> None:
        requests = self.node.requests
        if isinstance(request, ApiVersions):
            is_good = answer is not None and answer.top_level is ErrorCode.NONE
            self._changes.versions_answered(answer if is_good else None, now_ms)
            return
        if answer is None or answer.top_level is ErrorCode.BROKER_NOT_AVAILABLE:
            requests.failed(node_id, now_ms)
            return
        if answer.top_level is not ErrorCode.NONE:
            self._top_level_error(node_id, request, answer, now_ms)
            return
        if isinstance(request, AddRaftVoter | RemoveRaftVoter):
            self._follower.updated(answer)
            return
        if not self._is_of_this_epoch(answer, now_ms):
            requests.failed(node_id, now_ms)  # where that changed nothing
            return
        error = answer.error
        if isinstance(request, FetchSnapshot):
            self._follower.piece(error, answer.piece, now_ms)
        elif isinstance(request, UpdateRaftVoter):
            self._follower.updated(answer)
        elif error is ErrorCode.BROKER_NOT_AVAILABLE or error is ErrorCode.UNKNOWN_SERVER_ERROR:
            requests.failed(node_id, now_ms)
        elif error is ErrorCode.INVALID_REQUEST:
            self.node.stop(f"node {node_id} calls this request invalid, a bug: {request}")
        elif error is not ErrorCode.NONE:
            requests.failed(node_id, now_ms)
        elif isinstance(request, Vote):
            self._elections.voted(node_id, request, answer)
        elif isinstance(request, EndQuorumEpoch):
            self._elections.ended(node_id)
        elif isinstance(request, Fetch) and answer.fetched is not None:
            self._follower.fetched(answer.fetched, now_ms)

    def _top_level_error(
        self, node_id: int, request: Request, answer: Answer, now_ms: float
    ) -> None:
        code = answer.top_level
        if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self.node.stop(f"node {node_id} does not let this one take part: {code.name}")
        elif code is ErrorCode.UNSUPPORTED_VERSION and isinstance(request, Vote):
            self._elections.pre_vote_unsupported(now_ms)
        else:
            self.node.requests.failed(node_id, now_ms)
            if isinstance(request, FetchSnapshot):
                self._follower.piece(code, None, now_ms)
            elif isinstance(request, UpdateRaftVoter):
                self._follower.updated(answer._replace(error=code))

    def _is_of_this_epoch(self, answer: Answer, now_ms: float) -> bool:
        """Goes with the epoch and leader that an answer names; whether to look at the rest."""
        quorum, epoch = self.quorum, self.quorum.epoch
        if answer.epoch < epoch or answer.error is ErrorCode.UNKNOWN_LEADER_EPOCH:
            return False
        knew = quorum.leader_id
        problem = quorum.follows(answer.leader_id, answer.epoch, answer.leader_address, now_ms)
        if problem:
            self.node.stop(problem)
            return False
        if answer.epoch > epoch or answer.error in _OTHER_LEADER:
            return False
        return knew == quorum.leader_id or answer.error is ErrorCode.NONE

    # due steps

    def _changed(self) -> None:
        """After a change of state nothing of the old one goes on."""
        if self.quorum.state is not self._state:
            old, self._state = self._state, self.quorum.state
            self.node.requests.reset()
            if isinstance(old, LeaderState):
                self._fetches.fail()
                self._changes.fail()

    def _done(self, now_ms: float) -> list[Consequence]:
        self._changed()
        self._settle(now_ms)
        for _ in range(_STEPS):
            if self.node.is_stopped:
                break
            self._changed()
            wake = self._poll(now_ms)
            if self.quorum.state is self._state:
                self._settle(now_ms)
                self.wake_at_ms = min(wake, self._wake_ms(now_ms))
                break
        else:
            raise AssertionError(f"no rest: {self.quorum.state.name}")
        if self.node.is_stopping and not self.node.is_stopped and self._may_stop(now_ms):
            self.node.is_stopped = True
            self.node.out.add(Stop())
        return self.node.out.take()

    def _poll(self, now_ms: float) -> float:
        state = self.quorum.state
        match state:
            case LeaderState():
                return self._elections.poll_leader(state, now_ms)
            case ResignedState():
                return self._elections.poll_resigned(state, now_ms)
            case _ if self.node.is_stopping:
                return NEVER
            case ProspectiveState() | CandidateState():
                return self._elections.poll_nominee(state, now_ms)
            case FollowerState():
                return self._follower.poll(state, now_ms)
            case UnattachedState():
                return self._follower.poll_unattached(state, now_ms)

    def _settle(self, now_ms: float) -> None:
        """What became committed, or was appended, is told to who waits for it."""
        node = self.node
        self._changes.tick(now_ms)
        if node.has_news or now_ms >= self._fetches.wake_ms:
            node.has_news = False
            self._changes.committed()
            self._fetches.wake(now_ms)

    def _wake_ms(self, now_ms: float) -> float:
        return min(
            self.node.requests.wake_ms(now_ms),
            self._fetches.wake_ms,
            self._changes.wake_ms,
            self._stop_by_ms,
        )

    def _may_stop(self, now_ms: float) -> bool:
        """Who led waits for the next leader."""
        is_alone = not self.quorum.voters.ids - {self.node.local.id}
        is_followed = isinstance(self.quorum.state, FollowerState)
        return not self._hands_over or is_alone or is_followed or now_ms >= self._stop_by_ms
