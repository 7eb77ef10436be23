"""One transactional id and the state of its transaction. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `TransactionMetadata`, its states, and the steps from one state to the next.

                        partitions are added                EndTxn, a timeout, a new instance
        .-----------> ONGOING ----------------------------------------------------.
        |              ^  |_^ partitions are added                                |
        |              |                                                          v
      EMPTY            |                                        PREPARE_COMMIT | PREPARE_ABORT
      ^   |            |            all markers are written            |              |
      |   |            +------------- COMPLETE_COMMIT <----------------'              |
      |   |            +------------- COMPLETE_ABORT  <-------------------------------'
      |   |                                | |      ^- under version 2 an abort of nothing, from
      |   '--------> DEAD <----------------' |         EMPTY and COMPLETE_*, to PREPARE_ABORT
      |     (expired: a tombstone)           |
      '--------------------------------------' InitProducerId

1. A step has two halves: `prepare_*` decides it and makes it `pending`; `complete` takes it over,
   once its record is durable on the in-sync replicas. Between the two no other step is decided.
2. COMPLETE_* follows PREPARE_* only, and is written when no partition is left that waits for its
   marker (`marker_written`).
3. The epoch of a producer never goes down under one producer id, and never beyond 32767; it is
   raised by InitProducerId, by fencing, and under version 2 by every end of a transaction. An
   exhausted epoch is followed by a new producer id at epoch 0. COMPLETE_* raises it where a
   partition held a higher one (`fencing`).
4. PREPARE_EPOCH_FENCE is Kafka's name in memory for a fence that is being decided; here a fence and
   the abort it causes are one step, and the state is only read.

Source: Apache Kafka 4.3.1 `TransactionMetadata`, `TransactionState`; KIP-98, KIP-360, KIP-890. Not
here: which request leads to which step (`transaction_decisions.py`), bytes (`transaction_log.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import BrokerError, ErrorCode

NO_PRODUCER_ID = NO_PRODUCER_EPOCH = NO_TIMESTAMP = -1
LAST_EPOCH = 32767
# The last one that a producer gets: so there is always one more, to fence it with.
EXHAUSTED_EPOCH = LAST_EPOCH - 1
NO_TIMEOUT_MS = 2**31 - 1
"""A transaction of a two-phase commit of Kafka's: it never times out."""
EPOCH_BUMP_VERSION = 2
"""The transaction.version from which every transaction has an epoch of its own (KIP-890)."""


