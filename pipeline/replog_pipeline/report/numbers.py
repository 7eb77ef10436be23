"""Numbers as people read them: sizes, counts, dates, and round ticks for an axis."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_BYTES = ("B", "KB", "MB", "GB", "TB", "PB")
_COUNTS = ("", "k", "M", "G", "T")


def size_text(count: float) -> str:
    """1234567 -> "1.23 MB"; powers of ten."""
    return _scaled(count, _BYTES, " ")


def count_text(count: float) -> str:
    """1234567 -> "1.23M"; exact below 10,000."""
    return f"{count:,.0f}" if abs(count) < 10_000 else _scaled(count, _COUNTS, "")


def _scaled(count: float, units: tuple[str, ...], gap: str) -> str:
    step = 0
    while abs(count) >= 999.5 and step < len(units) - 1:
        count, step = count / 1000, step + 1
    text = f"{count:.0f}" if step == 0 else f"{count:.3g}"
    return f"{text}{gap}{units[step]}".rstrip()


def share_text(part: float, whole: float) -> str:
    """A share as "12.3 %"; "–" of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def ticks(highest: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to at least `highest`, about `count` steps."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def minute_text(minute: int, form: str = "%Y-%m-%d %H:%M") -> str:
    """A minute since the epoch in UTC; "–" for one that no calendar has."""
    try:
        return datetime.fromtimestamp(minute * 60, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return "–"


def key_text(key: bytes | None, longest: int = 40) -> str:
    """A record's key: as text if it is printable UTF-8, else in hexadecimal."""
    if key is None:
        return "(null)"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or (key and not text):
        text = "0x" + key.hex()
    return text if len(text) <= longest else text[: longest - 1] + "…"
