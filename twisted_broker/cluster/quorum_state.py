"""`quorum-state`: the newest epoch that this node has seen, its leader, and this node's vote.

Owns reading and writing the file.

1. The file is durable before anything that says what it says leaves the node: no epoch is ever led
   twice, and no second vote is cast in one.

Source: Kafka's `FileQuorumStateStore`; QU 1.15, 1.16. Not here: its content
(`raft/election_state.py`), which state comes next (`raft`, `metadata_log.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.checkpoints import read_whole, write_aside
from twisted_broker.log.errors import CheckpointError
from twisted_broker.raft.election_state import (
    ElectionState,
    decode_election_state,
    encode_election_state,
)

NAME = "quorum-state"


def read_quorum_state(files: IFileSystem, directory: str) -> ElectionState | None:
    """None when the node never took part. Raises CheckpointError, OSError."""
    path = posixpath.join(directory, NAME)
    content = read_whole(files, path)
    if content is None:
        return None
    try:
        return decode_election_state(content)
    except ValueError as error:
        raise CheckpointError(path, f"cannot be understood: {error}") from error


def write_quorum_state(
    files: IFileSystem,
    directory: str,
    state: ElectionState,
    voters: Iterable[int],
    kraft_version: int = 0,
) -> None:
    """Durably. Raises OSError."""
    content = encode_election_state(state, kraft_version, voters)
    write_aside(files, posixpath.join(directory, NAME), content)
