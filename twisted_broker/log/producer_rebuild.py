"""Finding what a log's producers wrote since a snapshot.

Owns `replay` (in one go, for loading and short ways) and `ProducerRebuild` (in slices, behind a
truncation).

1. What is found is what the log holds from the snapshot to its end, and of each producer the
   batches before that may be sent again.
2. In slices: the disk worker reads headers, at most `SLICE_HEADERS` at a time, the reactor takes
   them in. Appends go on meanwhile and are found like the rest; those that need to know producers
   are refused until then, with a code that makes them come again.
3. Until it is done no transaction from there on counts as decided, and the transaction indexes are
   filled from here alone.
4. A later cut begins it anew. Damage costs memory of producers, never the log: the reader of it
   sees the error.

Source: Kafka's `UnifiedLog.rebuildProducerState` (in one go). Left out: snapshots
(`producer_state.py`), recalled batches (`producer_batch_recovery.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from twisted_broker.interfaces import IDiskWorker, IFileSystem
from twisted_broker.log.batch_scan import scan_headers
from twisted_broker.log.producer_batch_recovery import recover_producer_batches
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.segment import Segment
from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    BatchView,
    CorruptRecordError,
)

if TYPE_CHECKING:
    from twisted_broker.log.log_extent import LogExtent

AT_ONCE_BYTES = 1 << 18
"""up to here a cut finds producers before it returns: some 4,000 of the smallest batches, under
10 ms
"""
SLICE_HEADERS = 1024


def replay(log: LogExtent, recovered: frozenset[int] = frozenset()) -> None:
    """Brings the producers of `log` from where their map ends to the log's end. OSError.

    `recovered` are base offsets of segments whose transaction index is empty and must be filled
    again.
    """
    producers, end = log.producers, log.log_end_offset
    start = producers.map_end_offset
    for segment in log.segments.between(start, end):
        if segment.base_offset > start:
            producers.map_end_offset = segment.base_offset
            producers.take_snapshot()
        # Below the recovery point files are trusted: damage there costs memory of producers, and
        # the reader of it sees the error.
        with contextlib.suppress(CorruptRecordError):
            for position, header in segment.headers_from(start):
                if header[9] < 0 or header[0] < start:
                    continue
                control = segment.load(position, header) if header[5] & CONTROL_FLAG else None
                aborted = _note(producers, header, control)
                if aborted is not None and segment.base_offset in recovered:
                    segment.txn_index.append(aborted)
    producers.map_end_offset = end
    recover_producer_batches(reversed(log.segments), producers.producers.values())
    log.find_first_unstable()


def _note(
    producers: ProducerStateManager, header: BatchHeader, control: BatchView | None
) -> AbortedTxn | None:
    """Takes one batch with a producer id in; what it adds to the transaction index."""
    if control is None:
        transactional = header[5] & TRANSACTIONAL_FLAG != 0
        producers.add_data(
            header[9], header[10], header[11], header[0], header[6], header[8], transactional
        )
        return None
    completed = producers.add_batch(control)
    return producers.complete(completed) if completed is not None else None


def is_short(log: LogExtent, start: int) -> bool:
    """Whether what lies from `start` to the log's end is read in no time."""
    length = 0
    for segment in log.segments.between(start, log.log_end_offset):
        begin = 0
        if segment.base_offset < start:
            with contextlib.suppress(CorruptRecordError):
                begin = segment.position_of(start)
        length += segment.size - begin
    return length <= AT_ONCE_BYTES


class _Slice(NamedTuple):
    """Headers with a producer id, with the whole batch of control records; where to go on in the
    file, and the last offset looked at (-1 none).
    """

    found: list[tuple[BatchHeader, BatchView | None]]
    position: int
    last_offset: int


def _read_slice(files: IFileSystem, path: str, position: int, end: int, start: int) -> _Slice:
    """The next headers of the file, of batches at `start` and above.

    On the disk worker. OSError.
    """
    found: list[tuple[BatchHeader, BatchView | None]] = []
    last_offset, most = -1, SLICE_HEADERS
    file = files.open(path, read_only=True)
    try:
        with contextlib.suppress(CorruptRecordError):
            for at, header in scan_headers(file, position, end):
                size = LOG_OVERHEAD + header[1]
                position, last_offset = at + size, header[0] + header[6]
                if header[9] >= 0 and header[0] >= start:
                    control = (
                        BatchView(file.read_at(at, size)) if header[5] & CONTROL_FLAG else None
                    )
                    found.append((header, control))
                most -= 1
                if not most:
                    return _Slice(found, position, last_offset)
        return _Slice(found, end, last_offset)  # all of it, or all before damage
    finally:
        file.close()


