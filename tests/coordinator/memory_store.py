"""`__consumer_offsets` in memory: the twin of `offsets_store.py`, with storage that can be slow,
refuse, or be shared by two brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred, fail, succeed

from twisted_broker.coordinator.coordinator_context import AppendUndecided
from twisted_broker.log.append_info import EndMarker
from twisted_broker.log.verification import Guard
from twisted_broker.wire.control_batch import build_end_marker
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import BatchView, iterate_batches, set_offsets_and_epoch


def _same(outcome: Deferred[int]) -> Deferred[int]:
    return outcome


class MemoryStore:
    def __init__(self, partitions: int = 50) -> None:
        self.partitions = partitions
        self.logs: dict[int, bytearray] = {}
        self.ends: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.refuse: ErrorCode | None = None
        self.refuse_at: dict[int, ErrorCode] = {}
        self.offline: set[int] = set()
        self.max_message_bytes = 1_048_588
        self.held: list[tuple[Deferred[int], int]] | None = None
        self.commits: dict[int, Deferred[bool]] = {}
        self.high_watermarks: dict[int, int] = {}
        self.reads = 0
        self.guards: list[Guard] = []
        self.on_read: Callable[[int], None] = lambda index: None

    def partitions_count(self) -> int:
        return self.partitions

    def append(
        self, index: int, batch: bytes, timeout_ms: int, guard: Guard = None
    ) -> Deferred[int]:
        self.guards.append(guard)
        if self.refuse is not None:
            return fail(BrokerError(self.refuse))
        if index in self.refuse_at:
            return fail(BrokerError(self.refuse_at[index]))
        if len(batch) > self.max_message_bytes:
            return fail(BrokerError(ErrorCode.MESSAGE_TOO_LARGE))
        base_offset = self.put(index, batch)
        if self.held is None:
            return succeed(base_offset)
        waiting: Deferred[int] = Deferred()
        self.held.append((waiting, base_offset))
        return waiting

    def append_end_marker(self, index: int, marker: EndMarker, timeout_ms: int) -> Deferred[int]:
        batch = build_end_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.is_commit,
            marker.coordinator_epoch,
            0,
        )
        return self.append(index, batch, timeout_ms)

    def release(self, error: ErrorCode | None = None) -> None:
        """Replicates everything that is held, or refuses it."""
        held, self.held = self.held or [], []
        for waiting, base_offset in held:
            if error is None:
                waiting.callback(base_offset)
            else:
                waiting.errback(BrokerError(error))

    def time_out(self) -> list[Deferred[int]]:
        """Refuses everything that is held although it is in the log; each of the result decides
        over one of them.
        """
        held, self.held = self.held or [], []
        decided: list[Deferred[int]] = []
        for waiting, _ in held:
            decided.append(Deferred())
            waiting.errback(
                AppendUndecided(ErrorCode.REQUEST_TIMED_OUT, None, partial(_same, decided[-1]))
            )
        return decided

    def put(self, index: int, batch: bytes) -> int:
        stored, base_offset = bytearray(batch), self.ends.get(index, 0)
        set_offsets_and_epoch(stored, base_offset, 0)
        self.logs.setdefault(index, bytearray()).extend(stored)
        self.ends[index] = BatchView(bytes(stored)).next_offset
        return base_offset if isinstance(base_offset, int) else 0

    def load_file(self, index: int, content: bytes) -> None:
        """A segment as Kafka wrote it."""
        self.logs[index] = bytearray(content)
        self.ends[index] = max(batch.next_offset for batch in iterate_batches(content))

    def most_bytes(self, index: int) -> int:
        if index in self.offline:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
        return self.max_message_bytes

    def bounds(self, index: int) -> tuple[int, int]:
        return self.starts.get(index, 0), self.ends.get(index, 0)

    def high_watermark(self, index: int) -> int:
        end = 0 if index in self.commits else self.ends.get(index, 0)
        return self.high_watermarks.get(index, end)

    def committed(self, index: int) -> Deferred[bool]:
        return self.commits.get(index, succeed(True))

    def read(self, index: int, offset: int, max_bytes: int) -> bytes:
        """As a log reads: the first batch whole, the last one may be cut."""
        self.reads += 1
        self.on_read(index)
        if offset < self.starts.get(index, 0):
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log = bytes(self.logs.get(index, b""))
        for batch in iterate_batches(log):
            if batch.last_offset >= offset:
                return log[batch.offset : batch.offset + max(batch.size_in_bytes, max_bytes)]
        return b""

    def delete_records(self, index: int, offset: int) -> None:
        if index in self.offline:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
        assert self.starts.get(index, 0) <= offset <= self.high_watermark(index)
        self.starts[index] = offset

    def records(self, index: int) -> list[tuple[bytes | None, bytes | None]]:
        return [
            (r.key, r.value)
            for batch in iterate_batches(bytes(self.logs.get(index, b"")))
            if not batch.is_control
            for r in batch.records()
        ]
