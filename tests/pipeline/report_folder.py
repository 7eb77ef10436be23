"""A log directory worth a report: two topics in several codecs over some hours, keys of all
weights, and the offsets of two groups.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.pipeline.replica_folders import high_watermarks, partition
from twisted_broker.wire.messages.group_records import OffsetCommitKey, OffsetCommitValue
from twisted_broker.wire.records import BatchBuilder, set_offsets_and_epoch
from twisted_broker.wire.schema import encode

BEGIN_MS = 1_700_000_000_000 - 1_700_000_000_000 % 60_000
MINUTES = 180
COMMITTED = {
    ("billing", "orders", 0): 300,
    ("billing", "orders", 1): 10,
    ("search", "orders", 0): 500,
}


def made(
    base: int,
    records: list[tuple[int, bytes | None, bytes | None]],
    codec: int = 0,
    is_control: bool = False,
) -> bytes:
    """A batch of (timestamp in milliseconds, key, value)."""
    builder = BatchBuilder(codec=codec, is_control=is_control)
    for timestamp, key, value in records:
        builder.append(timestamp, key, value)
    batch = bytearray(builder.build())
    set_offsets_and_epoch(batch, base, 0)
    return bytes(batch)


def commit(
    group: str, topic: str, number: int, offset: int | None
) -> tuple[int, bytes, bytes | None]:
    """A record of `__consumer_offsets`; no offset: a deleted one."""
    key = b"\0\1" + encode(OffsetCommitKey(group=group, topic=topic, partition=number), 0)
    value = (
        None
        if offset is None
        else b"\0\3" + encode(OffsetCommitValue(offset=offset, commit_timestamp=BEGIN_MS), 3)
    )
    return BEGIN_MS, key, value


def write(directory: Path, count: int = 2000) -> dict[str, int]:
    """Writes it: partition folder's name -> number of records.

    One of 50 values of `orders` is null, `metrics` has no keys.
    """
    chance = random.Random(7)
    ends = {}
    for topic, number, codec in (("orders", 0, 0), ("orders", 1, 4), ("metrics", 0, 3)):
        batches, base = [], 0
        while base < count:
            size = min(chance.choice((1, 5, 20, 80)), count - base)
            times = sorted(
                BEGIN_MS + int(60_000 * MINUTES * (base + at) / count) for at in range(size)
            )
            keys = [
                b"customer-%03d" % min(int(chance.expovariate(0.2)), 99)
                if topic == "orders"
                else None
                for _ in range(size)
            ]
            values = [
                None
                if key and chance.random() < 0.02
                else b"value %06d " % chance.randrange(10**6) * 4
                for key in keys
            ]
            batches.append(made(base, list(zip(times, keys, values, strict=True)), codec))
            base += size
        ends[f"{topic}-{number}"] = base
        partition(directory, f"{topic}-{number}", {0: batches})
    return ends | _offsets(directory, ends)


def _offsets(directory: Path, ends: dict[str, int]) -> dict[str, int]:
    records = [
        commit("gone", "orders", 0, 5),
        commit("billing", "orders", 0, 7),
        *(commit(*key, offset) for key, offset in COMMITTED.items()),
    ]
    records += [
        commit("gone", "orders", 0, None),
        (BEGIN_MS, b"\0\2\0\7billing", b"\0\3no group at all"),
        (BEGIN_MS, b"\0\1garbage", b""),
    ]
    partition(directory, "__consumer_offsets-0", {0: [made(0, records)]})
    high_watermarks(directory, ends | {"__consumer_offsets-0": len(records)})
    return {}
