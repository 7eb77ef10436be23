"""Ends of transactions that the leader's cleaner removed before a follower fetched them.

Owns `FetchedTransactions`, which knows from where on the open transactions of a log were fetched
early enough, and `MarkersMissed`, by which a log is truncated and fetched again.

1. A leader's cleaner removes the marker of a transaction, or empties its batch, once the records
   that it decided are gone and `delete.retention.ms` is over. A follower that holds such records,
   and was away for longer, finds no offset, or no record, where the marker was. Kafka's follower
   keeps the transaction open: its last stable offset stays there, or the producer's next marker
   decides the transaction, and aborted records may count as committed.
2. Here the log is truncated to where the first such transaction begins, and fetched again from
   there. A leader that has its records has the marker, too, unless it missed it itself.
3. A transaction is doubtful if its first record was fetched from another leader, before the log was
   loaded, or more than a quarter of `delete.retention.ms` ago (the clocks of two machines differ,
   and step). A mark is a time and the log end of then: a transaction that begins at or above that
   was fetched later. A new mark is set each eighth of `delete.retention.ms`; two are kept.
4. After such a truncation no transaction is doubted until twice as much is fetched as was cut off.
   So the fetching ends, however short that time is, and costs a few times the log at most. A
   follower that was away meanwhile doubts every open transaction again.
5. Of an answer only the batches before the missing offset are taken: they may hold the marker.
6. Nothing is checked while no transaction is open, nor on a replica that is in the ISR or may be
   elected: it has all that is committed, and may be the only one. An unclean election of a replica
   that is fetched again loses what it has not fetched yet, as with any replica that is behind.

Source: our own; KIP-534 says when markers go. Not here: who may be elected (`Partition`), the
truncation (`fetcher`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.replicated_batches import Replicated


class MarkersMissed(Exception):
    """The log is to be truncated to `offset` and fetched again from there; `fully`: nothing of it
    stays.
    """

    def __init__(self, first_offset: int, log_start_offset: int) -> None:
        super().__init__(
            f"its leader may have cleaned away the end of the transaction at {first_offset}"
        )
        self.offset = max(first_offset, log_start_offset)
        self.fully = first_offset < log_start_offset


class ProducersUnknown(Exception):
    """Producers are being rebuilt, so open transactions are not known: the batches wait."""


_AWAY_MS = 10_000
"""A follower without an answer for this long, or for the quarter of (3) if longer, was away."""


class _Mark(NamedTuple):
    """The log ended at `offset`; what was fetched after that was requested after `wall_ms`."""

    wall_ms: int
    offset: int

    def is_younger_than(self, most_ms: int, wall_ms: int) -> bool:
        """Not when the clock went back: nobody knows how far."""
        return 0 <= wall_ms - self.wall_ms <= most_ms


class FetchedTransactions:
    """Of one log. Every transaction that is open at first is doubtful."""

    __slots__ = ("_again_upto", "_answered_ms", "_newer", "_older")

    def __init__(self, log_end: int, wall_ms: int) -> None:
        self._older = self._newer = _Mark(wall_ms, log_end)
        self._answered_ms = wall_ms
        self._again_upto = -1

    def before_missed(
        self,
        batches: Sequence[Replicated],
        producers: ProducerStateManager,
        log_start: int,
        log_end: int,
        delete_retention_ms: int,
        wall_ms: int,
    ) -> Sequence[Replicated]:
        """The batches of an answer, which follow `log_end`, up to the first that may hide the end
        of a doubtful transaction. If that is the first of all, raises `MarkersMissed`, or
        `ProducersUnknown` while producers are rebuilt.
        """
        doubtful_below = self._doubtful_below(log_end, delete_retention_ms // 4, wall_ms)
        first_open = next(iter(producers.ongoing), doubtful_below)
        if first_open >= doubtful_below and not (producers.is_rebuilding and doubtful_below):
            return batches
        expected = log_end
        for count, batch in enumerate(batches):
            if batch.base_offset > expected or _is_emptied(batch, producers, doubtful_below):
                if count:
                    return batches[:count]
                if producers.is_rebuilding:
                    raise ProducersUnknown
                self._older = self._newer = _Mark(wall_ms, first_open)
                self._again_upto = 2 * log_end - first_open
                raise MarkersMissed(first_open, log_start)
            expected = batch.next_offset
        return batches

    def _doubtful_below(self, log_end: int, most_ms: int, wall_ms: int) -> int:
        """Open transactions that begin below this offset are doubtful; 0: none is."""
        if not self._newer.is_younger_than(most_ms // 2, wall_ms):
            # What comes now was requested after the last answer came, whenever its leader read it.
            self._older, self._newer = self._newer, _Mark(self._answered_ms, log_end)
        if not 0 <= wall_ms - self._answered_ms <= max(most_ms, _AWAY_MS):
            self._again_upto = -1
        self._answered_ms = wall_ms
        if log_end <= self._again_upto:
            return 0
        for mark in (self._older, self._newer):
            if mark.is_younger_than(most_ms, wall_ms):
                return mark.offset
        return log_end


def _is_emptied(batch: Replicated, producers: ProducerStateManager, doubtful_below: int) -> bool:
    """Whether a cleaner emptied it, and it may have been the marker of a doubtful transaction."""
    if not batch.is_control or batch.records_count:
        return False
    if producers.is_rebuilding:
        return True
    entry = producers.producers.get(batch.producer_id)
    return entry is not None and 0 <= entry.current_txn_first_offset < doubtful_below
