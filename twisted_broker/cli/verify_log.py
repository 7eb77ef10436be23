"""One partition directory: its segments end to end, with everything that must agree with them.

1. Batches: a good checksum, a known shape, offsets that grow through all segments and stay in reach
   of their segment's name.
2. Leader epochs of batches never go back and agree with `leader-epoch-checkpoint`, whose entries
   grow and lie within the log.
3. Indexes as in `verify_indexes`; every closed segment has its offset index and time index. Of the
   last segments the offset index may be gone: a stop while producers were looked for takes it, so
   that the next start goes over them (`log/producer_rebuild.py` 3).
4. Producer snapshots are readable and lie within the log, their entries below the offset in the
   name.
5. Nothing else is there but files that await their deletion, which a clean stop may leave. In a
   directory that is in use, a batch that is being written, an index that runs ahead of what was
   read, and a file that is about to take another's place are no finding.

Not here: replaying producers' sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twisted_broker.cli.batches import FileBatch, checksum_damage, read_batches
from twisted_broker.cli.dump import LEFT_OVER, file_rows, kind_of
from twisted_broker.cli.payloads import BAD_BYTES
from twisted_broker.cli.progress import ProgressCallback
from twisted_broker.cli.report import Report
from twisted_broker.cli.rows import Damage
from twisted_broker.cli.small_files import base_offset_of, is_uuid, leader_epoch_rows, snapshot_rows
from twisted_broker.cli.verify_indexes import (
    OffsetIndexCheck,
    TimeIndexCheck,
    TransactionIndexCheck,
    Transactions,
)
from twisted_broker.log.future_logs import PROMOTED
from twisted_broker.wire.message_set import MessageView
from twisted_broker.wire.records import BatchView

LARGEST_DELTA = 2**31 - 1


class EpochCheck:
    """Invariant 2, batch by batch."""

    def __init__(self, path: Path, report: Report, log_start: int) -> None:
        self.path, self.report, self.log_start = path, report, log_start
        self.starts: list[tuple[int, int]] = []
        self.at = -1
        self.last_epoch = -1
        self.reported = False
        if path.exists():
            self.read()

    def read(self) -> None:
        for item in leader_epoch_rows(self.path):
            if isinstance(item, Damage):
                self.report.findings.append(item)
                self.reported = True
                continue
            entry = (item["start_offset"], item["epoch"])
            if self.starts and (entry[0] <= self.starts[-1][0] or entry[1] <= self.starts[-1][1]):
                self.report.add(
                    self.path,
                    -1,
                    f"epoch {entry[1]} from offset {entry[0]} does not grow from the entry before",
                )
            self.starts.append(entry)

    def batch(self, path: Path, position: int, base_offset: int, epoch: int) -> None:
        if epoch < self.last_epoch:
            self.report.add(
                path,
                position,
                f"leader epoch {epoch} of offset {base_offset} follows epoch {self.last_epoch}",
            )
        self.last_epoch = max(self.last_epoch, epoch)
        while self.at + 1 < len(self.starts) and self.starts[self.at + 1][0] <= base_offset:
            self.at += 1
        if self.at < 0 and self.starts:
            # DeleteRecords trims the epochs at once; a kill may have lost the log start that it
            # raised
            return
        cached = self.starts[self.at][1] if self.at >= 0 else -1
        if epoch >= 0 and cached != epoch and not self.reported and base_offset >= self.log_start:
            self.reported = True
            self.report.add(
                self.path,
                -1,
                f"offset {base_offset} has leader epoch {epoch}, the checkpoint says {cached}",
            )

    def end(self, log_end: int) -> None:
        for start, epoch in self.starts:
            if start > log_end:
                self.report.add(
                    self.path,
                    -1,
                    f"epoch {epoch} begins at offset {start}, the log ends at {log_end}",
                )


class LogCheck:
    """All of one directory. Afterwards `log_start`, `log_end` and `topic_id` are known."""

    def __init__(
        self,
        directory: Path,
        report: Report,
        with_records: bool,
        on_progress: ProgressCallback,
        recovery_point: int | None = None,
        log_start: int = 0,
    ) -> None:
        self.directory, self.report, self.with_records, self.on_progress = (
            directory,
            report,
            with_records,
            on_progress,
        )
        self.recovery_point = recovery_point
        self.transactions = Transactions()
        self.to_index: set[str] = set()
        self.names = sorted(entry.name for entry in directory.iterdir())
        self.next_offset = 0
        self.log_start = log_start
        self.log_end = 0
        self.topic_id = ""

    def run(self) -> None:
        self.report.partitions += 1
        self.epochs = EpochCheck(
            self.directory / "leader-epoch-checkpoint", self.report, self.log_start
        )
        segments = [
            name for name in self.names if name.endswith(".log") and kind_of(self.directory / name)
        ]
        if segments:
            self.next_offset = base_offset_of(self.directory / segments[0])
            self.log_start = max(self.log_start, self.next_offset)
        if not self.report.in_use:
            self.to_index = self.without_index(segments)
        for name in segments:
            with self.vanishing():
                self.segment(self.directory / name, is_last=name == segments[-1])
        self.log_end = self.next_offset
        self.epochs.end(self.log_end)
        for name in self.names:
            with self.vanishing():
                self.other_file(self.directory / name)
        self.ids()

    def without_index(self, segments: list[str]) -> set[str]:
        """Those from which on no segment has its offset index, but for an empty one at the end:
        there nothing is to be gone over.
        """
        found: set[str] = set()
        for number, name in enumerate(reversed(segments)):
            path = self.directory / name
            if number or path.stat().st_size:
                if path.with_suffix(".index").name in self.names:
                    break
                found.add(name)
        return found

    @contextmanager
    def vanishing(self) -> Iterator[None]:
        """A running broker may delete what was listed a moment ago."""
        try:
            yield
        except FileNotFoundError:
            if not self.report.in_use:
                raise
            self.report.awaiting_deletion += 1

    def segment(self, path: Path, is_last: bool) -> None:
        base = base_offset_of(path)
        if base < self.next_offset:
            self.report.add(
                path,
                -1,
                f"the segment begins at offset {base}, the one before ends at {self.next_offset}",
            )
        self.next_offset = max(self.next_offset, base)
        index, times, aborted = self.indexes(path, is_last)
        for item in read_batches(path):
            if isinstance(item, Damage):
                self.note_unreadable(item, is_last)
                break
            self.batch(path, base, item, index, times, aborted)
        if not (is_last and self.report.in_use):
            self.end_of_segment(index, times, aborted)
        self.report.segments += 1
        self.report.bytes += path.stat().st_size
        self.on_progress(str(path), self.report.bytes)

    def end_of_segment(
        self,
        index: OffsetIndexCheck | None,
        times: TimeIndexCheck | None,
        aborted: TransactionIndexCheck | None,
    ) -> None:
        for check in (index, times):
            if check is not None:
                check.end(self.next_offset - 1)
        if aborted is not None:
            aborted.end()

    def indexes(
        self, path: Path, is_last: bool
    ) -> tuple[OffsetIndexCheck | None, TimeIndexCheck | None, TransactionIndexCheck | None]:
        index, times, aborted = (
            path.with_suffix(suffix) for suffix in (".index", ".timeindex", ".txnindex")
        )
        for needed in (index, times):
            if needed.exists() or is_last or self.report.in_use:
                continue
            if needed == index and path.name in self.to_index:
                self.report.to_index += 1
            else:
                self.report.add(needed, -1, "the index is missing; the next start rebuilds it")
        return (
            OffsetIndexCheck(index, self.report) if index.exists() else None,
            TimeIndexCheck(times, self.report) if times.exists() else None,
            TransactionIndexCheck(aborted, self.report) if aborted.exists() else None,
        )

    def note_unreadable(self, damage: Damage, is_last: bool) -> None:
        """The segment cannot be read on."""
        if is_last and self.report.in_use:
            return
        note = ""
        if is_last and self.recovery_point is not None and self.next_offset >= self.recovery_point:
            note = f" (above the recovery point {self.recovery_point}: the next start truncates it)"
        self.report.findings.append(Damage(damage.path, damage.position, damage.problem + note))

    def batch(
        self,
        path: Path,
        base: int,
        found: FileBatch,
        index: OffsetIndexCheck | None,
        times: TimeIndexCheck | None,
        aborted: TransactionIndexCheck | None,
    ) -> None:
        damage = checksum_damage(path, found)
        if damage is not None:
            self.report.findings.append(damage)
        first, last, max_timestamp, count = self.bounds(path, found, damage is None)
        self.offsets(path, found.position, base, first, last)
        if index is not None:
            index.batch(found.position, first)
        if times is not None:
            times.batch(first, max_timestamp)
        view = found.view
        if isinstance(view, BatchView):
            self.epochs.batch(path, found.position, first, view.partition_leader_epoch)
            if view.is_transactional:
                self.transaction(view, first, last, aborted)
        self.report.batches += 1
        self.report.records += count

    def transaction(
        self, view: BatchView, first: int, last: int, aborted: TransactionIndexCheck | None
    ) -> None:
        if not view.is_control:
            self.transactions.batch(view.producer_id, first)
            return
        began, before = self.transactions.marker(view.producer_id, last)
        if aborted is not None:
            aborted.marker(last, view.producer_id, began, before)

    def offsets(self, path: Path, position: int, base: int, first: int, last: int) -> None:
        if first < self.next_offset:
            self.report.add(path, position, f"offset {first} follows {self.next_offset - 1}")
        if last - base > LARGEST_DELTA:
            self.report.add(path, position, f"offset {last} is too far from the segment's {base}")
        self.next_offset = max(self.next_offset, last + 1)

    def bounds(self, path: Path, found: FileBatch, readable: bool) -> tuple[int, int, int, int]:
        """(first offset, last offset, max timestamp, records)."""
        view = found.view
        if isinstance(view, MessageView):
            seen = list(self.records(path, found)) if readable and view.codec else []
            return (seen[0] if seen else view.offset), view.offset, view.timestamp, len(seen) or 1
        count = view.records_count
        if view.last_offset_delta < 0 or not 0 <= count <= view.last_offset_delta + 1:
            self.report.add(
                path,
                found.position,
                f"{count} records cannot have {view.last_offset_delta} as their last offset delta",
            )
        elif self.with_records and readable:
            seen = list(self.records(path, found))
            if seen and not view.base_offset <= seen[0] <= seen[-1] <= view.last_offset:
                self.report.add(
                    path,
                    found.position,
                    (
                        f"records {seen[0]}..{seen[-1]}, the header says "
                        f"{view.base_offset}..{view.last_offset}"
                    ),
                )
        return (
            view.base_offset,
            max(view.last_offset, view.base_offset),
            view.max_timestamp,
            max(count, 0),
        )

    def records(self, path: Path, found: FileBatch) -> Iterator[int]:
        """The offsets of the batch's records, all of them decoded."""
        previous = -1
        try:
            for record in found.records():
                if record.offset <= previous:
                    self.report.add(
                        path,
                        found.position,
                        f"a record has the offset {record.offset} after {previous}",
                    )
                previous = record.offset
                yield previous
        except BAD_BYTES as error:
            self.report.add(
                path,
                found.position,
                f"the record after offset {previous} of this batch cannot be read: {error}",
            )

    def other_file(self, path: Path) -> None:
        kind = kind_of(path)
        if path.name == PROMOTED:
            return  # says which of two logs counts, where a start finds both
        if kind is None or path.is_dir():
            self.report.add(path, -1, "does not belong to a partition")
        elif path.name.endswith(".deleted"):
            self.report.awaiting_deletion += 1
        elif LEFT_OVER.search(path.name):
            if not self.report.in_use:
                self.report.add(
                    path, -1, "is left over; the next start removes it or finishes what it was for"
                )
        elif kind == ".snapshot":
            self.snapshot(path)
        elif kind in (".index", ".timeindex", ".txnindex"):
            if path.with_suffix(".log").name not in self.names and not self.report.in_use:
                self.report.add(path, -1, "has no segment")
        elif kind in (".checkpoint", ".last-batch", "quorum-state", "partition.metadata"):
            self.report.findings.extend(
                item for item in file_rows(path, False) if isinstance(item, Damage)
            )

    def snapshot(self, path: Path) -> None:
        offset = base_offset_of(path)
        if offset > self.log_end:
            self.report.add(path, -1, f"is of offset {offset}, the log ends at {self.log_end}")
        for item in snapshot_rows(path):
            if isinstance(item, Damage):
                self.report.findings.append(item)
            elif item["kind"] == "producer" and item["last_offset"] >= offset:
                self.report.add(
                    path,
                    -1,
                    (
                        f"producer {item['producer_id']} has written offset {item['last_offset']} "
                        "already"
                    ),
                )

    def ids(self) -> None:
        path = self.directory / "partition.metadata"
        if path.exists():
            fields = dict(
                line.split(": ", 1)
                for line in path.read_text(errors="replace").splitlines()
                if ": " in line
            )
            self.topic_id = fields.get("topic_id", "")
            if not is_uuid(self.topic_id):
                self.topic_id = ""
        elif self.log_end > self.log_start and not self.report.in_use:
            self.report.add(path, -1, "is missing")
