"""Rebuilding a controller's metadata from what its brokers, or its snapshots, hold.

Owns reading a source, choosing the most advanced one, and writing a new `__cluster_metadata-0`.

1. A source is only read, and nothing damaged is taken from it. A log that ends in damage is used up
   to there; if that is more than a torn tail, only with `up_to_damage`, else `CannotRecover`.
2. The new directory appears under its name when all of it is durable, and after the cluster's id;
   what was there is refused, or kept under another name.
3. The next controller's epoch is above every epoch seen by more than `EPOCHS_AHEAD`: the lost
   controller may have led epochs of which the source knows nothing.
4. Offsets, epochs and bytes of the records are the source's own, so that brokers go on from there.
5. Where the log says who votes (kraft.version 1), a record behind its end says that the new
   controller alone does: the others of a majority that is lost must never come back.

Source: Kafka has no such tool; KIP-630 (snapshots), KIP-595. Not here: options (`cli/metadata.py`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from twisted_broker.cluster.metadata_check import (
    MetadataDamage,
    Walk,
    check_metadata,
    history_of,
    is_empty,
    write_durable_end,
)
from twisted_broker.cluster.metadata_loader import MetadataLoader
from twisted_broker.cluster.metadata_store import MetadataStore, Opened
from twisted_broker.cluster.quorum_state import read_quorum_state, write_quorum_state
from twisted_broker.cluster.snapshots import (
    SnapshotId,
    image_of,
    list_snapshots,
    load_snapshot,
    quorum_of_content,
)
from twisted_broker.image.metadata_image import EMPTY, MetadataImage
from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.checkpoints import METADATA_PARTITION, read_whole, write_aside
from twisted_broker.log.log import Log
from twisted_broker.log.log_directory import LOCK, STRAY_SUFFIX, LogDirMismatch
from twisted_broker.log.memory import InlineWorker
from twisted_broker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment import OpenFiles
from twisted_broker.log_config import LogConfig
from twisted_broker.raft.control_records import control_batch
from twisted_broker.raft.election_state import ElectionState
from twisted_broker.raft.replica_key import ReplicaKey
from twisted_broker.raft.voter_history import KRaftVersion, VoterHistory, Voters
from twisted_broker.raft.voter_set import VoterNode, VoterSet
from twisted_broker.settings import INT_MAX
from twisted_broker.topic_names import METADATA_DIRECTORY, METADATA_TOPIC_ID
from twisted_broker.wire.errors import BrokerError, WireError
from twisted_broker.wire.primitives import new_uuid
from twisted_broker.wire.records import BatchView

EPOCHS_AHEAD = 100
_STAGE = f"{METADATA_DIRECTORY}.recovering"
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class CannotRecover(Exception):
    """One line for the operator."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a directory or a snapshot file holds. `snapshot_path` "" without one; `cluster_id`
    None: not known; `damage`: one line about what lies behind its end and is not used, or "".
    `voters`: those of kraft.version 1.
    """

    path: str
    image: MetadataImage
    snapshot: SnapshotId | None
    snapshot_path: str
    batches: list[bytes]
    cluster_id: str | None
    epoch: int
    damage: str = ""
    voters: VoterSet = VoterSet()  # noqa: RUF009 - immutable

    @property
    def end_offset(self) -> int:
        return self.image.offset + 1


def read_source(files: IFileSystem, path: str, up_to_damage: bool = False) -> Source:
    """A log directory, its `__cluster_metadata-0`, or a snapshot file. `up_to_damage`: what is
    good before damage will do. CannotRecover, OSError.
    """
    named = _SNAPSHOT.fullmatch(posixpath.basename(path))
    if named is not None:
        return _snapshot_source(files, path, SnapshotId(int(named[1]), int(named[2])))
    directory = (
        path
        if posixpath.basename(path).startswith(METADATA_DIRECTORY)
        else posixpath.join(path, METADATA_DIRECTORY)
    )
    if is_empty(files, directory):
        raise CannotRecover(
            f"{path} holds no metadata: give a log directory with {METADATA_DIRECTORY}, "
            "that directory, or a .checkpoint file"
        )
    try:
        return _directory_source(files, path, directory, up_to_damage)
    except MetadataDamage as damage:
        hint = "; --up-to-damage uses what is before it"
        if damage.path.endswith(".checkpoint"):
            hint = ""
        raise CannotRecover(f"{path} is damaged: {damage}{hint}") from damage
    except (WireError, BrokerError) as error:
        raise CannotRecover(f"{path} is damaged: {error}") from error


def _snapshot_source(files: IFileSystem, path: str, snapshot: SnapshotId) -> Source:
    content = read_whole(files, path)
    if content is None:
        raise CannotRecover(f"{path} is not there")
    try:
        image = image_of(content, snapshot)
        found = quorum_of_content(content, snapshot, "")
    except (WireError, BrokerError, AssertionError, LookupError) as error:
        raise CannotRecover(f"{path} is damaged: {error}") from error
    return Source(
        path,
        image,
        snapshot,
        path,
        [],
        _cluster_of(files, posixpath.dirname(posixpath.dirname(path))),
        snapshot.epoch,
        voters=next((each.voters for each in found if isinstance(each, Voters)), VoterSet()),
    )


def _directory_source(files: IFileSystem, path: str, directory: str, up_to_damage: bool) -> Source:
    snapshots, damage = list_snapshots(files, directory), ""
    try:
        torn = check_metadata(files, directory, is_observer=True).torn
        if torn is not None:
            damage = f"{torn} behind its end cannot be read"
    except MetadataDamage as found:
        if not up_to_damage or found.path.endswith(".checkpoint"):
            raise
        damage = str(found)
    base = load_snapshot(files, directory, snapshots[-1]) if snapshots else EMPTY
    batches, history = _batches(files, directory)
    epoch = max([base.epoch, *(each.epoch for each in snapshots)])
    epoch = max([epoch, *(batch.partition_leader_epoch for batch in batches)])
    known = read_quorum_state(files, directory)
    epoch = max(epoch, -1 if known is None else known.epoch)
    newest = snapshots[-1] if snapshots else None
    at = posixpath.join(directory, newest.file_name) if newest is not None else ""
    cluster_id = _cluster_of(files, posixpath.dirname(directory))
    data = [bytes(batch.buffer) for batch in batches]
    image = _replayed(base, data)
    return Source(path, image, newest, at, data, cluster_id, epoch, damage, history.voters)


def _batches(files: IFileSystem, directory: str) -> tuple[list[BatchView], VoterHistory]:
    """The good batches behind the newest snapshot, and who votes behind them."""
    found, walk = [], Walk(files, directory, None)
    for _, place, batch in walk.batches():
        start = batch.offset
        data = bytes(memoryview(batch.buffer)[start : start + place.size_in_bytes])
        found.append(BatchView(data))
    history = history_of(files, directory, walk)
    return [batch for batch in found if batch.last_offset < walk.offset], history


def _replayed(base: MetadataImage, batches: list[bytes]) -> MetadataImage:
    loader = MetadataLoader(base)
    if batches:
        loader.batches(b"".join(batches), BatchView(batches[-1]).last_offset + 1)
    return loader.image


def _cluster_of(files: IFileSystem, log_directory: str) -> str | None:
    found = (
        read_meta_properties(files, log_directory) if files.is_directory(log_directory) else None
    )
    return None if found is None else found.cluster_id


def most_advanced(sources: list[Source]) -> Source:
    """The source that is furthest ahead: of the newest epoch, the longest. CannotRecover when they
    are of several clusters.
    """
    clusters = {each.cluster_id for each in sources if each.cluster_id is not None}
    if len(clusters) > 1:
        raise CannotRecover(
            "they belong to several clusters: "
            f"{', '.join(f'{each.path} to {each.cluster_id}' for each in sources)}"
        )
    return max(sources, key=lambda each: (each.image.epoch, each.end_offset))


@dataclass(frozen=True, slots=True)
class Target:
    """Where it goes: a controller's log directory. `cluster_id`, `node_id` None: as the
    directory, or the source, says.
    """

    log_directory: str
    node_id: int | None = None
    cluster_id: str | None = None
    move_aside: bool = False


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was written. `aside`: the names under which what was there is kept;
    `dropped`: the voters that vote no more.
    """

    directory: str
    cluster_id: str
    node_id: int
    epoch: int
    aside: tuple[str, ...]
    dropped: tuple[VoterNode, ...] = ()


