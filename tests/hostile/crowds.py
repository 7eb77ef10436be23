"""Classes that are in the number of something: connections, bytes, names, users, topics."""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from tests.compare.side import CLOSED, SILENT
from tests.hostile.records import TOPIC, batch_of, prepare
from tests.hostile.requests import STRANGERS_LARGEST, outcome
from tests.hostile.run import Round
from tests.hostile.target import LARGEST, NONE, Wire, framed, head, kind_of
from tests.wire.test_records_hostile import GOOD, record
from twisted_broker.wire.record_builder import build_batch  # noqa: F401

MIB = 1 << 20
MOST_UNREAD = 64 * MIB
"""Requests that a server may take from a client that reads no answer."""
STALLED_HANDSHAKE = b"\x16\x03\x01\x40\x00\x01"


def slow_clients(one: Round) -> None:
    count, seconds = one.many(100, 10), one.many(10, 0) or 0.3
    one.says(f"{count} connections of each: idle, dripping a byte at a time, {seconds:g} s")
    with ExitStack() as stack:
        idle = [stack.enter_context(one.wire()) for _ in range(count)]
        dripping = [stack.enter_context(one.wire()) for _ in range(count)]
        if one.target.address.ca:
            one.says("stalled in the handshake of TLS")
            for _ in range(count):
                wire = stack.enter_context(one.target.stranger(bare=True))
                wire.send(STALLED_HANDSHAKE)
        drip = framed(head(18, 0) + bytes(100_000))
        for number in range(int(seconds / 0.05)):
            for wire in dripping:
                wire.send(drip[number : number + 1])
            time.sleep(0.05)
        one.note(dripping[0].kind(0.1), count)
        one.note(idle[0].kind(0.1), count)
    _never_reading(one)


