"""Bringing a log's producer state to its end: a snapshot, and the batches since.

Owns `ProducerRebuild`: in one go (loading, and where little is to be read), or in slices behind a
truncation.

    complete --after_truncation, much to read--> in slices --log end reached--> complete
    in slices --after_truncation--> in slices, started again, or complete
    in slices --all is truncated--> complete (nothing is left to know)
    in slices --EMFILE--> waiting --a producer is refused, or a second later--> in slices

1. The result is the state of the snapshot, plus the batches from there to the log's end, plus the
   earlier batches of each producer that may be sent again.
2. In slices: a snapshot of many producers is loaded (`producer_snapshot_reader.py`), then the disk
   worker reads headers, at most `SLICE_HEADERS` at a time, and the reactor adds them. Appends go on
   meanwhile and are found like the others; batches with a producer id are refused until the end,
   with a code that makes the client try again (`producer_append.py`).
3. Until it is done no transaction above the offset reached counts as decided, and nothing else
   writes the transaction indexes. If the process ends before, the next one fills them: recovery
   begins where they are complete, and a clean stop removes the offset indexes from there on, so
   that these segments are checked.
4. Damage in the log costs knowledge of producers, never the log: its reader gets the error.

Source: Kafka's `UnifiedLog.rebuildProducerState` (in one go). Not here: snapshots
(`producer_state.py`), batches older than the snapshot (`producer_batch_recovery.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from twisted_broker.interfaces import IDiskWorker, IFileSystem
from twisted_broker.log.batch_scan import scan_headers
from twisted_broker.log.durability import NOWHERE, Durability
from twisted_broker.log.errors import is_out_of_descriptors
from twisted_broker.log.producer_batch_recovery import recover_producer_batches
from twisted_broker.log.producer_snapshot_reader import SnapshotReader, let_go
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.segment import LogSegment
from twisted_broker.log.segments import LogSegments
from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.log.watermarks import Watermarks
from twisted_broker.wire.batch_fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    LAST_OFFSET_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
)
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    BatchView,
    CorruptRecordError,
)

AT_ONCE_BYTES = 1 << 18
"""up to here a truncation finds producers before it returns: some 4,000 of the smallest batches,
under 10 ms
"""
SLICE_HEADERS = 1024


class _Slice(NamedTuple):
    """Headers with a producer id, with the whole batch of control records; where to go on in the
    file, and the last offset looked at (-1 none).
    """

    found: list[tuple[BatchHeader, BatchView | None]]
    position: int
    last_offset: int


class ProducerRebuild:
    """The rebuilds of one log's producer state. `on_fatal(error)` takes the log offline;
    `on_done()` is called when one in slices is over: the last stable offset may be another.
    """

    __slots__ = (
        "_durability",
        "_is_stuck",
        "_on_done",
        "_on_fatal",
        "_position",
        "_producers",
        "_reader",
        "_ready",
        "_running",
        "_segment",
        "_segments",
        "_watermarks",
    )

    def __init__(
        self,
        segments: LogSegments,
        watermarks: Watermarks,
        producers: ProducerStateManager,
        durability: Durability,
        on_fatal: Callable[[OSError], object],
        on_done: Callable[[], None],
    ) -> None:
        self._segments, self._watermarks, self._on_done = segments, watermarks, on_done
        self._producers, self._durability, self._on_fatal = producers, durability, on_fatal
        self._reader: SnapshotReader | None = None
        self._segment: LogSegment | None = None
        self._position = 0
        self._ready = self._running = False
        self._is_stuck = False  # no descriptor: goes on with `resume`

    def detach(self, refusal: BrokerError) -> None:
        """The log is gone: nobody hears of a failure any more."""
        self._on_fatal = lambda error: refusal
        self._on_done = lambda: None

    def after_load(self, wall_ms: int, recovered: frozenset[int] = frozenset()) -> None:
        """Newest snapshot, the batches since, and those before that may be sent again.
        Raises OSError.

        Slow where much was written since that snapshot. `recovered` are base offsets of segments
        whose transaction index is empty and must be filled again.
        """
        start = self._watermarks.log_start_offset
        if self._producers.truncate(start, self._segments.log_end_offset):
            self._producers.reload(start, wall_ms)
        self._replay(recovered)

    def after_truncation(self, wall_ms: int) -> None:
        """As `after_load`, but what takes long goes on afterwards, in slices. Raises OSError."""
        producers, end, disk = self._producers, self._segments.log_end_offset, self._durability.disk
        # The transaction indexes hold all below the new end, as far as an unfinished rebuild
        # before had filled them.
        filled = min(end, self._durability.indexed_upto)
        start, self._reader = self._watermarks.log_start_offset, None
        if not producers.truncate(start, end):
            self._watermarks.update_first_unstable()
            return
        if disk is not None and producers.takes_long():
            self._reader = SnapshotReader(
                self._segments.pool.files, producers.begin_reload(start, disk), wall_ms
            )
        else:
            producers.reload(start, wall_ms)
            if disk is None or (filled == end and self._is_short(producers.map_end_offset)):
                self._replay(frozenset())
                self._durability.indexed_upto = NOWHERE
                return
            producers.begin_rebuild()
        self._durability.indexed_upto = filled
        self._segment, self._position = None, 0
        self._ready, self._is_stuck = True, False
        self._run(disk)

    def begin_anew(self, offset: int) -> None:
        """All is truncated, the log starts at `offset`: nothing is left to know."""
        self._reader = None
        self._producers.reset(offset, self._durability.disk)
        self._durability.indexed_upto = NOWHERE

    def segments_to_index(self) -> list[LogSegment]:
        """Those whose transaction index may lack something yet."""
        begin, end = self._durability.indexed_upto, self._segments.log_end_offset
        return list(self._segments.between(begin, end)) if begin < end else []

    def _replay(self, recovered: frozenset[int]) -> None:
        """Brings the producers from where their map ends to the log's end."""
        producers, end = self._producers, self._segments.log_end_offset
        start = producers.map_end_offset
        for segment in self._segments.between(start, end):
            if segment.base_offset > start:
                producers.map_end_offset = segment.base_offset
                producers.take_snapshot()
            # Below the recovery point files are trusted: damage there costs knowledge of producers,
            # and its reader gets the error.
            with contextlib.suppress(CorruptRecordError):
                for position, header in segment.headers_from(start):
                    # By its last offset: the log may start inside a batch.
                    if (
                        header[PRODUCER_ID] < 0
                        or header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] < start
                    ):
                        continue
                    control = (
                        segment.load(position, header)
                        if header[ATTRIBUTES] & CONTROL_FLAG
                        else None
                    )
                    aborted = _add(producers, header, control)
                    if aborted is not None and segment.base_offset in recovered:
                        segment.txn_index.append(aborted)
        producers.map_end_offset = end
        recover_producer_batches(reversed(self._segments), producers.producers)
        self._watermarks.update_first_unstable()

    def _is_short(self, start: int) -> bool:
        """Whether there are AT_ONCE_BYTES at most from `start` to the log's end."""
        length = 0
        for segment in self._segments.between(start, self._segments.log_end_offset):
            begin = 0
            if segment.base_offset < start:
                with contextlib.suppress(CorruptRecordError):
                    begin = segment.position_of(start)
            length += segment.size - begin
        return length <= AT_ONCE_BYTES

    # -- in slices

    def resume(self) -> None:
        """Reads the slice again for which no file could be opened, if any. Called when a producer
        is refused meanwhile, and a second after the lack of descriptors was reported.
        """
        disk = self._durability.disk
        if disk is not None and self._is_stuck and not self._durability.is_over:
            self._is_stuck = False
            self._go_on(disk)

    def _run(self, disk: IDiskWorker) -> None:
        """Goes on as long as the worker answers at once. Raises OSError."""
        if self._running:
            return
        self._running = True
        try:
            while self._ready:
                self._ready = False
                state = self._producers.rebuilt
                if state is not None:
                    self._step(state, disk)
        finally:
            self._running = False

    def _step(self, state: ProducerStateManager, disk: IDiskWorker) -> None:
        reader = self._reader
        if reader is not None:
            job = reader.next_job()
            if job is not None:
                disk.submit(
                    job,
                    lambda found, error: self._snapshot_read(state, disk, reader, found, error),
                )
                return
            self._reader = None
            self._watermarks.update_first_unstable()
        segment = self._find_segment(state)
        if segment is None:
            self._finish(state)
            return
        files, path = self._segments.pool.files, segment.log.path
        position, end, start = self._position, segment.size, state.map_end_offset
        disk.submit(
            lambda: _read_slice(files, path, position, end, start),
            lambda found, error: self._slice_read(state, disk, segment, path, found, error),
        )

    def _snapshot_read(
        self,
        state: ProducerStateManager,
        disk: IDiskWorker,
        reader: SnapshotReader,
        found: bytes | None,
        error: BaseException | None,
    ) -> None:
        if self._producers.rebuilt is not state or self._durability.is_over:
            return  # as below
        try:
            is_done = reader.job_done(found, error)
        except OSError as failure:
            self._on_fatal(failure)
            return
        if is_done:
            self._go_on(disk)
        else:
            self._failed(error)

    def _find_segment(self, state: ProducerStateManager) -> LogSegment | None:
        """The segment to go on in, with `_position` in it; None at the log's end."""
        state.map_end_offset = max(state.map_end_offset, self._watermarks.log_start_offset)
        segment = self._segment
        row = max(
            0,
            self._segments.row_of(state.map_end_offset if segment is None else segment.base_offset),
        )
        while (found := self._segments.at(row)) is not None:
            if found is not segment:
                self._enter(state, found)
                segment = found
            if self._position < found.size:
                return found
            row += 1
        return None

    def _enter(self, state: ProducerStateManager, segment: LogSegment) -> None:
        self._segment, self._position = segment, 0
        if segment.base_offset > state.map_end_offset:
            state.map_end_offset = segment.base_offset
            state.take_snapshot(self._durability.disk, self._on_fatal)
        elif segment.base_offset < state.map_end_offset:
            with contextlib.suppress(CorruptRecordError):
                self._position = segment.position_of(state.map_end_offset)

    def _slice_read(
        self,
        state: ProducerStateManager,
        disk: IDiskWorker,
        segment: LogSegment,
        path: str,
        found: _Slice | None,
        error: BaseException | None,
    ) -> None:
        if self._producers.rebuilt is not state or self._durability.is_over:
            return  # a later truncation began another, or the log is offline, or closed
        if found is not None:
            try:
                self._add_slice(state, segment, found)
            except OSError as failure:
                self._failed(failure)
                return
        elif isinstance(error, FileNotFoundError) and segment not in self._segments:
            self._segment = None  # retention deleted it: what is left begins behind it
        elif isinstance(error, FileNotFoundError) and segment.log.path != path:
            pass  # the log has another name: the slice is read once more
        else:
            self._failed(error)
            return
        self._go_on(disk)

    def _failed(self, error: BaseException | None) -> None:
        """Nothing was done, or the disk fails."""
        if is_out_of_descriptors(error):
            self._is_stuck = True  # not `_ready`: that would try again at once
            assert isinstance(error, OSError)
            self._durability.found_no_descriptor(error)
        else:
            self._on_fatal(
                error
                if isinstance(error, OSError)
                else OSError(f"producers cannot be found: {error!r}")
            )

    def _go_on(self, disk: IDiskWorker) -> None:
        self._ready = True
        try:
            self._run(disk)
        except OSError as failure:
            self._failed(failure)

    def _add_slice(self, state: ProducerStateManager, segment: LogSegment, found: _Slice) -> None:
        """Raises OSError."""
        if any(control is not None for _, control in found.found):
            # Before anything is added: where there is no descriptor for it the slice is read again.
            segment.txn_index.file.create()
        for header, control in found.found:
            aborted = _add(state, header, control)
            if aborted is not None and aborted.last_offset >= self._durability.indexed_upto:
                segment.txn_index.append(aborted)
                self._durability.rewritten_from(segment.base_offset)
        self._position = found.position
        if found.last_offset >= 0:
            state.map_end_offset = found.last_offset + 1
            self._durability.indexed_upto = max(self._durability.indexed_upto, state.map_end_offset)
        self._watermarks.update_first_unstable()

    def _finish(self, state: ProducerStateManager) -> None:
        producers = self._producers
        state.map_end_offset = self._segments.log_end_offset
        recover_producer_batches(reversed(self._segments), state.producers)
        let_go(producers.producers, self._durability.disk)
        producers.adopt(state)
        self._durability.indexed_upto = NOWHERE
        producers.on_log_start_moved(self._watermarks.log_start_offset)
        producers.remove_replicated(self._watermarks.high_watermark)
        self._watermarks.update_first_unstable()
        self._on_done()