def recover(
    files: IFileSystem,
    source: Source,
    target: Target,
    wall_ms: int,
    random_bytes: Callable[[int], bytes],
) -> Recovered:
    """Writes a controller's metadata; nothing may run on the target. CannotRecover,
    LogDirMismatch, OSError.
    """
    path = target.log_directory
    if not files.is_directory(path):
        files.make_directories(path)
        files.sync_directory(posixpath.dirname(path))
    try:
        release = files.lock(posixpath.join(path, LOCK))
    except BlockingIOError as error:
        raise LogDirMismatch(f"{path} is in use by another process") from error
    try:
        return _recover(files, source, target, wall_ms, random_bytes)
    finally:
        release()


def _recover(
    files: IFileSystem,
    source: Source,
    target: Target,
    wall_ms: int,
    random_bytes: Callable[[int], bytes],
) -> Recovered:
    path = target.log_directory
    directory = posixpath.join(path, METADATA_DIRECTORY)
    found = read_meta_properties(files, path)
    properties = _properties(found, source, target, random_bytes)
    taken = files.is_directory(directory) and bool(files.listdir(directory))
    foreign = found is not None and found.cluster_id != properties.cluster_id
    if (taken or foreign) and not target.move_aside:
        what = (
            f"{directory} is not empty"
            if taken
            else f"{path} belongs to cluster {found.cluster_id if found else ''}"
        )
        raise CannotRecover(
            f"{what}: give an empty directory, or --move-aside to keep what is "
            "there under another name"
        )
    _stage(files, source, posixpath.join(path, _STAGE), properties, wall_ms)
    aside = []
    if taken:
        aside.append(f"{directory}.{random_bytes(16).hex()}{STRAY_SUFFIX}")
        files.rename(directory, aside[-1])
    elif files.is_directory(directory):
        files.remove_tree(directory)
    if foreign:
        aside.append(
            posixpath.join(path, f"meta.properties.{random_bytes(16).hex()}{STRAY_SUFFIX}")
        )
        files.rename(posixpath.join(path, "meta.properties"), aside[-1])
    if found != properties:
        write_meta_properties(files, path, properties)
    files.rename(posixpath.join(path, _STAGE), directory)
    files.sync_directory(path)
    assert properties.cluster_id is not None and properties.node_id is not None
    return Recovered(
        directory,
        properties.cluster_id,
        properties.node_id,
        source.epoch + EPOCHS_AHEAD,
        tuple(aside),
        others_of(source, properties.node_id),
    )


