"""A column of values into two: `value_decoded` and `decode_error`.

1. Of a value exactly one of the two is there; of a tombstone, and of a value that says null,
   neither. No value stops the others. An error is a code and the path of a field.
2. What is the registry's fault, and not the record's, is raised: the batch is not written.
3. An id that the registry does not know is looked up once for each task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from replog_pipeline.columns import DECODED, ERROR
from replog_pipeline.errors import PipelineError, RegistryError
from replog_pipeline.values.convert import INTERNAL, RANGE, SCHEMA, TEXT, ConvertError, converter
from replog_pipeline.values.framing import message_indexes, unframed
from replog_pipeline.values.protobuf import ProtobufSchema
from replog_pipeline.values.registry import AnySchema, OpenRegistry, Registry
from replog_pipeline.values.settings import Decoding
from replog_pipeline.values.types import merged

LONGEST_ERROR = 500
OPEN_AT_ONCE = 16
UNKNOWN_KEPT = 10_000

Decode = Callable[[bytes], Any]


def columns_type(kind: pa.DataType) -> pa.DataType:
    """Of both columns together."""
    return pa.struct([pa.field(DECODED, kind), pa.field(ERROR, pa.string())])


def decoded(
    values: Iterator[pa.Array], decoding: Decoding, kind: pa.DataType
) -> Iterator[pa.Array]:
    """Each array of values as an array of `columns_type(kind)`. PipelineError for what is no
    record's fault: by this name its line is found in what Spark makes of it.
    """
    try:
        decode, convert = decoder(decoding), converter(kind)
        for array in values:
            if array.null_count == len(array):
                yield pa.nulls(len(array), columns_type(kind))
                continue
            yield column(array.to_pylist(), lambda value: convert(decode(value)), kind)
    except RegistryError as error:
        raise PipelineError(str(error)) from None


def column(values: list[bytes | None], read: Decode, kind: pa.DataType) -> pa.Array:
    found: list[Any] = []
    errors: list[str | None] = []
    for value in values:
        try:
            found.append(None if value is None else read(value))
            errors.append(None)
        except (RegistryError, ImportError, MemoryError):
            raise
        except Exception as error:
            # Whatever a value makes of its decoder: the next one is none the worse.
            found.append(None)
            errors.append(line(error))
    return pa.StructArray.from_arrays(
        [array_of(found, errors, kind), pa.array(errors, pa.string())],
        fields=list(columns_type(kind)),
    )


def array_of(found: list[Any], errors: list[str | None], kind: pa.DataType) -> pa.Array:
    """What Arrow itself refuses (text that is no Unicode, a year too far) becomes an error of its
    record.
    """
    try:
        return pa.array(found, kind)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        for number, each in enumerate(found):
            try:
                pa.array([each], kind)
            except UnicodeError:
                found[number], errors[number] = None, TEXT
            except (pa.ArrowException, ValueError, OverflowError, TypeError):
                found[number], errors[number] = None, RANGE
        return pa.array(found, kind)


def line(error: Exception) -> str:
    """Of an error that is none of ours its class alone: its text may have what the value says."""
    text = str(error) if isinstance(error, ConvertError) else f"{INTERNAL}: {type(error).__name__}"
    return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}..."


def decoder(decoding: Decoding) -> Decode:
    """Of one task. What it returns raises ConvertError, RegistryError."""
    if isinstance(decoding.schema, Registry):
        return registry_decoder(connection(decoding))
    schema, framed = file_schema(decoding), decoding.framed
    return lambda value: by_schema(schema, value, unframed(value)[1] if framed else 0, framed)


def registry_decoder(registry: OpenRegistry) -> Decode:
    unknown: set[int] = set()

    def decode(value: bytes) -> Any:
        number, at = unframed(value)
        schema = None if number in unknown else registry.by_id(number)
        if schema is None:
            if len(unknown) < UNKNOWN_KEPT:
                unknown.add(number)
            raise ConvertError(SCHEMA)
        return by_schema(schema, value, at, framed=True)

    return decode


def by_schema(schema: AnySchema, value: bytes, at: int, framed: bool) -> Any:
    if framed and isinstance(schema, ProtobufSchema):
        indexes, at = message_indexes(value, at)
        schema.check_indexes(indexes)
    return schema.decode(value, at)


@lru_cache(OPEN_AT_ONCE)
def file_schema(decoding: Decoding) -> AnySchema:
    """Kept by a worker from task to task."""
    return decoding.from_file()


@lru_cache(OPEN_AT_ONCE)
def connection(decoding: Decoding) -> OpenRegistry:
    """Kept by a worker from task to task, with the schemas that it brought."""
    assert isinstance(decoding.schema, Registry)
    return decoding.schema.open(decoding.kind, decoding.message)


def type_of(found_schemas: Sequence[AnySchema], table: pa.DataType | None = None) -> pa.DataType:
    """The type of `value_decoded`: that of all versions of the schema, and of the table that there
    is.
    """
    types = [schema.type for schema in found_schemas]
    found = types[0]
    for each in types[1:]:
        found = merged(found, each)
    return found if table is None else merged(table, found, is_fixed=True)


def schemas(decoding: Decoding, topics: Sequence[str]) -> list[AnySchema]:
    """The oldest first; it asks the registry. PipelineError where there is none."""
    if not isinstance(decoding.schema, Registry):
        return [file_schema(decoding)]
    registry = connection(decoding)
    subjects = decoding.subjects or tuple(f"{topic}-value" for topic in topics)
    return [schema for subject in subjects for schema in registry.versions(subject)]
