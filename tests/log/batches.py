"""Batches, logs and pools for the tests of the log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted_broker.interfaces import IFileSystem, TopicPartition
from twisted_broker.log.append_info import FetchDataInfo
from twisted_broker.log.gaps import resolve_gap
from twisted_broker.log.log import Log
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment_file import OpenFiles
from twisted_broker.log_config import LogConfig
from twisted_broker.wire.records import (
    BatchBuilder,
    BatchView,
    Record,
    build_end_marker,
    iterate_batches,
)

NOW_MS = 1_700_000_000_000
TP = TopicPartition("events", 0)
DIRECTORY = "/data/events-0"
TOPIC_ID = bytes(range(1, 17))


def batch(
    *values: bytes | int,
    timestamp: int = NOW_MS,
    step_ms: int = 0,
    key: bytes | None = None,
    **fields: Any,
) -> bytes:
    """A batch of the given values (an int: that many bytes)."""
    builder = BatchBuilder(**fields)
    for number, value in enumerate(values or (b"value",)):
        builder.append(
            timestamp + number * step_ms, key, bytes(value) if isinstance(value, int) else value
        )
    return builder.build()


def marker(
    producer_id: int, commit: bool, epoch: int = 0, coordinator_epoch: int = 0, offset: int = 0
) -> bytes:
    return build_end_marker(
        producer_id, epoch, commit, coordinator_epoch, NOW_MS, base_offset=offset
    )


def config(**values: Any) -> LogConfig:
    return replace(LogConfig(), **values)


def open_log(
    files: IFileSystem, directory: str = DIRECTORY, settings: LogConfig | None = None, **more: Any
) -> Log:
    """As a broker opens the log of a replicated partition."""
    more.setdefault("wall_ms", NOW_MS)
    log = load_log(OpenFiles(files, 16), directory, TP, TOPIC_ID, settings or LogConfig(), **more)
    resolve_gap(log, True, NOW_MS)
    return log


def slice_bytes(info: FetchDataInfo) -> bytes:
    """The bytes of a read; releases them."""
    if info.slice is None:
        return b""
    try:
        return info.slice.read()
    finally:
        info.slice.release()


def all_batches(log: Log, start: int | None = None, end: int | None = None) -> list[BatchView]:
    """Every batch, read the way a follower does."""
    found: list[BatchView] = []
    offset = log.log_start_offset if start is None else start
    while offset < (log.log_end_offset if end is None else end):
        data = slice_bytes(log.read(offset, 1 << 20))
        assert data, offset
        found += iterate_batches(data, partial_tail=True, check_crc=True)
        offset = found[-1].next_offset
    return found


def all_records(log: Log) -> list[Record]:
    return [record for one in all_batches(log) if not one.is_control for record in one.records()]


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in all_records(log)]