def others_of(source: Source, node_id: int | None) -> tuple[VoterNode, ...]:
    """The voters of a source but for this node."""
    return tuple(each for each in source.voters.nodes if each.id != node_id)


def _properties(
    found: MetaProperties | None,
    source: Source,
    target: Target,
    random_bytes: Callable[[int], bytes],
) -> MetaProperties:
    """Whose the directory is to be. CannotRecover when that is not known, or contradicts itself."""
    cluster_id = target.cluster_id or source.cluster_id
    if cluster_id is None:
        cluster_id = None if found is None else found.cluster_id
    if cluster_id is None:
        raise CannotRecover(
            f"{source.path} does not say which cluster it belongs to: name it with --cluster-id"
        )
    if source.cluster_id not in (None, cluster_id):
        raise CannotRecover(
            f"{source.path} belongs to cluster {source.cluster_id}, not to {cluster_id}"
        )
    own = found.node_id if found is not None else None
    if own is not None and target.node_id not in (None, own):
        raise CannotRecover(
            f"{target.log_directory} belongs to node {own}, not to {target.node_id}"
        )
    node_id = own if own is not None else target.node_id
    if node_id is None:
        node_id = _only_controller(source)
    directory_id = (
        found.directory_id
        if found is not None and found.directory_id is not None
        else new_uuid(random_bytes)
    )
    return MetaProperties(cluster_id, node_id, directory_id)


