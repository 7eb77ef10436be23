"""Moves of replicas between this broker's directories: who fills the future logs, and when each
takes its log's place.

Owns `ReplicaAlterLogDirsManager`, the fetchers of future logs.

    begin --filled to the log's end--> announced: AssignReplicasToDirs is sent, it is synced
    announced --accepted, synced, at the log's end again--> swapped
    any --cancelled, stopped, failed--> ended; the controller hears where the replica stays

1. A future log takes its log's place only after the controller knows (KIP-858): if the new
   directory fails right after the swap, the controller must choose another leader.
2. When a move ends without a swap, and the controller may have been told of it, the controller is
   told that the replica stays.
3. A move of a partition with a new leader epoch goes on under that epoch, and compares epochs
   first; so does one whose log was truncated.
4. A log with a hole (`log.gaps`) is moved only after a role has decided what becomes of it.
5. A failed move stays as it is, shown with its reason, until it is requested again, cancelled, or
   the broker restarts; the replica serves on.

Source: RL 1.1, 3.8; KIP-113, KIP-858; Kafka's `ReplicaAlterLogDirsManager`,
`ReplicaAlterLogDirsThread`. Not here: what is known of a move (`directory_move`), what
a client may ask for (`directory_moves`), the files
(`log.log_moves`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import OutOfDescriptors
from twisted_broker.replication.collaborators import IDirectoryAssignments, IReplicas
from twisted_broker.replication.fetcher.directory_move import Assignment, Move
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_manager import FetcherManager, FollowedPartition
from twisted_broker.replication.fetcher.fetcher_state import NO_EPOCH, InitialFetchState
from twisted_broker.replication.fetcher.future_replicas import FutureReplicas
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.replication.fetcher.local_leader_endpoint import (
    LocalLeaderEndPoint,
    MoveThrottle,
    local_endpoint,
)
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.wire.errors import BrokerError

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.log.log_manager import LogManager

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
WINDOWS = "alter.log.dirs.replication.quota.window.num"
WINDOW_SECONDS = "alter.log.dirs.replication.quota.window.size.seconds"
THREADS = "num.replica.alter.log.dirs.threads"
_AGAIN_SECONDS = 1.0


class ReplicaAlterLogDirsManager(FetcherManager):
    """`assignments` None: nobody must be told (tests)."""

    def __init__(
        self,
        replicas: IReplicas,
        log_manager: LogManager,
        lines: EventLines,
        assignments: IDirectoryAssignments | None,
    ) -> None:
        config = replicas.config
        super().__init__(
            config.optional_integer(THREADS) or len(config.log_directories), self._create_fetcher
        )
        self.moves: dict[TopicPartition, Move] = {}
        self._replicas = replicas
        self._log_manager = log_manager
        self._lines = lines
        self._assignments = assignments
        self.throttle = MoveThrottle(
            lambda: max(1, replicas.config.integer(RATE)),
            config.integer(WINDOWS),
            config.integer(WINDOW_SECONDS) * 1000,
            RATE,
        )

    def _create_fetcher(
        self, number: int, leader: BrokerEndPoint, failed: set[TopicPartition]
    ) -> Fetcher:
        replicas = self._replicas
        config = replicas.config
        return Fetcher(
            f"log directory mover {number} of broker {replicas.node_id}",
            replicas.runtime,
            LocalLeaderEndPoint(
                replicas,
                self.throttle,
                self._is_due,
                config.integer("replica.fetch.response.max.bytes"),
            ),
            FutureReplicas(replicas, self._appended, self._move_failed),
            config.integer("replica.fetch.backoff.ms"),
            config.integer("replica.fetch.max.bytes"),
            failed,
        )

    # which moves
    def begin(self, partition: Partition) -> None:
        """Fills the partition's future log, from now on or again, under its leader epoch."""
        name, log, future = partition.topic_partition, partition.log, partition.future_log
        if log is None or future is None:
            return
        known = self.moves.get(name)
        if known is None or known.partition is not partition:
            directories = self._log_manager.directories
            known = self.moves[name] = Move(
                partition,
                directories.of(log).directory_id,
                directories.of(future).directory_id,
                self._replicas.runtime.now_ms(),
            )
        known.error, known.leader_epoch = "", partition.leader_epoch
        super().remove([name])
        if log.gap is not None:
            # The future log would have the hole, too, and no start would know it as one. The move
            # begins with the role that decides about the hole.
            known.leader_epoch = NO_EPOCH
            return
        if not self._truncate_to_log(known, log, future):
            return
        offset = min(future.high_watermark, future.log_end_offset)
        initial = InitialFetchState(partition.topic_id, partition.leader_epoch, offset)
        self.add({name: FollowedPartition(local_endpoint(self._replicas.node_id), initial)})

    def _truncate_to_log(self, move: Move, log: Log, future: Log) -> bool:
        """Truncates the future log to the log's end. A log that was truncated to be fetched again
        has lost records of the current leader epoch, which a comparison of epochs does not show.
        False when the future log cannot be truncated.
        """
        end = log.log_end_offset
        if future.log_end_offset <= end:
            return True
        try:
            future.truncate_to(future.end_below(end), self._replicas.runtime.wall_ms())
        except BrokerError as error:
            move.error = str(error)
            if isinstance(error, OutOfDescriptors):
                again = partial(self._begin_again, move)
                self._log_manager.directories.call_later(_AGAIN_SECONDS, again)
            return False
        return True

    def _begin_again(self, move: Move) -> None:
        if move.error and self.moves.get(move.partition.topic_partition) is move:
            self.begin(move.partition)

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Ends moves before their swap; the caller decides what becomes of the future logs."""
        names = [name for name in topic_partitions if name in self.moves]
        if not names:
            return
        super().remove(names)
        for name in names:
            move = self.moves.pop(name)
            if self._assignments is not None and move.assignment is not Assignment.NONE:
                self._assignments.revert(move.partition.topic_id, name, move.source)
        self.shutdown_idle()

    def is_moving_at(self, name: TopicPartition, leader_epoch: int) -> bool:
        """Whether its future log is filled under this leader epoch, or failed under it."""
        move = self.moves.get(name)
        return move is not None and move.leader_epoch == leader_epoch

    # the swap
    def _is_due(self, name: TopicPartition) -> bool:
        """Whether a future log that has caught up needs another round: to announce, mark or swap
        it.
        """
        move = self.moves.get(name)
        return move is not None and (
            move.assignment is Assignment.NONE
            or self._is_marked_before_a_truncation(move)
            or self._may_swap(move.partition, move)
        )

    def _is_marked_before_a_truncation(self, move: Move) -> bool:
        """The future log was truncated after its mark, so other records may be where the mark says
        that all is durable: after a loss of power a hole in them would count as a cleaner's
        (`log.future_logs`).
        """
        future = move.partition.future_log
        return future is not None and move.is_synced and move.truncations != future.truncations

    def _may_swap(self, partition: Partition, move: Move) -> bool:
        future = partition.future_log
        return (
            future is not None
            and move.assignment is Assignment.ACCEPTED
            and move.is_synced
            and move.truncations == future.truncations
            # A sync or a rebuild under way knows the future log's files by their names.
            and not future.durability.is_busy
            and not future.producers.is_rebuilding
            # The log that an earlier move replaced may not be removed yet.
            and not self._log_manager.moves.is_replacing(partition.topic_partition)
        )

    def _appended(self, name: TopicPartition, size: int) -> None:
        self.throttle.record(size, self._replicas.runtime.now_ms())
        move = self.moves.get(name)
        if move is None:
            return
        partition = move.partition
        log, future = partition.log, partition.future_log
        if log is None or future is None or log.log_end_offset != future.log_end_offset:
            return
        if move.assignment is Assignment.NONE:
            self._announce(name, move)
        elif self._is_marked_before_a_truncation(move):
            self._prepare(name, move)
        if self._may_swap(partition, move):
            self._swap(name, move)

    def _announce(self, name: TopicPartition, move: Move) -> None:
        move.assignment = Assignment.QUEUED
        self._prepare(name, move)
        if self._assignments is None:
            self._accepted(name, move)
        else:
            self._assignments.assign(
                move.partition.topic_id, name, move.target, partial(self._accepted, name, move)
            )

    def _prepare(self, name: TopicPartition, move: Move) -> None:
        future = move.partition.future_log
        assert future is not None
        move.is_synced, move.truncations = False, future.truncations
        self._log_manager.moves.prepare_swap(name, partial(self._synced, name, move))

    def _accepted(self, name: TopicPartition, move: Move) -> None:
        if self.moves.get(name) is move:
            move.assignment = Assignment.ACCEPTED
            self._wake()

    def _synced(self, name: TopicPartition, move: Move) -> None:
        if self.moves.get(name) is move:
            move.is_synced = True
            self._wake()

    def _wake(self) -> None:
        for fetcher in self.fetchers.values():
            fetcher.wake()

    def _swap(self, name: TopicPartition, move: Move) -> None:
        partition, now_ms = move.partition, self._replicas.runtime.now_ms()
        source = "" if partition.log is None else posixpath.dirname(partition.log.directory)
        log = self._log_manager.moves.swap(name)
        del self.moves[name]
        super().remove([name])
        if self._assignments is not None:
            self._assignments.moved(partition.topic_id, name)
        partition.replace_log(log, now_ms)
        self._lines.add(
            "replica moved to another log directory",
            partition=name,
            directory=posixpath.dirname(log.directory),
            before=source,
            bytes=log.size_in_bytes,
            ms=now_ms - move.began_ms,
        )

    def _move_failed(self, name: TopicPartition, reason: str) -> None:
        move = self.moves.get(name)
        if move is not None:
            move.error = reason
