"""Flat rows between Spark and Python workers: one description ("name type, name type") is Spark's
schema and Arrow's.

A worker has no JVM to ask, so Arrow's schema is made from the same text here. Types: string, int,
bigint, double, binary, boolean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

Row = Mapping[str, Any]
TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "binary": pa.large_binary(),
    "boolean": pa.bool_(),
}


def arrow_schema(description: str) -> pa.Schema:
    """`KeyError` for a type that is not listed."""
    return pa.schema(
        [(name, TYPES[kind]) for name, kind in (field.split() for field in description.split(","))]
    )


def table(rows: Iterable[Row], description: str) -> pa.Table:
    """The rows as a table; a value that a row has not is null."""
    return pa.Table.from_pylist(list(rows), schema=arrow_schema(description))


def mapper(
    each: Callable[[dict[str, Any]], Iterable[Row]], description: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that makes rows of every row.

    One batch of rows comes back per row that comes in.
    """

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(description)
        for batch in batches:
            for row in batch.to_pylist():
                yield pa.RecordBatch.from_pylist(list(each(row)), schema=schema)

    return rows
