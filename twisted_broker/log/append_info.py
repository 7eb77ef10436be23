"""The arguments of an append besides the records, and the results of appends and reads.

Owns `AppendOrigin`, `EndMarker`, `LogAppendInfo`, `RecordError`, `FetchDataInfo`,
`TimestampAndOffset`.

Source: Kafka's classes of the same names.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.segment_file import FileSlice
from twisted_broker.log.txn_index import AbortedTxn


class AppendOrigin(IntEnum):
    """Who appends; decides which checks apply."""

    REPLICATION = 0
    COORDINATOR = 1
    CLIENT = 2
    RAFT_LEADER = 3


class EndMarker(NamedTuple):
    """What a coordinator writes to each partition of a transaction at its end."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


class RecordError(NamedTuple):
    """A refused record: its index in the batch, and why."""

    batch_index: int
    message: str | None


class LogAppendInfo:
    """Outcome of an append.

    `first_offset` -1: nothing was appended. A duplicate carries the offsets and time of the first
    arrival.
    """

    __slots__ = (
        "bytes",
        "duplicate",
        "error_message",
        "first_offset",
        "last_leader_epoch",
        "last_offset",
        "log_append_time_ms",
        "log_start_offset",
        "max_timestamp",
        "record_errors",
        "records_count",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        log_append_time_ms: int,
        log_start_offset: int,
        records_count: int,
        size_in_bytes: int,
        last_leader_epoch: int = -1,
        duplicate: bool = False,
    ) -> None:
        self.first_offset, self.last_offset = first_offset, last_offset
        self.max_timestamp, self.log_append_time_ms = max_timestamp, log_append_time_ms
        self.log_start_offset, self.records_count, self.bytes = (
            log_start_offset,
            records_count,
            size_in_bytes,
        )
        self.last_leader_epoch, self.duplicate = last_leader_epoch, duplicate
        self.record_errors: tuple[RecordError, ...] = ()
        self.error_message: str | None = None


class FetchDataInfo:
    """Outcome of a read: where it began, the bytes (None: none), the aborted transactions in
    them (None unless requested).
    """

    __slots__ = ("aborted", "fetch_offset_metadata", "first_entry_incomplete", "slice")

    def __init__(
        self,
        metadata: LogOffsetMetadata,
        file_slice: FileSlice | None,
        first_entry_incomplete: bool = False,
        aborted: list[AbortedTxn] | None = None,
    ) -> None:
        self.fetch_offset_metadata, self.slice = metadata, file_slice
        self.first_entry_incomplete, self.aborted = first_entry_incomplete, aborted


class TimestampAndOffset(NamedTuple):
    """A record's timestamp (ms), offset and leader epoch (-1 unknown)."""

    timestamp: int
    offset: int
    leader_epoch: int = -1