class TransactionState(IntEnum):
    """The number is that of the record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """As DescribeTransactions and ListTransactions name it: `CompleteCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DEAD, PREPARE_EPOCH_FENCE = TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE

COMPLETE = frozenset({COMPLETE_COMMIT, COMPLETE_ABORT})
PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
AT_REST = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""No transaction is open: the id may expire."""

VALID_PREVIOUS_STATES: Mapping[TransactionState, frozenset[TransactionState]] = {
    EMPTY: AT_REST,
    ONGOING: AT_REST | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: AT_REST | {ONGOING, PREPARE_EPOCH_FENCE},
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
    DEAD: AT_REST,
    PREPARE_EPOCH_FENCE: frozenset({ONGOING}),
}


class InvalidTransition(Exception):
    """A step that the table does not have: a bug of the caller."""


@dataclass(frozen=True, slots=True)
class TxnTransitMetadata:
    """What a transactional id becomes: the content of its next record. Times in ms of the
    calendar.
    """

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    start_ms: int
    last_update_ms: int
    client_transaction_version: int

    def fencing(self, epoch: int) -> TxnTransitMetadata:
        """With an epoch that neither the producer of `epoch` nor any below it knows."""
        # Two above it: one above it, an EndTxn of `epoch` would be taken for one that comes again.
        raised = min(epoch + 2, LAST_EPOCH)
        if raised <= self.producer_epoch:
            return self
        return replace(self, producer_epoch=raised, last_producer_epoch=NO_PRODUCER_EPOCH)


Partitions = set[TopicPartition] | frozenset[TopicPartition]
_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


def _held(partitions: Iterable[TopicPartition]) -> Partitions:
    """A set of them; where there are none, one for all ids: nearly all of a million have none."""
    return set(partitions) or _NO_PARTITIONS


class TransactionMetadata:
    """`partitions`: those of the transaction; once it is prepared, those that wait for their
    marker.
    """

    __slots__ = (
        "client_transaction_version",
        "last_producer_epoch",
        "last_update_ms",
        "next_producer_id",
        "partitions",
        "pending",
        "previous_producer_id",
        "producer_epoch",
        "producer_id",
        "start_ms",
        "state",
        "timeout_ms",
        "transactional_id",
    )

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        *,
        timeout_ms: int,
        last_update_ms: int,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        previous_producer_id: int = NO_PRODUCER_ID,
        next_producer_id: int = NO_PRODUCER_ID,
        last_producer_epoch: int = NO_PRODUCER_EPOCH,
        state: TransactionState = EMPTY,
        partitions: Iterable[TopicPartition] = (),
        start_ms: int = NO_TIMESTAMP,
        client_transaction_version: int = 0,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.previous_producer_id, self.next_producer_id = previous_producer_id, next_producer_id
        self.last_producer_epoch = last_producer_epoch
        self.timeout_ms = timeout_ms
        self.state = state
        self.partitions = _held(partitions)
        self.start_ms, self.last_update_ms = start_ms, last_update_ms
        self.client_transaction_version = client_transaction_version
        self.pending: TransactionState | None = None

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EXHAUSTED_EPOCH

    def is_timed_out(self, wall_ms: int) -> bool:
        """Whether its transaction is open for longer than its producer allowed."""
        return (
            self.state is ONGOING
            and self.pending is None
            and self.timeout_ms != NO_TIMEOUT_MS
            and self.start_ms + self.timeout_ms < wall_ms
        )

    def is_expired(self, wall_ms: int, expiration_ms: int) -> bool:
        """Whether it may be forgotten: nothing is open, and nothing happened for that long."""
        return (
            self.state in AT_REST
            and self.pending is None
            and self.last_update_ms <= wall_ms - expiration_ms
        )

    # the steps
    def prepare_increment_producer_epoch(
        self, timeout_ms: int, expected_epoch: int | None, wall_ms: int
    ) -> TxnTransitMetadata:
        """A producer begins, or goes on after an error with the epoch that it knows. Raises
        BrokerError(PRODUCER_FENCED).
        """
        epoch, last_epoch = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected_epoch is None:
            pass
        elif expected_epoch == self.producer_epoch or self.producer_epoch == NO_PRODUCER_EPOCH:
            last_epoch = self.producer_epoch
        elif expected_epoch == self.last_producer_epoch:
            # It comes again, as the answer was lost: the same answer. A new instance of the program
            # would have set the last epoch to -1.
            epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        else:
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        if epoch > EXHAUSTED_EPOCH:
            raise InvalidTransition(f"no epoch is left for producer id {self.producer_id}")
        return self._prepare(
            replace(
                self.unchanged(),
                state=EMPTY,
                producer_epoch=epoch,
                last_producer_epoch=last_epoch,
                timeout_ms=timeout_ms,
                partitions=frozenset(),
                start_ms=NO_TIMESTAMP,
                last_update_ms=wall_ms,
            )
        )

    def prepare_producer_id_rotation(
        self, new_producer_id: int, timeout_ms: int, keeps_last_epoch: bool, wall_ms: int
    ) -> TxnTransitMetadata:
        """A producer begins, and no epoch is left."""
        return self._prepare(
            replace(
                self.unchanged(),
                state=EMPTY,
                producer_id=new_producer_id,
                producer_epoch=0,
                last_producer_epoch=self.producer_epoch if keeps_last_epoch else NO_PRODUCER_EPOCH,
                timeout_ms=timeout_ms,
                partitions=frozenset(),
                start_ms=NO_TIMESTAMP,
                last_update_ms=wall_ms,
            )
        )

    def prepare_add_partitions(
        self, partitions: Iterable[TopicPartition], wall_ms: int, client_transaction_version: int
    ) -> TxnTransitMetadata:
        """The transaction begins with its first partition."""
        return self._prepare(
            replace(
                self.unchanged(),
                state=ONGOING,
                partitions=frozenset(self.partitions).union(partitions),
                start_ms=self.start_ms if self.state is ONGOING else wall_ms,
                last_update_ms=wall_ms,
                client_transaction_version=client_transaction_version,
            )
        )

    def prepare_abort_or_commit(
        self,
        state: TransactionState,
        client_transaction_version: int,
        wall_ms: int,
        *,
        next_producer_id: int = NO_PRODUCER_ID,
        is_fence: bool = False,
    ) -> TxnTransitMetadata:
        """The transaction is decided. `is_fence`: not by its producer, which then must not go on.
        `next_producer_id`: where the epoch is exhausted under version 2.
        """
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if client_transaction_version >= EPOCH_BUMP_VERSION:
            epoch, last_epoch = min(self.producer_epoch + 1, LAST_EPOCH), self.producer_epoch
        elif is_fence:
            epoch, last_epoch = min(self.producer_epoch + 1, LAST_EPOCH), NO_PRODUCER_EPOCH
        return self._prepare(
            replace(
                self.unchanged(),
                state=state,
                producer_epoch=epoch,
                last_producer_epoch=last_epoch,
                next_producer_id=next_producer_id,
                start_ms=self.start_ms if self.state is ONGOING else wall_ms,
                last_update_ms=wall_ms,
                client_transaction_version=client_transaction_version,
            )
        )

    def prepare_complete(self, wall_ms: int) -> TxnTransitMetadata:
        """To be appended when every marker is written."""
        transit = replace(
            self.unchanged(),
            state=COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_ms=wall_ms,
        )
        if (
            self.client_transaction_version >= EPOCH_BUMP_VERSION
            and self.next_producer_id != NO_PRODUCER_ID
        ):
            transit = replace(transit, producer_id=self.next_producer_id, producer_epoch=0)
        return self._prepare(transit)

    def prepare_dead(self) -> None:
        """It is forgotten once its tombstone is durable."""
        self._check(DEAD)
        self.pending = DEAD

    def marker_written(self, partition: TopicPartition) -> None:
        """The partition knows the outcome, or is gone."""
        if self.state not in PREPARED:
            raise InvalidTransition(f"a marker of {self.transactional_id!r} in {self.state.name}")
        if isinstance(self.partitions, set):
            self.partitions.discard(partition)

    def withdraw(self) -> None:
        """The pending step was refused, nothing of it is in the log."""
        self.pending = None

    def complete(self, transit: TxnTransitMetadata) -> None:
        """The record of the pending step is durable."""
        if self.pending is not transit.state:
            raise InvalidTransition(
                f"{self.transactional_id!r} becomes {transit.state.name}, {self.pending} is pending"
            )
        self.producer_id = transit.producer_id
        self.previous_producer_id = transit.previous_producer_id
        self.next_producer_id = transit.next_producer_id
        self.producer_epoch = transit.producer_epoch
        self.last_producer_epoch = transit.last_producer_epoch
        self.timeout_ms = transit.timeout_ms
        self.partitions = _held(transit.partitions)
        self.start_ms, self.last_update_ms = transit.start_ms, transit.last_update_ms
        self.client_transaction_version = transit.client_transaction_version
        self.state, self.pending = transit.state, None

    def unchanged(self) -> TxnTransitMetadata:
        """What it is now. Its producer id becomes the previous one of any next step."""
        return TxnTransitMetadata(
            self.producer_id,
            self.producer_id,
            self.next_producer_id,
            self.producer_epoch,
            self.last_producer_epoch,
            self.timeout_ms,
            self.state,
            frozenset(self.partitions),
            self.start_ms,
            self.last_update_ms,
            self.client_transaction_version,
        )

    def _prepare(self, transit: TxnTransitMetadata) -> TxnTransitMetadata:
        self._check(transit.state)
        if transit.producer_id < 0 or transit.producer_epoch < 0:
            raise InvalidTransition(f"{self.transactional_id!r} has no producer: {transit}")
        self.pending = transit.state
        return transit

    def _check(self, state: TransactionState) -> None:
        if self.pending is not None:
            raise InvalidTransition(
                f"{state.name} for {self.transactional_id!r} while {self.pending.name} is pending"
            )
        if self.state not in VALID_PREVIOUS_STATES[state]:
            raise InvalidTransition(
                f"{state.name} for {self.transactional_id!r}, which is {self.state.name}"
            )
