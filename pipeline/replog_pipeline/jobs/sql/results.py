"""What a query gave, on standard output: a table for people, or CSV; bytes as text where they are
UTF-8, else as 0x and hexadecimal digits.

1. A table ends after `limit` rows, and says so. CSV goes row by row: its size is not bounded.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TextIO


def shown(value: object) -> str:
    """One value; none is an empty text."""
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        try:
            text = bytes(value).decode()
        except UnicodeDecodeError:
            return f"0x{bytes(value).hex()}"
        return text if text.isprintable() else f"0x{bytes(value).hex()}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and hasattr(value, "asDict"):  # a struct of Spark
        value = value.asDict()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(k)}: {shown(v)}" for k, v in value.items()) + "}"
    return str(value)


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[object]], out: TextIO) -> None:
    """With the names in the first line."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([shown(value) for value in row] for row in rows)


def to_table(
    columns: Sequence[str], rows: Iterator[Sequence[object]], limit: int, out: TextIO
) -> None:
    """At most `limit` rows."""
    found = [[shown(value) for value in row] for row in islice(rows, limit)]
    more = next(rows, None) is not None
    widths = [max(len(cell) for cell in column) for column in zip(columns, *found, strict=True)]
    numeric = [
        bool(found) and all(is_number(row[place]) for row in found) for place in range(len(columns))
    ]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ).rstrip()

    print(line(columns), file=out)
    print("  ".join("-" * width for width in widths), file=out)
    for row in found:
        print(line(row), file=out)
    if more:
        print(f"the first {limit:,} rows; --limit shows more, --format csv all", file=out)
    else:
        print(f"{len(found):,} row{'s' * (len(found) != 1)}", file=out)


def is_number(text: str) -> bool:
    try:
        float(text or "0")
    except ValueError:
        return False
    return True
