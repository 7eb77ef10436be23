"""A node's state in the quorum: unattached, prospective, candidate, follower or
resigned; and the votes that a nominee counts.

1. A voter counts once in an election: a later answer changes nothing.
2. An observer's timers never end.

Source: Kafka's `UnattachedState`, `ProspectiveState`, `CandidateState`, `FollowerState`,
`ResignedState`, `EpochElection`; QU 1.2, 1.14. Not here: the leader (`leader_state.py`), which
transition is legal (`quorum_state.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.raft.log_view import OffsetAndEpoch
from twisted_broker.raft.replica_key import Address, ReplicaKey
from twisted_broker.raft.voter_set import VoterSet

NEVER = float("inf")


class EpochElection:
    """The votes of one nominee; it counts its own."""

    def __init__(self, voters: VoterSet, own_id: int) -> None:
        self._majority = voters.majority
        self._votes: dict[int, bool | None] = dict.fromkeys(voters.ids)
        self.record(own_id, True)

    def record(self, voter_id: int, is_granted: bool) -> None:
        """Nothing, from a node that was no voter when the election began."""
        if voter_id in self._votes:
            self._votes[voter_id] = is_granted

    @property
    def unrecorded(self) -> list[int]:
        return [voter for voter, vote in self._votes.items() if vote is None]

    @property
    def granting(self) -> tuple[int, ...]:
        return tuple(voter for voter, vote in self._votes.items() if vote)

    @property
    def is_granted(self) -> bool:
        return len(self.granting) >= self._majority

    @property
    def is_rejected(self) -> bool:
        """No majority can come together any more."""
        return len(self.granting) + len(self.unrecorded) < self._majority


class UnattachedState:
    """It has no leader to follow; of one it may know the id without an address."""

    name = "Unattached"

    def __init__(
        self, epoch: int, leader_id: int, voted: ReplicaKey | None, deadline_ms: float
    ) -> None:
        self.epoch, self.leader_id, self.voted = epoch, leader_id, voted
        self.leader_address: Address | None = None
        self.deadline_ms = deadline_ms

    def grants(self, candidate: ReplicaKey, is_up_to_date: bool, pre_vote: bool) -> bool:
        return _grants_once(self.voted, self.leader_id, candidate, is_up_to_date, pre_vote)


class ProspectiveState:
    """It asks the voters whether they would vote for it, before it raises the epoch."""

    name = "Prospective"
    pre_vote = True

    def __init__(
        self,
        epoch: int,
        leader_id: int,
        leader_address: Address | None,
        voted: ReplicaKey | None,
        election: EpochElection,
        deadline_ms: float,
    ) -> None:
        self.epoch, self.leader_id, self.voted = epoch, leader_id, voted
        self.leader_address = leader_address
        self.election, self.deadline_ms = election, deadline_ms

    def grants(self, candidate: ReplicaKey, is_up_to_date: bool, pre_vote: bool) -> bool:
        return _grants_once(self.voted, self.leader_id, candidate, is_up_to_date, pre_vote)


class CandidateState:
    """It has voted for itself in an epoch of its own."""

    name = "Candidate"
    pre_vote = False
    leader_id = -1
    leader_address: Address | None = None

    def __init__(
        self, epoch: int, own: ReplicaKey, election: EpochElection, deadline_ms: float
    ) -> None:
        self.epoch, self.voted = epoch, own
        self.election, self.deadline_ms = election, deadline_ms

    def grants(self, candidate: ReplicaKey, is_up_to_date: bool, pre_vote: bool) -> bool:
        return pre_vote and is_up_to_date


class SnapshotDownload:
    """A follower's part of a snapshot; `is_whole`: it is being read."""

    def __init__(self, snapshot: OffsetAndEpoch) -> None:
        self.id = snapshot
        self.position = 0
        self.is_whole = False


class FollowerState:
    """`deadline_ms`: when the leader counts as lost. `has_fetched`: this leader has answered."""

    name = "Follower"

    def __init__(
        self,
        epoch: int,
        leader_id: int,
        leader_address: Address,
        voted: ReplicaKey | None,
        deadline_ms: float,
        update_deadline_ms: float,
    ) -> None:
        self.epoch, self.leader_id, self.voted = epoch, leader_id, voted
        self.leader_address = leader_address
        self.deadline_ms, self.update_deadline_ms = deadline_ms, update_deadline_ms
        self.has_fetched = self.has_updated_leader = False
        self.download: SnapshotDownload | None = None

    def grants(self, candidate: ReplicaKey, is_up_to_date: bool, pre_vote: bool) -> bool:
        """A leader that answers must not lose its epoch to a voter that cannot hear it."""
        return pre_vote and is_up_to_date and not self.has_fetched


class ResignedState:
    """It led this epoch, and leads no more. `unacknowledged`: voters that have not heard."""

    name = "Resigned"
    voted: ReplicaKey | None = None
    leader_address: Address | None = None

    def __init__(
        self,
        epoch: int,
        own_id: int,
        unacknowledged: Iterable[int],
        successors: tuple[ReplicaKey, ...],
        deadline_ms: float,
    ) -> None:
        self.epoch, self.leader_id = epoch, own_id
        self.unacknowledged = set(unacknowledged)
        self.successors, self.deadline_ms = successors, deadline_ms

    def grants(self, candidate: ReplicaKey, is_up_to_date: bool, pre_vote: bool) -> bool:
        return pre_vote and is_up_to_date


def _grants_once(
    voted: ReplicaKey | None,
    leader_id: int,
    candidate: ReplicaKey,
    is_up_to_date: bool,
    pre_vote: bool,
) -> bool:
    if pre_vote:
        return is_up_to_date
    if voted is not None:
        return voted.id == candidate.id and (
            not voted.has_directory or voted.directory_id == candidate.directory_id
        )
    return leader_id < 0 and is_up_to_date
