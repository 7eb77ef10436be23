"""Notes of the clients' requests and answers, for the checks during a simulated run.

Owns `Notes` and `Attempt`.

1. Every record's value is written once in a run; what a log holds twice, the broker (or a retry
   without idempotence) made.
2. A batch is acknowledged, refused, or unknown (no answer, or an answer after which it may still be
   there); only these three.

Not here: what must hold (`simulation/checks/clients.py`); the history that anomalies are found in
at the end (`simulation/client_history.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.history import Fate


class Attempt:
    """One batch of a producer.

    `fate` is None while it is under way; `base_offset` once acknowledged; `sent` counts the times
    it went out. With `acks` 0 or 1 its fate is never known: `was_answered` (0: it went out) and
    `base_offset` are what its leader said. `session`: the producer id and epoch of a transactional
    producer. `after`: the batch whose sequences are just before its own, in the same session.
    `asked`: leader and leader epoch where it went last, as its producer knew them. `deleted_upto`:
    the highest log start of its partition when it was acknowledged.
    """

    __slots__ = (
        "acks",
        "after",
        "asked",
        "base_offset",
        "deleted_upto",
        "epoch",
        "fate",
        "idempotent",
        "partition",
        "sent",
        "session",
        "values",
        "was_answered",
    )

    def __init__(
        self,
        partition: TopicPartition,
        values: list[bytes],
        idempotent: bool,
        acks: int = -1,
        after: Attempt | None = None,
    ) -> None:
        self.partition, self.values, self.idempotent = partition, values, idempotent
        self.acks, self.was_answered, self.after = acks, False, after
        self.fate: Fate | None = None
        self.base_offset = self.epoch = -1
        self.sent = self.deleted_upto = 0
        self.session: tuple[int, int] | None = None
        self.asked = (-1, -1)

    def __repr__(self) -> str:
        fate = "under way" if self.fate is None else self.fate.value
        return (
            f"{self.values[0].decode()}..{len(self.values)} to {self.partition}: {fate} at "
            f"{self.base_offset}"
        )


class Notes:
    """What the clients of a run know.

    The callables are called with each new fact as it becomes known.
    """

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.acked_records = self.consumed_records = 0
        self.sessions: Counter[tuple[int, int]] = Counter()
        """how often transactional producers were given a producer id and epoch"""
        self.acked: Callable[[Attempt], None] = lambda attempt: None
        self.out_of_order: Callable[[Attempt], None] = lambda attempt: None
        """its sequence does not follow, and nothing before it is still under way"""
        self.consumed: Callable[
            [str, TopicPartition, int, int, int, int, Sequence[bytes]], None
        ] = lambda *facts: None
        """(consumer, partition, base offset, last offset, leader epoch, batch CRC, values)"""
        self.mark_seen: Callable[[str, TopicPartition, int, int], None] = lambda *facts: None
        """(consumer, partition, leader epoch requested, high watermark) of a fetch answer"""
        self.out_of_range: Callable[[str, TopicPartition, int, int], None] = lambda *facts: None
        """(consumer, partition, leader epoch, offset) of a fetch that was answered
        OFFSET_OUT_OF_RANGE
        """
        self.began_anew: Callable[[str, TopicPartition], None] = lambda *facts: None
        """(consumer, partition) that is read from 0 on: another topic of the name was found, or the
        one before it again, by metadata that is behind
        """
        self.deleting: Callable[[TopicPartition, int], None] = lambda *facts: None
        """(partition, offset) of a DeleteRecords that is about to be sent"""
        self.generation_floor: Callable[[], int] = lambda: 0
        """the newest generation of a group of which a member knows"""
        self.commit_floor: Callable[[TopicPartition], int] = lambda place: 0
        """the highest commit that was acknowledged"""
        self.coordinator_of: Callable[[str], tuple[str, int] | None] = lambda group: None
        """group -> where its coordinator is by what the controller decided, and its epoch"""
        self.assigned: Callable[[str, int, int, Sequence[TopicPartition]], None] = lambda *facts: (
            None
        )
        """(member, generation, the floor before it joined, partitions)"""
        self.committed: Callable[[TopicPartition, int], None] = lambda *facts: None
        """(partition, count) of an acknowledged commit"""
        self.committed_seen: Callable[[TopicPartition, int, int], None] = lambda *facts: None
        """(partition, count, the floor before it was fetched)"""
        self.refused: Callable[[str, str], None] = lambda api, code: None
        """(API, error) of an answer"""
        self.reached: Callable[[str], None] = lambda kind: None
        """a kind of `simulation/reach.py`"""
        self.note: Callable[[str, str], None] = lambda who, what: None
