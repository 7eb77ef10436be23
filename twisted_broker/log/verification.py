"""Transactions that are verified with their coordinator before their first write (KIP-890).

Owns `VerificationStateEntry`, one per producer and log, and the guards that an append brings.

    (nothing) --begin_verification--> entry --a transactional batch or a marker is written-->
    (nothing)

1. An append to a transaction that is not open here must bring the very entry that was here when the
   coordinator was asked: a marker that came since has removed it, and a later transaction has
   another. So no late answer lets a record in after its marker. One kind of marker leaves it
   (`outlives`): under version 2 the producer begins, with the epoch of the marker, while that
   marker is still to be written for the records of an older epoch. Kafka removes it there, too, and
   its producer's batch is refused; it happens there less often, for Kafka's markers are slower.
2. The batch with the lowest sequence seen since is written first: after a later batch that was
   verified earlier it would be out of sequence for ever.
3. There are at most `MOST` per log; the oldest is dropped, and its append is refused or verified
   again: `is_gone` says so to the request that waits for the coordinator. A refusal for good of its
   newest epoch, `producer.id.expiration.ms`, a truncation that reloads the producers, and a restart
   end them, too. A move to another directory takes them along.
4. An epoch below the producer's last one here is refused before the coordinator is asked, and
   before the guard is checked.

Source: Kafka 4.3.1's `VerificationStateEntry`, `VerificationGuard`, `ProducerStateManager`. Not
here: asking (`coordinator/add_partitions_to_txn_manager.py`), the checks
(`log/producer_append.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted_broker.wire.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from twisted_broker.log.producer_snapshot import ProducerEntry

MOST = 10_000


class VerificationStateEntry:
    """`supports_epoch_bump`: the client's transactions are of version 2, each under an epoch of its
    own. `wall_ms` is when it was made. `is_gone`: a marker came before the batch, or too many
    others, or a truncation: it lets nothing in any more.
    """

    __slots__ = ("is_gone", "lowest_sequence", "producer_epoch", "supports_epoch_bump", "wall_ms")

    def __init__(
        self, wall_ms: int, producer_epoch: int, sequence: int, supports_epoch_bump: bool
    ) -> None:
        self.wall_ms, self.producer_epoch = wall_ms, producer_epoch
        self.lowest_sequence, self.supports_epoch_bump = sequence, supports_epoch_bump
        self.is_gone = False

    def seen(self, producer_epoch: int, sequence: int, supports_epoch_bump: bool) -> None:
        """Another batch is to be verified."""
        if producer_epoch > self.producer_epoch:
            self.producer_epoch, self.lowest_sequence = producer_epoch, sequence
            self.supports_epoch_bump = supports_epoch_bump
        elif producer_epoch == self.producer_epoch:
            self.lowest_sequence = min(sequence, self.lowest_sequence)
            self.supports_epoch_bump &= supports_epoch_bump

    def outlives(self, producer: ProducerEntry, marker_epoch: int) -> bool:
        """Whether a marker, which is not yet in `producer`, ends an older transaction than this:
        the one that is open here has an epoch below the marker's, so it was ended with a new epoch,
        and what is verified has that one or a later one. The marker of what is verified will have
        an epoch above its own. A second marker of that epoch ends nothing that is open, and removes
        the entry, whoever sent it.
        """
        return (
            self.supports_epoch_bump
            and producer.current_txn_first_offset >= 0
            and producer.producer_epoch < marker_epoch <= self.producer_epoch
        )


NOT_REQUIRED: Final = VerificationStateEntry(0, -1, -1, False)
"""The guard where `transaction.partition.verification.enable` is off, and of what this broker
writes itself.
"""

Guard = VerificationStateEntry | None
"""None: nothing was verified."""


def check_epoch(entry: ProducerEntry, producer_epoch: int) -> None:
    """Raises INVALID_PRODUCER_EPOCH for one below the producer's."""
    if producer_epoch < entry.producer_epoch:
        raise BrokerError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {entry.producer_id} is at epoch {entry.producer_epoch}, "
            f"not {producer_epoch}",
        )
