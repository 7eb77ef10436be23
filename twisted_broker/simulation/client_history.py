"""A simulated run's clients, checked as real ones are: by the anomalies of their histories.

1. Partitions that had an unclean election are left out: there records may be lost, and be answered
   twice.
2. What lies below a log start may have been read by nobody.
3. A producer without idempotence may send a batch again that is there already: its duplicates are
   no anomaly. Nor is one whose earlier copies were deleted before the last was acknowledged, or at
   all where none was: a replica that began with that log start knew no producer, and takes any
   sequence then (KIP-360).

Source: RELIABILITY 1.2. Not here: what the checkers see at every step
(`simulation/checks/clients.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.anomalies import Anomaly, find_anomalies
from twisted_broker.simulation.checks.history import Fate, History
from twisted_broker.simulation.client_notes import Attempt


class ClientHistory:
    """The answers to clients of a simulation, as a `History`."""

    def __init__(self) -> None:
        self._history = History()

    def consumed(
        self, who: str, partition: TopicPartition, base: int, values: Sequence[bytes]
    ) -> None:
        records = [(offset, value.decode()) for offset, value in enumerate(values, base)]
        self._history.poll(who, {partition: records})

    def moved(self, who: str) -> None:
        """The consumer was given another position."""
        self._history.assigned(who)

    def anomalies(
        self,
        attempts: Sequence[Attempt],
        left_out: Collection[TopicPartition],
        deleted_upto: Mapping[TopicPartition, int],
        unsure: Collection[Attempt] = (),
    ) -> list[Anomaly]:
        """At the end of the run: all was read to the end, but what was deleted before. `unsure`:
        whose answer may be that of another batch.
        """
        again = {
            value.decode()
            for attempt in attempts
            if not attempt.idempotent
            for value in attempt.values
        }
        deleted = {
            (attempt.partition, value.decode()): attempt.deleted_upto
            if attempt.base_offset >= 0
            else deleted_upto.get(attempt.partition, 0)
            for attempt in attempts
            for value in attempt.values
        }
        for op, attempt in enumerate(attempts):
            known_upto = deleted_upto.get(attempt.partition, 0)
            self._send(attempt, op, known_upto, attempt not in unsure)
        known = {attempt.partition for attempt in attempts}
        return [
            each
            for each in find_anomalies(self._history)
            if each.partition in known
            and each.partition not in left_out
            and each.value not in again
            and not (
                each.name == "duplicate"
                and each.offsets[-2] < deleted.get((each.partition, each.value), 0)
            )
        ]

    def _send(self, attempt: Attempt, op: int, deleted_upto: int, is_sure: bool) -> None:
        for index, value in enumerate(attempt.values):
            text = value.decode()
            # Several in flight without idempotence may change places: each has its own order.
            who = text.rpartition("-")[0] if attempt.idempotent else f"{attempt.values[0]!r}"
            self._history.send(who, attempt.partition, text, op)
            if is_sure and attempt.fate in (Fate.ACKED, Fate.REFUSED):
                offset = attempt.base_offset + index if attempt.fate is Fate.ACKED else -1
                if 0 <= offset < deleted_upto:
                    continue  # nobody needs to have read it
                self._history.complete(text, attempt.fate, offset)
