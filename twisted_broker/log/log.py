"""One replica's log: the records of a partition on this broker's disk.

Owns `Log`: appends, as leader and as follower, on top of state (`log_state.py`), reads
(`log_reading.py`) and extent (`log_extent.py`).

1. An append is visible when it is whole: bytes first, in one write, then the published end, then
   producers and watermarks.
2. What is refused is refused before a byte is written.
3. Appends never wait for a sync; what follows from one that makes a sync due does
   (`log_state.settled_end`).
4. The common case, one batch of magic 2 that needs no look inside, copies no record bytes.

Source: Kafka's `UnifiedLog.append`; RL 3.2. Left out: loading and repair (`recovery.py`), several
logs (`log_manager.py`), cleaning.
"""

from __future__ import annotations

from twisted_broker.interfaces import Buffer
from twisted_broker.log.append_info import AppendOrigin, LogAppendInfo
from twisted_broker.log.errors import OffsetsOutOfOrder, UnexpectedAppendOffset
from twisted_broker.log.log_extent import LogExtent
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.producer_state import CompletedTxn
from twisted_broker.log.segment import Segment
from twisted_broker.log.validation import check_header, prepare
from twisted_broker.wire.batch_header import HEADER
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    BatchView,
    batch_head,
    iterate_batches,
    next_sequence,
)

_unpack_header = HEADER.unpack_from
_HEADER_BYTES = HEADER.size
_CLIENT = AppendOrigin.CLIENT


