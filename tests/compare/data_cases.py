"""Cases: records and where they are (Produce, Fetch, ListOffsets, OffsetForLeaderEpoch,
DeleteRecords, InitProducerId, DescribeProducers).

Each function is called for one side at one version; the names of the functions are those of the
APIs in snake_case.
"""

from __future__ import annotations

import struct
from typing import Any

from tests.compare import transaction_cases
from tests.compare.side import Side
from twisted_broker.wire.records import batch_crc

HOUR_MS = 3_600_000


def patched(data: bytes, position: int, layout: str, value: int, fix_crc: bool = True) -> bytes:
    """A batch with one field overwritten."""
    buffer = bytearray(data)
    struct.pack_into(layout, buffer, position, value)
    if fix_crc:
        struct.pack_into(">I", buffer, 17, batch_crc(buffer, 0, len(buffer)))
    return bytes(buffer)


def produced(side: Side, label: str, topic: str, records: Any, **more: Any) -> Any:
    part = {"index": more.pop("partition", 0), "records": records}
    wanted = {
        "name": topic,
        "topic_id": side.id_of(topic),
        "partition_data": [part] * more.pop("times", 1),
    }
    fields = {"acks": -1, "timeout_ms": 5000, "topic_data": [wanted] * more.pop("topics", 1)}
    return side.ask(label, **(fields | more))


