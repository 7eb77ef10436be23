"""AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter and the upgrade to kraft.version 1: changes of the
voters, as the leader makes them.

1. One change at a time in the log: each waits for the high watermark of this epoch, and until the
   last Voters record is below it.
2. A change counts from its append on, also for its own commit; the answer waits for that commit.
3. Who is added is caught up, and serves the kraft.version.
4. An appended record stays, also where its answer was an error.

Source: Kafka's `AddVoterHandler`, `RemoveVoterHandler`, `UpdateVoterHandler`,
`KRaftVersionUpgrade`; QU 2.24 to 2.29, 4.4, 9.13, 9.14.
"""

from __future__ import annotations

from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.messages import (
    AddRaftVoter,
    Answer,
    ApiVersions,
    RemoveRaftVoter,
    UpdateRaftVoter,
)
from twisted_broker.raft.node import RaftNode
from twisted_broker.raft.states import NEVER
from twisted_broker.raft.voter_history import KRaftVersion, Voters
from twisted_broker.raft.voter_set import VoterNode, VoterSet
from twisted_broker.wire.errors import ErrorCode

CAUGHT_UP_WITHIN_MS = 3_600_000


class _Pending:
    """A change that is under way. `offset` -1: not appended yet."""

    def __init__(self, correlation: object, deadline_ms: float) -> None:
        self.correlation, self.deadline_ms = correlation, deadline_ms
        self.offset = -1
        self.adding: AddRaftVoter | None = None


