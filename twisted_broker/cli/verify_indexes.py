"""Indexes against the batches of their segment, in one pass beside the segment.

1. Offset index: offsets and positions grow; a position is the first byte of a batch, which begins
   at or below the indexed offset, so that a search from there misses nothing (versions of Kafka
   differ in which batches they index).
2. Time index: timestamps grow, offsets do not shrink; an entry's timestamp is the largest of all
   batches that begin at or below its offset.
3. Transaction index: each entry's last offset is a marker of its producer in this segment; its
   first offset lies behind the producer's marker before that, and not behind the first batch of the
   transaction (a cleaner or the log start may have taken that one: then it lies before those that
   are left).

`batch(...)` is called for each batch in order, `end(...)` once behind the last one. Memory is one
entry of the offset and of the time index; the transaction index is read whole. Of transactions:
each producer's last marker, and where those that are open begin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted_broker.cli.report import Report
from twisted_broker.cli.rows import Damage, Row
from twisted_broker.cli.small_files import (
    Items,
    index_rows,
    time_index_rows,
    transaction_index_rows,
)


class EntryStream:
    """The entries of an index file one by one; damage goes to the report."""

    def __init__(self, path: Path, rows: Items, report: Report) -> None:
        self.path, self.rows, self.report = path, rows, report
        self.number = -1
        self.current: Row | None = None
        self.advance()

    def advance(self) -> None:
        self.current = None
        for item in self.rows:
            if isinstance(item, Damage):
                self.report.findings.append(item)
                continue
            self.number += 1
            self.current = item
            return

    def problem(self, entry_size: int, text: str) -> None:
        self.report.add(self.path, self.number * entry_size, text)


class OffsetIndexCheck(EntryStream):
    """Invariant 1."""

    SIZE = 8

    def __init__(self, path: Path, report: Report) -> None:
        self.last = (-1, -1)
        super().__init__(path, index_rows(path), report)

    def batch(self, position: int, base_offset: int) -> None:
        while self.current is not None and self.current["position"] <= position:
            self.check(self.current, position, base_offset)
            self.advance()

    def check(self, entry: Row, position: int, base_offset: int) -> None:
        here = (entry["offset"], entry["position"])
        if here[0] <= self.last[0] or here[1] <= self.last[1]:
            self.problem(self.SIZE, f"the entry {here} does not grow from {self.last}")
        elif here[1] != position:
            self.problem(
                self.SIZE, f"offset {here[0]} points at byte {here[1]}, where no batch begins"
            )
        elif base_offset > here[0]:
            self.problem(
                self.SIZE,
                f"offset {here[0]} points at byte {here[1]}, where offset {base_offset} begins",
            )
        self.last = here

    def end(self, last_offset: int) -> None:
        while self.current is not None:
            self.problem(
                self.SIZE,
                (
                    f"offset {self.current['offset']} points at byte {self.current['position']}, "
                    "behind the last batch"
                ),
            )
            self.advance()
        if self.last[0] > last_offset:
            self.problem(
                self.SIZE, f"offset {self.last[0]} is above the segment's last offset {last_offset}"
            )


class TimeIndexCheck(EntryStream):
    """Invariant 2."""

    SIZE = 12

    def __init__(self, path: Path, report: Report) -> None:
        self.last = (-1, -1)
        self.largest = -1
        super().__init__(path, time_index_rows(path), report)

    def batch(self, base_offset: int, max_timestamp: int) -> None:
        while self.current is not None and self.current["offset"] < base_offset:
            self.check(self.current)
            self.advance()
        self.largest = max(self.largest, max_timestamp)

    def check(self, entry: Row) -> None:
        here = (entry["timestamp"], entry["offset"])
        if here[0] <= self.last[0] or here[1] < self.last[1]:
            self.problem(self.SIZE, f"the entry {here} does not grow from {self.last}")
        elif here[0] != self.largest:
            self.problem(
                self.SIZE,
                (
                    f"timestamp {here[0]} at offset {here[1]}, the largest up to there is "
                    f"{self.largest}"
                ),
            )
        self.last = here

    def end(self, last_offset: int) -> None:
        while self.current is not None:
            if self.current["offset"] > last_offset:
                self.problem(
                    self.SIZE,
                    (
                        f"offset {self.current['offset']} is above the segment's last offset "
                        f"{last_offset}"
                    ),
                )
            else:
                self.check(self.current)
            self.advance()


class Transactions:
    """Where transactions began and ended, in the batches of all segments of one log so far."""

    def __init__(self) -> None:
        self.began: dict[int, int] = {}
        self.ended: dict[int, int] = {}

    def batch(self, producer_id: int, first_offset: int) -> None:
        self.began.setdefault(producer_id, first_offset)

    def marker(self, producer_id: int, offset: int) -> tuple[int | None, int]:
        """The offset of the first batch of what ends, if one is left, and of the marker before."""
        before = self.ended.get(producer_id, -1)
        self.ended[producer_id] = offset
        return self.began.pop(producer_id, None), before


class TransactionIndexCheck:
    """Invariant 3."""

    SIZE = 34

    def __init__(self, path: Path, report: Report) -> None:
        self.path, self.report = path, report
        self.waiting: dict[int, tuple[int, int, int]] = {}
        last = -1
        number = 0
        for item in transaction_index_rows(path):
            if isinstance(item, Damage):
                report.findings.append(item)
                continue
            last = self.entry(number * self.SIZE, item, last)
            number += 1

    def entry(self, position: int, row: dict[str, Any], last: int) -> int:
        if row["first_offset"] > row["last_offset"] or row["last_offset"] <= last:
            self.report.add(
                self.path,
                position,
                f"the transaction {row['first_offset']}..{row['last_offset']} is out of order",
            )
        self.waiting[row["last_offset"]] = (row["producer_id"], row["first_offset"], position)
        return int(row["last_offset"])

    def marker(self, offset: int, producer_id: int, began: int | None, before: int) -> None:
        expected = self.waiting.pop(offset, None)
        if expected is None:
            return
        wanted, first, position = expected
        if wanted != producer_id:
            self.report.add(
                self.path,
                position,
                f"the marker at offset {offset} is of producer {producer_id}, not {wanted}",
            )
        elif began is not None and first > began:
            self.report.add(
                self.path,
                position,
                f"the transaction of producer {producer_id} that ends at offset {offset} begins at "
                f"{began}, not at {first}",
            )
        elif first <= before:
            self.report.add(
                self.path,
                position,
                f"the transaction of producer {producer_id} that ends at offset {offset} begins "
                f"behind the marker at {before}, not at {first}",
            )

    def end(self) -> None:
        for offset, (producer_id, _, position) in self.waiting.items():
            self.report.add(
                self.path,
                position,
                f"there is no marker of producer {producer_id} at offset {offset}",
            )
