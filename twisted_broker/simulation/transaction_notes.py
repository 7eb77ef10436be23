"""Notes of the transactional clients' requests and answers in a simulated run.

Owns `Transaction`, `Outcome` and `TransactionNotes`; `keyed`, what a value of a compacted topic
says about its record.

1. A transaction has a number of its own in the run; the numbers of one transactional id grow in the
   order in which its transactions may be committed.
2. A commit is noted before EndTxn is sent for the first time: what was never sent cannot be
   committed.

Not here: what must hold (`simulation/checks/transactions.py`, `simulation/checks/compacted.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.client_notes import Attempt

_TOMBSTONE = b"-none"


class Outcome(Enum):
    """What its client knows of a transaction."""

    NOT_SENT = "never committed"
    SENT = "a commit was sent"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction:
    """`records`: (partition, base offset, values) of each batch that was acknowledged; `offset`:
    what it committed for its group, None when it did not.
    """

    __slots__ = ("number", "offset", "outcome", "records", "transactional_id", "who")

    def __init__(self, transactional_id: str, who: str, number: int) -> None:
        self.transactional_id, self.who, self.number = transactional_id, who, number
        self.records: list[tuple[TopicPartition, int, list[bytes]]] = []
        self.offset: int | None = None
        self.outcome = Outcome.NOT_SENT

    def __repr__(self) -> str:
        return (
            f"transaction {self.number} of {self.transactional_id} by {self.who} "
            f"({self.outcome.value})"
        )


class TransactionNotes:
    """`transactions`: by number, which is also the offset that each commits. The callables are
    called with each new fact as it becomes known.
    """

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.by_value: dict[bytes, Transaction] = {}
        self.delivered: Callable[[str, TopicPartition, int, bytes], None] = lambda *facts: None
        """(consumer, partition, offset, value) that read_committed shows"""
        self.keyed_delivered: Callable[
            [str, TopicPartition, int, bytes | None, bytes | None], None
        ] = lambda *facts: None
        """(reader, partition of a compacted topic, offset, key, value)"""
        self.stable_seen: Callable[[str, TopicPartition, int, int, int], None] = lambda *facts: None
        """(consumer, partition, leader epoch, last stable offset, high watermark) of a fetch"""
        self.pass_ended: Callable[[str, TopicPartition, int, float, dict[bytes, int]], None] = (
            lambda *facts: None
        )
        """(reader, partition, end, seconds, key -> last offset seen) from its start to an end, all
        under one leader epoch
        """
        self.offset_floor: Callable[[str], int] = lambda transactional_id: -1
        """the highest offset of which the commit was acknowledged"""
        self.offset_seen: Callable[[str, int, int], None] = lambda *facts: None
        """(transactional id, committed offset, the floor before it was fetched)"""
        self.coordinator_of: Callable[[str], tuple[str, int] | None] = lambda group: None
        """the host of the group's coordinator, and its epoch"""
        self.offset_acked: Callable[[str], None] = lambda transactional_id: None
        """the commit of an offset was acknowledged"""
        self.keyed_acked: Callable[[Attempt], None] = lambda attempt: None
        """a batch to a compacted topic was acknowledged"""
        self.belongs_to_nothing: Callable[[str], None] = lambda who: None
        """a record or an offset of a producer of version 2 was answered INVALID_TXN_STATE"""
        self.counted: Callable[[str], None] = lambda kind: None

    def begin(self, transactional_id: str, who: str) -> Transaction:
        made = Transaction(transactional_id, who, len(self.transactions))
        self.transactions.append(made)
        return made


def keyed(value: bytes) -> tuple[bytes, bytes | None]:
    """The record of a value `KEY:..`: its key, and its value, None for a tombstone."""
    return value.partition(b":")[0], None if value.endswith(_TOMBSTONE) else value


def keyed_value(key: int, name: str, count: int, is_tombstone: bool) -> bytes:
    """A value of which `keyed` makes the record."""
    return f"k{key}:{name}-{count}".encode() + (_TOMBSTONE if is_tombstone else b"")
