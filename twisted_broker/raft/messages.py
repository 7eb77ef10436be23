"""The quorum's requests and answers without their wire form: one partition, no topic names.

Source: Kafka's message JSON; QU 2.4 to 2.28. Not here: bytes, and the checks of cluster id and
topic (`cluster/raft_requests.py`, `cluster/raft_manager.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from twisted_broker.raft.log_view import Batch, Diverging, OffsetAndEpoch
from twisted_broker.raft.replica_key import Address, Endpoint, ReplicaKey
from twisted_broker.raft.voter_set import VoterNode
from twisted_broker.wire.errors import ErrorCode


class Vote(NamedTuple):
    """`voter`: who it is meant for; None: not said. `end`: of the requester's log."""

    replica: ReplicaKey
    epoch: int
    end: OffsetAndEpoch
    pre_vote: bool
    voter: ReplicaKey | None = None


class BeginQuorumEpoch(NamedTuple):
    """A new leader says that it leads."""

    leader_id: int
    epoch: int
    endpoints: tuple[Endpoint, ...] = ()
    voter: ReplicaKey | None = None


class EndQuorumEpoch(NamedTuple):
    """`successors`: the voters whose logs go farthest come first; empty: anybody, at once."""

    leader_id: int
    epoch: int
    successors: tuple[ReplicaKey, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()


class Fetch(NamedTuple):
    """`epoch`: the leader's, as the reader knows it; `end`: of the reader's log; `high_watermark`
    -1: not known.
    """

    replica: ReplicaKey
    epoch: int
    end: OffsetAndEpoch
    max_bytes: int
    max_wait_ms: int
    high_watermark: int = -1


class FetchSnapshot(NamedTuple):
    """A piece of a snapshot, from byte `position` on."""

    replica: ReplicaKey
    epoch: int
    id: OffsetAndEpoch
    position: int
    max_bytes: int


class ApiVersions(NamedTuple):
    """Asks a node that shall vote which kraft.versions it serves."""


class AddRaftVoter(NamedTuple):
    """One voter more."""

    voter: VoterNode
    ack_when_committed: bool = True


class RemoveRaftVoter(NamedTuple):
    """One voter less."""

    key: ReplicaKey


class UpdateRaftVoter(NamedTuple):
    """Listeners and versions of a voter."""

    epoch: int
    voter: VoterNode


Request = (
    Vote
    | BeginQuorumEpoch
    | EndQuorumEpoch
    | Fetch
    | FetchSnapshot
    | ApiVersions
    | AddRaftVoter
    | RemoveRaftVoter
    | UpdateRaftVoter
)


class Read(NamedTuple):
    """Who carries the answer reads the log from `offset` on: `max_bytes`, one batch at least.
    `is_committed`: below the high watermark only.
    """

    offset: int
    max_bytes: int
    is_committed: bool = False


class Fetched(NamedTuple):
    """One of `read` (on its way out), `batches` (as it comes in), `diverging`, `snapshot`; or
    nothing new.
    """

    high_watermark: int
    log_start_offset: int
    read: Read | None = None
    batches: tuple[Batch, ...] = ()
    diverging: Diverging | None = None
    snapshot: OffsetAndEpoch | None = None


class SnapshotPiece(NamedTuple):
    """`content` and `size` are filled in by who carries it out."""

    id: OffsetAndEpoch
    position: int
    max_bytes: int = 0
    size: int = 0
    content: bytes = b""


class Answer(NamedTuple):
    """To any of the requests. `error` of the partition; `top_level`: of the whole answer, then
    nothing else counts.
    """

    error: ErrorCode = ErrorCode.NONE
    leader_id: int = -1
    epoch: int = -1
    leader_address: Address | None = None
    top_level: ErrorCode = ErrorCode.NONE
    message: str = ""
    granted: bool = False
    fetched: Fetched | None = None
    piece: SnapshotPiece | None = None
    versions: tuple[int, int] = (0, 0)
