"""Whether `__cluster_metadata-0` still holds all that it is known to have held.

Owns the durable end (the offset below which all was synced), the walk over a directory's batches,
and what is damage and what a torn tail.

1. Whatever is missing or unreadable below the durable end is damage. Above it a controller
   acknowledged nothing, and a loss of power may have left anything there, good batches behind a
   hole as well: that is truncated.
2. In a broker's log, and in a directory without a durable end (an older version's, Apache
   Kafka's), good batches behind a bad one are damage above the durable end too: what they hold was
   committed.
3. Base offset and leader epoch are outside a batch's CRC. A batch counts only where the one before
   it ends, and in that one's epoch; a LeaderChange, and nothing else, begins a higher one, which
   quorum-state (a broker's log: the leader-epoch checkpoint) must know.
4. Checking changes nothing on the disk. One flipped bit in the durable end never raises it.
5. Of several voters the durable end is that of what is committed, and never falls. What one synced,
   and so acknowledged, beyond that is noted with the quorum's epoch, once the log has a batch
   that was written in it: from then on nothing is truncated in that epoch. quorum-state's epoch is
   durable before a truncation; where it is another one, also as Apache Kafka ran there since, the
   note counts no more.

Source: Kafka's rule that nothing below the high watermark is truncated (`KafkaRaftLog`); the
durable end is ours, in the form of a checkpoint. Not here: what is done about damage
(`metadata_log.py`, `observer_log.py`, `metadata_recovery.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from twisted_broker.cluster.quorum_state import read_quorum_state
from twisted_broker.cluster.snapshots import (
    BOOTSTRAP,
    SnapshotId,
    list_snapshots,
    load_snapshot_in_steps,
    quorum_of_snapshot,
)
from twisted_broker.image.metadata_image import EMPTY, MetadataImage
from twisted_broker.interfaces import IFile, IFileSystem
from twisted_broker.log.batch_scan import BatchPlace, valid_batches
from twisted_broker.log.checkpoints import (
    HIGH_WATERMARK,
    LEADER_EPOCH,
    metadata_offset,
    metadata_rows,
    read_epochs,
    read_offsets,
    write_aside,
)
from twisted_broker.log.crash_cleanup import base_offset_of
from twisted_broker.log.errors import CheckpointError
from twisted_broker.raft.control_records import control_records
from twisted_broker.raft.voter_history import VoterHistory
from twisted_broker.raft.voter_set import VoterSet
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.wire.batch_header import LENGTH_AT
from twisted_broker.wire.control_batch import LEADER_CHANGE
from twisted_broker.wire.errors import BrokerError, WireError
from twisted_broker.wire.records import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_AT,
    BatchView,
    CorruptRecordError,
    control_record_type,
)
from twisted_broker.wire.schema import run_whole

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_LOG = ".log"
_CONTROL_RECORD_LIMIT = 1 << 16
SYNCED_END = "replog-synced-end"
BATCHES_PER_STEP = 200  # some two milliseconds of one turn
_SEARCH_BYTES = 1 << 22
_BEGINNING = SnapshotId(0, -1)


def recover_hint(source: str = "A_BROKERS_LOG_DIR", target: str = "THE_CONTROLLERS_LOG_DIR") -> str:
    """The command that rebuilds a controller's metadata."""
    return f"`replog metadata recover --from {source} --to {target}`"


class MetadataDamage(Exception):
    """Metadata that was durable is not there any more, or cannot be read: `path`, `position`
    (-1: the whole file), `offset`.
    """

    def __init__(self, path: str, reason: str, position: int = -1, offset: int = -1) -> None:
        place = path if position < 0 else f"{path} at byte {position}"
        at = f" (offset {offset})" if offset >= 0 else ""
        super().__init__(f"{place}{at}: {reason}")
        self.path, self.reason, self.position, self.offset = path, reason, position, offset


class LogEnd(NamedTuple):
    """Where metadata ends: the offset behind the last batch, and the newest epoch seen."""

    end_offset: int
    epoch: int


EMPTY_LOG = LogEnd(0, -1)


def read_durable_end(files: IFileSystem, directory: str) -> int | None:
    """The offset below which everything was synced. None: not known. Raises OSError."""
    try:
        return metadata_offset(read_offsets(files, directory, HIGH_WATERMARK))
    except CheckpointError:
        return None


def write_durable_end(files: IFileSystem, directory: str, offset: int) -> None:
    """Writes the durable end, and syncs the file. Raises OSError."""
    write_aside(files, posixpath.join(directory, HIGH_WATERMARK), durable_end_text(offset))


