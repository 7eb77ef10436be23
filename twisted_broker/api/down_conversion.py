"""Fetch answers for clients that know no record batches.

1. Version 0-1 gets message sets of magic 0, version 2-3 of magic 1.
2. What cannot be converted (zstd, damage; `message.downconversion.enable` of a 3.9 cluster) is an
   error of its partition; the others are served.
3. A first batch that does not fit a hard limit (version <= 2) comes truncated, as it is, so that
   the client sees that its limit is too small.
4. At most about `TURN_BYTES` are converted in one turn of the reactor: a large answer for an old
   client delays no other one.

Source: RL 1.8, RELIABILITY 5.3; Kafka's `LazyDownConversionRecords` (up to 3.9; KIP-724 removed
it in 4.0). Not here: the formats (`wire.legacy`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.task import deferLater

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.segment_file import SliceGone
from twisted_broker.replication.partition.fetch_data import FetchPartitionResult
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.legacy import convert_down, iterate_entries

# About 10 ms of conversion.
TURN_BYTES = 1 << 18


async def convert_results(
    results: Sequence[FetchPartitionResult],
    magic: int,
    clock: Any,
    may_convert: Callable[[TopicPartition], bool],
) -> None:
    """Replaces slices by converted records.

    Raises WireError when the records are gone; all slices are released then.
    """
    done = 0
    try:
        for result in results:
            if result.slice is not None:
                may = may_convert(result.request.topic_partition)
                done = await _convert(result, magic, clock, done, may)
    except BaseException:
        for result in results:
            result.release()
        raise


async def _convert(
    result: FetchPartitionResult, magic: int, clock: Any, done: int, may_convert: bool
) -> int:
    """Converts one partition; `done` bytes were converted in this turn before; returns how many
    now.
    """
    assert result.slice is not None
    pieces: list[bytes] = []
    try:
        data = result.slice.read()
        if not may_convert and any(
            entry.magic > magic for entry in iterate_entries(data, partial_tail=True)
        ):
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
        entries = iterate_entries(data, partial_tail=True)
        for piece in convert_down(entries, magic, result.request.fetch_offset):
            pieces.append(piece)
            done += len(piece)
            if done >= TURN_BYTES:
                await deferLater(clock, 0)
                done = 0
    except BrokerError as refusal:
        result.release()
        result.error, result.high_watermark, result.last_stable_offset, result.log_start_offset = (
            refusal.code,
            -1,
            -1,
            -1,
        )
        return done
    except (SliceGone, OSError) as gone:
        raise WireError(f"the records of an answer cannot be read any more: {gone}") from None
    # A first batch that the limit truncates stays as it is: an empty answer would look like the end
    # of the log.
    if pieces or not result.first_entry_incomplete:
        result.release()
        result.converted = pieces
    return done
