"""A node's knowledge of the newest epoch: its leader, and the node's own vote. The content of
`quorum-state`.

1. A vote stays with its epoch: a node that forgot it could vote a second time.
2. Data version 1 (kraft.version 1) has the directory id of the vote, 0 the voters; both are read.

Source: Kafka's `ElectionState`, `QuorumStateData`; QU 1.15. Not here: the file
(`cluster/quorum_state.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from twisted_broker.raft.replica_key import ReplicaKey
from twisted_broker.wire.primitives import NULL_UUID


class ElectionState(NamedTuple):
    """`leader_id` -1: not known; `voted` None: for nobody in this epoch."""

    epoch: int
    leader_id: int = -1
    voted: ReplicaKey | None = None


def encode_election_state(state: ElectionState, kraft_version: int, voters: Iterable[int]) -> bytes:
    """One line of JSON, its fields in Kafka's order."""
    leader = {"leaderId": state.leader_id, "leaderEpoch": state.epoch}
    voted_id = -1 if state.voted is None else state.voted.id
    fields: dict[str, Any]
    if kraft_version == 0:
        fields = {
            "clusterId": "",
            **leader,
            "votedId": voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": each} for each in voters],
            "data_version": 0,
        }
    else:
        directory_id = NULL_UUID if state.voted is None else state.voted.directory_id
        text = base64.urlsafe_b64encode(directory_id).rstrip(b"=").decode()
        fields = {**leader, "votedId": voted_id, "votedDirectoryId": text, "data_version": 1}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_election_state(content: bytes) -> ElectionState:
    """Raises ValueError for what cannot be understood."""
    try:
        fields = json.loads(content)
        if fields["data_version"] not in (0, 1):
            raise ValueError(f"version {fields['data_version']}")
        voted = None
        if int(fields["votedId"]) >= 0:
            text = fields.get("votedDirectoryId") or "A" * 22
            directory_id = base64.urlsafe_b64decode(text + "==")
            if len(directory_id) != len(NULL_UUID):
                raise ValueError(f"votedDirectoryId {text}")
            voted = ReplicaKey(int(fields["votedId"]), directory_id)
        return ElectionState(int(fields["leaderEpoch"]), int(fields["leaderId"]), voted)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"cannot be understood: {error!r}") from error
