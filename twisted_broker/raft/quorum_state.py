"""Which state a node is in, and which may follow.

1. The epoch only rises. Within an epoch the vote stays, and so does the leader once it is known.
2. Each new state but prospective and resigned is saved before anything that says it leaves.
3. Only a voter becomes prospective, candidate or leader. A node becomes or ceases to be one by a
   record, in any state.

Source: Kafka's `QuorumState`; QU 1.3 to 1.12. Not here: what a state does (`elections.py`,
`follower.py`, `fetch_requests.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from twisted_broker.raft.consequences import Leader, Outbox
from twisted_broker.raft.election_state import ElectionState
from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.log_view import LogView
from twisted_broker.raft.replica_key import Address, Endpoint, ReplicaKey
from twisted_broker.raft.states import (
    NEVER,
    CandidateState,
    EpochElection,
    FollowerState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
)
from twisted_broker.raft.voter_history import VoterHistory
from twisted_broker.raft.voter_set import VoterNode, VoterSet

State = (
    UnattachedState
    | ProspectiveState
    | CandidateState
    | LeaderState
    | FollowerState
    | ResignedState
)
Nominee = ProspectiveState | CandidateState


class QuorumConfig(NamedTuple):
    """`controller.quorum.*`, in milliseconds and bytes."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_bytes: int = 1 << 20
    fetch_snapshot_max_bytes: int = 1 << 20
    fetch_max_wait_ms: int = 500
    auto_join: bool = False


