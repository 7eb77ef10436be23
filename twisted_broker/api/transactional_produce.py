"""Produce of a transactional producer, before the append: asks its coordinator whether the
transaction holds the partitions, or has them added (KIP-890).

Owns `verify`: which appends may go on, and the guards that they bring; and `EndOfTheOneBefore`, the
wait for a transaction that still ends (TxnOffsetCommit has it too).

1. The coordinator is not asked about a partition whose log has an open transaction of that producer
   and epoch.
2. From version 12 on the partitions are added (transaction version 2, the client sends no
   AddPartitionsToTxn), whatever `transaction.partition.verification.enable` says; with that off
   the append needs no guard all the same.
3. While the coordinator still ends the transaction before (CONCURRENT_TRANSACTIONS) it is asked
   again every `add.partitions.to.txn.retry.backoff.ms`, for
   `add.partitions.to.txn.retry.backoff.max.ms`: only from version 12 on, where this broker adds the
   partitions. The guards are made anew each time, since the end of that transaction ends them. It
   is also asked again, at once, when it agrees but a guard is gone because the marker came while
   the question waited. That is as safe as a client's second request: the epoch names the
   transaction. Below version 12 it does not, and a late batch might join the transaction after its
   own.
4. The client gets codes that it knows for a Produce: a temporary error becomes NOT_ENOUGH_REPLICAS,
   at which it sends again without looking for another leader.
5. All of the request waits for it, as with Kafka: the partitions are appended in one go.

Source: Kafka 4.3.1's `ReplicaManager.handleProduceAppend`. Not here: the guards' rules
(`log/verification.py`), the request to the coordinator
(`coordinator/add_partitions_to_txn_manager.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from twisted.internet.task import deferLater

from twisted_broker.interfaces import Buffer, TopicPartition
from twisted_broker.log.verification import NOT_REQUIRED, Guard
from twisted_broker.wire.batch_fields import ATTRIBUTES, BASE_SEQUENCE, PRODUCER_EPOCH, PRODUCER_ID
from twisted_broker.wire.batch_header import HEADER
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import HEADER_BYTES, TRANSACTIONAL_FLAG

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext

_ABORTABLE_FROM, _ADDS_FROM = 11, 12
_MAY_PASS = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_FOR_GOOD = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)

_STILL_ENDS = ErrorCode.CONCURRENT_TRANSACTIONS

Guards = dict[TopicPartition, Guard]
Refusals = dict[TopicPartition, BrokerError]


class EndOfTheOneBefore:
    """The wait of one request for the transaction before, whose markers are being written."""

    __slots__ = ("_context", "_give_up_ms")

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._give_up_ms = context.broker.runtime.now_ms() + min(
            context.broker.config.integer("add.partitions.to.txn.retry.backoff.max.ms"),
            context.broker.config.integer("request.timeout.ms"),
        )

    async def is_worth_asking_again(
        self, codes: Mapping[TopicPartition, ErrorCode], guards: Mapping[TopicPartition, Guard]
    ) -> bool:
        """While the time for that is not over: True, after a pause, if the former transaction still
        ends; at once if its end took a guard away.
        """
        runtime = self._context.broker.runtime
        if runtime.now_ms() >= self._give_up_ms:
            return False
        if _STILL_ENDS not in codes.values():
            return any(
                guard is not None and guard.is_gone and codes[topic_partition] == ErrorCode.NONE
                for topic_partition, guard in guards.items()
            )
        pause_ms = self._context.broker.config.integer("add.partitions.to.txn.retry.backoff.ms")
        await deferLater(runtime.clock, pause_ms / 1000)  # type: ignore[arg-type]
        return True


class _Batches:
    """The transactional batches of a request: one producer, the first sequence per partition."""

    __slots__ = ("producer_epoch", "producer_id", "sequences")

    def __init__(self, entries: Sequence[tuple[TopicPartition, Buffer]]) -> None:
        self.producer_id = self.producer_epoch = -1
        self.sequences: dict[TopicPartition, int] = {}
        for topic_partition, records in entries:
            if len(records) < HEADER_BYTES:
                continue  # the log refuses it
            header = HEADER.unpack_from(records)
            if not header[ATTRIBUTES] & TRANSACTIONAL_FLAG or header[PRODUCER_ID] < 0:
                continue
            producer = header[PRODUCER_ID], header[PRODUCER_EPOCH]
            if self.sequences and producer != (self.producer_id, self.producer_epoch):
                raise BrokerError(
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                    "transactional records of more than one producer in one request",
                )
            self.producer_id, self.producer_epoch = producer
            self.sequences[topic_partition] = header[BASE_SEQUENCE]


async def verify(
    context: RequestContext,
    transactional_id: str,
    entries: Sequence[tuple[TopicPartition, Buffer]],
) -> tuple[Guards, Refusals]:
    """The guards for the appends, and why some are not to be done. Raises BrokerError for the
    whole request.
    """
    batches = _Batches(entries)
    if not batches.sequences:
        return {}, {}
    adds = context.version >= _ADDS_FROM
    verifies = context.broker.config.boolean("transaction.partition.verification.enable")
    if not adds and not verifies:
        return dict.fromkeys(batches.sequences, NOT_REQUIRED), {}
    end_of_the_one_before = EndOfTheOneBefore(context)
    while True:
        guards, refusals = await _begin(context, batches, adds)
        if not guards:
            return guards, refusals
        codes = await context.add_partitions_to_txn.verify_or_add(
            transactional_id, batches.producer_id, batches.producer_epoch, list(guards), adds
        )
        if not adds or not await end_of_the_one_before.is_worth_asking_again(
            codes, guards if verifies else {}
        ):
            break
    for topic_partition, code in codes.items():
        if code == ErrorCode.NONE:
            continue
        guard = guards[topic_partition]
        if code in _FOR_GOOD and guard is not None:
            context.replica_manager.end_verification(
                topic_partition, batches.producer_id, guard, batches.producer_epoch
            )
        refusals[topic_partition] = _refusal(code, context.version)
    return guards if verifies else dict.fromkeys(guards, NOT_REQUIRED), refusals


async def _begin(context: RequestContext, batches: _Batches, adds: bool) -> tuple[Guards, Refusals]:
    """Guards of the partitions that the coordinator must be asked about."""
    guards: Guards = {}
    refusals: Refusals = {}
    replicas = context.replica_manager
    for topic_partition, sequence in batches.sequences.items():
        if context.turn_is_over():
            await context.next_turn()
        try:
            guard = replicas.begin_verification(
                topic_partition, batches.producer_id, batches.producer_epoch, sequence, adds
            )
        except BrokerError as refusal:
            refusals[topic_partition] = refusal
            continue
        if guard is not None:
            guards[topic_partition] = guard
    return guards, refusals


def _refusal(code: ErrorCode, version: int) -> BrokerError:
    """As a Produce of this version says it."""
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        code = ErrorCode.INVALID_TXN_STATE
    if code == ErrorCode.INVALID_TXN_STATE:
        return BrokerError(code, "Partition was not added to the transaction")
    if code in _MAY_PASS or (code == _STILL_ENDS and version < _ADDS_FROM):
        return BrokerError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "the transaction's coordinator did not say whether the partition belongs to it: "
            f"{code.name}",
        )
    return BrokerError(code)
