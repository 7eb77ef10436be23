"""A decoded value into a type: what an Arrow array of that type takes.

1. It fits, or it is a ConvertError: a code and the path of the field, never what the value says.
   Nothing is cut off, except that a field without a column is left out, and nothing is rounded but
   an integer in a column of floats.
2. A text takes anything: what is no text becomes JSON. A date takes a text that is one
   (`2026-01-31`), a timestamp one by RFC 3339 with its offset; what is finer than a microsecond is
   left out.
3. An array is made of whole records: whatever Arrow itself refuses is found record by record.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from math import isnan
from typing import Any

import pyarrow as pa

from replog_pipeline.values.types import column_key

Convert = Callable[[Any], Any]

FRAME, SCHEMA, MESSAGE, MALFORMED = "frame", "schema", "message", "malformed"
TYPE, RANGE, TEXT, DEPTH, INTERNAL = "type", "range", "text", "depth", "internal"
CODES = (FRAME, SCHEMA, MESSAGE, MALFORMED, TYPE, RANGE, TEXT, DEPTH, INTERNAL)
"""Of a value: it has no id of a registry before it; the id names no schema that reads it; it is
another message; it is none of its encoding; a field has another type, or does not fit into its
column; a text is no Unicode; it nests too deep; its decoder failed.
"""
DOUBLE_BITS = 64
FLOAT = struct.Struct("<f")
DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


class ConvertError(Exception):
    """`code`: of `CODES`; `where`: the path of the field; its text is both."""

    def __init__(self, code: str, where: str = "") -> None:
        super().__init__(code)
        self.code, self.where = code, where

    def below(self, name: str) -> ConvertError:
        """The same, seen from the record that has the field `name`."""
        return ConvertError(self.code, f"{name}.{self.where}" if self.where else name)

    def __str__(self) -> str:
        return f"{self.code}: {self.where}" if self.where else self.code


class Written(float):
    """A number of JSON, and how it is written there: for a decimal."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Written:
        made = super().__new__(cls, text)
        made.text = text
        return made


def converter(kind: pa.DataType) -> Convert:
    """For values of `kind`, None included. What it returns raises ConvertError."""
    if pa.types.is_struct(kind):
        return struct_converter([(field.name, converter(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return list_converter(converter(kind.value_type))
    if pa.types.is_map(kind):
        return map_converter(converter(kind.item_type))
    if pa.types.is_integer(kind):
        return integer_converter(kind.bit_width)
    if pa.types.is_floating(kind):
        return float_converter if kind.bit_width == DOUBLE_BITS else narrow_float_converter
    if pa.types.is_decimal(kind):
        return decimal_converter(kind.precision, kind.scale)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return text_converter
    return exact_converter(kind)


def struct_converter(fields: list[tuple[str, Convert]]) -> Convert:
    """A column takes the field of its own name, else the first one that is the same to Spark."""
    by_key = {column_key(name): (name, field) for name, field in fields}

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ConvertError(TYPE)
        row = {}
        for name, field in fields:
            if name in value:
                row[name] = named(name, field, value[name])
        if len(row) < len(value):
            for key in value:
                name, field = by_key.get(column_key(key), ("", text_converter))
                if name and name not in row:
                    row[name] = named(name, field, value[key])
        return row

    return convert


def named(name: str, field: Convert, value: Any) -> Any:
    try:
        return field(value)
    except ConvertError as error:
        raise error.below(name) from None


def list_converter(item: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise ConvertError(TYPE)
        return [named(f"[{number}]", item, each) for number, each in enumerate(value)]

    return convert


def map_converter(item: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ConvertError(TYPE)
        return [(str(key), named("[]", item, each)) for key, each in value.items()]

    return convert


def integer_converter(bits: int) -> Convert:
    limit = 1 << (bits - 1)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, bool) or not (
            isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        ):
            raise ConvertError(TYPE)
        if not -limit <= value < limit:
            raise ConvertError(RANGE)
        return int(value)

    return convert


def float_converter(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConvertError(TYPE)
    try:
        return float(value)
    except OverflowError:
        raise ConvertError(RANGE) from None


def narrow_float_converter(value: Any) -> Any:
    """For 32 bits: what was written as a double fits when it is the same number there."""
    found = float_converter(value)
    if isinstance(value, float) and not isnan(value):
        try:
            is_same = FLOAT.unpack(FLOAT.pack(value))[0] == value
        except OverflowError:
            is_same = False
        if not is_same:
            raise ConvertError(RANGE)
    return found


def decimal_converter(precision: int, scale: int) -> Convert:
    context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])
    step = decimal.Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, decimal.Decimal, Written)):
            raise ConvertError(TYPE)
        exact = value.text if isinstance(value, Written) else value
        try:
            return decimal.Decimal(exact).quantize(step, context=context)
        except decimal.DecimalException:
            raise ConvertError(RANGE) from None

    return convert


def text_converter(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (datetime.date, datetime.time, decimal.Decimal, uuid.UUID)):
        return plain(value)
    return as_text(value)


def exact_converter(kind: pa.DataType) -> Convert:
    """For a type that has one class of Python."""
    wanted, written = EXACT[kind.id], WRITTEN.get(kind.id)

    def convert(value: Any) -> Any:
        # A datetime is a date to Python.
        if value is None or type(value) is wanted:
            return value
        if written is None or not isinstance(value, str) or not written.fullmatch(value):
            raise ConvertError(TYPE)
        try:
            return wanted.fromisoformat(value.upper())  # type: ignore[attr-defined]
        except ValueError:
            raise ConvertError(RANGE) from None

    return convert


EXACT: dict[int, type] = {
    pa.bool_().id: bool,
    pa.binary().id: bytes,
    pa.large_binary().id: bytes,
    pa.date32().id: datetime.date,
    pa.timestamp("us").id: datetime.datetime,
}
WRITTEN = {pa.date32().id: DATE, pa.timestamp("us").id: DATE_TIME}


def as_text(value: Any) -> str:
    """A value that has no column of its own: JSON, bytes in base64."""
    return json.dumps(value, default=plain, ensure_ascii=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)
