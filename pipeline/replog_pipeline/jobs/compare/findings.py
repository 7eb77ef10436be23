"""Findings of `compare`, out of the rows of all its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replog_pipeline.jobs.compare.ranges import Partition
from replog_pipeline.jobs.compare.task import COMMON, MISPLACED, PARTED, READ

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Copy:
    """What one replica has at the offset of a finding; `file` is empty when it has nothing, and
    `stop` says where its file ends before its end. `again` is the place (file and byte) of a second
    batch with that offset, empty as a rule.

    `differing` counts the batches that are not the first replica's, in all that was compared.
    """

    directory: str
    file: str
    position: int
    base: int
    last: int
    epoch: int
    crc: int
    size: int
    differing: int
    stop: str
    again: str = ""

    def __str__(self) -> str:
        if not self.file:
            return f"  {self.directory}: nothing" + (f"; {self.stop}" if self.stop else "")
        what = (
            f"leader epoch {self.epoch}, offsets {self.base}..{self.last}, CRC "
            f"{self.crc:#010x}, {self.size} bytes"
        )
        more = (f"; held twice, again in {self.again}" if self.again else "") + (
            f"; {self.differing:,} differing" if self.differing else ""
        )
        return f"  {self.directory}: {what}; {self.file} at byte {self.position}{more}"


@dataclass(frozen=True)
class Parting:
    """The replicas of a partition part at `offset`, after a batch they share (`common_last`,
    `common_epoch`; -1 for none). Or `problem` says more.
    """

    topic: str
    partition: int
    offset: int
    common_last: int
    common_epoch: int
    copies: tuple[Copy, ...]
    problem: str = ""

    @classmethod
    def of_ids(cls, partition: Partition) -> Parting:
        return cls(partition.topic, partition.partition, -1, -1, -1, (), partition.problem)

    def __str__(self) -> str:
        if self.problem:
            return f"{self.topic}-{self.partition}: {self.problem}"
        shared = (
            f"the last batch they share ends at {self.common_last}, leader epoch "
            f"{self.common_epoch}"
        )
        if self.common_last < 0:
            shared = "they share no batch before"
        return "\n".join(
            [
                (
                    f"{self.topic}-{self.partition}: the replicas part at offset {self.offset}; "
                    f"{shared}"
                ),
                *map(str, self.copies),
            ]
        )


def partings(rows: Sequence[Row]) -> Iterator[Parting]:
    """One finding per partition that has rows of kind PARTED, and one per batch that some of its
    replicas hold in a segment of other offsets.
    """
    grouped: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row["topic"], row["partition"]), []).append(row)
    for (topic, number), own in sorted(grouped.items()):
        parted = [row for row in own if row["kind"] == PARTED]
        if parted:
            yield _parting(topic, number, own, parted)
        yield from _misplaced(topic, number, own)


def _misplaced(topic: str, number: int, rows: Sequence[Row]) -> Iterator[Parting]:
    """A file is read for several pieces, so a row may come several times.

    What all replicas hold so is the same in all.
    """
    holders: dict[tuple[int, ...], dict[str, Row]] = {}
    for row in rows:
        if row["kind"] == MISPLACED:
            batch = tuple(row[name] for name in ("base", "last", "epoch", "crc", "size"))
            holders.setdefault(batch, {})[row["directory"]] = row
    everywhere = max((row["replicas"] for row in rows if row["kind"] == READ), default=0)
    for (base, last, *_), found in sorted(holders.items()):
        if len(found) < everywhere:
            where = ", ".join(f"{row['file']} at byte {row['position']}" for row in found.values())
            yield Parting(
                topic,
                number,
                base,
                -1,
                -1,
                (),
                (
                    f"offsets {base}..{last} are held out of place, in {where}, and not so by "
                    "every replica"
                ),
            )


def _parting(topic: str, number: int, rows: Sequence[Row], parted: Sequence[Row]) -> Parting:
    first = min(row["offset"] for row in parted)
    shared = [
        row
        for row in rows
        if row["kind"] in (COMMON, READ) and row["last"] is not None and row["last"] < first
    ]
    common = max(shared, key=lambda row: int(row["last"]), default=None)
    copies = tuple(_copy(row, parted) for row in parted if row["offset"] == first)
    return Parting(
        topic,
        number,
        first,
        common["last"] if common else -1,
        common["epoch"] if common else -1,
        copies,
    )


def _copy(row: Row, parted: Sequence[Row]) -> Copy:
    differing = sum(
        other["differing"] for other in parted if other["directory"] == row["directory"]
    )
    numbers = {
        name: -1 if row[name] is None else row[name]
        for name in ("position", "base", "last", "epoch", "crc", "size")
    }
    return Copy(
        row["directory"],
        row["file"] or "",
        differing=differing,
        stop=row["stop"] or "",
        again=row["again"] or "",
        **numbers,
    )
