"""One Arrow type for several versions of a schema, and for the table that is there.

1. Fields are matched by name, whatever its case, as Spark matches columns: a field whose case
   changed stays one column. A field that is new comes last; none is ever dropped.
2. Between versions a number's type becomes the wider of both. What a table has stays as it is: its
   files cannot change.
3. Where two types do not fit, the first stays: a record that does not fit it has a `decode_error`.
4. A struct without fields, which no Parquet file can hold, is JSON text.
5. Of two fields of one struct that are one column to Spark the first has it, and says its type. No
   refusal: a producer would stop an archive by such a schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

TEXT = pa.string()
TIMESTAMP = pa.timestamp("us", tz="UTC")
REFUSED = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that no column of a Delta table may have in its name."""
WIDTHS: Sequence[pa.DataType] = (pa.int32(), pa.int64(), pa.float32(), pa.float64())


def column_name(name: str) -> str:
    """The name of a field as a column has it."""
    return REFUSED.sub("_", name)


def column_key(name: str) -> str:
    """What two fields that are one column have in common."""
    return column_name(name).lower()


def struct_of(fields: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    """A column for each field."""
    columns: dict[str, pa.Field] = {}
    for name, kind in fields:
        columns.setdefault(column_key(name), pa.field(column_name(name), kind))
    return pa.struct(list(columns.values())) if columns else TEXT


def merged(first: pa.DataType, second: pa.DataType, *, is_fixed: bool = False) -> pa.DataType:
    """A type for both. `is_fixed`: `first` is a table's, which can take fields and nothing else."""
    if first.equals(second):
        return first
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        theirs = {column_key(field.name): field for field in second}
        own = []
        for each in first:
            other = theirs.pop(column_key(each.name), each)
            own.append((each.name, merged(each.type, other.type, is_fixed=is_fixed)))
        return struct_of([*own, *((field.name, field.type) for field in theirs.values())])
    if pa.types.is_list(first) and pa.types.is_list(second):
        return pa.list_(merged(first.value_type, second.value_type, is_fixed=is_fixed))
    if pa.types.is_map(first) and pa.types.is_map(second):
        return pa.map_(TEXT, merged(first.item_type, second.item_type, is_fixed=is_fixed))
    if not is_fixed and first in WIDTHS and second in WIDTHS:
        return wider(first, second)
    return first


def wider(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Of two numbers; an integer and a float are a double."""
    low, high = sorted((WIDTHS.index(first), WIDTHS.index(second)))
    return pa.float64() if low < 2 <= high else WIDTHS[high]
