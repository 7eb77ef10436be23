"""An observer's place in the metadata log, and the image it makes of the records.

Owns the place to read from next, the batches above the high watermark, open transactions, and what
must never change any more. No network: bytes in, deltas out.

1. Nothing is applied before the high watermark has passed it.
2. Everything that one answer brings is applied at once and gives one delta.
3. After a snapshot the delta comes from comparing images; the published image never goes back.
4. What was applied was committed: a leader whose log ends below it, differs in it, or has only
   an older snapshot raises `MetadataRegression`, and changes nothing. On a new connection the last
   batch applied is read again and compared.
5. Who votes follows what was applied, as the records do.
6. `on_committed(batches)` is called with committed batches, byte for byte, in order, before they
   are published.

Source: Kafka's `MetadataLoader`, `KafkaRaftClient` (truncation below the high watermark is fatal);
KRAFT 3.2; `RL 8.2`. Not here: fetching (`observer.py`), the log on disk (`observer_log.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from twisted_broker.cluster.last_batch import LastBatch
from twisted_broker.cluster.metadata_check import LogEnd
from twisted_broker.cluster.records import TransactionBuffer, records_in_steps
from twisted_broker.cluster.snapshots import SnapshotId, image_in_steps, quorum_of_content
from twisted_broker.image.metadata_image import (
    EMPTY,
    RECORDS_PER_STEP,
    MetadataDelta,
    MetadataImage,
    Removals,
)
from twisted_broker.raft.control_records import control_records
from twisted_broker.raft.voter_history import ControlRecord, VoterHistory
from twisted_broker.raft.voter_set import VoterSet
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.primitives import Buffer
from twisted_broker.wire.records import BatchView, CorruptRecordError, iterate_batches
from twisted_broker.wire.schema import Record, run_whole


class MetadataRegression(Exception):
    """The leader's metadata contradicts what was committed: `applied` here, `found` there."""

    def __init__(self, applied: LogEnd, found: LogEnd, reason: str) -> None:
        super().__init__(
            f"this broker has the metadata up to offset {applied.end_offset} of "
            f"epoch {applied.epoch}, "
            f"the controller's goes to offset {found.end_offset} of epoch "
            f"{found.epoch}: it {reason}"
        )
        self.applied, self.found = applied, found


class _Pending(NamedTuple):
    """A batch above the high watermark."""

    batch: LastBatch
    timestamp_ms: int
    records: list[Record]
    data: bytes
    control: tuple[ControlRecord | None, ...] = ()


