"""A producer of records with keys, and tombstones, to compacted topics.

Owns `KeyedProducer`. What it is answered goes to `TransactionNotes.keyed_acked`, and nowhere else:
a record that a newer one replaced is not owed. Not here: what must hold
(`simulation/checks/compacted.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.client import Address
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.simulation.producer import Producer
from twisted_broker.simulation.run_options import Options
from twisted_broker.simulation.transaction_notes import TransactionNotes, keyed, keyed_value
from twisted_broker.simulation.transactional_producer import KEYS, TOMBSTONES
from twisted_broker.wire.records import BatchBuilder


class KeyedProducer(Producer):
    """Idempotent."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        known: TransactionNotes,
        partitions: Sequence[TopicPartition],
        options: Options,
    ) -> None:
        super().__init__(runtime, name, brokers, Notes(), partitions, True, options)
        self.known, self.notes.acked = known, known.keyed_acked

    def _value(self) -> bytes:
        self._count += 1
        is_tombstone = self.random.random() < TOMBSTONES
        return keyed_value(self.random.randrange(KEYS), self.name, self._count, is_tombstone)

    def _batch(self, values: list[bytes], sequence: int) -> bytes:
        builder = BatchBuilder(
            producer_id=self.session[0], producer_epoch=self.session[1], base_sequence=sequence
        )
        for value in values:
            builder.append(self.runtime.wall_ms(), *keyed(value))
        return bytes(builder.build())
