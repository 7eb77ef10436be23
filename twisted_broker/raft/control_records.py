"""Control records of the quorum in the wire's form: the leader's, and which voters and
kraft.version are in force.

1. A record of another kind keeps its place: an offset is the batch's first one plus a place.
2. A voter's listeners have the controllers' own one first, whatever order they were written in.

Source: Kafka's `LeaderChangeMessage`, `KRaftVersionRecord`, `VotersRecord`; QU 3.3, 3.15, 4.9,
9.17, 9.18. Not here: from which offset on they hold (`voter_history.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twisted_broker.raft.replica_key import Endpoint, ReplicaKey
from twisted_broker.raft.voter_history import ControlRecord, KRaftVersion, LeaderChange, Voters
from twisted_broker.raft.voter_set import VoterNode, VoterSet
from twisted_broker.wire.control_batch import (
    KRAFT_VERSION,
    KRAFT_VOTERS,
    LEADER_CHANGE,
    build_control_records,
    control_record_type,
)
from twisted_broker.wire.messages import control_records as messages
from twisted_broker.wire.records import BatchView
from twisted_broker.wire.schema import decode, encode

_LIMIT = 1 << 24


def control_batch(
    records: Iterable[ControlRecord], wall_ms: int, base_offset: int, epoch: int
) -> bytes:
    """One batch of them."""
    found = [encode_control(each) for each in records]
    return build_control_records(found, wall_ms, base_offset=base_offset, leader_epoch=epoch)


def encode_control(record: ControlRecord) -> tuple[int, bytes]:
    """Its type and value."""
    match record:
        case LeaderChange():
            change = messages.LeaderChangeMessage(
                version=0,
                leader_id=record.leader_id,
                voters=_ids(record.voters),
                granting_voters=_ids(record.granting),
            )
            return LEADER_CHANGE, encode(change, 0)
        case KRaftVersion():
            level = messages.KRaftVersionRecord(version=0, k_raft_version=record.level)
            return KRAFT_VERSION, encode(level, 0)
        case Voters():
            voters = [_voter(each) for each in record.voters.nodes]
            return KRAFT_VOTERS, encode(messages.VotersRecord(version=0, voters=voters), 0)


def _ids(voters: Iterable[int]) -> list[messages.LeaderChangeMessageVoter]:
    return [messages.LeaderChangeMessageVoter(voter_id=each) for each in sorted(voters)]


def _voter(node: VoterNode) -> messages.VotersRecordVoter:
    return messages.VotersRecordVoter(
        voter_id=node.id,
        voter_directory_id=node.key.directory_id,
        endpoints=[
            messages.Endpoint(name=each.name, host=each.host, port=each.port)
            for each in node.endpoints
        ],
        k_raft_version_feature=messages.KRaftVersionFeature(
            min_supported_version=node.min_version, max_supported_version=node.max_version
        ),
    )


def control_records(batch: BatchView, listener: str) -> tuple[ControlRecord | None, ...]:
    """Those of a control batch, None in the place of one of another kind. `listener`: the
    controllers' own. WireError, CorruptRecordError for an unknown form.
    """
    return tuple(
        _decoded(control_record_type(record.key), bytes(record.value or b""), listener)
        for record in batch.records(_LIMIT)
    )


def _decoded(kind: int, value: bytes, listener: str) -> ControlRecord | None:
    if kind == KRAFT_VERSION:
        return KRaftVersion(decode(messages.KRaftVersionRecord, value, 0).k_raft_version)
    if kind != KRAFT_VOTERS:
        return None
    nodes = []
    for voter in decode(messages.VotersRecord, value, 0).voters:
        versions = voter.k_raft_version_feature
        nodes.append(
            VoterNode(
                ReplicaKey(voter.voter_id, bytes(voter.voter_directory_id)),
                in_order((Endpoint(e.name, e.host, e.port) for e in voter.endpoints), listener),
                versions.min_supported_version,
                versions.max_supported_version,
            )
        )
    return Voters(VoterSet(nodes))


def in_order(endpoints: Iterable[Endpoint], listener: str) -> tuple[Endpoint, ...]:
    """The one called `listener` first, the others by name."""
    return tuple(sorted(endpoints, key=lambda each: (each.name != listener, each.name)))


def of_quorum(records: Sequence[ControlRecord | None]) -> tuple[ControlRecord, ...]:
    """Those that say which voters and kraft.version are in force."""
    return tuple(each for each in records if isinstance(each, KRaftVersion | Voters))
