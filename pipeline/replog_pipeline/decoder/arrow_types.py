"""The Arrow type of every column, such that Spark takes the batches as they are (its own schema
from `columns.SQL_TYPES`, field by field).

Spark 4.2 compares the first batch's schema with `to_arrow_schema(...)`: `binary` and `string` with
32-bit offsets, timestamps in microseconds of UTC, the list's element named `element`. A test holds
both tables together. Not here: how columns are made (`arrow_columns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

HEADER_ENTRY: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", HEADER_ENTRY))
TIMESTAMP: Final = pa.timestamp("us", "UTC")

TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": HEADERS,
    "producerId": pa.int64(),
    "producerEpoch": pa.int32(),
    "sequence": pa.int32(),
    "leaderEpoch": pa.int32(),
    "batchOffset": pa.int64(),
    "batchLastOffset": pa.int64(),
    "codec": pa.string(),
    "crcOk": pa.bool_(),
    "transactional": pa.bool_(),
    "control": pa.bool_(),
    "aborted": pa.bool_(),
    "timestampMs": pa.int64(),
}


def schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns in this order.

    `ValueError` naming a column that there is none of.
    """
    for name in columns:
        if name not in TYPES:
            raise ValueError(f"there is no column {name!r}: choose from {', '.join(TYPES)}")
    return pa.schema([(name, TYPES[name]) for name in columns])