def _only_controller(source: Source) -> int:
    """The node that registered as controller. CannotRecover unless there is exactly one."""
    known = sorted(source.image.controllers)
    if len(known) != 1:
        raise CannotRecover(
            f"{source.path} names the controllers {known}: give the new one's id with --node-id"
        )
    return known[0]


def _stage(
    files: IFileSystem, source: Source, stage: str, properties: MetaProperties, wall_ms: int
) -> None:
    """The whole directory under another name, durably. One that was left by a crash goes first."""
    if files.is_directory(stage):
        files.remove_tree(stage)
    files.make_directories(stage)
    start = 0
    if source.snapshot is not None:
        content = read_whole(files, source.snapshot_path)
        assert content is not None, source.snapshot_path
        write_aside(files, posixpath.join(stage, source.snapshot.file_name), content)
        start = source.snapshot.end_offset
    node_id, batches = properties.node_id or 0, source.batches
    if source.voters:
        assert properties.directory_id is not None
        own = VoterNode(ReplicaKey(node_id, properties.directory_id), (), 0, 1)
        # Its listeners follow with its first start.
        change = (KRaftVersion(1), Voters(VoterSet([own])))
        end, epoch = source.end_offset, source.image.epoch
        batches = [*batches, control_batch(change, wall_ms, end, epoch)]
    log = _write_log(files, batches, stage, start, wall_ms)
    state = ElectionState(source.epoch + EPOCHS_AHEAD, node_id)
    write_quorum_state(files, stage, state, [node_id])
    write_durable_end(files, stage, log.log_end_offset)
    _check(files, source, stage)


def _write_log(
    files: IFileSystem, batches: list[bytes], stage: str, start: int, wall_ms: int
) -> Log:
    config = LogConfig(cleanup_policy=frozenset(), max_message_bytes=INT_MAX, segment_jitter_ms=0)
    if batches:
        start = min(start, BatchView(batches[0]).base_offset)  # a snapshot may end within a batch
    log = load_log(
        OpenFiles(files),
        stage,
        METADATA_PARTITION,
        METADATA_TOPIC_ID,
        config,
        log_start_offset=start,
        wall_ms=wall_ms,
    )
    for batch in batches:
        log.append_as_follower(batch, -1, wall_ms)
    log.close()
    return log


def _check(files: IFileSystem, source: Source, stage: str) -> None:
    """Reads back what was written. CannotRecover when its image is not the source's."""
    config = LogConfig(cleanup_policy=frozenset(), max_message_bytes=INT_MAX, segment_jitter_ms=0)
    base = check_metadata(files, stage, is_observer=False).image
    log = load_log(
        OpenFiles(files),
        stage,
        METADATA_PARTITION,
        METADATA_TOPIC_ID,
        config,
        log_start_offset=base.offset + 1,
    )
    image = MetadataStore(
        Opened(log, files, InlineWorker(), base, 0, start=base.offset + 1), lambda: 0
    ).replay()
    log.release_files()
    at = source.image
    found = replace(image, offset=at.offset, epoch=at.epoch, timestamp_ms=at.timestamp_ms)
    if image.offset < at.offset or found != at:
        raise CannotRecover(
            f"{stage} does not say what {source.path} says: the disk of {stage} "
            "fails, or the source changed meanwhile"
        )