def _add(
    producers: ProducerStateManager, header: BatchHeader, control: BatchView | None
) -> AbortedTxn | None:
    """Adds one batch with a producer id; what it adds to the transaction index."""
    if control is not None:
        return producers.add_batch(control)
    producers.add_data(
        header[PRODUCER_ID],
        header[PRODUCER_EPOCH],
        header[BASE_SEQUENCE],
        header[BASE_OFFSET],
        header[LAST_OFFSET_DELTA],
        header[MAX_TIMESTAMP],
        header[ATTRIBUTES] & TRANSACTIONAL_FLAG != 0,
    )
    return None


def _read_slice(files: IFileSystem, path: str, position: int, end: int, start: int) -> _Slice:
    """The next headers of the file, of batches that end at `start` or above.

    On the disk worker. Raises OSError.
    """
    found: list[tuple[BatchHeader, BatchView | None]] = []
    last_offset, left = -1, SLICE_HEADERS
    file = files.open(path, read_only=True)
    try:
        with contextlib.suppress(CorruptRecordError):
            for at, header in scan_headers(file, position, end):
                size = LOG_OVERHEAD + header[LENGTH]
                position, last_offset = at + size, header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
                if header[PRODUCER_ID] >= 0 and last_offset >= start:
                    control = (
                        BatchView(file.read_at(at, size))
                        if header[ATTRIBUTES] & CONTROL_FLAG
                        else None
                    )
                    found.append((header, control))
                left -= 1
                if not left:
                    return _Slice(found, position, last_offset)
        return _Slice(found, end, last_offset)  # all of it, or all before damage
    finally:
        file.close()
