"""JSON values decoded by Spark itself; which they are is `values.native`'s to say.

A value is read by `from_json` as the first of two elements of an array in an object. The names of
the array, of the second element and of the column for Spark's complaint are nobody's to guess: they
are new for each batch.

Not here: values that Spark is not sure of (`values.column`).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replog_pipeline.values.column import connection
from replog_pipeline.values.framing import HEADER
from replog_pipeline.values.json_schema import JsonSchema
from replog_pipeline.values.native import can_read, unsure
from replog_pipeline.values.registry import AnySchema, Registry
from replog_pipeline.values.settings import Decoding

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

OPTIONS = {
    "mode": "PERMISSIVE",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "dateFormat": "yyyy-MM-dd",
}


def native_json(
    decoding: Decoding, found: Sequence[AnySchema], kind: pa.DataType
) -> NativeJson | None:
    """What reads most values without Python; None where nothing does."""
    if not can_read(kind, found):
        return None
    if not isinstance(decoding.schema, Registry):
        return NativeJson(kind, decoding.framed, None)
    known = connection(decoding).known
    ids = [number for number, each in known.items() if isinstance(each, JsonSchema)]
    return NativeJson(kind, True, ids)


class NativeJson:
    """Of one batch. `framed`: whether a registry's id stands before each value; `ids`: those that
    are known, None for any.
    """

    def __init__(self, kind: pa.DataType, framed: bool, ids: Sequence[int] | None) -> None:
        self.kind, self.framed, self.ids = kind, framed, ids
        self.array, self.fault, self.mark = (uuid.uuid4().hex for _ in range(3))

    def parsed(self, value: Column) -> Column:
        """To be kept in a column of its own, of which the others are made."""
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.types import from_arrow_type
        from pyspark.sql.types import ArrayType, IntegerType, StringType, StructType

        row = from_arrow_type(self.kind)
        assert isinstance(row, StructType)
        element = StructType([*row.fields]).add(self.mark, IntegerType())
        schema = StructType().add(self.array, ArrayType(element)).add(self.fault, StringType())
        text = self.text(value)
        whole = f.concat(f.lit(f'{{"{self.array}":['), text, f.lit(f',{{"{self.mark}":1}}]}}'))
        is_sure = f.is_valid_utf8(text) & ~text.rlike(unsure(self.kind))
        if self.framed:
            is_sure = is_sure & self.has_frame(value)
        options = OPTIONS | {"columnNameOfCorruptRecord": self.fault}
        return f.from_json(f.when(is_sure, whole), schema, options)

    def text(self, value: Column) -> Column:
        from pyspark.sql import functions as f

        rest = f.substr(value, f.lit(HEADER + 1)) if self.framed else value
        return rest.cast("string")

    def has_frame(self, value: Column) -> Column:
        from pyspark.sql import functions as f

        head = f.hex(f.substring(value, 1, HEADER))
        if self.ids is None:
            return (f.octet_length(value) >= HEADER) & head.startswith("00")
        return head.isin([f"{number:010X}" for number in self.ids])

    def is_read(self, parsed: Column) -> Column:
        """Never null."""
        from pyspark.sql import functions as f

        array = parsed[self.array]
        found = parsed[self.fault].isNull() & (f.size(array) == 2) & (array[1][self.mark] == 1)
        return f.coalesce(found, f.lit(False))

    def row(self, parsed: Column) -> Column:
        return parsed[self.array][0].dropFields(self.mark)