def _never_reading(one: Round) -> None:
    count = one.many(8, 1)
    if one.wants_login:
        frame = framed(one.target.request("ApiVersions", 0))
    else:
        frame = framed(one.target.request("DescribeConfigs", 1, resources=[_broker(one)]))
    one.says(f"{count} that send requests and read no answer")
    data = frame * (MIB // len(frame))
    with ExitStack() as stack:
        wires = [stack.enter_context(one.wire()) for _ in range(count)]
        for wire in wires:
            sent = _until_blocked(wire, data)
            one.must(sent < MOST_UNREAD, f"{sent >> 20} MiB were taken of who reads nothing")
        one.note("(not read from any more, or closed)", count)
        time.sleep(one.many(3, 0))


def _broker(one: Round) -> dict[str, Any]:
    """The resource that all its settings are of."""
    with one.wire() as wire:
        (broker, *_) = wire.call("Metadata", 4, {"topics": []}).brokers
    return {"resource_type": 4, "resource_name": str(broker.node_id), "configuration_keys": None}


def _until_blocked(wire: Wire, data: bytes) -> int:
    """Sends until nothing more is taken for half a second; the bytes."""
    wire.socket.settimeout(0.5)
    sent = 0
    try:
        while sent < MOST_UNREAD:
            sent += wire.socket.send(data)
    except OSError:  # it takes no more, or has ended it
        pass
    return sent


def connection_floods(one: Round) -> None:
    count = one.many(1000, 40)
    one.says(f"{count} connections at once; {2 * count} with bytes of HTTP, of TLS or none")
    held: list[Wire] = []
    try:
        for _ in range(count):
            try:
                held.append(one.target.stranger())
            except OSError:
                one.note("(refused)")
        readable = select.select([wire.socket for wire in held], [], [], 0.2)[0]
        one.note(CLOSED, len(readable))
        one.note("(open)", len(held) - len(readable))
    finally:
        for wire in held:
            wire.close()
    for number in range(2 * count):
        try:
            with one.target.stranger(bare=True) as wire:
                wire.send((b"GET / HTTP/1.1\r\n\r\n", STALLED_HANDSHAKE, b"")[number % 3])
                if number % 50 == 0:
                    wire.kind(0.1)
        except OSError:
            one.note("(refused)")
    with one.wire() as wire:  # it serves whoever comes then
        one.must(outcome(wire, head(18, 0), 10.0) == NONE, "nobody is served after the flood")


def request_queue(one: Round) -> None:
    size, count = (STRANGERS_LARGEST, one.many(400, 20))
    if not one.wants_login:
        size, count = 8 * MIB, one.many(64, 6)
    one.says(f"{count} requests of {size >> 10} KiB that stop before their end")
    body = bytes(size - 1000)
    with ExitStack() as stack:
        wires = [stack.enter_context(one.wire()) for _ in range(count)]
        taken = 0
        for wire in wires:
            wire.socket.settimeout(0.5 if one.whole else 0.2)
            try:
                wire.send(struct.pack(">i", size) + head(0, 3) + body)
                taken += 1
            except TimeoutError:
                one.note("(not read for now)")
            except OSError:
                one.note(CLOSED)
        one.note("(taken)", taken)
        time.sleep(one.many(2, 0))


def announced_lengths(one: Round) -> None:
    """A long request of another is served meanwhile: within a second or two where the memory is
    full of what drips.
    """
    size = STRANGERS_LARGEST if one.wants_login else LARGEST
    first = min(size - 100_000, 3 * MIB)
    drips = one.many(120, 90) if one.wants_login else one.many(64, 48)
    one.says(
        f"lengths of {size:,} with four bytes each; {drips} with {first >> 10} KiB, and then a drip"
    )
    with ExitStack() as stack:
        for _ in range(one.many(64, 2)):
            stack.enter_context(one.wire()).send(struct.pack(">i", size) + head(0, 3)[:4])
        one.must(_long_request(one) < 1.0, "a long request waited for what was only announced")
        wires = [stack.enter_context(one.wire()) for _ in range(drips)]
        for wire in wires:
            wire.socket.settimeout(0.1)
            with suppress(OSError):  # not read from for now, or closed: as it should be
                wire.send(struct.pack(">i", size) + head(0, 3) + bytes(first))
        for _ in range(one.many(3, 1)):
            for wire in wires:
                with suppress(OSError):
                    wire.send(bytes(1000))
            waited = _long_request(one)
            one.must(waited < 4.0, f"a long request waited {waited:.1f} s for what drips")
        ended = sum(wire.kind(0.001) == CLOSED for wire in wires)
        one.note(CLOSED, ended)
        one.note("(open)", drips - ended)


def _long_request(one: Round) -> float:
    """The seconds until one of 32 KiB and more is answered: as long as a login may be."""
    name = b"x" * 32_767
    with one.wire() as wire:
        began = time.monotonic()
        wire.send(framed(struct.pack(">hhih", 18, 0, 7, len(name)) + name)[:32_000])
        time.sleep(0.05)  # a request that comes in one piece takes no memory
        wire.send(framed(struct.pack(">hhih", 18, 0, 7, len(name)) + name)[32_000:])
        one.must(kind_of(head(18, 0), wire.frame(30)) == NONE, "a long request is not answered")
        return time.monotonic() - began - 0.05


def amplification(one: Round) -> None:
    if one.wants_login:
        one.says("ApiVersions, 10,000 times on one connection")
        with one.wire() as wire:
            one.note(_pipelined(wire, [framed(head(18, 0))] * 10_000))
        return
    name = struct.pack(">h", len(TOPIC)) + TOPIC.encode()
    prepare(one.target, TOPIC)
    broker = _broker(one)
    node = str(broker["resource_name"]).encode()
    for count in (99_000, 1_000_000) if one.whole else (3000,):
        number = struct.pack(">i", count)
        part = struct.pack(">iiqi", 1, 0, 0, 1 << 20)
        one.says(f"one topic {count:,} times in Metadata, ListOffsets, Fetch")
        for what, frame in (
            ("Metadata", head(3, 4) + number + name * count + b"\0"),
            (
                "ListOffsets",
                head(2, 1) + b"\xff" * 4 + number + (name + struct.pack(">iiq", 1, 0, -1)) * count,
            ),
            (
                "Fetch",
                head(1, 4)
                + struct.pack(">iiiib", -1, 0, 0, 50 << 20, 0)
                + number
                + (name + part) * count,
            ),
        ):
            kind = one.target.result(frame, one.wire, 60)
            one.must(kind != SILENT, f"{what}, {count} times: no answer in 60 s")
            one.note(kind)
    count = one.many(2000, 10)
    one.says(f"all settings of the broker {count:,} times")
    resource = b"\4" + struct.pack(">h", len(node)) + node + b"\xff" * 4
    frame = head(32, 1) + struct.pack(">i", count) + resource * count + b"\1"
    one.note(one.target.result(frame, one.wire, 60))


def _pipelined(wire: Wire, frames: Iterable[bytes], window: int = 50) -> str:
    """Sends all, with at most `window` answers due; the kind of the last, or of the end."""
    batch: list[bytes] = []

    def exchange() -> str:
        kind = NONE
        wire.socket.settimeout(30)
        wire.send(b"".join(batch))
        for frame in batch:
            kind = kind_of(frame[4:], wire.frame(30))
        batch.clear()
        return kind

    kind = NONE
    try:
        for frame in frames:
            batch.append(frame)
            if len(batch) == window:
                kind = exchange()
        return exchange() if batch else kind
    except TimeoutError:
        return SILENT
    except OSError:
        return CLOSED


def per_client_state(one: Round) -> None:
    count = one.many(20_000, 200)
    if one.wants_login:
        one.says(f"{count:,} client ids")
        ids = (framed(head(18, 0, f"client-{n}")) for n in range(count))
        with one.wire() as wire:
            one.note(_pipelined(wire, ids))
        return
    prepare(one.target, TOPIC)
    deadline = time.monotonic() + 30
    while (
        one.target.result(one.target.request("FindCoordinator", 2, key="g", key_type=0), one.wire)
        != NONE
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    for what, frames in _states(one, count):
        one.says(f"{count:,} {what}")
        with one.wire() as wire:
            kind = _pipelined(wire, frames)
        one.must(kind != SILENT, f"{what}: no answer")
        one.note(f"{what}: {kind}")


def _states(one: Round, count: int) -> Iterator[tuple[str, Iterator[bytes]]]:
    request = one.target.request
    part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    commits = [{"name": TOPIC, "partitions": [part]}]
    fetched = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}
    yield "client ids", (framed(head(18, 0, f"client-{n}")) for n in range(count))
    yield (
        "groups",
        (
            framed(request("OffsetCommit", 8, group_id=f"g-{n}", topics=commits))
            for n in range(count)
        ),
    )
    yield (
        "members of a group",
        (
            framed(
                request(
                    "JoinGroup",
                    5,
                    group_id="crowd",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    protocol_type="consumer",
                    protocols=[{"name": "range", "metadata": b""}],
                )
            )
            for _ in range(count)
        ),
    )
    yield (
        "transactional ids",
        (
            framed(
                request(
                    "InitProducerId",
                    2,
                    transactional_id=f"t-{n}",
                    transaction_timeout_ms=10_000,
                )
            )
            for n in range(count // 4)
        ),
    )
    yield (
        "fetch sessions",
        (
            framed(
                request(
                    "Fetch",
                    11,
                    max_bytes=100,
                    session_epoch=0,
                    topics=[{"topic": TOPIC, "partitions": [fetched]}],
                )
            )
            for _ in range(count)
        ),
    )
    yield "producers of one partition", (_idempotent(one, n) for n in range(count))


def _idempotent(one: Round, number: int) -> bytes:
    batch = batch_of(record(GOOD), producer=(1_000_000 + number, 0, 0))
    part = {"index": 0, "records": batch}
    data = [{"name": TOPIC, "partition_data": [part]}]
    return framed(one.target.request("Produce", 9, acks=1, timeout_ms=1000, topic_data=data))


def admin_floods(one: Round) -> None:
    if one.wants_login:
        one.says("CreateTopics before login")
        kind = one.result(one.target.request("CreateTopics", timeout_ms=1000), "CreateTopics")
        one.must(kind == CLOSED, f"CreateTopics before login: {kind}")
        return
    prepare(one.target, TOPIC)
    one.says("a topic of 1,000,000 and of 2^31-1 partitions, of 32,767 replicas")
    for partitions, replicas in ((1_000_000, 1), (2**31 - 1, 1), (1, 32_767), (1_000_000, -1)):
        topic = {
            "name": "hostile-wide",
            "num_partitions": partitions,
            "replication_factor": replicas,
        }
        frame = one.target.request("CreateTopics", topics=[topic], timeout_ms=10_000)
        what = f"{partitions} partitions, {replicas} replicas"
        one.must(one.result(frame, what) != NONE, f"{what} are created")
    wanted = {"name": TOPIC, "count": 1_000_000}
    frame = one.target.request("CreatePartitions", topics=[wanted], timeout_ms=10_000)
    one.must(one.result(frame, "CreatePartitions") != NONE, "1,000,000 partitions are added")
    count = one.many(50_000, 300)
    one.says(f"{count:,} topics in one request; as many settings of one; as many ACLs, quotas")
    topics = [
        {"name": f"hostile-{n}", "num_partitions": 1, "replication_factor": 1} for n in range(count)
    ]
    config = [{"name": f"x.{n}", "config_operation": 0, "value": "1"} for n in range(count)]
    acl = {
        "resource_type": 2,
        "resource_name": "x",
        "resource_pattern_type": 3,
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    entity = {"entity_type": "client-id"}
    ops = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
    resource = {"resource_type": 2, "resource_name": TOPIC, "configs": config}
    for api, version, fields in (
        ("CreateTopics", 5, {"topics": topics, "timeout_ms": 10_000}),
        ("IncrementalAlterConfigs", 1, {"resources": [resource]}),
        ("CreateAcls", 3, {"creations": [{**acl, "principal": f"User:{n}"} for n in range(count)]}),
        (
            "AlterClientQuotas",
            1,
            {
                "entries": [
                    {"entity": [{**entity, "entity_name": f"c-{n}"}], "ops": ops}
                    for n in range(count)
                ]
            },
        ),
    ):
        kind = one.target.result(one.target.request(api, version, **fields), one.wire, 60)
        one.must(kind != SILENT, f"{api} of {count}: no answer")
        one.note(kind)
