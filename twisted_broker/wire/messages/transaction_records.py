"""Records of `__transaction_state`. The key starts with a 16-bit version, the value as well
(KIP-98).

TransactionLogValue: 1 flexible, with the ids before and after (KIP-890).
"""

from twisted_broker.wire.schema import Record, Struct, array, int8, int16, int32, int64, string


class TransactionLogKey(Record, record_type=0, versions="0"):
    transactional_id: str = string("0")


class PartitionsSchema(Struct):
    topic: str = string("0+")
    partition_ids: list[int] = array(int32, "0+")


class TransactionLogValue(Record, record_type=0, versions="0-1", flexible="1+"):
    producer_id: int = int64("0+")
    previous_producer_id: int = int64("1+", default=-1, tag=0)
    next_producer_id: int = int64("1+", default=-1, tag=1)
    producer_epoch: int = int16("0+")
    next_producer_epoch: int = int16("1+", default=-1, tag=3)
    transaction_timeout_ms: int = int32("0+")
    # 0 empty, 1 ongoing, 2 and 3 preparing commit and abort, 4 and 5 complete, 6 dead, 7 preparing
    # epoch fence
    transaction_status: int = int8("0+")
    transaction_partitions: list[PartitionsSchema] | None = array(
        PartitionsSchema, "0+", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = int64("0+")
    transaction_start_timestamp_ms: int = int64("0+")
    client_transaction_version: int = int16("1+", tag=2)