class VoterChanges:
    """The one change that may be under way."""

    def __init__(self, node: RaftNode) -> None:
        self._node, self._quorum = node, node.quorum
        self._pending: _Pending | None = None

    def _refused(self, state: object, needs_version: bool = True) -> Answer | None:
        """What every change waits for."""
        node, history = self._node, self._node.history
        if not isinstance(state, LeaderState):
            return node.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        later = node.answer(ErrorCode.REQUEST_TIMED_OUT)
        if self._pending is not None:
            return later._replace(message="another change of the voters is under way")
        if state.high_watermark is None:
            return later._replace(message="the leader knows no high watermark in its epoch yet")
        if history.kraft_version == 0:
            if needs_version:
                return node.answer(
                    ErrorCode.UNSUPPORTED_VERSION, message="the cluster's kraft.version is 0"
                )
            return None
        if (history.voters_offset or 0) >= state.high_watermark:
            return later._replace(message="the last change of the voters is not committed")
        return None

    def _append(self, voters: VoterSet) -> int:
        self._node.out.say(f"the voters become {sorted(voters.ids)}")
        return self._node.append_own((Voters(voters),), None, 1)

    # adding

    def add(self, correlation: object, request: AddRaftVoter, now_ms: float) -> Answer | None:
        node, state, key = self._node, self._quorum.state, request.voter.key
        if not isinstance(state, LeaderState):
            return node.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if key.id < 0 or not key.has_directory or not self._has_listener(request.voter):
            return node.answer(ErrorCode.INVALID_REQUEST)
        refused = self._refused(state)
        if refused is not None:
            return refused
        if node.history.voters.get(key.id) is not None:
            return node.answer(
                ErrorCode.DUPLICATE_VOTER, message=f"node {key.id} is a voter already"
            )
        pending = self._begin(correlation, now_ms)
        pending.adding = request
        address = request.voter.endpoints[0].address
        node.requests.send(key.id, address, ApiVersions(), now_ms)
        return None

    def _has_listener(self, voter: VoterNode) -> bool:
        """Its first one must be the one that the controllers use among themselves."""
        own = self._node.local.endpoints
        return bool(voter.endpoints) and (not own or voter.endpoints[0].name == own[0].name)

    def _begin(self, correlation: object, now_ms: float) -> _Pending:
        deadline = now_ms + self._node.config.request_timeout_ms
        self._pending = _Pending(correlation, deadline)
        return self._pending

    def versions_answered(self, answer: Answer | None, now_ms: float) -> None:
        """The versions of the voter to be; None: it could not be reached."""
        node, state, pending = self._node, self._quorum.state, self._pending
        if pending is None or pending.adding is None or not isinstance(state, LeaderState):
            return
        request, pending.adding = pending.adding, None
        if answer is None:
            self._finish(ErrorCode.REQUEST_TIMED_OUT, "the voter cannot be reached")
            return
        low, high = answer.versions
        voter = request.voter._replace(min_version=low, max_version=high)
        if not voter.serves(node.history.kraft_version):
            self._finish(ErrorCode.INVALID_REQUEST, f"it serves kraft.version {low} to {high}")
            return
        seen = state.observer(voter.key)
        if seen is None or not 0 <= seen.caught_up_ms >= now_ms - CAUGHT_UP_WITHIN_MS:
            self._finish(ErrorCode.REQUEST_TIMED_OUT, "it has not caught up with the log")
            return
        pending.offset = self._append(node.history.voters.with_voter(voter))
        if not request.ack_when_committed:
            self._finish(ErrorCode.NONE)

    # removing and updating

    def remove(self, correlation: object, request: RemoveRaftVoter, now_ms: float) -> Answer | None:
        node, state, key = self._node, self._quorum.state, request.key
        if not isinstance(state, LeaderState):
            return node.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if key.id < 0 or not key.has_directory:
            return node.answer(ErrorCode.INVALID_REQUEST)
        refused = self._refused(state)
        if refused is not None:
            return refused
        voters = node.history.voters
        known = voters.get(key.id)
        if known is None or known.key != key or len(voters) == 1:
            return node.answer(
                ErrorCode.VOTER_NOT_FOUND, message=f"node {key.id} is no voter that can be removed"
            )
        pending = self._begin(correlation, now_ms)
        pending.offset = self._append(voters.without(key.id))
        self.committed()
        return None

    def update(self, request: UpdateRaftVoter, error: ErrorCode, now_ms: float) -> Answer:
        """`error`: why this node does not lead the epoch of the request."""
        node, state, voter = self._node, self._quorum.state, request.voter
        if error is not ErrorCode.NONE or not isinstance(state, LeaderState):
            return node.answer(error)
        is_range = 0 <= voter.min_version <= voter.max_version
        is_named = voter.id >= 0 and voter.key.has_directory
        if not (is_named and self._has_listener(voter) and is_range):
            return node.answer(ErrorCode.INVALID_REQUEST)
        refused = self._refused(state, needs_version=False)
        if refused is not None:
            return refused
        if not voter.serves(node.history.kraft_version):
            return node.answer(ErrorCode.INVALID_REQUEST)
        if not node.history.voters.is_voter(voter.key):
            return node.answer(ErrorCode.VOTER_NOT_FOUND)
        state.heard(voter.key, now_ms)
        if node.history.kraft_version == 0:
            state.updated[voter.id] = voter
        else:
            self._append(node.history.voters.with_voter(voter))
        return node.answer()

    def upgrade(self, level: int, validate_only: bool) -> Answer:
        """kraft.version 1: the voters go into the log, as each of them said."""
        node, state = self._node, self._quorum.state
        refused = self._refused(state, needs_version=False)
        if refused is not None or not isinstance(state, LeaderState):
            return refused or node.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        history = node.history
        refusal = ErrorCode.INVALID_UPDATE_VERSION
        if level == history.kraft_version:
            return node.answer()
        if level != 1:
            return node.answer(refusal, message=f"kraft.version cannot become {level}")
        known = {**state.updated, node.local.id: node.local.as_voter}
        lacking = [
            each
            for each in sorted(history.voters.ids)
            if each not in known or not known[each].serves(level)
        ]
        if lacking:
            return node.answer(
                refusal, message=f"voters {lacking} have not said that they serve it"
            )
        if not validate_only:
            voters = VoterSet(known[each] for each in sorted(history.voters.ids))
            node.append_own((KRaftVersion(level), Voters(voters)), None, 2)
        return node.answer()

    # the end of a change

    def committed(self) -> None:
        """The high watermark moved."""
        pending, state = self._pending, self._quorum.state
        if pending is None or pending.offset < 0 or not isinstance(state, LeaderState):
            return
        if pending.offset < (state.high_watermark or 0):
            self._finish(ErrorCode.NONE)

    def tick(self, now_ms: float) -> None:
        if self._pending is not None and now_ms >= self._pending.deadline_ms:
            self._finish(ErrorCode.REQUEST_TIMED_OUT, "the change is not committed yet")

    def fail(self) -> None:
        """This node leads no more."""
        if self._pending is not None:
            self._finish(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _finish(self, error: ErrorCode, message: str = "") -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        self._node.out.reply(pending.correlation, self._node.answer(error, message=message))

    @property
    def wake_ms(self) -> float:
        return NEVER if self._pending is None else self._pending.deadline_ms
