"""OpenTelemetry messages as clients push them, made by hand."""

from __future__ import annotations

from struct import pack

CUMULATIVE, DELTA = 2, 1


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def nested(number: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def attribute(key: str, value: str | bool | int | float) -> bytes:
    if isinstance(value, str):
        inside = nested(1, value)
    elif isinstance(value, bool):
        inside = number_field(2, value)
    elif isinstance(value, int):
        inside = number_field(3, value & (1 << 64) - 1)
    else:
        inside = varint(4 << 3 | 1) + pack("<d", value)
    return nested(1, key) + nested(2, inside)


def point(value: float, **attributes: str | bool | int | float) -> bytes:
    """With its times, as clients send them."""
    times = varint(2 << 3 | 1) + pack("<Q", 1) + varint(3 << 3 | 1) + pack("<Q", 2)
    if isinstance(value, int):
        shown = varint(6 << 3 | 1) + pack("<q", value)
    else:
        shown = varint(4 << 3 | 1) + pack("<d", value)
    pairs = (nested(7, attribute(key, each)) for key, each in attributes.items())
    return times + shown + b"".join(pairs)


def gauge(name: str, *points: bytes) -> bytes:
    return nested(1, name) + nested(5, b"".join(nested(1, each) for each in points))


def total(name: str, *points: bytes, temporality: int = DELTA, is_monotonic: bool = True) -> bytes:
    data = b"".join(nested(1, each) for each in points)
    data += number_field(2, temporality) + number_field(3, is_monotonic)
    return nested(1, name) + nested(7, data)


def payload(*metrics: bytes) -> bytes:
    scope = nested(1, nested(1, "scope")) + b"".join(nested(2, each) for each in metrics)
    return nested(1, nested(1, nested(1, attribute("client_rack", "r"))) + nested(2, scope))
