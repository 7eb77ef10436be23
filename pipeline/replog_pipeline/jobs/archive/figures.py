"""What an archive has done since it began, and how far it is behind: for the heartbeat line and for
Prometheus.

1. One thread writes, others read: a value is replaced, never changed, and each is right by itself.
2. The lag is that of the last look: offsets that the source had and the tables had not. It holds a
   number for each partition of the source.

Not here: who shows it (`heartbeat`, `metrics`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from replog_pipeline.columns import Offsets
from replog_pipeline.jobs.archive.bad_records import said, together


@dataclass
class Figures:
    """`batch_seconds`: of all batches together; `last_commit`: seconds since 1970, None before the
    first; `failing`: tables that were refused at the last look; `bad`: bad records by reason.
    """

    rows: int = 0
    batches: int = 0
    batch_seconds: float = 0.0
    last_commit: float | None = None
    tables: int = 1
    failing: int = 0
    lag: Mapping[tuple[str, int], int] = field(default_factory=dict)
    bad: Mapping[str, int] = field(default_factory=dict)
    wall: Callable[[], float] = time.time

    def looked(self, end: Offsets, reached: Offsets) -> None:
        """The source ends at `end`, its table is at `reached`; of some topics, or all."""
        self.lag = {**self.lag, **{key: end[key] - reached.get(key, 0) for key in end}}

    def committed(self, rows: int, seconds: float, bad: Mapping[str, int] | None = None) -> None:
        """`bad`: records of the batch by reason."""
        self.bad = together(self.bad, bad or {})
        self.rows += rows
        self.batches += 1
        self.batch_seconds += seconds
        self.last_commit = self.wall()

    def forgotten(self, topic: str) -> None:
        """The source has this topic no more."""
        self.lag = {key: lag for key, lag in self.lag.items() if key[0] != topic}

    def __str__(self) -> str:
        last = (
            "none yet"
            if self.last_commit is None
            else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.last_commit))
        )
        tables = f"{self.tables} tables, " if self.tables != 1 else ""
        failing = f", {self.failing} of them refused" if self.failing else ""
        bad = f", bad records: {said(self.bad)}" if self.bad else ""
        return (
            f"{tables}{self.rows:,} records in {self.batches:,} batches since the start"
            f"{failing}{bad}; "
            f"{sum(self.lag.values()):,} offsets behind; last commit: {last}"
        )
