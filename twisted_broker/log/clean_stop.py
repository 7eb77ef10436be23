"""The clean stop of one log directory.

Owns `CleanStop`: finishes the logs of a directory, writes its last checkpoints and the clean
shutdown file, and unlocks it.

1. Logs are finished and synced, then checkpoints are written, then the clean shutdown file: it says
   that everything before it is on the disk.
2. A directory that failed, was never loaded, or has a log with a hole that an unclean stop left and
   nobody has decided about, gets no such file. Nothing at all is written to the first two: another
   process may use them.
3. The file holds the broker epoch of the registration; a process that never registered keeps the
   epoch that it found.
4. One turn finishes a few logs, with a bounded number of producers: the rest of the process goes
   on.
5. A stop that fails logs one line, and ends as well: files are closed, the directory is unlocked,
   and what its logs had begun writes nothing after that.

Ring 1. Source: Kafka's `LogManager.shutdown`; RL 1.12, 3.6, 3.8. Not here: what is stopped before,
and the workers, which end when all directories are closed (`log_manager.py`); one log's last jobs
(`Log.finish`).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.interfaces import IDiskWorker, TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.log import Log
from twisted_broker.log.log_directory import LogDirectory, log_starts

_logger = Logger()
# 1 to 3 ms of a stop, in producers whose snapshot is written; a log without any counts as so many.
FINISHED_PER_STEP, LOG_IN_PRODUCERS = 2000, 100


class CleanStop:
    """`logs`: all of the directory that have not failed. `broker_epoch` None: this process never
    registered.
    """

    def __init__(self, directory: LogDirectory, logs: list[Log], broker_epoch: int | None) -> None:
        self._directory, self._logs, self._broker_epoch = directory, logs, broker_epoch

    async def run(self) -> None:
        """Returns when the directory is closed, has its clean shutdown file, and is unlocked."""
        directory, logs = self._directory, self._logs
        try:
            await self._close_logs()
        except Exception as error:
            _logger.error(
                "log directory {path} did not close cleanly: {error!r}",
                path=directory.path,
                error=error,
            )
            # Some logs were not finished: what they still wait for must not be done after the end.
            for log in logs:
                log.directory_failed(OSError(f"the stop failed: {error!r}"))
            await _done_by(directory.disk, _nothing)
        for log in logs:
            log.release_files()
        directory.release()

    async def _close_logs(self) -> None:
        """Raises OSError."""
        directory = self._directory
        if directory.failed is None and directory.loaded:
            job = await self._finish_logs()
            # After this no sync is left. If one failed, so has the directory: a second sync of the
            # same files proves nothing (`durability.py` 5).
            await _done_by(directory.disk, _nothing)
            if directory.failed is None:
                await _done_by(directory.disk, job)
        else:
            await _done_by(directory.disk, _nothing)  # after the last jobs of the metadata log
        if directory.failed is not None:
            # Nothing was written to what is perhaps another process's.
            raise directory.failed

    async def _finish_logs(self) -> Callable[[], None]:
        """Gives the job that is to be done last. Raises OSError."""
        directory, logs = self._directory, self._logs
        # A hole of an unclean stop about which nobody has decided (`gaps.py`): to the next start it
        # must not look like one in files that were whole.
        is_open = any(log.gap is not None and (log.gap.torn or log.gap.torn_tail) for log in logs)
        points: dict[TopicPartition, int] = {}
        jobs: list[Callable[[], None]] = []
        seen = 0
        for log in logs:
            if log.begin_last_snapshot():
                await _snapshot_written(directory.disk, log)
                if log.begin_last_snapshot():  # that was an older one
                    await _snapshot_written(directory.disk, log)
            # Written after `finish`'s jobs: by then all of each log is synced.
            points[log.topic_partition] = log.durability.point_to_checkpoint(
                log.durability.recovery_point if log.gap else log.log_end_offset
            )
            jobs.append(log.finish())
            seen += LOG_IN_PRODUCERS + len(log.producers.producers)
            if seen >= FINISHED_PER_STEP:
                seen = 0
                await _done_by(directory.disk, _nothing)
        starts = log_starts(logs)

        def job() -> None:
            directory.disk.side_by_side(jobs)
            checkpoints.write_offsets(
                directory.files, directory.path, checkpoints.RECOVERY_POINT, points
            )
            checkpoints.write_offsets(
                directory.files, directory.path, checkpoints.LOG_START_OFFSET, starts
            )
            if is_open:
                return
            # Last: the file says that everything before it is on the disk.
            directory.write_clean_shutdown(
                directory.previous_broker_epoch
                if self._broker_epoch is None
                else self._broker_epoch
            )

        return job


def _nothing() -> None:
    """A job to wait for: when it is done, so are the jobs submitted before it."""


async def _snapshot_written(disk: IDiskWorker, log: Log) -> None:
    """Waits until the snapshot is written. Each slice is a job that may submit the next one."""
    while log.producers.writer is not None:
        await _done_by(disk, _nothing)


def _done_by(disk: IDiskWorker, job: Callable[[], None]) -> Deferred[None]:
    """Fires when `disk` has done the job; errbacks with what it raised."""
    ended: Deferred[None] = Deferred()

    def done(_: None, error: BaseException | None) -> None:
        if error is None:
            ended.callback(None)
        else:
            ended.errback(error)

    disk.submit(job, done)
    return ended
