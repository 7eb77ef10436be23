"""Logs that move to another directory: their future logs, and the logs that those replaced.

Owns `LogMoves`: future logs, what makes one of them the partition's log, and the logs that
were replaced, until they are durably gone.

1. A partition has one future log at most, in another directory than its log; retention and the
   cleaner leave both alone.
2. A swap is one turn: the future log is renamed and takes the log's place. Where the rename fails
   nothing has changed.
3. The log that was replaced goes when the future log is durable under its new name, and its mark
   when that log is durably gone. Until then the partition is replacing (`is_replacing`). A stop
   leaves what is not done to the next start, which finds both logs (`finish_swap`).
4. A future log takes the place of a lost log if, for the controller, the replica is in its
   directory.
5. A future log whose topic was deleted and made again meanwhile is dropped. One that a crash
   damaged is begun anew once no directory is offline, for the move was acknowledged (RL 3.8).
6. Future logs that are dropped, and logs that were replaced, go as deleted logs do.

Ring 1. Source: Kafka's `LogManager` (`futureLogs`, `replaceCurrentWithFutureLog`); KIP-113,
KIP-858; RL 3.8. Not here: names, marks, and which of two logs counts (`future_logs.py`); when a log
is moved (`replication.directory_moves`) and swapped (`replication.fetcher.alter_log_dirs_manager`);
what else happens to future logs as to all logs: loading, syncs, failures, the stop
(`log_manager.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Protocol

from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.cleaner.log_cleaner import LogCleaner
from twisted_broker.log.errors import LogDirFailure, LogFailure, OutOfDescriptors
from twisted_broker.log.future_logs import (
    future_config,
    future_name,
    mark_promoted,
    one_that_counts,
    unmark_promoted,
)
from twisted_broker.log.log import Log
from twisted_broker.log.log_directories import LogDirectories
from twisted_broker.log.log_directory import DELETE_SUFFIX, STRAY_SUFFIX, LogDirectory
from twisted_broker.log_config import LogConfig
from twisted_broker.wire.errors import BrokerError, ErrorCode

_AGAIN_SECONDS = 1.0


class ILogs(Protocol):
    """All logs of the broker, and what moves change of them."""

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log; None: there is none."""
        ...

    def attach(self, directory: LogDirectory, log: Log) -> None:
        """Puts it online."""
        ...

    def take_place(self, log: Log) -> None:
        """It is its partition's log from now on."""
        ...

    def set_log_aside(self, log: Log, suffix: str) -> None:
        """Renames its directory; with DELETE_SUFFIX its files go later."""
        ...

    def future_log_created(self, log: Log) -> None:
        """Its move, whose future log a crash damaged, begins anew."""
        ...


