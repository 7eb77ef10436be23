"""Clients' requests for moves between directories, and the steps that begin, end or restart them.

Owns `alter_replica_log_dirs` (AlterReplicaLogDirs), `go_on` (after a change of roles, and at a
start) and `directory_failed`.

1. One move per partition: a request with another target gives up the move before; one with the
   directory where the replica already lies ends it.
2. No move begins while any directory is offline: a future log may be in that one.
3. A directory that is requested before the replica exists here is noted, if the metadata has the
   partition; the replica is created there, unless the controller says otherwise.
4. After a restart a move goes on from the future log that is found.

Source: RL 3.8; KIP-113, KIP-858; Kafka's `ReplicaManager.alterReplicaLogDirs`,
`maybeAddLogDirFetchers`. Not here: filling future logs (`fetcher.alter_log_dirs_manager`),
permission (`api.log_dirs`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import TYPE_CHECKING

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors
from twisted_broker.log.future_logs import LONGEST_NAME, future_name
from twisted_broker.wire.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import PartitionDelta
    from twisted_broker.log.log_directory import LogDirectory
    from twisted_broker.replication.partition.partition import Partition
    from twisted_broker.replication.replica_manager import ReplicaManager


def alter_replica_log_dirs(
    replicas: ReplicaManager, topic_partition: TopicPartition, path: str
) -> None:
    """Begins a move to the directory at `path`, goes on with it, or ends another one. Returns
    before anything is moved.

    Raises `BrokerError`: INVALID_TOPIC_EXCEPTION, LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR,
    INVALID_REPLICA_ASSIGNMENT, UNKNOWN_TOPIC_OR_PARTITION, REPLICA_NOT_AVAILABLE.
    """
    if len(future_name(topic_partition, 0)) > LONGEST_NAME:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic's name is too long to be moved"
        )
    target = _directory_at(replicas, path)
    partition = replicas.partitions.get(topic_partition)
    if partition is not None and partition.offline:
        raise partition.refusal()
    if partition is None or partition.log is None:
        if not replicas.image_knows(topic_partition):
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        replicas.log_manager.preferred[topic_partition] = target.path
        raise BrokerError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{topic_partition} is not here")
    replicas.log_manager.moves.forget_lost(topic_partition)
    directories, moves = replicas.log_manager.directories, replicas.log_manager.moves
    # Also a future log whose move has not begun yet: it begins when a role is applied.
    future = moves.future(topic_partition)
    if future is not None and directories.of(future) is not target:
        _give_up(replicas, partition, "another directory was asked for")
    if directories.of(partition.log) is target:
        return
    if moves.future(topic_partition) is None:
        _begin(replicas, partition, target)
    elif topic_partition in replicas.moves.failed:
        replicas.moves.begin(partition)


def _directory_at(replicas: ReplicaManager, path: str) -> LogDirectory:
    target = replicas.log_manager.directories.by_path.get(posixpath.normpath(path))
    if target is None:
        raise BrokerError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is none of this broker's log.dirs")
    if target.failed is not None:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {path} is offline")
    if target.path in replicas.config.cordoned_directories:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"log directory {path} is cordoned")
    return target


def _begin(replicas: ReplicaManager, partition: Partition, target: LogDirectory) -> None:
    log = partition.log
    assert log is not None
    offline = replicas.log_manager.directories.offline()
    if offline:
        raise BrokerError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"log directory {offline[0]} is offline: it may hold a future log of "
            f"{partition.topic_partition}",
        )
    partition.begin_move(replicas.log_manager.moves.create(log, target))
    replicas.lines.add(
        "replica begins to move to another log directory",
        partition=partition.topic_partition,
        directory=target.path,
        before=posixpath.dirname(log.directory),
        bytes=log.size_in_bytes,
    )
    replicas.moves.begin(partition)


def _give_up(replicas: ReplicaManager, partition: Partition, reason: str) -> None:
    name = partition.topic_partition
    replicas.moves.remove([name])
    partition.end_move()
    replicas.log_manager.moves.drop(name)
    replicas.lines.add("a move between directories was given up", partition=name, reason=reason)


def go_on(replicas: ReplicaManager, changes: Iterable[PartitionDelta]) -> None:
    """RL 3.8: after a change of roles, moves go on under the new leader epochs; at a start, those
    whose future logs were found on disk.
    """
    if not replicas.log_manager.moves.futures:
        return
    for change in changes:
        name = TopicPartition(change.topic, change.partition)
        future = replicas.log_manager.moves.future(name)
        partition = replicas.partitions.get(name)
        if future is None or partition is None or partition.log is None or partition.offline:
            continue
        if partition.future_log is None:
            try:
                replicas.start_log(future)
            except OutOfDescriptors:
                replicas.role_retries.later(change, is_new=False)
                continue
            except LogDirFailure as failure:
                replicas.directory_failed(failure.directory, failure.cause)
                continue
            partition.begin_move(future)
            replicas.moves.begin(partition)
        elif not replicas.moves.is_moving_at(name, partition.leader_epoch):
            replicas.moves.begin(partition)


def directory_failed(replicas: ReplicaManager, path: str) -> None:
    """Future logs in a directory that failed are given up; a replica that moves away from it has
    failed itself.
    """
    for name, future in list(replicas.log_manager.moves.futures.items()):
        if posixpath.dirname(future.directory) == path:
            future_log_failed(replicas, name)


def future_log_failed(replicas: ReplicaManager, name: TopicPartition) -> None:
    """A future log that cannot be used is given up."""
    move = replicas.moves.moves.get(name)
    if move is not None:
        replicas.moves.remove([name])
        move.partition.end_move()
    # Also a future log whose move has not begun: retention and the cleaner would wait for it.
    replicas.log_manager.moves.forget(name)
