"""Audit of one partition of a log directory: all its segments' headers at once, against everything
that must hold between batches.

1. Batches are checked from the log start up to the high watermark; transactions up to the log end
   (an end marker may lie beyond the high watermark).
2. A batch whose CRC is wrong is one finding: its header causes no second one.
3. At most `SHOWN` findings of a kind are listed; the last one says how many more there are.
4. Holes that a cleaner left are no finding where the topic is compacted, or where the batches
   themselves show that it was.

Source: the transforms' cards. Not here: reading (`segments.check`), which policy a topic has
(`cleanup`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replog_pipeline.decoder import HEADER, Stop
from replog_pipeline.decoder.headers import last_offsets
from replog_pipeline.jobs.audit.findings import Finding, Summary
from replog_pipeline.transforms.faults import Fault
from replog_pipeline.transforms.offsets import (
    count_faults,
    misplaced,
    offset_faults,
    shows_compaction,
)
from replog_pipeline.transforms.producers import epoch_faults, sequence_faults, transactions

SHOWN: Final = 20
INTERNAL: Final = (
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
)
"""Written by coordinators, which do not count sequences."""


@dataclass(frozen=True)
class Facts:
    """What is known of a partition beside its segments.

    `end`: the high watermark, None for the log end; times are milliseconds since the epoch.
    """

    directory: str
    topic: str
    partition: int
    start: int
    end: int | None
    compacted: bool
    assumed: bool
    now_ms: int
    hanging_after_ms: int


class Segment(NamedTuple):
    """One segment as `segments.check` found it: its base offset, the faults by row of `headers`,
    its size and where its last whole batch ends.
    """

    base: int
    path: str
    headers: NDArray[np.void]
    faults: Sequence[Fault]
    end: int
    size: int
    stop: Stop


def check_partition(facts: Facts, segments: Sequence[Segment]) -> tuple[list[Finding], Summary]:
    """Everything found in a partition, and what was looked at.

    `segments` in order of their base offsets.
    """
    return _Check(facts, segments).done()


class _Check:
    def __init__(self, facts: Facts, segments: Sequence[Segment]) -> None:
        self.facts, self.segments = facts, segments
        self.table = np.concatenate(
            [np.empty(0, HEADER), *(segment.headers for segment in segments)]
        )
        self.firsts = np.cumsum([0, *(len(segment.headers) for segment in segments)])
        lasts = last_offsets(self.table)
        self.log_end = int(lasts[-1]) + 1 if len(lasts) else (segments[-1].base if segments else 0)
        self.upto = self.log_end if facts.end is None else facts.end
        self.judged = (lasts >= facts.start) & (self.table["baseOffset"] < self.upto)
        self.compacted = facts.compacted or (facts.assumed and shows_compaction(self.table))
        self.open = 0

    def done(self) -> tuple[list[Finding], Summary]:
        damaged = list(self._alone())
        rows = {fault.row for fault in damaged}
        faults = damaged + [fault for fault in self._between() if fault.row not in rows]
        findings = [*self._ends(), *map(self._finding, sorted(faults, key=lambda fault: fault.row))]
        return list(_shortened(findings)), self._summary()

    def _alone(self) -> Iterator[Fault]:
        """What is wrong with batches by themselves."""
        for first, segment in zip(self.firsts, self.segments, strict=False):
            for fault in segment.faults:
                if self.judged[first + fault.row]:
                    yield fault._replace(row=int(first + fault.row))

    def _between(self) -> Iterator[Fault]:
        """What is wrong from batch to batch."""
        rows = np.flatnonzero(self.judged)
        table = self.table[rows]
        found = [
            *offset_faults(table, compacted=self.compacted),
            *count_faults(table, compacted=self.compacted),
            *epoch_faults(table),
        ]
        if self.facts.topic not in INTERNAL:
            found += sequence_faults(
                table,
                complete=self.facts.start == 0 and not self.compacted,
                compacted=self.compacted,
            )
        yield from (fault._replace(row=int(rows[fault.row])) for fault in found)
        for number, segment in enumerate(self.segments):
            after = self.segments[number + 1].base if number + 1 < len(self.segments) else None
            yield from (
                fault._replace(row=int(self.firsts[number]) + fault.row)
                for fault in misplaced(segment.headers, segment.base, after)
            )
        yield from self._transactions()

    def _transactions(self) -> Iterator[Fault]:
        opened, torn = transactions(self.table)
        yield from torn
        for each in opened:
            batch, last = self.table[each.first], self.table[each.last]
            age = self.facts.now_ms - int(last["maxTimestamp"])
            if age < self.facts.hanging_after_ms:
                self.open += 1
                continue
            who = f"producer {batch['producerId']} epoch {batch['producerEpoch']}"
            yield Fault(
                "hanging transaction",
                each.first,
                f"{who}: no end marker, {age // 1000:,} s after its last record",
            )

    def _ends(self) -> Iterator[Finding]:
        """What is wrong where the log or a segment begins or ends."""
        if (
            len(self.table)
            and not self.compacted
            and self.table["baseOffset"][0] > self.facts.start
        ):
            problem = (
                f"offsets {self.facts.start}..{self.table['baseOffset'][0] - 1} are "
                f"missing: the log starts at {self.facts.start}"
            )
            yield self._at(0, "gap", problem)
        for number, segment in enumerate(self.segments):
            if segment.stop is Stop.END or (
                number + 1 == len(self.segments) and self._may_end_so(segment.stop)
            ):
                continue
            problem = (
                f"{segment.size - segment.end:,} bytes from byte {segment.end} on: "
                f"{segment.stop.value}"
            )
            base = (
                int(last_offsets(segment.headers[-1:])[0]) + 1
                if len(segment.headers)
                else segment.base
            )
            yield self._made("torn segment", base, Path(segment.path).name, segment.end, problem)
        if self.log_end < self.upto:
            yield self._made(
                "short",
                self.log_end,
                "",
                -1,
                f"the log ends at {self.log_end}, its high watermark is {self.upto}",
            )

    def _may_end_so(self, stop: Stop) -> bool:
        """Whether the last segment may end like this: a crash leaves a batch truncated, and what
        lies beyond the high watermark is nobody's yet.
        """
        return stop is Stop.ZEROS or (
            stop is Stop.CUT_SHORT if self.facts.end is None else self.log_end >= self.upto
        )

    def _finding(self, fault: Fault) -> Finding:
        return self._at(fault.row, fault.kind, fault.problem)

    def _at(self, row: int, kind: str, problem: str) -> Finding:
        segment = self.segments[int(np.searchsorted(self.firsts, row, side="right")) - 1]
        batch = self.table[row]
        made = self._made(
            kind, int(batch["baseOffset"]), Path(segment.path).name, int(batch["position"]), problem
        )
        return made._replace(
            producer_id=int(batch["producerId"]),
            producer_epoch=int(batch["producerEpoch"]),
            leader_epoch=int(batch["leaderEpoch"]),
        )

    def _made(self, kind: str, offset: int, file: str, position: int, problem: str) -> Finding:
        return Finding(
            kind,
            self.facts.topic,
            self.facts.partition,
            offset,
            problem,
            self.facts.directory,
            file,
            position,
        )

    def _summary(self) -> Summary:
        judged = self.table[self.judged]
        offsets = int((judged["lastOffsetDelta"].astype(np.int64) + 1).sum())
        span = max(0, min(self.log_end, self.upto) - self.facts.start)
        return Summary(
            self.facts.topic,
            self.facts.partition,
            self.facts.directory,
            self.facts.start,
            self.upto,
            len(judged),
            int(judged["recordCount"].sum(dtype=np.int64)),
            sum(segment.size for segment in self.segments),
            max(0, span - offsets),
            self.open,
            "compact" if self.compacted else "delete",
        )


def _shortened(findings: Sequence[Finding]) -> Iterator[Finding]:
    """At most `SHOWN` of each kind, and how many more there are."""
    for _, group in groupby(
        sorted(findings, key=lambda finding: finding.kind), key=lambda finding: finding.kind
    ):
        same = list(group)
        yield from same[: SHOWN - 1]
        if len(same) >= SHOWN:
            yield same[SHOWN - 1]._replace(more=len(same) - SHOWN)