class LogMoves:
    """`futures`: the future logs. `replaced`: logs whose place a future log took, while that one
    is not durable under its name.
    """

    def __init__(
        self,
        runtime: Runtime,
        directories: LogDirectories,
        cleaner: LogCleaner,
        lines: EventLines,
        logs: ILogs,
    ) -> None:
        self._runtime, self._directories = runtime, directories
        self._cleaner, self._lines, self._logs = cleaner, lines, logs
        self.futures: dict[TopicPartition, Log] = {}
        self.replaced: list[Log] = []
        self._leaving: list[tuple[TopicPartition, LogDirectory]] = []
        self._lost: dict[TopicPartition, tuple[LogDirectory, bytes | None]] = {}
        """directories of future logs to be begun anew, with the topic ids that those had"""
        self._stopped = False

    def future(self, topic_partition: TopicPartition) -> Log | None:
        """Its future log in another directory, None when it does not move."""
        return self.futures.get(topic_partition)

    def stop(self) -> None:
        """What was replaced stays from here on, for the next start."""
        self._stopped = True

    # -- what a start finds

    def take_future(self, directory: LogDirectory, log: Log) -> None:
        """A future log that was loaded; of two of a partition the second one goes."""
        self._attach(directory, log)
        if log.topic_partition in self.futures:
            self._logs.set_log_aside(log, DELETE_SUFFIX)
        else:
            self.futures[log.topic_partition] = log

    def _attach(self, directory: LogDirectory, log: Log) -> None:
        self._logs.attach(directory, log)
        # Removed at once: after the swap the files would not be found under their present names.
        log.segments.attach(self._directories.remover_at_once(directory))

    def finish_swap(self, directory: LogDirectory, log: Log, other: Log) -> None:
        """A stop came between the two renames of a move: the log that counts stays, the other goes
        when the first is durable, for the process that wrote it may have been killed before it
        synced. Raises BrokerError when it was no move.
        """
        kept = one_that_counts(log, other)
        if kept is None:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{log.topic_partition} is in {other.directory} and in {log.directory}: move one "
                "of them away",
            )
        self._logs.attach(directory, log)
        dropped = other if kept is log else log
        self._lines.add(
            "a move between directories was interrupted",
            partition=log.topic_partition,
            kept=kept.directory,
            deleted=dropped.directory,
        )
        self._logs.take_place(kept)
        self.replaced.append(dropped)
        self._sync_swapped(dropped, kept)

    def all_loaded(self) -> None:
        """Invariant 5."""
        for name, future in list(self.futures.items()):
            current = self._logs.get(name)
            if current is not None and current.topic_id != future.topic_id:
                self.drop(name)
        if self._directories.offline():
            return  # what is offline may hold a future log
        for directory in self._directories.by_path.values():
            for name, topic_id in directory.lost_futures:
                self._lost.setdefault(name, (directory, topic_id))
        self._begin_lost()

    def _begin_lost(self) -> None:
        """Begins lost future logs anew; where descriptors are short, a little later."""
        if self._directories.offline():
            return  # as above
        for name, (directory, topic_id) in list(self._lost.items()):
            current = self._logs.get(name)
            if (
                current is not None
                and self._directories.of(current) is not directory
                and topic_id in (None, current.topic_id)
                and name not in self.futures
            ):
                try:
                    self.create(current, directory)
                except OutOfDescriptors:
                    self._directories.call_later(_AGAIN_SECONDS, self._begin_lost)
                    return
                except LogFailure:
                    return
                self._logs.future_log_created(current)
            self._lost.pop(name, None)

    def forget_lost(self, topic_partition: TopicPartition) -> None:
        """Its lost future log is not begun anew: another move, or none, is requested by now."""
        self._lost.pop(topic_partition, None)

    def settle(self, is_replica: Callable[[Log], bool], is_removed: Callable[[Log], bool]) -> None:
        """Future logs that the metadata does not place here go; one that is perhaps the only copy
        is kept as `-stray`, unless a record removed its replica.
        """
        for name, future in list(self.futures.items()):
            if not is_replica(future):
                goes = self._logs.get(name) is not None or is_removed(future)
                self.drop(name, DELETE_SUFFIX if goes else STRAY_SUFFIX)

    # -- a future log

    def create(self, log: Log, directory: LogDirectory) -> Log:
        """RL 3.8: an empty future log for `log`, to be filled. Raises LogDirFailure,
        OutOfDescriptors.
        """
        name = log.topic_partition
        directory.forget_rows(name)
        place = future_name(name, self._runtime.random.getrandbits(128))
        config, wall_ms = future_config(log.config), self._runtime.wall_ms()
        try:
            future = directory.create(name, log.topic_id, config, wall_ms, place)
        except OSError as error:
            refusal = self._directories.refusal(directory, error)
            # Else the next start takes it for a damaged one, of a move that was not refused.
            self._directories.remove_tree(directory, posixpath.join(directory.path, place))
            raise refusal from error
        self._attach(directory, future)
        self.futures[name] = future
        self._submit_id(directory, future)
        return future

    def _submit_id(self, directory: LogDirectory, future: Log) -> None:
        self._directories.submit(
            directory,
            lambda: directory.write_future_id(future),
            lambda: self._submit_id(directory, future),
        )

    def drop(self, topic_partition: TopicPartition, suffix: str = DELETE_SUFFIX) -> None:
        """The move is given up, or its topic is; the future log goes as a deleted log does."""
        future = self.futures.pop(topic_partition, None)
        if future is not None:
            self._logs.set_log_aside(future, suffix)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Its directory failed: the files stay, for nothing can be done to them."""
        future = self.futures.pop(topic_partition, None)
        if future is not None:
            future.detach()
            future.release_files()

    def adopt(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
        directory_id: bytes | None,
    ) -> Log | None:
        """The future log of a lost log takes its place, if for the controller the replica is in its
        directory: it had caught up when the controller was told (KIP-858). None: there
        is no such log. Raises LogDirFailure.
        """
        future = self.futures.get(topic_partition)
        if (
            future is None
            or topic_id not in (None, future.topic_id)
            or self._directories.of(future).directory_id != directory_id
        ):
            return None
        self._take_place(future)
        future.durability.renamed()
        future.update_config(config)
        future.durability.write_leader_epochs()
        self._lines.add(
            "the future log of a lost log takes its place",
            partition=topic_partition,
            directory=future.directory,
            log_end_offset=future.log_end_offset,
        )
        return future

    def _take_place(self, future: Log) -> None:
        """Under the name of its partition. Raises LogDirFailure; nothing has changed then."""
        name, directory = future.topic_partition, self._directories.of(future)
        try:
            future.rename_directory(posixpath.join(directory.path, str(name)))
        except OSError as error:
            self._directories.fail(directory.path, error)
            raise LogDirFailure(directory.path, error) from error
        del self.futures[name]
        future.segments.attach(self._directories.remover(directory))
        self._logs.take_place(future)

    # -- a swap

    def prepare_swap(self, topic_partition: TopicPartition, then: Callable[[], None]) -> None:
        """Makes the future log durable, and marks it; `then` is called unless that fails."""
        future, current = self._both(topic_partition)
        directory = self._directories.of(future)

        def submit() -> None:
            if self.futures.get(topic_partition) is not future:
                return
            end = future.log_end_offset
            sync = future.durability.sync_job(end + 1)

            def job() -> None:
                sync()
                mark_promoted(self._runtime.files, future.directory, current.directory, end)

            self._directories.submit(directory, job, submit, then)

        submit()

    def _both(self, topic_partition: TopicPartition) -> tuple[Log, Log]:
        """The future log, and the log."""
        future, current = self.futures[topic_partition], self._logs.get(topic_partition)
        assert current is not None
        return future, current

    def is_replacing(self, topic_partition: TopicPartition) -> bool:
        """Whether the log that its last swap replaced is still there, or would be again after a
        loss of power.
        """
        return any(each.topic_partition == topic_partition for each in self.replaced) or any(
            name == topic_partition and directory.failed is None
            for name, directory in self._leaving
        )

    def swap(self, topic_partition: TopicPartition) -> Log:
        """RL 3.8: the future log, which has caught up and is not busy, takes the log's place; that
        one goes as soon as the future log is durable under its new name. Raises LogDirFailure,
        OutOfDescriptors; nothing has changed then.
        """
        future, current = self._both(topic_partition)
        source = self._directories.of(current)
        awaited = current.durability.awaiting_sync
        if awaited is not None:  # looked up first: it may raise
            awaited = future.offset_metadata(max(awaited.offset, future.log_start_offset))
        self._take_place(future)
        self.replaced.append(current)
        durability = future.durability
        durability.renamed()
        future.update_config(current.config)
        future.set_high_watermark(current.high_watermark)
        # DeleteRecords may have come since the future log's last read.
        future.increment_log_start_offset(current.log_start_offset)
        self._cleaner.moved(future, source)
        # Before any sync of its own: the name becomes durable with this one.
        self._sync_swapped(current, future)
        durability.write_leader_epochs()
        if awaited is not None:
            durability.await_sync_from(awaited)
        return future

    def _sync_swapped(self, current: Log, future: Log) -> None:
        self._directories.submit(
            self._directories.of(future),
            future.durability.sync_job(future.log_end_offset + 1),
            lambda: self._sync_swapped(current, future),
            lambda: self._remove_replaced(current, future),
        )

    # -- the log that was replaced

    def _remove_replaced(self, current: Log, future: Log) -> None:
        # At a stop, or after a failure, the next start does it.
        if self._stopped or current not in self.replaced:
            return
        source = self._directories.of(current)
        self.replaced.remove(current)
        self._leaving.append((current.topic_partition, source))
        self._logs.set_log_aside(current, DELETE_SUFFIX)
        self._sync_removal(source, future)

    def _sync_removal(self, source: LogDirectory, future: Log) -> None:
        self._directories.submit(
            source,
            lambda: self._runtime.files.sync_directory(source.path),
            lambda: self._sync_removal(source, future),
            lambda: self._removed(source, future),
        )

    def _removed(self, source: LogDirectory, future: Log) -> None:
        name = future.topic_partition
        self._leaving.remove((name, source))
        # The mark stays while another one that was replaced is there, or may be after a loss of
        # power: of two logs without a mark nobody could say which one counts.
        if all(name != each for each, _ in self._leaving) and not self.is_replacing(name):
            self._directories.submit(
                self._directories.of(future),
                lambda: unmark_promoted(self._runtime.files, future.directory),
            )

    def set_replaced_aside(self, topic_partition: TopicPartition, suffix: str) -> None:
        """Its partition goes, and with it the logs that are still to be removed."""
        replaced = [each for each in self.replaced if each.topic_partition == topic_partition]
        for log in replaced:
            self.replaced.remove(log)
            self._logs.set_log_aside(log, suffix)
