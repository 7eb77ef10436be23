"""One Arrow type for several versions of a schema, and for the table that is there.

1. Fields are matched by name. A field that is new comes last; none is ever dropped.
2. Between versions a number's type becomes the wider of both. What a table has stays as it is: its
   files cannot change.
3. Where two types do not fit, the first stays: a record that does not fit it has a `decode_error`.
4. A struct without fields, which no Parquet file can hold, is JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from replog_pipeline.errors import PipelineError

TEXT = pa.string()
TIMESTAMP = pa.timestamp("us", tz="UTC")
REFUSED = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that no column of a Delta table may have in its name."""
WIDTHS: Sequence[pa.DataType] = (pa.int32(), pa.int64(), pa.float32(), pa.float64())


def column_name(name: str) -> str:
    """The name of a field as a column has it."""
    return REFUSED.sub("_", name)


def struct_of(fields: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    """PipelineError for two fields that are one column."""
    seen: dict[str, str] = {}
    for name, _ in fields:
        other = seen.setdefault(column_name(name).lower(), name)
        if other != name:
            raise PipelineError(
                f"--decode: the schema has fields {other} and {name}, which are one column to "
                "Spark: rename one of them"
            )
    found = [pa.field(column_name(name), kind) for name, kind in fields]
    return pa.struct(found) if found else TEXT


def merged(first: pa.DataType, second: pa.DataType, *, is_fixed: bool = False) -> pa.DataType:
    """A type for both. `is_fixed`: `first` is a table's, which can take fields and nothing else."""
    if first.equals(second):
        return first
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        theirs = {field.name: field.type for field in second}
        own = [
            (each.name, merged(each.type, theirs[each.name], is_fixed=is_fixed))
            if each.name in theirs
            else (each.name, each.type)
            for each in first
        ]
        known = {name for name, _ in own}
        return struct_of([*own, *((n, kind) for n, kind in theirs.items() if n not in known)])
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