class LocalNode(NamedTuple):
    """This node: `endpoints` are its controller listeners, the first is for the others."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    min_version: int = 0
    max_version: int = 1

    @property
    def id(self) -> int:
        return self.key.id

    @property
    def as_voter(self) -> VoterNode:
        return VoterNode(self.key, self.endpoints, self.min_version, self.max_version)

    @property
    def address(self) -> Address | None:
        first = self.endpoints[:1]
        return Address(first[0].host, first[0].port) if first else None


class QuorumState:
    """`random_ms(n)` draws from 0 to n - 1. `state` is set by `start`."""

    def __init__(
        self,
        local: LocalNode,
        config: QuorumConfig,
        history: VoterHistory,
        out: Outbox,
        random_ms: Callable[[int], int],
    ) -> None:
        self.local, self.config, self.history = local, config, history
        self._out, self._random_ms = out, random_ms
        self.state: State = UnattachedState(0, -1, None, NEVER)
        self.high_watermark: int | None = None
        """as followers know it; kept over every transition"""

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int:
        return self.state.leader_id

    @property
    def voted(self) -> ReplicaKey | None:
        """Whom it voted for in this epoch."""
        return self.state.voted

    @property
    def voters(self) -> VoterSet:
        return self.history.voters

    @property
    def is_voter(self) -> bool:
        return self.voters.is_voter(self.local.key)

    @property
    def is_leader(self) -> bool:
        return isinstance(self.state, LeaderState)

    def start(self, stored: ElectionState | None, log: LogView, now_ms: float) -> None:
        """The state after a start, from `quorum-state` and the log."""
        known = stored or ElectionState(0)
        if known.epoch < log.last_epoch:
            self._out.say(
                f"quorum-state knows epoch {known.epoch}, the log has epoch {log.last_epoch}",
                is_warning=True,
            )
            known = ElectionState(log.last_epoch)
        voters, own = self.voters, self.local.key
        address = voters.address(known.leader_id)
        if known.leader_id == own.id:
            self.state = self._resigned(known.epoch, (), now_ms)
        elif known.voted in (own, ReplicaKey(own.id)) and self.is_voter:
            election = EpochElection(voters, own.id)
            self.state = CandidateState(known.epoch, own, election, self._timer(now_ms))
        elif known.leader_id >= 0 and address is not None:
            self.state = self._follower(known.epoch, known.leader_id, address, known.voted, now_ms)
        else:
            deadline = self._timer(now_ms)
            self.state = UnattachedState(known.epoch, known.leader_id, known.voted, deadline)
        self._save()

    def _save(self) -> None:
        state = self.state
        voters = tuple(sorted(self.voters.ids))
        saved = ElectionState(state.epoch, state.leader_id, state.voted)
        self._out.save(saved, self.history.kraft_version, voters)

    def _timer(self, now_ms: float) -> float:
        """A new election timer."""
        if not self.is_voter:
            return NEVER
        timeout = self.config.election_timeout_ms
        return now_ms + timeout + self._random_ms(timeout)

    def _enter(self, state: State, saves: bool = True) -> None:
        old, self.state = self.state, state
        if saves:
            self._save()
        if (old.leader_id, old.epoch, isinstance(old, LeaderState)) != (
            state.leader_id,
            state.epoch,
            isinstance(state, LeaderState),
        ):
            self._announce()

    def _announce(self) -> None:
        state = self.state
        if isinstance(state, LeaderState):
            self._out.add(Leader(state.leader_id, state.epoch, state.start_offset))
        elif isinstance(state, FollowerState):
            self._out.add(Leader(state.leader_id, state.epoch))
        else:
            self._out.add(Leader(-1, state.epoch))

    # transitions

    def to_unattached(self, epoch: int, now_ms: float, leader_id: int = -1) -> None:
        """A higher epoch was heard, or this one is lost."""
        old = self.state
        is_same = epoch == old.epoch
        assert epoch > old.epoch or (is_same and isinstance(old, ProspectiveState)), epoch
        keeps_timer = isinstance(old, UnattachedState | CandidateState | ResignedState) or (
            isinstance(old, ProspectiveState) and not old.election.is_rejected
        )
        deadline = old.deadline_ms if keeps_timer else self._timer(now_ms)  # type: ignore[union-attr]
        if not self.is_voter:
            deadline = NEVER
        elif deadline == NEVER:
            deadline = self._timer(now_ms)
        voted = old.voted if is_same else None
        if is_same and leader_id < 0:
            leader_id = old.leader_id
        self._enter(UnattachedState(epoch, leader_id, voted, deadline))

    def to_prospective(self, now_ms: float) -> None:
        """Nothing was heard of a leader for too long."""
        old = self.state
        assert self.is_voter and not isinstance(old, LeaderState | ProspectiveState), old
        election = EpochElection(self.voters, self.local.id)
        address = old.leader_address
        voted = old.voted
        if isinstance(old, ResignedState):
            voted = self.local.key  # it led this epoch by its own vote, too
        self._enter(
            ProspectiveState(
                old.epoch, old.leader_id, address, voted, election, self._timer(now_ms)
            ),
            saves=False,
        )

    def to_candidate(self, now_ms: float) -> None:
        """A majority would vote for it: its epoch is a new one."""
        assert isinstance(self.state, ProspectiveState) and self.is_voter, self.state
        election = EpochElection(self.voters, self.local.id)
        own = self.local.key
        self._enter(CandidateState(self.epoch + 1, own, election, self._timer(now_ms)))

    def to_leader(self, start_offset: int, now_ms: float) -> LeaderState:
        old = self.state
        assert isinstance(old, CandidateState) and old.election.is_granted, old
        state = LeaderState(
            old.epoch,
            self.local.key,
            self.local.address,
            start_offset,
            self.voters,
            old.election.granting,
            self.config.fetch_timeout_ms,
            now_ms,
        )
        self._enter(state)
        return state

    def to_follower(self, epoch: int, leader_id: int, address: Address, now_ms: float) -> None:
        old = self.state
        assert leader_id != self.local.id and epoch >= old.epoch
        voted = old.voted if epoch == old.epoch else None
        self._enter(self._follower(epoch, leader_id, address, voted, now_ms))

    def _follower(
        self,
        epoch: int,
        leader_id: int,
        address: Address,
        voted: ReplicaKey | None,
        now_ms: float,
    ) -> FollowerState:
        deadline = now_ms + self.config.fetch_timeout_ms
        return FollowerState(epoch, leader_id, address, voted, deadline, deadline)

    def to_resigned(self, successors: tuple[ReplicaKey, ...], now_ms: float) -> None:
        old = self.state
        assert isinstance(old, LeaderState), old
        self._enter(self._resigned(old.epoch, successors, now_ms), saves=False)

    def _resigned(
        self, epoch: int, successors: tuple[ReplicaKey, ...], now_ms: float
    ) -> ResignedState:
        others = self.voters.ids - {self.local.id}
        deadline = self._timer(now_ms)
        if deadline == NEVER:  # removed from the voters: it goes on as an observer
            deadline = now_ms + self.config.election_timeout_ms
        return ResignedState(epoch, self.local.id, others, successors, deadline)

    def grant_vote(self, candidate: ReplicaKey, now_ms: float) -> None:
        """The vote of this epoch; durable before it leaves."""
        old = self.state
        assert isinstance(old, UnattachedState | ProspectiveState), old
        if old.voted is None:
            old.voted = candidate
        if isinstance(old, ProspectiveState):
            old.election = EpochElection(self.voters, self.local.id)
        old.deadline_ms = self._timer(now_ms)
        self._save()

    def follows(self, leader_id: int, epoch: int, address: Address | None, now_ms: float) -> str:
        """What somebody says of an epoch at least as high as this: goes with it. Returns what
        contradicts it, and must never be.
        """
        state = self.state
        if leader_id >= 0 and address is None:
            address = self.voters.address(leader_id)
        if epoch > state.epoch:
            if leader_id == self.local.id:
                return f"this node is said to lead epoch {epoch}, which it does not"
            if leader_id >= 0 and address is not None:
                self.to_follower(epoch, leader_id, address, now_ms)
            else:
                self.to_unattached(epoch, now_ms, leader_id)
            return ""
        if epoch < state.epoch or leader_id < 0:
            return ""
        if state.leader_id >= 0 and state.leader_id != leader_id:
            return f"epoch {epoch} has two leaders, {state.leader_id} and {leader_id}"
        if leader_id == self.local.id:
            if isinstance(state, LeaderState | ResignedState) or state.leader_id == leader_id:
                return ""
            return f"this node is said to lead epoch {epoch}, which it does not"
        is_followed = isinstance(state, FollowerState) or state.leader_address is not None
        if not is_followed and address is not None:
            self.to_follower(epoch, leader_id, address, now_ms)
        return ""
