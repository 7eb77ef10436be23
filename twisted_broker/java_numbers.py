"""Numbers in text, as Java's `Integer.parseInt`, `Long.parseLong` and `Double.parseDouble` read
them. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the one place where text of a client, a setting or one of Kafka's files becomes a number.

1. What is accepted here, Apache Kafka accepts, as the same number: settings are stored as they were
   written, and a Java broker of the same cluster reads them. Python's own `int` and `float` take
   underscores, blanks, `inf` and `nan` besides.
2. A whole number may be in another script's digits, one `char` each, as in Java; a double may not.
3. Where only plain digits make sense (ports, names of files), `is_digits` tells.

Source: `Character.digit`, `FloatingDecimal.readJavaFormatString`, `String.trim`; Kafka's
`ConfigDef.parseType`. Not here: ranges of settings (`settings.py`); NaN, which Kafka's settings may
be, and nothing can be compared with.
"""

from __future__ import annotations

import re

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
_BLANKS = "".join(map(chr, range(33)))
_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEX = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
_INFINITY = re.compile(r"[+-]?Infinity")


def trimmed(text: str) -> str:
    """Java's `trim`: without the blanks and control characters of ASCII around it, and no other."""
    return text.strip(_BLANKS)


def is_digits(text: str) -> bool:
    """Whether it is ASCII's digits, one at least: `isdigit` has `²`, `isdecimal` all scripts'."""
    return text.isascii() and text.isdecimal()


def parse_whole(text: str, low: int = LONG_MIN, high: int = LONG_MAX) -> int:
    """`parseLong`, or with other bounds `parseInt`. Raises ValueError."""
    if not (text.isascii() and text.isdecimal()) and (
        _WHOLE.fullmatch(text) is None or max(text) > "\uffff"
    ):
        raise ValueError(f"{text[:40]!r} is no whole number")
    number = int(text)
    if not low <= number <= high:
        raise ValueError(f"{text[:40]} is not from {low} to {high}")
    return number


def parse_double(text: str) -> float:
    """`parseDouble` of what `trimmed` left. Raises ValueError, for NaN as well."""
    if _INFINITY.fullmatch(text):
        return float(text)
    digits = text[:-1] if text[-1:] in ("f", "F", "d", "D") else text
    if _DECIMAL.fullmatch(digits):
        return float(digits)
    if _HEX.fullmatch(digits):
        try:
            return float.fromhex(digits)
        except OverflowError:
            return float("-inf" if digits[0] == "-" else "inf")
    raise ValueError(f"{text[:40]!r} is no number")
