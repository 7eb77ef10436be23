"""`quorum-state`: the newest epoch that this node has seen, and its leader.

Owns reading and writing the file.

1. The file is durable before a new epoch is used: no epoch is ever led twice.

Source: Kafka's `FileQuorumStateStore`, `QuorumStateData` (data version 0 is written, as
kraft.version 0 requires; 1 is read too). Not here: which epoch comes next (`metadata_log.py`).
"""

from __future__ import annotations

import json
import posixpath
from typing import NamedTuple

from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.checkpoints import read_whole, write_aside
from twisted_broker.log.errors import CheckpointError

NAME = "quorum-state"


class QuorumState(NamedTuple):
    """The newest epoch known and its leader (-1 unknown)."""

    leader_id: int
    leader_epoch: int


def read_quorum_state(files: IFileSystem, directory: str) -> QuorumState | None:
    """None when the node never took part. Raises CheckpointError, OSError."""
    path = posixpath.join(directory, NAME)
    content = read_whole(files, path)
    if content is None:
        return None
    try:
        fields = json.loads(content)
        if fields["data_version"] not in (0, 1):
            raise ValueError(f"version {fields['data_version']}")
        return QuorumState(int(fields["leaderId"]), int(fields["leaderEpoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(path, f"cannot be understood: {error}") from error


def write_quorum_state(files: IFileSystem, directory: str, state: QuorumState) -> None:
    """Durably. Raises OSError."""
    fields = {
        "clusterId": "",
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": state.leader_id}],
        "data_version": 0,
    }
    write_aside(
        files, posixpath.join(directory, NAME), json.dumps(fields, separators=(",", ":")).encode()
    )
