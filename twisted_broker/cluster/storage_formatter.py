"""Formats the log directories of a node before its first start.

Owns what a formatted directory holds: `meta.properties` in each, `bootstrap.checkpoint` in that of
the metadata, and in its `__cluster_metadata-0` the checkpoint of the first voters, where they are
given.

1. A directory that bears an id is never written to: it is refused, or skipped when wanted.
2. `meta.properties` comes last, so that what a crash left half done is formatted again.

Source: Kafka's `Formatter`, `StorageTool`; KIP-853. Not here: the metadata log itself, which a
controller founds at its first start (`metadata_log.format_metadata`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from twisted_broker.cluster.bootstrap import write_bootstrap
from twisted_broker.cluster.features import (
    GROUP_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
)
from twisted_broker.cluster.metadata_check import holds_records
from twisted_broker.cluster.partition_change import ELR_FEATURE
from twisted_broker.cluster.snapshots import write_bootstrap_checkpoint
from twisted_broker.image.metadata_image import METADATA_VERSION
from twisted_broker.interfaces import IFileSystem, IRandom
from twisted_broker.log.log_directory import LogDirMismatch, make_directory, sync_names
from twisted_broker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from twisted_broker.raft.voter_history import KRaftVersion, Voters
from twisted_broker.raft.voter_set import VoterNode, VoterSet
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.wire.messages.metadata_records import UserScramCredentialRecord
from twisted_broker.wire.primitives import new_uuid, uuid_text

RELEASES: Mapping[str, int] = {
    "3.7": 19,
    "3.8": 20,
    "3.9": 21,
    "4.0": 25,
    "4.1": 27,
    "4.2": 29,
    "4.3": 30,
}
"""Kafka's releases, and the metadata.version that each begins a cluster with."""
_ELR_BY_DEFAULT = 26  # 4.1-IV0
_GROUP_VERSION_BY_DEFAULT = 22  # 4.0-IV0
_TRANSACTION_VERSION_BY_DEFAULT = 24  # 4.0-IV2
_SHARE_VERSION_BY_DEFAULT = 28  # 4.2-IV0
_STREAMS_VERSION_BY_DEFAULT = 29  # 4.2-IV1


@dataclass(frozen=True, slots=True)
class Node:
    """Whose directories are formatted.

    `cluster_id` None: that of the directories which have one, else a new one. `directories`: all,
    the metadata's among them. `levels`: what a new cluster finalises (`bootstrap.check_levels`).
    `users`: those that it begins with; `voters`: its first ones, of kraft.version 1 (none: as the
    configuration says).
    """

    node_id: int
    cluster_id: str | None
    directories: Sequence[str]
    metadata_directory: str
    levels: Mapping[str, int]
    users: Sequence[UserScramCredentialRecord] = ()
    voters: Sequence[VoterNode] = ()


class Formatted(NamedTuple):
    """`new` were formatted, `old` already before and are as they were."""

    cluster_id: str
    new: list[str]
    old: list[str]


def format_node(
    files: IFileSystem, node: Node, random: IRandom, wall_ms: int, ignore_formatted: bool
) -> Formatted:
    """Formats what is not formatted yet.

    LogDirMismatch before anything is written: one is formatted already (unless `ignore_formatted`),
    belongs to another node or cluster, holds metadata without saying whose, or is the metadata's,
    to which `users` cannot be added any more. CheckpointError, OSError.
    """
    cluster_id, new, old = node.cluster_id, list[str](), list[str]()
    for path in node.directories:
        found = _properties(files, path)
        if found is None:
            new.append(path)
            continue
        if not ignore_formatted:
            raise LogDirMismatch(
                f"{path} is formatted already: give --ignore-formatted to format the others"
            )
        cluster_id = cluster_id or found.cluster_id
        _check_owner(found, path, node.node_id, cluster_id)
        if node.users and path == node.metadata_directory:
            raise LogDirMismatch(
                f"{path} is formatted already, and first users (--add-scram) are for a new "
                "cluster: start the broker and add them with kafka-configs --entity-type users, "
                "or leave --add-scram out"
            )
        old.append(path)
    cluster_id = cluster_id or uuid_text(new_uuid(random.randbytes))
    for path in old:  # by a run, perhaps, that was killed before it synced the file's name
        files.sync_directory(path)
    for path in new:
        make_directory(files, path)
        sync_names(files, path)
        if path == node.metadata_directory:
            write_bootstrap(files, path, node.levels, wall_ms, node.users)
        directory_id = new_uuid(random.randbytes)
        if path == node.metadata_directory and node.voters:
            directory_id = _found_quorum(files, path, node, directory_id, wall_ms)
        properties = MetaProperties(cluster_id, node.node_id, directory_id)
        write_meta_properties(files, path, properties)
    return Formatted(cluster_id, new, old)


def _found_quorum(
    files: IFileSystem, path: str, node: Node, directory_id: bytes, wall_ms: int
) -> bytes:
    """Writes the first voters. Returns the directory's id, which is this node's among them."""
    own = [each.key for each in node.voters if each.id == node.node_id]
    directory = posixpath.join(path, METADATA_DIRECTORY)
    files.make_directories(directory)
    write_bootstrap_checkpoint(
        files, directory, (KRaftVersion(1), Voters(VoterSet(node.voters))), wall_ms
    )
    files.sync_directory(path)
    return own[0].directory_id if own else directory_id


def _properties(files: IFileSystem, path: str) -> MetaProperties | None:
    """Of a formatted directory; None of one that is not."""
    try:
        found = read_meta_properties(files, path)
    except FileNotFoundError:
        return None
    if found is None and holds_records(files, posixpath.join(path, METADATA_DIRECTORY)):
        raise LogDirMismatch(
            f"{path} holds a cluster's metadata, but no meta.properties, which says which: put "
            "that back, or choose an empty directory"
        )
    return found


def _check_owner(found: MetaProperties, path: str, node_id: int, cluster_id: str | None) -> None:
    if found.cluster_id not in (None, cluster_id) or found.node_id not in (None, node_id):
        raise LogDirMismatch(
            f"{path} belongs to node {found.node_id} of cluster {found.cluster_id}, not to node "
            f"{node_id} of {cluster_id}: choose another directory"
        )


def levels_of(metadata_version: int) -> dict[str, int]:
    """What a new cluster of a metadata.version finalises unless its operator says otherwise: ELR
    from Kafka 4.1 on, group.version 1 and transaction.version 2 from 4.0 on, share.version 1 and
    streams.version 1 from 4.2 on.
    """
    return {
        METADATA_VERSION: metadata_version,
        ELR_FEATURE: int(metadata_version >= _ELR_BY_DEFAULT),
        GROUP_VERSION: int(metadata_version >= _GROUP_VERSION_BY_DEFAULT),
        SHARE_VERSION: int(metadata_version >= _SHARE_VERSION_BY_DEFAULT),
        STREAMS_VERSION: int(metadata_version >= _STREAMS_VERSION_BY_DEFAULT),
        TRANSACTION_VERSION: 2 if metadata_version >= _TRANSACTION_VERSION_BY_DEFAULT else 0,
    }
