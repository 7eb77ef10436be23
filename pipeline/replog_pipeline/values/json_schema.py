"""JSON values, and the type that a JSON Schema gives them.

1. `properties` make a struct, `additionalProperties` alone a map, `items` an array; a type or null
   is the type. What has no one type (other unions, tuples, a schema within itself, a reference to
   elsewhere) is JSON text.
2. A `format` of `date` is a date, of `date-time` a timestamp; a number that is a multiple of 0.1,
   0.01 .. is a decimal with so many places, exactly as it is written.
3. A value is parsed, and fits the columns or not; no other rule of the schema is checked.

Source: JSON Schema, drafts 4 to 2020-12: what these have in common.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from math import isinf
from typing import Any

import pyarrow as pa

from replog_pipeline.errors import PipelineError
from replog_pipeline.values.convert import DEPTH, MALFORMED, RANGE, ConvertError, Written
from replog_pipeline.values.types import TEXT, TIMESTAMP, merged, struct_of

SCALARS = {
    "string": TEXT,
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
FORMATS = {"date": pa.date32(), "date-time": TIMESTAMP}
DIGITS = 38
"""Of Spark's decimals."""
DEEPEST = 50


class JsonSchema:
    """`text` as a file or a registry has it. `is_plain`: no column holds what has no one type."""

    def __init__(self, text: str, place: str, references: tuple[str, ...] = ()) -> None:
        """`references` are not followed. PipelineError that names `place`."""
        try:
            self.root = json.loads(text)
        except ValueError as error:
            raise PipelineError(f"{place} is no JSON Schema: {error}") from None
        if not isinstance(self.root, (dict, bool)):
            raise PipelineError(f"{place} is no JSON Schema: it is no object")
        self.is_plain = True
        self.parse_float: Callable[[str], float] = finite
        self.type = self.type_of(self.root)

    def decode(self, value: bytes, at: int) -> Any:
        return parsed(value[at:], self.parse_float)

    def type_of(self, schema: Any, above: tuple[str, ...] = ()) -> pa.DataType:
        """`above`: the references on the way here."""
        if not isinstance(schema, Mapping) or len(above) > DEEPEST:
            return self.any()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = None if reference in above else self.looked_up(reference)
            return self.type_of(found, (*above, reference))
        if isinstance(schema.get("allOf"), list):
            return self.all_of(schema, above)
        branches = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(branches, list):
            return self.only([each for each in branches if not is_null(each)], above)
        kinds = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kinds, list):
            named = [{**schema, "type": kind} for kind in kinds if kind != "null"]
            return self.only(named, above)
        if kinds == "object":
            return self.object_type(schema, above)
        if kinds == "array":
            items = schema.get("items")
            if isinstance(items, Mapping):
                return pa.list_(self.type_of(items, above))
        is_scalar = isinstance(kinds, str) and kinds in SCALARS
        return self.scalar_type(kinds, schema) if is_scalar else self.any()

    def any(self) -> pa.DataType:
        """JSON text."""
        self.is_plain = False
        return TEXT

    def scalar_type(self, kind: str, schema: Mapping[str, Any]) -> pa.DataType:
        wanted = schema.get("format")
        if kind == "string" and isinstance(wanted, str):
            return FORMATS.get(wanted, TEXT)
        places = decimal_places(schema.get("multipleOf")) if kind == "number" else 0
        if not places:
            return SCALARS[kind]
        self.parse_float = partial(finite, make=Written)
        return pa.decimal128(DIGITS, places)

    def only(self, branches: list[Any], above: tuple[str, ...]) -> pa.DataType:
        """Of a union's branches but null: the type, where there is one."""
        return self.type_of(branches[0], above) if len(branches) == 1 else self.any()

    def all_of(self, schema: Mapping[str, Any], above: tuple[str, ...]) -> pa.DataType:
        """What all parts say together; structs are one struct."""
        own = {name: part for name, part in schema.items() if name != "allOf"}
        parts = [*schema["allOf"], *([own] if "type" in own or "properties" in own else [])]
        types = [found for found in (self.type_of(part, above) for part in parts) if found != TEXT]
        if not types:
            return self.any()
        found = types[0]
        for each in types[1:]:
            found = merged(found, each)
        return found

    def object_type(self, schema: Mapping[str, Any], above: tuple[str, ...]) -> pa.DataType:
        properties, more = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, Mapping) and properties:
            return struct_of(
                [(str(name), self.type_of(part, above)) for name, part in properties.items()]
            )
        if isinstance(more, Mapping) and more:
            return pa.map_(TEXT, self.type_of(more, above))
        return self.any()

    def looked_up(self, reference: str) -> Any:
        """What a reference within this schema names; None for any other."""
        if not reference.startswith("#"):
            return None
        found: Any = self.root
        for part in reference.lstrip("#/").split("/") if reference != "#" else ():
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                return None
            found = found[name]
        return found


def is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def decimal_places(step: Any) -> int:
    """Of a power of ten below 1; 0 for any other."""
    if isinstance(step, bool) or not isinstance(step, float):
        return 0
    _, digits, exponent = Decimal(repr(step)).normalize().as_tuple()
    return -int(exponent) if digits == (1,) and -DIGITS <= int(exponent) < 0 else 0


def parsed(value: bytes, parse_float: Callable[[str], float]) -> Any:
    """ConvertError for what is no JSON."""
    try:
        return json.loads(value, parse_constant=no_constant, parse_float=parse_float)
    except RecursionError:
        raise ConvertError(DEPTH) from None
    except ValueError:
        raise ConvertError(MALFORMED) from None


def finite(text: str, make: Callable[[str], float] = float) -> float:
    found = make(text)
    if isinf(found):
        raise ConvertError(RANGE)
    return found


def no_constant(name: str) -> Any:
    raise ValueError
