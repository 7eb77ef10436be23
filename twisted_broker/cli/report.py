"""The result of `replog verify`: findings, and what was checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from twisted_broker.cli.rows import Damage

_NAMES_SHOWN = 10


@dataclass(slots=True)
class Report:
    """Findings in the order of discovery, and the counts for the summary line."""

    findings: list[Damage] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    in_use: bool = False
    awaiting_deletion: int = 0
    copies: int = 0
    to_index: int = 0
    """closed segments whose offset index a stop took, for the next start to go over them"""
    alone: set[str] = field(default_factory=set)
    """topics that only one of two clusters has"""

    def add(self, path: Path, position: int, problem: str) -> None:
        self.findings.append(Damage(str(path), position, problem))

    def summary(self) -> str:
        counts = [
            count_text(self.partitions, "partition"),
            count_text(self.segments, "segment"),
            count_text(self.batches, "batch", "batches"),
            count_text(self.records, "record"),
            count_text(self.bytes, "byte"),
        ]
        result = count_text(len(self.findings), "finding") if self.findings else "no findings"
        return (
            ", ".join(counts) + f": {result}" + "".join(f" ({remark})" for remark in self.remarks())
        )

    def remarks(self) -> Iterator[str]:
        if self.awaiting_deletion:
            yield count_text(self.awaiting_deletion, "name awaits", "names await") + " deletion"
        if self.copies:
            yield count_text(self.copies, "copy", "copies") + " in progress between directories"
        if self.to_index:
            waiting = count_text(self.to_index, "segment awaits its", "segments await their")
            yield f"{waiting} offset index from the next start"
        if self.alone:
            names = sorted(self.alone)
            more = len(names) - _NAMES_SHOWN
            shown = ", ".join(names[:_NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
            yield f"in one cluster alone: {shown}"
        if self.in_use:
            yield "the directory is in use"


def count_text(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
