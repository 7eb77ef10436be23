"""The columns of a topic as a table: their names, their order and their SQL types; and places in
topics. Plain data; imports nothing.

1. `COLUMNS` are the official Kafka connector's (with headers), name for name and type for type, so
   that a query runs over either source.
2. `BATCH_COLUMNS` come after them and are the segments source's alone: what the batch around a
   record says.
3. Byte lengths, offsets and ids are as on disk; timestamps are microseconds since the epoch in UTC,
   of milliseconds precision.

Source: KafkaRecordToRowConverter's schema (Spark 4.2). Not here: Arrow types
(`decoder.arrow_types`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Offsets = dict[tuple[str, int], int]
"""(topic, partition) -> offset; a start is inclusive, an end exclusive."""

_KAFKA: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
_BATCH: Final = {
    "producerId": "bigint",
    "producerEpoch": "int",
    "sequence": "int",
    "leaderEpoch": "int",
    "batchOffset": "bigint",
    "batchLastOffset": "bigint",
    "codec": "string",
    "crcOk": "boolean",
    "transactional": "boolean",
    "control": "boolean",
    "aborted": "boolean",
    "timestampMs": "bigint",
}

COLUMNS: Final = tuple(_KAFKA)
DECODED: Final = "value_decoded"
ERROR: Final = "decode_error"
"""What `archive --decode` adds: the value by its schema, or why there is none."""
BATCH_COLUMNS: Final = tuple(_BATCH)
ALL_COLUMNS: Final = COLUMNS + BATCH_COLUMNS
SQL_TYPES: Final = _KAFKA | _BATCH


def ddl(columns: Sequence[str] = ALL_COLUMNS) -> str:
    """The columns as a schema string for Spark, in this order.

    `KeyError` for a name that is none of ours.
    """
    return ", ".join(f"`{name}` {SQL_TYPES[name]}" for name in columns)
