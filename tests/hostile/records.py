"""Classes that are in the records of a Produce: batches that lie, and those that inflate."""

from __future__ import annotations

import struct
import threading
import time

from crc32c import crc32c

from tests.hostile.run import Round
from tests.hostile.target import CLOSED, NONE, Target
from tests.wire.test_compression import BOMBS
from tests.wire.test_records_hostile import BROKEN, GOOD, record
from twisted_broker.wire.batch_header import CRC_AT
from twisted_broker.wire.compression import compress
from twisted_broker.wire.record_builder import build_batch

TOPIC, COMPACTED = "hostile-records", "hostile-compacted"
_CRC_FROM = CRC_AT + 4
PATIENCE = 30.0
BEHIND = "one byte more"  # Kafka does not look behind the last whole batch of a request
CONTROL, TRANSACTIONAL = 0x20, 0x10


def prepare(target: Target, name: str, **configs: str) -> None:
    """A topic of one partition, once it is served; `_` for `.` in settings."""
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": settings}
    part = {"partition_index": 0, "timestamp": -1}
    asked = {"replica_id": -1, "topics": [{"name": name, "partitions": [part]}]}
    with target.logged_in() as wire:
        version = target.version("CreateTopics")
        wire.call("CreateTopics", version, {"topics": [wanted], "timeout_ms": 20_000}, PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while wire.call("ListOffsets", 6, asked).topics[0].partitions[0].error_code:
            assert time.monotonic() < deadline, f"{name} is not served"
            time.sleep(0.05)


def produce(target: Target, topic: str, batch: bytes, acks: int = -1) -> bytes:
    part = {"index": 0, "records": batch}
    return target.request(
        "Produce",
        9,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[{"name": topic, "partition_data": [part]}],
    )


def batch_of(
    payload: bytes,
    count: int = 1,
    *,
    attributes: int = 0,
    delta: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """With a right CRC around whatever it holds, of now."""
    now = int(time.time() * 1000)
    delta = count - 1 if delta is None else delta
    return build_batch(0, -1, attributes, delta, now, now, *producer, count, payload)


def patched(batch: bytes, at: int, value: bytes, *, crc: bool = True) -> bytes:
    """Some bytes of the header changed; `crc`: the checksum made right again."""
    data = bytearray(batch)
    data[at : at + len(value)] = value
    if crc:
        struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[_CRC_FROM:])))
    return bytes(data)


def lying_headers() -> dict[str, bytes]:
    good = batch_of(record(GOOD))
    return {
        "a wrong CRC": patched(good, CRC_AT, b"\0\0\0\1", crc=False),
        "a flipped bit": patched(good, len(good) - 1, b"\xff", crc=False),
        "magic 3": patched(good, 16, b"\3"),
        "magic -1": patched(good, 16, b"\xff"),
        "length -1": patched(good, 8, b"\xff" * 4),
        "length 0": patched(good, 8, bytes(4)),
        "length 2^31-1": patched(good, 8, b"\x7f\xff\xff\xff"),
        "one byte less": good[:-1],
        BEHIND: good + b"\0",
        "two batches": good + good,
        "no records": batch_of(b"", 0),
        "count 2^31-1": batch_of(record(GOOD), 2**31 - 1, delta=2**31 - 2),
        "count -1": batch_of(record(GOOD), -1, delta=0),
        "a delta that overflows": batch_of(record(GOOD), 1, delta=2**31 - 1),
        "delta -1": batch_of(record(GOOD), 1, delta=-1),
        "a control batch": batch_of(record(GOOD), attributes=CONTROL),
        "a compressed control batch": batch_of(
            compress(1, record(GOOD)), attributes=CONTROL | TRANSACTIONAL | 1
        ),
        "transactional, of nobody": batch_of(record(GOOD), attributes=TRANSACTIONAL),
        "a sequence before 0": batch_of(record(GOOD), producer=(1, 0, -2)),
        "codec 7": batch_of(record(GOOD), attributes=7),
        "nothing": b"",
        "61 bytes": bytes(61),
    }


def record_batches(one: Round) -> None:
    if one.wants_login:
        one.says("a batch before login")
        one.must(one.result(produce(one.target, TOPIC, b""), "Produce") == CLOSED, "is served")
        return
    prepare(one.target, TOPIC)
    prepare(one.target, COMPACTED, cleanup_policy="compact")
    cases = lying_headers()
    one.says(f"{len(cases)} headers that lie")
    with one.wire():
        for what, batch in cases.items():
            kind = one.result(produce(one.target, TOPIC, batch), what)
            one.must(kind != NONE or what == BEHIND, f"{what} is accepted")
    codecs = range(5) if one.whole else (4,)
    one.says(f"{len(BROKEN) * len(codecs)} batches whose records lie, with {len(codecs)} codecs")
    for codec in codecs:
        for what, (payload, count) in BROKEN.items():
            batch = batch_of(compress(codec, payload), count, attributes=codec)
            kind = one.result(produce(one.target, COMPACTED, batch), f"{what}, codec {codec}")
            one.must(kind != NONE, f"{what}, codec {codec}, is accepted")


def decompression_bombs(one: Round) -> None:
    if one.wants_login:
        one.says("none: nothing is decompressed before login")
        return
    prepare(one.target, TOPIC)
    prepare(one.target, COMPACTED, cleanup_policy="compact")
    names = list(BOMBS) if one.whole else ["zstd", "lz4 that declares 2^63 bytes"]
    side_by_side = one.many(4, 1)
    one.says(
        f"{len(names)} payloads of up to 1 MiB that inflate to as much as 32 GiB, "
        f"{side_by_side} times at once, to a topic that is compacted and one that is not"
    )
    frames = []
    for name in names:
        codec, make = BOMBS[name]
        payload = make()[:1_000_000]
        for topic in (COMPACTED, TOPIC):
            for count in (1, 100_000):
                batch = batch_of(payload, count, attributes=codec)
                frames.append((f"{name} to {topic}", produce(one.target, topic, batch)))
    for what, frame in frames:
        kinds: list[str] = []
        threads = [
            threading.Thread(target=lambda: kinds.append(one.target.result(frame, one.wire, 60)))  # noqa: B023  joined below
            for _ in range(side_by_side)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for kind in kinds:
            one.note(kind)
            one.must(kind != NONE or COMPACTED not in what, f"{what} is accepted")
