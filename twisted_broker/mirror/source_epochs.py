"""The side file: which leader epoch of the source began at which offset of a mirrored partition.

Owns `SourceEpochs`, one per partition, in Kafka's format of a leader-epoch checkpoint.

1. An epoch is in the file before a record of it is in the target: an entry without records is
   dropped at the next start, records without their entry would never be missed.
2. It serves to notice what the source lost (KIP-320). Lost or damaged itself it is begun anew:
   then the last mirrored batch is compared with the source's, which is done at each start anyway.
3. A directory that cannot be written ends the mirror with one line: see 1.
4. Bounded by the source's own list of epochs: what lies below the target's log start is dropped.

Source: Kafka's `LeaderEpochCheckpointFile`; RL 6.3. Not here: asking the source (`consumer`).
"""

from __future__ import annotations

import posixpath

from twisted_broker.interfaces import Buffer, IFileSystem, TopicPartition
from twisted_broker.log.checkpoints import LEADER_EPOCH, epochs_text, read_epochs, write_aside
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.leader_epochs import LeaderEpochFileCache
from twisted_broker.mirror.errors import MirrorError
from twisted_broker.wire.records import iterate_batches


class SourceEpochs:
    """Of one partition, below `folder`. Raises `MirrorError`."""

    def __init__(self, files: IFileSystem, folder: str, name: TopicPartition) -> None:
        self._files = files
        self._folder = folder
        directory = posixpath.join(folder, str(name))
        self._path = posixpath.join(directory, LEADER_EPOCH)
        try:
            files.make_directories(directory)
            entries = read_epochs(files, self._path)
        except CheckpointError:
            entries = []
        except OSError as error:
            raise self._refused(error) from error
        self._epochs = LeaderEpochFileCache(entries, self._write)

    def begin(self, log_start_offset: int, log_end_offset: int) -> None:
        """The target has the records from one to the other."""
        self._epochs.truncate_from_end(log_end_offset)
        self._epochs.truncate_from_start(log_start_offset)

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`; -1: not known."""
        return self._epochs.epoch_for_offset(offset)

    def agreed_end(self, epoch: int, end_offset: int, log_end_offset: int) -> int:
        """Up to where the target has what the source has, whose `epoch` ends at `end_offset`
        (Kafka's rule for a follower; it may take several rounds).
        """
        _, own_end = self._epochs.end_offset_for(epoch, log_end_offset)
        return end_offset if own_end < 0 else min(end_offset, own_end)

    def note(self, records: Buffer, last_epoch: int) -> None:
        """Before these batches of the source are sent to the target; `last_epoch` is the last's."""
        latest = self._epochs.latest_epoch
        if last_epoch <= latest:
            return  # they never fall
        for batch in iterate_batches(records):
            if batch.partition_leader_epoch > latest:
                self._epochs.assign(batch.partition_leader_epoch, batch.base_offset)
                latest = batch.partition_leader_epoch

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), both growing."""
        return self._epochs.entries()

    def _write(self) -> None:
        # Not synced: a loss of power leaves the old file, and rule 2.
        content = epochs_text(self._epochs.epochs, self._epochs.start_offsets)
        try:
            write_aside(self._files, self._path, content, sync=False)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> MirrorError:
        return MirrorError(
            f"--state {self._folder}: {self._path} cannot be written: {error.strerror or error}; "
            "make room there, or name another directory, and start the mirror again"
        )
