"""Why readers of committed records do not see up to the high watermark: which producer's
transaction holds the last stable offset, and since when.

Owns `LastStableWait` and `last_stable_wait`.

1. Only the oldest open transaction is named: behind it nothing becomes stable. `open` is the number
   of all.
2. Times are those of the records, which producers may set. Of a transaction that was open before
   this log was loaded only the time of the newest batch is known.

Source: our own; Kafka's `ProducerStateManager.hasLateTransaction`; KIP-664. Not here: the offset
itself (`log/watermarks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from twisted_broker.log.producer_state import LATE_AFTER_MS
from twisted_broker.replication.explain.reasons import Moment, duration

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

LATE_MS = 15 * 60_000 + LATE_AFTER_MS
"""Kafka's default `transaction.max.timeout.ms` plus five minutes: no coordinator leaves a
transaction open for so long after its last record.
"""


@dataclass(frozen=True, slots=True)
class LastStableWait:
    """`rule`: open (a transaction), marker (it is decided, but its marker is not below the high
    watermark), rebuild (producers are being found again).

    Ids and offsets are -1, times 0, where they do not apply. `late`: it may be hanging.
    """

    rule: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    marker_offset: int
    since_ms: int
    for_ms: int
    last_write_ms: int
    late: bool
    open: int
    why: str


def last_stable_wait(log: Log, now: Moment) -> LastStableWait | None:
    """None when the last stable offset is at the high watermark."""
    if log.last_stable_offset >= log.high_watermark:
        return None
    producers = log.producers
    if producers.rebuilt is not None:
        reached = producers.rebuilt.map_end_offset
        return _without_producer(
            "rebuild",
            -1,
            -1,
            "after a truncation its producers are being found again, which has reached "
            f"offset {reached}",
        )
    first = next(iter(producers.ongoing), -1)
    decided, marker = producers.oldest_unreplicated[0] if producers.unreplicated else (-1, -1)
    if decided >= 0 and (first < 0 or decided < first):
        return _without_producer(
            "marker",
            decided,
            marker,
            f"the marker at offset {marker}, which ends the transaction that began at {decided}, "
            "is not below the high watermark",
        )
    return _open(log, first, now) if first >= 0 else None


def _without_producer(rule: str, first_offset: int, marker: int, why: str) -> LastStableWait:
    return LastStableWait(rule, -1, -1, -1, first_offset, marker, 0, 0, 0, False, 0, why)


def _open(log: Log, first: int, now: Moment) -> LastStableWait:
    producers = log.producers
    producer = producers.producers[producers.ongoing[first]]
    began, newest = producer.current_txn_began_ms, producer.last_timestamp
    for_ms = max(0, now.wall_ms - began) if began > 0 else 0
    late = newest > 0 and now.wall_ms - newest > LATE_MS
    since = f"since {_time(began)} ({duration(for_ms)})" if began > 0 else "since before it started"
    parts = [
        f"producer {producer.producer_id} (epoch {producer.producer_epoch}) has a transaction "
        f"open from offset {first} {since}"
    ]
    if newest > 0:
        parts.append(f"its newest record is of {_time(newest)}")
    others = len(producers.ongoing) - 1
    if others:
        parts.append(f"{others} more {'is' if others == 1 else 'are'} open behind it")
    why = "; ".join(parts)
    if late:
        why += (
            ". It may be hanging: `kafka-transactions.sh find-hanging` says whether a coordinator "
            "knows it, `kafka-transactions.sh abort` ends it"
        )
    return LastStableWait(
        "open",
        producer.producer_id,
        producer.producer_epoch,
        producer.coordinator_epoch,
        first,
        -1,
        max(0, began),
        for_ms,
        max(0, newest),
        late,
        len(producers.ongoing),
        why,
    )


def _time(wall_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"  # a producer may say anything
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
