"""Reads the sums and gauges out of an OpenTelemetry `MetricsData` message.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `points`, a walk over the few fields that are shown.

1. Pauses after every `PER_STEP` fields; ends after `MOST_FIELDS` fields or `MOST_POINTS` points,
   and says that something was left out.
2. Bytes that are no protobuf message are a ValueError: a varint without an end, a length beyond the
   message around it, a wire type that protobuf does not have (groups are gone from it).
   A field of another shape than expected is passed over, as protobuf does with unknown fields.
3. The nesting is that of the walk, which calls no function of its own again; names and label texts
   are cut at `LONGEST`.

The package opentelemetry-proto would be one more dependency, with a compiled one behind it, and
decodes a message as a whole: a payload of a mebibyte may hold half a million empty elements, each
an object, and that holds the reactor.

Source: `opentelemetry/proto/metrics/v1/metrics.proto`, Protocol Buffers' encoding; GN 5.9, 5.10.
Not here: decompression (`api/telemetry.py`), what is kept (`instances.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct
from typing import NamedTuple

MOST_FIELDS, MOST_POINTS, PER_STEP = 100_000, 1_000, 1_000
LONGEST, MOST_ATTRIBUTES = 128, 8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE, _SFIXED64 = Struct("<d"), Struct("<q")
_LONGEST_VARINT = 10
_DELTA = 1
# Numbers of fields.
_RESOURCE_METRICS, _SCOPE_METRICS, _METRICS = 1, 2, 2
_NAME, _GAUGE, _SUM = 1, 5, 7
_DATA_POINTS, _TEMPORALITY, _MONOTONIC = 1, 2, 3
_AS_DOUBLE, _AS_INT, _ATTRIBUTES = 4, 6, 7
_KEY, _VALUE = 1, 2

Field = tuple[int, int, int, int]
"""Number, wire type; of bytes where they begin and end, of the rest the value, or where it is."""


class Point(NamedTuple):
    """One value of one series, as the client names it."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    is_monotonic: bool
    """a counter"""
    is_delta: bool
    """to be added to the value before"""


class Points(NamedTuple):
    """`left_out`: how many points were not read; -1: nobody knows."""

    found: list[Point]
    left_out: int


class _TooManyError(Exception):
    """The walk ends here, with the series so far."""


class _Walk:
    """Counts the fields of one message, and pauses."""

    __slots__ = ("data", "fields")

    def __init__(self, data: bytes) -> None:
        self.data, self.fields = data, 0

    def fields_of(self, start: int, end: int) -> Generator[None, None, list[Field]]:
        found: list[Field] = []
        while start < end:
            self.fields += 1
            if self.fields >= MOST_FIELDS:
                raise _TooManyError
            if self.fields % PER_STEP == 0:
                yield
            tag, start = self._varint(start, end)
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                value, start = self._varint(start, end)
                found.append((number, kind, value, start))
                continue
            if kind == _BYTES:
                size, start = self._varint(start, end)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise ValueError(f"protobuf: wire type {kind}")
            if number == 0 or size > end - start:
                raise ValueError("protobuf: a field is longer than its message")
            found.append((number, kind, start, start + size))
            start += size
        return found

    def _varint(self, start: int, end: int) -> tuple[int, int]:
        value = shift = 0
        for at in range(start, min(end, start + _LONGEST_VARINT)):
            byte = self.data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at + 1
            shift += 7
        raise ValueError("protobuf: a varint has no end")

    def text(self, start: int, end: int) -> str:
        # As many characters take at most four times the bytes.
        return self.data[start : min(end, start + 4 * LONGEST)].decode("utf-8", "replace")[:LONGEST]


def points(data: bytes, is_asked_for: Callable[[str], bool]) -> Generator[None, None, Points]:
    """Of the metrics whose names are asked for; pauses. Raises ValueError."""
    walk, found, left_out = _Walk(data), list[Point](), 0
    try:
        for start, end in _nested((yield from walk.fields_of(0, len(data))), _RESOURCE_METRICS):
            resource = yield from walk.fields_of(start, end)
            for scope in _nested(resource, _SCOPE_METRICS):
                for metric in _nested((yield from walk.fields_of(*scope)), _METRICS):
                    left_out += yield from _metric(walk, *metric, is_asked_for, found)
    except _TooManyError:
        left_out = -1
    return Points(found, left_out)


def _nested(fields: list[Field], number: int) -> list[tuple[int, int]]:
    return [(start, end) for n, kind, start, end in fields if n == number and kind == _BYTES]


def _metric(
    walk: _Walk, start: int, end: int, is_asked_for: Callable[[str], bool], found: list[Point]
) -> Generator[None, None, int]:
    """Returns how many points found no room."""
    fields = yield from walk.fields_of(start, end)
    name = next((walk.text(*span) for span in _nested(fields, _NAME)), "")
    if not name or not is_asked_for(name):
        return 0
    left_out = 0
    for kind in (_GAUGE, _SUM):
        for span in _nested(fields, kind):
            data = yield from walk.fields_of(*span)
            numbers = {n: value for n, of, value, _ in data if of == _VARINT}
            is_sum = kind == _SUM
            is_monotonic = is_sum and bool(numbers.get(_MONOTONIC))
            is_delta = is_sum and numbers.get(_TEMPORALITY) == _DELTA
            for point in _nested(data, _DATA_POINTS):
                if len(found) >= MOST_POINTS:
                    left_out += 1
                    continue
                value, attributes = yield from _point(walk, *point)
                if value is not None:
                    found.append(Point(name, attributes, value, is_monotonic, is_delta))
    return left_out


def _point(
    walk: _Walk, start: int, end: int
) -> Generator[None, None, tuple[float | None, tuple[tuple[str, str], ...]]]:
    value: float | None = None
    attributes: list[tuple[str, str]] = []
    for number, kind, first, last in (yield from walk.fields_of(start, end)):
        if kind == _FIXED64 and number == _AS_DOUBLE:
            (value,) = _DOUBLE.unpack_from(walk.data, first)
        elif kind == _FIXED64 and number == _AS_INT:
            (value,) = _SFIXED64.unpack_from(walk.data, first)
        elif kind == _BYTES and number == _ATTRIBUTES and len(attributes) < MOST_ATTRIBUTES:
            pair = yield from walk.fields_of(first, last)
            key = next((walk.text(*span) for span in _nested(pair, _KEY)), "")
            inside = _nested(pair, _VALUE)[-1:]
            if inside:
                shown = yield from walk.fields_of(*inside[0])
                attributes.append((key, _any_value(walk, shown)))
    return value, tuple(attributes)


def _any_value(walk: _Walk, fields: list[Field]) -> str:
    """Of a string, a boolean, a whole number or a double; lists and maps are shown as nothing."""
    for number, kind, first, last in fields:
        if (number, kind) == (1, _BYTES):
            return walk.text(first, last)
        if (number, kind) == (2, _VARINT):
            return "true" if first else "false"
        if (number, kind) == (3, _VARINT):
            first &= (1 << 64) - 1
            return str(first - (1 << 64) if first >> 63 else first)
        if (number, kind) == (4, _FIXED64):
            return str(_DOUBLE.unpack_from(walk.data, first)[0])
    return ""
