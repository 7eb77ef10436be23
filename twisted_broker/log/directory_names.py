"""The names of logs' directories, made durable: topic ids of new logs, and the names that deleted
logs were given.

Owns `DirectoryNames`: when they are written and synced, on the directory's worker.

1. One job writes the ids of all logs that are made in one turn.
2. Until a name is synced a loss of power may bring back the old one, or take the topic id.

Source: RL 3.8; Kafka writes `partition.metadata` with the first append. Not here: the files
(`log_directory.py`), which log is made or deleted (`log_manager.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.log import Log
from twisted_broker.log.log_directories import LogDirectories
from twisted_broker.log.log_directory import LogDirectory

NAME_SYNC_SECONDS = 1.0
"""How long after the making of a log its topic id is synced. The syncs of a thousand logs would
compete with their making, and with the clients that ask for them at once; the system writes records
back on its own after 5 s at the earliest, and a sync of the log comes with its topic id anyway.
"""


class DirectoryNames:
    """Of all log directories."""

    def __init__(self, files: IFileSystem, directories: LogDirectories) -> None:
        self._files, self._directories = files, directories
        self._stopped = False

    def created(self, directory: LogDirectory, log: Log) -> None:
        """A new log: its topic id is written."""
        directory.without_id.append(log)
        # One job writes the ids of all that are made in this turn.
        if len(directory.without_id) == 1:
            self._submit_topic_ids(directory)
        self._sync_names_soon(directory)

    def _sync_names_soon(self, directory: LogDirectory, seconds: float = NAME_SYNC_SECONDS) -> None:
        if not directory.is_name_sync_due:
            directory.is_name_sync_due = True
            self._directories.call_later(seconds, lambda: self._submit_name_sync(directory))

    def _submit_name_sync(self, directory: LogDirectory) -> None:
        directory.is_name_sync_due = False
        self._directories.submit(
            directory,
            directory.sync_names,
            lambda: self._submit_name_sync(directory),
            lambda: self._sync_more_names(directory),
        )

    def _sync_more_names(self, directory: LogDirectory) -> None:
        if directory.unsynced_names:
            self._sync_names_soon(directory, 0)

    def _submit_topic_ids(self, directory: LogDirectory) -> None:
        self._directories.submit(
            directory,
            directory.write_topic_ids,
            lambda: self._write_topic_ids_again(directory),
        )

    def _write_topic_ids_again(self, directory: LogDirectory) -> None:
        self._submit_topic_ids(directory)
        self._sync_names_soon(directory)  # the sync that was due may have been before this

    def give_id(self, log: Log, topic_id: bytes) -> None:
        """Gives a topic id to a log that had none (made by an old broker). It is written on the
        worker: all logs of a broker may get theirs in one metadata update.
        """
        directory = self._directories.of(log)
        log.topic_id = topic_id
        log.durability.name_is_durable = False
        directory.given_ids.append(log)
        if len(directory.given_ids) == 1:
            self._submit_given_ids(directory)
        self._sync_names_soon(directory)

    def _submit_given_ids(self, directory: LogDirectory) -> None:
        def again() -> None:
            self._submit_given_ids(directory)
            self._sync_names_soon(directory)

        self._directories.submit(directory, directory.write_given_ids, again)

    def sync_renames(self, logs: Iterable[Log]) -> Deferred[None]:
        """Fires when the names that these logs were given as they were deleted are durable, or
        their directory is offline: until then a loss of power may bring back the old ones.
        """
        directories = {each.path: each for each in map(self._directories.of, logs)}
        return gather([self._sync_renames(each) for each in directories.values()])

    def _sync_renames(self, directory: LogDirectory) -> Deferred[None]:
        synced: Deferred[None] = Deferred()

        def sync() -> None:
            self._files.sync_directory(directory.path)

        def submit() -> None:
            directory.disk.submit(sync, done)

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                self._directories.fail(
                    directory.path,
                    error if isinstance(error, OSError) else OSError(f"a sync failed: {error!r}"),
                )
                if directory.failed is None and not self._stopped:  # descriptors are short
                    self._directories.call_later(NAME_SYNC_SECONDS, submit)
                    return
            synced.callback(None)

        if directory.failed is None:
            submit()
        else:
            synced.callback(None)
        return synced

    def stop(self) -> None:
        """Nothing is tried again."""
        self._stopped = True


async def _all(waiting: list[Deferred[None]]) -> None:
    errors: list[Exception] = []
    for deferred in waiting:
        try:
            await deferred
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def gather(waiting: list[Deferred[None]]) -> Deferred[None]:
    """Fires when all have; errbacks then with the first error in their order."""
    return Deferred.fromCoroutine(_all(waiting))
