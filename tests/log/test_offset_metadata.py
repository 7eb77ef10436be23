"""Where an offset lies, compared."""

from __future__ import annotations

import pytest

from twisted_broker.log.offset_metadata import UNKNOWN, LogOffsetMetadata

AT = LogOffsetMetadata(5000, 4000, 100)


@pytest.mark.parametrize(
    ("other", "older", "same"),
    [
        (LogOffsetMetadata(9000, 8000, 10), True, False),
        (LogOffsetMetadata(4500, 4000, 40), False, True),
        (LogOffsetMetadata(4000, 4000, 0), False, True),
        (LogOffsetMetadata(3000, 2000, 500), False, False),
        (LogOffsetMetadata(9000), False, False),
        (UNKNOWN, False, False),
    ],
    ids=["newer", "same", "its first byte", "older", "no position", "unknown"],
)
def test_segments_are_compared_where_both_are_known(
    other: LogOffsetMetadata, older: bool, same: bool
) -> None:
    assert (AT.on_older_segment(other), AT.on_same_segment(other)) == (older, same)
    assert not LogOffsetMetadata(5000).on_older_segment(other)
    assert not LogOffsetMetadata(5000).on_same_segment(other)


def test_bytes_between_two_places() -> None:
    assert AT.position_difference(LogOffsetMetadata(4500, 4000, 40)) == 60
    assert LogOffsetMetadata(4500, 4000, 40).position_difference(AT) == -60
