"""The command line's output: rows and damage, as text or as JSON.

1. A row is a flat mapping whose first key is `kind`; text and JSON show the same fields under the
   same names.
2. Damage says the file, the byte position and what is wrong. It is never raised: reading goes on
   where it can.
3. Bytes are shown as text when they are printable UTF-8, else as base64 under `<name>_base64`
   (JSON) or with escapes (text).

Not here: where rows come from (`small_files`, `batches`) and what they mean (`payloads`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong in a file.

    `position` is the byte at which it begins, -1 for the file as a whole.
    """

    path: str
    position: int
    problem: str

    def __str__(self) -> str:
        at = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.path}:{at} {self.problem}"


def time_text(timestamp_ms: int) -> str:
    """`2026-11-21T01:02:03.456Z`; the number itself where it is no date."""
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        # A timestamp may be any 64 bits; the calendar ends before.
        return str(timestamp_ms)
    return (
        f"{at:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
        if timestamp_ms >= 0
        else str(timestamp_ms)
    )


def printable(value: bytes) -> str | None:
    """The text that `value` holds, or None when it is not printable UTF-8."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        # Keys and values are bytes: what is no text is shown as hex.
        return None
    return text if text.isprintable() else None


def json_fields(fields: Row) -> Row:
    """`fields` with bytes replaced by text or base64, deeply."""
    out: Row = {}
    for name, value in fields.items():
        text = printable(value) if isinstance(value, bytes) else None
        if isinstance(value, bytes) and text is None:
            out[name + "_base64"] = base64.b64encode(value).decode()
        else:
            out[name] = text if isinstance(value, bytes) else json_value(value)
    return out


def json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return json_fields({str(k): v for k, v in value.items()})
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_value(v) for v in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        text = printable(bytes(value))
        return base64.b64encode(value).decode() if text is None else text
    return value


def json_line(path: str, row: Row) -> str:
    return json.dumps({"kind": row["kind"], "file": path, **json_fields(row)}, ensure_ascii=False)


def text_value(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value)
        text = printable(value)
        return text_value(text) if text is not None else "b" + json.dumps(value.decode("latin-1"))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return (
            value
            if value and not set(value) & set(' "=\\') and value.isprintable()
            else json.dumps(value, ensure_ascii=False)
        )
    if value is None:
        return "null"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(json_value(value), ensure_ascii=False)
    return str(value)


def text_line(row: Row) -> str:
    return "  " + " ".join(
        [
            row["kind"],
            *(f"{name}={text_value(value)}" for name, value in row.items() if name != "kind"),
        ]
    )


def damage_row(damage: Damage) -> Row:
    return {"kind": "damage", "position": damage.position, "problem": damage.problem}


def _damage_line(damage: Damage) -> str:
    at = f" at byte {damage.position}" if damage.position >= 0 else ""
    return f"  DAMAGE{at}: {damage.problem}"


def lines(path: str, rows: Iterable[Row | Damage], as_json: bool) -> Iterable[tuple[str, bool]]:
    """(line, is damage) of one file's rows."""
    for item in rows:
        damaged = isinstance(item, Damage)
        row = damage_row(item) if isinstance(item, Damage) else item
        if as_json:
            yield json_line(path, row), damaged
        else:
            yield (_damage_line(item) if isinstance(item, Damage) else text_line(row)), damaged
