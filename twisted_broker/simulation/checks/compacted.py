"""Compacted logs, checked against all that was ever committed to them.

Owns `CompactedChecker`, and `KeyedLine`, the records that a leader exposed, in order, before any
cleaner took some.

1. After each round, after a restart and at the end: what a log keeps is what was committed there,
   under the same offset. What is missing below the cleaned offset was replaced by a newer committed
   record of its key, was of an aborted transaction, or is a tombstone whose time is over. The newer
   one may lie above that offset: a round replaces segments group after group, and one that ends
   between two groups stays so.
2. Nothing is cleaned, or shown to readers of committed records, from where the first undecided
   transaction begins on. Decided is also one whose marker is above the high watermark: after a
   clean restart a broker takes it for decided, here as in Kafka. A marker that is lost there is
   sent again, with the same outcome.
3. A reader from the start is shown what was committed and not aborted, and, for each key, a record
   at least as new as the last one below the end; a key whose last record is a tombstone may be
   gone, and one whose last record a newer one replaced meanwhile. A replica that copies a log only
   after a tombstone's time is over may never see it, and keep what it deleted, here as in Kafka
   (`delete.retention.ms` must be longer than any replica is behind). One that copied it with its
   time may clean for the first time when that is over: then the tombstone goes with what it
   deleted, while a reader is between the two.
4. The last batch of each producer is there, whatever came that is not committed yet: who copies the
   log learns the producer's sequence and epoch from it. So is the marker that alone holds its
   epoch, but where the replica has newer batches, or a newer epoch, that are not committed yet.
5. Every compacted topic counts, `__consumer_offsets` and `__transaction_state` too. Batches below
   the cleaned offset are not compared byte for byte any more.

Partitions that were led uncleanly once are left out: where a round had taken records, a hole in the
log of who was elected is not seen. Source: RL 9.2; KIP-534.
Not here: what is cleaned when (`log/cleaner`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.log import Log
from twisted_broker.simulation.checks.committed_state import CommittedState, Key, Violation
from twisted_broker.simulation.checks.replica_contents import Line
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.transaction_notes import keyed
from twisted_broker.wire.control_batch import COMMIT, control_record_type
from twisted_broker.wire.records import BatchView, CorruptRecordError, iterate_batches

_RECORD_BYTES = 1 << 20
_SKEW_SECONDS = 4.2
"""the clocks of two machines differ by so much at most"""
_Content = tuple[bytes | None, bytes | None]


class LastOfProducer(NamedTuple):
    """`offset`: the last one of its last data batch of this epoch; where only markers are of it, of
    the first.
    """

    epoch: int
    offset: int
    is_marker: bool


class KeyedLine:
    """`records`: offset -> (key, value); `outcomes`: offset -> whether its transaction was
    committed, `expected`: whether it will be, by a marker above the high watermark; `by_key`: the
    offsets of each key, committed ones only, in order; `exposed_at`: the second at which a
    tombstone was committed; `producers`: by producer id.
    """

    def __init__(self) -> None:
        self.end = 0
        self.records: dict[int, _Content] = {}
        self.outcomes: dict[int, bool] = {}
        self.expected: dict[int, bool] = {}
        self.by_key: dict[bytes, list[int]] = {}
        self.exposed_at: dict[int, float] = {}
        self.producers: dict[int, LastOfProducer] = {}
        self._open: dict[int, list[int]] = {}

    @property
    def first_open(self) -> int:
        """Where the first transaction begins that is not decided, the end when there is none."""
        return min((offsets[0] for offsets in self._open.values()), default=self.end)

    @property
    def first_unexpected(self) -> int:
        """The first of them that no marker above the high watermark is expected to decide."""
        return min(
            (offsets[0] for offsets in self._open.values() if offsets[0] not in self.expected),
            default=self.end,
        )

    def expect(self, batches: Iterable[BatchView]) -> None:
        """What a log has behind the end: its markers will decide what is open."""
        for batch in batches:
            if batch.is_control and batch.producer_id in self._open:
                for record in batch.records(_RECORD_BYTES):
                    is_commit = control_record_type(record.key) == COMMIT
                    for offset in self._open[batch.producer_id]:
                        self.expected.setdefault(offset, is_commit)

    def extend(self, batches: Iterable[BatchView], now: float) -> None:
        """What a leader exposed behind the end."""
        for batch in batches:
            if batch.is_control:
                for record in batch.records(_RECORD_BYTES):
                    is_commit = control_record_type(record.key) == COMMIT
                    self._decided(batch.producer_id, is_commit, now)
            else:
                self._add(batch, now)
            if batch.producer_id >= 0:
                self._wrote(batch)
            self.end = batch.next_offset

    def _wrote(self, batch: BatchView) -> None:
        before = self.producers.get(batch.producer_id)
        if batch.is_control and before is not None and before.epoch == batch.producer_epoch:
            return
        self.producers[batch.producer_id] = LastOfProducer(
            batch.producer_epoch, batch.last_offset, batch.is_control
        )

    def _add(self, batch: BatchView, now: float) -> None:
        for delta, key, value in batch.key_values(_RECORD_BYTES):
            offset = batch.base_offset + delta
            self.records[offset] = (
                None if key is None else bytes(key),
                None if value is None else bytes(value),
            )
            if batch.is_transactional:
                self._open.setdefault(batch.producer_id, []).append(offset)
            else:
                self._committed(offset, now)

    def _decided(self, producer_id: int, is_commit: bool, now: float) -> None:
        for offset in self._open.pop(producer_id, []):
            self.outcomes[offset] = is_commit
            if is_commit:
                self._committed(offset, now)

    def _committed(self, offset: int, now: float) -> None:
        key, value = self.records[offset]
        if key is not None:
            insort(self.by_key.setdefault(key, []), offset)
            if value is None:
                self.exposed_at[offset] = now

    def last_below(self, key: bytes, end: int) -> int:
        """The last committed record of a key below `end`, -1 when there is none."""
        offsets = self.by_key.get(key, [])
        row = bisect_left(offsets, end)
        return offsets[row - 1] if row else -1

    def may_be_missing(
        self, offset: int, replaced_upto: int, now: float, retention_seconds: float
    ) -> bool:
        """Whether a cleaner that knew all records below `replaced_upto` may have taken it."""
        key, value = self.records[offset]
        if key is None or self.outcomes.get(offset) is False:
            return True
        if self.last_below(key, replaced_upto) > offset:
            return True
        at = self.exposed_at.get(offset)
        is_over = at is not None and _is_late(at, now, retention_seconds)
        return value is None and is_over


class CompactedChecker:
    """`lines`: of all compacted partitions."""

    def __init__(self, truth: CommittedState) -> None:
        self._truth = truth
        self.lines: dict[Key, KeyedLine] = {}
        self._reached: dict[tuple[str, Key], int] = {}
        """(machine, partition) -> the end of its log"""
        self._taken_upto: dict[Key, int] = {}
        """up to where the rounds of any replica knew all records"""
        self._late: set[tuple[Key, int]] = set()
        """tombstones that a replica came past without them when their time was over"""
        self._taken_at: dict[tuple[Key, int], float] = {}
        """tombstones whose time was over -> when a cleaner last rewrote a segment that held them"""
        self.broken = ""
        """what a check found that cannot raise: through a client, or through the cleaner"""

    # logs

    def exposed(self, key: Key, log: Log, disk: SimDisk, upto: int, now: float) -> None:
        """A leader exposes this log below `upto`."""
        if not log.config.compact:
            return
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = KeyedLine()
        if upto > line.end:
            line.extend(_batches(log, disk, line.end, upto), now)

    def copied(self, machine: str, key: Key, log: Log, now: float) -> None:
        """The log of a machine has another end now."""
        known = self.lines.get(key)
        if known is None:
            return
        before, end = self._reached.get((machine, key), 0), log.log_end_offset
        self._reached[machine, key] = end
        retention_seconds = log.config.delete_retention_ms / 1000
        late = [
            offset
            for offset, at in known.exposed_at.items()
            if before <= offset < end and _is_late(at, now, retention_seconds)
        ]
        if late:
            held = dict(_contents(_batches(log, _disk(log), before, end)))
            self._late.update((key, offset) for offset in late if offset not in held)
        if end > known.end:
            known.expect(_batches(log, _disk(log), known.end, end))

    def taking(self, key: Key, upto: int) -> None:
        """A round that knew all records below `upto` is about to replace segments."""
        self._taken_upto[key] = max(self._taken_upto.get(key, 0), upto)

    def replacing(self, key: Key, log: Log, bases: Sequence[int], now: float) -> None:
        """Segments of a log are about to be replaced by a cleaner's."""
        following = log.segments.at(log.segments.row_of(bases[-1]) + 1)
        if following is None:
            return
        upto, line = following.base_offset, self._truth.line(key)
        line.cleaned_upto = max(line.cleaned_upto, upto)
        known = self.lines.get(key)
        if known is not None and _is_compared(line) and upto > known.first_open:
            self.broken = self.broken or (
                f"compacted: {log.directory}: cleaned up to {upto}, but a transaction at "
                f"{known.first_open} is not decided"
            )
        if known is not None:
            self._note_late(key, known, log, bases[0], upto, now)

    def _note_late(
        self, key: Key, known: KeyedLine, log: Log, start: int, upto: int, now: float
    ) -> None:
        retention_seconds = log.config.delete_retention_ms / 1000
        late = {
            offset
            for offset, at in known.exposed_at.items()
            if start <= offset < upto and _is_late(at, now, retention_seconds)
        }
        if late:
            held = _contents(_batches(log, _disk(log), start, upto))
            self._taken_at.update(((key, offset), now) for offset, _ in held if offset in late)

    def check(self, key: Key, log: Log, disk: SimDisk, now: float, where: str) -> None:
        """All that a log keeps. Raises `Violation`."""
        truth, known = self._truth.line(key), self.lines.get(key)
        if known is None or not _is_compared(truth) or log.failed is not None:
            return
        start, upto = log.log_start_offset, min(truth.cleaned_upto, known.end)
        # Above its own high watermark a replica may hold what its leader will have it truncate.
        end = min(upto, log.high_watermark)
        if log.gap is not None:
            # What an unclean stop took out of the middle is decided about with the first leader.
            end = min(end, (log.gap.torn_tail or log.gap).offset)
        replaced_upto = max(upto, min(self._taken_upto.get(key, 0), known.end))
        batches = list(_batches(log, disk, start, end))
        kept = dict(_contents(batches))
        retention_seconds = log.config.delete_retention_ms / 1000
        floor = max(start, truth.deleted_upto)
        for offset, content in known.records.items():
            if not floor <= offset < end:
                continue
            found = kept.pop(offset, None)
            if found is not None and found != content:
                raise Violation(f"{where}: {offset} holds {found}, committed was {content}")
            if found is None and not known.may_be_missing(
                offset, replaced_upto, now, retention_seconds
            ):
                raise Violation(
                    f"{where}: {content} at {offset} is gone, cleaned up to {upto}, and nothing "
                    "replaced it"
                )
        stray = [offset for offset in kept if offset >= floor]
        if stray:
            raise Violation(f"{where}: {kept[stray[0]]} at {stray[0]} was never committed")
        lost = _lost_producer(known, log, batches, floor, end)
        if lost:
            raise Violation(f"{where}: {lost}, cleaned up to {upto}")

    # readers

    def is_visible(self, name: TopicPartition, offset: int, value: bytes) -> bool | None:
        """Whether a record is there for readers of committed records, or was before a newer one
        came; None: its topic is not compacted.
        """
        known = self._known(name)
        if known is None:
            return None
        return known.records.get(offset) == keyed(value) and known.outcomes.get(offset, True)

    def acked(self, name: TopicPartition, base: int, values: Sequence[bytes]) -> None:
        """An acknowledged record is committed, where it was answered."""
        known = self._known(name)
        for offset, value in enumerate(values, base):
            found = None if known is None else known.records.get(offset)
            if found != keyed(value):
                self._broken(name, f"{value!r} was acknowledged at {offset}: {found} is there")

    def delivered(
        self,
        who: str,
        name: TopicPartition,
        offset: int,
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        known = self._known(name)
        if known is None:
            return
        if known.records.get(offset) != (key, value):
            self._broken(
                name, f"{who} read {value!r} of {key!r} at {offset}: {known.records.get(offset)}"
            )
        elif not known.outcomes.get(
            offset, known.expected.get(offset, offset < known.first_unexpected)
        ):
            self._broken(name, f"{who} read {value!r} at {offset}, which is not committed")

    def pass_ended(
        self,
        who: str,
        name: TopicPartition,
        end: int,
        seconds: float,
        seen: Mapping[bytes, int],
        now: float,
    ) -> None:
        """A reader came from the start to `end`, under one leader epoch."""
        known = self._known(name)
        if known is None:
            return
        began = now - seconds
        for key in known.by_key:
            last = known.last_below(key, end)
            found = seen.get(key, -1)
            if found >= last:
                continue
            if known.last_below(key, self._replaced_upto(name)) > last:
                # A newer one, behind that end, replaced it while the reader was on its way.
                continue
            tombstone = self._truth.keys[name], last
            if tombstone in self._late or self._taken_at.get(tombstone, -1.0) >= began:
                continue
            is_tombstone = known.records[last][1] is None
            if not is_tombstone or (found >= 0 and seconds < 1.0):
                self._broken(
                    name, f"{who} read {key!r} up to {found}, its last below {end} is at {last}"
                )

    def _replaced_upto(self, name: TopicPartition) -> int:
        key = self._truth.keys[name]
        return max(self._truth.line(key).cleaned_upto, self._taken_upto.get(key, 0))

    def _known(self, name: TopicPartition) -> KeyedLine | None:
        key = self._truth.keys.get(name)
        return None if key is None else self.lines.get(key)

    def _broken(self, name: TopicPartition, text: str) -> None:
        if _is_compared(self._truth.line_of(name)):
            self.broken = self.broken or f"compacted: {name}: {text}"


def _is_compared(line: Line) -> bool:
    return line.is_complete and line.is_whole


def _is_late(at: float, now: float, retention_seconds: float) -> bool:
    """Whether what was committed at `at`, and goes when its time is over, may be gone."""
    return now - at > retention_seconds - _SKEW_SECONDS


def _lost_producer(
    known: KeyedLine, log: Log, batches: Sequence[BatchView], start: int, end: int
) -> str:
    """Whose last batch, from `start` to `end`, is not among these any more; "": nobody's."""
    if log.producers.is_rebuilding:
        return ""
    data = {(each.producer_id, each.last_offset) for each in batches if not each.is_control}
    markers = {(each.producer_id, each.producer_epoch) for each in batches if each.is_control}
    for producer_id, (epoch, offset, is_marker) in known.producers.items():
        if not start <= offset < end:
            continue
        entry = log.producers.producers.get(producer_id)
        # An emptied marker tells a follower that copies it nothing, here as in Kafka; one that has
        # newer batches, not committed yet, may know the producer by these alone.
        knows = entry is not None and entry.producer_epoch == epoch and not entry.batches
        if is_marker and knows and (producer_id, epoch) not in markers:
            return f"the marker of producer {producer_id}, epoch {epoch}, is gone"
        if not is_marker and (producer_id, offset) not in data:
            return f"the last batch of producer {producer_id}, to {offset}, is gone"
    return ""


def _disk(log: Log) -> SimDisk:
    return cast(SimDisk, log.segments.pool.files)


def _batches(log: Log, disk: SimDisk, start: int, upto: int) -> Iterator[BatchView]:
    """The batches of a log from `start` on that lie wholly below `upto`, past the production code.
    Raises `Violation` at damage: a log that is served has none.
    """
    row = max(0, log.segments.row_of(start))
    while (segment := log.segments.at(row)) is not None and segment.base_offset < upto:
        data = bytes(disk.nodes[segment.log.path].data[: segment.size])
        try:
            for batch in iterate_batches(data, check_crc=True):
                if batch.base_offset >= start and batch.next_offset <= upto:
                    yield batch
        except CorruptRecordError as error:
            raise Violation(f"{segment.log.path}: a compacted log is damaged: {error}") from error
        row += 1


def _contents(batches: Iterable[BatchView]) -> Iterator[tuple[int, _Content]]:
    for batch in batches:
        if not batch.is_control:
            for delta, key, value in batch.key_values(_RECORD_BYTES):
                yield (
                    batch.base_offset + delta,
                    (None if key is None else bytes(key), None if value is None else bytes(value)),
                )