def produce(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    good = side.batch(b"a", b"b", b"c")
    now = side.now_ms
    for acks in (-1, 1):
        produced(side, f"acks {acks}", topic, good, acks=acks)
    produced(side, "acks 2", topic, good, acks=2)
    produced(side, "no such topic", "nobody", good)
    produced(side, "no such partition", topic, good, partition=9)
    produced(side, "partition -1", topic, good, partition=-1)
    produced(side, "no records", topic, None)
    produced(side, "empty records", topic, b"")
    produced(side, "no topics", topic, good, topic_data=[])
    produced(side, "no partitions", topic, good, times=0)
    wanted = {"name": topic, "topic_id": side.id_of(topic)}
    both = [{"index": number, "records": good} for number in (0, 1)]
    side.ask(
        "two partitions",
        acks=-1,
        timeout_ms=5000,
        topic_data=[wanted | {"partition_data": both}],
    )
    for codec, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        produced(side, f"codec {name}", topic, side.batch(b"x" * 100, codec=codec))
    produced(side, "codec 7", topic, patched(good, 21, ">h", 7))
    _broken_batches(side, topic, good)
    _times(side, now)
    compacted = side.topic("compacted", cleanup_policy="compact")
    produced(side, "compacted with key", compacted, good)
    produced(side, "compacted without key", compacted, side.batch(b"a", b"b", key=None))
    stamped = side.topic("stamped", message_timestamp_type="LogAppendTime")
    produced(side, "LogAppendTime", stamped, good, tidy=_append_time)
    small = side.topic("small", max_message_bytes="200")
    produced(side, "too large", small, side.batch(b"x" * 300))
    produced(side, "at the limit", small, side.batch(b"x" * 100))
    alone = side.topic("alone", min_insync_replicas="2")
    for acks in (-1, 1):
        produced(side, f"too few replicas, acks {acks}", alone, good, acks=acks)
    _idempotent(side)


def _append_time(answer: Any) -> None:
    part = answer.responses[0].partition_responses[0]
    part.log_append_time_ms = min(part.log_append_time_ms, 1)


def _broken_batches(side: Side, topic: str, good: bytes) -> None:
    produced(side, "flipped bit", topic, patched(good, 70, ">B", good[70] ^ 1, fix_crc=False))
    produced(side, "magic 3", topic, patched(good, 16, ">b", 3, fix_crc=False))
    produced(side, "magic 1", topic, patched(good, 16, ">b", 1, fix_crc=False))
    produced(side, "magic 0", topic, patched(good, 16, ">b", 0, fix_crc=False))
    produced(side, "magic -1", topic, patched(good, 16, ">b", -1, fix_crc=False))
    produced(side, "base offset 5", topic, patched(good, 0, ">q", 5))
    produced(side, "two batches", topic, good + good)
    for size in (5, 11, 12, 17, 20, 40, 60, 61, len(good) - 1):
        produced(side, f"cut to {size}", topic, good[:size])
    for more in (1, 11, 12, 30):
        produced(side, f"{more} bytes more", topic, good + bytes(more))
    for length in (-1, 0, 13, 14, 49, 2**31 - 1):
        produced(side, f"length {length}", topic, patched(good, 8, ">i", length, fix_crc=False))
    for count in (-1, 0, 2, 4, 2**31 - 1):
        produced(side, f"count {count}", topic, patched(good, 57, ">i", count))
    for delta in (-1, 0, 3, 2**31 - 1):
        produced(side, f"last offset delta {delta}", topic, patched(good, 23, ">i", delta))
    produced(side, "control batch", topic, patched(good, 21, ">h", 0x20))
    produced(side, "transactional", topic, patched(good, 21, ">h", 0x10))
    produced(side, "garbage", topic, b"\x55" * 80)
    produced(side, "zeros", topic, bytes(80))


def _times(side: Side, now: int) -> None:
    topic = side.topic("times")
    produced(
        side, "one record 2 h ahead", topic, side.batch(b"a", b"b", stamps=[now, now + 2 * HOUR_MS])
    )
    produced(
        side,
        "first record 2 h ahead",
        topic,
        side.batch(b"a", b"b", stamps=[now + 2 * HOUR_MS, now]),
    )
    all_ahead = [now + 2 * HOUR_MS, now + 3 * HOUR_MS]
    produced(side, "all ahead", topic, side.batch(b"a", b"b", stamps=all_ahead))
    produced(side, "no time", topic, side.batch(b"a", stamps=[-1]))
    produced(side, "some without time", topic, side.batch(b"a", b"b", stamps=[-1, now]))
    produced(side, "time 0", topic, side.batch(b"a", stamps=[0]))
    data = side.batch(b"a", b"b", stamps=[now, now + 1000])
    produced(side, "largest time overstated", topic, patched(data, 35, ">q", now + 9 * HOUR_MS))
    produced(side, "base above the largest", topic, patched(data, 35, ">q", now - HOUR_MS))
    late = side.batch(b"a", b"b", stamps=[now, now + 2 * HOUR_MS])
    late = patched(late, 35, ">q", now)
    produced(side, "largest time understated", side.topic("understated"), late)
    past = side.topic("past", message_timestamp_before_max_ms="600000")
    produced(
        side,
        "one record too old",
        past,
        side.batch(b"a", b"b", b"c", stamps=[now, now - HOUR_MS, now]),
    )
    produced(side, "fresh records", past, side.batch(b"a", stamps=[now]))


def _idempotent(side: Side) -> None:
    topic = side.topic("idempotent")

    def sent(label: str, sequence: int, epoch: int = 0, producer_id: int = 4711) -> None:
        data = side.batch(
            b"a", b"b", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        produced(side, f"idempotent: {label}", topic, data)

    sent("first", 0)
    sent("next", 2)
    sent("again", 2)
    sent("first again", 0)
    sent("gap", 9)
    sent("new epoch, not from 0", 7, epoch=1)
    sent("new epoch", 0, epoch=1)
    sent("old epoch", 4, epoch=0)
    sent("unknown producer in the middle", 5, producer_id=99)
    sent("no sequence", -1, producer_id=98)


def fetched(side: Side, label: str, topic: str, offset: int, **more: Any) -> Any:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    part |= {name: more.pop(name) for name in list(more) if name in _PARTITION_FIELDS}
    wanted = {"topic": topic, "topic_id": side.id_of(topic), "partitions": [part]}
    fields: dict[str, Any] = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
    }
    fields["topics"] = [wanted] * more.pop("times", 1)
    return side.ask(label, **(fields | more))


_PARTITION_FIELDS = (
    "partition",
    "current_leader_epoch",
    "last_fetched_epoch",
    "log_start_offset",
    "partition_max_bytes",
)


def fetch(side: Side, version: int) -> None:
    topic = side.topic()
    side.write(
        topic, side.batch(b"a", b"b", b"c"), side.batch(b"d" * 500), side.batch(b"e", codec=1)
    )
    empty = side.topic("empty")
    for offset in (0, 1, 3, 4, 5, 6, -1, -5, 2**62):
        fetched(side, f"from {offset}", topic, offset)
    fetched(side, "empty", empty, 0)
    fetched(side, "no such topic", "nobody", 0)
    fetched(side, "no such partition", topic, 0, partition=7)
    fetched(side, "partition -1", topic, 0, partition=-1)
    fetched(side, "named twice", topic, 0, times=2)
    for limit in (0, 1, 100, 700, -1):
        fetched(side, f"partition_max_bytes {limit}", topic, 0, partition_max_bytes=limit)
        fetched(side, f"max_bytes {limit}", topic, 0, max_bytes=limit)
    fetched(side, "waits for more", topic, 5, max_wait_ms=50, min_bytes=10)
    for epoch in (-2, -1, 0, 1, 7):
        fetched(side, f"leader epoch {epoch}", topic, 0, current_leader_epoch=epoch)
        fetched(side, f"last fetched epoch {epoch}", topic, 2, last_fetched_epoch=epoch)
    fetched(side, "committed records", topic, 0, isolation_level=1)
    fetched(side, "isolation level 7", topic, 0, isolation_level=7)
    for replica in (-2, -3, 5, 1):
        state = {"replica_id": replica, "replica_epoch": -1}
        fetched(side, f"replica {replica}", topic, 0, replica_id=replica, replica_state=state)
    fetched(side, "a rack", topic, 0, rack_id="r1")
    fetched(side, "no topics", topic, 0, times=0)
    if version >= 7:
        _sessions(side, topic)


def _sessions(side: Side, topic: str) -> None:
    session = 0

    def known(answer: Any) -> None:
        nonlocal session
        session = session or answer.session_id
        answer.session_id = 1 if answer.session_id and answer.session_id == session else 0

    fetched(side, "new session", topic, 0, session_epoch=0, tidy=known)
    here = {"session_id": session, "tidy": known}
    fetched(side, "session, nothing named", topic, 5, session_epoch=1, times=0, **here)
    fetched(side, "session, from 1", topic, 1, session_epoch=2, **here)
    fetched(side, "session, epoch again", topic, 1, session_epoch=2, **here)
    fetched(side, "session, epoch ahead", topic, 1, session_epoch=9, **here)
    forgotten = [{"topic": topic, "topic_id": side.id_of(topic), "partitions": [0]}]
    fetched(
        side,
        "session, forgotten",
        topic,
        0,
        session_epoch=3,
        **here,
        times=0,
        forgotten_topics_data=forgotten,
    )
    fetched(side, "session ends", topic, 0, session_epoch=-1, **here)
    fetched(side, "session is gone", topic, 0, session_epoch=4, **here)
    fetched(side, "no such session", topic, 0, session_id=77, session_epoch=1)


def list_offsets(side: Side, version: int) -> None:
    topic = side.topic()
    now = side.now_ms
    stamps = [now, now + 5000, now + 2000]
    side.write(
        topic, side.batch(b"a", b"b", b"c", stamps=stamps), side.batch(b"d", stamps=[now + 3000])
    )
    empty = side.topic("empty")

    def listed(
        label: str, timestamp: int, name: str = topic, partition: int = 0, **more: Any
    ) -> None:
        part = {
            "partition_index": partition,
            "timestamp": timestamp,
            "current_leader_epoch": more.pop("epoch", -1),
            "max_num_offsets": more.pop("count", 1),
        }
        wanted = {"name": name, "partitions": [part] * more.pop("times", 1)}
        side.ask(label, **({"replica_id": -1, "topics": [wanted], "timeout_ms": 1000} | more))

    for timestamp in (
        *range(-8, 1),
        now - 1,
        now,
        now + 1000,
        now + 2500,
        now + 5000,
        now + 5001,
        2**62,
        -(2**63),
    ):
        listed(f"timestamp {timestamp - now if timestamp > 9 else timestamp}", timestamp)
        listed(
            f"empty, timestamp {timestamp - now if timestamp > 9 else timestamp}", timestamp, empty
        )
    for epoch in (-2, 0, 1):
        listed(f"leader epoch {epoch}", -1, epoch=epoch)
    for replica in (-2, -3, 1, 5):
        listed(f"replica {replica}", -1, replica_id=replica)
    listed("committed records", -1, isolation_level=1)
    listed("isolation level 9", -1, isolation_level=9)
    listed("no such topic", -1, "nobody")
    listed("no such partition", -1, partition=8)
    listed("bad name", -1, "a b")
    listed("named twice", -1, times=2)
    listed("no partitions", -1, times=0)
    if version == 0:
        listed("five of them", -1, count=5)


def offset_for_leader_epoch(side: Side, version: int) -> None:
    topic = side.topic()
    side.write(topic, side.batch(b"a", b"b"))

    def ended(label: str, epoch: int, current: int = -1, name: str = topic, **more: Any) -> None:
        part = {
            "partition": more.pop("partition", 0),
            "leader_epoch": epoch,
            "current_leader_epoch": current,
        }
        wanted = {"topic": name, "partitions": [part] * more.pop("times", 1)}
        side.ask(label, **({"replica_id": -1, "topics": [wanted]} | more))

    for epoch in (-2, -1, 0, 1, 5):
        ended(f"epoch {epoch}", epoch)
        ended(f"current epoch {epoch}", 0, epoch)
    ended("no such topic", 0, name="nobody")
    ended("no such partition", 0, partition=4)
    ended("partition -1", 0, partition=-1)
    ended("named twice", 0, times=2)
    for replica in (-2, 1, 5):
        ended(f"replica {replica}", 0, replica_id=replica)
    side.ask("no topics", replica_id=-1, topics=[])


def delete_records(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    side.write(topic, side.batch(b"a", b"b", b"c"), side.batch(b"d", b"e"))

    def deleted(label: str, offset: int, name: str = topic, partition: int = 0) -> None:
        part = {"partition_index": partition, "offset": offset}
        side.ask(label, topics=[{"name": name, "partitions": [part]}], timeout_ms=2000)

    for offset in (2, 1, 3, -2, 99, -1):
        deleted(f"up to {offset}", offset)
    deleted("empty partition", 0, partition=1)
    deleted("no such partition", 0, partition=5)
    deleted("no such topic", 0, "nobody")
    deleted("bad name", 0, "a b")
    compacted = side.topic("compacted", cleanup_policy="compact")
    deleted("compacted", 0, compacted)
    twice = {"name": topic, "partitions": [{"partition_index": 0, "offset": 1}] * 2}
    side.ask("named twice", topics=[twice], timeout_ms=2000)
    side.ask("no topics", topics=[], timeout_ms=2000)


def _producer_id(answer: Any) -> None:
    answer.producer_id = min(answer.producer_id, 1)


def init_producer_id(side: Side, version: int) -> None:
    def asked(label: str, **fields: Any) -> None:
        given = {"transactional_id": None, "transaction_timeout_ms": 60_000} | fields
        side.ask(label, _producer_id, **given)

    transaction_cases.ready(side)
    side.settled(
        "InitProducerId",
        lambda answer: not answer.error_code,
        transactional_id=None,
        transaction_timeout_ms=60_000,
    )
    asked("an id")
    asked("a timeout of 0", transaction_timeout_ms=0)
    asked("a timeout of -1", transaction_timeout_ms=-1)
    asked("empty transactional id", transactional_id="")
    asked("transactional id", transactional_id=side.name())
    asked("transactional id again", transactional_id=side.name())
    for timeout_ms in (-1, 0, 1, 900_000, 900_001):
        label = f"transactional id, a timeout of {timeout_ms}"
        asked(label, transactional_id=side.name("t"), transaction_timeout_ms=timeout_ms)
    if version >= 3:
        asked("id and epoch", producer_id=5, producer_epoch=3)
        asked("id without epoch", producer_id=5)
        asked("epoch without id", producer_epoch=3)
        who = transaction_cases.producer(side, "u")
        asked("transactional id, as it is", **who)
        asked("transactional id, an epoch behind", **who)
        asked("transactional id, an epoch ahead", **(who | {"producer_epoch": 9}))
        asked("transactional id of another", **(who | {"producer_id": 987_654_321}))
        asked("transactional id that is unknown", **(who | {"transactional_id": side.name("v")}))


def describe_producers(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    side.write(topic, side.batch(b"a", b"b", producer_id=77, producer_epoch=3, base_sequence=0))

    def described(label: str, *partitions: int, name: str = topic) -> None:
        side.ask(label, topics=[{"name": name, "partition_indexes": list(partitions)}])

    described("a producer", 0)
    described("none", 1)
    described("no such partition", 0, 9, -1)
    described("no such topic", 0, name="nobody")
    for name in ("a b", "", "."):
        described(f"name {name!r}", 0, name=name)
    described("no partitions")
    side.ask("no topics", topics=[])
