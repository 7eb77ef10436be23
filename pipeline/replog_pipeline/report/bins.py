"""How wide the bins of a time line are: round widths, so few of them that they can be kept and
drawn.
"""

from __future__ import annotations

WIDTHS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    360,
    720,
    1440,
    2880,
    7 * 1440,
    14 * 1440,
    30 * 1440,
    90 * 1440,
    365 * 1440,
)
"""Minutes that a bin may be wide; beyond these any multiple that is needed."""

OTHERS = "(other topics)"
"""The topics that are not shown one by one; no topic has such a name."""


def width(first: int, last: int, most: int, unit: int = 1) -> int:
    """The narrowest width that makes at most `most` bins of the minutes `first` to `last`; a
    multiple of `unit`, the width of the bins that are to be joined.
    """
    for each in WIDTHS:
        if each % unit == 0 and last // each - first // each < most:
            return each
    largest = max((each for each in WIDTHS if each % unit == 0), default=unit)
    return largest * -(-(last - first + 1) // (largest * max(1, most - 1)))
