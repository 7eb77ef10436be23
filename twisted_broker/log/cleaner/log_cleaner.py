"""Cleaning all compacted logs of this broker, one round after another.

Owns `LogCleaner`: when a round begins, what becomes of its result, the checkpoint of what is clean,
the logs that cannot be cleaned; `PiecewiseWorker`, which runs rounds where no other process can.

1. A round is planned in turns and runs away from the reactor (`Runtime.cleaner`), at most
   `log.cleaner.threads` at a time; a log has one.
2. Its result is taken, a group of segments in each turn, only where the log is as it was planned:
   online, compacted, not truncated since, the same segments. Else its files are removed.
3. Retention leaves a log alone while it is cleaned, and no round begins, or is taken, while a log
   moves to another directory. Where files of a round may be left, no other round writes, not even
   for a new topic of that name.
4. The checkpoint moves when the segments are durable: a round that is lost in between is done
   again. What the checkpoint calls clean must not come back uncleaned: a deleted key would
   reappear, for its tombstone is gone.
5. Before the first segment is replaced, the recovery point on disk is above the round: after a kill
   the offsets that are missing would look like a torn tail (`log/gaps.py` 2).
6. A log with damage, or with what must not be rewritten, is left alone until a restart or until a
   setting of the cleaner or of the topic changes, and one line says so; not if the log was
   truncated meanwhile, which a round cannot tell from damage. A full disk, or a lack of descriptors
   or of memory, delays the round.
7. A setting of the cleaner that changes ends the rounds that run, which were begun with the old
   one, and the pause. Nor does a round go on for long once its log is deleted, failed, or compacted
   no more.

Ring 1. Source: Kafka's `LogCleaner`, `LogCleanerManager`. Not here: which log is next
(`selection.py`), the round (`cleaning.py`).
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import (
    ICleanerWorker,
    IDelayedCall,
    IDiskWorker,
    Runtime,
    TopicPartition,
)
from twisted_broker.log import checkpoints
from twisted_broker.log.cleaner.cleaner_view import CleanerView
from twisted_broker.log.cleaner.cleaning import (
    CannotBeCleaned,
    CleanedGroup,
    CleaningPlan,
    CleaningResult,
    clean,
)
from twisted_broker.log.cleaner.offset_map import SLOT_BYTES
from twisted_broker.log.cleaner.selection import LogToClean, dirtiest, log_to_clean, plan_for
from twisted_broker.log.crash_cleanup import base_offset_of
from twisted_broker.log.errors import LogFailure, is_of_a_name, is_out_of_descriptors
from twisted_broker.log.log import Log
from twisted_broker.log.log_directories import LogDirectories
from twisted_broker.log.log_directory import LogDirectory
from twisted_broker.log.segment import CLEANED
from twisted_broker.log_config import LogConfig
from twisted_broker.settings import INT_MAX, Value
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError

_logger = Logger()
LOGS_PER_STEP = 100
SYNCS_WAITED_FOR = 3
"""A sync may be running already that ends below the round."""
_PASSES = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_SETTINGS = (
    "log.cleaner.threads",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.max.bytes.per.second",
)
_AGAIN_SECONDS = 1.0


class LogCleaner:
    """`logs` gives all logs of the broker; `checkpoint_recovery_points` submits that job to a
    directory's worker. `uncleanable`: partition -> why. `most_dirty`: the dirty share of the
    dirtiest log, 0 to 1, at the last look for one, at `looked_ms` (monotonic).
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        directories: LogDirectories,
        logs: Callable[[], Iterable[Log]],
        turns: Turns,
        lines: EventLines,
        checkpoint_recovery_points: Callable[[LogDirectory], None],
        is_moving: Callable[[Log], bool] = lambda log: False,
    ) -> None:
        self._is_moving = is_moving
        self._runtime, self._config, self._directories = runtime, config, directories
        self._logs, self._turns, self._lines = logs, turns, lines
        self._checkpoint_recovery_points = checkpoint_recovery_points
        self.uncleanable: dict[TopicPartition, str] = {}
        self._refused: dict[TopicPartition, LogConfig] = {}
        """with which settings each of them could not be cleaned"""
        self.running: dict[TopicPartition, Log] = {}
        self._busy: dict[TopicPartition, ICleanerWorker] = {}
        self._settings = self._read_settings()
        self._pause: IDelayedCall | None = None
        self._last: dict[TopicPartition, tuple[int, int, int]] = {}
        self.most_dirty, self.looked_ms = 0.0, runtime.now_ms()
        self._idle: list[ICleanerWorker] = []
        self._workers: list[ICleanerWorker] = []
        self._is_choosing = self._is_stopped = False

    def start(self) -> None:
        if self._config.boolean("log.cleaner.enable"):
            self._look_later()

    def stop(self) -> None:
        """Rounds that run are ended; nothing of them was taken."""
        self._is_stopped = True
        self._end_pause()
        for worker in self._workers:
            worker.stop()

    def is_cleaning(self, log: Log) -> bool:
        return self.running.get(log.topic_partition) is log

    def forget(self, log: Log) -> None:
        """The log is deleted, or set aside."""
        name = log.topic_partition
        self.uncleanable.pop(name, None)
        self._refused.pop(name, None)
        self._last.pop(name, None)
        if self.is_cleaning(log):
            self._end_round(name)

    def settings_changed(self) -> None:
        """Of the broker: one of the cleaner's may be among them."""
        before, self._settings = self._settings, self._read_settings()
        if self._pause is None or before == self._settings:
            return
        for name in [*self._busy]:
            self._end_round(name)
        self.uncleanable.clear()
        self._refused.clear()
        self._end_pause()
        self._look_again()

    def _read_settings(self) -> tuple[Value, ...]:
        return tuple(self._config[name] for name in _SETTINGS)

    def _end_round(self, name: TopicPartition) -> None:
        worker = self._busy.pop(name, None)
        if worker is not None:
            worker.end()

    def view(self, log: Log) -> CleanerView | None:
        """None where the log is not compacted, or cannot be looked at."""
        if not log.config.compact or log.failed is not None:
            return None
        name = log.topic_partition
        checkpoint = self._directories.of(log).cleaner_offsets.get(name)
        try:
            found = log_to_clean(log, checkpoint, self._runtime.wall_ms())
        except (OSError, BrokerError):
            return None  # the next look for a log to clean says so
        return CleanerView(
            self.uncleanable.get(name, ""),
            self._config.boolean("log.cleaner.enable"),
            self.is_cleaning(log),
            found.is_due,
            log.log_start_offset,
            found.first_dirty,
            found.clean_bytes,
            found.cleanable_bytes,
            found.ratio,
            log.config.min_cleanable_dirty_ratio,
            self._last.get(name),
        )

    def truncated(self, log: Log) -> None:
        """What is appended behind a truncation was not cleaned, whatever was there before."""
        directory = self._directories.of(log)
        if directory.cleaner_offsets.get(log.topic_partition, 0) > log.log_end_offset:
            self._set_offset(log, log.log_end_offset)

    def moved(self, log: Log, source: LogDirectory) -> None:
        """It took the place of a log in `source`, and is as clean as that one was."""
        offset = source.cleaner_offsets.get(log.topic_partition)
        if offset is not None:
            self._set_offset(log, offset)

    # -- choosing

    def _look_later(self) -> None:
        seconds = self._config.integer("log.cleaner.backoff.ms") / 1000
        self._pause = self._runtime.clock.callLater(max(seconds, 0.001), self._look_again)

    def _end_pause(self) -> None:
        if self._pause is not None and self._pause.active():
            self._pause.cancel()
        self._pause = None

    def _look_again(self) -> None:
        self._look_later()
        for name, log in [*self.running.items()]:
            if not log.config.compact or log.failed is not None:
                self._end_round(name)
        self.look()

    def look(self) -> None:
        """Begins a round of the dirtiest log, if one is due and a worker is free."""
        most = self._config.integer("log.cleaner.threads")
        if not (self._is_choosing or self._is_stopped) and len(self.running) < most:
            self._is_choosing = True
            self._turns.start(self._choose())

    def _choose(self) -> Iterator[None]:
        try:
            wall_ms, candidates = self._runtime.wall_ms(), []
            self.looked_ms = self._runtime.now_ms()
            for number, log in enumerate(self._logs(), 1):
                if self._may_be_cleaned(log):
                    found = self._log_to_clean(log, wall_ms)
                    if found is not None:
                        candidates.append(found)
                if number % LOGS_PER_STEP == 0:
                    yield
            self.most_dirty = max((each.ratio for each in candidates), default=0.0)
            chosen = dirtiest(candidates)
        finally:
            self._is_choosing = False
        if chosen is None or not self._may_be_cleaned(chosen.log):
            return
        # Once more: it may have been truncated since the walk looked at it.
        found = self._log_to_clean(chosen.log, wall_ms)
        if found is not None and found.is_due:
            yield from self._begin(found, wall_ms)

    def _may_be_cleaned(self, log: Log) -> bool:
        return (
            log.config.compact
            and log.failed is None
            and log.gap is None
            and not log.producers.is_rebuilding
            and log.topic_partition not in self.running
            and self._refused.get(log.topic_partition) != log.config
            and not self._is_moving(log)
        )

    def _log_to_clean(self, log: Log, wall_ms: int) -> LogToClean | None:
        offset = self._directories.of(log).cleaner_offsets.get(log.topic_partition)
        try:
            return log_to_clean(log, offset, wall_ms)
        except OSError as error:
            log.fail(error)
        except BrokerError as error:
            self._leave_alone(log, f"{log.directory}: {error}")
        return None

    def _begin(self, chosen: LogToClean, wall_ms: int) -> Iterator[None]:
        if self._is_stopped:
            return
        log, config = chosen.log, self._config
        share = config.integer("log.cleaner.dedupe.buffer.size") // max(
            1, config.integer("log.cleaner.threads")
        )
        truncations, began_ms = log.truncations, self._runtime.now_ms()
        self.uncleanable.pop(log.topic_partition, None)  # with other settings it is tried again
        self._refused.pop(log.topic_partition, None)
        # Set before the planning, which takes several turns: no other round begins, and retention
        # waits.
        self.running[log.topic_partition] = log
        settings = self._settings
        plan: CleaningPlan | None = None
        try:
            plan = yield from plan_for(
                chosen,
                wall_ms,
                max(2, min(share, INT_MAX) // SLOT_BYTES),
                config.number("log.cleaner.io.buffer.load.factor"),
            )
        except OSError as error:
            log.fail(error)
        finally:
            if plan is None or settings != self._settings:
                del self.running[log.topic_partition]
        if settings != self._settings:
            self.look()
        elif plan is not None and not self._is_stopped:
            self._submit(log, plan, truncations, began_ms)

    def _submit(self, log: Log, plan: CleaningPlan, truncations: int, began_ms: int) -> None:
        worker = self._idle.pop() if self._idle else self._new_worker()
        name = log.topic_partition
        self._busy[name] = worker

        def done(result: CleaningResult | None, error: BaseException | None) -> None:
            was_ended = self._busy.pop(name, None) is None
            self._idle.append(worker)
            if self._is_stopped:
                return
            if result is not None and log.failed is None:
                self._turns.start(self._take(log, plan, result, truncations, began_ms))
                return
            # What was truncated, or moved, while the round read it looks like damage.
            is_same = log.truncations == truncations and log.directory == plan.directory
            is_as_read = is_same or (isinstance(error, OSError) and not is_of_a_name(error))
            if error is not None and log.failed is None and is_as_read and not was_ended:
                self._failed(log, error)
            self._discard(log, plan, self.look if was_ended else None)

        # Kafka's setting has no bounds.
        bytes_per_second = max(1.0, self._config.number("log.cleaner.io.max.bytes.per.second"))
        worker.submit(plan, bytes_per_second, done)

    def _new_worker(self) -> ICleanerWorker:
        make, runtime = self._runtime.cleaner, self._runtime
        worker: ICleanerWorker = (
            PiecewiseWorker(runtime, runtime.disk("cleaner"), self._turns)
            if make is None
            else make()
        )
        self._workers.append(worker)
        return worker

    # -- what came of a round

    def _take(
        self,
        log: Log,
        plan: CleaningPlan,
        result: CleaningResult,
        truncations: int,
        began_ms: int,
    ) -> Iterator[Deferred[None] | None]:
        directory = self._directories.of(log)
        for _ in range(SYNCS_WAITED_FOR):
            if log.durability.recovery_point >= plan.upper_bound:
                break
            log.durability.flush(plan.upper_bound)
            yield self._jobs_done(directory)
        self._checkpoint_recovery_points(directory)
        yield self._jobs_done(directory)
        if not log.durability.is_checkpointed(plan.upper_bound):
            # Truncated, or no descriptor was free: another round comes.
            self._discard(log, plan)
            return
        for group in result.groups:
            if self._is_stopped or not self._is_as_planned(log, plan, group, truncations):
                self._discard(log, plan)
                return
            try:
                log.replace_segments(group.bases, self._runtime.wall_ms())
            except LogFailure:
                self._discard(log, plan)
                return
            yield None
        del self.running[log.topic_partition]
        if log.failed is not None or log.truncations != truncations:
            # What was appended after a truncation in this last turn was not cleaned: the offset
            # stays as `truncated` left it.
            return
        self._set_offset(log, result.first_dirty, synced_first=log.directory)
        self._last[log.topic_partition] = (
            self._runtime.wall_ms(),
            result.bytes_read,
            result.bytes_kept,
        )
        if result.groups:
            self._lines.add(
                "log cleaned",
                partition=log.topic_partition,
                bytes=result.bytes_read,
                bytes_left=result.bytes_kept,
                records=result.records_read,
                records_left=result.records_kept,
                clean_up_to=result.first_dirty,
                ms=self._runtime.now_ms() - began_ms,
            )
        # There may be another; a log that is dirtier than the offset map takes is not done yet.
        self.look()

    def _jobs_done(self, directory: LogDirectory) -> Deferred[None]:
        """Fires when the directory's worker has done what was submitted so far."""
        done: Deferred[None] = Deferred()
        directory.disk.submit(lambda: None, lambda _, __: done.callback(None))
        return done

    def _is_as_planned(
        self, log: Log, plan: CleaningPlan, group: CleanedGroup, truncations: int
    ) -> bool:
        if log.failed is not None or log.truncations != truncations or log.producers.is_rebuilding:
            return False
        if self._is_moving(log) or not log.config.compact:
            return False
        first = log.segments.row_of(group.bases[0])
        sizes = {part.base_offset: part.size for part in plan.segments}
        found = [log.segments.at(first + number) for number in range(len(group.bases))]
        return [
            (each.base_offset, each.size)
            for each in found
            if each is not None and each is not log.segments.active
        ] == [(base, sizes[base]) for base in group.bases]

    def _discard(
        self, log: Log, plan: CleaningPlan, then: Callable[[], None] | None = None
    ) -> None:
        """Removes the files of the round; until then no other round begins under this name."""
        if self._is_stopped:
            return  # the next start removes them
        files, path = self._runtime.files, plan.directory
        directory = self._directories.at(posixpath.dirname(path))

        def submit() -> None:
            directory.disk.submit(lambda: _sweep(files, path), done)

        def done(_: object, error: BaseException | None) -> None:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                self._directories.fail(directory.path, error)
                if is_out_of_descriptors(error):
                    # Until they are gone no other round may begin: with them there, a recovery
                    # would drop what that one has put in place halfway (`crash_cleanup.py` 2).
                    self._directories.call_later(_AGAIN_SECONDS, submit)
                    return
            del self.running[log.topic_partition]
            if then is not None:
                then()

        submit()

    def _failed(self, log: Log, error: BaseException) -> None:
        if isinstance(error, CannotBeCleaned):
            self._leave_alone(log, str(error))
        elif isinstance(error, (InterruptedError, MemoryError)) or (
            isinstance(error, OSError) and (is_out_of_descriptors(error) or error.errno in _PASSES)
        ):
            reason = str(error) or "no memory for it: lower log.cleaner.dedupe.buffer.size"
            self._lines.add("cleaning delayed", partition=log.topic_partition, reason=reason)
        elif isinstance(error, OSError):
            log.fail(error)
        else:
            self._leave_alone(log, f"cleaning {log.directory} failed: {error!r}")

    def _leave_alone(self, log: Log, reason: str) -> None:
        self.uncleanable[log.topic_partition] = reason
        self._refused[log.topic_partition] = log.config
        _logger.error("{reason}", reason=reason)

    # -- the checkpoint

    def _set_offset(self, log: Log, offset: int, synced_first: str = "") -> None:
        directory = self._directories.of(log)
        directory.cleaner_offsets[log.topic_partition] = offset

        files = self._runtime.files

        def job() -> None:
            if synced_first:
                files.sync_directory(synced_first)
            offsets = dict(directory.cleaner_offsets)
            checkpoints.write_offsets(files, directory.path, checkpoints.CLEANER_OFFSET, offsets)

        self._directories.submit(directory, job)


def _sweep(files: Any, directory: str) -> None:
    for name in files.listdir(directory):
        if name.endswith(CLEANED) and base_offset_of(name) >= 0:
            files.remove(posixpath.join(directory, name))


class PiecewiseWorker:
    """Runs rounds piece by piece on a disk worker, for files that no other process sees: those in
    memory. No limit of bytes per second is kept.
    """

    def __init__(self, runtime: Runtime, disk: IDiskWorker, turns: Turns) -> None:
        self._files, self._disk, self._turns = runtime.files, disk, turns
        self._is_ended = False

    def submit(
        self,
        plan: CleaningPlan,
        bytes_per_second: float,
        done: Callable[[CleaningResult | None, BaseException | None], None],
    ) -> None:
        self._is_ended = False
        self._turns.start(self._run(plan, done))

    def _run(
        self,
        plan: CleaningPlan,
        done: Callable[[CleaningResult | None, BaseException | None], None],
    ) -> Iterator[Deferred[None]]:
        pieces = clean(self._files, plan)
        ended: list[tuple[CleaningResult | None, BaseException | None]] = []

        def piece_done(found: Any, error: BaseException | None) -> None:
            if error is not None:
                ended.append((None, error))
            elif isinstance(found, CleaningResult):
                ended.append((found, None))
            piece.callback(None)

        while not ended:
            if self._is_ended:
                ended.append((None, InterruptedError("the round was ended")))
                break
            piece: Deferred[None] = Deferred()
            self._disk.submit(lambda: next(pieces), piece_done)
            yield piece
        done(*ended[0])

    def end(self) -> None:
        self._is_ended = True

    def stop(self) -> None:
        self._disk.stop()
