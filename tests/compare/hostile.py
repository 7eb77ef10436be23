"""Damaged requests beside Apache Kafka: `python -m tests.compare.run HOST:PORT --hostile COUNT`.

1. The requests of the cases, each API at its highest version, are collected from both sides; of a
   pair of the same length the same random bits are flipped (the same `--seed`, the same bits), and
   each is sent on a connection of its own.
2. Compared is the kind of result: an answer with its error codes, a closed connection, or no answer
   within a moment. What differs is printed, by API and kind; it is for reading, not for a status.
3. Status 1: no answer from ours where Kafka has one, or a connection of the next question that is
   not served. (A traceback in our log is looked for by the caller.)

Left out is what would change the two brokers themselves: a flipped bit in UnregisterBroker may name
the broker, one in settings any setting.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import defaultdict
from collections.abc import Callable

from tests.compare.differences import flat
from tests.compare.side import CLOSED, ROUTE_OF, SILENT, Side
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.header import decode_request_header, decode_response_header
from twisted_broker.wire.schema import decode

LEFT_OUT = ("UnregisterBroker", "AlterConfigs", "IncrementalAlterConfigs")
SECONDS = 2.0
MOST_FLIPS = 4
_ROUTE_OF_KEY = {route.api_key: route for route in ROUTE_OF.values()}


def collected(
    kafka: Side, ours: Side, cases: dict[str, Callable[[Side, int], None]]
) -> list[tuple[bytes, bytes]]:
    """Pairs of the same request, as each side is asked it."""
    pairs = []
    for name, case in sorted(cases.items()):
        if name in LEFT_OUT:
            continue
        key = ROUTE_OF[name].api_key
        version = min(side.versions.get(key, (0, -1))[1] for side in (kafka, ours))
        for side in (kafka, ours):
            side.begin(name, version)
            side.frames = []
            case(side, version)
        pairs += [
            (first, second)
            for first, second in zip(kafka.frames, ours.frames, strict=False)
            if len(first) == len(second)
        ]
    return pairs


def hostile(
    kafka: Side, ours: Side, pairs: list[tuple[bytes, bytes]], count: int, seed: int
) -> int:
    """Sends `count` damaged pairs; prints what differs. 1 for a hang of ours, else 0."""
    chance = random.Random(seed)
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    same = hangs = 0
    for number in range(count):
        first, second = chance.choice(pairs)
        bits = [chance.randrange(8 * len(first)) for _ in range(chance.randint(1, MOST_FLIPS))]
        results = [
            result_of(side, damaged(frame, bits))
            for side, frame in ((kafka, first), (ours, second))
        ]
        if results[0] == results[1]:
            same += 1
        else:
            place = f"#{number} {len(second)} bytes, bits {sorted(bits)}"
            found[name_of(second), results[0], results[1]].append(place)
        hangs += results[1] == SILENT and results[0] != SILENT
        if number % 50 == 49:
            print(f"{number + 1}/{count} damaged requests, {same} with the same result", flush=True)
    for (name, theirs, mine), places in sorted(found.items()):
        print(f"{name}: kafka {theirs} | ours {mine} | {len(places)} times, {places[0]}")
    print(f"{count} damaged requests, {same} with the same result, {hangs} hangs of ours")
    return int(hangs > 0)


def damaged(frame: bytes, bits: list[int]) -> bytes:
    data = bytearray(frame)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def name_of(frame: bytes) -> str:
    header, _ = decode_request_header(frame)
    return f"{_ROUTE_OF_KEY[header.api_key].name} {header.api_version}"


def result_of(side: Side, frame: bytes) -> str:
    """What comes back for a frame on a connection of its own."""
    with socket.create_connection((side.host, side.port), SECONDS) as connection:
        try:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            size = struct.unpack(">i", exactly(connection, 4))[0]
            answer = exactly(connection, size)
        except TimeoutError:
            return SILENT
        except OSError:
            return CLOSED
    key, version = struct.unpack(">hh", frame[:4])
    route = _ROUTE_OF_KEY.get(key)
    if route is None or not route.broker.holds(version):
        return "(an answer to another API or version)"
    try:
        _, offset = decode_response_header(answer, key, version)
        fields = flat(decode(route.response_class(), answer, version, offset), version, lambda v: v)
    except WireError:
        return "(an answer of another version)"
    codes = {value for path, value in fields.items() if path.endswith("error_code")}
    return f"(an answer: {', '.join(sorted(codes)) or 'no error code'})"


def exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return bytes(data)