class MetadataLoader:
    """`image` is what was published last; `fetch_offset` and `last_epoch` say where to read on.

    `base`, `transactions`, `last_batch`, `removals` and `history` are those of the broker's log;
    without them reading begins with nothing. `removals` grow with each record that removes
    something; None once somebody has taken them.
    """

    def __init__(
        self,
        base: MetadataImage = EMPTY,
        transactions: TransactionBuffer | None = None,
        last_batch: LastBatch | None = None,
        on_committed: Callable[[bytes], None] = lambda batches: None,
        removals: Removals | None = None,
        history: VoterHistory | None = None,
    ) -> None:
        self.removals: Removals | None = removals or Removals()
        self.history = history or VoterHistory(VoterSet())
        self.image = self._built = base
        self.high_watermark = max(0, base.offset + 1)
        self._on_committed = on_committed
        self._transactions = transactions or TransactionBuffer()
        self._last = last_batch
        self._compared = True
        self._caught_up = self._compare = False
        self._catch_up_to = -1
        self._pending: deque[_Pending] = deque()
        self._go_on()

    def _go_on(self) -> None:
        """Reads on behind what was applied."""
        self._pending.clear()
        self.fetch_offset, self.last_epoch = self._built.offset + 1, max(self._built.epoch, 0)
        self._compared = True

    @property
    def applied(self) -> LogEnd:
        return LogEnd(self._built.offset + 1, self._built.epoch)

    @property
    def last_batch(self) -> LastBatch | None:
        """The last one applied; None where that came within a snapshot, and is not known."""
        return self._last

    @property
    def in_transaction(self) -> bool:
        return self._transactions.open

    def compare_last(self) -> None:
        """On a new connection: what answers may be another log. Reads the last batch applied
        once more.
        """
        self._go_on()
        if self._last is not None and self._last.previous_epoch >= 0:
            self.fetch_offset, self.last_epoch = self._last.base_offset, self._last.previous_epoch
            self._compared = False

    def batches(self, data: Buffer, high_watermark: int) -> MetadataDelta | None:
        """As `batches_in_steps`, without a pause."""
        return run_whole(self.batches_in_steps(data, high_watermark))

    def batches_in_steps(
        self, data: Buffer, high_watermark: int
    ) -> Generator[None, None, MetadataDelta | None]:
        """Takes an answer's batches; gives what may be published now. Pauses while it decodes many
        records; nothing else may be called meanwhile.

        WireError for what is not understood, CorruptRecordError for damage, MetadataRegression.
        """
        whole, count = False, 0
        for batch in iterate_batches(data, partial_tail=True, check_crc=True):
            whole = True
            if not self._compared:
                self._compare_with(batch)
            if batch.last_offset < self.fetch_offset:
                continue
            if batch.base_offset > self.fetch_offset:
                raise CorruptRecordError(
                    f"a batch of offset {batch.base_offset} where {self.fetch_offset} comes next"
                )
            records = yield from records_in_steps(batch, self.fetch_offset)
            count += len(records)
            # -1: a batch that begins within the image cannot be read again for a comparison
            before = self.last_epoch if batch.base_offset == self.fetch_offset else -1
            is_whole = batch.is_control and batch.base_offset == self.fetch_offset
            control = control_records(batch, "") if is_whole else ()
            own = bytes(memoryview(batch.buffer)[batch.offset : batch.offset + batch.size_in_bytes])
            self._pending.append(
                _Pending(LastBatch.of(batch, before), batch.max_timestamp, records, own, control)
            )
            self.fetch_offset, self.last_epoch = batch.last_offset + 1, batch.partition_leader_epoch
        if not whole:  # without an error it would be fetched again, and come again, at once
            raise CorruptRecordError(
                f"an answer of {len(data)} bytes for offset {self.fetch_offset} holds "
                "no whole batch"
            )
        if count > RECORDS_PER_STEP:
            yield  # to apply them is turns of their own
        return (yield from self._advance_in_steps(high_watermark))

    def _compare_with(self, batch: BatchView) -> None:
        """The first batch that is read again."""
        if self._last is not None and not self._last.is_same(batch):
            found = LogEnd(batch.last_offset + 1, batch.partition_leader_epoch)
            raise MetadataRegression(
                self.applied, found, f"has another batch at offset {batch.base_offset}"
            )
        self._go_on()

    def note_high_watermark(self, high_watermark: int) -> None:
        """The leader's; -1: it has not committed in its epoch yet."""
        self.high_watermark = max(self.high_watermark, high_watermark)
        if self._catch_up_to < 0:
            self._catch_up_to = high_watermark

    def advance(self, high_watermark: int) -> MetadataDelta | None:
        """As `_advance_in_steps`, without a pause."""
        return run_whole(self._advance_in_steps(high_watermark))

    def _advance_in_steps(self, high_watermark: int) -> Generator[None, None, MetadataDelta | None]:
        """The high watermark is here; what lies below it is applied. None when nothing new is
        below it.
        """
        self.note_high_watermark(high_watermark)
        ready: list[Record] = []
        done: list[_Pending] = []
        while self._pending and self._pending[0].batch.last_offset < self.high_watermark:
            done.append(self._pending.popleft())
            ready += self._transactions.pass_through(done[-1].records)
            self.history.append(done[-1].batch.base_offset, done[-1].control)
        if not done:
            return None
        self._last = done[-1].batch
        applied = self._built.apply_in_steps(
            ready, self._last.last_offset, self._last.epoch, done[-1].timestamp_ms
        )
        try:
            self._built, delta = yield from applied
        except LookupError as error:  # it names what is not there
            raise WireError(
                f"the records up to offset {self._last.last_offset} are not understood: {error!r}"
            ) from error
        if self.removals is not None:
            self.removals.note(delta)
        self._on_committed(b"".join(each.data for each in done))
        return (yield from self._publish(delta))

    def _publish(self, delta: MetadataDelta) -> Generator[None, None, MetadataDelta | None]:
        """Nothing before the first catch-up: the past (a topic that was deleted and created again)
        must not be acted upon as if it were news.

        It ends where the high watermark was when the leader first answered: over a slow connection,
        with a snapshot or a new segment in each round trip, an observer may never be at its end.
        Kafka's waits until it is at the high watermark of the last answer.
        """
        if not self._caught_up and not 0 <= self._catch_up_to <= self.fetch_offset:
            self._compare = True
            return None
        self._caught_up = True
        if self._compare:
            delta = yield from MetadataDelta.between_in_steps(self.image, self._built)
            self._compare = False
        self.image = self._built
        return delta

    def wants(self, snapshot: SnapshotId) -> bool:
        """Whether a snapshot that the leader offers instead of its log must be loaded.
        MetadataRegression for one of the past.
        """
        found, applied = LogEnd(snapshot.end_offset, snapshot.epoch), self.applied
        if found.end_offset < applied.end_offset or found.epoch < applied.epoch:
            raise MetadataRegression(
                applied, found, "offers a snapshot of the past in place of its log"
            )
        if self._compared:
            return True
        self._go_on()  # the leader lacks the batch to compare; the log behind it may be there
        return False

    def snapshot(self, content: Buffer, snapshot: SnapshotId) -> MetadataDelta | None:
        """As `snapshot_in_steps`, without a pause."""
        return run_whole(self.snapshot_in_steps(content, snapshot))

    def snapshot_in_steps(
        self, content: Buffer, snapshot: SnapshotId
    ) -> Generator[None, None, MetadataDelta | None]:
        """Takes a whole snapshot in place of the log before it. Pauses as it is decoded; nothing
        else may be called meanwhile.

        Raises WireError, CorruptRecordError.
        """
        try:
            self._built = yield from image_in_steps(content, snapshot)
            quorum = quorum_of_content(content, snapshot, "")
        except LookupError as error:
            name = snapshot.file_name
            raise WireError(f"snapshot {name} is not understood: {error!r}") from error
        self._transactions = TransactionBuffer()
        self.history.snapshot(snapshot.end_offset - 1, quorum)
        if self.removals is not None:
            self.removals.snapshot()
        self._last = None
        self._go_on()
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)
        self._compare = True
        return (yield from self._publish(MetadataDelta(self.image, self._built)))

    def diverged(self, epoch: int, end_offset: int) -> None:
        """The leader's log differs from `end_offset` (the end of `epoch` there) on. What was not
        applied is dropped. MetadataRegression.
        """
        if end_offset <= self._built.offset:
            raise MetadataRegression(
                self.applied, LogEnd(end_offset, epoch), "ends below that, or differs"
            )
        while self._pending and self._pending[-1].batch.last_offset >= end_offset:
            self._pending.pop()
        last = self._pending[-1].batch if self._pending else None
        self.fetch_offset = (last.last_offset if last else self._built.offset) + 1
        self.last_epoch = last.epoch if last else max(self._built.epoch, 0)