class Log(LogExtent):
    """Made by `recovery.load_log`."""

    __slots__ = ()

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        now_ms: int,
        *,
        origin: AppendOrigin = _CLIENT,
        transaction_verified: bool = False,
    ) -> LogAppendInfo:
        """Checks `records`, gives them offsets, writes them.

        `now_ms` is wall time. Raises BrokerError; nothing is written then.
        """
        self.check_online()
        size = len(records)
        if not self._prepare and size >= _HEADER_BYTES:
            header = _unpack_header(records)
            if header[1] + LOG_OVERHEAD == size and header[3] == 2:
                check_header(header, records, self.config, origin, now_ms)
                return self._append_assigned(
                    header, records, leader_epoch, now_ms, origin, transaction_verified
                )
        info: LogAppendInfo | None = None
        for batch in prepare(records, self.config, origin, now_ms):
            appended = self._append_assigned(
                _unpack_header(batch), batch, leader_epoch, now_ms, origin, transaction_verified
            )
            if info is not None:
                appended.first_offset = info.first_offset
                appended.records_count += info.records_count
                appended.bytes += info.bytes
            info = appended
        assert info is not None
        return info

    def _append_assigned(
        self,
        header: BatchHeader,
        records: Buffer,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        transaction_verified: bool,
    ) -> LogAppendInfo:
        """Writes one checked batch at the log end."""
        _, length, _, _, _, attributes, delta, _, max_timestamp, producer_id, _, _, count = header
        size = length + LOG_OVERHEAD
        if size > self.config.segment_bytes:
            raise BrokerError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes, but segments end at {self.config.segment_bytes}",
            )
        if producer_id >= 0:
            duplicate = self._check_producer(header, records, origin, transaction_verified)
            if duplicate is not None:
                return duplicate
        first = self.log_end_offset
        last = first + delta
        try:
            epochs = self.leader_epochs.epochs
            if not epochs or epochs[-1] != leader_epoch:
                self.leader_epochs.assign(leader_epoch, first)
            segments = self.segments
            if segments.should_roll(size, last, max_timestamp, now_ms):
                self._roll(now_ms, 0)
            segment = segments.active
            segment.write((batch_head(first, length, leader_epoch), memoryview(records)[16:]), size)
            segment.note(size, last, max_timestamp)
            self.log_end_offset = last + 1
            if producer_id >= 0:
                self._note_producer(header, records, first, segment)
        except OSError as error:
            raise self.fail(error) from error
        self.producers.map_end_offset = last + 1
        if last + 1 - self.unflushed_since >= self.config.flush_messages:
            self._sync_if_due(LogOffsetMetadata(first, segment.base_offset, segment.size - size))
        stamped = max_timestamp if attributes & LOG_APPEND_TIME_FLAG else -1
        return LogAppendInfo(
            first, last, max_timestamp, stamped, self.log_start_offset, count, size, leader_epoch
        )

    def _check_producer(
        self, header: BatchHeader, records: Buffer, origin: AppendOrigin, verified: bool
    ) -> LogAppendInfo | None:
        """Raises BrokerError when the producer may not write this; the first arrival's outcome
        when it wrote it already.
        """
        attributes, delta, producer_id, epoch, sequence = (
            header[5],
            header[6],
            header[9],
            header[10],
            header[11],
        )
        producers = self.producers
        if producers.behind:
            raise BrokerError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                "after a truncation it is still read what producers wrote before",
            )
        if attributes & CONTROL_FLAG:
            producers.check_marker(BatchView(records))
            return None
        if origin == _CLIENT:
            found = producers.duplicate(
                producer_id, epoch, sequence, next_sequence(sequence, delta)
            )
            if found is not None:
                return LogAppendInfo(
                    found[1] - found[2],
                    found[1],
                    found[3],
                    found[3] if attributes & LOG_APPEND_TIME_FLAG else -1,
                    self.log_start_offset,
                    header[12],
                    0,
                    duplicate=True,
                )
        transactional = attributes & TRANSACTIONAL_FLAG != 0
        if transactional and origin == _CLIENT and not verified:
            entry = producers.producers.get(producer_id)
            if entry is None or entry.current_txn_first_offset < 0:
                raise BrokerError(
                    ErrorCode.INVALID_TXN_STATE,
                    "the batch belongs to no transaction that the coordinator knows",
                )
        producers.check(producer_id, epoch, sequence, transactional, origin == _CLIENT)
        return None

    def _note_producer(
        self, header: BatchHeader, records: Buffer, first: int, segment: Segment
    ) -> None:
        """Brings the producer state up to a batch with producer id that was written at `first`."""
        if header[5] & CONTROL_FLAG:
            batch = BatchView(records)
            batch.base_offset = first
            self._complete(self.producers.add_batch(batch), segment)
        else:
            transactional = header[5] & TRANSACTIONAL_FLAG != 0
            self.producers.add_data(
                header[9], header[10], header[11], first, header[6], header[8], transactional
            )
            if transactional:
                self.find_first_unstable()

    def _complete(self, completed: CompletedTxn | None, segment: Segment) -> None:
        if completed is not None:
            aborted = self.producers.complete(completed)
            if (
                aborted is not None and self.rebuild is None
            ):  # else the rebuild finds it, knowing where its transaction began
                segment.txn_index.append(aborted)
            self.find_first_unstable()

    # -- as follower

    def append_as_follower(self, records: Buffer, leader_epoch: int, now_ms: int) -> LogAppendInfo:
        """Writes what the leader sent, as it is: whole batches, offsets growing from the log end
        on.

        A partial batch at the end, and everything from a batch of a newer epoch than `leader_epoch`
        on, is left out. Raises BrokerError.
        """
        self.check_online()
        batches = self._replicated(records, leader_epoch)
        if not batches:
            return LogAppendInfo(-1, -1, -1, -1, self.log_start_offset, 0, 0)
        if batches[0].base_offset < self.log_end_offset:
            raise UnexpectedAppendOffset(
                batches[0].base_offset, batches[-1].last_offset, self.log_end_offset
            )
        before = self.log_end
        try:
            for run in self._runs(batches, now_ms):
                self._write_run(records, run)
        except OSError as error:
            raise self.fail(error) from error
        self._sync_if_due(before)
        first, last = batches[0], batches[-1]
        size = last.offset + last.size_in_bytes - first.offset
        count = sum(batch.records_count for batch in batches)
        newest = max(batch.max_timestamp for batch in batches)
        return LogAppendInfo(
            first.base_offset,
            last.last_offset,
            newest,
            -1,
            self.log_start_offset,
            count,
            size,
            last.partition_leader_epoch,
        )

    def _replicated(self, records: Buffer, leader_epoch: int) -> list[BatchView]:
        batches: list[BatchView] = []
        expected = -1
        for batch in iterate_batches(records, partial_tail=True, check_crc=True):
            if leader_epoch >= 0 and batch.partition_leader_epoch > leader_epoch:
                break
            if batch.base_offset < expected or batch.last_offset_delta < 0:
                raise OffsetsOutOfOrder(f"batch at {batch.base_offset} after offset {expected - 1}")
            expected = batch.last_offset + 1
            batches.append(batch)
        return batches

    def _runs(self, batches: list[BatchView], now_ms: int) -> list[list[BatchView]]:
        """The batches in as few writes as segments allow; a run rolls first when it must (RL
        3.1).
        """
        whole = batches[-1].offset + batches[-1].size_in_bytes - batches[0].offset
        newest = max(batch.max_timestamp for batch in batches)
        if not self.segments.should_roll(whole, batches[-1].last_offset, newest, now_ms):
            return [batches]
        self._roll(now_ms, batches[0].base_offset)
        if (
            whole <= self.config.segment_bytes
            and batches[-1].last_offset - self.segments.active.base_offset < 2**31
        ):
            return [batches]
        return self._split(batches, now_ms)

    def _split(self, batches: list[BatchView], now_ms: int) -> list[list[BatchView]]:
        """Writes all but the last run; returns that one."""
        run: list[BatchView] = []
        size = 0
        for batch in batches:
            if run and self.segments.should_roll(
                size + batch.size_in_bytes, batch.last_offset, -1, now_ms
            ):
                self._write_run(batch.buffer, run)
                self._roll(now_ms, batch.base_offset)
                run, size = [], 0
            run.append(batch)
            size += batch.size_in_bytes
        return [run]

    def _write_run(self, records: Buffer, run: list[BatchView]) -> None:
        start, end = run[0].offset, run[-1].offset + run[-1].size_in_bytes
        segment = self.segments.active
        segment.write((memoryview(records)[start:end],), end - start)
        epochs = self.leader_epochs
        for batch in run:
            if batch.partition_leader_epoch != epochs.latest_epoch:
                epochs.assign(batch.partition_leader_epoch, batch.base_offset)
            segment.note(batch.size_in_bytes, batch.last_offset, batch.max_timestamp)
            self.log_end_offset = batch.last_offset + 1
            if batch.producer_id >= 0:
                self._complete(self.producers.add_batch(batch), segment)
                if batch.is_transactional:
                    self.find_first_unstable()
            self.producers.map_end_offset = batch.last_offset + 1
