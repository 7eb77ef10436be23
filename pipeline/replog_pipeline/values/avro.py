"""Avro values, by the library fastavro.

1. A value is read by the schema that it was written with, to its last byte. No reader's schema
   takes part: a field that a record has not is null, not its default.
2. A union of a type and null is the type; one of numbers the widest of them; any other, and a
   record within itself, is JSON text.
3. A schema that contains itself is read by fastavro's Python code: its compiled code would overflow
   the stack of the process on a value that nests a million times. An array whose items have no
   bytes is not read: a few bytes would count a billion of them.

Source: the Avro specification, 1.12. Not here: object container files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from replog_pipeline.errors import PipelineError
from replog_pipeline.values.convert import DEPTH, MALFORMED, RANGE, ConvertError
from replog_pipeline.values.types import TEXT, TIMESTAMP, WIDTHS, struct_of, wider

PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": TEXT,
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": TEXT,
}
LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("int", "time-millis"): TEXT,
    ("long", "time-micros"): TEXT,
    ("long", "local-timestamp-millis"): TEXT,
    ("long", "local-timestamp-micros"): TEXT,
    ("string", "uuid"): TEXT,
}
"""What fastavro makes of them; other logical types are left as they are written."""
DIGITS = 38
"""Of Spark's decimals."""


class AvroSchema:
    """`text` as a file or a registry has it; `references`: the schemas that it names."""

    def __init__(self, text: str, place: str, references: tuple[str, ...] = ()) -> None:
        """PipelineError that names `place`."""
        from fastavro import parse_schema, schemaless_reader
        from fastavro._read_py import schemaless_reader as recursive_reader

        self.named: dict[str, Any] = {}
        try:
            for reference in references:
                parse_schema(json.loads(reference), named_schemas=self.named)
            self.schema = parse_schema(json.loads(text), named_schemas=self.named)
        except Exception as error:
            # fastavro raises many kinds: its own, KeyError and TypeError among them.
            raise PipelineError(f"{place} is no Avro schema: {text_of(error)}") from None
        self.is_recursive = self.is_endless = False
        self.type = self.type_of(self.schema)
        self.reader = recursive_reader if self.is_recursive else schemaless_reader

    def decode(self, value: bytes, at: int) -> Any:
        if self.is_endless:
            raise ConvertError(RANGE)
        stream = io.BytesIO(value)
        stream.seek(at)
        try:
            found = self.reader(stream, self.schema, None)
        except ConvertError:
            raise
        except RecursionError:
            raise ConvertError(DEPTH) from None
        except Exception:
            raise ConvertError(MALFORMED) from None
        if stream.tell() < len(value):
            raise ConvertError(MALFORMED)
        return found

    def type_of(self, schema: Any, above: tuple[str, ...] = ()) -> pa.DataType:
        """`above`: the records that this is in."""
        if isinstance(schema, list):
            return self.union_type([each for each in schema if each != "null"], above)
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return PRIMITIVES[schema]
            schema = self.named[schema]
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.type_of(kind, above)
        if kind in ("record", "error"):
            if schema["name"] in above:
                self.is_recursive = True
                return TEXT
            inner = (*above, schema["name"])
            return struct_of(
                [(each["name"], self.type_of(each["type"], inner)) for each in schema["fields"]]
            )
        if kind == "array":
            self.is_endless = self.is_endless or self.is_empty(schema["items"])
            return pa.list_(self.type_of(schema["items"], above))
        if kind == "map":
            return pa.map_(TEXT, self.type_of(schema["values"], above))
        if kind == "enum":
            return TEXT
        logical = schema.get("logicalType", "")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return decimal_type(schema)
        if (kind, logical) in LOGICAL:
            return LOGICAL[kind, logical]
        return pa.binary() if kind == "fixed" else self.type_of(kind, above)

    def is_empty(self, schema: Any, above: tuple[str, ...] = ()) -> bool:
        """Whether its values have no bytes."""
        if isinstance(schema, list):
            return False
        if isinstance(schema, str):
            if schema in PRIMITIVES or schema in above:
                return schema == "null"
            schema = self.named[schema]
        kind = schema["type"]
        if kind in ("record", "error"):
            inner = (*above, schema["name"])
            return all(self.is_empty(each["type"], inner) for each in schema["fields"])
        return bool(kind == "null" or (kind == "fixed" and schema["size"] == 0))

    def union_type(self, branches: list[Any], above: tuple[str, ...]) -> pa.DataType:
        types = [self.type_of(each, above) for each in branches]
        if len(types) == 1:
            return types[0]
        if types and all(each in WIDTHS for each in types):
            found = types[0]
            for each in types[1:]:
                found = wider(found, each)
            return found
        return TEXT


def decimal_type(schema: Mapping[str, Any]) -> pa.DataType:
    precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
    return pa.decimal128(precision, scale) if precision <= DIGITS else TEXT


def text_of(error: Exception) -> str:
    """With the class, which says what the text alone does not; one line."""
    return " ".join(f"{type(error).__name__} {error}".split()).strip()
