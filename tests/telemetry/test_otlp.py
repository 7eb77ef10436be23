"""What is read out of pushed metrics, and that nothing hostile holds the reader."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.telemetry.payloads import (
    CUMULATIVE,
    attribute,
    gauge,
    nested,
    number_field,
    payload,
    point,
    total,
    varint,
)
from twisted_broker.telemetry.otlp import (
    LONGEST,
    MOST_ATTRIBUTES,
    MOST_FIELDS,
    MOST_POINTS,
    PER_STEP,
    Point,
    Points,
    points,
)


def read(data: bytes, is_asked_for: Callable[[str], bool] = lambda name: True) -> Points:
    """Counts the pauses, too."""
    work = points(data, is_asked_for)
    read.pauses = 0  # type: ignore[attr-defined]
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: Points = end.value
            return found
        read.pauses += 1  # type: ignore[attr-defined]


def test_sums_and_gauges_are_read_with_their_attributes() -> None:
    data = payload(
        gauge("a.gauge", point(1.5, topic="t", partition=3, on=True, share=0.5, below=-2)),
        total("a.total", point(7), point(-1)),
        total("a.level", point(8), temporality=CUMULATIVE, is_monotonic=False),
    )
    pairs = (("topic", "t"), ("partition", "3"), ("on", "true"), ("share", "0.5"), ("below", "-2"))
    assert read(data) == Points(
        [
            Point("a.gauge", pairs, 1.5, False, False),
            Point("a.total", (), 7, True, True),
            Point("a.total", (), -1, True, True),
            Point("a.level", (), 8, False, False),
        ],
        0,
    )


def test_what_nobody_asked_for_is_passed_over() -> None:
    data = payload(gauge("a.b", point(1)), gauge("c", point(2)))
    assert [each.name for each in read(data, lambda name: name.startswith("a.")).found] == ["a.b"]


def test_histograms_and_unknown_fields_are_passed_over() -> None:
    histogram = nested(1, "h") + nested(9, nested(1, point(1)))
    unknown = number_field(99, 1) + varint(98 << 3 | 5) + bytes(4)
    assert read(payload(histogram, gauge("g", point(1))) + unknown).found == [
        Point("g", (), 1, False, False)
    ]


def test_a_point_without_a_value_is_none() -> None:
    assert read(payload(gauge("g", nested(7, attribute("a", "b"))))) == Points([], 0)


def test_an_empty_payload_has_no_points() -> None:
    assert read(b"") == Points([], 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80",
        b"\xff" * 11,
        varint(1 << 3 | 2) + varint(5) + b"abcd",
        varint(1 << 3 | 1) + bytes(7),
        varint(1 << 3 | 3),
        varint(1 << 3 | 7),
        varint(2) + varint(1) + b"a",
        payload(nested(1, "name") + nested(5, b"\x0a\x05")),
        payload(nested(1, "name") + nested(5, nested(1, nested(7, b"\x0a\x02k")))),
    ],
)
def test_what_is_no_protobuf_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="protobuf"):
        read(data)


def test_texts_and_attributes_are_bounded() -> None:
    long = "é" * 1000
    many = {f"k{number}": "v" for number in range(50)}
    (first, second) = read(payload(gauge(long, point(1, k=long), point(2, **many)))).found
    assert first.name == "é" * LONGEST and first.attributes == (("k", "é" * LONGEST),)
    assert len(second.attributes) == MOST_ATTRIBUTES


def test_bytes_that_are_no_text_are_replaced() -> None:
    (found,) = read(payload(nested(1, b"a\xff") + nested(5, nested(1, point(1))))).found
    assert found.name == "a\ufffd"


def test_points_beyond_the_bound_are_counted() -> None:
    found, left_out = read(payload(gauge("g", *[point(1)] * (MOST_POINTS + 7))))
    assert (len(found), left_out) == (MOST_POINTS, 7)


def test_a_mebibyte_of_empty_elements_ends_early_and_pauses() -> None:
    found, left_out = read(payload(gauge("g", point(1))) + b"\x12\0" * 500_000)
    assert left_out == -1 and found == []
    assert read.pauses == MOST_FIELDS // PER_STEP - 1  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_a_damaged_payload_is_read_or_refused(at: int, change: bytes) -> None:
    data = payload(gauge("g", point(1.0, a="b")), total("t", point(3, topic="x")))
    at %= len(data)
    damaged = data[:at] + change + data[at + len(change) :]
    with suppress(ValueError):
        assert len(read(damaged).found) <= 3
