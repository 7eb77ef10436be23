"""Elections: Vote, BeginQuorumEpoch and EndQuorumEpoch, asked and answered.

1. A vote that is granted is durable before its answer leaves; a pre-vote changes nothing.
2. A candidate's epoch is durable before its first request; the first batch of a leader's epoch is
   its LeaderChange.
3. Who asks need not be a voter here: the voter sets of two nodes may differ for a while.

Source: Kafka's `KafkaRaftClient` (elections), KIP-595, KIP-996; QU 1.5 to 1.14, 2.4 to 2.11, 3.3,
3.10, 3.11.
"""

from __future__ import annotations

from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.messages import (
    Answer,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Request,
    Vote,
)
from twisted_broker.raft.node import RaftNode
from twisted_broker.raft.quorum_state import Nominee
from twisted_broker.raft.replica_key import ReplicaKey
from twisted_broker.raft.states import (
    NEVER,
    CandidateState,
    FollowerState,
    ProspectiveState,
    ResignedState,
)
from twisted_broker.raft.voter_history import ControlRecord, KRaftVersion, LeaderChange, Voters
from twisted_broker.wire.errors import ErrorCode


class Elections:
    """Both sides of an election."""

    def __init__(self, node: RaftNode) -> None:
        self._node, self._quorum = node, node.quorum

    # requests of others

    def vote(self, request: Vote, now_ms: float) -> Answer:
        node, quorum = self._node, self._quorum
        last = request.end
        too_new = last.epoch >= request.epoch + request.pre_vote
        if last.offset < 0 or last.epoch < 0 or too_new:
            return node.answer(ErrorCode.INVALID_REQUEST)
        if request.epoch < quorum.epoch:
            return node.answer(ErrorCode.FENCED_LEADER_EPOCH)
        if request.replica.id < 0:
            return node.answer(ErrorCode.INVALID_REQUEST)
        if request.epoch > quorum.epoch:
            quorum.to_unattached(request.epoch, now_ms)
        if not self._is_meant(request.voter):
            return node.answer(ErrorCode.INVALID_VOTER_KEY)
        is_up_to_date = (last.epoch, last.offset) >= (node.log.last_epoch, node.log.end_offset)
        granted = quorum.state.grants(request.replica, is_up_to_date, request.pre_vote)
        if granted and not request.pre_vote:
            node.out.say(f"votes for {request.replica.id} in epoch {request.epoch}")
            quorum.grant_vote(request.replica, now_ms)
        return node.answer(granted=granted)

    def _is_meant(self, voter: ReplicaKey | None) -> bool:
        """Whether a request that names its receiver is for this node."""
        own = self._node.local.key
        if voter is None or voter.id < 0:
            return True
        return voter.id == own.id and (
            not voter.has_directory or voter.directory_id == own.directory_id
        )

    def begin(self, request: BeginQuorumEpoch, now_ms: float) -> Answer:
        node = self._node
        refused = self._followed(request, now_ms)
        if refused is not None:
            return refused
        if not self._is_meant(request.voter):
            return node.answer(ErrorCode.INVALID_VOTER_KEY)
        return node.answer()

    def end(self, request: EndQuorumEpoch, now_ms: float) -> Answer:
        refused = self._followed(request, now_ms)
        if refused is not None:
            return refused
        state = self._quorum.state
        if isinstance(state, FollowerState) and state.leader_id == request.leader_id:
            state.deadline_ms = now_ms + self._patience_ms(request.successors)
        return self._node.answer()

    def _followed(self, request: BeginQuorumEpoch | EndQuorumEpoch, now_ms: float) -> Answer | None:
        node = self._node
        if request.epoch < self._quorum.epoch:
            return node.answer(ErrorCode.FENCED_LEADER_EPOCH)
        if request.leader_id < 0:
            return node.answer(ErrorCode.INVALID_REQUEST)
        address = request.endpoints[0].address if request.endpoints else None
        problem = self._quorum.follows(request.leader_id, request.epoch, address, now_ms)
        if problem:
            node.stop(problem)
        return None

    def _patience_ms(self, successors: tuple[ReplicaKey, ...]) -> int:
        """The voter whose log goes farthest begins at once, the others a little later each."""
        longest = self._node.config.election_backoff_max_ms
        own = self._node.local.key
        ids = [each.id for each in successors]
        if not ids or ids[0] == own.id:
            return 0
        if own.id not in ids:
            return longest
        place = ids.index(own.id)
        return min(longest, (longest >> (len(ids) - 1)) << (place - 1))

    # a nominee

    def poll_nominee(self, state: Nominee, now_ms: float) -> float:
        if isinstance(state, ProspectiveState):
            if state.election.is_granted:
                self._quorum.to_candidate(now_ms)
                return now_ms
            if state.election.is_rejected or now_ms >= state.deadline_ms:
                self._lost(state, now_ms)
                return now_ms
        elif state.election.is_granted:
            self._lead(now_ms)
            return now_ms
        elif now_ms >= state.deadline_ms:
            self._quorum.to_prospective(now_ms)
            return now_ms
        if not state.election.is_rejected:
            self._ask_for_votes(state, now_ms)
        return state.deadline_ms

    def _lost(self, state: ProspectiveState, now_ms: float) -> None:
        """It goes back to the leader that it knows, or waits to be heard."""
        is_remote = state.leader_id not in (-1, self._node.local.id)
        if is_remote and state.leader_address is not None:
            self._quorum.to_follower(state.epoch, state.leader_id, state.leader_address, now_ms)
        else:
            self._quorum.to_unattached(state.epoch, now_ms)

    def _ask_for_votes(self, state: Nominee, now_ms: float) -> None:
        node, voters = self._node, self._quorum.voters
        for voter_id in state.election.unrecorded:
            voter, address = voters.get(voter_id), voters.address(voter_id)
            if voter and address and node.requests.is_ready(voter_id, now_ms):
                request = Vote(node.local.key, state.epoch, node.log.end, state.pre_vote, voter.key)
                node.requests.send(voter_id, address, request, now_ms)

    def voted(self, voter_id: int, request: Vote, answer: Answer) -> None:
        """An answer without error, of this epoch."""
        state = self._quorum.state
        if isinstance(state, ProspectiveState | CandidateState) and (
            state.pre_vote == request.pre_vote
        ):
            state.election.record(voter_id, answer.granted)

    def pre_vote_unsupported(self, now_ms: float) -> None:
        """A voter of an older version: the election begins without."""
        if isinstance(self._quorum.state, ProspectiveState):
            self._quorum.to_candidate(now_ms)

    # the leader

    def _lead(self, now_ms: float) -> None:
        node = self._node
        state = self._quorum.to_leader(node.log.end_offset, now_ms)
        voters = tuple(state.voters.ids)
        records: list[ControlRecord] = [LeaderChange(node.local.id, voters, tuple(state.granting))]
        history = node.history
        if history.kraft_version > 0:
            known = state.voters.get(node.local.id)
            is_bootstrap = history.voters_offset == -1
            if is_bootstrap or known != node.local.as_voter:
                records.append(KRaftVersion(history.kraft_version))
                records.append(Voters(state.voters.with_voter(node.local.as_voter)))
        node.append_own(tuple(records), None, len(records))
        node.leader_moved(state.set_own_end(node.durable_end))

    def poll_leader(self, state: LeaderState, now_ms: float) -> float:
        node = self._node
        state.begin_check(now_ms)
        if state.is_resigning or now_ms >= state.check_deadline_ms or self._is_removed(state):
            reason = "asked to"
            if now_ms >= state.check_deadline_ms:
                reason = "no majority of the voters fetches"
            elif not state.is_resigning:
                reason = "it is a voter no more"
            node.out.say(f"resigns epoch {state.epoch}: {reason}", is_warning=True)
            self._quorum.to_resigned(state.successors(), now_ms)
            return now_ms
        if now_ms >= state.begin_ms:
            self._begin_epochs(state, now_ms)
        return min(state.check_deadline_ms, state.begin_ms)

    def _is_removed(self, state: LeaderState) -> bool:
        offset = self._node.history.voters_offset
        if state.is_voter or state.high_watermark is None:
            return False
        return offset is not None and offset < state.high_watermark

    def _begin_epochs(self, state: LeaderState, now_ms: float) -> None:
        """To each voter not heard for a while: that is how it finds its leader."""
        node, interval = self._node, self._node.config.fetch_timeout_ms / 2
        others = state.voters.ids - {node.local.id}
        state.begin_ms = now_ms + interval if others else NEVER
        for voter in state.voters.nodes:
            address = state.voters.address(voter.id)
            last_ms = state.last_fetch_ms(voter.id)
            if voter.id == node.local.id or address is None:
                continue
            if (last_ms < 0 or now_ms - last_ms >= interval) and node.requests.is_ready(
                voter.id, now_ms
            ):
                request = BeginQuorumEpoch(
                    node.local.id, state.epoch, node.local.endpoints, voter.key
                )
                node.requests.send(voter.id, address, request, now_ms)

    # a leader that resigned

    def poll_resigned(self, state: ResignedState, now_ms: float) -> float:
        node, voters = self._node, self._quorum.voters
        if now_ms >= state.deadline_ms:
            self._quorum.to_unattached(state.epoch + 1, now_ms)
            return now_ms
        for voter_id in sorted(state.unacknowledged):
            address = voters.address(voter_id)
            if address is not None and node.requests.is_ready(voter_id, now_ms):
                request: Request = EndQuorumEpoch(node.local.id, state.epoch, state.successors)
                node.requests.send(voter_id, address, request, now_ms)
        return state.deadline_ms

    def ended(self, voter_id: int) -> None:
        state = self._quorum.state
        if isinstance(state, ResignedState):
            state.unacknowledged.discard(voter_id)
