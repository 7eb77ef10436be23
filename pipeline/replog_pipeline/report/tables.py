"""A table of the report: its columns, its rows, how each column is shown; and its CSV file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from replog_pipeline.report.numbers import key_text, size_text


@dataclass(frozen=True)
class Table:
    """`name` is the file's; `rows` hold plain values, in the order of `columns`."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """The rows by column, fit for JSON: bytes become text."""
        return [
            {column: _plain(value) for column, value in zip(self.columns, row, strict=True)}
            for row in self.rows
        ]


def write(table: Table, directory: Path) -> Path:
    """The table as NAME.csv in `directory`. OSError."""
    path = directory / f"{table.name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows(
            [["" if value is None else _plain(value) for value in row] for row in table.rows]
        )
    return path


def html(table: Table, shown: int = 50) -> str:
    """The first `shown` rows as HTML; columns of bytes as sizes."""
    numeric = [
        all(isinstance(row[at], (int, float)) for row in table.rows)
        for at in range(len(table.columns))
    ]
    texts = [_text(column) for column in table.columns]
    head = "".join(
        _cell("th", column.replace("_", " "), number)
        for column, number in zip(table.columns, numeric, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            _cell("td", text(value), number)
            for text, value, number in zip(texts, row, numeric, strict=True)
        )
        + "</tr>"
        for row in table.rows[:shown]
    )
    rest = len(table.rows) - shown
    more = f'<p class="note">and {rest:,} more in {escape(table.name)}.csv</p>' if rest > 0 else ""
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>{more}'


def _plain(value: Any) -> Any:
    return key_text(value, 1 << 30) if isinstance(value, bytes) else value


def _text(column: str) -> Callable[[Any], str]:
    sized = column.endswith("bytes")

    def text(value: Any) -> str:
        if value is None:
            return "–"
        if isinstance(value, bytes):
            return key_text(value)
        if isinstance(value, float):
            return f"{value:.2f}"
        if isinstance(value, int):
            return size_text(value) if sized else f"{value:,}"
        return str(value)

    return text


def _cell(kind: str, text: str, number: bool) -> str:
    return f"<{kind}{' class=number' if number else ''}>{escape(text)}</{kind}>"
