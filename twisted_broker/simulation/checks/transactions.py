"""The reads of read_committed consumers and committed offsets, checked against the transactions
that their producers ran.

Owns `TransactionChecker`.

1. A record of a transaction for which no commit was ever sent is shown to nobody; each record is
   shown at one offset only.
2. The last stable offset that a consumer saw never goes back under the same leader epoch, and is
   never above the high watermark.
3. A committed offset is of a transaction that may be committed, and never older than the last one
   of which the commit was acknowledged: as the group's coordinator says, not one that stood still
   while another took over (it answers from memory until it hears of that, in Kafka too).
4. What a producer of version 2 writes in its transaction is not answered INVALID_TXN_STATE, which
   ends it for good: each of its transactions has an epoch of its own, so that of a transaction
   which was ended meanwhile is answered by its epoch.
5. At the end a transaction is there as a whole, its offset with it, or not at all; as its producer
   was answered, where it was.

Where an unclean election took something of a partition, nothing is owed there; of
`__transaction_state` or `__consumer_offsets`, anywhere. Source: RL 9.4; KIP-98, KIP-890. Not here:
records of compacted topics (`simulation/checks/compacted.py`), what logs hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.checks.end_state import is_there
from twisted_broker.simulation.transaction_notes import Outcome, Transaction, TransactionNotes
from twisted_broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC


class TransactionChecker:
    """Attached to `known`. `is_visible` looks records of compacted topics up, at the end: whether
    it is committed, None where that is not known.
    """

    def __init__(
        self,
        checker: ClusterChecker,
        known: TransactionNotes,
        is_visible: Callable[[TopicPartition, int, bytes], bool | None],
    ) -> None:
        self._checker, self._known, self._is_visible = checker, known, is_visible
        self.shown: dict[tuple[TopicPartition, bytes], int] = {}
        """(partition, value) -> the offset at which read_committed shows it"""
        self._stable: dict[tuple[str, TopicPartition, int], int] = {}
        self._offsets: dict[str, int] = {}
        known.delivered, known.stable_seen = self.delivered, self.stable_seen
        known.offset_floor, known.offset_seen = self.offset_floor, self.offset_seen
        known.belongs_to_nothing = self.belongs_to_nothing
        known.coordinator_of = checker.truth.coordinator_of

    # as it happens

    def belongs_to_nothing(self, who: str) -> None:
        self._broken(None, f"{who} was answered INVALID_TXN_STATE in its transaction")

    def delivered(self, who: str, partition: TopicPartition, offset: int, value: bytes) -> None:
        found = self._known.by_value.get(value)
        if found is not None and found.outcome is Outcome.NOT_SENT:
            self._broken(partition, f"{who} was shown {value!r} at {offset} of {found!r}")
        before = self.shown.setdefault((partition, value), offset)
        if before != offset and found is not None:
            self._broken(partition, f"{who} was shown {value!r} at {offset} and at {before}")

    def stable_seen(
        self, who: str, partition: TopicPartition, epoch: int, stable: int, mark: int
    ) -> None:
        before = self._stable.get((who, partition, epoch), -1)
        if epoch >= 0 and (stable < before or stable > mark):
            self._broken(
                partition,
                f"{who} saw the last stable offset {stable} of {partition} in epoch {epoch} after "
                f"{before}, high watermark {mark}",
            )
        self._stable[who, partition, epoch] = stable

    def offset_floor(self, transactional_id: str) -> int:
        return max(
            (
                each.number
                for each in self._known.transactions
                if each.transactional_id == transactional_id
                and each.offset is not None
                and each.outcome is Outcome.COMMITTED
            ),
            default=-1,
        )

    def offset_seen(self, transactional_id: str, offset: int, floor: int) -> None:
        self._offsets[transactional_id] = offset
        if offset < floor:
            self._broken(None, f"{offset} is committed, {floor} was acknowledged before")
        if offset >= 0 and self._known.transactions[offset].outcome is Outcome.NOT_SENT:
            self._broken(None, f"offset {offset} is of {self._known.transactions[offset]!r}")

    # at the end

    def at_the_end(self, committed: Mapping[str, int]) -> None:
        """All was read to the end. `committed`: transactional id -> its group's offset."""
        for each in self._known.transactions:
            shown = dict(self._owed(each))
            if each.offset is not None and each.transactional_id in committed:
                last = committed[each.transactional_id]
                if last <= each.number or each.outcome is Outcome.COMMITTED:
                    shown[f"offset {each.offset}"] = last >= each.number
                # Whether there was one below a later one nobody can see.
            self._whole(each, shown)

    def _whole(self, each: Transaction, shown: Mapping[str, bool]) -> None:
        there = [name for name, is_shown in shown.items() if is_shown]
        missing = [name for name, is_shown in shown.items() if not is_shown]
        if each.outcome is Outcome.COMMITTED and missing:
            self._broken(None, f"{each!r} is not whole, there is no {missing[0]}")
        elif each.outcome in (Outcome.ABORTED, Outcome.NOT_SENT) and there:
            self._broken(None, f"{each!r} shows {there[0]}")
        elif each.outcome is Outcome.SENT and there and missing:
            self._broken(None, f"{each!r} is torn: {there[0]} is there, {missing[0]} is not")

    def _owed(self, each: Transaction) -> Iterator[tuple[str, bool]]:
        """What everybody can see of it, and whether it is shown."""
        truth = self._checker.truth
        for partition, base, values in each.records:
            line = truth.line_of(partition)
            if not line.is_complete or not is_there(self._checker, partition):
                continue
            for offset, value in enumerate(values, base):
                visible = self._is_visible(partition, offset, value)
                if visible is None and offset >= line.deleted_upto:
                    visible = (partition, value) in self.shown
                if visible is not None:
                    yield f"{value.decode()} at {offset} of {partition}", visible

    def is_owed(self, partition: TopicPartition | None) -> bool:
        """Whether nothing was lost that decides on transactions, nor in this partition."""
        truth = self._checker.truth
        return truth.is_complete(OFFSETS_TOPIC, TRANSACTIONS_TOPIC) and (
            partition is None or truth.line_of(partition).is_complete
        )

    def _broken(self, partition: TopicPartition | None, text: str) -> None:
        if self.is_owed(partition):
            self._checker.broken = self._checker.broken or f"transactions: {text}"