class MarkFile:
    """Overwrites a file of a fixed length in its place. It stays open from the first time on, so
    that what is committed while descriptors are short is not taken for a torn tail. For the disk
    worker.
    """

    __slots__ = ("_file", "_files", "_path")

    def __init__(self, files: IFileSystem, directory: str, name: str) -> None:
        self._files, self._path = files, posixpath.join(directory, name)
        self._file: IFile | None = None

    def write(self, content: bytes, sync: bool) -> None:
        """Without `sync` a loss of power may bring back an older one, which is true as well. Raises
        OSError.
        """
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
        self._file.write_at(0, (content,))
        if sync:
            self._file.sync()

    def close(self) -> None:
        """The next write opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def durable_end_text(offset: int) -> bytes:
    """Always of the same length, within one sector: never torn."""
    rows = [f"{row.topic} {row.partition} {at:020d}\n" for row, at in metadata_rows(offset).items()]
    return f"0\n{len(rows)}\n{''.join(rows)}".encode()


def synced_end_text(epoch: int, offset: int) -> bytes:
    """As `durable_end_text`: twice, for no checksum covers it."""
    row = f"{epoch:010d} {offset:020d}\n"
    return f"0\n2\n{row}{row}".encode()


def read_synced_end(files: IFileSystem, directory: str, epoch: int | None) -> int:
    """What one of several voters noted as synced in that epoch of the quorum; 0: nothing. Raises
    OSError.
    """
    try:
        rows = read_epochs(files, posixpath.join(directory, SYNCED_END))
    except CheckpointError:
        return 0
    return rows[0][1] if len(rows) == 2 and rows[0] == rows[1] and rows[0][0] == epoch else 0


def is_empty(files: IFileSystem, directory: str) -> bool:
    """Whether a directory holds neither log, nor snapshot, nor durable end, or is not there.

    Raises OSError.
    """
    if not files.is_directory(directory):
        return True
    names = files.listdir(directory)
    return not any(name.endswith((_LOG, ".checkpoint")) or name == HIGH_WATERMARK for name in names)


def holds_records(files: IFileSystem, directory: str) -> bool:
    """Whether a directory holds, or held, anything of a cluster: not what founding one makes
    before the first record. Raises OSError.
    """
    if not files.is_directory(directory):
        return False
    return bool(
        read_durable_end(files, directory)
        or any(each.end_offset for each in list_snapshots(files, directory))
        or any(files.size(path) for path in _segments(files, directory))
    )


class Checked(NamedTuple):
    """`image`: of the newest snapshot (EMPTY without one). `torn`: what must be truncated.
    `history`: who votes, as snapshot and log say.
    """

    image: MetadataImage
    torn: TornTail | None
    history: VoterHistory


class Kept(NamedTuple):
    """The log from `start` on, up to the newest snapshot: where its epochs begin."""

    start: int
    epochs: list[LogEnd]


def kept_in_steps(files: IFileSystem, directory: str) -> Generator[None, None, Kept | None]:
    """How far the log goes back behind several snapshots: to its beginning, or to the oldest of
    them. None: there is no such, or not all of that can be read. Pauses as `check_in_steps`. Raises
    OSError.
    """
    snapshots, paths = list_snapshots(files, directory), _segments(files, directory)
    if len(snapshots) < 2 or not paths:
        return None
    since = snapshots[0] if base_offset_of(posixpath.basename(paths[0])) else _BEGINNING
    walk, epochs = Walk(files, directory, None, since), list[LogEnd]()
    for number, (_, place, batch) in enumerate(walk.batches(), 1):
        if not epochs or epochs[-1].epoch != batch.partition_leader_epoch:
            first = max(place.base_offset, since.end_offset)
            epochs.append(LogEnd(first, batch.partition_leader_epoch))
        if walk.offset >= snapshots[-1].end_offset:
            return Kept(since.end_offset, epochs)
        if number % BATCHES_PER_STEP == 0:
            yield
    return None


class TornTail(NamedTuple):
    """The good batches end at byte `position` of `path` ("": at a segment's end), before `offset`.
    `removed`: the segments behind it; `size`: all bytes that go.
    """

    path: str
    position: int
    offset: int
    removed: tuple[str, ...]
    size: int

    def __str__(self) -> str:
        at = f"{self.path} at byte {self.position}" if self.path else self.removed[0]
        return f"{at} (offset {self.offset}): {self.size} bytes"


class Applied(NamedTuple):
    """How far a node is known to have applied the metadata, and the file that says so."""

    end_offset: int
    path: str


NOT_APPLIED = Applied(0, "")


def read_applied(files: IFileSystem, log_directories: Iterable[str]) -> Applied:
    """What the checkpoints of high watermarks beside a node's logs say: they are written with
    those of its partitions. Raises OSError.
    """
    found = NOT_APPLIED
    for path in log_directories:
        try:
            offset = metadata_offset(read_offsets(files, path, HIGH_WATERMARK))
        except CheckpointError:
            continue
        found = max(found, Applied(offset or 0, posixpath.join(path, HIGH_WATERMARK)))
    return found


def check_logs(image: MetadataImage, logs: Iterable[Log]) -> None:
    """Whether an image is as new as the logs beside it. MetadataDamage where records were written
    in a leader epoch that it does not know yet.
    """
    for log in logs:
        topic = image.topics_by_id.get(log.topic_id or b"")
        state = topic.partitions.get(log.topic_partition.partition) if topic is not None else None
        if state is None or log.log_end_offset == log.log_start_offset:
            continue
        # Of the last record: an epoch that began without one may be on the disk before the record
        # of its election.
        newest = log.leader_epochs.epoch_for_offset(log.log_end_offset - 1)
        if newest > state.leader_epoch:
            raise MetadataDamage(
                log.directory,
                f"it has records of leader epoch {newest}, the metadata on this node knows epoch "
                f"{state.leader_epoch} only: {METADATA_DIRECTORY} is an older copy; nothing was "
                f"deleted. Put the newer one back, or rebuild it: {recover_hint()}; where the "
                f"metadata is no older copy, move {log.directory} away",
            )


def check_applied(directory: str, end: int, applied: Applied) -> None:
    """Raises MetadataDamage where metadata ends before what this node has applied."""
    if end < applied.end_offset:
        raise MetadataDamage(
            directory,
            f"it ends at offset {end}, but this node applied it up to {applied.end_offset} "
            f"({applied.path}): it is an older copy, and newer partitions would be set aside",
            offset=end,
        )


def check_metadata(
    files: IFileSystem, directory: str, is_observer: bool, applied: Applied = NOT_APPLIED
) -> Checked:
    """As `check_in_steps`, without a pause."""
    return run_whole(check_in_steps(files, directory, is_observer, applied))


def history_of(files: IFileSystem, directory: str, walk: Walk, listener: str = "") -> VoterHistory:
    """Who votes, as the newest snapshot, or the bootstrap checkpoint, and the log behind it say.
    `walk` is done.    Raises MetadataDamage, OSError.
    """
    history, snapshots = VoterHistory(VoterSet()), list_snapshots(files, directory)
    newest = snapshots[-1] if snapshots else BOOTSTRAP
    at = newest.end_offset - 1
    try:
        history.snapshot(at, quorum_of_snapshot(files, directory, newest, listener) or ())
        for batch in walk.control:
            found = control_records(batch, listener)
            history.append(
                batch.base_offset,
                [each if batch.base_offset + row > at else None for row, each in enumerate(found)],
            )
    except (BrokerError, WireError, CorruptRecordError) as error:
        raise MetadataDamage(
            directory, f"who votes in its quorum is not understood: {error}", offset=at + 1
        ) from error
    return history


def check_in_steps(
    files: IFileSystem,
    directory: str,
    is_observer: bool,
    applied: Applied = NOT_APPLIED,
    listener: str = "",
) -> Generator[None, None, Checked]:
    """Returns when all is there. `is_observer`: a broker's log, so all of it was committed.
    `listener`: the controllers' own. Pauses while it decodes a long snapshot, and after every
    `BATCHES_PER_STEP` of the log. Raises MetadataDamage, OSError.
    """
    durable_end = read_durable_end(files, directory)
    snapshots = list_snapshots(files, directory)
    image = EMPTY
    if snapshots:
        image = yield from _load_in_steps(files, directory, snapshots[-1])
    epoch = None if is_observer else _newest_epoch(files, directory)
    if durable_end is not None:
        durable_end = max(durable_end, read_synced_end(files, directory, epoch))
    walk = Walk(files, directory, epoch)
    for number, _ in enumerate(walk.batches(), 1):
        if number % BATCHES_PER_STEP == 0:
            yield
    at = walk.broken
    history = history_of(files, directory, walk, listener)
    if is_observer and at is None and not walk.end:
        # Its durable end is that of the damaged log whose place it took.
        return Checked(image, None, history)
    if durable_end is not None and walk.end < durable_end:
        if at is not None:
            raise _damage(walk, at, "a damaged batch, durable once")
        raise MetadataDamage(
            directory,
            f"the log ends at offset {walk.end}, but was durable up to {durable_end}",
            offset=walk.end,
        )
    # One of several voters may be behind its own broker for a moment.
    is_alone = is_observer or len(history.voters) < 2
    if is_alone:
        check_applied(directory, walk.end, applied)
    if at is None:
        return Checked(image, None, history)
    behind = tuple(path for path in walk.paths if path > at.path)
    if (
        at.is_first
        or (durable_end is None and behind)
        or ((is_observer or durable_end is None) and walk.goes_on())
    ):
        raise _damage(walk, at, "a damaged batch, with good ones behind it")
    path, removed = ("", (at.path, *behind)) if at.missing else (at.path, behind)
    size = sum(map(files.size, (at.path, *behind))) - at.position
    torn = TornTail(path, at.position, walk.offset, removed, size)
    return Checked(image, torn, history)


def _damage(walk: Walk, at: _Break, reason: str) -> MetadataDamage:
    if at.missing:
        return MetadataDamage(at.path, at.missing, offset=walk.offset)
    return MetadataDamage(at.path, reason, at.position, walk.offset)


def _load_in_steps(
    files: IFileSystem, directory: str, snapshot: SnapshotId
) -> Generator[None, None, MetadataImage]:
    try:
        return (yield from load_snapshot_in_steps(files, directory, snapshot))
    except (BrokerError, WireError, AssertionError, LookupError) as error:
        path = posixpath.join(directory, snapshot.file_name)
        raise MetadataDamage(
            path, f"the snapshot cannot be read: {error}", offset=snapshot.end_offset
        ) from error


class _Break(NamedTuple):
    """Where a walk ended. `missing`: what lacks before the segment; "": a batch cannot be read, or
    does not follow.
    """

    path: str
    position: int
    missing: str = ""
    is_first: bool = False


class Walk:
    """Goes over the batches from the newest snapshot (or `since`) on, up to the first that does not
    follow the one before it. Raises OSError.

    `newest`: the highest epoch there can be, where that is known. `offset`, `epoch`: behind the
    last good batch; `broken`: where it ended before the files did; `control`: the control batches.
    """

    def __init__(
        self,
        files: IFileSystem,
        directory: str,
        newest: int | None,
        since: SnapshotId | None = None,
    ) -> None:
        self.files, self.directory = files, directory
        snapshots = list_snapshots(files, directory) if since is None else [since]
        self.start, self.epoch = snapshots[-1] if snapshots else _BEGINNING
        self.offset = self.start
        self.broken: _Break | None = None
        self.paths: list[str] = []
        self.control: list[BatchView] = []
        self._newest = newest
        self._leader_change: tuple[_Break, int, int] | None = None
        """the last good batch begins an epoch: its place, offset and epoch before it"""

    @property
    def end(self) -> int:
        """Where the metadata ends; the snapshot counts, too."""
        return max(self.offset, self.start)

    def batches(self) -> Iterator[tuple[str, BatchPlace, BatchView]]:
        """The good batches that are not in the snapshot: (file, place, batch)."""
        paths = _segments(self.files, self.directory)
        bases = [base_offset_of(posixpath.basename(path)) for path in paths]
        self.paths = [
            path
            for row, path in enumerate(paths)
            if row + 1 == len(bases) or bases[row + 1] > self.start
        ]
        for row, path in enumerate(self.paths):
            base = base_offset_of(posixpath.basename(path))
            if row == 0 and base < self.start:
                self.offset, self.epoch = base, -1
            if base != self.offset:
                missing = f"what lies between offset {self.offset} and {base} is missing"
                self.broken = _Break(path, 0, missing, is_first=row == 0)
                break
            yield from self._segment(path)
            if self.broken is not None:
                break
        self._check_last_leader_change()

    def _segment(self, path: str) -> Iterator[tuple[str, BatchPlace, BatchView]]:
        file = self.files.open(path, read_only=True)
        try:
            size, position = file.size(), 0
            found = valid_batches(file, size)
            for place, batch in found:
                if not isinstance(batch, BatchView) or place.base_offset != self.offset:
                    break
                begins = batch.is_control and _is_leader_change(batch)
                if not self._is_next_epoch(batch.partition_leader_epoch, begins):
                    following = next(found, (None, None))[1]
                    if following is None or following.partition_leader_epoch != self.epoch:
                        self._doubt_leader_change()
                    break
                before = _Break(path, position), self.offset, self.epoch
                self._leader_change = before if begins else None
                position += place.size_in_bytes
                self.offset, self.epoch = place.last_offset + 1, batch.partition_leader_epoch
                if self.offset > self.start:
                    if batch.is_control:
                        start = batch.offset
                        end = start + place.size_in_bytes
                        data = bytes(memoryview(batch.buffer)[start:end])
                        self.control.append(BatchView(data))
                    yield path, place, batch
            if position < size and self.broken is None:
                self.broken = _Break(path, position)
        finally:
            file.close()

    def _is_next_epoch(self, epoch: int, begins: bool) -> bool:
        if epoch < 0 or (self._newest is not None and epoch > self._newest):
            return False
        if self.epoch < 0:
            return True
        return epoch > self.epoch if begins else epoch == self.epoch

    def _doubt_leader_change(self) -> None:
        """Nothing confirms the epoch that the last batch begins, and something contradicts it."""
        if self._leader_change is not None:
            self.broken, self.offset, self.epoch = self._leader_change
            self._leader_change = None
            self.control = [each for each in self.control if each.last_offset < self.offset]

    def _check_last_leader_change(self) -> None:
        """No batch of its epoch follows: where quorum-state is not here, the checkpoint must not
        contradict it.
        """
        if self._leader_change is not None and self._newest is None:
            known = _begun(self.files, self.directory).get(self._leader_change[1])
            if known is not None and known != self.epoch:
                self._doubt_leader_change()

    def goes_on(self) -> bool:
        """Whether good batches lie behind where it ended. Slow. Raises OSError."""
        at = self.broken
        for path in self.paths:
            if at is not None and path >= at.path:
                file = self.files.open(path, read_only=True)
                try:
                    position = at.position + 1 if path == at.path and not at.missing else 0
                    if _goes_on(file, position, file.size(), self.end):
                        return True
                finally:
                    file.close()
        return False


def _segments(files: IFileSystem, directory: str) -> list[str]:
    """The segments' paths, in order. Raises OSError."""
    return sorted(
        posixpath.join(directory, name)
        for name in files.listdir(directory)
        if name.endswith(_LOG) and base_offset_of(name) >= 0
    )


def _newest_epoch(files: IFileSystem, directory: str) -> int | None:
    """The newest epoch that quorum-state knows; it is durable before an epoch's first record.
    Raises MetadataDamage, OSError.
    """
    try:
        found = read_quorum_state(files, directory)
    except CheckpointError as error:
        # An epoch that was led already could be led again, and its records would be believed.
        raise MetadataDamage(error.path, error.reason) from error
    return None if found is None else found.epoch


def _begun(files: IFileSystem, directory: str) -> dict[int, int]:
    """The epoch that begins at an offset, as the leader-epoch checkpoint says."""
    try:
        rows = read_epochs(files, posixpath.join(directory, LEADER_EPOCH))
    except CheckpointError:
        return {}
    return {start: epoch for epoch, start in rows}


def _is_leader_change(batch: BatchView) -> bool:
    try:
        first = next(iter(batch.records(_CONTROL_RECORD_LIMIT)), None)
        return first is not None and control_record_type(first.key) == LEADER_CHANGE
    except (CorruptRecordError, WireError, BrokerError):
        return False


def _goes_on(file: IFile, position: int, size: int, offset: int) -> bool:
    """Whether a good batch of a later offset begins anywhere from byte `position` on."""
    while size - position >= HEADER_BYTES:
        chunk = file.read_at(position, min(_SEARCH_BYTES, size - position))
        found = chunk.find(b"\x02", MAGIC_AT)
        while found >= 0:
            at = found - MAGIC_AT
            base, length = (
                int.from_bytes(chunk[at : at + LENGTH_AT], "big"),
                int.from_bytes(chunk[at + LENGTH_AT : at + LOG_OVERHEAD], "big"),
            )
            plausible = offset <= base < offset + (1 << 31) and length < size - position - at
            if plausible and _is_batch(file.read_at(position + at, LOG_OVERHEAD + length)):
                return True
            found = chunk.find(b"\x02", found + 1)
        position += max(1, len(chunk) - HEADER_BYTES)
    return False


def _is_batch(data: bytes) -> bool:
    try:
        return BatchView(data).is_valid_crc()
    except CorruptRecordError:
        return False


def known_end(files: IFileSystem, directory: str) -> LogEnd:
    """Where damaged metadata is known to have ended: by durable end, snapshots, and every batch up
    to the first that does not follow. Raises OSError.
    """
    walk, snapshots = Walk(files, directory, None), list_snapshots(files, directory)
    for _ in walk.batches():
        pass
    return LogEnd(
        max(walk.end, read_durable_end(files, directory) or 0),
        max([walk.epoch, *(each.epoch for each in snapshots)]),
    )