class ProducerRebuild:
    """One rebuild; `log.rebuild` while it goes on. `filled`: up to there the transaction indexes
    are complete.
    """

    __slots__ = ("_disk", "_log", "_position", "_ready", "_running", "_segment", "_state", "filled")

    def __init__(self, log: LogExtent, disk: IDiskWorker, filled: int) -> None:
        self._log, self._disk, self.filled = log, disk, filled
        self._state = log.producers.detached()
        self._segment: Segment | None = None
        self._position = 0
        self._ready, self._running = True, False

    def first_unstable_offset(self) -> int:
        """What lies beyond what was read may be of a transaction that is open."""
        first = self._state.first_unstable_offset()
        return first if first >= 0 else self._state.map_end_offset

    def run(self) -> None:
        """Goes on as long as the worker answers at once. OSError."""
        if self._running:
            return
        self._running = True
        while self._ready:
            self._ready = False
            self._step()
        self._running = False

    def _step(self) -> None:
        log, state = self._log, self._state
        segment = self._find_segment()
        if segment is None:
            self._finish()
            return
        files, path, position, end, start = (
            log.pool.files,
            segment.log.path,
            self._position,
            segment.size,
            state.map_end_offset,
        )
        self._disk.submit(
            lambda: _read_slice(files, path, position, end, start), self._answer(segment)
        )

    def _find_segment(self) -> Segment | None:
        """The segment to go on in, with `_position` in it; None at the log's end."""
        log, state = self._log, self._state
        state.map_end_offset = max(state.map_end_offset, log.log_start_offset)
        segment = self._segment
        row = (
            max(0, log.segments.row_of(state.map_end_offset))
            if segment is None
            else max(0, log.segments.row_of(segment.base_offset))
        )
        while (found := log.segments.at(row)) is not None:
            if found is not segment:
                self._enter(found)
                segment = found
            if self._position < found.size:
                return found
            row += 1
        return None

    def _enter(self, segment: Segment) -> None:
        state = self._state
        self._segment, self._position = segment, 0
        if segment.base_offset > state.map_end_offset:
            state.map_end_offset = segment.base_offset
            state.take_snapshot()
        elif segment.base_offset < state.map_end_offset:
            with contextlib.suppress(CorruptRecordError):
                self._position = segment.position_of(state.map_end_offset)

    def _answer(self, segment: Segment) -> Callable[[_Slice | None, BaseException | None], None]:
        def answered(found: _Slice | None, error: BaseException | None) -> None:
            log = self._log
            if log.rebuild is not self or log.failed is not None:
                return  # a later cut began another, or there is no log any more
            if found is not None:
                self._take(segment, found)
            elif isinstance(error, FileNotFoundError) and segment not in log.segments:
                self._segment = None  # retention deleted it: what is left begins behind it
            else:
                log.fail(
                    error
                    if isinstance(error, OSError)
                    else OSError(f"producers cannot be found: {error!r}")
                )
                return
            self._ready = True
            try:
                self.run()
            except OSError as failure:
                log.fail(failure)

        return answered

    def _take(self, segment: Segment, found: _Slice) -> None:
        log, state = self._log, self._state
        for header, control in found.found:
            aborted = _note(state, header, control)
            if aborted is not None and aborted.last_offset >= self.filled:
                segment.txn_index.append(aborted)
                log.not_synced_from(segment.base_offset)
        self._position = found.position
        if found.last_offset >= 0:
            state.map_end_offset = found.last_offset + 1
            self.filled = max(self.filled, state.map_end_offset)
        log.find_first_unstable()

    def _finish(self) -> None:
        log, state = self._log, self._state
        state.map_end_offset = log.log_end_offset
        recover_producer_batches(reversed(log.segments), state.producers.values())
        log.rebuild = None
        log.producers.adopt(state)
        log.producers.on_log_start_moved(log.log_start_offset)
        log.producers.forget_replicated(log.high_watermark)
        log.find_first_unstable()
